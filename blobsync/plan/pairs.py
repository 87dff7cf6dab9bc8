"""One path seen from both ends: what the survey finds and the planner decides on."""

from __future__ import annotations

from typing import NamedTuple

from blobsync.base.file_states import FileState, LocalState
from blobsync.base.reasons import Reason
from blobsync.local.index import Record
from blobsync.plan.transfer_plan import Route


class Pair(NamedTuple):
    """``source`` and ``destination`` are None where that end has no such file.

    ``record`` is how both were when last verified against each other. ``left_out`` is the reason for which
    the path does not take part (it is a symlink out of the project, say, or behind one), ``detail`` the words to it.
    """

    path: str
    source: FileState | None
    destination: FileState | None
    record: Record | None = None
    left_out: Reason | None = None
    detail: str = ""


def content(state: FileState) -> tuple[int, bytes | None]:
    """Size in bytes and MD5, the latter None where it is not known."""
    return state.size, state.md5


def equal_content(one: FileState, other: FileState) -> bool | None:
    """Whether both hold the same bytes; None where an MD5 is missing and the sizes are equal."""
    if one.size != other.size:
        return False
    if one.md5 is None or other.md5 is None:
        return None
    return one.md5 == other.md5


def changed_since_verified(now: FileState, then: FileState, md5: bytes | None) -> bool:
    """Whether a side holds other content than when it was verified. Clocks are never compared for order.

    ``md5`` is the content at that time. A local file whose ``stat`` differs counts as changed unless its
    MD5 was computed and is the same: a touched file is no changed file.
    """
    if isinstance(now, LocalState):
        if isinstance(then, LocalState) and now.same_file(then):
            return False
    elif not isinstance(then, LocalState) and now.etag == then.etag:
        return False
    return now.size != then.size or now.md5 is None or now.md5 != md5


def source_is_near(route: Route) -> bool:
    """Whether the record's ``near`` side is this route's source (all routes but the download)."""
    return route is not Route.DOWNLOAD


def needs_local_md5(pair: Pair, route: Route) -> bool:
    """Whether the local file of this pair must be read to decide: size equal to the other side's or to the
    recorded one, and the record does not vouch for it as it is now."""
    local = pair.source if source_is_near(route) else pair.destination
    other = pair.destination if source_is_near(route) else pair.source
    if not isinstance(local, LocalState) or local.md5 is not None or other is None:
        return False
    if pair.record is not None:
        near = pair.record.near
        if isinstance(near, LocalState) and near.same_file(local):
            return False
        if near.size == local.size and pair.record.md5 is not None:
            return True
    return other.size == local.size and other.md5 is not None
