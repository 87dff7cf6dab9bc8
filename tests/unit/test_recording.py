"""The recording of a download's written ranges, once it has run for a while."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import RemoteState
from blobsync.direct.large_download import LandingRange, Recording, start_record
from blobsync.direct.range_reads import CHUNK
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.part_files import FolderDescriptor, KeptName, PartFile
from blobsync.local.resume_records import RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.local.state_dir import StateDir

SIZE = 6 * CHUNK
BODY = random.Random(8).randbytes(SIZE)
VERSION = RemoteState(SIZE, "e", b"m" * 16)
BLOB = "http://127.0.0.1:1/fake/data/large"


class Download:
    """One part file, its record, and a clock that stands still until it is set."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state"
        self.state.mkdir(mode=0o700)
        self.records = RangeRecords(StateDir(self.state))
        self.folder = LocalFolder(root / "down")
        self.part = self.folder.create(relative_name("large"), SIZE)
        self.destination = self.folder.path_of(relative_name("large"))
        self.now = 100.0
        self.started = 0
        self.kinds: set[int] = set()
        self.record: RangeRecord | None = None

    def start(self) -> RangeRecord | None:
        self.started += 1
        self.record = start_record(self.records, self.part, self.destination, BLOB, VERSION)
        return self.record

    def recording(
        self, *, after: float = 5.0, size: int = SIZE, compared: bool = True, resumed: RangeRecord | None = None
    ) -> Recording:
        return Recording(self.part, size, self.start, after, compared=compared, resumed=resumed, clock=lambda: self.now)

    def write(self, recording: Recording, start: int, *lengths: int) -> None:
        """Write and record a range, as a downloading thread."""
        landing = LandingRange(recording, start)
        for length in lengths:
            self.part.write_at(start, BODY[start : start + length])
            landing.wrote(BODY[start : start + length])
            start += length
        landing.end()

    def pieces(self) -> list[tuple[int, int, bytes]]:
        if self.record is not None:
            self.record.save()
        with suppress(sqlite3.Error), closing(sqlite3.connect(self.state / "unfinished.sqlite")) as db:
            return db.execute("SELECT key, size, mark FROM pieces ORDER BY key").fetchall()
        return []

    def on_record(self) -> list[tuple[int, int]]:
        """The lines of the record, each of them right; the checksums are of one kind."""
        kinds = set()
        found: list[tuple[int, int]] = []
        for start, length, digest in self.pieces():
            found.append((start, length))
            of = BODY[start : start + length]
            assert digest in (hashlib.sha256(of).digest(), zlib.crc32(of).to_bytes(4, "big"))
            kinds.add(len(digest))
        assert len(kinds) < 2
        self.kinds = kinds
        return found


@pytest.fixture
def download(tmp_path: Path) -> Iterator[Download]:
    made = Download(tmp_path)
    yield made
    made.part.discard()


def test_each_line_is_of_a_mib_or_of_what_one_thread_wrote_last(download: Download) -> None:
    recording = download.recording(after=0.0)
    download.write(recording, CHUNK, CHUNK, CHUNK - 1, 1, 7, 5)
    download.write(recording, 5 * CHUNK, 9)
    download.write(recording, 0)
    assert download.on_record() == [(CHUNK, CHUNK), (2 * CHUNK, CHUNK), (3 * CHUNK, 12), (5 * CHUNK, 9)]
    record = recording.record
    assert record is not None and record.bytes == 2 * CHUNK + 21


@pytest.mark.parametrize(("compared", "length"), [(True, 4), (False, 32)])
def test_a_range_has_a_crc32_where_the_whole_is_compared_and_else_a_sha256(
    download: Download, compared: bool, length: int
) -> None:
    recording = download.recording(compared=compared)
    download.write(recording, 0, CHUNK)
    download.now += 5.0
    recording.catch_up()
    download.write(recording, CHUNK, CHUNK)
    assert download.on_record() == [(0, CHUNK), (CHUNK, CHUNK)] and download.kinds == {length}


@pytest.mark.parametrize(
    ("size", "grain"),
    [(5, CHUNK), (100_000 * CHUNK, CHUNK), (100_000 * CHUNK + 1, CHUNK + 1), (200_000 * CHUNK - 1, 2 * CHUNK)],
)
def test_a_record_has_about_so_many_lines_at_most(download: Download, size: int, grain: int) -> None:
    assert download.recording(size=size).grain == grain


def test_nothing_is_on_record_before_that_is_worth_it(download: Download) -> None:
    recording = download.recording(after=5.0)
    download.write(recording, 0, CHUNK, CHUNK)
    recording.catch_up()
    recording.add(0, CHUNK, bytes(32))
    recording.lost(RecordedRange(0, CHUNK, bytes(32)))
    download.now += 4.9
    assert not recording.is_on() and recording.record is None
    assert not list(download.state.iterdir()) and download.started == 0
    download.now += 0.1
    assert recording.is_on() and download.started == 1
    recording.catch_up()
    assert download.on_record() == [(0, 2 * CHUNK)]


def test_what_landed_before_is_put_on_record_little_by_little(download: Download) -> None:
    recording = download.recording(after=5.0)
    for start in range(7):
        download.write(recording, 100 * start, 100)
        # Of a request that brought nothing, nothing is noted.
        download.write(recording, 100 * start + 50)
    download.now += 5
    assert recording.is_on() and recording.is_on()
    seen = []
    for _ in range(4):
        recording.catch_up()
        seen.append(len(download.on_record()))
    assert seen == [3, 6, 7, 7]
    assert download.on_record() == [(100 * start, 100) for start in range(7)]


def test_a_range_that_is_under_way_when_it_is_time_is_put_on_record_in_two(download: Download) -> None:
    recording = download.recording(after=5.0)
    landing = LandingRange(recording, CHUNK)
    download.part.write_at(CHUNK, BODY[CHUNK : 3 * CHUNK])
    landing.wrote(BODY[CHUNK : CHUNK + 50])
    landing.wrote(BODY[CHUNK + 50 : CHUNK + 100])
    download.now += 5
    landing.wrote(BODY[CHUNK + 100 : CHUNK + 130])
    # The first half lies on the disk only, and is read again.
    assert download.on_record() == [(CHUNK, 100)]
    landing.wrote(BODY[CHUNK + 130 : CHUNK + 150])
    landing.end()
    assert download.on_record() == [(CHUNK, 100), (CHUNK + 100, 50)]
    landing.end()
    recording.catch_up()
    assert download.on_record() == [(CHUNK, 100), (CHUNK + 100, 50)]


def test_a_range_that_is_lost_does_not_count(download: Download) -> None:
    recording = download.recording(after=0.0)
    download.write(recording, 0, 100)
    assert recording.record is not None and recording.record.bytes == 100
    recording.lost(RecordedRange(0, 40, bytes(32)))
    assert recording.record.bytes == 60


def test_what_another_run_has_on_record_goes_on_at_once(download: Download) -> None:
    earlier = download.start()
    assert earlier is not None
    resumed = download.recording(after=0.0, resumed=earlier)
    assert resumed.is_on()
    download.write(resumed, 0, 10)
    assert download.on_record() == [(0, 10)] and download.started == 1


def test_where_there_can_be_no_record_none_is_tried_again(download: Download) -> None:
    (download.state / "unfinished.sqlite").mkdir()
    recording = download.recording(after=0.0)
    download.write(recording, 0, CHUNK, CHUNK)
    assert not recording.is_on()
    recording.catch_up()
    assert (download.started, recording.record) == (1, None)
    (download.state / "unfinished.sqlite").rmdir()
    assert not recording.is_on() and download.on_record() == []


class Instant(float):
    """A time that two threads find to be late enough before either of them goes on."""

    both = threading.Barrier(2)

    def __ge__(self, other: float) -> bool:
        is_late = float(self) >= other
        self.both.wait(60)
        return is_late


def test_two_threads_for_which_it_is_time_at_once_begin_one_record(download: Download) -> None:
    times: Iterator[float] = iter([100.0, Instant(100.0), Instant(100.0)])
    recording = Recording(download.part, SIZE, download.start, 0.0, compared=True, clock=lambda: next(times))
    threads = [threading.Thread(target=recording.is_on) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert download.started == 1 and recording.is_on()


def test_a_record_says_what_it_is_of(download: Download) -> None:
    record = download.start()
    assert record is not None and record.of is not None
    (part,) = (name for name in Path(download.destination).parent.iterdir())
    assert record.of == UnfinishedDownload(
        download.destination, BLOB, VERSION.etag, SIZE, part.name, part.stat().st_ino
    )
    assert [of for of, _ in download.records.all()] == [record.of]


def nothing_is_left(download: Download) -> None:
    assert list(download.records.all()) == []


class Nameless(PartFile):
    """A disk on which no file can be named."""

    def keep(self) -> KeptName:
        raise LocalFileError("no space left on device")


def test_without_a_name_for_the_part_file_there_is_no_record(download: Download, tmp_path: Path) -> None:
    folder = FolderDescriptor(os.open(tmp_path, os.O_RDONLY), unnamed=False)
    part = Nameless(folder, "large", tmp_path / "large", SIZE)
    assert start_record(download.records, part, download.destination, BLOB, VERSION) is None
    part.discard()
    nothing_is_left(download)
