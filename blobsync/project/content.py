"""Reads the content of a path: ``cat`` reads the blob, ``diff`` compares it with the local file; what is text."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import islice, takewhile

from blobsync.base.errors import ChecksumError, LocalFileError, ShapeConflictError
from blobsync.base.file_states import regular_only
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import LocalLocation
from blobsync.base.records import dataclass
from blobsync.config.mapping import Resolution
from blobsync.local.files import hash_file
from blobsync.local.index import Index
from blobsync.plan.pairing import known_equal
from blobsync.project.browse import blob_at, file_beginning, has_folder, nothing_at
from blobsync.store.open_locations import Connections, OpenBlob, blob_md5, remote_state
from blobsync.store.protocol import BlobInfo

# Maximum number of lines between the first and the last difference; the time grows with its square.
MOST_LINES = 5000
_NO_NEWLINE = "\\ No newline at end of file"
# Where a hunk begins in one of the two texts.
_NUMBER = pattern(r"([-+])(\d+)")


def text_of(data: bytes, *, cut: bool = False) -> str | None:
    """Decode text, None if it is binary; in data that was ``cut`` the last character may be incomplete."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start].decode("utf-8") if cut and error.start >= len(data) - 3 else None


def changed_lines(before: str, after: str, *, context: int = 3) -> list[str] | None:
    """The lines of a unified diff, without its two file names; empty for equal texts, None if there are too many."""
    # Lines with their ends, so that a last line without one differs.
    old, new = list(io.StringIO(before)), list(io.StringIO(after))
    first = _alike(old, new)
    last = _alike(old[first:][::-1], new[first:][::-1])
    if max(len(old), len(new)) - first - last > MOST_LINES:
        return None
    # Compare only the differing lines and their context.
    start, behind = max(0, first - context), max(0, last - context)
    old, new = old[start : len(old) - behind], new[start : len(new) - behind]
    diff = islice(unified_diff(old, new, n=context, lineterm=""), 2, None)
    return [shown for line in diff for shown in _shown(line, start)]


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines at the beginning are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _shown(line: str, start: int) -> Iterator[str]:
    """A line of the diff of texts of which the first ``start`` lines were left out."""
    if line.startswith("@@"):
        line = _NUMBER.sub(lambda found: f"{found[1]}{int(found[2]) + start}", line)
    elif not line.endswith("\n"):
        yield line
        line = _NO_NEWLINE
    yield line.removesuffix("\n")


_PIECE = 1 << 20
# Bytes; larger files are not compared by lines.
MOST_BYTES = 16 << 20


def read_blob(connections: Connections, place: Resolution) -> Iterator[bytes]:
    """All bytes of one version of the blob, piece by piece, checked by its MD5 if it has one.

    The blob is looked up at once. Raises ``NothingMatchedError`` and ``ShapeConflictError``; the iterator raises
    ``StorageError`` if the blob changes meanwhile, and ``ChecksumError`` at the end if the MD5 does not match.
    """
    end = connections.open(place.remote)
    blob = blob_at(end, place)
    if blob is None:
        if has_folder(end):
            listing = f"'blobsync ls {shlex.quote(place.path)}' lists what is in it"
            raise ShapeConflictError(f"{place.path} is a folder, and cat reads blobs", hint=listing, path=place.path)
        raise nothing_at(place, end)
    return _pieces(end, place, blob)


def _pieces(end: OpenBlob, place: Resolution, blob: BlobInfo) -> Iterator[bytes]:
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


@dataclass(frozen=True, slots=True, repr=False)
class FileDifference:
    """The difference between a local file and its blob.

    ``status`` is ``equal``, ``differs``, ``local_only`` or ``remote_only``. ``here`` and ``there`` are sizes in bytes,
    None if that side has no file. ``lines`` are those of a unified diff, from the container's version to the local one;
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
    end = connections.open(place.remote)
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
            raise nothing_at(place, LocalLocation(place.local), end)
        return FileDifference(place.path, "local_only", here, None)
    if here is None:
        return FileDifference(place.path, "remote_only", None, blob.size, blob.etag)
    if max(here, blob.size) > MOST_BYTES:
        return _of_large(end, index, place, blob)
    mine, theirs = file_beginning(place, MOST_BYTES).data, b"".join(_pieces(end, place, blob))
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


def _of_large(end: OpenBlob, index: Index, place: Resolution, blob: BlobInfo) -> FileDifference:
    """Compare large files as ``verify`` does; a blob without an MD5 is read."""
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
    """The size of the local file, None if there is none. Raises ``LocalFileError`` if it is not a file, or cannot be
    read."""
    try:
        with open(place.local, "rb", opener=regular_only) as file:
            return os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalFileError(f"{place.path}: {error.strerror}", path=place.path) from error
