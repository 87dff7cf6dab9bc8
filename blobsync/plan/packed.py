"""Files, decisions and pairs as plain rows, for plans that are kept on the disk while they are made."""

from __future__ import annotations

import sys
from typing import Any

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.reasons import Reason
from blobsync.local.sorted_runs import Row
from blobsync.plan.transfer_plan import Action, FileAction

_ACTIONS = tuple(Action)
_REASONS = tuple(Reason)
_NUMBER_OF_ACTION = {action: number for number, action in enumerate(_ACTIONS)}
_NUMBER_OF_REASON = {reason: number for number, reason in enumerate(_REASONS)}
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


def pack_action(action: FileAction) -> Row:
    """A decision of a plan as plain values, its path first. Plans have no ``target``."""
    return (
        action.path,
        _NUMBER_OF_ACTION[action.action],
        _NUMBER_OF_REASON[action.reason],
        action.size,
        pack_state(action.source),
        pack_state(action.destination),
        action.aside,
        action.on_record,
        action.delta,
    )


def unpack_action(row: tuple[Any, ...]) -> FileAction:
    """What :func:`pack_action` was given."""
    path, action, reason, size, source, destination, aside, on_record, delta = row
    return FileAction(
        path,
        _ACTIONS[action],
        _REASONS[reason],
        size,
        unpack_state(source),
        unpack_state(destination),
        None,
        aside,
        on_record,
        delta,
    )
