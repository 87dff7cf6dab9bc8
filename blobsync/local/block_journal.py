"""The journal of blocks: which uncommitted blocks this project has sent to the service, and what it committed last.

With it a killed upload resumes, and a changed file sends only what changed. It only saves bytes: its contents are
compared with the service's own list of blocks before anything is skipped, and without it whole files are sent.

A block's row is written some 50 ms after the service acknowledged it, and outlives the process. After a power failure
the journal may lack rows, or be damaged and start anew: that costs bytes only.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from blobsync.base.file_states import LocalState
from blobsync.local.state_database import StateDatabase

_VERSION = 1
# Seconds between two saves; longer on a slow disk, where a save takes this share of the time at most.
_SAVE_SECONDS = 0.05
_SAVE_SHARE = 0.05
# https://learn.microsoft.com/rest/api/storageservices/put-block: uncommitted blocks are dropped after a week.
_BLOCKS_LIVE_SECONDS = 7 * 86_400
# Fewer host parameters than SQLite's old limit of 999 (https://www.sqlite.org/limits.html).
_BATCH = 500

_SCHEMA = """
CREATE TABLE uploads (
    id INTEGER PRIMARY KEY, blob TEXT NOT NULL UNIQUE, size INTEGER, mtime_ns INTEGER, inode TEXT, at REAL NOT NULL);
CREATE TABLE blocks (
    upload INTEGER NOT NULL, sha256 BLOB NOT NULL, size INTEGER NOT NULL, current INTEGER NOT NULL,
    PRIMARY KEY (upload, sha256)) WITHOUT ROWID;
CREATE TABLE committed (blob TEXT PRIMARY KEY, etag TEXT NOT NULL) WITHOUT ROWID
"""
_STAGED = "SELECT sha256, blocks.size FROM blocks JOIN uploads ON upload = id WHERE blob = ? AND at > ?"
_UNFINISHED = (
    "SELECT blob, uploads.size, mtime_ns, inode, SUM(blocks.size) FROM uploads JOIN blocks ON upload = id"
    " WHERE current AND at > ? AND blob IN (MARKS) GROUP BY id"
)


class Unfinished(NamedTuple):
    """An unfinished upload: how many bytes of the file the service has, and how the file looked then."""

    size: int
    mtime_ns: int
    inode: int
    there: int

    def is_of(self, near: LocalState) -> bool:
        """Whether the file still looks as it did then."""
        return (self.size, self.mtime_ns, self.inode) == (near.size, near.mtime_ns, near.inode)


class BlockJournal:
    """Safe to use from several threads and processes. Never raises.

    Blobs are named by their URL, blocks by the SHA-256 of their content. ``on_trouble`` gets one sentence if the file
    cannot be used any more. ``clock`` gives seconds since 1970, ``steady`` seconds that are never set back.
    """

    def __init__(
        self,
        file: Path,
        on_trouble: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = StateDatabase(
            file,
            _SCHEMA,
            _VERSION,
            lambda why: on_trouble(f"the journal of blocks {why}; whole files are sent instead"),
        )
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._unsaved: list[tuple[str, bytes, int]] = []
        self._save_at = steady()

    # -- queries ------------------------------------------------------------------------------------------------

    def staged(self, blob: str) -> dict[bytes, int]:
        """The blocks that were sent for ``blob`` and not committed, with their sizes in bytes."""
        if not _storable(blob):
            return {}
        self.save()
        return dict(self._file.read(lambda db: db.execute(_STAGED, (blob, self._oldest)).fetchall()) or ())

    def unfinished(self, blobs: Iterable[str]) -> dict[str, Unfinished]:
        """Those of ``blobs`` that have uncommitted blocks of the file as it was when it was last sent."""
        rows = self._select(blobs, _UNFINISHED, self._oldest)
        return {blob: Unfinished(size, mtime_ns, int(inode), there) for blob, size, mtime_ns, inode, there in rows}

    def committed(self, blobs: Iterable[str]) -> dict[str, str]:
        """The ETags of those of ``blobs`` that this project wrote last, from blocks named by content."""
        return dict(self._select(blobs, "SELECT blob, etag FROM committed WHERE blob IN (MARKS)"))

    # -- updates ------------------------------------------------------------------------------------------------

    def begin(self, blob: str, near: LocalState) -> None:
        """Start an upload of the file ``near`` to ``blob``. Keeps blocks that were sent for another version of it."""
        if not _storable(blob):
            return
        stamp = (near.size, near.mtime_ns, str(near.inode))

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM blocks WHERE upload IN (SELECT id FROM uploads WHERE at <= ?)", (self._oldest,))
            db.execute("DELETE FROM uploads WHERE at <= ?", (self._oldest,))
            row = db.execute("SELECT id, size, mtime_ns, inode FROM uploads WHERE blob = ?", (blob,)).fetchone()
            if row is None:
                row_of = "INSERT INTO uploads (blob, size, mtime_ns, inode, at) VALUES (?, ?, ?, ?, ?)"
                db.execute(row_of, (blob, *stamp, self._clock()))
            elif row[1:] != stamp:
                db.execute("UPDATE blocks SET current = 0 WHERE upload = ?", (row[0],))
                db.execute("UPDATE uploads SET size = ?, mtime_ns = ?, inode = ? WHERE id = ?", (*stamp, row[0]))

        self.save()
        self._file.write(write)

    def put(self, blob: str, sha256: bytes, size: int) -> None:
        """Record a block of the file that ``begin`` named: the service has acknowledged or listed it."""
        with self._lock:
            self._unsaved.append((blob, sha256, size))
            due = self._steady() >= self._save_at
        if due:
            self.save()

    def finish(self, blob: str, etag: str) -> None:
        """Record that the blob was committed as the version ``etag``, and drop its other blocks."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM blocks WHERE upload = (SELECT id FROM uploads WHERE blob = ?)", (blob,))
            db.execute("DELETE FROM uploads WHERE blob = ?", (blob,))
            db.execute("INSERT OR REPLACE INTO committed (blob, etag) VALUES (?, ?)", (blob, etag))

        self.save()
        if _storable(blob):
            self._file.write(write)

    def save(self) -> None:
        """Write what was recorded since the last save."""
        with self._lock:
            rows, self._unsaved = self._unsaved, []
            began = self._steady()
            self._save_at = began + _SAVE_SECONDS

        def write(db: sqlite3.Connection) -> None:
            blobs = {blob for blob, _, _ in rows}
            db.executemany("UPDATE uploads SET at = ? WHERE blob = ?", [(self._clock(), blob) for blob in blobs])
            db.executemany(
                "INSERT OR REPLACE INTO blocks (upload, sha256, size, current)"
                " SELECT id, ?, ?, 1 FROM uploads WHERE blob = ?",
                [(sha256, size, blob) for blob, sha256, size in rows],
            )

        rows = [row for row in rows if _storable(row[0])]
        if rows:
            self._file.write(write)
            with self._lock:
                self._save_at = max(self._save_at, began + (self._steady() - began) / _SAVE_SHARE)

    def close(self) -> None:
        """Save and close the file; the next use opens it again."""
        self.save()
        self._file.close()

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _oldest(self) -> float:
        return self._clock() - _BLOCKS_LIVE_SECONDS

    def _select(self, blobs: Iterable[str], query: str, *first: object) -> list[tuple[Any, ...]]:
        wanted = [blob for blob in blobs if _storable(blob)]
        self.save()

        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            found = []
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                found += db.execute(query.replace("MARKS", ",".join("?" * len(batch))), (*first, *batch)).fetchall()
            return found

        return (self._file.read(read) if wanted else None) or []


def _storable(blob: str) -> bool:
    # Names that are not UTF-8 arrive as surrogates, which SQLite does not accept.
    try:
        blob.encode()
    except UnicodeEncodeError:
        return False
    return True
