"""What an engine is: something that moves the files of a plan and tells what became of each.

Three of them exist: ``direct`` (in this process), ``azcopy`` (a managed subprocess) and ``relay``
(blob to blob through this machine). One contract suite holds them to equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from blobsync.plan import FileAction, FileFailure, FileState, Route
from blobsync.storage import BlobStore


class LocalEnd(NamedTuple):
    """A file or folder of this machine.

    Nothing is ever written through a symlink that leads out of ``boundary``, some folders without links in their
    paths: the project, and where the user has agreed that links of it lead (empty: out of ``root`` itself, or out of
    its folder where the root is a file).
    """

    root: Path
    boundary: tuple[Path, ...] = ()

    def at(self, relative: str) -> Path:
        """The file ``relative`` below the root; the root itself where it is empty."""
        return self.root / relative if relative else self.root


class RemoteEnd(NamedTuple):
    """A blob or a virtual folder, and the store that reaches it."""

    store: BlobStore
    name: str

    def at(self, relative: str) -> str:
        """The blob ``relative`` below the folder; the blob itself where it is empty."""
        if not relative:
            return self.name
        return f"{self.name}/{relative}" if self.name else relative


LiveEnd = LocalEnd | RemoteEnd


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

    The engine reads ``source.at(action.path)`` and writes ``destination.at(action.target or action.path)``.
    ``shown`` is the part as a user would type it. ``whole_folder`` says that these are all the files that
    the source folder holds. ``cap_mbps`` is megabits (10^6) a second for the whole task. The engine calls
    ``on_moved`` from any thread as soon as one file is in place, so that a run that is killed later has it
    on record; the same values come back in the report. Of files that failed it tells the listener itself.
    """

    route: Route
    shown: str
    source: LiveEnd
    destination: LiveEnd
    actions: Sequence[FileAction]
    whole_folder: bool = False
    cap_mbps: float | None = None
    on_moved: Callable[[Moved], None] = _nobody


@dataclass(slots=True)
class MoveReport:
    """What became of a task; every action of it is in one of the first two lists.

    ``strays`` are names below the source that came along, or tried to, although the task does not have them. Nothing
    of them was kept.
    """

    moved: list[Moved] = field(default_factory=list)
    failed: list[tuple[FileAction, FileFailure]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    bytes_moved: int = 0
    azcopy_job_ids: list[str] = field(default_factory=list)


class Listener(Protocol):
    """Who wants to know how it goes; called from any thread, must be quick and must not raise."""

    def phase(self, name: str) -> None:
        """``surveying``, ``hashing``, ``moving``, ``verifying``, ``deleting``."""
        ...

    def expect(self, files: int, size: int) -> None:
        """The totals that the coming moves add up to."""
        ...

    def seen(self, files: int) -> None:
        """So many more entries looked at while surveying or verifying."""
        ...

    def bytes_moved(self, count: int) -> None:
        """So many more bytes on their way; negative where a retry starts over."""
        ...

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        """One file is finished, or failed."""
        ...

    def note(self, text: str) -> None:
        """A sentence for the user that is no failure."""
        ...


class SilentListener:
    """Ignores everything; the default of library calls."""

    def phase(self, name: str) -> None: ...

    def expect(self, files: int, size: int) -> None: ...

    def seen(self, files: int) -> None: ...

    def bytes_moved(self, count: int) -> None: ...

    def file_done(self, path: str, failure: FileFailure | None) -> None: ...

    def note(self, text: str) -> None: ...


class Engine(Protocol):
    """Moves one task's files. Failures of single files are reported, never raised.

    ``KeyboardInterrupt`` in the calling thread stops all work, cleans up and is raised again.
    """

    @property
    def name(self) -> str: ...

    def move(self, task: MoveTask, listener: Listener) -> MoveReport: ...
