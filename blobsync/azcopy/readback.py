"""Reads an upload back where nothing else would notice a byte that changed on its way, and sends it again.

azcopy sends no checksum with the blocks of a file; the MD5 that it stores with the blob is that of the local file. Over
TLS no byte changes unnoticed. Over plain http, which emulators speak, one would; the service checks the
MD5 of a blob that is sent in one piece, so only files in several blocks are read back. A damaged blob carries the
right MD5 and would be taken for the file from then on, so it is replaced at once, by the engine whose every request
carries a checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.errors import StorageError
from blobsync.base.file_states import RemoteState
from blobsync.direct.engine import DirectEngine
from blobsync.plan.listener import Listener
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.ends import RemoteEnd
from blobsync.store.protocol import BlobInfo, BlobStore
from blobsync.transfer.engines import CollectedReport, MoveTask

_THREADS = 4
_PIECE = 1 << 20


def is_needed(store: BlobStore, size: int, block_mb: float) -> bool:
    """Whether a blob of ``size`` bytes went through ``store``'s line in blocks that nobody checked."""
    return store.container.endpoint.startswith("http://") and size > block_mb * (1 << 20)


def damaged(store: BlobStore, expected: Mapping[str, bytes]) -> dict[str, RemoteState | None]:
    """The blobs that are said to have the expected MD5 and have not, or are gone (None), each as it is now.

    One with another MD5 is a later version of somebody else's: it is left to the fresh look.
    """
    pool = ThreadPoolExecutor(_THREADS)
    try:
        looks = pool.map(lambda item: _look(store, *item), expected.items())
        return {name: look.there for name, look in zip(expected, looks, strict=True) if look.is_damaged}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def send_again(
    task: MoveTask, found: Iterable[tuple[FileAction, RemoteState | None]], listener: Listener
) -> CollectedReport:
    """Replace what arrived damaged, as it was ``found``, provided that nobody else did meanwhile."""
    end = task.part.destination
    if not isinstance(end, RemoteEnd):
        raise ValueError("only uploads are sent again")
    fresh = [replace(action, destination=there) for action, there in found]
    report = CollectedReport()
    DirectEngine().move(task._replace(actions=fresh), report, listener)
    for action, _ in report.failed:
        # No blob is better than a damaged one that looks valid. A SAS may not allow the deletion.
        with suppress(StorageError):
            if isinstance(action.destination, RemoteState):
                end.store.delete(end.at(action.target or action.path), etag=action.destination.etag)
    return report


class _Look(NamedTuple):
    is_damaged: bool
    there: RemoteState | None = None


def _look(store: BlobStore, name: str, md5: bytes) -> _Look:
    digest = hashlib.md5(usedforsecurity=False)
    blob: BlobInfo | None
    try:
        with store.open(name) as reader:
            blob = reader.info
            while piece := reader.read(_PIECE):
                digest.update(piece)
    except StorageError:
        # It cannot be read, or is gone.
        blob = store.head(name)
    else:
        if digest.digest() == md5:
            return _Look(is_damaged=False)
    if blob is None:
        return _Look(is_damaged=True)
    return _Look(blob.md5 == md5, RemoteState(blob.size, blob.etag, blob.md5))
