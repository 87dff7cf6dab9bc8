"""How files are cut into blocks: the same for the same size, within the limits of the service."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blobsync.plan.blocks import block_size, digests_of
from blobsync.store.protocol import MAX_BLOB_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS

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
