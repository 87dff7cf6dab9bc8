"""Running transfers, in the words of ``status`` and ``history``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blobsync.base.formatting import count_text, duration_text, zulu_text
from blobsync.cli.output import fields_of

if TYPE_CHECKING:
    from blobsync.project.transfer_history import RunningTransfer

# Seconds without an update after which a transfer is reported as silent.
_SILENT = 15.0
# Maximum number of transfers that one line names.
_NAMED = 3


def so_far(running: RunningTransfer) -> str:
    """The progress: ``43 %, 2 min left``."""
    progress = running.progress
    words = [
        "planning" if running.planning else "",
        f"{int(progress.share * 100)} %" if progress.files_expected else "",
    ]
    words.append("" if running.planning or progress.phase == "moving" else progress.phase)
    words.append("" if progress.seconds_left is None else f"{duration_text(progress.seconds_left)} left")
    words.append(f"nothing heard for {duration_text(running.silent)}" if running.silent > _SILENT else "")
    return ", ".join(word for word in words if word)


def progress_data(running: RunningTransfer) -> dict[str, Any]:
    """The numbers of the progress, and their time."""
    return {**running.progress.values(), "told": zulu_text(running.told)}


def running_data(running: RunningTransfer) -> dict[str, Any]:
    """A running transfer as JSON."""
    known = fields_of(running, "id", "kind", "planning", "command", "user", "host", "pid", "paths")
    return {**known, "began": zulu_text(running.began), "progress": progress_data(running)}


def who_moves(running: RunningTransfer) -> str:
    """A running transfer: ``process 4711 uploads data/x (43 %, 2 min left)``."""
    place = "" if running.is_here else f" on {running.host}"
    paths = " ".join(running.paths[:_NAMED]) or "all folder entries"
    verb = _VERBS.get(running.kind, running.kind)
    return f"process {running.pid}{place} {verb} {paths} ({so_far(running) or 'starting'})"


_VERBS = {"upload": "uploads", "download": "downloads", "copy": "copies", "rm": "removes"}


def running_line(running: Sequence[RunningTransfer]) -> str:
    """All running transfers, in one line."""
    named = [who_moves(each) for each in running[:_NAMED]]
    more = [f"{len(running) - _NAMED:,} more"] if len(running) > _NAMED else []
    return f"{count_text(len(running), 'transfer')} running now: {'; '.join([*named, *more])}"
