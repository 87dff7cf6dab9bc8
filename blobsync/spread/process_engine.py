"""The direct engine on every core: worker processes move the shards of a task, and this one counts their records.

A file without a record is a failure, whatever a worker did. When a worker is killed, another one gets the files that it
had not reported.

Unless the number of processes was given, this process moves some files first: others are started only if it was limited
by the CPU, and cores were idle.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from blobsync.base.background_calls import usable_cores
from blobsync.base.errors import BlobsyncError, CredentialError, FailureCode, FileFailure, ProcessError
from blobsync.base.events import Connected, Disconnected, Listener, Note, UnderWay
from blobsync.base.formatting import count_text
from blobsync.base.process import ProcessRunner
from blobsync.direct.circuit_breaker import CircuitBreaker, not_tried
from blobsync.direct.thread_pool import WorkerThreads
from blobsync.local.state_dir import StateDir
from blobsync.plan.engine_model import TRIAL_FILE, CpuUse, processes_after_trial
from blobsync.plan.spreading import shard_count
from blobsync.plan.transfer_plan import FileAction
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, KeptFile, MovedBytes
from blobsync.spread.shard import can_be_in_shard, cut, weight
from blobsync.spread.verified_records import TRIES, ShardAccount, WorkersBusy, as_seen_here
from blobsync.spread.worker_pipe import END_PATIENCE, Credentials, WorkerLostError, WorkerPipe
from blobsync.transfer.engines import Engine, MoveReport, MoveTask
from blobsync.transfer.fresh_look import written_before

# Where Linux counts what each core does (see proc_stat(5)): name, user, nice, system, idle, iowait, ...
_CORES = Path("/proc/stat")
_IDLE, _WAITING = 4, 5


def cpu_clocks(cores: Path = _CORES) -> CpuUse:
    """The clocks whose differences are a :class:`CpuUse`. Without the kernel's count of idle time (``cores``) every
    other core counts as idle."""
    now, own = time.monotonic(), time.process_time()
    try:
        lines = [line.split() for line in cores.read_text().splitlines()]
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks = sum(int(line[_IDLE]) + int(line[_WAITING]) for line in lines if line[0] in usable)
        return CpuUse(now, own, ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return CpuUse(now, own, now * (usable_cores() - 1))


class ProcessEngine:
    """Uploads, downloads, and copies from server to server, with several processes of this machine."""

    name = "direct"

    def __init__(
        self,
        alone: Engine,
        size: Callable[[int, int], int],
        credentials: Credentials,
        runner: ProcessRunner = ProcessRunner(),  # noqa: B008 - it has no state
        *,
        state: StateDir | None = None,
        trial: int = 0,
        clocks: Callable[[], CpuUse] = cpu_clocks,
        patience: float = END_PATIENCE,
    ) -> None:
        """``alone`` is the engine of this process, for work that is not worth a worker. ``size`` returns the number of
        processes for so many files of so many bytes. ``state`` contains the records of earlier runs. ``trial`` is the
        number of files that ``alone`` moves before workers are started, and measures with ``clocks``. Workers that are
        asked to stop get ``patience`` seconds to end; then they are killed."""
        self._alone = alone
        self._trial = trial
        self._clocks = clocks
        self._size, self._patience = size, patience
        self._make = partial(WorkerPipe, runner, credentials=credentials, state=state, patience=patience)

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`."""
        away = [action for action in task.actions if can_be_in_shard(action, task.part.route)]
        workers = min(len(away), self._size(len(away), sum(action.size for action in away)))
        first = [action for action in away if action.size <= TRIAL_FILE][: self._trial] if workers > 1 else []
        if first and len(first) < len(away):
            workers = processes_after_trial(workers, self._moved_alone(task, first, report, listener))
            done = {id(action) for action in first}
            away = [action for action in away if id(action) not in done]
            task = task._replace(
                actions=[action for action in task.actions if id(action) not in done], whole_folder=False
            )
        if workers < 2:
            self._alone.move(task, report, listener)
            return
        kept = {id(action) for action in away}
        here = [action for action in task.actions if id(action) not in kept]
        run = _Run(task, report, listener, self._make, workers, self._patience)
        here += run.work(away)
        if here:
            self._alone.move(task._replace(actions=here, whole_folder=False), report, listener)

    def _moved_alone(
        self, task: MoveTask, actions: Sequence[FileAction], report: MoveReport, listener: Listener
    ) -> CpuUse:
        began = self._clocks()
        self._alone.move(task._replace(actions=actions, whole_folder=False), report, listener)
        ended = self._clocks()
        return CpuUse(*(late - early for late, early in zip(ended, began, strict=True)))


class _Run:
    """One task, as work for a thread for each worker: their shared state."""

    def __init__(
        self,
        task: MoveTask,
        report: MoveReport,
        listener: Listener,
        make: Callable[..., WorkerPipe],
        workers: int,
        patience: float,
    ) -> None:
        self._task = task
        self._report = report
        self._listener = listener
        self._make, self._patience = make, patience
        self._workers = workers
        self._waiting: list[ShardAccount] = []
        self._changed = threading.Condition()
        self._busy = 0
        self._live: set[WorkerPipe] = set()
        self._stop = threading.Event()
        self._giving_up = CircuitBreaker()
        self._busy_with = WorkersBusy(listener, task.part.path)
        self._hopeless: FileFailure | None = None
        self._no_worker: BlobsyncError | None = None

    def work(self, actions: Sequence[FileAction]) -> list[FileAction]:
        """Returns the files for which no worker could be started; all others are reported."""
        wanted = shard_count(self._workers, sum(map(weight, actions)))
        shards = cut(self._task.part, actions, wanted)
        # The heaviest first, so that none of them is still running when all others have ended.
        self._waiting = sorted(map(ShardAccount, shards), key=lambda account: account.shard.weight)
        WorkerThreads(self._stop, self._task.stop, patience=self._patience).work((self, self._workers))
        left = [action for account in self._waiting for action in account.left.values()]
        if left and self._no_worker is not None:
            self._listener.emit(
                Note(f"{self._no_worker.message}; one process moves {count_text(len(left), 'file')} instead")
            )
        return left

    def run(self) -> None:
        """Hand shards to one worker after the other, until none is left."""
        worker: WorkerPipe | None = None
        try:
            while (account := self._take()) is not None:
                try:
                    worker = worker or self._start()
                    self._carry(worker, account)
                except WorkerLostError as lost:
                    self._gone(worker)
                    worker = None
                    self._redo(account, str(lost))
                except (ProcessError, CredentialError) as error:
                    self._no_worker = error
                    self._free(account)
                    return
                self._free()
        except BaseException:
            # Before this thread waits for its own worker.
            self.wake()
            raise
        finally:
            self._gone(worker)

    def wake(self) -> None:
        """Let the workers clean up as after Ctrl-C; records that they still send count."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
            live = list(self._live)
        for worker in live:
            worker.ask_to_stop()

    def abandon(self) -> None:
        """End the workers that have not ended by themselves."""
        with self._changed:
            live = list(self._live)
        for worker in live:
            worker.end()

    def _take(self) -> ShardAccount | None:
        """The heaviest shard; None if none is left, nor one that may come back from a lost worker."""
        with self._changed:
            while not self._waiting and self._busy and not self._stop.is_set():
                self._changed.wait()
            if self._stop.is_set() or not self._waiting:
                return None
            self._busy += 1
            return self._waiting.pop()

    def _free(self, *left: ShardAccount) -> None:
        """End the work on a shard; ``left`` is for the other workers."""
        with self._changed:
            self._waiting += left
            self._busy -= 1
            self._changed.notify_all()

    def _start(self) -> WorkerPipe:
        cap = self._task.cap_mbps
        share = cap / self._workers if cap else None
        worker = self._make(self._task.part, processes=self._workers, cap_mbps=share)
        with self._changed:
            self._live.add(worker)
        if self._stop.is_set():
            worker.ask_to_stop()
        return worker

    def _gone(self, worker: WorkerPipe | None) -> None:
        if worker is not None:
            worker.ask_to_stop()
            worker.end()
            with self._changed:
                self._live.discard(worker)

    def _carry(self, worker: WorkerPipe, account: ShardAccount) -> None:
        account.worker = f"process {worker.pid}"
        try:
            for answer in worker.carry(account.shard):
                self._hear(account, answer)
        except FormatError as error:
            raise WorkerLostError(f"it sent what cannot be: {error}") from error
        finally:
            self._busy_with.ends(id(account))
        account.close(self._listener)
        if account.left:
            raise WorkerLostError(f"it said nothing of {count_text(len(account.left), 'file')}")

    def _hear(self, account: ShardAccount, answer: Answer) -> None:
        if isinstance(answer, FileRecord):
            self._settle(account, answer)
        elif isinstance(answer, MovedBytes):
            account.tell(answer.count, answer.reused, self._listener)
        elif isinstance(answer, UnderWay):
            self._busy_with.hear(id(account), answer)
        elif isinstance(answer, KeptFile):
            self._report.file_kept(account.planned(answer.path), answer.size)
        elif isinstance(answer, Note | Disconnected | Connected):
            self._listener.emit(answer)

    def _settle(self, account: ShardAccount, record: FileRecord) -> None:
        part = self._task.part
        failure = record.failure
        if failure is None:
            moved = account.moved(record)
            with self._changed:
                self._giving_up.moved()
            account.arrived(self._listener)
            self._report.files_moved([as_seen_here(part.destination, moved)])
            return
        action = account.failed(record)
        # The lost worker may have moved it without being able to report it.
        if account.attempt > 1 and failure.code is FailureCode.CHANGED_MEANWHILE:
            there = written_before(part, action)
            if there is not None:
                account.found(action)
                self._report.files_moved([there])
                return
        self._report.file_failed(action, FileFailure(part.shown(action), failure.code, failure.message, failure.hint))
        with self._changed:
            useless = self._giving_up.failed(failure.code) and self._hopeless is None
            if useless:
                self._hopeless = failure
        if useless:
            self._fail_waiting(failure)

    def _fail_waiting(self, failure: FileFailure) -> None:
        """Every file would fail in this way: do not begin those that no worker has yet."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for account in waiting:
            self._fail(account, failure.code, not_tried(failure.message), failure.hint)

    def _fail(self, account: ShardAccount, code: FailureCode, message: str, hint: str | None) -> None:
        for action in account.left.values():
            shown = self._task.part.shown(action)
            self._report.file_failed(action, FileFailure(shown, code, message, hint))

    def _redo(self, account: ShardAccount, how: str) -> None:
        """Give the rest of a shard to another worker, or give it up."""
        if self._stop.is_set():
            return
        account.take_back(self._listener)
        again = account.again()
        hopeless = self._hopeless
        if hopeless is not None:
            self._fail(account, hopeless.code, not_tried(hopeless.message), hopeless.hint)
        elif again:
            count = len(account.left)
            self._listener.emit(
                Note(f"a worker process was lost, {how}; another one moves its {count_text(count, 'file')}")
            )
            with self._changed:
                self._waiting += again
        else:
            said = f"not moved: {TRIES} worker processes in a row were lost over it; the last: {how}"
            hint = "run the same command again with --processes 1"
            self._fail(account, FailureCode.NOT_REPORTED, said, hint)
