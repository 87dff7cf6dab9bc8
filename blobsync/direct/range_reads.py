"""Reading ranges and blocks of a blob of one known version, and comparing the whole with what its source says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    PreconditionFailedError,
    SourceChangedError,
)
from blobsync.base.file_states import RemoteState
from blobsync.base.locations import is_source
from blobsync.base.records import NamedTuple
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import MAX_BLOCKS, BlobInfo, BlobReader, BlobStore, Checksum
from blobsync.transfer.engines import NOTHING_COMPARED

if TYPE_CHECKING:
    from blobsync.store.checksums import Comparison

# Large enough to save system calls, small enough to limit a download's memory to threads x this.
CHUNK = 1024 * 1024

# What a read of a named version raises if the blob is another version now.
ANOTHER_VERSION = (PreconditionFailedError, BlobNotFoundError)


def version_of(store: BlobStore, name: str, action: FileAction) -> RemoteState:
    """The version of the blob that the plan names; a HEAD request if it names none."""
    if isinstance(action.source, RemoteState):
        return action.source
    found = store.head(name)
    if found is None:
        raise changed_while_read(name)
    return RemoteState(found.size, found.etag, found.md5, found.given_tier)


def changed_while_read(name: str) -> ChangedWhileReadError:
    """The blob is another version now, or gone."""
    return ChangedWhileReadError(
        f"the blob {name} changed while it was being read", hint="run the same command again", path=name
    )


@contextmanager
def naming_the_source(name: str) -> Iterator[None]:
    """Raise ``ChangedWhileReadError`` if the service finds another version of a copy's source."""
    try:
        yield
    except SourceChangedError as error:
        raise changed_while_read(name) from error


class Content:
    """The content of one blob as it arrives, in its order: its MD5, and whatever else is known of it.

    A blob in Azure has an MD5 in its listing or none at all, and then the index may know its CRC64; of an object
    elsewhere only an answer about that object tells.
    """

    def __init__(self, store: BlobStore, version: RemoteState) -> None:
        """``waits``: :meth:`expect` has to be called before the first byte."""
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._known = version.md5
        self.waits = is_source(store.container)
        self._said: BlobInfo | None = None
        self._other: Comparison | None = None
        if version.crc64 is not None:
            from blobsync.store.checksums import CRC64  # late: few blobs have one

            self._compare_with(Checksum(CRC64, version.crc64))

    def expect(self, info: BlobInfo) -> None:
        """What the source answers about this object."""
        self.waits = False
        self._said = info
        self._compare_with(info.checksum)

    def update(self, data: bytes) -> None:
        """Add bytes."""
        self._md5.update(data)
        if self._other is not None:
            self._other.update(data)

    def demand(self, name: str) -> bytes:
        """The MD5 of all bytes. Raises ``ChecksumError`` if together they are not what the blob's service says."""
        md5 = self._md5.digest()
        said = self._said
        if self._known not in {None, md5} or (said is not None and said.md5 not in {None, md5}):
            raise _damaged(name, "MD5")
        if self._other is not None and not self._other.is_right():
            raise _damaged(name, self._other.name.upper())
        return md5

    @property
    def compared_by(self) -> str:
        """What :meth:`demand` compares the content of an object outside Azure by, or of a blob whose CRC64 is known;
        empty for all other blobs."""
        if self._other is not None:
            return self._other.name
        if self._said is None:
            return ""
        return "md5" if self._said.md5 is not None else NOTHING_COMPARED

    def _compare_with(self, checksum: Checksum | None) -> None:
        from blobsync.store.checksums import comparison  # late: few blobs have one

        self._other = comparison(checksum)


def _damaged(name: str, kind: str) -> ChecksumError:
    return ChecksumError(
        f"{name} arrived with a different {kind} than the blob's own",
        hint="the blob or the connection is damaged: try again, then upload the blob again",
        path=name,
    )


def looked_up(store: BlobStore, name: str, version: RemoteState) -> BlobInfo:
    """What the store says now of a blob. Raises ``ChangedWhileReadError`` if it is not ``version`` any more."""
    return demand_same(name, store.head(name), version)


def demand_same(name: str, found: BlobInfo | None, version: RemoteState) -> BlobInfo:
    """``found``. Raises ``ChangedWhileReadError`` if it is not ``version``."""
    if found is None or (found.etag, found.size) != (version.etag, version.size):
        raise changed_while_read(name)
    return found


def read_range(
    store: BlobStore,
    name: str,
    version: RemoteState,
    start: int,
    length: int,
    *,
    opened: Callable[[BlobReader], None] | None = None,
) -> Iterator[bytes]:
    """Read ``length`` bytes from ``start`` on, in chunks of at most ``CHUNK`` bytes; ``opened`` gets the reader first.

    Raises ``ChangedWhileReadError`` if the blob is not ``version`` any more, else the store's errors.
    """
    whole = length == version.size
    try:
        with store.open(name, start=start, length=None if whole else length, etag=version.etag) as reader:
            if opened is not None:
                opened(reader)
            left = length
            while left:
                data = reader.read(min(CHUNK, left))
                if not data:
                    raise wrong_length(name, length - left, length)
                left -= len(data)
                yield data
    except ANOTHER_VERSION as error:
        raise changed_while_read(name) from error


def wrong_length(name: str, length: int, wanted: int) -> ChecksumError:
    """The error for a wrong length, as from a proxy with a false Content-Length: retried like a wrong MD5."""
    return ChecksumError(f"{name}: a body of {length:,} bytes arrived instead of {wanted:,}", path=name)


class KnownBlock(NamedTuple):
    """``length`` bytes from ``start`` on, and the SHA-256 that the block's id contains."""

    start: int
    length: int
    sha256: bytes


def known_blocks(store: BlobStore, name: str, version: RemoteState) -> tuple[KnownBlock, ...]:
    """The blocks of this version in order; empty if they cannot be used.

    Anyone who can write a blob can choose any ids, so they are used only if the whole blob has an MD5, which is
    compared before the file gets its name. All of them must be blobsync's ids and add up to the blob's size. Without
    permission to list them, if the service does not answer, or of an object outside Azure, which has none, the whole
    file is downloaded.
    """
    if version.md5 is None:
        return ()
    try:
        found = store.block_list(name, "committed")
    except BlobsyncError:
        # If the service cannot be reached, the first ranged read reports it.
        return ()
    if found is None or found.etag != version.etag or len(found.committed) > MAX_BLOCKS:
        return ()
    blocks: list[KnownBlock] = []
    at = 0
    for each in found.committed:
        sha256 = each.sha256
        if sha256 is None or each.size <= 0:
            return ()
        blocks.append(KnownBlock(at, each.size, sha256))
        at += each.size
    return tuple(blocks) if at == version.size else ()
