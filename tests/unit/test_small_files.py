"""Small files: one thread moves them, several only on a slow disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blobsync.base.errors import BlobNotFoundError, BlobsyncError, ChecksumError, SasExpiredError
from blobsync.base.events import SilentListener
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.direct.small_files import HANDS, AdaptiveConcurrency, SmallFiles
from blobsync.direct.thread_pool import FileJob, RunState, Stopped, WorkerThreads, Written
from blobsync.direct.upload import UploadJob
from blobsync.local.files import SourceFolder
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.blocks import BlockMemory
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, Part, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import ANYTHING, BlobInfo, BlobProperties, GetOrder, Order, Orders, PutOrder
from blobsync.transfer.engines import CollectedReport, Moved, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordedRun, RecordingListener, index_key, upload


class Slow(UploadJob):
    """A file on a slow disk."""

    seconds = 0.0
    threads: set[int]
    helped: threading.Event

    def open(self) -> int:
        time.sleep(self.seconds)
        self.threads.add(threading.get_ident())
        if len(self.threads) > 1:
            self.helped.set()
        elif self.seconds and self.action.path == "f60":
            # On a busy machine one thread could be done before another had a turn.
            assert self.helped.wait(60), "nobody came"
        return super().open()


@pytest.mark.parametrize(("seconds", "several"), [(0.0, False), (0.01, True)], ids=["quick disk", "slow disk"])
def test_more_threads_work_only_where_the_disk_is_slow(tmp_path: Path, seconds: float, several: bool) -> None:
    # A busy machine makes any disk slow: the quick one is so by its clocks.
    clocks = () if several else (lambda: 0.0, lambda: 0.0)
    files = {f"f{number}": f"{number}".encode() for number in range(120)}
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    store = MemoryStore()
    actions = tuple(
        FileAction(name, Action.TRANSFER, Reason.NEW, len(body), LocalState.of((tmp_path / name).stat()))
        for name, body in files.items()
    )
    key = index_key("data", "x", "")
    part: LivePart = Part("data", Route.UPLOAD, LocalLocation(tmp_path), OpenBlob(store, "p"), key)
    report = CollectedReport()
    run = RunState(MoveTask(part, actions), report, SilentListener(), 1 << 20)
    threads, helped = set[int](), threading.Event()

    def job(action: FileAction) -> Slow:
        memory = BlockMemory(None, lambda text: None)
        made = Slow(run, action, SourceFolder(tmp_path), store, f"p/{action.path}", 1 << 20, memory)
        made.seconds, made.threads, made.helped = seconds, threads, helped
        return made

    opened: list[Orders] = []

    def orders() -> Orders:
        made = store.orders()
        assert made is not None
        opened.append(made)
        return made

    lane = SmallFiles(run, map(job, actions), orders, AdaptiveConcurrency(32, 64), *clocks)
    WorkerThreads(run.stop).work((lane, HANDS))
    assert {name.removeprefix("p/"): blob.body for name, blob in store.blobs.items()} == files
    assert sorted(moved.action.path for moved in report.moved) == sorted(files)
    assert (len(threads) > 1) is several
    assert len(opened) == len(threads)


@pytest.mark.parametrize("way", ["in the lane", "in the pool"])
def test_a_small_file_that_changed_after_it_was_read_is_not_sent(tmp_path: Path, way: str) -> None:
    file, store = tmp_path / "f", MemoryStore()
    file.write_bytes(b"first")
    task = upload(tmp_path, store, "p")
    run = RecordedRun(task, SilentListener(), 1 << 20)
    job = UploadJob(
        run, task.actions[0], SourceFolder(tmp_path), store, "p/f", 1 << 20, BlockMemory(None, lambda text: None)
    )
    assert job.open() == 1
    # In place, with the same size.
    with file.open("r+b") as opened:
        opened.write(b"other")
    os.utime(file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        job.order() if way == "in the lane" else job.piece()
    job.release()
    assert not store.blobs and not store.asked("put")


# -- one thread, request by request --------------------------------------------------------------------------------


class Connections:
    """A service that ends the requests in order, each with the result of ``answer``."""

    def __init__(self, answer: Callable[[str], bytes | BlobsyncError] = lambda path: b"") -> None:
        self._answer = answer
        self._under_way: list[tuple[object, str]] = []
        self.throttled = 0
        self.begun: list[str] = []
        self.most = 0
        self.waits: list[float] = []
        self.closed = 0

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def begin(self, key: object, order: Order) -> None:
        self._under_way.append((key, order.name))
        self.begun.append(order.name)
        self.most = max(self.most, len(self._under_way))

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        self.waits.append(seconds)
        key, path = self._under_way.pop(0)
        return [(key, self._answer(path))]

    def close(self) -> None:
        self.closed += 1


class Bursts(Connections):
    """At every other look nothing has ended, and then everything has."""

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        self.waits.append(seconds)
        if len(self.waits) % 2:
            return []
        ended, self._under_way = self._under_way, []
        return [(key, self._answer(path)) for key, path in ended]


class Hand:
    """Clocks that the test advances."""

    def __init__(self) -> None:
        self._wall, self._cpu, self.asked_cpu = 1000.0, 500.0, 0
        self.clocks = (lambda: self._wall, self._ask_cpu)

    def wait(self, seconds: float) -> None:
        self._wall += seconds

    def work(self, seconds: float) -> None:
        self._wall, self._cpu = self._wall + seconds, self._cpu + seconds

    def _ask_cpu(self) -> float:
        self.asked_cpu += 1
        return self._cpu


class OneRequest(FileJob):
    """A file that goes in one request; ``opening`` and ``landing`` do what a test says, and may raise."""

    def __init__(self, run: RunState, path: str, place: Place) -> None:
        super().__init__(run, FileAction(path, Action.TRANSFER, Reason.NEW, 1))
        self._place = place

    def _say(self, what: str) -> None:
        self._place.events.append(f"{what} {self.action.path}")

    def open(self) -> int:
        self._place.opening(self.action.path)
        self._say("open")
        return 1

    def piece(self) -> None:
        raise AssertionError("a lane asks for the order")

    def order(self) -> Order:
        return GetOrder(self.action.path, "", 1)

    def landed(self, end: BlobInfo | bytes) -> None:
        assert isinstance(end, bytes)
        self._place.landing(self.action.path)

    def refused(self, error: BlobsyncError) -> BlobsyncError:
        return type(error)(f"{self.action.path}: {error.message}")

    def commit(self) -> Moved:
        self._say("commit")
        return Moved(self.action)

    def release(self) -> None:
        self._say("release")

    def abandon(self) -> None:
        self._say("abandon")


def nothing(path: str) -> None: ...


class Place:
    """One run of a lane: its files are called ``1`` to ``count``."""

    def __init__(
        self,
        count: int,
        width: int = 64,
        *,
        opening: Callable[[str], None] = nothing,
        landing: Callable[[str], None] = nothing,
        answer: Callable[[str], bytes | BlobsyncError] = lambda path: b"",
        clock: Callable[[], float] = time.monotonic,
        line: type[Connections] = Connections,
    ) -> None:
        self.opening, self.landing = opening, landing
        self.events: list[str] = []
        self.listener = RecordingListener()
        part: LivePart = Part(
            "data", Route.DOWNLOAD, OpenBlob(MemoryStore(), "p"), LocalLocation(Path("x")), index_key("data", "x", "")
        )
        jobs = [str(number) for number in range(1, count + 1)]
        self.run = RecordedRun(MoveTask(part, ()), self.listener, 1 << 20)
        self.width = AdaptiveConcurrency(width, 64, clock)
        self.hand = Hand()
        self.lines: list[Connections] = []
        self.helped = threading.Event()
        self._answer, self._line = answer, line
        made = (OneRequest(self.run, path, self) for path in jobs)
        self.lane = SmallFiles(self.run, made, self.connect, self.width, *self.hand.clocks)

    def connect(self) -> Connections:
        self.lines.append(self._line(self._answer))
        if len(self.lines) > 1:
            self.helped.set()
        return self.lines[-1]

    def work(self, threads: int = 1) -> None:
        WorkerThreads(self.run.stop).work((self.lane, threads))

    @property
    def moved(self) -> list[str]:
        return [moved.action.path for moved in self.run.report.moved]

    @property
    def failed(self) -> dict[str, str]:
        """Messages by file."""
        failed = self.run.report.failed
        assert len({action.path for action, _ in failed}) == len(failed)
        return {action.path: failure.message for action, failure in failed}


def paths(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def refusing(*refused: str, error: BaseException | None = None) -> Callable[[str], None]:
    """A hook that raises for some files."""

    def hook(path: str) -> None:
        if path in refused:
            raise error or BlobNotFoundError("gone")

    return hook


def test_every_file_is_moved_once_and_reported_when_it_begins() -> None:
    place = Place(20)
    place.work()
    assert sorted(place.moved, key=int) == paths(20) and not place.failed
    assert place.listener.begun[0] == (8, "data/8"), "so many at a time"
    assert place.listener.begun[-1][1] == "data/20" and place.listener.bytes == 20
    assert sorted(place.events) == sorted(
        f"{what} {path}" for path in paths(20) for what in ("open", "commit", "release")
    )
    assert place.width.now == 64, "nobody asked for fewer"
    (line,) = place.lines
    assert line.closed == 1


@pytest.mark.parametrize("width", [1, 5])
def test_so_many_requests_are_under_way(width: int) -> None:
    place = Place(20, width, clock=lambda: 0.0)
    place.work()
    assert place.lines[0].most == width and len(place.moved) == 20
    # There is never room for more when it looks for answers.
    assert min(place.lines[0].waits) > 0


def test_it_waits_for_an_answer_only_when_there_is_nothing_to_begin() -> None:
    place = Place(20)
    place.work()
    waits = place.lines[0].waits
    assert waits[0] == 0, "the first few are under way, and there is room and work for more"
    assert waits[-1] == max(waits) and all(wait == 0 or 0.05 < wait < 0.5 for wait in waits)


def test_files_that_cannot_be_opened_are_failures_of_their_own() -> None:
    place = Place(40, opening=refusing(*paths(39)))
    place.work()
    assert place.failed == dict.fromkeys(paths(39), "gone") and place.moved == ["40"]


def test_a_request_that_the_service_refuses_is_a_failure_in_the_words_of_the_file() -> None:
    landed: list[str] = []
    answer = {"2": BlobNotFoundError("gone")}
    place = Place(3, landing=landed.append, answer=lambda path: answer.get(path, b""))
    place.work()
    assert place.failed == {"2": "2: gone"} and place.moved == landed == ["1", "3"]
    assert "commit 2" not in place.events and "release 2" in place.events


def test_an_answer_that_does_not_fit_is_a_failure() -> None:
    place = Place(3, landing=refusing("2"))
    place.work()
    assert place.failed == {"2": "gone"} and place.moved == ["1", "3"]


@pytest.mark.parametrize("where", ["opening", "landing"])
def test_an_abandoned_file_is_released_and_not_reported(where: str) -> None:
    hook = refusing("2", error=Stopped())
    place = Place(3, opening=hook) if where == "opening" else Place(3, landing=hook)
    place.work()
    assert not place.failed and place.moved == ["1", "3"] and "release 2" in place.events


def test_a_file_that_arrived_damaged_is_moved_again() -> None:
    damage = [ChecksumError("bad"), ChecksumError("bad")]

    def landing(path: str) -> None:
        if path == "2" and damage:
            raise damage.pop()

    place = Place(5, 1, landing=landing, clock=lambda: 0.0)
    place.work()
    assert not place.failed and sorted(place.moved) == paths(5)
    assert place.events.count("open 2") == 3 and place.events.count("commit 2") == 1
    assert place.lines[0].most == 1, "in the place of a file that is not begun yet"


def test_a_look_may_find_nothing_or_many_that_have_ended() -> None:
    answer = {"1": BlobNotFoundError("gone")}
    place = Place(10, 3, answer=lambda path: answer.get(path, b""), clock=lambda: 0.0, line=Bursts)
    place.work()
    assert place.failed == {"1": "1: gone"} and place.moved == paths(10)[1:]
    assert place.lines[0].most == 3 and ("BytesMoved", 0) not in place.listener.of_bytes


def test_what_is_sent_is_noted_before_the_first_of_its_requests() -> None:
    place = Place(10)
    noted: list[str] = []

    class Noting(RecordedRun):
        def about_to_write(self, *files: Written) -> None:
            noted.extend(f"{action.path} {size} {len(place.lines[0].begun)}" for action, size, _ in files)

    class Put(OneRequest):
        def order(self) -> Order:
            return PutOrder(self.action.path, b"body", b"md5", BlobProperties(), ANYTHING)

    run = Noting(place.run.task, place.listener, 1)
    lane = SmallFiles(run, (Put(run, path, place) for path in paths(10)), place.connect, place.width)
    WorkerThreads(run.stop).work((lane, 1))
    assert noted == [*(f"{path} 4 0" for path in paths(8)), "9 4 8", "10 4 8"] and len(run.report.moved) == 10


def test_what_fails_every_file_spares_the_service_the_others() -> None:
    place = Place(50, 1, answer=lambda path: SasExpiredError("expired"))
    place.work()
    assert len(place.failed) == 50 and place.events.count("open 1") == 1
    assert sum(event.startswith("open") for event in place.events) == 1
    assert place.failed["50"] == "not tried, since others failed: 1: expired"


def test_fewer_are_under_way_when_the_service_asks_for_it_and_only_then() -> None:
    now = [0.0]
    widths = []

    def landing(path: str) -> None:
        # Further apart than what counts as one request to slow down, too few for a measurement.
        now[0] += 2.0
        widths.append(place.width.now)
        if path == "2":
            place.lines[0].throttled += 1

    place = Place(6, 16, landing=landing, clock=lambda: now[0])
    place.work()
    assert widths == [16, 16, 8, 8, 8, 8]


# -- more threads where the disk is slow ---------------------------------------------------------------------------


class Disk:
    """Opens and stores files one after the other; those at ``slow`` (from 0) keep the thread waiting.

    At ``needed`` the thread goes on when another has come to help; None: at no place.
    """

    def __init__(self, count: int, slow: set[int], needed: int | None = None, width: int = 1) -> None:
        self._slow, self._needed, self._seen = slow, needed, 0
        self._first, self._last = 0, 2 * count - 1
        # One request at a time: opened, stored, opened, stored.
        self.place = Place(count, width, opening=self._touch, landing=self._touch, clock=lambda: 0.0)

    def _touch(self, path: str) -> None:
        self._first = self._first or threading.get_ident()
        if threading.get_ident() != self._first:
            return
        at, self._seen = self._seen, self._seen + 1
        if at == self._needed:
            assert self.place.helped.wait(60), "nobody came"
        if at == self._last and self._needed is None:
            # Whoever was called would come.
            self.place.helped.wait(0.3)
        # A long time of work is no waiting.
        self.place.hand.work(0.5)
        self.place.hand.wait(0.002 if at in self._slow else 0.0005)


@pytest.mark.parametrize("slow", [range(8), [*range(8), *range(16, 24)]])
def test_one_thread_is_enough_where_half_of_sixteen_files_come_at_once(slow: Sequence[int]) -> None:
    disk = Disk(32, set(slow))
    disk.place.work(8)
    assert len(disk.place.lines) == 1 and len(disk.place.moved) == 32


def test_the_system_is_asked_for_cpu_time_only_where_a_file_took_long() -> None:
    quick = Place(40)
    quick.work()
    assert quick.hand.asked_cpu == 1, "at the start"
    busy = Disk(40, set())
    busy.place.work()
    assert busy.place.hand.asked_cpu == 1 + 2 * 40


@pytest.mark.parametrize("slow", [range(9), range(16, 25)])
def test_others_help_once_most_of_sixteen_files_kept_one_waiting(slow: range) -> None:
    disk = Disk(64, set(slow), needed=16 if 0 in slow else 32)
    disk.place.work(8)
    assert len(disk.place.lines) > 1 and sorted(disk.place.moved, key=int) == paths(64)
    assert all(line.closed == 1 for line in disk.place.lines)


def test_threads_that_share_a_narrow_line_have_one_request_each() -> None:
    disk = Disk(64, set(range(64)), needed=32, width=4)
    disk.place.work(4)
    assert disk.place.lines[0].most == 4, "it was alone"
    assert {line.most for line in disk.place.lines[1:]} <= {0, 1} and len(disk.place.moved) == 64


def test_threads_that_share_a_wide_line_have_an_eighth_of_it_each() -> None:
    finished = threading.Event()
    touched: list[int] = []

    def touch(path: str) -> None:
        touched.append(threading.get_ident())
        if touched[-1] != touched[0]:
            if path == "60":
                finished.set()
            return
        # Sixteen tell that the disk is slow; then the other does all the rest.
        assert touched.count(touched[0]) <= 16 or finished.wait(60), "nobody came"
        place.hand.wait(0.002)

    place = Place(60, opening=touch, landing=touch, clock=lambda: 0.0)
    place.work(2)
    assert place.lines[1].most == 8 and len(place.moved) == 60


# -- the end of a run that is stopped ------------------------------------------------------------------------------


def test_a_stop_is_seen_by_those_who_wait_to_help_and_what_hangs_is_removed_from_the_disk() -> None:
    hanging, released = threading.Event(), threading.Event()

    def landing(path: str) -> None:
        if path == "2":
            hanging.set()
            released.wait(120)

    place = Place(3, 2, landing=landing)
    threads = [threading.Thread(target=place.lane.run, daemon=True) for _ in range(2)]
    threads[0].start()
    assert hanging.wait(60)
    threads[1].start()
    try:
        threads[1].join(0.1)
        assert threads[1].is_alive(), "it waits until help is needed"
        place.run.stop.set()
        place.lane.wake()
        threads[1].join(60)
        assert not threads[1].is_alive() and len(place.lines) == 1
        place.lane.abandon()
        assert sorted(event for event in place.events if event.startswith("abandon")) == ["abandon 2", "abandon 3"]
    finally:
        released.set()
    threads[0].join(60)
    assert not threads[0].is_alive() and place.lines[0].closed == 1
    # What was on its way and came in counts; nothing is begun any more.
    assert place.moved == ["1", "2"] and not place.failed
