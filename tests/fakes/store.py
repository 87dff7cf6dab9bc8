"""A blob container in memory that records requests and fails on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    CopySourceRefusedError,
    PreconditionFailedError,
    SourceChangedError,
    StorageError,
)
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, SignedUrl
from blobsync.store.account_features import UNKNOWN, AccountFeatures
from blobsync.store.protocol import (
    ANYTHING,
    BlobInfo,
    BlobProperties,
    BlobStore,
    Block,
    BlockKind,
    BlockList,
    CopiedBlob,
    FileBody,
    Order,
    Orders,
    Precondition,
    PutOrder,
    Sent,
)
from tests.fakes.crc64 import crc64

_NO_PROPERTIES = BlobProperties()


@dataclass(slots=True)
class StoredBlob:
    """One version of a blob."""

    body: bytes
    info: BlobInfo
    properties: BlobProperties = field(default_factory=BlobProperties)
    blocks: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One call; ``start`` is where a ranged read begins."""

    operation: str
    name: str
    start: int = 0
    size: int = 0


class MemoryOrders:
    """Orders that are carried out when their results are requested, the last one first."""

    throttled = 0

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._waiting: list[tuple[object, Order]] = []

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def begin(self, key: object, order: Order) -> None:
        self._waiting.append((key, order))

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        key, order = self._waiting.pop()
        try:
            return [(key, self._carry_out(order))]
        except BlobsyncError as error:
            return [(key, error)]

    def close(self) -> None:
        self._waiting.clear()

    def _carry_out(self, order: Order) -> BlobInfo | bytes:
        if isinstance(order, PutOrder):
            name, body, md5, properties, condition = order
            return self._store.put(name, body, md5=md5, properties=properties, condition=condition)
        with self._store.open(order.name, etag=order.etag) as reader:
            return b"".join(iter(lambda: reader.read(order.size + 1), b""))


class MemoryStore:
    """``storage.BlobStore`` in a dictionary.

    ``before`` is called with every request before it has an effect: raise there to inject a failure, block
    there to hold a thread. ``truncate`` maps a blob's name to how many bytes of a body arrive; ``damage`` maps it to
    how many bodies arrive with one bit flipped. A copy's source is looked up in ``others`` and here, else refused.
    """

    def __init__(self, container: str = "data", others: Mapping[str, MemoryStore] | None = None) -> None:
        self.container_url = BlobContainer("fake", container, "http://127.0.0.1:1/fake")
        self.blobs: dict[str, StoredBlob] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self.requests: list[Request] = []
        self.before: Callable[[Request], None] = lambda _: None
        self.truncate: dict[str, int] = {}
        self.damage: dict[str, int] = {}
        self._others = others if others is not None else {}
        self._lock = threading.Lock()
        self._version = 0
        self.closed = 0
        self.failing_soon = 0
        self.tells_md5_of_copies = True
        self.tells_crc64_of_copies = True
        self.heeds_source_etag = True
        self.takes_orders = True
        self.has_features = UNKNOWN
        # With True, what is replaced or deleted from then on is kept.
        self.versioning = False
        self.versions: list[StoredBlob] = []
        self.lists_from_names = False

    # -- for tests ----------------------------------------------------------------------------------------

    def add(
        self, name: str, body: bytes, *, with_md5: bool = True, properties: BlobProperties = _NO_PROPERTIES
    ) -> BlobInfo:
        """Add a blob without a recorded request."""
        md5 = hashlib.md5(body).digest() if with_md5 else None
        return self._keep(name, body, md5, properties)

    def body(self, name: str) -> bytes:
        """Content of a blob."""
        return self.blobs[name].body

    def asked(self, operation: str) -> list[Request]:
        """The requests of one kind, in order."""
        with self._lock:
            return [request for request in self.requests if request.operation == operation]

    # -- storage.BlobStore --------------------------------------------------------------------------------

    @property
    def container(self) -> BlobContainer:
        return self.container_url

    def close(self) -> None:
        self.closed += 1

    def fail_soon(self) -> None:
        self.failing_soon += 1

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._ask("list", prefix)
        for name in sorted(self.blobs):
            if name.startswith(prefix):
                yield self.blobs[name].info

    def first_blobs(self, prefix: str, most: int) -> Sequence[BlobInfo]:
        self._ask("list first", prefix, size=most)
        return [self.blobs[name].info for name in sorted(self.blobs) if name.startswith(prefix)][:most]

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo] | None:
        return self._from(prefix, start, most, end) if self.lists_from_names else None

    def _from(self, prefix: str, start: str, most: int, end: str) -> Iterator[BlobInfo]:
        self._ask("list_from", start, size=most)
        # Others write meanwhile.
        blobs = [each.info for each in tuple(self.blobs.values())]
        found = sorted(each for each in blobs if each.name.startswith(prefix) and each.name >= start)
        yield from (each for each in found if not end or each.name < end)

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        folders: set[str] = set()
        for info in self.list_blobs(prefix):
            below, slash, _ = info.name[len(prefix) :].partition("/")
            if not slash:
                yield info
            elif below not in folders:
                folders.add(below)
                yield f"{prefix}{below}/"

    def head(self, name: str) -> BlobInfo | None:
        self._ask("head", name)
        blob = self.blobs.get(name)
        return blob.info if blob else None

    def properties(self, name: str) -> BlobProperties:
        self._ask("properties", name)
        return self._blob(name).properties

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[MemoryReader]:
        self._ask("get", name, start, length or 0)
        blob = self._blob(name)
        if etag is not None and etag != blob.info.etag:
            raise PreconditionFailedError(f"{name} is another version now", status=412)
        body = blob.body[start:] if length is None else blob.body[start : start + length]
        if self.damage.get(name, 0) > 0 and body:
            self.damage[name] -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        return MemoryReader(blob.info, blob.properties._replace(tier=""), body, self.truncate.get(name))

    def list_versions(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._ask("list_versions", prefix)
        for blob in sorted([*self.versions, *self.blobs.values()], key=lambda each: each.info.name):
            if blob.info.name.startswith(prefix):
                yield blob.info._replace(version=self._version_of(blob) if self.versioning else "")

    def open_version(
        self, name: str, version: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[MemoryReader]:
        self._ask("get_version", name, start, length or 0)
        known = [each for each in [*self.versions, *self.blobs.values()] if each.info.name == name]
        for blob in known:
            if self._version_of(blob) == version:
                body = blob.body[start:] if length is None else blob.body[start : start + length]
                return MemoryReader(blob.info, blob.properties._replace(tier=""), body, None)
        raise BlobNotFoundError(f"there is no such version of {name}", status=404)

    def put(
        self,
        name: str,
        body: bytes | FileBody,
        *,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        sent: Sent | None = None,
    ) -> BlobInfo:
        self._ask("put", name, 0, len(body))
        if isinstance(body, FileBody):
            body = body.read_at(0, len(body))
        self._check(body, md5)
        with self._lock:
            self._demand(name, condition)
            return self._keep(name, body, md5, properties)

    def orders(self) -> Orders | None:
        return MemoryOrders(self) if self.takes_orders else None

    def put_block(self, name: str, block_id: str, body: bytes, *, sent: Sent | None = None) -> None:
        self._ask("put_block", name, 0, len(body))
        self._stage(name, block_id, body)

    def put_block_list(
        self,
        name: str,
        block_ids: Sequence[str],
        *,
        size: int,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        committed: AbstractSet[str] = frozenset(),
    ) -> BlobInfo:
        assert isinstance(md5, bytes), "as the header wants it"
        self._ask("put_block_list", name, 0, size)
        with self._lock:
            self._demand(name, condition)
            there = dict(self.blobs[name].blocks) if name in self.blobs else {}
            latest = there | self.blocks.get(name, {})
            chosen = [(each, (there if each in committed else latest).get(each)) for each in block_ids]
            blocks = tuple((each, body) for each, body in chosen if body is not None)
            if len(blocks) != len(chosen):
                raise StorageError("a block is not there", status=400, service_code="InvalidBlockList")
            written = self._keep(name, b"".join(body for _, body in blocks), md5 or None, properties)
            self.blobs[name].blocks = blocks
            return written

    def features(self) -> AccountFeatures:
        return self.has_features

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        self._ask("block_list", name)
        with self._lock:
            blob, staged = self.blobs.get(name), self.blocks.get(name, {})
            if blob is None and not staged:
                return None
            committed = blob.blocks if blob is not None and kind != "uncommitted" else ()
            uncommitted = staged.items() if kind != "committed" else ()
            return BlockList(
                tuple(Block(each, len(body)) for each, body in committed),
                tuple(Block(each, len(body)) for each, body in uncommitted),
                blob.info.etag if blob is not None else "",
            )

    def put_from_url(
        self,
        name: str,
        source_url: str,
        source_sas: SasToken | None,
        *,
        condition: Precondition = ANYTHING,
        tier: str = "",
        source_etag: str = "",
    ) -> CopiedBlob:
        self._ask("put_from_url", name)
        source = self._copy_source(source_url, source_etag)
        with self._lock:
            self._demand(name, condition)
            there = self._keep(name, source.body, source.info.md5, source.properties._replace(tier=tier))
            # Computed from the content, also if the source has none.
            md5 = hashlib.md5(source.body).digest()
            return CopiedBlob(there.etag, md5 if self.tells_md5_of_copies else None)

    def put_block_from_url(
        self,
        name: str,
        block_id: str,
        source_url: str | SignedUrl,
        source_sas: SasToken | None,
        *,
        start: int,
        length: int,
        source_etag: str = "",
        source_md5: bytes | None = None,
    ) -> int | None:
        self._ask("put_block_from_url", name, start, length)
        url = source_url.reveal() if isinstance(source_url, SignedUrl) else source_url
        body = self._copy_source(url, source_etag).body[start : start + length]
        if source_md5 is not None:
            self._check(body, source_md5)
        self._stage(name, block_id, body)
        return crc64(body) if self.tells_crc64_of_copies else None

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        self._ask("delete", name)
        with self._lock:
            self._demand(name, Precondition(etag=etag))
            self._replaced(name)
            return self.blobs.pop(name, None) is not None

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        return deleted_singly(self, names, etags or {})

    # -- private ------------------------------------------------------------------------------------------

    def _ask(self, operation: str, name: str, start: int = 0, size: int = 0) -> None:
        request = Request(operation, name, start, size)
        with self._lock:
            self.requests.append(request)
        self.before(request)

    @staticmethod
    def _version_of(blob: StoredBlob) -> str:
        return f"2026-11-20T10:00:00.{blob.info.etag.strip('0x').zfill(7)}Z"

    def _replaced(self, name: str) -> None:
        if self.versioning and name in self.blobs:
            self.versions.append(self.blobs[name])

    def _blob(self, name: str) -> StoredBlob:
        blob = self.blobs.get(name)
        if blob is None:
            raise BlobNotFoundError(f"there is no blob {name}", status=404)
        return blob

    def _demand(self, name: str, condition: Precondition) -> None:
        blob = self.blobs.get(name)
        if (condition.absent and blob is not None) or (
            condition.etag is not None and (blob is None or blob.info.etag != condition.etag)
        ):
            raise PreconditionFailedError(f"{name} changed since it was checked", status=412)

    def _check(self, body: bytes, md5: bytes) -> None:
        if hashlib.md5(body).digest() != md5:
            raise ChecksumError("the body does not match its Content-MD5", status=400)

    def _stage(self, name: str, block_id: str, body: bytes) -> None:
        with self._lock:
            staged = self.blocks.setdefault(name, {})
            if any(len(other) != len(block_id) for other in staged):
                raise StorageError("block ids of different lengths", status=400, service_code="InvalidBlobOrBlock")
            staged[block_id] = body

    def _keep(self, name: str, body: bytes, md5: bytes | None, properties: BlobProperties) -> BlobInfo:
        self._version += 1
        info = BlobInfo(
            name,
            len(body),
            f"0x{self._version:08X}",
            md5,
            float(self._version),
            properties.tier or "Hot",
            properties.content_type or "application/octet-stream",
            tier_inferred=not properties.tier,
        )
        self._replaced(name)
        self.blobs[name] = StoredBlob(body, info, properties)
        self.blocks.pop(name, None)
        return info

    def _copy_source(self, url: str, etag: str) -> StoredBlob:
        for store in [self, *self._others.values()]:
            # Others write meanwhile.
            for name, blob in tuple(store.blobs.items()):
                if url.partition("?X-Amz")[0] == str(store.container.child(name)):
                    if self.heeds_source_etag and etag and etag != blob.info.etag:
                        raise SourceChangedError("the source changed", service_code="SourceConditionNotMet")
                    return blob
        raise CopySourceRefusedError(
            "the service is not allowed to read the source", service_code="CannotVerifyCopySource"
        )


def deleted_singly(store: BlobStore, names: Sequence[str], etags: Mapping[str, str]) -> Mapping[str, str]:
    """``delete_many`` of a store without batches."""
    failures = {}
    for name in names:
        try:
            store.delete(name, etag=etags.get(name))
        except StorageError as error:
            if store.head(name) is not None:
                failures[name] = error.message
    return failures


class MemoryReader:
    """``storage.BlobReader``; breaks off after ``limit`` bytes, if given."""

    def __init__(self, info: BlobInfo, properties: BlobProperties, body: bytes, limit: int | None) -> None:
        self.info = info
        self.properties = properties
        self._body = body
        self._limit = limit
        self._at = 0

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def read(self, limit: int) -> bytes:
        if self._limit is not None and self._at < len(self._body):
            limit = min(limit, self._limit - self._at)
            if limit <= 0:
                raise StorageError("the body was cut short")
        piece = self._body[self._at : self._at + limit]
        self._at += len(piece)
        return piece
