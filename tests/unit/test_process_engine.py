"""Scripted worker processes of one machine: every file is moved or reported once, whatever a worker does."""

from __future__ import annotations

import hashlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, CredentialError, FailureCode, FileFailure, ProcessError
from blobsync.base.events import NO_CONNECTION, Connected, Disconnected, Listener, Note, UnderWay
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.plain_json import parse_object
from blobsync.base.process import RunningProcess
from blobsync.base.redaction import SasToken
from blobsync.base.stopping import StopRequest
from blobsync.local.state_dir import StateDir
from blobsync.plan.engine_model import TRIAL_FILE, CpuUse
from blobsync.plan.transfer_plan import FileAction
from blobsync.spread.orders import STOP_LINE, Handed, WorkerOrders, read_handed, read_orders
from blobsync.spread.process_engine import ProcessEngine, cpu_clocks
from blobsync.spread.record import Answer, Ask, FileRecord, KeptFile, MovedBytes, Ready, ShardDone, answer_line
from blobsync.spread.shard import Shard, read_shards
from blobsync.spread.worker_pipe import END_PATIENCE, Credentials
from blobsync.store.rest.request_signing import SasSigner, Signer
from blobsync.transfer.engines import CollectedReport, MoveReport, MoveTask
from tests.fakes.runner import ScriptedRunner
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, ctrl_c_after, download, upload

_SAS = SasToken.parse("sv=1&se=2099-01-01&sig=c2VudGluZWw%3D")
_PATIENCE = 60.0

# A worker's answer for a shard; None: it is lost.
Script = Callable[["Worker", Shard], Iterator[Answer | str | None]]


def moved(action: FileAction) -> FileRecord:
    """A correct worker's answer for an upload."""
    source = action.source
    assert isinstance(source, LocalState)
    md5 = hashlib.md5(b"x" * source.size).digest()
    return FileRecord(action.path, replace(source, md5=md5), RemoteState(source.size, "0x1", md5))


def failed(action: FileAction, code: FailureCode, message: str = "no") -> FileRecord:
    return FileRecord(action.path, failure=FileFailure(action.path, code, message, "ask"))


def honest(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
    for action in shard.actions:
        yield MovedBytes(action.size)
        yield moved(action)


class Worker(RunningProcess):
    """A process with scripted output."""

    def __init__(self, number: int, script: Script, *, first: str, code: int = 0, stderr: str = "") -> None:
        self.pid = 100 + number
        self.number = number
        self.shards: list[Shard] = []
        self.orders: WorkerOrders | None = None
        self.handed: list[Handed] = []
        self.sent: list[str] = []
        self.stopped = self.ended = 0
        self.asked_to_stop = threading.Event()
        self.thread: threading.Thread | None = None
        self.at_end: Callable[[], object] = lambda: None
        self._script, self._first, self._code, self._stderr = script, first, code, stderr
        self._input: queue.SimpleQueue[str] = queue.SimpleQueue()

    def lines(self) -> Iterator[str]:
        self.orders = read_orders(self._next())
        self.thread = threading.current_thread()
        yield self._first
        for shard in read_shards(iter(self._next, STOP_LINE)):
            self.shards.append(shard)
            for answer in self._script(self, shard):
                if answer is None:
                    return
                yield answer if isinstance(answer, str) else answer_line(answer)
                if isinstance(answer, Ask):
                    self.handed.append(read_handed(parse_object(self._next())))
            yield answer_line(ShardDone(shard.number))

    def send_line(self, text: str) -> None:
        self.sent.append(text)
        if text == STOP_LINE:
            self.stopped += 1
            self.asked_to_stop.set()
        for line in text.splitlines():
            self._input.put(line)

    def wait(self, timeout: float | None = None) -> int | None:
        self.ended += 1
        self.at_end()
        return self._code

    def stop(self) -> int:
        return self._code

    def stderr_tail(self) -> str:
        return self._stderr

    def _next(self) -> str:
        return self._input.get(timeout=_PATIENCE)


class Workers(ScriptedRunner):
    """Starts these workers in order; the last script is for all further ones. ``starting`` gets the number of each."""

    def __init__(
        self,
        *scripts: Script,
        first: str = answer_line(Ready()),
        code: int = 0,
        stderr: str = "",
        starting: Callable[[int], None] = lambda number: None,
    ) -> None:
        super().__init__()
        self._starting = starting
        self.started: list[Worker] = []
        self.environments: list[Mapping[str, str]] = []
        self._scripts, self._first, self._code, self._stderr = scripts, first, code, stderr
        self._lock = threading.Lock()

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Worker:
        with self._lock:
            number = len(self.started)
            self._starting(number)
            script = self._scripts[min(number, len(self._scripts) - 1)]
            self.started.append(Worker(number, script, first=self._first, code=self._code, stderr=self._stderr))
            self.environments.append(env or {})
            return self.started[-1]


class Alone:
    """The engine of this process: records its files."""

    name = "direct"

    def __init__(self) -> None:
        self.tasks: list[MoveTask] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(task)


class Run:
    """The result of a task by these workers.

    With ``trial``, so many files are moved by this process first, which uses ``use`` for them.
    """

    def __init__(
        self,
        task: MoveTask,
        workers: Workers,
        signer: Signer | None = None,
        wanted: int = 2,
        *,
        trial: int = 0,
        use: CpuUse = CpuUse(1.0, 1.0, 1.0),  # noqa: B008 - frozen
        patience: float = END_PATIENCE,
    ) -> None:
        began = CpuUse(50.0, 7.0, 300.0)
        clocks = iter([began, CpuUse(*map(sum, zip(began, use, strict=True)))])
        self.task, self.workers, self.alone, self.heard = task, workers, Alone(), RecordingListener()
        self.asked: list[tuple[int, int]] = []

        def size(files: int, count: int) -> int:
            self.asked.append((files, count))
            return wanted

        credentials = Credentials(lambda container: signer or SasSigner(_SAS), lambda end: _SAS, {"NO_PROXY": "a"})
        state = StateDir(Path("/state"))
        self.engine = ProcessEngine(
            self.alone,
            size,
            credentials,
            workers,
            state=state,
            trial=trial,
            clocks=lambda: next(clocks),
            patience=patience,
        )
        self.report = CollectedReport()

    def work(self) -> Run:
        self.engine.move(self.task, self.report, self.heard)
        return self

    @property
    def paths(self) -> list[str]:
        """The paths in the report."""
        return sorted(
            [each.action.path for each in self.report.moved] + [action.path for action, _ in self.report.failed]
        )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("box")


@pytest.fixture
def task(tmp_path: Path, store: MemoryStore) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(20):
        (root / f"f{number:02}").write_bytes(b"x" * number)
    return upload(root, store, "sets")


def _all(task: MoveTask) -> list[str]:
    return [action.path for action in task.actions]


def test_workers_are_told_their_share_and_every_file_is_counted_once(task: MoveTask) -> None:
    run = Run(task._replace(cap_mbps=30.0), Workers(honest)).work()
    assert run.paths == _all(task) and not run.report.failed and not run.alone.tasks
    assert run.asked == [(20, sum(range(20)))]
    assert run.heard.bytes == sum(range(20))
    counts = run.heard.workers
    assert set(counts) <= {"process 100", "process 101"}
    assert [sum(each) for each in zip(*counts.values(), strict=True)] == [20, sum(range(20))]
    for worker in run.workers.started:
        assert worker.orders is not None
        told = worker.orders
        assert (told.processes, told.cap_mbps, told.environ, told.state) == (
            2,
            15.0,
            {"NO_PROXY": "a"},
            StateDir(Path("/state")),
        )
        assert worker.stopped and worker.ended, "none is left behind"


def test_without_a_cap_no_worker_has_one(task: MoveTask) -> None:
    run = Run(task, Workers(honest)).work()
    assert all(worker.orders and worker.orders.cap_mbps is None for worker in run.workers.started)


@pytest.mark.parametrize(("files", "wanted"), [(20, 1), (1, 2), (0, 2), (20, 0)])
def test_what_is_not_worth_two_workers_stays_here_as_it_is(task: MoveTask, files: int, wanted: int) -> None:
    for trial in (0, 5):
        run = Run(task._replace(actions=task.actions[:files]), Workers(honest), wanted=wanted, trial=trial).work()
        assert run.alone.tasks == [run.task] and not run.workers.started


def test_two_files_are_worth_two_workers(task: MoveTask) -> None:
    run = Run(task._replace(actions=task.actions[:2]), Workers(honest), wanted=8).work()
    assert run.paths == _all(task)[:2] and not run.alone.tasks
    assert all(worker.orders and worker.orders.processes == 2 for worker in run.workers.started)


def test_what_no_shard_can_hold_is_moved_here(task: MoveTask) -> None:
    strange = task.actions[0]._replace(source=None)
    run = Run(task._replace(actions=[strange, *task.actions[1:]]), Workers(honest)).work()
    assert run.paths == _all(task)[1:]
    (here,) = run.alone.tasks
    assert here.actions == [strange] and not here.whole_folder


def test_the_heaviest_shard_is_begun_first(tmp_path: Path, store: MemoryStore) -> None:
    root = tmp_path / "large"
    root.mkdir()
    for number in range(6):
        with (root / f"f{number}").open("wb") as file:
            file.truncate(100_000_000 * (1 + number))

    def refusing(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            yield failed(action, FailureCode.CHANGED_WHILE_READ)

    run = Run(upload(root, store, "p"), Workers(refusing)).work()
    assert run.paths == [f"f{number}" for number in range(6)]
    for worker in run.workers.started:
        weights = [shard.weight for shard in worker.shards]
        assert weights == sorted(weights, reverse=True)
    # One process moves shard after shard, and of failures that are not those of all files each is a file's own.
    assert len(run.workers.started) <= 2
    assert {failure.message for _, failure in run.report.failed} == {"no"}


def test_what_a_worker_has_finished_is_no_longer_under_way(large: MoveTask) -> None:
    def busy(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            yield UnderWay(1, f"data/x/{action.path}")
            yield failed(action, FailureCode.CHANGED_WHILE_READ)

    run = Run(large, Workers(busy)).work()
    assert len(run.heard.begun) == 12 and max(count for count, _ in run.heard.begun) <= 2


def test_what_a_worker_says_besides_is_passed_on(task: MoveTask) -> None:
    lost, back = Disconnected("host", NO_CONNECTION, 0.0), Connected("host")

    def talking(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield Ready()
        yield UnderWay(2, "data/x/f01")
        yield KeptFile(shard.actions[0].path, 7)
        yield Note("a sentence")
        yield lost
        yield back
        yield from honest(worker, shard)

    run = Run(task._replace(actions=task.actions[:2]), Workers(talking)).work()
    assert sorted((action.path, size) for action, size in run.report.kept) == [("f00", 7), ("f01", 7)]
    assert run.heard.notes == ["a sentence"] * 2
    outages = [event for event in run.heard.events if isinstance(event, Disconnected | Connected)]
    assert sorted(map(str, outages)) == sorted(map(str, [lost, lost, back, back]))
    assert {path for _, path in run.heard.begun} == {"data/x/f01"}
    assert "Ready()" not in map(str, run.heard.events)
    assert run.paths == _all(task)[:2]


def test_bytes_that_no_worker_told_of_and_bytes_that_were_there_are_counted(task: MoveTask) -> None:
    def silent(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield from map(moved, shard.actions)

    assert Run(task, Workers(silent)).work().heard.bytes == sum(range(20))

    def reusing(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            yield MovedBytes(0, action.size)
            yield replace(moved(action), reused=action.size)

    run = Run(task, Workers(reusing)).work()
    assert (run.heard.bytes, run.heard.reused) == (0, sum(range(20)))


# -- a worker is lost -------------------------------------------------------------------------------------


def test_a_worker_stays_for_what_may_come_back_from_one_that_is_lost(task: MoveTask) -> None:
    """And moves it at the same time as the worker that takes the place of the lost one."""
    gate, both = Gate(), threading.Barrier(2, timeout=_PATIENCE / 3)

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        if worker.number < 2:
            gate.wait(worker)
        if worker.number == 0:
            # Meanwhile the other one has done its shard, and has looked for more.
            assert not run.workers.started[1].asked_to_stop.wait(0.5)
            yield None
        if worker.number == 2 or len(worker.shards) == 2:
            both.wait()
        yield from honest(worker, shard)

    run = Run(task, Workers(script))
    run.work()
    assert run.paths == _all(task) and not run.report.failed and len(run.workers.started) == 3


def test_failures_of_a_worker_before_it_was_lost_end_nothing_else(task: MoveTask) -> None:
    def denied(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield failed(shard.actions[0], FailureCode.CHANGED_WHILE_READ)
        yield None

    run = Run(task, Workers(denied, honest)).work()
    assert run.paths == _all(task) and len(run.report.failed) == 1


def test_what_a_lost_worker_left_fails_for_the_first_reason_that_fails_all(task: MoveTask) -> None:
    def expired(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        if any(action.path == "f00" for action in shard.actions):
            yield failed(shard.actions[0], FailureCode.SAS_EXPIRED, "it ended")
            yield failed(shard.actions[1], FailureCode.SAS_EXPIRED, "it ended long ago")
            yield None
        yield from honest(worker, shard)

    run = Run(task, Workers(expired)).work()
    assert run.paths == _all(task)
    messages = sorted(failure.message for _, failure in run.report.failed)
    assert messages[:2] == ["it ended", "it ended long ago"]
    assert set(messages[2:]) == {"not tried, since others failed: it ended"}


def _lost_in_the_middle(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
    yield moved(shard.actions[0])
    yield MovedBytes(1000)
    yield None


def test_what_a_lost_worker_had_not_reported_goes_to_another(task: MoveTask) -> None:
    run = Run(task, Workers(_lost_in_the_middle, honest), wanted=2).work()
    assert run.paths == _all(task) and not run.report.failed
    assert run.heard.bytes == sum(range(20)), "what it had under way is taken back"
    (note,) = run.heard.notes
    first = run.workers.started[0]
    count = len(first.shards[0].actions) - 1
    assert note == f"a worker process was lost, it ended with code 0; another one moves its {count} files"
    assert first.ended


@pytest.mark.parametrize(
    ("code", "stderr", "how"),
    [
        (-9, "said", "it was killed by signal 9"),
        (7, "first\nthe last line", "it ended with code 7: the last line"),
        (7, "", "it ended with code 7"),
        (0, "said", "it ended with code 0"),
        (1, f"https://a/b?{_SAS.reveal()}", "it ended with code 1: https://a/b"),
    ],
)
def test_files_over_which_three_workers_were_lost_are_named(task: MoveTask, code: int, stderr: str, how: str) -> None:
    def gone(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield None

    run = Run(task, Workers(gone, code=code, stderr=stderr)).work()
    assert run.paths == _all(task) and not run.report.moved
    for action, failure in run.report.failed:
        assert (failure.path, failure.code) == (f"data/x/{action.path}", FailureCode.NOT_REPORTED)
        assert failure.message.startswith("not moved: 3 worker processes in a row were lost over it; the last: " + how)
        assert "c2VudGluZWw" not in failure.message
        assert failure.hint == "run the same command again with --processes 1"
    # Each shard first as a whole, then in halves and quarters.
    shards = sum(1 for worker in run.workers.started for shard in worker.shards if len(shard.actions) > 5)
    assert len(run.workers.started) <= 7 * max(2, shards)


def test_of_several_files_the_one_that_ends_its_workers_takes_few_along(task: MoveTask) -> None:
    def gone(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        if any(action.path == "f07" for action in shard.actions):
            yield None
        yield from honest(worker, shard)

    run = Run(task, Workers(gone)).work()
    assert run.paths == _all(task)
    lost = [action.path for action, _ in run.report.failed]
    assert "f07" in lost and len(lost) <= 5


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ("nonsense", "it sent what is no record"),
        (KeptFile("other", 1), "it sent what cannot be"),
        (FileRecord("../f00", failure=FileFailure("", FailureCode.ERROR, "m")), "it sent what cannot be"),
        (FileRecord("f00", None, RemoteState(0, "0x1")), "it sent what cannot be"),
        (UnderWay(1, "elsewhere/f00"), "it sent what cannot be"),
        (Note("well"), "it said nothing of"),
    ],
    ids=["nonsense", "kept", "outside", "unread", "under way", "silent"],
)
def test_a_worker_that_talks_nonsense_is_lost(task: MoveTask, said: Answer | str, how: str) -> None:
    def lying(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield said

    run = Run(task._replace(actions=task.actions[:4]), Workers(lying, honest)).work()
    assert run.paths == _all(task)[:4] and not run.report.failed
    assert any(how in note for note in run.heard.notes)


@pytest.mark.parametrize("there", ["the same", "another", "nothing"])
def test_a_file_that_a_lost_worker_has_moved_is_moved(task: MoveTask, store: MemoryStore, there: str) -> None:
    """Its record was lost, too, and the next worker finds a blob that was not planned."""

    def gone(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            if there != "nothing":
                store.add(f"sets/{action.path}", (b"x" if there == "the same" else b"y") * action.size)
            yield MovedBytes(action.size)
        yield None

    def refused(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            if store.head(f"sets/{action.path}") is not None or there == "nothing":
                yield failed(action, FailureCode.CHANGED_MEANWHILE)
            else:
                yield moved(action)

    actions = task.actions[1:5]
    run = Run(task._replace(actions=actions), Workers(gone, refused), wanted=2).work()
    assert run.paths == [action.path for action in actions]
    lost = {action.path for action in run.workers.started[0].shards[0].actions}
    if there == "the same":
        assert not run.report.failed
        assert run.heard.bytes == sum(action.size for action in actions)
    else:
        found = {action.path: failure for action, failure in run.report.failed}
        assert lost <= set(found)
        assert {failure.code for failure in found.values()} == {FailureCode.CHANGED_MEANWHILE}


def test_what_another_worker_may_not_write_is_not_taken_for_moved(task: MoveTask, store: MemoryStore) -> None:
    """Although the same bytes are there."""

    def gone(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            store.add(f"sets/{action.path}", b"x" * action.size)
        yield None

    def denied(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield from (failed(action, FailureCode.CHANGED_WHILE_READ) for action in shard.actions)

    run = Run(task._replace(actions=task.actions[1:5]), Workers(gone, denied)).work()
    assert len(run.report.failed) == 4 and not run.report.moved


def test_what_changed_before_any_worker_was_lost_is_a_failure(task: MoveTask, store: MemoryStore) -> None:
    """Another client has written the same: the plan was for another state."""

    def refused(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            store.add(f"sets/{action.path}", b"x" * action.size)
            yield failed(action, FailureCode.CHANGED_MEANWHILE, "it changed")

    run = Run(task._replace(actions=task.actions[:4]), Workers(refused)).work()
    assert run.paths == _all(task)[:4] and not run.report.moved
    action, failure = run.report.failed[0]
    assert failure == FileFailure(f"data/x/{action.path}", FailureCode.CHANGED_MEANWHILE, "it changed", "ask")


# -- all files would fail ---------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, store: MemoryStore) -> MoveTask:
    """Twelve shards of one file each."""
    root = tmp_path / "large"
    root.mkdir()
    for number in range(12):
        with (root / f"f{number:02}").open("wb") as file:
            file.truncate(100_000_000)
    return upload(root, store, "sets")


class Gate:
    """Wait until both workers are at their first shard."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=_PATIENCE)

    def wait(self, worker: Worker) -> None:
        if len(worker.shards) == 1:
            self._both.wait()


@pytest.mark.parametrize("then", ["fails too", "is lost"])
def test_what_fails_every_file_is_not_begun_for_the_others(large: MoveTask, then: str) -> None:
    gate, told = Gate(), threading.Event()

    def expired(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        gate.wait(worker)
        if worker.number == 1:
            # Called when the other files are given up.
            assert told.wait(_PATIENCE)
            if then == "is lost":
                yield None
        yield from (failed(action, FailureCode.SAS_EXPIRED, "it ended (3 tries)") for action in shard.actions)

    run = Run(large, Workers(expired))

    class Report(CollectedReport):
        def file_failed(self, action: FileAction, failure: FileFailure) -> None:
            super().file_failed(action, failure)
            if len(self.failed) == 11:
                told.set()

    run.report = Report()
    run.work()
    assert run.paths == _all(large)
    assert {failure.code for _, failure in run.report.failed} == {FailureCode.SAS_EXPIRED}
    assert {failure.hint for _, failure in run.report.failed} == {"ask"}
    not_tried = [failure for _, failure in run.report.failed if failure.message.startswith("not tried")]
    assert {failure.message for failure in not_tried} == {"not tried, since others failed: it ended"}
    assert len(not_tried) == (10 if then == "fails too" else 11)
    assert all(failure.path == f"data/x/{action.path}" for action, failure in run.report.failed)
    assert sum(len(worker.shards) for worker in run.workers.started) == 2


def test_files_that_move_in_between_show_that_not_every_file_fails(tmp_path: Path, store: MemoryStore) -> None:
    root = tmp_path / "many"
    root.mkdir()
    for number in range(40):
        (root / f"f{number:02}").write_bytes(b"x")

    def refusing(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for number, action in enumerate(shard.actions):
            yield moved(action) if number % 10 == 9 else failed(action, FailureCode.ACCESS_DENIED)

    run = Run(upload(root, store, "p"), Workers(refusing)).work()
    assert len(run.paths) == 40
    assert not [failure for _, failure in run.report.failed if "not tried" in failure.message]


# -- no worker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ProcessError("there is no Python"), CredentialError("nobody is signed in")])
def test_without_workers_this_process_moves_the_files_and_says_why(task: MoveTask, error: BlobsyncError) -> None:
    def refuse(number: int) -> None:
        raise error

    run = Run(task, Workers(honest, starting=refuse)).work()
    assert run.heard.notes == [f"{error.message}; one process moves 20 files instead"]
    (here,) = run.alone.tasks
    assert sorted(action.path for action in here.actions) == _all(task) and not here.whole_folder
    assert not run.report.moved and not run.report.failed


def test_a_worker_that_cannot_be_started_leaves_its_files_to_the_others(task: MoveTask) -> None:
    refused = threading.Event()

    def one_alone(number: int) -> None:
        if number:
            refused.set()
            raise ProcessError("too many")

    def patient(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        assert refused.wait(_PATIENCE)
        yield from honest(worker, shard)

    run = Run(task, Workers(patient, starting=one_alone)).work()
    assert run.paths == _all(task) and not run.report.failed
    # Nothing is left to this process, so that there is nothing to be told.
    assert not run.alone.tasks and not run.heard.notes


def test_a_worker_that_does_not_say_that_it_is_one_is_ended_and_not_used(task: MoveTask) -> None:
    run = Run(task, Workers(honest, first=answer_line(Note("hello")))).work()
    assert all(worker.ended and not worker.shards for worker in run.workers.started)
    assert run.heard.notes == ["a worker process does not answer as it should; one process moves 20 files instead"]
    assert len(run.alone.tasks) == 1


def test_a_worker_that_ends_at_once_says_why(task: MoveTask) -> None:
    run = Run(task, Workers(honest, first="Traceback", code=1, stderr="No module named blobsync")).work()
    (note,) = run.heard.notes
    assert note.startswith("a worker process cannot work here: it sent what is no record")


# -- downloads, and errors that end everything --------------------------------------------------------------


def test_a_download_that_is_not_here_is_looked_at_again(tmp_path: Path, store: MemoryStore) -> None:
    for name in ("a", "b"):
        store.add(f"x/{name}", b"1")
    task = download(store, "x", tmp_path / "down", ["a", "b"])
    (tmp_path / "down").mkdir()
    (tmp_path / "down" / "a").write_bytes(b"1")
    here = LocalState.of((tmp_path / "down" / "a").stat())

    def claiming(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        for action in shard.actions:
            yield FileRecord(action.path, action.source, here)

    report = Run(task, Workers(claiming)).work().report
    assert {each.action.path: each.destination is not None for each in report.moved} == {"a": True, "b": False}


class Full(CollectedReport):
    """Of a program that cannot go on."""

    def files_moved(self, moved: object) -> None:
        raise OSError("the index cannot be written")


def test_an_error_of_this_program_is_raised_and_no_worker_stays(task: MoveTask) -> None:
    run = Run(task, Workers(honest))
    run.report = Full()
    with pytest.raises(OSError, match="the index cannot be written"):
        run.work()
    assert all(worker.stopped for worker in run.workers.started)


@pytest.mark.parametrize("why", ["a request", "an error"])
def test_whoever_stops_the_transfer_does_not_wait_for_a_worker_that_hangs(large: MoveTask, why: str) -> None:
    gate, over, stop = Gate(), threading.Event(), StopRequest()
    waited: list[bool] = []

    def hangs(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        gate.wait(worker)
        if worker.number == 0 and why == "a request":
            stop.make()
        if worker.number == 1 or why == "a request":
            # Until it is killed.
            worker.at_end = over.set
            waited.append(over.wait(_PATIENCE))
        yield from honest(worker, shard)

    run = Run(large._replace(stop=stop), Workers(hangs), patience=0.05)
    run.report = Full()
    try:
        with pytest.raises(KeyboardInterrupt if why == "a request" else OSError):
            run.work()
        assert all(waited) and run.workers.started[1].stopped and run.workers.started[1].ended
    finally:
        over.set()


def test_an_error_does_not_wait_for_a_worker_that_never_starts(task: MoveTask) -> None:
    late, over, waited = threading.Event(), threading.Event(), list[bool]()

    def starting(number: int) -> None:
        if number == 1:
            late.set()
            waited.append(over.wait(_PATIENCE))

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        assert late.wait(_PATIENCE)
        yield from honest(worker, shard)

    run = Run(task, Workers(script, starting=starting), patience=0.05)
    run.report = Full()
    try:
        with pytest.raises(OSError, match="the index cannot be written"):
            run.work()
        assert not waited
    finally:
        over.set()


def _joined(run: Run) -> bool:
    """Whether no thread is left of those that workers had."""
    threads = [worker.thread for worker in run.workers.started if worker.thread is not None]
    for thread in threads:
        thread.join(_PATIENCE / 3)
    return not any(thread.is_alive() for thread in threads)


def test_an_error_reaches_the_other_workers_before_its_own_has_ended(large: MoveTask) -> None:
    gate, heard = Gate(), list[bool]()

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        gate.wait(worker)
        if worker.number == 0:
            worker.at_end = lambda: heard.append(run.workers.started[1].asked_to_stop.wait(_PATIENCE / 3))
            action = shard.actions[0]
            yield FileRecord(action.path, replace(action.source, md5=bytes(16)), RemoteState(0, "0x1"))  # type: ignore[type-var]
        assert worker.asked_to_stop.wait(_PATIENCE)
        yield None

    run = Run(large, Workers(script))
    run.report = Full()
    with pytest.raises(OSError, match="the index cannot be written"):
        run.work()
    assert _joined(run) and heard[0]


def test_what_other_workers_say_until_they_end_counts_after_an_error(large: MoveTask) -> None:
    gate = Gate()

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        gate.wait(worker)
        if worker.number == 0:
            yield from honest(worker, shard)
        ended = threading.Event()
        worker.at_end = ended.set
        assert worker.asked_to_stop.wait(_PATIENCE)
        # The end of it closes the pipe, and with that what nobody has read yet is lost.
        assert not ended.wait(0.3)
        yield from (failed(action, FailureCode.CHANGED_WHILE_READ) for action in shard.actions)

    run = Run(large, Workers(script), patience=_PATIENCE)
    run.report = Full()
    with pytest.raises(OSError, match="the index cannot be written"):
        run.work()
    assert len(run.report.failed) == 1 and _joined(run)


def test_a_worker_without_work_ends_with_an_error_of_another(task: MoveTask) -> None:
    """Threads that are left wait for ever, in a page that stays open for days."""
    idle = threading.Event()

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        if any(action.path == "f00" for action in shard.actions):
            assert idle.wait(_PATIENCE)
            yield from honest(worker, shard)
        else:
            yield from (failed(action, FailureCode.CHANGED_WHILE_READ) for action in shard.actions)
            idle.set()

    run = Run(task, Workers(script))
    run.report = Full()
    with pytest.raises(OSError, match="the index cannot be written"):
        run.work()
    assert _joined(run)


@pytest.mark.parametrize("how", ["a request", "Ctrl-C"])
def test_a_worker_without_work_ends_before_one_that_cleans_up(task: MoveTask, how: str) -> None:
    idle, stop, left = threading.Event(), StopRequest(), list[bool]()

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        if any(action.path == "f00" for action in shard.actions):
            assert idle.wait(_PATIENCE)
            (other,) = [each for each in run.workers.started if each is not worker]
            # Meanwhile it looks for more, and waits.
            assert not other.asked_to_stop.wait(0.3)
            if how == "a request":
                stop.make()
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            assert worker.asked_to_stop.wait(_PATIENCE)
            assert other.thread is not None
            other.thread.join(_PATIENCE / 3)
            left.append(other.thread.is_alive())
            yield None
        yield from (failed(action, FailureCode.CHANGED_WHILE_READ) for action in shard.actions)
        idle.set()

    run = Run(task._replace(stop=stop), Workers(script))
    with ctrl_c_after(_PATIENCE), pytest.raises(KeyboardInterrupt):
        run.work()
    assert _joined(run) and left == [False]
    # Who stops it wants to hear of no other worker that would move the rest.
    assert not run.heard.notes


def test_who_is_asked_to_stop_ends_its_shard_and_gets_no_other(large: MoveTask) -> None:
    """And what it says until then counts."""
    gate, stop = Gate(), StopRequest()

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        # Were it in the way of the interpreter's end, a worker that hangs would keep the command.
        assert threading.current_thread().daemon
        gate.wait(worker)
        ended = threading.Event()
        worker.at_end = ended.set
        stop.make()
        assert worker.asked_to_stop.wait(_PATIENCE)
        assert not ended.wait(0.1)
        yield from (failed(action, FailureCode.CHANGED_WHILE_READ) for action in shard.actions)

    # On a busy machine it is given time enough to say it.
    run = Run(large._replace(stop=stop), Workers(script), patience=_PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        run.work()
    assert len(run.report.failed) == 2 and _joined(run)
    for worker in run.workers.started:
        assert sum(text.startswith('{"blobsync_shard"') for text in worker.sent) == 1


def test_a_worker_that_starts_while_all_are_stopped_gets_no_shard(task: MoveTask) -> None:
    stop = StopRequest()

    def late(number: int) -> None:
        if number == 1:
            stop.make()
            assert workers.started[0].asked_to_stop.wait(_PATIENCE)

    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        assert worker.asked_to_stop.wait(_PATIENCE)
        yield None

    workers = Workers(script, starting=late)
    run = Run(task._replace(stop=stop), workers)
    with pytest.raises(KeyboardInterrupt):
        run.work()
    assert _joined(run) and not run.workers.started[1].shards


def test_a_worker_that_was_lost_is_not_waited_for_again(task: MoveTask) -> None:
    def script(worker: Worker, shard: Shard) -> Iterator[Answer | str | None]:
        yield None if worker.number == 0 else moved(shard.actions[0])

    run = Run(task, Workers(script))
    run.report = Full()
    with pytest.raises(OSError, match="the index cannot be written"):
        run.work()
    assert _joined(run) and run.workers.started[0].ended == 1


def test_one_process_moves_the_first_files_and_workers_the_rest_if_it_was_limited_by_the_cpu(task: MoveTask) -> None:
    run = Run(task._replace(whole_folder=True), Workers(honest), trial=5).work()
    (first,) = run.alone.tasks
    assert [action.path for action in first.actions] == _all(task)[:5]
    assert not first.whole_folder
    assert run.paths == _all(task)[5:] and run.workers.started


@pytest.mark.parametrize(
    ("use", "why"),
    [(CpuUse(1.0, 0.5, 1.5), "it waited for the network"), (CpuUse(1.0, 1.0, 0.2), "no core was idle")],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_one_process_moves_all_files_if_others_would_not_help(task: MoveTask, use: CpuUse, why: str) -> None:
    run = Run(task._replace(whole_folder=True), Workers(honest), trial=5, use=use).work()
    first, rest = run.alone.tasks
    assert not rest.whole_folder
    assert [action.path for action in (*first.actions, *rest.actions)] == _all(task)
    assert not run.workers.started and not run.paths


def test_large_files_are_not_in_the_trial(task: MoveTask) -> None:
    large = [action._replace(size=TRIAL_FILE + 1) for action in task.actions[:3]]
    largest = task.actions[3]._replace(size=TRIAL_FILE)
    run = Run(task._replace(actions=[*large, largest, *task.actions[4:]]), Workers(honest), trial=2).work()
    assert [action.path for action in run.alone.tasks[0].actions] == _all(task)[3:5]
    # A task that the trial would finish has none.
    assert not Run(task, Workers(honest), trial=20).work().alone.tasks


def test_without_a_trial_workers_get_all_files(task: MoveTask) -> None:
    run = Run(task, Workers(honest))
    credentials = Credentials(lambda container: SasSigner(_SAS), lambda end: _SAS, {})
    ProcessEngine(run.alone, lambda files, size: 2, credentials, run.workers).move(task, run.report, run.heard)
    assert run.paths == _all(task) and not run.alone.tasks


def test_a_core_is_idle_while_it_waits_for_the_disk_too_and_only_those_count_that_may_be_used(tmp_path: Path) -> None:
    mine = min(os.sched_getaffinity(0))
    file = tmp_path / "stat"
    lines = [
        f"cpu{core} 1 2 3 {400 if core == mine else 7000} {50 if core == mine else 7000} 8" for core in range(1024)
    ]
    file.write_text("\n".join(["cpu 10 20 30 7000 7000 80", *lines, "intr 5 6 7 8 9 10"]))

    def count() -> CpuUse:
        # Of this thread alone.
        os.sched_setaffinity(0, {mine})
        return cpu_clocks(file)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(count).result().idle == 450 / os.sysconf("SC_CLK_TCK")


def test_the_clocks_count_this_process_and_the_idle_cores() -> None:
    # The three values of one reading are not of one instant: others may have the processor in between.
    before = time.monotonic()
    began = cpu_clocks()
    while cpu_clocks().own - began.own < 0.3:
        hashlib.md5(b"x" * 100_000).digest()
    ended = cpu_clocks()
    seconds = time.monotonic() - before
    assert 0 < ended.seconds - began.seconds <= seconds
    assert 0.3 <= ended.own - began.own <= seconds + 0.05
    cores = len(os.sched_getaffinity(0))
    assert 0 <= ended.idle - began.idle <= seconds * cores - 0.2


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2\n", "cpu0 1 2 3 many 5\n"])
def test_without_the_kernels_count_every_other_core_counts_as_idle(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "stat"
    if text is not None:
        file.write_text(text.replace("cpu0", f"cpu{min(os.sched_getaffinity(0))}"))
    found = cpu_clocks(file)
    assert found.idle == (found.seconds * (len(os.sched_getaffinity(0)) - 1) if text != "" else 0)
