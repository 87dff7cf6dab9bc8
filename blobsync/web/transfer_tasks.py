"""Plans and transfers that were started on the page. Each is a :class:`TransferTask`, from the plan to the result."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from blobsync.base.errors import BlobsyncError, NothingMatchedError
from blobsync.base.events import NoteListener
from blobsync.base.exit_codes import ExitCode
from blobsync.base.plain_json import parse_object
from blobsync.base.process import ProcessRunner, RunningProcess, python_module
from blobsync.base.redaction import redact
from blobsync.plan.progress import Progress, RatePoint, add_point, read_progress
from blobsync.plan.transfer_options import TransferOptions, from_root
from blobsync.plan.transfer_plan import Direction, TransferPlan
from blobsync.project.transfer_history import transfer_kind
from blobsync.web.open_project import Source
from blobsync.web.transfer_process import plan_lines

# Plans and ended transfers that stay; a plan of a million files is large.
_KEPT = 30
# Seconds that a stopped transfer has to clean up, before harsher signals.
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
    ``hint`` say why it is refused or failed; ``result`` has the counts of one that ended; times are in seconds since
    1970."""

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
    result: Mapping[str, Any] = field(default_factory=dict)
    pid: int | None = None
    # Its process reports all the time; see OtherTransfer.
    silence: ClassVar[str] = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Its paths, as the page names them."""
        return self.request.paths

    @property
    def is_active(self) -> bool:
        """It has a process that moves files."""
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
    """All plans and transfers of the page. Thread-safe. ``runner`` starts the processes that carry out plans."""

    def __init__(
        self,
        source: Source,
        runner: ProcessRunner | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._runner = runner or ProcessRunner()
        self._on_end = on_end
        self._lock = threading.Lock()
        self._tasks: dict[str, TransferTask] = {}
        self._processes: dict[str, RunningProcess] = {}

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
        """Start to move; once for each plan, and only if it may be carried out."""
        with self._lock:
            if task.state != "planned" or task.plan is None:
                return
            task.state, task.began = "moving", time.time()
        threading.Thread(target=self._carry, args=(task, task.plan), daemon=True).start()

    def cancel(self, task: TransferTask) -> None:
        """Stop it as Ctrl-C does; returns at once."""
        with self._lock:
            if task.state != "moving":
                return
            task.state = "stopping"
            process = self._processes.get(task.id)
        if process is not None:
            process.send_line("stop")

    def close(self) -> None:
        """Stop all, and wait until they have cleaned up."""
        with self._lock:
            processes = list(self._processes.values())
        for process in processes:
            process.send_line("stop")
        for process in processes:
            if process.wait(_CLEANING) is None:
                process.stop()

    def _plan(self, task: TransferTask) -> None:
        try:
            with self._source.open(task.request.cluster, from_cluster=task.request.from_cluster) as project:
                project.listener = NoteListener(lambda text: task.notes.append(redact(text)))
                make = project.plan_upload if task.request.direction is Direction.UP else project.plan_download

                def keep(progress: Progress) -> None:
                    task.progress = progress

                plan = make(*from_root(project.root, task.request.paths, task.request.options), on_progress=keep)
        except BlobsyncError as error:
            task.problem, task.hint = redact(error.message), redact(error.hint or "")
            task.state = "refused"
            return
        except Exception as error:  # noqa: BLE001 - the page shows it
            task.problem, task.hint = _bug(error), "please report it"
            task.state = "refused"
            return
        task.plan = plan
        task.state = "planned"

    def _carry(self, task: TransferTask, plan: TransferPlan) -> None:
        source = self._source.through(task.request.cluster)
        order = {
            "folder": str(source.folder),
            "cluster": source.cluster,
            "from_cluster": task.request.from_cluster,
            "overrides": dict(source.overrides),
        }
        try:
            process = self._runner.start(
                python_module("blobsync.web.transfer_process"), env=dict(self._source.environ), cwd=self._source.folder
            )
            with self._lock:
                self._processes[task.id] = process
            task.pid = process.pid
            process.send_line(json.dumps(order))
            for line in plan_lines(plan):
                process.send_line(line)
            if task.state == "stopping":
                process.send_line("stop")
            for line in process.lines():
                _read_answer(task, line)
            code = process.wait()
            if task.ended is None:
                _fail(
                    task, f"the process that moved the files ended with {code}: {redact(process.stderr_tail())[-300:]}"
                )
        except Exception as error:  # noqa: BLE001 - the page shows it
            _fail(task, error.message if isinstance(error, BlobsyncError) else _bug(error))
        finally:
            with self._lock:
                self._processes.pop(task.id, None)
            self._on_end()


def _read_answer(task: TransferTask, line: str) -> None:
    try:
        answer = parse_object(line)
    except ValueError:
        # What a library printed.
        return
    if "progress" in answer:
        task.add_progress(read_progress(answer["progress"]))
    elif "note" in answer:
        task.notes.append(answer["note"])
    elif "ended" in answer:
        task.result = answer["ended"]
        code = task.result["exit_code"]
        task.ended = time.time()
        task.state = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}.get(code, "failed")
    elif "failed" in answer:
        failed = answer["failed"]
        _fail(task, failed["message"], failed["hint"], "cancelled" if answer["stopped"] else "failed")


def _fail(task: TransferTask, why: str, hint: str = "", state: str = "failed") -> None:
    task.problem, task.hint, task.ended, task.state = why, hint, time.time(), state


def _bug(error: Exception) -> str:
    return f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}"
