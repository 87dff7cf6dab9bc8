// One page of List Blobs in Arrow's form: a stream of its schema, whose metadata has the marker, and one batch of rows.
// https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc says how messages are
// laid out, Message.fbs and Schema.fbs beside it what is in their tables.
"use strict";

const SCHEMA = 1;
const BATCH = 3;
const [INT, UTF8, TIMESTAMP] = [2, 5, 10];
// A version 5 message, in Message.fbs; microseconds, in Schema.fbs.
const V5 = 4;
const MICROSECONDS = 2;

// What a table has in the place of a field: a number of some size, or another part, which it refers to.
const byte = (value) => ({ size: 1, write: (to, at) => to.writeUInt8(value, at) });
const short = (value) => ({ size: 2, write: (to, at) => to.writeInt16LE(value, at) });
const int = (value) => ({ size: 4, write: (to, at) => to.writeInt32LE(value, at) });
const long = (value) => ({ size: 8, write: (to, at) => to.writeBigInt64LE(BigInt(value), at) });
const part = (put) => ({ size: 4, put });

// Parts of a FlatBuffer (https://flatbuffers.dev/internals) are written one behind the other; offsets lead forwards.
class Flat {
  constructor() {
    this.bytes = Buffer.alloc(1024);
    this.end = 0;
  }

  // Room for so many bytes, of which the one after `head` has an address that can be divided by 8.
  room(size, head = 0) {
    while ((this.end + head) % 8) this.end += 1;
    const at = this.end;
    this.end += size;
    while (this.end > this.bytes.length) this.bytes = Buffer.concat([this.bytes, Buffer.alloc(this.bytes.length)]);
    return at;
  }

  refer(at, put) {
    const found = put(this);
    this.bytes.writeUInt32LE(found - at, at);
  }
}

const text = (value) =>
  part((to) => {
    const bytes = Buffer.from(value);
    const at = to.room(4 + bytes.length + 1);
    to.bytes.writeUInt32LE(bytes.length, at);
    bytes.copy(to.bytes, at + 4);
    return at;
  });

const tables = (items) =>
  part((to) => {
    const at = to.room(4 + 4 * items.length);
    to.bytes.writeUInt32LE(items.length, at);
    items.forEach((item, number) => to.refer(at + 4 + 4 * number, item.put));
    return at;
  });

const pairs = (items) =>
  part((to) => {
    const at = to.room(4 + 16 * items.length, 4);
    to.bytes.writeUInt32LE(items.length, at);
    items.flat().forEach((value, number) => long(value).write(to.bytes, at + 4 + 8 * number));
    return at;
  });

// `null` is a field that it does not have.
const table = (...fields) =>
  part((to) => {
    // The widest fields first, so that each is aligned behind the offset to the table of places.
    const order = fields.map((_, number) => number).filter((number) => fields[number]);
    order.sort((one, other) => fields[other].size - fields[one].size);
    let size = 4;
    const places = fields.map(() => 0);
    for (const number of order) {
      while (size % fields[number].size) size += 1;
      places[number] = size;
      size += fields[number].size;
    }
    const list = to.room(4 + 2 * fields.length + 7);
    to.bytes.writeUInt16LE(4 + 2 * fields.length, list);
    to.bytes.writeUInt16LE(size, list + 2);
    places.forEach((place, number) => to.bytes.writeUInt16LE(place, list + 4 + 2 * number));
    const at = to.room(size);
    to.bytes.writeInt32LE(at - list, at);
    for (const number of order) {
      const field = fields[number];
      if (field.write) field.write(to.bytes, at + places[number]);
      else to.refer(at + places[number], field.put);
    }
    return at;
  });

function message(kind, header, body) {
  const flat = new Flat();
  const root = flat.room(8);
  flat.refer(root, table(short(V5), byte(kind), header, long(body.length)).put);
  const size = flat.room(0);
  const begin = Buffer.alloc(8);
  begin.writeUInt32LE(0xffffffff, 0);
  begin.writeUInt32LE(size, 4);
  return Buffer.concat([begin, flat.bytes.subarray(0, size), body]);
}

const NUMBERS = { [INT]: table(int(64), byte(0)), [TIMESTAMP]: table(short(MICROSECONDS)), [UTF8]: table() };
// Of each column its type, and its value of a blob.
const COLUMNS = {
  Name: [UTF8, (blob, name) => name],
  Etag: [UTF8, (blob) => blob.etag.slice(1, -1)],
  "Content-Length": [INT, (blob) => blob.size],
  "Content-MD5": [UTF8, (blob) => blob.md5 || ""],
  "Last-Modified": [TIMESTAMP, (blob) => Date.parse(blob.date) * 1000],
  "Content-Type": [UTF8, (blob) => blob.type],
  BlobType: [UTF8, () => "BlockBlob"],
  AccessTier: [UTF8, () => "Hot"],
};

// The buffers of a column without nulls: no bits of validity, then ends and letters, or numbers.
function buffersOf(kind, values) {
  if (kind !== UTF8) return [Buffer.alloc(0), Buffer.from(BigUint64Array.from(values, BigInt).buffer)];
  const ends = new Int32Array(values.length + 1);
  values.forEach((value, number) => {
    ends[number + 1] = ends[number] + Buffer.byteLength(value);
  });
  return [Buffer.alloc(0), Buffer.from(ends.buffer), Buffer.from(values.join(""))];
}

// `rows` are pairs of a name and its blob, `marker` is where the next page begins; empty: nowhere.
function arrowPage(rows, marker) {
  const fields = Object.entries(COLUMNS).map(([name, [kind]]) =>
    table(text(name), byte(1), byte(kind), NUMBERS[kind], null, tables([])),
  );
  const said = { NextMarker: marker, NumberOfRecords: String(rows.length) };
  const metadata = Object.entries(said).map(([key, value]) => table(text(key), text(value)));
  const schema = message(SCHEMA, table(short(0), tables(fields), tables(metadata)), Buffer.alloc(0));
  const body = [];
  const places = [];
  let at = 0;
  for (const [kind, value] of Object.values(COLUMNS)) {
    const values = rows.map(([name, blob]) => value(blob, name));
    for (const buffer of buffersOf(kind, values)) {
      const padding = -buffer.length & 7;
      places.push([at, buffer.length]);
      body.push(buffer, Buffer.alloc(padding));
      at += buffer.length + padding;
    }
  }
  const nodes = Object.keys(COLUMNS).map(() => [rows.length, 0]);
  const batch = table(long(rows.length), pairs(nodes), pairs(places));
  const end = Buffer.from([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
  return Buffer.concat([schema, message(BATCH, batch, Buffer.concat(body)), end]);
}

module.exports = { arrowPage };
