"""What a supervisor runs for a job: the node of a plain one, the nodes of an elastic one, or the tasks of an array."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from blobsync.backends.local.run_files import RunFiles
from blobsync.base.exit_codes import shell_code
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.process_identity import kill_marked
from blobsync.jobspec.spec import MARK, JobSpec, mark_of

# How long one may take to stop before a second request, which kills its processes.
PATIENCE_SECONDS = 10.0


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
