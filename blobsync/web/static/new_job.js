// Checks the form while the user types: mistakes at the fields that were touched, the exact request beside the form.
"use strict";
const form = document.getElementById("job-form");
const aside = document.getElementById("job-aside");
const touched = new Set();
let number = 0;
let waiting = 0;
let sent = false;

function show(mistakes) {
  const found = new Map();
  for (const one of mistakes) if (!found.has(one.field)) found.set(one.field, one);
  for (const place of form.querySelectorAll("[data-field]")) {
    const name = place.dataset.field;
    const field = form.elements.namedItem(name);
    const one = touched.has(name) || name === "cluster" ? found.get(name) : undefined;
    place.textContent = one ? one.message + (one.hint ? ` (${one.hint})` : "") : "";
    if (field instanceof Element) {
      if (one) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }
  sayOnce();
}

// A cluster file that cannot be read is why nothing is known to be free, too: its mistake stands at the field already.
function sayOnce() {
  const why = document.querySelector("#free .mistake")?.textContent;
  if (why && document.getElementById("mistake-cluster").textContent.startsWith(why)) document.getElementById("free").replaceChildren();
}

async function check(withFields) {
  const mine = ++number;
  const body = new URLSearchParams(new FormData(form));
  aside.setAttribute("aria-busy", "true");
  let answer;
  try {
    const response = await fetch(`/new-job/check${withFields ? "?fields=1" : ""}`, { method: "POST", body });
    if (!response.ok) return;
    answer = await response.json();
  } catch {
    // live.js reports that the server is gone.
    return;
  }
  // Ignore answers that a later request has overtaken.
  if (mine !== number) return;
  aside.removeAttribute("aria-busy");
  if (answer.fields !== undefined) document.getElementById("job-fields").innerHTML = answer.fields;
  const wasOpen = aside.querySelector("details")?.open;
  aside.innerHTML = answer.aside;
  if (wasOpen) aside.querySelector("details")?.setAttribute("open", "");
  show(answer.mistakes);
  form.dataset.checked = String(mine);
}

async function free() {
  const place = document.getElementById("free");
  const name = form.elements.namedItem("cluster").value;
  place.textContent = "Asking the cluster what is free…";
  const response = await fetch(`/clusters/${encodeURIComponent(name)}/free`).catch(() => null);
  if (form.elements.namedItem("cluster").value !== name) return;
  place.innerHTML = response && response.ok ? await response.text() : "";
  sayOnce();
}

form.addEventListener("input", (event) => {
  touched.add(event.target.name);
  if (event.target.name === "cluster") {
    check(true);
    free();
    return;
  }
  clearTimeout(waiting);
  waiting = setTimeout(check, 350, false);
});
// After the question of live.js, which listens here too: what was not sent does not count.
document.addEventListener("submit", (event) => {
  if (event.target !== form || event.defaultPrevented) return;
  if (sent) event.preventDefault();
  sent = true;
});
window.addEventListener("pageshow", () => { sent = false; });
for (const place of form.querySelectorAll("[data-field]")) if (place.textContent.trim()) touched.add(place.dataset.field);
free();
