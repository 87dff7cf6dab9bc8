"""The index: what was verified, and what containers held when last listed; problems are reported, never raised."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.index import Index, PairIndex, Record
from blobsync.local.sorted_runs import Spill


def record(number: int = 1) -> Record:
    md5 = bytes([number]) * 16
    return Record(LocalState(number, number, number, (1 << 63) + number, md5), RemoteState(number, f"e{number}", md5))


@pytest.fixture
def pair(tmp_path: Path) -> PairIndex:
    return Index(tmp_path / "index.sqlite").pair("data", "http://x/1")


def test_records_come_back_as_they_were_put(pair: PairIndex) -> None:
    records = {f"dir/é #{n}": record(n) for n in range(1, 200)} | {"": record(3)}
    pair.put(records)
    assert pair.get([*records, "nobody"]) == records


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


def test_a_name_that_is_not_utf8_has_no_record_and_does_no_harm(pair: PairIndex) -> None:
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


def test_threads_share_one_index(pair: PairIndex) -> None:
    threads = [threading.Thread(target=lambda n=n: pair.put({f"{n}": record(n + 1)})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pair.get([str(n) for n in range(8)])) == 8


# -- listings ------------------------------------------------------------------------------------------------------


# Names around the separators: '-' and '.' come before '/', '0' after it, and astral ones last.
NAMES = st.sampled_from(["a", "a/b", "a-b", "a.b", "a/b/c", "a0", "b", "b/x", "é/z", "\U0001f600/y", "\ufffd/y", "~"])
BLOBS = st.dictionaries(NAMES, st.integers(1, 3), max_size=8)


def state(number: int) -> RemoteState:
    return record(number).remote


def listed(pair: PairIndex, folder: str, blobs: Mapping[str, int], order: list[str], at: float = 1.0) -> None:
    found = pair.differences(folder)
    for path in order:
        found.seen(path, state(blobs[path]))
    pair.remember_listing(folder, found, at)


def remembered(pair: PairIndex, folder: str = "") -> dict[str, RemoteState]:
    return dict(pair.as_last_listed(folder))


@given(recorded=BLOBS, blobs=BLOBS, mixed=st.none() | st.integers())
def test_a_listing_in_any_order_is_remembered_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, int], blobs: dict[str, int], mixed: int | None
) -> None:
    pair = Index(tmp_path_factory.mktemp("index") / "index.sqlite").pair("data", "http://x/1")
    pair.put({path: record(version) for path, version in recorded.items()})
    order = sorted(blobs, key=lambda path: path.encode())
    if mixed is not None:
        random.Random(mixed).shuffle(order)
    listed(pair, "", blobs, order)
    assert remembered(pair) == {path: state(version) for path, version in blobs.items()}
    assert list(remembered(pair)) == sorted(blobs, key=lambda path: path.encode())
    for path in {*recorded, *blobs}:
        assert pair.blob_as_last_listed(path) == (state(blobs[path]) if path in blobs else None)


def test_a_listing_of_unchanged_blobs_stores_only_its_time(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    pair = Index(file).pair("data", "http://x/1")
    blobs = {f"{number:04}": 1 + number % 3 for number in range(300)}
    pair.put({path: record(version) for path, version in blobs.items()})
    listed(pair, "", blobs, list(blobs))
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM seen").fetchone() == (0,)
    db.close()


def test_what_was_transferred_or_deleted_since_counts(pair: PairIndex) -> None:
    pair.put({"gone": record(1), "kept": record(1)})
    listed(pair, "", {"kept": 2, "theirs": 3}, ["kept", "theirs"])
    pair.put({"kept": record(3), "new": record(1)})
    assert remembered(pair) == {"kept": state(3), "new": state(1), "theirs": state(3)}
    pair.forget(["theirs", "new"])
    assert remembered(pair) == {"kept": state(3)}


def test_a_listing_of_a_folder_changes_nothing_beside_it(pair: PairIndex) -> None:
    blobs = {"a/1": 1, "a/2": 1, "a0": 1, "b": 1}
    listed(pair, "", blobs, list(blobs), at=10.0)
    listed(pair, "a", {"a/2": 2}, ["a/2"], at=20.0)
    assert remembered(pair) == {"a/2": state(2), "a0": state(1), "b": state(1)}
    assert remembered(pair, "a") == {"a/2": state(2)}
    assert [pair.listed_at(folder) for folder in ("", "a", "a/deeper", "b")] == [10.0, 20.0, 20.0, 10.0]
    listed(pair, "", {}, [], at=30.0)
    assert [pair.listed_at(folder) for folder in ("", "a")] == [30.0, 30.0]


def test_a_record_that_no_blob_matches_says_nothing_of_the_container(pair: PairIndex) -> None:
    """``--keep`` makes such records: the source's version was given up, the destination's is newer."""
    pair.put({"a": Record(LocalState(1, 1, 1, 1), RemoteState(1, ""))})
    assert remembered(pair) == {}
    assert pair.blob_as_last_listed("a") is None


def test_nothing_was_listed_where_nothing_is_known(pair: PairIndex) -> None:
    assert pair.listed_at("") is None
    assert remembered(pair) == {}
    assert pair.blob_as_last_listed("a") is None


def test_more_than_one_page_is_read_whole(pair: PairIndex) -> None:
    blobs = {f"{number:05}": 1 for number in range(12_000)}
    pair.put({path: record(1) for path in blobs})
    listed(pair, "", {path: 1 for path in blobs if path != "07000"}, [path for path in blobs if path != "07000"])
    assert len(remembered(pair)) == 11_999


def test_names_that_are_not_utf8_are_never_remembered_and_do_no_harm(pair: PairIndex) -> None:
    listed(pair, "bad\udcff", {}, [])
    found = pair.differences("")
    found.seen("a\udcff", state(1))
    found.seen("b", state(1))
    pair.remember_listing("", found, 1.0)
    pair.put({"bad\udcff": record(1), "b": record(1)})
    pair.forget(["bad\udcff"])
    assert remembered(pair) == {"b": state(1)} and remembered(pair, "bad\udcff") == {}
    assert pair.blob_as_last_listed("bad\udcff") is None and pair.listed_at("bad\udcff") is None


def test_a_listing_that_differs_in_more_than_one_transaction_holds_is_remembered_whole(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.sqlite")
    pair = index.pair("data", "https://x/c/data")
    found = pair.differences("", Spill(lambda: tmp_path, most=700))
    names = [f"{number:05}" for number in range(12_000)]
    for name in names:
        found.seen(name, RemoteState(1, f"e{name}"))
    pair.remember_listing("", found, 5.0)
    assert [path for path, _ in pair.as_last_listed("")] == names and pair.listed_at("") == 5.0
    pair.remember_listing("", pair.differences(""), 6.0)
    assert list(pair.as_last_listed("")) == [] and pair.listed_at("") == 6.0


def directly_in(blobs: Mapping[str, int], folder: str) -> dict[str, int]:
    start = f"{folder}/" if folder else ""
    return {path: blobs[path] for path in blobs if path.startswith(start) and "/" not in path[len(start) :]}


@given(recorded=BLOBS, before=BLOBS, blobs=BLOBS, folder=st.sampled_from(["", "a", "b", "a/b"]))
def test_a_listing_of_one_level_tells_of_that_level_alone(
    tmp_path_factory: pytest.TempPathFactory,
    recorded: dict[str, int],
    before: dict[str, int],
    blobs: dict[str, int],
    folder: str,
) -> None:
    pair = Index(tmp_path_factory.mktemp("index") / "index.sqlite").pair("data", "http://x/1")
    pair.put({path: record(version) for path, version in recorded.items()})
    listed(pair, "", before, sorted(before), at=1.0)
    level = directly_in(blobs, folder)
    found = pair.differences(folder, one_level=True)
    for path, version in level.items():
        found.seen(path, state(version))
    pair.remember_listing(folder, found, 2.0, one_level=True)
    beside = {path: version for path, version in before.items() if path not in directly_in(before, folder)}
    assert remembered(pair) == {path: state(version) for path, version in {**beside, **level}.items()}
    # The folder as a whole is as old as it was.
    assert pair.listed_at(folder) == 1.0
    name = f"{folder}/x" if folder else "x"
    assert (pair.blob_listed_at(name), pair.blob_listed_at(f"{name}/below")) == (2.0, 1.0)


def test_what_was_listed_of_a_folder_is_reported_file_by_file(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    listed(pair, "whole", {}, [])
    pair.remember_listing("level", pair.differences("level", one_level=True), 1.0, one_level=True)
    pair.remember_blob("one", None, 1.0)
    known = pair.listed_in("")
    assert [path in known for path in ("whole/a", "whole/a/b", "level/a", "one")] == [True] * 4
    assert [path in known for path in ("level/a/b", "whole2/a", "a", "level", "onemore")] == [False] * 5
    assert "anything" not in Index(tmp_path / "other.sqlite").pair("data", "http://x/1").listed_in("")


def test_a_look_for_one_blob_is_remembered_as_it_was(pair: PairIndex) -> None:
    pair.put({"a": record(1), "b": record(1)})
    for known in (state(2), None, state(1), state(3)):
        pair.remember_blob("a", known, 1.0)
        assert pair.blob_as_last_listed("a") == known
        assert remembered(pair) == ({"a": known} if known else {}) | {"b": state(1)}
    pair.remember_blob("new", None, 1.0)
    assert pair.blob_as_last_listed("new") is None


def test_a_listing_is_stored_with_the_next_records(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite"
    with closing(Index(file)) as ours, closing(Index(file)) as others:
        pair, seen_by_others = ours.pair("data", "http://x/1"), others.pair("data", "http://x/1")
        pair.put({"a": record(1)})
        before = file.read_bytes()
        listed(pair, "", {"a": 2, "b": 1}, ["a", "b"], at=7.0)
        pair.remember_blob("c", state(3), 8.0)
        assert pair.get(["a"]) == {"a": record(1)} and file.read_bytes() == before, "nothing waited for the disk yet"
        pair.put({"b": record(1)})
        assert seen_by_others.listed_at("") == 7.0
        assert remembered(seen_by_others) == {"a": state(2), "b": state(1), "c": state(3)}


@pytest.mark.parametrize("way", ["asked", "closed", "forgotten", "another listing"])
def test_a_listing_is_stored_before_anybody_asks(tmp_path: Path, way: str) -> None:
    file = tmp_path / "index.sqlite"
    with closing(Index(file)) as index:
        pair = index.pair("data", "http://x/1")
        listed(pair, "", {"a": 1}, ["a"], at=7.0)
        if way == "asked":
            assert pair.listed_at("") == 7.0
        elif way == "closed":
            index.close()
        elif way == "forgotten":
            pair.forget(["x"])
        else:
            many = {f"b/{number}": 1 for number in range(6_000)}
            listed(pair, "b", many, sorted(many), at=8.0)
        with closing(Index(file)) as other:
            assert other.pair("data", "http://x/1").listed_at("") == 7.0


def test_a_listing_is_stored_when_the_program_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from blobsync.local.index import Index;"
        "pair = Index(Path(sys.argv[1])).pair('data', 'http://x/1');"
        "pair.remember_listing('', pair.differences(''), 7.0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "index.sqlite")], check=True)
    assert Index(tmp_path / "index.sqlite").pair("data", "http://x/1").listed_at("") == 7.0
