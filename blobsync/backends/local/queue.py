"""Decides which job may start on this machine: a queue without a server.

Each job has a ticket, a small file whose number is its place. Its supervisor keeps the ticket locked, so a
ticket that can be locked by another process belongs to a dead supervisor, and is removed. Every process
decides from the same tickets under the same lock: the first waiting job starts when there is room for it, and
no job overtakes it. The queue is the user's: jobs of all projects share it.

The locks are ``fcntl.flock``: those of filelock are exclusive, and two processes that only check whether the owner
lives would take each other for it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import JobError
from blobsync.base.plain_json import made_of, parse_json
from blobsync.base.records import dataclass
from blobsync.base.user_folders import is_locked, locked, make_private
from blobsync.jobspec.spec import JobSpec, run_name

# A ticket that no supervisor has claimed after so many seconds is left over from a killed submission.
UNCLAIMED_SECONDS = 60.0

_TICKET = re.compile(r"[0-9]{12}-[^/]+\.ticket")


@dataclass(frozen=True, slots=True)
class Capacity:
    """This machine's capacity: ``gpus`` as in CUDA_VISIBLE_DEVICES; ``slots`` for jobs without GPUs."""

    slots: int
    gpus: tuple[str, ...]

    def wants(self, gpus: int) -> int:
        """The number of GPUs that a job gets: none on a machine without GPUs."""
        return gpus if self.gpus else 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket as it was read. It waits for ``gpus`` GPUs and takes up to ``most``, a multiple. ``claimed``: it has
    had a supervisor."""

    run_id: str
    gpus: int
    running: bool
    held: tuple[str, ...]
    claimed: bool
    most: int = 0
    file: Path = Path()


class LocalQueue:
    """The tickets in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, folder / "lock"
        make_private(folder)

    def enter(self, run_id: str, gpus: int, most: int = 0) -> Path:
        """Add a job; a queued one keeps its place. Returns the ticket."""
        with locked(self._lock):
            return self._enter(run_id, gpus, most)

    def leave(self, run_id: str) -> None:
        """Remove a job that never began; safe to repeat."""
        with locked(self._lock):
            for entry in self._entries():
                if entry.run_id == run_id and not entry.running:
                    entry.file.unlink(missing_ok=True)

    @contextmanager
    def claimed(self, run_id: str, gpus: int, most: int = 0) -> Iterator[None]:
        """A context in which this process owns the job's ticket, or a new one if it has none; removes it afterwards."""
        with ExitStack() as until_the_end:
            # Under the lock: a process that looks at the queue meanwhile could take the ticket for an abandoned one.
            with locked(self._lock):
                ticket = self._enter(run_id, gpus, most)
                until_the_end.enter_context(locked(ticket))
                _update(ticket, claimed=True)
            try:
                yield
            finally:
                with locked(self._lock):
                    ticket.unlink(missing_ok=True)

    def try_start(self, run_id: str, capacity: Capacity) -> tuple[str, ...] | None:
        """The GPUs to use if the job may start (without GPUs: an empty tuple), else None."""
        with locked(self._lock):
            entries = self._entries()
            mine = next((entry for entry in entries if entry.run_id == run_id), None)
            if mine is None:
                raise JobError(f"someone removed the ticket of {run_id} from the queue {self._folder}")
            if mine.running:
                return mine.held
            if next(entry for entry in entries if not entry.running).run_id != run_id:
                return None
            given = _room(mine, [entry for entry in entries if entry.running], capacity)
            if given is not None:
                _update(mine.file, running=True, held=list(given))
            return given

    def entries(self) -> Sequence[Ticket]:
        """All running and waiting jobs, in order."""
        with locked(self._lock):
            return self._entries()

    def _enter(self, run_id: str, gpus: int, most: int) -> Path:
        for entry in self._entries():
            if entry.run_id == run_id:
                return entry.file
        last = max((int(path.name.split("-")[0]) for path in self._tickets()), default=0)
        ticket = self._folder / f"{last + 1:012d}-{run_name(run_id)}.ticket"
        _write(ticket, {"run_id": run_id, "gpus": gpus, "most": most, "running": False, "held": [], "claimed": False})
        return ticket

    def _entries(self) -> list[Ticket]:
        return [entry for path in self._tickets() for entry in _live(path)]

    def _tickets(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.ticket") if _TICKET.fullmatch(path.name))


def gpus_of(spec: JobSpec) -> int:
    """The number of GPUs that a job holds; an elastic one those of all nodes that it may have."""
    return spec.gpus_per_node * (spec.max_nodes if spec.is_elastic and spec.max_nodes else 1)


def most_gpus_of(spec: JobSpec) -> int:
    """The number of GPUs that a job takes if they are free: for as many of its tasks as may run at a time."""
    return spec.gpus_per_node * ((spec.tasks.parallel or spec.tasks.count) if spec.tasks else 0)


def _room(mine: Ticket, running: Sequence[Ticket], capacity: Capacity) -> tuple[str, ...] | None:
    wanted = capacity.wants(mine.gpus)
    if not wanted:
        used = sum(not entry.held for entry in running)
        return () if used < capacity.slots else None
    taken = {gpu for entry in running for gpu in entry.held}
    free = [gpu for gpu in capacity.gpus if gpu not in taken]
    given = max(wanted, min(len(free), mine.most) // wanted * wanted)
    return tuple(free[:given]) if len(free) >= wanted else None


def _live(ticket: Path) -> Iterator[Ticket]:
    try:
        entry = replace(made_of(Ticket, parse_json(ticket.read_text())), file=ticket)
    except ValueError:
        # Tickets are written under the queue's lock: the writer of a partial one was killed.
        entry = None
    was_claimed = entry is None or entry.claimed
    if not is_locked(ticket) and (was_claimed or time.time() - ticket.stat().st_mtime > UNCLAIMED_SECONDS):
        ticket.unlink()
        return
    if entry is None:
        raise JobError(
            f"the ticket {ticket} of a running job is damaged",
            hint=f"wait for that job, or stop it and remove {ticket}",
            path=str(ticket),
        )
    yield entry


def _update(ticket: Path, **changes: Any) -> None:
    _write(ticket, {**parse_json(ticket.read_text()), **changes})


def _write(ticket: Path, values: Mapping[str, Any]) -> None:
    # In place: the lock is on this file, and all readers hold the queue's lock.
    ticket.write_text(json.dumps(values))
