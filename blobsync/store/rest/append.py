"""Append blobs, which only grow at their end, such as the log of a job."""

from __future__ import annotations

from typing import final

from blobsync.base.errors import PreconditionFailedError
from blobsync.base.locations import BlobContainer
from blobsync.store.rest.block_checks import content_md5
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.store import BlobSteps

# Bytes; https://learn.microsoft.com/rest/api/storageservices/append-block: 4 MiB on every service version.
MAX_APPEND_BYTES = 4 * 1024 * 1024


@final
class RestAppendBlobs:
    """The append blobs of one container; safe to use from several threads."""

    def __init__(self, container: BlobContainer, http: BlobHttp) -> None:
        self._http = http
        self._steps = BlobSteps(container, http)

    def create(self, name: str, content_type: str) -> None:
        """Put Blob: an empty append blob, which replaces any existing blob."""
        headers = {"x-ms-blob-type": "AppendBlob", "x-ms-blob-content-type": content_type}
        reply = self._http.send("PUT", self._steps.path(name), {}, headers, b"")
        if reply.status != 201:
            raise self._steps.error(reply, "write", name)

    def append(self, name: str, body: bytes, *, at: int) -> None:
        """Append Block: at most ``MAX_APPEND_BYTES``, where the blob is ``at`` bytes long.

        Raises ``PreconditionFailedError`` if it has another length. A block whose response was lost is not written
        twice.
        """
        headers = {
            "Content-MD5": content_md5(body),
            "x-ms-blob-condition-appendpos": str(at),
        }
        reply = self._http.send("PUT", self._steps.path(name), {"comp": "appendblock"}, headers, body)
        if reply.status == 201:
            return
        error = self._steps.error(reply, "write", name)
        if isinstance(error, PreconditionFailedError) and reply.attempts > 1:
            there = self._http.run(self._steps.head(name))
            if there is not None and there.size == at + len(body):
                return
        raise error

    def size(self, name: str) -> int | None:
        """The size of the append blob in bytes; None if there is none, or if the blob has another type."""
        found = self._http.run(self._steps.head(name))
        return found.size if found is not None and found.blob_type == "AppendBlob" else None
