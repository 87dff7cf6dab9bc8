"""The pool: small and large files side by side, bounded buffers, and an end that is clean whatever happens."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    DiskFullError,
    FailureCode,
    SasExpiredError,
    StorageUnreachableError,
)
from blobsync.base.locations import LocalLocation
from blobsync.direct.thread_pool import (
    ATTEMPTS,
    MIB,
    ByteBudget,
    FileJob,
    RunState,
    Stopped,
    TokenBucket,
    WorkerPool,
    Written,
)
from blobsync.local.resume_records import Ends, WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_plan import Route
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import Looking, RecordedRun, RecordingListener, Woken, action, ctrl_c_after, live_part

# Seconds for what is soon true on a quiet machine.
_PATIENCE = 60.0


class Script:
    """What the jobs of one test do and what they saw."""

    def __init__(self, pieces: int = 1, fail: dict[str, list[BlobsyncError]] | None = None) -> None:
        self.pieces = pieces
        self.fail = fail or {}
        self.events: list[str] = []
        self.lock = threading.Lock()
        self.gate: threading.Event | None = None

    def say(self, text: str) -> None:
        with self.lock:
            self.events.append(text)


class ScriptedJob(FileJob):
    def __init__(self, run: RunState, path: str, script: Script) -> None:
        super().__init__(run, action(path, None, None))
        self.script = script

    def open(self) -> int:
        self.script.say(f"open {self.action.path}")
        return self.script.pieces

    def piece(self) -> None:
        self.count(1)
        if self.script.gate is not None:
            while not self.script.gate.wait(0.01):
                self.run.wait_for_rate(0)
        errors = self.script.fail.get(self.action.path, [])
        with self.script.lock:
            error = errors.pop(0) if errors else None
        if error is not None:
            raise error

    def commit(self) -> Moved:
        self.script.say(f"commit {self.action.path}")
        return Moved(self.action)

    def release(self) -> None:
        self.script.say(f"release {self.action.path}")

    def abandon(self) -> None:
        self.script.say(f"abandon {self.action.path}")


def run_state(*paths: str, listener: RecordingListener | None = None) -> RecordedRun:
    actions = [action(path, None, None) for path in paths]
    task = MoveTask(live_part(Route.UPLOAD, LocalLocation(Path("x")), OpenBlob(MemoryStore(), "x")), actions)
    return RecordedRun(task, listener or RecordingListener(), 100)


def run_jobs(run: RunState, script: Script, threads: int = 4) -> None:
    WorkerPool(run, (ScriptedJob(run, each.path, script) for each in run.task.actions), threads).work()


def test_damaged_files_are_moved_again_and_the_progress_is_taken_back() -> None:
    listener = RecordingListener()
    run = run_state("a", listener=listener)
    script = Script(fail={"a": [ChecksumError("bad"), ChecksumError("bad")]})
    run_jobs(run, script)
    assert script.events.count("open a") == 3
    assert len(run.report.moved) == 1
    assert listener.bytes == 1


def test_damage_that_does_not_end_is_a_failure() -> None:
    run = run_state("a")
    script = Script(fail={"a": [ChecksumError("bad") for _ in range(10)]})
    run_jobs(run, script)
    assert script.events.count("open a") == ATTEMPTS == 4
    assert run.report.failed[0][1].code == "checksum_mismatch"


@pytest.mark.parametrize(
    "error",
    [
        SasExpiredError("expired"),
        BlobsyncError("azcopy says that it is expired", code=FailureCode.SAS_EXPIRED),
        DiskFullError("/p/a: No space left on device"),
    ],
)
def test_what_fails_every_file_spares_the_service_the_others(error: BlobsyncError) -> None:
    paths = [f"f{number}" for number in range(100)]
    run = run_state(*paths)
    script = Script(fail={path: [error] for path in paths})
    run_jobs(run, script, threads=2)
    assert len(run.report.failed) == 100
    assert {failure.code for _, failure in run.report.failed} == {error.code}
    assert error.message in {failure.message for _, failure in run.report.failed}
    assert sum(event.startswith("open") for event in script.events) <= 4


class OddError(BlobsyncError):
    """One that cannot be made from its message alone."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message, hint="mend the line")
        self.code = code


def test_files_that_are_not_begun_say_so_and_make_up_no_tries() -> None:
    paths = [f"f{number}" for number in range(200)]
    run = run_state(*paths)
    broke = OddError(FailureCode.STORAGE_UNREACHABLE, "the connection to acct broke (1,035 tries in 5 min)")
    script = Script(fail={path: [broke] for path in paths})
    run_jobs(run, script, threads=2)
    told = [failure for _, failure in run.report.failed]
    assert {(failure.code.value, failure.hint) for failure in told} == {("storage_unreachable", "mend the line")}
    begun = sum(event.startswith("open") for event in script.events)
    assert begun <= 20
    assert sum(failure.message == broke.message for failure in told) == begun
    said = "not tried, since others failed: the connection to acct broke"
    assert sum(failure.message == said for failure in told) == 200 - begun > 0


def test_an_interrupt_ends_quickly_and_leaves_nothing_open() -> None:
    run, script = run_state("a", "b", "c", "d", "e"), Script(pieces=2)
    # Longer than threads that end at once take, also on a busy machine.
    run.patience = _PATIENCE
    script.gate = threading.Event()
    began = time.monotonic()
    with ctrl_c_after(0.2), pytest.raises(KeyboardInterrupt):
        run_jobs(run, script, threads=2)
    assert time.monotonic() - began < _PATIENCE / 2
    opened = {event.split()[1] for event in script.events if event.startswith("open")}
    released = {event.split()[1] for event in script.events if event.startswith("release")}
    assert opened == released
    assert run.report.moved == []


def test_the_cap_spreads_bytes_over_time() -> None:
    now = [100.0]
    bucket = TokenBucket(8.0, clock=lambda: now[0])  # 8 megabits: 1,000,000 bytes a second
    assert bucket.delay(250_000) == 0.0
    delays = [bucket.delay(500_000) for _ in range(4)]
    assert delays == pytest.approx([0.0, 0.5, 1.0, 1.5])
    now[0] = 110.0
    assert bucket.delay(1) == 0.0


@pytest.mark.parametrize("mbps", [None, 0])
def test_no_cap_is_no_delay(mbps: float | None) -> None:
    bucket = TokenBucket(mbps, clock=lambda: 0.0)
    assert [bucket.delay(10**12), bucket.delay(10**12)] == [0.0, 0.0]


def test_the_first_bytes_go_at_once_whatever_the_clock_says() -> None:
    for now in (0.0, 0.1, -5.0):
        bucket = TokenBucket(8.0, clock=lambda now=now: now)  # type: ignore[misc]
        assert [bucket.delay(250_000), bucket.delay(1)] == pytest.approx([0.0, 0.0])
        assert bucket.delay(1) > 0


def test_buffers_are_given_out_up_to_the_last_byte_of_the_budget() -> None:
    budget, stop = ByteBudget(100), threading.Event()

    def take() -> None:
        budget.acquire(40, stop)
        budget.acquire(60, stop)

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    taking.join(_PATIENCE)
    assert not taking.is_alive()
    stop.set()
    with pytest.raises(Stopped):
        budget.acquire(1, stop)
    budget.release(1)
    budget.acquire(1, stop)


def test_buffers_stay_within_the_budget_and_a_larger_one_goes_alone() -> None:
    budget, stop = ByteBudget(100), threading.Event()
    budget.acquire(60, stop)
    waiting = threading.Thread(target=lambda: budget.acquire(500, stop))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    budget.release(60)
    waiting.join(_PATIENCE)
    assert not waiting.is_alive()
    stop.set()
    with pytest.raises(Stopped):
        budget.acquire(1, stop)


def test_a_body_on_its_way_is_counted_once_whatever_its_tries_sent() -> None:
    counts: list[int] = []
    part = live_part(Route.UPLOAD, LocalLocation(Path("/nowhere")), OpenBlob(MemoryStore(), ""))
    run = RecordedRun(MoveTask(part, ()), RecordingListener(counts.append), 1 << 20)
    job = ScriptedJob(run, "a", Script())
    with job.sending(100) as sent:
        sent(60)
        # Another try.
        sent(10)
        sent(80)
    assert counts == [60, -50, 70, 20]

    def break_off() -> None:
        with job.sending(50) as sent:
            sent(30)
            raise StorageUnreachableError("gone")

    with pytest.raises(StorageUnreachableError):
        break_off()
    assert sum(counts) == 100


# -- what becomes of one file --------------------------------------------------------------------------------------


class OneFile(ScriptedJob):
    """Of five bytes, all of them counted, two more that are there already; its commit may fail."""

    def __init__(self, run: RunState, path: str, fails: BaseException | None = None) -> None:
        super().__init__(run, path, Script())
        self.action = self.action._replace(size=5)
        self._fails = fails
        self.count(5)
        self.count_reused(2)

    def commit(self) -> Moved:
        if self._fails is not None:
            raise self._fails
        return super().commit()


def heard(run: RecordedRun) -> RecordingListener:
    assert isinstance(run.listener, RecordingListener)
    return run.listener


def test_a_file_whose_pieces_are_there_is_committed_reported_and_released() -> None:
    run = run_state("a", "b")
    job = OneFile(run, "a")
    assert not run.finish([(job, None)])
    assert job.script.events == ["commit a", "release a"] and job.reused == 2
    assert [each.action.path for each in run.report.moved] == ["a"] and not run.report.failed
    assert (run.reported, run.files_moved, run.bytes_moved) == ({"a"}, 1, 5)
    assert (heard(run).bytes, heard(run).reused) == (5, 2)
    run.finish([(OneFile(run, "b"), None)])
    assert (run.reported, run.files_moved, run.bytes_moved) == ({"a", "b"}, 2, 10)


def test_files_that_ended_together_are_noted_before_any_is_committed_and_reported_in_their_order() -> None:
    names = ("a", "b", "c", "d")
    run, noted = run_state(*names), list[tuple[str, list[str]]]()
    script = Script()

    class Renamed(OneFile):
        def written(self) -> Written:
            return self.action, 5, b"md5"

    class Noting(RecordedRun):
        def about_to_write(self, *files: Written) -> None:
            noted.extend((action.path, list(script.events)) for action, _, _ in files)

    run = Noting(run.task, run.listener, 1)
    jobs = [Renamed(run, name) for name in names]
    for job in jobs:
        job.script = script
    gone = BlobNotFoundError("gone")
    assert run.finish([(jobs[0], None), (jobs[1], gone), (jobs[2], Stopped()), (jobs[3], None)]) == []
    assert noted == [("a", []), ("d", [])]
    assert script.events == ["commit a", "release a", "release b", "release c", "commit d", "release d"]
    assert [each.action.path for each in run.report.moved] == ["a", "d"] and run.reported == {"a", "b", "d"}


def test_a_file_that_moved_between_failures_ends_their_row_also_where_all_ended_together() -> None:
    run = run_state("a")
    failed = (OneFile(run, "a"), StorageUnreachableError("gone"))
    run.finish([*[failed] * 15, (OneFile(run, "a"), None), *[failed] * 15])
    assert run.hopeless is None
    run.finish([failed])
    assert run.hopeless is not None


@pytest.mark.parametrize("where", ["a piece", "the commit"])
def test_a_file_that_fails_is_no_success_and_counts_for_nothing(where: str) -> None:
    run = run_state("a")
    error = StorageUnreachableError("gone", hint="look")
    job = OneFile(run, "a", error if where == "the commit" else None)
    assert not run.finish([(job, error if where == "a piece" else None)])
    assert job.script.events == ["release a"] and not run.report.moved
    ((_, failure),) = run.report.failed
    assert (failure.path, failure.code, failure.message) == ("data/x/a", FailureCode.STORAGE_UNREACHABLE, "gone")
    assert failure.hint == "look"
    assert (run.reported, run.files_moved, run.bytes_moved) == ({"a"}, 0, 0)
    assert (heard(run).bytes, heard(run).reused, job.reused) == (0, 0, 0)


@pytest.mark.parametrize("where", ["a piece", "the commit"])
def test_a_file_abandoned_after_an_interrupt_is_released_and_not_reported(where: str) -> None:
    run = run_state("a")
    job = OneFile(run, "a", Stopped() if where == "the commit" else None)
    assert not run.finish([(job, Stopped() if where == "a piece" else None)])
    assert job.script.events == ["release a"]
    assert not run.report.moved and not run.report.failed and not run.reported


def test_a_file_that_arrived_damaged_begins_anew_unless_the_run_ends() -> None:
    run = run_state("a")
    job = OneFile(run, "a")
    assert run.finish([(job, ChecksumError("bad"))])
    assert (job.attempt, job.script.events, run.reported) == (2, ["release a"], set())
    assert (heard(run).bytes, heard(run).reused, job.reused) == (0, 0, 0) and not run.report.failed
    run.stop.set()
    assert not run.finish([(job, ChecksumError("bad"))])
    assert [failure.code for _, failure in run.report.failed] == [FailureCode.CHECKSUM_MISMATCH]


def test_what_was_not_counted_is_not_taken_back() -> None:
    listener = RecordingListener()
    run = run_state("a", listener=listener)
    ScriptedJob(run, "a", Script()).take_back()
    assert listener.of_bytes == []
    OneFile(run, "a").take_back()
    assert listener.of_bytes == [("BytesMoved", 5), ("BytesReused", 2), ("BytesMoved", -5), ("BytesReused", -2)]


def test_the_number_of_files_under_way_is_reported() -> None:
    run = run_state("a", "b", "c")
    one, two, three = (OneFile(run, path) for path in ("a", "b", "c"))
    run.begins([one])
    run.begins([two])
    run.finish([(one, None)])
    run.begins([three])
    run.finish([(two, BlobNotFoundError("gone"))])
    run.finish([(three, Stopped())])
    run.begins([two, one])
    assert heard(run).begun == [(1, "data/x/a"), (2, "data/x/b"), (2, "data/x/c"), (2, "data/x/a")]


def test_the_first_failure_that_concerns_all_files_is_the_reason_of_those_not_tried() -> None:
    run = run_state("a", "b", "c")
    errors = [
        BlobNotFoundError("its own"),
        SasExpiredError("the first", hint="a new one"),
        SasExpiredError("the second"),
    ]
    reasons = []
    for each, error in zip(run.task.actions, errors, strict=True):
        run.failed(each, error)
        reasons.append(run.hopeless)
    none, reason, same = reasons
    assert none is None and reason is not None and same is reason
    assert (reason.message, reason.hint) == ("not tried, since others failed: the first", "a new one")
    assert reason.code == FailureCode.SAS_EXPIRED


def test_a_file_that_moved_ends_a_row_of_failures() -> None:
    run = run_state("a")
    for _ in range(15):
        run.failed(run.task.actions[0], StorageUnreachableError("gone"))
    run.moved([Moved(run.task.actions[0])])
    run.failed(run.task.actions[0], StorageUnreachableError("gone"))
    assert run.hopeless is None


def test_where_nothing_could_be_begun_every_file_failed() -> None:
    run = run_state("a", "b")
    run.all_failed(StorageUnreachableError("gone"))
    assert [(action.path, failure.message) for action, failure in run.report.failed] == [("a", "gone"), ("b", "gone")]


def test_pace_waits_for_the_cap_and_ends_with_the_run() -> None:
    run = run_state("a")
    run.wait_for_rate(10**12)
    run.stop.set()
    with pytest.raises(Stopped):
        run.wait_for_rate(0)
    capped = RecordedRun(run.task._replace(cap_mbps=8.0), RecordingListener(), 100)
    began = time.monotonic()
    capped.wait_for_rate(250_000)
    capped.wait_for_rate(100_000)
    capped.wait_for_rate(1)
    assert time.monotonic() - began > 0.09
    capped.stop.set()
    with pytest.raises(Stopped):
        capped.wait_for_rate(10**9)


def test_what_is_about_to_be_written_is_noted_unless_nobody_knows_its_md5(tmp_path: Path) -> None:
    noted: list[object] = []

    class Noting(WriteIntents):
        def add(self, ends: Ends, *files: tuple[str, str | None, int, bytes]) -> None:
            noted.append((ends, files))

    run = run_state("a", "b")
    a, b = run.task.actions
    renamed = b._replace(target="c")
    noting = RunState(run.task, run.report, run.listener, 1, Noting(StateDir(tmp_path)))
    noting.about_to_write((a, 1, None), (renamed, 2, b"m" * 16))
    ends = Ends(str(run.task.part.source), str(run.task.part.destination))
    assert noted == [(ends, (("b", "c", 2, b"m" * 16),))]
    run.about_to_write((a, 1, b"m" * 16))


def test_a_buffer_is_given_back_whatever_happens() -> None:
    run = run_state("a")

    def fail() -> None:
        with run.buffer(100):
            raise StorageUnreachableError("gone")

    for _ in range(3):
        with pytest.raises(StorageUnreachableError):
            fail()
    with run.buffer(100):
        run.stop.set()
        with pytest.raises(Stopped), run.buffer(1):
            pass


def test_what_only_some_files_need_does_nothing_for_the_others() -> None:
    job = ScriptedJob(run_state("a"), "a", Script())
    error = BlobNotFoundError("gone")
    assert job.refused(error) is error
    FileJob.abandon(job)
    with pytest.raises(NotImplementedError):
        job.order()
    with pytest.raises(NotImplementedError):
        job.landed(b"")


# -- which thread does what ----------------------------------------------------------------------------------------


def nothing(path: str) -> None: ...


class Guided(ScriptedJob):
    """Whose pieces and openings do what a test says."""

    def __init__(
        self, run: RunState, path: str, pieces: int, opening: Callable[[str], None], moving: Callable[[str], None]
    ) -> None:
        super().__init__(run, path, Script(pieces))
        self.opening, self.moving = opening, moving

    def open(self) -> int:
        self.opening(self.action.path)
        return super().open()

    def piece(self) -> None:
        self.script.say(f"piece {self.action.path}")
        self.moving(self.action.path)


def guided(
    run: RunState,
    pieces: int = 1,
    opening: Callable[[str], None] = nothing,
    moving: Callable[[str], None] = nothing,
    *,
    paths: str = "",
) -> list[Guided]:
    return [Guided(run, path, pieces, opening, moving) for path in paths or [each.path for each in run.task.actions]]


def pool_of(run: RunState, jobs: Sequence[FileJob], threads: int) -> WorkerPool:
    """One whose threads do not look again by themselves."""
    made = WorkerPool(run, jobs, threads)
    made._changed = Woken()
    return made


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_is_committed_after_each_of_its_pieces(threads: int) -> None:
    run = run_state("a", "b", "c")
    jobs = guided(run, 3)
    WorkerPool(run, jobs, threads).work()
    for job in jobs:
        path = job.action.path
        assert job.script.events == [f"open {path}", *[f"piece {path}"] * 3, f"commit {path}", f"release {path}"]
    assert sorted(path for _, path in heard(run).begun) == ["data/x/a", "data/x/b", "data/x/c"]
    # The sizes of all that moves are given in it.
    assert MIB == 1_048_576


def test_after_a_piece_failed_no_other_of_its_file_is_begun() -> None:
    run = run_state("a", "b")

    def fail(path: str) -> None:
        if path == "a":
            raise BlobNotFoundError("gone")

    one, two = guided(run, 4, moving=fail)
    WorkerPool(run, [one, two], 1).work()
    assert one.script.events == ["open a", "piece a", "release a"]
    assert two.script.events.count("piece b") == 4 and [each.action.path for each in run.report.moved] == ["b"]


def test_pieces_that_fail_at_the_same_time_fail_their_file_once() -> None:
    run, both = run_state("a"), threading.Barrier(2)

    def fail(path: str) -> None:
        both.wait(_PATIENCE)
        raise BlobNotFoundError("gone")

    (job,) = guided(run, 4, moving=fail)
    WorkerPool(run, [job], 2).work()
    assert job.script.events == ["open a", "piece a", "piece a", "release a"]
    assert [failure.message for _, failure in run.report.failed] == ["gone"]


@pytest.mark.parametrize("first", ["the failure", "the giving up"])
def test_a_failure_is_reported_although_another_piece_was_given_up_because_of_it(first: str) -> None:
    run, both, over = run_state("a"), threading.Barrier(2), threading.Event()
    numbers = iter((1, 2))

    def move(path: str) -> None:
        number = next(numbers)
        both.wait(_PATIENCE)
        if number == 1:
            threading.Timer(0.1, over.set).start()
        else:
            # Long after the other has ended.
            over.wait(_PATIENCE)
        raise BlobNotFoundError("gone") if (number == 1) is (first == "the failure") else Stopped()

    WorkerPool(run, guided(run, 2, moving=move), 2).work()
    assert [(each.path, failure.message) for each, failure in run.report.failed] == [("a", "gone")]
    assert not run.report.moved


def test_a_file_that_cannot_be_opened_fails_alone() -> None:
    run = run_state("a", "b", "c")

    def refuse(path: str) -> None:
        if path == "b":
            raise BlobNotFoundError("gone")

    jobs = guided(run, 2, opening=refuse)
    WorkerPool(run, jobs, 2).work()
    assert jobs[1].script.events == ["release b"]
    assert [(each.path, failure.message) for each, failure in run.report.failed] == [("b", "gone")]
    assert sorted(each.action.path for each in run.report.moved) == ["a", "c"]


def test_a_file_abandoned_while_it_is_opened_is_released_and_not_reported() -> None:
    run = run_state("a")

    def give_up(path: str) -> None:
        raise Stopped

    (job,) = guided(run, opening=give_up)
    WorkerPool(run, [job], 2).work()
    assert job.script.events == ["release a"] and not run.reported


def test_two_large_files_that_were_begun_at_once_both_arrive() -> None:
    run, both = run_state("a", "b"), threading.Barrier(2)
    moved: set[str] = set()

    def first_pieces_wait_for_each_other(path: str) -> None:
        if path not in moved:
            moved.add(path)
            both.wait(_PATIENCE)

    jobs = guided(run, 5, opening=lambda path: none_of(both.wait(_PATIENCE)), moving=first_pieces_wait_for_each_other)
    WorkerPool(run, jobs, 2).work()
    assert [job.script.events.count(f"piece {job.action.path}") for job in jobs] == [5, 5]
    assert sorted(each.action.path for each in run.report.moved) == ["a", "b"]


def none_of(_: object) -> None: ...


def test_threads_without_a_file_of_their_own_help_as_soon_as_a_large_one_is_open() -> None:
    run, all_four = run_state("large"), threading.Barrier(4)

    def opening(path: str) -> None:
        # The others find nothing to do meanwhile.
        time.sleep(0.1)

    jobs = guided(run, 4, opening, lambda path: none_of(all_four.wait(_PATIENCE)))
    assert seconds_of(pool_of(run, jobs, 4).work) < _PATIENCE / 2
    assert len(run.report.moved) == 1


def test_the_last_file_ends_the_run_at_once() -> None:
    """An idle thread notices it."""
    run = run_state("a")
    made = pool_of(run, guided(run, moving=lambda path: time.sleep(0.1)), 2)
    assert seconds_of(made.work) < _PATIENCE / 2


def test_a_bug_ends_the_run_although_a_thread_waits_for_work() -> None:
    def fail(path: str) -> None:
        # The other thread finds nothing to do meanwhile.
        time.sleep(0.1)
        raise ZeroDivisionError("ours")

    run, changed = run_state("a"), Looking()
    made = WorkerPool(run, guided(run, moving=fail), 2)
    made._changed = changed
    with pytest.raises(ZeroDivisionError):
        made.work()
    assert changed.is_often


def test_a_thread_that_waits_for_work_takes_no_processor_and_ends_when_it_is_woken() -> None:
    def stop_one() -> None:
        run, released, working = run_state("a"), threading.Event(), threading.Event()

        def hang(path: str) -> None:
            working.set()
            released.wait(_PATIENCE)

        made = pool_of(run, guided(run, moving=hang), 2)
        busy = threading.Thread(target=made.run, daemon=True)
        busy.start()
        assert working.wait(_PATIENCE)

        def find_nothing() -> None:
            made.run()
            spent.append(time.thread_time())

        idle = threading.Thread(target=find_nothing, daemon=True)
        idle.start()
        idle.join(0.3)
        assert idle.is_alive()
        run.stop.set()
        began = time.monotonic()
        made.wake()
        idle.join(_PATIENCE)
        took.append(time.monotonic() - began)
        released.set()
        busy.join(_PATIENCE)

    took: list[float] = []
    spent: list[float] = []
    stop_one()
    assert took[0] < _PATIENCE / 2 and spent[0] < 0.03


def test_what_hangs_when_the_run_is_interrupted_is_removed_from_the_disk() -> None:
    run, released = run_state("a", "b", "c"), threading.Event()

    def hang(path: str) -> None:
        if path == "c":
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            released.wait(_PATIENCE)

    jobs = guided(run, moving=hang)
    try:
        with ctrl_c_after(_PATIENCE), pytest.raises(KeyboardInterrupt):
            WorkerPool(run, jobs, 1).work()
        assert [job.script.events[1:] for job in jobs] == [
            ["piece a", "commit a", "release a"],
            ["piece b", "commit b", "release b"],
            ["piece c", "abandon c"],
        ]
    finally:
        released.set()
    assert sorted(each.action.path for each in run.report.moved) == ["a", "b"]


def test_who_waits_for_a_buffer_gets_it_at_once_sees_the_end_soon_and_takes_no_processor() -> None:
    spent = []

    def hand_over(*, end: bool) -> float:
        budget, stop = ByteBudget(100), threading.Event()
        # It is told of the bytes; for the end it has to look.
        budget._changed = looking = Looking() if end else Woken()
        budget.acquire(100, stop)
        came: list[tuple[float, float]] = []

        def take() -> None:
            with suppress(Stopped):
                budget.acquire(1, stop)
            came.append((time.monotonic(), time.thread_time()))

        taker = threading.Thread(target=take, daemon=True)
        taker.start()
        taker.join(0.25)
        assert taker.is_alive()
        began = time.monotonic()
        if end:
            stop.set()
        else:
            budget.release(100)
        taker.join(_PATIENCE)
        ((arrived, cpu),) = came
        spent.append(cpu)
        assert not isinstance(looking, Looking) or looking.is_often
        return arrived - began

    assert hand_over(end=False) < _PATIENCE / 2
    assert hand_over(end=True) < _PATIENCE / 2
    assert max(spent) < 0.03
