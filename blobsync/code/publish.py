"""Puts a code archive where nodes fetch it, never half of one; lists the files of published code.

``<code_path>.d/<digest>.zip`` is written first, and only once; then ``code_path`` itself receives the same
bytes in one request: a copy inside the service, or a second upload where the service refuses that. Either
write is complete or has not happened, so a kill in between costs only time.

An archive is untrusted input: decompression is bounded, and a list of files counts only if it matches the archive's
own digest.
"""

from __future__ import annotations

import hashlib
import re
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from blobsync.base.redaction import SasToken
from blobsync.code.digest import MANIFEST_NAME, digest_of_records, read_listed
from blobsync.direct.upload import BlockIds
from blobsync.store.protocol import ANYTHING, BlobInfo, BlobProperties, BlobStore, Precondition

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
_PIECE = 1 << 16


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
    with store.open(f"{folder.rstrip('/')}/{MANIFEST_NAME}") as reader:
        found = b""
        while piece := reader.read(_PIECE):
            found += piece
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
        while not inflate.eof and (piece := reader.read(_PIECE)):
            found += inflate.decompress(piece, _LARGEST - len(found))
            if len(found) >= _LARGEST:
                raise ValueError("the manifest is too large")
    return found
