"""Runs the tasks of an array on this machine: so many at a time, in their order. None is started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from blobsync.backends.local.fleet import CANCELED, PATIENCE_SECONDS
from blobsync.backends.local.run_files import RunFiles
from blobsync.base.errors import shell_code
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.jobspec.spec import TASK_VARIABLE, JobSpec, State, TaskArray


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
        """``command`` starts a task, which finds its number in ``TASK_VARIABLE``. ``gpus`` are shared by all."""
        self._array = spec.tasks or TaskArray(1, 1)
        self._root = files.root_for(spec)
        self._files, self._command, self._process, self._clock = files, command, process, clock
        self._environ = {**environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        self._running: dict[int, RunningProcess] = {}
        self._asked: dict[int, float] = {}
        self._next = 0
        self._code = 0

    def look(self, *, canceled: bool) -> int | None:
        """Start what has room; the job's exit code once nothing is left, None before."""
        for number, task in list(self._running.items()):
            code = task.wait(0)
            if code is not None:
                self._has_ended(number, task, code)
        if canceled:
            self._next, self._code = self._array.count, self._code or CANCELED
            for number in self._running:
                self._end(number)
        while len(self._running) < self._array.parallel and self._next < self._array.count:
            self._start(self._next)
            self._next += 1
        return None if self._running else self._code

    def _start(self, number: int) -> None:
        words = ("--root", f"{self._root}_{number}", "--node-rank", "0")
        self._running[number] = self._process.start(
            (*self._command, *words), env={**self._environ, TASK_VARIABLE: str(number)}
        )
        if number == 0:
            self._files.write_phase(State.RUNNING)

    def _end(self, number: int) -> None:
        """Ask a task to stop, and again after a while."""
        now = self._clock()
        if now - self._asked.get(number, 0.0) > PATIENCE_SECONDS:
            self._asked[number] = now
            with suppress(ProcessLookupError):
                os.kill(self._running[number].pid, signal.SIGTERM)

    def _has_ended(self, number: int, task: RunningProcess, code: int) -> None:
        del self._running[number]
        self._code = max(self._code, shell_code(code))
        if code or task.stderr_tail():
            with self._files.log.open("a") as log:
                log.write(f"task {number} ended with {code}\n{task.stderr_tail()}".rstrip() + "\n")
