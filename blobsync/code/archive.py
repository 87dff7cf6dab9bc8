"""Writes the code archive: a zip whose bytes depend on the code alone.

Same snapshot and commit, same bytes: entries in the order of their names, one fixed date, modes 644 and 755
only, content compressed in pieces of one fixed size, whatever the number of cores. The deflate is zlib's on
all cores: ISA-L (``isal``) is twice as fast, but now and then gives other bytes for the same input
(intel/isa-l#140; seen here with levels 1 and 2 and two threads). Another release of zlib may produce
other bytes; the digest does not depend on them.

Layout: APPNOTE.TXT 6.3.10 of PKWARE. The first entry is the manifest. Links are stored as Info-ZIP does:
the target is the content, and the mode says link.

``zipfile`` compresses on one core, and its headers may change with Python's release; in the
tests it reads our archives.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

from blobsync.base.errors import ArchiveError
from blobsync.code.digest import MANIFEST_NAME
from blobsync.code.files import CodeFile
from blobsync.code.git import GitState
from blobsync.code.snapshot import CodeSnapshot, HashedFile, open_source, threads
from blobsync.local.errors import ChangedWhileReadError
from blobsync.local.files import SourceFile

MANIFEST_VERSION = 1

# Of 1..9; 6, the default, takes 2.5 times as long and saves a tenth of the size.
_LEVEL = 1
# Large files are compressed in pieces of this size (bytes), small ones in batches of about it.
_PIECE = 4 * 1024 * 1024
_BATCH = 512 * 1024
_BATCH_FILES = 64

# Of 1,024 random bytes 251 differ, give or take two; of 1,024 bytes of text or machine code far fewer do.
_SAMPLE, _NOISE = 1024, 240

_STORED, _DEFLATED = 0, 8
# 1 January 1980, the first date that a zip can store.
_DATE, _TIME = 0x21, 0
_UTF8 = 0x800
_UNIX = 3 << 8
_FILE_TYPES = {"644": 0o100644, "755": 0o100755, "link": 0o120777}

_MAX32 = 0xFFFFFFFF
_MAX16 = 0xFFFF
# Compressed data may be a little larger than what went in.
_ZIP64_FROM = 0xFFF00000


@dataclass(frozen=True, slots=True)
class _Packed:
    """A piece of a file: ``body`` is what the zip contains for ``data``."""

    data: bytes
    body: bytes
    method: int


@dataclass(slots=True)
class _Entry:
    name: bytes
    mode: str
    offset: int
    method: int = _DEFLATED
    crc: int = 0
    size: int = 0
    packed_size: int = 0
    zip64: bool = False


def manifest(snapshot: CodeSnapshot, git: GitState | None) -> bytes:
    """The archive's manifest: JSON with the digest, the commit and every file."""
    document = {
        "blobsync_manifest": MANIFEST_VERSION,
        "digest": snapshot.digest,
        "git": git and {"commit": git.commit, "dirty": git.dirty, "uncommitted": list(git.uncommitted)},
        "files": [
            {"path": file.path, "mode": file.file.mode, "size": file.size, "sha256": file.sha256} | _target(file)
            for file in snapshot.files
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def _target(file: HashedFile) -> dict[str, str]:
    """The target of a link: needed because a folder of blobs has no links."""
    return {"target": file.file.target} if file.file.mode == "link" else {}


def write_archive(
    snapshot: CodeSnapshot,
    git: GitState | None,
    out: BinaryIO,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the zip to ``out`` (seekable, empty); returns its size in bytes.

    ``progress`` gets the number of newly packed files. Raises ``ChangedWhileReadError`` if a file differs from the
    snapshot, and ``LocalFileError``.
    """
    writer = _Writer(out)
    about = manifest(snapshot, git)
    writer.begin(MANIFEST_NAME, "644", len(about))
    writer.add(_pack(about))
    writer.end()
    pool = ThreadPoolExecutor(threads())
    try:
        for hashed, pieces in _packed_files(pool, snapshot):
            writer.begin(hashed.path, hashed.file.mode, hashed.size)
            for piece in pieces:
                writer.add(piece)
            if writer.end() != hashed.crc:
                raise ChangedWhileReadError(f"{hashed.path} changed while it was being packed", path=hashed.path)
            progress(1)
    finally:
        pool.shutdown(cancel_futures=True)
    return writer.finish()


class _Writer:
    """Writes headers and bodies, one entry after the other."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._offset = 0
        self._entries: list[_Entry] = []

    def begin(self, path: str, mode: str, size: int) -> None:
        entry = _Entry(path.encode(), mode, self._offset, zip64=size >= _ZIP64_FROM)
        if len(entry.name) > _MAX16:
            raise ArchiveError(f"{path[:80]}...: the name is too long for a zip", path=path)
        self._entries.append(entry)
        self._write(_local_header(entry))

    def add(self, piece: _Packed) -> None:
        entry = self._entries[-1]
        entry.method = piece.method
        entry.crc = zlib.crc32(piece.data, entry.crc)
        entry.size += len(piece.data)
        entry.packed_size += len(piece.body)
        self._write(piece.body)

    def end(self) -> int:
        """Complete the header, now that the sizes are known; returns the CRC-32 of the entry."""
        entry = self._entries[-1]
        self._out.seek(entry.offset)
        self._out.write(_local_header(entry))
        self._out.seek(self._offset)
        return entry.crc

    def finish(self) -> int:
        start = self._offset
        for entry in self._entries:
            self._write(_central_header(entry))
        self._write(_end_records(len(self._entries), self._offset - start, start))
        self._out.flush()
        return self._offset

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._offset += len(data)


def _packed_files(pool: ThreadPoolExecutor, snapshot: CodeSnapshot) -> Iterator[tuple[HashedFile, Iterable[_Packed]]]:
    """The files in order, compressed by all cores at once, with a bounded number of pieces ahead."""
    ahead: deque[tuple[Sequence[HashedFile], Future[list[_Packed]]]] = deque()
    limit = 3 * threads()
    for batch in _batches(snapshot.files):
        if batch[0].size > _PIECE:
            while ahead:
                yield from _results(*ahead.popleft())
            yield batch[0], _pack_large(pool, snapshot, batch[0], limit)
            continue
        ahead.append((batch, pool.submit(_pack_batch, snapshot, batch)))
        if len(ahead) > limit:
            yield from _results(*ahead.popleft())
    while ahead:
        yield from _results(*ahead.popleft())


def _results(
    batch: Sequence[HashedFile], future: Future[list[_Packed]]
) -> Iterator[tuple[HashedFile, Iterable[_Packed]]]:
    for hashed, packed in zip(batch, future.result(), strict=True):
        yield hashed, (packed,)


def _batches(files: Sequence[HashedFile]) -> Iterator[Sequence[HashedFile]]:
    batch: list[HashedFile] = []
    size = 0
    for hashed in files:
        if batch and (size + hashed.size > _BATCH or len(batch) == _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(hashed)
        size += hashed.size
    if batch:
        yield batch


def _pack_batch(snapshot: CodeSnapshot, batch: Sequence[HashedFile]) -> list[_Packed]:
    return [_pack(_content(snapshot, hashed.file)) for hashed in batch]


def _content(snapshot: CodeSnapshot, file: CodeFile) -> bytes:
    if file.mode == "link":
        return file.target.encode()
    with open_source(snapshot.root, file) as source:
        data = source.read_at(0, file.state.size)
        source.check_unchanged()
    return data


def _pack(data: bytes) -> _Packed:
    if _is_noise(data):
        return _Packed(data, data, _STORED)
    deflate = _deflate()
    body = deflate.compress(data) + deflate.flush()
    return _Packed(data, body, _DEFLATED) if len(body) < len(data) else _Packed(data, data, _STORED)


def _is_noise(data: bytes) -> bool:
    """Whether compression is useless: pictures, archives and weights have nearly every byte value in any kilobyte."""
    if len(data) < 8 * _SAMPLE:
        return False
    return all(len(set(data[at : at + _SAMPLE])) >= _NOISE for at in (len(data) * part // 4 for part in (1, 2, 3)))


def _deflate() -> zlib._Compress:
    # A negative window: the bare stream, as zip has it, without zlib's own header.
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)


def _pack_large(pool: ThreadPoolExecutor, snapshot: CodeSnapshot, hashed: HashedFile, limit: int) -> Iterator[_Packed]:
    """Compress the pieces of one file in parallel; the first one shows whether compression pays."""
    with open_source(snapshot.root, hashed.file) as source:
        starts = deque(range(0, hashed.size, _PIECE))
        first = _pack(source.read_at(0, _PIECE))
        ahead: deque[Future[_Packed]] = deque()
        while starts or ahead:
            while starts and len(ahead) < limit:
                ahead.append(pool.submit(_pack_piece, source, starts.popleft(), hashed.size, first.method))
            yield ahead.popleft().result()
        source.check_unchanged()


def _pack_piece(source: SourceFile, start: int, size: int, method: int) -> _Packed:
    data = source.read_at(start, min(_PIECE, size - start))
    if method == _STORED:
        return _Packed(data, data, _STORED)
    deflate = _deflate()
    body = deflate.compress(data)
    # A sync flush ends on a byte without ending the stream, so that pieces can be put one after the other.
    body += deflate.flush(zlib.Z_FINISH if start + _PIECE >= size else zlib.Z_SYNC_FLUSH)
    return _Packed(data, body, _DEFLATED)


def _flags(entry: _Entry) -> int:
    return 0 if entry.name.isascii() else _UTF8


def _local_header(entry: _Entry) -> bytes:
    extra = struct.pack("<HHQQ", 1, 16, entry.size, entry.packed_size) if entry.zip64 else b""
    sizes = (_MAX32, _MAX32) if entry.zip64 else (entry.packed_size, entry.size)
    return (
        struct.pack(
            "<4s5H3L2H",
            b"PK\x03\x04",
            45 if entry.zip64 else 20,
            _flags(entry),
            entry.method,
            _TIME,
            _DATE,
            entry.crc,
            *sizes,
            len(entry.name),
            len(extra),
        )
        + entry.name
        + extra
    )


def _central_header(entry: _Entry) -> bytes:
    sizes = (_MAX32, _MAX32) if entry.zip64 else (entry.packed_size, entry.size)
    wide = [entry.size, entry.packed_size] if entry.zip64 else []
    offset = entry.offset
    if offset >= _MAX32:
        wide.append(offset)
        offset = _MAX32
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    needed = 45 if extra else 20
    return (
        struct.pack(
            "<4s6H3L5H2L",
            b"PK\x01\x02",
            _UNIX | needed,
            needed,
            _flags(entry),
            entry.method,
            _TIME,
            _DATE,
            entry.crc,
            *sizes,
            len(entry.name),
            len(extra),
            0,
            0,
            0,
            _FILE_TYPES[entry.mode] << 16,
            offset,
        )
        + entry.name
        + extra
    )


def _end_records(count: int, size: int, start: int) -> bytes:
    """The end of the central directory, also in its zip64 form if the plain one has too little room."""
    records = b""
    if count > _MAX16 - 1 or size >= _MAX32 or start >= _MAX32:
        records = struct.pack(
            "<4sQ2H2L4Q", b"PK\x06\x06", 44, _UNIX | 45, 45, 0, 0, count, count, size, start
        ) + struct.pack("<4sLQL", b"PK\x06\x07", 0, start + size, 1)
    short = min(count, _MAX16)
    return records + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, short, short, min(size, _MAX32), min(start, _MAX32), 0
    )
