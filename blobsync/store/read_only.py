"""Stores that only read: the base of sources outside Azure and of mounted folders. Every write is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from blobsync.base.errors import BlobNotFoundError, BlobsyncError, PlanError, StorageUnreachableError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SignedUrl
from blobsync.config.model import ListedFile
from blobsync.store.account_features import UNKNOWN, AccountFeatures
from blobsync.store.protocol import BlobInfo, BlobProperties, BlockKind, BlockList, Orders

if TYPE_CHECKING:
    from typing_extensions import Self

# https://learn.microsoft.com/rest/api/storageservices/put-block-from-url#request-headers: up to 2 KiB.
LONGEST_SOURCE_URL = 2048
# How often a body that breaks off is continued.
_MOST_BREAKS = 5


class ReadOnlyStore:
    """The half of :class:`blobsync.store.protocol.BlobStore` that writes, refused."""

    def refusal(self, name: str) -> BlobsyncError:
        """The error for whoever wants to write or delete ``name``."""
        raise NotImplementedError

    def features(self) -> AccountFeatures:
        """Unknown: nothing is deleted there."""
        return UNKNOWN

    def orders(self) -> Orders | None:
        """See the protocol; there are none."""
        return None

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo] | None:
        """See the protocol; there are none."""
        return None

    def _refused(self, *given: Any, **words: Any) -> Any:
        name = given[0]
        raise self.refusal(name if isinstance(name, str) else ", ".join(name))

    put = put_block = put_block_list = put_from_url = put_block_from_url = delete = delete_many = _refused
    # Only blobsync's own blobs are listed so.
    first_blobs = _refused


class SourceStore(ReadOnlyStore):
    """A source outside Azure, whose objects Azure's service may read itself, by URLs that open them."""

    def __init__(self, container: BlobContainer) -> None:
        self._container = container
        self._stopped = threading.Event()

    @property
    def container(self) -> BlobContainer:
        return self._container

    def close(self) -> None:
        """See the protocol."""

    def fail_soon(self) -> None:
        """See the protocol."""
        self._stopped.set()
        self.close()

    def head(self, name: str) -> BlobInfo | None:
        """What a HEAD tells of an object; None if there is no such object."""
        found = self.described(name)
        return None if found is None else found[0]

    def properties(self, name: str) -> BlobProperties:
        """The properties that a copy keeps. Raises ``BlobNotFoundError``."""
        found = self.described(name)
        if found is None:
            raise self._missing(name)
        return found[1]

    def _missing(self, name: str) -> BlobNotFoundError:
        return BlobNotFoundError(f"{self._container.child(name)}: there is no such object", path=name)

    def described(self, name: str) -> tuple[BlobInfo, BlobProperties] | None:
        """What a HEAD tells of an object, in one request; None if there is no such object."""
        raise NotImplementedError

    def source_url(self, name: str, version: str, seconds: int) -> SignedUrl:
        """A URL that opens this object for ``seconds``; of this ``version`` if it is not empty.

        Raises ``CredentialError`` if there is nothing to sign with.
        """
        raise NotImplementedError

    def url_length(self, name: str) -> int:
        """The characters of such a URL, at most. Raises ``CredentialError`` as :meth:`source_url` does."""
        raise NotImplementedError

    def listed(self, name: str) -> ListedFile | None:
        """The file's line, of a list of URLs; None for an object of a bucket, whose name says where it is."""
        return None

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Refused: a source has no blocks of Azure's."""
        raise self.refusal(name)

    def refusal(self, name: str) -> BlobsyncError:
        return PlanError(f"{self._container} is a source: nothing is written or deleted there")


class Body(Protocol):
    """What a source answers a GET with."""

    def read(self, limit: int, /) -> bytes:
        """At most ``limit`` bytes; none at the end."""
        ...

    def close(self) -> None:
        """Give up the rest."""
        ...


class SourceReader:
    """The body of one GET; see ``BlobReader``. One that breaks off is continued, from the same version and size."""

    def __init__(
        self,
        get: Callable[[str, int, int | None, str | None], tuple[BlobInfo, BlobProperties, Body]],
        translated: Callable[[str], AbstractContextManager[None]],
        name: str,
        start: int,
        length: int | None,
        etag: str | None,
        is_stopped: Callable[[], bool],
    ) -> None:
        """``translated`` converts the exceptions of a body's ``read`` to our errors; a broken connection is a
        ``StorageUnreachableError``."""
        self._get, self._translated, self._name, self._is_stopped = get, translated, name, is_stopped
        self._at, self._breaks = start, 0
        self.info, self.properties, self._body = get(name, start, length, etag)
        left = self.info.size - start
        self._end = start + (left if length is None else min(length, left))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._body.close()

    def read(self, limit: int) -> bytes:
        """See the protocol."""
        while self._at < self._end:
            try:
                with self._translated(self._name):
                    data = self._body.read(min(limit, self._end - self._at))
                if data:
                    self._at += len(data)
                    return data
                raise StorageUnreachableError(f"{self._name}: the body ended {self._end - self._at:,} bytes early")
            except StorageUnreachableError:
                self._breaks += 1
                if self._breaks > _MOST_BREAKS or self._is_stopped():
                    raise
                self._body.close()
                found, _, self._body = self._get(self._name, self._at, self._end - self._at, self.info.etag)
                if found.size != self.info.size:
                    raise
        return b""
