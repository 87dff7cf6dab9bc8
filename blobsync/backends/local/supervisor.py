"""Runs one job of the ``local`` backend, detached from the terminal that submitted it.

    python -m blobsync.backends.local.supervisor RUN_DIR

It waits for its turn, starts the node program, and writes ``state.json`` at each change. A file called ``cancel`` in
the run's directory ends it, and so does the job's time limit, which begins with its turn. As long as it lives it holds
``supervisor.lock``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from blobsync.backends.local.children import PlainNode, TaskPool
from blobsync.backends.local.elastic_nodes import Fleet
from blobsync.backends.local.queue import Capacity, LocalQueue, gpus_of, most_gpus_of
from blobsync.backends.local.run_files import RunFiles
from blobsync.base.process import ProcessRunner
from blobsync.jobspec.interactive import hold_text
from blobsync.jobspec.spec import JobSpec, State, run_name

POLL_SECONDS = 0.2


class Supervisor:
    """One run, from its place in the queue to its exit code."""

    def __init__(self, files: RunFiles, process: ProcessRunner, environ: Mapping[str, str]) -> None:
        self._files = files
        self._process = process
        self._environ = environ
        self._spec = JobSpec.from_json(files.job.read_text())
        values = json.loads(files.local.read_text())
        self._capacity = Capacity(values["slots"], tuple(values["gpus"]))
        self._queue = LocalQueue(Path(values["queue"]))
        self._arguments: list[str] = values["command"]
        self._stopped_by_limit = False

    def run(self) -> None:
        """Wait for the job's turn, run it, save its state; remove the secrets as soon as nothing needs them."""
        gpus = gpus_of(self._spec)
        try:
            if self._spec.after and (hindered := self._wait_for_the_first()) is not None:
                self._files.write_status(State.CANCELED, ended=time.time(), reason=hindered)
                return
            with self._queue.claimed(self._spec.run_id, gpus, most_gpus_of(self._spec)):
                given = self._wait_for_turn()
                if given is None:
                    self._files.write_status(State.CANCELED, ended=time.time())
                else:
                    self._run(given)
        finally:
            self._files.secrets.unlink(missing_ok=True)

    def _wait_for_the_first(self) -> str | None:
        """Wait until the job that comes first has completed; returns why this one does not run, if it does not."""
        first = RunFiles(self._files.folder.parent / run_name(self._spec.after))
        while not self._files.cancel.exists():
            status = first.read_status()
            if status and not status.state.is_final and first.supervisor_is_gone():
                # It may have saved the end meanwhile.
                status = first.read_status()
                status = status if status and status.state.is_final else None
            if status is None or status.state.is_final:
                if status and status.state is State.COMPLETED:
                    return None
                return f"{self._spec.after}, which had to complete first, is {status.state if status else 'gone'}"
            time.sleep(POLL_SECONDS)
        return ""

    def _wait_for_turn(self) -> tuple[str, ...] | None:
        while not self._files.cancel.exists():
            given = self._queue.try_start(self._spec.run_id, self._capacity)
            if given is not None:
                return given
            time.sleep(POLL_SECONDS)
        return None

    def _run(self, gpus: tuple[str, ...]) -> None:
        started = time.time()
        self._files.write_status(State.PREPARING, started=started)
        code = self._run_children(started, gpus)
        state, reason = State.FAILED if code else State.COMPLETED, ""
        if self._files.cancel.exists():
            state = State.CANCELED
        elif not code and any(task.state is State.CANCELED for task in self._files.read_tasks().values()):
            state, reason = State.CANCELED, "some of its tasks were canceled"
        elif self._stopped_by_limit:
            state, reason = State.FAILED, f"its time limit of {hold_text(self._spec.timeout_s or 0)} was over"
        self._files.write_status(state, code, started=started, ended=time.time(), reason=reason)

    def _is_to_stop(self, started: float) -> bool:
        """Whether the job was canceled, or its time limit has passed."""
        limit = self._spec.timeout_s
        if limit and time.time() - started > limit:
            self._stopped_by_limit = True
        return self._stopped_by_limit or self._files.cancel.exists()

    def _run_children(self, started: float, gpus: tuple[str, ...]) -> int:
        kind = Fleet if self._spec.is_elastic else TaskPool if self._spec.tasks is not None else PlainNode
        children = kind(self._spec, self._files, self._arguments, self._process, self._environ, gpus)
        saved = State.PREPARING
        while True:
            code = children.look(canceled=self._is_to_stop(started))
            if code is not None:
                return code
            state = State.CANCELING if self._files.cancel.exists() else self._files.phase()
            if state is not saved:
                saved = state
                self._files.write_status(state, started=started)
            children.wait(POLL_SECONDS)


def main(run_dir: str) -> int:
    """Supervise the run in this directory."""
    files = RunFiles(Path(run_dir))
    with files.supervised():
        Supervisor(files, ProcessRunner(), os.environ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
