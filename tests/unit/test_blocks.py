"""How files are cut into blocks: the same for the same size, within the limits of the service."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blobsync.plan.blocks import BlockRange, block_bytes, block_count, block_ranges, block_size, range_bytes
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


@given(st.integers(1, MAX_BLOB_BYTES), st.integers(1, MAX_BLOB_BYTES))
@example(MAX_BLOB_BYTES, 1)
@example(390_625 * MIB + 1, 1)
@example(1, GIB)
def test_ranges_of_a_file_contain_each_block_once(size: int, about: int) -> None:
    # For as many workers as a cluster has; a range has at least one block.
    about = max(about, size // 2000)
    found = block_ranges(size, about)
    assert [each.first for each in found] == [0, *(each.stop for each in found[:-1])]
    assert found[-1].stop == block_count(size) <= MAX_BLOCKS
    lengths = [range_bytes(size, each) for each in found]
    assert sum(lengths) == size and min(lengths) > 0
    counts = [each.stop - each.first for each in found]
    assert max(counts) - min(counts) <= 1 and len(found) <= -(-size // about)
    assert max(lengths) <= about + block_size(size)


def test_the_bytes_of_a_block_and_of_a_range() -> None:
    size = 7 * MIB
    assert [block_bytes(size, index) // MIB for index in range(block_count(size))] == [2, 2, 2, 1]
    assert block_ranges(size, 4 * MIB) == (BlockRange(0, 2), BlockRange(2, 4))
    assert [range_bytes(size, each) // MIB for each in block_ranges(size, 4 * MIB)] == [4, 3]


@pytest.mark.parametrize("size", [-1, MAX_BLOB_BYTES + 1])
def test_a_file_too_large_for_a_blob_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size:,}"):
        block_size(size)


def test_the_sizes_at_which_blocks_become_larger() -> None:
    """A change of these sizes sends every large file once more as a whole."""
    sizes = [0, 64 * MIB, 2 * GIB, 50_000 * 8 * MIB, 50_000 * 16 * MIB, MAX_BLOB_BYTES]
    assert [block_size(size) // MIB for size in sizes] == [2, 2, 4, 8, 16, 4000]
    assert [block_size(size + 1) // MIB for size in sizes[1:-1]] == [4, 8, 16, 32]
