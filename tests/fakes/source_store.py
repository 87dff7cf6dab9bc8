"""A source outside Azure in memory: what a :class:`MemoryStore` holds, read as a bucket is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from urllib.parse import quote

from blobsync.base.locations import Bucket, quote_blob_name
from blobsync.base.redaction import SignedUrl
from blobsync.store.protocol import BlobInfo, BlobProperties, Checksum
from blobsync.store.read_only import SourceStore
from tests.fakes.store import MemoryReader, MemoryStore

SIGNED = "?X-Amz-Signature="


class MemorySource(SourceStore):
    """``inner`` is what the service that fetches reads, by the URLs of this store.

    ``checksums`` are what the bucket keeps of objects, ``versions`` their version ids; ``archived`` are those that have
    to be restored first. Of objects in ``hides_md5`` the ETag is no MD5. As a bucket's, a listing has no MD5 at all.
    """

    def __init__(self, name: str = "laion") -> None:
        super().__init__(Bucket.at(name, "https://s3.example"))
        self.inner = MemoryStore(name)
        self.inner.container_url = Bucket.at(name, "https://s3.example")
        self.checksums: dict[str, Checksum] = {}
        self.versions: dict[str, str] = {}
        self.archived: dict[str, str] = {}
        self.hides_md5: set[str] = set()
        self.signed: list[tuple[str, str, int]] = []
        self.padding = ""

    def add(self, name: str, body: bytes) -> BlobInfo:
        """Add an object, or replace it."""
        return self.inner.add(name, body)

    def close(self) -> None:
        """Nothing to close."""

    def fail_soon(self) -> None:
        """Nothing waits."""

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        for info in self.inner.list_blobs(prefix):
            yield info._replace(md5=None, archived=self.archived.get(info.name, ""))

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        for entry in self.inner.list_folder(prefix):
            yield entry if isinstance(entry, str) else entry._replace(md5=None)

    def described(self, name: str) -> tuple[BlobInfo, BlobProperties] | None:
        found = self.inner.head(name)
        return None if found is None else (self._told(found), self.inner.blobs[name].properties)

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[MemoryReader]:
        reader = self.inner.open(name, start=start, length=length, etag=etag)
        assert isinstance(reader, MemoryReader)
        reader.info = self._told(reader.info)
        return reader

    def source_url(self, name: str, version: str, seconds: int) -> SignedUrl:
        self.signed.append((name, version, seconds))
        return SignedUrl(f"{self._container.child(name)}{SIGNED}{'f' * 64}{self.padding}")

    def url_length(self, name: str) -> int:
        return len(f"{self._container}/{quote_blob_name(name)}{SIGNED}{quote(self.padding)}") + 64

    def _told(self, info: BlobInfo) -> BlobInfo:
        return info._replace(
            md5=None if info.name in self.hides_md5 else info.md5,
            checksum=self.checksums.get(info.name),
            version=self.versions.get(info.name, ""),
            archived=self.archived.get(info.name, ""),
        )
