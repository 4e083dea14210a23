"use strict";
// Curves: the exact values of the nearest step under the pointer or the focus, a part of the steps
// by dragging, all of them by a double click. The server draws the part. Without this file the
// values are titles of the marks, and the form above the curve chooses the steps.
const MARKS = "g.point, circle[data-step], svg.history circle";
const DRAG = 8; // pixels of a drag that is no click

function textOf(mark) {
  const title = mark.querySelector("title");
  if (title) {
    mark.dataset.value = title.textContent;
    title.remove(); // the browser would show it too, after a while
  }
  return mark.dataset.value ?? "";
}

function middleOf(mark) {
  const box = mark.getBoundingClientRect();
  return box.left + box.width / 2;
}

// The marks of all curves at the place that is nearest to a point of the window.
function marksNear(svg, x) {
  const marks = [...svg.querySelectorAll(MARKS)];
  const nearest = Math.min(...marks.map((mark) => Math.abs(middleOf(mark) - x)));
  return marks.filter((mark) => Math.abs(Math.abs(middleOf(mark) - x) - nearest) < 1);
}

function boxIn(svg, kind) {
  const figure = svg.closest("figure");
  let box = figure.querySelector(`.${kind}`);
  if (!box) {
    box = document.createElement("div");
    box.className = kind;
    box.setAttribute("role", "presentation");
    figure.append(box);
  }
  return { box, frame: figure.getBoundingClientRect() };
}

function showValues(svg, marks) {
  const { box, frame } = boxIn(svg, "readout");
  box.replaceChildren(...marks.map((mark) => {
    const line = document.createElement("div");
    line.textContent = textOf(mark);
    return line;
  }));
  const right = middleOf(marks[0]) - frame.left;
  const left = Math.max(0, Math.min(right + 10, frame.width - box.offsetWidth));
  box.style.left = `${left}px`;
  box.style.top = `${svg.getBoundingClientRect().bottom - frame.top - box.offsetHeight - 60}px`;
  for (const mark of svg.querySelectorAll(".near")) mark.classList.remove("near");
  for (const mark of marks) mark.classList.add("near");
}

function hideValues(svg) {
  svg.closest("figure").querySelector(".readout")?.remove();
  for (const mark of svg.querySelectorAll(".near")) mark.classList.remove("near");
}

const curveOf = (event) => {
  const svg = event.target.closest?.("figure svg");
  return svg?.querySelector(MARKS) ? svg : null;
};

let drag = null;
document.addEventListener("pointermove", (event) => {
  const svg = curveOf(event);
  if (svg) showValues(svg, marksNear(svg, event.clientX));
  if (!drag) return;
  const { box, frame } = boxIn(drag.svg, "band");
  drag.to = event.clientX;
  const [left, right] = [drag.from, drag.to].sort((a, b) => a - b);
  box.style.left = `${left - frame.left}px`;
  box.style.width = `${right - left}px`;
});
document.addEventListener("pointerout", (event) => {
  const svg = curveOf(event);
  if (svg && !svg.contains(event.relatedTarget)) hideValues(svg);
});
document.addEventListener("focusin", (event) => {
  const mark = event.target.closest("svg a")?.querySelector(MARKS);
  if (mark) showValues(mark.closest("svg"), [mark]);
});
document.addEventListener("focusout", (event) => {
  if (event.target.closest("svg a")) hideValues(event.target.closest("svg"));
});
document.addEventListener("keydown", (event) => {
  const link = event.target.closest?.("svg a");
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!link || !by) return;
  const links = [...link.closest("svg").querySelectorAll("a")];
  links[links.indexOf(link) + by]?.focus();
  event.preventDefault();
});

document.addEventListener("pointerdown", (event) => {
  const svg = curveOf(event);
  if (!svg || event.button || event.pointerType === "touch") return;
  if (!svg.closest("[data-zoom]")?.querySelector("form.zoom")) return;
  drag = { svg, from: event.clientX, to: event.clientX };
});
document.addEventListener("dragstart", (event) => {
  if (drag) event.preventDefault(); // a mark is a link, which a browser would drag
});
document.addEventListener("pointerup", () => {
  if (!drag) return;
  const { svg, from, to } = drag;
  drag = null;
  svg.closest("figure").querySelector(".band")?.remove();
  if (Math.abs(to - from) < DRAG) return;
  const stop = (click) => click.preventDefault();
  document.addEventListener("click", stop, { capture: true, once: true });
  setTimeout(() => document.removeEventListener("click", stop, { capture: true }), 0);
  const inside = [...svg.querySelectorAll("[data-step]")].filter((mark) => {
    const x = middleOf(mark);
    return Math.min(from, to) <= x && x <= Math.max(from, to);
  });
  const steps = inside.map((mark) => Number(mark.dataset.step));
  if (new Set(steps).size < 2) return;
  const form = svg.closest("[data-zoom]").querySelector("form.zoom");
  form.elements.from.value = Math.min(...steps);
  form.elements.to.value = Math.max(...steps);
  showSteps(`${form.action}?${new URLSearchParams(new FormData(form))}`);
});
document.addEventListener("dblclick", (event) => {
  const all = curveOf(event)?.closest("[data-zoom]")?.querySelector("[data-all]");
  if (all && !event.target.closest("a")) showSteps(all.href);
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form.zoom")) return;
  event.preventDefault();
  showSteps(`${form.action}?${new URLSearchParams(new FormData(form))}`);
});
document.addEventListener("click", (event) => {
  const all = event.target.closest("[data-all]");
  if (!all || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  showSteps(all.href);
});

// Only the curve is loaded again. A chosen edit stays beside its list.
async function showSteps(address) {
  const wanted = new URL(address);
  const edit = new URLSearchParams(location.search).get("edit");
  if (edit) wanted.searchParams.set("edit", edit);
  const reply = await fetch(wanted);
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  const drawn = page.querySelector("[data-zoom]");
  if (!reply.ok || !drawn) return location.assign(wanted);
  document.querySelector("[data-zoom]").replaceWith(drawn);
  history.pushState({}, "", wanted);
  if (page.body.dataset.live) {
    document.body.dataset.live = page.body.dataset.live;
    watchAgain();
  }
}
