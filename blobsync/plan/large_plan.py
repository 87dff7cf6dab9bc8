"""A plan whose decisions are on the disk: printed like any other, carried out as a row of ordinary plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import ClassVar

from blobsync.base.failure_codes import FailureCode
from blobsync.base.reasons import Reason
from blobsync.plan.partial_uploads import in_whole_words
from blobsync.plan.stored_actions import StoredActions, batches_of
from blobsync.plan.transfer_plan import (
    Action,
    FileAction,
    FileFailure,
    MovingFiles,
    PlanPart,
    TransferPlan,
    conflicts_of,
)

# Conflicts that are told one by one.
TOLD_CONFLICTS = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class LargePlan(TransferPlan):
    """Its parts have no actions of their own: ``stored`` has those of each part.

    ``in_whole``: the engine moves files whole, whatever of them is at the destination.
    """

    is_large: ClassVar[bool] = True

    stored: tuple[StoredActions, ...] = ()
    in_whole: bool = False

    def each(self) -> Iterator[tuple[PlanPart, FileAction]]:
        """Every file of every part, in order, read from the disk."""
        for part, stored in zip(self.parts, self.stored, strict=True):
            for action in stored:
                if self.in_whole and (action.on_record or action.delta):
                    action = replace(action, on_record=0, delta=False)
                yield part, action

    def count(self, kind: Action) -> int:
        """How many files get this action."""
        return sum(stored.counts[kind] for stored in self.stored)

    def size(self, kind: Action) -> int:
        """The bytes of the files that get this action."""
        return sum(stored.sizes[kind] for stored in self.stored)

    def parts_with(self, kind: Action) -> list[PlanPart]:
        """The parts of which a file gets this action."""
        return [part for part, stored in zip(self.parts, self.stored, strict=True) if stored.counts[kind]]

    @property
    def files_to_transfer(self) -> int:
        """Files that will move, in both directions."""
        return total_volume(self.stored).files

    @property
    def bytes_to_transfer(self) -> int:
        """Bytes of the files that will move."""
        return total_volume(self.stored).size

    @property
    def bytes_on_record(self) -> int:
        """Bytes of these files that are at the destination already."""
        return 0 if self.in_whole else sum(stored.on_record for stored in self.stored)

    @property
    def conflicts(self) -> tuple[FileFailure, ...]:
        """The first conflicts, and one line for all others."""
        count = self.count(Action.CONFLICT)
        if not count:
            return ()
        told = tuple(islice(conflicts_of(self.each()), TOLD_CONFLICTS))
        if count == len(told):
            return told
        more = f"{count - len(told):,} more files are in conflict and left alone"
        hint = "'blobsync plan' with --json writes a file with all of them"
        return (*told, FileFailure(self.paths[0], FailureCode.CONFLICT, more, hint))

    def to_carry_out(self, *kinds: Action) -> Iterator[TransferPlan]:
        """Ordinary plans that together do what this one says for files of these kinds, in order.

        Of files that are unchanged, or skipped, those that are to be recorded.
        """
        for part, stored in zip(self.parts, self.stored, strict=True):
            if any(stored.counts[kind] for kind in kinds):
                chosen = (each for _, each in self._of(part, stored) if each.action in kinds and _does_something(each))
                for batch in batches_of(chosen, stored.batch):
                    yield self._batch(replace(part, actions=batch, whole=False))

    def _of(self, part: PlanPart, stored: StoredActions) -> Iterator[tuple[PlanPart, FileAction]]:
        return replace(self, parts=(part,), stored=(stored,)).each()

    def _batch(self, part: PlanPart) -> TransferPlan:
        return TransferPlan(
            route=self.route,
            cluster=self.cluster,
            from_cluster=self.from_cluster,
            paths=self.paths,
            options=self.options,
            parts=(part,),
            engine=self.engine,
            processes=self.processes,
            created_at=self.created_at,
        )


def large_plan(plan: TransferPlan, stored: tuple[StoredActions, ...]) -> LargePlan:
    """``plan``, whose parts have no actions, with these; its engine is chosen."""
    values = {each.name: getattr(plan, each.name) for each in fields(TransferPlan)}
    spared = sum(each.spared_files for each in stored)
    if plan.engine.name != "azcopy" or not spared:
        return LargePlan(**values, stored=stored)
    values["warnings"] = (*plan.warnings, in_whole_words(spared))
    return LargePlan(**values, stored=stored, in_whole=True)


def total_volume(stored: tuple[StoredActions, ...]) -> MovingFiles:
    """What will move of all of them."""
    volumes = [each.volume for each in stored]
    return MovingFiles(
        sum(each.files for each in volumes),
        sum(each.size for each in volumes),
        max((each.largest for each in volumes), default=0),
    )


def _does_something(action: FileAction) -> bool:
    if action.action is Action.SKIP:
        return action.reason is Reason.KEEP_DESTINATION
    return action.action is not Action.UNCHANGED or action.destination is not None
