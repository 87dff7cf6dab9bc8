"""Workers of a spread transfer that are disconnected or hang, in threads of this process: no file is lost, and no
existing file is reported as missing."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError, BlobsyncError, FailureCode, StorageUnreachableError
from blobsync.base.events import Listener
from blobsync.base.stopping import StopRequest
from blobsync.direct.engine import DirectEngine
from blobsync.spread.shard import cut, shard_lines
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings, SharedPace
from blobsync.spread.shared_store import FolderStore, SharedStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.open_locations import OpenBlob
from blobsync.store.rest.http import Pace
from blobsync.transfer.engines import CollectedReport, MoveReport, MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import moved_by, upload

_FILES = 30
# Of a claim, so that tests need not wait for a minute. A running worker renews it four times as often.
_SECONDS = 0.4
_PATIENCE = 60.0


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(_FILES):
        (root / f"f{number:02}").write_bytes(b"x" * number)
    return upload(root, MemoryStore("box"), "sets")


def _store(task: MoveTask) -> MemoryStore:
    end = task.part.destination
    assert isinstance(end, OpenBlob) and isinstance(end.store, MemoryStore)
    return end.store


def _another_line(store: MemoryStore) -> MemoryStore:
    """The same blobs, for another machine."""
    line = MemoryStore("box")
    line.blobs = store.blobs
    return line


class Hanging(FolderStore):
    """The store for a machine that hangs from ``hung`` to ``awake``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, seconds=_SECONDS)
        self.hung, self.awake = threading.Event(), threading.Event()

    def read(self, name: str) -> bytes | None:
        self.wait()
        return super().read(name)

    def write(self, name: str, body: bytes) -> None:
        self.wait()
        super().write(name, body)

    def claim(self, name: str, holder: str) -> bool:
        self.wait()
        return super().claim(name, holder)

    def wait(self) -> None:
        if self.hung.is_set():
            assert self.awake.wait(_PATIENCE)


class Machine:
    """One worker in a thread; ``said`` is its log, whose first line is written after its first shard."""

    def __init__(self, number: int, place: SharedStore, task: MoveTask, store: MemoryStore) -> None:
        end = task.part.destination
        assert isinstance(end, OpenBlob)
        ends = Ends(task.part.source, OpenBlob(store, end.name))
        key = str(task.part.source), str(end)
        holder = str(uuid.UUID(int=number))
        settings = ShardWorkerSettings(f"node{number}.0", number, holder, poll=0.01, flush=0.01, claim=_SECONDS)
        self.said: list[str] = []
        self.spoke = threading.Event()
        hauler = ShardWorker(place, {key: ends}, DirectEngine(), settings, lambda: None, self._hear)
        self._thread = threading.Thread(target=hauler.work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()

    def _hear(self, text: str) -> None:
        self.said.append(text)
        self.spoke.set()


class Machines:
    """The machines of a job; each starts the next one with :meth:`come`."""

    def __init__(self, place: SharedStore, *all_of_them: Machine) -> None:
        self._place = place
        self._waiting = list(all_of_them)

    def start(self) -> None:
        self._place.write("alive", b"1")
        self.come()

    def come(self) -> None:
        self._waiting.pop(0).start()

    def ended(self) -> str | None:
        return None

    def stop(self) -> None: ...


@pytest.mark.parametrize(
    "error", [StorageUnreachableError("the connection broke"), AccessDeniedError("the clock of this machine is wrong")]
)
def test_what_a_worker_says_after_it_hung_and_its_shard_went_to_another_does_no_harm(
    task: MoveTask, tmp_path: Path, error: BlobsyncError
) -> None:
    root, store = tmp_path / "place", _store(task)
    place, hanging = FolderStore(root, seconds=_SECONDS), Hanging(root)
    hung, other = _another_line(store), _another_line(store)
    first, second = Machine(1, hanging, task, hung), Machine(2, place, task, other)
    crew = Machines(place, first, second)

    def fail(request: Request) -> None:
        if request.operation == "put" and len(hung.asked("put")) > 5:
            if not hanging.hung.is_set():
                hanging.hung.set()
                crew.come()
            hanging.wait()
            raise error

    def let_the_first_speak(request: Request) -> None:
        """Half of the other files have moved when the first worker wakes up and continues its shard."""
        if request.operation == "put" and len(other.asked("put")) > 15 and not hanging.awake.is_set():
            hanging.awake.set()
            assert first.spoke.wait(_PATIENCE)

    hung.before, other.before = fail, let_the_first_speak
    report = moved_by(SpreadEngine(DirectEngine(), place, crew, 1, poll=0.01), task)
    place.write("alive", b"")
    first.join()
    second.join()
    assert "another worker has taken it over" in first.said[0]
    assert not report.failed, report.failed
    assert {each.action.path for each in report.moved} == {action.path for action in task.actions}
    assert {name: len(blob.body) for name, blob in store.blobs.items()} == {
        f"sets/f{number:02}": number for number in range(_FILES)
    }


class Down(Hanging):
    """The store behind a service that does not respond after ``hung`` is set: requests wait until they are hurried."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_waited_for = threading.Event()

    def release(self, name: str, holder: str) -> None:
        self.wait()
        super().release(name, holder)

    def hurry(self) -> None:
        self.awake.set()

    def wait(self) -> None:
        if self.hung.is_set():
            self.is_waited_for.set()
            super().wait()
            raise StorageUnreachableError("the service does not answer")


class Stopped(DirectEngine):
    """Interrupts the worker once it waits for the store."""

    def __init__(self, place: Down) -> None:
        super().__init__()
        self._place = place

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self._place.hung.set()
        assert self._place.is_waited_for.wait(_PATIENCE)
        raise KeyboardInterrupt


def test_a_worker_that_is_stopped_does_not_wait_for_a_service_that_is_down(task: MoveTask, tmp_path: Path) -> None:
    place = Down(tmp_path / "place")
    end = task.part.destination
    key = str(task.part.source), str(end)
    settings = ShardWorkerSettings("node1.0", 1, str(uuid.UUID(int=1)), poll=0.01, flush=0.01, claim=_SECONDS)
    worker = ShardWorker(
        place, {key: Ends(task.part.source, end)}, Stopped(place), settings, lambda: None, lambda text: None
    )
    place.write("alive", b"1")
    (shard,) = cut(task.part, task.actions, 1)
    place.write("shards/0000000", ("\n".join(shard_lines(shard)) + "\n").encode())
    with pytest.raises(KeyboardInterrupt):
        worker.work()
    assert place.awake.is_set()


class Nobody:
    """Workers that never start; meanwhile a stop is requested."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self.told: list[str] = []

    def start(self) -> None:
        self._stop.make()

    def ended(self) -> str | None:
        return None

    def stop(self) -> None:
        self.told.append("stop")


def test_a_request_to_stop_ends_the_parent_as_ctrl_c_does(task: MoveTask, tmp_path: Path) -> None:
    stop, place = StopRequest(), FolderStore(tmp_path / "place")
    crew = Nobody(stop)
    with pytest.raises(KeyboardInterrupt):
        moved_by(SpreadEngine(DirectEngine(), place, crew, 1, poll=0.01), task._replace(stop=stop))
    assert crew.told == ["stop"] and place.read("stop") == b""


def _with_one_worker(task: MoveTask, tmp_path: Path, before: Callable[[Request], None]) -> CollectedReport:
    place, store = FolderStore(tmp_path / "place", seconds=_SECONDS), _store(task)
    store.before = before
    worker = Machine(1, place, task, store)
    report = moved_by(SpreadEngine(DirectEngine(), place, Machines(place, worker), 1, poll=0.01), task)
    place.write("alive", b"")
    worker.join()
    return report


def test_a_worker_whose_line_was_cut_for_a_while_tries_again_before_files_are_said_to_have_failed(
    task: MoveTask, tmp_path: Path
) -> None:
    cut = iter(range(40))

    def before(request: Request) -> None:
        if request.operation == "put" and next(cut, None) is not None:
            raise StorageUnreachableError("the connection broke")

    report = _with_one_worker(task, tmp_path, before)
    assert not report.failed and len(report.moved) == _FILES


def test_files_that_no_try_could_move_fail_by_name_for_the_reason_that_they_have(
    task: MoveTask, tmp_path: Path
) -> None:
    def before(request: Request) -> None:
        if request.operation == "put" and request.name in {"sets/f07", "sets/f21"}:
            raise StorageUnreachableError("the connection broke")

    report = _with_one_worker(task, tmp_path, before)
    assert sorted(action.path for action, _ in report.failed) == ["f07", "f21"]
    assert {failure.code for _, failure in report.failed} == {FailureCode.STORAGE_UNREACHABLE}
    assert len(report.moved) == _FILES - 2


def test_what_the_account_asks_of_one_worker_holds_all_back(tmp_path: Path) -> None:
    now, said = [100.0], list[str]()
    place = FolderStore(tmp_path)
    paces = [Pace(lambda: now[0]) for _ in range(3)]
    one, two, late = (SharedPace(place, f"node{at}.0", pace, said.append) for at, pace in enumerate(paces))
    one.begin()
    two.begin()
    paces[0].asked(0.5)
    one.look()
    two.look()
    assert paces[0].left == 0 and not said, "over before another one would know"
    paces[0].asked(4.2)
    one.look()
    now[0] += 1.0
    two.look()
    late.begin()
    late.look()
    assert [round(pace.left, 3) for pace in paces] == [3.2, 5.0, 0.0]
    assert said == [
        "the storage account asks for fewer requests: all workers wait 5 s",
        "node0.0 was asked by the storage account for fewer requests: waiting 5 s",
    ]
    now[0] += 4.0
    # The same note again is not a new one.
    one.look()
    two.look()
    assert (paces[0].left, paces[1].left, len(said)) == (0.0, 1.0, 2)
    paces[1].asked(10**6)
    two.look()
    one.look()
    assert paces[0].left == 90


def test_who_is_asked_to_wait_as_long_once_more_holds_the_others_back_once_more(tmp_path: Path) -> None:
    now, place = [100.0], FolderStore(tmp_path)
    paces = [Pace(lambda: now[0]) for _ in range(2)]
    one, two = (SharedPace(place, f"node{at}.0", pace, lambda text: None) for at, pace in enumerate(paces))
    one.begin()
    two.begin()
    for _ in range(2):
        paces[0].asked(5.0)
        one.look()
        two.look()
        assert paces[1].left == 5
        now[0] += 5.0
    # A cleared store has no notes.
    place.remove("slow")
    two.look()
    assert paces[1].left == 0


@pytest.mark.parametrize(
    "note",
    [
        b"\xff",
        b"[]",
        json.dumps({"seconds": -1, "by": "node0.0"}).encode(),
        json.dumps({"seconds": 10**9, "by": "node0.0"}).encode(),
        json.dumps({"seconds": 5, "by": "\x1b[2J"}).encode(),
        json.dumps({"seconds": 5}).encode(),
    ],
)
def test_a_note_that_no_worker_wrote_holds_nobody_back(note: bytes, tmp_path: Path) -> None:
    place, pace, said = FolderStore(tmp_path), Pace(), list[str]()
    shared = SharedPace(place, "node1.0", pace, said.append)
    shared.begin()
    place.write("slow", note)
    shared.look()
    assert pace.left == 0 and not said
