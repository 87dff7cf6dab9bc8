"""The index: which local files and blobs were last found to be equal, and the state of each side then.

The index only saves time. If it is lost, corrupt or locked, files are compared by their MD5
again; different files are never treated as equal.

One SQLite file per project, used by several processes at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.local import last_seen
from blobsync.local.sorted_runs import Spill, Spool
from blobsync.local.state_database import StateDatabase

_T = TypeVar("_T")
_Row = TypeVar("_Row", bound=tuple[Any, ...])

_IN_MEMORY = Spill()
_SCHEMA_VERSION = 2
# Fewer host parameters than SQLite's old limit of 999 (https://www.sqlite.org/limits.html).
_BATCH = 500

_SELECT = (
    "SELECT path, size, md5, mtime_ns, ctime_ns, inode, source_etag, etag FROM pairs WHERE root = ? AND path IN (MARKS)"
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS roots (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, remote TEXT NOT NULL, UNIQUE (source, remote));
CREATE TABLE IF NOT EXISTS pairs (
    root INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, md5 BLOB,
    mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER, source_etag TEXT, etag TEXT NOT NULL,
    PRIMARY KEY (root, path)) WITHOUT ROWID;
"""


class Record(NamedTuple):
    """One verified pair. ``near`` is the local file, or the source blob of a copy; ``remote`` the blob."""

    near: FileState
    remote: RemoteState

    @property
    def md5(self) -> bytes | None:
        """The content that both sides had, if it is known."""
        return self.near.md5 or self.remote.md5


class Index:
    """Opens on first use. ``on_trouble`` gets one sentence if the file cannot be used any more."""

    def __init__(self, file: Path, on_trouble: Callable[[str], None] = lambda text: None) -> None:
        self._file = StateDatabase(
            file,
            _SCHEMA + last_seen.SCHEMA,
            _SCHEMA_VERSION,
            lambda why: on_trouble(f"the index {why}; comparing by content instead"),
            extends=(1,),
            synchronous="NORMAL",
        )
        # Valid for one connection: another one may have another file.
        self._roots: dict[tuple[str, str], int] = {}
        self._roots_of: sqlite3.Connection | None = None

    def pair(self, source: str, remote: str) -> PairIndex:
        """The records between two roots: a project-relative folder (or container URL) and a blob URL."""
        return PairIndex(self, source, remote)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._file.close()

    def _get(self, key: tuple[str, str], paths: Sequence[str]) -> dict[str, Record]:
        def read(db: sqlite3.Connection) -> dict[str, Record]:
            root = self._root(db, key, make=False)
            found: dict[str, Record] = {}
            if root is None:
                return found
            for start in range(0, len(paths), _BATCH):
                batch = [path for path in paths[start : start + _BATCH] if _storable(path)]
                marks = ",".join("?" * len(batch))
                rows = db.execute(_SELECT.replace("MARKS", marks), (root, *batch))
                found.update((row[0], _record(row)) for row in rows)
            return found

        return self._file.read(read) or {}

    def _put(self, key: tuple[str, str], records: Mapping[str, Record]) -> None:
        rows = [_row(path, record) for path, record in records.items() if _storable(path)]

        def write(db: sqlite3.Connection) -> None:
            root = self._root(db, key, make=True)
            assert root is not None
            db.executemany(
                "INSERT OR REPLACE INTO pairs (root, path, size, md5, mtime_ns, ctime_ns, inode, source_etag,"
                " etag) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(root, *row) for row in rows],
            )
            last_seen.drop(db, root, [path for path in records if _storable(path)])

        self._file.write(write)

    def _forget(self, key: tuple[str, str], paths: Iterable[str]) -> None:
        gone = [path for path in paths if _storable(path)]

        def write(db: sqlite3.Connection) -> None:
            root = self._root(db, key, make=False)
            if root is None:
                return
            db.executemany("DELETE FROM pairs WHERE root = ? AND path = ?", [(root, path) for path in gone])
            last_seen.drop(db, root, gone)

        self._file.write(write)

    def _pages(
        self, key: tuple[str, str], folder: str, page: Callable[[sqlite3.Connection, int, str, str], list[_Row]]
    ) -> Iterator[_Row]:
        """Rows below ``folder`` in the order of their paths, which come first; others may write between pages."""
        if not _storable(folder):
            return
        start, end = last_seen.below(folder)
        yield from self._paged(key, start, lambda db, root, after: page(db, root, after, end))

    def _level_pages(self, key: tuple[str, str], folder: str) -> Iterator[tuple[str, str]]:
        """Recorded paths directly in ``folder``, and their ETags."""
        if _storable(folder):
            yield from self._paged(key, "", lambda db, root, after: last_seen.recorded_level(db, root, folder, after))

    def _paged(
        self, key: tuple[str, str], start: str, page: Callable[[sqlite3.Connection, int, str], list[_Row]]
    ) -> Iterator[_Row]:
        def rows_after(path: str) -> list[_Row] | None:
            return self._read(key, lambda db, root: page(db, root, path))

        while rows := rows_after(start):
            yield from rows
            start = rows[-1][0]

    def _store_listing(self, key: tuple[str, str], folder: str, rows: Spool, at: float, *, one_level: bool) -> None:
        """Store a listing in one transaction or several; it counts only after the last one."""
        listed = last_seen.level_of(folder) if one_level else folder
        forget = last_seen.forget_level if one_level else last_seen.forget_folder
        if not _storable(folder):
            return
        storable = (row for row in rows if _storable(row[0]))
        beginning = list(islice(storable, last_seen.PAGE))

        def first(db: sqlite3.Connection, root: int) -> None:
            forget(db, root, folder)
            last_seen.store(db, root, beginning)
            if len(rows) <= last_seen.PAGE:
                last_seen.note_listing(db, root, listed, at)

        self._write(key, first)
        if len(rows) > last_seen.PAGE:
            while page := list(islice(storable, last_seen.PAGE)):
                self._write(key, partial(last_seen.store, rows=page))
            self._write(key, lambda db, root: last_seen.note_listing(db, root, listed, at))

    def _write(self, key: tuple[str, str], work: Callable[[sqlite3.Connection, int], None]) -> None:
        def transaction(db: sqlite3.Connection) -> None:
            root = self._root(db, key, make=True)
            assert root is not None
            work(db, root)

        self._file.write(transaction)

    def _read(self, key: tuple[str, str], ask: Callable[[sqlite3.Connection, int], _T | None]) -> _T | None:
        def read(db: sqlite3.Connection) -> _T | None:
            root = self._root(db, key, make=False)
            return None if root is None else ask(db, root)

        return self._file.read(read)

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

    def get(self, paths: Sequence[str]) -> dict[str, Record]:
        """The records of those of ``paths`` that were verified before."""
        return self._index._get(self._key, paths)

    def put(self, records: Mapping[str, Record]) -> None:
        """Store these records, in one transaction."""
        if records:
            self._index._put(self._key, records)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove the records of ``paths``: they are no longer known to be equal."""
        self._index._forget(self._key, paths)

    def differences(self, folder: str, spill: Spill = _IN_MEMORY, *, one_level: bool = False) -> last_seen.Differences:
        """Compare a listing of ``folder`` (below both roots) with the records; ``spill`` is for the differences.

        ``one_level``: the listing contains only what lies directly in the folder.
        """
        pages = self._index._pages(self._key, folder, last_seen.recorded_page)
        return last_seen.Differences(self._index._level_pages(self._key, folder) if one_level else pages, spill)

    def remember_listing(
        self, folder: str, found: last_seen.Differences, at: float, *, one_level: bool = False
    ) -> None:
        """Store a complete listing of ``folder`` that began at the time ``at`` (seconds since 1970)."""
        self._index._store_listing(self._key, folder, found.rows(), at, one_level=one_level)

    def remember_blob(self, path: str, state: RemoteState | None, at: float) -> None:
        """Store the result of looking up one blob by its exact name; None: there is none."""
        if _storable(path):
            self._index._write(self._key, lambda db, root: last_seen.note_blob(db, root, path, state, at))

    def as_last_listed(self, folder: str) -> Iterator[tuple[str, RemoteState]]:
        """What the container presumably holds below ``folder``, in the order of the paths."""
        for path, state in self._index._pages(self._key, folder, last_seen.known_page):
            if state is not None:
                yield path, state

    def blob_as_last_listed(self, path: str) -> RemoteState | None:
        """The same for one blob; None if there presumably is none."""
        if not _storable(path):
            return None
        return self._index._read(self._key, lambda db, root: last_seen.known_blob(db, root, path))

    def listed_at(self, folder: str) -> float | None:
        """When ``folder`` was last listed as a whole (seconds since 1970); None if never."""
        if not _storable(folder):
            return None
        return self._index._read(self._key, lambda db, root: last_seen.listed_at(db, root, folder))

    def blob_listed_at(self, path: str) -> float | None:
        """The same for a path that is no folder."""
        if not _storable(path):
            return None
        return self._index._read(self._key, lambda db, root: last_seen.blob_listed_at(db, root, path))

    def listed_in(self, folder: str) -> last_seen.Listed:
        """Which parts of ``folder`` were listed."""
        if not _storable(folder):
            return last_seen.Listed()
        found = self._index._read(self._key, lambda db, root: last_seen.listed_in(db, root, folder))
        return found or last_seen.Listed()


def _storable(path: str) -> bool:
    # Names that are not UTF-8 arrive as surrogates, which SQLite does not accept; they never have a record.
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _record(row: tuple[str, int, bytes | None, int | None, int, int, str | None, str]) -> Record:
    _, size, md5, mtime_ns, ctime_ns, inode, source_etag, etag = row
    near: FileState
    if mtime_ns is None:
        near = RemoteState(size, source_etag or "", md5)
    else:
        near = LocalState(size, mtime_ns, ctime_ns, inode % (1 << 64), md5)
    return Record(near, RemoteState(size, etag, md5))


def _row(path: str, record: Record) -> tuple[object, ...]:
    near, remote = record.near, record.remote
    stamps: tuple[object, ...] = (None, None, None, near.etag) if isinstance(near, RemoteState) else _stamps(near)
    return (path, remote.size, record.md5, *stamps, remote.etag)


def _stamps(near: LocalState) -> tuple[object, ...]:
    return (near.mtime_ns, near.ctime_ns, _signed(near.inode), None)


def _signed(number: int) -> int:
    # Inodes are unsigned 64 bits on some file systems; SQLite's integers are signed.
    return number - (1 << 64) if number >= 1 << 63 else number
