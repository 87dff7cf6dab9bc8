"""Checks on this machine of files that workers report."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.spread.shard_account import OwnReading, as_seen_here, file_to_read, known_source, with_own_look
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import action

_PATIENCE = 60.0
_MD5, _OTHER_MD5 = bytes(16), bytes(range(16))
_BLOB = RemoteState(4, "0x1", _MD5)
_THERE = OpenBlob(MemoryStore("box"), "sets")


@pytest.fixture
def here(tmp_path: Path) -> LocalLocation:
    (tmp_path / "a").write_bytes(b"file")
    (tmp_path / "beside").write_bytes(b"aside")
    return LocalLocation(tmp_path)


def _state(here: LocalLocation, name: str = "a") -> LocalState:
    return LocalState.of(here.at(name).stat())


# -- a file that a worker put here ------------------------------------------------------------------------------


def test_a_file_counts_as_arrived_here_only_where_it_is_the_one_that_the_worker_tells_of(here: LocalLocation) -> None:
    moved = Moved(action("a", _BLOB, None), _BLOB, _state(here))
    assert as_seen_here(here, moved) == moved
    assert file_to_read(_THERE, here, moved) == here.path / "a"
    for other in (replace(_state(here), inode=1), _state(here, "beside")):
        told = moved._replace(destination=other)
        assert as_seen_here(here, told) == moved._replace(destination=None)
        assert file_to_read(_THERE, here, told) is None
    here.at("a").unlink()
    assert as_seen_here(here, moved).destination is None and file_to_read(_THERE, here, moved) is None


def test_a_file_is_looked_at_and_read_under_the_name_that_it_was_written_to(here: LocalLocation) -> None:
    moved = Moved(replace(action("a", _BLOB, None), target="beside"), _BLOB, _state(here, "beside"))
    assert as_seen_here(here, moved) == moved
    assert file_to_read(_THERE, here, moved) == here.path / "beside"


def test_what_no_worker_saw_here_is_not_read_here(here: LocalLocation) -> None:
    assert file_to_read(_THERE, here, Moved(action("a", _BLOB, None), _BLOB)) is None
    # This machine cannot check copies between containers.
    elsewhere = Moved(action("a", _BLOB, None), _BLOB, _state(here))
    assert as_seen_here(_THERE, elsewhere) == elsewhere
    assert file_to_read(_THERE, _THERE, Moved(action("a", _BLOB, None), _BLOB, _BLOB)) is None


def test_the_source_of_an_upload_is_read_wherever_it_went(here: LocalLocation) -> None:
    moved = Moved(replace(action("a", _state(here), None), target="elsewhere"), _state(here))
    assert file_to_read(here, _THERE, moved) == here.path / "a"


# -- the states of both ends ------------------------------------------------------------------------------------


def test_what_a_source_held_is_read_here_as_long_as_it_is_the_version_that_moved(here: LocalLocation) -> None:
    told = replace(_state(here), md5=_MD5)
    moved = Moved(action("a", _state(here), None), told, _BLOB)
    own = replace(told, md5=_OTHER_MD5)
    assert with_own_look(moved, own) == moved._replace(source=own)
    assert with_own_look(moved, None) == moved
    assert with_own_look(moved, replace(own, inode=1)) == moved


def test_what_arrived_here_is_what_was_read_here(here: LocalLocation) -> None:
    moved = Moved(action("a", _BLOB, None), replace(_BLOB, md5=_OTHER_MD5), replace(_state(here), md5=_OTHER_MD5))
    own = replace(_state(here), md5=_MD5)
    assert with_own_look(moved, own) == moved._replace(source=_BLOB, destination=own)
    for other in (None, replace(own, inode=1)):
        assert with_own_look(moved, other) == moved._replace(source=_BLOB, destination=None)


def test_of_a_copy_the_plan_knows_the_source_and_the_destination_stays_as_told() -> None:
    for destination in (None, _BLOB):
        moved = Moved(action("a", _BLOB, None), replace(_BLOB, md5=_OTHER_MD5), destination)
        assert with_own_look(moved, None) == moved._replace(source=_BLOB)


@pytest.mark.parametrize(
    ("planned", "told", "known"),
    [
        (_BLOB, replace(_BLOB, md5=_OTHER_MD5), _BLOB),
        (replace(_BLOB, md5=None), replace(_BLOB, md5=_OTHER_MD5), replace(_BLOB, md5=_OTHER_MD5)),
        (_BLOB, None, None),
        (None, _BLOB, _BLOB),
        (LocalState(4, 1, 1, 1, _MD5), _BLOB, _BLOB),
        (_BLOB, LocalState(4, 1, 1, 1), LocalState(4, 1, 1, 1)),
    ],
)
def test_a_blob_has_the_md5_that_the_plan_knows_or_else_the_one_of_whoever_read_it(
    planned: FileState | None, told: FileState | None, known: FileState | None
) -> None:
    assert known_source(Moved(action("a", planned, None), told)) == known


# -- reading in threads -----------------------------------------------------------------------------------------


class Disk:
    """A disk whose reads wait for the test."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.begun = threading.Semaphore(0)
        self.read_files: list[str] = []
        self.known = set(threading.enumerate())

    def read(self, file: Path) -> LocalState | None:
        self.begun.release()
        assert self.ready.wait(_PATIENCE)
        self.read_files.append(file.name)
        return LocalState(len(file.name), 0, 0, 0)

    def threads(self) -> list[threading.Thread]:
        """The reads that have begun since."""
        return [each for each in threading.enumerate() if each not in self.known]


def _all_settled(reading: OwnReading) -> None:
    end = time.monotonic() + _PATIENCE
    while reading.open and time.monotonic() < end:
        reading.settle(_PATIENCE)
    assert not reading.open


def test_files_are_read_as_they_are_and_what_cannot_be_read_is_none(here: LocalLocation) -> None:
    reading, read = OwnReading(), dict[str, LocalState | None]()
    for name in ("a", "beside", "missing"):
        reading.begin(here.at(name), lambda state, name=name: read.__setitem__(name, state))  # type: ignore[misc]
    _all_settled(reading)
    reading.close()
    digests = {name: state.md5 if state else None for name, state in read.items()}
    assert digests == {"a": hashlib.md5(b"file").digest(), "beside": hashlib.md5(b"aside").digest(), "missing": None}
    assert read["a"] == replace(_state(here), md5=digests["a"])


@pytest.mark.parametrize("most", [1, 2])
def test_there_are_as_many_readers_as_allowed_and_a_command_that_ends_waits_for_none(most: int) -> None:
    disk, read = Disk(), list[LocalState | None]()
    reading = OwnReading(most, disk.read)
    for name in ("one", "two", "three"):
        reading.begin(Path(name), read.append)
    threads = disk.threads()
    assert len(threads) == most and all(each.daemon for each in threads)
    disk.ready.set()
    _all_settled(reading)
    assert len(read) == 3
    reading.close()
    for each in threads:
        each.join(_PATIENCE)
        assert not each.is_alive()


def test_one_file_after_the_other_needs_one_reader() -> None:
    disk = Disk()
    disk.ready.set()
    reading = OwnReading(8, disk.read)
    for name in ("one", "two", "three"):
        reading.begin(Path(name), lambda state: None)
        _all_settled(reading)
    assert len(disk.threads()) == 1
    reading.close()


def test_nobody_waits_for_a_file_that_is_being_read_unless_asked_to() -> None:
    disk, read = Disk(), list[LocalState | None]()
    reading = OwnReading(1, disk.read)
    reading.begin(Path("one"), read.append)
    assert disk.begun.acquire(timeout=_PATIENCE)
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        reading.settle()
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.5 and not read and reading.open == 1
    threading.Timer(0.1, disk.ready.set).start()
    # A waiting thread continues as soon as the file is read.
    reading.settle(_PATIENCE)
    assert len(read) == 1 and reading.open == 0
    reading.close()


def test_no_file_is_begun_when_nobody_asks_any_more() -> None:
    disk, read = Disk(), list[LocalState | None]()
    reading = OwnReading(1, disk.read)
    for name in ("one", "two"):
        reading.begin(Path(name), read.append)
    assert disk.begun.acquire(timeout=_PATIENCE)
    (thread,) = disk.threads()
    reading.close()
    disk.ready.set()
    thread.join(_PATIENCE)
    assert not thread.is_alive() and disk.read_files == ["one"]
