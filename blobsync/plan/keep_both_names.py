"""The name of the version that ``--keep both`` sets aside: ``a.remote-1f2e3d4c.jpg`` beside ``a.jpg``.

The eight digits come from the version itself, so that the same command again finds it already there.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import PurePosixPath

from blobsync.base.file_states import FileState, LocalState
from blobsync.base.lazy_regexes import pattern
from blobsync.local.names import MAX_PART_BYTES
from blobsync.plan.pairing import Pair, equal_content
from blobsync.plan.transfer_plan import FileAction, Route

NAME_ASIDE = pattern(r"\.(local|remote)-[0-9a-f]{8}(\.[^/]*)?$")


def beside(path: str, side: str, state: FileState, turn: int = 0) -> str:
    """The name (without folder) for the second of two versions: ``a.jpg`` -> ``a.remote-1f2e3d4c.jpg``.

    ``turn`` gives another name if that one is taken.
    """
    stamp = f"{state.size}:{state.mtime_ns}" if isinstance(state, LocalState) else f"{state.size}:{state.etag}"
    digits = hashlib.sha256(f"{stamp}:{turn}".encode() if turn else stamp.encode()).hexdigest()[:8]
    name = PurePosixPath(path)
    mark = f".{side}-{digits}"
    stem, suffix = name.stem, name.suffix
    if len(suffix.encode()) > MAX_PART_BYTES // 2:
        stem, suffix = name.name, ""
    room = MAX_PART_BYTES - len((mark + suffix).encode())
    return stem.encode()[:room].decode(errors="ignore") + mark + suffix


def sibling(path: str, name: str) -> str:
    """``name`` in the folder of ``path``."""
    folder = path.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def with_free_name(action: FileAction, route: Route, asides: Mapping[str, Pair]) -> FileAction:
    """Give the copy aside a name that is free at both ends, or that may have the right content at the destination:
    without an MD5, the transfer reads it."""
    if action.aside is None:
        return action
    version = action.destination
    assert version is not None

    def is_free(name: str) -> bool:
        there = asides.get(sibling(action.path, name))
        if there is None:
            return True
        if there.destination is None or equal_content(there.destination, version) is False:
            return False
        return there.source is None or equal_content(there.source, there.destination) is not False

    side = "local" if route is Route.DOWNLOAD else "remote"
    names = (beside(action.path, side, version, turn) for turn in itertools.count())
    return action._replace(aside=next(name for name in names if is_free(name)))
