"""The message after Ctrl-C: what is done, what is left, and what has to be moved again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from blobsync.base.amounts import count_text
from blobsync.base.errors import TransferCancelledError
from blobsync.plan.events import BytesMoved, BytesReused, Event
from blobsync.plan.transfer_plan import Route, TransferPlan
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
