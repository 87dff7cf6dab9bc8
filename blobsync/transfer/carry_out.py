"""Carries a plan out: moves files, verifies them, records them, deletes extras, and reports what failed.

Of the extra files of a ``--mirror`` it deletes only the versions that the plan saw.

The message after Ctrl-C says what is done, what is left, and what has to be moved again. What killed runs left beside
the destinations of downloads is removed, unless this plan continues from it.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, Retry, StorageError, TransferCancelledError
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Emit,
    Event,
    Expected,
    FilesCounted,
    FilesDone,
    Listener,
    Moving,
    Note,
    Phase,
    notes_to,
    together,
)
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.formatting import count_text, size_text
from blobsync.base.locations import LocalLocation
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.part_files import remove_leftovers
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload, WriteIntents
from blobsync.local.sorted_runs import IN_MEMORY, Spill
from blobsync.plan.blocks import goes_on, places
from blobsync.plan.project_context import LivePart, PartOpener
from blobsync.plan.remaining_time import interleaved
from blobsync.plan.transfer_plan import Action, FileAction, Route, TransferPlan, actions_of, batches_of
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.engines import NOTHING_COMPARED, Engine, Moved, MoveTask
from blobsync.transfer.fresh_look import (
    arrived_anyway,
    read_without_md5,
    remote_state,
    states_at_destination,
    written_before,
)
from blobsync.transfer.ledger import CollectedReceipts, Deletions, Ledger, record_unreported, retry_with

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
    # The verb is that of the number, or of the noun beside it: '1 of 2 files is', '0 of 1 file is'.
    verb = _are(min(total, arrived.verified or total))
    said = f"stopped: {arrived.verified:,} of {count_text(total, 'file')} {verb} done and verified{rest}"
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
    return f"{size_text(size)} of unfinished files are kept, and the next run resumes from there"


def _again(plan: TransferPlan, size: int) -> str:
    if size <= 0:
        return ""
    # azcopy reports only totals, which may include files that it had finished.
    most = "up to " if plan.engine.name == "azcopy" else ""
    verb = _VERBS.get(plan.route, "copied")
    return f"; {most}{size_text(size)} of unfinished files were {verb} and will be {verb} again"


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
        place = str(part.destination.path)
        # Strings: creating a Path for each of many small files takes longer than finding its folder.
        for folder in {os.path.dirname(f"{place}/{action.path}" if action.path else place) for action in actions}:
            remove_leftovers(Path(folder), kept)


# The same command with the same credential would fail in the same way.
_MAY_NOT_WRITE = frozenset({FailureCode.ACCESS_DENIED, FailureCode.SAS_PERMISSION})
_DOING = {
    Route.UPLOAD: "uploading",
    Route.DOWNLOAD: "downloading",
    Route.SAME_ACCOUNT: "copying",
    Route.CROSS_ACCOUNT: "copying",
}


class Engines(NamedTuple):
    """How to get each engine by name; created on first use, so that azcopy is not required where it is not needed.

    ``relay_allowed`` says whether a copy that the service refuses may go through this machine; ``unfinished`` are the
    direct engine's records of downloads that were killed. ``stop`` ends the work as Ctrl-C does. ``intents`` are what
    the engines note before they write.
    """

    make: Mapping[str, Callable[[], Engine]]
    relay_allowed: bool = False
    unfinished: RangeRecords | None = None
    stop: StopRequest = NEVER
    intents: WriteIntents | None = None


# Engines whose writes have no conditions: they replace whatever is at the destination.
_UNCONDITIONAL = frozenset({"azcopy"})
# Seconds after which the destination of a plan is looked at again before such an engine writes there. A command carries
# its plan out at once; a plan that somebody looks at first may wait for hours.
_LOOK_AGAIN_AFTER = 60.0

# With this many failures, the cause is not in the files.
MOST_FAILURES = 100_000


class _Account:
    """The totals of a whole plan so far, whose batches are carried out one after the other.

    ``given`` counts the actions that were begun.
    """

    def __init__(self, plan: TransferPlan, receipt: CollectedReceipts) -> None:
        self.plan = plan
        self.receipt = receipt
        self.arrived = Arrived()
        self.given = 0
        self.deleted = 0
        self.bytes_transferred = 0
        self.bytes_reused = 0
        self.not_compared = 0
        self.azcopy_job_ids: list[str] = []
        self.failures: list[FileFailure] = []
        self.started = time.monotonic()

    def add(self, run: _Run, failures: Iterable[FileFailure]) -> None:
        """Add a batch that has ended."""
        self.arrived = self.arrived.and_also(run.ledgers)
        self.given += run.plan.count(Action.TRANSFER) + run.plan.count(Action.ADOPT)
        for moved in (each for ledger in run.ledgers for each in ledger.verified.values()):
            self.bytes_transferred += (moved.source or moved.action).size - moved.reused
            self.bytes_reused += moved.reused
            self.not_compared += moved.compared_by == NOTHING_COMPARED
        self.azcopy_job_ids += run.azcopy_job_ids
        self.failures += failures
        self.receipt.add(run.ledgers, Deletions((), ()))

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
            seconds=time.monotonic() - self.started,
            failures=(*self.plan.unreadable, *self.failures),
            azcopy_job_ids=tuple(self.azcopy_job_ids),
            interrupted=interrupted,
        )
        if folder is None or not (found.transferred or found.deleted or found.failures or self.receipt.unsure):
            return found
        try:
            return replace(found, receipt=self.receipt.write(folder, found, interrupted=interrupted))
        except OSError as error:
            note(f"no receipt was written to {folder}: {error.strerror}")
            return found


class _Run:
    """One batch of a plan. ``is_old``: the plan waited before it was carried out."""

    def __init__(
        self, plan: TransferPlan, engines: Engines, listener: Listener, ledgers: list[Ledger], *, is_old: bool
    ) -> None:
        self.plan = plan
        self.engines = engines
        self.listener = listener
        self.ledgers = ledgers
        self.is_old = is_old
        self.brought = 0
        self.azcopy_job_ids: list[str] = []
        self.other_failures: list[FileFailure] = []
        self.given: list[_Given] = []
        # The files of each attempt, in the version that it was to move.
        self.tried: list[tuple[Ledger, Sequence[FileAction]]] = []
        # Files that failed and are not reported to the listener yet, because they may be tried again.
        self.unreported: dict[str, tuple[Ledger, FileAction]] = {}


class _Given(NamedTuple):
    """Files that an engine was given; ``engine`` is None if they were to be set aside first, and could not be."""

    ledger: Ledger
    actions: Sequence[FileAction]
    engine: str | None


# The retries that may still follow when a file fails: in its first, its second, its last attempt.
_FIRST = frozenset(Retry)
_SECOND = frozenset({Retry.AT_THE_END})
_LAST: frozenset[Retry] = frozenset()

# Failures of a file that an earlier attempt may have moved without a report.
_MAY_HAVE_ARRIVED = frozenset({FailureCode.CHANGED_WHILE_READ, FailureCode.CHANGED_MEANWHILE, FailureCode.NOT_REPORTED})


class _Report(NamedTuple):
    """Passes an engine's report of a part's files to the ledger and to the listener.

    A failure that may be retried (``to_come``), or be none (:func:`_count_equal`), is not shown: it would appear, and
    vanish again.
    """

    run: _Run
    ledger: Ledger
    engine: str
    to_come: frozenset[Retry]

    def files_moved(self, moved: Sequence[Moved]) -> None:
        ledger = self.ledger
        moved = ledger.moved(moved)
        # A file that has to be looked at first is shown after that, and counted now.
        ended = [each.action for each in moved if each.action.path not in ledger.pending]
        if len(ended) < len(moved):
            self.run.listener.emit(FilesCounted(len(moved) - len(ended)))
        _report(self.run, ledger, ended)

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        self.ledger.failed(action, failure)
        may_go_on = failure.code.retry in self.to_come and _second_engine(self.run, failure.code, self.engine)
        if may_go_on or failure.code is FailureCode.CHANGED_MEANWHILE:
            self.run.unreported[self.ledger.part.shown(action)] = self.ledger, action
        else:
            _report(self.run, self.ledger, [action])

    def file_kept(self, action: FileAction, size: int) -> None:
        self.ledger.kept[action.path] = size

    def stray(self, name: str) -> None:
        part = self.ledger.part
        self.run.other_failures.append(_stray(f"{part.path}/{name}", part.destination))

    def azcopy_job(self, job_id: str) -> None:
        self.run.azcopy_job_ids.append(job_id)


def _report(run: _Run, ledger: Ledger, actions: Sequence[FileAction], *, counted: bool = False) -> None:
    """Tell the listener of files whose outcome is known: all that are done together. ``counted``: they were counted
    without a name before."""
    done: list[str] = []
    groups: list[FilesDone] = []
    for action in actions:
        shown = ledger.part.shown(action)
        failure = ledger.failures.get(action.path) or ledger.strangers.get(action.path)
        run.unreported.pop(shown, None)
        if failure is None:
            done.append(shown)
        else:
            groups.append(FilesDone([shown], failure))
    for each in [FilesDone(done), *groups] if done else groups:
        if counted:
            run.listener.emit(FilesCounted(-len(each.paths)))
        run.listener.emit(each)


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
    account = _Account(plan, CollectedReceipts(spill))
    # A clock that was set back makes a plan old, too.
    is_old = not 0 <= time.time() - plan.created_at < _LOOK_AGAIN_AFTER
    listener.emit(Expected(plan.files_to_transfer, plan.bytes_to_transfer))
    try:
        for batch in plan.batches():
            if len(account.failures) >= MOST_FAILURES:
                break
            ledgers = [Ledger(context.opened(part), context.records(part.key)) for part in batch.parts]
            _carry_out(_Run(batch, engines, listener, ledgers, is_old=is_old), account)
        deleting = _delete_extras(account, context, listener, engines.stop)
    except KeyboardInterrupt as stop:
        error = cancelled(plan, account.arrived, tally.bytes + tally.reused)
        error.result = account.result(receipt_folder, notes_to(listener), interrupted=True)
        raise error from stop
    account.failures += _not_tried(account, deleting)
    if engines.intents is not None and not account.failures:
        engines.intents.forget()
    if account.arrived.kept:
        listener.emit(Note(kept_words(account.arrived.kept)))
    return account.result(receipt_folder, notes_to(listener))


def _carry_out(run: _Run, account: _Account) -> None:
    """Carry out one batch, and add it to ``account``, also if Ctrl-C ends it."""
    try:
        _move_and_verify(run)
    except KeyboardInterrupt:
        _report_rest(run)
        account.add(run, _failures(run))
        raise
    finally:
        for ledger in run.ledgers:
            ledger.save()
    account.add(run, (*_failures(run), *_imbalance(run)))


def _move_and_verify(run: _Run) -> None:
    run.engines.stop.check()
    for ledger in run.ledgers:
        ledger.record_unchanged()
        ledger.record_settled(action for action in ledger.part.actions if action.action is Action.SKIP)
    tidy(run.engines.unfinished, [ledger.part for ledger in run.ledgers], run.plan.engine.name)
    run.listener.emit(Moving(_DOING[run.plan.route], run.plan.bytes_on_record))
    run.listener.emit(Phase("moving"))
    for ledger in tuple(run.ledgers):
        actions = [action for action in ledger.part.actions if action.action is Action.TRANSFER]
        _move_and_retry(run, ledger, [each for each in actions if each.aside is None], run.plan.engine.name)
        _keep_both(run, ledger, [each for each in actions if each.aside is not None])
        _adopt(run, ledger)
    _try_again_at_the_end(run)
    for ledger in run.ledgers:
        _verify(run, ledger)
    for ledger, tried in run.tried:
        _record_unreported(run, ledger, tried)


def _move_and_retry(run: _Run, ledger: Ledger, actions: Sequence[FileAction], engine: str) -> None:
    # Unfinished parts of killed downloads are removed before their files are downloaded again.
    remove_unrecorded(run.engines.unfinished, ledger.part, actions)
    run.given.append(_Given(ledger, actions, engine))
    _move(run, ledger, actions, engine, _FIRST)
    _retry(run, ledger, actions, engine)


def _keep_both(run: _Run, ledger: Ledger, actions: Sequence[FileAction], *, again: bool = False) -> None:
    """Resolve conflicts with both versions kept: a version is replaced only after it is safe under another name at both
    ends, and only if the plan saw it. If this fails, the conflict remains, so that the same command can finish it."""
    if not actions:
        return
    from blobsync.transfer import conflict_resolution  # late: few transfers keep both versions

    is_copy = ledger.part.route not in (Route.UPLOAD, Route.DOWNLOAD)
    # Uploads and downloads pass through this machine anyway. azcopy would overwrite unconditionally.
    first = "relay" if not is_copy or run.plan.engine.name == "relay" else "direct"
    names = dict.fromkeys([first, *(["relay"] if run.engines.relay_allowed else [])])
    aside = conflict_resolution.set_aside(ledger.part, actions, [run.engines.make[name] for name in names])
    kept, failed = aside.kept, aside.failed
    if run.plan.settles_both_ends:
        copies = conflict_resolution.brought(ledger.part, kept)
        run.brought += len(copies.actions)
        account = _move_back(run, ledger, copies)
        kept, missing = conflict_resolution.arrived(ledger.part, kept, _stopped(account))
        failed = [*failed, *missing]
    report = _Report(run, ledger, first, _LAST if again else _SECOND)
    for action, failure in failed:
        report.file_failed(action, failure)
    run.given.append(_Given(ledger, [action for action, _ in failed], None))
    _move_and_retry(run, ledger, [each.action for each in kept], first if is_copy else "direct")


def _adopt(run: _Run, ledger: Ledger) -> None:
    """Bring the destination's version to the source's end. If that may not be written, the file is recorded as it is;
    after any other failure it stays a conflict, so that the same command can finish it."""
    back = ledger.part.turned_round(
        replace(action, action=Action.TRANSFER, source=action.destination, destination=action.source)
        for action in ledger.part.actions
        if action.action is Action.ADOPT
    )
    account = _move_back(run, ledger, back)
    refused = account.failures.keys() - _stopped(account).keys()
    ledger.record_settled(action for action in ledger.part.actions if action.path in refused)


def _stopped(account: Ledger) -> dict[str, FileFailure]:
    """The failures that the same command may resolve: not those of a credential that may not write."""
    return {path: failure for path, failure in account.failures.items() if failure.code not in _MAY_NOT_WRITE}


def _move_back(run: _Run, ledger: Ledger, back: LivePart) -> Ledger:
    """Move what ``--keep`` brings to the source's end, with a ledger of its own."""
    account = Ledger(back, ledger.records)
    run.ledgers.append(account)
    _move_and_retry(run, account, back.actions, "direct")
    if account.pending:
        _verify(run, account)
        run.listener.emit(Phase("moving"))
    return account


def _move(run: _Run, ledger: Ledger, actions: Sequence[FileAction], engine: str, to_come: frozenset[Retry]) -> None:
    run.engines.stop.check()
    part = ledger.part
    report = _Report(run, ledger, engine, to_come)
    is_unsafe = run.is_old and engine in _UNCONDITIONAL
    if is_unsafe:
        actions = _still_as_planned(run, part, actions, report)
    if not actions:
        return
    task = MoveTask(
        part,
        interleaved(actions),
        # An old plan does not know all files that are in the folder by now.
        whole_folder=part.whole and len(actions) == len(part.actions) and not is_unsafe,
        cap_mbps=run.plan.options.cap_mbps,
        again=to_come is not _FIRST,
        stop=run.engines.stop,
    )
    run.tried.append((ledger, actions))
    run.engines.make[engine]().move(task, report, run.listener)
    for action in ledger.unreported(actions):
        report.file_failed(action, _not_reported(part.shown(action), engine))


def _still_as_planned(
    run: _Run, part: LivePart, actions: Sequence[FileAction], report: _Report
) -> Sequence[FileAction]:
    """The files whose blob is still the version that the plan saw; the others are reported as failed."""
    if isinstance(part.destination, LocalLocation):
        # A download is checked when it takes its final name.
        return actions
    emit, stop = run.listener.emit, run.engines.stop
    now = states_at_destination(part.destination, [Moved(each) for each in actions], emit, stop)
    kept = []
    for action in actions:
        if _etag(now.get(action.path)) == _etag(action.destination):
            kept.append(action)
            continue
        shown = part.shown(action)
        said = f"{shown}: the blob changed since the plan was made, and was left alone"
        failure = FileFailure(shown, FailureCode.CHANGED_MEANWHILE, said, "run the same command again")
        report.file_failed(action, failure)
    return kept


def _etag(state: FileState | None) -> str | None:
    return state.etag if isinstance(state, RemoteState) else None


def _not_reported(shown: str, engine: str) -> FileFailure:
    """The failure of a file that the engine did not report, even if it may have arrived."""
    return FileFailure(
        shown,
        FailureCode.NOT_REPORTED,
        f"{shown}: the {engine} engine reported no result for it",
        "run the same command again: verified files are skipped",
    )


def _stray(shown: str, destination: OpenLocation) -> FileFailure:
    if isinstance(destination, LocalLocation):
        said = "azcopy copied this blob although it is not in the plan; the copy was discarded"
        first = "run the same command again: it may be new"
    else:
        said = (
            "this blob appeared at the destination during the copy and is not in the plan:"
            " azcopy copied it, or someone else uploaded it"
        )
        first = "check it, and remove it if it does not belong there"
    again = "If it happens again, the server lists names for azcopy that it hides from blobsync; do not trust it"
    return FileFailure(shown, FailureCode.NOT_ASKED_FOR, f"{shown}: {said}", f"{first}. {again}")


def _retry(run: _Run, ledger: Ledger, actions: Sequence[FileAction], first: str) -> None:
    """Retry once the files that another engine or a second attempt may move."""
    by_engine: dict[str, list[FileAction]] = {}
    for action in actions:
        failure = ledger.failures.get(action.path)
        if failure is None:
            continue
        engine = _second_engine(run, failure.code, first)
        if engine is None or failure.code.retry is Retry.AT_THE_END:
            continue
        there = _written_before(ledger, action) if failure.code.retry is Retry.DIRECT_AFTER_AZCOPY else None
        if there is not None:
            ledger.failures.pop(action.path)
            _Report(run, ledger, first, _LAST).files_moved([there])
        else:
            by_engine.setdefault(engine, []).append(action)
    for engine, again in by_engine.items():
        _move_again(run, ledger, again, engine if engine != first else "", engine, _SECOND)
    _count_equal(run, ledger, actions, first)


def _count_equal(run: _Run, ledger: Ledger, actions: Iterable[FileAction], engine: str) -> None:
    """Count those as moved that became, at the destination, what was to be moved there: another command moves the same
    files; or the service had all of a file whose answer was lost, and the next attempt found it."""
    changed = ledger.failed_by(actions, {FailureCode.CHANGED_MEANWHILE})
    with suppress(StorageError):
        arrived = arrived_anyway(ledger.part, changed, run.engines.stop)
        for moved in arrived:
            ledger.failures.pop(moved.action.path, None)
        _Report(run, ledger, engine, _LAST).files_moved(arrived)


def _try_again_at_the_end(run: _Run) -> None:
    """Try once more, when everything else is done, files that failed for a temporary reason, such as an outage."""
    for ledger, actions, first in tuple(run.given):
        failed = [(action, ledger.failures.get(action.path)) for action in actions]
        again = [action for action, failure in failed if failure and failure.code.retry is Retry.AT_THE_END]
        if first is None:
            for action in again:
                ledger.failures.pop(action.path)
            _keep_both(run, ledger, again, again=True)
        else:
            _move_at_the_end(run, ledger, again, first)
    _report_rest(run)


def _report_rest(run: _Run) -> None:
    """Report the failed files that were not tried again after all."""
    for ledger, action in list(run.unreported.values()):
        if action.path not in ledger.pending:
            _report(run, ledger, [action])
    run.unreported.clear()


def _move_at_the_end(run: _Run, ledger: Ledger, again: Sequence[FileAction], first: str) -> None:
    engine = FailureCode.STORAGE_UNREACHABLE.retry.engine_after(first) or first
    _move_again(run, ledger, again, engine if engine != first else "", engine, _LAST)
    _count_equal(run, ledger, again, engine)


def _move_again(
    run: _Run, ledger: Ledger, again: Sequence[FileAction], other: str, engine: str, to_come: frozenset[Retry]
) -> None:
    """``other`` is ``engine``, unless that is the engine that had these files before."""
    ours = _record_unreported(run, ledger, again)
    fresh = retry_with(again, {action.path: _source_now(run, ledger, action) for action in again}, ours)
    if not fresh:
        return
    from blobsync.plan.failure_groups import again_sentence

    run.listener.emit(Note(again_sentence([ledger.failures.pop(each.path) for each in fresh], other)))
    known = {action.path: action.size for action in again}
    if grown := sum(action.size - known[action.path] for action in fresh):
        run.listener.emit(Expected(0, grown))
    _move(run, ledger, fresh, engine, to_come)


def _record_unreported(run: _Run, ledger: Ledger, actions: Sequence[FileAction]) -> Mapping[str, FileState]:
    """Record those of the failed files whose planned version arrived all the same; returns what is there, by path.

    A worker that was killed had moved them, and by now the source may be another version.
    """
    failed = ledger.failed_by(actions, _MAY_HAVE_ARRIVED)
    with suppress(BlobsyncError):
        return record_unreported(ledger.part, failed, ledger.records, run.engines.stop) if failed else {}
    return {}


def _second_engine(run: _Run, code: FailureCode, first: str) -> str | None:
    engine = code.retry.engine_after(first)
    # Files that went through this machine before may do so again.
    is_detour = engine == "relay" and first != "relay"
    return None if is_detour and not run.engines.relay_allowed else engine


def _written_before(ledger: Ledger, action: FileAction) -> Moved | None:
    """The file, if azcopy had written it before it reported a failure.

    Only the content shows that a blob is azcopy's. Any other version may be someone else's and is kept.
    """
    return None if isinstance(ledger.part.destination, LocalLocation) else written_before(ledger.part, action)


def _source_now(run: _Run, ledger: Ledger, action: FileAction) -> FileState | None:
    source = ledger.part.source
    if isinstance(action.source, RemoteState) and action.source.version:
        # An earlier version of the blob stays as it is.
        return action.source
    if isinstance(source, LocalLocation):
        try:
            # What the plan would leave out by now is not tried again: a link that is not to be followed, a pipe.
            found = os.stat(source.at(action.path), follow_symlinks=run.plan.options.links == "follow")
        except OSError:
            return None
        return LocalState.of(found) if stat.S_ISREG(found.st_mode) else None
    # A lock names a content: whatever is there now is another.
    if ledger.failures[action.path].code is FailureCode.CHANGED_WHILE_READ and not run.plan.options.locked:
        with suppress(StorageError):
            blob = source.store.head(source.at(action.path))
            return remote_state(blob) if blob else None
    return action.source


def _verify(run: _Run, ledger: Ledger) -> None:
    """Look at the destination for everything that the engine could not verify itself."""
    if not ledger.pending:
        return
    run.listener.emit(Phase("verifying"))
    pending = list(ledger.pending.values())
    end = ledger.part.destination
    states = states_at_destination(end, pending, run.listener.emit, run.engines.stop)
    if run.plan.options.compare_content and isinstance(end, OpenBlob):
        # Files that the plan compared by content are verified by content.
        states = read_without_md5(end, pending, states)
    ledger.seen([(moved, states.get(moved.action.path)) for moved in pending])
    _report(run, ledger, [moved.action for moved in pending], counted=True)


def _delete_extras(account: _Account, context: PartOpener, listener: Listener, stop: StopRequest) -> int:
    """Delete the extras of a mirror, if nothing failed; returns how many files were deleted."""
    count = account.plan.count(Action.DELETE) if account.plan.options.mirror else 0
    if not count:
        return 0
    if account.failures or account.plan.unreadable:
        kept = count_text(count, "extra file")
        listener.emit(Note(f"{kept} kept: nothing is deleted after a transfer with failures"))
        return 0
    for part in account.plan.parts_with(Action.DELETE):
        live, records = context.opened(part), context.records(part.key)
        deletions = (action for action in part.actions if action.action is Action.DELETE)
        listener.emit(Phase("deleting"))
        for batch in batches_of(deletions, actions_of(part.actions).batch):
            stop.check()
            account.given += len(batch)
            try:
                failures = delete(live.destination, batch, listener.emit)
            except KeyboardInterrupt:
                account.receipt.add([], Deletions((), [(live, action) for action in batch]))
                raise
            gone = [action for action in batch if action.path not in failures]
            account.deleted += len(gone)
            account.receipt.add([], Deletions([(live, action) for action in gone], ()))
            records.forget(part.key.at(action.path) for action in gone)
            for path, reason in failures.items():
                shown = f"{part.path}/{path}"
                said = f"{shown}: not deleted, {reason}"
                account.failures.append(FileFailure(shown, FailureCode.DELETE_FAILED, said, "run it again"))
    return count


def _not_tried(account: _Account, deleting: int) -> list[FileFailure]:
    """Failures for planned files that no engine was given: they must not look like success."""
    plan = account.plan
    planned = plan.count(Action.TRANSFER) + plan.count(Action.ADOPT) + deleting
    if account.given == planned:
        return []
    shown = ", ".join(plan.paths)
    if len(account.failures) >= MOST_FAILURES:
        left = planned - account.given
        said = f"{shown}: {count_text(left, 'more file')} not tried after {len(account.failures):,} failures"
        hint = "fix the cause, then run the same command again"
        return [FileFailure(shown, FailureCode.NOT_REPORTED, said, hint)]
    given = f"{account.given:,} were read back from the plan"
    said = f"{shown}: {count_text(planned, 'file')} planned, {given}: that does not add up"
    return [FileFailure(shown, FailureCode.ACCOUNT_WRONG, said, "run the same command again")]


def _failures(run: _Run) -> tuple[FileFailure, ...]:
    moved = [failure for ledger in run.ledgers for _, failure in sorted(ledger.failures.items())]
    strangers = [failure for ledger in run.ledgers for _, failure in sorted(ledger.strangers.items())]
    return (*(_with_way_out(failure) for failure in moved), *strangers, *run.other_failures)


def _imbalance(run: _Run) -> list[FileFailure]:
    """A failure if the counts do not add up: each planned file is transferred or failed; anything else is a bug."""
    planned = run.plan.count(Action.TRANSFER) + run.plan.count(Action.ADOPT) + run.brought
    done = sum(len(ledger.verified) for ledger in run.ledgers)
    failed = sum(len(ledger.failures) for ledger in run.ledgers)
    if planned == done + failed:
        return []
    shown = ", ".join(part.path for part in run.plan.parts)
    said = (
        f"{shown}: {count_text(planned, 'file')} planned, {done:,} verified and {failed:,} failed: that does not add up"
    )
    hint = "this is a bug in blobsync; check with 'blobsync verify'"
    return [FileFailure(shown, FailureCode.ACCOUNT_WRONG, said, hint)]


def _with_way_out(failure: FileFailure) -> FileFailure:
    """Add a hint: a copy that the service refused can always go through this machine."""
    if failure.code != FailureCode.COPY_SOURCE_REFUSED:
        return failure
    return replace(failure, hint="run it again with --relay: the bytes then stream through this machine")


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
        parent = action.path.rpartition("/")[0]
        while parent:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    for folder in sorted(folders, key=lambda path: path.count("/"), reverse=True):
        # Remove only folders that the deletions left empty.
        below.remove_if_empty(relative_name(folder))
    return failures
