"""Append blobs, which only grow at their end, such as the log of a job."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import final

from blobsync.base.errors import BlobsyncError, PreconditionFailedError, StorageError
from blobsync.base.locations import BlobContainer
from blobsync.store.protocol import BlobInfo
from blobsync.store.rest.error_codes import translate
from blobsync.store.rest.headers import whole_info
from blobsync.store.rest.http import BlobHttp, Reply

# Bytes; https://learn.microsoft.com/rest/api/storageservices/append-block: 4 MiB on every service version.
MAX_APPEND_BYTES = 4 * 1024 * 1024


@final
class RestAppendBlobs:
    """The append blobs of one container; safe to use from several threads."""

    def __init__(self, container: BlobContainer, http: BlobHttp) -> None:
        self._container = container
        self._http = http

    def create(self, name: str, content_type: str) -> None:
        """Put Blob: an empty append blob, which replaces any existing blob."""
        headers = {"x-ms-blob-type": "AppendBlob", "x-ms-blob-content-type": content_type}
        reply = self._http.send("PUT", self._path(name), {}, headers, b"")
        if reply.status != 201:
            raise self._error(reply, name)

    def append(self, name: str, body: bytes, *, at: int) -> None:
        """Append Block: at most ``MAX_APPEND_BYTES``, where the blob is ``at`` bytes long.

        Raises ``PreconditionFailedError`` if it has another length. A block whose response was lost is not written
        twice.
        """
        headers = {
            "Content-MD5": b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode(),
            "x-ms-blob-condition-appendpos": str(at),
        }
        reply = self._http.send("PUT", self._path(name), {"comp": "appendblock"}, headers, body)
        if reply.status == 201:
            return
        error = self._error(reply, name)
        if isinstance(error, PreconditionFailedError) and reply.attempts > 1:
            there = self._look(name)
            if there is not None and there.size == at + len(body):
                return
        raise error

    def size(self, name: str) -> int | None:
        """The size of the append blob in bytes; None if there is none, or if the blob has another type."""
        found = self._look(name)
        return found.size if found is not None and found.blob_type == "AppendBlob" else None

    def _look(self, name: str) -> BlobInfo | None:
        reply = self._http.send("HEAD", self._path(name), {}, {})
        if reply.status == 200:
            return whole_info(name, reply.headers)
        error = self._error(reply, name, what="read")
        if isinstance(error, StorageError) and error.status == 404:
            return None
        raise error

    def _path(self, name: str) -> str:
        return self._http.path_of(name)

    def _error(self, reply: Reply, name: str, what: str = "write") -> BlobsyncError:
        now, ended = self._http.clock(), self._http.signer.ended()
        return translate(reply.answer(), what, self._container, name, now=now, sas_ended=ended)
