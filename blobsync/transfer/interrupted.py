"""What to say of a transfer that Ctrl-C ended: what is done, what is left, and what had moved for nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from blobsync.base.amounts import count_text
from blobsync.base.errors import TransferCancelledError
from blobsync.base.events import Event
from blobsync.plan.listener import Listener
from blobsync.plan.transfer_plan import FileFailure, Route, TransferPlan
from blobsync.transfer.ledger import Ledger

_VERBS = {Route.UPLOAD: "sent", Route.DOWNLOAD: "fetched"}


class ByteTally:
    """Passes everything on to a listener, and adds up the bytes that move and those that need not; for any thread."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self.bytes = self.reused = 0

    def phase(self, name: str) -> None:
        self._listener.phase(name)

    def expect(self, files: int, size: int) -> None:
        self._listener.expect(files, size)

    def seen(self, files: int) -> None:
        self._listener.seen(files)

    def bytes_moved(self, count: int) -> None:
        with self._lock:
            self.bytes += count
        self._listener.bytes_moved(count)

    def bytes_reused(self, count: int) -> None:
        with self._lock:
            self.reused += count
        self._listener.bytes_reused(count)

    def by_worker(self, worker: str, files: int, size: int) -> None:
        self._listener.by_worker(worker, files, size)

    def under_way(self, files: int, path: str) -> None:
        self._listener.under_way(files, path)

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        self._listener.file_done(path, failure)

    def note(self, text: str) -> None:
        self._listener.note(text)

    def emit(self, event: Event) -> None:
        self._listener.emit(event)


def cancelled(plan: TransferPlan, ledgers: Sequence[Ledger], there: int) -> TransferCancelledError:
    """``there`` are all bytes that moved in this run or did not have to, those of unfinished files included."""
    done = sum(len(ledger.verified) for ledger in ledgers)
    unsure = sum(len(ledger.pending) for ledger in ledgers)
    total = plan.files_to_transfer
    kept = sum(ledger.kept_bytes for ledger in ledgers)
    rest = f", {unsure:,} moved but not yet verified" if unsure else ""
    left = total - done - unsure
    said = f"stopped: {done:,} of {count_text(total, 'file')} {_are(total)} done and verified{rest}"
    return TransferCancelledError(
        f"{said}, {left:,} {_are(left)} left"
        + (f"; {kept_words(kept)}" if kept else "")
        + _again(plan, there - _arrived(ledgers) - kept),
        hint="run the same command again: verified files are skipped",
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _arrived(ledgers: Sequence[Ledger]) -> int:
    """The bytes of files that are whole where they belong, and do not move a second time."""
    there = [moved for ledger in ledgers for moved in (*ledger.verified.values(), *ledger.pending.values())]
    return sum((moved.source or moved.action).size for moved in there)


def kept_words(size: int) -> str:
    """What is said of so many bytes that are on record."""
    return f"{size:,} bytes of unfinished files are kept, and the next run goes on from there"


def _again(plan: TransferPlan, size: int) -> str:
    if size <= 0:
        return ""
    # azcopy tells totals only, so that files which it had finished may be among them.
    most = "up to " if plan.engine.name == "azcopy" else ""
    verb = _VERBS.get(plan.route, "copied")
    return f"; {most}{size:,} bytes of unfinished files were {verb} and will be {verb} again"
