"""The two ends between which files move: a place on this machine, and one in a container."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from blobsync.store.protocol import BlobStore


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
