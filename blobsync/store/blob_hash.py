"""The content of a blob, as an MD5 of bytes that were read."""

from __future__ import annotations

import hashlib

from blobsync.store.ends import RemoteEnd

_READ_BYTES = 1 << 20


def blob_md5(end: RemoteEnd, path: str, etag: str) -> bytes:
    """The MD5 of a blob's bytes, read from the service and thrown away."""
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.at(path), etag=etag) as reader:
        while chunk := reader.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()
