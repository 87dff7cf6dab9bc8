"""Carries a plan out: moves files, verifies and records them, deletes the extras of a mirror, reports what failed.

``batch`` has the engines move the files, ``retries`` tries again what failed, ``conflict_resolution`` does what
``--keep`` says. The message after Ctrl-C says what is done, what is left, and what has to be moved again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, TransferCancelledError
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Emit,
    Event,
    Expected,
    Listener,
    Moving,
    Note,
    Phase,
    notes_to,
    together,
)
from blobsync.base.file_states import RemoteState
from blobsync.base.formatting import count_text, size_text
from blobsync.base.locations import LocalLocation, at_and_above
from blobsync.base.records import NamedTuple
from blobsync.base.stopping import StopRequest
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.sorted_runs import IN_MEMORY, Spill
from blobsync.plan.project_context import PartOpener
from blobsync.plan.transfer_plan import Action, FileAction, Route, TransferPlan, actions_of, batches_of
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.batch import Batch, tidy
from blobsync.transfer.engines import NOTHING_COMPARED, Engines, Moved
from blobsync.transfer.fresh_look import states_at_destination
from blobsync.transfer.ledger import CollectedReceipts, Deletions, Ledger
from blobsync.transfer.retries import move_and_retry, record_arrived, retry_at_the_end

_DOING = {
    Route.UPLOAD: "uploading",
    Route.DOWNLOAD: "downloading",
    Route.SAME_ACCOUNT: "copying",
    Route.CROSS_ACCOUNT: "copying",
}
# Seconds after which the destination of a plan is looked at again before an engine whose writes have no conditions
# writes there. A command carries its plan out at once; a plan that somebody looks at first may wait for hours.
_LOOK_AGAIN_AFTER = 60.0

# With this many failures, the cause is not in the files.
MOST_FAILURES = 100_000


def carry_out(
    plan: TransferPlan,
    context: PartOpener,
    engines: Engines,
    listener: Listener,
    receipt_folder: Path | None,
    spill: Spill = IN_MEMORY,
) -> TransferResult:
    """Do what the plan says, where it was made; ``context`` opens its parts.

    A plan that does not fit into memory is carried out in batches. Deletions come last, and only if nothing failed.
    After 100,000 failures no further batch begins; the result says how many files were not tried.

    A receipt of what is verified and deleted is written to ``receipt_folder`` (None: no receipt), also after an
    interrupt. Failures of single files are in the result. Raises ``MirrorRefusedError`` for a plan whose deletions look
    like a mistake, ``TransferCancelledError`` on Ctrl-C after everything was stopped and recorded, and what the engines
    raise when nothing can work (no azcopy, no network).
    """
    plan.demand_allowed()
    tally = ByteTally()
    listener = together(listener, tally)
    so_far = _ResultSoFar(plan, CollectedReceipts(spill))
    # A clock that was set back makes a plan old, too.
    is_old = not 0 <= time.time() - plan.created_at < _LOOK_AGAIN_AFTER
    listener.emit(Expected(plan.files_to_transfer, plan.bytes_to_transfer))
    try:
        for batch in plan.batches():
            if len(so_far.failures) >= MOST_FAILURES:
                break
            ledgers = [Ledger(context.opened(part), context.records(part.key)) for part in batch.parts]
            _carry_out(Batch(batch, engines, listener, ledgers, is_old=is_old), so_far)
        deleting = _delete_extras(so_far, context, listener, engines.stop)
    except KeyboardInterrupt as stop:
        error = cancelled(plan, so_far.arrived, tally.bytes)
        error.result = so_far.result(receipt_folder, notes_to(listener), interrupted=True)
        raise error from stop
    so_far.failures += _not_tried(so_far, deleting)
    if engines.intents is not None and not so_far.failures:
        engines.intents.forget()
    if so_far.arrived.kept:
        listener.emit(Note(kept_words(so_far.arrived.kept)))
    return so_far.result(receipt_folder, notes_to(listener))


def _carry_out(batch: Batch, so_far: "_ResultSoFar") -> None:
    """Carry out one batch, and add it to ``so_far``, also if Ctrl-C ends it."""
    try:
        _move_and_verify(batch)
    except KeyboardInterrupt:
        batch.report_rest()
        so_far.add(batch, batch.failures())
        raise
    finally:
        for ledger in batch.ledgers:
            ledger.save()
    so_far.add(batch, (*batch.failures(), *batch.imbalance()))


def _move_and_verify(batch: Batch) -> None:
    batch.engines.stop.check()
    for ledger in batch.ledgers:
        ledger.record_unchanged()
        ledger.record_settled(action for action in ledger.part.actions if action.action is Action.SKIP)
    tidy(batch.engines.unfinished, [ledger.part for ledger in batch.ledgers], batch.plan.engine.name)
    batch.listener.emit(Moving(_DOING[batch.plan.route], batch.plan.bytes_on_record))
    batch.listener.emit(Phase("moving"))
    for ledger in tuple(batch.ledgers):
        actions = [action for action in ledger.part.actions if action.action is Action.TRANSFER]
        move_and_retry(batch, ledger, [each for each in actions if each.aside is None], batch.plan.engine.name)
        _resolve_conflicts(batch, ledger)
    retry_at_the_end(batch)
    for ledger in batch.ledgers:
        batch.verify(ledger)
    for ledger, tried in batch.tried:
        record_arrived(batch, ledger, tried)


def _resolve_conflicts(batch: Batch, ledger: Ledger) -> None:
    """Do what ``--keep`` says of the part's conflicts, where that is more than a transfer."""
    both = [action for action in ledger.part.actions if action.aside is not None]
    theirs = [action for action in ledger.part.actions if action.action is Action.ADOPT]
    if both or theirs:
        from blobsync.transfer.conflict_resolution import adopt, keep_both  # late: few transfers have any

        keep_both(batch, ledger, both)
        adopt(batch, ledger, theirs)


class _ResultSoFar:
    """The result of a whole plan so far, whose batches are carried out one after the other.

    ``begun`` counts the actions that were begun.
    """

    def __init__(self, plan: TransferPlan, receipt: CollectedReceipts) -> None:
        self.plan = plan
        self.receipt = receipt
        self.arrived = Arrived()
        self.begun = 0
        self.deleted = 0
        self.bytes_transferred = 0
        self.bytes_reused = 0
        self.not_compared = 0
        self.azcopy_job_ids: list[str] = []
        self.failures: list[FileFailure] = []
        self.started = time.monotonic()

    def add(self, batch: Batch, failures: Iterable[FileFailure]) -> None:
        """Add a batch that has ended."""
        self.arrived = self.arrived.and_also(batch.ledgers)
        self.begun += batch.plan.count(Action.TRANSFER) + batch.plan.count(Action.ADOPT)
        for moved in (each for ledger in batch.ledgers for each in ledger.verified.values()):
            self.bytes_transferred += (moved.source or moved.action).size - moved.reused
            self.bytes_reused += moved.reused
            self.not_compared += moved.compared_by == NOTHING_COMPARED
        self.azcopy_job_ids += batch.azcopy_job_ids
        self.failures += failures
        self.receipt.add(batch.ledgers, Deletions((), ()))

    def result(self, folder: Path | None, note: Callable[[str], None], *, interrupted: bool = False) -> TransferResult:
        """The result, with a receipt in ``folder`` if there is something to record."""
        found = TransferResult(
            plan=self.plan,
            transferred=self.arrived.verified,
            verified=self.arrived.verified + self.plan.count(Action.UNCHANGED),
            deleted=self.deleted,
            bytes_transferred=self.bytes_transferred,
            bytes_reused=self.bytes_reused,
            not_compared=self.not_compared,
            # As the history keeps it: the rate is the same wherever it is shown.
            seconds=round(time.monotonic() - self.started, 3),
            failures=(*self.plan.unreadable, *self.failures),
            azcopy_job_ids=tuple(self.azcopy_job_ids),
            interrupted=interrupted,
        )
        if folder is None or not (found.transferred or found.deleted or found.failures or self.receipt.unsure):
            return found
        try:
            return found._replace(receipt=self.receipt.write(folder, found, interrupted=interrupted))
        except OSError as error:
            note(f"no receipt was written to {folder}: {error.strerror}")
            return found


def _delete_extras(so_far: _ResultSoFar, context: PartOpener, listener: Listener, stop: StopRequest) -> int:
    """Delete the extras of a mirror, if nothing failed; returns how many files were deleted."""
    count = so_far.plan.count(Action.DELETE) if so_far.plan.options.mirror else 0
    if not count:
        return 0
    if so_far.failures or so_far.plan.unreadable:
        kept = count_text(count, "extra file")
        listener.emit(Note(f"{kept} kept: nothing is deleted after a transfer with failures"))
        return 0
    for part in so_far.plan.parts_with(Action.DELETE):
        live, records = context.opened(part), context.records(part.key)
        deletions = (action for action in part.actions if action.action is Action.DELETE)
        listener.emit(Phase("deleting"))
        for batch in batches_of(deletions, actions_of(part.actions).batch):
            stop.check()
            so_far.begun += len(batch)
            try:
                failures = delete(live.destination, batch, listener.emit)
            except KeyboardInterrupt:
                so_far.receipt.add([], Deletions((), [(live, action) for action in batch]))
                raise
            gone = [action for action in batch if action.path not in failures]
            so_far.deleted += len(gone)
            so_far.receipt.add([], Deletions([(live, action) for action in gone], ()))
            records.forget(part.key.at(action.path) for action in gone)
            for path, reason in failures.items():
                shown = f"{part.path}/{path}"
                said = f"{shown}: not deleted, {reason}"
                so_far.failures.append(FileFailure(shown, FailureCode.DELETE_FAILED, said, "run it again"))
    return count


def delete(end: OpenLocation, deletions: Sequence[FileAction], emit: Emit) -> dict[str, str]:
    """Delete, then look again; returns the reason by path for each file that remains. ``emit`` as in ``survey``."""
    failures = _delete_files(end, deletions) if isinstance(end, LocalLocation) else _delete_blobs(end, deletions)
    # No error is not proof of success.
    still_there = states_at_destination(
        end, [Moved(action) for action in deletions if action.path not in failures], emit
    )
    return {**dict.fromkeys(still_there, "it is still there"), **failures}


def _delete_blobs(end: OpenBlob, deletions: Sequence[FileAction]) -> dict[str, str]:
    """Delete only the versions that the plan saw: a blob that was written since is not extra."""
    paths = {end.at(action.path): action.path for action in deletions}
    seen = {end.at(each.path): each.destination.etag for each in deletions if isinstance(each.destination, RemoteState)}
    return {paths.get(name, name): reason for name, reason in end.store.delete_many(list(paths), etags=seen).items()}


def _delete_files(end: LocalLocation, deletions: Sequence[FileAction]) -> dict[str, str]:
    failures: dict[str, str] = {}
    folders: set[str] = set()
    below = LocalFolder(end.path, end.boundary, kept=end.kept)
    for action in deletions:
        try:
            below.remove(relative_name(action.path), action.destination)
        except BlobsyncError as error:
            failures[action.path] = error.message
            continue
        folders.update(at_and_above(action.path.rpartition("/")[0]))
    for folder in sorted(folders, key=lambda path: path.count("/"), reverse=True):
        # Remove only folders that the deletions left empty.
        below.remove_if_empty(relative_name(folder))
    return failures


def _not_tried(so_far: _ResultSoFar, deleting: int) -> list[FileFailure]:
    """Failures for planned files that no engine was given: they must not look like success."""
    plan = so_far.plan
    planned = plan.count(Action.TRANSFER) + plan.count(Action.ADOPT) + deleting
    if so_far.begun == planned:
        return []
    shown = ", ".join(plan.paths)
    if len(so_far.failures) >= MOST_FAILURES:
        left = planned - so_far.begun
        said = f"{shown}: {count_text(left, 'more file')} not tried after {len(so_far.failures):,} failures"
        hint = "fix the cause, then run the same command again"
        return [FileFailure(shown, FailureCode.NOT_REPORTED, said, hint)]
    begun = f"{so_far.begun:,} were read back from the plan"
    said = f"{shown}: {count_text(planned, 'file')} planned, {begun}: that does not add up"
    return [FileFailure(shown, FailureCode.ACCOUNT_WRONG, said, "run the same command again")]


class ByteTally:
    """Counts the bytes that moved or were reused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0

    def emit(self, event: Event) -> None:
        """Count what has bytes."""
        if isinstance(event, (BytesMoved, BytesReused)):
            with self._lock:
                self.bytes += event.size


class Arrived(NamedTuple):
    """The files of a plan that are at the destination: verified, and not looked at yet (``unsure``).

    ``size`` is the bytes of both, which do not move again; ``kept`` the bytes of unfinished files that the next run
    continues from.
    """

    verified: int = 0
    unsure: int = 0
    size: int = 0
    kept: int = 0

    def and_also(self, ledgers: Sequence[Ledger]) -> "Arrived":
        """The sum with what these ledgers contain."""
        there = [moved for ledger in ledgers for moved in (*ledger.verified.values(), *ledger.pending.values())]
        return Arrived(
            self.verified + sum(len(ledger.verified) for ledger in ledgers),
            self.unsure + sum(len(ledger.pending) for ledger in ledgers),
            self.size + sum((moved.source or moved.action).size for moved in there),
            self.kept + sum(ledger.kept_bytes for ledger in ledgers),
        )


_VERBS = {Route.UPLOAD: "sent", Route.DOWNLOAD: "fetched"}


def cancelled(plan: TransferPlan, arrived: Arrived, there: int) -> TransferCancelledError:
    """``there`` is all bytes that moved or were reused in this run, including those of unfinished files."""
    total = plan.files_to_transfer
    rest = f", {arrived.unsure:,} moved but not yet verified" if arrived.unsure else ""
    left = total - arrived.verified - arrived.unsure
    # The verb is that of the number, or of the noun beside it: '1 of 2 files is', '0 of 1 file is'.
    verb = _are(min(total, arrived.verified or total))
    said = f"stopped: {arrived.verified:,} of {count_text(total, 'file')} {verb} done and verified{rest}"
    return TransferCancelledError(
        f"{said}, {left:,} {_are(left)} left"
        + (f"; {kept_words(arrived.kept)}" if arrived.kept else "")
        + _again(plan, there - arrived.size - arrived.kept),
        hint="run the same command again: verified files are skipped",
    )


def _again(plan: TransferPlan, size: int) -> str:
    if size <= 0:
        return ""
    # azcopy reports only totals, which may include files that it had finished.
    most = "up to " if plan.engine.name == "azcopy" else ""
    verb = _VERBS.get(plan.route, "copied")
    return f"; {most}{size_text(size)} of unfinished files were {verb} and will be {verb} again"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def kept_words(size: int) -> str:
    """The words for bytes of unfinished files that are recorded."""
    return f"{size_text(size)} of unfinished files are kept, and the next run resumes from there"
