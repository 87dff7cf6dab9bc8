"""Finds the parts of a plan's files that earlier runs left at the destination. Changes nothing.

For an upload these are blocks in the journal; for a download, bytes in an unfinished local file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.reasons import Reason
from blobsync.local.resume_records import BlockJournal, RangeRecords, UnfinishedDownload
from blobsync.plan.blocks import ONE_REQUEST, block_size
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, Route, actions_of, totals_of
from blobsync.store.open_locations import OpenBlob


class PartialUploads(NamedTuple):
    """The actions with the bytes on record, and the files that have to be sent whole once, with the reason."""

    actions: tuple[FileAction, ...]
    warnings: tuple[str, ...] = ()


def partial_uploads(part: LivePart, actions: tuple[FileAction, ...], journal: BlockJournal) -> PartialUploads:
    """Look up files that are sent in blocks in the journal; nothing else is read."""
    end = part.destination
    if part.route is not Route.UPLOAD or not isinstance(end, OpenBlob):
        return PartialUploads(actions)
    names = {action.path: str(end.child(action.path)) for action in _in_blocks(actions)}
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
    """The parts for this engine, with notes: azcopy moves files whole, with block ids of its own."""
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
    """Whether the destination is the version in the index (only the source changed since), written by this project."""
    there = action.destination
    return action.reason is Reason.CHANGED_HERE and isinstance(there, RemoteState) and there.etag == etag


def _new_edges(shown: str, action: FileAction) -> str | None:
    assert action.destination is not None
    before, now = block_size(action.destination.size), block_size(action.size)
    if before == now:
        return None
    word = "grew" if now > before else "shrank"
    return f"{shown} {word} so much that it is cut into blocks of another size: this once all of it is sent"


def with_on_record(
    parts: Iterable[PlanPart], live: Iterable[LivePart], records: RangeRecords | None
) -> tuple[PlanPart, ...]:
    """The parts of a download, each file with its bytes that are already here; ``live`` are the same parts, open."""
    left = {of.destination: (of, size) for of, size in records.all()} if records else {}
    return tuple(_with_bytes(part, opened, left) for part, opened in zip(parts, live, strict=True))


def _with_bytes(part: PlanPart, live: LivePart, left: dict[str, tuple[UnfinishedDownload, int]]) -> PlanPart:
    there = {action.path: left[path][1] for path, action in places(live, left) if goes_on(live, action, left[path][0])}
    if not there:
        return part
    found = actions_of(part.actions).changed(lambda each: replace(each, on_record=there.get(each.path, 0)))
    return replace(part, actions=found)


def places(part: LivePart, wanted: Collection[str]) -> Iterator[tuple[str, FileAction]]:
    """The files of a download that are in ``wanted``, with their paths."""
    if wanted and part.route is Route.DOWNLOAD and isinstance(part.destination, LocalLocation):
        for action in part.actions:
            path = os.path.abspath(part.destination.at(action.path))
            if path in wanted:
                yield path, action


def goes_on(part: LivePart, action: FileAction, of: UnfinishedDownload) -> bool:
    """Whether the download of ``action`` continues the unfinished file of ``of``."""
    version = action.source
    if action.action is not Action.TRANSFER or not isinstance(version, RemoteState):
        return False
    assert isinstance(part.source, OpenBlob)
    blob = str(part.source.child(action.path))
    return of.is_of(blob, version.etag, version.size)
