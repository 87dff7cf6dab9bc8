"""What runs that did not finish left of downloads, and which of it a plan goes on from. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from blobsync.base.file_states import RemoteState
from blobsync.local.range_records import RangeRecords, UnfinishedDownload
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, Route, actions_of
from blobsync.store.ends import LocalEnd, RemoteEnd


def with_on_record(
    parts: Iterable[PlanPart], live: Iterable[LivePart], records: RangeRecords | None
) -> tuple[PlanPart, ...]:
    """The parts of a plan, each file with the bytes of it that are here; ``live`` are the same parts, open."""
    left = {of.destination: (of, size) for of, size in records.all()} if records else {}
    return tuple(_with_bytes(part, opened, left) for part, opened in zip(parts, live, strict=True))


def _with_bytes(part: PlanPart, live: LivePart, left: dict[str, tuple[UnfinishedDownload, int]]) -> PlanPart:
    there = {action.path: left[path][1] for path, action in places(live, left) if goes_on(live, action, left[path][0])}
    if not there:
        return part
    found = actions_of(part.actions).changed(lambda each: replace(each, on_record=there.get(each.path, 0)))
    return replace(part, actions=found)


def places(part: LivePart, wanted: Collection[str]) -> Iterator[tuple[str, FileAction]]:
    """The files of a download that stand in ``wanted``, with their paths."""
    if wanted and part.route is Route.DOWNLOAD and isinstance(part.destination, LocalEnd):
        for action in part.actions:
            path = os.path.abspath(part.destination.at(action.path))
            if path in wanted:
                yield path, action


def goes_on(part: LivePart, action: FileAction, of: UnfinishedDownload) -> bool:
    """Whether the download of ``action`` goes on from what was left of ``of``."""
    version = action.source
    if action.action is not Action.TRANSFER or not isinstance(version, RemoteState):
        return False
    assert isinstance(part.source, RemoteEnd)
    blob = str(part.source.store.container.blob(part.source.at(action.path)))
    return of.is_of(blob, version.etag, version.size)
