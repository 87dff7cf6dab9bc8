"""The content of one path: ``cat`` gives out the blob's bytes, ``diff`` holds them against the local file's."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from blobsync.base.errors import ChecksumError, LocalFileError, ShapeConflictError
from blobsync.base.regular_files import regular_only
from blobsync.config.mapping import Resolution
from blobsync.local.hashing import hash_file
from blobsync.local.index import Index
from blobsync.plan.pairs import known_equal
from blobsync.project.browse import blob_at, has_folder, nothing_at
from blobsync.project.changed_lines import changed_lines, text_of
from blobsync.store.blob_hash import blob_md5
from blobsync.store.connections import Connections
from blobsync.store.ends import LocalEnd, RemoteEnd
from blobsync.store.protocol import BlobInfo
from blobsync.transfer.fresh_look import remote_state

_PIECE = 1 << 20
# Files that are larger are not compared line by line.
MOST_BYTES = 16 << 20


def read_blob(connections: Connections, place: Resolution) -> Iterator[bytes]:
    """All bytes of one version of the blob, piece by piece, held against its MD5 where it has one.

    The blob is looked for at once. Raises ``NothingMatchedError`` and ``ShapeConflictError``; the iterator raises
    ``StorageError`` where the blob changes meanwhile, and ``ChecksumError`` at the end of bytes that are not its own.
    """
    end = connections.end(place.remote)
    blob = blob_at(end, place)
    if blob is None:
        if has_folder(end):
            listing = f"'blobsync ls {shlex.quote(place.path)}' lists what is in it"
            raise ShapeConflictError(f"{place.path} is a folder, and cat reads blobs", hint=listing, path=place.path)
        raise nothing_at(place, end)
    return _pieces(end, place, blob)


def _pieces(end: RemoteEnd, place: Resolution, blob: BlobInfo) -> Iterator[bytes]:
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.name, etag=blob.etag) as reader:
        while piece := reader.read(_PIECE):
            digest.update(piece)
            yield piece
    if blob.md5 is not None and digest.digest() != blob.md5:
        raise ChecksumError(
            f"{place.path}: its bytes have the MD5 {digest.hexdigest()}, and the blob says {blob.md5.hex()}",
            hint=f"'blobsync verify --deep {shlex.quote(place.path)}' reads it again",
            path=place.path,
        )


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One path, held against its blob.

    ``status`` is ``equal``, ``differs``, ``local_only`` or ``remote_only``. ``here`` and ``there`` are bytes, None
    where that side has no file. ``lines`` are those of a unified diff, from the container's version to the local one;
    ``no_lines`` says why there are none although the two differ: ``binary``, ``large``, or empty.
    """

    path: str
    status: str
    here: int | None
    there: int | None
    etag: str | None = None
    lines: tuple[str, ...] = ()
    no_lines: str = ""

    def __repr__(self) -> str:
        return f"<FileDifference {self.path!r}: {self.status}, {len(self.lines):,} lines>"


def difference(connections: Connections, index: Index, place: Resolution) -> FileDifference:
    """Compare the local file with its blob, as one version of it.

    Raises ``NothingMatchedError``, ``ShapeConflictError`` for a folder, ``LocalFileError`` and ``StorageError``.
    """
    end = connections.end(place.remote)
    blob = blob_at(end, place)
    if place.local.is_dir() or (blob is None and has_folder(end)):
        path = shlex.quote(place.path)
        raise ShapeConflictError(
            f"{place.path} is a folder, and diff compares one file",
            hint=f"'blobsync verify {path}' names the files that differ; 'blobsync plan u {path}' says what would move",
            path=place.path,
        )
    here = _size(place)
    if blob is None:
        if here is None:
            raise nothing_at(place, LocalEnd(place.local), end)
        return FileDifference(place.path, "local_only", here, None)
    if here is None:
        return FileDifference(place.path, "remote_only", None, blob.size, blob.etag)
    if max(here, blob.size) > MOST_BYTES:
        return _of_large(end, index, place, blob)
    mine, theirs = _read_file(place), b"".join(_pieces(end, place, blob))
    sides = (len(mine), len(theirs), blob.etag)
    if mine == theirs:
        return FileDifference(place.path, "equal", *sides)
    old, new = text_of(theirs), text_of(mine)
    if old is None or new is None:
        return FileDifference(place.path, "differs", *sides, no_lines="binary")
    lines = changed_lines(old, new)
    if lines is None:
        return FileDifference(place.path, "differs", *sides, no_lines="large")
    return FileDifference(place.path, "differs", *sides, lines=tuple(lines))


def _of_large(end: RemoteEnd, index: Index, place: Resolution, blob: BlobInfo) -> FileDifference:
    """As ``verify`` decides; a blob without an MD5 is read."""
    local = hash_file(place.local)
    if local is None:
        raise LocalFileError(f"{place.path} cannot be read, or changed while it was read", path=place.path)
    record = index.pair(place.entry.prefix, str(place.entry.remote)).get([place.relative]).get(place.relative)
    equal = known_equal(local, remote_state(blob), record)
    if equal is None:
        equal = local.md5 == blob_md5(end, "", blob.etag)
    sides = (local.size, blob.size, blob.etag)
    return FileDifference(place.path, "equal" if equal else "differs", *sides, no_lines="" if equal else "large")


def _size(place: Resolution) -> int | None:
    """None where there is no file. Raises ``LocalFileError`` for what is none, or cannot be read."""
    try:
        with open(place.local, "rb", opener=regular_only) as file:
            return os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalFileError(f"{place.path}: {error.strerror}", path=place.path) from error


def _read_file(place: Resolution) -> bytes:
    try:
        with open(place.local, "rb", opener=regular_only) as file:
            return file.read()
    except OSError as error:
        raise LocalFileError(f"{place.path}: {error.strerror}", path=place.path) from error
