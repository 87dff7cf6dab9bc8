// Keeps the selection of jobs when the list is refreshed, and appends new lines to the log of a job.
"use strict";
const picked = new Set();
document.addEventListener("change", (event) => {
  if (event.target.name !== "job") return;
  if (event.target.checked) picked.add(event.target.value);
  else picked.delete(event.target.value);
});
document.addEventListener("replaced", () => {
  for (const box of document.querySelectorAll('input[name="job"]')) box.checked = picked.has(box.value);
});

const log = document.getElementById("log");
// More lines would slow the browser down.
const MOST_LINES = 20000;
if (log && log.dataset.follow) {
  const follow = document.getElementById("follow");
  document.getElementById("follow-label").hidden = false;
  let lines = log.textContent.split("\n").length;
  const toEnd = () => {
    if (follow.checked) log.scrollTop = log.scrollHeight;
  };
  toEnd();
  follow.addEventListener("change", toEnd);
  // Scroll along only if the end of the log is visible.
  log.addEventListener("scroll", () => {
    follow.checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  }, { passive: true });
  const source = new EventSource(log.dataset.follow);
  source.onmessage = (event) => {
    const more = JSON.parse(event.data);
    log.append(`${more.join("\n")}\n`);
    lines += more.length;
    if (lines > 2 * MOST_LINES) {
      log.textContent = log.textContent.split("\n").slice(-MOST_LINES).join("\n");
      lines = MOST_LINES;
    }
    toEnd();
  };
  source.addEventListener("over", () => {
    source.close();
    log.dataset.over = "yes";
    document.getElementById("follow-label").hidden = true;
    document.getElementById("abort")?.remove();
  });
}
