"""Some blocks of one file, moved by one of several workers, and the commit of all of them."""

from __future__ import annotations

import hashlib
import os
import random
import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ChecksumError, PreconditionFailedError, SourceChangedError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.direct.file_blocks import BlockOrder, CopyBlocksJob, ReadBlocksJob, UploadBlocksJob, commit_blocks
from blobsync.direct.pool import MIB
from blobsync.local.errors import ChangedWhileReadError
from blobsync.local.files import SourceFolder
from blobsync.plan.blocks import BlockRange, block_size
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties, block_id_of
from blobsync.transfer.engines import Moved, MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, copy, local_state, remote_state, upload

BLOCK = block_size(3 * MIB)
SIZE = 2 * BLOCK + 5
BODY = random.Random(3).randbytes(SIZE)
MD5 = hashlib.md5(BODY).digest()
PIECES = [BODY[:BLOCK], BODY[BLOCK : 2 * BLOCK], BODY[2 * BLOCK :]]
IDS = [block_id_of(hashlib.sha256(piece).digest()) for piece in PIECES]
ALL = BlockRange(0, 3)
NAME = "p/a.json"
JSON = BlobProperties(content_type="application/json")
PNG = BlobProperties(content_type="image/png", tier="Cool", metadata={"k": "v"})


class WatchedRun(RecordedRun):
    """Records the waits and the buffers that were taken."""

    def __init__(self, task: MoveTask) -> None:
        self.heard = RecordingListener()
        super().__init__(task, self.heard, 1 << 30)
        self.paced: list[int] = []
        self.buffers: list[int] = []

    def pace(self, count: int) -> None:
        super().pace(count)
        self.paced.append(count)

    @contextmanager
    def buffer(self, count: int) -> Iterator[None]:
        with super().buffer(count):
            self.buffers.append(count)
            yield


def work(job: Any) -> Moved:
    """All pieces, and the end, in one thread."""
    try:
        for _ in range(job.open()):
            job.piece()
        moved = job.commit()
        assert isinstance(moved, Moved)
        return moved
    finally:
        job.release()


def test_what_is_left_of_an_order_is_what_nobody_has_put() -> None:
    assert BlockOrder(BlockRange(2, 6)).left == [2, 3, 4, 5]
    assert BlockOrder(BlockRange(2, 6), {3, 5, 7}).left == [2, 4]
    # It is to be put, unless it is said that it is only to be read.
    assert not BlockOrder(ALL).only_read


# -- uploads ------------------------------------------------------------------------------------------------------


class Upload:
    """A file, a container, and what was named."""

    def __init__(self, root: Path) -> None:
        self.root = root / "up"
        self.root.mkdir()
        self.file = self.root / "a.json"
        self.file.write_bytes(BODY)
        self.store = MemoryStore()
        self.named: list[tuple[int, str]] = []
        self.task = upload(self.root, self.store, "p")
        self.run = WatchedRun(self.task)

    @property
    def action(self) -> FileAction:
        return self.task.actions[0]

    def job(self, order: BlockOrder, kind: type[UploadBlocksJob] = UploadBlocksJob, **changes: Any) -> UploadBlocksJob:
        action = replace(self.action, **changes)
        to = OpenBlob(self.store, "p")
        return kind(
            self.run, action, SourceFolder(self.root), to, order, lambda index, name: self.named.append((index, name))
        )

    def put_all(self) -> None:
        work(self.job(BlockOrder(ALL)))

    def commit(self, ids: list[str] | None = None, md5: bytes | None = MD5, **changes: Any) -> Moved:
        return commit_blocks(self.task.part, replace(self.action, **changes), ids or IDS, md5)


@pytest.fixture
def place(tmp_path: Path) -> Upload:
    return Upload(tmp_path)


@pytest.mark.parametrize(
    ("order", "indexes"),
    [(BlockOrder(ALL), [0, 1, 2]), (BlockOrder(BlockRange(1, 3)), [1, 2]), (BlockOrder(ALL, (1,)), [0, 2])],
)
def test_the_blocks_of_the_order_are_put_and_named(place: Upload, order: BlockOrder, indexes: list[int]) -> None:
    moved = work(place.job(order))
    assert place.named == [(index, IDS[index]) for index in indexes]
    assert place.store.blocks[NAME] == {IDS[index]: PIECES[index] for index in indexes}
    lengths = [len(PIECES[index]) for index in indexes]
    assert place.run.paced == place.run.buffers == lengths and place.run.heard.bytes == sum(lengths)
    assert moved == Moved(place.action, source=local_state(place.file))
    assert not place.store.blobs


def test_under_another_name_the_blocks_are_of_that_blob(place: Upload) -> None:
    work(place.job(BlockOrder(ALL), target="b.json"))
    assert list(place.store.blocks) == ["p/b.json"]


def test_where_all_is_there_the_file_is_still_looked_at(place: Upload) -> None:
    job = place.job(BlockOrder(ALL, (0, 1, 2)))
    assert job.open() == 1
    job.piece()
    assert place.named == [] and place.run.paced == []
    os.utime(place.file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        job.commit()
    job.release()


def test_a_thread_that_comes_too_late_does_nothing(place: Upload) -> None:
    job = place.job(BlockOrder(BlockRange(2, 3)))
    assert job.open() == 1
    job.piece()
    job.piece()
    job.release()
    assert place.named == [(2, IDS[2])]


def test_a_file_that_changed_since_the_plan_is_not_read(place: Upload) -> None:
    os.utime(place.file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        work(place.job(BlockOrder(ALL)))
    assert not place.store.requests[1:]


@pytest.mark.parametrize("kind", [UploadBlocksJob, ReadBlocksJob])
def test_the_file_is_closed_whatever_happens(place: Upload, kind: type[UploadBlocksJob]) -> None:
    job = place.job(BlockOrder(ALL), kind)
    job.release()
    job.open()
    held = []
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), place.file.stat()):
                held.append(number)
    (descriptor,) = held
    job.release()
    job.release()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    with pytest.raises(AssertionError):
        job.commit()


def test_whoever_only_reads_tells_the_md5_and_the_names_and_puts_nothing(place: Upload) -> None:
    asked = len(place.store.requests)
    moved = work(place.job(BlockOrder(ALL, only_read=True), ReadBlocksJob))
    state = local_state(place.file)
    assert state is not None and moved == Moved(place.action, source=replace(state, md5=MD5))
    assert place.named == list(enumerate(IDS))
    assert len(place.store.requests) == asked and place.run.heard.bytes == 0
    # No byte goes anywhere; an interrupt is noticed all the same.
    assert place.run.paced == [0, 0, 0]


# -- copies -------------------------------------------------------------------------------------------------------


class Copy:
    """A blob, another container, and what was named."""

    def __init__(self) -> None:
        self.here = MemoryStore("here")
        self.there = MemoryStore("there", {"here": self.here})
        self.add(BODY)
        self.named: list[tuple[int, str]] = []

    def add(self, body: bytes, *, with_md5: bool = True) -> None:
        self.here.add("x/a", body, properties=PNG, with_md5=with_md5)
        self.task = copy(self.here, "x", self.there, "y", ["a"])
        self.run = WatchedRun(self.task)

    @property
    def action(self) -> FileAction:
        return self.task.actions[0]

    def job(self, order: BlockOrder, **changes: Any) -> CopyBlocksJob:
        ends = OpenBlob(self.here, "x"), OpenBlob(self.there, "y")
        named = lambda index, name: self.named.append((index, name))  # noqa: E731 - told of each block
        return CopyBlocksJob(self.run, replace(self.action, **changes), ends, None, order, named)

    def commit(self) -> Moved:
        ids = [name for _, name in sorted(self.named)]
        return commit_blocks(self.task.part, self.action, ids, None)


@pytest.fixture
def copied() -> Copy:
    return Copy()


@pytest.mark.parametrize(
    ("order", "indexes"),
    [(BlockOrder(ALL), [0, 1, 2]), (BlockOrder(BlockRange(1, 3)), [1, 2]), (BlockOrder(ALL, (1,)), [0, 2])],
)
def test_the_blocks_of_a_copy_are_ranges_of_one_version(copied: Copy, order: BlockOrder, indexes: list[int]) -> None:
    moved = work(copied.job(order))
    assert [index for index, _ in copied.named] == indexes
    assert copied.there.blocks["y/a"] == {name: PIECES[index] for index, name in copied.named}
    lengths = [len(PIECES[index]) for index in indexes]
    asked = [(each.start, each.size) for each in copied.there.asked("put_block_from_url")]
    assert asked == [(index * BLOCK, length) for index, length in zip(indexes, lengths, strict=True)]
    assert copied.run.heard.bytes == sum(lengths) and copied.run.paced == [0] * len(indexes)
    assert moved == Moved(copied.action, source=copied.action.source) and not copied.there.blobs


def test_workers_of_one_version_name_its_blocks_alike_and_those_of_another_do_not(copied: Copy) -> None:
    work(copied.job(BlockOrder(ALL)))
    work(copied.job(BlockOrder(ALL)))
    assert copied.named[:3] == copied.named[3:]
    copied.add(BODY)
    work(copied.job(BlockOrder(ALL)))
    assert {name for _, name in copied.named[3:6]}.isdisjoint(name for _, name in copied.named[6:])
    assert {len(name) for _, name in copied.named} == {len(IDS[0])}
    assert re.fullmatch(rb"blobsync-[0-9a-f]{16}-000001\.{4}", b64decode(copied.named[1][1]))


def test_a_copy_under_another_name_and_of_what_no_plan_saw(copied: Copy) -> None:
    moved = work(copied.job(BlockOrder(ALL), target="b", source=None))
    assert list(copied.there.blocks) == ["y/b"] and moved.source == remote_state(copied.here, "x/a")


def test_where_all_of_a_copy_is_there_its_source_is_still_looked_at(copied: Copy) -> None:
    job = copied.job(BlockOrder(ALL, (0, 1, 2)))
    assert job.open() == 1
    job.piece()
    assert copied.named == [] and copied.run.paced == []
    copied.here.add("x/a", BODY)
    with pytest.raises(ChangedWhileReadError):
        job.commit()
    job.release()


def test_a_source_that_changes_while_it_is_copied_is_named(copied: Copy) -> None:
    job = copied.job(BlockOrder(ALL))
    job.open()

    def change(request: Request) -> None:
        raise SourceChangedError("it changed")

    copied.there.before = change
    with pytest.raises(ChangedWhileReadError) as caught:
        job.piece()
    assert caught.value.path == "x/a" and copied.named == []


# -- the commit ---------------------------------------------------------------------------------------------------


def test_the_blob_is_made_of_the_blocks_in_their_order_with_the_md5(place: Upload) -> None:
    place.put_all()
    moved = place.commit()
    assert place.store.body(NAME) == BODY and place.store.blobs[NAME].info.md5 == MD5
    assert place.store.blobs[NAME].properties == JSON
    state = local_state(place.file)
    assert state is not None and moved == Moved(place.action, source=replace(state, md5=MD5))


def test_a_copy_is_made_with_what_its_source_has(copied: Copy) -> None:
    work(copied.job(BlockOrder(ALL)))
    moved = copied.commit()
    assert copied.there.body("y/a") == BODY and copied.there.blobs["y/a"].properties == PNG
    assert copied.there.blobs["y/a"].info.md5 == MD5
    assert moved == Moved(copied.action, source=copied.action.source)


def test_a_copy_of_a_blob_without_an_md5_has_none(copied: Copy) -> None:
    copied.add(BODY, with_md5=False)
    work(copied.job(BlockOrder(ALL)))
    copied.commit()
    assert copied.there.body("y/a") == BODY and copied.there.blobs["y/a"].info.md5 is None


def test_a_copy_whose_source_is_another_version_now_is_not_committed(copied: Copy) -> None:
    work(copied.job(BlockOrder(ALL)))
    copied.here.add("x/a", BODY)
    with pytest.raises(ChangedWhileReadError):
        copied.commit()
    assert not copied.there.blobs


@pytest.mark.parametrize(
    ("theirs", "md5", "is_it"),
    [
        pytest.param(BODY, MD5, True, id="somebody has done it of whom nothing was heard"),
        pytest.param(BODY[::-1], MD5, False, id="other content"),
        pytest.param(BODY, None, False, id="nobody knows what it should be"),
        pytest.param(None, MD5, False, id="it is gone"),
    ],
)
def test_what_is_there_already_counts_only_with_the_same_content(
    place: Upload, theirs: bytes | None, md5: bytes | None, *, is_it: bool
) -> None:
    seen = None
    if theirs is None:
        place.store.add(NAME, b"seen")
        seen = remote_state(place.store, NAME)
        del place.store.blobs[NAME]
    place.put_all()
    if theirs is not None:
        for piece, name in zip(PIECES, IDS, strict=True):
            place.store.put_block(NAME, name, piece)
        told = hashlib.md5(theirs).digest()
        place.store.put_block_list(NAME, IDS, size=SIZE, md5=told if md5 else b"")
    if is_it:
        assert place.commit(md5=md5).source is not None
    else:
        with pytest.raises(PreconditionFailedError):
            place.commit(md5=md5, destination=seen)


def test_under_another_name_it_replaces_nothing(place: Upload) -> None:
    work(place.job(BlockOrder(ALL), target="b.json"))
    place.store.add(NAME, b"mine")
    place.commit(target="b.json")
    assert place.store.body("p/b.json") == BODY and place.store.body(NAME) == b"mine"


def test_a_blob_of_other_blocks_than_were_named_is_no_success(place: Upload) -> None:
    place.put_all()

    def lie(request: Request) -> None:
        if request.operation == "block_list":
            place.store.blobs[NAME].blocks = place.store.blobs[NAME].blocks[::-1]

    place.store.before = lie
    with pytest.raises(ChecksumError) as caught:
        place.commit()
    assert f"{NAME} does not consist of the blocks that were uploaded: block 1" in caught.value.message
    assert caught.value.path == NAME and caught.value.hint


def test_blocks_that_are_committed_may_have_others_beside_them(place: Upload) -> None:
    place.put_all()
    place.store.put_block(NAME, "A" * len(IDS[0]), b"other")
    assert isinstance(place.commit().source, LocalState)
    assert not isinstance(place.action.source, RemoteState)
