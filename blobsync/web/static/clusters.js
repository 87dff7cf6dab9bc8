// Loads what clusters and containers have to be asked for after the page is shown, since they may be slow.
"use strict";
async function fill(place, address) {
  place.textContent = "Asking the cluster…";
  const response = await fetch(address).catch(() => null);
  place.innerHTML = response && response.ok ? await response.text() : "";
  if (!place.innerHTML) place.textContent = "No answer.";
}
for (const place of document.querySelectorAll("[data-load]")) fill(place, place.dataset.load);
// The outputs of a job are loaded again whenever its state changes, while they are shown.
const state = document.getElementById("job-state");
let before = state?.textContent;
state?.addEventListener("replaced", () => {
  const outputs = document.getElementById("outputs");
  const fold = outputs?.closest("details");
  if (fold?.open && state.textContent !== before) fill(outputs, fold.dataset.loadOpen);
  before = state.textContent;
});
for (const details of document.querySelectorAll("[data-load-open]")) {
  details.addEventListener("toggle", () => {
    if (details.open) fill(details.querySelector("div"), details.dataset.loadOpen);
  });
}
