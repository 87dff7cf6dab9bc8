"""A spread transfer in one process: claims and records of workers, their verification, and giving up."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure, UsageError
from blobsync.base.events import Listener
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.direct.pool import was_tried
from blobsync.local.index import Index
from blobsync.local.names import is_temporary
from blobsync.plan.spreading import Load, choose_spread
from blobsync.plan.transfer_options import TransferOptions, check_spread
from blobsync.plan.transfer_plan import Action, SpreadPlan
from blobsync.spread.earlier_records import merge_records
from blobsync.spread.probe import OwnProbe, files_probe, probe_problem, remove_probe, source_probe
from blobsync.spread.record import FileRecord, Ready, answer_line
from blobsync.spread.sealed_store import SealedStore, parent_keys, worker_keys
from blobsync.spread.shard import cut, shard_lines
from blobsync.spread.shard_account import as_seen_here
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore, SharedStore
from blobsync.spread.spread_engine import SpreadClock, SpreadEngine, SpreadRefusedError
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved, MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, copy, download, moved_by, upload

_MD5 = bytes(16)


class Threads:
    """Workers in threads of this process; ``lost`` is how the job ended before any started."""

    def __init__(self, place: SharedStore, task: MoveTask, lost: str | None = None) -> None:
        self.place, self._task, self._lost = place, task, lost
        self.starts = 0
        self.stopped = False
        self.running: list[threading.Thread] = []

    def start(self) -> None:
        self.starts += 1
        if self._lost is None and not self.running:
            self.place.write("alive", b"1")
            haulers = [hauler(self.place_of(each), self._task, each) for each in range(2)]
            self.running = [threading.Thread(target=each.work) for each in haulers]
            for thread in self.running:
                thread.start()

    def place_of(self, number: int) -> SharedStore:
        """The store for one worker."""
        return self.place

    def ended(self) -> str | None:
        return self._lost

    def stop(self) -> None:
        self.stopped = True

    def join(self) -> None:
        self.place.write("alive", b"")
        for thread in self.running:
            thread.join()


def hauler(
    place: SharedStore,
    task: MoveTask,
    number: int = 0,
    engine: DirectEngine | None = None,
    *,
    claim: float = CLAIM_SECONDS,
    told: Callable[[str], None] = lambda text: None,
) -> ShardWorker:
    ends = Ends(task.part.source, task.part.destination)
    name, run = f"node{number}.0", str(uuid.UUID(int=number))
    settings = ShardWorkerSettings(name, number, run, poll=0.01, flush=0.01, claim=claim)
    key = str(ends.source), str(ends.destination)
    return ShardWorker(place, {key: ends}, engine or DirectEngine(), settings, lambda: None, told)


def clock() -> SpreadClock:
    """A clock that advances six seconds at each call."""
    seconds = iter(range(0, 10**9, 6))
    return SpreadClock(lambda: float(next(seconds)), lambda pause: None)


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(30):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, MemoryStore("box"), "sets")


@pytest.fixture
def place(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "place")


def _attempt(place: SharedStore, number: int, *records: FileRecord) -> None:
    lines = "\n".join([answer_line(Ready()), *map(answer_line, records)]) + "\n"
    place.write(f"records/0000000~node7.0-{number:08x}~000000", lines.encode())


def _moved(task: MoveTask, index: int) -> FileRecord:
    action = task.actions[index]
    source = action.source
    assert isinstance(source, LocalState)
    told = LocalState(source.size, source.mtime_ns, source.ctime_ns, source.inode, _MD5)
    return FileRecord(action.path, told, RemoteState(source.size, "0x1", _MD5))


def test_workers_move_all_of_it_and_what_they_say_is_still_to_be_looked_at(task: MoveTask, place: FolderStore) -> None:
    crew = Threads(place, task)
    engine = SpreadEngine(DirectEngine(), place, crew, 2, poll=0.01)
    listener = RecordingListener()
    report = moved_by(engine, task, listener)
    assert {each.action.path for each in report.moved} == {action.path for action in task.actions}
    assert not report.failed and not [each for each in report.moved if each.destination is not None]
    assert isinstance(task.part.destination, OpenBlob)
    assert len(list(task.part.destination.store.list_blobs("sets/"))) == 30
    assert listener.bytes == sum(range(30))
    # Each worker is reported by its name.
    assert set(listener.workers) <= {"node0.0", "node1.0"}
    assert [sum(each) for each in zip(*listener.workers.values(), strict=True)] == [30, sum(range(30))]
    # A second attempt is not worth a shard; files with the same names in another folder are.
    again = moved_by(engine, task._replace(actions=task.actions[:3], again=True))
    assert len(again.moved) + len(again.failed) == 3 and crew.starts == 1
    others = moved_by(engine, task._replace(actions=task.actions[:3]))
    assert len(others.moved) == 3 and crew.starts == 2
    crew.join()


def test_a_worker_goes_on_from_the_records_of_one_that_was_lost(task: MoveTask, place: FolderStore) -> None:
    engine = SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock())
    moved_by(engine, task)
    for name in place.names("records"):
        place.remove(f"records/{name}")
    _attempt(place, 1, _moved(task, 0), _moved(task, 1))
    place.write("alive", b"1")
    work = threading.Thread(target=hauler(place, task).work)
    work.start()
    while not place.names("done"):
        pass
    place.write("alive", b"")
    work.join()
    assert isinstance(task.part.destination, OpenBlob)
    arrived = {blob.name for blob in task.part.destination.store.list_blobs("sets/")}
    assert arrived == {f"sets/{action.path}" for action in task.actions[2:]}


def test_a_shard_over_which_three_workers_were_lost_is_given_up_by_name(task: MoveTask, place: FolderStore) -> None:
    for number in range(3):
        _attempt(place, number, *([_moved(task, 5)] if number == 1 else []))
    crew, listener = Threads(place, task), RecordingListener()
    report = moved_by(SpreadEngine(DirectEngine(), place, crew, 1, poll=0.01), task, listener)
    crew.join()
    assert [each.action.path for each in report.moved] == [task.actions[5].path]
    assert "" not in listener.workers and listener.workers["node7.0"][0] == 1
    assert len(report.failed) == 29
    assert {failure.code for _, failure in report.failed} == {FailureCode.NOT_REPORTED}
    assert "3 workers in a row were lost" in report.failed[0][1].message


class Alone(DirectEngine):
    """The engine of this machine: records its files."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[MoveTask] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(task)
        super().move(task, report, listener)


def test_files_that_no_worker_can_take_are_moved_here_and_the_others_there(task: MoveTask, place: FolderStore) -> None:
    alone, crew = Alone(), Threads(place, task)
    strange = {task.actions[0].path, task.actions[7].path}
    actions = [replace(each, source=None) if each.path in strange else each for each in task.actions]
    report = moved_by(SpreadEngine(alone, place, crew, 2, poll=0.01), task._replace(actions=actions))
    crew.join()
    assert not report.failed and len(report.moved) == 30 and crew.starts == 1
    assert [({each.path for each in asked.actions}, asked.whole_folder) for asked in alone.tasks] == [(strange, False)]


def test_without_a_file_for_a_worker_none_is_started(task: MoveTask, place: FolderStore) -> None:
    alone, crew = Alone(), Threads(place, task)
    blind = task._replace(actions=[replace(each, source=None) for each in task.actions])
    assert len(moved_by(SpreadEngine(alone, place, crew, 2, poll=0.01), blind).moved) == 30
    assert alone.tasks == [blind] and crew.starts == 0 and not place.names("shards")


def test_a_task_without_such_files_asks_nothing_of_this_machine(task: MoveTask, place: FolderStore) -> None:
    alone, crew = Alone(), Threads(place, task)
    assert len(moved_by(SpreadEngine(alone, place, crew, 2, poll=0.01), task).moved) == 30
    crew.join()
    assert not alone.tasks


class FullDisk(DirectEngine):
    """A full disk; the worker ends after its first shard."""

    def __init__(self, place: SharedStore) -> None:
        super().__init__()
        self._place = place

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        for action in task.actions:
            failure = FileFailure(action.path, FailureCode.DISK_FULL, f"/p/{action.path}: No space left on device")
            report.file_failed(action, failure)
        self._place.write("alive", b"")


class OneShard(Threads):
    """One worker, which ends before the coordinator reads."""

    def start(self) -> None:
        self.place.write("alive", b"1")
        hauler(self.place, self._task, engine=FullDisk(self.place)).work()


def test_the_first_file_that_finds_no_room_ends_the_fetching_of_all_nodes(place: FolderStore, tmp_path: Path) -> None:
    store = MemoryStore("box")
    names = [f"f{number:03}" for number in range(200)]
    for name in names:
        store.add(f"sets/{name}", b"a file")
    task = download(store, "sets", tmp_path / "down", names)
    report = moved_by(SpreadEngine(DirectEngine(), place, OneShard(place, task), 20, poll=0.01), task)
    assert sorted(action.path for action, _ in report.failed) == names
    assert {failure.code for _, failure in report.failed} == {FailureCode.DISK_FULL}
    own = [failure for _, failure in report.failed if was_tried(failure.message)]
    assert 0 < len(own) < 200
    assert place.names("done") == place.names("shards"), "nobody takes what is given up"
    # A restarted coordinator reads the same.
    again = moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 20, poll=0.01), task)
    assert {failure.code for _, failure in again.failed} == {FailureCode.DISK_FULL} and len(again.failed) == 200


def test_a_record_that_cannot_be_is_not_believed_nor_what_comes_after_it(task: MoveTask, place: FolderStore) -> None:
    _attempt(place, 1, FileRecord("../etc", None, None), _moved(task, 0))
    crew = Threads(place, task, "Failed")
    report = moved_by(SpreadEngine(DirectEngine(), place, crew, 1, watch=clock()), task)
    assert not report.moved and len(report.failed) == 30
    assert "is not believed" in report.failed[0][1].message


@pytest.mark.parametrize("there", ["as it was told", "another file", "nothing"])
def test_a_download_counts_as_seen_only_where_this_machine_sees_the_same_file(
    there: str, place: FolderStore, tmp_path: Path
) -> None:
    store, file = MemoryStore("box"), tmp_path / "down" / "a"
    store.add("sets/a", b"a file")
    task = download(store, "sets", file.parent, ["a"])
    file.parent.mkdir()
    file.write_bytes(b"a file")
    told = LocalState.of(file.stat())
    if there == "another file":
        file.write_bytes(b"another")
    elif there == "nothing":
        file.unlink()
    source = task.actions[0].source
    _attempt(place, 1, FileRecord("a", source, replace(told, md5=_MD5)))
    place.write("done/0000000", b"")
    report = moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock()), task)
    (moved,) = report.moved
    assert (moved.destination is not None) is (there == "as it was told")


def test_what_is_told_of_another_end_or_without_a_state_is_left_as_it_is(task: MoveTask, tmp_path: Path) -> None:
    moved = Moved(task.actions[0], destination=RemoteState(0, "0x1"))
    assert as_seen_here(task.part.destination, moved) is moved
    # A local state for a blob, and a blob's state for a local file: impossible.
    here = Moved(task.actions[0], destination=LocalState(0, 0, 0, 0))
    assert as_seen_here(task.part.destination, here) is here
    assert as_seen_here(LocalLocation(tmp_path), moved) is moved


def test_a_file_is_looked_at_under_the_name_that_it_was_written_to(task: MoveTask, tmp_path: Path) -> None:
    (tmp_path / "beside").write_bytes(b"")
    state = LocalState.of((tmp_path / "beside").stat())
    moved = Moved(replace(task.actions[0], target="beside"), destination=state)
    assert as_seen_here(LocalLocation(tmp_path), moved) is moved


def test_a_job_that_ends_early_is_started_again_and_then_given_up(task: MoveTask, place: FolderStore) -> None:
    crew = Threads(place, task, "Failed with code 1")
    report = moved_by(SpreadEngine(DirectEngine(), place, crew, 2, watch=clock()), task)
    assert crew.starts == 3
    assert {failure.message for _, failure in report.failed} == {
        "not moved: the workers' job ended early 3 times; the last: Failed with code 1"
    }


@pytest.mark.parametrize("changed", [False, True])
def test_what_a_source_holds_is_read_here_and_not_told(task: MoveTask, place: FolderStore, changed: bool) -> None:
    """A worker's MD5 counts only for a version that no longer exists."""
    _attempt(place, 1, _moved(task, 3))
    file = task.part.source.at(task.actions[3].path)
    assert isinstance(file, Path)
    if changed:
        file.write_bytes(b"another version")
    report = moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock()), task)
    (moved,) = report.moved
    assert moved.source is not None and moved.destination is None
    assert moved.source.md5 == (_MD5 if changed else hashlib.md5(b"x" * moved.action.size).digest())


def test_of_a_blob_the_plan_s_md5_counts_and_not_a_worker_s(place: FolderStore) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    here.add("x/a", b"planned")
    here.add("x/b", b"planned", with_md5=False)
    task = copy(here, "x", there, "y", ["a", "b"])
    for action in task.actions:
        assert isinstance(action.source, RemoteState)
    told = [FileRecord(each.path, replace(each.source, md5=_MD5), None) for each in task.actions if each.source]
    _attempt(place, 1, *told)
    report = moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock()), task)
    md5s = {moved.action.path: moved.source.md5 for moved in report.moved if moved.source}
    assert md5s == {"a": hashlib.md5(b"planned").digest(), "b": _MD5}


def test_a_claim_of_somebody_who_moves_nothing_is_passed_over(task: MoveTask, place: FolderStore) -> None:
    moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock()), task)
    for name in place.names("records"):
        place.remove(f"records/{name}")
    (shard,) = place.names("shards")
    assert place.claim(f"claims/{shard}", str(uuid.UUID(int=99)))
    place.write("alive", b"1")
    told: list[str] = []
    work = threading.Thread(target=hauler(place, task, claim=0.05, told=told.append).work)
    work.start()
    while not place.names("done"):
        pass
    place.write("alive", b"")
    work.join()
    assert isinstance(task.part.destination, OpenBlob)
    assert len(list(task.part.destination.store.list_blobs("sets/"))) == 30
    assert any("is claimed, and nobody moves it" in text for text in told)
    # The holder keeps the claim.
    assert not place.claim(f"claims/{shard}", str(uuid.UUID(int=0)))


class _Vandal(FolderStore):
    """A stranger who removes each shard as soon as it appears, for a while."""

    taken = 0

    def write(self, name: str, body: bytes) -> None:
        super().write(name, body)
        if name.startswith("shards/") and self.taken < 2:
            self.taken += 1
            self.remove(name)


def test_a_shard_that_somebody_has_removed_is_put_back_when_nothing_is_heard(task: MoveTask, tmp_path: Path) -> None:
    place = _Vandal(tmp_path / "place")
    crew, listener = Threads(place, task), RecordingListener()
    report = moved_by(SpreadEngine(DirectEngine(), place, crew, 1, poll=0.01, watch=clock()), task, listener)
    crew.join()
    assert len(report.moved) == 30 and place.taken == 2


class _Finished(Threads):
    """A worker that has finished a shard, but whose records are missing."""

    def start(self) -> None:
        for name in self.place.names("shards"):
            self.place.write(f"done/{name}", b"")


def test_a_shard_whose_records_are_gone_ends_in_failures_by_name(task: MoveTask, place: FolderStore) -> None:
    report = moved_by(SpreadEngine(DirectEngine(), place, _Finished(place, task), 1, watch=clock()), task)
    assert not report.moved and len(report.failed) == 30
    assert {failure.code for _, failure in report.failed} == {FailureCode.NOT_REPORTED}


def test_workers_of_a_sealed_place_move_all_of_it_beside_what_others_left_there(task: MoveTask, tmp_path: Path) -> None:
    run, told = SealKey(bytes(range(32))), list[str]()
    raw = FolderStore(tmp_path / "place")
    parent = SealedStore(FolderStore(tmp_path / "place"), parent_keys(run), "run", told.append, session="one")
    (shard,) = cut(task.part, task.actions[:3], 1)
    raw.write("shards/0000000", b"replaced at once")
    raw.write("shards/9999999", "\n".join(shard_lines(shard)).encode())
    for number in range(3):
        raw.write(f"records/0000000~node7.0-{number:08x}~000000", answer_line(_moved(task, 0)).encode())
    for name in ("done/0000000", "stop", "refused/node7.0"):
        raw.write(name, b"")
    crew = _SealedThreads(parent, task, tmp_path / "place", run)
    report = moved_by(SpreadEngine(DirectEngine(), parent, crew, 2, poll=0.01), task)
    crew.join()
    assert len(report.moved) == 30 and not report.failed
    assert any("records/0000000~node7.0-00000000~000000 has no seal" in text for text in told)


class _SealedThreads(Threads):
    """Workers with their own keys."""

    def __init__(self, place: SealedStore, task: MoveTask, root: Path, run: SealKey) -> None:
        super().__init__(place, task)
        self._root, self._run = root, run

    def place_of(self, number: int) -> SharedStore:
        keys = worker_keys(self._run, f"node{number}.0")
        return SealedStore(FolderStore(self._root), keys, "run", lambda text: None)


def test_a_node_that_cannot_take_part_stops_it_with_its_sentence(task: MoveTask, place: FolderStore) -> None:
    hauler(place, task).refuse("n1: f0 is another file here")
    crew = Threads(place, task, "lost")
    with pytest.raises(SpreadRefusedError, match=r"node0\.0 cannot take part: n1: f0 is another file here"):
        moved_by(SpreadEngine(DirectEngine(), place, crew, 1, watch=clock()), task)
    assert crew.stopped and place.read("stop") is not None


def _arrived(task: MoveTask, index: int, letter: bytes = b"x") -> FileRecord:
    """A file whose destination state is from the service, and whose source state is the worker's report."""
    action, end = task.actions[index], task.part.destination
    body = letter * action.size
    assert isinstance(action.source, LocalState) and isinstance(end, OpenBlob)
    store = end.store
    assert isinstance(store, MemoryStore)
    there = store.add(f"sets/{action.path}", body)
    told = replace(action.source, md5=hashlib.md5(body).digest())
    return FileRecord(action.path, told, RemoteState(there.size, there.etag, there.md5))


def test_what_workers_told_a_parent_that_was_killed_is_in_the_index_as_far_as_it_is_so(
    task: MoveTask, place: FolderStore, tmp_path: Path
) -> None:
    moved_by(SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 1, watch=clock()), task)
    true, junk, replaced = _arrived(task, 3), _arrived(task, 4, b"j"), _arrived(task, 5)
    # The worker lies about one; another has a newer version of another client.
    _arrived(task, 5)
    _attempt(place, 1, true, junk, replaced, _moved(task, 6), FileRecord("nowhere", None, None))
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    merged = merge_records(place, [task.part], lambda key: index.pair(*key.roots))
    assert (merged.files, merged.next_number) == (1, 1)
    found = index.pair("data", "blobs").get([f"x/{action.path}" for action in task.actions])
    assert list(found) == [f"x/{true.path}"]
    assert found[f"x/{true.path}"].near.md5 == hashlib.md5(b"x" * task.actions[3].size).digest()
    assert not place.names("shards") and not place.names("records")
    assert merge_records(place, [task.part], lambda key: index.pair(*key.roots)).files == 0
    index.close()


def test_a_probe_of_ours_tells_whether_two_machines_see_the_same_files(tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    asked = OwnProbe(root, "0123456789abcdef")
    given = asked.write()
    assert probe_problem(given) is None and probe_problem(None) is None
    # The same path on another machine.
    root.rename(tmp_path / "elsewhere")
    assert "cannot be read here" in (probe_problem(given) or "")
    root.mkdir()
    (root / ".probe-of-blobsync-0123456789abcdef").write_text("b" * 32)
    assert "is another file here" in (probe_problem(given) or "")
    asked.remove()
    asked.remove()
    assert not list(root.iterdir())


def test_files_that_change_while_others_move_do_not_stop_the_nodes(task: MoveTask) -> None:
    assert isinstance(task.part.source, LocalLocation)
    root = task.part.source.path
    given = source_probe(OwnProbe(root, "0123456789abcdef"), task.part.source, task.actions)
    for file in root.glob("f*"):
        file.write_bytes(b"changed")
    assert given is not None and probe_problem(given) is None
    # The command's own probe file is not a file of the folder.
    assert is_temporary(Path(given["own"]["file"]).name)


def test_where_there_can_be_no_file_of_ours_the_oldest_files_tell_and_one_of_them_is_enough(task: MoveTask) -> None:
    source = task.part.source
    assert isinstance(source, LocalLocation)
    in_the_way = OwnProbe(source.path / "f0", "0123456789abcdef")
    states = {action.path: action.source for action in task.actions}
    for number, action in enumerate(reversed(task.actions)):
        os.utime(source.path / action.path, ns=(0, number))
        states[action.path] = LocalState.of(os.stat(source.path / action.path))
    actions = [replace(action, source=states[action.path]) for action in task.actions]
    given = source_probe(in_the_way, source, actions)
    assert given is not None
    named = [Path(each["file"]).name for each in given["files"]]
    assert named == [action.path for action in reversed(task.actions)][:16]
    for name in named[1:]:
        (source.path / name).write_bytes(b"changed")
    assert probe_problem(given) is None
    (source.path / named[0]).unlink()
    assert f"{source.path / named[0]} cannot be read here" in (probe_problem(given) or "")
    (source.path / named[0]).write_bytes(b"x" * int(named[0].removeprefix("f")))
    assert f"{source.path / named[0]} is another file here" in (probe_problem(given) or "")
    assert source_probe(in_the_way, source, ()) is None
    # Only files that are to move, and were seen here, can be compared.
    others = [replace(actions[0], action=Action.UNCHANGED), replace(actions[1], source=None)]
    assert source_probe(in_the_way, source, others) is None


def test_of_files_of_one_age_the_first_by_name_tell(task: MoveTask) -> None:
    source = task.part.source
    assert isinstance(source, LocalLocation)
    state = LocalState(1, 1, 1, 1)
    actions = [replace(task.actions[0], path=f"{number:02}", source=state) for number in reversed(range(20))]
    # The same path twice is no reason to compare states.
    probe = files_probe(source, [*actions, replace(actions[-1], source=replace(state, inode=2))])
    assert [Path(each["file"]).name for each in probe["files"]][1:] == [f"{number:02}" for number in range(15)]


def test_a_worker_of_a_command_that_was_killed_still_finds_the_probe_that_the_next_command_keeps(
    tmp_path: Path,
) -> None:
    first = OwnProbe(tmp_path, "x").write()
    second = OwnProbe(tmp_path, "x").write()
    assert first == second and probe_problem(first) is None


@pytest.mark.parametrize("left", ["", "a" * 31, "A" * 32, "\n" * 32, "link"])
def test_what_no_probe_of_ours_can_be_is_written_anew_and_nothing_else_is_touched(tmp_path: Path, left: str) -> None:
    file, other = tmp_path / ".probe-of-blobsync-x", tmp_path / "other"
    other.write_text("a" * 32)
    if left == "link":
        file.symlink_to(other)
    else:
        file.write_text(left)
    given = OwnProbe(tmp_path, "x").write()
    assert probe_problem(given) is None
    assert not file.is_symlink() and given["own"]["text"] != left and other.read_text() == "a" * 32


def test_whoever_carries_a_transfer_out_removes_its_own_probes_and_no_other_file(tmp_path: Path) -> None:
    given = OwnProbe(tmp_path, "0123456789abcdef").write()
    file, data = Path(given["own"]["file"]), tmp_path / "data"
    data.write_text("text")
    remove_probe(None)
    remove_probe({"files": [{"file": str(data), "size": 4, "mtime_ns": 0, "inode": 0}]})
    remove_probe({"own": {"file": str(data), "text": "text"}})
    remove_probe({"own": {"file": str(file), "text": "another transfer's"}})
    assert data.exists() and file.exists()
    remove_probe(given)
    remove_probe(given)
    assert data.exists() and not file.exists()


def test_how_much_is_cut_into_how_many_shards() -> None:
    def chosen(nodes: int, platform: str, weight: int) -> SpreadPlan:
        options = TransferOptions(nodes=nodes)
        return choose_spread(options, platform, "c", Load(10**6, weight), copies=True)

    assert (chosen(2, "local", 0).shards, chosen(2, "local", 10**12).shards) == (2, 16)
    assert (chosen(8, "slurm", 10**12).workers, chosen(8, "slurm", 10**12).shards) == (32, 256)
    assert chosen(8, "kubernetes", 10**12).workers_per_node == 4


@pytest.mark.parametrize("platform", ["kubernetes", "aml", "itp", "singularity"])
def test_a_cluster_whose_nodes_do_not_see_this_disk_takes_copies_alone(platform: str) -> None:
    with pytest.raises(UsageError, match="do not see this disk"):
        choose_spread(TransferOptions(nodes=2), platform, "c", copies=False)
    assert choose_spread(TransferOptions(nodes=2), platform, "c", copies=True).workers == 8


@pytest.mark.parametrize("words", [{"mirror": True}, {"keep": "both"}, {"receipt": True}])
def test_what_needs_the_command_to_wait_cannot_be_detached(words: dict[str, object]) -> None:
    check: Callable[..., TransferOptions] = TransferOptions
    check_spread(check(nodes=2, **words))
    with pytest.raises(UsageError, match="--detach and --"):
        check_spread(check(nodes=2, detach=True, **words))
