const live = document.querySelector("[data-events]");
new EventSource(live.dataset.events).onmessage = (event) => {
  const open = [...live.querySelectorAll("details[open][data-id]")].map((details) => details.dataset.id);
  live.innerHTML = JSON.parse(event.data);
  for (const details of live.querySelectorAll("details[data-id]")) details.open = open.includes(details.dataset.id);
};
