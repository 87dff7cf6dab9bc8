"""A spread transfer as its command sees it: jobs of tasks, their records, the look at both ends, and what fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, TooManyTasksError
from blobsync.base.events import FilesCounted
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.stopping import StopRequest
from blobsync.direct.circuit_breaker import was_tried
from blobsync.direct.engine import DirectEngine
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction
from blobsync.spread.record import FileRecord, Refused, ShardDone, read_body, record_body
from blobsync.spread.shard import Shard
from blobsync.spread.spread_engine import (
    JOBS,
    Cutter,
    SpreadEngine,
    cut_all,
    with_fewer_tasks,
)
from blobsync.spread.task import task_name
from blobsync.transfer.engines import CollectedReport, MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, copy, download, moved_by, upload
from tests.fakes.tasks_of_a_job import Job, Jobs, store_of

_FILES = 12


class Alone(DirectEngine):
    """The engine of this machine: records its files."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[MoveTask] = []

    def move(self, task: MoveTask, report: MoveReport, listener: object) -> None:
        self.tasks.append(task)
        super().move(task, report, listener)  # type: ignore[arg-type]


def quickly() -> dict[str, Any]:
    """A clock that advances six seconds at each look, and no pauses."""
    seconds = iter(range(0, 10**9, 6))
    return {"clock": lambda: float(next(seconds)), "sleep": lambda pause: None}


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(_FILES):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, MemoryStore("box"), "sets")


@pytest.fixture
def jobs(task: MoveTask, tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "place", [task.part])


def _run(jobs: Jobs, task: MoveTask, listener: RecordingListener | None = None, **words: object) -> CollectedReport:
    engine = SpreadEngine(Alone(), jobs.begin, **quickly(), **words)  # type: ignore[arg-type]
    return moved_by(engine, task, listener)


def _is_whole(report: CollectedReport, task: MoveTask) -> None:
    assert not report.failed
    assert sorted(each.action.path for each in report.moved) == sorted(each.path for each in task.actions)


def test_tasks_move_all_of_it_and_a_look_at_both_ends_verifies_it(task: MoveTask, jobs: Jobs) -> None:
    listener = RecordingListener()
    report = _run(jobs, task, listener)
    _is_whole(report, task)
    # Each has the present state of the blob, so that nothing is looked at once more.
    assert all(each.destination is not None for each in report.moved)
    assert len(list(store_of(task).list_blobs("sets/"))) == _FILES and not store_of(task).asked("open")
    assert listener.bytes == sum(range(_FILES))
    assert set(listener.workers) == {"task 0", "task 1", "task 2"}
    assert [sum(each) for each in zip(*listener.workers.values(), strict=True)] == [_FILES, sum(range(_FILES))]
    # Files that are reported one by one are not counted twice.
    assert sum(each.files for each in listener.events if isinstance(each, FilesCounted)) == 0
    # The second attempt at a file is this machine's.
    moved_by(SpreadEngine(Alone(), jobs.begin), task._replace(again=True))
    assert len(jobs.jobs) == 1 and not jobs.jobs[0].stopped


def test_what_a_lost_task_did_not_record_is_another_jobs_and_moves_only_if_it_has_to(
    task: MoveTask, jobs: Jobs
) -> None:
    listener, put = RecordingListener(), list[str]()

    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job, without=[1] if len(jobs.jobs) == 1 else [])
        if len(jobs.jobs) == 1:
            # It had moved half of its files before it was killed.
            for each in job.shards[1].actions[:2]:
                assert isinstance(task.part.source, LocalLocation)
                store_of(task).add(f"sets/{each.path}", task.part.source.at(each.path).read_bytes())
            put.extend(request.name for request in store_of(task).requests if request.operation == "put")

    jobs.do = do
    report = _run(jobs, task, listener)
    _is_whole(report, task)
    assert len(jobs.jobs) == 2
    lost = [each.path for each in jobs.jobs[0].shards[1].actions]
    assert sorted(each.path for shard in jobs.jobs[1].shards for each in shard.actions) == sorted(lost)
    assert listener.notes == ["4 files of the job are left: it ended early, Completed; another job takes them"]
    # Under the condition of the plan the files that were there already were not replaced.
    later = [request.name for request in store_of(task).requests if request.operation == "put"][len(put) :]
    assert {f"sets/{name}" for name in lost[2:]} <= set(later)
    assert all(store_of(task).blobs[f"sets/{name}"].info.etag for name in lost)


def test_what_three_jobs_did_not_finish_fails_by_name(task: MoveTask, jobs: Jobs) -> None:
    jobs.do = lambda jobs, job: jobs.carry(job, without=[0])
    report = _run(jobs, task)
    left = {each.path for each in jobs.jobs[-1].shards[0].actions}
    assert len(jobs.jobs) == JOBS == 3
    assert {action.path for action, _ in report.failed} == left
    assert {failure.code for _, failure in report.failed} == {FailureCode.NOT_REPORTED}
    assert report.failed[0][1].message == "not moved: no job finished it, 3 tried: it ended early, Completed"
    assert len(report.moved) == _FILES - len(left)


def test_what_was_left_half_done_is_tidied_before_the_next_job(task: MoveTask, jobs: Jobs) -> None:
    tidied: list[tuple[LivePart, Sequence[FileAction]]] = []
    jobs.do = lambda jobs, job: jobs.carry(job, without=[0] if len(jobs.jobs) == 1 else [])
    _is_whole(_run(jobs, task, tidy=lambda part, actions: tidied.append((part, actions))), task)
    assert [(part, {each.path for each in actions}) for part, actions in tidied] == [
        (task.part, {each.path for each in jobs.jobs[0].shards[0].actions})
    ]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda record: replace(record, path="f99"), id="a file of no shard"),
        pytest.param(lambda record: replace(record, source=replace(record.source, size=99)), id="another version"),
        pytest.param(lambda record: replace(record, destination=None), id="no answer of the service"),
        pytest.param(lambda record: replace(record, source=replace(record.source, md5=None)), id="no MD5"),
        pytest.param(lambda record: replace(record, reused=10**6), id="more reused than there is"),
    ],
)
def test_a_record_that_cannot_be_is_not_believed_and_its_files_are_the_next_jobs(
    lie: Callable[[FileRecord], FileRecord], task: MoveTask, jobs: Jobs
) -> None:
    listener = RecordingListener()

    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        if len(jobs.jobs) == 1:
            name = f"records/{task_name(0)}"
            said = read_body(job.place.read(name) or b"", task.part.route)
            records = [lie(each) if isinstance(each, FileRecord) else each for each in said]
            job.place.write(name, record_body(records[1:]))

    jobs.do = do
    report = _run(jobs, task, listener)
    _is_whole(report, task)
    assert len(jobs.jobs) == 2
    assert any(note.startswith("what task 0 says is not believed: ") for note in listener.notes)


def test_what_a_stranger_writes_is_no_record(task: MoveTask, jobs: Jobs, tmp_path: Path) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job, without=[0] if len(jobs.jobs) == 1 else [])
        file = tmp_path / "place" / job.place.run / "records" / task_name(0)
        if len(jobs.jobs) == 1:
            lines = [FileRecord(each.path, failure=_failure(each.path)) for each in job.shards[0].actions]
            file.write_bytes(record_body([*lines, ShardDone(0)]))

    jobs.do = do
    _is_whole(_run(jobs, task), task)
    assert len(jobs.jobs) == 2 and "has no seal of this transfer" in jobs.warned[0]


def _failure(path: str, code: FailureCode = FailureCode.ACCESS_DENIED) -> FileFailure:
    return FileFailure(path, code, "no", "ask")


def _with_failure(job: Job, code: FailureCode, number: int = 0) -> str:
    """One file of a task has failed."""
    name = f"records/{task_name(number)}"
    first, *_ = job.shards[number].actions
    known = read_body(job.place.read(name) or b"", job.shards[number].route)
    kept = [each for each in known if not (isinstance(each, FileRecord) and each.path == first.path)]
    failed = FileRecord(first.path, failure=_failure(first.path, code))
    job.place.write(name, record_body([failed, *kept[1:]]))
    return first.path


def test_a_file_fails_for_the_reason_that_its_task_has(task: MoveTask, jobs: Jobs) -> None:
    failed: list[str] = []

    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        failed.append(_with_failure(job, FailureCode.ACCESS_DENIED))

    jobs.do = do
    report = _run(jobs, task)
    assert [(action.path, failure.code, failure.message, failure.hint) for action, failure in report.failed] == [
        (failed[0], FailureCode.ACCESS_DENIED, "no", "ask")
    ]
    assert len(report.moved) == _FILES - 1 and len(jobs.jobs) == 1


@pytest.mark.parametrize("code", [FailureCode.STORAGE_UNREACHABLE, FailureCode.SERVICE_BUSY, FailureCode.SAS_EXPIRED])
@pytest.mark.parametrize("times", [1, 3])
def test_what_was_the_fault_of_the_line_or_of_time_the_next_job_tries_again(
    code: FailureCode, times: int, task: MoveTask, jobs: Jobs
) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        if len(jobs.jobs) <= times:
            _with_failure(job, code)

    jobs.do = do
    report = _run(jobs, task)
    if times == 1:
        _is_whole(report, task)
        assert len(jobs.jobs) == 2
    else:
        assert len(jobs.jobs) == 3 and [failure.code for _, failure in report.failed] == [code]


def test_a_task_that_refuses_ends_the_transfer_with_what_it_said(task: MoveTask, jobs: Jobs) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        job.over = None
        job.place.write(f"records/{task_name(1)}", record_body([Refused("n2: another disk"), ShardDone(1)]))

    jobs.do = do
    with pytest.raises(BlobsyncError, match="task 1 cannot take part: n2: another disk") as refused:
        _run(jobs, task)
    assert refused.value.code is FailureCode.SPREAD_REFUSED
    assert "file system that all nodes share" in (refused.value.hint or "") and jobs.jobs[0].stopped


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_blob_that_is_not_what_its_task_wrote_is_looked_at_by_the_next_job(
    how: str, task: MoveTask, jobs: Jobs
) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        if len(jobs.jobs) == 1:
            if how == "removed":
                store_of(task).delete("sets/f5")
            else:
                store_of(task).add("sets/f5", b"yyyyy")

    jobs.do = do
    report = _run(jobs, task)
    assert [each.path for shard in jobs.jobs[1].shards for each in shard.actions] == ["f5"]
    if how == "removed":
        _is_whole(report, task)
    else:
        # Somebody else's version stays.
        assert [(action.path, failure.code) for action, failure in report.failed] == [
            ("f5", FailureCode.CHANGED_MEANWHILE)
        ]
        assert store_of(task).body("sets/f5") == b"yyyyy"


def test_a_source_that_changed_since_its_task_read_it_is_not_verified(task: MoveTask, jobs: Jobs) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        assert isinstance(task.part.source, LocalLocation)
        os.utime(task.part.source.at("f5"), ns=(0, 0))

    jobs.do = do
    listener = RecordingListener()
    report = _run(jobs, task, listener)
    assert [(action.path, failure.code) for action, failure in report.failed] == [
        ("f5", FailureCode.CHANGED_WHILE_READ)
    ]
    assert len(report.moved) == _FILES - 1 and len(jobs.jobs) == 1
    assert sum(each.files for each in listener.events if isinstance(each, FilesCounted)) == 0


def test_a_download_is_verified_by_what_stat_shows_and_nothing_is_read_again(tmp_path: Path) -> None:
    store, root = MemoryStore("box"), tmp_path / "down"
    root.mkdir()
    for name in "abc":
        store.add(f"sets/{name}", name.encode())
    task = download(store, "sets", root, ["a", "b", "c"])
    jobs = Jobs(tmp_path / "place", [task.part])

    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        if len(jobs.jobs) == 1:
            # Somebody else changes a file right after its task wrote it.
            (root / "b").write_bytes(b"B")

    jobs.do = do
    report = _run(jobs, task)
    assert sorted(each.action.path for each in report.moved) == ["a", "c"]
    for each in report.moved:
        assert isinstance(each.destination, LocalState) and each.destination.md5 is not None
    assert [action.path for action, _ in report.failed] == ["b"] and (root / "b").read_bytes() == b"B"
    assert len(jobs.jobs) == 2


def test_a_copy_has_the_md5_of_the_plan_and_not_that_of_a_task(tmp_path: Path) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    here.add("p/a", b"body")
    task = copy(here, "p", there, "q", ["a"])
    jobs = Jobs(tmp_path / "place", [task.part])
    report = _run(jobs, task)
    (moved,) = report.moved
    assert moved.source == task.actions[0].source and moved.destination is not None


def test_the_first_file_that_finds_no_room_ends_the_fetching_of_all_tasks(task: MoveTask, jobs: Jobs) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        # One task has not begun.
        jobs.carry(job, without=[2])
        job.over = None
        _with_failure(job, FailureCode.DISK_FULL)

    jobs.do = do
    report = _run(jobs, task)
    assert jobs.jobs[0].stopped and len(jobs.jobs) == 1
    failures = {action.path: failure for action, failure in report.failed}
    first, waiting = jobs.jobs[0].shards[0].actions[0].path, {each.path for each in jobs.jobs[0].shards[2].actions}
    assert failures.keys() == {first, *waiting}
    assert {each.code for each in failures.values()} == {FailureCode.DISK_FULL}
    assert was_tried(failures[first].message) and not any(was_tried(failures[each].message) for each in waiting)
    assert len(report.moved) == _FILES - len(failures)


def test_what_a_task_that_was_stopped_has_recorded_counts_when_its_job_has_ended(task: MoveTask, jobs: Jobs) -> None:
    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job)
        if len(jobs.jobs) == 1:
            name = f"records/{task_name(0)}"
            said = read_body(job.place.read(name) or b"", task.part.route)
            # Two of its files, and no end.
            job.place.write(name, record_body(said[1:3]))

    jobs.do = do
    _is_whole(_run(jobs, task), task)
    left = [each.path for shard in jobs.jobs[1].shards for each in shard.actions]
    assert len(left) == len(jobs.jobs[0].shards[0].actions) - 2


def test_ctrl_c_stops_the_job_and_what_is_recorded_has_moved_but_is_not_verified(task: MoveTask, jobs: Jobs) -> None:
    stop = StopRequest()

    def do(jobs: Jobs, job: Job) -> None:
        jobs.carry(job, without=[0])
        job.over = None
        stop.make()

    jobs.do = do
    report = CollectedReport()
    engine = SpreadEngine(Alone(), jobs.begin, **quickly())
    with pytest.raises(KeyboardInterrupt):
        engine.move(task._replace(stop=stop), report, RecordingListener())
    assert jobs.jobs[0].stopped
    told = {each.path for shard in jobs.jobs[0].shards[1:] for each in shard.actions}
    assert {each.action.path for each in report.moved} == told
    assert not report.failed and not [each for each in report.moved if each.destination is not None]


def test_the_job_is_asked_after_every_five_seconds_and_records_in_between_are_heard(
    task: MoveTask, tmp_path: Path
) -> None:
    asked: list[float] = []
    now = [0.0]

    class Watched(Job):
        def ended(self) -> str | None:
            asked.append(now[0])
            if len(asked) == 3:
                later.carry(self)
            return None

    def sleep(seconds: float) -> None:
        now[0] += seconds

    later = Jobs(tmp_path / "place", [task.part], do=lambda jobs, job: None)

    def begin(cutter: Cutter) -> Watched:
        job = later.begin(cutter)
        return Watched(job.shards, job.place)

    engine = SpreadEngine(Alone(), begin, clock=lambda: now[0], sleep=sleep, poll=1.0)
    _is_whole(moved_by(engine, task), task)
    assert asked == [5.0, 10.0, 15.0]


def test_files_that_fit_no_shard_are_moved_here_after_the_others(task: MoveTask, jobs: Jobs) -> None:
    strange = {task.actions[0].path, task.actions[7].path}
    actions = [each._replace(source=None) if each.path in strange else each for each in task.actions]
    alone = Alone()
    report = moved_by(SpreadEngine(alone, jobs.begin, **quickly()), task._replace(actions=actions))
    assert not report.failed and len(report.moved) == _FILES and len(jobs.jobs) == 1
    assert [({each.path for each in asked.actions}, asked.whole_folder) for asked in alone.tasks] == [(strange, False)]
    # Without a file for a task, no job begins.
    only = task._replace(actions=[task.actions[1]._replace(source=None, destination=None)])
    moved_by(SpreadEngine(alone, jobs.begin), only)
    assert len(jobs.jobs) == 1


def test_the_parts_of_a_plan_are_one_job(tmp_path: Path) -> None:
    store, tasks = MemoryStore("box"), []
    for name in ("one", "two"):
        root = tmp_path / name
        root.mkdir()
        for number in range(3):
            (root / f"f{number}").write_bytes(name.encode())
        made = upload(root, store, name)
        tasks.append(made._replace(part=replace(made.part, actions=tuple(made.actions))))
    first, second = tasks
    jobs = Jobs(tmp_path / "place", [first.part, second.part], wanted=2)
    engine = SpreadEngine(Alone(), jobs.begin, together=[first.part, second.part], **quickly())
    for each in (first, second):
        _is_whole(moved_by(engine, each), each)
    assert len(jobs.jobs) == 1 and len(store.blobs) == 6
    # A part that comes once more has a job of its own.
    again = moved_by(engine, second)
    assert len(again.moved) + len(again.failed) == 3 and len(jobs.jobs) == 2
    assert {shard.source for shard in jobs.jobs[1].shards} == {str(second.part.source)}


def test_all_files_are_in_about_as_many_shards_as_wanted_the_heaviest_first(task: MoveTask) -> None:
    other = replace(task.part, source=LocalLocation(Path("/elsewhere")))
    large = [task.actions[0]._replace(size=1 << 30)]
    shards = cut_all([(task.part, task.actions), (other, large)], 8)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert shards[0].actions == tuple(large) and 2 <= len(shards) <= 9
    assert [shard.weight for shard in shards] == sorted((shard.weight for shard in shards), reverse=True)
    assert len(cut_all([(task.part, task.actions), (other, [])], 1)) == 1
    # Where fewer tasks are allowed, each takes more files than memory would like.
    many = [task.actions[0]._replace(path=f"f{number}") for number in range(12_000)]
    assert [len(cut_all([(task.part, many)], count)) for count in (1, 2)] == [1, 2]


@pytest.mark.parametrize(("limit", "asked"), [(8, [8]), (3, [8, 4, 2]), (1, [8, 4, 2, 1]), (0, [8, 4, 2, 1])])
def test_where_a_limit_takes_fewer_tasks_each_has_more_files(limit: int, asked: list[int], task: MoveTask) -> None:
    sizes: list[int] = []

    def submit(shards: Sequence[Shard]) -> Sequence[Shard]:
        sizes.append(len(shards))
        if len(shards) > limit:
            raise TooManyTasksError("too many")
        return shards

    def begin() -> Sequence[Shard]:
        return with_fewer_tasks(partial(cut_all, [(task.part, task.actions)]), 8, submit)

    if limit:
        assert sum(len(shard.actions) for shard in begin()) == _FILES
    else:
        with pytest.raises(TooManyTasksError):
            begin()
    assert sizes == asked
