// Tables that say in numbers what plots show. Texts are only ever texts.

/** Rows of text into the body of a table; with headings, the first cell of each is one. */
export function fillTable(id, rows, headings = false) {
  document.getElementById(id).replaceChildren(...rows.map((texts) => {
    const row = document.createElement("tr");
    texts.forEach((text, place) => row.append(headings && place === 0 ? heading(text) : numberCell(text)));
    return row;
  }));
}

function heading(text) {
  const cell = document.createElement("th");
  cell.scope = "row";
  const isolated = document.createElement("bdi");
  isolated.className = "name";
  isolated.textContent = text;
  cell.append(isolated);
  return cell;
}

function numberCell(text) {
  const cell = document.createElement("td");
  cell.className = "number";
  cell.textContent = text;
  return cell;
}
