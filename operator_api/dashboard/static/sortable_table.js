// Tables that are sorted by a click on the head of a column, or with the keyboard: the heads become buttons.

/** Make a table sortable; the function it gives sorts again, after rows have been replaced. */
export function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  let column = null;
  let direction = 1;

  function sort() {
    if (column === null) return;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
    rows.sort(([one], [other]) => compare(one, other, direction));
    body.append(...rows.map(([, row]) => row));
    heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  }

  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      direction = column === place ? -direction : 1;
      column = place;
      sort();
    });
    head.append(button);
  });
  return sort;
}

/** A number, a text, or nothing; a row that only says something has no cell there. */
function valueOf(cell) {
  const text = cell?.textContent.trim() ?? "–";
  if (!cell?.classList.contains("number")) return text;
  return text === "–" ? null : Number(text.replaceAll(",", ""));
}

/** Nothing comes last, whichever way. */
function compare(one, other, direction) {
  if (one === null || other === null) return (one === null) - (other === null);
  return direction * (typeof one === "number" ? one - other : one.localeCompare(other));
}
