"""The log of transfers: it can be read back, it shows killed transfers, and its errors stop no transfer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError, NothingMatchedError, UsageError
from blobsync.base.process_identity import ProcessMark
from blobsync.project.transfer_history import TransferEntry, TransferLog, logged


def entry(number: int = 1, **known: object) -> TransferEntry:
    values: dict[str, object] = {"kind": "upload", "paths": ("data",), "began": float(number), "id": f"{number:08x}"}
    return TransferEntry(**{**values, **known})  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> TransferLog:
    return TransferLog(tmp_path / "jobs.sqlite")


def test_entries_come_back_newest_first(log: TransferLog) -> None:
    for number in (2, 3, 1):
        log.write(entry(number).ended("done", transferred=number))
    assert [each.id for each in log.recent()] == ["00000003", "00000002", "00000001"]
    assert [each.began for each in log.recent(since=2.0)] == [3.0, 2.0]
    assert [each.began for each in log.recent(limit=1)] == [3.0]
    assert log.find("2").transferred == 2


def test_its_journal_is_emptied_and_not_made_anew(log: TransferLog, tmp_path: Path) -> None:
    # The folder of a new file would have to reach the disk, too.
    log.write(entry(1))
    journal = tmp_path / "jobs.sqlite-journal"
    inode = journal.stat().st_ino
    log.write(entry(2))
    assert (journal.stat().st_size, journal.stat().st_ino) == (0, inode)


def test_an_entry_is_replaced_when_it_ends(log: TransferLog) -> None:
    begun = entry(began=time.time())
    log.write(begun)
    assert [each.result for each in log.recent()] == ["running"]
    log.write(begun.ended("partial", failed=2, receipt="20261122T071646Z-87126377.json"))
    (found,) = log.recent()
    assert (found.result, found.failed, found.receipt) == ("partial", 2, "20261122T071646Z-87126377.json")
    assert found.seconds is not None and 0 <= found.seconds < 60


def begun(folder: Path) -> dict[str, str]:
    with closing(sqlite3.connect(folder / "unfinished.sqlite")) as db:
        return dict(db.execute("SELECT id, record FROM running WHERE kind = 'begun'"))


def test_a_beginning_waits_for_no_disk_until_somebody_reads_the_log(log: TransferLog, tmp_path: Path) -> None:
    first = entry(began=time.time())
    log.begin(first)
    assert not (tmp_path / "jobs.sqlite").exists() and set(begun(tmp_path)) == {first.id}
    assert [each.result for each in log.recent()] == ["running"]
    assert not begun(tmp_path) and log.count() == 1 and log.find(first.id) == first
    log.write(first.ended("done"))
    assert [each.result for each in log.recent()] == ["done"]


def test_the_end_of_a_transfer_takes_its_beginning_away(log: TransferLog, tmp_path: Path) -> None:
    log.begin(entry(1))
    log.write(entry(1).ended("done"))
    assert not begun(tmp_path)
    # A reader that had read it before, and is slow.
    log.begin(entry(1))
    assert [each.result for each in log.recent()] == ["done"]


def test_a_beginning_without_its_process_was_killed(log: TransferLog) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    log.begin(entry(1, pid=process.pid))
    assert [each.result for each in log.recent()] == ["killed"]


def test_a_later_process_with_the_same_number_is_another_one(log: TransferLog, tmp_path: Path) -> None:
    log.begin(entry(1, pid=os.getpid()))
    log.begin(entry(2, pid=os.getpid()))
    born = ProcessMark.of(os.getpid()).born
    with closing(sqlite3.connect(tmp_path / "unfinished.sqlite")) as db, db:
        db.execute("UPDATE running SET record = replace(record, ?, '7') WHERE id = '00000002'", (born,))
    assert {each.id[-1]: each.result for each in log.recent()} == {"1": "running", "2": "killed"}


def test_a_transfer_that_ends_by_a_fault_of_ours_has_failed(log: TransferLog) -> None:
    with pytest.raises(ZeroDivisionError), logged(log, entry(1)):
        1 / 0  # noqa: B018 - any such error
    (ended,) = log.recent()
    assert (ended.result, ended.problem) == ("failed", "ZeroDivisionError('division by zero')")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "00000002", "kind": "upload", "paths": []}', '{"id": 1}'])
def test_what_is_no_beginning_is_not_believed(log: TransferLog, tmp_path: Path, text: str) -> None:
    log.begin(entry(1))
    with closing(sqlite3.connect(tmp_path / "unfinished.sqlite")) as db, db:
        db.execute("INSERT INTO running (kind, id, record) VALUES ('begun', '00000003', ?)", (text,))
    assert [each.id for each in log.recent()] == ["00000001"]
    assert len(log.recent()) == 1


def test_a_beginning_contains_no_secret(log: TransferLog, tmp_path: Path) -> None:
    signature = "A" * 43 + "="
    log.begin(entry(1, command=f"blobsync u data --sas '?sv=2024-01-01&sig={signature}'"))
    assert signature not in begun(tmp_path)["00000001"]


def test_where_no_beginning_can_be_left_the_log_has_it_at_once(log: TransferLog, tmp_path: Path) -> None:
    (tmp_path / "unfinished.sqlite").mkdir()
    log.begin(entry(1))
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as db:
        assert db.execute("SELECT id FROM transfers").fetchall() == [("00000001",)]


def test_a_transfer_whose_process_is_gone_was_killed(log: TransferLog) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    log.write(entry(1, pid=process.pid))
    log.write(entry(2, pid=process.pid, host="another"))
    log.write(entry(3, pid=os.getpid()))
    log.write(entry(4, pid=1))
    assert {each.id[-1]: each.result for each in log.recent()} == {
        "1": "killed", "2": "running", "3": "running", "4": "running"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "concerned"),
    [("data", True), ("data/voc", True), ("data/voc/a.jpg", True), ("data/vo", False), ("", True), ("output", False)],
)
def test_a_path_concerns_what_is_above_and_below_it(log: TransferLog, path: str, concerned: bool) -> None:
    log.write(entry(paths=("data/voc", "other")))
    assert bool(log.recent(path=path)) is concerned


def test_a_beginning_or_an_end_of_an_id_is_enough_unless_several_have_it(log: TransferLog) -> None:
    log.write(entry(0x10))
    log.write(entry(0x20))
    log.write(entry(0xAB000000))
    assert log.find("10").id == "00000010"
    assert log.find("ab").id == "ab000000"
    with pytest.raises(UsageError, match="3 transfers could be '000000'"):
        log.find("000000")
    for nothing in ("30", ""):
        with pytest.raises(NothingMatchedError):
            log.find(nothing)


def test_secrets_of_a_command_line_are_not_written(log: TransferLog, tmp_path: Path) -> None:
    signature = "c2VudGluZWw%3D"
    log.write(entry(command=f"blobsync u 'https://x/y?sv=1&sig={signature}'", problem=f"?sig={signature}"))
    assert signature.encode() not in (tmp_path / "jobs.sqlite").read_bytes()
    assert (tmp_path / "jobs.sqlite").stat().st_mode & 0o077 == 0


def test_a_log_that_cannot_be_written_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    TransferLog(tmp_path / "missing/jobs.sqlite", said.append).write(entry())
    assert len(said) == 1 and said[0].startswith("this transfer is not in the history: ")


@pytest.mark.parametrize("body", [b"no database, but long enough to be looked at" * 50])
def test_a_damaged_log_is_one_error(tmp_path: Path, body: bytes) -> None:
    file = tmp_path / "jobs.sqlite"
    file.write_bytes(body)
    with pytest.raises(LocalFileError, match=r"^the history .*jobs\.sqlite cannot be used: "):
        TransferLog(file).recent()


@pytest.mark.parametrize("row", ["{}", "[]", '{"kind": 7, "paths": []}', '{"kind": "upload", "paths": "data"}', "nan"])
def test_a_foreign_row_is_one_error(log: TransferLog, tmp_path: Path, row: str) -> None:
    log.write(entry())
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("UPDATE transfers SET entry = ?", (row,))
    db.close()
    with pytest.raises(LocalFileError):
        log.recent()


def test_a_row_of_a_newer_version_is_read(log: TransferLog, tmp_path: Path) -> None:
    log.write(entry())
    with sqlite3.connect(tmp_path / "jobs.sqlite") as db:
        db.execute("UPDATE transfers SET entry = json_set(entry, '$.invented', 7)")
    db.close()
    assert len(log.recent()) == 1


def test_nothing_was_logged_where_no_file_is(log: TransferLog, tmp_path: Path) -> None:
    assert log.recent() == ()
    assert not (tmp_path / "jobs.sqlite").exists()
