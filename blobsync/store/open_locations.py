"""Open locations: a blob with its store, or a local path."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.locations import BlobLocation, LocalLocation, Location, MountedLocation, below
from blobsync.store.protocol import BlobStore

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenBlob:
    """A blob or a virtual folder, with its store."""

    store: BlobStore
    name: str

    def __str__(self) -> str:
        return str(self.location)

    @property
    def location(self) -> BlobLocation | MountedLocation:
        """The location without the store."""
        return self.store.container.child(self.name)

    def in_container(self) -> BlobLocation:
        """The location as a blob's. Raises ``ValueError`` for a mounted folder, which has no URL and no account."""
        location = self.location
        if not isinstance(location, BlobLocation):
            raise ValueError(f"{location} is in no container")
        return location

    def at(self, relative: str) -> str:
        """The name of :meth:`child`."""
        return below(self.name, relative)

    def child(self, relative: str) -> OpenBlob:
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        return OpenBlob(self.store, self.at(relative))

    @property
    def parent(self) -> OpenBlob:
        """The folder that contains this one."""
        return OpenBlob(self.store, self.name.rpartition("/")[0])


OpenLocation = LocalLocation | OpenBlob


def location_of(end: OpenLocation) -> Location:
    """The location of ``end`` without its store."""
    return end.location if isinstance(end, OpenBlob) else end


def blob_md5(end: OpenBlob, path: str, etag: str) -> bytes:
    """The MD5 of a blob's bytes, which are downloaded for it."""
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.at(path), etag=etag) as reader:
        while chunk := reader.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()


def with_md5(end: OpenBlob, path: str, state: FileState) -> FileState:
    """The state with the MD5 of the blob's bytes, if the service keeps none.

    Unchanged if the blob cannot be read, or is another version now.
    """
    if isinstance(state, RemoteState) and state.md5 is None:
        with suppress(BlobsyncError):
            return replace(state, md5=blob_md5(end, path, state.etag))
    return state
