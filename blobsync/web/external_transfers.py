"""Transfers that other processes of this project run, such as those of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from blobsync.base.amounts import duration_text
from blobsync.local.transfer_log import RUNNING, TransferEntry
from blobsync.plan.progress import Progress, RatePoint
from blobsync.project.logbook import LogBook
from blobsync.project.running import RunningTransfer

# Seconds without an update after which the page says so.
_SILENT = 15.0


@dataclass(frozen=True, slots=True)
class OtherTransfer:
    """A transfer in the form in which the templates show a :class:`WorkItem`. ``told`` is None until its process has
    reported something, which takes half a second."""

    entry: TransferEntry
    told: RunningTransfer | None

    is_active = True

    @property
    def state(self) -> str:
        """``planning`` or ``moving``."""
        return "planning" if self.told is not None and self.told.planning else "moving"

    @property
    def points(self) -> tuple[RatePoint, ...]:
        """The points of the curve of its rate."""
        return () if self.told is None else self.told.points

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
        return None if self.told is None else self.told.progress

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
        return "" if self.told is None or self.told.silent < _SILENT else duration_text(self.told.silent)

    @property
    def can_stop(self) -> bool:
        """Whether somebody here may ask it to stop; an older blobsync does not look for that, which is said then."""
        return self.told is not None and self.told.stoppable and (self.told.is_here or self.told.looks_for_stop)


def other_transfers(book: LogBook, shown: Iterable[str], own: Iterable[int | None]) -> list[OtherTransfer]:
    """Transfers that report their progress, and those of ``shown`` that run without reporting, except those of the
    processes ``own``. Newest first. Raises ``LocalFileError`` if the log cannot be read."""
    running, ours = book.running.all(), set(own)
    logged = [entry for entry in book.log.each([*running, *shown]) if entry.result == RUNNING]
    planned = [_as_entry(each) for each in running.values() if each.planning]
    entries = sorted([*logged, *planned], key=attrgetter("began"), reverse=True)
    return [OtherTransfer(entry, running.get(entry.id)) for entry in entries if entry.pid not in ours]


def _as_entry(one: RunningTransfer) -> TransferEntry:
    """An entry like those that the history has after something has moved."""
    return TransferEntry(
        one.kind, one.paths, one.command, began=one.began, user=one.user, host=one.host, pid=one.pid, id=one.id
    )
