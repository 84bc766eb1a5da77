// Tables that say in numbers what plots show. Texts are only ever texts.

/** Rows of text into the body of a table; with addresses, the first cell of each is a heading that leads there. */
export function fillTable(id, rows, addresses = null) {
  document.getElementById(id).replaceChildren(...rows.map((texts, number) => {
    const row = document.createElement("tr");
    texts.forEach((text, place) => row.append(addresses && place === 0 ? heading(text, addresses[number]) : numberCell(text)));
    return row;
  }));
}

function heading(text, address) {
  const cell = document.createElement("th");
  cell.scope = "row";
  const link = document.createElement("a");
  link.className = "name";
  link.href = address;
  const isolated = document.createElement("bdi");
  isolated.textContent = text;
  link.append(isolated);
  cell.append(link);
  return cell;
}

function numberCell(text) {
  const cell = document.createElement("td");
  cell.className = "number";
  cell.textContent = text;
  return cell;
}
