// What clusters and containers have to be asked comes after the page is there: they may take their time.
"use strict";
async function fill(place, address) {
  place.textContent = "Asking the cluster…";
  const response = await fetch(address).catch(() => null);
  place.innerHTML = response && response.ok ? await response.text() : "";
  if (!place.innerHTML) place.textContent = "No answer.";
}
for (const place of document.querySelectorAll("[data-load]")) fill(place, place.dataset.load);
for (const details of document.querySelectorAll("[data-load-open]")) {
  details.addEventListener("toggle", () => {
    if (details.open) fill(details.querySelector("div"), details.dataset.loadOpen);
  });
}
