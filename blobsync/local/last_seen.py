"""What the container held when it was last listed, kept beside the index's records.

Only what differs from the records is stored: blobs that have none, blobs of another version, and (with an empty ETag)
recorded blobs that were not there. So a listing of a million verified blobs stores one row, its time.

What was listed is a folder with all that is below it (``a/b``), one level of it without the folders in it (``a/b/``),
or a single blob (``a/b`` again: where it is a blob, nothing is below it).
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
# Rows read or written at a time, so that no other process waits for a listing to end.
PAGE = 5000
_GONE = ""

SeenRow = tuple[str, int, bytes | None, str]


class Known(NamedTuple):
    """One path of ``known_rows``: the record's size, MD5 and ETag, or what was seen instead."""

    path: str
    state: RemoteState | None


class Differences:
    """Holds a listing against the records, path by path, and collects what differs.

    ``recorded`` are the recorded paths and ETags in the order of their bytes, which is that of most services. A listing
    in another order only takes more memory. What differs goes to the disk as ``spill`` says.
    """

    def __init__(self, recorded: Iterator[tuple[str, str]], spill: Spill) -> None:
        self._recorded = recorded
        self._next = next(recorded, None)
        self._passed: dict[str, str] = {}
        self._rows = Spool(spill._replace(most=spill.batch))

    def seen(self, path: str, state: RemoteState) -> None:
        """The listing shows this blob."""
        # As SQLite compares, which is not how Python compares texts.
        place = path.encode("utf-8", "surrogatepass")
        while self._next is not None and self._next[0].encode() <= place:
            self._passed[self._next[0]] = self._next[1]
            self._next = next(self._recorded, None)
        if self._passed.pop(path, None) != state.etag:
            self._rows.append((path, state.size, state.md5, state.etag))

    def rows(self) -> Spool:
        """What to store, once the listing has ended."""
        missing = chain(self._passed, [self._next[0]] if self._next else [], (path for path, _ in self._recorded))
        for path in missing:
            self._rows.append((path, 0, None, _GONE))
        return self._rows


def below(folder: str) -> tuple[str, str]:
    """The first path below ``folder``, and the first one after all of them."""
    # "0" follows "/" in every encoding that counts here.
    return (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")


def recorded_page(db: sqlite3.Connection, root: int, after: str, end: str) -> list[tuple[str, str]]:
    """Some recorded paths and their ETags, in order, from ``after`` on (which is not among them)."""
    query = "SELECT path, etag FROM pairs WHERE root = ? AND path > ? AND path < ? ORDER BY path LIMIT ?"
    return db.execute(query, (root, after, end, PAGE)).fetchall()


def level_of(folder: str) -> str:
    """What stands for one level of ``folder`` among the listings; a path never ends so."""
    return f"{folder}/"


def recorded_level(db: sqlite3.Connection, root: int, folder: str, after: str) -> list[tuple[str, str]]:
    """Some recorded paths directly in ``folder`` and their ETags, in order, from ``after`` on (``""``: the first).

    Passes over all that is below a folder at once.
    """
    start, end = below(folder)
    # The first path after a file's is itself and a NUL; after a folder's it ends with the "0" that follows "/".
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
    """Nothing is known of what lies directly in ``folder``; the caller holds a transaction."""
    start, end = below(folder)
    direct = "DELETE FROM seen WHERE root = ? AND path >= ? AND path < ? AND instr(substr(path, ?), '/') = 0"
    db.execute(direct, (root, start, end, len(start) + 1))


def note_blob(db: sqlite3.Connection, root: int, path: str, state: RemoteState | None, at: float) -> None:
    """Whether there is a blob of that name is known, as of that time; the caller holds a transaction."""
    db.execute("DELETE FROM seen WHERE root = ? AND path = ?", (root, path))
    recorded = db.execute("SELECT etag FROM pairs WHERE root = ? AND path = ?", (root, path)).fetchone()
    if state is not None and (recorded is None or recorded[0] != state.etag):
        store(db, root, [(path, state.size, state.md5, state.etag)])
    elif state is None and recorded is not None:
        store(db, root, [(path, 0, None, _GONE)])
    note_listing(db, root, path, at)


def forget_folder(db: sqlite3.Connection, root: int, folder: str) -> None:
    """Nothing is known of ``folder`` from now on; the caller holds a transaction."""
    start, end = below(folder)
    db.execute("DELETE FROM seen WHERE root = ? AND path >= ? AND path < ?", (root, start, end))
    db.execute("DELETE FROM listings WHERE root = ? AND folder >= ? AND folder < ?", (root, start, end))


def store(db: sqlite3.Connection, root: int, rows: Iterable[SeenRow]) -> None:
    """What a listing shows that differs from the records; the caller holds a transaction."""
    db.executemany(
        "INSERT OR REPLACE INTO seen (root, path, size, md5, etag) VALUES (?, ?, ?, ?, ?)",
        [(root, *row) for row in rows],
    )


def note_listing(db: sqlite3.Connection, root: int, folder: str, at: float) -> None:
    """All of ``folder`` is known, as of that time; the caller holds a transaction."""
    db.execute("INSERT OR REPLACE INTO listings (root, folder, at) VALUES (?, ?, ?)", (root, folder, at))


def drop(db: sqlite3.Connection, root: int, paths: list[str]) -> None:
    """These are on record from now on, or gone; the caller holds a transaction."""
    if db.execute("SELECT 1 FROM seen WHERE root = ? LIMIT 1", (root,)).fetchone():
        db.executemany("DELETE FROM seen WHERE root = ? AND path = ?", [(root, path) for path in paths])


def listed_at(db: sqlite3.Connection, root: int, folder: str) -> float | None:
    """When ``folder`` as a whole was last listed, by itself or with a folder above it."""
    return _latest(db, root, _with_above(folder))


def blob_listed_at(db: sqlite3.Connection, root: int, path: str) -> float | None:
    """The same for a path that is no folder: the level that it is in counts, too."""
    return _latest(db, root, [*_with_above(path), level_of(path.rpartition("/")[0])])


def _with_above(path: str) -> list[str]:
    """The path, and each folder that it is in."""
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
    """What was listed in a folder that was never listed as a whole."""

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
    """The same for one path."""
    for table in ("seen", "pairs"):
        query = f"SELECT size, md5, etag FROM {table} WHERE root = ? AND path = ?"  # noqa: S608 - our own tables
        row = db.execute(query, (root, path)).fetchone()
        if row is not None:
            return RemoteState(row[0], row[2], row[1]) if row[2] else None
    return None


def known_page(db: sqlite3.Connection, root: int, after: str, end: str) -> list[Known]:
    """Some paths that the container is believed to hold or to have lost, in order, from ``after`` on.

    A record that no blob matches (``--keep`` makes such) says nothing of the container.
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
