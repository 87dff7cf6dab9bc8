"""One small blob to a file, and the reading of one version of a blob."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    PreconditionFailedError,
    SourceChangedError,
    StorageError,
)
from blobsync.base.file_states import RemoteState
from blobsync.direct.download import DownloadJob
from blobsync.direct.range_reads import CHUNK, looked_up, naming_the_source, read_range, version_of
from blobsync.direct.thread_pool import Stopped
from blobsync.local.files import LocalFolder
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction, KeptAttributes
from blobsync.store.protocol import BlobProperties, GetOrder
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryReader, MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, action, download, local_state, remote_state

BODY = os.urandom(CHUNK + 5)
NAME = "p/a"
WAYS = ["in the lane", "in the pool"]


class Place:
    def __init__(self, root: Path) -> None:
        self.root = root / "down"
        self.root.mkdir()
        self.file = self.root / "a"
        self.store = MemoryStore()
        self.store.add(NAME, BODY)
        self.listener = RecordingListener()

    def action(self) -> FileAction:
        return download(self.store, "p", self.root, ["a"]).actions[0]

    def job(self, action: FileAction | None = None, *, unnamed: bool = True) -> DownloadJob:
        action = action or self.action()
        task = download(self.store, "p", self.root, ["a"])
        self.run = RecordedRun(task, self.listener)
        folder = LocalFolder(self.root, unnamed=unnamed)
        return DownloadJob(self.run, action, self.store, NAME, folder, action.target or action.path)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir())


def fetch(place: Place, job: DownloadJob, way: str) -> Moved:
    try:
        assert job.open() == 1
        if way == "in the pool":
            job.piece()
        else:
            job.order()
            with place.store.open(NAME) as reader:
                job.landed(b"".join(iter(lambda: reader.read(CHUNK), b"")))
        return job.commit()
    finally:
        job.release()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("size", [0, 7, len(BODY)])
def test_it_appears_as_it_is_and_is_reported_as_it_is(place: Place, way: str, size: int, *, with_md5: bool) -> None:
    info = place.store.add(NAME, BODY[:size], with_md5=with_md5)
    moved = fetch(place, place.job(), way)
    assert place.file.read_bytes() == BODY[:size] and place.names() == ["a"]
    md5 = hashlib.md5(BODY[:size]).digest()
    assert moved.source == RemoteState(size, info.etag, md5)
    state = local_state(place.file)
    assert state is not None and moved.destination == replace(state, md5=md5)
    # A lane counts the bytes itself, and takes no files where there is a cap.
    assert moved.compared_by == "" and place.listener.bytes == (size if way == "in the pool" else 0)
    assert sum(place.run.paced) == (size if way == "in the pool" else 0)


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_gets_what_the_entry_keeps_besides_its_content(place: Place, *, kept: bool) -> None:
    place.store.add(NAME, BODY, properties=BlobProperties(metadata={"mode": "100755"}))
    job = place.job()
    part = replace(place.run.task.part, kept=KeptAttributes(modes=kept))
    place.run.task = place.run.task._replace(part=part)
    assert fetch(place, job, "in the pool").compared_by == ""
    assert bool(place.file.stat().st_mode & 0o100) is kept


def test_the_request_is_for_the_version_that_was_planned(place: Place) -> None:
    job = place.job()
    job.open()
    state = remote_state(place.store, NAME)
    assert state is not None and job.order() == GetOrder(NAME, state.etag, len(BODY))
    job.release()


@pytest.mark.parametrize("way", WAYS)
def test_wrong_bytes_get_no_name(place: Place, way: str) -> None:
    place.store.damage[NAME] = 1
    with pytest.raises(ChecksumError) as caught:
        fetch(place, place.job(), way)
    assert caught.value.path == NAME and caught.value.hint and "a different MD5" in caught.value.message
    assert place.names() == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("change", "said"),
    [(-2, "of 8 bytes arrived instead of 10"), (2_000, "of 2,010 bytes arrived instead of 10")],
)
def test_a_body_of_another_length_gets_no_name(place: Place, way: str, change: int, said: str) -> None:
    place.store.add(NAME, BODY[: 10 + change], with_md5=False)
    blob = place.store.blobs[NAME]
    blob.info = blob.info._replace(size=10)
    if way == "in the pool" and change > 0:
        # What is beyond the length is not read.
        fetch(place, place.job(), way)
        assert place.file.read_bytes() == BODY[:10]
        return
    with pytest.raises(ChecksumError, match=said):
        fetch(place, place.job(), way)
    assert place.names() == []


def test_an_answer_that_the_version_is_gone_is_the_files_and_any_other_stays(place: Place) -> None:
    job = place.job()
    for gone in (PreconditionFailedError("412", status=412), BlobNotFoundError("404", status=404)):
        said = job.refused(gone)
        assert isinstance(said, ChangedWhileReadError) and said.path == NAME
    broken = StorageError("broken", status=500)
    assert job.refused(broken) is broken


@pytest.mark.parametrize("way", WAYS)
def test_only_the_version_that_was_seen_is_replaced(place: Place, way: str) -> None:
    place.file.write_bytes(b"seen")
    seen = place.action()
    place.file.unlink()
    with pytest.raises(PreconditionFailedError):
        fetch(place, place.job(seen), way)
    assert place.names() == []
    place.file.write_bytes(b"other")
    aside = place.action()._replace(target="b")
    fetch(place, place.job(aside), way)
    assert (place.file.read_bytes(), (place.root / "b").read_bytes()) == (b"other", BODY)
    with pytest.raises(PreconditionFailedError):
        fetch(place, place.job(aside), way)
    fetch(place, place.job(), way)
    assert place.file.read_bytes() == BODY


def test_what_a_file_will_be_is_noted_before_it_is(place: Place) -> None:
    job = place.job()
    noted: list[tuple[int, bytes | None, bool]] = []
    place.run.noting = lambda size, md5: noted.append((size, md5, place.file.exists()))
    job.open()
    job.piece()
    assert not place.run.finish([(job, None)])
    assert noted == [(len(BODY), hashlib.md5(BODY).digest(), False)] and place.file.read_bytes() == BODY


def test_what_is_not_committed_goes_whenever_that_is(place: Place) -> None:
    job = place.job(unnamed=False)
    job.release()
    job.abandon()
    job.open()
    assert len(place.names()) == 1
    job.abandon()
    assert place.names() == []
    job.release()
    job.open()
    assert len(place.names()) == 1
    job.release()
    job.release()
    assert place.names() == []


def test_no_byte_is_written_after_an_interrupt(place: Place) -> None:
    job = place.job()
    job.open()
    place.run.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    assert place.listener.bytes == 0
    job.release()


# -- one version of a blob ----------------------------------------------------------------------------------------


class Reads(MemoryStore):
    """Remembers how much was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[MemoryReader]:
        with super().open(name, start=start, length=length, etag=etag) as reader:
            limits = self.limits

            class Watched(MemoryReader):
                def read(self, limit: int) -> bytes:
                    limits.append(limit)
                    return super().read(limit)

            return Watched(reader.info, reader.properties, self.blobs[name].body[start:][:length], None)


@pytest.mark.parametrize(
    ("start", "length", "asked", "limits"),
    [
        (0, len(BODY), (0, 0), [CHUNK, 5]),
        (0, len(BODY) - 1, (0, len(BODY) - 1), [CHUNK, 4]),
        (1, len(BODY) - 1, (1, len(BODY) - 1), [CHUNK, 4]),
        (CHUNK, 5, (CHUNK, 5), [5]),
    ],
)
def test_a_range_is_read_in_chunks_and_the_whole_without_a_range(
    start: int, length: int, asked: tuple[int, int], limits: list[int]
) -> None:
    store = Reads()
    store.add(NAME, BODY)
    state = remote_state(store, NAME)
    assert state is not None
    store.requests.clear()
    seen: list[str] = []
    chunks = list(
        read_range(store, NAME, state, start, length, opened=lambda reader: seen.append(reader.properties.content_type))
    )
    assert b"".join(chunks) == BODY[start : start + length]
    assert store.requests == [Request("get", NAME, *asked)]
    assert store.limits == limits and len(seen) == 1


def gone(store: MemoryStore) -> None:
    del store.blobs[NAME]


def replaced(store: MemoryStore) -> None:
    store.add(NAME, BODY)


@pytest.mark.parametrize("change", [gone, replaced])
def test_another_version_is_never_read(place: Place, change: Callable[[MemoryStore], None]) -> None:
    state = remote_state(place.store, NAME)
    assert state is not None
    looked_up(place.store, NAME, state)
    change(place.store)
    with pytest.raises(ChangedWhileReadError) as caught:
        list(read_range(place.store, NAME, state, 0, 5))
    assert caught.value.path == NAME and caught.value.hint
    with pytest.raises(ChangedWhileReadError):
        looked_up(place.store, NAME, state)


def test_the_version_is_the_planned_one_and_else_the_present_one(place: Place) -> None:
    place.store.add(NAME, BODY, properties=BlobProperties(tier="Cool"))
    planned = RemoteState(1, "planned", b"m" * 16)
    place.store.requests.clear()
    assert version_of(place.store, NAME, action("a", planned, None)) is planned and not place.store.requests
    found = version_of(place.store, NAME, action("a", None, None))
    assert found == remote_state(place.store, NAME) and found.tier == "Cool"
    gone(place.store)
    with pytest.raises(ChangedWhileReadError):
        version_of(place.store, NAME, action("a", None, None))


def test_a_copy_whose_source_changed_says_that_of_the_source() -> None:
    def fail(error: BlobsyncError) -> None:
        with naming_the_source(NAME):
            raise error

    with pytest.raises(ChangedWhileReadError) as caught:
        fail(SourceChangedError("it changed"))
    assert caught.value.path == NAME
    with pytest.raises(StorageError):
        fail(StorageError("something else"))
