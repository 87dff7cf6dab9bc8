"""The blocks of a blob, as a hint for downloads: it is checked by the MD5 of the whole file."""

from __future__ import annotations

from typing import NamedTuple

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import RemoteState
from blobsync.store.protocol import MAX_BLOCKS, BlobStore


class KnownBlock(NamedTuple):
    """So many bytes from ``start`` on, and the SHA-256 that their id names."""

    start: int
    length: int
    sha256: bytes


def known_blocks(store: BlobStore, name: str, version: RemoteState) -> tuple[KnownBlock, ...]:
    """The blocks of this version in its order; none where they say nothing that can be checked.

    Whoever can write a blob can write any id, so the ids are worth something only where the whole has an MD5, which is
    compared before the file gets its name. They have to be ours, all of them, and add up to the blob. Without the
    right to see them, or when the service does not tell, the whole file is fetched.
    """
    if version.md5 is None:
        return ()
    try:
        found = store.block_list(name, "committed")
    except BlobsyncError:
        # If the service is out of reach, the first range says so.
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
