"""Resumed downloads: only after verification, only of the same version, only of our own part files."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.base.errors import StorageError, TransferCancelledError
from blobsync.base.events import Listener
from blobsync.base.formatting import size_text
from blobsync.base.locations import LocalLocation
from blobsync.direct.large_download import LargeDownloadJob
from blobsync.direct.thread_pool import RunState, Stopping, WorkerPool
from blobsync.local.files import LocalFolder
from blobsync.local.resume_records import RangeRecord, RangeRecords, UnfinishedDownload
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import MoveReport, MoveTask
from tests.fakes.project_context import DEFAULTS, World, account, cluster
from tests.fakes.store import Request
from tests.fakes.tasks import noticed_by
from tests.waiting import wait_until

MIB = 1 << 20
SIZE = 40 * MIB + 5
BODY = random.Random(5).randbytes(SIZE)
NAME = "store/data/large"
DIRECT = TransferOptions(engine="direct")
PATIENCE = 60.0


def new_world(root: Path) -> World:
    """A project with one large blob, whose downloads are on record from the first byte on."""
    world = World(root / "project", cluster("eu", data=account("eu")))
    (root / "state").mkdir(mode=0o700)
    world.unfinished = RangeRecords(StateDir(root / "state"), worth_seconds=0.0)
    world.store("eu").add(NAME, BODY)
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return new_world(tmp_path)


def on_record(world: World) -> int:
    assert world.unfinished is not None
    return sum(size for _, size in world.unfinished.all())


def await_record(world: World) -> None:
    """Wait until there is a record: what arrives earlier is put on it with later pieces, of which there may be none."""
    assert world.unfinished is not None
    if not world.unfinished.worth_seconds:
        assert wait_until(lambda: world.unfinished is not None and any(world.unfinished.all()), seconds=PATIENCE)


def ctrl_c(noticed: threading.Event) -> None:
    """Send Ctrl-C to the main thread, and wait until the run has noticed it."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    assert noticed.wait(PATIENCE)


def stop_after(world: World, requests: int, noticed: threading.Event) -> None:
    """Ctrl-C with the request that comes after so many, when those are on record."""
    seen: list[Request] = []
    before_all = on_record(world)
    lock = threading.Lock()

    def before(request: Request) -> None:
        if request.operation != "get":
            return
        await_record(world)
        with lock:
            seen.append(request)
            number = len(seen)
        if number > requests + 1:
            assert noticed.wait(PATIENCE)
        elif number > requests:
            wanted = before_all + sum(each.size for each in seen[:requests])
            # A thread that is alone saves a row with its next one, or when it is stopped.
            wait_until(lambda: on_record(world) >= wanted, seconds=10)
            ctrl_c(noticed)

    world.store("eu").before = before


def interrupted(world: World, requests: int = 3) -> str:
    noticed = threading.Event()
    stop_after(world, requests, noticed)
    world.stopping = noticed_by(noticed)
    with pytest.raises(TransferCancelledError) as stopped:
        world.carry_out(world.plan("d", "data", options=DIRECT))
    world.stopping = Stopping()
    world.store("eu").before = lambda _: None
    world.store("eu").requests.clear()
    return stopped.value.message


def again(world: World, options: TransferOptions = DIRECT) -> TransferResult:
    return world.carry_out(world.plan("d", "data", options=options))


def fetched(world: World) -> int:
    return sum(request.size for request in world.store("eu").asked("get"))


def local(world: World) -> Path:
    return world.root / "data" / "large"


def part_of(world: World) -> Path:
    (part,) = local(world).parent.glob(".blobsync-*.part")
    return part


def nothing_is_left(world: World) -> None:
    """Neither a part file nor a record."""
    assert [path.name for path in local(world).parent.iterdir()] == ["large"]
    assert world.unfinished is not None and list(world.unfinished.all()) == []


def test_it_goes_on_from_what_is_there(world: World) -> None:
    message = interrupted(world)
    assert " of unfinished files are kept, and the next run resumes from there" in message
    plan = world.plan("d", "data", options=DIRECT)
    there = plan.bytes_on_record
    assert 8 * MIB <= there < SIZE and f"{size_text(there)} of" in message
    result = world.carry_out(plan)
    assert (result.ok, result.bytes_reused, result.bytes_transferred) == (True, there, SIZE - there)
    assert fetched(world) == SIZE - there
    assert local(world).read_bytes() == BODY
    nothing_is_left(world)


def test_it_can_be_stopped_again_and_again(world: World) -> None:
    there = 0
    for _ in range(4):
        interrupted(world, requests=1)
        now = world.plan("d", "data", options=DIRECT).bytes_on_record
        assert now > there
        there = now
    assert again(world).ok
    assert fetched(world) == SIZE - there
    assert local(world).read_bytes() == BODY
    nothing_is_left(world)


def test_a_line_that_breaks_keeps_what_came(world: World) -> None:
    seen: list[int] = []

    def before(request: Request) -> None:
        seen.append(1)
        number = len(seen)
        if request.operation == "get":
            await_record(world)
        if request.operation == "get" and number > 4:
            assert wait_until(lambda: on_record(world))
            raise StorageError("out of order", status=500)

    plan = world.plan("d", "data", options=DIRECT)
    seen.clear()
    world.store("eu").before = before
    assert not world.carry_out(plan).ok
    assert not local(world).exists()
    world.store("eu").before = lambda _: None
    there = world.plan("d", "data", options=DIRECT).bytes_on_record
    assert there > 0
    assert again(world).bytes_reused == there
    assert local(world).read_bytes() == BODY
    nothing_is_left(world)


def test_another_version_starts_anew(world: World) -> None:
    interrupted(world)
    other = random.Random(6).randbytes(SIZE)
    world.store("eu").add(NAME, other)
    assert world.plan("d", "data", options=DIRECT).bytes_on_record == 0
    result = again(world)
    assert (result.ok, result.bytes_reused, fetched(world)) == (True, 0, SIZE)
    assert local(world).read_bytes() == other
    nothing_is_left(world)


def flipped(part: Path, world: World) -> None:
    with part.open("r+b") as file:
        for at in range(0, SIZE, MIB):
            file.seek(at + MIB // 2)
            file.write(b"\xff\xfe")


def one_wrong(part: Path, world: World) -> None:
    """All but the last range that is on record is right."""
    assert world.unfinished is not None
    ((of, _),) = world.unfinished.all()
    record = world.unfinished.take(of.destination)
    assert record is not None
    last = record.ranges[-1]
    record.close()
    with part.open("r+b") as file:
        file.seek(last.start + last.length - 1)
        file.write(b"\0" if BODY[last.start + last.length - 1] else b"\1")


def truncated(part: Path, world: World) -> None:
    os.truncate(part, SIZE // 2)


def grown(part: Path, world: World) -> None:
    os.truncate(part, SIZE + 1)


def link(part: Path, world: World) -> None:
    part.unlink()
    part.symlink_to(world.root / "victim")


def second_name(part: Path, world: World) -> None:
    os.link(part, world.root / "second")


def another_file(part: Path, world: World) -> None:
    """The same bytes in another file."""
    body = part.read_bytes()
    part.rename(world.root / "second")
    part.write_bytes(body)


def victims_file(part: Path, world: World) -> None:
    part.unlink()
    os.link(world.root / "victim", part)


def fifo(part: Path, world: World) -> None:
    part.unlink()
    os.mkfifo(part)


def folder(part: Path, world: World) -> None:
    part.unlink()
    part.mkdir()


def writable_for_all(part: Path, world: World) -> None:
    part.chmod(0o666)


def gone(part: Path, world: World) -> None:
    part.unlink()


@pytest.mark.parametrize(
    "change",
    [flipped, truncated, grown, link, second_name, another_file, victims_file, fifo, folder, writable_for_all, gone],
)
def test_a_part_file_that_is_not_as_it_was_left_counts_for_nothing(
    world: World, change: Callable[[Path, World], None]
) -> None:
    interrupted(world)
    victim = world.root / "victim"
    victim.write_bytes(bytes(SIZE))
    part = part_of(world)
    change(part, world)
    result = again(world)
    assert (result.ok, result.bytes_reused, fetched(world)) == (True, 0, SIZE)
    assert local(world).read_bytes() == BODY
    assert victim.read_bytes() == bytes(SIZE)
    assert world.unfinished is not None and list(world.unfinished.all()) == []
    assert sorted(set(local(world).parent.iterdir()) - {part}) == [local(world)]
    # Links and folders are not of ours to remove.
    assert not os.path.lexists(part) or change in (link, folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_part_file_of_another_user_counts_for_nothing(world: World) -> None:
    interrupted(world)
    os.chown(part_of(world), 12345, 12345)
    result = again(world)
    assert (result.ok, result.bytes_reused) == (True, 0)
    assert local(world).stat().st_uid == os.geteuid()
    assert local(world).read_bytes() == BODY


def test_a_single_wrong_range_is_fetched_again(world: World) -> None:
    interrupted(world)
    one_wrong(part_of(world), world)
    there = world.plan("d", "data", options=DIRECT).bytes_on_record
    result = again(world)
    assert result.ok and 0 < result.bytes_reused < there
    assert fetched(world) == SIZE - result.bytes_reused
    assert local(world).read_bytes() == BODY


def test_wrong_bytes_are_noticed_where_the_blob_has_no_md5(world: World) -> None:
    world.store("eu").add(NAME, BODY, with_md5=False)
    interrupted(world)
    one_wrong(part_of(world), world)
    assert again(world).ok
    assert local(world).read_bytes() == BODY


def test_what_another_run_works_on_is_left_to_it(world: World) -> None:
    interrupted(world)
    with part_of(world).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = again(world)
        assert (result.ok, result.bytes_reused) == (True, 0)
        assert local(world).read_bytes() == BODY
        assert part_of(world).exists(), "the other run has it"
    assert world.run("d", "data").ok
    nothing_is_left(world)


def test_what_does_not_move_any_more_is_not_kept(world: World) -> None:
    interrupted(world)
    local(world).write_bytes(BODY)
    result = again(world)
    assert (result.ok, result.transferred, fetched(world)) == (True, 0, 0)
    nothing_is_left(world)


def test_another_engine_keeps_nothing(world: World) -> None:
    interrupted(world)
    plan = world.plan("d", "data", options=TransferOptions(engine="azcopy"))
    assert plan.bytes_on_record == 0
    assert world.carry_out(plan).ok
    nothing_is_left(world)


def test_downloads_of_other_files_keep_it(world: World) -> None:
    interrupted(world)
    world.store("eu").add("store/data/sub/small", b"small")
    assert world.carry_out(world.plan("d", "data/sub", options=DEFAULTS)).ok
    world.store("eu").add("store/data/beside", b"small")
    assert world.carry_out(world.plan("d", "data/beside", options=DEFAULTS)).ok
    assert part_of(world).exists()
    assert world.plan("d", "data", options=DIRECT).bytes_on_record > 0


def test_a_file_that_is_over_soon_leaves_nothing(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.unfinished = RangeRecords(StateDir(tmp_path / "state"), worth_seconds=60)
    message = interrupted(world, requests=0)
    assert "kept" not in message
    assert not list(local(world).parent.iterdir())


class SavedAtOnce(RangeRecords):
    """Of which each range is saved at once, whenever the download becomes worth a record."""

    def start(self, of: UnfinishedDownload) -> RangeRecord | None:
        self.worth_seconds = 0
        return super().start(of)


def test_what_landed_before_the_record_began_is_put_on_it(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.unfinished = SavedAtOnce(StateDir(tmp_path / "state"), worth_seconds=0.3)
    plan = world.plan("d", "data", options=DIRECT)
    numbers, noticed = itertools.count(1), threading.Event()
    wanted: list[int] = []

    def before(request: Request) -> None:
        number = next(numbers) if request.operation == "get" else 0
        if number == 5:
            # The first four land meanwhile, and then it is time for a record.
            time.sleep(0.6)
        elif number == 6:
            wanted.append(SIZE - request.size)
            assert wait_until(lambda: on_record(world) == wanted[0])
            ctrl_c(noticed)

    world.store("eu").before = before
    world.stopping = noticed_by(noticed)
    with pytest.raises(TransferCancelledError):
        world.carry_out(plan)
    world.stopping = Stopping()
    world.store("eu").before = lambda _: None
    result = again(world)
    assert result.ok and [result.bytes_reused] == wanted
    assert local(world).read_bytes() == BODY


class SmallPieces:
    """The direct engine's downloads in pieces of a few bytes."""

    name = "direct"

    def __init__(self, records: RangeRecords | None) -> None:
        self._records = records

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        run = RunState(task, report, listener, MIB)
        source, destination = task.part.source, task.part.destination
        assert isinstance(source, OpenBlob) and isinstance(destination, LocalLocation)
        folder = LocalFolder(destination.path, destination.boundary)
        jobs = [
            LargeDownloadJob(run, each, source.store, source.at(each.path), folder, each.path, 1000, self._records)
            for each in task.actions
        ]
        WorkerPool(run, jobs, 3).work()


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1001, 20_000),
    breaks=st.lists(st.integers(0, 12), max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 3000)), max_size=3),
    with_md5=st.booleans(),
)
def test_whatever_breaks_and_damages_it_the_file_is_the_blob(
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    breaks: list[int],
    damage: list[tuple[int, int]],
    with_md5: bool,
) -> None:
    world = new_world(tmp_path_factory.mktemp("w"))
    store, body = world.store("eu"), BODY[:size]
    store.add(NAME, body, with_md5=with_md5)
    for number in breaks:
        left = iter(range(number))

        def before(request: Request, left: Iterator[int] = left) -> None:
            if request.operation == "get" and next(left, None) is None:
                raise StorageError("out of order", status=500)

        plan = world.plan("d", "data", options=DIRECT)
        store.before = before
        broken = world.carry_out(plan, direct=lambda: SmallPieces(world.unfinished))
        store.before = lambda _: None
        if broken.ok:
            break
        assert not local(world).exists()
        for part in local(world).parent.glob(".blobsync-*.part"):
            with part.open("r+b") as file:
                for at, length in damage:
                    file.seek(min(at, size - 1))
                    file.write(bytes(max(0, min(length, size - at))))
    store.requests.clear()
    done = world.carry_out(world.plan("d", "data", options=DIRECT), direct=lambda: SmallPieces(world.unfinished))
    assert done.ok and local(world).read_bytes() == body
    assert fetched(world) == done.bytes_transferred
    nothing_is_left(world)
