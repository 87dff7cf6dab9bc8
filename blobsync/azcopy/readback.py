"""Reads an upload back where nothing else would notice a byte that changed on its way, and sends it again.

azcopy sends no checksum with the blocks of a file; the MD5 that it stores with the blob is that of the local file. Over
TLS no byte changes unnoticed. Over plain http, which emulators speak, one would; the service checks the
MD5 of a blob that is sent in one piece, so only files in several blocks are read back. A damaged blob carries the
right MD5 and would be taken for the file from then on, so it is replaced at once, by the engine whose every request
carries a checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from blobsync.base.errors import StorageError
from blobsync.base.file_states import RemoteState
from blobsync.direct.engine import DirectEngine
from blobsync.plan.listener import Listener
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.ends import RemoteEnd
from blobsync.store.protocol import BlobStore
from blobsync.transfer.engines import CollectedReport, MoveTask

_THREADS = 4
_PIECE = 1 << 20


def is_needed(store: BlobStore, size: int, block_mb: float) -> bool:
    """Whether a blob of ``size`` bytes went through ``store``'s line in blocks that nobody checked."""
    return store.container.endpoint.startswith("http://") and size > block_mb * (1 << 20)


def damaged(store: BlobStore, expected: Mapping[str, bytes]) -> list[str]:
    """The blobs whose content has not the expected MD5, or cannot be read."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        right = pool.map(lambda item: _is_right(store, *item), expected.items())
        return [name for name, fine in zip(expected, right, strict=True) if not fine]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def send_again(task: MoveTask, actions: Sequence[FileAction], listener: Listener) -> CollectedReport:
    """Replace what arrived damaged, provided that nobody else did meanwhile."""
    end = task.part.destination
    if not isinstance(end, RemoteEnd):
        raise ValueError("only uploads are sent again")
    fresh = []
    for action in actions:
        blob = end.store.head(end.at(action.target or action.path))
        fresh.append(replace(action, destination=RemoteState(blob.size, blob.etag, blob.md5) if blob else None))
    report = CollectedReport()
    DirectEngine().move(task._replace(actions=fresh), report, listener)
    for action, _ in report.failed:
        # No blob is better than a damaged one that looks valid. A SAS may not allow the deletion.
        with suppress(StorageError):
            if isinstance(action.destination, RemoteState):
                end.store.delete(end.at(action.target or action.path), etag=action.destination.etag)
    return report


def _is_right(store: BlobStore, name: str, md5: bytes) -> bool:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with store.open(name) as reader:
            while piece := reader.read(_PIECE):
                digest.update(piece)
    except StorageError:
        return False
    return digest.digest() == md5
