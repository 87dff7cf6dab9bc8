"""Which blocks need not be sent again: those listed with the right id and size, of an unchanged source."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.file_states import RemoteState
from blobsync.plan.blocks import NOTHING, differs, reusable
from blobsync.store.protocol import Block, BlockList, block_id_of

FOREIGN = Block("Zm9yZWlnbi1pZC13aXRoLTM2LWJ5dGVzLi4uLi4uLi4uLi4u", 3)


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def block(text: str, size: int = 3) -> Block:
    return Block(block_id_of(sha(text)), size)


ONE, TWO = block("one"), block("two")
OURS = BlockList((ONE, TWO), (), "0x1")
BASIS = RemoteState(6, "0x1")


def test_without_a_block_list_every_block_is_sent() -> None:
    assert reusable(None, {sha("one"): 3}, BASIS) == NOTHING


def test_uncommitted_blocks_in_the_journal_are_reused() -> None:
    listed = BlockList((), (ONE, TWO, FOREIGN), "")
    assert reusable(listed, {sha("one"): 3, sha("gone"): 3}, None).staged == {ONE.id: 3}
    assert reusable(listed, {}, None) == NOTHING


def test_an_uncommitted_block_of_another_size_is_sent_again() -> None:
    assert reusable(BlockList((), (block("one", 4),), ""), {sha("one"): 3}, None) == NOTHING


def test_a_block_listed_with_two_sizes_is_sent_again() -> None:
    twice = BlockList((ONE, block("one", 4), TWO), (), "0x1")
    assert reusable(twice, {}, RemoteState(10, "0x1")).committed == {TWO.id: 3}


def test_committed_blocks_of_the_verified_version_are_reused() -> None:
    assert reusable(OURS, {}, BASIS).committed == {ONE.id: 3, TWO.id: 3}


@pytest.mark.parametrize(
    ("listed", "basis"),
    [
        (OURS, None),
        (OURS, RemoteState(6, "0x2")),
        (OURS._replace(etag=""), RemoteState(6, "")),
        (OURS, RemoteState(7, "0x1")),
        (OURS._replace(committed=(ONE, TWO, FOREIGN)), RemoteState(9, "0x1")),
        (OURS._replace(committed=()), RemoteState(0, "0x1")),
    ],
    ids=["no-basis", "another-version", "no-etag", "another-size", "a-foreign-block", "one-request"],
)
def test_committed_blocks_of_another_version_are_sent_again(listed: BlockList, basis: RemoteState | None) -> None:
    assert reusable(listed, {}, basis).committed == {}


texts = st.sampled_from(["a", "b", "c", "d"])
blocks = st.lists(st.one_of(st.just(FOREIGN), st.builds(block, texts, st.integers(0, 4))), max_size=6).map(tuple)
lists = st.none() | st.builds(BlockList, blocks, blocks, st.sampled_from(["", "0x1", "0x2"]))
journals = st.dictionaries(texts.map(sha), st.integers(0, 4))
bases = st.none() | st.builds(RemoteState, st.integers(0, 24), st.sampled_from(["", "0x1", "0x2"]))


@given(lists, journals, bases)
def test_no_block_list_makes_an_unverified_block_be_skipped(
    listed: BlockList | None, journaled: dict[bytes, int], basis: RemoteState | None
) -> None:
    found = reusable(listed, journaled, basis)
    for name, size in found.staged.items():
        assert listed is not None and Block(name, size) in listed.uncommitted
        assert any(block_id_of(digest) == name and size == known for digest, known in journaled.items())
    if found.committed:
        assert listed is not None and basis is not None and listed.etag == basis.etag != ""
        assert FOREIGN not in listed.committed
        assert sum(each.size for each in listed.committed) == basis.size
        assert all(Block(name, size) in listed.committed for name, size in found.committed.items())


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (None, "not there"),
        (BlockList((ONE,), (TWO,), "0x1"), "1 blocks instead of 2"),
        (BlockList((TWO, ONE), (), "0x1"), "block 1 is another"),
        (BlockList((ONE, FOREIGN), (), "0x1"), "block 2 is another"),
        (BlockList((ONE, block("two", 4)), (), "0x1"), "block 2 has 4 bytes instead of 3"),
        (OURS, None),
    ],
)
def test_the_blocks_of_a_committed_blob_are_compared_with_those_sent(there: BlockList | None, said: str | None) -> None:
    found = differs(there, [ONE, TWO])
    assert found is None if said is None else found is not None and said in found
