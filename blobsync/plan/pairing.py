"""Pairs up the files of two ends: a merge of two sorted streams.

A :class:`Pair` is the file at one path at both ends: the survey finds it, the planner decides on it.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import TypeAlias

from blobsync.base.file_states import FileState, LocalState
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.index import Record
from blobsync.local.sorted_runs import STATE, STATE_OF_PATH, Row, SortedRuns, Spill, Spool
from blobsync.plan.transfer_plan import Route

# A path, with the file that is held, and the one that is streamed. A name that a listing repeats occurs as often.
Match: TypeAlias = tuple[str, FileState | None, FileState | None]


class HeldFiles:
    """The files of one end, in the order of their paths: in memory up to ``spill.most``, then on the disk."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._rows = SortedRuns(spill, STATE, most=spill.most)
        # A file that is listed again replaces the first.
        self.add = self._rows.add

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._rows.size

    def matched(self, streamed: Iterable[Row]) -> Iterator[Match]:
        """Yield every path of either end.

        ``streamed`` are the other end's files as they are listed. Each that comes in order is matched at once. One that
        is out of order waits until the end, and so do held files without a match: theirs may still come.
        """
        alone = Spool(self._spill, STATE_OF_PATH, on_disk=self._rows.is_on_disk)
        late = SortedRuns(self._spill, STATE)
        rest = yield from _in_order(_last_of_each(self._rows), streamed, alone, late)
        # Sorted by now, so that nothing is out of order again.
        left = Spool(self._spill, STATE_OF_PATH, on_disk=self._rows.is_on_disk)
        rest = yield from _in_order(chain(alone, rest), late, left, late)
        for path, state in chain(left, rest):
            yield path, state, None


def _in_order(
    held: Iterator[Row], streamed: Iterable[Row], alone: Spool, late: SortedRuns
) -> Generator[Match, None, Iterator[Row]]:
    """Match two ascending streams, and return the rest of ``held``.

    ``alone`` gets the held files without a match, ``late`` the streamed ones that were out of order.
    """
    last = None
    mine = next(held, None)
    for path, state in streamed:
        if last is not None and path < last:
            late.add(path, state)
            continue
        last = path
        while mine is not None and mine[0] < path:
            alone.append(mine)
            mine = next(held, None)
        if mine is not None and mine[0] == path:
            yield path, mine[1], state
            mine = next(held, None)
        else:
            yield path, None, state
    return held if mine is None else chain((mine,), held)


def _last_of_each(rows: Iterable[Row]) -> Iterator[Row]:
    """Each key once, with its last value."""
    each = iter(rows)
    for first in each:
        last = first
        for row in each:
            if last[0] != row[0]:
                yield last
            last = row
        yield last


class Pair(NamedTuple):
    """``source`` and ``destination`` are None if that end has no such file.

    ``record`` has the states of both when last verified against each other. ``left_out`` is the reason for which
    the path is skipped (for example a symlink out of the project, or below one), ``detail`` the text for it.
    """

    path: str
    source: FileState | None
    destination: FileState | None
    record: Record | None = None
    left_out: Reason | None = None
    detail: str = ""


def equal_content(one: FileState, other: FileState) -> bool | None:
    """Whether both have the same bytes, by their MD5s, else by their CRC64s; None if the sizes are equal and either has
    neither."""
    if one.size != other.size:
        return False
    if one.md5 is not None and other.md5 is not None:
        return one.md5 == other.md5
    if one.crc64 is not None and other.crc64 is not None:
        return one.crc64 == other.crc64
    return None


def changed_since_verified(now: FileState, then: FileState, md5: bytes | None) -> bool:
    """Whether the content of a side changed since it was verified. Clocks are never compared for order.

    ``md5`` is the content at that time. A local file whose ``stat`` differs counts as changed unless its
    MD5 was computed and is the same: a touched file is not a changed file.
    """
    if is_as_recorded(now, then):
        return False
    return now.size != then.size or now.md5 is None or now.md5 != md5


def is_as_recorded(now: FileState, then: FileState) -> bool:
    """Whether a side is exactly what the record shows: the same file by its ``stat``, the same blob by its ETag.

    One version of a blob has one MD5: a lock that says otherwise of it is not believed.
    """
    if isinstance(now, LocalState):
        return isinstance(then, LocalState) and now.same_file(then)
    if isinstance(then, LocalState) or now.etag != then.etag:
        return False
    return now.md5 == then.md5 or now.md5 is None or then.md5 is None


class Changes(NamedTuple):
    """The sides whose content changed since they were verified against each other."""

    near: bool
    remote: bool


def changes_since_verified(near: FileState, remote: FileState, record: Record) -> Changes:
    """Compare both sides with the record. Planning, ``verify`` and ``stat`` use this."""
    return Changes(
        changed_since_verified(near, record.near, record.md5),
        changed_since_verified(remote, record.remote, record.md5),
    )


def known_equal(near: FileState, remote: FileState, record: Record | None) -> bool | None:
    """Whether both sides have the same bytes, by their checksums or by the record; None if unknown."""
    same = equal_content(near, remote)
    if record is None:
        return same
    return same if any(changes_since_verified(near, remote, record)) else True


def source_is_near(route: Route) -> bool:
    """Whether the record's ``near`` side is this route's source (all routes but the download)."""
    return route is not Route.DOWNLOAD


def needs_local_md5(pair: Pair, route: Route) -> bool:
    """Whether the local file of this pair must be read to decide: its size is equal to the other side's or to the
    recorded one, and the record is not about its present version."""
    local, other = (pair.source, pair.destination) if source_is_near(route) else (pair.destination, pair.source)
    if not isinstance(local, LocalState) or local.md5 is not None or other is None:
        return False
    if pair.record is not None:
        near = pair.record.near
        if is_as_recorded(local, near):
            return False
        if near.size == local.size and pair.record.md5 is not None:
            return True
    return other.size == local.size and (other.md5 is not None or other.crc64 is not None)
