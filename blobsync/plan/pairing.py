"""Pairs up the files of two ends: a merge of two sorted streams."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from blobsync.base.file_states import FileState
from blobsync.local.sorted_runs import Row, SortedRuns, Spill, Spool
from blobsync.plan.packed import STATE, STATE_OF_PATH


class Match(NamedTuple):
    """One path, with the file that each end has there. A name that a listing repeats comes once for each time."""

    path: str
    held: FileState | None
    streamed: FileState | None


class HeldFiles:
    """The files of one end, in the order of their paths: in memory up to ``spill.most``, then on the disk."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._rows = SortedRuns(spill, STATE, most=spill.most)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._rows.size

    def add(self, path: str, state: FileState) -> None:
        """One file more; one that is listed again replaces the first."""
        self._rows.add(path, state)

    def matched(self, streamed: Iterable[Row]) -> Iterator[Match]:
        """Every path of either end.

        ``streamed`` are the other end's files while they are listed. As long as they come in order, each is matched at
        once. One that comes after a later name waits until the end, and so do held files without a match: theirs may
        still come.
        """
        alone = Spool(self._spill, STATE_OF_PATH, on_disk=self._rows.is_on_disk)
        late = SortedRuns(self._spill, STATE)
        rest = yield from _in_order(_last_of_each(self._rows), streamed, alone, late)
        left = chain(alone, rest)
        if late:
            # Sorted, so that nothing is late again.
            alone = Spool(self._spill, STATE_OF_PATH, on_disk=self._rows.is_on_disk)
            rest = yield from _in_order(left, late, alone, late)
            left = chain(alone, rest)
        for path, state in left:
            yield Match(path, state, None)


def _in_order(
    held: Iterator[Row], streamed: Iterable[Row], alone: Spool, late: SortedRuns
) -> Generator[Match, None, Iterator[Row]]:
    """Match while both go up, and return what is left of ``held``.

    ``alone`` gets the held files that were passed, ``late`` the streamed ones that came after a later name.
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
            yield Match(path, mine[1], state)
            mine = next(held, None)
        else:
            yield Match(path, None, state)
    return held if mine is None else chain((mine,), held)


def _last_of_each(rows: Iterable[Row]) -> Iterator[Row]:
    """Each key once, with the value that came last."""
    waiting: Row | None = None
    for row in rows:
        if waiting is not None and waiting[0] != row[0]:
            yield waiting
        waiting = row
    if waiting is not None:
        yield waiting
