"""Two ends are matched as they would be by looking each name up, whatever the order, and wherever they are kept."""

from __future__ import annotations

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
    """Each name of the listing with the file of that name, once; then the files that were not in it."""
    files = {name: local(number) for number, name in enumerate(here)}
    found = [(name, files.pop(name, None), blob(number)) for number, name in enumerate(there)]
    return [*found, *((name, state, None) for name, state in files.items())]


def in_order(matches: list[Match] | list[tuple[str, LocalState | None, RemoteState | None]]) -> list[str]:
    return sorted(map(repr, map(tuple, matches)))


@pytest.mark.parametrize("spill", SPILLS, ids=["memory", "some on the disk", "disk"])
@given(here=st.lists(st.sampled_from(NAMES)), there=st.lists(st.sampled_from(NAMES)))
def test_every_name_is_matched_as_if_it_were_looked_up(spill: Spill, here: list[str], there: list[str]) -> None:
    # Of a name that one end repeats, any of its blobs may be the one with the file: such a plan is refused.
    once = list(dict.fromkeys(there))
    listing = [(name, blob(number)) for number, name in enumerate(once)]
    assert in_order(list(held(here, spill).matched(listing))) == in_order(looked_up(here, once))


@pytest.mark.parametrize("spill", SPILLS, ids=["memory", "some on the disk", "disk"])
def test_a_name_that_the_listing_repeats_comes_each_time(spill: Spill) -> None:
    for there in (["a", "b", "b", "c"], ["c", "b", "a", "b"]):
        found = list(held(["b"], spill).matched([(name, blob(0)) for name in there]))
        assert sorted(each.path for each in found) == ["a", "b", "b", "c"]
        assert [each.held for each in found if each.held is not None] == [local(0)]


def test_what_comes_in_order_is_matched_while_the_listing_goes_on() -> None:
    def listing() -> Iterator[tuple[str, RemoteState]]:
        yield "b", blob(1)
        yield "c", blob(2)
        raise ConnectionError

    matches = held(["a", "b"]).matched(listing())
    assert list(islice(matches, 2)) == [Match("b", local(1), blob(1)), Match("c", None, blob(2))]


def test_no_file_counts_as_alone_before_the_listing_is_at_its_end() -> None:
    def listing() -> Iterator[tuple[str, RemoteState]]:
        yield "z", blob(1)
        raise ConnectionError

    seen: list[Match] = []
    with pytest.raises(ConnectionError):
        seen += held(["a", "b"]).matched(listing())
    assert [each.path for each in seen if each.streamed is None] == []
