"""The journal of blocks: it outlives a process, expires, and a damaged one only costs bytes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from blobsync.base.file_states import LocalState
from blobsync.local.resume_records import BlockJournal, Unfinished

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


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_damaged_journal_starts_anew_and_says_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "unfinished.sqlite"
    file.write_bytes(content)
    said: list[str] = []
    journal = BlockJournal(file, said.append)
    journal.begin(BLOB, NEAR)
    journal.put(BLOB, sha("one"), 1)
    assert journal.staged(BLOB) == {sha("one"): 1}
    assert len(said) == bool(content)
    if content:
        assert "whole files are sent instead" in said[0]
        assert [path.read_bytes() for path in tmp_path.glob("*.broken-*")] == [content]


def test_a_journal_of_another_version_starts_anew(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "unfinished.sqlite") as db:
        db.execute("CREATE TABLE uploads (something TEXT)")
        db.execute("PRAGMA user_version = 99")
    journal = reopened(tmp_path)
    journal.begin(BLOB, NEAR)
    journal.put(BLOB, sha("one"), 1)
    assert journal.staged(BLOB) == {sha("one"): 1}


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc").exists(), reason="needs a place where nothing can be made")
def test_without_a_place_for_it_whole_files_are_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    journal = BlockJournal(tmp_path / "file" / "unfinished.sqlite", said.append)
    journal.begin(BLOB, NEAR)
    journal.put(BLOB, sha("one"), 1)
    journal.finish(BLOB, "0x1")
    assert journal.staged(BLOB) == {} == journal.committed([BLOB])
    assert len(said) == 1 and "cannot be used" in said[0]


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
