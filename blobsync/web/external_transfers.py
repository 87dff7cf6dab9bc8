"""Transfers that other processes of this project run, such as those of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from blobsync.base.formatting import duration_text
from blobsync.plan.progress import Progress, RatePoint
from blobsync.project.transfer_history import RUNNING, LogBook, RunningTransfer, TransferEntry

# Seconds without an update until the page says so.
_SILENT = 15.0


@dataclass(frozen=True, slots=True)
class OtherTransfer:
    """A transfer with the attributes of a :class:`TransferTask` that the templates use. ``running`` is None until its
    process has reported something, which takes half a second."""

    entry: TransferEntry
    running: RunningTransfer | None

    is_active = True

    @property
    def state(self) -> str:
        """``planning`` or ``moving``."""
        return "planning" if self.running is not None and self.running.planning else "moving"

    @property
    def points(self) -> tuple[RatePoint, ...]:
        """The points of its rate curve."""
        return () if self.running is None else self.running.points

    @property
    def id(self) -> str:
        """Its id in the history."""
        return self.entry.id

    @property
    def shown(self) -> tuple[str, ...]:
        """Its paths."""
        return self.entry.paths

    @property
    def progress(self) -> Progress | None:
        """Its progress."""
        return None if self.running is None else self.running.progress

    @property
    def moving(self) -> Progress | None:
        """Its progress, if it has begun to move files."""
        return self.progress if self.progress is not None and self.progress.files_expected else None

    @property
    def seconds(self) -> float:
        """How long it has moved files, by its last point."""
        return self.points[-1][0] if self.points else 0.0

    @property
    def silence(self) -> str:
        """How long it has not reported anything, if that is long; else empty."""
        return "" if self.running is None or self.running.silent < _SILENT else duration_text(self.running.silent)

    @property
    def can_stop(self) -> bool:
        """Whether it can be stopped from here."""
        return self.running is not None and self.running.stoppable


def is_ours(entry: TransferEntry) -> bool:
    """Whether this process carries it out."""
    return entry.pid == os.getpid() and entry.host == os.uname().nodename


def other_transfers(book: LogBook, shown: Iterable[str]) -> list[OtherTransfer]:
    """Transfers that report their progress, and those of ``shown`` that run without reporting, except those of this
    process. Newest first. Raises ``LocalFileError`` if the log cannot be read."""
    running = book.running.all()
    logged = [entry for entry in book.log.each([*running, *shown]) if entry.result == RUNNING]
    planned = [_as_entry(each) for each in running.values() if each.planning]
    entries = sorted([*logged, *planned], key=attrgetter("began"), reverse=True)
    return [OtherTransfer(entry, running.get(entry.id)) for entry in entries if not is_ours(entry)]


def _as_entry(one: RunningTransfer) -> TransferEntry:
    """An entry like those that the history has after something has moved."""
    return TransferEntry(
        one.kind, one.paths, one.command, began=one.began, user=one.user, host=one.host, pid=one.pid, id=one.id
    )
