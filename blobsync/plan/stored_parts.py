"""What is decided about all files of a plan together, where its decisions are on the disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from blobsync.local.sorted_runs import Row, SortedRuns, Spill
from blobsync.plan.packed import pack_action, unpack_action
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.stored_actions import StoredActions
from blobsync.plan.symlink_aliases import Names, names_may_meet, settle_one
from blobsync.plan.transfer_plan import Action, PlanPart, Route
from blobsync.plan.unfinished import with_on_record


def stored_parts(
    parts: Sequence[PlanPart], stored: Sequence[StoredActions | None], spill: Spill, *, both_ends: bool
) -> tuple[StoredActions, ...]:
    """The actions of each part on the disk, if those of one of them are; else nothing."""
    if all(each is None for each in stored):
        return ()
    found: list[StoredActions] = []
    for part, there in zip(parts, stored, strict=True):
        if there is None:
            there = StoredActions(spill, both_ends=both_ends)
            there.extend(part.actions)
        found.append(there)
    return tuple(found)


def settle_stored(
    stored: tuple[StoredActions, ...], names: Sequence[Names], spill: Spill, *, writing: Action
) -> tuple[StoredActions, ...]:
    """As ``one_file.settle``: each file here is written by one name at most. Sorts by real path, and back."""
    if not names_may_meet(names):
        return stored
    places = SortedRuns(spill)
    for number, actions in enumerate(stored):
        for action in actions:
            # The name without a link comes first.
            linked = names[number].link_of(action.path) is not None
            places.add(names[number].real(action.path), linked, number, pack_action(action))
    changed = [SortedRuns(spill) for _ in stored]
    for number, row in _settled(places, writing):
        changed[number].add(*row)
    return tuple(each.anew(map(unpack_action, rows)) for each, rows in zip(stored, changed, strict=True))


def _settled(places: Iterable[Row], writing: Action) -> Iterator[tuple[int, Row]]:
    for _, group in groupby(places, key=itemgetter(0)):
        same = sorted(group, key=itemgetter(1))
        if len(same) == 1:
            yield same[0][2], same[0][3]
            continue
        decided = settle_one([unpack_action(row[3]) for row in same], writing)
        yield from ((row[2], pack_action(action)) for row, action in zip(same, decided, strict=True))


def stored_on_record(
    stored: tuple[StoredActions, ...], parts: Sequence[PlanPart], context: ProjectContext
) -> tuple[StoredActions, ...]:
    """As ``unfinished.with_on_record``: downloads with the bytes that an earlier run left here."""
    records = context.unfinished
    if records is None or next(iter(records.all()), None) is None:
        return stored
    found: list[StoredActions] = []
    for part, actions in zip(parts, stored, strict=True):
        if part.route is Route.DOWNLOAD:
            batches = (replace(part, actions=batch) for batch in actions.batches())
            known = (with_on_record([each], [context.opened(each)], records)[0] for each in batches)
            actions = actions.anew(action for each in known for action in each.actions)
        found.append(actions)
    return tuple(found)
