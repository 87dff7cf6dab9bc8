// What clusters and containers have to be asked comes after the page is there: they may take their time.
"use strict";
async function fill(place, address) {
  place.textContent = "Asking the cluster…";
  const response = await fetch(address).catch(() => null);
  place.innerHTML = response && response.ok ? await response.text() : "";
  if (!place.innerHTML) place.textContent = "No answer.";
}
for (const place of document.querySelectorAll("[data-load]")) fill(place, place.dataset.load);
// What a job has written comes with its states, the last of it with its end.
const state = document.getElementById("job-state");
let before = state?.textContent;
state?.addEventListener("replaced", () => {
  const outputs = document.getElementById("outputs");
  if (outputs && state.textContent !== before) fill(outputs, outputs.dataset.load);
  before = state.textContent;
});
for (const details of document.querySelectorAll("[data-load-open]")) {
  details.addEventListener("toggle", () => {
    if (details.open) fill(details.querySelector("div"), details.dataset.loadOpen);
  });
}
