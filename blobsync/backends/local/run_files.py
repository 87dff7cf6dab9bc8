"""The files of one run of the ``local`` backend, and its state."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blobsync.backends.login_node import LOG_FOLDERS, nonempty_logs
from blobsync.base.plain_json import made_of, parse_json, parse_object
from blobsync.base.user_folders import is_locked, locked, make_private, replace_file
from blobsync.jobspec.spec import JobSpec, LogFile, NodeChange, RunInfo, State, StateChange, TaskInfo

# A run without a supervisor after so many seconds will not run.
START_SECONDS = 60.0


class RunFiles:
    """The paths of a run's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The specification, and the supervisor's settings besides it.
        self.job, self.local = folder / "job.json", folder / "local.json"
        # SAS tokens and secret environment values; removed at the end of the run.
        self.secrets = folder / "secrets.json"
        # The folder into which the code is unpacked.
        self.root = folder / "root"
        self.state = folder / "state.json"
        # The node program makes it when it has prepared the node and starts the command.
        self._phase = folder / "phase"
        # Of an elastic job: the requested number of nodes, once it was changed, and changes of its nodes.
        self.wanted, self.changes = folder / "wanted", folder / "node_changes.jsonl"
        # The states of tasks: the last one of each counts.
        self.tasks = folder / "tasks.jsonl"
        # Messages of the supervisor and the node.
        self.log = folder / "system_logs" / "supervisor.txt"
        # If it exists, the supervisor ends the run.
        self.cancel = folder / "cancel"
        # Held by the supervisor as long as it lives.
        self.lock = folder / "supervisor.lock"

    def root_for(self, spec: JobSpec, node: int = 0) -> Path:
        """The root of a node: a folder of its own, or the folder in which the job runs in place."""
        if self.runs_in_place(spec):
            return Path(str(spec.options["in_place"]))
        return self.folder / f"root_{node}" if node else self.root

    def runs_in_place(self, spec: JobSpec) -> bool:
        """Whether the job runs in the user's own folder."""
        return spec.code is None and spec.spread is None

    def make(self, texts: Mapping[Path, str]) -> None:
        """Make the folder and its first files, readable by their owner only."""
        make_private(self.folder)
        for name in LOG_FOLDERS:
            (self.folder / name).mkdir(exist_ok=True)
        for path, text in texts.items():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as target:
                target.write(text)

    def remove(self) -> None:
        """Remove a run that never began; safe to repeat."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def phase(self) -> State:
        """``RUNNING`` once the node program has prepared the node and started the command."""
        return State.RUNNING if self._phase.exists() else State.PREPARING

    def note_running(self) -> None:
        """Say so in the place of the node program, once: the time of the file is when the job began to run."""
        if not self._phase.exists():
            self._phase.touch()

    def write_status(
        self,
        state: State,
        exit_code: int | None = None,
        *,
        started: float | None = None,
        ended: float | None = None,
        reason: str = "",
    ) -> None:
        values = {"state": state, "exit_code": exit_code, "started": started, "ended": ended, "reason": reason}
        replace_file(self.state, json.dumps(values).encode())

    def read_status(self) -> RunInfo | None:
        """What was saved: None without such a run, ``UNKNOWN`` for an invalid file."""
        try:
            # An earlier blobsync saved the GPUs, too.
            values = {**parse_object(self.state.read_text()), "run_id": self.folder.name}
            return made_of(RunInfo, values, newer=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            return RunInfo(self.folder.name, State.UNKNOWN)

    def read_states(self, started: float | None) -> tuple[StateChange, ...]:
        """When the run was prepared, ran and was asked to stop, from its files."""
        changes = [StateChange(started, State.PREPARING)] if started else []
        for state, file in ((State.RUNNING, self._phase), (State.CANCELING, self.cancel)):
            with suppress(OSError):
                changes.append(StateChange(file.stat().st_mtime, state))
        return tuple(changes)

    def write_wanted(self, nodes: int) -> None:
        """Save the requested number of nodes; the last request counts."""
        replace_file(self.wanted, str(nodes).encode())

    def read_wanted(self) -> int | None:
        """The requested number of nodes; None if there was no request."""
        try:
            return int(self.wanted.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def add_change(self, change: NodeChange, nodes: Collection[int]) -> None:
        """Append a change; ``nodes`` are the indexes of running nodes."""
        _append(self.changes, {**asdict(change), "nodes": sorted(nodes)})

    def read_changes(self) -> tuple[tuple[NodeChange, ...], tuple[int, ...]]:
        """All changes in order, and the indexes of running nodes; invalid lines are skipped."""
        changes: list[NodeChange] = []
        nodes: tuple[int, ...] = ()
        for values in _lines(self.changes):
            with suppress(ValueError, TypeError, KeyError, OverflowError):
                change = made_of(NodeChange, values, newer=True)
                nodes = tuple(map(int, values["nodes"]))
                changes.append(change)
        return tuple(changes), nodes

    def add_task(self, task: TaskInfo) -> None:
        """Append a task's state."""
        _append(self.tasks, asdict(task))

    def read_tasks(self) -> dict[int, TaskInfo]:
        """The last known states of tasks that have begun or were canceled; invalid lines are skipped."""
        found: dict[int, TaskInfo] = {}
        for values in _lines(self.tasks):
            with suppress(ValueError):
                task = made_of(TaskInfo, values)
                found[task.number] = task
        return found

    def cancel_task(self, number: int) -> None:
        """Ask the supervisor to end one task."""
        (self.folder / f"cancel_{number}").touch()

    def canceled_tasks(self) -> set[int]:
        """The tasks that are to end."""
        names = (name.removeprefix("cancel_") for name in os.listdir(self.folder) if name.startswith("cancel_"))
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """A context that holds the supervisor's lock.

        The file is locked before it gets its name, so that it is never seen unlocked while the supervisor lives.
        """
        own = self.lock.with_suffix(".new")
        with locked(own):
            own.replace(self.lock)
            yield

    def supervisor_is_gone(self) -> bool:
        """Whether the supervisor of a run that has not ended was killed, or the machine went down."""
        # A killed submission may have written the first files and no state.
        began = self.state if self.state.exists() else self.local
        if time.time() - began.stat().st_mtime < START_SECONDS and not self.lock.exists():
            return False
        return not is_locked(self.lock)

    def logs(self) -> tuple[LogFile, ...]:
        """The logs of all ranks, of the node and of all tasks, sorted by name."""
        folders = [self.folder / name for name in LOG_FOLDERS]
        folders += [folder for name in LOG_FOLDERS for folder in self.folder.glob(f"task_*/{name}")]
        found = [path for folder in folders for path in folder.glob("*") if path.is_file()]
        logs = (LogFile(path.relative_to(self.folder).as_posix(), path.stat().st_size, str(path)) for path in found)
        return nonempty_logs(sorted(logs, key=lambda log: log.name))


def _append(path: Path, values: Mapping[str, Any]) -> None:
    with path.open("a") as target:
        target.write(json.dumps(values) + "\n")


def _lines(path: Path) -> Iterator[Any]:
    """The values of a file of JSON lines, as far as there is one."""
    text = ""
    with suppress(OSError):
        text = path.read_text()
    for line in text.splitlines():
        # The last line may be incomplete.
        with suppress(ValueError):
            yield parse_json(line)


def remove_dead_secrets(jobs: Path) -> tuple[Path, ...]:
    """Remove the secrets of runs below ``jobs`` without a supervisor; returns what was removed.

    Supervisors do so at the end of a run; this is for killed ones. The run's programs have read the secrets already.
    Folders of other backends are left alone: their nodes still need them.
    """
    removed = []
    for secrets in jobs.glob("*/secrets.json"):
        files = RunFiles(secrets.parent)
        # The folder of a run may disappear meanwhile.
        with suppress(OSError):
            if files.local.is_file() and files.supervisor_is_gone():
                secrets.unlink()
                removed.append(secrets)
    return tuple(removed)
