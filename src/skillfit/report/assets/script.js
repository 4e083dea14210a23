const filters = document.querySelector(".filters");
if (filters) {
  filters.hidden = false;
  filters.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of filters.children) other.setAttribute("aria-pressed", String(other === button));
    for (const item of document.querySelectorAll("details.item")) {
      item.hidden = button.dataset.change !== "all" && item.dataset.change !== button.dataset.change;
    }
  });
}
