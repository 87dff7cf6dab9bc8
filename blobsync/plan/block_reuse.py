"""Finds the blocks of a file that need not be sent, because the service has them.

Two sources, and nothing else, tell that a block is there with the content that its id names:

* uncommitted blocks that this project's journal lists (the service acknowledged them, with their MD5), as long as the
  service still lists them with the same size: what a killed upload left;
* committed blocks of the one version of the blob that the index holds as verified and the journal as written by this
  project, as long as every id of it is one of ours. It is replaced under ``If-Match``, so that it is that version
  still when the blocks are taken from it.

Metadata proves nothing (server-side copies carry it along), nor does an id alone: whoever can write a blob can write
any id. What the service says of sizes is held against what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from blobsync.base.file_states import RemoteState
from blobsync.store.protocol import Block, BlockList


class Reusable(NamedTuple):
    """The sizes in bytes of the blocks that may be left out, by id: those of the present version, and uncommitted."""

    committed: Mapping[str, int]
    staged: Mapping[str, int]


NOTHING = Reusable({}, {})


def reusable(listed: BlockList | None, journaled: Mapping[bytes, int], basis: RemoteState | None) -> Reusable:
    """What of the service's list may be used. ``journaled`` are sizes by SHA-256.

    ``basis`` is the version that is to be replaced, None where its blocks are not to be used.
    """
    if listed is None:
        return NOTHING
    staged = _sizes(block for block in listed.uncommitted if _is_journaled(block, journaled))
    return Reusable(_sizes(listed.committed) if basis is not None and _is_ours(listed, basis) else {}, staged)


def differs(committed: BlockList | None, blocks: Iterable[Block]) -> str | None:
    """How a blob's committed blocks differ from those that it was to be made of; None where they do not."""
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
    """By id. A block that is listed with two sizes is none to rely on."""
    found: dict[str, int] = {}
    doubtful = set()
    for block in blocks:
        if found.setdefault(block.id, block.size) != block.size:
            doubtful.add(block.id)
    return {name: size for name, size in found.items() if name not in doubtful}
