"""The direct engine: how each file moves, the number of connections, and failures at the start."""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, LoginRequiredError
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.redaction import SasToken
from blobsync.direct.engine import FAR, FAR_FEW, NEAR, DirectEngine
from blobsync.direct.thread_pool import MIB
from blobsync.local.files import hash_file
from blobsync.local.resume_records import BlockJournal
from blobsync.plan.blocks import ONE_REQUEST
from blobsync.plan.transfer_plan import KeptAttributes, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, CopiedBlob, Order, Orders
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.store import MemoryOrders, MemoryStore, Request
from tests.fakes.tasks import RecordingListener, capped, copy, download, live_part, moved_by, upload

KIB = 1024


class Noting(MemoryOrders):
    def __init__(self, store: Line) -> None:
        super().__init__(store)
        self._line = store

    def begin(self, key: object, order: Order) -> None:
        self._line.in_lane.append(order.name.removeprefix("p/"))
        super().begin(key, order)
        self._line.most_in_lane = max(self._line.most_in_lane, self.under_way)


class Line(MemoryStore):
    """A container with a simulated response time of ``answers`` seconds."""

    def __init__(self, answers: float = 0.0, container: str = "data") -> None:
        super().__init__(container)
        self.answers = answers
        self.now = 0.0
        self.in_lane: list[str] = []
        self.most_in_lane = 0
        self.opened = 0
        self.given: list[SasToken | None] = []

    def engine(self, *, fewest_small: int = 1_000_000, processes: int = 1) -> DirectEngine:
        # Anew: behind what was asked before, 10 ms are not exactly 10 ms.
        self.now = 1000.0 if self.answers > 0.02 else 0.0
        return DirectEngine(fewest_small=fewest_small, processes=processes, clock=lambda: self.now)

    def head(self, name: str) -> BlobInfo | None:
        self.now += self.answers
        return super().head(name)

    def orders(self) -> Orders | None:
        if not self.takes_orders:
            return None
        self.opened += 1
        return Noting(self)

    def put_from_url(self, name: str, source_url: str, source_sas: SasToken | None, **more: Any) -> CopiedBlob:
        self.given.append(source_sas)
        return super().put_from_url(name, source_url, source_sas, **more)


def files(root: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name[-1:].encode() * size)
    return root


def small(count: int) -> dict[str, int]:
    return {f"f{number:03}": 3 for number in range(count)}


def all_moved(engine: DirectEngine, task: MoveTask) -> CollectedReport:
    report = moved_by(engine, task)
    assert not report.failed
    assert sorted(each.action.path for each in report.moved) == sorted(each.path for each in task.actions)
    return report


# -- which files go many at a time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [16, 17])
def test_many_small_files_go_many_at_a_time(tmp_path: Path, count: int) -> None:
    store = Line()
    all_moved(DirectEngine(), upload(files(tmp_path, small(count)), store, "p"))
    assert sorted(store.in_lane) == (sorted(small(count)) if count == 17 else [])
    assert len(store.blobs) == count


@pytest.mark.parametrize(("processes", "width"), [(1, 32), (2, 16), (8, 8)])
def test_so_many_small_files_are_under_way_to_begin_with(tmp_path: Path, processes: int, width: int) -> None:
    store = Line()
    # When twice as many have ended there may be more at a time, but then none is left.
    task = upload(files(tmp_path, small(2 * width)), store, "p")
    all_moved(store.engine(fewest_small=1, processes=processes), task)
    assert store.most_in_lane == width


def test_of_the_others_each_goes_by_itself(tmp_path: Path) -> None:
    store = Line()
    sizes = {"largest": 256 * KIB, "larger": 256 * KIB + 1, "delta": 1, "begun": 1, "plain": 1, "empty": 0}
    task = upload(files(tmp_path, sizes), store, "p")
    actions = [
        each._replace(delta=each.path == "delta", on_record=1 if each.path == "begun" else 0) for each in task.actions
    ]
    all_moved(store.engine(fewest_small=2), task._replace(actions=actions))
    assert sorted(store.in_lane) == ["empty", "largest", "plain"]
    assert {name.removeprefix("p/"): len(blob.body) for name, blob in store.blobs.items()} == sizes


def test_one_small_file_can_be_enough_and_none_is_not(tmp_path: Path) -> None:
    one, none = Line(), Line()
    all_moved(one.engine(fewest_small=1), upload(files(tmp_path / "a", {"s": 1}), one, "p"))
    all_moved(none.engine(fewest_small=0), upload(files(tmp_path / "b", {"l": 300 * KIB}), none, "p"))
    assert one.in_lane == ["s"] and one.opened == 1
    assert none.in_lane == [] and none.opened == 0


def test_what_has_a_cap_or_keeps_its_times_or_no_such_connections_goes_one_by_one(tmp_path: Path) -> None:
    folder = files(tmp_path, small(3))
    with_cap, with_times, without = Line(), Line(), Line()
    without.takes_orders = False
    all_moved(with_cap.engine(fewest_small=1), capped(upload(folder, with_cap, "p"), 1000.0))
    all_moved(without.engine(fewest_small=1), upload(folder, without, "p"))
    task = upload(folder, with_times, "p")
    task = task._replace(part=replace(task.part, kept=KeptAttributes(times=True)))
    all_moved(with_times.engine(fewest_small=1), task)
    assert with_cap.in_lane == with_times.in_lane == without.in_lane == []
    assert len(with_cap.blobs) == len(with_times.blobs) == len(without.blobs) == 3


def test_a_file_of_which_the_plan_saw_nothing_is_looked_at_by_itself(tmp_path: Path) -> None:
    store = Line()
    task = upload(files(tmp_path, small(2)), store, "p")
    blind = task._replace(actions=[task.actions[0]._replace(source=None), task.actions[1]])
    report = moved_by(store.engine(fewest_small=1), blind)
    assert store.in_lane == ["f001"]
    assert len(report.moved) + len(report.failed) == 2


# -- by the response time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "size", "asked"),
    [(16, 128 * KIB, False), (17, 1, True), (1, 2 * MIB, False), (1, 2 * MIB + 1, True), (2, MIB + KIB, True)],
)
def test_the_line_is_measured_only_where_there_is_enough_to_do(
    tmp_path: Path, count: int, size: int, asked: bool
) -> None:
    store = Line()
    task = upload(files(tmp_path, dict.fromkeys(small(count), size)), store, "p")
    store.requests.clear()
    all_moved(store.engine(), task)
    assert [request.name for request in store.asked("head")] == (["p/f000"] if asked else [])


@pytest.mark.parametrize(
    ("answers", "count", "single", "ranges"),
    [
        (0.009, 3, 16 * MIB, 8 * MIB),
        (0.010, 3, ONE_REQUEST, MIB),
        (0.5, 3, ONE_REQUEST, MIB),
        (0.5, 63, ONE_REQUEST, MIB),
        (0.5, 64, 4 * MIB, 4 * MIB),
        (0.009, 64, 16 * MIB, 8 * MIB),
    ],
)
def test_a_long_line_gets_smaller_requests(
    tmp_path: Path, answers: float, count: int, single: int, ranges: int
) -> None:
    sizes = small(count - 2)
    store = Line(answers)
    up = upload(files(tmp_path / "up", sizes | {"x-one": single, "x-more": single + 1}), store, "p")
    all_moved(store.engine(), up)
    assert {request.name for request in store.asked("put_block_list")} == {"p/x-more"}
    down = Line(answers)
    for name, size in (sizes | {"x-one": ranges, "x-more": ranges + 1}).items():
        down.add(f"p/{name}", b"d" * size)
    names = sorted(name.removeprefix("p/") for name in down.blobs)
    all_moved(down.engine(), download(down, "p", tmp_path / "down", names))
    assert len([each for each in down.asked("get") if each.name == "p/x-one"]) == 1
    assert len([each for each in down.asked("get") if each.name == "p/x-more"]) == 2


def test_of_a_file_in_one_range_no_blocks_are_compared(tmp_path: Path) -> None:
    store = Line()
    sizes = {"one": NEAR.range, "more": NEAR.range + 1}
    for name, size in sizes.items():
        store.add(f"p/{name}", b"d" * size)
    all_moved(store.engine(), download(store, "p", files(tmp_path, sizes), ["one", "more"]))
    assert [request.name for request in store.asked("block_list")] == ["p/more"]
    assert {name: (tmp_path / name).read_bytes() == b"d" * size for name, size in sizes.items()} == dict.fromkeys(
        sizes, True
    )


class Together:
    """How many requests of a kind are at the service at once: each stays until ``expected`` are there, and a moment."""

    def __init__(self, operation: str, expected: int) -> None:
        self._operation, self._expected = operation, expected
        self._lock = threading.Lock()
        self._there = threading.Event()
        self._now = self.most = 0

    def __call__(self, request: Request) -> None:
        if request.operation != self._operation:
            return
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            if self._now >= self._expected:
                self._there.set()
        self._there.wait(60)
        # All concurrent requests have arrived by then.
        time.sleep(0.1)
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize(
    ("processes", "answers", "threads"),
    [(1, 0.0, 16), (2, 0.0, 8), (5, 0.0, 8), (1, 0.5, 64), (4, 0.5, 16), (9, 0.5, 8)],
)
def test_so_many_files_are_sent_at_a_time(tmp_path: Path, processes: int, answers: float, threads: int) -> None:
    store = Line(answers)
    store.before = at_once = Together("put", threads)
    all_moved(store.engine(processes=processes), upload(files(tmp_path, small(threads + 6)), store, "p"))
    assert at_once.most == threads
    assert NEAR.threads == 16 and FAR.threads == FAR_FEW.threads == 64


def test_an_engine_that_nobody_told_of_others_has_all_connections(tmp_path: Path) -> None:
    store = Line()
    store.before = at_once = Together("put", 16)
    all_moved(DirectEngine(), upload(files(tmp_path, small(16)), store, "p"))
    assert at_once.most == 16


@pytest.mark.parametrize(("size", "threads"), [(30 * MIB, 4), (1, 1)])
def test_there_are_no_more_threads_than_pieces(tmp_path: Path, size: int, threads: int) -> None:
    store = Line()
    store.add("p/a", b"d" * size)
    known = set(threading.enumerate())
    seen: list[int] = []

    def note(request: Request) -> None:
        at_once(request)
        seen.append(len(set(threading.enumerate()) - known))

    store.before, at_once = note, Together("get", threads)
    all_moved(store.engine(), download(store, "p", tmp_path, ["a"]))
    assert at_once.most == threads and max(seen) == threads


@pytest.mark.parametrize(("processes", "size", "at_a_time"), [(1, 16 * MIB, 2), (8, 8 * MIB, 2), (8, 8 * MIB + 1, 1)])
def test_processes_share_the_memory(tmp_path: Path, processes: int, size: int, at_a_time: int) -> None:
    store = Line()
    store.before = at_once = Together("put", at_a_time)
    sizes = dict.fromkeys(small(2), size)
    all_moved(store.engine(processes=processes), upload(files(tmp_path, sizes), store, "p"))
    assert at_once.most == at_a_time


def test_where_the_disk_is_slow_others_help_with_connections_of_their_own(tmp_path: Path) -> None:
    others, told = threading.Event(), itertools.count()

    class Opening(Line):
        def orders(self) -> Orders | None:
            if self.opened:
                others.set()
            return super().orders()

    class Slow(LocalState):
        """As on a slow disk, until others have come to help."""

        def is_still(self, found: os.stat_result) -> bool:
            others.wait(0.005 if next(told) < 70 else 60)
            return LocalState.is_still(self, found)

    store, report = Opening(), CollectedReport()
    task = upload(files(tmp_path, small(80)), store, "p")
    slow = [each._replace(source=Slow.of(os.stat(tmp_path / each.path))) for each in task.actions]
    store.engine(fewest_small=1).move(task._replace(actions=slow), report, RecordingListener())
    assert len(report.moved) == len(store.blobs) == 80 and not report.failed
    assert others.is_set() and store.opened > 1


# -- names, ends, keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fewest", [1, 1_000_000])
def test_a_file_gets_its_own_name_or_the_one_that_the_plan_gives_it(tmp_path: Path, fewest: int) -> None:
    store = Line()
    task = upload(files(tmp_path / "up", {"a": 1, "b": 2}), store, "p")
    renamed = task._replace(actions=[task.actions[0]._replace(target="sub/c"), task.actions[1]])
    all_moved(store.engine(fewest_small=fewest), renamed)
    assert set(store.blobs) == {"p/sub/c", "p/b"}
    back = download(store, "p", tmp_path / "down", ["sub/c", "b"])
    back = back._replace(actions=[back.actions[0]._replace(target="d"), back.actions[1]])
    all_moved(store.engine(fewest_small=fewest), back)
    assert sorted(path.name for path in (tmp_path / "down").rglob("*")) == ["b", "d"]


def test_a_single_file_is_put_where_it_was_named(tmp_path: Path) -> None:
    store = Line()
    folder = files(tmp_path / "up", {"a": 1})
    all_moved(store.engine(), upload(folder / "a", store, "p/x", [""]))
    all_moved(store.engine(), download(store, "p/x", tmp_path / "new" / "y", [""]))
    assert (tmp_path / "new" / "y").read_bytes() == b"a"
    # One file of a folder is in it, as any number of them.
    all_moved(store.engine(), download(store, "p", tmp_path / "one", ["x"]))
    assert (tmp_path / "one" / "x").read_bytes() == b"a"


def test_nothing_to_move_moves_nothing(tmp_path: Path) -> None:
    store = Line()
    report = moved_by(store.engine(fewest_small=0), upload(tmp_path, store, "p", []))
    assert not report.moved and not report.failed and not store.requests and not store.opened
    assert moved_by(store.engine(), download(store, "p", tmp_path, [])) == CollectedReport()


def test_from_a_folder_to_a_folder_files_are_copied_with_their_times(tmp_path: Path) -> None:
    task = upload(files(tmp_path / "from", {"a": 3, "sub/b": 0}), MemoryStore(), "p")
    os.utime(tmp_path / "from/a", ns=(5, 7))
    ends = LocalLocation(tmp_path / "from"), LocalLocation(tmp_path / "to")
    actions = tuple(each._replace(source=LocalState.of(os.stat(ends[0].at(each.path)))) for each in task.actions)
    report = moved_by(DirectEngine(), task._replace(part=live_part(Route.DOWNLOAD, *ends), actions=actions))
    assert {each.action.path: each.destination for each in report.moved} == {
        each.path: hash_file(tmp_path / "to" / each.path) for each in actions
    }
    assert ((tmp_path / "to/a").read_text(), (tmp_path / "to/a").stat().st_mtime_ns) == ("aaa", 7)


@pytest.mark.parametrize("key", [SasToken("sv=1&sig=x"), None])
def test_a_copy_reads_its_source_with_the_key_that_is_for_it(key: SasToken | None) -> None:
    here, there = MemoryStore("here"), Line(container="there")
    there._others = {"here": here}
    here.add("p/a", b"body")
    asked: list[OpenBlob] = []

    def key_of(end: OpenBlob) -> SasToken | None:
        asked.append(end)
        return key

    engine = DirectEngine(source_sas=key_of if key else None)
    task = copy(here, "p", there, "q", ["a"])
    all_moved(engine, task)
    assert there.body("q/a") == b"body"
    assert there.given == [key] and asked == ([task.part.source] if key else [])


def test_a_copy_of_small_files_needs_no_connections_of_their_own() -> None:
    here, there = Line(container="here"), Line(container="there")
    there._others = {"here": here}
    for name in "ab":
        here.add(f"p/{name}", b"body")
    all_moved(there.engine(fewest_small=1), copy(here, "p", there, "q", ["a", "b"]))
    assert sorted(there.blobs) == ["q/a", "q/b"] and not here.opened and not there.opened


# -- what cannot begin ---------------------------------------------------------------------------------------------


def refuse(*_: object) -> SasToken | None:
    raise LoginRequiredError("log in", hint="az login")


def test_without_a_login_every_file_is_a_failure(tmp_path: Path) -> None:
    here, there = MemoryStore("here"), MemoryStore("there")
    for name in "ab":
        here.add(f"p/{name}", b"body")
    engine = DirectEngine(source_sas=refuse)
    report = moved_by(engine, copy(here, "p", there, "q", ["a", "b"]))
    assert [(each.path, failure.code) for each, failure in report.failed] == [
        ("a", FailureCode.LOGIN_REQUIRED),
        ("b", FailureCode.LOGIN_REQUIRED),
    ]
    assert not there.asked("put_from_url") and not there.asked("put_block_from_url") and not there.blobs


def test_without_a_folder_to_write_to_every_file_is_a_failure(tmp_path: Path) -> None:
    store = Line()
    for name in "ab":
        store.add(f"p/{name}", b"body")
    (tmp_path / "file").write_bytes(b"no folder")
    report = moved_by(store.engine(), download(store, "p", tmp_path / "file" / "x", ["a", "b"]))
    assert [each.path for each, _ in report.failed] == ["a", "b"] and not report.moved
    assert (tmp_path / "file").read_bytes() == b"no folder"


def test_what_was_put_is_remembered_although_the_run_broke_off(tmp_path: Path) -> None:
    store, saved = Line(), []

    class Watched(BlockJournal):
        def save(self) -> None:
            saved.append(len(store.blobs))
            super().save()

    def fail(request: Request) -> None:
        raise ZeroDivisionError("ours")

    engine = DirectEngine(journal=Watched(tmp_path / "unfinished.sqlite"))
    task = upload(files(tmp_path / "up", {"a": 1}), store, "p")
    moved_by(engine, task)
    assert saved[-1:] == [1]
    saved.clear()
    store.before = fail
    with pytest.raises(ZeroDivisionError):
        moved_by(engine, task)
    assert saved
