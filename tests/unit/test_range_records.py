"""Records of unfinished downloads: after a kill, their locks, and their removal."""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
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
    record = records.take(what.destination, make=True)
    assert record is not None
    assert record.begin(what)
    for one in ranges:
        record.add(one)
    return record


def again(records: RangeRecords, what: UnfinishedDownload) -> RangeRecord:
    record = records.take(what.destination, make=False)
    assert record is not None
    return record


def file_of(records: RangeRecords, tmp_path: Path) -> Path:
    (file,) = (tmp_path / "state" / "downloads").iterdir()
    return file


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


def test_of_ranges_over_one_another_the_last_counts(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 100), each(100, 100), each(50, 10), each(150, 25), each(60, 20, "new")).close()
    assert again(records, what).ranges == (each(50, 10), each(60, 20, "new"), each(150, 25))


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole[:-40],
        lambda whole: whole[:-1] + b"\0" * 4096,
        lambda whole: whole + b"0 0 " + b"0" * 64 + b"\n",
        lambda whole: whole + b"3e7 2 " + b"0" * 64 + b"\n",
        lambda whole: whole + b"-1 2 " + b"0" * 64 + b"\n",
        lambda whole: whole + b"garbage\n" + b"1" * 10_000 + b"\n",
    ],
)
def test_a_line_that_is_none_counts_for_nothing(
    records: RangeRecords, data: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    what = of(data)
    begin(records, what, each(0, 100), each(100, 100)).close()
    file = file_of(records, tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    found = again(records, what)
    assert found.of == what
    assert set(found.ranges) <= {each(0, 100), each(100, 100)}
    assert each(0, 100) in found.ranges


@pytest.mark.parametrize(
    "change",
    [
        {"blobsync_ranges": 2},
        {"part": "../../etc/passwd"},
        {"part": "a"},
        {"destination": "data/a"},
        {"destination": "/a\0b"},
        {"destination": "/a\ud800b"},
        {"size": "1000"},
        {"size": -1},
        {"inode": None},
        {"more": 1},
    ],
)
def test_a_head_that_is_none_makes_no_record(
    records: RangeRecords, data: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    what = of(data)
    begin(records, what, each(0, 100)).close()
    file = file_of(records, tmp_path)
    head, _, rest = file.read_bytes().partition(b"\n")
    file.write_bytes(json.dumps({**json.loads(head), **change}).encode() + b"\n" + rest)
    found = again(records, what)
    assert (found.of, found.ranges, found.bytes) == (None, (), 0)
    found.close()
    assert list(records.all()) == []
    records.tidy((), lambda _: True)
    assert not file.exists()


def test_a_record_is_one_writers_at_a_time(records: RangeRecords, data: Path) -> None:
    what = of(data)
    record = begin(records, what)
    assert records.take(what.destination, make=True) is None
    assert records.take(what.destination, make=False) is None
    record.close()
    again(records, what).close()


def test_beginning_anew_forgets_what_was_there(records: RangeRecords, data: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 100)).close()
    other = replace(what, etag="0x2")
    record = again(records, what)
    record.begin(other)
    record.add(each(100, 10))
    record.close()
    found = again(records, what)
    assert (found.of, found.ranges) == (other, (each(100, 10),))


def test_what_is_finished_is_on_record_no_more(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    record = begin(records, what)
    record.remove()
    record.remove()
    record.add(each(0, 100))
    assert records.take(what.destination, make=False) is None
    assert (data / what.part).exists()
    begin(records, what).remove_with_part()
    assert not (data / what.part).exists()


def test_an_uneasy_name_is_a_path_like_any_other(records: RangeRecords, data: Path) -> None:
    what = of(data, "a\udcff\n'\"")
    begin(records, what, each(0, 10)).close()
    assert again(records, what).of == what


def test_where_nothing_can_be_written_there_is_no_record(tmp_path: Path, data: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "state/downloads").symlink_to(tmp_path / "elsewhere")
    records = RangeRecords(StateDir(tmp_path / "state"))
    assert records.take(str(data / "a"), make=True) is None
    assert records.take(str(data / "a"), make=False) is None
    assert list(records.all()) == []
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_in_the_place_of_a_record_is_not_followed(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    begin(records, what).close()
    file = file_of(records, tmp_path)
    victim = tmp_path / "victim"
    file.replace(victim)
    file.symlink_to(victim)
    before = victim.read_bytes()
    assert records.take(what.destination, make=True) is None
    records.tidy((), lambda _: False)
    assert victim.read_bytes() == before and file.is_symlink()


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
    records: RangeRecords, data: Path, tmp_path: Path, planned: bool, wanted: bool, age: float, stays: bool
) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    now = file_of(records, tmp_path).stat().st_mtime + age
    records.tidy([what.destination] if planned else ["/another"], lambda found: wanted and found == what, now)
    assert (data / what.part).exists() is stays
    assert [found for found, _ in records.all()] == ([what] if stays else [])


def test_what_a_living_process_writes_stays(records: RangeRecords, data: Path) -> None:
    what = of(data)
    record = begin(records, what, each(0, 10))
    records.tidy([what.destination], lambda _: False, 1e12)
    assert (data / what.part).exists()
    record.close()
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


def test_a_record_is_its_owners_alone(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    begin(records, of(data)).close()
    assert file_of(records, tmp_path).stat().st_mode & 0o777 == 0o600


def test_what_is_no_record_neither_counts_nor_hides_one(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    file = file_of(records, tmp_path)
    file.with_name("0.ranges").mkdir()
    file.with_name("note.txt").write_bytes(file.read_bytes())
    assert list(records.all()) == [(what, 10)]
    records.tidy((), lambda _: True, 1e12)
    assert sorted(os.listdir(file.parent)) == ["0.ranges", "note.txt"]


def test_where_a_record_cannot_be_written_nothing_counts_as_on_record(
    records: RangeRecords, data: Path, tmp_path: Path
) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    file = file_of(records, tmp_path)
    before = file.read_bytes()
    record = RangeRecord(os.open(file, os.O_RDONLY), str(file))
    record.add(each(10, 10))
    assert record.bytes == 10
    assert not record.begin(what)
    assert (record.ranges, record.bytes) == ((), 0)
    record.close()
    record.close()
    assert file.read_bytes() == before


@pytest.mark.parametrize(("age", "stays"), [(604_800, True), (604_801, False)])
def test_a_record_goes_after_a_week(
    records: RangeRecords, data: Path, tmp_path: Path, *, age: int, stays: bool
) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    os.utime(file_of(records, tmp_path), (1000, 1000))
    records.tidy((), lambda _: True, 1000.0 + age)
    assert [found for found, _ in records.all()] == ([what] if stays else [])


def test_the_age_of_a_record_is_that_by_the_real_clock(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    what = of(data)
    begin(records, what, each(0, 10)).close()
    records.tidy((), lambda _: True)
    assert list(records.all()) == [(what, 10)]
    os.utime(file_of(records, tmp_path), (1000, 1000))
    records.tidy((), lambda _: True)
    assert list(records.all()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists descriptors")
def test_no_descriptor_of_a_record_stays_open(records: RangeRecords, data: Path) -> None:
    what = of(data)
    open_record = begin(records, what, each(0, 10))
    # The garbage collector must not close files of other tests in between.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    assert records.take(what.destination, make=True) is None
    assert list(records.all()) == [(what, 10)]
    records.tidy([what.destination], lambda _: False)
    assert len(os.listdir("/proc/self/fd")) <= before
    open_record.close()
    records.tidy([what.destination], lambda _: True)
    assert len(os.listdir("/proc/self/fd")) <= before - 1
    records.tidy([what.destination], lambda _: False)
    assert len(os.listdir("/proc/self/fd")) <= before - 1
