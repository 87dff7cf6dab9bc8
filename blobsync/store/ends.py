"""The two ends of a transfer: a local folder or file, and one in a container."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import FileState, RemoteState
from blobsync.store.protocol import BlobStore

_READ_BYTES = 1 << 20


class LocalEnd(NamedTuple):
    """A file or folder of this machine.

    blobsync never writes through a symlink that points outside ``boundary``, some folders without links in their
    paths: the project and the targets of trusted links (empty: ``root`` itself, or
    its folder if the root is a file).
    """

    root: Path
    boundary: tuple[Path, ...] = ()

    def at(self, relative: str) -> Path:
        """The file ``relative`` below the root; the root itself where it is empty."""
        return self.root / relative if relative else self.root


class RemoteEnd(NamedTuple):
    """A blob or a virtual folder, and the store that reaches it."""

    store: BlobStore
    name: str

    def at(self, relative: str) -> str:
        """The blob ``relative`` below the folder; the blob itself where it is empty."""
        if not relative:
            return self.name
        return f"{self.name}/{relative}" if self.name else relative


LiveEnd = LocalEnd | RemoteEnd


def blob_md5(end: RemoteEnd, path: str, etag: str) -> bytes:
    """The MD5 of a blob's bytes, read from the service and thrown away."""
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.at(path), etag=etag) as reader:
        while chunk := reader.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()


def with_md5(end: RemoteEnd, path: str, state: FileState) -> FileState:
    """The state with the MD5 of the blob's bytes, if the service keeps none.

    Unchanged if the blob cannot be read, or is another version now.
    """
    if isinstance(state, RemoteState) and state.md5 is None:
        with suppress(BlobsyncError):
            return replace(state, md5=blob_md5(end, path, state.etag))
    return state
