"""The blocks of a blob, as a hint for downloads: the MD5 of the whole file verifies the result."""

from __future__ import annotations

from typing import NamedTuple

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import RemoteState
from blobsync.store.protocol import MAX_BLOCKS, BlobStore


class KnownBlock(NamedTuple):
    """``length`` bytes from ``start`` on, and the SHA-256 that the block's id contains."""

    start: int
    length: int
    sha256: bytes


def known_blocks(store: BlobStore, name: str, version: RemoteState) -> tuple[KnownBlock, ...]:
    """The blocks of this version in order; empty if they cannot be used.

    Anyone who can write a blob can choose any ids, so they are used only if the whole blob has an MD5, which is
    compared before the file gets its name. All of them must be blobsync's ids and add up to the blob's size. Without
    permission to list them, if the service does not answer, or of an object outside Azure, which has none, the whole
    file is downloaded.
    """
    if version.md5 is None:
        return ()
    try:
        found = store.block_list(name, "committed")
    except BlobsyncError:
        # If the service cannot be reached, the first ranged read reports it.
        return ()
    if found is None or found.etag != version.etag or len(found.committed) > MAX_BLOCKS:
        return ()
    blocks: list[KnownBlock] = []
    at = 0
    for each in found.committed:
        sha256 = each.sha256
        if sha256 is None or each.size <= 0:
            return ()
        blocks.append(KnownBlock(at, each.size, sha256))
        at += each.size
    return tuple(blocks) if at == version.size else ()
