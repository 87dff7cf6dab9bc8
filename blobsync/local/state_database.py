"""A small SQLite file in the state folder that may be lost: its contents only save work.

It uses a rollback journal (not WAL): project folders live on network file systems, where WAL's shared memory does
not work (https://www.sqlite.org/wal.html, "Disadvantages"). The journal is emptied, not deleted, after a transaction:
creating it again would sync its folder once more (https://www.sqlite.org/pragma.html#pragma_journal_mode).
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
    """Opens on first use; safe to use from several threads and processes. Never raises.

    ``schema`` are the statements that create the tables of ``version``; a file of another version starts anew, unless
    it is one of those in ``extends``, to which the schema only adds. ``on_trouble`` gets one sentence if the file
    cannot be used, or if it was damaged, with its new name. ``synchronous`` is SQLite's: with ``OFF`` nothing waits for
    the disk, and a power failure may damage the file.
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
        """Return what ``work`` returns; None if there is no readable file."""
        return self._do(work) if self._connection is not None or self._file.exists() else None

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` as one transaction."""

        def transaction(db: sqlite3.Connection) -> None:
            # A reader that starts to write later could be refused without waiting.
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
        """Close the file; the next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run ``work``; if the file is damaged start a new one and try once more, else continue without it."""
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
            # Even with OFF, what a killed process handed to the system is kept.
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
