"""Copies from server to server: in one request or in blocks, and never of two versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blobsync.base.errors import PreconditionFailedError, StorageError
from blobsync.base.file_states import DELETED, SNAPSHOT, RemoteState
from blobsync.direct.copy import CopyJob
from blobsync.direct.thread_pool import MIB, Stopped, WorkerPool
from blobsync.direct.upload import BlockSizes
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.transfer.engines import CollectedReport
from tests.fakes.past_store import PastStore
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, copy, remote_state

IN_BLOCKS = BlockSizes(single=MIB, block=MIB)
PNG = BlobProperties(content_type="image/png", tier="Cool", metadata={"k": "v"})


@pytest.fixture
def here() -> MemoryStore:
    return MemoryStore("here")


@pytest.fixture
def there(here: MemoryStore) -> MemoryStore:
    return MemoryStore("there", {"here": here})


def run(here: MemoryStore, there: MemoryStore, sizes: BlockSizes, *, threads: int = 3) -> tuple[CollectedReport, int]:
    """Copy the blob ``x/a`` to ``y/a``; returns the report, and how many bytes the listener was told of."""
    task = copy(here, "x", there, "y", ["a"])
    listener = RecordingListener()
    state = RecordedRun(task, listener, 0)
    jobs = [CopyJob(state, each, OpenBlob(here, "x"), OpenBlob(there, "y"), None, sizes=sizes) for each in task.actions]
    WorkerPool(state, jobs, threads).work()
    return state.report, listener.bytes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB, 2 * MIB + 12345, 4 * MIB])
def test_a_large_blob_arrives_in_blocks_with_its_bytes_in_their_places(
    here: MemoryStore, there: MemoryStore, size: int, threads: int
) -> None:
    body = os.urandom(size)
    source = here.add("x/a", body, properties=PNG)
    report, told = run(here, there, IN_BLOCKS, threads=threads)
    assert there.body("y/a") == body
    assert there.blobs["y/a"].properties == PNG and there.blobs["y/a"].info.md5 == source.md5
    assert sorted((each.start, each.size) for each in there.asked("put_block_from_url")) == [
        (start, min(MIB, size - start)) for start in range(0, size, MIB)
    ]
    (moved,) = report.moved
    assert moved.source == RemoteState(size, source.etag, source.md5)
    assert moved.destination == remote_state(there, "y/a")
    assert there.requests[-1].operation == "head"
    assert told == size


class IgnoresRanges(MemoryStore):
    """A service that ignores ranges: each block has the whole source."""

    def put_block_from_url(self, *given: Any, **more: Any) -> int | None:
        return super().put_block_from_url(*given, **{**more, "start": 0, "length": 1 << 40})


@pytest.mark.parametrize("with_md5", [True, False])
def test_the_size_of_a_blob_in_blocks_is_the_one_that_it_has(here: MemoryStore, *, with_md5: bool) -> None:
    there = IgnoresRanges("there", {"here": here})
    here.add("x/a", b"a" * (2 * MIB), with_md5=with_md5)
    (moved,) = run(here, there, IN_BLOCKS)[0].moved
    assert moved.destination is not None
    assert moved.destination.size == len(there.body("y/a")) == 4 * MIB


def test_the_size_of_a_blob_without_an_md5_is_the_one_that_it_has(here: MemoryStore, there: MemoryStore) -> None:
    here.add("x/a", b"a" * 10, with_md5=False)
    (moved,) = run(here, there, IN_BLOCKS)[0].moved
    assert moved.destination == remote_state(there, "y/a")
    assert there.requests[-1].operation == "head"
    # By the test itself, to plan it: the service copies that version, or none.
    assert len(here.asked("head")) == 1


def test_what_is_replaced_before_it_is_looked_at_is_not_told_as_the_copy(here: MemoryStore, there: MemoryStore) -> None:
    here.add("x/a", b"a" * (2 * MIB))

    def replaced(request: Request) -> None:
        if request.operation == "head" and there.asked("put_block_list"):
            there.before = lambda _: None
            there.add("y/a", b"theirs")

    there.before = replaced
    (moved,) = run(here, there, IN_BLOCKS)[0].moved
    assert moved.destination is None


def test_a_small_blob_is_one_request(here: MemoryStore, there: MemoryStore) -> None:
    # As large as one may be.
    here.add("x/a", b"a" * MIB, properties=PNG)
    report, told = run(here, there, IN_BLOCKS)
    assert [each.operation for each in there.requests if each.operation.startswith("put")] == ["put_from_url"]
    assert there.blobs["y/a"].properties == PNG
    assert (len(report.moved), told) == (1, MIB)


@pytest.mark.parametrize(("size", "pieces"), [(256 * MIB, 1), (256 * MIB + 1, 5)])
def test_blocks_of_64_mib_begin_above_256_mib(here: MemoryStore, there: MemoryStore, size: int, pieces: int) -> None:
    here.add("x/a", b"a")
    blob = here.blobs["x/a"]
    blob.info = blob.info._replace(size=size)
    task = copy(here, "x", there, "y", ["a"])
    state = RecordedRun(task, RecordingListener(), 0)
    job = CopyJob(state, task.actions[0], OpenBlob(here, "x"), OpenBlob(there, "y"), None)
    assert job.open() == pieces
    for _ in range(pieces):
        job.piece()
    asked = [(each.start, each.size) for each in there.asked("put_block_from_url")]
    lengths = [64 * MIB] * 4 + [1]
    assert asked == ([(64 * MIB * number, length) for number, length in enumerate(lengths)] if pieces > 1 else [])
    # No byte passes here.
    assert state.paced == [0] * pieces


def changing(
    store: MemoryStore, operation: str, number: int, change: Callable[[], object]
) -> Callable[[Request], None]:
    """Calls ``change`` once, before the ``number``-th request of that kind."""
    count = 0

    def before(request: Request) -> None:
        nonlocal count
        if request.operation == operation:
            count += 1
            if count == number:
                change()

    return before


@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("fate", ["replaced", "deleted"])
def test_blocks_of_two_versions_never_become_one_blob(
    here: MemoryStore, there: MemoryStore, fate: str, *, with_md5: bool
) -> None:
    here.add("x/a", b"1" * 3 * MIB, with_md5=with_md5)

    def change() -> None:
        if fate == "deleted":
            # After the last block: the service itself would notice a source that is gone before.
            del here.blobs["x/a"]
        else:
            here.add("x/a", b"2" * 3 * MIB, with_md5=with_md5)

    if fate == "deleted":
        here.before = changing(here, "head", 1, change)
    else:
        there.before = changing(there, "put_block_from_url", 2, change)
    report, _ = run(here, there, IN_BLOCKS, threads=1)
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"]
    assert report.moved == []
    assert "y/a" not in there.blobs


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_small_blob_that_is_replaced_while_it_is_copied_is_no_success(
    here: MemoryStore, there: MemoryStore, *, with_md5: bool
) -> None:
    here.add("x/a", b"1" * 10, with_md5=with_md5)
    there.before = changing(there, "put_from_url", 1, lambda: here.add("x/a", b"2" * 10, with_md5=with_md5))
    report, _ = run(here, there, IN_BLOCKS)
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"]
    # Nothing of the other version is left there, which the next run could take for somebody else's.
    assert "y/a" not in there.blobs


def test_a_server_that_has_one_word_for_a_condition_at_either_end_means_the_source_where_that_changed(
    here: MemoryStore, there: MemoryStore
) -> None:
    here.add("x/a", b"1" * 10)

    def refuse() -> None:
        here.add("x/a", b"2" * 10)
        raise PreconditionFailedError("the condition was not met", service_code="ConditionNotMet")

    there.before = changing(there, "put_from_url", 1, refuse)
    report, _ = run(here, there, IN_BLOCKS)
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"]


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_blob_that_is_replaced_after_its_copy_was_made_is_copied(
    here: MemoryStore, there: MemoryStore, *, with_md5: bool
) -> None:
    here.add("x/a", b"1" * 10, with_md5=with_md5)
    there.before = changing(there, "head", 2, lambda: here.add("x/a", b"2" * 10, with_md5=with_md5))
    report, _ = run(here, there, IN_BLOCKS)
    assert len(report.moved) == 1 and there.body("y/a") == b"1" * 10


def test_blocks_of_a_server_that_heeds_no_version_of_the_source_are_not_committed(
    here: MemoryStore, there: MemoryStore
) -> None:
    there.heeds_source_etag = False
    here.add("x/a", b"1" * 3 * MIB)
    there.before = changing(there, "put_block_from_url", 2, lambda: here.add("x/a", b"2" * 3 * MIB))
    report, _ = run(here, there, IN_BLOCKS, threads=1)
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"]
    assert "y/a" not in there.blobs


def test_a_small_blob_of_another_version_than_the_planned_one_is_told_by_its_md5(
    here: MemoryStore, there: MemoryStore
) -> None:
    there.heeds_source_etag = False
    here.add("x/a", b"1" * 10)
    there.before = changing(there, "put_from_url", 1, lambda: here.add("x/a", b"2" * 10))
    report, _ = run(here, there, IN_BLOCKS)
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"] and not report.moved


@pytest.mark.parametrize(
    ("there_already", "with_md5", "code"),
    [
        pytest.param(b"1" * 10, True, None, id="an earlier try did it, and its answer was lost"),
        pytest.param(b"2" * 10, True, "changed_meanwhile", id="somebody else's"),
        pytest.param(b"1" * 9, True, "changed_meanwhile", id="somebody else's, shorter"),
        pytest.param(b"1" * 10, False, "changed_meanwhile", id="without an MD5: nobody knows whose"),
    ],
)
def test_what_is_there_when_a_copy_arrives_counts_as_the_copy_only_with_its_content(
    there_already: bytes, with_md5: bool, code: str | None, here: MemoryStore, there: MemoryStore
) -> None:
    here.add("x/a", b"1" * 10, with_md5=with_md5)
    there.before = changing(there, "put_from_url", 1, lambda: there.add("y/a", there_already, with_md5=with_md5))
    report, _ = run(here, there, IN_BLOCKS)
    assert [failure.code for _, failure in report.failed] == ([code] if code else [])
    assert len(report.moved) == (0 if code else 1) and there.body("y/a") == there_already


def test_a_blob_that_is_gone_when_its_copy_was_made_is_to_be_looked_at_by_others(
    here: MemoryStore, there: MemoryStore
) -> None:
    here.add("x/a", b"a" * 10, with_md5=False)
    there.before = changing(there, "head", 2, lambda: there.blobs.pop("y/a"))
    (moved,) = run(here, there, IN_BLOCKS)[0].moved
    assert moved.destination is None


def test_a_copy_takes_the_tier_along_that_no_listing_told(here: MemoryStore, there: MemoryStore) -> None:
    here.add("x/a", b"a" * 10, properties=PNG)
    task = copy(here, "x", there, "y", ["a"])
    (action,) = task.actions
    assert isinstance(action.source, RemoteState)
    unknown = action._replace(source=replace(action.source, tier=None), target="b")
    state = RecordedRun(task, RecordingListener(), 0)
    job = CopyJob(state, unknown, OpenBlob(here, "x"), OpenBlob(there, "y"), None, sizes=IN_BLOCKS)
    WorkerPool(state, [job], 1).work()
    assert there.blobs["y/b"].properties.tier == "Cool" and "y/a" not in there.blobs
    (moved,) = state.report.moved
    assert moved.destination == remote_state(there, "y/b")


def test_a_small_blob_of_whose_copy_the_service_tells_no_md5_is_to_be_looked_at_by_others(
    here: MemoryStore, there: MemoryStore
) -> None:
    here.add("x/a", b"1" * 10)
    there.tells_md5_of_copies = False
    asked = len(here.requests)
    report, _ = run(here, there, IN_BLOCKS)
    (moved,) = report.moved
    assert moved.destination is None
    # By the test itself, to plan it.
    assert [each.operation for each in here.requests[asked:]] == ["head"]
    assert [each.operation for each in there.requests] == ["head", "put_from_url"]


def test_a_plan_that_saw_no_blob_has_it_looked_at(here: MemoryStore, there: MemoryStore) -> None:
    here.add("x/a", b"1" * 10)
    (action,) = copy(here, "x", there, "y", ["a"]).actions
    state = RecordedRun(copy(here, "x", there, "y", ["a"]), RecordingListener(), 0)
    unseen = action._replace(source=None)
    WorkerPool(state, [CopyJob(state, unseen, OpenBlob(here, "x"), OpenBlob(there, "y"), None)], 1).work()
    assert state.report.moved[0].source == remote_state(here, "x/a") and there.body("y/a") == b"1" * 10


@pytest.mark.parametrize("size", [10, MIB + 1])
def test_what_a_blob_will_be_is_noted_before_it_is(here: MemoryStore, there: MemoryStore, size: int) -> None:
    md5 = here.add("x/a", b"1" * size).md5
    task = copy(here, "x", there, "y", ["a"])
    state, noted = RecordedRun(task, RecordingListener(), 0), list[tuple[str, int, bytes | None]]()

    def before(request: Request) -> None:
        if request.operation in ("put_from_url", "put_block_list"):
            noted.extend(state.noted)

    there.before = before
    job = CopyJob(state, task.actions[0], OpenBlob(here, "x"), OpenBlob(there, "y"), None, sizes=IN_BLOCKS)
    WorkerPool(state, [job], 1).work()
    assert noted == [("a", size, md5)]


@pytest.mark.parametrize("size", [10, MIB + 1])
def test_nothing_is_requested_after_an_interrupt(here: MemoryStore, there: MemoryStore, size: int) -> None:
    here.add("x/a", b"1" * size)
    task = copy(here, "x", there, "y", ["a"])
    state = RecordedRun(task, RecordingListener(), 0)
    job = CopyJob(state, task.actions[0], OpenBlob(here, "x"), OpenBlob(there, "y"), None, sizes=IN_BLOCKS)
    job.open()
    state.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    assert [each.operation for each in there.requests] == ["head"]


# -- what a container keeps of earlier -----------------------------------------------------------------------------

# Larger than a blob that is copied in one request, by the sizes of these tests.
FIRST = b"1" * (MIB + 1)


class Keeping(PastStore):
    """Remembers which deletions it was to take back."""

    def __init__(self, keeps: str) -> None:
        super().__init__(keeps)
        self.deletions: list[str] = []

    def undelete(self, name: str, deletion: str = "") -> None:
        self.deletions.append(deletion)
        super().undelete(name, deletion)

    def words(self, name: str) -> list[str]:
        """What it keeps of a blob, without the times."""
        return [words.rpartition(" 20")[0] or words for words, blob in self.past if blob.info.name == name]


def returning(store: PastStore, version: str, info: BlobInfo) -> tuple[CopyJob, RecordedRun]:
    """The job that makes ``y/a`` what the container keeps of it."""
    task = copy(store, "y", store, "y", ["a"])
    state = RecordedRun(task, RecordingListener(), 0)
    source = RemoteState(info.size, info.etag, info.md5, "", version=version)
    action = task.actions[0]._replace(source=source)
    end = OpenBlob(store, "y")
    store.requests.clear()
    return CopyJob(state, action, end, end, None, sizes=IN_BLOCKS), state


def brought_back(store: PastStore, version: str, info: BlobInfo) -> RecordedRun:
    job, state = returning(store, version, info)
    WorkerPool(state, [job], 1).work()
    return state


def test_an_earlier_version_comes_back_in_one_request() -> None:
    store = Keeping("versions")
    first = store.add("y/a", FIRST, properties=PNG)
    store.add("y/a", b"2")
    state = brought_back(store, store.past[0][0], first)
    assert store.body("y/a") == FIRST and store.blobs["y/a"].info.md5 == first.md5
    (moved,) = state.report.moved
    assert moved.destination == remote_state(store, "y/a")
    assert [each.operation for each in store.requests if each.operation != "head"] == ["put_from_url"]


@pytest.mark.parametrize("version", ["2026-11-27T20:00:00.0000000Z", f"{SNAPSHOT} 1", f"{DELETED} {SNAPSHOT} 1"])
def test_a_version_that_no_request_copies_is_refused_before_anything_is_asked(version: str) -> None:
    store = Keeping("deleted")
    first = store.add("y/a", b"1")
    job, _ = returning(store, version, first._replace(size=5000 * MIB))
    assert job.open() == 1
    job, _ = returning(store, version, first._replace(size=5000 * MIB + 1))
    with pytest.raises(StorageError, match=r"y/a: no request .* more than 5,000 MiB") as caught:
        job.open()
    assert caught.value.path == "y/a" and caught.value.hint and not store.requests


def test_a_snapshot_comes_back_and_stays() -> None:
    store = Keeping("deleted")
    first = store.add("y/a", FIRST)
    store.add("y/a", b"2")
    store.undelete("y/a")
    words = store.past[0][0]
    brought_back(store, words, first)
    assert store.body("y/a") == FIRST and words in dict(store.past)
    assert store.deletions == [""] and not store.asked("delete_snapshot")


def test_a_deleted_snapshot_comes_back_and_all_others_of_the_blob_stay_deleted() -> None:
    store = Keeping("deleted")
    first = store.add("y/a", FIRST)
    for name in ("y/a", "y/a", "y/ab", "y/ab"):
        store.add(name, b"2")
    words = store.past[0][0]
    assert words.startswith(f"{DELETED} {SNAPSHOT} ")
    state = brought_back(store, words, first)
    assert store.body("y/a") == FIRST and len(state.report.moved) == 1 and store.deletions == [""]
    # The third is of the version that was replaced now.
    assert store.words("y/a") == [f"{DELETED} {SNAPSHOT}"] * 3 and len(store.asked("delete_snapshot")) == 2


def test_a_snapshot_that_cannot_be_deleted_again_is_no_failure() -> None:
    store = Keeping("deleted")
    first = store.add("y/a", FIRST)
    store.add("y/a", b"2")

    def refuse(request: Request) -> None:
        if request.operation == "delete_snapshot":
            raise StorageError("not allowed", status=403)

    store.before = refuse
    state = brought_back(store, store.past[0][0], first)
    assert store.body("y/a") == FIRST and not state.report.failed


@pytest.mark.parametrize("size", [5, MIB + 1])
def test_a_deleted_blob_comes_back_as_it_was_however_large(size: int) -> None:
    store = Keeping("deleted")
    store.add("y/a", b"1")
    last = store.add("y/a", b"2" * size)
    store.delete("y/a")
    state = brought_back(store, DELETED, last)
    assert store.blobs["y/a"].info == last and store.words("y/a") == [f"{DELETED} {SNAPSHOT}"]
    (moved,) = state.report.moved
    assert moved.destination == remote_state(store, "y/a") and not store.asked("put_from_url")
    assert len(store.asked("undelete")) == len(store.asked("delete_snapshot")) == 1


def test_with_directories_a_deletion_is_taken_back_by_its_id() -> None:
    store = Keeping("deleted")
    last = store.add("y/a", b"1")
    store.delete("y/a")
    state = brought_back(store, f"{DELETED} 1337", last)
    assert store.deletions == ["1337"] and not store.asked("list_deleted") and len(state.report.moved) == 1
    # What Undelete brings back is not limited by what one request copies.
    assert returning(store, f"{DELETED} 1337", last._replace(size=5000 * MIB + 1))[0].open() == 1


@pytest.mark.parametrize("what", ["other content", "another size", "gone"])
def test_a_deleted_blob_that_is_another_by_then_is_no_success(what: str) -> None:
    store = Keeping("deleted")
    last = store.add("y/a", b"1")
    store.delete("y/a")

    def meanwhile(request: Request) -> None:
        if request.operation == "head" and "y/a" in store.blobs:
            store.before = lambda _: None
            if what == "gone":
                del store.blobs["y/a"]
            else:
                info = last._replace(size=2) if what == "another size" else last._replace(md5=b"another content.")
                store.blobs["y/a"].info = info

    store.before = meanwhile
    report = brought_back(store, DELETED, last).report
    assert [failure.code for _, failure in report.failed] == ["changed_while_read"] and not report.moved


def test_a_version_does_not_replace_what_another_wrote_meanwhile() -> None:
    store = Keeping("versions")
    first = store.add("y/a", b"1")
    store.add("y/a", b"2")
    store.before = changing(store, "put_from_url", 1, lambda: store.add("y/a", b"theirs"))
    report = brought_back(store, store.past[0][0], first).report
    assert [failure.code for _, failure in report.failed] == ["changed_meanwhile"]
    assert store.body("y/a") == b"theirs"
