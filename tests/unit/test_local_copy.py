"""One file of this machine, copied to another place here: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from blobsync.base.errors import PreconditionFailedError
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.direct.local_copy import LocalCopyJob
from blobsync.direct.range_reads import CHUNK
from blobsync.direct.thread_pool import Stopped
from blobsync.local.files import LocalFolder
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.transfer.engines import Moved, MoveTask
from tests.fakes.tasks import RecordedRun, RecordingListener, action, live_part, local_state

BODY = random.Random(9).randbytes(2 * CHUNK + 5)
MD5 = hashlib.md5(BODY).digest()


class Place:
    def __init__(self, root: Path) -> None:
        self.file, self.there = root / "from" / "a", root / "to"
        for folder in (self.file.parent, self.there):
            folder.mkdir()
        self.file.write_bytes(BODY)
        self.listener = RecordingListener()

    def job(
        self, found: FileAction | None = None, *, source: Path | None = None, end: Path | None = None
    ) -> LocalCopyJob:
        found = found or action("a", local_state(self.file), local_state(self.there / "a"))
        ends = LocalLocation(source or self.file.parent), LocalLocation(end or self.there)
        self.run = RecordedRun(MoveTask(live_part(Route.DOWNLOAD, *ends), [found]), self.listener, 0)
        # With a name from the first byte on, so that what is left can be seen.
        return LocalCopyJob(self.run, found, *ends, LocalFolder(self.there, unnamed=False))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.there))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def copied(job: LocalCopyJob) -> Moved:
    try:
        assert job.open() == 1
        job.piece()
        return job.commit()
    finally:
        job.release()
        job.release()


def test_it_appears_with_the_bytes_the_time_and_the_permissions_of_its_source(place: Place) -> None:
    place.file.chmod(0o640)
    os.utime(place.file, ns=(5, 7))
    moved = copied(place.job())
    file = place.there / "a"
    assert file.read_bytes() == BODY and place.names() == ["a"]
    assert (file.stat().st_mode & 0o777, file.stat().st_mtime_ns) == (0o640, 7)
    assert (moved.source, moved.destination) == (LocalState.of(place.file.stat(), MD5), LocalState.of(file.stat(), MD5))
    assert place.listener.bytes == len(BODY)


def test_a_single_file_goes_where_it_was_named_and_any_may_get_another_name(place: Place) -> None:
    copied(place.job(action("", local_state(place.file), None), source=place.file, end=place.there / "b"))
    copied(place.job(action("a", local_state(place.file), None)._replace(target="sub/c")))
    assert place.names() == ["b", "sub"] and (place.there / "sub/c").read_bytes() == BODY


def test_what_the_plan_saw_is_replaced_and_nothing_else(place: Place) -> None:
    unseen = place.job()
    (place.there / "a").write_bytes(b"mine")
    with pytest.raises(PreconditionFailedError):
        copied(unseen)
    assert place.names() == ["a"] and (place.there / "a").read_bytes() == b"mine"
    copied(place.job())
    assert (place.there / "a").read_bytes() == BODY


@pytest.mark.parametrize("when", ["planned", "opened"])
def test_a_file_that_is_written_to_meanwhile_is_no_success(place: Place, when: str) -> None:
    job = place.job()
    if when == "opened":
        job.open()
    with place.file.open("r+b") as file:
        file.write(b"other")
    os.utime(place.file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        job.open() if when == "planned" else job.piece()
    job.release()
    assert place.names() == []


def test_an_interrupt_ends_it_and_leaves_nothing(place: Place) -> None:
    job = place.job()
    job.release()
    job.open()
    assert len(place.names()) == 1
    place.run.stop.set()
    with pytest.raises(Stopped):
        job.piece()
    job.release()
    assert place.names() == [] and place.listener.bytes == 0 and job._source.fd < 0
