"""A container in memory whose account keeps versions, or what is deleted, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import unquote

from blobsync.base.errors import BlobNotFoundError, PreconditionFailedError
from blobsync.base.file_states import DELETED, SNAPSHOT
from blobsync.store.account_features import AccountFeatures
from blobsync.store.protocol import BlobInfo, BlobProperties, Precondition
from tests.fakes.store import MemoryReader, MemoryStore, StoredBlob

KEPT_DAYS = 7


class PastStore(MemoryStore):
    """``keeps`` is ``versions``, ``deleted`` or ``nothing``, as the account is set up; ``past`` is what it keeps.

    With versions, each write makes one, and a deletion makes the last one an earlier version; Undelete then changes
    nothing. With soft delete alone, a deletion keeps the blob, and a write keeps what was there as a deleted snapshot;
    Undelete brings a deleted blob back as it was, and makes its deleted snapshots active.
    """

    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps = keeps
        # By the version, or the words in its place.
        self.past: list[tuple[str, StoredBlob]] = []

    def features(self) -> AccountFeatures:
        days = KEPT_DAYS if self.keeps == "deleted" else 0
        return AccountFeatures(self.keeps == "versions", days, hns=False, immutability=False)

    def list_versions(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._ask("list_versions", prefix)
        found = self.past if self.keeps == "versions" else [("", blob) for blob in self.blobs.values()]
        for version, blob in sorted(found, key=lambda each: (each[1].info.name, each[0])):
            if blob.info.name.startswith(prefix):
                yield blob.info._replace(version=version)

    def list_deleted(self, prefix: str = "", *, hns: bool = False) -> Iterator[BlobInfo]:
        self._ask("list_deleted", prefix)
        assert not hns
        if self.keeps == "deleted":
            yield from (
                blob.info._replace(version=words) for words, blob in self.past if blob.info.name.startswith(prefix)
            )

    def undelete(self, name: str, deletion: str = "") -> None:
        self._ask("undelete", name)
        with self._lock:
            if name not in self.blobs and not self._past_of(name):
                raise BlobNotFoundError(f"there is no blob {name}", status=404)
            for words, blob in self._past_of(name):
                if words == DELETED:
                    self.past.remove((words, blob))
                    self.blobs[name] = blob
                elif words.startswith(DELETED):
                    self._turn(words, blob, words.removeprefix(f"{DELETED} "))

    def delete_snapshot(self, name: str, time: str) -> None:
        self._ask("delete_snapshot", name)
        with self._lock:
            self._delete_snapshots(name, time)

    def open_version(self, name: str, version: str, *, start: int = 0, length: int | None = None) -> MemoryReader:
        blob = dict(self.past)[version]
        body = blob.body[start:] if length is None else blob.body[start : start + length]
        return MemoryReader(blob.info, blob.properties, body, None)

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        self._ask("delete", name)
        with self._lock:
            self._demand(name, Precondition(etag=etag))
            gone = self.blobs.pop(name, None)
            if gone is not None and self.keeps == "deleted":
                self._delete_snapshots(name)
                self.past.append((DELETED, gone))
            return gone is not None

    def _past_of(self, name: str) -> list[tuple[str, StoredBlob]]:
        return [each for each in self.past if each[1].info.name == name] if self.keeps == "deleted" else []

    def _turn(self, words: str, blob: StoredBlob, into: str) -> None:
        self.past[self.past.index((words, blob))] = (into, blob)

    def _delete_snapshots(self, name: str, time: str = "") -> None:
        for words, blob in self._past_of(name):
            if words.startswith(f"{SNAPSHOT} {time}"):
                self._turn(words, blob, f"{DELETED} {words}")

    def _keep(self, name: str, body: bytes, md5: bytes | None, properties: BlobProperties) -> BlobInfo:
        before, time = self.blobs.get(name), f"2026-11-27T20:00:00.{self._version:07}Z"
        for words, blob in self._past_of(name):
            if words == DELETED:
                self._turn(words, blob, f"{DELETED} {SNAPSHOT} {time}")
        if before is not None and self.keeps == "deleted":
            self.past.append((f"{DELETED} {SNAPSHOT} {time}", replace(before)))
        info = super()._keep(name, body, md5, properties)
        if self.keeps == "versions":
            self.past.append((f"2026-11-27T20:00:00.{self._version:07}Z", replace(self.blobs[name])))
        return info

    def _copy_source(self, url: str, etag: str) -> StoredBlob:
        place, _, which = url.partition("?")
        if not which:
            return super()._copy_source(url, etag)
        kind, _, id = which.partition("=")
        blob = dict(self.past)[f"{SNAPSHOT} {unquote(id)}" if kind == SNAPSHOT else unquote(id)]
        assert str(self.container.child(blob.info.name)) == place
        if etag != blob.info.etag:
            raise PreconditionFailedError("another version", status=412)
        return blob
