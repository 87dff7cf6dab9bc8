"""Which files of an upload need not go whole, as far as a plan can tell without reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.reasons import Reason
from blobsync.local.block_journal import BlockJournal
from blobsync.plan.block_edges import ONE_REQUEST, block_size
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, Route, actions_of, totals_of
from blobsync.store.ends import RemoteEnd


class PartialUploads(NamedTuple):
    """The actions with what is known of each, and the files that have to go whole once, with the reason."""

    actions: tuple[FileAction, ...]
    warnings: tuple[str, ...] = ()


def partial_uploads(part: LivePart, actions: tuple[FileAction, ...], journal: BlockJournal) -> PartialUploads:
    """Look the files that go in blocks up in the journal; nothing else is read."""
    end = part.destination
    if part.route is not Route.UPLOAD or not isinstance(end, RemoteEnd):
        return PartialUploads(actions)
    names = {action.path: str(end.store.container.blob(end.at(action.path))) for action in _in_blocks(actions)}
    if not names:
        return PartialUploads(actions)
    begun, written = journal.unfinished(names.values()), journal.committed(names.values())
    found: list[FileAction] = []
    warnings: list[str] = []
    for action in actions:
        name = names.get(action.path)
        if name is not None and isinstance(action.source, LocalState):
            unfinished = begun.get(name)
            if unfinished is not None and unfinished.is_of(action.source):
                action = replace(action, on_record=min(unfinished.there, action.size))
            if name in written and _is_verified(action, written[name]):
                warning = _new_edges(part.shown(action), action)
                warnings += [warning] if warning else []
                action = replace(action, delta=not warning)
        found.append(action)
    return PartialUploads(tuple(found), tuple(warnings))


def for_engine(parts: tuple[PlanPart, ...], engine: str) -> tuple[tuple[PlanPart, ...], tuple[str, ...]]:
    """The parts as this engine carries them, and what to say of it: azcopy moves files whole, with ids of its own."""
    spared = totals_of(parts).spared_files
    if engine != "azcopy" or not spared:
        return parts, ()
    whole = (actions_of(part.actions).changed(_in_whole) for part in parts)
    files = "1 file is" if spared == 1 else f"{spared:,} files are"
    return tuple(replace(part, actions=actions) for part, actions in zip(parts, whole, strict=True)), (
        f"{files} at the destination in part, and azcopy moves all of it again: --engine direct moves what is missing",
    )


def _in_whole(action: FileAction) -> FileAction:
    return replace(action, on_record=0, delta=False) if action.on_record or action.delta else action


def _in_blocks(actions: Sequence[FileAction]) -> Iterator[FileAction]:
    for action in actions:
        if action.action is Action.TRANSFER and action.aside is None and action.size > ONE_REQUEST:
            yield action


def _is_verified(action: FileAction, etag: str) -> bool:
    """Whether the destination is as the index has it (only the source changed since), and as we wrote it."""
    there = action.destination
    return action.reason is Reason.CHANGED_HERE and isinstance(there, RemoteState) and there.etag == etag


def _new_edges(shown: str, action: FileAction) -> str | None:
    assert action.destination is not None
    before, now = block_size(action.destination.size), block_size(action.size)
    if before == now:
        return None
    word = "grew" if now > before else "shrank"
    return f"{shown} {word} so much that it is cut into blocks of another size: this once all of it is sent"
