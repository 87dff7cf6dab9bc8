"""The interface of engines: an engine moves the files of a plan and reports the outcome of each.

There are three: ``direct`` (in this process), ``azcopy`` (a managed subprocess) and ``relay``
(blob to blob through this machine). One contract test suite checks that all give the same results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import Listener
from blobsync.base.file_states import FileState
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.resume_records import RangeRecords, WriteIntents
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction

# Of a file from outside Azure: its source keeps nothing that its content could be compared with.
NOTHING_COMPARED = "nothing"


class Moved(NamedTuple):
    """One file that the engine reports as moved.

    ``source`` and ``destination`` are the present states, if the engine saw them itself (``direct`` and ``relay`` from
    the service's responses). With ``destination`` None the destination has to be looked at. ``source`` has the MD5 of
    the bytes that were read. ``reused`` bytes of the file were at the destination already, from an earlier run or
    the previous version, and did not move. ``compared_by`` is what the content of a file from outside Azure was
    compared by: ``md5``, ``crc64nvme``, another checksum of its source, ``content``, or ``NOTHING_COMPARED``;
    ``crc64nvme`` also for a download of a blob whose CRC64 the index knows; empty for all other files.
    """

    action: FileAction
    source: FileState | None = None
    destination: FileState | None = None
    reused: int = 0
    compared_by: str = ""


class MoveTask(NamedTuple):
    """Files of one part that are to be moved: every action is ``TRANSFER``.

    The engine reads ``part.source.at(action.path)`` and writes ``part.destination.at(action.target or action.path)``.
    ``whole_folder``: these are all files of the source folder. ``cap_mbps`` is the limit for the whole task in megabits
    (10^6) per second. ``again``: these files failed before, and this is their second attempt. The engine checks
    ``stop`` wherever the calling thread waits.
    """

    part: LivePart
    actions: Sequence[FileAction]
    whole_folder: bool = False
    cap_mbps: float | None = None
    again: bool = False
    stop: StopRequest = NEVER


class MoveReport(Protocol):
    """Receives the outcome of each file once, from any thread, as soon as it is known, so that it is recorded even if
    the run is killed later. Files that ended together are reported together."""

    def files_moved(self, moved: Sequence[Moved]) -> None: ...

    def file_failed(self, action: FileAction, failure: FileFailure) -> None: ...

    def file_kept(self, action: FileAction, size: int) -> None:
        """The file is not finished; the next run continues from ``size`` bytes of it, which are recorded as being at
        the destination. Called in addition to ``file_failed``, or alone (interrupt)."""
        ...

    def stray(self, name: str) -> None:
        """The engine copied, or tried to copy, a file that is not in the task; ``name`` is below the source. A local
        copy was removed; in a container it remains."""
        ...

    def azcopy_job(self, job_id: str) -> None:
        """The id of an azcopy job."""
        ...


@dataclass(repr=False)
class CollectedReport:
    """A report that collects everything, to be read after the engine has ended."""

    moved: list[Moved] = field(default_factory=list)
    failed: list[tuple[FileAction, FileFailure]] = field(default_factory=list)
    kept: list[tuple[FileAction, int]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    azcopy_job_ids: list[str] = field(default_factory=list)

    def files_moved(self, moved: Sequence[Moved]) -> None:
        self.moved += moved

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        self.failed.append((action, failure))

    def file_kept(self, action: FileAction, size: int) -> None:
        self.kept.append((action, size))

    def stray(self, name: str) -> None:
        self.strays.append(name)

    def azcopy_job(self, job_id: str) -> None:
        self.azcopy_job_ids.append(job_id)


class Engine(Protocol):
    """Moves the files of a task. Failures of single files are reported, never raised.

    ``listener`` is called for bytes under way. ``KeyboardInterrupt`` in the calling thread stops all work, cleans up
    and is raised again; the task's ``stop`` raises it there.
    """

    @property
    def name(self) -> str: ...

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None: ...


class Engines(NamedTuple):
    """How to get each engine by name; created on first use, so that azcopy is not required where it is not needed.

    ``relay_allowed`` says whether a copy that the service refuses may go through this machine; ``unfinished`` are the
    direct engine's records of downloads that were killed. ``stop`` ends the work as Ctrl-C does. ``intents`` are what
    the engines note before they write.
    """

    make: Mapping[str, Callable[[], Engine]]
    relay_allowed: bool = False
    unfinished: RangeRecords | None = None
    stop: StopRequest = NEVER
    intents: WriteIntents | None = None

    def second(self, code: FailureCode, first: str) -> str | None:
        """The engine that moves a file on which the engine ``first`` failed; None if no retry would help."""
        engine = code.retry.engine_after(first)
        # Files that went through this machine before may do so again.
        is_detour = engine == "relay" and first != "relay"
        return None if is_detour and not self.relay_allowed else engine
