"""What an engine is: something that moves the files of a plan and tells what became of each.

Three of them exist: ``direct`` (in this process), ``azcopy`` (a managed subprocess) and ``relay``
(blob to blob through this machine). One contract suite checks that all give the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from blobsync.base.file_states import FileState
from blobsync.base.stop_request import NEVER, StopRequest
from blobsync.plan.listener import Listener
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, FileFailure


class Moved(NamedTuple):
    """One file that the engine believes moved.

    ``source`` and ``destination`` are what each side is now, where the engine saw it itself (``direct``
    and ``relay`` from the service's own answers). ``destination`` None means that a fresh look is needed.
    ``source`` carries the MD5 of the bytes that were read. ``reused`` bytes of the file were at the destination
    already, on record from an earlier run or as a part of the version before, and did not move.
    """

    action: FileAction
    source: FileState | None = None
    destination: FileState | None = None
    reused: int = 0


class MoveTask(NamedTuple):
    """Files of one part that are to be moved: every action is ``TRANSFER``.

    The engine reads ``part.source.at(action.path)`` and writes ``part.destination.at(action.target or action.path)``.
    ``whole_folder`` says that these are all the files that the source folder holds. ``cap_mbps`` is megabits (10^6) a
    second for the whole task. ``again``: these files failed before, and this is their one second try. The engine looks
    for ``stop`` wherever the calling thread waits.
    """

    part: LivePart
    actions: Sequence[FileAction]
    whole_folder: bool = False
    cap_mbps: float | None = None
    again: bool = False
    stop: StopRequest = NEVER


class MoveReport(Protocol):
    """Hears of each file of a task once, from any thread, as soon as it is known what became of it: so a run that is
    killed later has it on record."""

    def file_moved(self, moved: Moved) -> None: ...

    def file_failed(self, action: FileAction, failure: FileFailure) -> None: ...

    def file_kept(self, action: FileAction, size: int) -> None:
        """The file is not finished, and the next run goes on from ``size`` bytes of it that are at the destination,
        on record. Comes in addition to a failure, or to nothing (interrupt)."""
        ...

    def stray(self, name: str) -> None:
        """A name below the source that came along, or tried to, although the task does not have it. On this machine
        nothing of it was kept; at a destination that is a container it stands now."""
        ...

    def azcopy_job(self, job_id: str) -> None:
        """azcopy's own name for what it did."""
        ...


@dataclass(slots=True)
class CollectedReport:
    """A report to be read when the engine is done."""

    moved: list[Moved] = field(default_factory=list)
    failed: list[tuple[FileAction, FileFailure]] = field(default_factory=list)
    kept: list[tuple[FileAction, int]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    azcopy_job_ids: list[str] = field(default_factory=list)

    def file_moved(self, moved: Moved) -> None:
        self.moved.append(moved)

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        self.failed.append((action, failure))

    def file_kept(self, action: FileAction, size: int) -> None:
        self.kept.append((action, size))

    def stray(self, name: str) -> None:
        self.strays.append(name)

    def azcopy_job(self, job_id: str) -> None:
        self.azcopy_job_ids.append(job_id)


class Engine(Protocol):
    """Moves one task's files. Failures of single files are reported, never raised.

    ``listener`` hears of bytes on their way. ``KeyboardInterrupt`` in the calling thread stops all work, cleans up and
    is raised again; the task's ``stop`` raises it there.
    """

    @property
    def name(self) -> str: ...

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None: ...
