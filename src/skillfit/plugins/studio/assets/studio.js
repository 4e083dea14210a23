"use strict";
// This file is loaded in the head. Listeners on the document miss nothing that a person does while
// the page is still loading; what needs elements waits for DOMContentLoaded.
document.documentElement.classList.add("scripted");

// Parts of the page that the server sends again when they changed. What a person opened, chose,
// typed or focused in them stays as it is.
const sent = new Map();
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll("[data-part]")) {
    sent.set(element.dataset.part, element.innerHTML.trim());
  }
});

// The first reply repeats what the page was loaded with. Elements that stay do not move.
function isNew(name, html) {
  const parsed = document.createElement("template");
  parsed.innerHTML = html;
  const before = sent.get(name);
  sent.set(name, parsed.innerHTML.trim());
  return sent.get(name) !== before;
}

function replacePart(element, html) {
  const active = document.activeElement;
  const inside = active && active !== document.body && element.contains(active);
  if (inside && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) return;
  const focused = inside ? placeOf(active, element) : null;
  const open = new Set();
  for (const details of element.querySelectorAll("details[open]")) open.add(keyOf(details));
  const chosen = new Set();
  for (const box of element.querySelectorAll("input[type=checkbox]:checked")) chosen.add(box.value);
  const typed = new Map();
  for (const field of element.querySelectorAll("input[id], select[id], textarea[id]")) {
    if (isChanged(field)) typed.set(field.id, field.value);
  }
  const places = dotPlaces(element);
  element.innerHTML = html;
  for (const details of element.querySelectorAll("details")) {
    if (open.has(keyOf(details))) details.open = true;
  }
  for (const box of element.querySelectorAll("input[type=checkbox]")) {
    if (chosen.has(box.value)) box.checked = true;
  }
  for (const field of element.querySelectorAll("input[id], select[id], textarea[id]")) {
    if (typed.has(field.id)) field.value = typed.get(field.id);
  }
  growScrub();
  if (focused) [...element.querySelectorAll(focused.tag)][focused.at]?.focus();
  moveDots(element, places);
}

function isChanged(field) {
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const first = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
  return field.value !== first?.value;
}

// The slider over the steps of the pool. It stays at the latest step when it is there.
function growScrub() {
  const scrub = document.querySelector(".scrub");
  const steps = document.querySelector("[data-pool-steps]");
  if (!scrub || !steps) return;
  const [first, last] = steps.dataset.poolSteps.split(" ");
  const range = scrub.querySelector("input");
  const latest = scrub.hidden || range.value === range.max;
  range.min = first;
  range.max = last;
  if (latest) range.value = last;
  if (latest) document.querySelector("#pool-now").textContent = last;
  scrub.hidden = first === last;
}

// Which of the elements of its kind has the focus.
function placeOf(active, element) {
  const tag = active.tagName;
  return { tag, at: [...element.querySelectorAll(tag)].indexOf(active) };
}

// Effects of edits move to their new place as evidence comes in.
function dotPlaces(element) {
  const places = new Map();
  for (const row of element.querySelectorAll("tr[data-edit]")) {
    const dot = row.querySelector("circle");
    if (dot) places.set(row.dataset.edit, dot.cx.baseVal.value);
  }
  return places;
}

function moveDots(element, places) {
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of element.querySelectorAll("tr[data-edit]")) {
    const drawn = row.querySelector("svg.effect g");
    const before = places.get(row.dataset.edit);
    if (!drawn || before === undefined) continue;
    const distance = before - drawn.querySelector("circle").cx.baseVal.value;
    if (distance) {
      const frames = [{ transform: `translateX(${distance}px)` }, { transform: "none" }];
      drawn.animate(frames, { duration: 600, easing: "ease-out" });
    }
  }
}

function keyOf(details) {
  return details.dataset.keep || details.querySelector("summary")?.textContent.trim() || "";
}

// A part that is replaced between press and release would lose the click. It waits for the release.
let pressed = false;
const waiting = new Map();

function showParts(parts) {
  for (const [name, html] of Object.entries(parts)) waiting.set(name, html);
  if (pressed || document.querySelector("#ask[open]")) return;
  for (const [name, html] of waiting) {
    const element = document.querySelector(`[data-part="${name}"]`);
    if (element && isNew(name, html)) replacePart(element, html);
  }
  waiting.clear();
  markChosen();
  dropStaleMessage();
}

function release() {
  pressed = false;
  if (waiting.size) setTimeout(showParts, 0, {});
}
document.addEventListener("pointerdown", () => (pressed = true), true);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, release, true);

// A browser opens six connections to a site, and a stream of updates holds one. So it is closed in
// hidden tabs, and for good when the run is over. The first reply brings what changed meanwhile.
let watchAgain = () => {};
function watchRun() {
  if (!document.body.dataset.live) return;
  const offline = document.querySelector("#offline");
  let stream = null;
  let over = false;
  function close() {
    stream?.close();
    stream = null;
  }
  function open() {
    if (stream || over || document.hidden) return;
    stream = new EventSource(document.body.dataset.live);
    stream.addEventListener("parts", (event) => showParts(JSON.parse(event.data)));
    stream.addEventListener("problem", (event) => {
      const problem = document.querySelector("#problem");
      problem.textContent = JSON.parse(event.data);
      problem.hidden = false;
      over = true;
      close();
    });
    stream.addEventListener("over", () => {
      over = true;
      close();
    });
    stream.addEventListener("open", () => (offline.hidden = true));
    stream.addEventListener("error", () => (offline.hidden = false));
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  watchAgain = () => {
    close();
    open();
  };
  open();
}
document.addEventListener("DOMContentLoaded", watchRun);

// "Stopping" is only true until the run has stopped.
function dropStaleMessage() {
  const state = document.querySelector("[data-state]")?.dataset.state;
  if (state !== "running") document.querySelector(".message[data-while-running]")?.remove();
}

// A row of a list shows its details beside the list, and the list stays where it is. Without a
// script, or when something goes wrong, the link loads the page with both.
async function showBeside(link) {
  const reply = await fetch(link.href);
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  const side = page.querySelector("#side");
  if (!reply.ok || !side) return location.assign(link.href);
  document.querySelector("#side").replaceWith(side);
  sent.set("side", side.innerHTML.trim());
  history.pushState({}, "", link.href);
  if (page.body.dataset.live) {
    document.body.dataset.live = page.body.dataset.live;
    watchAgain();
  }
  markChosen();
  side.scrollTop = 0;
  if (side.getBoundingClientRect().top > window.innerHeight / 2) side.scrollIntoView();
}

// The row whose details are shown.
function markChosen() {
  const shown = new URLSearchParams(location.search);
  for (const link of document.querySelectorAll("[data-master] tbody a")) {
    const own = new URLSearchParams(link.search);
    const named = ["edit", "item"].some((key) => own.has(key) && own.get(key) === shown.get(key));
    if (shown.has("edit") || shown.has("item")) link.closest("tr").classList.toggle("chosen", named);
  }
}
document.addEventListener("DOMContentLoaded", markChosen);
document.addEventListener("keydown", (event) => {
  const wanted = { j: "next", k: "prev" }[event.key];
  if (!wanted || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  document.querySelector(`#side a[rel=${wanted}]`)?.click();
});
window.addEventListener("popstate", () => location.reload());

// The pool of edits as it was after an earlier step.
async function showPool(scrub) {
  const range = scrub.querySelector("input");
  const then = document.querySelector("#pool-then");
  const latest = range.value === range.max;
  document.querySelector("#pool-now").textContent = range.value;
  if (!latest) {
    const wanted = range.value;
    const reply = await fetch(`${scrub.dataset.pool}?step=${wanted}`);
    if (range.value !== wanted) return;
    then.innerHTML = await reply.text();
  }
  then.hidden = latest;
  document.querySelector('[data-part="pool"]').hidden = !latest;
}

// What was typed stays when another form of the page is sent, until its own form is.
const draftKey = (field) => `draft ${location.pathname} ${field.dataset.draft}`;
document.addEventListener("DOMContentLoaded", () => {
  for (const field of document.querySelectorAll("[data-draft]")) {
    field.value = sessionStorage.getItem(draftKey(field)) ?? field.value;
  }
});
document.addEventListener("input", (event) => {
  if (event.target.dataset.draft) sessionStorage.setItem(draftKey(event.target), event.target.value);
});
document.addEventListener("submit", (event) => {
  const field = event.target.querySelector("[data-draft]");
  if (field) sessionStorage.removeItem(draftKey(field));
});

// Lines of a skill by worth.
function hideLines(least) {
  const bound = least.value === "" ? -Infinity : Number(least.value) / 100;
  for (const line of document.querySelectorAll(".doc [data-worth]")) {
    line.hidden = Number(line.dataset.worth) < bound;
  }
}

document.addEventListener("input", (event) => {
  const scrub = event.target.closest(".scrub");
  if (scrub) showPool(scrub);
  if (event.target.id === "least-worth") hideLines(event.target);
});
// Filters take effect when they are changed, without the button. The page that is loaded then keeps
// the focus where it was, so that the arrow keys reach every option.
const CHANGED = "changed-select";
document.addEventListener("change", (event) => {
  const field = event.target;
  const filter = field.matches("form.filters[method=get] select");
  if (!filter && field.id !== "base") return;
  sessionStorage.setItem(CHANGED, `${location.pathname} ${field.name}`);
  field.form.requestSubmit(filter ? null : field.form.querySelector("[value=show]"));
});
document.addEventListener("DOMContentLoaded", () => {
  const changed = sessionStorage.getItem(CHANGED);
  sessionStorage.removeItem(CHANGED);
  for (const field of document.querySelectorAll("select")) {
    if (`${location.pathname} ${field.name}` === changed) field.focus();
  }
});
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("#result")?.scrollIntoView({ block: "center" });
});
// Parts of the page wait while a question is open: the form that asks must not be replaced.
function ask(question, answer, proceed) {
  const dialog = document.querySelector("#ask");
  dialog.querySelector("#ask-text").textContent = question;
  dialog.querySelector("[value=yes]").textContent = answer;
  dialog.returnValue = "no";
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") proceed();
    release();
  };
  dialog.showModal();
}
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !event.target.dataset.confirmed) {
    event.preventDefault();
    ask(question, event.submitter?.textContent ?? "Yes", () => {
      event.target.dataset.confirmed = "yes";
      event.target.requestSubmit(event.submitter);
    });
    return;
  }
  const busy = event.submitter?.dataset.busy;
  if (busy) event.submitter.textContent = busy;
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-master] tbody a, #side .chip, #side [rel]");
  const plain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (link && plain && link.pathname === location.pathname) {
    event.preventDefault();
    showBeside(link).catch(() => location.assign(link.href));
  }
  if (event.target.id === "pool-latest") {
    const scrub = event.target.closest(".scrub");
    const range = scrub.querySelector("input");
    range.value = range.max;
    showPool(scrub);
  }
  const copy = event.target.closest("button[data-copy]");
  if (!copy) return;
  const copied = document.querySelector(copy.dataset.copy);
  navigator.clipboard.writeText(copied.value ?? copied.textContent).then(
    () => { copy.textContent = "Copied"; },
    () => { copy.textContent = "Copying is not allowed here"; });
});
