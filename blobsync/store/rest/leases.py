"""Leases of blobs: who may go on, by the service's clock.

https://learn.microsoft.com/rest/api/storageservices/lease-blob: 15 to 60 seconds, or without end. The right to write
is enough for a SAS.
"""

from __future__ import annotations

from typing import final

from blobsync.base.azure_urls import ContainerUrl
from blobsync.base.errors import BlobsyncError
from blobsync.store.rest.errors import translate
from blobsync.store.rest.http import BlobHttp, Reply

# Of a lease that somebody else has, or that has run out and went to somebody else.
_NOT_OURS = (409, 412)


@final
class BlobLeases:
    """The leases of one container's blobs; safe to use from several threads. ``holder`` is a UUID."""

    def __init__(self, container: ContainerUrl, http: BlobHttp) -> None:
        self._container = container
        self._http = http

    def acquire(self, name: str, holder: str, seconds: int) -> bool:
        """Take the lease of a blob that is there, or take it again; False where somebody else has it."""
        words = {"x-ms-lease-duration": str(seconds), "x-ms-proposed-lease-id": holder}
        return self._do(name, "acquire", words, 201)

    def renew(self, name: str, holder: str) -> bool:
        """For as long again; False where the lease is no longer ours."""
        return self._do(name, "renew", {"x-ms-lease-id": holder}, 200)

    def release(self, name: str, holder: str) -> bool:
        """Anybody may take it now; False where it was no longer ours."""
        return self._do(name, "release", {"x-ms-lease-id": holder}, 200)

    def end(self, name: str) -> bool:
        """End whoever's lease it is at once; False where there was none."""
        return self._do(name, "break", {"x-ms-lease-break-period": "0"}, 202)

    def _do(self, name: str, action: str, words: dict[str, str], done: int) -> bool:
        path = self._http.path_of(name)
        reply = self._http.send("PUT", path, {"comp": "lease"}, {"x-ms-lease-action": action, **words}, b"")
        if reply.status == done:
            return True
        if reply.status in _NOT_OURS:
            reply.response.close()
            return False
        raise self._error(reply, name)

    def _error(self, reply: Reply, name: str) -> BlobsyncError:
        now, ended = self._http.clock(), self._http.signer.ended()
        return translate(reply.answer(), "write", self._container, name, now=now, sas_ended=ended)
