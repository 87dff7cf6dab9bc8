"""What the container held when it was last listed, stored next to the index's records.

Only differences from the records are stored: blobs without a record, blobs of another version, and (with an empty ETag)
recorded blobs that were missing. So a listing of a million verified blobs stores one row, its time.

A listing covers a folder with everything below it (``a/b``), one level of it without its folders (``a/b/``),
or a single blob (``a/b`` again: if it is a blob, nothing is below it).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from blobsync.base.file_states import RemoteState
from blobsync.local.sorted_runs import Spill, Spool

SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (
    root INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, md5 BLOB, etag TEXT NOT NULL,
    PRIMARY KEY (root, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS listings (
    root INTEGER NOT NULL, folder TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (root, folder)) WITHOUT ROWID;
"""
# Rows read or written at a time, so that no other process waits for a whole listing.
PAGE = 5000
_GONE = ""

SeenRow = tuple[str, int, bytes | None, str]


class Known(NamedTuple):
    """One path of ``known_rows`` with the record's size, MD5 and ETag, or what was listed instead."""

    path: str
    state: RemoteState | None


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


def below(folder: str) -> tuple[str, str]:
    """The first path below ``folder``, and the first one after all of them."""
    # "0" follows "/" in every relevant encoding.
    return (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")


def recorded_page(db: sqlite3.Connection, root: int, after: str, end: str) -> list[tuple[str, str]]:
    """Some recorded paths and their ETags, in order, from ``after`` on (which is not among them)."""
    query = "SELECT path, etag FROM pairs WHERE root = ? AND path > ? AND path < ? ORDER BY path LIMIT ?"
    return db.execute(query, (root, after, end, PAGE)).fetchall()


def level_of(folder: str) -> str:
    """The key for one level of ``folder`` in the table of listings; no path ends like it."""
    return f"{folder}/"


def recorded_level(db: sqlite3.Connection, root: int, folder: str, after: str) -> list[tuple[str, str]]:
    """Some recorded paths directly in ``folder`` and their ETags, in order, from ``after`` on (``""``: the first).

    Skips everything below a sub-folder in one step.
    """
    start, end = below(folder)
    # The next path after a file is the file's path and a NUL; after a folder, the path with the "0" that follows "/".
    first = f"{after}\0" if after else start
    found: list[tuple[str, str]] = []
    query = "SELECT path, etag FROM pairs WHERE root = ? AND path >= ? AND path < ? ORDER BY path LIMIT 1"
    while len(found) < PAGE and (row := db.execute(query, (root, first, end)).fetchone()) is not None:
        path, etag = row
        name, slash, _ = path[len(start) :].partition("/")
        if slash:
            first = f"{start}{name}0"
        else:
            found.append((path, etag))
            first = f"{path}\0"
    return found


def forget_level(db: sqlite3.Connection, root: int, folder: str) -> None:
    """Forget what lies directly in ``folder``; the caller holds a transaction."""
    start, end = below(folder)
    direct = "DELETE FROM seen WHERE root = ? AND path >= ? AND path < ? AND instr(substr(path, ?), '/') = 0"
    db.execute(direct, (root, start, end, len(start) + 1))


def note_blob(db: sqlite3.Connection, root: int, path: str, state: RemoteState | None, at: float) -> None:
    """Record whether there is a blob of that name at the time ``at``; the caller holds a transaction."""
    db.execute("DELETE FROM seen WHERE root = ? AND path = ?", (root, path))
    recorded = db.execute("SELECT etag FROM pairs WHERE root = ? AND path = ?", (root, path)).fetchone()
    if state is not None and (recorded is None or recorded[0] != state.etag):
        store(db, root, [(path, state.size, state.md5, state.etag)])
    elif state is None and recorded is not None:
        store(db, root, [(path, 0, None, _GONE)])
    note_listing(db, root, path, at)


def forget_folder(db: sqlite3.Connection, root: int, folder: str) -> None:
    """Forget everything in ``folder``; the caller holds a transaction."""
    start, end = below(folder)
    db.execute("DELETE FROM seen WHERE root = ? AND path >= ? AND path < ?", (root, start, end))
    db.execute("DELETE FROM listings WHERE root = ? AND folder >= ? AND folder < ?", (root, start, end))


def store(db: sqlite3.Connection, root: int, rows: Iterable[SeenRow]) -> None:
    """Store where a listing differs from the records; the caller holds a transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO seen (root, path, size, md5, etag) VALUES (?, ?, ?, ?, ?)",
        [(root, *row) for row in rows],
    )


def note_listing(db: sqlite3.Connection, root: int, folder: str, at: float) -> None:
    """Record that all of ``folder`` was listed at the time ``at``; the caller holds a transaction."""
    db.execute("INSERT OR REPLACE INTO listings (root, folder, at) VALUES (?, ?, ?)", (root, folder, at))


def drop(db: sqlite3.Connection, root: int, paths: list[str]) -> None:
    """Remove paths that now have a record, or are gone; the caller holds a transaction."""
    if db.execute("SELECT 1 FROM seen WHERE root = ? LIMIT 1", (root,)).fetchone():
        db.executemany("DELETE FROM seen WHERE root = ? AND path = ?", [(root, path) for path in paths])


def listed_at(db: sqlite3.Connection, root: int, folder: str) -> float | None:
    """When ``folder`` as a whole was last listed, alone or with a folder above it."""
    return _latest(db, root, _with_above(folder))


def blob_listed_at(db: sqlite3.Connection, root: int, path: str) -> float | None:
    """The same for a path that is no folder: the level that it is in counts, too."""
    return _latest(db, root, [*_with_above(path), level_of(path.rpartition("/")[0])])


def _with_above(path: str) -> list[str]:
    """The path, and each folder that contains it."""
    above = [path]
    while above[-1]:
        above.append(above[-1].rpartition("/")[0])
    return above


def _latest(db: sqlite3.Connection, root: int, listed: list[str]) -> float | None:
    marks = ",".join("?" * len(listed))
    query = f"SELECT max(at) FROM listings WHERE root = ? AND folder IN ({marks})"  # noqa: S608 - only marks
    found = db.execute(query, (root, *listed)).fetchone()[0]
    return None if found is None else float(found)


class Listed:
    """Which parts of a folder were listed that was never listed as a whole."""

    def __init__(self, listings: frozenset[str] = frozenset()) -> None:
        self._listings = listings

    def __contains__(self, path: str) -> bool:
        """Whether it is known if there is a blob of that name."""
        known = self._listings
        return bool(known) and (
            level_of(path.rpartition("/")[0]) in known or any(each in known for each in _with_above(path))
        )


def listed_in(db: sqlite3.Connection, root: int, folder: str) -> Listed:
    """What was listed below ``folder``."""
    start, end = below(folder)
    rows = db.execute("SELECT folder FROM listings WHERE root = ? AND folder >= ? AND folder < ?", (root, start, end))
    return Listed(frozenset(row[0] for row in rows))


def known_blob(db: sqlite3.Connection, root: int, path: str) -> RemoteState | None:
    """The last known state of one blob; None if it is missing or unknown."""
    for table in ("seen", "pairs"):
        query = f"SELECT size, md5, etag FROM {table} WHERE root = ? AND path = ?"  # noqa: S608 - our own tables
        row = db.execute(query, (root, path)).fetchone()
        if row is not None:
            return RemoteState(row[0], row[2], row[1]) if row[2] else None
    return None


def known_page(db: sqlite3.Connection, root: int, after: str, end: str) -> list[Known]:
    """Some paths that the container presumably holds, or presumably lost, in order, from ``after`` on.

    A record without a matching blob (``--keep`` makes such) says nothing about the container.
    """
    query = (
        "SELECT path, size, md5, etag FROM seen WHERE root = :root AND path > :after AND path < :end"
        " UNION ALL"
        " SELECT path, size, md5, etag FROM pairs WHERE root = :root AND path > :after AND path < :end AND etag <> ''"
        " AND NOT EXISTS (SELECT 1 FROM seen WHERE seen.root = pairs.root AND seen.path = pairs.path)"
        " ORDER BY path LIMIT :page"
    )
    rows = db.execute(query, {"root": root, "after": after, "end": end, "page": PAGE})
    return [Known(path, None if etag == _GONE else RemoteState(size, etag, md5)) for path, size, md5, etag in rows]
