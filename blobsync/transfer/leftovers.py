"""Removes what killed runs left beside the destinations of downloads, unless this plan continues from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blobsync.local.part_files import remove_leftovers
from blobsync.local.range_records import RangeRecords, UnfinishedDownload
from blobsync.plan.partial_files import goes_on, places
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.ends import LocalEnd


def tidy(records: RangeRecords | None, parts: Iterable[LivePart], engine: str) -> None:
    """Remove unfinished downloads that nothing will continue; ``engine`` is the one that carries out the plan.

    Of the plan's own files, only what the direct engine continues stays: not other versions or files that do not move.
    """
    if records is None:
        return
    left = {of.destination for of, _ in records.all()}
    planned = {path: (part, action) for part in parts for path, action in places(part, left)}

    def is_wanted(of: UnfinishedDownload) -> bool:
        return engine == "direct" and goes_on(*planned[of.destination], of)

    records.tidy(planned, is_wanted)


def remove_unrecorded(records: RangeRecords | None, part: LivePart, actions: Sequence[FileAction]) -> None:
    """Remove part files without a record, in the folders of these files."""
    if isinstance(part.destination, LocalEnd):
        kept = {of.part for of, _ in records.all()} if records else set[str]()
        for folder in {part.destination.at(action.path).parent for action in actions}:
            remove_leftovers(folder, kept)
