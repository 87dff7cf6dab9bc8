"""Records of unfinished downloads: after a kill, their writers, and their removal."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from blobsync.local.resume_records import KEPT_SECONDS, RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.local.state_dir import StateDir


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def records(tmp_path: Path) -> RangeRecords:
    (tmp_path / "state").mkdir(mode=0o700)
    return RangeRecords(StateDir(tmp_path / "state"))


def of(data: Path, name: str = "a", size: int = 1000) -> UnfinishedDownload:
    part = data / f".blobsync-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}.part"
    if not part.exists():
        part.write_bytes(bytes(size))
    return UnfinishedDownload(str(data / name), f"https://x/y/{name}", "0x1", size, part.name, part.stat().st_ino)


def each(start: int, length: int, mark: str = "") -> RecordedRange:
    return RecordedRange(start, length, hashlib.sha256(f"{start}{mark}".encode()).digest())


def begin(records: RangeRecords, what: UnfinishedDownload, *ranges: RecordedRange) -> RangeRecord:
    record = records.start(what)
    assert record is not None
    for one in ranges:
        record.add(one)
    return record


def again(records: RangeRecords, what: UnfinishedDownload) -> RangeRecord:
    record = records.take(what.destination)
    assert record is not None
    return record


def change(tmp_path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(tmp_path / "state/unfinished.sqlite")) as db, db:
        db.execute(statement, values)


@contextmanager
def written_to(data: Path, what: UnfinishedDownload) -> Iterator[None]:
    """Another process writes to the part file."""
    with (data / what.part).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_what_was_written_is_read_again_in_the_order_of_the_file(records: RangeRecords, data: Path) -> None:
    what = of(data)
    record = begin(records, what, each(500, 100), each(0, 50), each(50, 100))
    assert record.bytes == 250
    record.close()
    found = again(records, what)
    assert (found.of, found.bytes) == (what, 250)
    assert found.ranges == (each(0, 50), each(50, 100), each(500, 100))
    found.add(each(600, 400))
    found.close()
    assert list(records.all()) == [(what, 650)]


def test_of_ranges_over_one_another_the_first_counts(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 100), each(100, 100), each(50, 10), each(150, 75), each(250, 20)).close()
    assert again(records, what).ranges == (each(0, 100), each(100, 100), each(250, 20))


@pytest.mark.parametrize(
    ("start", "length", "checksum"),
    [
        *((-1, 2, b"1" * 32), (999, 2, b"1" * 32), (200, 0, b"1" * 4), (200, 1, None), (200, 1, b"1" * 5)),
        *((2**62, 2**62, b"1" * 4), (200, -1, b"1" * 4)),
    ],
)
def test_a_range_that_cannot_be_counts_for_nothing(
    records: RangeRecords, data: Path, tmp_path: Path, start: int, length: int, checksum: bytes | None
) -> None:
    what = of(data)
    begin(records, what, each(0, 100), each(100, 100)).close()
    change(tmp_path, "INSERT INTO pieces SELECT id, ?, ?, ? FROM unfinished", start, length, checksum)
    assert again(records, what).ranges == (each(0, 100), each(100, 100))


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": "../../etc/passwd"},
        {"part": "a"},
        {"destination": "data/a"},
        {"destination": "/a\0b"},
        {"destination": "/a\ud800b"},
        {"size": "1000"},
        {"size": -1},
        {"inode": None},
        {"more": 1},
        *("", "[]", "{}", "[" * 100_000),
    ],
)
def test_a_head_that_is_none_makes_no_record(
    records: RangeRecords, data: Path, tmp_path: Path, wrong: dict[str, object] | str
) -> None:
    what = of(data)
    begin(records, what, each(0, 100)).close()
    head = wrong if isinstance(wrong, str) else json.dumps({**what._asdict(), **wrong})
    change(tmp_path, "UPDATE unfinished SET head = ?", head)
    assert records.take(what.destination) is None and list(records.all()) == []
    begin(records, what, each(0, 10)).close()
    assert list(records.all()) == [(what, 10)]


def test_a_record_is_one_writers_at_a_time(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    other = what._replace(part=".blobsync-0badcafe.part")
    with written_to(data, what):
        assert records.take(what.destination) is None
        assert records.start(other) is None
    assert list(records.all()) == [(what, 10)]
    begin(records, other).close()
    assert not (data / what.part).exists() and list(records.all()) == [(other, 0)]


def test_beginning_anew_forgets_what_was_there_and_ends_the_record_before(records: RangeRecords, data: Path) -> None:
    what = of(data)
    before = begin(records, what, each(0, 100))
    other = what._replace(etag="0x2")
    record = begin(records, other, each(100, 10))
    before.add(each(200, 10))
    before.remove()
    record.close()
    found = again(records, what)
    assert (found.of, found.ranges) == (other, (each(100, 10),))


def test_what_is_finished_is_on_record_no_more(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    record = begin(records, what)
    record.remove()
    record.remove()
    record.add(each(0, 100))
    assert records.take(what.destination) is None and list(records.all()) == []
    assert (data / what.part).exists()
    begin(records, what).remove_with_part()
    assert not (data / what.part).exists()


def test_an_uneasy_name_is_a_path_like_any_other(records: RangeRecords, data: Path) -> None:
    what = of(data, "a\udcff\n'\"")
    begin(records, what, each(0, 10)).close()
    assert again(records, what).of == what


def test_where_nothing_can_be_written_there_is_no_record(tmp_path: Path, data: Path) -> None:
    (tmp_path / "state/unfinished.sqlite").mkdir(parents=True)
    records = RangeRecords(StateDir(tmp_path / "state"))
    assert records.start(of(data)) is None
    assert records.take(str(data / "a")) is None
    assert list(records.all()) == []


@pytest.mark.parametrize(
    ("planned", "wanted", "age", "stays"),
    [
        (False, False, 0.0, True),
        (True, True, 0.0, True),
        (True, False, 0.0, False),
        (False, False, KEPT_SECONDS - 60, True),
        (True, True, KEPT_SECONDS + 60, False),
    ],
)
def test_what_no_download_goes_on_from_is_removed(
    records: RangeRecords, data: Path, planned: bool, wanted: bool, age: float, stays: bool
) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    now = time.time() + age
    records.tidy([what.destination] if planned else ["/another"], lambda found: wanted and found == what, now)
    assert (data / what.part).exists() is stays
    assert [found for found, _ in records.all()] == ([what] if stays else [])


def test_what_a_living_process_writes_stays(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    with written_to(data, what):
        records.tidy([what.destination], lambda _: False, 1e12)
        assert (data / what.part).exists() and list(records.all()) == [(what, 10)]
    records.tidy([what.destination], lambda _: False)
    assert not (data / what.part).exists()


def test_a_record_without_its_part_file_goes(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    os.unlink(data / what.part)
    records.tidy((), lambda _: True)
    assert list(records.all()) == []


def test_a_range_that_is_lost_counts_no_more_and_what_comes_in_its_place_does(
    records: RangeRecords, data: Path
) -> None:
    what = of(data)
    record = begin(records, what, each(0, 100), each(100, 50))
    record.lost(each(0, 100))
    assert record.bytes == 50
    record.add(each(0, 100, "new"))
    assert record.bytes == 150
    record.close()
    assert again(records, what).ranges == (each(0, 100, "new"), each(100, 50))


@pytest.mark.parametrize(
    ("blob", "etag", "size", "is_it"),
    [
        ("https://x/y/a", "0x1", 1000, True),
        ("https://x/y/b", "0x1", 1000, False),
        ("https://x/y/a", "0x2", 1000, False),
        ("https://x/y/a", "0x1", 1001, False),
    ],
)
def test_a_record_is_of_one_version_of_one_blob(data: Path, blob: str, etag: str, size: int, is_it: bool) -> None:
    assert of(data).is_of(blob, etag, size) is is_it


def test_the_age_of_a_record_is_that_by_the_real_clock(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    records.tidy((), lambda _: True)
    assert list(records.all()) == [(what, 10)]
    change(tmp_path, "UPDATE unfinished SET at = 1000.0")
    records.tidy((), lambda _: True)
    assert list(records.all()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists descriptors")
def test_no_descriptor_of_a_record_stays_open(records: RangeRecords, data: Path) -> None:
    what = of(data)
    # The garbage collector must not close files of other tests in between.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    begin(records, what, each(0, 10)).close()
    again(records, what).close()
    with written_to(data, what):
        assert records.take(what.destination) is None
    assert list(records.all()) == [(what, 10)]
    records.tidy([what.destination], lambda _: False)
    assert len(os.listdir("/proc/self/fd")) == before
