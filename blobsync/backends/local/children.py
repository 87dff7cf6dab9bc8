"""What a supervisor runs for a job: the node of a plain one, the nodes of an elastic one, or the tasks of an array."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from blobsync.backends.local.run_files import RunFiles
from blobsync.base.background_calls import usable_cores
from blobsync.base.exit_codes import shell_code
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.process_identity import kill_marked
from blobsync.jobspec.spec import MARK, TASK_VARIABLE, JobSpec, State, TaskArray, TaskInfo, mark_of

# How long one may take to stop before a second request, which kills its processes.
PATIENCE_SECONDS = 10.0
CANCELED = shell_code(-signal.SIGTERM)
# The most tasks at a time; each is a group of processes.
MOST_AT_A_TIME = 64
# How much of why a task failed is kept (characters).
_MOST_SAID = 1000


class Children:
    """What runs at a time for one job."""

    def __init__(
        self,
        spec: JobSpec,
        files: RunFiles,
        command: Sequence[str],
        process: ProcessRunner,
        environ: Mapping[str, str],
        gpus: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``command`` starts one of them; arguments for its number and folder are added."""
        self._spec, self._files, self._command = spec, files, command
        self._process, self._environ, self._gpus, self._clock = process, environ, gpus, clock
        self._asked: dict[int, float] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Make what it knows before the first look."""
        raise NotImplementedError

    def look(self, *, canceled: bool) -> int | None:
        """Take the next steps; the job's exit code once all have ended, None before: call it again."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Wait until the next look is due."""
        time.sleep(seconds)

    def _run(self, root: Path, node_rank: int, env: Mapping[str, str]) -> RunningProcess:
        words = ("--root", str(root), "--node-rank", str(node_rank))
        return self._process.start((*self._command, *words), env={**self._environ, **env})

    def _ask_to_stop(self, number: int, pid: int) -> None:
        """Ask one to stop, and again after a while."""
        now = self._clock()
        if now - self._asked.get(number, 0.0) > PATIENCE_SECONDS:
            self._asked[number] = now
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _end(self, number: int, code: int, said: str) -> None:
        """Log what ended, and end the programs of one that was killed, which could not."""
        if code < 0:
            kill_marked(MARK, mark_of(self._spec.run_id, number))
        if said:
            with self._files.log.open("a") as log:
                log.write(f"{said}\n")


class PlainNode(Children):
    """The one node of a job of a fixed size."""

    def _prepare(self) -> None:
        # A job without GPUs must not see those of other jobs.
        given = self._gpus or not self._spec.gpus_per_node
        env = {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus)} if given else {}
        self._child = self._run(self._files.root_for(self._spec), 0, env)

    def look(self, *, canceled: bool) -> int | None:
        code = self._child.wait(0)
        if code is not None:
            self._end(0, code, self._child.stderr_tail())
            # Negative if the runner was killed, as it is when a job is stopped before the runner is ready.
            return shell_code(code)
        if canceled:
            self._ask_to_stop(0, self._child.pid)
        return None

    def wait(self, seconds: float) -> None:
        self._child.wait(seconds)


class TaskPool(Children):
    """The tasks of an array, in order: as many at a time as have GPUs, or without GPUs cores. None is started again.

    The job's exit code is the highest of a task. A task finds its number in ``TASK_VARIABLE``, and the GPUs are divided
    among those that run at a time.
    """

    def _prepare(self) -> None:
        spec, gpus, array = self._spec, self._gpus, self._spec.tasks or TaskArray(1, 1)
        self._waiting = list(array.all_numbers)
        each = spec.gpus_per_node if gpus else 0
        shares = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)] if each else []
        # A transfer's tasks all see what the job has.
        several = min(array.parallel or MOST_AT_A_TIME, array.count, MOST_AT_A_TIME)
        room = len(shares) or (MOST_AT_A_TIME if array.parallel else max(1, usable_cores() // spec.procs_per_node))
        self._free = [shares[at] if shares else tuple(gpus) for at in range(min(several, room))]
        self._running: dict[int, tuple[RunningProcess, TaskInfo, tuple[str, ...]]] = {}
        self._code = 0

    def look(self, *, canceled: bool) -> int | None:
        for number, (task, _, _) in list(self._running.items()):
            code = task.wait(0)
            if code is not None:
                self._has_ended(number, code)
        unwanted = self._files.canceled_tasks()
        if canceled:
            self._code = self._code or CANCELED
            unwanted = {*self._waiting, *self._running}
        for number in unwanted & {*self._waiting}:
            self._waiting.remove(number)
            self._files.add_task(TaskInfo(number, State.CANCELED, ended=self._clock()))
        for number in unwanted & self._running.keys():
            self._ask_to_stop(number, self._running[number][0].pid)
        while self._free and self._waiting:
            self._start(self._waiting.pop(0), self._free.pop(0))
        return None if self._running else self._code

    def _start(self, number: int, gpus: tuple[str, ...]) -> None:
        root = self._files.root_for(self._spec)
        if not self._files.runs_in_place(self._spec):
            root = root.with_name(f"{root.name}_{number}")
        child = self._run(root, 0, {"CUDA_VISIBLE_DEVICES": ",".join(gpus), TASK_VARIABLE: str(number)})
        info = TaskInfo(number, State.RUNNING, started=self._clock())
        self._running[number] = (child, info, gpus)
        self._files.add_task(info)
        self._files.note_running()

    def _has_ended(self, number: int, code: int) -> None:
        task, info, gpus = self._running.pop(number)
        self._free.append(gpus)
        state = State.CANCELED if number in self._asked else State.FAILED if code else State.COMPLETED
        if state is not State.CANCELED or self._code:
            self._code = max(self._code, shell_code(code))
        said = task.stderr_tail()
        # A task that could not begin has no log of its own.
        why = said.rpartition("\n")[2].removeprefix("blobsync: ")[:_MOST_SAID] if state is State.FAILED else ""
        self._files.add_task(TaskInfo(number, state, shell_code(code), 0, info.started, self._clock(), why))
        self._end(number, code, f"task {number} ended with {code}\n{said}".rstrip() if code or said else "")
