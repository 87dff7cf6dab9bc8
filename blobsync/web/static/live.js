// Follows the stream that <body data-live> names: each event is a JSON object, the id of an element -> its new content,
// which the server has escaped. Says so when the server is gone, and goes on when it is back.
"use strict";
const connection = document.getElementById("connection");
let source = null;
let lost = false;
let gone = false;

function say(text) {
  connection.textContent = text;
  connection.hidden = !text;
}

function put(parts) {
  for (const [id, content] of Object.entries(parts)) {
    if (id === "load") {
      if (content) location.assign(content);
      continue;
    }
    const place = document.getElementById(id);
    if (!place) continue;
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    place.innerHTML = content;
    if (focused) document.getElementById(focused)?.focus();
    place.dispatchEvent(new Event("replaced", { bubbles: true }));
  }
}

function follow() {
  const address = document.body.dataset.live;
  if (!address || source) return;
  source = new EventSource(address);
  source.onmessage = (event) => {
    if (lost) location.reload();
    else put(JSON.parse(event.data));
  };
  source.onerror = () => {
    stop();
    lost = true;
    look();
  };
}

function stop() {
  source?.close();
  source = null;
}

// To a browser a refused stream looks like a stopped server; a request tells them apart.
async function look() {
  let status = 0;
  try {
    status = (await fetch("/login", { cache: "no-store" })).status;
  } catch {
    gone = true;
    say("blobsync web does not answer. If it was stopped, start it again in the project: blobsync web");
  }
  if (status) {
    const known = await fetch("/whoami", { cache: "no-store" }).then((answer) => answer.status, () => 0);
    // A restarted server has no stream for what it does not know, such as a plan; the reloaded page says so.
    if (known === 200 && gone) return location.reload();
    if (known === 200) return setTimeout(follow, 1000);
    gone ||= known > 0;
    if (known) say("blobsync web was started again. Log in with the link that it printed, or open its login file; this page then goes on.");
  }
  setTimeout(look, 1000);
}

document.addEventListener("visibilitychange", () => {
  // Hidden pages close their stream: a browser allows few connections to one server.
  if (document.hidden) stop();
  else if (!lost) follow();
});
follow();

// Buttons that ask for confirmation.
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.ask ?? event.target.dataset.ask;
  if (question && !confirm(question)) event.preventDefault();
});
