"""The index: records are stored for several processes, and problems are reported but never raised."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from pathlib import Path

import pytest

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.index import Index, Record


def record(number: int = 1) -> Record:
    md5 = bytes([number]) * 16
    return Record(LocalState(number, number, number, (1 << 63) + number, md5), RemoteState(number, f"e{number}", md5))


def test_records_come_back_as_they_were_put(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/data")
    records = {f"dir/é #{n}": record(n) for n in range(1, 200)} | {"": record(3)}
    pair.put(records)
    assert pair.get([*records, "nobody"]) == records


def test_its_journal_is_emptied_and_not_made_anew(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/data")
    pair.put({"a": record(1)})
    journal = tmp_path / "index.sqlite-journal"
    inode = journal.stat().st_ino
    pair.put({"b": record(2)})
    assert (journal.stat().st_size, journal.stat().st_ino) == (0, inode)


def test_a_copy_between_blobs_is_recorded_with_both_etags(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("http://a/x", "http://b/y")
    copied = Record(RemoteState(5, "source-etag", None), RemoteState(5, "etag", None))
    pair.put({"a": copied})
    assert pair.get(["a"]) == {"a": copied}


def test_roots_do_not_mix_and_forgotten_is_gone(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.sqlite")
    one, other = index.pair("data", "http://x/1"), index.pair("data", "http://x/2")
    one.put({"a": record(1), "b": record(2)})
    assert other.get(["a"]) == {}
    one.forget(["a"])
    assert set(one.get(["a", "b"])) == {"b"}


def test_a_name_that_is_not_utf8_has_no_record_and_does_no_harm(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    pair.put({"bad\udcff": record(), "good": record()})
    assert set(pair.get(["bad\udcff", "good"])) == {"good"}


@pytest.mark.parametrize("wanted", [1, 3, 40, 999])
def test_records_among_many_others_are_found(tmp_path: Path, wanted: int) -> None:
    """Near each other, and far apart, in the order of any alphabet, with names that have no record."""
    letters = ["", "-", "0", "a", "é", "\ud7ff", "\uffff", "\U00010000", "\U0010ffff"]
    paths = [f"{letter}{number}" for letter in letters for number in range(111)]
    records = {path: record(number % 256) for number, path in enumerate(paths)}
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    pair.put(records)
    for step in (1, len(paths) // wanted):
        asked = paths[::step][:wanted]
        assert pair.get([*reversed(asked), "b/none"]) == {path: records[path] for path in asked}
    assert pair.get([]) == {}
    assert pair.get(["b/none", "\udcff"]) == {}


def test_a_damaged_file_is_set_aside_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    file.write_bytes(b"no database at all, but long enough to be looked at" * 50)
    said: list[str] = []
    pair = Index(file, said.append).pair("data", "http://x/1")
    assert pair.get(["a"]) == {}
    pair.put({"a": record()})
    assert set(pair.get(["a"])) == {"a"}
    assert len(said) == 1
    assert "damaged" in said[0]
    assert len(list(tmp_path.glob("index.sqlite.broken-*"))) == 1


def test_a_folder_that_cannot_be_written_costs_the_index_only(tmp_path: Path) -> None:
    said: list[str] = []
    pair = Index(tmp_path / "missing" / "index.sqlite", said.append).pair("data", "http://x/1")
    pair.put({"a": record()})
    assert pair.get(["a"]) == {}
    assert "cannot be used" in said[0]


def test_an_index_of_another_version_is_started_over(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE pairs (something TEXT)")
        db.execute("PRAGMA user_version = 99")
    db.close()
    pair = Index(file).pair("data", "http://x/1")
    pair.put({"a": record()})
    assert set(pair.get(["a"])) == {"a"}


def test_a_crc64_is_that_of_one_version_of_a_blob(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    index = Index(file)
    known = index.checksums("http://x/1")
    known.put({"a": RemoteState(1, "e1", crc64=b"12345678"), "b": RemoteState(1, "e2", crc64=b"abcdefgh")})
    known.put({"none": RemoteState(1, "e1"), "bad\udcff": RemoteState(1, "e1", crc64=b"12345678")})
    asked = {"a": "e1", "b": "e1", "none": "e1", "bad\udcff": "e1"}
    assert known.get(asked) == {"a": b"12345678"}
    assert index.checksums("http://x/2").get(asked) == {}
    known.put({"a": RemoteState(1, "e3", crc64=b"87654321")})
    index.close()
    again = Index(file).pair("data", "http://x/1/data").checksums("http://x/1")
    assert again.get(asked) == {} and again.get({"a": "e3", "b": "e2"}) == {"a": b"87654321", "b": b"abcdefgh"}


def test_many_crc64s_are_found(tmp_path: Path) -> None:
    known = Index(tmp_path / "index.sqlite").checksums("http://x/1")
    blobs = {f"n{number}": RemoteState(1, "e", crc64=number.to_bytes(8, "big")) for number in range(1, 1300)}
    known.put(blobs)
    assert known.get(dict.fromkeys(blobs, "e")) == {name: blob.crc64 for name, blob in blobs.items()}


def _fill(file: str, worker: int) -> None:
    pair = Index(Path(file)).pair("data", "http://x/1")
    for start in range(0, 200, 20):
        pair.put({f"{worker}/{n}": record(worker + 1) for n in range(start, start + 20)})


def test_several_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    file = str(tmp_path / "index.sqlite")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(file, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(150)
    wanted = [f"{worker}/{n}" for worker in range(3) for n in range(200)]
    assert len(Index(Path(file)).pair("data", "http://x/1").get(wanted)) == 600


def test_threads_share_one_index(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    threads = [threading.Thread(target=lambda n=n: pair.put({f"{n}": record(n + 1)})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pair.get([str(n) for n in range(8)])) == 8
