"""Upload of one file, step by step: in one request or in blocks, with blocks already there, and with its events."""

from __future__ import annotations

import hashlib
import os
import random
import re
from base64 import b64decode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ChecksumError, LocalFileError, PreconditionFailedError, StorageError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.direct.thread_pool import ATTEMPTS, MIB, Stopped
from blobsync.direct.upload import BLOCKS_DROPPED, BlockIds, BlockSizes, UploadJob, precondition_of
from blobsync.local.files import SourceFolder
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.local.resume_records import BlockJournal
from blobsync.plan.blocks import BlockMemory, block_size
from blobsync.plan.transfer_plan import FileAction, KeptAttributes
from blobsync.store.protocol import (
    MAX_BLOCKS,
    MAX_PUT_BYTES,
    BlobInfo,
    BlobProperties,
    Precondition,
    PutOrder,
    block_id_of,
)
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, action, local_state, remote_state, upload

NAME = "p/a.json"
SINGLE = 100
BLOCK = block_size(3 * MIB)
SIZE = 2 * BLOCK + 5
BODY = random.Random(4).randbytes(SIZE)
PIECES = [BODY[:BLOCK], BODY[BLOCK : 2 * BLOCK], BODY[2 * BLOCK :]]


class Place:
    """One file and one container."""

    def __init__(self, root: Path) -> None:
        self.root = root / "up"
        self.root.mkdir()
        self.file = self.root / "a.json"
        self.store = MemoryStore()
        self.journal = BlockJournal(root / "unfinished.sqlite")
        self.write(BODY)

    def write(self, body: bytes) -> None:
        self.file.write_bytes(body)

    def action(self, **changes: object) -> FileAction:
        return upload(self.root, self.store, "p").actions[0]._replace(**changes)  # type: ignore[arg-type]

    def job(self, action: FileAction | None = None, *, journal: bool = True) -> UploadJob:
        self.listener = RecordingListener()
        self.run = RecordedRun(upload(self.root, self.store, "p"), self.listener)
        memory = BlockMemory(self.journal if journal else None, lambda text: None)
        self.store.requests.clear()
        return UploadJob(self.run, action or self.action(), SourceFolder(self.root), self.store, NAME, SINGLE, memory)

    def asked(self, *operations: str) -> list[int]:
        return [each.size for each in self.store.requests if each.operation in operations]

    def killed_after(self, blocks: int) -> None:
        job = self.job()
        job.open()
        for _ in range(blocks):
            job.piece()
        self.run.stop.set()
        job.release()


def put(job: UploadJob) -> Moved:
    try:
        for _ in range(job.open()):
            job.piece()
        return job.commit()
    finally:
        job.release()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def told_right(place: Place, moved: Moved, body: bytes) -> None:
    """Check that the blob equals the file, and that the report is true."""
    md5 = hashlib.md5(body).digest()
    assert place.store.body(NAME) == body
    assert place.store.blobs[NAME].properties == BlobProperties(content_type="application/json")
    state = local_state(place.file)
    assert state is not None and moved.source == replace(state, md5=md5)
    found = place.store.blobs[NAME].info
    assert found.md5 == md5 and moved.destination == RemoteState(len(body), found.etag, md5)


@pytest.mark.parametrize("way", ["in the lane", "in the pool"])
@pytest.mark.parametrize("size", [0, 1, SINGLE])
def test_a_small_file_goes_in_one_request(place: Place, way: str, size: int) -> None:
    body = BODY[:size]
    place.write(body)
    job = place.job()
    if way == "in the pool":
        moved = put(job)
        assert place.run.paced == [size] and place.run.buffers == [size]
    else:
        assert job.open() == 1
        order = job.order()
        md5 = hashlib.md5(body).digest()
        properties = BlobProperties(content_type="application/json")
        assert order == PutOrder(NAME, body, md5, properties, Precondition(absent=True))
        job.landed(place.store.put(*order[:2], md5=md5, properties=properties, condition=order.condition))
        moved = job.commit()
        job.release()
    told_right(place, moved, body)
    assert place.asked("put", "put_block", "put_block_list", "block_list") == [size]
    # A lane counts the bytes itself.
    counted = size if way == "in the pool" else 0
    assert (moved.reused, place.listener.bytes, place.listener.reused) == (0, counted, 0)
    assert place.journal.staged(str(place.store.container.child(NAME))) == {}


def test_a_larger_file_goes_in_blocks_named_by_their_content(place: Place) -> None:
    job = place.job()
    moved = put(job)
    told_right(place, moved, BODY)
    assert place.run.noted == [("a.json", SIZE, hashlib.md5(BODY).digest())]
    assert place.asked("put", "put_block") == [BLOCK, BLOCK, 5] == place.run.paced == place.run.buffers
    assert place.asked("block_list") == []
    names = [name for name, _ in place.store.blobs[NAME].blocks]
    assert names == [block_id_of(hashlib.sha256(piece).digest()) for piece in PIECES]
    assert (moved.reused, place.listener.bytes, place.listener.reused) == (0, SIZE, 0)
    found = remote_state(place.store, NAME)
    blob = str(place.store.container.child(NAME))
    assert found is not None and place.journal.committed([blob]) == {blob: found.etag}
    digests = b"".join(hashlib.sha256(piece).digest() for piece in PIECES)
    assert place.journal.digests(blob, found.etag) == hashlib.md5(BODY).digest() + digests


@pytest.mark.parametrize("journal", [True, False])
def test_one_byte_more_than_a_request_takes_goes_in_blocks(place: Place, *, journal: bool) -> None:
    body = BODY[: SINGLE + 1]
    place.write(body)
    told_right(place, put(place.job(journal=journal)), body)
    assert place.asked("put_block") == [SINGLE + 1] and place.asked("put") == []


@pytest.mark.parametrize(
    ("changes", "size", "in_blocks"),
    [
        ({"delta": True}, 1, True),
        ({"on_record": 1}, 1, True),
        # Its program has emptied it meanwhile.
        ({"delta": True}, 0, False),
        ({"on_record": 1}, 0, False),
        ({"delta": False, "on_record": 0}, SINGLE, False),
    ],
)
def test_what_went_in_blocks_goes_on_in_blocks(
    place: Place, changes: dict[str, object], size: int, *, in_blocks: bool
) -> None:
    body = BODY[:size]
    place.write(body)
    told_right(place, put(place.job(place.action(**changes))), body)
    assert (place.asked("put"), place.asked("put_block")) == (([], [size]) if in_blocks else ([size], []))


def test_what_a_killed_run_left_is_not_sent(place: Place) -> None:
    place.killed_after(2)
    assert [size for _, size in place.run.report.kept] == [2 * BLOCK]
    job = place.job(place.action(on_record=2 * BLOCK))
    moved = put(job)
    told_right(place, moved, BODY)
    # A look before, and one after the commit: what it took from before was not checked by it.
    assert len(place.asked("block_list")) == 2
    assert place.asked("put_block") == [5] and place.run.paced == [0, 0, 5]
    assert (moved.reused, place.listener.reused, place.listener.bytes) == (2 * BLOCK, 2 * BLOCK, 5)


@pytest.mark.parametrize("delta", [True, False])
def test_of_a_change_only_the_blocks_that_changed_are_sent_where_the_plan_says_so(place: Place, *, delta: bool) -> None:
    put(place.job())
    new = BODY[:-1] + b"!"
    place.write(new)
    moved = put(place.job(place.action(delta=delta)))
    told_right(place, moved, new)
    assert place.asked("put_block") == ([5] if delta else [BLOCK, BLOCK, 5])
    assert moved.reused == (2 * BLOCK if delta else 0)


def hashed(place: Place) -> LocalState:
    """The file as planning has hashed it."""
    state, body = local_state(place.file), place.file.read_bytes()
    assert state is not None
    pieces = (body[start : start + BLOCK] for start in range(0, len(body), BLOCK))
    digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    return replace(state, md5=hashlib.md5(body).digest(), blocks=digests)


def test_of_a_file_whose_blocks_planning_has_hashed_only_those_that_are_sent_are_read(place: Place) -> None:
    put(place.job())
    new = BODY[:-1] + b"!"
    place.write(new)
    moved = put(place.job(place.action(delta=True, source=hashed(place))))
    told_right(place, moved, new)
    assert place.asked("put_block") == [5] == place.run.buffers
    assert (moved.reused, place.run.paced) == (2 * BLOCK, [0, 0, 5])
    assert isinstance(moved.source, LocalState) and moved.source.blocks == b""


@pytest.mark.parametrize("size", [SINGLE, SIZE])
def test_without_its_blocks_the_md5_is_that_of_what_was_sent(place: Place, size: int) -> None:
    place.write(BODY[:size])
    source = replace(hashed(place), md5=bytes(16), blocks=b"")
    told_right(place, put(place.job(place.action(source=source))), BODY[:size])


def test_a_file_whose_blocks_planning_has_hashed_goes_in_one_request_if_it_is_small(place: Place) -> None:
    place.write(BODY[:SINGLE])
    told_right(place, put(place.job(place.action(source=hashed(place)))), BODY[:SINGLE])
    assert place.asked("put") == [SINGLE] and place.asked("put_block") == []


def test_a_block_that_is_not_what_planning_has_hashed_is_not_sent(place: Place) -> None:
    known = hashed(place)
    other = replace(known, blocks=known.blocks[:32] + bytes(32) + known.blocks[64:])
    job = place.job(place.action(source=other))
    with pytest.raises(ChangedWhileReadError):
        put(job)
    assert place.asked("put_block") == [BLOCK] and NAME not in place.store.blobs


def test_a_new_file_of_a_plan_that_speaks_of_a_change_goes_whole(place: Place) -> None:
    moved = put(place.job(place.action(delta=True, destination=None)))
    told_right(place, moved, BODY)
    assert place.asked("put_block") == [BLOCK, BLOCK, 5]


# -- only what the plan saw is replaced ---------------------------------------------------------------------------

THERE = RemoteState(3, "seen", b"m" * 16)


@pytest.mark.parametrize(
    ("destination", "target", "condition"),
    [
        (THERE, None, Precondition(etag="seen")),
        (THERE, "aside", Precondition(absent=True)),
        (None, None, Precondition(absent=True)),
        (LocalState(1, 1, 1, 1), None, Precondition(absent=True)),
    ],
)
def test_the_condition_is_what_the_plan_saw(
    destination: RemoteState | LocalState | None, target: str | None, condition: Precondition
) -> None:
    assert precondition_of(action("a", None, destination)._replace(target=target)) == condition


@pytest.mark.parametrize("size", [5, SIZE])
def test_what_somebody_put_there_meanwhile_stays(place: Place, size: int) -> None:
    place.write(BODY[:size])
    job = place.job()
    place.store.add(NAME, b"theirs")
    with pytest.raises(PreconditionFailedError):
        put(job)
    assert place.store.body(NAME) == b"theirs"


@pytest.mark.parametrize("size", [5, SIZE])
@pytest.mark.parametrize("when", ["after the plan", "after it was opened"])
def test_a_file_that_changes_is_not_committed(place: Place, size: int, when: str) -> None:
    place.write(BODY[:size])
    job = place.job()
    if when == "after the plan":
        os.utime(place.file, ns=(1, 1))
        with pytest.raises(ChangedWhileReadError):
            job.open()
    else:
        pieces = job.open()
        for number in range(pieces):
            if number == pieces - 1:
                os.utime(place.file, ns=(1, 1))
            if size == 5:
                with pytest.raises(ChangedWhileReadError):
                    job.piece()
            else:
                job.piece()
        if size == SIZE:
            with pytest.raises(ChangedWhileReadError):
                job.commit()
    job.release()
    assert NAME not in place.store.blobs


# -- responses of the service -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "is_right"), [(None, True), (b"another content.", False)])
def test_a_response_with_another_md5_is_a_failure(place: Place, said: bytes | None, *, is_right: bool) -> None:
    place.write(BODY[:5])
    job = place.job()
    job.open()
    order = job.order()
    info = place.store.put(order.name, order.body, md5=order.md5, condition=order.condition)
    job.landed(info._replace(md5=said))
    if is_right:
        job.commit()
    else:
        with pytest.raises(ChecksumError) as caught:
            job.commit()
        assert caught.value.path == NAME
    job.release()


def test_blocks_that_are_gone_are_sent_again_once(place: Place) -> None:
    job = place.job()
    for code in BLOCKS_DROPPED:
        job = place.job()
        dropped = StorageError("gone", status=400, service_code=code)
        assert [job.worth_another_try(dropped) for _ in range(3)] == [True, False, False]
    assert not place.job().worth_another_try(StorageError("odd", status=400, service_code="Odd"))
    assert not place.job().worth_another_try(LocalFileError("gone"))
    damaged = ChecksumError("damaged")
    job = place.job()
    seen = []
    for _ in range(ATTEMPTS):
        seen.append(job.worth_another_try(damaged))
        job.start_over()
    assert seen == [True] * (ATTEMPTS - 1) + [False]


def test_a_blob_of_other_blocks_is_replaced_by_one_attempt_that_sends_all(place: Place) -> None:
    place.killed_after(3)
    job = place.job(place.action(on_record=SIZE))

    def lie(request: Request) -> None:
        blob = place.store.blobs.get(NAME)
        if request.operation == "block_list" and blob is not None:
            blob.blocks = blob.blocks[::-1]

    place.store.before = lie
    for _ in range(job.open()):
        job.piece()
    with pytest.raises(ChecksumError) as caught:
        job.commit()
    assert place.asked("put_block") == []
    assert job.worth_another_try(caught.value)
    job.release()
    job.start_over()
    told_right(place, put(job), BODY)
    # Nothing is taken for there, and what this job itself has written is what may be replaced.
    assert place.asked("put_block") == [BLOCK, BLOCK, 5] and place.listener.reused == 0
    # Both by the first attempt: before it sent anything, and after its commit.
    assert len(place.asked("block_list")) == 2


def test_blocks_that_this_job_has_sent_are_no_blocks_from_before(place: Place) -> None:
    job = place.job()

    def drop(request: Request) -> None:
        if request.operation == "put_block_list":
            place.store.before = lambda _: None
            del place.store.blocks[NAME][block_id_of(hashlib.sha256(PIECES[1]).digest())]

    place.store.before = drop
    with pytest.raises(StorageError) as caught:
        put(job)
    assert job.worth_another_try(caught.value)
    job.start_over()
    moved = put(job)
    told_right(place, moved, BODY)
    assert place.asked("put_block") == [BLOCK, BLOCK, 5, BLOCK]
    assert (moved.reused, place.listener.reused, place.listener.bytes) == (0, 0, SIZE)


class Misnaming(MemoryStore):
    """A store that reports a wrong MD5 for the first blob made of blocks."""

    def put_block_list(self, *given: Any, **also: Any) -> BlobInfo:
        info = super().put_block_list(*given, **also)
        return info if self.asked("put_block_list")[1:] else info._replace(md5=b"another content.")


def test_an_attempt_after_a_wrong_answer_commits_anew(place: Place) -> None:
    place.store = Misnaming()
    job = place.job()
    with pytest.raises(ChecksumError):
        put(job)
    job.start_over()
    told_right(place, put(job), BODY)
    assert len(place.asked("put_block_list")) == 2


# -- a service that takes no blocks --------------------------------------------------------------------------------

TAKES_NO_BLOCKS = StorageError("no blocks", status=409, service_code="BlobOperationNotSupported")
# More than is read at once.
LARGE = 8 * MIB + 5


def refused(place: Place, job: UploadJob) -> UploadJob:
    """The job before its second attempt."""

    def refuse(request: Request) -> None:
        if request.operation == "put_block":
            raise TAKES_NO_BLOCKS

    place.store.before = refuse
    with pytest.raises(StorageError) as caught:
        put(job)
    assert job.worth_another_try(caught.value)
    job.start_over()
    for recorded in (place.store.requests, place.run.paced, place.run.buffers):
        recorded.clear()
    return job


@pytest.mark.parametrize("with_mode", [True, False])
def test_a_service_that_takes_no_blocks_gets_the_whole_file_in_one_request(place: Place, *, with_mode: bool) -> None:
    body = random.Random(5).randbytes(LARGE)
    place.write(body)
    job = place.job()
    part = place.run.task.part
    place.run.task = place.run.task._replace(part=replace(part, kept=KeptAttributes(modes=with_mode)))
    moved = put(refused(place, job))
    metadata = {"mode": f"{place.file.stat().st_mode:o}"} if with_mode else {}
    assert place.store.blobs[NAME].properties.metadata == metadata
    place.store.blobs[NAME].properties = place.store.blobs[NAME].properties._replace(metadata={})
    told_right(place, moved, body)
    assert [each.operation for each in place.store.requests] == ["put"] and place.run.paced == [LARGE]
    assert place.run.buffers == [8 * MIB, 5]
    assert place.run.noted == [("a.json", LARGE, hashlib.md5(body).digest())]
    blob = str(place.store.container.child(NAME))
    assert place.journal.committed([blob]) == {blob: place.store.blobs[NAME].info.etag}


@pytest.mark.parametrize(("when", "sent"), [("read", []), ("put", [SIZE])])
def test_a_file_that_changes_before_or_while_it_goes_in_one_request_is_a_failure(
    place: Place, when: str, sent: list[int]
) -> None:
    job = refused(place, place.job())

    def change(request: Request) -> None:
        os.utime(place.file, ns=(1, 1))

    job.open()
    place.store.before = change
    if when == "read":
        os.utime(place.file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        job.piece()
    job.release()
    assert place.asked("put") == sent


@pytest.mark.parametrize(("size", "seen"), [(MAX_PUT_BYTES, [True, False]), (MAX_PUT_BYTES + 1, [False, False])])
def test_only_what_one_request_takes_goes_in_one_and_only_once(place: Place, size: int, seen: list[bool]) -> None:
    os.truncate(place.file, size)
    job = place.job()
    job.open()
    job.release()
    assert [job.worth_another_try(TAKES_NO_BLOCKS) for _ in seen] == seen


# -- an end before the end ----------------------------------------------------------------------------------------


def test_what_is_on_record_is_reported_when_the_run_is_stopped_and_only_then(place: Place) -> None:
    job = place.job()
    job.open()
    job.piece()
    job.release()
    assert place.run.report.kept == []
    job.open()
    place.run.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    job.abandon()
    assert [size for _, size in place.run.report.kept] == [BLOCK]
    job.release()
    assert [size for _, size in place.run.report.kept] == [BLOCK, BLOCK]


def test_nothing_is_on_record_before_a_block_is_sent_and_after_the_end(place: Place) -> None:
    job = place.job()
    job.abandon()
    job.open()
    job.abandon()
    job.release()
    put(job)
    place.run.stop.set()
    job.abandon()
    assert place.run.report.kept == []


def test_without_a_journal_nothing_is_on_record(place: Place) -> None:
    job = place.job(journal=False)
    job.open()
    job.piece()
    place.run.stop.set()
    job.release()
    assert place.run.report.kept == []


def test_the_file_is_closed_whatever_happens(place: Place) -> None:
    job = place.job()
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
        job.piece()


def test_a_block_that_is_on_its_way_is_counted_back_where_it_fails(place: Place) -> None:
    job = place.job()
    job.open()
    job.piece()

    def refuse(request: Request) -> None:
        raise StorageError("broken", status=500)

    place.store.before = refuse
    with pytest.raises(StorageError):
        job.piece()
    assert place.listener.bytes == BLOCK
    place.run.stop.set()
    job.release()
    # A failed block is not recorded.
    assert [size for _, size in place.run.report.kept] == [BLOCK]


# -- blocks that are not named by their content --------------------------------------------------------------------


def test_ids_have_one_length_and_are_those_of_one_upload() -> None:
    fixed = BlockIds("0123456789abcdef")
    assert b64decode(fixed[5]) == b"blobsync-0123456789abcdef-000005...."
    assert [b64decode(BlockIds("0123456789abcdef")[5]), len(fixed[49_999])] == [b64decode(fixed[5]), 48]
    one, other = BlockIds(), BlockIds()
    assert one[0] != other[0] and one[0] == one[0]
    assert re.fullmatch(rb"blobsync-[0-9a-f]{16}-000000\.{4}", b64decode(one[0]))


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (1, 4 * MIB),
        (MAX_BLOCKS * 4 * MIB, 4 * MIB),
        (MAX_BLOCKS * 4 * MIB + 1, 5 * MIB),
        (MAX_BLOCKS * 5 * MIB, 5 * MIB),
        (MAX_BLOCKS * 5 * MIB + 1, 6 * MIB),
    ],
)
def test_blocks_are_larger_where_so_many_would_not_do(size: int, block: int) -> None:
    assert BlockSizes(single=8 * MIB, block=4 * MIB).block_for(size) == block
