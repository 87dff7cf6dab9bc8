"""Plans and transfers that were started on the page. Each is a :class:`TransferTask`, from the plan to the result."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from blobsync.base.errors import BlobsyncError, NothingMatchedError
from blobsync.base.events import NoteListener
from blobsync.base.exit_codes import ExitCode
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact
from blobsync.plan.progress import Progress, RatePoint, add_point
from blobsync.plan.transfer_options import TransferOptions, from_root
from blobsync.plan.transfer_plan import Direction, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.api import Project
from blobsync.project.transfer_history import transfer_kind
from blobsync.web.open_project import Source, problem_of

if TYPE_CHECKING:
    # It starts a thread when it is imported.
    from blobsync.project.transfer import Transfer

# Plans and ended transfers that stay; a plan of a million files is large.
_KEPT = 30
# Seconds that stopped transfers have to clean up.
_CLEANING = 60.0


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """What the user asked for; ``paths`` are from the project's root. ``cluster`` is -c (None: the server's own),
    ``from_cluster`` is -f."""

    direction: Direction
    paths: tuple[str, ...]
    options: TransferOptions = field(default_factory=TransferOptions)
    cluster: str | None = None
    from_cluster: str | None = None

    @property
    def verb(self) -> str:
        """What it does: upload, download or copy."""
        return transfer_kind(self.direction, copies=self.from_cluster is not None)


@dataclass
class TransferTask:
    """``state`` is ``planning``, ``planned``, ``refused``, ``moving``, ``stopping``, ``done``, ``partial``, ``failed``
    or ``cancelled``. ``points`` are seconds since it began to move, bytes so far, and bytes a second. ``problem`` and
    ``hint`` say why it is refused or failed; times are in seconds since 1970."""

    request: TransferRequest
    cluster: str
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    state: str = "planning"
    made: float = field(default_factory=time.time)
    began: float | None = None
    ended: float | None = None
    plan: TransferPlan | None = None
    progress: Progress | None = None
    moving: Progress | None = None
    points: list[RatePoint] = field(default_factory=list)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    problem: str = ""
    hint: str = ""
    result: TransferResult | None = None
    transfer: Transfer | None = None
    # It reports all the time; see OtherTransfer.
    silence: ClassVar[str] = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Its paths, as the page names them."""
        return self.request.paths

    @property
    def is_active(self) -> bool:
        """It moves files."""
        return self.state in ("moving", "stopping")

    @property
    def seconds(self) -> float:
        """How long it has moved."""
        return 0.0 if self.began is None else (self.ended or time.time()) - self.began

    def add_progress(self, progress: Progress) -> None:
        """Show this progress from now on."""
        self.progress = progress
        if progress.phase == "moving":
            self.moving = progress
            add_point(self.points, self.seconds, progress)


class TransferTasks:
    """All plans and transfers of the page. Thread-safe."""

    def __init__(self, source: Source, on_end: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._on_end = on_end
        self._lock = threading.Lock()
        self._tasks: dict[str, TransferTask] = {}

    def begin(self, request: TransferRequest) -> TransferTask:
        """Start to plan."""
        task = TransferTask(request, self._source.through(request.cluster).cluster_name)
        with self._lock:
            self._tasks[task.id] = task
            settled = [each.id for each in self._tasks.values() if not each.is_active and each.state != "planning"]
            for old in settled[:-_KEPT]:
                del self._tasks[old]
        threading.Thread(target=self._plan, args=(task,), daemon=True).start()
        return task

    def find(self, id: str) -> TransferTask:
        """Raises ``NothingMatchedError`` for one that is gone, as after a new start of the server."""
        task = self._tasks.get(id)
        if task is None:
            raise NothingMatchedError(
                "blobsync web no longer has this plan",
                hint="plan again on the Project page; the Transfers page lists what was done",
            )
        return task

    def each(self) -> Sequence[TransferTask]:
        """The newest first."""
        with self._lock:
            return tuple(reversed(self._tasks.values()))

    def moved(self) -> Iterator[TransferTask]:
        """Those that move files, or did."""
        return (task for task in self.each() if task.began is not None)

    def carry_out(self, task: TransferTask) -> None:
        """Start to move; once for each plan, and only if it may be carried out.

        Files that changed after the plan was made are not replaced: the engines and ``transfer.carry_out`` check each.
        """
        with self._lock:
            if task.state != "planned" or task.plan is None:
                return
            task.state, task.began = "moving", time.time()
        try:
            task.transfer = self._open(task).start(task.plan, on_progress=task.add_progress)
        except BlobsyncError as error:
            _fail(task, problem_of(error))
            return
        task.transfer.add_done_callback(lambda ended: self._ended(task, ended))
        if task.state == "stopping":
            task.transfer.cancel()

    def cancel(self, task: TransferTask) -> None:
        """Stop it as Ctrl-C does; returns at once."""
        with self._lock:
            if task.state != "moving":
                return
            task.state = "stopping"
        if task.transfer is not None:
            task.transfer.cancel()

    def close(self) -> None:
        """Stop all, and wait until they have cleaned up."""
        running = [task.transfer for task in self.each() if task.transfer is not None and task.transfer.cancel()]
        wait(running, _CLEANING)

    def _open(self, task: TransferTask) -> Project:
        project = self._source.open(task.request.cluster, from_cluster=task.request.from_cluster)
        project.listener = NoteListener(lambda text: task.notes.append(redact(text)))
        return project

    def _plan(self, task: TransferTask) -> None:
        def keep(progress: Progress) -> None:
            task.progress = progress

        try:
            with self._open(task) as project:
                make = project.plan_upload if task.request.direction is Direction.UP else project.plan_download
                task.plan = make(*from_root(project.root, task.request.paths, task.request.options), on_progress=keep)
        except Exception as error:  # noqa: BLE001 - the page shows it
            _fail(task, problem_of(error), "refused")
        else:
            task.state = "planned"

    def _ended(self, task: TransferTask, transfer: Future[TransferResult]) -> None:
        try:
            task.result = transfer.result()
        except CancelledError as stopped:
            _fail(task, (redact(str(stopped)), "plan the rest: verified files are skipped"), "cancelled")
        except Exception as error:  # noqa: BLE001 - the page shows it
            _fail(task, problem_of(error))
        else:
            task.ended = time.time()
            task.state = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}.get(task.result.exit_code, "failed")
        finally:
            self._on_end()


def _fail(task: TransferTask, why: tuple[str, str], state: str = "failed") -> None:
    (task.problem, task.hint), task.ended, task.state = why, time.time(), state
