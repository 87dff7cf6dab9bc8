"""The direct engine on the nodes of a cluster: cuts shards, has a job of tasks carry them out, and reads their records.

What tasks report counts as verified where a fresh look at both ends shows the same (``verified_records.compared``).
What is missing goes into one more job, twice at most, then fails by name. Where a limit of the cluster refuses so many
tasks, there are fewer, larger ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import Protocol, TypeVar

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, TooManyTasksError
from blobsync.base.events import BytesMoved, BytesReused, FilesCounted, Listener, Note, WorkerMoved
from blobsync.base.formatting import count_text
from blobsync.base.locations import LocalLocation
from blobsync.base.records import dataclass
from blobsync.direct.circuit_breaker import not_tried
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, Refused, ShardDone, read_body
from blobsync.spread.shard import MOST_FILES, Shard, can_be_in_shard, cut, weight
from blobsync.spread.shared_store import SealedStore
from blobsync.spread.task import task_name
from blobsync.spread.verified_records import ShardAccount, compared
from blobsync.transfer.engines import Engine, Moved, MoveReport, MoveTask

# Seconds between two questions how the job is.
_JOB_SECONDS = 5.0
# How many jobs there are at most.
JOBS = 3
_THREADS = 16
# Where a task failed for such a reason, the next job tries the file again.
_FOR_THE_NEXT = frozenset({FailureCode.STORAGE_UNREACHABLE, FailureCode.SERVICE_BUSY, FailureCode.SAS_EXPIRED})
# Failed files get this as their hint.
AGAIN = "run the same command again: verified files are skipped"


class Tasks(Protocol):
    """The tasks of one run: a job of any kind of cluster, and where their documents are."""

    @property
    def shards(self) -> Sequence[Shard]:
        """What each task carries out, by its number."""
        ...

    @property
    def place(self) -> SealedStore:
        """The sealed store of the run."""
        ...

    def ended(self) -> str | None:
        """How the job ended, in words; None while tasks run, or may start."""
        ...

    def stop(self) -> None:
        """Let no task begin any more, stop those that run, and wait for them. Raises nothing."""
        ...


# Cuts what is left into about as many shards as it is told; the platform may allow fewer.
Cutter = Callable[[int], Sequence[Shard]]
Begin = Callable[[Cutter], Tasks]


@dataclass(slots=True)
class _Share:
    """The files of one part: ``left`` are those that a task has to move, ``reported`` those that one says it has,
    ``verified`` and ``failed`` those of which the end is known."""

    part: LivePart
    left: dict[str, FileAction]
    reported: dict[str, Moved] = field(default_factory=dict)
    verified: list[Moved] = field(default_factory=list)
    failed: list[tuple[FileAction, FileFailure]] = field(default_factory=list)

    def fail(self, action: FileAction, code: FailureCode, said: str, hint: str | None = AGAIN) -> None:
        self.left.pop(action.path, None)
        self.failed.append((action, FileFailure(self.part.shown(action), code, said, hint)))


class SpreadEngine:
    """Uploads, downloads, and copies from server to server, with tasks on other machines."""

    name = "direct"

    def __init__(
        self,
        alone: Engine,
        begin: Begin,
        *,
        together: Sequence[LivePart] = (),
        jobs: int = JOBS,
        poll: float = 1.0,
        tidy: Callable[[LivePart, Sequence[FileAction]], None] = lambda part, actions: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``alone`` is the engine of this process, for files that fit no shard and for retries. ``begin`` submits a job
        for what is left. ``together`` are parts that go into one job, with the first of them that is to move. ``poll``
        is how long to wait for records, in seconds. ``tidy`` is called before another job for files that the tasks of
        an earlier one may have left half done."""
        self._alone = alone
        self._begin = begin
        self._together = together
        self._jobs = jobs
        self._clock, self._sleep, self._poll = clock, sleep, poll
        self._tidy = tidy
        self._shares: dict[tuple[str, str], _Share] = {}

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`. Raises ``BlobsyncError`` if a node cannot work, and what
        the job's cluster raises."""
        away = [action for action in task.actions if can_be_in_shard(action, task.part.route)]
        if not away or task.again:
            self._alone.move(task, report, listener)
            return
        share = self._shares.pop(_ends(task.part), None)
        if share is None:
            share = _Share(task.part, {action.path: action for action in away})
            self._carry(task, [share, *self._others(task.part)], report, listener)
        _tell(share, report, listener)
        kept = {id(action) for action in away}
        here = [action for action in task.actions if id(action) not in kept]
        if here:
            self._alone.move(task._replace(actions=here, whole_folder=False), report, listener)

    def _others(self, first: LivePart) -> Iterator[_Share]:
        """The other parts that are to move together with the first one; each is asked for later."""
        together, self._together = self._together, ()
        for part in together:
            moving = (each for each in part.actions if each.action is Action.TRANSFER and each.aside is None)
            files = {each.path: each for each in moving if can_be_in_shard(each, part.route)}
            if files and _ends(part) != _ends(first):
                self._shares[_ends(part)] = share = _Share(part, files)
                yield share

    def _carry(self, task: MoveTask, shares: Sequence[_Share], report: MoveReport, listener: Listener) -> None:
        why = ""
        for number in range(self._jobs):
            if number:
                left = sum(len(share.left) for share in shares)
                listener.emit(Note(f"{count_text(left, 'file')} of the job are left{why}; another job takes them"))
                for share in shares:
                    self._tidy(share.part, list(share.left.values()))
            left_files = [(share.part, list(share.left.values())) for share in shares]
            tasks = self._begin(partial(cut_all, left_files))
            run = _Run(tasks, shares, listener, is_last=number + 1 == self._jobs)
            try:
                why = self._wait(run, task)
                for share in shares:
                    _verify(share, task, listener)
            except BaseException:
                tasks.stop()
                with suppress(BlobsyncError):
                    run.hear()
                report.files_moved([moved._replace(destination=None) for moved in shares[0].reported.values()])
                raise
            if not any(share.left for share in shares):
                return
        for share in shares:
            for action in list(share.left.values()):
                share.fail(action, FailureCode.NOT_REPORTED, f"not moved: no job finished it, {self._jobs} tried{why}")

    def _wait(self, run: _Run, task: MoveTask) -> str:
        """Wait until each task has a record, or the job has ended; returns how, for a sentence."""
        looked = self._clock()
        while True:
            task.stop.check()
            if run.hear():
                return ""
            if run.disk_full is not None:
                run.tasks.stop()
                run.hear(at_last=True)
                run.end_fetching(run.disk_full)
                return ""
            if self._clock() - looked >= _JOB_SECONDS:
                looked = self._clock()
                ended = run.tasks.ended()
                if ended is not None:
                    # Records written between the last look and the end of the job count.
                    run.hear(at_last=True)
                    return f": it ended early, {ended}"
            self._sleep(self._poll)


def _ends(part: LivePart) -> tuple[str, str]:
    return str(part.source), str(part.destination)


def cut_all(parts: Sequence[tuple[LivePart, Sequence[FileAction]]], wanted: int) -> list[Shard]:
    """About ``wanted`` shards of all parts' files, the heaviest first, so that none of them is still running when all
    others have ended."""
    weights = [sum(map(weight, files)) for _, files in parts]
    shards: list[Shard] = []
    for (part, files), heavy in zip(parts, weights, strict=True):
        if files:
            number = max(1, round(wanted * heavy / max(1, sum(weights))))
            # Where fewer tasks are allowed, each has to take more files.
            shards += cut(part, files, number, max(MOST_FILES, 2 * len(files) // number))
    shards.sort(key=lambda shard: -shard.weight)
    return [replace(shard, number=number) for number, shard in enumerate(shards)]


_T = TypeVar("_T")


def with_fewer_tasks(cutter: Cutter, wanted: int, submit: Callable[[Sequence[Shard]], _T]) -> _T:
    """Submit about ``wanted`` shards as tasks; where the platform or a limit of the user takes fewer, half as many
    larger ones, and so on. Raises what ``submit`` raises, ``TooManyTasksError`` where it does not take a single one."""
    while True:
        shards = cutter(wanted)
        try:
            return submit(shards)
        except TooManyTasksError:
            if len(shards) == 1:
                raise
            wanted = max(1, len(shards) // 2)


class _Run:
    """One job: which of its tasks have a record, and what the records say."""

    def __init__(self, tasks: Tasks, shares: Sequence[_Share], listener: Listener, *, is_last: bool) -> None:
        self.tasks = tasks
        self._listener = listener
        self._is_last = is_last
        self._waiting = {task_name(shard.number): shard for shard in tasks.shards}
        self._of = {_ends(each.part): each for each in shares}
        # Why no file can be written any more.
        self.disk_full: FileFailure | None = None

    def hear(self, *, at_last: bool = False) -> bool:
        """Read new records; returns whether no task is without one. ``at_last``: what a task that was stopped has
        recorded counts, too. Raises ``BlobsyncError`` for a node that cannot work."""
        names = [name for name in self.tasks.place.names("records") if name in self._waiting]
        read = side_by_side(lambda name: self.tasks.place.read(f"records/{name}"), names, _THREADS)
        for name, body in zip(names, read, strict=True):
            if body is not None:
                self._take(name, body, at_last=at_last)
        return not self._waiting

    def _take(self, name: str, body: bytes, *, at_last: bool) -> None:
        shard = self._waiting[name]
        account = ShardAccount(shard, worker=f"task {shard.number}")
        answers: list[Answer] = []
        try:
            answers = read_body(body, shard.route)
            is_whole = any(isinstance(each, ShardDone) for each in answers)
            if refused := next((each for each in answers if isinstance(each, Refused)), None):
                self._refuse(shard, refused)
            if is_whole or at_last:
                share = self._of[shard.source, shard.destination]
                found: list[Moved | tuple[FileAction, FileFailure]] = [
                    account.moved(each) if each.failure is None else (account.failed(each), each.failure)
                    for each in answers
                    if isinstance(each, FileRecord)
                ]
                self._count(account, share, found)
        except FormatError as error:
            self._listener.emit(Note(f"what task {shard.number} says is not believed: {error}"))
            is_whole = True
        if is_whole:
            del self._waiting[name]
            for note in (each for each in answers if isinstance(each, Note)):
                self._listener.emit(note)

    def _count(
        self, account: ShardAccount, share: _Share, found: Sequence[Moved | tuple[FileAction, FileFailure]]
    ) -> None:
        """Add what a believed record says."""
        size = reused = files = 0
        for each in found:
            if isinstance(each, Moved):
                share.reported[each.action.path] = each
                size, reused, files = size + each.action.size, reused + each.reused, files + 1
                continue
            action, failure = each
            if failure.code not in _FOR_THE_NEXT or self._is_last:
                share.fail(action, failure.code, failure.message, failure.hint)
            if failure.code is FailureCode.DISK_FULL:
                self.disk_full = failure
        _emit_moved(self._listener, size - reused, reused, files)
        self._listener.emit(WorkerMoved(account.worker, files, size - reused))

    def end_fetching(self, failure: FileFailure) -> None:
        """All nodes write to one disk, and it is full: what no task has moved is not tried."""
        for share in self._of.values():
            for action in [each for path, each in share.left.items() if path not in share.reported]:
                share.fail(action, failure.code, not_tried(failure.message), failure.hint)

    def _refuse(self, shard: Shard, refused: Refused) -> None:
        part = self._of[shard.source, shard.destination].part
        has_disk = isinstance(part.source, LocalLocation) or isinstance(part.destination, LocalLocation)
        said, hint = f"task {shard.number} cannot take part: {refused.why}", _NOT_SHARED if has_disk else _HERE
        raise BlobsyncError(said, hint=hint, code=FailureCode.SPREAD_REFUSED)


def _verify(share: _Share, task: MoveTask, listener: Listener) -> None:
    """Compare what is reported with a fresh look. What is not as reported is left for the next job."""
    found = compared(share.part, list(share.reported.values()), listener.emit, task.stop)
    share.reported.clear()
    for moved in found.verified:
        share.left.pop(moved.action.path, None)
        share.verified.append(moved)
    for moved in found.changed:
        said = f"{share.part.shown(moved.action)}: the file changed while it was read"
        share.fail(moved.action, FailureCode.CHANGED_WHILE_READ, said)
    listener.emit(FilesCounted(-len(found.changed)))
    for moved in found.others:
        _emit_moved(listener, moved.reused - moved.action.size, -moved.reused, -1)


def _tell(share: _Share, report: MoveReport, listener: Listener) -> None:
    listener.emit(FilesCounted(-len(share.verified)))
    report.files_moved(share.verified)
    for action, failure in share.failed:
        report.file_failed(action, failure)


def _emit_moved(listener: Listener, size: int, reused: int, files: int) -> None:
    if size:
        listener.emit(BytesMoved(size))
    if reused:
        listener.emit(BytesReused(reused))
    if files:
        listener.emit(FilesCounted(files))


_HERE = "without --nodes this machine does it"
_NOT_SHARED = (
    "--nodes needs the project on a file system that all nodes share, under the same path; "
    "elsewhere, -f copies need no local files, and --processes uses this machine"
)
