// <button data-copy="ID"> copies the content of the element with that id.
"use strict";
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  const note = document.getElementById("copied");
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText(field.value ?? field.textContent);
    if (note) note.textContent = "Copied.";
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 2000);
  } catch {
    if (field.select) field.select();
    else getSelection().selectAllChildren(field);
    if (note) note.textContent = "Selected. Press Ctrl+C, on a Mac Cmd+C.";
  }
});
