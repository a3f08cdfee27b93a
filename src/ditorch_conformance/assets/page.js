// Rows are hidden and shown in place: the text of the page is there without a script, too
const search = document.getElementById("search"), failing = document.getElementById("failing"), told = document.getElementById("told");
const rows = [...document.querySelectorAll("tbody tr")].map((row) => ({ row, text: row.textContent.toLowerCase() }));
const sections = [...document.querySelectorAll("section")];

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const { row, text } of rows) {
    row.hidden = !words.every((word) => text.includes(word)) || (failing.checked && row.hasAttribute("data-right"));
  }
  for (const section of sections) {
    const all = section.querySelectorAll("tbody tr").length, left = section.querySelectorAll("tbody tr:not([hidden])").length;
    section.querySelector(".count").textContent = left === all ? "" : `${left} of ${all}`;
    section.querySelector(".grid").hidden = left === 0;
  }
}

let waiting = 0;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 120); });
failing.addEventListener("change", show);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape") { search.value = ""; told.textContent = ""; show(); }
});

// What a cell has to tell, without a mouse: a touch, or the arrow keys from cell to cell
function tell(cell) {
  const row = cell.closest("tr"), column = cell.closest("table").querySelectorAll("thead th")[cell.cellIndex];
  told.textContent = cell.title && `${row.cells[0].textContent} ${column.textContent}: ${cell.textContent}; ${cell.title}`;
}
for (const grid of document.querySelectorAll(".matrix")) {
  grid.addEventListener("click", (event) => { const cell = event.target.closest("td"); if (cell) tell(cell); });
  grid.addEventListener("focusin", (event) => { if (event.target.closest("td")) tell(event.target); });
  grid.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const there = [...grid.querySelectorAll("tbody tr:not([hidden])")], now = document.activeElement.closest("td");
    const line = now ? there.indexOf(now.parentElement) + down : 0, column = now ? now.cellIndex + right : 1;
    const next = there[line] && there[line].cells[column];
    if (!next || next.tagName !== "TD") return;
    next.tabIndex = -1;
    next.focus();
  });
}
