"""The content of a blob, as an MD5 of bytes that were read."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import FileState, RemoteState
from blobsync.store.ends import RemoteEnd

_READ_BYTES = 1 << 20


def blob_md5(end: RemoteEnd, path: str, etag: str) -> bytes:
    """The MD5 of a blob's bytes, read from the service and thrown away."""
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.at(path), etag=etag) as reader:
        while chunk := reader.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()


def with_md5(end: RemoteEnd, path: str, state: FileState) -> FileState:
    """The state with the MD5 of the blob's bytes, if the service keeps none.

    Unchanged if the blob cannot be read, or is another version now.
    """
    if isinstance(state, RemoteState) and state.md5 is None:
        with suppress(BlobsyncError):
            return replace(state, md5=blob_md5(end, path, state.etag))
    return state
