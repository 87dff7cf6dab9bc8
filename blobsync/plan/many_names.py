"""Checks the names of a plan that memory cannot hold, as ``decisions.check_names`` does for one that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from blobsync.local.names import sorted_shape_clashes
from blobsync.local.sorted_runs import SortedRuns, Spill
from blobsync.plan.decisions import unsafe_names, written_names
from blobsync.plan.transfer_plan import Action, FileAction

# Names that an error has; the count is of all.
_TOLD = 1000


class ManyNames:
    """The names of one part: ``problem`` is the destination's own rule, ``one_case`` that it takes ``A`` for ``a``."""

    def __init__(self, spill: Spill, problem: Callable[[str], str | None], *, one_case: bool) -> None:
        self._problem = problem
        self._names = SortedRuns(spill)
        self._folded = SortedRuns(spill) if one_case else None
        self._writes = 0
        self._bad: list[tuple[str, str]] = []
        self._count = 0

    def add(self, actions: Iterable[FileAction]) -> None:
        """What these write, and where they leave something."""
        for action in actions:
            for name in written_names(action):
                self._writes += 1
                self._note(name, self._problem(name))
                self._put(name, is_new=True)
            if action.action not in (Action.DELETE, Action.TRANSFER):
                self._put(action.path, is_new=False)

    def add_others(self, names: Iterable[str]) -> None:
        """What the destination has already."""
        for name in names:
            self._put(name, is_new=False)

    def _put(self, name: str, *, is_new: bool) -> None:
        self._names.add(name, is_new)
        if self._folded is not None:
            self._folded.add(name.casefold(), name)

    def _note(self, name: str, why: str | None) -> None:
        if why is not None:
            self._count += 1
            if len(self._bad) < _TOLD:
                self._bad.append((name, why))

    def check(self, shown: str, *, from_blobs: bool) -> None:
        """Raises ``UnsafeNamesError`` where something would be written under a name that cannot be."""
        if not self._writes:
            return
        blob: str | None = None
        for name, why, is_new in sorted_shape_clashes((row[0], row[1]) for row in self._names):
            self._note(name, why)
            if is_new == from_blobs:
                blob = blob or name
        for name, why in self._case_clashes():
            self._note(name, why)
        if self._count:
            raise unsafe_names(self._bad, self._count, shown, blob)

    def _case_clashes(self) -> Iterator[tuple[str, str]]:
        for _, rows in groupby(self._folded or (), key=itemgetter(0)):
            # In the order in which they came, each once.
            first, *others = dict.fromkeys(row[1] for row in rows)
            for name in others:
                yield name, f"differs from '{first}' only in case, and this disk ignores case"
