// A blob server for measurements: what azcopy, rclone, obstore, the Azure SDK and blobsync ask of a block blob account,
// from memory, at a tenth of Azurite's time a request. It believes whoever asks: no signature is looked at.
//
//   node fast_blob_server.js [--crc64 HOW] [--flat NUMBER] [--arrow] [CERTIFICATE KEY]
//       listens on a free port of 127.0.0.1, and says which on standard output; ends when standard input is closed.
//       HOW it treats the CRC64 of a block (x-ms-content-crc64): check, as the service does, which is the default; ignore,
//       as Azurite does with --loose; refuse, as Azurite does else. NUMBER empty blobs are in the folder base/tree of the
//       container benchmark/flat. With --arrow, who asks for a flat listing in Arrow's form gets it, as from an account that has it.
//
// Answers: Put Blob, Put Block, Put Block List, Get Block List, Get Blob and Get Blob Properties (ranges, If-Match), List
// Blobs (prefix, delimiter, marker, startFrom; in Arrow's form endBefore), Delete Blob, Create and Get Container, copies from a URL of its own, and
// Lease Blob (acquire, renew, release, break at once). It checks each Content-MD5 that it is sent, and stores one for a Put
// Blob. Of a block it checks the CRC64 as well, and tells its own where no MD5 was sent.
// Not here: other blob types, a lease's id on other requests, changing it, snapshots, tags, batches, tiers that mean
// anything, times other than now.
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const http = require("http");
const https = require("https");
const { arrowPage } = require("./arrow_page.js");

const containers = new Map();
const VERSION = "2023-11-03";
let counter = 0;

class Container {
  constructor() {
    this.blobs = new Map();
    this.blocks = new Map();
    this.leases = new Map();
    this.sorted = null;
  }

  // The id of whoever has the lease of a blob now.
  holder(name) {
    const lease = this.leases.get(name);
    return lease && lease.until > Date.now() ? lease.id : undefined;
  }

  put(name, blob) {
    if (!this.blobs.has(name)) this.sorted = null;
    this.blobs.set(name, blob);
    this.blocks.delete(name);
  }

  names() {
    // By code units, not by code points: the same for every name that the measurements use.
    if (this.sorted === null) this.sorted = [...this.blobs.keys()].sort();
    return this.sorted;
  }
}

class Failure extends Error {
  constructor(status, code) {
    super(code);
    this.status = status;
    this.code = code;
  }
}

function md5(body) {
  return crypto.createHash("md5").update(body).digest("base64");
}

// CRC-64/NVME, eight bytes a step: a table of 256 for each of them, in two halves, since whole numbers of 64 bits are slow here.
const LOW = new Int32Array(8 * 256);
const HIGH = new Int32Array(8 * 256);
for (let byte = 0; byte < 256; byte += 1) {
  let low = byte;
  let high = 0;
  for (let bit = 0; bit < 8; bit += 1) {
    const odd = low & 1;
    low = (low >>> 1) | (high << 31);
    high >>>= 1;
    if (odd) {
      low ^= 0xac4bc9b5;
      high ^= 0x9a6c9329;
    }
  }
  LOW[byte] = low;
  HIGH[byte] = high;
}
for (let at = 256; at < LOW.length; at += 1) {
  const low = LOW[at - 256];
  const high = HIGH[at - 256];
  LOW[at] = LOW[low & 255] ^ ((low >>> 8) | (high << 24));
  HIGH[at] = HIGH[low & 255] ^ (high >>> 8);
}

function crc64(body) {
  let low = -1;
  let high = -1;
  let at = 0;
  for (const whole = body.length - 7; at < whole; at += 8) {
    low ^= body[at] | (body[at + 1] << 8) | (body[at + 2] << 16) | (body[at + 3] << 24);
    high ^= body[at + 4] | (body[at + 5] << 8) | (body[at + 6] << 16) | (body[at + 7] << 24);
    const a = 0x700 | (low & 255);
    const b = 0x600 | ((low >>> 8) & 255);
    const c = 0x500 | ((low >>> 16) & 255);
    const d = 0x400 | (low >>> 24);
    const e = 0x300 | (high & 255);
    const f = 0x200 | ((high >>> 8) & 255);
    const g = 0x100 | ((high >>> 16) & 255);
    const h = high >>> 24;
    low = LOW[a] ^ LOW[b] ^ LOW[c] ^ LOW[d] ^ LOW[e] ^ LOW[f] ^ LOW[g] ^ LOW[h];
    high = HIGH[a] ^ HIGH[b] ^ HIGH[c] ^ HIGH[d] ^ HIGH[e] ^ HIGH[f] ^ HIGH[g] ^ HIGH[h];
  }
  for (; at < body.length; at += 1) {
    const index = (low ^ body[at]) & 255;
    low = ((low >>> 8) | (high << 24)) ^ LOW[index];
    high = (high >>> 8) ^ HIGH[index];
  }
  const sum = Buffer.alloc(8);
  sum.writeInt32LE(~low, 0);
  sum.writeInt32LE(~high, 4);
  return sum.toString("base64");
}

function checked(request, body) {
  const sum = md5(body);
  const told = request.headers["content-md5"];
  if (told && told !== sum) throw new Failure(400, "Md5Mismatch");
  return sum;
}

function condition(request, blob) {
  const headers = request.headers;
  if (headers["if-none-match"] === "*" && blob) throw new Failure(409, "BlobAlreadyExists");
  if (headers["if-match"] && (!blob || (headers["if-match"] !== "*" && headers["if-match"] !== blob.etag))) {
    throw new Failure(412, "ConditionNotMet");
  }
}

function properties(request) {
  const kept = { metadata: [] };
  for (const [name, value] of Object.entries(request.headers)) {
    if (name.startsWith("x-ms-meta-")) kept.metadata.push([name, value]);
  }
  kept.type = request.headers["x-ms-blob-content-type"] || request.headers["content-type"] || "application/octet-stream";
  return kept;
}

function blobOf(parts, size, sum, kept) {
  counter += 1;
  return { parts, size, md5: sum, etag: `"0x${counter.toString(16).toUpperCase().padStart(15, "0")}"`, date: now(), ...kept };
}

let second = 0;
let text = "";
function now() {
  const today = Math.floor(Date.now() / 1000);
  if (today !== second) {
    second = today;
    text = new Date(today * 1000).toUTCString();
  }
  return text;
}

function answer(response, status, headers, body) {
  const fixed = ["x-ms-request-id", `r${counter}`, "x-ms-version", VERSION, "Date", now(), "Content-Length"];
  response.writeHead(status, [...fixed, body ? body.length : 0, ...headers]);
  response.end(body);
}

function fail(response, status, code, bodiless) {
  const body = bodiless ? undefined : Buffer.from(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>${code}</Message></Error>`);
  answer(response, status, ["x-ms-error-code", code, "Content-Type", "application/xml"], body);
}

function written(response, blob) {
  const sum = blob.md5 ? ["Content-MD5", blob.md5] : [];
  answer(response, 201, ["ETag", blob.etag, "Last-Modified", blob.date, "x-ms-request-server-encrypted", "false", ...sum]);
}

function putBlob(request, response, box, name, body) {
  demandUnleased(box, name);
  condition(request, box.blobs.get(name));
  const source = request.headers["x-ms-copy-source"];
  const blob = source ? copied(source, request) : blobOf([body], body.length, checked(request, body), properties(request));
  if (!source && request.headers["x-ms-blob-content-md5"]) blob.md5 = request.headers["x-ms-blob-content-md5"];
  box.put(name, blob);
  written(response, blob);
}

function sourceOf(address) {
  const [account, container, name] = split(new URL(address).pathname);
  const blob = containers.get(`${account}/${container}`)?.blobs.get(name);
  if (!blob) throw new Failure(404, "CannotVerifyCopySource");
  return blob;
}

function copied(address, request) {
  const source = sourceOf(address);
  const asked = request.headers["x-ms-source-if-match"];
  if (asked && asked !== source.etag) throw new Failure(412, "SourceConditionNotMet");
  return blobOf(source.parts, source.size, source.md5, { type: source.type, metadata: source.metadata });
}

// Conditions and answers: https://learn.microsoft.com/rest/api/storageservices/lease-blob.
function leaseBlob(request, response, box, name) {
  const blob = box.blobs.get(name);
  if (!blob) throw new Failure(404, "BlobNotFound");
  const headers = request.headers;
  const action = headers["x-ms-lease-action"];
  const holder = box.holder(name);
  const known = box.leases.get(name);
  const id = headers[action === "acquire" ? "x-ms-proposed-lease-id" : "x-ms-lease-id"];
  if (action === "acquire") {
    const seconds = Number(headers["x-ms-lease-duration"]);
    if (!id || !(seconds === -1 || (seconds >= 15 && seconds <= 60))) throw new Failure(400, "InvalidHeaderValue");
    if (holder !== undefined && holder !== id) throw new Failure(409, "LeaseAlreadyPresent");
    box.leases.set(name, { id, seconds, until: seconds === -1 ? Infinity : Date.now() + seconds * 1000 });
  } else if (action === "break") {
    if (!known) throw new Failure(409, "LeaseNotPresentWithLeaseOperation");
    box.leases.delete(name);
  } else if (!known || known.id !== id) {
    throw new Failure(409, "LeaseIdMismatchWithLeaseOperation");
  } else if (action === "renew") {
    known.until = known.seconds === -1 ? Infinity : Date.now() + known.seconds * 1000;
  } else if (action === "release") {
    box.leases.delete(name);
  } else {
    throw new Failure(400, "InvalidHeaderValue");
  }
  const status = { acquire: 201, break: 202 }[action] || 200;
  const told = action === "break" ? ["x-ms-lease-time", "0"] : ["x-ms-lease-id", id];
  answer(response, status, ["ETag", blob.etag, "Last-Modified", blob.date, ...told]);
}

// What is leased is written or deleted by its holder alone.
function demandUnleased(box, name) {
  if (box.leases.size && box.holder(name) !== undefined) throw new Failure(412, "LeaseIdMissing");
}

function putBlock(request, response, box, name, query, body) {
  if (request.headers["x-ms-copy-source"]) {
    const [from, to] = /bytes=(\d+)-(\d+)/.exec(request.headers["x-ms-source-range"]).slice(1).map(Number);
    body = slice(sourceOf(request.headers["x-ms-copy-source"]), from, to + 1);
  }
  const sums = blockSums(request, body);
  if (!box.blocks.has(name)) box.blocks.set(name, new Map());
  box.blocks.get(name).set(query.get("blockid"), body);
  answer(response, 201, [...sums, "x-ms-request-server-encrypted", "false"]);
}

// https://learn.microsoft.com/rest/api/storageservices/put-block: of a request with an MD5 the answer has the MD5, of any
// other the CRC64; one with both is refused.
function blockSums(request, body) {
  const told = request.headers["x-ms-content-crc64"];
  if (told && howCrc64 === "refuse") throw new Failure(500, "FeatureNotSupported");
  if (request.headers["content-md5"]) {
    if (told && howCrc64 === "check") throw new Failure(400, "InvalidHeaderValue");
    return ["Content-MD5", checked(request, body)];
  }
  if (howCrc64 !== "check") return [];
  const sum = crc64(body);
  if (told && told !== sum) throw new Failure(400, "Crc64Mismatch");
  return ["x-ms-content-crc64", sum];
}

function putBlockList(request, response, box, name, body) {
  const old = box.blobs.get(name);
  demandUnleased(box, name);
  condition(request, old);
  const fresh = box.blocks.get(name) || new Map();
  const committed = new Map((old && old.ids ? old.ids : []).map((id, index) => [id, old.parts[index]]));
  const ids = [];
  const parts = [];
  for (const [, kind, id] of body.toString().matchAll(/<(Latest|Committed|Uncommitted)>([^<]*)</g)) {
    const part = (kind === "Committed" ? undefined : fresh.get(id)) || (kind === "Uncommitted" ? undefined : committed.get(id));
    if (!part) throw new Failure(400, "InvalidBlockList");
    ids.push(id);
    parts.push(part);
  }
  const size = parts.reduce((sum, part) => sum + part.length, 0);
  const blob = blobOf(parts, size, request.headers["x-ms-blob-content-md5"], { ...properties(request), ids });
  box.put(name, blob);
  answer(response, 201, ["ETag", blob.etag, "Last-Modified", blob.date, "x-ms-request-server-encrypted", "false"]);
}

function getBlockList(response, box, name) {
  const blob = box.blobs.get(name);
  const fresh = box.blocks.get(name);
  if (!blob && !fresh) throw new Failure(404, "BlobNotFound");
  const shown = (pairs) => pairs.map(([id, part]) => `<Block><Name>${id}</Name><Size>${part.length}</Size></Block>`).join("");
  const kept = blob && blob.ids ? blob.ids.map((id, index) => [id, blob.parts[index]]) : [];
  const lists = `<CommittedBlocks>${shown(kept)}</CommittedBlocks><UncommittedBlocks>${shown([...(fresh || [])])}</UncommittedBlocks>`;
  const headers = blob ? ["ETag", blob.etag, "x-ms-blob-content-length", blob.size] : [];
  answer(response, 200, ["Content-Type", "application/xml", ...headers], Buffer.from(`<?xml version="1.0"?><BlockList>${lists}</BlockList>`));
}

function slice(blob, from, to) {
  if (blob.parts.length === 1) return blob.parts[0].subarray(from, to);
  const found = [];
  let start = 0;
  for (const part of blob.parts) {
    if (start + part.length > from && start < to) found.push(part.subarray(Math.max(0, from - start), to - start));
    start += part.length;
  }
  return found.length === 1 ? found[0] : Buffer.concat(found);
}

function getBlob(request, response, box, name) {
  const blob = box.blobs.get(name);
  if (!blob) throw new Failure(404, "BlobNotFound");
  condition(request, blob);
  const headers = ["ETag", blob.etag, "Last-Modified", blob.date, "Content-Type", blob.type, "Accept-Ranges", "bytes"];
  headers.push("x-ms-blob-type", "BlockBlob", "x-ms-creation-time", blob.date, "x-ms-server-encrypted", "false");
  headers.push("x-ms-lease-status", "unlocked", "x-ms-lease-state", "available");
  for (const [key, value] of blob.metadata) headers.push(key, value);
  const range = /bytes=(\d+)-(\d*)/.exec(request.headers["x-ms-range"] || request.headers.range || "");
  if (request.method === "HEAD") {
    if (blob.md5) headers.push("Content-MD5", blob.md5);
    headers.push("x-ms-access-tier", "Hot", "x-ms-request-id", "r", "x-ms-version", VERSION, "Content-Length", blob.size);
    response.writeHead(200, headers);
    response.end();
    return;
  }
  if (!range) {
    if (blob.md5) headers.push("Content-MD5", blob.md5);
    answer(response, 200, headers, slice(blob, 0, blob.size));
    return;
  }
  const from = Number(range[1]);
  const to = Math.min(range[2] ? Number(range[2]) + 1 : blob.size, blob.size);
  if (from >= blob.size) throw new Failure(416, "InvalidRange");
  const body = slice(blob, from, to);
  if (blob.md5) headers.push("x-ms-blob-content-md5", blob.md5);
  if (request.headers["x-ms-range-get-content-md5"] === "true") headers.push("Content-MD5", md5(body));
  answer(response, 206, [...headers, "Content-Range", `bytes ${from}-${to - 1}/${blob.size}`], body);
}

function escaped(name) {
  return name.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
}

function firstFrom(names, wanted) {
  let low = 0;
  let high = names.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (names[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function entryOf(name, blob) {
  const sum = blob.md5 ? `<Content-MD5>${blob.md5}</Content-MD5>` : "<Content-MD5/>";
  return (
    `<Blob><Name>${escaped(name)}</Name><Properties><Creation-Time>${blob.date}</Creation-Time><Last-Modified>${blob.date}</Last-Modified>` +
    `<Etag>${blob.etag.slice(1, -1)}</Etag><Content-Length>${blob.size}</Content-Length><Content-Type>${blob.type}</Content-Type>${sum}` +
    "<BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier><LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState></Properties></Blob>"
  );
}

function asksForArrow(request, delimiter) {
  const { accept = "", "x-ms-version": version } = request.headers;
  return hasArrow && !delimiter && accept.includes("application/vnd.apache.arrow.stream") && version >= "2026-10-06";
}

function listArrow(response, box, prefix, from, before, most) {
  const names = box.names();
  const first = firstFrom(names, from);
  let at = first;
  const isWanted = (name) => name.startsWith(prefix) && !(before && name >= before);
  while (at < names.length && at < first + most && isWanted(names[at])) at += 1;
  const rows = names.slice(first, at).map((name) => [name, box.blobs.get(name)]);
  const marker = at < names.length && isWanted(names[at]) ? names[at] : "";
  answer(response, 200, ["Content-Type", "application/vnd.apache.arrow.stream"], arrowPage(rows, marker));
}

function list(request, response, box, query) {
  const prefix = query.get("prefix") || "";
  const delimiter = query.get("delimiter") || "";
  const most = Math.min(Number(query.get("maxresults") || 5000), 5000);
  const names = box.names();
  const entries = [];
  const start = query.get("startFrom") || "";
  const from = query.get("marker") || (start > prefix ? start : prefix);
  if (asksForArrow(request, delimiter)) {
    listArrow(response, box, prefix, from, query.get("endBefore"), most);
    return;
  }
  let at = firstFrom(names, from);
  while (at < names.length && names[at].startsWith(prefix) && entries.length < most) {
    const cut = delimiter ? names[at].indexOf(delimiter, prefix.length) : -1;
    if (cut < 0) {
      entries.push(entryOf(names[at], box.blobs.get(names[at])));
      at += 1;
    } else {
      const folder = names[at].slice(0, cut + delimiter.length);
      entries.push(`<BlobPrefix><Name>${escaped(folder)}</Name></BlobPrefix>`);
      while (at < names.length && names[at].startsWith(folder)) at += 1;
    }
  }
  const next = at < names.length && names[at].startsWith(prefix) ? escaped(names[at]) : "";
  const body = `<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Prefix>${escaped(prefix)}</Prefix><Blobs>${entries.join("")}</Blobs><NextMarker>${next}</NextMarker></EnumerationResults>`;
  answer(response, 200, ["Content-Type", "application/xml"], Buffer.from(body));
}

function split(path) {
  const [, account, container, ...rest] = path.split("/");
  return [account, container, decodeURIComponent(rest.join("/"))];
}

function ofContainer(request, response, key, query) {
  if (request.method === "PUT") {
    if (containers.has(key)) throw new Failure(409, "ContainerAlreadyExists");
    containers.set(key, new Container());
    answer(response, 201, ["ETag", '"0x1"', "Last-Modified", now()]);
  } else if (request.method === "DELETE") {
    containers.delete(key);
    answer(response, 202, []);
  } else if (!containers.has(key)) {
    throw new Failure(404, "ContainerNotFound");
  } else if (query.get("comp") === "list") {
    list(request, response, containers.get(key), query);
  } else {
    answer(response, 200, ["ETag", '"0x1"', "Last-Modified", now()]);
  }
}

function ofBlob(request, response, box, name, query, body) {
  const comp = query.get("comp");
  if (request.method === "PUT") {
    if (comp === "block") putBlock(request, response, box, name, query, body);
    else if (comp === "blocklist") putBlockList(request, response, box, name, body);
    else if (comp === "lease") leaseBlob(request, response, box, name);
    else if (comp) answer(response, 200, []);
    else putBlob(request, response, box, name, body);
  } else if (request.method === "DELETE") {
    demandUnleased(box, name);
    if (!box.blobs.delete(name)) throw new Failure(404, "BlobNotFound");
    box.leases.delete(name);
    box.sorted = null;
    answer(response, 202, []);
  } else if (comp === "blocklist") {
    getBlockList(response, box, name);
  } else {
    getBlob(request, response, box, name);
  }
}

function serve(request, response, body) {
  const mark = request.url.indexOf("?");
  const query = new URLSearchParams(mark < 0 ? "" : request.url.slice(mark + 1));
  const [account, container, name] = split(mark < 0 ? request.url : request.url.slice(0, mark));
  try {
    if (!container) {
      answer(response, 200, ["x-ms-account-kind", "StorageV2", "x-ms-sku-name", "Standard_LRS"]);
    } else if (!name) {
      ofContainer(request, response, `${account}/${container}`, query);
    } else {
      const box = containers.get(`${account}/${container}`);
      if (!box) throw new Failure(404, "ContainerNotFound");
      ofBlob(request, response, box, name, query, body);
    }
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    fail(response, error.status, error.code, request.method === "HEAD");
  }
}

function receive(request, response) {
  if (request.method === "GET" || request.method === "HEAD") {
    serve(request, response, undefined);
    return;
  }
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => serve(request, response, chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)));
}

const words = process.argv.slice(2);
const howCrc64 = words[0] === "--crc64" ? words.splice(0, 2)[1] : "check";
const flat = words[0] === "--flat" ? Number(words.splice(0, 2)[1]) : 0;
const hasArrow = words[0] === "--arrow" && Boolean(words.splice(0, 1));
if (flat) {
  const box = new Container();
  const nothing = Buffer.alloc(0);
  for (let number = 0; number < flat; number += 1) {
    const name = `base/tree/img_${String(number).padStart(7, "0")}.jpg`;
    box.blobs.set(name, blobOf([nothing], 0, md5(nothing), { type: "image/jpeg", metadata: [] }));
  }
  containers.set("benchmark/flat", box);
}
const [certificate, key] = words;
const server = certificate
  ? https.createServer({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key) }, receive)
  : http.createServer(receive);
server.keepAliveTimeout = 60000;
server.listen(0, "127.0.0.1", () => console.log(`listens on ${certificate ? "https" : "http"}://127.0.0.1:${server.address().port}`));
process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
