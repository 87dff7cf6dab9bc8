"""Pairs up two ends that memory cannot hold: both are sorted by name on the disk, then read side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from blobsync.base.file_states import FileState
from blobsync.base.reasons import Reason
from blobsync.local.names import FoldersAbove
from blobsync.local.sorted_runs import Row, SortedRuns, Spill
from blobsync.plan.packed import pack_state, unpack_state

Entry = tuple[str, FileState | None, Reason | None, str]


class Match(NamedTuple):
    """One path. ``streamed`` are the blobs of that name: one, or none; several where a listing repeats itself.

    ``clashes`` are the names that are not selected, and of which this path shows that they are the folder of a held
    file, or lie below one.
    """

    path: str
    held: FileState | None
    streamed: tuple[FileState, ...]
    clashes: tuple[str, ...]


class HeldFiles:
    """The files of one end: in memory up to ``spill.most``, then on the disk."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self.files: dict[str, FileState] = {}
        self.runs: SortedRuns | None = None

    def add(self, path: str, state: FileState) -> None:
        """One file more; one that is listed again replaces the first."""
        if self.runs is not None:
            self.runs.add(path, pack_state(state))
            return
        self.files[path] = state
        if len(self.files) > self._spill.most:
            self.runs = SortedRuns(self._spill)
            # One by one, so that they are never there twice.
            for each in list(self.files):
                self.runs.add(each, pack_state(self.files.pop(each)))


def matches(held: SortedRuns, streamed: SortedRuns) -> Iterator[Match]:
    """Every path of either end once, in order. A row of ``streamed`` without a state is of a name not selected."""
    above: FoldersAbove[_Name] = FoldersAbove()
    for path, mine, theirs in _side_by_side(held, streamed):
        states = tuple(state for row in theirs if (state := unpack_state(row[1])) is not None)
        name = _Name(path, mine is not None, bool(theirs) and not states)
        yield Match(path, unpack_state(mine), states, tuple(_clashes(name, above.enter(path, name))))


class _Name:
    __slots__ = ("held", "hidden", "path", "told")

    def __init__(self, path: str, held: bool, hidden: bool) -> None:
        self.path, self.held, self.hidden, self.told = path, held, hidden, False


def _clashes(name: _Name, folders: Iterable[_Name]) -> Iterator[str]:
    """Of ``name`` and the names that are its folders, the hidden ones that clash with a held one."""
    for folder in folders:
        if name.hidden and folder.held and not name.told:
            name.told = True
            yield name.path
        if name.held and folder.hidden and not folder.told:
            folder.told = True
            yield folder.path


def _side_by_side(held: SortedRuns, streamed: SortedRuns) -> Iterator[tuple[str, Row | None, list[Row]]]:
    first = _groups(held)
    second = _groups(streamed)
    one, other = next(first, None), next(second, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield one[0], one[1][-1][1], []
            one = next(first, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(second, None)
        else:
            yield one[0], one[1][-1][1], other[1]
            one, other = next(first, None), next(second, None)


def _groups(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    return ((path, list(group)) for path, group in groupby(rows, key=itemgetter(0)))
