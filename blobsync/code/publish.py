"""Writes the code archive, and puts it where nodes fetch it, never half of it; lists the files of published code.

The bytes of the zip depend on the code alone. Same snapshot and commit, same bytes: entries in the order of their
names, one fixed date, modes 644 and 755 only. Another release of Python or zlib may produce other bytes; the digest
does not depend on them. The first entry is the manifest. Links are stored as Info-ZIP does: the target is the content,
and the mode says link.

``<code_path>.d/<digest>.zip`` is written first, and only once; then ``code_path`` itself receives the same
bytes in one request: a copy inside the service, or a second upload where the service refuses that. Either
write is complete or has not happened, so a kill in between costs only time.

What is published is untrusted input: decompression is bounded, and a list of files counts only if it matches the
archive's own digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import BinaryIO

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import (
    AccessDeniedError,
    ArchiveError,
    BlobNotFoundError,
    CopySourceRefusedError,
    CredentialError,
    PreconditionFailedError,
)
from blobsync.base.events import BytesMoved, Expected, FilesDone, Listener
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken
from blobsync.code.git import GitState
from blobsync.code.packed_files import CodeFile
from blobsync.code.snapshot import CodeSnapshot, open_source
from blobsync.code.unpack import MANIFEST_NAME, digest_of_records, read_listed
from blobsync.direct.upload import BlockIds
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.store.protocol import ANYTHING, BlobInfo, BlobProperties, BlobStore, Precondition

MANIFEST_VERSION = 1

# Of 1..9; 6, the default, takes 2.5 times as long and saves a tenth of the size.
_LEVEL = 1
# Bytes read at a time.
_PIECE = 4 * 1024 * 1024
# Of 1,024 random bytes 251 differ, give or take two; of 1,024 bytes of text or machine code far fewer do.
_SAMPLE, _NOISE = 1024, 240
# The first date that a zip can store.
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_MODES = {"644": stat.S_IFREG | 0o644, "755": stat.S_IFREG | 0o755, "link": stat.S_IFLNK | 0o777}


def manifest(snapshot: CodeSnapshot, git: GitState | None) -> bytes:
    """The archive's manifest: JSON with the digest, the commit and every file."""
    document = {
        "blobsync_manifest": MANIFEST_VERSION,
        "digest": snapshot.digest,
        "git": git and {"commit": git.commit, "dirty": git.dirty, "uncommitted": list(git.uncommitted)},
        "files": [
            {"path": file.path, "mode": file.file.mode, "size": file.size, "sha256": file.sha256}
            # A folder of blobs has no links.
            | ({"target": file.file.target} if file.file.mode == "link" else {})
            for file in snapshot.files
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"


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
    about = manifest(snapshot, git)
    with zipfile.ZipFile(out, "w") as archive:
        _add(archive, MANIFEST_NAME, "644", len(about), iter((about,)))
        for hashed in snapshot.files:
            pieces = _pieces(snapshot, hashed.file)
            if _add(archive, hashed.path, hashed.file.mode, hashed.size, pieces) != hashed.crc:
                raise ChangedWhileReadError(f"{hashed.path} changed while it was being packed", path=hashed.path)
            progress(1)
    return out.tell()


def _add(archive: zipfile.ZipFile, path: str, mode: str, size: int, pieces: Iterator[bytes]) -> int:
    """Add one entry; returns the CRC-32 of its content."""
    entry = zipfile.ZipInfo(path, _DATE)
    entry.create_system = _UNIX
    entry.external_attr = _MODES[mode] << 16
    # From the size zipfile knows whether the entry needs zip64.
    entry.file_size = size
    first = next(pieces, b"")
    entry.compress_type = zipfile.ZIP_STORED if not first or _is_noise(first) else zipfile.ZIP_DEFLATED
    # Python 3.13 calls it compress_level, and keeps this name.
    entry._compresslevel = _LEVEL  # type: ignore[attr-defined]
    with archive.open(entry, "w") as to:
        to.write(first)
        for piece in pieces:
            to.write(piece)
    return entry.CRC


def _pieces(snapshot: CodeSnapshot, file: CodeFile) -> Iterator[bytes]:
    if file.mode == "link":
        yield file.target.encode()
        return
    with open_source(snapshot.root, file) as source:
        for start in range(0, file.state.size, _PIECE):
            yield source.read_at(start, min(_PIECE, file.state.size - start))
        source.check_unchanged()


def _is_noise(data: bytes) -> bool:
    """Whether compression is useless: pictures, archives and weights have nearly every byte value in any kilobyte."""
    if len(data) < 8 * _SAMPLE:
        return False
    return all(len(set(data[at : at + _SAMPLE])) >= _NOISE for at in (len(data) * part // 4 for part in (1, 2, 3)))


DIGEST_KEY = "blobsync_digest"

# How many archives stay in <code_path>.d, and for how long (seconds) one stays in any case: a queued job
# fetches its own.
KEPT_ARCHIVES = 50
KEPT_SECONDS = 14 * 86_400.0

_BLOCK = 4 * 1024 * 1024
_THREADS = 4
_ARCHIVE_NAME = re.compile(r"[0-9a-f]{64}\.zip")


@dataclass(frozen=True, slots=True)
class CodePlace:
    """``code_path``: its blob and the store that reaches it. ``sas`` makes a SAS that may read it."""

    store: BlobStore
    name: str
    sas: Callable[[], SasToken]

    def kept(self, digest: str) -> str:
        """The blob that keeps the archive of this digest."""
        return f"{self.name}.d/{digest}.zip"


@dataclass(frozen=True, slots=True)
class RemoteCode:
    """The published state: the digest at ``code_path`` (None if there is none, or it is not ours), and whether the
    archive of the wanted digest is kept."""

    digest: str | None
    kept: bool


def published_digest(place: CodePlace) -> str | None:
    """The digest of the blob at ``code_path``; None if there is none, or it is not ours."""
    try:
        return place.store.properties(place.name).metadata.get(DIGEST_KEY)
    except BlobNotFoundError:
        return None


def look_up_code(place: CodePlace, digest: str) -> RemoteCode:
    """The published state for an archive of ``digest``: two requests in parallel."""
    kept = Ahead(place.store.head, place.kept(digest))
    return RemoteCode(published_digest(place), kept.result() is not None)


def publish_archive(
    place: CodePlace, digest: str, there: RemoteCode, archive: Callable[[], tuple[BinaryIO, int]], listener: Listener
) -> None:
    """Make ``code_path`` the archive of ``digest``. ``archive`` creates the zip, once and only if needed.

    Raises what the store raises; ``code_path`` is then unchanged.
    """
    if not there.kept:
        try:
            _upload(place.store, place.kept(digest), archive(), digest, listener, Precondition(absent=True))
        except PreconditionFailedError:
            # Someone else has just published the same code.
            pass
    if there.digest == digest:
        return
    try:
        source = place.store.container.child(place.kept(digest))
        place.store.put_from_url(place.name, str(source), place.sas())
    except (CopySourceRefusedError, AccessDeniedError, CredentialError):
        _upload(place.store, place.name, archive(), digest, listener, ANYTHING)


def prune_archives(place: CodePlace, digest: str, now: float | None = None) -> tuple[str, ...]:
    """Delete archives beyond the newest ``KEPT_ARCHIVES`` that are older than ``KEPT_SECONDS``; returns their names.

    The archive of ``digest`` stays. Raises what the store raises.
    """
    now = time.time() if now is None else now
    prefix = f"{place.name}.d/"
    archives = [blob for blob in place.store.list_blobs(prefix) if _ARCHIVE_NAME.fullmatch(blob.name[len(prefix) :])]
    archives.sort(key=lambda blob: blob.last_modified, reverse=True)
    gone = [
        blob
        for blob in archives[KEPT_ARCHIVES:]
        if now - blob.last_modified > KEPT_SECONDS and blob.name != place.kept(digest)
    ]
    return tuple(blob.name for blob in gone if place.store.delete(blob.name, etag=blob.etag))


def _upload(
    store: BlobStore,
    name: str,
    archive: tuple[BinaryIO, int],
    digest: str,
    listener: Listener,
    condition: Precondition,
) -> BlobInfo:
    stream, size = archive
    stream.seek(0)
    listener.emit(Expected(1, size))
    properties = BlobProperties(content_type="application/zip", metadata={DIGEST_KEY: digest})
    if size <= _BLOCK:
        body = stream.read()
        info = store.put(name, body, md5=hashlib.md5(body).digest(), properties=properties, condition=condition)
        listener.emit(BytesMoved(size))
    else:
        ids, md5 = _upload_blocks(store, name, stream, size, listener)
        info = store.put_block_list(name, ids, size=size, md5=md5, properties=properties, condition=condition)
    listener.emit(FilesDone([name]))
    return info


def _upload_blocks(
    store: BlobStore, name: str, stream: BinaryIO, size: int, listener: Listener
) -> tuple[list[str], bytes]:
    named, ids, whole, reading = BlockIds(), list[str](), hashlib.md5(), Lock()

    def send(_: int) -> None:
        # The thread that sends a block also reads it, so no others are in memory.
        with reading:
            body = stream.read(_BLOCK)
            whole.update(body)
            block_id = named[len(ids)]
            ids.append(block_id)
        store.put_block(name, block_id, body)
        listener.emit(BytesMoved(len(body)))

    for _ in side_by_side(send, range(-(-size // _BLOCK)), _THREADS):
        pass
    return ids, whole.digest()


# The local header of a member, without its name. PKWARE, APPNOTE.TXT 4.3.7.
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_MAGIC = b"PK\x03\x04"
_DEFLATED = 8
# A million files (bytes).
_LARGEST = 200_000_000
_LOOK = 1 << 16


def published_files(store: BlobStore, name: str, digest: str) -> Mapping[str, str]:
    """Each file's path in the archive ``name``, with its mode and the SHA-256 of its content.

    Raises ``ArchiveError`` if init did not write it or its digest is not ``digest``, and ``StorageError``.
    """
    try:
        in_folder = not name.endswith(".zip")
        records = read_listed(_list_in(store, name) if in_folder else _manifest(store, name))
    except (ValueError, zlib.error, struct.error, BlobNotFoundError) as error:
        raise ArchiveError(f"{name} has no list of its files: blobsync init did not make it") from error
    if digest_of_records(records) != digest:
        raise ArchiveError(f"the list of files in {name} does not match its digest")
    return {record.path: f"{record.mode} {record.sha256}" for record in records}


def listed_digest(store: BlobStore, folder: str) -> str | None:
    """The digest of the file list in a blob folder of code; None if it has none of ours."""
    try:
        return digest_of_records(read_listed(_list_in(store, folder)))
    except (ValueError, BlobNotFoundError):
        return None


def _list_in(store: BlobStore, folder: str) -> bytes:
    with store.open(f"{folder.rstrip('/')}/{MANIFEST_NAME}", length=_LARGEST) as reader:
        found = b"".join(iter(lambda: reader.read(_LOOK), b""))
    if len(found) >= _LARGEST:
        raise ValueError("the list is too large")
    return found


def _manifest(store: BlobStore, name: str) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    with store.open(name) as reader:
        header = reader.read(_HEADER.size)
        magic, _, _, method, *_, name_length, extra_length = _HEADER.unpack(header)
        member = reader.read(name_length)
        reader.read(extra_length)
        if magic != _MAGIC or method != _DEFLATED or member != MANIFEST_NAME.encode():
            raise ValueError("the manifest is not the first member")
        found = b""
        while not inflate.eof and (piece := reader.read(_LOOK)):
            found += inflate.decompress(piece, _LARGEST - len(found))
            if len(found) >= _LARGEST:
                raise ValueError("the manifest is too large")
    return found
