"""Converts the states of files to plain rows and back, for plans on the disk."""

from __future__ import annotations

import sys

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.local.sorted_runs import Packing, Row

# A blob has one value less.
_LOCAL_VALUES = 5


def pack_state(state: FileState | None) -> Row | None:
    """The state as plain values."""
    if state is None:
        return None
    if isinstance(state, LocalState):
        return (state.size, state.mtime_ns, state.ctime_ns, state.inode, state.md5)
    return (state.size, state.etag, state.md5, state.tier)


def unpack_state(row: Row | None) -> FileState | None:
    """What :func:`pack_state` was given."""
    if row is None:
        return None
    if len(row) == _LOCAL_VALUES:
        return LocalState(*row)
    size, etag, md5, tier = row
    # One text for all blobs of a tier.
    return RemoteState(size, etag, md5, None if tier is None else sys.intern(tier))


def _pack_with_path(row: Row) -> Row:
    path, state = row
    return (path, pack_state(state))


def _unpack_with_path(row: Row) -> Row:
    path, state = row
    return (path, unpack_state(state))


STATE = Packing(pack_state, unpack_state)
STATE_OF_PATH = Packing(_pack_with_path, _unpack_with_path)
