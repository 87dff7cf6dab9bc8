"""What runs in a project: each transfer and keeper says how far it is, and other processes can ask it to stop.

Their records are rows of ``unfinished.sqlite``, which outlive the process, not a power failure.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, TypeVar

from blobsync.base.errors import BlobsyncError, LocalFileError
from blobsync.base.events import debug_logger
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.process_identity import ProcessMark
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact_tree
from blobsync.base.stopping import StopRequest
from blobsync.local.database import ExpendableDatabase
from blobsync.local.state_databases import UNFINISHED
from blobsync.local.state_dir import StateDir

# Seconds between two reports.
EVERY = 0.5
# Seconds without a report, after which a record of another machine is removed here.
_FORGOTTEN = 7 * 86400.0


@dataclass(frozen=True, eq=False, repr=False)
class Running:
    """The process ``pid`` of ``host``, which began at ``born`` (in the kernel's clock ticks); ``told`` is the time of
    its last report (seconds since 1970)."""

    id: str
    pid: int
    born: str
    host: str
    told: float

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == os.uname().nodename

    @property
    def silent(self) -> float:
        """Seconds since its last report."""
        return max(0.0, time.time() - self.told)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, or was not heard of from another machine for a week."""
        return not ProcessMark(self.pid, self.born).is_alive if self.is_here else self.silent > _FORGOTTEN


_R = TypeVar("_R", bound=Running)


class RunningRecords:
    """The records of one kind: ``transfers``, ``keepers`` or ``begun``. Everything here raises ``LocalFileError``."""

    def __init__(self, state: StateDir, kind: str = "transfers") -> None:
        self._file = state.unfinished_file
        self._kind = kind

    def write(self, id: str, values: Mapping[str, Any]) -> None:
        """Add or replace the record; a request to stop stays."""
        stop = "ifnull((SELECT stop FROM running WHERE kind = ?1 AND id = ?2), 0)"
        put = f"INSERT OR REPLACE INTO running SELECT ?1, ?2, ?3, {stop}"
        self._run(put, self._kind, id, json.dumps(redact_tree(values)))

    def each(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every record of an object, with its id."""
        for id, record in self._run("SELECT id, record FROM running WHERE kind = ?", self._kind):
            with suppress(ValueError):
                yield id, parse_object(record)

    def alive(self, kind: type[_R]) -> dict[str, _R]:
        """What runs, by the ids, of the records that are a ``kind``; removes what a killed process left."""
        found = {}
        for id, values in self.each():
            with suppress(ValueError):
                one = made_of(kind, values)
                if one.id == id and 0 < one.pid < 2**31:
                    found[id] = one
        for one in [each for each in found.values() if each.is_gone]:
            self.remove(one.id)
            del found[one.id]
        return found

    def request_stop(self, id: str) -> None:
        """Ask what has this record to stop."""
        self._run("UPDATE running SET stop = 1 WHERE kind = ? AND id = ?", self._kind, id)

    def is_stop_requested(self, id: str) -> bool:
        """Whether it was asked to stop."""
        return bool(self._run("SELECT 1 FROM running WHERE kind = ? AND id = ? AND stop", self._kind, id))

    def remove(self, id: str) -> None:
        """Remove the record, and the request to stop."""
        self._run("DELETE FROM running WHERE kind = ? AND id = ?", self._kind, id)

    def _run(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        rows: list[tuple[Any, ...]] = []

        def work(db: sqlite3.Connection) -> None:
            rows[:] = db.execute(statement, values)

        # Opened for each use: what runs for days goes on when a disk that was full or away is there again.
        said: list[str] = []
        with closing(ExpendableDatabase(self._file, UNFINISHED, said.append)) as database:
            (database.read if statement.startswith("SELECT") else database.write)(work)
            if database.given_up:
                hint = f"if that does not pass, move {self._file.name} away: what was interrupted begins anew"
                raise LocalFileError(f"what runs is not known: {said[-1]}", hint=hint, path=str(self._file))
        return rows


class Reporter:
    """Writes the record ``id`` twice a second in a thread of its own, since the disk may be slow, and makes the request
    ``stop`` when another process asks for it. ``now`` is what to write, None if nothing is new."""

    def __init__(
        self,
        records: RunningRecords,
        id: str,
        now: Callable[[], Mapping[str, Any] | None],
        stop: StopRequest | None,
        every: float = EVERY,
    ) -> None:
        self._records, self._id, self._now, self._stop, self._every = records, id, now, stop, every
        self._has_begun = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread, and remove the record."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        # Most commands end before the first record, and have no file.
        with suppress(LocalFileError):
            if self._has_begun:
                self._look()
                self._records.remove(self._id)

    def tell(self) -> None:
        """Write the record now. Raises ``LocalFileError``."""
        values = self._now()
        if values is not None:
            self._has_begun = True
            self._records.write(self._id, values)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.tell()
                self._look()
            except BlobsyncError as error:
                # The folder may be on a disk that is full or away for a while.
                if log := debug_logger(__name__):
                    log.debug("other commands cannot see how far this one is: %s", error)

    def _look(self) -> None:
        if self._stop is not None and self._records.is_stop_requested(self._id):
            self._stop.make()
