"""What a worker put on a disk that this machine sees: looked at from here."""

from __future__ import annotations

import os
from contextlib import suppress

from blobsync.base.file_states import LocalState
from blobsync.store.ends import LiveEnd, LocalEnd
from blobsync.transfer.engines import Moved


def as_seen_here(end: LiveEnd, moved: Moved) -> Moved:
    """A file that a worker put here counts only if it is there; else it is read again in the end."""
    if not isinstance(end, LocalEnd) or not isinstance(moved.destination, LocalState):
        return moved
    with suppress(OSError):
        found = os.stat(end.at(moved.action.target or moved.action.path))
        if moved.destination.same_file(LocalState.of(found)):
            return moved
    return moved._replace(destination=None)
