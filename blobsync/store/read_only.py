"""Stores that only read: the base of sources outside Azure and of mounted folders. Every write is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from blobsync.base.errors import BlobsyncError, PlanError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, SignedUrl
from blobsync.store.protocol import (
    ANYTHING,
    BlobInfo,
    BlobProperties,
    BlockKind,
    BlockList,
    CopiedBlob,
    Orders,
    Precondition,
    Sent,
)

# https://learn.microsoft.com/rest/api/storageservices/put-block-from-url#request-headers: up to 2 KiB.
LONGEST_SOURCE_URL = 2048

_NO_PROPERTIES = BlobProperties()


class ReadOnlyStore:
    """The half of :class:`blobsync.store.protocol.BlobStore` that writes, refused."""

    def refusal(self, name: str) -> BlobsyncError:
        """The error for whoever wants to write or delete ``name``."""
        raise NotImplementedError

    def orders(self) -> Orders | None:
        """See the protocol; there are none."""
        return None

    def put(
        self,
        name: str,
        body: bytes,
        *,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        sent: Sent | None = None,
    ) -> BlobInfo:
        """Refused."""
        raise self.refusal(name)

    def put_block(self, name: str, block_id: str, body: bytes, *, sent: Sent | None = None) -> None:
        """Refused."""
        raise self.refusal(name)

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
        """Refused."""
        raise self.refusal(name)

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
        """Refused."""
        raise self.refusal(name)

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
        """Refused."""
        raise self.refusal(name)

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        """Refused."""
        raise self.refusal(name)

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Refused."""
        raise self.refusal(", ".join(names))


class SourceStore(ReadOnlyStore):
    """A source outside Azure, whose objects Azure's service may read itself, by URLs that open them."""

    def __init__(self, container: BlobContainer) -> None:
        self._container = container

    @property
    def container(self) -> BlobContainer:
        return self._container

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

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Refused: a source has no blocks of Azure's."""
        raise self.refusal(name)

    def refusal(self, name: str) -> BlobsyncError:
        return PlanError(f"{self._container} is a source: nothing is written or deleted there")
