"""Collects the decisions of one part: in memory while they fit, else sorted on the disk. The decisions are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from blobsync.local.sorted_runs import SortedRuns, Spill
from blobsync.plan.decisions import each_decision, in_order, refuse_repeats, sibling, with_free_name
from blobsync.plan.packed import pack_action, unpack_action
from blobsync.plan.pairs import Pair
from blobsync.plan.stored_actions import batches_of
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route


@dataclass(slots=True)
class _Sorted:
    """What memory did not hold."""

    actions: SortedRuns
    extras: SortedRuns


@dataclass(slots=True)
class Gathered:
    """The decisions of a part, ``shown`` as a user would type it; ``batch`` of them are worked on at a time.

    ``asides`` are the pairs whose names look like those of versions that were set aside.
    """

    route: Route
    shown: str
    batch: int
    asides: dict[str, Pair] = field(default_factory=dict)
    _actions: list[FileAction] = field(default_factory=list)
    _extras: list[str] = field(default_factory=list)
    _sorted: _Sorted | None = None

    @property
    def is_large(self) -> bool:
        """Whether they are on the disk."""
        return self._sorted is not None

    @property
    def extras(self) -> Iterable[str]:
        """The files that only the destination has."""
        return self._extras if self._sorted is None else (row[0] for row in self._sorted.extras)

    @property
    def extras_count(self) -> int:
        """How many there are."""
        return len(self._extras if self._sorted is None else self._sorted.extras)

    def collect(self, decisions: Iterable[tuple[FileAction | None, str | None]], spill: Spill) -> None:
        """Take them all; more than ``spill.most`` go to the disk."""
        for action, extra in decisions:
            if action is not None:
                self._actions.append(action)
            if extra is not None:
                self._extras.append(extra)
            if len(self._actions) + len(self._extras) > (spill.most if self._sorted is None else spill.batch):
                self._put_down(spill)
        if self._sorted is not None:
            self._put_down(spill)

    def _put_down(self, spill: Spill) -> None:
        if self._sorted is None:
            self._sorted = _Sorted(SortedRuns(spill), SortedRuns(spill))
        # Each leaves memory as it goes.
        self._actions.reverse()
        while self._actions:
            self._sorted.actions.add(*pack_action(self._actions.pop()))
        for extra in self._extras:
            self._sorted.extras.add(extra)
        self._extras = []

    def batches(self) -> Iterator[tuple[FileAction, ...]]:
        """The actions in the order of their paths, all at once, or some at a time.

        Raises ``UnsafeNamesError`` where an end names a file twice.
        """
        if self._sorted is None:
            actions, self._actions = self._actions, []
            yield in_order(actions, self.asides, self.route, self.shown)
            return
        last: tuple[FileAction, ...] = ()
        for batch in batches_of(self._free(), self.batch):
            refuse_repeats((*last, *batch), self.shown)
            last = batch[-1:]
            yield batch

    def _free(self) -> Iterator[FileAction]:
        """As ``in_order`` does it."""
        assert self._sorted is not None
        if not self.asides:
            yield from map(unpack_action, self._sorted.actions)
            return
        kept = {sibling(each.path, each.aside) for each in self._with_names() if each.aside} & self.asides.keys()
        yield from (each for each in self._with_names() if each.action is not Action.DELETE or each.path not in kept)

    def _with_names(self) -> Iterator[FileAction]:
        assert self._sorted is not None
        return (with_free_name(unpack_action(row), self.route, self.asides) for row in self._sorted.actions)


def gather(
    pairs: Iterable[Pair], route: Route, options: TransferOptions, spill: Spill, *, both_ends: bool, shown: str
) -> Gathered:
    """Decide about every pair of a part."""
    found = Gathered(route, shown, spill.batch)
    found.collect(each_decision(pairs, route, options, found.asides, both_ends=both_ends, shown=shown), spill)
    return found
