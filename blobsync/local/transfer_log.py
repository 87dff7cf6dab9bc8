"""The project's log of transfers: one row for each upload, download, copy and removal, in SQLite.

A row is written when bytes begin to move and again at the end, so that a killed transfer shows as well. It
contains no secret, but whole command lines, so only the owner can read the file. A failure to log stops
nothing.
"""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blobsync.base.errors import LocalFileError, NothingMatchedError, UsageError
from blobsync.base.plain_json import demand_types, parse_object
from blobsync.base.redaction import redact, redact_tree

_SCHEMA = """
CREATE TABLE IF NOT EXISTS transfers (id TEXT PRIMARY KEY, began REAL NOT NULL, entry TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_time ON transfers (began);
"""
_VERSION = 1
_BUSY_SECONDS = 5.0
RUNNING = "running"
KILLED = "killed"


@dataclass(frozen=True, slots=True)
class TransferEntry:
    """One transfer or removal. Times in seconds since 1970, ``seconds`` is the duration.

    ``kind`` is ``upload``, ``download``, ``copy`` or ``rm``; ``mirror``: it also deleted what its source did not
    have. ``result`` is ``done``, ``partial``, ``failed``, ``cancelled``, ``running``, or ``killed`` for one that ended
    without a result. Counts are files; ``problem`` is why it failed as a whole. ``receipt`` names the file that lists
    every file of it.
    """

    kind: str
    paths: tuple[str, ...]
    command: str = ""
    cluster: str = ""
    from_cluster: str | None = None
    engine: str | None = None
    mirror: bool = False
    planned: int = 0
    transferred: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    conflicts: int = 0
    bytes: int = 0
    seconds: float | None = None
    result: str = RUNNING
    problem: str = ""
    receipt: str | None = None
    began: float = field(default_factory=time.time)
    user: str = field(default_factory=lambda: _user())
    host: str = field(default_factory=lambda: os.uname().nodename)
    pid: int = field(default_factory=os.getpid)
    id: str = field(default_factory=lambda: os.urandom(4).hex())

    def __repr__(self) -> str:
        shown = f"{self.paths[0]!r}" if self.paths else "nothing"
        return f"<TransferEntry {self.id}: {self.kind} {shown}, {self.result}>"

    def ended(self, result: str, **known: Any) -> TransferEntry:
        """A copy with the result of the transfer."""
        return replace(self, result=result, seconds=round(max(0.0, time.time() - self.began), 3), **known)

    def concerns(self, path: str) -> bool:
        """Whether a file or folder of the project took part, or may have taken part."""
        path = path.strip("/")
        return any(_inside(path, each) or _inside(each, path) for each in self.paths)


def _inside(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or not other


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container may run under a user ID that has no name.
        return str(os.getuid())


class TransferLog:
    """``file`` is created on first use. ``on_trouble`` gets one sentence if something could not be logged."""

    def __init__(self, file: Path, on_trouble: Callable[[str], None] = lambda text: None) -> None:
        self._file = file
        self._on_trouble = on_trouble

    def write(self, entry: TransferEntry) -> None:
        """Add or replace a row; never raises."""
        plain = asdict(replace(entry, command=redact(entry.command), problem=redact(entry.problem)))
        try:
            with self._open() as db:
                row = (entry.id, entry.began, json.dumps(redact_tree(plain)))
                db.execute("INSERT OR REPLACE INTO transfers (id, began, entry) VALUES (?, ?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            self._on_trouble(f"this transfer is not in the history: {self._file}: {error}")

    def recent(
        self, *, since: float | None = None, path: str | None = None, limit: int | None = None, offset: int = 0
    ) -> tuple[TransferEntry, ...]:
        """The rows, newest first; reads no more than needed. Raises ``LocalFileError`` if the file cannot be used."""
        query = "SELECT entry FROM transfers WHERE began >= ? ORDER BY began DESC, id"
        with closing(self._rows(query, since or 0.0)) as rows:
            chosen = (entry for entry in rows if path is None or entry.concerns(path))
            return tuple(islice(chosen, offset, None if limit is None else offset + limit))

    def each(self, ids: Iterable[str]) -> tuple[TransferEntry, ...]:
        """Those of these IDs that exist. Raises ``LocalFileError``."""
        wanted = sorted(set(ids))
        marks = ", ".join("?" * len(wanted))
        query = f"SELECT entry FROM transfers WHERE id IN ({marks}) ORDER BY began DESC, id"  # noqa: S608 - marks only
        return tuple(self._rows(query, *wanted)) if wanted else ()

    def count(self) -> int:
        """How many rows there are. Raises ``LocalFileError``."""
        if not self._file.exists():
            return 0
        with self._reporting(), self._open() as db:
            return int(db.execute("SELECT COUNT(*) FROM transfers").fetchone()[0])

    def find(self, suffix: str) -> TransferEntry:
        """The one whose ID ends with ``suffix``. Raises ``NothingMatchedError``, ``UsageError`` if several do."""
        found = list(self._rows("SELECT entry FROM transfers WHERE id = ?", suffix))
        if not found and suffix:
            query = "SELECT entry FROM transfers WHERE substr(id, -?) = ?"
            found = list(self._rows(query, len(suffix), suffix))
        if not found:
            raise NothingMatchedError(
                f"no transfer or job of this project ends with {suffix!r}", hint="'blobsync history' lists them"
            )
        if len(found) > 1:
            raise UsageError(f"{len(found)} transfers end with {suffix!r}", hint="give more of the id")
        return found[0]

    def _rows(self, query: str, *values: object) -> Generator[TransferEntry, None, None]:
        if self._file.exists():
            with self._reporting(), self._open() as db:
                for row in db.execute(query, values):
                    yield _entry(parse_object(row[0]))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            raise LocalFileError(
                f"cannot read the log of transfers {self._file}: {error}",
                hint=f"move {self._file.name} away, and blobsync starts a new log; no data is affected",
                path=str(self._file),
            ) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=_BUSY_SECONDS)) as db, db:
            # A short command waits for the disk no more often than SQLite requires.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA journal_mode = TRUNCATE")
            if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                self._file.chmod(0o600)
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
            yield db


_NAMES = {each.name for each in fields(TransferEntry)}


def _entry(values: Mapping[str, Any]) -> TransferEntry:
    # A newer blobsync may have written more fields.
    known = {name: value for name, value in values.items() if name in _NAMES}
    if not isinstance(known["paths"], list):
        raise TypeError("paths is not a list")
    entry = TransferEntry(**{**known, "paths": tuple(known["paths"])})
    demand_types(entry)
    if entry.result == RUNNING and entry.host == os.uname().nodename and not _is_alive(entry.pid):
        return replace(entry, result=KILLED)
    return entry


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's process.
        return True
    return True
