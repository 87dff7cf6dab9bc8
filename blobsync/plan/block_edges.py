"""Where a file is cut into blocks: at fixed edges that depend on nothing but the file's size.

Two uploads of one file, on whatever line, and a download of the blob cut at the same places; so a block that is the
same in two versions has the same content, and the same id (``store.block_ids``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

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
        raise ValueError(f"no blob has {size} bytes")
    return _STEPS[bisect_left(_LIMITS, size)][1]
