"""Reading ranges of a blob of one known version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blobsync.base.errors import BlobNotFoundError, ChecksumError, PreconditionFailedError, SourceChangedError
from blobsync.base.file_states import RemoteState
from blobsync.local.errors import ChangedWhileReadError
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobReader, BlobStore

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


def demand_version(store: BlobStore, name: str, version: RemoteState) -> None:
    """Raise ``ChangedWhileReadError`` if the blob is another version now."""
    found = store.head(name)
    if found is None or found.etag != version.etag:
        raise changed_while_read(name)


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
