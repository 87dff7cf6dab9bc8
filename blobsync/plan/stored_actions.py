"""The decisions of one part on the disk: any number of them, in the order of their paths, with their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from blobsync.local.sorted_runs import Spill, Spool
from blobsync.plan.packed import pack_action, unpack_action
from blobsync.plan.transfer_plan import Action, FileAction, MovingFiles, moved_sizes


class StoredActions:
    """Written once, then read any number of times.

    ``counts`` and ``sizes`` (bytes) are by action, ``volume`` is what will move, to both ends if ``both_ends``.
    ``batch`` of them are carried out at a time. ``on_record`` are bytes that are there already, ``spared`` and
    ``spared_files`` those and the blocks that may stay.
    """

    def __init__(self, spill: Spill, *, both_ends: bool) -> None:
        self._spill = spill
        self.batch = spill.batch
        self._rows = Spool(spill._replace(most=1))
        self._both_ends = both_ends
        self.counts: Counter[Action] = Counter()
        self.sizes: Counter[Action] = Counter()
        self.volume = MovingFiles()
        self.on_record = self.spared = self.spared_files = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._rows.size

    def __iter__(self) -> Iterator[FileAction]:
        return map(unpack_action, self._rows)

    def extend(self, actions: Iterable[FileAction]) -> None:
        """More decisions, whose paths come after those that are there."""
        for action in actions:
            self._rows.append(pack_action(action))
            self.counts[action.action] += 1
            self.sizes[action.action] += action.size
            for size in moved_sizes(action, both_ends=self._both_ends):
                self.volume = self.volume.plus(size)
            self.on_record += action.on_record
            if action.delta or action.on_record:
                self.spared_files += 1
                self.spared += action.size if action.delta else action.on_record

    def anew(self, actions: Iterable[FileAction]) -> StoredActions:
        """Others in place of these."""
        other = StoredActions(self._spill, both_ends=self._both_ends)
        other.extend(actions)
        return other

    def batches(self) -> Iterator[tuple[FileAction, ...]]:
        """All of them, some at a time."""
        return batches_of(self, self.batch)


def batches_of(actions: Iterable[FileAction], size: int) -> Iterator[tuple[FileAction, ...]]:
    """``actions`` in tuples of ``size``; the last one may be shorter."""
    rest = iter(actions)
    while batch := tuple(islice(rest, size)):
        yield batch
