"""One batch of a plan under way: has engines move its files, passes their reports on, and looks at what has moved.

Before that it removes what killed runs left beside the destinations of downloads, unless the plan continues from it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from blobsync.base.errors import FailureCode, FileFailure, Retry
from blobsync.base.events import FilesCounted, FilesDone, Listener, Phase
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.formatting import count_text
from blobsync.base.locations import LocalLocation
from blobsync.base.records import NamedTuple
from blobsync.local.part_files import remove_leftovers
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.plan.blocks import goes_on, places
from blobsync.plan.project_context import LivePart
from blobsync.plan.remaining_time import interleaved
from blobsync.plan.transfer_plan import Action, FileAction, TransferPlan
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.engines import Engines, Moved, MoveTask
from blobsync.transfer.fresh_look import read_without_md5, states_at_destination
from blobsync.transfer.ledger import Ledger

# The retries that may still follow when a file fails: in its first, its second, its last attempt.
FIRST_TRY = frozenset(Retry)
SECOND_TRY = frozenset({Retry.AT_THE_END})
LAST_TRY: frozenset[Retry] = frozenset()


class LastTry(NamedTuple):
    """Files of which ``move`` gets those that failed for a temporary reason, when everything else is done."""

    ledger: Ledger
    actions: Sequence[FileAction]
    move: Callable[[Sequence[FileAction]], None]


class Batch:
    """``is_old``: the plan waited before it was carried out."""

    def __init__(
        self, plan: TransferPlan, engines: Engines, listener: Listener, ledgers: list[Ledger], *, is_old: bool
    ) -> None:
        self.plan = plan
        self.engines = engines
        self.listener = listener
        self.ledgers = ledgers
        # How many copies of versions that are set aside move besides what the plan counts.
        self.brought = 0
        self.azcopy_job_ids: list[str] = []
        self.other_failures: list[FileFailure] = []
        self.last_tries: list[LastTry] = []
        # The files of each attempt, in the version that it was to move.
        self.tried: list[tuple[Ledger, Sequence[FileAction]]] = []
        # Files that failed and are not reported to the listener yet, because they may be tried again.
        self.unreported: dict[str, tuple[Ledger, FileAction]] = {}
        self._is_old = is_old

    def move(self, ledger: Ledger, actions: Sequence[FileAction], engine: str, to_come: frozenset[Retry]) -> None:
        """Have ``engine`` move these files; the retries ``to_come`` may still follow."""
        self.engines.stop.check()
        part = ledger.part
        report = Report(self, ledger, engine, to_come)
        # azcopy's writes have no conditions: they replace whatever is at the destination.
        is_unsafe = self._is_old and engine == "azcopy"
        if is_unsafe:
            actions = self._still_as_planned(part, actions, report)
        if not actions:
            return
        task = MoveTask(
            part,
            interleaved(actions),
            # An old plan does not know all files that are in the folder by now.
            whole_folder=part.whole and len(actions) == len(part.actions) and not is_unsafe,
            cap_mbps=self.plan.options.cap_mbps,
            again=to_come is not FIRST_TRY,
            stop=self.engines.stop,
        )
        self.tried.append((ledger, actions))
        self.engines.make[engine]().move(task, report, self.listener)
        for action in ledger.unreported(actions):
            report.file_failed(action, _not_reported(part.shown(action), engine))

    def _still_as_planned(
        self, part: LivePart, actions: Sequence[FileAction], report: "Report"
    ) -> Sequence[FileAction]:
        """The files whose blob is still the version that the plan saw; the others are reported as failed."""
        if isinstance(part.destination, LocalLocation):
            # A download is checked when it takes its final name.
            return actions
        emit, stop = self.listener.emit, self.engines.stop
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

    def verify(self, ledger: Ledger) -> None:
        """Look at the destination for everything that the engine could not verify itself."""
        if not ledger.pending:
            return
        self.listener.emit(Phase("verifying"))
        pending = list(ledger.pending.values())
        end = ledger.part.destination
        states = states_at_destination(end, pending, self.listener.emit, self.engines.stop)
        if self.plan.options.compare_content and isinstance(end, OpenBlob):
            # Files that the plan compared by content are verified by content.
            states = read_without_md5(end, pending, states)
        ledger.seen([(moved, states.get(moved.action.path)) for moved in pending])
        self.report(ledger, [moved.action for moved in pending], counted=True)

    def report(self, ledger: Ledger, actions: Sequence[FileAction], *, counted: bool = False) -> None:
        """Tell the listener of files whose outcome is known: all that are done together. ``counted``: they were counted
        without a name before."""
        done: list[str] = []
        groups: list[FilesDone] = []
        for action in actions:
            shown = ledger.part.shown(action)
            failure = ledger.failures.get(action.path) or ledger.unplanned.get(action.path)
            self.unreported.pop(shown, None)
            if failure is None:
                done.append(shown)
            else:
                groups.append(FilesDone([shown], failure))
        for each in [FilesDone(done), *groups] if done else groups:
            if counted:
                self.listener.emit(FilesCounted(-len(each.paths)))
            self.listener.emit(each)

    def report_rest(self) -> None:
        """Report the failed files that were not tried again after all."""
        for ledger, action in list(self.unreported.values()):
            if action.path not in ledger.pending:
                self.report(ledger, [action])

    def failures(self) -> tuple[FileFailure, ...]:
        """The files that have failed, those that engines reported although the plan has them not, and all else."""
        moved = [failure for ledger in self.ledgers for _, failure in sorted(ledger.failures.items())]
        unplanned = [failure for ledger in self.ledgers for _, failure in sorted(ledger.unplanned.items())]
        return (*(_with_way_out(failure) for failure in moved), *unplanned, *self.other_failures)

    def imbalance(self) -> list[FileFailure]:
        """A failure if the counts do not add up: each planned file is transferred or failed; anything else is a bug."""
        planned = self.plan.count(Action.TRANSFER) + self.plan.count(Action.ADOPT) + self.brought
        done = sum(len(ledger.verified) for ledger in self.ledgers)
        failed = sum(len(ledger.failures) for ledger in self.ledgers)
        if planned == done + failed:
            return []
        shown = ", ".join(part.path for part in self.plan.parts)
        counts = f"{count_text(planned, 'file')} planned, {done:,} verified and {failed:,} failed"
        said = f"{shown}: {counts}: that does not add up"
        hint = "this is a bug in blobsync; check with 'blobsync verify'"
        return [FileFailure(shown, FailureCode.ACCOUNT_WRONG, said, hint)]


class Report(NamedTuple):
    """Passes an engine's report of a part's files to the ledger and to the listener.

    A failure that may be retried (``to_come``), or be none (``count_equal`` of ``retries``), is not shown: it would
    appear, and vanish again.
    """

    batch: Batch
    ledger: Ledger
    engine: str
    to_come: frozenset[Retry]

    def files_moved(self, moved: Sequence[Moved]) -> None:
        ledger = self.ledger
        moved = ledger.moved(moved)
        # A file that has to be looked at first is shown after that, and counted now.
        ended = [each.action for each in moved if each.action.path not in ledger.pending]
        if len(ended) < len(moved):
            self.batch.listener.emit(FilesCounted(len(moved) - len(ended)))
        self.batch.report(ledger, ended)

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        self.ledger.failed(action, failure)
        code = failure.code
        may_go_on = code.retry in self.to_come and self.batch.engines.second(code, self.engine)
        if may_go_on or code is FailureCode.CHANGED_MEANWHILE:
            self.batch.unreported[self.ledger.part.shown(action)] = self.ledger, action
        else:
            self.batch.report(self.ledger, [action])

    def file_kept(self, action: FileAction, size: int) -> None:
        self.ledger.kept[action.path] = size

    def stray(self, name: str) -> None:
        part = self.ledger.part
        self.batch.other_failures.append(_stray(f"{part.path}/{name}", part.destination))

    def azcopy_job(self, job_id: str) -> None:
        self.batch.azcopy_job_ids.append(job_id)


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


def _with_way_out(failure: FileFailure) -> FileFailure:
    """Add a hint: a copy that the service refused can always go through this machine."""
    if failure.code != FailureCode.COPY_SOURCE_REFUSED:
        return failure
    return failure._replace(hint="run it again with --relay: the bytes then stream through this machine")
