// Loaded before Azurite (node -r guard.js .../azurite/dist/src/blob/main.js). It sees to it that the server
// ends: with the process that started it, and quickly when it is told to.
//
//   BLOBSYNC_EMULATOR_WITH_PARENT=1     end when standard input is closed, so also when the parent is killed
"use strict";

const http = require("http");

const servers = new Set();

const emit = http.Server.prototype.emit;
http.Server.prototype.emit = function (event, ...rest) {
  if (event === "listening") servers.add(this);
  return emit.call(this, event, ...rest);
};

// Azurite closes its server on these signals and then writes its database. Connections that clients keep
// open would hold that up for as long as they please. It says that it listens a moment before it handles
// signals: one that comes earlier is passed on when it does.
function cutConnections(signal) {
  for (const server of servers) server.closeAllConnections();
  if (process.argv.includes("--inMemoryPersistence")) process.exit(0);
  setTimeout(() => process.exit(1), 10000).unref();
  if (process.listenerCount(signal) === 1) {
    process.on("newListener", (event) => event === signal && setImmediate(() => process.emit(signal, signal)));
  }
}
process.on("SIGTERM", cutConnections);
process.on("SIGINT", cutConnections);

function end() {
  process.kill(process.pid, "SIGTERM");
}

if (process.env.BLOBSYNC_EMULATOR_WITH_PARENT === "1") {
  process.stdin.on("end", end);
  process.stdin.on("error", end);
  process.stdin.resume();
}
