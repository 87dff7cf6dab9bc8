"""Stores that only read: the base of sources outside Azure and of mounted folders. Every write is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from blobsync.base.errors import BlobNotFoundError, BlobsyncError, PlanError, StorageUnreachableError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SignedUrl
from blobsync.config.sources import ListedFile
from blobsync.store.account_features import UNKNOWN, AccountFeatures
from blobsync.store.protocol import BlobInfo, BlobProperties, BlobReader, BlockKind, BlockList, Orders
from blobsync.store.resumed_reader import Body, ResumedReader

# https://learn.microsoft.com/rest/api/storageservices/put-block-from-url#request-headers: up to 2 KiB.
LONGEST_SOURCE_URL = 2048
# How often in a row a body that breaks off is continued.
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

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[BlobReader]:
        """GET; a body that breaks off is continued, from the same version."""
        return ResumedReader(self._get, self._resumes, StorageUnreachableError, name, start, length, etag)

    def _resumes(self, breaks: int) -> bool:
        return breaks <= _MOST_BREAKS and not self._stopped.is_set()

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], Body]:
        raise NotImplementedError

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
