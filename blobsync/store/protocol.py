"""The interface of a blob container: :class:`BlobStore`, its values, and the names of blocks.

One protocol with two implementations, tested by one contract suite: the REST client (``rest.store``) and,
as its oracle in the tests, the Azure SDK. Implementations are safe to use from several threads, retry
what the service allows to be retried, and raise only errors of ``blobsync.base.errors``.

The name of a block is the SHA-256 of its bytes behind a tag. A blob's block ids have one length
(https://learn.microsoft.com/rest/api/storageservices/put-block). azcopy's are 36
bytes before base64; with the same length, each of the two can write a blob for which the other left uncommitted
blocks. An id proves nothing about bytes that somebody else wrote: whoever can write a blob can write any id.
"""

import binascii
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import StoreLocation
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken, SignedUrl

if TYPE_CHECKING:
    from blobsync.store.account_features import AccountFeatures

# The tag contains the version of the scheme.
_TAG = b"bsc1"
_DIGEST_BYTES = 32
_CHARACTERS = (len(_TAG) + _DIGEST_BYTES) // 3 * 4


def block_id_of(sha256: bytes) -> str:
    """The id of a block whose content has this SHA-256 (32 bytes): 48 characters of base64, without padding."""
    if len(sha256) != _DIGEST_BYTES:
        raise ValueError(f"a SHA-256 has {_DIGEST_BYTES:,} bytes, not {len(sha256)}")
    return b64encode(_TAG + sha256).decode()


def sha256_of_block(block_id: str) -> bytes | None:
    """The SHA-256 in a block id, or None if blobsync did not make the id."""
    if len(block_id) != _CHARACTERS:
        return None
    try:
        raw = binascii.a2b_base64(block_id.encode("ascii"))
    except (UnicodeEncodeError, binascii.Error):
        return None
    # Characters that are not base64 are skipped, which makes the result too short.
    ours = len(raw) == len(_TAG) + _DIGEST_BYTES and raw.startswith(_TAG)
    return raw[len(_TAG) :] if ours else None


# https://learn.microsoft.com/rest/api/storageservices/understanding-block-blobs--append-blobs--and-page-blobs
MAX_BLOCKS = 50_000
MAX_BLOCK_BYTES = 4000 * 1024 * 1024
MAX_BLOB_BYTES = MAX_BLOCKS * MAX_BLOCK_BYTES
MAX_UNCOMMITTED = 100_000

# https://learn.microsoft.com/rest/api/storageservices/put-blob#remarks
MAX_PUT_BYTES = 5000 * 1024 * 1024

BlockKind = Literal["all", "committed", "uncommitted"]
# Called from time to time with the bytes of its body that a request has sent so far.
Sent = Callable[[int], None]


class FileBody:
    """A body that is read while it is sent, in pieces: of a file that is too large for memory."""

    def __init__(self, read_at: Callable[[int, int], bytes], size: int) -> None:
        """``read_at`` returns so many bytes from an offset, or raises."""
        self.read_at = read_at
        self._size = size

    def __len__(self) -> int:
        return self._size


class Checksum(NamedTuple):
    """A checksum of all bytes of an object, by the name that S3 gives it: ``crc64nvme``, ``sha256``, ..."""

    name: str
    value: bytes


class BlobInfo(NamedTuple):
    """A blob as in a listing, or after a HEAD or a write. Sizes in bytes, times in seconds since 1970 (UTC).

    ``md5`` is the 16-byte Content-MD5 property, None if the blob has none. ``is_folder_stub`` marks the
    zero-byte ``hdi_isfolder`` blobs (and ADLS directories) that represent a folder and hold no data.
    ``tier_inferred`` says that ``tier`` is the account's default. ``version`` names this version, also when there is a
    newer one, if whoever lists it says so. Only sources have the rest: ``archived`` is why nothing can be read before
    somebody restores it, ``checksum`` is of all bytes.
    """

    name: str
    size: int
    etag: str
    md5: bytes | None = None
    last_modified: float = 0.0
    tier: str | None = None
    content_type: str | None = None
    blob_type: str = "BlockBlob"
    is_folder_stub: bool = False
    tier_inferred: bool = False
    archived: str = ""
    checksum: Checksum | None = None
    version: str = ""

    @property
    def given_tier(self) -> str:
        """The tier that was set on this blob; empty if none was set."""
        return "" if self.tier_inferred else self.tier or ""


class BlobProperties(NamedTuple):
    """Properties that a write sets besides the content; empty values mean the service's default."""

    content_type: str = ""
    content_encoding: str = ""
    content_language: str = ""
    content_disposition: str = ""
    cache_control: str = ""
    tier: str = ""
    metadata: Mapping[str, str] = MappingProxyType({})


class Precondition(NamedTuple):
    """The condition of a write at its destination.

    ``etag`` set: the blob must still be that version. ``absent``: no blob may have that name.
    Neither: overwrite. A condition that fails raises ``PreconditionFailedError``.
    """

    etag: str | None = None
    absent: bool = False


ANYTHING = Precondition()


class Block(NamedTuple):
    """A block of a blob: its id (base64) and its size in bytes, as the service returns them."""

    id: str
    size: int

    @property
    def sha256(self) -> bytes | None:
        """The SHA-256 in the id; None if blobsync did not make the id."""
        return sha256_of_block(self.id)


class BlockList(NamedTuple):
    """The blocks of one blob. ``committed`` are in the blob's order; a blob that one request wrote has none.

    ``uncommitted`` have no order. ``etag`` is that of the blob, empty if nothing was ever committed (emulators send one
    then, too). The sizes may not add up to the blob's: compare them.
    """

    committed: tuple[Block, ...]
    uncommitted: tuple[Block, ...]
    etag: str


class CopiedBlob(NamedTuple):
    """The result of a copy. ``md5`` is None if the service returns none."""

    etag: str
    md5: bytes | None = None


class BlobReader(Protocol):
    """The body of one GET; close it, or use it as a context manager."""

    @property
    def info(self) -> BlobInfo:
        """The whole blob's facts (``size`` is the blob's, not the range's)."""
        ...

    @property
    def properties(self) -> BlobProperties:
        """The properties that a copy keeps; Get Blob does not return the tier."""
        ...

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes; empty at the end. A body cut short raises ``StorageError``."""
        ...


class PutOrder(NamedTuple):
    """Put Blob; see :meth:`BlobStore.put`."""

    name: str
    body: bytes | FileBody
    md5: bytes
    properties: BlobProperties
    condition: Precondition


class GetOrder(NamedTuple):
    """Get Blob, all ``size`` bytes of the version ``etag``."""

    name: str
    etag: str
    size: int


Order = PutOrder | GetOrder


class Orders(Protocol):
    """Runs many small requests at a time from one thread."""

    @property
    def under_way(self) -> int: ...

    @property
    def throttled(self) -> int:
        """How many times the service has asked for fewer requests so far."""
        ...

    def begin(self, key: object, order: Order) -> None:
        """Start a request; ``key`` is returned with its result."""
        ...

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        """The requests that have ended, each with the new blob, the whole body, or an error; waits up to ``seconds``
        for one.

        A body may be shorter or longer than the order's size.
        """
        ...

    def close(self) -> None:
        """Abort running requests."""
        ...


class BlobSource(Protocol):
    """Lists and looks up blobs."""

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """All blobs whose names start with ``prefix``, in the service's order; pages are fetched as needed."""
        ...

    def head(self, name: str) -> BlobInfo | None:
        """The blob, or None if there is none."""
        ...


class BlobStore(BlobSource, Protocol):
    """One container and a credential for it."""

    @property
    def container(self) -> StoreLocation: ...

    def close(self) -> None:
        """Close idle connections; requests that wait for a retry fail."""
        ...

    def fail_soon(self) -> None:
        """Stop waiting for a service that does not answer: waiting requests fail within seconds."""
        ...

    def orders(self) -> Orders | None:
        """A runner of many small requests at a time; None if the HTTP library has none."""
        ...

    def first_blobs(self, prefix: str, most: int) -> Sequence[BlobInfo]:
        """The first ``most`` blobs whose names start with ``prefix``; no more are listed."""
        ...

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """One level below ``prefix``: blobs, and sub-folders as names that end with ``/``."""
        ...

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo] | None:
        """As ``list_blobs``, from the name ``start`` on, ``most`` blobs a page; None if there are no such listings.

        A service may refuse it, list all blobs, or compare names without case. It may stop before the name ``end``.
        """
        ...

    def properties(self, name: str) -> BlobProperties:
        """The properties that a copy keeps; raises ``BlobNotFoundError``."""
        ...

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[BlobReader]:
        """Get Blob; with ``etag``, raises ``PreconditionFailedError`` if the blob is another version now."""
        ...

    def put(
        self,
        name: str,
        body: bytes | FileBody,
        *,
        md5: bytes,
        properties: BlobProperties = ...,
        condition: Precondition = ANYTHING,
        sent: Sent | None = None,
    ) -> BlobInfo:
        """Put Blob. ``md5`` is sent as Content-MD5: the service refuses a body that does not match.

        ``sent`` is called from time to time with the bytes of the body that the current attempt has sent; a retry
        begins again at 0.
        """
        ...

    def put_block(self, name: str, block_id: str, body: bytes, *, sent: Sent | None = None) -> None:
        """Put Block; the service refuses a body that is not the one that was sent. ``block_id`` is already base64."""
        ...

    def put_block_list(
        self,
        name: str,
        block_ids: Sequence[str],
        *,
        size: int,
        md5: bytes,
        properties: BlobProperties = ...,
        condition: Precondition = ANYTHING,
        committed: AbstractSet[str] = frozenset(),
    ) -> BlobInfo:
        """Commit the blocks as one blob; ``md5`` of the whole is stored as its Content-MD5 property, unchecked.

        An empty ``md5`` (a server-side copy of a blob that has none) stores none. Ids in ``committed`` are taken from
        the blob's present version, all others from what was put last. An id may be named more than once.
        """
        ...

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """The blocks of a blob, committed or not; None if it has neither. Needs the right to read."""
        ...

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
        """Put Blob From URL: the service fetches the source, properties and metadata included, the tier not.

        Raises ``CopySourceRefusedError`` if the service cannot read the source, and ``SourceChangedError``, before
        anything is written, if the source is another version than ``source_etag`` (empty: any version).
        """
        ...

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
        """Put Block From URL for one range of the source, in bytes; ``source_etag`` and errors as above.

        The service refuses bytes that have not ``source_md5``. Returns the CRC64 of the bytes that it stored, None if
        it does not tell.
        """
        ...

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        """Delete the blob and its snapshots; False if there was none."""
        ...

    def features(self) -> "AccountFeatures":
        """What the container keeps of what is deleted, and whether it has directories; asks the service."""
        ...

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Delete in batches; returns the failures as name -> reason. A missing blob is no failure, and neither is a
        directory that is not empty, which stays.

        A blob in ``etags`` is deleted only if it is still that version.
        """
        ...


@runtime_checkable
class VersionedStore(Protocol):
    """A store that also reads the earlier versions of blobs, where the account keeps them."""

    def list_versions(self, prefix: str = "") -> Iterator[BlobInfo]:
        """All versions of the blobs below ``prefix``, also of deleted ones, each with its ``version``."""
        ...

    def open_version(
        self, name: str, version: str, *, start: int = 0, length: int | None = None
    ) -> AbstractContextManager[BlobReader]:
        """Get Blob of one version; raises ``BlobNotFoundError``."""
        ...


@runtime_checkable
class UndeletingStore(Protocol):
    """A store that brings deleted blobs back, where the account keeps them."""

    def list_deleted(self, prefix: str = "", *, hns: bool = False) -> Iterator[BlobInfo]:
        """The deleted blobs below ``prefix`` that soft delete still keeps, and all snapshots; ``version`` says which
        one is (``file_states.DELETED``). ``hns``: in an account with directories, which keeps no snapshots."""
        ...

    def undelete(self, name: str, deletion: str = "") -> None:
        """Undelete Blob: a deleted blob is as it was, and all its deleted snapshots come back; raises
        ``BlobNotFoundError``. With versions, no blob comes back. With directories, ``deletion`` is the id of one."""
        ...

    def delete_snapshot(self, name: str, time: str) -> None:
        """Delete one snapshot of a blob; soft delete keeps it."""
        ...
