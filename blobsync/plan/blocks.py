"""The blocks of a large file: their edges, and which need not be sent because the service has them.

A file is cut at fixed edges that depend only on its size, in uploads and downloads alike, whatever the connection. So
blocks that are equal in two versions have the same id (``store.protocol``).

Only two sources prove that a block exists with the content that its id names:

* uncommitted blocks that this project's journal lists (the service acknowledged them, with their MD5), as long as the
  service still lists them with the same size: what a killed upload left;
* committed blocks of the version of the blob that the index has as verified and the journal as written by this project,
  if blobsync made all of its ids. It is replaced under ``If-Match``, so that it is still that version when the blocks
  are taken from it.

Metadata proves nothing (server-side copies keep it), nor does an id alone: anyone who can write a blob can write any
id. Sizes from the service are compared with those on record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from blobsync.base.file_states import RemoteState
from blobsync.store.protocol import MAX_BLOB_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS, Block, BlockList

_MIB = 1024 * 1024

# Bytes; smaller files are sent in one request.
ONE_REQUEST = 2 * _MIB


def _steps() -> Iterator[tuple[int, int]]:
    """The largest file for each block size, and that size. Bytes.

    Small blocks keep many connections busy with one file, and fewer bytes change with the file; large blocks need fewer
    requests (docs/performance.md). Above the third step the 50,000 blocks of a blob set the size.
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
    """Blocks of a file, from number ``first`` up to but excluding ``stop``."""

    first: int
    stop: int


def block_count(size: int) -> int:
    """The number of blocks of a file of ``size`` bytes, which is not empty."""
    return -(-size // block_size(size))


def block_bytes(size: int, index: int) -> int:
    """The length of block ``index`` of a file of ``size`` bytes."""
    block = block_size(size)
    return min(block, size - index * block)


def range_bytes(size: int, blocks: BlockRange) -> int:
    """The number of bytes in ``blocks`` of a file of ``size`` bytes."""
    block = block_size(size)
    return min(blocks.stop * block, size) - blocks.first * block


def block_ranges(size: int, about: int) -> tuple[BlockRange, ...]:
    """Split a file of ``size`` bytes into consecutive ranges of whole blocks, each of ``about`` this many bytes.

    They differ by one block at most.
    """
    blocks = block_count(size)
    count = max(1, min(blocks, -(-size // about)))
    edges = [number * blocks // count for number in range(count + 1)]
    return tuple(BlockRange(first, stop) for first, stop in pairwise(edges))


class Reusable(NamedTuple):
    """The sizes in bytes of the blocks that need not be sent, by id: those of the present version, and uncommitted
    ones."""

    committed: Mapping[str, int]
    staged: Mapping[str, int]


NOTHING = Reusable({}, {})


def reusable(listed: BlockList | None, journaled: Mapping[bytes, int], basis: RemoteState | None) -> Reusable:
    """The blocks of the service's list that may be reused. ``journaled`` are sizes by SHA-256.

    ``basis`` is the version to be replaced, None if its blocks must not be reused.
    """
    if listed is None:
        return NOTHING
    staged = _sizes(block for block in listed.uncommitted if _is_journaled(block, journaled))
    return Reusable(_sizes(listed.committed) if basis is not None and _is_ours(listed, basis) else {}, staged)


def differs(committed: BlockList | None, blocks: Iterable[Block]) -> str | None:
    """How a blob's committed blocks differ from the expected ones; None if they do not."""
    if committed is None:
        return "the blob is not there"
    wanted = tuple(blocks)
    if len(committed.committed) != len(wanted):
        return f"it has {len(committed.committed):,} blocks instead of {len(wanted):,}"
    for number, (found, block) in enumerate(zip(committed.committed, wanted, strict=True), 1):
        if found.id != block.id:
            return f"block {number:,} is another one"
        if found.size != block.size:
            return f"block {number:,} has {found.size:,} bytes instead of {block.size:,}"
    return None


def _is_journaled(block: Block, journaled: Mapping[bytes, int]) -> bool:
    digest = block.sha256
    return digest is not None and journaled.get(digest) == block.size


def _is_ours(listed: BlockList, basis: RemoteState) -> bool:
    blocks = listed.committed
    return (
        bool(basis.etag)
        and listed.etag == basis.etag
        and all(block.sha256 is not None for block in blocks)
        and sum(block.size for block in blocks) == basis.size
    )


def _sizes(blocks: Iterable[Block]) -> dict[str, int]:
    """Sizes by id, without blocks that are listed with two sizes."""
    found: dict[str, int] = {}
    doubtful = set()
    for block in blocks:
        if found.setdefault(block.id, block.size) != block.size:
            doubtful.add(block.id)
    return {name: size for name, size in found.items() if name not in doubtful}
