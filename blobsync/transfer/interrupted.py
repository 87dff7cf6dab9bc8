"""Interrupted transfers: the message after Ctrl-C, and the removal of what killed runs left.

The message says what is done, what is left, and what has to be moved again. What killed runs left beside the
destinations of downloads is removed, unless this plan continues from it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blobsync.base.amounts import count_text
from blobsync.base.errors import TransferCancelledError
from blobsync.base.locations import LocalLocation
from blobsync.local.part_files import remove_leftovers
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.plan.events import BytesMoved, BytesReused, Event
from blobsync.plan.partial_files import goes_on, places
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, Route, TransferPlan
from blobsync.transfer.ledger import Ledger

_VERBS = {Route.UPLOAD: "sent", Route.DOWNLOAD: "fetched"}


class ByteTally:
    """Counts the bytes that moved or were reused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = self.reused = 0

    def emit(self, event: Event) -> None:
        """Count what has bytes."""
        if isinstance(event, BytesMoved):
            with self._lock:
                self.bytes += event.size
        elif isinstance(event, BytesReused):
            with self._lock:
                self.reused += event.size


class Arrived(NamedTuple):
    """The files of a plan that are at the destination: verified, and not looked at yet (``unsure``).

    ``size`` is the bytes of both, which do not move again; ``kept`` the bytes of unfinished files that the next run
    continues from.
    """

    verified: int = 0
    unsure: int = 0
    size: int = 0
    kept: int = 0

    def and_also(self, ledgers: Sequence[Ledger]) -> Arrived:
        """The sum with what these ledgers contain."""
        there = [moved for ledger in ledgers for moved in (*ledger.verified.values(), *ledger.pending.values())]
        return Arrived(
            self.verified + sum(len(ledger.verified) for ledger in ledgers),
            self.unsure + sum(len(ledger.pending) for ledger in ledgers),
            self.size + sum((moved.source or moved.action).size for moved in there),
            self.kept + sum(ledger.kept_bytes for ledger in ledgers),
        )


def cancelled(plan: TransferPlan, arrived: Arrived, there: int) -> TransferCancelledError:
    """``there`` is all bytes that moved or were reused in this run, including those of unfinished files."""
    total = plan.files_to_transfer
    rest = f", {arrived.unsure:,} moved but not yet verified" if arrived.unsure else ""
    left = total - arrived.verified - arrived.unsure
    said = f"stopped: {arrived.verified:,} of {count_text(total, 'file')} {_are(total)} done and verified{rest}"
    return TransferCancelledError(
        f"{said}, {left:,} {_are(left)} left"
        + (f"; {kept_words(arrived.kept)}" if arrived.kept else "")
        + _again(plan, there - arrived.size - arrived.kept),
        hint="run the same command again: verified files are skipped",
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def kept_words(size: int) -> str:
    """The words for bytes of unfinished files that are recorded."""
    return f"{size:,} bytes of unfinished files are kept, and the next run goes on from there"


def _again(plan: TransferPlan, size: int) -> str:
    if size <= 0:
        return ""
    # azcopy reports only totals, which may include files that it had finished.
    most = "up to " if plan.engine.name == "azcopy" else ""
    verb = _VERBS.get(plan.route, "copied")
    return f"; {most}{size:,} bytes of unfinished files were {verb} and will be {verb} again"


def tidy(records: RangeRecords | None, parts: Iterable[LivePart], engine: str) -> None:
    """Remove unfinished downloads that nothing will continue; ``engine`` is the one that carries out the plan.

    Of the plan's own files, only what the direct engine continues stays: not other versions or files that do not move.
    """
    if records is None:
        return
    left = {of.destination for of, _ in records.all()}
    planned = {path: (part, action) for part in parts for path, action in places(part, left)}

    def is_wanted(of: UnfinishedDownload) -> bool:
        return engine == "direct" and goes_on(*planned[of.destination], of)

    records.tidy(planned, is_wanted)


def remove_unrecorded(records: RangeRecords | None, part: LivePart, actions: Sequence[FileAction]) -> None:
    """Remove part files without a record, in the folders of these files."""
    if isinstance(part.destination, LocalLocation):
        kept = {of.part for of, _ in records.all()} if records else set[str]()
        for folder in {part.destination.at(action.path).parent for action in actions}:
            remove_leftovers(folder, kept)
