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

from blobsync.base.errors import BlobsyncError, ExitCode, NothingMatchedError
from blobsync.base.events import Event, Note
from blobsync.base.plain_json import parse_object
from blobsync.base.process import ProcessRunner, RunningProcess, SubprocessRunner, python_module
from blobsync.base.redaction import redact
from blobsync.plan.progress import Progress, RatePoint, add_point, read_progress
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, TransferPlan
from blobsync.project.logbook import transfer_kind
from blobsync.project.options import from_root
from blobsync.web.carrier import plan_lines
from blobsync.web.source import Source

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

    wish: TransferRequest
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
        return self.wish.paths

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
        self._runner = runner or SubprocessRunner()
        self._on_end = on_end
        self._lock = threading.Lock()
        self._works: dict[str, TransferTask] = {}
        self._processes: dict[str, RunningProcess] = {}

    def begin(self, wish: TransferRequest) -> TransferTask:
        """Start to plan."""
        work = TransferTask(wish, self._source.through(wish.cluster).cluster_name)
        with self._lock:
            self._works[work.id] = work
            settled = [each.id for each in self._works.values() if not each.is_active and each.state != "planning"]
            for old in settled[:-_KEPT]:
                del self._works[old]
        threading.Thread(target=self._plan, args=(work,), daemon=True).start()
        return work

    def find(self, id: str) -> TransferTask:
        """Raises ``NothingMatchedError`` for one that is gone, as after a new start of the server."""
        work = self._works.get(id)
        if work is None:
            raise NothingMatchedError(
                "blobsync web no longer has this plan",
                hint="plan again on the Project page; the Transfers page lists what was done",
            )
        return work

    def each(self) -> Sequence[TransferTask]:
        """The newest first."""
        with self._lock:
            return tuple(reversed(self._works.values()))

    def moved(self) -> Iterator[TransferTask]:
        """Those that move files, or did."""
        return (work for work in self.each() if work.began is not None)

    def carry_out(self, work: TransferTask) -> None:
        """Start to move; once for each plan, and only if it may be carried out."""
        with self._lock:
            if work.state != "planned" or work.plan is None:
                return
            work.state, work.began = "moving", time.time()
        threading.Thread(target=self._carry, args=(work, work.plan), daemon=True).start()

    def cancel(self, work: TransferTask) -> None:
        """Stop it as Ctrl-C does; returns at once."""
        with self._lock:
            if work.state != "moving":
                return
            work.state = "stopping"
            process = self._processes.get(work.id)
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

    def _plan(self, work: TransferTask) -> None:
        try:
            with self._source.open(work.wish.cluster, from_cluster=work.wish.from_cluster) as project:
                project.listener = _Notes(work)
                make = project.plan_upload if work.wish.direction is Direction.UP else project.plan_download

                def keep(progress: Progress) -> None:
                    work.progress = progress

                plan = make(*from_root(project.root, work.wish.paths, work.wish.options), on_progress=keep)
        except BlobsyncError as error:
            work.problem, work.hint = redact(error.message), redact(error.hint or "")
            work.state = "refused"
            return
        except Exception as error:  # noqa: BLE001 - the page shows it
            work.problem, work.hint = _bug(error), "please report it"
            work.state = "refused"
            return
        work.plan = plan
        work.state = "planned"

    def _carry(self, work: TransferTask, plan: TransferPlan) -> None:
        source = self._source.through(work.wish.cluster)
        order = {
            "folder": str(source.folder),
            "cluster": source.cluster,
            "from_cluster": work.wish.from_cluster,
            "overrides": dict(source.overrides),
        }
        try:
            process = self._runner.start(
                python_module("blobsync.web.carrier"), env=dict(self._source.environ), cwd=self._source.folder
            )
            with self._lock:
                self._processes[work.id] = process
            work.pid = process.pid
            process.send_line(json.dumps(order))
            for line in plan_lines(plan):
                process.send_line(line)
            if work.state == "stopping":
                process.send_line("stop")
            for line in process.lines():
                _read_answer(work, line)
            code = process.wait()
            if work.ended is None:
                _fail(
                    work, f"the process that moved the files ended with {code}: {redact(process.stderr_tail())[-300:]}"
                )
        except Exception as error:  # noqa: BLE001 - the page shows it
            _fail(work, error.message if isinstance(error, BlobsyncError) else _bug(error))
        finally:
            with self._lock:
                self._processes.pop(work.id, None)
            self._on_end()


class _Notes:
    def __init__(self, work: TransferTask) -> None:
        self._work = work

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._work.notes.append(redact(event.text))


def _read_answer(work: TransferTask, line: str) -> None:
    try:
        answer = parse_object(line)
    except ValueError:
        # What a library printed.
        return
    if "progress" in answer:
        work.add_progress(read_progress(answer["progress"]))
    elif "note" in answer:
        work.notes.append(answer["note"])
    elif "ended" in answer:
        work.result = answer["ended"]
        code = work.result["exit_code"]
        work.ended = time.time()
        work.state = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}.get(code, "failed")
    elif "failed" in answer:
        failed = answer["failed"]
        _fail(work, failed["message"], failed["hint"], "cancelled" if answer["stopped"] else "failed")


def _fail(work: TransferTask, why: str, hint: str = "", state: str = "failed") -> None:
    work.problem, work.hint, work.ended, work.state = why, hint, time.time(), state


def _bug(error: Exception) -> str:
    return f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}"
