"use strict";
// Sorts the table of runs by the column of a button, and shows the curves of the runs that are checked.
const body = document.querySelector(".runs tbody");
const all = document.querySelector(".runs thead input");
const boxes = [...body.querySelectorAll("input")];
const SLOTS = 16;

function show(run, slot) {
  for (const each of document.querySelectorAll(`[data-run="${run}"]`)) {
    if (slot === null) delete each.dataset.slot;
    else each.dataset.slot = slot;
  }
}

function look(run) {
  const found = document.querySelector(`[data-run="${run}"]`).dataset.slot;
  return found === undefined ? null : Number(found);
}

function choose(box) {
  if (box.checked === (look(box.value) !== null)) return;
  const uses = Array(SLOTS).fill(0);
  for (const each of boxes) if (look(each.value) !== null) uses[look(each.value)] += 1;
  show(box.value, box.checked ? uses.indexOf(Math.min(...uses)) : null);
}

function count() {
  const chosen = boxes.filter((box) => box.checked).length;
  all.checked = chosen === boxes.length;
  all.indeterminate = chosen > 0 && !all.checked;
}

function key(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return { text, number: text === "" ? NaN : number, none: text === "–" || text === "NaN" };
}

function sort(head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => [key(row, head.cellIndex), row]);
  rows.sort(([a], [b]) => {
    if (a.none || b.none) return a.none - b.none;
    const both = !Number.isNaN(a.number) && !Number.isNaN(b.number);
    const order = both ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true });
    return down ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
}

body.addEventListener("change", (event) => { choose(event.target); count(); });
all.addEventListener("change", () => {
  for (const box of boxes) { box.checked = all.checked; choose(box); }
});
for (const button of document.querySelectorAll(".runs button")) {
  button.addEventListener("click", () => sort(button.parentNode));
}
count();
