"""The index's state of a container: its last listing, and the files moved since."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.index import Index, PairIndex, Record
from blobsync.local.sorted_runs import Spill

# Names around the separators: '-' and '.' come before '/', '0' after it, and astral ones last.
NAMES = st.sampled_from(["a", "a/b", "a-b", "a.b", "a/b/c", "a0", "b", "b/x", "é/z", "\U0001f600/y", "\ufffd/y", "~"])
BLOBS = st.dictionaries(NAMES, st.integers(1, 3), max_size=8)


def state(version: int) -> RemoteState:
    return RemoteState(version, f"etag{version}", bytes([version]) * 16)


def record(version: int) -> Record:
    return Record(LocalState(version, 1, 1, 1, bytes([version]) * 16), state(version))


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


def test_what_was_transferred_or_deleted_since_counts(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    pair.put({"gone": record(1), "kept": record(1)})
    listed(pair, "", {"kept": 2, "theirs": 3}, ["kept", "theirs"])
    pair.put({"kept": record(3), "new": record(1)})
    assert remembered(pair) == {"kept": state(3), "new": state(1), "theirs": state(3)}
    pair.forget(["theirs", "new"])
    assert remembered(pair) == {"kept": state(3)}


def test_a_listing_of_a_folder_changes_nothing_beside_it(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    blobs = {"a/1": 1, "a/2": 1, "a0": 1, "b": 1}
    listed(pair, "", blobs, list(blobs), at=10.0)
    listed(pair, "a", {"a/2": 2}, ["a/2"], at=20.0)
    assert remembered(pair) == {"a/2": state(2), "a0": state(1), "b": state(1)}
    assert remembered(pair, "a") == {"a/2": state(2)}
    assert [pair.listed_at(folder) for folder in ("", "a", "a/deeper", "b")] == [10.0, 20.0, 20.0, 10.0]
    listed(pair, "", {}, [], at=30.0)
    assert [pair.listed_at(folder) for folder in ("", "a")] == [30.0, 30.0]


def test_a_record_that_no_blob_matches_says_nothing_of_the_container(tmp_path: Path) -> None:
    """``--keep`` makes such records: the source's version was given up, the destination's is newer."""
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    pair.put({"a": Record(LocalState(1, 1, 1, 1), RemoteState(1, ""))})
    assert remembered(pair) == {}
    assert pair.blob_as_last_listed("a") is None


def test_nothing_was_listed_where_nothing_is_known(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    assert pair.listed_at("") is None
    assert remembered(pair) == {}
    assert pair.blob_as_last_listed("a") is None


def test_more_than_one_page_is_read_whole(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
    blobs = {f"{number:05}": 1 for number in range(12_000)}
    pair.put({path: record(1) for path in blobs})
    listed(pair, "", {path: 1 for path in blobs if path != "07000"}, [path for path in blobs if path != "07000"])
    assert len(remembered(pair)) == 11_999


def test_names_that_are_not_utf8_are_never_remembered_and_do_no_harm(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
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


def test_a_look_for_one_blob_is_remembered_as_it_was(tmp_path: Path) -> None:
    pair = Index(tmp_path / "index.sqlite").pair("data", "http://x/1")
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
