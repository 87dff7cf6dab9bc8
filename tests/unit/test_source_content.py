"""Objects from outside Azure that pass through this machine: whatever moves them, their content is compared with what
the source says of it, and is of one version."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import ChecksumError
from blobsync.base.file_states import RemoteState
from blobsync.direct.download import DownloadJob
from blobsync.direct.large_download import LargeDownloadJob
from blobsync.direct.relay import RelayJob
from blobsync.direct.thread_pool import MIB, FileJob
from blobsync.local.files import LocalFolder
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import Checksum
from blobsync.transfer.engines import NOTHING_COMPARED, Moved
from tests.fakes.source_store import MemorySource
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, copy, local_state

NAME = "x/a"
PIECE = 1000
BODY = random.Random(5).randbytes(4 * MIB + 5)
OTHER = hashlib.md5(b"other").digest()


class Mover:
    """One way to move the object, and its bytes at the other end."""

    def __init__(self, way: str, size: int, root: Path) -> None:
        self.source = MemorySource()
        self.there = MemoryStore("there")
        self.body = BODY[:size]
        self.file = root / "a"
        self.source.add(NAME, self.body)
        self._way = way
        self.is_relay = way.startswith("relay")

    def action(self) -> FileAction:
        """As planned from a listing, which has no MD5."""
        (found,) = copy(self.source, "x", self.there, "y", ["a"]).actions
        (info,) = self.source.list_blobs(NAME)
        return found._replace(source=RemoteState(info.size, info.etag, None, ""))

    def job(self, action: FileAction | None = None) -> FileJob:
        action = action or self.action()
        run = RecordedRun(copy(self.source, "x", self.there, "y", ["a"]), RecordingListener(), 1 << 30)
        self.source.inner.requests.clear()
        if self.is_relay:
            return RelayJob(run, action, OpenBlob(self.source, "x"), OpenBlob(self.there, "y"))
        folder = LocalFolder(self.file.parent)
        if self._way == "large file":
            return LargeDownloadJob(run, action, self.source, NAME, folder, "a", PIECE, None)
        return DownloadJob(run, action, self.source, NAME, folder, "a")

    def moved(self, action: FileAction | None = None) -> Moved:
        return finished(self.job(action))

    def arrived(self) -> bytes | None:
        if self.is_relay:
            return self.there.body("y/a") if "y/a" in self.there.blobs else None
        return self.file.read_bytes() if self.file.exists() else None

    def keeps_md5(self, md5: bytes) -> None:
        """The source says this of the object, whatever its bytes are."""
        blob = self.source.inner.blobs[NAME]
        blob.info = blob.info._replace(md5=md5)


def finished(job: FileJob) -> Moved:
    try:
        for _ in range(job.open()):
            job.piece()
        return job.commit()
    finally:
        job.release()


SIZES = {"small file": 500, "large file": 2 * PIECE + 500, "relay": 500, "relay in blocks": len(BODY)}


@pytest.fixture(params=SIZES)
def mover(request: pytest.FixtureRequest, tmp_path: Path) -> Mover:
    (tmp_path / "down").mkdir()
    return Mover(request.param, SIZES[request.param], tmp_path / "down")


def sha256(body: bytes) -> Checksum:
    return Checksum("sha256", hashlib.sha256(body).digest())


@pytest.mark.parametrize(
    ("has_md5", "kept", "compared_by"),
    [
        (True, None, "md5"),
        (True, sha256, "sha256"),
        (False, sha256, "sha256"),
        (True, lambda _: Checksum("unheard of", b"?"), "md5"),
        (False, lambda _: Checksum("unheard of", b"?"), NOTHING_COMPARED),
        (False, None, NOTHING_COMPARED),
    ],
)
def test_it_is_compared_by_the_best_that_the_source_says(
    mover: Mover, kept: Callable[[bytes], Checksum] | None, compared_by: str, *, has_md5: bool
) -> None:
    if not has_md5:
        mover.source.hides_md5.add(NAME)
    if kept is not None:
        mover.source.checksums[NAME] = kept(mover.body)
    moved = mover.moved()
    assert moved.compared_by == compared_by and mover.arrived() == mover.body
    assert isinstance(moved.source, RemoteState) and moved.source.md5 == hashlib.md5(mover.body).digest()


def test_it_is_compared_also_where_no_listing_told_its_tier(mover: Mover) -> None:
    action = mover.action()
    assert isinstance(action.source, RemoteState)
    assert mover.moved(action._replace(source=replace(action.source, tier=None))).compared_by == "md5"


def test_it_replaces_what_was_there(mover: Mover) -> None:
    """A version before has no blocks in common with an object that has none."""
    mover.there.add("y/a", b"before")
    mover.file.write_bytes(b"before")
    action = mover.action()
    assert isinstance(action.source, RemoteState)
    # As the planner has it after a question about its MD5.
    action = action._replace(source=replace(action.source, md5=hashlib.md5(mover.body).digest()))
    mover.moved(action if mover.is_relay else action._replace(destination=local_state(mover.file)))
    assert mover.arrived() == mover.body


def test_bytes_that_have_not_the_sources_md5_get_no_name(mover: Mover) -> None:
    mover.source.checksums[NAME] = sha256(mover.body)
    mover.keeps_md5(OTHER)
    with pytest.raises(ChecksumError, match="a different MD5") as caught:
        mover.moved()
    assert caught.value.path == NAME and caught.value.hint and mover.arrived() is None


def test_bytes_that_have_not_the_sources_checksum_get_no_name(mover: Mover) -> None:
    mover.source.checksums[NAME] = sha256(b"other")
    with pytest.raises(ChecksumError, match="a different SHA256") as caught:
        mover.moved()
    assert caught.value.path == NAME and mover.arrived() is None


def test_bytes_that_have_not_the_planned_md5_get_no_name(mover: Mover) -> None:
    action = mover.action()
    assert isinstance(action.source, RemoteState)
    mover.source.hides_md5.add(NAME)
    with pytest.raises(ChecksumError, match="a different MD5"):
        mover.moved(action._replace(source=replace(action.source, md5=OTHER)))
    assert mover.arrived() is None


def test_one_request_says_all_of_an_object_that_is_read_at_once(mover: Mover) -> None:
    mover.moved()
    in_pieces = len(mover.source.inner.asked("get")) > 1
    assert len(mover.source.inner.asked("head")) == in_pieces


@pytest.mark.parametrize("change", ["another version", "another size", "gone"])
def test_another_version_than_the_planned_one_is_not_read(mover: Mover, change: str) -> None:
    job = mover.job()

    def meanwhile(request: Request) -> None:
        """Before the first question about the object."""
        mover.source.inner.before = lambda _: None
        kept = mover.source.inner.blobs.pop(NAME)
        if change == "another version":
            mover.source.add(NAME, mover.body)
        elif change == "another size":
            # A web server that makes its ETags of something else than the content.
            mover.source.add(NAME, mover.body[:-1])
            blob = mover.source.inner.blobs[NAME]
            blob.info = blob.info._replace(etag=kept.info.etag)

    mover.source.inner.before = meanwhile
    with pytest.raises((ChangedWhileReadError, ChecksumError)) as caught:
        finished(job)
    # Without a look before, a body that is too short is all that tells.
    is_short = change == "another size" and not mover.source.inner.asked("head")
    assert caught.type is (ChecksumError if is_short else ChangedWhileReadError)
    assert caught.value.path == NAME and mover.arrived() is None
