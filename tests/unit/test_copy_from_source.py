"""Objects that a service fetches from outside Azure: one version, compared by what the source keeps of its content."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import AccessDeniedError, ChecksumError, PreconditionFailedError, StorageError
from blobsync.base.file_states import RemoteState
from blobsync.base.redaction import HIDDEN, SignedUrl, _held, redact
from blobsync.direct.copy_from_source import CopyFromSourceJob
from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.direct.thread_pool import MIB, Stopped
from blobsync.direct.upload import BlockSizes
from blobsync.local.fetch_records import FetchRecords
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.checksums import CRC64, JoinedCrc64, crc64_of_header
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties, Checksum
from blobsync.transfer.engines import NOTHING_COMPARED, CollectedReport, Moved
from tests.fakes.crc64 import crc64
from tests.fakes.source_store import MemorySource
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, copy, moved_by

BODY = random.Random(3).randbytes(2 * MIB + 5)
SIZES = BlockSizes(single=400, block=MIB)
# Of bytes 0 to 3, 4 to 7 and 8 to 9 of "HelloWorld", as the service answered Put Block From URL, and of the whole, as
# it answered Put Blob: from the recordings of Azure's SDK for JavaScript (github.com/Azure/azure-sdk-for-js), below
# sdk/storage/storage-blob/recordings/node/blockblobclient, in
# recording_stageblockfromurl_copy_source_blob_as_separate_blocks.json.
RECORDED = (("nuXQFtc8BqA=", 4), ("n6BouArmEbQ=", 4), ("sMJJw3kkP8c=", 2))
RECORDED_WHOLE = "8R2aIe9T07E="


def crc64_of(body: bytes) -> Checksum:
    return Checksum(CRC64, crc64(body).to_bytes(8, "big"))


def fetch(job: CopyFromSourceJob) -> None:
    for _ in range(job.open()):
        job.piece()


class Place:
    def __init__(self) -> None:
        self.source = MemorySource()
        self.there = MemoryStore("there", {"source": self.source.inner})

    def action(self) -> FileAction:
        (found,) = copy(self.source, "x", self.there, "y", ["a"]).actions
        # As planned from a listing, which has no MD5.
        info = next(iter(self.source.list_blobs("x/a")))
        return self.planned(found, info.size, info.etag)

    def planned(self, action: FileAction, size: int, etag: str) -> FileAction:
        return action._replace(source=RemoteState(size, etag, None, ""))

    def job(
        self,
        action: FileAction | None = None,
        *,
        comparing: bool = False,
        records: FetchRecords | None = None,
        joining: Callable[[], JoinedCrc64] = JoinedCrc64,
    ) -> CopyFromSourceJob:
        task = copy(self.source, "x", self.there, "y", ["a"])
        self.heard = RecordingListener()
        self.run = RecordedRun(task, self.heard)
        return CopyFromSourceJob(
            self.run,
            action or self.action(),
            OpenBlob(self.source, "x"),
            OpenBlob(self.there, "y"),
            comparing=comparing,
            sizes=SIZES,
            records=records,
            joining=joining,
        )

    def moved(self, *, comparing: bool = False, joining: Callable[[], JoinedCrc64] = JoinedCrc64) -> Moved:
        job = self.job(comparing=comparing, joining=joining)
        fetch(job)
        return job.commit()


@pytest.fixture
def place() -> Place:
    found = Place()
    found.source.add("x/a", BODY)
    return found


def test_the_services_own_answers_join_to_its_crc64_of_the_whole() -> None:
    joined = JoinedCrc64()
    for text, length in RECORDED:
        value = crc64_of_header(text)
        assert value is not None
        joined.add(value, length)
    whole = crc64_of_header(RECORDED_WHOLE)
    assert whole == crc64(b"HelloWorld") and joined.digest() == whole.to_bytes(8, "big")
    assert crc64_of_header(None) is None and crc64_of_header("AAAA") is None and crc64_of_header("?") is None


def test_a_crc64_of_the_whole_is_compared_with_that_of_the_blocks(place: Place) -> None:
    place.source.checksums["x/a"] = crc64_of(BODY)
    moved = place.moved()
    assert moved.compared_by == "crc64nvme" and place.there.body("y/a") == BODY
    assert isinstance(moved.destination, RemoteState) and moved.destination.crc64 == crc64_of(BODY).value
    assert len(place.there.asked("put_block_from_url")) == 3 and place.heard.bytes == len(BODY)
    assert not place.source.inner.asked("get"), "no byte came here"


def test_a_small_object_with_both_is_compared_by_both(place: Place) -> None:
    place.source.add("x/a", BODY[:500])
    place.source.checksums["x/a"] = crc64_of(BODY[:500])
    assert place.moved().compared_by == "crc64nvme"
    assert place.there.blobs["y/a"].info.md5 == hashlib.md5(BODY[:500]).digest()
    place.there.tells_crc64_of_copies = False
    place.there.blobs.clear()
    assert place.moved().compared_by == "md5"


def test_another_crc64_is_a_failure_before_anything_has_the_name(place: Place) -> None:
    place.source.checksums["x/a"] = crc64_of(b"other")
    with pytest.raises(Exception, match="different CRC64"):
        place.moved()
    assert "y/a" not in place.there.blobs


def test_a_service_that_tells_no_crc64_proves_nothing(place: Place) -> None:
    place.source.checksums["x/a"] = crc64_of(BODY)
    place.there.tells_crc64_of_copies = False
    assert place.moved().compared_by == NOTHING_COMPARED


@pytest.mark.parametrize("size", [1, 400])
def test_an_md5_goes_with_the_only_block(place: Place, size: int) -> None:
    place.source.add("x/a", BODY[:size])
    moved = place.moved()
    assert moved.compared_by == "md5" and len(place.there.asked("put_block_from_url")) == 1
    assert place.there.blobs["y/a"].info.md5 == hashlib.md5(BODY[:size]).digest()


@pytest.mark.parametrize(
    ("size", "has_md5", "blocks"), [(1024 * MIB, True, 1), (1024 * MIB + 1, True, 17), (1024 * MIB, False, 16)]
)
def test_an_md5_makes_one_block_up_to_a_gibibyte_and_other_blocks_have_64_mib(
    place: Place, size: int, has_md5: bool, blocks: int
) -> None:
    kept = place.source.inner.blobs["x/a"]
    place.source.inner.blobs["x/a"] = type(kept)(kept.body, kept.info._replace(size=size), kept.properties)
    if not has_md5:
        place.source.hides_md5.add("x/a")
    task = copy(place.source, "x", place.there, "y", ["a"])
    run = RecordedRun(task, RecordingListener())
    ends = OpenBlob(place.source, "x"), OpenBlob(place.there, "y")
    assert CopyFromSourceJob(run, place.action(), *ends, comparing=False).open() == blocks


def test_bytes_that_have_not_the_md5_are_refused(place: Place) -> None:
    place.source.add("x/a", BODY[:400])
    job = place.job()
    job.open()
    kept = place.source.inner.blobs["x/a"]
    place.source.inner.blobs["x/a"] = type(kept)(b"x" * 400, kept.info, kept.properties)
    with pytest.raises(Exception, match="does not match"):
        job.piece()
    assert "y/a" not in place.there.blobs


def test_a_large_object_with_only_an_md5_is_not_compared(place: Place) -> None:
    moved = place.moved()
    assert moved.compared_by == NOTHING_COMPARED and place.there.body("y/a") == BODY
    assert place.there.blobs["y/a"].info.md5 is None, "an MD5 that nobody has compared is not written"


def test_an_etag_of_a_key_is_no_md5(place: Place) -> None:
    place.source.add("x/a", BODY[:100])
    place.source.hides_md5.add("x/a")
    assert place.moved().compared_by == NOTHING_COMPARED


def test_comparing_reads_the_source_once(place: Place) -> None:
    assert place.moved(comparing=True).compared_by == "content"
    assert len(place.source.inner.asked("get")) == 1
    assert sum(place.run.paced) == len(BODY), "only what comes here counts for the limit of the rate"


@pytest.mark.parametrize(
    ("engine", "compared_by"),
    [(DirectEngine(), NOTHING_COMPARED), (DirectEngine(comparing=True), "content")],
    ids=["by itself", "where it is told to"],
)
def test_an_engine_reads_what_is_copied_only_where_it_is_told_to(
    place: Place, engine: DirectEngine, compared_by: str
) -> None:
    place.source.add("x/a", BODY[:100])
    place.source.hides_md5.add("x/a")
    (moved,) = moved_by(engine, copy(place.source, "x", place.there, "y", ["a"])).moved
    assert moved.compared_by == compared_by and place.there.body("y/a") == BODY[:100]


def test_comparing_finds_a_block_that_is_another(place: Place) -> None:
    job = place.job(comparing=True)
    pieces = job.open()
    kept = place.source.inner.blobs["x/a"]
    place.source.inner.blobs["x/a"] = type(kept)(b"y" + BODY[1:], kept.info, kept.properties)
    job.piece()
    place.source.inner.blobs["x/a"] = kept
    for _ in range(pieces - 1):
        job.piece()
    with pytest.raises(Exception, match="other bytes"):
        job.commit()
    assert "y/a" not in place.there.blobs


def test_comparing_compares_a_checksum_of_another_kind_too(place: Place) -> None:
    place.source.checksums["x/a"] = Checksum("sha256", hashlib.sha256(BODY).digest())
    assert place.moved(comparing=True).compared_by == "content"
    place.there.blobs.clear()
    place.source.checksums["x/a"] = Checksum("sha256", hashlib.sha256(b"other").digest())
    with pytest.raises(Exception, match="other bytes"):
        place.moved(comparing=True)
    assert "y/a" not in place.there.blobs


def test_without_anycrc_nothing_is_compared(place: Place) -> None:
    def missing() -> JoinedCrc64:
        raise ImportError("anycrc")

    place.source.checksums["x/a"] = crc64_of(BODY)
    moved = place.moved(comparing=True, joining=missing)
    assert moved.compared_by == NOTHING_COMPARED and place.there.body("y/a") == BODY


def test_the_blob_is_looked_at_after_it_was_written(place: Place) -> None:
    moved = place.moved()
    written = place.there.blobs["y/a"].info
    assert moved.destination == RemoteState(len(BODY), written.etag, written.md5)


@pytest.mark.parametrize("what", ["replaced", "deleted"])
def test_a_blob_that_another_writes_right_after_is_looked_up_again(place: Place, what: str) -> None:
    def before(request: Request) -> None:
        if request.operation == "head" and "y/a" in place.there.blobs:
            del place.there.blobs["y/a"]
            if what == "replaced":
                place.there.add("y/a", b"somebody else's")

    place.there.before = before
    assert place.moved().destination is None


@pytest.mark.parametrize("when", ["planned", "opened", "half", "deleted at the end"])
def test_an_object_that_is_replaced_is_a_failure_and_no_mixture(place: Place, when: str) -> None:
    action = place.action()
    if when == "planned":
        place.source.add("x/a", BODY[::-1])
    job = place.job(action)

    def move() -> None:
        for index in range(job.open()):
            if (when, index) in (("opened", 0), ("half", 2)):
                place.source.add("x/a", BODY[::-1])
            job.piece()
        if when == "deleted at the end":
            del place.source.inner.blobs["x/a"]
        job.commit()

    with pytest.raises(Exception, match="changed while"):
        move()
    assert "y/a" not in place.there.blobs


def test_an_object_that_is_gone_before_anything_was_fetched_is_a_failure(place: Place) -> None:
    job = place.job()
    del place.source.inner.blobs["x/a"]
    with pytest.raises(ChangedWhileReadError):
        job.open()


def test_a_file_may_get_another_name(place: Place) -> None:
    job = place.job(place.action()._replace(target="sub/b"))
    fetch(job)
    job.commit()
    assert place.there.body("y/sub/b") == BODY and list(place.there.blobs) == ["y/sub/b"]


def test_nothing_is_fetched_after_an_interrupt(place: Place) -> None:
    job = place.job()
    job.open()
    place.run.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    assert not place.there.asked("put_block_from_url")


def test_blobs_of_azure_are_not_copied_so(place: Place) -> None:
    task = copy(place.there, "x", place.there, "y", ["a"])
    run = RecordedRun(task, RecordingListener())
    with pytest.raises(ValueError, match="not outside Azure"):
        CopyFromSourceJob(run, task.actions[0], *([OpenBlob(place.there, "x")] * 2), comparing=False)


def test_a_version_is_named_in_each_url_and_not_looked_up_again(place: Place) -> None:
    place.source.versions["x/a"] = "v1"
    job = place.job()
    place.source.inner.requests.clear()
    fetch(job)
    job.commit()
    assert {version for _, version, _ in place.source.signed} == {"v1"}
    assert len(place.source.inner.asked("head")) == 1


def test_an_object_without_bytes(place: Place) -> None:
    place.source.add("x/a", b"")
    moved = place.moved()
    assert place.there.body("y/a") == b"" and moved.compared_by == "md5"
    assert [each.operation for each in place.there.requests if each.operation.startswith("put")] == ["put"]


def test_properties_come_along(place: Place) -> None:
    png = BlobProperties(content_type="image/png", metadata={"k": "v"})
    place.source.inner.add("x/a", BODY, properties=png)
    place.moved()
    assert place.there.blobs["y/a"].properties == png


def test_an_archived_object_and_a_long_url_are_refused(place: Place) -> None:
    place.source.archived["x/a"] = "it is in GLACIER"
    with pytest.raises(Exception, match="GLACIER"):
        place.job().open()
    place.source.archived.clear()
    longest = "x" * (2048 - place.source.url_length("x/a"))
    place.source.padding = f"{longest}x"
    with pytest.raises(Exception, match="longer than the 2,048"):
        place.job().open()
    place.source.padding = longest
    place.moved()
    assert place.there.body("y/a") == BODY
    assert {seconds for _, _, seconds in place.source.signed} == {3600}


@pytest.mark.parametrize(("size", "has_md5"), [(0, True), (400, True), (401, False)])
def test_what_a_blob_will_be_is_noted_before_it_is(place: Place, size: int, has_md5: bool) -> None:
    body = BODY[:size]
    place.source.add("x/a", body)
    noted: list[tuple[str, int, bytes | None]] = []

    def before(request: Request) -> None:
        if request.operation in ("put", "put_block_list"):
            noted.extend(place.run.noted)

    place.there.before = before
    place.moved()
    assert noted == [("a", size, hashlib.md5(body).digest() if has_md5 else b"")]


def test_nothing_is_replaced_that_the_plan_did_not_see(place: Place) -> None:
    job = place.job()
    fetch(job)
    place.there.add("y/a", b"somebody else's")
    with pytest.raises(Exception, match="changed since"):
        job.commit()
    assert place.there.body("y/a") == b"somebody else's"


@pytest.mark.parametrize("engine", [DirectEngine, RelayEngine])
def test_both_ways_give_the_same(place: Place, engine: Callable[[], DirectEngine | RelayEngine]) -> None:
    names = {f"f{number}": random.Random(number).randbytes(size) for number, size in enumerate((0, 1, 700, 5 * MIB))}
    for name, body in names.items():
        place.source.add(f"x/{name}", body)
        place.source.checksums[f"x/{name}"] = crc64_of(body) if len(body) < MIB else Checksum("sha256", b"")
    del place.source.checksums["x/f3"]
    report: CollectedReport = moved_by(engine(), copy(place.source, "x", place.there, "y", sorted(names)))
    assert not report.failed
    assert {name: place.there.body(f"y/{name}") for name in names} == names
    by = {each.action.path: each.compared_by for each in report.moved}
    assert by["f2"] == "crc64nvme" and by["f3"] == "md5"


@pytest.mark.parametrize("kind", ["sha256", "sha1", "crc32", "crc32c", "crc64nvme"])
def test_a_relay_compares_every_checksum(place: Place, kind: str) -> None:
    wrong = {"sha256": 32, "sha1": 20, "crc32": 4, "crc32c": 4, "crc64nvme": 8}[kind]
    place.source.checksums["x/a"] = Checksum(kind, b"\1" * wrong)
    report = moved_by(RelayEngine(), copy(place.source, "x", place.there, "y", ["a"]))
    ((_, failure),) = report.failed
    assert failure.code == "checksum_mismatch" and kind.upper() in failure.message
    assert "y/a" not in place.there.blobs


def test_a_source_that_refuses_the_service_is_told_so(place: Place) -> None:
    def refuse(request: Request) -> None:
        if request.operation == "put_block_from_url":
            place.source.inner.blobs.pop("x/a", None)

    place.there.before = refuse
    report = moved_by(DirectEngine(), copy(place.source, "x", place.there, "y", ["a"]))
    assert [failure.code for _, failure in report.failed] == ["copy_source_refused"]


def test_a_signed_url_is_never_shown() -> None:
    source = MemorySource()
    url = source.source_url("secret name", "", 5)
    assert "ffff" not in repr(url) and "ffff" not in str(url) and HIDDEN in str(url)
    assert "ffff" not in redact(f"the request was {url.reveal()}")
    known = len(_held)
    for number in range(100):
        SignedUrl(f"https://b.example/a?X-Amz-Signature={number:064x}")
    assert len(_held) == known, "there may be millions of them"
    token = "IQoJb3JpZ2luX2VjEXAMPLETOKEN/abc+def=="
    SignedUrl(f"https://b.example/a?X-Amz-Security-Token={token.replace('+', '%2B').replace('/', '%2F')}&x=1")
    assert token not in redact(f"token {token}")


# -- after a kill -----------------------------------------------------------------------------------------


def killed(place: Place, records: FetchRecords, *, after: int = 2) -> None:
    """A run that ends after so many blocks of three."""
    job = place.job(records=records)
    assert job.open() == 3 and not place.there.asked("block_list"), "nothing can be there"
    for _ in range(after):
        job.piece()
    job.release()
    # What a thread that comes back by then has fetched is not on record.
    job.piece()
    place.there.requests.clear()


def second(place: Place, records: FetchRecords) -> tuple[Moved, int]:
    """The next run, and how many blocks it had fetched."""
    job = place.job(records=records)
    pieces = job.open()
    for _ in range(pieces):
        job.piece()
    moved = job.commit()
    job.release()
    fetched = len(place.there.asked("put_block_from_url"))
    assert pieces == max(1, fetched)
    return moved, fetched


def left(tmp_path: Path, statement: str = "SELECT name FROM unfinished") -> list[tuple[Any, ...]]:
    """What is on record, or what a statement does to it."""
    with closing(sqlite3.connect(tmp_path / "unfinished.sqlite")) as db, db:
        return db.execute(statement).fetchall()


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_blocks_that_a_killed_run_had_fetched_are_not_fetched_again(place: Place, tmp_path: Path, blocks: int) -> None:
    place.source.checksums["x/a"] = crc64_of(BODY)
    records = FetchRecords(StateDir(tmp_path))
    killed(place, records, after=blocks)
    moved, fetched = second(place, records)
    assert fetched == 3 - blocks and place.there.body("y/a") == BODY
    assert moved.compared_by == CRC64 and moved.reused == min(blocks * MIB, len(BODY))
    assert left(tmp_path) == []


def refuse_lists(request: Request) -> None:
    if request.operation == "block_list":
        raise AccessDeniedError("no right to read")


@pytest.mark.parametrize("what", ["dropped", "of another size", "replaced", "no record", "another run", "not allowed"])
def test_what_does_not_count_is_fetched_again(place: Place, tmp_path: Path, what: str) -> None:
    records = FetchRecords(StateDir(tmp_path))
    killed(place, records)
    body = BODY
    if what == "dropped":
        place.there.blocks.clear()
    elif what == "of another size":
        place.there.blocks["y/a"] = dict.fromkeys(place.there.blocks["y/a"], b"other")
    elif what == "replaced":
        body = BODY[::-1]
        place.source.add("x/a", body)
    elif what == "no record":
        left(tmp_path, "UPDATE unfinished SET head = '{}'")
    elif what == "another run":
        left(tmp_path, "UPDATE unfinished SET head = json_set(head, '$.run', 'x')")
    elif what == "not allowed":
        place.there.before = refuse_lists
    moved, fetched = second(place, records)
    assert (fetched, moved.reused) == (3, 0) and place.there.body("y/a") == body


def test_a_copy_that_arrived_with_another_crc64_is_fetched_anew(place: Place, tmp_path: Path) -> None:
    place.source.checksums["x/a"] = crc64_of(BODY)
    records = FetchRecords(StateDir(tmp_path))
    killed(place, records)
    left(tmp_path, "UPDATE pieces SET mark = x'0102030405060708' WHERE key = 0")
    with pytest.raises(ChecksumError):
        second(place, records)
    assert left(tmp_path) == []
    place.there.requests.clear()
    assert second(place, records)[1] == 3


def test_blocks_that_the_service_drops_before_the_end_are_fetched_anew(place: Place, tmp_path: Path) -> None:
    records = FetchRecords(StateDir(tmp_path))
    job = place.job(records=records)
    fetch(job)
    place.there.blocks.clear()
    with pytest.raises(StorageError, match="a block is not there"):
        job.commit()
    job.release()
    assert left(tmp_path) == []
    place.there.requests.clear()
    assert second(place, records)[1] == 3


def test_another_failure_of_the_end_keeps_what_was_fetched(place: Place, tmp_path: Path) -> None:
    def refuse(request: Request) -> None:
        if request.operation == "put_block_list":
            raise StorageError("busy", status=503, service_code="ServerBusy")

    records = FetchRecords(StateDir(tmp_path))
    job = place.job(records=records)
    fetch(job)
    place.there.before = refuse
    with pytest.raises(StorageError, match="busy"):
        job.commit()
    job.release()
    place.there.before = lambda request: None
    place.there.requests.clear()
    job = place.job(records=records)
    job.open()
    assert job.commit().reused == len(BODY) and not place.there.asked("put_block_from_url")


def test_a_block_without_a_crc64_counts_and_proves_nothing(place: Place, tmp_path: Path) -> None:
    place.source.checksums["x/a"] = crc64_of(BODY)
    place.there.tells_crc64_of_copies = False
    records = FetchRecords(StateDir(tmp_path))
    killed(place, records)
    moved, fetched = second(place, records)
    assert (fetched, moved.compared_by) == (1, NOTHING_COMPARED)


def test_two_runs_of_one_copy_put_the_same_blocks(place: Place, tmp_path: Path) -> None:
    records = FetchRecords(StateDir(tmp_path))
    held = place.job(records=records)
    pieces = held.open()
    held.piece()
    place.there.requests.clear()
    moved, _ = second(place, records)
    assert place.there.body("y/a") == BODY and moved.reused in (0, MIB)
    for _ in range(pieces - 1):
        held.piece()
    with pytest.raises(PreconditionFailedError):
        held.commit()
    held.release()
    assert place.there.body("y/a") == BODY and left(tmp_path) == []


def test_another_attempt_of_the_same_run_goes_on_too(place: Place, tmp_path: Path) -> None:
    job = place.job(records=FetchRecords(StateDir(tmp_path)))
    assert job.open() == 3
    job.piece()
    job.release()
    assert job.open() == 2
    job.piece()
    job.piece()
    assert job.commit().reused == MIB and place.there.body("y/a") == BODY


def test_two_blocks_are_worth_a_record(place: Place, tmp_path: Path) -> None:
    place.source.add("x/a", BODY[: MIB + 5])
    records = FetchRecords(StateDir(tmp_path))
    job = place.job(records=records)
    job.open()
    job.piece()
    job.release()
    place.there.requests.clear()
    assert second(place, records)[1] == 1


def test_an_object_of_one_block_leaves_no_record(place: Place, tmp_path: Path) -> None:
    place.source.add("x/a", b"small")
    job = place.job(records=FetchRecords(StateDir(tmp_path)))
    job.open()
    assert os.listdir(tmp_path) == []


def test_records_of_more_than_a_week_ago_are_gone(place: Place, tmp_path: Path) -> None:
    killed(place, FetchRecords(StateDir(tmp_path)))
    left(tmp_path, "UPDATE unfinished SET at = 1.0")
    left(tmp_path, "INSERT INTO unfinished SELECT id + 1, kind, 'other', head, at FROM unfinished")
    assert second(place, FetchRecords(StateDir(tmp_path)))[1] == 3
    assert left(tmp_path) == []


def test_a_state_folder_that_cannot_be_written_costs_nothing_else(place: Place, tmp_path: Path) -> None:
    (tmp_path / "unfinished.sqlite").mkdir()
    assert second(place, FetchRecords(StateDir(tmp_path)))[1] == 3
