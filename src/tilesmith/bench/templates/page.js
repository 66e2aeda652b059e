"use strict";
(() => {
  const form = document.getElementById("filter");
  const table = document.getElementById("entries");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const { text, suite, dtype } = form.elements;
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  function filter() {
    const wanted = text.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      row.hidden =
        (suite.value !== "" && row.dataset.suite !== suite.value) ||
        (dtype.value !== "" && row.dataset.dtype !== dtype.value) ||
        !wanted.every((word) => words.get(row).includes(word));
      shown += row.hidden ? 0 : 1;
    }
    form.querySelector("output").textContent = `${shown} of ${rows.length}`;
  }

  function order(column, direction) {
    const value = (row) => {
      const cell = row.cells[column];
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return cell.classList.contains("number") ? null : cell.textContent;
    };
    const before = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      const by = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return direction === "ascending" ? by : -by;
    };
    body.append(...Array.from(rows).sort(before));
  }

  for (const [column, heading] of Array.from(table.tHead.rows[0].cells).entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", direction);
      order(column, direction);
    });
  }

  // A plot may lead to a product that the filter hides.
  for (const link of document.querySelectorAll('a[href^="#entry-"]')) {
    link.addEventListener("click", () => {
      form.reset();
      filter();
    });
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
