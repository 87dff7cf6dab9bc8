"""Parallel listings of subfolders return each blob once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.errors import StorageError
from blobsync.local.sorted_runs import Spill
from blobsync.plan.survey import list_wide
from tests.fakes.store import MemoryStore, Request

PARTS = st.sampled_from(("a", "b", "ab", "a-", "", "é", "f01", "f02", "f1"))
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


def holding(*names: str) -> MemoryStore:
    store = MemoryStore()
    for name in names:
        store.add(name, name.encode())
    return store


@given(st.sets(NAMES, max_size=30), st.integers(1, 8), st.sampled_from(("", "a/", "f01/")))
def test_every_blob_is_listed_once(names: set[str], long: int, prefix: str) -> None:
    store = holding(*names)
    expected = {blob.name: blob for blob in store.list_blobs(prefix)}
    found = list(list_wide(store, store, prefix, Spill(most=3), long))
    assert len(found) == len(expected) and {blob.name: blob for blob in found} == expected


def test_many_small_folders_are_listed_a_few_together() -> None:
    store = holding(*(f"t/f{number:04}/{file}" for number in range(300) for file in "ab"))
    found = [blob.name for blob in list_wide(store, store, "t/", Spill(), 10)]
    assert found == sorted(store.blobs)
    listings = store.asked("list")
    assert 16 < len(listings) <= 40, [each.name for each in listings]


def test_a_folder_of_files_alone_is_listed_once() -> None:
    store = holding(*(f"t/{number:04}" for number in range(300)))
    assert [blob.name for blob in list_wide(store, store, "t/", Spill(), 10)] == sorted(store.blobs)
    # The whole listing, and the one that looks for subfolders.
    assert [each.name for each in store.asked("list")] == ["t/", "t/"]


def test_an_error_of_one_listing_is_raised() -> None:
    store = holding(*(f"t/{folder}/{number}" for folder in "abcdefgh" for number in range(9)))

    def refuse(request: Request) -> None:
        if request.operation == "list" and request.name == "t/e/":
            raise StorageError("the service said no", status=500)

    store.before = refuse
    with pytest.raises(StorageError, match="said no"):
        list(list_wide(store, store, "t/", Spill(), 10))
