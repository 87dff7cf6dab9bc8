"""Blobs through this machine: one version, hashed in the blob's order; nothing has the name before it is whole."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ChecksumError, PreconditionFailedError, StorageError
from blobsync.base.file_states import RemoteState
from blobsync.direct.relay import RelayEngine, RelayJob
from blobsync.direct.thread_pool import MIB, Stopped
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties
from blobsync.transfer.engines import Moved, MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import (
    Looking,
    RecordedRun,
    RecordingListener,
    Woken,
    copy,
    download,
    moved_by,
    remote_state,
    upload,
)
from tests.waiting import wait_until

BLOCK = 4 * MIB
SIZE = 2 * BLOCK + 5
BODY = random.Random(2).randbytes(SIZE)
PNG = BlobProperties(content_type="image/png", tier="Cool", metadata={"k": "v"})


class Place:
    def __init__(self) -> None:
        self.here, self.there = MemoryStore("here"), MemoryStore("there")

    def add(self, body: bytes, *, with_md5: bool = True, tier: str = "Cool") -> None:
        self.here.add("x/a", body, with_md5=with_md5, properties=PNG._replace(tier=tier))

    def action(self, **changes: Any) -> FileAction:
        return copy(self.here, "x", self.there, "y", ["a"]).actions[0]._replace(**changes)

    def job(self, **changes: Any) -> RelayJob:
        task = copy(self.here, "x", self.there, "y", ["a"])
        self.heard = RecordingListener()
        self.run = RecordedRun(task, self.heard)
        job = RelayJob(self.run, self.action(**changes), OpenBlob(self.here, "x"), OpenBlob(self.there, "y"))
        self.here.requests.clear()
        self.there.requests.clear()
        return job

    def asked(self) -> list[tuple[str, int, int]]:
        return [(each.operation, each.start, each.size) for each in (*self.here.requests, *self.there.requests)]


def relay(job: RelayJob) -> Moved:
    for _ in range(job.open()):
        job.piece()
    return job.commit()


@pytest.fixture
def place() -> Place:
    return Place()


def told_right(place: Place, moved: Moved, body: bytes, version: RemoteState | None) -> None:
    md5 = hashlib.md5(body).digest()
    assert place.there.body("y/a") == body and place.there.blobs["y/a"].properties == PNG
    found = place.there.blobs["y/a"].info
    assert version is not None and moved.source == RemoteState(len(body), version.etag, md5)
    assert moved.destination == RemoteState(len(body), found.etag, md5) and found.md5 == md5
    assert moved.compared_by == ""


@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("size", [0, 7, BLOCK - 1, BLOCK])
def test_a_small_blob_is_one_request_at_each_end(place: Place, size: int, *, with_md5: bool) -> None:
    place.add(BODY[:size], with_md5=with_md5)
    version = remote_state(place.here, "x/a")
    moved = relay(place.job())
    told_right(place, moved, BODY[:size], version)
    assert place.asked() == [("get", 0, 0), ("put", 0, size)]
    assert place.run.paced == place.run.buffers == [size] and place.heard.bytes == size


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_larger_blob_goes_in_blocks_of_4_mib(place: Place, *, with_md5: bool) -> None:
    place.add(BODY, with_md5=with_md5)
    version = remote_state(place.here, "x/a")
    moved = relay(place.job())
    told_right(place, moved, BODY, version)
    lengths = [BLOCK, BLOCK, 5]
    assert place.asked() == [
        *(("get", number * BLOCK, length) for number, length in enumerate(lengths)),
        *(("put_block", 0, length) for length in lengths),
        ("put_block_list", 0, SIZE),
    ]
    assert place.run.paced == place.run.buffers == lengths and place.heard.bytes == SIZE


def test_one_byte_more_than_a_request_takes_goes_in_blocks(place: Place) -> None:
    place.add(BODY[: BLOCK + 1])
    relay(place.job())
    assert [each.size for each in place.there.asked("put_block")] == [BLOCK, 1]
    assert place.there.body("y/a") == BODY[: BLOCK + 1]


@pytest.mark.parametrize("size", [7, SIZE])
def test_the_tier_that_no_listing_told_is_asked_for(place: Place, size: int) -> None:
    place.add(BODY[:size])
    version = remote_state(place.here, "x/a")
    assert version is not None
    told_right(place, relay(place.job(source=replace(version, tier=None))), BODY[:size], version)
    assert ("properties", 0, 0) in place.asked()


def test_a_tier_that_the_source_has_by_default_is_not_set(place: Place) -> None:
    place.add(b"a", tier="")
    relay(place.job())
    assert place.there.blobs["y/a"].properties.tier == ""


def test_a_plan_that_saw_no_blob_has_it_looked_at(place: Place) -> None:
    place.add(BODY)
    version = remote_state(place.here, "x/a")
    told_right(place, relay(place.job(source=None)), BODY, version)


@pytest.mark.parametrize("size", [7, SIZE])
def test_under_another_name_it_replaces_nothing(place: Place, size: int) -> None:
    place.add(BODY[:size])
    place.there.add("y/a", b"theirs")
    relay(place.job(target="b"))
    assert place.there.body("y/b") == BODY[:size] and place.there.body("y/a") == b"theirs"
    with pytest.raises(PreconditionFailedError):
        relay(place.job(target="b"))


@pytest.mark.parametrize("size", [7, SIZE])
def test_what_the_plan_saw_is_replaced_and_nothing_else(place: Place, size: int) -> None:
    place.add(BODY[:size])
    place.there.add("y/a", b"seen")
    job = place.job()
    place.there.add("y/a", b"another")
    with pytest.raises(PreconditionFailedError):
        relay(job)
    assert place.there.body("y/a") == b"another"
    relay(place.job())
    assert place.there.body("y/a") == BODY[:size]


@pytest.mark.parametrize("size", [7, SIZE])
def test_what_a_blob_will_be_is_noted_before_it_is(place: Place, size: int) -> None:
    place.add(BODY[:size])
    job = place.job()
    noted: list[tuple[str, int, bytes | None]] = []

    def before(request: Request) -> None:
        if request.operation in ("put", "put_block_list"):
            noted.extend(place.run.noted)

    place.there.before = before
    relay(job)
    assert noted == [("a", size, hashlib.md5(BODY[:size]).digest())]


@pytest.mark.parametrize("size", [7, SIZE])
def test_other_bytes_than_the_blobs_md5_says_get_no_name(place: Place, size: int) -> None:
    place.add(BODY[:size])
    place.here.damage["x/a"] = 1
    with pytest.raises(ChecksumError) as caught:
        relay(place.job())
    assert caught.value.path == "x/a" and "y/a" not in place.there.blobs
    # The next attempt begins anew.
    job = place.job()
    place.here.damage["x/a"] = 1
    with pytest.raises(ChecksumError):
        relay(job)
    job.start_over()
    relay(job)
    assert place.there.body("y/a") == BODY[:size]


def test_an_attempt_has_blocks_and_a_commit_of_its_own(place: Place) -> None:
    place.add(BODY)
    job = place.job()
    relay(job)
    del place.there.blobs["y/a"]
    relay(job)
    assert place.there.body("y/a") == BODY and len(place.there.asked("put_block")) == 6


def test_another_version_is_never_read(place: Place) -> None:
    place.add(BODY)
    job = place.job()
    place.add(BODY)
    with pytest.raises(ChangedWhileReadError):
        relay(job)
    assert not place.there.blobs and not place.there.blocks


def in_threads(job: RelayJob, count: int) -> list[BaseException]:
    """So many pieces at once; what they raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            job.piece()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            raised.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    return raised


def test_blocks_that_arrive_in_another_order_are_hashed_in_the_blobs(place: Place) -> None:
    place.add(BODY)
    job = place.job()
    later = threading.Event()

    def first_last(request: Request) -> None:
        if request.operation == "get":
            assert later.wait(60) if request.start == 0 else True
            if request.start == 2 * BLOCK:
                later.set()

    place.here.before = first_last
    # Whose turn it is gets to know it at once.
    job._turn = Woken()
    job.open()
    assert in_threads(job, 3) == []
    moved = job.commit()
    assert place.there.body("y/a") == BODY and isinstance(moved.source, RemoteState)
    assert moved.source.md5 == place.there.blobs["y/a"].info.md5 == hashlib.md5(BODY).digest()


@pytest.mark.parametrize("why", ["a block cannot be read", "an interrupt"])
def test_whoever_waits_for_its_turn_gives_up_with_the_others(place: Place, why: str) -> None:
    place.add(BODY)
    job = place.job()
    waiting = threading.Event()

    def fail(request: Request) -> None:
        if request.operation != "get":
            return
        if request.start:
            waiting.set()
        else:
            assert waiting.wait(60)
            if why == "an interrupt":
                place.run.stop.set()
                raise Stopped
            raise StorageError("out of order", status=500)

    place.here.before = fail
    job.open()
    raised = in_threads(job, 3)
    assert sorted(type(error).__name__ for error in raised) == (
        ["Stopped", "Stopped", "StorageError"] if why != "an interrupt" else ["Stopped"] * 3
    )
    assert not place.there.blocks and not place.there.blobs


def test_whoever_waits_for_its_turn_notices_an_interrupt_while_another_hangs(place: Place) -> None:
    place.add(BODY)
    job = place.job()
    given_up = threading.Semaphore(0)

    class Ending(threading.Thread):
        def run(self) -> None:
            with pytest.raises(Stopped):
                job.piece()
            given_up.release()

    def hang(request: Request) -> None:
        if request.operation == "get" and request.start == 0:
            assert wait_until(lambda: len(looking.asked) >= 2)
            place.run.stop.set()
            # The two others, without any word of this one.
            assert given_up.acquire(timeout=60) and given_up.acquire(timeout=60)

    place.here.before = hang
    job._turn = looking = Looking()
    job.open()
    threads = [Ending() for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    assert given_up.acquire(timeout=60) and looking.is_often
    assert not place.there.blocks


def test_no_byte_is_sent_after_an_interrupt(place: Place) -> None:
    place.add(BODY)
    job = place.job()
    job.open()
    place.run.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    assert place.there.requests == []


# -- the engine ---------------------------------------------------------------------------------------------------


def test_every_file_of_a_task_is_reported(place: Place) -> None:
    files = {f"f{number}": BODY[:number] for number in range(40)} | {"large": BODY}
    for name, body in files.items():
        place.here.add(f"x/{name}", body)
    report = moved_by(RelayEngine(), copy(place.here, "x", place.there, "y", sorted(files)))
    assert {name.removeprefix("y/"): blob.body for name, blob in place.there.blobs.items()} == files
    assert sorted(each.action.path for each in report.moved) == sorted(files) and not report.failed


@pytest.mark.parametrize(
    ("sizes", "most"), [([7] * 30, 16), ([MIB] * 30, 8), ([BLOCK] * 9, 8), ([MIB - 1] * 30, 16), ([SIZE], 3)]
)
def test_so_many_are_under_way_at_once(place: Place, sizes: list[int], most: int) -> None:
    for number, size in enumerate(sizes):
        place.here.add(f"x/{number}", BODY[:size])
    task = copy(place.here, "x", place.there, "y", [str(number) for number in range(len(sizes))])
    enough, lock, threads = threading.Event(), threading.Lock(), set[int]()

    def wait_for_the_others(request: Request) -> None:
        if request.operation != "get":
            return
        with lock:
            threads.add(threading.get_ident())
            if len(threads) == most:
                enough.set()
        assert enough.wait(60)

    place.here.before = wait_for_the_others
    report = moved_by(RelayEngine(), task)
    assert len(report.moved) == len(sizes) and len(threads) == most


@pytest.mark.parametrize("end", ["source", "destination"])
def test_it_takes_blobs_at_both_ends_only(place: Place, end: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    place.here.add("x/a", b"a")
    made: dict[str, Callable[[], MoveTask]] = {
        "source": lambda: upload(tmp_path, place.there, "y"),
        "destination": lambda: download(place.here, "x", tmp_path, ["a"]),
    }
    with pytest.raises(ValueError, match="both ends"):
        RelayEngine().move(made[end](), RecordedRun(made[end](), RecordingListener(), 1).report, RecordingListener())
