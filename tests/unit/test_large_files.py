"""A file that several workers move in ranges: one commit, of blocks that were read twice with the same result."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from blobsync.base.errors import AccessDeniedError, FailureCode
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.direct.engine import DirectEngine
from blobsync.direct.file_blocks import BlockOrder, commit_blocks
from blobsync.local.errors import ChangedWhileReadError
from blobsync.local.index import Index
from blobsync.plan.blocks import BlockRange
from blobsync.spread.earlier_records import Merged, leave_told, merge_records
from blobsync.spread.record import Answer, FileRecord, NamedBlock, Ready, answer_line
from blobsync.spread.shared_store import FolderStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties, block_id_of
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordingListener, copy, moved_by, upload
from tests.unit.test_spread_workers import Threads, clock

_MIB = 1 << 20
# Blocks of 2 MiB; a range has two or three.
_BIG = os.urandom(11 * _MIB + 5)
_MD5 = hashlib.md5(_BIG).digest()
_RANGE = 4 * _MIB


@pytest.fixture
def place(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "place")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("box")


@pytest.fixture
def task(tmp_path: Path, store: MemoryStore) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    (root / "big").write_bytes(_BIG)
    for number in range(5):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, store, "sets")


@contextmanager
def _alone(place: FolderStore, task: MoveTask, kind: type[Threads] = Threads) -> Iterator[Threads]:
    crew = kind(place, task)
    yield crew
    crew.join()


def _forget(place: FolderStore) -> None:
    """The documents of a coordinator that gave up its shards."""
    for folder in ("done", "records"):
        for name in place.names(folder):
            place.remove(f"{folder}/{name}")


def _moved(place: FolderStore, task: MoveTask, listener: RecordingListener | None = None) -> CollectedReport:
    with _alone(place, task) as crew:
        return moved_by(SpreadEngine(DirectEngine(), place, crew, 2, poll=0.01, range_bytes=_RANGE), task, listener)


def test_a_large_file_is_put_in_ranges_and_committed_once_with_its_md5(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    listener = RecordingListener()
    report = _moved(place, task, listener)
    assert sorted(each.action.path for each in report.moved) == ["big", *(f"f{number}" for number in range(5))]
    assert not report.failed and listener.bytes == len(_BIG) + sum(range(5))
    assert store.body("sets/big") == _BIG and store.blobs["sets/big"].info.md5 == _MD5
    assert len(store.asked("put_block")) == 6 and len(store.asked("put_block_list")) == 1
    (moved,) = [each for each in report.moved if each.action.path == "big"]
    # Not verified yet.
    assert moved.destination is None and moved.source is not None and moved.source.md5 == _MD5
    # The reader, three ranges, and the small files.
    assert len(place.names("shards")) == 3 + 1 + 2


def test_a_part_that_is_one_large_file_is_cut_too(tmp_path: Path, place: FolderStore, store: MemoryStore) -> None:
    (tmp_path / "big").write_bytes(_BIG)
    report = _moved(place, upload(tmp_path / "big", store, "sets/big", [""]))
    assert [each.action.path for each in report.moved] == [""] and store.body("sets/big") == _BIG


def test_without_a_length_for_ranges_no_file_is_cut(task: MoveTask, place: FolderStore, store: MemoryStore) -> None:
    with _alone(place, task) as crew:
        report = moved_by(SpreadEngine(DirectEngine(), place, crew, 2, poll=0.01), task)
    assert len(report.moved) == 6 and not store.asked("put_block_list")[1:]
    assert '"blocks"' not in "".join((place.read(f"shards/{name}") or b"").decode() for name in place.names("shards"))


def test_a_worker_puts_only_the_blocks_that_a_lost_one_has_not_named(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    engine = SpreadEngine(
        DirectEngine(), place, Threads(place, task, "lost"), 2, watch=clock(), range_bytes=_RANGE, keep_records=True
    )
    lost = moved_by(engine, task)
    assert len(lost.failed) == 6 and not store.blobs
    _forget(place)
    # One block of the first range was put before its worker was lost.
    first = next(name for name in place.names("shards") if b'"blocks":[0,2]' in (place.read(f"shards/{name}") or b""))
    data = _BIG[: 2 * _MIB]
    block = NamedBlock(0, block_id_of(hashlib.sha256(data).digest()))
    store.put_block("sets/big", block.id, data)
    place.write(f"records/{first}~node7.0-00000000~000000", f"{answer_line(Ready())}\n{answer_line(block)}\n".encode())
    report = _moved(place, task)
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG
    assert len(store.asked("put_block")) == 1 + 5


class _Killed(NamedTuple):
    """The store after a command was killed when the first block of the large file was put and recorded."""

    place: FolderStore
    task: MoveTask
    known: Index

    def prepare(self) -> None:
        engine = SpreadEngine(
            DirectEngine(),
            self.place,
            Threads(self.place, self.task, "lost"),
            2,
            watch=clock(),
            range_bytes=_RANGE,
            keep_records=True,
        )
        moved_by(engine, self.task)
        _forget(self.place)
        first = next(name for name in self.place.names("shards") if b'"blocks":[0,2]' in self._shard(name))
        data = _BIG[: 2 * _MIB]
        block = NamedBlock(0, block_id_of(hashlib.sha256(data).digest()))
        end = self.task.part.destination
        assert isinstance(end, OpenBlob)
        end.store.put_block("sets/big", block.id, data)
        # The last piece is incomplete, and another names a block that is not in the range.
        lines = answer_line(Ready()), answer_line(block), answer_line(replace(block, index=3)), '{"block": 1, "id"'
        self.place.write(f"records/{first}~node7.0-00000000~000000", "\n".join(lines).encode())

    def next_run(
        self, task: MoveTask | None = None, listener: RecordingListener | None = None, crew: type[Threads] = Threads
    ) -> CollectedReport:
        merged = self.merge()
        with _alone(self.place, self.task, crew) as crew_of_it:
            engine = SpreadEngine(
                DirectEngine(),
                self.place,
                crew_of_it,
                2,
                poll=0.01,
                range_bytes=_RANGE,
                first=merged.next_number,
                earlier=merged.blocks,
            )
            return moved_by(engine, task or self.task, listener)

    def merge(self) -> Merged:
        return merge_records(self.place, [self.task.part], lambda key: self.known.pair(*key.roots))

    def _shard(self, name: str) -> bytes:
        return self.place.read(f"shards/{name}") or b""


@pytest.fixture
def killed(place: FolderStore, task: MoveTask, tmp_path: Path) -> Iterator[_Killed]:
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    killed = _Killed(place, task, index)
    killed.prepare()
    yield killed
    index.close()


def test_blocks_that_workers_of_a_killed_command_have_put_are_not_put_again(
    killed: _Killed, store: MemoryStore
) -> None:
    listener = RecordingListener()
    report = killed.next_run(listener=listener)
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG and store.blobs["sets/big"].info.md5 == _MD5
    assert len(store.asked("put_block")) == 1 + 5
    assert (listener.bytes, listener.reused) == (len(_BIG) + sum(range(5)) - 2 * _MIB, 2 * _MIB)
    assert {each.action.path: each.reused for each in report.moved if each.reused} == {"big": 2 * _MIB}


class _AfterTwoOthers(Threads):
    """Workers that find two lost attempts of each shard."""

    def start(self) -> None:
        for name in self.place.names("shards"):
            for worker in ("node7.0", "node7.1"):
                record = f"records/{name}~{worker}-00000000~000000"
                self.place.write(record, answer_line(Ready()).encode())
        super().start()


def test_what_the_parent_says_of_blocks_from_before_is_no_try_of_a_worker(killed: _Killed, store: MemoryStore) -> None:
    report = killed.next_run(crew=_AfterTwoOthers)
    assert len(report.moved) == 6 and len(store.asked("put_block")) == 1 + 5


def test_who_is_stopped_leaves_what_tells_of_blocks_and_nothing_else(killed: _Killed, store: MemoryStore) -> None:
    killed.place.write("stop", b"")
    assert leave_told(killed.place, files=False)
    assert len(killed.place.names("shards")) == len(killed.place.names("records")) == 1
    assert killed.place.read("stop") is None
    report = killed.next_run()
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG and len(store.asked("put_block")) == 1 + 5


def test_blocks_are_taken_over_from_one_killed_command_to_the_one_after_the_next(
    killed: _Killed, store: MemoryStore
) -> None:
    merged = killed.merge()
    crew = Threads(killed.place, killed.task, "lost")
    engine = SpreadEngine(
        DirectEngine(),
        killed.place,
        crew,
        2,
        watch=clock(),
        range_bytes=_RANGE,
        first=merged.next_number,
        keep_records=True,
        earlier=merged.blocks,
    )
    assert len(moved_by(engine, killed.task).failed) == 6
    for name in killed.place.names("done"):
        killed.place.remove(f"done/{name}")
    report = killed.next_run()
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG and len(store.asked("put_block")) == 1 + 5


def test_blocks_of_a_version_that_is_not_there_any_more_are_put_anew(
    killed: _Killed, store: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / "data" / "big").write_bytes(_BIG[::-1])
    report = killed.next_run(upload(tmp_path / "data", store, "sets"))
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG[::-1]
    assert len(store.asked("put_block")) == 1 + 6 and not [each for each in report.moved if each.reused]


def test_blocks_that_the_service_has_dropped_meanwhile_are_put_again_and_counted_right(
    killed: _Killed, store: MemoryStore
) -> None:
    store.blocks.pop("sets/big")
    listener = RecordingListener()
    report = killed.next_run(listener=listener)
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG
    assert (listener.bytes, listener.reused) == (len(_BIG) + sum(range(5)), 0)
    assert not [each for each in report.moved if each.reused]


def test_what_workers_told_of_ranges_is_no_file_for_the_next_command(
    task: MoveTask, place: FolderStore, tmp_path: Path
) -> None:
    with _alone(place, task) as crew:
        moved_by(SpreadEngine(DirectEngine(), place, crew, 2, poll=0.01, range_bytes=_RANGE), task)
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    merged = merge_records(place, [task.part], lambda key: index.pair(*key.roots))
    assert merged.files == 5 and not place.names("shards") and not place.names("records")
    assert not list(index.pair("data", "blobs").get(["x/big"]))
    index.close()


def test_blocks_that_another_writer_has_dropped_are_put_once_more(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    times = 0

    def drop(request: Request) -> None:
        nonlocal times
        if request.operation == "put_block_list":
            times += 1
            if times == 1:
                store.blocks.pop("sets/big")

    store.before = drop
    listener = RecordingListener()
    report = _moved(place, task, listener)
    assert len(report.moved) == 6 and store.body("sets/big") == _BIG and times == 2
    assert listener.bytes == len(_BIG) + sum(range(5))


def test_blocks_that_are_dropped_again_and_again_fail_the_file_by_name(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    def drop(request: Request) -> None:
        if request.operation == "put_block_list":
            store.blocks.pop("sets/big")

    store.before = drop
    report = _moved(place, task)
    assert len(report.moved) == 5
    assert [(action.path, failure.path) for action, failure in report.failed] == [("big", "data/x/big")]
    assert len(store.asked("put_block_list")) == 2 and len(store.asked("put_block")) == 2 * 6


def test_a_range_that_fails_fails_the_file_once_with_its_own_reason(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    def refuse(request: Request) -> None:
        if request.operation == "put_block":
            raise AccessDeniedError("no access to it", status=403)

    store.before = refuse
    report = _moved(place, task)
    assert len(report.moved) == 5 and "sets/big" not in store.blobs
    assert [(action.path, failure.code) for action, failure in report.failed] == [("big", FailureCode.ACCESS_DENIED)]


def test_somebody_elses_blob_is_not_replaced(task: MoveTask, place: FolderStore, store: MemoryStore) -> None:
    store.add("sets/big", b"another's")
    report = _moved(place, task)
    assert [failure.code for _, failure in report.failed] == [FailureCode.CHANGED_MEANWHILE]
    assert store.body("sets/big") == b"another's"


def test_a_file_that_two_workers_read_differently_is_not_committed(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    lost = SpreadEngine(DirectEngine(), place, Threads(place, task, "lost"), 2, watch=clock(), range_bytes=_RANGE)
    moved_by(lost, task)
    _forget(place)
    # The worker that read the file for its MD5 saw other bytes in the last block.
    reader = next(
        name for name in place.names("shards") if b'"only_read":true' in (place.read(f"shards/{name}") or b"")
    )
    (action,) = [each for each in task.actions if each.path == "big"]
    read = [_BIG[at : at + 2 * _MIB] for at in range(0, len(_BIG), 2 * _MIB)]
    read[-1] = b"other"
    named = [NamedBlock(index, block_id_of(hashlib.sha256(data).digest())) for index, data in enumerate(read)]
    assert isinstance(action.source, LocalState)
    told: list[Answer] = [Ready(), *named, FileRecord("big", replace(action.source, md5=_MD5))]
    lines = "".join(f"{answer_line(each)}\n" for each in told)
    place.write(f"records/{reader}~node7.0-00000000~000000", lines.encode())
    report = _moved(place, task)
    assert [(each.path, failure.code) for each, failure in report.failed] == [("big", FailureCode.CHECKSUM_MISMATCH)]
    assert "two machines read different bytes of it" in report.failed[0][1].message and "sets/big" not in store.blobs


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_copy_is_put_in_ranges_from_one_version_with_its_properties(place: FolderStore, with_md5: bool) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    properties = BlobProperties(content_type="image/png", metadata={"k": "v"})
    here.add("x/big", _BIG, with_md5=with_md5, properties=properties)
    task = copy(here, "x", there, "y", ["big"])
    report = _moved(place, task)
    assert [each.action.path for each in report.moved] == ["big"] and there.body("y/big") == _BIG
    assert there.blobs["y/big"].info.md5 == (_MD5 if with_md5 else None)
    assert there.blobs["y/big"].properties == properties
    assert len(there.asked("put_block_from_url")) == 6 and not here.asked("get")


def test_a_copy_whose_source_changed_meanwhile_is_not_committed(place: FolderStore) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    here.add("x/big", _BIG)
    task = copy(here, "x", there, "y", ["big"])
    changed = threading.Event()

    def change(request: Request) -> None:
        if request.operation == "put_block_from_url" and not changed.is_set():
            changed.set()
            here.add("x/big", _BIG[::-1])

    there.before = change
    report = _moved(place, task)
    assert len(report.failed) == 1 and "changed while it was being read" in report.failed[0][1].message
    assert not there.blobs and isinstance(task.actions[0].source, RemoteState)


def test_a_blob_of_other_blocks_than_were_put_is_no_success(
    task: MoveTask, place: FolderStore, store: MemoryStore
) -> None:
    """A server that commits other blocks than requested."""

    def lie(request: Request) -> None:
        if request.operation == "block_list":
            blob = store.blobs["sets/big"]
            blob.blocks = (blob.blocks[1], blob.blocks[0], *blob.blocks[2:])

    store.before = lie
    report = _moved(place, task)
    assert [(each.path, failure.code) for each, failure in report.failed] == [("big", FailureCode.CHECKSUM_MISMATCH)]
    assert "does not consist of the blocks that were uploaded" in report.failed[0][1].message


def _big_copy(here: MemoryStore) -> tuple[MemoryStore, MoveTask]:
    """A server that ignores the requested version of the source."""
    there = MemoryStore("there", {"here": here})
    there.heeds_source_etag = False
    here.add("x/big", _BIG)
    return there, copy(here, "x", there, "y", ["big"])


def test_a_range_of_a_copy_is_not_told_as_good_where_its_source_changed_while_it_was_read() -> None:
    here = MemoryStore("here")
    there, task = _big_copy(here)

    def change(request: Request) -> None:
        if request.operation == "put_block_from_url" and len(there.asked("put_block_from_url")) == 2:
            here.add("x/big", _BIG[::-1])

    there.before = change
    report = CollectedReport()
    order = BlockOrder(BlockRange(0, 3))
    DirectEngine().move_blocks(task, order, lambda index, block: None, report, RecordingListener())
    assert [failure.code for _, failure in report.failed] == [FailureCode.CHANGED_WHILE_READ] and not report.moved


def test_a_copy_whose_source_changed_after_its_ranges_were_read_is_not_committed() -> None:
    here = MemoryStore("here")
    there, task = _big_copy(here)
    (action,) = task.actions
    named: dict[int, str] = {}
    order = BlockOrder(BlockRange(0, 6))
    DirectEngine().move_blocks(task, order, named.__setitem__, CollectedReport(), RecordingListener())
    ids = [named[index] for index in range(6)]
    here.add("x/big", _BIG[::-1])
    with pytest.raises(ChangedWhileReadError):
        commit_blocks(task.part, action, ids, None)
    assert not there.blobs


@pytest.mark.parametrize("only_read", [False, True])
def test_a_range_of_a_file_that_changed_while_it_was_read_is_not_told_as_good(
    tmp_path: Path, store: MemoryStore, only_read: bool
) -> None:
    file = tmp_path / "data" / "big"
    file.parent.mkdir()
    file.write_bytes(_BIG)
    task = upload(file.parent, store, "sets")
    report = CollectedReport()

    def change(index: int, block: str) -> None:
        os.utime(file, ns=(1, 1))

    order = BlockOrder(BlockRange(0, 6 if only_read else 3), only_read=only_read)
    DirectEngine().move_blocks(task, order, change, report, RecordingListener())
    assert [failure.code for _, failure in report.failed] == [FailureCode.CHANGED_WHILE_READ] and not report.moved
