"""Files and blobs are paired by name, in any order, in memory and on disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.sorted_runs import Spill
from blobsync.plan.pairing import HeldFiles, Match

NAMES = ("a", "a/b", "a-b", "a0", "b", "b/a", "é", "\U0001f600", "z")
SPILLS = (Spill(), Spill(most=3), Spill(most=1))


def local(number: int) -> LocalState:
    return LocalState(number, number, number, number, b"0123456789abcdef" if number % 2 else None)


def blob(number: int) -> RemoteState:
    return RemoteState(number, f"0x{number}", None, "Hot")


def held(names: list[str], spill: Spill = SPILLS[0]) -> HeldFiles:
    files = HeldFiles(spill)
    for number, name in enumerate(names):
        files.add(name, local(number))
    return files


def looked_up(here: list[str], there: list[str]) -> list[tuple[str, LocalState | None, RemoteState | None]]:
    """The expected pairs: each listed name with its file, then the files that were not listed."""
    files = {name: local(number) for number, name in enumerate(here)}
    found = [(name, files.pop(name, None), blob(number)) for number, name in enumerate(there)]
    return [*found, *((name, state, None) for name, state in files.items())]


def in_order(matches: list[Match] | list[tuple[str, LocalState | None, RemoteState | None]]) -> list[str]:
    return sorted(map(repr, map(tuple, matches)))


@pytest.mark.parametrize("spill", SPILLS, ids=["memory", "some on the disk", "disk"])
@given(here=st.lists(st.sampled_from(NAMES)), there=st.lists(st.sampled_from(NAMES)))
def test_pairs_equal_those_of_a_lookup_by_name(spill: Spill, here: list[str], there: list[str]) -> None:
    # If a name is listed twice, either blob may get the file: such a plan is refused.
    once = list(dict.fromkeys(there))
    listing = [(name, blob(number)) for number, name in enumerate(once)]
    assert in_order(list(held(here, spill).matched(listing))) == in_order(looked_up(here, once))


@pytest.mark.parametrize("spill", SPILLS, ids=["memory", "some on the disk", "disk"])
def test_a_name_listed_twice_makes_two_pairs(spill: Spill) -> None:
    for there in (["a", "b", "b", "c"], ["c", "b", "a", "b"]):
        found = list(held(["b"], spill).matched([(name, blob(0)) for name in there]))
        assert sorted(path for path, _, _ in found) == ["a", "b", "b", "c"]
        assert [here for _, here, _ in found if here is not None] == [local(0)]


def test_sorted_names_are_paired_while_the_listing_goes_on() -> None:
    def listing() -> Iterator[tuple[str, RemoteState]]:
        yield "b", blob(1)
        yield "c", blob(2)
        raise ConnectionError

    matches = held(["a", "b"]).matched(listing())
    assert list(islice(matches, 2)) == [("b", local(1), blob(1)), ("c", None, blob(2))]


def test_files_without_a_blob_come_after_the_end_of_the_listing() -> None:
    def listing() -> Iterator[tuple[str, RemoteState]]:
        yield "z", blob(1)
        raise ConnectionError

    seen: list[Match] = []
    with pytest.raises(ConnectionError):
        seen += held(["a", "b"]).matched(listing())
    assert [path for path, _, there in seen if there is None] == []


def test_memory_of_matching_does_not_grow_with_the_files() -> None:
    """As ``verify`` does it when no file has a blob: each waits for the end of the listing."""

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            files = HeldFiles(Spill(most=1000))
            for number in range(count):
                # Numbers as large as those of a real file, so that each takes memory of its own.
                files.add(f"folder/{number:08}", LocalState(number, 10**18 + number, 10**18 - number, 10**6 + number))
            assert sum(there is None for _, _, there in files.matched([("z", blob(0))])) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(12_000) < 1.5 * peak(4_000)
