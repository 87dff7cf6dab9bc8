"""Runs the tasks of an array on this machine, in their order: as many at a time as have GPUs, or without GPUs cores.
None is started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from blobsync.backends.local.elastic_nodes import CANCELED, PATIENCE_SECONDS
from blobsync.backends.local.run_files import RunFiles
from blobsync.base.background_calls import usable_cores
from blobsync.base.exit_codes import shell_code
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.jobspec.spec import TASK_VARIABLE, JobSpec, State, TaskArray, TaskInfo

# The most tasks at a time; each is a group of processes.
MOST_AT_A_TIME = 64
# How much of why a task failed is kept (characters).
_MOST_SAID = 1000


class TaskPool:
    """The tasks of one job. Call ``look`` repeatedly until it returns the job's exit code: the highest of a task."""

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
        """``command`` starts a task, which finds its number in ``TASK_VARIABLE``. ``gpus`` are divided among those that
        run at a time."""
        array = spec.tasks or TaskArray(1, 1)
        self._spec, self._files, self._command, self._process, self._clock = spec, files, command, process, clock
        self._environ = environ
        self._waiting = list(array.all_numbers)
        each = spec.gpus_per_node if gpus else 0
        shares = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)] if each else []
        # A transfer's tasks all see what the job has.
        several = min(array.parallel or MOST_AT_A_TIME, array.count, MOST_AT_A_TIME)
        room = len(shares) or (MOST_AT_A_TIME if array.parallel else max(1, usable_cores() // spec.procs_per_node))
        self._free = [shares[at] if shares else tuple(gpus) for at in range(min(several, room))]
        self._running: dict[int, tuple[RunningProcess, TaskInfo, tuple[str, ...]]] = {}
        self._asked: dict[int, float] = {}
        self._code = 0

    def look(self, *, canceled: bool) -> int | None:
        """Start what has room; the job's exit code once nothing is left, None before."""
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
            self._end(number)
        while self._free and self._waiting:
            self._start(self._waiting.pop(0), self._free.pop(0))
        return None if self._running else self._code

    def _start(self, number: int, gpus: tuple[str, ...]) -> None:
        root = self._files.root_for(self._spec)
        if not self._files.runs_in_place(self._spec):
            root = root.with_name(f"{root.name}_{number}")
        env = {**self._environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), TASK_VARIABLE: str(number)}
        child = self._process.start((*self._command, "--root", str(root), "--node-rank", "0"), env=env)
        info = TaskInfo(number, State.RUNNING, started=self._clock())
        self._running[number] = (child, info, gpus)
        self._files.add_task(info)
        self._files.write_phase(State.RUNNING)

    def _end(self, number: int) -> None:
        """Ask a task to stop, and again after a while."""
        now = self._clock()
        if now - self._asked.get(number, 0.0) > PATIENCE_SECONDS:
            self._asked[number] = now
            with suppress(ProcessLookupError):
                os.kill(self._running[number][0].pid, signal.SIGTERM)

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
        if code or said:
            with self._files.log.open("a") as log:
                log.write(f"task {number} ended with {code}\n{said}".rstrip() + "\n")
