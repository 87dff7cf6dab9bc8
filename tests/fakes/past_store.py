"""A container in memory whose account keeps versions, or what is deleted, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

from blobsync.base.errors import BlobNotFoundError, PreconditionFailedError
from blobsync.store.account_features import AccountFeatures
from blobsync.store.protocol import BlobInfo, BlobProperties, Precondition
from tests.fakes.store import MemoryReader, MemoryStore, StoredBlob

KEPT_DAYS = 7


class PastStore(MemoryStore):
    """``keeps`` is ``versions``, ``deleted`` or ``nothing``, as the account is set up.

    With versions, each write makes one, and a deletion makes the last one an earlier version; Undelete then changes
    nothing. With soft delete alone, Undelete brings a deleted blob back as it was; what is overwritten is lost here
    (the service makes a deleted snapshot of it).
    """

    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps = keeps
        self.past: list[tuple[str, StoredBlob]] = []
        self.deleted: dict[str, StoredBlob] = {}

    def features(self) -> AccountFeatures:
        days = KEPT_DAYS if self.keeps == "deleted" else 0
        return AccountFeatures(self.keeps == "versions", days, hns=False, immutability=False)

    def list_versions(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._ask("list_versions", prefix)
        found = self.past if self.keeps == "versions" else [("", blob) for blob in self.blobs.values()]
        for version, blob in sorted(found, key=lambda each: (each[1].info.name, each[0])):
            if blob.info.name.startswith(prefix):
                yield blob.info._replace(version=version)

    def list_deleted(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._ask("list_deleted", prefix)
        yield from (blob.info for name, blob in sorted(self.deleted.items()) if name.startswith(prefix))

    def undelete(self, name: str) -> None:
        self._ask("undelete", name)
        with self._lock:
            if name not in self.blobs:
                if name not in self.deleted:
                    raise BlobNotFoundError(f"there is no blob {name}", status=404)
                if self.keeps == "deleted":
                    self.blobs[name] = self.deleted.pop(name)

    def open_version(self, name: str, version: str, *, start: int = 0, length: int | None = None) -> MemoryReader:
        blob = dict(self.past)[version]
        body = blob.body[start:] if length is None else blob.body[start : start + length]
        return MemoryReader(blob.info, blob.properties, body, None)

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        self._ask("delete", name)
        with self._lock:
            self._demand(name, Precondition(etag=etag))
            gone = self.blobs.pop(name, None)
            if gone is not None:
                self.deleted[name] = gone
            return gone is not None

    def _keep(self, name: str, body: bytes, md5: bytes | None, properties: BlobProperties) -> BlobInfo:
        info = super()._keep(name, body, md5, properties)
        self.past.append((f"2026-11-27T20:00:00.{self._version:07}Z", replace(self.blobs[name])))
        return info

    def _copy_source(self, url: str, etag: str) -> StoredBlob:
        place, _, version = url.partition("?versionid=")
        if not version:
            return super()._copy_source(url, etag)
        blob = dict(self.past)[unquote(version)]
        assert str(self.container.child(blob.info.name)) == place
        if etag != blob.info.etag:
            raise PreconditionFailedError("another version", status=412)
        return blob
