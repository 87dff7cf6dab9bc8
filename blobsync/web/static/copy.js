// <button data-copy="ID"> copies what the field with that id holds.
"use strict";
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  const told = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(field.value ?? field.textContent);
    if (told) told.textContent = "Copied.";
  } catch {
    field.select?.();
    if (told) told.textContent = "Selected: copy it with the keyboard.";
  }
});
