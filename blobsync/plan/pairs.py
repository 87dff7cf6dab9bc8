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
    the path is skipped (for example a symlink out of the project, or below one), ``detail`` the text for it.
    """

    path: str
    source: FileState | None
    destination: FileState | None
    record: Record | None = None
    left_out: Reason | None = None
    detail: str = ""


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
    MD5 was computed and is the same: a touched file is not a changed file.
    """
    if is_as_recorded(now, then):
        return False
    return now.size != then.size or now.md5 is None or now.md5 != md5


def is_as_recorded(now: FileState, then: FileState) -> bool:
    """Whether a side is exactly what the record shows: the same file by its ``stat``, the same blob by its ETag."""
    if isinstance(now, LocalState):
        return isinstance(then, LocalState) and now.same_file(then)
    return not isinstance(then, LocalState) and now.etag == then.etag


class Changes(NamedTuple):
    """Which sides hold other content than when they were verified against each other."""

    near: bool
    remote: bool


def changes_since_verified(near: FileState, remote: FileState, record: Record) -> Changes:
    """The rule for both sides. Planning, ``verify`` and ``stat`` decide by it."""
    return Changes(
        changed_since_verified(near, record.near, record.md5),
        changed_since_verified(remote, record.remote, record.md5),
    )


def known_equal(near: FileState, remote: FileState, record: Record | None) -> bool | None:
    """Whether both sides hold the same bytes, by their MD5s or by the record; None if unknown."""
    same = equal_content(near, remote)
    if record is None:
        return same
    return same if any(changes_since_verified(near, remote, record)) else True


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
        if is_as_recorded(local, near):
            return False
        if near.size == local.size and pair.record.md5 is not None:
            return True
    return other.size == local.size and other.md5 is not None
