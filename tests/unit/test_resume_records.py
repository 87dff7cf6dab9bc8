"""What outlives a killed process: the blocks that were sent, the ranges that have arrived, what was to be written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState
from blobsync.local.resume_records import (
    INTENTS_FOLDER,
    KEPT_SECONDS,
    BlockJournal,
    Ends,
    RangeRecord,
    RangeRecords,
    RecordedRange,
    Unfinished,
    UnfinishedDownload,
    WriteIntent,
    WriteIntents,
    has_intents,
    left_intents,
)
from blobsync.local.state_dir import StateDir

BLOB = "https://acct.blob.core.windows.net/box/a"
NEAR = LocalState(30, 1, 2, 3)
WEEK = 7 * 86_400


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Clock:
    """A clock that the test advances."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> BlockJournal:
    return BlockJournal(tmp_path / "unfinished.sqlite", clock=clock, steady=clock)


def reopened(tmp_path: Path, clock: Clock | None = None) -> BlockJournal:
    return BlockJournal(tmp_path / "unfinished.sqlite", clock=clock or Clock())


def test_what_was_put_is_known_until_the_blob_is_finished(journal: BlockJournal) -> None:
    journal.begin(BLOB, NEAR)
    journal.put(BLOB, sha("one"), 10)
    journal.put(BLOB, sha("two"), 5)
    assert journal.staged(BLOB) == {sha("one"): 10, sha("two"): 5}
    assert journal.staged(BLOB + "b") == {}
    assert journal.unfinished([BLOB, "other"]) == {BLOB: Unfinished(30, 1, 3, 15)}
    journal.finish(BLOB, "0x1", b"md5 and blocks")
    assert journal.staged(BLOB) == {} == journal.unfinished([BLOB])
    assert (journal.digests(BLOB, "0x1"), journal.digests(BLOB, "0x2")) == (b"md5 and blocks", b"")
    assert journal.committed([BLOB, "other"]) == {BLOB: "0x1"}


def test_a_file_that_is_not_there_is_not_made_by_looking(journal: BlockJournal, tmp_path: Path) -> None:
    assert not journal.staged(BLOB) and not journal.unfinished([BLOB]) and not journal.committed([BLOB])
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_keeps_its_blocks_but_does_not_count_them_as_its_own(journal: BlockJournal) -> None:
    journal.begin(BLOB, NEAR)
    for text in ("one", "two"):
        journal.put(BLOB, sha(text), 10)
    changed = LocalState(31, 9, 9, 3)
    journal.begin(BLOB, changed)
    assert journal.unfinished([BLOB]) == {}
    journal.put(BLOB, sha("two"), 10)
    assert journal.unfinished([BLOB]) == {BLOB: Unfinished(31, 9, 3, 10)}
    assert journal.unfinished([BLOB])[BLOB].is_of(changed) and not journal.unfinished([BLOB])[BLOB].is_of(NEAR)
    assert journal.staged(BLOB) == {sha("one"): 10, sha("two"): 10}


def test_blocks_that_the_service_has_dropped_by_now_are_forgotten(journal: BlockJournal, clock: Clock) -> None:
    journal.begin(BLOB, NEAR)
    journal.put(BLOB, sha("one"), 10)
    journal.save()
    clock.now += WEEK - 1
    journal.begin(BLOB, NEAR)
    assert journal.staged(BLOB) == {sha("one"): 10}
    clock.now += 2
    assert journal.staged(BLOB) == {} == journal.unfinished([BLOB])
    journal.begin("other", NEAR)
    clock.now -= WEEK
    assert journal.staged(BLOB) == {}


def test_a_block_counts_from_when_it_was_put(journal: BlockJournal, clock: Clock) -> None:
    journal.begin(BLOB, NEAR)
    clock.now += WEEK - 1
    journal.put(BLOB, sha("one"), 10)
    clock.now += WEEK - 1
    assert journal.staged(BLOB) == {sha("one"): 10}


def test_rows_are_written_a_few_times_a_second_and_on_close(tmp_path: Path, clock: Clock) -> None:
    journal = BlockJournal(tmp_path / "unfinished.sqlite", clock=clock, steady=clock)
    journal.begin(BLOB, NEAR)
    clock.now += 1
    journal.put(BLOB, sha("one"), 1)
    assert set(reopened(tmp_path).staged(BLOB)) == {sha("one")}
    clock.now += 0.04
    journal.put(BLOB, sha("two"), 1)
    assert set(reopened(tmp_path).staged(BLOB)) == {sha("one")}
    clock.now += 0.02
    journal.put(BLOB, sha("three"), 1)
    assert set(reopened(tmp_path).staged(BLOB)) == {sha("one"), sha("two"), sha("three")}
    journal.put(BLOB, sha("four"), 1)
    journal.close()
    assert sha("four") in reopened(tmp_path).staged(BLOB)


_KILLED = """
import os, signal, sys, time
from pathlib import Path
from blobsync.base.file_states import LocalState
from blobsync.local.resume_records import BlockJournal

journal = BlockJournal(Path(sys.argv[1]))
journal.begin("blob", LocalState(1, 1, 1, 1))
for number in range(500):
    journal.put("blob", number.to_bytes(32, "big"), number)
    if number == 400:
        journal.save()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_saved_outlives_a_killed_process(tmp_path: Path) -> None:
    file = tmp_path / "unfinished.sqlite"
    assert subprocess.run([sys.executable, "-c", _KILLED, str(file)], check=False).returncode == -9
    found = BlockJournal(file).staged("blob")
    assert found | {number.to_bytes(32, "big"): number for number in range(401)} == found
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_processes_write_one_journal(tmp_path: Path) -> None:
    one, other = (BlockJournal(tmp_path / "unfinished.sqlite") for _ in range(2))
    one.begin(BLOB, NEAR)
    other.begin(BLOB, NEAR)
    one.put(BLOB, sha("one"), 1)
    other.put(BLOB, sha("two"), 2)
    one.save()
    other.save()
    assert one.staged(BLOB) == other.staged(BLOB) == {sha("one"): 1, sha("two"): 2}


def test_names_that_are_not_unicode_have_no_record(journal: BlockJournal) -> None:
    name = "https://x/box/\udcff"
    journal.begin(name, NEAR)
    journal.put(name, sha("one"), 1)
    journal.finish(name, "0x1")
    assert not journal.digests(name, "0x1")
    assert not journal.staged(name) and not journal.committed([name]) and not journal.unfinished([name])


def test_a_slow_disk_is_written_to_less_often(tmp_path: Path) -> None:
    reads = iter(range(10_000))

    def ticking() -> float:
        # Each call of the clock is a second later: a save takes one.
        return float(next(reads))

    journal = BlockJournal(tmp_path / "unfinished.sqlite", steady=ticking)
    journal.begin(BLOB, NEAR)
    written = []
    for number in range(30):
        journal.put(BLOB, number.to_bytes(32, "big"), 1)
        written.append(len(reopened(tmp_path).staged(BLOB)))
    assert len(set(written)) <= 4


# -- unfinished downloads ------------------------------------------------------------------------------------------


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
def test_no_descriptor_of_a_record_stays_open(records: RangeRecords, data: Path, tmp_path: Path) -> None:
    def ours() -> list[str]:
        # Threads of other tests may close theirs in between.
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return sorted(each for each in found if each.startswith(str(tmp_path)))

    what = of(data)
    before = ours()
    begin(records, what, each(0, 10)).close()
    again(records, what).close()
    with written_to(data, what):
        assert ours() != before
        assert records.take(what.destination) is None
    assert list(records.all()) == [(what, 10)]
    records.tidy([what.destination], lambda _: False)
    assert ours() == before


# -- what was about to be written ----------------------------------------------------------------------------------


_MD5 = bytes(range(16))
_UP, _DOWN = Ends("/p/data", "https://a/box/x"), Ends("https://a/box/x", "/p/data")


def left(state: StateDir) -> list[WriteIntent]:
    return [intent for each in left_intents(state) for intent in each.intents()]


def killed(state: StateDir, *added: tuple[Ends, str, str | None]) -> Path:
    """The file of a process that was killed after these lines."""
    intents = WriteIntents(state)
    for each in added:
        intents.add(each[0], (*each[1:], 3, _MD5))
    (own,) = (state.root / INTENTS_FOLDER).iterdir()
    file = own.with_name(f"0{own.name}")
    shutil.copy(own, file)
    intents.forget()
    return file


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def test_what_a_process_that_is_gone_was_about_to_write_is_read_as_it_was(state: StateDir) -> None:
    odd = "[e]f/\udcff \u00e4"
    killed(state, (_UP, odd, None), (_UP, "", None), (_DOWN, "b", "c"), (_UP, "d", None))
    assert left(state) == [
        WriteIntent(_UP, odd, odd, 3, _MD5),
        WriteIntent(_UP, "", "", 3, _MD5),
        WriteIntent(_DOWN, "b", "c", 3, _MD5),
        WriteIntent(_UP, "d", "d", 3, _MD5),
    ]


def test_the_file_of_a_running_process_is_left_alone_and_goes_when_it_forgets(state: StateDir) -> None:
    intents = WriteIntents(state)
    assert not (state.root / INTENTS_FOLDER).exists()
    intents.add(_UP, ("a", None, 3, _MD5))
    (file,) = (state.root / INTENTS_FOLDER).iterdir()
    assert left(state) == [] and file.stat().st_mode & 0o777 == 0o600
    intents.forget()
    assert not file.exists()
    # The next plan of the same process has a file of its own.
    intents.add(_UP, ("b", None, 3, _MD5))
    (file,) = (state.root / INTENTS_FOLDER).iterdir()
    intents.forget()
    intents.forget()
    assert not file.exists()


def test_a_name_of_two_lines_has_no_line(state: StateDir) -> None:
    killed(state, (_UP, "a", None), (_UP, "b\nfc", None), (_UP, "c", "d\ne"), (_UP, "d", None))
    assert [intent.path for intent in left(state)] == ["a", "d"]


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(b"f" + _MD5.hex().encode() + b"\0003\0z", id="cut off"),
        pytest.param(b"f" + _MD5.hex().encode() + b"\0three\0z\n", id="no size"),
        pytest.param(b"fabcd\0003\0z\n", id="no MD5"),
        pytest.param(b"f" + _MD5.hex().encode() + b"\0003\0z\0y\0x\n", id="three names"),
        pytest.param(b"fz\n", id="no fields"),
        pytest.param(b"e[1]\n", id="one end"),
        pytest.param(b"e{\n", id="no ends"),
        pytest.param(b"\n\xff\xfe\n", id="other bytes"),
    ],
)
def test_a_line_that_is_cut_off_or_invalid_is_passed_over(state: StateDir, spoilt: bytes) -> None:
    file = killed(state, (_UP, "a", None))
    with file.open("ab") as stream:
        stream.write(spoilt)
    assert [intent.path for intent in left(state)] == ["a"]
    file.write_bytes(spoilt + file.read_bytes() if spoilt.endswith(b"\n") else spoilt)
    assert [intent.path for intent in left(state)] == (["a"] if spoilt.endswith(b"\n") else [])


def test_a_line_counts_only_after_its_ends(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None))
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    assert left(state) == []


def test_files_of_a_week_ago_go_and_others_stay(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None))
    week = 7 * 86_400
    (kept,) = left_intents(state, now=file.stat().st_mtime + week - 60)
    assert kept.file == file
    assert list(left_intents(state, now=file.stat().st_mtime + week + 60)) == []
    assert not file.exists()


def test_a_file_is_removed_once_and_other_files_are_none_of_ours(state: StateDir) -> None:
    killed(state, (_UP, "a", None))
    (state.root / INTENTS_FOLDER / "note.txt").write_text("mine")
    os.symlink("/dev/null", state.root / INTENTS_FOLDER / "x.intents")
    for each in left_intents(state):
        each.remove()
        each.remove()
    assert sorted(os.listdir(state.root / INTENTS_FOLDER)) == ["note.txt", "x.intents"]


def test_where_nothing_can_be_written_a_transfer_goes_on(tmp_path: Path) -> None:
    (tmp_path / INTENTS_FOLDER).write_text("a file in the folder's place")
    for state in (StateDir(tmp_path), StateDir(tmp_path / "fresh", lasting=False)):
        intents = WriteIntents(state)
        intents.add(_UP, ("a", None, 3, _MD5))
        intents.forget()
        assert left(state) == []
    assert not (tmp_path / "fresh").exists()


def test_a_folder_has_intents_while_a_file_is_in_it(state: StateDir) -> None:
    assert not has_intents(state) and list(left_intents(state, now=time.time())) == []
    killed(state, (_UP, "a", None))
    assert has_intents(state)
    for each in left_intents(state):
        each.remove()
    assert not has_intents(state)


def test_a_folder_that_cannot_be_read_is_named(state: StateDir) -> None:
    folder = state.root / INTENTS_FOLDER
    folder.symlink_to(folder)
    for look in (has_intents, lambda state: list(left_intents(state))):
        with pytest.raises(LocalFileError, match=f"{INTENTS_FOLDER}: Too many levels") as said:
            look(state)
        assert said.value.hint


def test_only_the_last_two_files_of_a_long_run_stay(state: StateDir) -> None:
    intents = WriteIntents(state, most=300)
    for number in range(50):
        intents.add(_UP, (f"f{number:02}", None, 3, _MD5))
    files = sorted((state.root / INTENTS_FOLDER).iterdir())
    assert len(files) == 2
    for file in files:
        assert 0 < file.stat().st_size < 400
        shutil.copy(file, file.with_name(f"0{file.name}"))
    intents.forget()
    found = sorted(intent.path for intent in left(state))
    assert found == [f"f{number:02}" for number in range(50 - len(found), 50)]
    # Each file names its ends.
    assert [each.ends() for each in left_intents(state)] == [{_UP}, {_UP}]


def test_the_ends_of_a_file_are_read_without_its_other_lines(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None), (_DOWN, "b", None), (_UP, "c", None))
    file.write_bytes(file.read_bytes() + b"e[1]\ne{\ne\xff\nf\n")
    assert [each.ends() for each in left_intents(state)] == [{_UP, _DOWN}]
