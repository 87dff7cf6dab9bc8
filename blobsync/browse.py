"""What lies in the containers, named as a user would type it: ``ls``, ``du``, ``stat`` and ``rm``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from blobsync.ahead import side_by_side
from blobsync.connections import Connections
from blobsync.engines import Listener, RemoteEnd
from blobsync.errors import NothingMatchedError, ShapeConflictError
from blobsync.fresh_look import hash_file
from blobsync.index import Index
from blobsync.mapping import Resolution
from blobsync.plan import FileFailure, LocalState
from blobsync.storage import BlobInfo

# Names of one Blob Batch request, times the threads of the store: what one call of delete_many may hold.
_DELETE_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """A blob, or a folder (``path`` ends with ``/`` and nothing else is known). Bytes; seconds since 1970."""

    path: str
    size: int | None = None
    last_modified: float | None = None
    md5: bytes | None = None
    tier: str | None = None
    etag: str | None = None
    content_type: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/") and self.size is None


def _entry(shown: str, blob: BlobInfo) -> Entry:
    return Entry(shown, blob.size, blob.last_modified, blob.md5, blob.tier, blob.etag, blob.content_type)


def list_path(
    connections: Connections, place: Resolution, inner: Sequence[Resolution], *, recursive: bool
) -> Iterator[Entry]:
    """The blob ``place``, or what lies below that folder: one level, or with ``recursive`` everything.

    ``inner`` are nested folder entries: their prefixes hide what the outer container has there, and with
    ``recursive`` their own blobs follow. Streams; holds one page. Raises ``NothingMatchedError``.
    """
    end = connections.end(place.remote)
    blob = None if place.folder_only or not end.name else end.store.head(end.name)
    if blob is not None and not blob.is_folder_stub:
        yield _entry(place.path, blob)
        return
    found = False
    hidden = tuple(f"{other.path}/" for other in inner)
    for entry in _below(end, place.path, recursive=recursive):
        if not entry.path.startswith(hidden) if hidden else True:
            found = True
            yield entry
    for other in inner:
        if recursive:
            for entry in _below(connections.end(other.remote), other.path, recursive=True):
                found = True
                yield entry
        elif "/" not in other.path[len(place.path) + 1 :]:
            found = True
            yield Entry(f"{other.path}/")
    if not found:
        raise nothing_at(place)


def nothing_at(place: Resolution) -> NothingMatchedError:
    """The error for a path with neither a blob nor a folder."""
    return NothingMatchedError(
        f"{place.path}: there is neither a blob nor a folder of that name, at {place.remote}",
        hint="'blobsync ls' shows the folder entries, 'blobsync ls FOLDER' what is in one",
        path=place.path,
    )


def _below(end: RemoteEnd, shown: str, *, recursive: bool) -> Iterator[Entry]:
    prefix = f"{end.name}/" if end.name else ""
    start = len(prefix)
    listing: Iterator[BlobInfo | str] = end.store.list_blobs(prefix) if recursive else end.store.list_folder(prefix)
    for item in listing:
        if isinstance(item, str):
            yield Entry(f"{shown}/{item[start:]}")
        elif not item.is_folder_stub and item.name != prefix:
            yield _entry(f"{shown}/{item.name[start:]}", item)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a path holds: blobs and bytes."""

    path: str
    count: int
    size: int


def usage(entries: Iterator[Entry], path: str) -> Usage:
    """Add up a recursive listing."""
    count = size = 0
    for entry in entries:
        count += 1
        size += entry.size or 0
    return Usage(path, count, size)


@dataclass(frozen=True, slots=True)
class Status:
    """One path from all three sides: ``local``, ``remote``, and what the index last verified."""

    path: str
    local: LocalState | None
    local_is_folder: bool
    remote: Entry | None
    remote_is_folder: bool
    verified_md5: bytes | None
    equal: bool | None


def status(connections: Connections, index: Index, place: Resolution) -> Status:
    """Look at one path on every side. Raises ``NothingMatchedError`` when it is nowhere."""
    end = connections.end(place.remote)
    blob = None if place.folder_only or not end.name else end.store.head(end.name)
    if blob is not None and blob.is_folder_stub:
        blob = None
    folder = next(iter(_below(end, place.path, recursive=False)), None) is not None
    local = None if place.local.is_dir() else hash_file(place.local)
    if blob is None and not folder and not os.path.lexists(place.local):
        raise nothing_at(place)
    records = index.pair(place.entry.prefix, str(place.entry.remote)).get([place.relative])
    record = records.get(place.relative)
    equal: bool | None = None
    if local is not None and blob is not None:
        equal = local.size == blob.size and (local.md5 == blob.md5 if blob.md5 else None)
    return Status(
        path=place.path,
        local=local,
        local_is_folder=place.local.is_dir(),
        remote=_entry(place.path, blob) if blob else None,
        remote_is_folder=folder,
        verified_md5=record.md5 if record else None,
        equal=equal,
    )


@dataclass(frozen=True, slots=True)
class Doomed:
    """What ``rm`` of one path deletes: the blob names below one end, and their bytes."""

    place: Resolution
    names: tuple[str, ...]
    size: int


@dataclass(slots=True)
class Removal:
    """How ``rm`` ended."""

    deleted: int = 0
    bytes_deleted: int = 0
    failures: list[FileFailure] = field(default_factory=list)


def find_doomed(connections: Connections, place: Resolution, inner: Sequence[Resolution]) -> Iterator[Doomed]:
    """Everything that ``rm`` of this path would delete; nested folder entries are part of it, each its own.

    Raises ``NothingMatchedError``, and ``ShapeConflictError`` where a blob and a folder have the name.
    """
    end = connections.end(place.remote)
    blob = None if place.folder_only or not end.name else end.store.head(end.name)
    prefix = f"{end.name}/" if end.name else ""
    hidden = tuple(f"{prefix}{other.path[len(place.path) + 1 :]}/" for other in inner)
    names: list[str] = []
    size = 0
    for item in end.store.list_blobs(prefix):
        if not (hidden and item.name.startswith(hidden)):
            names.append(item.name)
            size += item.size
    if blob is not None and names and not blob.is_folder_stub:
        raise ShapeConflictError(
            f"{place.path} is both a blob and a folder: {place.remote} and {place.remote}/...",
            hint=f"'{place.path}/' (with the slash) means the folder",
            path=place.path,
        )
    if blob is not None:
        names.append(end.name)
        size += blob.size
    others = [doomed for other in inner for doomed in _nested(connections, other)]
    if not names and not others:
        raise nothing_at(place)
    if names:
        yield Doomed(place, tuple(names), size)
    yield from others


def _nested(connections: Connections, place: Resolution) -> Iterator[Doomed]:
    try:
        yield from find_doomed(connections, place, ())
    except NothingMatchedError:
        return


def remove(connections: Connections, index: Index, doomed: Sequence[Doomed], listener: Listener) -> Removal:
    """Delete in batches, then look whether they are gone."""
    listener.phase("deleting")
    listener.expect(sum(len(each.names) for each in doomed), 0)
    result = Removal()
    for each in doomed:
        _remove(connections, index, each, listener, result)
    return result


def _remove(connections: Connections, index: Index, doomed: Doomed, listener: Listener, result: Removal) -> None:
    end = connections.end(doomed.place.remote)
    shown = _shown(doomed.place, end)
    failed: dict[str, str] = {}
    for start in range(0, len(doomed.names), _DELETE_CHUNK):
        chunk = doomed.names[start : start + _DELETE_CHUNK]
        failed.update(end.store.delete_many(chunk))
        for name in chunk:
            listener.file_done(shown(name), None)
    left = _still_there(end, doomed)
    for name in left:
        failed.setdefault(name, "it is still there")
    for name, reason in sorted(failed.items()):
        result.failures.append(
            FileFailure(shown(name), "delete_failed", f"{shown(name)}: not deleted, {reason}", "run the command again")
        )
    result.deleted += len(doomed.names) - len(failed)
    result.bytes_deleted += doomed.size - sum(left.values())
    prefix = len(end.name) + 1 if end.name else 0
    base = doomed.place.relative
    paths = (name[prefix:] if name != end.name else "" for name in doomed.names)
    index.pair(doomed.place.entry.prefix, str(doomed.place.entry.remote)).forget(
        "/".join(part for part in (base, path) if part) for path in paths
    )


def _still_there(end: RemoteEnd, doomed: Doomed) -> dict[str, int]:
    names = set(doomed.names)
    if len(names) <= 16:
        blobs = side_by_side(end.store.head, names, 8)
        return {blob.name: blob.size for blob in blobs if blob is not None}
    listing = end.store.list_blobs(f"{end.name}/" if end.name else "")
    return {blob.name: blob.size for blob in listing if blob.name in names}


def _shown(place: Resolution, end: RemoteEnd) -> Callable[[str], str]:
    start = len(end.name)
    return lambda name: place.path + name[start:] if end.name else f"{place.path}/{name}"
