"use strict";
document.documentElement.classList.add("scripted");

const items = [...document.querySelectorAll("details.item")];
const chunks = [...document.querySelectorAll("details.chunk")];
const search = document.querySelector("#item-search");
const pageSize = 25;
let change = "all";
let pages = 1;

// Show the items that match the search and the chosen change, a page at a time.
function showItems() {
  const wanted = search.value.trim().toLowerCase();
  const matching = items.filter((item) =>
    (change === "all" || item.dataset.change === change) &&
    (!wanted || item.dataset.text.includes(wanted)));
  const shown = new Set(matching.slice(0, pages * pageSize));
  for (const item of items) item.hidden = !shown.has(item);
  for (const chunk of chunks) {
    chunk.open = true;
    chunk.firstElementChild.hidden = true;
  }
  document.querySelector("#item-count").textContent = `${shown.size} of ${matching.length} shown`;
  document.querySelector("#item-more").hidden = shown.size === matching.length;
}

// A link to an item opens it, and shows it where the list hides it.
function openTarget() {
  const item = document.getElementById(location.hash.slice(1));
  if (!item?.matches("details.item")) return;
  item.hidden = false;
  item.open = true;
  item.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);
document.addEventListener("DOMContentLoaded", openTarget);

// Browsers that cannot style closed parts for paper get them opened. What a person had closed is
// closed again afterwards.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const part of closed) part.open = true;
});
window.addEventListener("afterprint", () => {
  for (const part of closed) part.open = false;
});

if (search) {
  search.addEventListener("input", () => { pages = 1; showItems(); });
  document.querySelector("#item-more").addEventListener("click", () => { pages += 1; showItems(); });
  showItems();
}
document.addEventListener("click", (event) => {
  const chip = event.target.closest("button[data-change]");
  if (chip) {
    for (const other of chip.parentElement.querySelectorAll("button[data-change]")) {
      other.setAttribute("aria-pressed", String(other === chip));
    }
    change = chip.dataset.change;
    pages = 1;
    showItems();
  }
  const copy = event.target.closest("button[data-copy]");
  if (copy) {
    const text = document.querySelector(copy.dataset.copy).value;
    navigator.clipboard.writeText(text).then(
      () => { copy.textContent = "Copied"; },
      () => { copy.textContent = "Select the text to copy it"; });
  }
});
