"""Parallel listings of subfolders and of ranges of names return each blob once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.errors import StorageError
from blobsync.local.sorted_runs import Spill
from blobsync.plan.parallel_listing import Division, list_wide
from blobsync.store.protocol import BlobInfo
from tests.fakes.store import MemoryStore, Request, StoredBlob
from tests.waiting import wait_until

PARTS = st.sampled_from(("a", "b", "ab", "a-", "", "é", "f01", "f02", "f1"))
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
DIVISIONS = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(0, 4), st.integers(1, 6)).map(
    lambda drawn: Division(drawn[0], drawn[1], drawn[1] + drawn[2], drawn[3])
)


S = TypeVar("S", bound=MemoryStore)


def filled(store: S, *names: str) -> S:
    for name in names:
        store.add(name, name.encode())
    return store


def holding(*names: str) -> MemoryStore:
    return filled(MemoryStore(), *names)


def listed(store: MemoryStore, division: Division, prefix: str = "t/") -> list[str]:
    """Each blob once; returns what was requested."""
    found = [blob.name for blob in list_wide(store, prefix, Spill(), division)]
    assert Counter(found) == Counter(name for name in store.blobs if name.startswith(prefix))
    return [each.name for each in store.asked("list")]


@given(st.sets(NAMES, max_size=40), DIVISIONS, st.sampled_from(("", "a/", "f01/")))
def test_every_blob_is_listed_once(names: set[str], division: Division, prefix: str) -> None:
    store = holding(*names)
    expected = {blob.name: blob for blob in store.list_blobs(prefix)}
    found = list(list_wide(store, prefix, Spill(most=3), division))
    assert len(found) == len(expected) and {blob.name: blob for blob in found} == expected


# Folders of more files than are looked through, of one folder, or of many; some have the same beginning.
WIDE = st.dictionaries(
    st.sampled_from(("data", "data1", "data2", "m", "n")),
    st.sampled_from((tuple(range(9)), ("0/x",), tuple(f"{number}/x" for number in range(8)))),
    min_size=3,
).map(lambda folders: {f"{folder}/{below}" for folder, all_below in folders.items() for below in all_below})


@given(WIDE, st.integers(3, 7))
def test_a_flat_folder_is_listed_once_beside_folders_with_its_beginning(names: set[str], shares: int) -> None:
    listed(holding(*names), Division(2, shares, opened=shares, names=8), "")


def test_a_flat_folder_is_listed_with_many_folders_that_share_its_beginning() -> None:
    names = [f"t/data1/{number}" for number in range(9)]
    names += ["t/data2/0/x", *(f"t/m/{number}/x" for number in range(8))]
    requests = sorted(listed(holding(*names), Division(2, shares=6, opened=6, names=8))[2:])
    # Looked into: t/data1/, which is flat, t/data2/ and t/m/.
    assert requests == ["t/dat", "t/data1/", "t/data2/", "t/m/", *(f"t/m/{number}" for number in range(8))]


def test_what_comes_after_a_long_beginning_comes_sorted() -> None:
    store = holding(*(f"t/{folder}/{number:02}" for folder in "hgfedcba" for number in range(5)))
    found = [blob.name for blob in list_wide(store, "t/", Spill(most=4), Division(7, shares=8))]
    assert found == sorted(store.blobs)


def test_a_listing_is_divided_from_its_length_on() -> None:
    names = [f"t/{folder}/x" for folder in "abcd"]
    assert listed(holding(*names), Division(5, shares=4)) == ["t/"]
    # Its first blobs, its folders, then each of them.
    assert sorted(listed(holding(*names), Division(4, shares=4))) == ["t/", "t/", "t/a/", "t/b/", "t/c/", "t/d/"]


def test_folders_are_opened_level_by_level_until_there_are_enough() -> None:
    names = [f"t/{first}/{second}/{file}" for first in "ab" for second in "xyz" for file in "12"]
    # t/ gives two, t/a/ makes that four.
    assert sorted(listed(holding(*names), Division(2, shares=4))[2:]) == ["t/a/", "t/a/x/", "t/a/y/", "t/a/z/", "t/b/"]
    assert sorted(listed(holding(*names), Division(2, shares=2))[2:]) == ["t/a/", "t/b/"]
    assert listed(holding(*names), Division(2, shares=3))[2] == "t/a/"


def test_so_many_folders_are_opened_at_most() -> None:
    few = holding(*(f"t/x/x/x/x/{folder}/file" for folder in "abc"))
    # The fourth level is not looked into: it is one prefix, so the first listing goes on.
    assert listed(few, Division(2, shares=3, opened=3)) == ["t/", "t/", "t/x/", "t/x/x/"]


def test_a_folder_with_many_names_stays_one_listing() -> None:
    store = holding(*(f"t/a/{number}" for number in range(4)), *(f"t/b/{number}" for number in range(5)))
    # Opened: t/, and t/a/, whose four names are in order; t/b/ is whole, and alone.
    assert listed(store, Division(2, names=4)) == ["t/", "t/", "t/a/", "t/b/"]
    store = holding(*(f"t/{folder}/{number}" for folder in "ab" for number in range(5)))
    assert sorted(listed(store, Division(2, names=4))) == ["t/", "t/", "t/a/", "t/a/", "t/b/", "t/b/"]
    # Those that stay whole count as shares.
    store = holding(*(f"t/{folder}/{number}" for folder in "abc" for number in range(5)))
    requests = listed(store, Division(2, shares=4, names=4))
    assert Counter(requests) == {"t/": 2, "t/a/": 2, "t/b/": 2, "t/c/": 2}
    inner = [f"t/{folder}/{below}/1" for folder in "bcd" for below in "xy"]
    store = holding(*inner, *(f"t/a/{number}" for number in range(5)))
    assert Counter(listed(store, Division(2, shares=5, names=4))) == {"t/": 2, "t/a/": 2} | dict.fromkeys(
        ("t/b/", "t/b/x/", "t/b/y/", "t/c/", "t/d/"), 1
    )
    store = holding("t/c/x/1", "t/d/x/1", *(f"t/{folder}/{number}" for folder in "ab" for number in range(5)))
    assert "t/d/" in listed(store, Division(2, shares=5, names=4))


def test_many_small_folders_are_listed_a_few_together() -> None:
    store = holding(*(f"t/f{number:04}/{file}" for number in range(300) for file in "ab"))
    requests = listed(store, Division(10))
    # The shortest beginnings that are 16 or more.
    assert sorted(requests[2:]) == [f"t/f{number:03}" for number in range(30)]


@pytest.mark.parametrize("opened", [19, 20, 21])
def test_more_folders_than_may_be_opened_are_listed_by_their_beginnings(opened: int) -> None:
    store = holding(*(f"t/{number:02}/{file}" for number in range(20) for file in "ab"))
    requests = sorted(listed(store, Division(10, shares=2, opened=opened))[2:])
    assert requests == (["t/0", "t/1"] if opened < 20 else [f"t/{number:02}/" for number in range(20)])


def test_as_many_beginnings_as_shares_are_enough() -> None:
    store = holding(*(f"t/{first}{second}/x" for first in "abcd" for second in "123"))
    assert sorted(listed(store, Division(2, shares=4, opened=4))[2:]) == ["t/a", "t/b", "t/c", "t/d"]
    # Also those of one character.
    store = holding(*(f"{first}{second}/x" for first in "abcd" for second in "123"))
    assert sorted(listed(store, Division(2, shares=4, opened=4), "")[2:]) == ["a", "b", "c", "d"]


def test_blobs_beside_the_folders_are_listed_once() -> None:
    names = [f"t/{number:02}/x" for number in range(20)] + ["t/0", "t/05", "t/1", "t/9", "t/zz"]
    listed(holding(*names), Division(2, shares=2, opened=2))


def test_a_folder_of_files_alone_is_listed_once() -> None:
    store = holding(*(f"t/{number:04}" for number in range(300)))
    # The whole listing, and the one that looks for subfolders.
    assert listed(store, Division(10)) == ["t/", "t/"]


# Names of one folder, also with capitals and others than ASCII, and of folders below it.
FLAT = st.lists(st.sampled_from((*"0123ab", "A", "B", "-", "_", ".jpg", "é", "/")), min_size=1, max_size=6).map("".join)


Order = Callable[[str], str]


class Ranging(MemoryStore):
    """Lists from a name on, in the order of ``order(name)``. ``how`` changes what such a listing has.

    It is given all blobs with its prefix, and the name.
    """

    def __init__(
        self, how: Callable[[list[BlobInfo], str], list[BlobInfo]] | None = None, order: Order | None = None
    ) -> None:
        super().__init__()
        self.lists_from_names = True
        self._how = how
        self._order = order or str
        self.ends: set[str] = set()

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        return iter(sorted(super().list_blobs(prefix), key=lambda blob: self._order(blob.name)))

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo] | None:
        if self._how is None and self._order is str:
            return super().list_from(prefix, start, most, end)
        blobs = list(self.list_blobs(prefix))
        if self._how is not None:
            return iter(self._how(blobs, start))
        found = [blob for blob in blobs if self._order(blob.name) >= self._order(start)]
        return (blob for blob in found if not end or self._order(blob.name) < self._order(end))


def by_folder(name: str) -> str:
    """As a hierarchical namespace lists."""
    return name.replace("/", "\0")


def folded_lower(blobs: list[BlobInfo], start: str) -> list[BlobInfo]:
    return [blob for blob in blobs if blob.name.lower() >= start.lower()]


def folded_upper(blobs: list[BlobInfo], start: str) -> list[BlobInfo]:
    return [blob for blob in blobs if blob.name.upper() >= start.upper()]


def after(blobs: list[BlobInfo], start: str) -> list[BlobInfo]:
    return [blob for blob in blobs if blob.name > start]


def everything(blobs: list[BlobInfo], _: str) -> list[BlobInfo]:
    return blobs


def twice(blobs: list[BlobInfo], start: str) -> list[BlobInfo]:
    return [blob for blob in blobs if blob.name >= start for _ in range(2)]


HOWS = st.sampled_from((None, folded_lower, folded_upper, after, everything, twice))


@given(st.sets(FLAT, max_size=60), DIVISIONS, HOWS, st.sampled_from(("", "t/", "T/a")))
def test_ranges_of_names_have_no_gap_and_nothing_twice(
    names: set[str], division: Division, how: Callable[[list[BlobInfo], str], list[BlobInfo]] | None, prefix: str
) -> None:
    if how in (folded_lower, folded_upper):
        names = {name for name in names if name.isascii()}
    listed(filled(Ranging(how), *(prefix + name for name in (*names, "other"))), division, prefix)


@given(st.sets(FLAT, max_size=60), DIVISIONS, st.sampled_from((by_folder, str.lower, str.upper)))
def test_services_with_another_order_are_listed_whole(names: set[str], division: Division, order: Order) -> None:
    listed(filled(Ranging(order=order), *(f"t/{name}" for name in names)), division)


def ranges_of(store: MemoryStore, division: Division, prefix: str = "t/") -> list[str]:
    """The names from which the ranges were listed."""
    listed(store, division, prefix)
    return sorted({each.name for each in store.asked("list_from") if not each.size})


def ranging(*names: str) -> Ranging:
    return filled(Ranging(), *names)


def test_a_flat_folder_is_cut_where_the_names_seen_so_far_differ_from_the_others() -> None:
    store = ranging(*(f"t/img_{number:03}.jpg" for number in range(1000)))
    found = ranges_of(store, Division(40))
    # First after img_039; then from img_140, img_240... on, each of which is as long.
    assert found[:3] == ["t/img_039.jp", "t/img_04", "t/img_05"]
    assert {f"t/img_{number}" for number in range(1, 10)} < set(found)
    assert "t/img_14" in found and "t/img_99" in found
    # Names of one more digit, and nothing behind the others, need no more.
    assert len(found) < 120


def test_no_range_begins_with_a_name_of_capitals() -> None:
    # Those of IMG differ behind a capital: the service may compare them without case.
    store = ranging(*(f"t/IMG_{number:03}" for number in range(100)), "t/img_000", "t/x")
    assert ranges_of(store, Division(40)) == ["t/", "t/i", "t/x"]
    assert ranges_of(ranging(*(f"T/{number:03}" for number in range(100))), Division(40), "T/")[1:3] == ["T/04", "T/05"]


class Stopping(Ranging):
    """Stops before an end that it compares without case."""

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo] | None:
        self.ends.add(end)
        found = super().list_from(prefix, start, most)
        return (blob for blob in found or () if not end or blob.name.lower() < end.lower())


def test_a_service_may_stop_where_a_range_ends_unless_it_would_leave_capitals_out() -> None:
    store = filled(Stopping(), *(f"t/{first}{number:02}" for first in "37BXadz" for number in range(40)))
    listed(store, Division(40))
    assert store.ends >= {"t/7", "t/d", "t/z"}


def test_a_range_that_would_be_empty_is_not_listed() -> None:
    store = ranging(*(f"t/{first}{number:02}" for first in "abdh" for number in range(40)))
    assert [each for each in ranges_of(store, Division(40)) if len(each) == 3] == ["t/b", "t/d", "t/h"]
    assert max(each.size for each in store.asked("list_from")) == 1, "one blob says what is behind a cut"


def test_a_service_that_lists_from_the_beginning_is_asked_once() -> None:
    store = filled(Ranging(everything), *(f"t/{number:02}" for number in range(100)))
    listed(store, Division(40))
    # The whole listing, that from a name on, and the one that looks for subfolders.
    assert len(store.asked("list")) == 3


def test_a_service_that_refuses_ranges_is_listed_as_before() -> None:
    def refuse(request: Request) -> None:
        if request.operation == "list_from":
            raise StorageError("the version is not known", status=400)

    store = ranging(*(f"t/{number:02}" for number in range(100)))
    store.before = refuse
    assert listed(store, Division(40)) == ["t/", "t/"]
    # Folders are listed side by side all the same.
    store = ranging(*(f"t/{folder}/{number:02}" for folder in "abcd" for number in range(40)))
    store.before = refuse
    assert sorted(listed(store, Division(40, shares=4)))[2:] == ["t/a/", "t/b/", "t/c/", "t/d/"]


def test_a_folder_of_many_files_among_others_is_cut_as_well() -> None:
    store = ranging(*(f"t/{folder}/{number:03}" for folder in "abcd" for number in range(300)))
    found = ranges_of(store, Division(100, shares=4, names=10))
    assert "t/a/1" in found and "t/d/2" in found


def test_what_is_written_and_deleted_meanwhile_is_listed_at_most_once() -> None:
    store = ranging(*(f"t/{number:04}" for number in range(0, 1000, 2)))
    stays = {name for name in store.blobs if not name.endswith("8")}
    numbers = iter(range(1, 1000, 2))

    def change(request: Request) -> None:
        with lock:
            for number in islice(numbers, 5):
                store.add(f"t/{number:04}", b"")
                store.blobs.pop(f"t/{number + 7:04}" if number % 10 == 1 else "none", None)

    lock = threading.Lock()
    store.before = change
    found = Counter(blob.name for blob in list_wide(store, "t/", Spill(), Division(40)))
    assert set(found.values()) == {1} and set(found) >= stays


def test_a_slow_disk_loses_no_blob(tmp_path: Path) -> None:
    store = MemoryStore()
    for name in (f"t/{folder}/{number:04}" for folder in "abcdefgh" for number in range(3000)):
        store.blobs[name] = StoredBlob(b"", BlobInfo(name, 0, "0x1", None, 1.0))

    def slow_folder() -> Path:
        # The threads have more by then than waits to be read, and have looked whether anybody reads it.
        time.sleep(1.0)
        return tmp_path

    found = [blob.name for blob in list_wide(store, "t/", Spill(slow_folder, 100), Division(10, shares=8))]
    assert found == sorted(store.blobs)


class Endless(MemoryStore):
    """Some listings go on as long as they are read."""

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        while blobs := list(super().list_blobs(prefix)):
            yield from blobs
            if prefix not in ("t/c/", "t/d/"):
                return


@pytest.mark.parametrize("kind", [MemoryStore, Endless])
def test_an_error_of_one_listing_is_raised_and_ends_the_others(kind: type[MemoryStore]) -> None:
    before = threading.active_count()
    store = kind()
    for name in (f"t/{folder}/{number}" for folder in "abcdefgh" for number in range(9)):
        store.add(name, b"")

    def refuse(request: Request) -> None:
        if request.operation == "list" and request.name == "t/b/":
            raise StorageError("the service said no", status=500)

    store.before = refuse
    with pytest.raises(StorageError, match="said no"):
        for _ in list_wide(store, "t/", Spill(), Division(10, shares=8)):
            pass
    assert wait_until(lambda: threading.active_count() <= before)
