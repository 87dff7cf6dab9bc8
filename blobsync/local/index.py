"""The index: which local files and blobs were last found to be equal, and the state of each side then.

The index only saves time. If it is lost, corrupt or locked, files are compared by their MD5
again; different files are never treated as equal.

One SQLite file per project, used by several processes at once.

It also stores what the container held when it was last listed. Only differences from the records are stored: blobs
without a record, blobs of another version, and (with an empty ETag) recorded blobs that were missing. So a listing of a
million verified blobs stores one row, its time.

A listing covers a folder with everything below it (``a/b``), one level of it without its folders (``a/b/``),
or a single blob (``a/b`` again: if it is a blob, nothing is below it).

Of blobs without an MD5 that a service fetched from elsewhere it stores the CRC64 that the service answered with, by
container, name and ETag: whatever is compared with such a blob later needs no record of both. And of each container it
stores what the service last said of its account.

Each transaction waits for the disk three times. So a listing is stored with the next records, or when somebody asks for
listings, or at the end: a killed process may leave none, which only makes the last one older.
"""

from __future__ import annotations

import atexit
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import at_and_above
from blobsync.base.records import NamedTuple
from blobsync.local.database import ExpendableDatabase, Layout, rows_in, storable
from blobsync.local.sorted_runs import IN_MEMORY, Spill, Spool

_T = TypeVar("_T")

# A page of the recorded paths with their ETags, and with their MD5s; and of what the container presumably holds, or
# presumably lost. A record without a matching blob (``--keep`` makes such) says nothing about the container.
_BELOW = "WHERE root = :root AND path > :after AND path < :end"
_RECORDED = f"SELECT path, etag FROM pairs {_BELOW} ORDER BY path LIMIT :page"  # noqa: S608 - our own text
_CONTENTS = f"SELECT path, md5 FROM pairs {_BELOW} ORDER BY path LIMIT :page"  # noqa: S608 - our own text
_KNOWN = (
    f"SELECT path, size, md5, etag FROM seen {_BELOW} UNION ALL"  # noqa: S608 - our own text
    f" SELECT path, size, md5, etag FROM pairs {_BELOW}"
    " AND etag <> '' AND NOT EXISTS (SELECT 1 FROM seen WHERE seen.root = pairs.root AND seen.path = pairs.path)"
    " ORDER BY path LIMIT :page"
)
_SELECT = "SELECT path, size, md5, mtime_ns, ctime_ns, inode, source_etag, etag FROM pairs WHERE root = ? AND "
# Rows read for each path that is looked up, before looking for the others one by one.
_PASSED = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS roots (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, remote TEXT NOT NULL, UNIQUE (source, remote));
CREATE TABLE IF NOT EXISTS pairs (
    root INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, md5 BLOB,
    mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, source_etag TEXT, etag TEXT NOT NULL,
    PRIMARY KEY (root, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
    root INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, md5 BLOB, etag TEXT NOT NULL,
    PRIMARY KEY (root, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS listings (
    root INTEGER NOT NULL, folder TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (root, folder)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checksums (
    root INTEGER NOT NULL, name TEXT NOT NULL, etag TEXT NOT NULL, crc64 BLOB NOT NULL,
    PRIMARY KEY (root, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS features (container TEXT PRIMARY KEY, found TEXT NOT NULL) WITHOUT ROWID;
"""
_LAYOUT = Layout(4, _SCHEMA, extends=(3,))


class Record(NamedTuple):
    """One verified pair. ``near`` is the local file, or the source blob of a copy; ``remote`` the blob."""

    near: FileState
    remote: RemoteState

    @property
    def md5(self) -> bytes | None:
        """The content that both sides had, if it is known."""
        return self.near.md5 or self.remote.md5


_Work = Callable[[sqlite3.Connection, int], None]
_Write = Callable[[sqlite3.Connection], None]


class Index:
    """Opens on first use. ``on_trouble`` gets one sentence if the file cannot be used any more."""

    def __init__(self, file: Path, on_trouble: Callable[[str], None] = lambda text: None) -> None:
        self._file = ExpendableDatabase(
            file,
            _LAYOUT,
            lambda why: on_trouble(f"the index {why}; comparing by content instead"),
            synchronous="NORMAL",
        )
        # Valid for one connection: another one may have another file.
        self._roots: dict[tuple[str, str], int] = {}
        self._roots_of: sqlite3.Connection | None = None
        # What is to be stored with the next transaction.
        self._waiting: list[_Write] = []
        self._features: dict[str, str] = {}
        self._lock = threading.Lock()

    def pair(self, source: str, remote: str) -> PairIndex:
        """The records between two roots: a project-relative folder (or container URL) and a blob URL."""
        return PairIndex(self, source, remote)

    def checksums(self, container: str) -> BlobChecksums:
        """The CRC64s of blobs in the container of this URL."""
        return BlobChecksums(self, container)

    def features(self, container: str) -> str | None:
        """What the last :meth:`remember_features` of this container stored, None if nothing did."""
        if container in self._features:
            return self._features[container]
        found = self._file.read(
            lambda db: db.execute("SELECT found FROM features WHERE container = ?", (container,)).fetchone()
        )
        return str(found[0]) if found else None

    def remember_features(self, container: str, found: str) -> None:
        """Store what the service said of the account of this container, with the next transaction."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO features VALUES (?, ?)", (container, found))

        self._features[container] = found
        self._wait(write)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self.store_waiting()
        self._file.close()

    def read(self, key: tuple[str, str], ask: Callable[[sqlite3.Connection, int], _T | None]) -> _T | None:
        """What ``ask`` finds about the roots ``key``; None if nothing is known of them."""

        def read(db: sqlite3.Connection) -> _T | None:
            root = self._root(db, key, make=False)
            return None if root is None else ask(db, root)

        return self._file.read(read)

    def read_listings(
        self, key: tuple[str, str], path: str, ask: Callable[[sqlite3.Connection, int], _T | None]
    ) -> _T | None:
        """The same about ``path``, with what waits to be stored; nothing is known of one that has no record."""
        self.store_waiting()
        return self.read(key, ask) if storable(path) else None

    def write(self, key: tuple[str, str], work: _Work) -> None:
        """Do ``work`` in one transaction, behind what waits."""
        self._store([*self._take_waiting(), lambda db: self._work(db, key, work)])

    def later(self, key: tuple[str, str], work: _Work) -> None:
        """Do ``work`` in the next transaction, at the end of the process at the latest."""
        self._wait(lambda db: self._work(db, key, work))

    def store_waiting(self) -> None:
        """Store what waits."""
        if waiting := self._take_waiting():
            self._store(waiting)

    def _wait(self, work: _Write) -> None:
        with self._lock:
            if not self._waiting:
                atexit.register(self.store_waiting)
            self._waiting.append(work)

    def _take_waiting(self) -> list[_Write]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if waiting:
            atexit.unregister(self.store_waiting)
        return waiting

    def _store(self, waiting: Iterable[_Write]) -> None:
        def write(db: sqlite3.Connection) -> None:
            for work in waiting:
                work(db)

        self._file.write(write)

    def _work(self, db: sqlite3.Connection, key: tuple[str, str], work: _Work) -> None:
        root = self._root(db, key, make=True)
        assert root is not None
        work(db, root)

    def _root(self, db: sqlite3.Connection, key: tuple[str, str], *, make: bool) -> int | None:
        if db is not self._roots_of:
            self._roots, self._roots_of = {}, db
        if key not in self._roots:
            if make:
                db.execute("INSERT OR IGNORE INTO roots (source, remote) VALUES (?, ?)", key)
            row = db.execute("SELECT id FROM roots WHERE source = ? AND remote = ?", key).fetchone()
            if row is None:
                return None
            self._roots[key] = int(row[0])
        return self._roots[key]


class PairIndex:
    """The records between two roots; paths are relative to both. Nothing here raises."""

    def __init__(self, index: Index, source: str, remote: str) -> None:
        self._index = index
        self._key = (source, remote)

    def checksums(self, container: str) -> BlobChecksums:
        """See :meth:`Index.checksums`."""
        return self._index.checksums(container)

    def get(self, paths: Sequence[str]) -> dict[str, Record]:
        """The records of those of ``paths`` that were verified before."""
        wanted = {path for path in paths if storable(path)}
        return self._index.read(self._key, partial(_recorded, wanted=wanted)) or {} if wanted else {}

    def put(self, records: Mapping[str, Record]) -> None:
        """Store these records, in one transaction."""
        rows = [_row(path, record) for path, record in records.items() if storable(path)]

        def write(db: sqlite3.Connection, root: int) -> None:
            put = "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            db.executemany(put, [(root, *row) for row in rows])
            _drop(db, root, list(filter(storable, records)))

        if records:
            self._index.write(self._key, write)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove the records of ``paths``: they are no longer known to be equal."""
        gone = [path for path in paths if storable(path)]

        def write(db: sqlite3.Connection, root: int) -> None:
            db.executemany("DELETE FROM pairs WHERE root = ? AND path = ?", [(root, path) for path in gone])
            _drop(db, root, gone)

        self._index.write(self._key, write)

    def holding(self, md5s: Collection[bytes]) -> Iterator[tuple[str, bytes]]:
        """The recorded paths whose content has one of these MD5s, with that MD5."""
        return ((path, md5) for path, md5 in self._pages("", _CONTENTS) if md5 in md5s)

    def differences(self, folder: str, spill: Spill = IN_MEMORY, *, one_level: bool = False) -> Differences:
        """Compare a listing of ``folder`` (below both roots) with the records; ``spill`` is for the differences.

        ``one_level``: the listing contains only what lies directly in the folder.
        """
        return Differences(self._level(folder) if one_level else self._pages(folder, _RECORDED), spill)

    def remember_listing(self, folder: str, found: Differences, at: float, *, one_level: bool = False) -> None:
        """Store a complete listing of ``folder`` that began at the time ``at`` (seconds since 1970).

        In one transaction or several; it counts only after the last one.
        """
        if not storable(folder):
            return
        rows = found.rows()
        good = (row for row in rows if storable(row[0]))
        beginning = list(islice(good, PAGE))
        note = partial(_note_listing, folder=_level_of(folder) if one_level else folder, at=at)

        def first(db: sqlite3.Connection, root: int) -> None:
            (_forget_level if one_level else _forget_folder)(db, root, folder)
            _store(db, root, beginning)
            if len(rows) <= PAGE:
                note(db, root)

        if len(rows) <= PAGE:
            self._index.later(self._key, first)
            return
        self._index.write(self._key, first)
        while page := list(islice(good, PAGE)):
            self._index.write(self._key, partial(_store, rows=page))
        self._index.write(self._key, note)

    def remember_blob(self, path: str, state: RemoteState | None, at: float) -> None:
        """Store the result of looking up one blob by its exact name; None: there is none."""
        if storable(path):
            self._index.later(self._key, partial(_note_blob, path=path, state=state, at=at))

    def remember_blobs(self, blobs: Mapping[str, RemoteState]) -> None:
        """Store blobs that were written without the local files of the same paths, in one transaction."""
        rows = [(path, blob.size, blob.md5, blob.etag) for path, blob in blobs.items() if storable(path)]
        if rows:
            self._index.write(self._key, partial(_store, rows=rows))

    def as_last_listed(self, folder: str) -> Iterator[tuple[str, RemoteState]]:
        """What the container presumably holds below ``folder``, in the order of the paths."""
        self._index.store_waiting()
        for path, size, md5, etag in self._pages(folder, _KNOWN):
            if etag != _GONE:
                yield path, RemoteState(size, etag, md5)

    def blob_as_last_listed(self, path: str) -> RemoteState | None:
        """The same for one blob; None if there presumably is none."""
        return self._index.read_listings(self._key, path, partial(_known_blob, path=path))

    def listed_at(self, folder: str) -> float | None:
        """When ``folder`` was last listed as a whole (seconds since 1970); None if never."""
        return self._index.read_listings(self._key, folder, partial(_latest, listed=[*at_and_above(folder), ""]))

    def blob_listed_at(self, path: str) -> float | None:
        """The same for a path that is no folder: the level that it is in counts, too."""
        listed = [*at_and_above(path), "", _level_of(path.rpartition("/")[0])]
        return self._index.read_listings(self._key, path, partial(_latest, listed=listed))

    def listed_in(self, folder: str) -> Listed:
        """Which parts of ``folder`` were listed."""
        start, end = _below(folder)

        def ask(db: sqlite3.Connection, root: int) -> Listed:
            query = "SELECT folder FROM listings WHERE root = ? AND folder >= ? AND folder < ?"
            return Listed(frozenset(row[0] for row in db.execute(query, (root, start, end))))

        return self._index.read_listings(self._key, folder, ask) or Listed()

    def _pages(self, folder: str, query: str) -> Iterator[Any]:
        """Rows below ``folder`` in the order of their paths, which come first; others may write between pages."""
        after, end = _below(folder)

        def page(db: sqlite3.Connection, root: int) -> list[Any]:
            return db.execute(query, {"root": root, "after": after, "end": end, "page": PAGE}).fetchall()

        while storable(folder) and (rows := self._index.read(self._key, page)):
            yield from rows
            after = rows[-1][0]

    def _level(self, folder: str) -> Iterator[Any]:
        """The recorded paths directly in ``folder`` and their ETags; skips what is below a sub-folder in one step."""
        first, end = _below(folder)
        start = len(first)

        def following(db: sqlite3.Connection, root: int) -> Any:
            query = "SELECT path, etag FROM pairs WHERE root = ? AND path >= ? AND path < ? ORDER BY path LIMIT 1"
            return db.execute(query, (root, first, end)).fetchone()

        while storable(folder) and (row := self._index.read(self._key, following)):
            name, slash, _ = row[0][start:].partition("/")
            if not slash:
                yield row
            # Behind a folder: "0" follows "/".
            first = f"{row[0][:start]}{name}0" if slash else f"{row[0]}\0"


class BlobChecksums:
    """The CRC64s of blobs in one container that have no MD5, each of one version. Nothing here raises."""

    def __init__(self, index: Index, container: str) -> None:
        self._index = index
        # A pair may have the same roots: its rows are in other tables.
        self._key = ("", container)

    def get(self, etags: Mapping[str, str]) -> dict[str, bytes]:
        """The CRC64s by name, of those blobs that still have the same ETag; ``etags`` are the present ones by name."""
        names = [name for name in etags if storable(name)]
        query = "SELECT name, etag, crc64 FROM checksums WHERE root = ? AND name"

        def ask(db: sqlite3.Connection, root: int) -> list[tuple[Any, ...]]:
            return list(rows_in(db, query, (root,), names))

        rows = self._index.read_listings(self._key, "", ask) if names else None
        return {name: crc64 for name, etag, crc64 in rows or () if etags[name] == etag}

    def put(self, blobs: Mapping[str, RemoteState]) -> None:
        """Store the CRC64s of these blobs, with the next records."""
        rows = [(name, blob.etag, blob.crc64) for name, blob in blobs.items() if blob.crc64 and storable(name)]

        def write(db: sqlite3.Connection, root: int) -> None:
            db.executemany("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?, ?)", [(root, *row) for row in rows])

        if rows:
            self._index.later(self._key, write)


def _recorded(db: sqlite3.Connection, root: int, wanted: AbstractSet[str]) -> dict[str, Record]:
    """The records of these paths."""
    # Files of a folder are next to each other here as well: reading on takes less than looking each up.
    most = _PASSED * len(wanted)
    ends = (root, min(wanted), max(wanted), most + 1)
    rows = db.execute(f"{_SELECT} path BETWEEN ? AND ? ORDER BY path LIMIT ?", ends).fetchall()
    found = {row[0]: _record(row) for row in rows if row[0] in wanted}
    left = list(wanted - found.keys()) if len(rows) > most else []
    return found | {row[0]: _record(row) for row in rows_in(db, f"{_SELECT} path", (root,), left)}


def _record(row: tuple[Any, ...]) -> Record:
    _, size, md5, mtime_ns, ctime_ns, inode, source_etag, etag = row
    near: FileState
    if mtime_ns is None:
        near = RemoteState(size, source_etag or "", md5)
    else:
        near = LocalState(size, mtime_ns, ctime_ns, inode % (1 << 64), md5)
    return Record(near, RemoteState(size, etag, md5))


def _row(path: str, record: Record) -> tuple[object, ...]:
    near, remote = record.near, record.remote
    stamps: tuple[object, ...]
    if isinstance(near, RemoteState):
        stamps = (None, None, None, near.etag)
    else:
        # Inodes are unsigned 64 bits on some file systems; SQLite's integers are signed.
        inode = near.inode - (1 << 64) if near.inode >= 1 << 63 else near.inode
        stamps = (near.mtime_ns, near.ctime_ns, inode, None)
    return (path, remote.size, record.md5, *stamps, remote.etag)


# Rows read or written at a time, so that no other process waits for a whole listing.
PAGE = 5000
_GONE = ""

SeenRow = tuple[str, int, bytes | None, str]


class Differences:
    """Compares a listing with the records, path by path, and collects the differences.

    ``recorded`` are the recorded paths and ETags in byte order, which is that of most services. A listing
    in another order only takes more memory. Differences go to the disk as ``spill`` says.
    """

    def __init__(self, recorded: Iterator[tuple[str, str]], spill: Spill) -> None:
        self._recorded = recorded
        self._next = next(recorded, None)
        self._passed: dict[str, str] = {}
        self._rows = Spool(spill._replace(most=spill.batch))

    def seen(self, path: str, state: RemoteState) -> None:
        """Add a blob of the listing."""
        if self._next is not None and self._next[0] == path:
            # Of an unchanged folder each blob is the next one.
            etag, self._next = self._next[1], next(self._recorded, None)
            if etag != state.etag:
                self._rows.append((path, state.size, state.md5, state.etag))
            return
        # As SQLite compares; Python compares strings differently.
        place = path.encode("utf-8", "surrogatepass")
        while self._next is not None and self._next[0].encode() <= place:
            self._passed[self._next[0]] = self._next[1]
            self._next = next(self._recorded, None)
        if self._passed.pop(path, None) != state.etag:
            self._rows.append((path, state.size, state.md5, state.etag))

    def rows(self) -> Spool:
        """The rows to store, once the listing is complete."""
        missing = chain(self._passed, [self._next[0]] if self._next else [], (path for path, _ in self._recorded))
        for path in missing:
            self._rows.append((path, 0, None, _GONE))
        return self._rows


def _below(folder: str) -> tuple[str, str]:
    """The first path below ``folder``, and the first one after all of them."""
    # "0" follows "/" in every relevant encoding.
    return (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")


def _level_of(folder: str) -> str:
    """The key for one level of ``folder`` in the table of listings; no path ends like it."""
    return f"{folder}/"


# The following are parts of a transaction that is open.


def _forget_level(db: sqlite3.Connection, root: int, folder: str) -> None:
    """Forget what lies directly in ``folder``."""
    start, end = _below(folder)
    direct = "DELETE FROM seen WHERE root = ? AND path >= ? AND path < ? AND instr(substr(path, ?), '/') = 0"
    db.execute(direct, (root, start, end, len(start) + 1))


def _forget_folder(db: sqlite3.Connection, root: int, folder: str) -> None:
    """Forget everything in ``folder``."""
    for table, name in (("seen", "path"), ("listings", "folder")):
        query = f"DELETE FROM {table} WHERE root = ? AND {name} >= ? AND {name} < ?"  # noqa: S608 - our own tables
        db.execute(query, (root, *_below(folder)))


def _note_blob(db: sqlite3.Connection, root: int, path: str, state: RemoteState | None, at: float) -> None:
    """Record whether there is a blob of that name at the time ``at``."""
    db.execute("DELETE FROM seen WHERE root = ? AND path = ?", (root, path))
    recorded = db.execute("SELECT etag FROM pairs WHERE root = ? AND path = ?", (root, path)).fetchone()
    if state is not None and (recorded is None or recorded[0] != state.etag):
        _store(db, root, [(path, state.size, state.md5, state.etag)])
    elif state is None and recorded is not None:
        _store(db, root, [(path, 0, None, _GONE)])
    _note_listing(db, root, path, at)


def _store(db: sqlite3.Connection, root: int, rows: Iterable[SeenRow]) -> None:
    """Store where a listing differs from the records."""
    db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)", [(root, *row) for row in rows])


def _note_listing(db: sqlite3.Connection, root: int, folder: str, at: float) -> None:
    db.execute("INSERT OR REPLACE INTO listings VALUES (?, ?, ?)", (root, folder, at))


def _drop(db: sqlite3.Connection, root: int, paths: list[str]) -> None:
    """Remove paths that now have a record, or are gone."""
    if db.execute("SELECT 1 FROM seen WHERE root = ? LIMIT 1", (root,)).fetchone():
        db.executemany("DELETE FROM seen WHERE root = ? AND path = ?", [(root, path) for path in paths])


def _latest(db: sqlite3.Connection, root: int, listed: list[str]) -> float | None:
    times = rows_in(db, "SELECT at FROM listings WHERE root = ? AND folder", (root,), listed)
    return max((float(at) for (at,) in times), default=None)


class Listed:
    """Which parts of a folder were listed that was never listed as a whole."""

    def __init__(self, listings: frozenset[str] = frozenset()) -> None:
        self._listings = listings

    def __contains__(self, path: str) -> bool:
        """Whether it is known if there is a blob of that name."""
        known = self._listings
        return bool(known) and not known.isdisjoint((_level_of(path.rpartition("/")[0]), "", *at_and_above(path)))


def _known_blob(db: sqlite3.Connection, root: int, path: str) -> RemoteState | None:
    """The last known state of one blob; None if it is missing or unknown."""
    for table in ("seen", "pairs"):
        query = f"SELECT size, md5, etag FROM {table} WHERE root = ? AND path = ?"  # noqa: S608 - our own tables
        row = db.execute(query, (root, path)).fetchone()
        if row is not None:
            return RemoteState(row[0], row[2], row[1]) if row[2] else None
    return None
