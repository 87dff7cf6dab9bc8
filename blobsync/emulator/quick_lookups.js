// Makes Azurite find and delete blobs quickly (node -r quick_lookups.js .../azurite/dist/src/blob/main.js).
//
// Azurite asks LokiJS for {accountName, containerName, name}. LokiJS uses the index of the first key only and
// then scans what that leaves, which is every blob of the account: each request gets slower with what is
// stored. Asking for the most selective key first gives the same answer from an index.
"use strict";

const path = require("path");

const loki = require(require.resolve("lokijs", { paths: [path.dirname(process.argv[1])] }));

function rank(key, value) {
  if ((key === "name" || key === "blobName") && typeof value === "string") return 0;
  return key === "containerName" ? 1 : 2;
}

const find = loki.Resultset.prototype.find;
loki.Resultset.prototype.find = function (query, firstOnly) {
  if (query === null || typeof query !== "object" || Object.keys(query).length < 2) {
    return find.call(this, query, firstOnly);
  }
  const keys = Object.keys(query).sort((one, other) => rank(one, query[one]) - rank(other, query[other]));
  return find.call(this, Object.fromEntries(keys.map((key) => [key, query[key]])), firstOnly);
};

// A removal through a query makes LokiJS sort every index of the collection anew, so deleting a blob costs more the more
// there are. Given the one document itself, LokiJS takes it out of the sorted indexes where it stands.
const removeSeveral = loki.Collection.prototype.removeBatchByPositions;
loki.Collection.prototype.removeBatchByPositions = function (positions) {
  if (positions.length !== 1) return removeSeveral.call(this, positions);
  this.remove(this.data[positions[0]]);
};
