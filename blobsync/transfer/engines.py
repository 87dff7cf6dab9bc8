"""What an engine is: something that moves the files of a plan and tells what became of each.

Three of them exist: ``direct`` (in this process), ``azcopy`` (a managed subprocess) and ``relay``
(blob to blob through this machine). One contract suite holds them to equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from blobsync.base.file_states import FileState
from blobsync.plan.listener import Listener
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, FileFailure


class Moved(NamedTuple):
    """One file that the engine believes moved.

    ``source`` and ``destination`` are what each side is now, where the engine saw it itself (``direct``
    and ``relay`` from the service's own answers). ``destination`` None means: only a fresh look can tell.
    ``source`` carries the MD5 of the bytes that were read.
    """

    action: FileAction
    source: FileState | None = None
    destination: FileState | None = None


def _nobody(moved: Moved) -> None:
    return None


class MoveTask(NamedTuple):
    """Files of one part that are to be moved: every action is ``TRANSFER``.

    The engine reads ``part.source.at(action.path)`` and writes ``part.destination.at(action.target or action.path)``.
    ``whole_folder`` says that these are all the files that
    the source folder holds. ``cap_mbps`` is megabits (10^6) a second for the whole task. The engine calls
    ``on_moved`` from any thread as soon as one file is in place, so that a run that is killed later has it
    on record; the same values come back in the report. Of files that failed it tells the listener itself.
    """

    part: LivePart
    actions: Sequence[FileAction]
    whole_folder: bool = False
    cap_mbps: float | None = None
    on_moved: Callable[[Moved], None] = _nobody


@dataclass(slots=True)
class MoveReport:
    """What became of a task; every action of it is in one of the first two lists.

    ``strays`` are names below the source that came along, or tried to, although the task does not have them. On this
    machine nothing of them was kept; at a destination that is a container they stand now.
    """

    moved: list[Moved] = field(default_factory=list)
    failed: list[tuple[FileAction, FileFailure]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    bytes_moved: int = 0
    azcopy_job_ids: list[str] = field(default_factory=list)


class Engine(Protocol):
    """Moves one task's files. Failures of single files are reported, never raised.

    ``KeyboardInterrupt`` in the calling thread stops all work, cleans up and is raised again.
    """

    @property
    def name(self) -> str: ...

    def move(self, task: MoveTask, listener: Listener) -> MoveReport: ...
