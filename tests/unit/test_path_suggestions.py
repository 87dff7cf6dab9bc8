"""Suggestions for a path that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import NothingMatchedError, StorageError
from blobsync.base.locations import LocalLocation
from blobsync.plan.path_suggestions import look_nearby
from blobsync.store.open_locations import OpenBlob
from tests.fakes.store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for name in ("p/data/voc20/a.jpg", "p/data/voc21/train/b.jpg", "p/other/x"):
        store.add(name, b"x")
    return store


@pytest.mark.parametrize(
    ("relative", "meant"),
    [
        ("vco20", "data/voc20"),
        ("voc20/a.jgp", "data/voc20/a.jpg"),
        ("vcc21/train/b.jpg", "data/voc21"),
        ("voc21/trian/b.jpg", "data/voc21/train"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_name_in_the_container_is_found_below_the_folder_entry(
    store: MemoryStore, relative: str, meant: str | None
) -> None:
    end = OpenBlob(store, f"p/data/{relative}".rstrip("/"))
    assert look_nearby(f"data/{relative}".rstrip("/"), relative, end)() == meant


def test_the_nearest_name_on_disk_is_found_and_the_first_end_wins(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "data/voc19").mkdir(parents=True)
    here, there = LocalLocation(tmp_path / "data/vco19"), OpenBlob(store, "p/data/vco19")
    assert look_nearby("data/vco19", "vco19", here, there)() == "data/voc19"
    elsewhere = LocalLocation(tmp_path / "no/vco19")
    assert look_nearby("data/vco19", "vco19", elsewhere, there)() in ("data/voc20", "data/voc21")


def test_a_source_at_another_path_gives_no_suggestion(store: MemoryStore) -> None:
    assert look_nearby("data/vco20", "vco20", OpenBlob(store, "p/data/old"))() is None


def test_a_failing_store_leaves_the_error_unchanged(store: MemoryStore) -> None:
    def fail(request: object) -> None:
        raise StorageError("no")

    store.before = fail
    error = NothingMatchedError("x", hint="h", nearby=look_nearby("data/vco", "vco", OpenBlob(store, "p/vco")))
    error.suggest()
    assert error.hint == "h"


def test_the_suggestion_comes_first_in_the_hint() -> None:
    error = NothingMatchedError("x", hint="h", nearby=lambda: "data/voc20")
    error.suggest()
    error.suggest()
    assert error.hint == "did you mean data/voc20? h"
