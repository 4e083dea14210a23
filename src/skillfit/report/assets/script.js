document.addEventListener("click", (event) => {
  const button = event.target.closest(".filters button");
  if (!button) return;
  for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
  for (const item of document.querySelectorAll("details.item")) {
    item.hidden = button.dataset.change !== "all" && item.dataset.change !== button.dataset.change;
  }
});
document.documentElement.classList.add("scripted");
