"""What killed runs have written without a record: found by their intents, so that no plan takes it for somebody else's.

A conflict is a killed run's own file if that run was about to write it, and it has the MD5 and the size of what was to
be written. Then both states are recorded, as if the run had verified them, and the plan is made again: the source has
changed since, the destination has not. Whoever wrote the same bytes, a plan would have recorded them as equal before
the source changed. Anything else stays a conflict: a size, a name or a time is no evidence.

Of a file that a service has fetched from a source outside Azure, nobody may have known the MD5: then both ends are read
and compared. These are the files of a run's last seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation, below
from blobsync.config.mapping import is_below
from blobsync.local.files import hash_file
from blobsync.local.resume_records import WriteIntent, left_intents
from blobsync.local.state_dir import StateDir
from blobsync.plan.project_context import LivePart, PartOpener
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, TransferPlan
from blobsync.store.open_locations import OpenBlob, with_md5
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import Ledger

_DOUBTFUL = (Action.CONFLICT, Action.NEWER_AT_DESTINATION)


def record_killed_runs(plan: TransferPlan, context: PartOpener, state: StateDir) -> int:
    """Record those of the plan's conflicts that killed runs have written; returns how many."""
    doubtful = [
        (part, action)
        for part in plan.parts
        if any(plan.count(each) for each in _DOUBTFUL)
        for action in part.actions
        if action.action in _DOUBTFUL
    ]
    intents = _intents_of({_place(part, action) for part, action in doubtful}, state) if doubtful else {}
    count = 0
    for part in plan.parts:
        mine = [action for each, action in doubtful if each is part and _place(part, action) in intents]
        if mine:
            live = replace(context.opened(part), actions=tuple(mine))
            ledger = Ledger(live, context.records(part.key))
            for action in mine:
                _record(ledger, live, action, intents[_place(part, action)])
            ledger.save()
            count += len(ledger.verified)
    return count


def forget_killed_runs(plan: TransferPlan, state: StateDir) -> None:
    """Remove the intents of killed runs whose files were all part of a plan that has moved everything."""
    for left in left_intents(state) if not plan.is_selective else ():
        if all(
            any(
                is_below(each.source, str(part.source)) and is_below(each.destination, str(part.destination))
                for part in plan.parts
            )
            for each in left.ends()
        ):
            left.remove()


def _place(part: PlanPart, action: FileAction) -> tuple[str, str]:
    return below(str(part.source), action.path), below(str(part.destination), action.path)


def _intents_of(places: set[tuple[str, str]], state: StateDir) -> Mapping[tuple[str, str], list[WriteIntent]]:
    found: dict[tuple[str, str], list[WriteIntent]] = {}
    for left in left_intents(state):
        for each in left.intents():
            place = below(each.ends.source, each.path), below(each.ends.destination, each.target)
            if place in places:
                found.setdefault(place, []).append(each)
    return found


def _record(ledger: Ledger, part: LivePart, action: FileAction, intents: list[WriteIntent]) -> None:
    there: FileState | None = action.destination
    if isinstance(part.destination, LocalLocation):
        there = hash_file(part.destination.at(action.path))
    for each in intents:
        if there is not None and (each.size, each.md5) == (there.size, there.md5):
            ledger.seen([(Moved(action, source=_gone(part, each)), there)])
            return
    if any(not each.md5 and there is not None and each.size == there.size for each in intents):
        _record_if_equal(ledger, part, action)


def _record_if_equal(ledger: Ledger, part: LivePart, action: FileAction) -> None:
    """Read both ends, and record the file if they are equal."""
    source, there = action.source, action.destination
    if not isinstance(part.source, OpenBlob) or not isinstance(part.destination, OpenBlob):
        return
    if source is None or there is None or source.size != there.size:
        return
    one = with_md5(part.source, action.path, source)
    other = with_md5(part.destination, action.path, there)
    if one.md5 is not None and one.md5 == other.md5:
        ledger.seen([(Moved(action, source=one), other)])


def _gone(part: LivePart, intent: WriteIntent) -> FileState:
    """The source at that time: no present version is known to be it but by its MD5."""
    if isinstance(part.source, LocalLocation):
        return LocalState(intent.size, 0, 0, 0, intent.md5)
    return RemoteState(intent.size, "", intent.md5)
