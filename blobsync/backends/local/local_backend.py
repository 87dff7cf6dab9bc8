"""This machine: jobs wait in a small queue and outlive the terminal that submitted them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from blobsync.backends.local.children import MOST_AT_A_TIME
from blobsync.backends.local.elastic_nodes import address_of
from blobsync.backends.local.queue import Capacity, LocalQueue, gpus_of, most_gpus_of
from blobsync.backends.local.run_files import RunFiles
from blobsync.backends.login_node import LoginNode
from blobsync.backends.protocol import (
    Backend,
    ClusterSummary,
    Holder,
    Outcome,
    Plan,
    Refused,
    Surroundings,
    settings_of,
)
from blobsync.base.errors import BlobsyncError, ConfigError, JobError, JobNotFoundError, ProcessError, SubmissionError
from blobsync.base.formatting import count_text
from blobsync.base.process import ProcessRunner, python_module
from blobsync.base.records import dataclass
from blobsync.base.user_folders import state_home
from blobsync.config.trusted_docker import DockerArgs, demand_docker
from blobsync.jobspec.containers import find_runtime, image_text, wanted_image
from blobsync.jobspec.interactive import HOLDER, entering
from blobsync.jobspec.node_archive import holder_source
from blobsync.jobspec.spec import (
    MARK,
    JobRef,
    JobSpec,
    LogFile,
    RunInfo,
    Secrets,
    State,
    TaskInfo,
    owner_name,
    run_name,
)
from blobsync.local.os_errors import local_error

# The maximum of GPUs, or concurrent jobs, of one machine.
_MOST = 1024
# The maximum of nodes of an elastic job, each of which is a group of processes.
_MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class LocalRequest:
    """The run's folder, and the command that starts a node, without its rank and folder."""

    folder: Path
    command: tuple[str, ...]


class LocalBackend(Backend):
    """Runs jobs as processes of this machine. The user has one queue for all projects."""

    name = "local"

    def __init__(self, around: Surroundings) -> None:
        self._around, self._cluster = around, around.cluster
        self._settings = settings_of(around.cluster)
        self._runs = around.state_dir / "jobs"
        self._queue_dir = queue_folder(around.environ)

    def plan(self, spec: JobSpec) -> Plan:
        if spec.is_elastic or spec.tasks:
            _demand_room(spec)
        elif spec.nodes != 1:
            raise SubmissionError(
                f"this machine is one node, but the job requests {spec.nodes}",
                hint="use --nodes 1, or a cluster with more nodes",
            )
        # nvidia-smi runs only at submission.
        slots, gpus = self._slots(), self._named_gpus()
        if gpus is not None:
            _demand_gpus(spec, Capacity(slots, gpus))
        files = self._files(spec.run_id)
        settings = self._settings
        command = (
            *python_module("blobsync.node"),
            *(("spread", "--log") if spec.spread is not None else ("node",)),
            *("--job", str(files.job), "--secrets", str(files.secrets), "--run-dir", str(files.folder)),
            *("--keep-root", str(settings.get("keep_root") or "failed")),
            *("--sync-seconds", str(settings.get("sync_seconds") or 60)),
        )
        first = shlex.join((*command, "--root", str(files.root_for(spec)), "--node-rank", "0"))
        shown = (
            f"# on this machine, when it is its turn{image_text(spec)}:",
            first,
            f"# with {files.job}:",
            spec.to_json(),
        )
        return Plan(spec, "\n".join(shown), LocalRequest(files.folder, command))

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        known = self.locate(plan.spec)
        if known:
            return known
        try:
            self._demand_docker(plan.spec)
            return self._start(plan, secrets)
        except BlobsyncError as error:
            refusal = error
        except OSError as error:
            refusal = local_error(error, error.filename or plan.request.folder)
        self.forget(plan.spec)
        return Refused(refusal)

    def _demand_docker(self, spec: JobSpec) -> None:
        wanted = wanted_image(spec)
        if wanted:
            known = {*spec.env, *spec.secret_env}
            args = DockerArgs(wanted.args, self._cluster.root, self._cluster.name, wanted.file, known)
            demand_docker(args, self._around.environ)

    def locate(self, spec: JobSpec) -> JobRef | None:
        files = self._files(spec.run_id)
        return JobRef(spec.run_id, spec.run_id, str(files.folder)) if files.state.exists() else None

    def forget(self, spec: JobSpec) -> None:
        LocalQueue(self._queue_dir).leave(spec.run_id)
        self._files(spec.run_id).remove()

    def _start(self, plan: Plan, secrets: Secrets) -> JobRef:
        request: LocalRequest = plan.request
        files, spec = RunFiles(request.folder), plan.spec
        capacity = self._capacity()
        _demand_gpus(spec, capacity)
        self._demand_runtime(spec)
        # What waits for another job takes its place in the queue after that one's end, and holds up nobody.
        if not spec.after:
            LocalQueue(self._queue_dir).enter(spec.run_id, gpus_of(spec), most_gpus_of(spec))
        local = {
            "slots": capacity.slots,
            "gpus": capacity.gpus,
            "queue": str(self._queue_dir),
            "command": request.command,
        }
        files.make(
            {
                files.job: spec.to_json(),
                files.local: json.dumps(local),
                **{files.folder / name: text for name, text in holder_source(spec).items()},
                # Last, so that the owner of these files is recorded first.
                files.secrets: secrets.to_json(),
            }
        )
        files.write_status(State.QUEUED, reason=f"after {spec.after}" if spec.after else "")
        self._around.process.spawn_detached(
            (*python_module("blobsync.backends.local.supervisor"), str(files.folder)),
            log=files.log,
            # A job submitted by an elastic job's program is not part of that job.
            env={name: value for name, value in self._around.environ.items() if name != MARK},
            cwd=files.folder,
        )
        return JobRef(spec.run_id, spec.run_id, str(files.folder))

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        order = [entry.run_id for entry in LocalQueue(self._queue_dir).entries()]
        return tuple(_info(ref.run_id, self._files(ref.run_id), order) for ref in refs)

    def cancel(self, ref: JobRef) -> None:
        files = self._known(ref)
        status = files.read_status()
        if status and not status.state.is_final:
            with _as_local_error(files.cancel):
                files.cancel.touch()

    def scale(self, ref: JobRef, nodes: int) -> None:
        files = self._files(ref.run_id)
        status = files.read_status()
        if status is None or status.state.is_final:
            raise JobError(f"{ref.run_id} does not run on this machine any more", hint="blobsync q shows it")
        with _as_local_error(files.wanted):
            files.write_wanted(nodes)

    def cancel_task(self, ref: JobRef, number: int) -> None:
        files = self._known(ref)
        with _as_local_error(files.folder):
            files.cancel_task(number)

    def _known(self, ref: JobRef) -> RunFiles:
        """The files of a job. Raises ``JobNotFoundError`` if there are none."""
        files = self._files(ref.run_id)
        if not files.state.exists():
            raise JobNotFoundError(f"this machine does not know {ref.run_id}: there is no {files.folder}")
        return files

    def last_lines(self, ref: JobRef) -> Mapping[int, str]:
        here = LoginNode(self._around.process, None, self._around.environ, sys.executable)
        return here.last_lines(str(self._files(ref.run_id).folder))

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        return self._files(ref.run_id).logs()

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        try:
            with open(log.handle, "rb") as source:
                source.seek(start)
                return source.read(-1 if end is None else max(0, end - start))
        except OSError as error:
            raise JobError(f"the log {log.name} cannot be read: {error.strerror}") from error

    def summary(self) -> ClusterSummary:
        capacity = self._capacity()
        entries = LocalQueue(self._queue_dir).entries()
        running = [entry for entry in entries if entry.running]
        held = sum(len(entry.held) for entry in running)
        slots = f"jobs without GPUs: {capacity.slots} at a time"
        return ClusterSummary(
            1,
            int(not running),
            len(capacity.gpus),
            len(capacity.gpus) - held,
            len(running),
            len(entries) - len(running),
            (slots,),
        )

    def blame(self) -> Sequence[Holder]:
        user = owner_name(self._around.environ)
        return tuple(
            Holder(user, entry.run_id, "", State.RUNNING if entry.running else State.QUEUED, len(entry.held), 1)
            for entry in LocalQueue(self._queue_dir).entries()
        )

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        if holds:
            return self._enter_command(ref, node)
        raise JobError(f"{ref.run_id} runs on this machine: no connection is needed", hint=f"cd {ref.place}")

    def _enter_command(self, ref: JobRef, node: int) -> Sequence[str]:
        files = self._files(ref.run_id)
        (info,) = self.get([ref])
        if info.state is not State.RUNNING:
            raise JobError(f"{ref.run_id} is {info.state}: only a running job can be entered")
        if node:
            raise JobError(f"{ref.run_id} has no node {node}: this machine is one node")
        return (sys.executable, "-I", str(files.folder / HOLDER), *entering(str(files.folder), node))

    def _files(self, run_id: str) -> RunFiles:
        # The place in a record is only displayed: runs are in the state folder.
        return RunFiles(self._runs / run_name(run_id))

    def _demand_runtime(self, spec: JobSpec) -> None:
        """Raise ``ConfigError`` unless a runtime for the job's image is installed."""
        wanted = wanted_image(spec)
        if wanted is not None:
            try:
                find_runtime(wanted, self.name, self._around.process)
            except JobError as error:
                raise self._cluster.error(("docker", "image"), error.message, hint=error.hint) from error

    def has_gpus(self) -> bool:
        return bool(self._capacity().gpus)

    def _capacity(self) -> Capacity:
        gpus = self._named_gpus()
        return Capacity(self._slots(), _numbers(count_gpus(self._around.process)) if gpus is None else gpus)

    def _slots(self) -> int:
        return max(1, _count(self._cluster.value("local.slots") or 1, "slots"))

    def _named_gpus(self) -> tuple[str, ...] | None:
        """The GPUs that the cluster file or the environment names; None if neither does."""
        given = self._cluster.value("local.gpus")
        if given is not None:
            return _numbers(_count(given, "gpus"))
        return visible_gpus(self._around.environ)


@contextmanager
def _as_local_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise local_error(error, path) from error


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs in ``CUDA_VISIBLE_DEVICES``: numbers or names; None if it is not set."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    # CUDA takes -1 for the end of the list.
    names = [name.strip() for name in visible.split(",")]
    return tuple(takewhile(lambda name: name not in ("", "-1"), names))


def count_gpus(process: ProcessRunner) -> int:
    """The number of GPUs that nvidia-smi shows; 0 if it cannot say."""
    try:
        done = process.run(("nvidia-smi", "-L"), timeout=30)
    except ProcessError:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0


def _count(value: object, key: str) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ConfigError(f"must be a whole number up to {_MOST}", key=f"local.{key}")
    return value


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def queue_folder(environ: Mapping[str, str]) -> Path:
    """The user's queue on this machine, which all projects share as they share GPUs."""
    return state_home(environ) / "local-queue"


def _info(run_id: str, files: RunFiles, order: Sequence[str]) -> RunInfo:
    status = files.read_status()
    if status and not status.state.is_final and files.supervisor_is_gone():
        # The supervisor records the job's end and then exits: an earlier read may be out of date.
        status = files.read_status()
        if status and not status.state.is_final:
            ended = files.state.stat().st_mtime
            reason, tasks = "its supervisor died, or the machine went down", _tasks(files, State.FAILED)
            return replace(status, state=State.FAILED, reason=reason, ended=ended, tasks=tasks)
    if status is None:
        return RunInfo(run_id, State.UNKNOWN, reason="its directory was deleted")
    state, reason = status.state, status.reason
    if state is State.QUEUED and run_id in order:
        reason = f"{count_text(order.index(run_id), 'job')} before it" if order.index(run_id) else ""
    if state is State.PREPARING:
        # Its supervisor writes the next state a moment later.
        state = files.phase()
    if not state.is_final and files.cancel.exists():
        state = State.CANCELING
    changes, nodes = files.read_changes()
    hosts = tuple(map(address_of, nodes)) if changes else ("localhost",)
    found = replace(status, state=state, reason=reason, nodes=hosts, changes=changes)
    return replace(found, states=files.read_states(status.started), tasks=_tasks(files, state))


def _tasks(files: RunFiles, state: State) -> tuple[TaskInfo, ...]:
    """The states of the tasks of a job in ``state``; empty before the first has begun, and for other jobs."""
    known = files.read_tasks()
    if not known:
        return ()
    array, unwanted = JobSpec.from_json(files.job.read_text()).tasks, files.canceled_tasks()
    found = []
    for number in array.all_numbers if array else ():
        task = known.get(number) or TaskInfo(number, State.QUEUED)
        if state.is_final and not task.state.is_final:
            # Its supervisor was killed.
            task = replace(task, state=state)
        elif number in unwanted and not task.state.is_final:
            task = replace(task, state=State.CANCELING)
        found.append(task)
    return tuple(found)


def _demand_gpus(spec: JobSpec, capacity: Capacity) -> None:
    gpus = gpus_of(spec)
    if capacity.wants(gpus) > len(capacity.gpus):
        raise SubmissionError(
            f"this machine has {count_text(len(capacity.gpus), 'GPU')}, but the job requests {gpus}",
            hint=f"use -n {len(capacity.gpus)}",
        )


def _demand_room(spec: JobSpec) -> None:
    if spec.tasks and spec.tasks.parallel > MOST_AT_A_TIME:
        raise SubmissionError(
            f"this machine runs at most {MOST_AT_A_TIME:,} tasks of a job at a time, not {spec.tasks.parallel:,}"
        )
    if spec.tasks and spec.nodes != 1:
        raise SubmissionError(f"this machine is one node, but a task requests {spec.nodes}", hint="use --nodes 1")
    if (spec.max_nodes or 0) > _MOST_NODES:
        raise SubmissionError(
            f"this machine takes at most {_MOST_NODES:,} nodes of a job, but it may have {spec.max_nodes}",
            hint=f"--elastic {spec.min_nodes}:{_MOST_NODES}",
        )
