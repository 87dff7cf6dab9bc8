"""A small SQLite file of the state folder that may be lost: what is in it saves work, and nothing else.

The rollback journal is kept (not WAL): project folders live on network file systems, where WAL's shared memory does
not work (https://www.sqlite.org/wal.html, "Disadvantages"). It is emptied, not deleted, after a transaction: a new file
would be one more wait for the disk, for its folder (https://www.sqlite.org/pragma.html#pragma_journal_mode).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

_LOCK_PATIENCE_SECONDS = 30.0


class StateDatabase:
    """Opens on first use; for several threads and processes. Nothing here raises.

    ``schema`` are the statements that make the tables of ``version``; a file of another version starts anew, unless it
    is one of those in ``extends``, to which the schema only adds. ``on_trouble`` is told why the file cannot be used,
    or that it was damaged and which name it has now. ``synchronous`` is SQLite's: with ``OFF`` nothing waits for the
    disk, and a loss of power may damage the file.
    """

    def __init__(
        self,
        file: Path,
        schema: str,
        version: int,
        on_trouble: Callable[[str], None],
        *,
        extends: Collection[int] = (),
        synchronous: str = "OFF",
    ) -> None:
        self._file = file
        self._extends = extends
        self._synchronous = synchronous
        self._schema = schema
        self._version = version
        self._on_trouble = on_trouble
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._given_up = False

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """What ``work`` finds; None where there is no file, or none that can be read."""
        return self._do(work) if self._connection is not None or self._file.exists() else None

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` as one transaction."""

        def transaction(db: sqlite3.Connection) -> None:
            # A reader that turns writer half-way could be refused without waiting.
            db.execute("BEGIN IMMEDIATE")
            try:
                work(db)
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

        self._do(transaction)

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run ``work``; on a damaged file start a new one and try once more, else go on without."""
        with self._lock:
            for attempt in (1, 2):
                if self._given_up:
                    return None
                try:
                    return work(self._open())
                except sqlite3.OperationalError as error:
                    # Locked for too long, disk full, read-only: the file itself may be fine.
                    self.close()
                    self._given_up = True
                    self._on_trouble(f"{self._file} cannot be used ({error})")
                except sqlite3.DatabaseError as error:
                    self.close()
                    if attempt == 1:
                        self._set_aside(error)
        return None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._file, timeout=_LOCK_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection = connection
            # Also with OFF, what a killed process handed to the system is there.
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            if connection.execute("PRAGMA user_version").fetchone()[0] != self._version:
                self._make_tables(connection)
        return self._connection

    def _make_tables(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != self._version:
            for (name,) in () if version in self._extends else tables:
                db.execute(f'DROP TABLE "{name}"')
            for statement in self._schema.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {self._version}")
        db.execute("COMMIT")

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        broken = self._file.with_name(f"{self._file.name}.broken-{int(time.time())}")
        with suppress(OSError):
            self._file.replace(broken)
        self._on_trouble(f"{self._file} was damaged ({error}) and is kept as {broken.name}")
