"""How files are cut into blocks, what the ids of blocks say, and which blocks need not be sent again."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blobsync.base.file_states import RemoteState
from blobsync.plan.blocks import NOTHING, block_size, differs, digests_of, reusable
from blobsync.store.protocol import (
    MAX_BLOB_BYTES,
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    Block,
    BlockList,
    block_id_of,
    sha256_of_block,
)

MIB = 1024 * 1024
GIB = 1024 * MIB


@given(st.integers(0, MAX_BLOB_BYTES))
@example(0)
@example(390_625 * MIB + 1)
@example(MAX_BLOB_BYTES)
def test_number_and_size_of_blocks_are_within_the_limits_of_a_blob(size: int) -> None:
    block = block_size(size)
    assert 2 * MIB <= block <= MAX_BLOCK_BYTES
    assert -(-size // block) <= MAX_BLOCKS


@given(st.integers(0, MAX_BLOB_BYTES), st.integers(0, MAX_BLOB_BYTES))
def test_a_larger_file_never_has_smaller_blocks(one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert block_size(small) <= block_size(large)


@given(st.integers(256 * MIB, 100 * GIB))
def test_a_change_of_ten_megabytes_sends_at_most_a_hundred(size: int) -> None:
    # The blocks that the change fills, and one at each of its ends.
    touched = 10_000_000 + 2 * block_size(size)
    assert touched <= 0.1 * max(size, 10**9)


@pytest.mark.parametrize("size", [-1, MAX_BLOB_BYTES + 1])
def test_a_file_too_large_for_a_blob_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size:,}"):
        block_size(size)


def test_the_sizes_at_which_blocks_become_larger() -> None:
    """A change of these sizes sends every large file once more as a whole."""
    sizes = [0, 64 * MIB, 2 * GIB, 50_000 * 8 * MIB, 50_000 * 16 * MIB, MAX_BLOB_BYTES]
    assert [block_size(size) // MIB for size in sizes] == [2, 2, 4, 8, 16, 4000]
    assert [block_size(size + 1) // MIB for size in sizes[1:-1]] == [4, 8, 16, 32]


@pytest.mark.parametrize("size", [1, 2 * MIB, 2 * MIB + 1, 4 * MIB, 5 * MIB])
@pytest.mark.parametrize("changed", [None, 0, 1, 2])
def test_a_file_has_an_md5_and_a_digest_for_each_of_its_blocks(size: int, changed: int | None) -> None:
    body = bytearray(b"0123456789abcdef" * (size // 16) + b"x" * (size % 16))
    known = _digests(body)
    if changed is not None and changed * 2 * MIB < size:
        body[changed * 2 * MIB] ^= 1
    for before in (known, b""):
        assert digests_of(lambda at, length: bytes(body[at : at + length]), size, before) == _digests(body)


def test_the_md5_of_a_file_whose_blocks_are_known_is_not_computed() -> None:
    body = b"a" * 5 * MIB
    known = bytes(16) + _digests(body)[16:]
    assert digests_of(lambda at, length: body[at : at + length], len(body), known)[:16] == bytes(16)
    assert digests_of(lambda at, length: body[at : at + length], len(body), known[:-1] + b"!") == _digests(body)


def _digests(body: bytes | bytearray) -> bytes:
    blocks = [body[start : start + 2 * MIB] for start in range(0, len(body), 2 * MIB)]
    return b"".join([hashlib.md5(body).digest(), *(hashlib.sha256(block).digest() for block in blocks)])


# -- ids -----------------------------------------------------------------------------------------------------------


HASH = hashlib.sha256(b"one").digest()


@given(st.binary(min_size=32, max_size=32))
def test_an_id_contains_the_hash_of_its_content(digest: bytes) -> None:
    block_id = block_id_of(digest)
    assert len(block_id) == 48 and len(b64decode(block_id, validate=True)) == 36
    assert sha256_of_block(block_id) == digest


@given(st.text(max_size=90) | st.binary(max_size=64).map(lambda raw: b64encode(raw).decode()))
def test_only_the_canonical_form_of_an_id_is_recognised(text: str) -> None:
    digest = sha256_of_block(text)
    assert digest is None or block_id_of(digest) == text


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        b64encode(b"blobsync-0123456789abcdef-000000....").decode(),
        b64encode(b"bsc2" + HASH).decode(),
        b64encode(b"bsc1" + HASH[:31]).decode(),
        b64encode(b"bsc1" + HASH + b"x").decode(),
        block_id_of(HASH)[:-1],
        block_id_of(HASH)[:-1] + "\n",
        block_id_of(HASH)[:-1] + "=",
        " " + block_id_of(HASH)[1:],
        block_id_of(HASH)[:-1] + "é",
        "\u0410" * 48,
    ],
)
def test_other_ids_are_not_recognised(foreign: str) -> None:
    assert sha256_of_block(foreign) is None


@pytest.mark.parametrize("length", [0, 31, 33])
def test_an_id_needs_a_sha256(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        block_id_of(b"x" * length)


# -- blocks that are there -----------------------------------------------------------------------------------------


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
