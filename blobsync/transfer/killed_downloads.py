"""Removes what killed runs left beside the destinations of downloads, unless the plan continues from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from blobsync.base.locations import LocalLocation
from blobsync.local.part_files import remove_leftovers
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.plan.blocks import goes_on, places
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction


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
    if isinstance(part.destination, LocalLocation):
        kept = {of.part for of, _ in records.all()} if records else set[str]()
        place = str(part.destination.path)
        # Strings: creating a Path for each of many small files takes longer than finding its folder.
        for folder in {os.path.dirname(f"{place}/{action.path}" if action.path else place) for action in actions}:
            remove_leftovers(Path(folder), kept)
