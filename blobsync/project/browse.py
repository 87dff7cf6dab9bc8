"""Lists and looks up blobs by the paths that users type: ``ls``, ``du`` and ``stat``."""

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from blobsync.base.errors import LocalFileError, NothingMatchedError
from blobsync.base.file_states import LocalState, RemoteState, regular_only
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.mapping import Resolution
from blobsync.local.index import Index, PairIndex
from blobsync.local.sorted_runs import IN_MEMORY, Spill
from blobsync.plan.wildcards import ABOUT_PATTERNS, fitting, is_pattern, split_pattern
from blobsync.store.open_locations import Connections, OpenBlob, OpenLocation, remote_state
from blobsync.store.protocol import BlobInfo


class ListingEntry(NamedTuple):
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


def _entry(shown: str, blob: BlobInfo) -> ListingEntry:
    return ListingEntry(shown, blob.size, blob.last_modified, blob.md5, blob.tier, blob.etag, blob.content_type)


class Listing:
    """Remembers a listing of a folder, or of one level of it, that is not compared with anything."""

    def __init__(
        self, records: PairIndex, folder: str, spill: Spill, *, recursive: bool, now: Callable[[], float] = time.time
    ) -> None:
        self._records, self._folder, self._spill = records, folder, spill
        self._whole = records.differences(folder, spill) if recursive else None
        # A level without folders is the whole folder.
        self._level: list[tuple[str, RemoteState]] = []
        self._has_folders = False
        self._began = now()

    def blob(self, relative: str, state: RemoteState) -> None:
        """Call for each blob, with its name below the folder."""
        path = f"{self._folder}/{relative}" if self._folder else relative
        if self._whole is not None:
            self._whole.seen(path, state)
        else:
            self._level.append((path, state))

    def inner(self) -> None:
        """Call for each folder whose content is not listed."""
        self._has_folders = True

    def only_blob(self, state: RemoteState | None) -> None:
        """Call if the path is this blob, or (None) neither a blob nor a folder."""
        self._records.remember_blob(self._folder, state, self._began)

    def ended(self) -> None:
        """Call after the last blob."""
        one_level = self._has_folders
        found = self._whole or self._records.differences(self._folder, self._spill, one_level=one_level)
        for path, state in self._level:
            found.seen(path, state)
        self._records.remember_listing(self._folder, found, self._began, one_level=one_level)


def list_path(
    connections: Connections,
    place: Resolution,
    inner: Sequence[Resolution],
    *,
    recursive: bool,
    remembering: Callable[[Resolution], Listing] | None = None,
    spill: Spill = IN_MEMORY,
) -> Iterator[ListingEntry]:
    """List the blob ``place``, or the folder: one level, or with ``recursive`` everything.

    ``inner`` are nested folder entries: their prefixes hide blobs of the outer container, and with ``recursive`` their
    own blobs follow. Streams page by page, the first blobs at least. ``remembering`` stores the listing of each folder
    entry; ``spill`` limits the blobs in memory. Raises ``NothingMatchedError``.
    """
    listing = remembering(place) if remembering else None
    end = connections.open(place.remote)
    blob = blob_at(end, place)
    if blob is not None:
        if listing is not None:
            listing.only_blob(remote_state(blob))
        yield _entry(place.path, blob)
        return

    def nested() -> Iterator[ListingEntry]:
        for other in inner:
            if recursive:
                known = remembering(other) if remembering else None
                yield from _below(connections.open(other.remote), other.path, known, spill, recursive=True)
            elif "/" not in other.path[len(place.path) + 1 :]:
                yield ListingEntry(f"{other.path}/")

    own, hidden = _below(end, place.path, listing, spill, recursive=recursive), tuple(f"{one.path}/" for one in inner)
    entries = chain((entry for entry in own if not entry.path.startswith(hidden)) if hidden else own, nested())
    first = next(entries, None)
    if first is None:
        if remembering is not None and not place.folder_only:
            remembering(place).only_blob(None)
        raise nothing_at(place, end)
    yield first
    yield from entries


def blob_at(end: OpenBlob, place: Resolution) -> BlobInfo | None:
    """The blob of exactly this name; None if there is none with data."""
    blob = None if place.folder_only or not end.name else end.store.head(end.name)
    return None if blob is None or blob.is_folder_stub else blob


def has_folder(end: OpenBlob) -> bool:
    """Whether there are blobs below this name."""
    return next(_below(end, "", recursive=False), None) is not None


def nothing_at(place: Resolution, *ends: OpenLocation) -> NothingMatchedError:
    """The error for a path with neither a blob nor a folder; it suggests a similar path of ``ends``."""
    from blobsync.plan.path_suggestions import look_nearby  # late: most names are right

    looking = "'blobsync ls' shows the folder entries, 'blobsync ls FOLDER' what is in one"
    if is_pattern(place.path):
        looking = f"only names are taken here: blobsync ls {shlex.quote(place.path)} shows what it matches"
    return NothingMatchedError(
        f"{place.path}: no blob or folder has that name at {place.remote}",
        hint=looking,
        path=place.path,
        nearby=look_nearby(place.path, place.relative, *ends),
    )


def _below(
    end: OpenBlob, shown: str, listing: Listing | None = None, spill: Spill = IN_MEMORY, *, recursive: bool
) -> Iterator[ListingEntry]:
    prefix = f"{end.name}/" if end.name else ""
    start = len(prefix)
    if recursive:
        from blobsync.plan.parallel_listing import list_wide  # late: a level is listed in one piece

        items: Iterator[BlobInfo | str] = list_wide(end.store, prefix, spill)
    else:
        items = end.store.list_folder(prefix)
    for item in items:
        if isinstance(item, str):
            if listing is not None:
                listing.inner()
            yield ListingEntry(f"{shown}/{item[start:]}")
        elif not item.is_folder_stub and item.name != prefix:
            if listing is not None:
                listing.blob(item.name[start:], remote_state(item))
            yield _entry(f"{shown}/{item.name[start:]}", item)
    if listing is not None:
        listing.ended()


# ``Project.list``.
Lister: TypeAlias = Callable[..., Iterator[ListingEntry]]


def list_matching(listing: Lister, path: str, *, recursive: bool) -> Iterator[ListingEntry]:
    """List the blob or folder of exactly this name as ``ls`` does; else the matches of the pattern.

    A matching folder is one entry, with ``recursive`` everything below it. Raises ``NothingMatchedError``.
    """
    if not is_pattern(path):
        yield from listing(path, recursive=recursive)
        return
    exact = listing(path, recursive=recursive)
    with suppress(NothingMatchedError):
        yield from chain([next(exact)], exact)
        return
    for found, entry in pattern_matches(listing, path):
        if recursive and entry.is_folder:
            yield from listing(found, recursive=True)
        else:
            yield entry


def pattern_matches(listing: Lister, path: str) -> Iterator[tuple[str, ListingEntry]]:
    """The matches of the pattern, sorted by name, as paths for other commands, with their entries in a listing.

    Raises ``NothingMatchedError``."""
    found = list(_matches(listing, *split_pattern(path)))
    if not found:
        raise NothingMatchedError(
            f"{path}: no blob or folder matches",
            hint=ABOUT_PATTERNS,
            path=path,
        )
    yield from found


def _matches(listing: Lister, parent: str, parts: list[str]) -> Iterator[tuple[str, ListingEntry]]:
    fits = fitting(parts[0])
    lead = f"{parent}/" if parent else ""
    with suppress(NothingMatchedError):
        for entry in sorted(listing(parent or "."), key=lambda one: one.path):
            name = entry.path.rstrip("/").rpartition("/")[2]
            if not fits(name):
                continue
            if len(parts) == 1:
                yield f"{lead}{name}", entry
            elif entry.is_folder:
                yield from _matches(listing, f"{lead}{name}", parts[1:])


class Beginning(NamedTuple):
    """The first bytes of a file or blob of ``size`` bytes."""

    path: str
    size: int
    data: bytes

    def __repr__(self) -> str:
        return f"<Beginning of {self.path!r}: {len(self.data):,} of {self.size:,} bytes>"


def blob_beginning(connections: Connections, place: Resolution, most: int) -> Beginning:
    """The beginning of a blob. Raises ``NothingMatchedError`` if there is none of this name."""
    end = connections.open(place.remote)
    blob = blob_at(end, place)
    if blob is None:
        raise nothing_at(place)
    if not blob.size:
        return Beginning(place.path, 0, b"")
    with end.store.open(end.name, length=min(most, blob.size), etag=blob.etag) as reader:
        return Beginning(place.path, blob.size, b"".join(iter(lambda: reader.read(1 << 16), b"")))


def file_beginning(place: Resolution, most: int) -> Beginning:
    """The beginning of a local file. Raises ``LocalFileError`` if it is not a file, or cannot be read."""
    try:
        with open(place.local, "rb", opener=regular_only) as file:
            return Beginning(place.path, os.fstat(file.fileno()).st_size, file.read(most))
    except OSError as error:
        # Opening a socket is another error than opening a pipe.
        is_neither = place.local.exists() and not place.local.is_file() and not place.local.is_dir()
        why = f"left out, {Reason.NOT_A_FILE.value}" if is_neither else error.strerror
        raise LocalFileError(f"{place.path}: {why}", path=place.path) from error


@dataclass(frozen=True)
class Usage:
    """The number of blobs below a path, and their bytes."""

    path: str
    count: int
    size: int


def usage(entries: Iterator[ListingEntry], path: str) -> Usage:
    """Add up a recursive listing."""
    count = size = 0
    for entry in entries:
        count += 1
        size += entry.size or 0
    return Usage(path, count, size)


class PathStatus(NamedTuple):
    """The state of a path: ``local``, ``remote``, and as last verified in the index."""

    path: str
    local: LocalState | None
    local_is_folder: bool
    remote: ListingEntry | None
    remote_is_folder: bool
    verified_md5: bytes | None
    equal: bool | None


def path_status(connections: Connections, index: Index, place: Resolution) -> PathStatus:
    """The status of a path. Raises ``NothingMatchedError`` if it exists nowhere."""
    from blobsync.plan.pairing import known_equal  # late, as in the next function: ls compares nothing
    from blobsync.plan.survey import known_crc64s

    end = connections.open(place.remote)
    blob = blob_at(end, place)
    folder = has_folder(end)
    records = index.pair(place.entry.prefix, str(place.entry.remote))
    there = remote_state(blob) if blob is not None else None
    if there is not None and there.md5 is None:
        there = replace(there, crc64=known_crc64s(end, records, {end.name: there.etag}).get(end.name))
    by_crc64 = there is not None and there.crc64 is not None
    local = _local_state(place.local, with_crc64=by_crc64)
    if blob is None and not folder and not os.path.lexists(place.local):
        raise nothing_at(place, LocalLocation(place.local), end)
    record = records.get([place.relative]).get(place.relative)
    equal: bool | None = None
    if local is not None and there is not None:
        equal = known_equal(local, there, record)
    return PathStatus(
        path=place.path,
        local=local,
        local_is_folder=place.local.is_dir(),
        remote=_entry(place.path, blob) if blob else None,
        remote_is_folder=folder,
        verified_md5=record.md5 if record else None,
        equal=equal,
    )


def _local_state(file: Path, *, with_crc64: bool) -> LocalState | None:
    """A regular file's state, without its MD5 if it cannot be read or changes meanwhile; None if there is none."""
    from blobsync.local.files import hash_file
    from blobsync.plan.survey import hash_with_crc64

    return (hash_with_crc64(file) if with_crc64 else hash_file(file)) or LocalState.at(file)
