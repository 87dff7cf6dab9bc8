"""Where a file is cut into blocks: at fixed edges that depend on nothing but the file's size.

Two uploads of one file, on whatever line, and a download of the blob cut at the same places; so a block that is the
same in two versions has the same content, and the same id (``store.protocol``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from blobsync.store.protocol import MAX_BLOB_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS

_MIB = 1024 * 1024

# Smaller files go in one request on any line.
ONE_REQUEST = 2 * _MIB


def _steps() -> Iterator[tuple[int, int]]:
    """The largest file of each block size, and that size. Bytes.

    Small blocks keep many connections of a long line busy with one file, and change less when the file changes; large
    ones need fewer requests (docs/performance.md). Above the third step the 50,000 blocks of a blob set the size.
    """
    yield 64 * _MIB, 2 * _MIB
    yield 2048 * _MIB, 4 * _MIB
    block = 8 * _MIB
    while block < MAX_BLOCK_BYTES:
        yield MAX_BLOCKS * block, block
        block *= 2
    yield MAX_BLOB_BYTES, MAX_BLOCK_BYTES


_STEPS = tuple(_steps())
_LIMITS = [limit for limit, _ in _STEPS]


def block_size(size: int) -> int:
    """The length in bytes of each block but the last of a file of ``size`` bytes.

    Raises ``ValueError`` for a size that no blob can have.
    """
    if not 0 <= size <= MAX_BLOB_BYTES:
        raise ValueError(f"no blob has {size:,} bytes")
    return _STEPS[bisect_left(_LIMITS, size)][1]


class BlockRange(NamedTuple):
    """Blocks of a file, from number ``first`` up to ``stop``, which is not one of them."""

    first: int
    stop: int


def block_count(size: int) -> int:
    """How many blocks a file of ``size`` bytes, which is not empty, is cut into."""
    return -(-size // block_size(size))


def block_bytes(size: int, index: int) -> int:
    """The length of block ``index`` of a file of ``size`` bytes."""
    block = block_size(size)
    return min(block, size - index * block)


def range_bytes(size: int, blocks: BlockRange) -> int:
    """The bytes of so many blocks of a file of ``size`` bytes."""
    block = block_size(size)
    return min(blocks.stop * block, size) - blocks.first * block


def block_ranges(size: int, about: int) -> tuple[BlockRange, ...]:
    """A file of ``size`` bytes in ranges of ``about`` so many bytes: whole blocks, each in one range, in their order.

    They differ by one block at most.
    """
    blocks = block_count(size)
    count = max(1, min(blocks, -(-size // about)))
    edges = [number * blocks // count for number in range(count + 1)]
    return tuple(BlockRange(first, stop) for first, stop in pairwise(edges))
