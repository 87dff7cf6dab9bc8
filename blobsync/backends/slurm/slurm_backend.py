"""Slurm: sbatch, squeue, sacct and scancel, on this machine or on a login node.

For Slurm 22.05 and later. Its JSON output differs between versions, so the fixed-width output of ``squeue -O`` and the
parsable one of ``sacct`` are read instead. Without accounting, Slurm forgets a job minutes after its end; then its
``exit_code`` file has the result.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from blobsync.backends.login_node import LoginNode
from blobsync.backends.port_forwarding import LOOPBACK, SshMachine, forward_line, read_host, read_machine
from blobsync.backends.protocol import (
    Backend,
    ClusterSummary,
    Holder,
    Outcome,
    Plan,
    PortForward,
    Refused,
    Surroundings,
    Unknown,
    settings_of,
)
from blobsync.backends.slurm import replies as slurm_replies
from blobsync.backends.slurm.script import build_script
from blobsync.base.errors import (
    BackendUnavailableError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    LostContactError,
    SubmissionError,
    TooManyTasksError,
    UsageError,
)
from blobsync.base.process import Completed
from blobsync.base.records import dataclass
from blobsync.jobspec.containers import image_text
from blobsync.jobspec.interactive import HOLDER, entering
from blobsync.jobspec.node_archive import travelling_sources
from blobsync.jobspec.spec import (
    RUN_ID,
    JobRef,
    JobSpec,
    LogFile,
    NodeChange,
    RunInfo,
    Secrets,
    State,
    run_name,
)
from blobsync.local.names import local_problem

# A submission whose response was lost is looked up in the accounting of so many days; sacct's default is today.
_LOOK_BACK = "now-7days"


@dataclass(frozen=True, slots=True)
class SlurmRequest:
    """Everything that is submitted except secrets."""

    folder: str
    script: str
    command: tuple[str, ...]


class SlurmBackend(Backend):
    """One cluster with Slurm."""

    name = "slurm"

    def __init__(self, around: Surroundings) -> None:
        self._settings = settings_of(around.cluster)
        self._python = str(self._settings.get("python") or "python3")
        ssh = self._settings.get("ssh")
        self._login = LoginNode(around.process, str(ssh) if ssh else None, around.environ, self._python)
        root = self._settings.get("job_root")
        self._job_root = str(root) if root else "~/.blobsync/jobs" if ssh else str(around.state_dir / "jobs")

    def plan(self, spec: JobSpec) -> Plan:
        folder = f"{self._job_root}/{run_name(spec.run_id)}"
        script = build_script(spec, {**self._settings, **spec.options})
        request = SlurmRequest(folder, script, ("sbatch", "--parsable", f"--chdir={folder}", f"{folder}/job.sh"))
        shown = (
            f"# {shlex.join(self._login.argv(request.command))}",
            f"# with {folder}/job.sh{image_text(spec)}:",
            script,
            f"# and {folder}/job.json:",
            spec.to_json(),
        )
        return Plan(spec, "\n".join(shown), request)

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        request: SlurmRequest = plan.request
        spec = plan.spec
        files = {"job.sh": request.script, "job.json": spec.to_json(), **travelling_sources(spec)}
        try:
            folder = self._login.write(request.folder, {**files, "secrets.json": secrets.to_json()})
            # A lost response must not create a second job.
            known = self.locate(spec)
        except BlobsyncError as error:
            return self._refused(spec, error)
        if known:
            return known
        try:
            done = self._login.run(("sbatch", "--parsable", f"--chdir={folder}", f"{folder}/job.sh"))
        except LostContactError as error:
            return self._find_lost(spec, error)
        except BlobsyncError as error:
            return self._refused(spec, error)
        number = slurm_replies.submitted_id(done.stdout)
        if done.returncode == 0 and slurm_replies.JOB_NUMBER.fullmatch(number):
            return JobRef(spec.run_id, number, folder)
        fewer = plan.spec.tasks is not None and slurm_replies.has_too_many_tasks(done.stderr)
        refusal = (TooManyTasksError if fewer else SubmissionError)(
            f"sbatch rejected the job: {slurm_replies.complaint(done.stderr)}",
            hint="see the request with blobsync submit --dry-run ...",
        )
        if done.returncode == 0 or slurm_replies.may_have_submitted(done.stderr):
            return self._find_lost(spec, refusal)
        return self._refused(spec, refusal)

    def locate(self, spec: JobSpec) -> JobRef | None:
        name = run_name(spec.run_id)
        known = next(iter(slurm_replies.read_squeue(self._squeue("--me", "-n", name))), None)
        known = known or next(iter(self._accounting(f"--name={name}", "-S", _LOOK_BACK)), None)
        # The job recorded its number, even if Slurm has forgotten it.
        folder, written = self._login.find(f"{self._job_root}/{name}")
        known = known or (written if slurm_replies.JOB_NUMBER.fullmatch(written) else None)
        return JobRef(spec.run_id, known, folder) if known else None

    def forget(self, spec: JobSpec) -> None:
        self._login.clear(f"{self._job_root}/{run_name(spec.run_id)}")

    def _find_lost(self, spec: JobSpec, error: BlobsyncError) -> Outcome:
        with suppress(BlobsyncError):
            known = self.locate(spec)
            if known:
                return known
        return Unknown(error)

    def _refused(self, spec: JobSpec, error: BlobsyncError) -> Outcome:
        try:
            self.forget(spec)
        except BlobsyncError:
            place = f"{self._job_root}/{spec.run_id}/secrets.json on {self._login.where}"
            error.hint = f"{error.hint or 'correct that'}; then remove {place}, if it is there"
        return Refused(error)

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        if not refs:
            return ()
        ids = {_number(ref): ref.run_id for ref in refs}
        found = _of_these(ids, slurm_replies.read_squeue(self._squeue("-j", ",".join(ids))))
        missing = [number for number in ids if number not in found]
        if missing:
            found = {**_of_these(ids, self._accounting("-j", ",".join(missing))), **found}
        by_number = {ref.native_id: ref for ref in refs}
        found = self._as_seen(found, lambda number: _place(by_number[number]))
        lost = [ref for ref in refs if ref.native_id not in found]
        over = [_place(ref) for ref in refs if ref.native_id in found and found[ref.native_id].state.is_final]
        # Slurm soon forgets tasks that have ended, while others still wait.
        arrays = [ref for ref in refs if ref.native_id in found and found[ref.native_id].tasks]
        ends: dict[JobRef, RunInfo | None] = {}
        if lost or over or arrays:
            answers = self._login.exit_codes([_place(ref) for ref in (*lost, *arrays)], over, [*map(_place, arrays)])
            ends = dict(zip((*lost, *arrays), answers, strict=True))
        return tuple(_info(ref.run_id, found.get(ref.native_id), ends.get(ref)) for ref in refs)

    def _as_seen(
        self, found: Mapping[str, slurm_replies.SlurmJob], place_of: Callable[[str], str]
    ) -> dict[str, slurm_replies.SlurmJob]:
        """The jobs, of which those run whose comment says that they prepare, though their command was started: where
        jobs may not change it. ``place_of`` gives a job's folder; of another user's it is not there."""
        marked = [number for number, job in found.items() if job.word == slurm_replies.PREPARING_WORD]
        answers = self._login.begun([place_of(number) for number in marked]) if marked else []
        running = [number for number, has_begun in zip(marked, answers, strict=True) if has_begun]
        return {**found, **{number: _running(found[number]) for number in running}}

    def cancel_task(self, ref: JobRef, number: int) -> None:
        self._cancel(ref, f"{_number(ref)}_{number}")

    def last_lines(self, ref: JobRef) -> Mapping[int, str]:
        return self._login.last_lines(_place(ref))

    def cancel(self, ref: JobRef) -> None:
        self._cancel(ref, _number(ref))

    def _cancel(self, ref: JobRef, number: str) -> None:
        # The name protects a job of another cluster with the same number.
        done = self._login.run(("scancel", f"--name={run_name(ref.run_id)}", number))
        if "Invalid job id" not in done.stderr:
            _demand_done(done, f"Slurm could not cancel {ref.native_id}")
        # The message is the same for an unknown job.
        if self.get([ref])[0].state is State.UNKNOWN:
            raise JobNotFoundError(f"Slurm does not know {ref.native_id} ({ref.run_id})")

    def scale(self, ref: JobRef, nodes: int) -> None:
        """Only to fewer nodes: https://slurm.schedmd.com/faq.html#job_size. The first one, with the script, stays.

        Slurm kills the processes on removed nodes at once.
        """
        info = self.get([ref])[0]
        if info.state is not State.RUNNING:
            raise JobError(f"{ref.run_id} is {info.state} on Slurm: only a job that runs can be scaled")
        if nodes > len(info.nodes):
            text = f"Slurm gives no more nodes to a job that runs: {ref.run_id} has {len(info.nodes)}"
            raise UsageError(text, hint=f"blobsync resubmit {ref.run_id} starts it again with as many as are free")
        if nodes < len(info.nodes):
            kept = ",".join(info.nodes[:nodes])
            done = self._login.run(("scontrol", "update", f"JobId={_number(ref)}", f"NodeList={kept}"))
            _demand_done(done, f"Slurm did not scale {ref.run_id}")

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        return self._login.logs(_place(ref))

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        return self._login.read(log.handle, start, end)

    def summary(self) -> ClusterSummary:
        nodes = self._ask(("sinfo", "-h", "-N", "-O", slurm_replies.SINFO_FORMAT))
        return slurm_replies.read_summary(nodes, self._squeue().splitlines())

    def blame(self) -> Sequence[Holder]:
        found = slurm_replies.read_tasks(self._squeue())

        def place_of(number: str) -> str:
            name, task = found[number].name, number.partition("_")[2]
            inner = f"/task_{task}" if task.isdigit() else ""
            return f"{self._job_root}/{run_name(name)}{inner}" if RUN_ID.fullmatch(name) else ""

        return slurm_replies.read_holders(self._as_seen(found, place_of).values())

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        place = _place(ref)
        shell = (self._python, "-I", f"{place}/{HOLDER}", *entering(place, node)) if holds else ("bash",)
        argv = self._login.argv((*self._beside(ref, node), "--pty", *shell))
        return (argv[0], "-t", *argv[1:]) if argv[0] == "ssh" else argv

    def forward_argv(self, ref: JobRef, forward: PortForward) -> Sequence[str]:
        """A tunnel from the login node to the node's address, or to the node itself through the login node."""
        node, login = self._node(ref, forward.node), self._login.host.removeprefix("ssh://")
        jump = read_machine(login, "ssh") if login else None
        if forward.node_ssh or jump is None:
            there = SshMachine(read_host(node, "node"))
            return forward_line(there, local=forward.local, remote=forward.remote, jump=jump)
        return forward_line(jump, local=forward.local, remote=forward.remote, to=self._address(node))

    def python_beside(self, ref: JobRef, node: int, source: str) -> Sequence[str]:
        return self._login.argv((*self._beside(ref, node), self._python, "-I", "-c", source))

    def program_address(self, ref: JobRef, forward: PortForward) -> str:
        behind_ssh = forward.node_ssh or not self._login.host
        return LOOPBACK if behind_ssh else self._address(self._node(ref, forward.node))

    def _beside(self, ref: JobRef, node: int) -> tuple[str, ...]:
        name = self._node(ref, node)
        return ("srun", "--overlap", "--jobid", _number(ref), "-w", name, "-N1", "-n1")

    def _node(self, ref: JobRef, node: int) -> str:
        info = self.get([ref])[0]
        if info.state.is_final or node >= len(info.nodes):
            raise JobError(f"{ref.run_id} is {info.state} and has no node {node}")
        return info.nodes[node]

    def _address(self, node: str) -> str:
        """The node's address, which may differ from its name."""
        answer = " ".join(self._ask(("scontrol", "show", "node", "-o", read_host(node, "node"))))
        found = re.search(r"\bNodeAddr=(\S+)", answer)
        return read_host(found[1] if found else node, "node")

    def _squeue(self, *selection: str) -> str:
        done = self._login.run(("squeue", "-h", "-t", "all", "-O", slurm_replies.SQUEUE_FORMAT, *selection))
        # squeue fails if the only requested job is forgotten.
        if done.returncode and "Invalid job id" not in done.stderr:
            raise _unavailable("squeue", done.stderr)
        return done.stdout

    def _accounting(self, *selection: str) -> Mapping[str, slurm_replies.SlurmJob]:
        command = ("sacct", "-n", "--parsable2", "-X", "-D", "-o", slurm_replies.SACCT_FORMAT)
        try:
            done = self._login.run((*command, *selection))
        except LostContactError:
            raise
        except BackendUnavailableError:
            return {}
        # Without slurmdbd accounting is disabled; our exit_code file is read next.
        return {} if done.returncode else slurm_replies.read_sacct(done.stdout)

    def _ask(self, command: Sequence[str]) -> Sequence[str]:
        done = self._login.run(command)
        if done.returncode:
            raise _unavailable(command[0], done.stderr)
        return done.stdout.splitlines()


def _running(job: slurm_replies.SlurmJob) -> slurm_replies.SlurmJob:
    """A job, with its tasks, that runs though its comment says that it prepares."""
    tasks = tuple(_running(task) if task.word == slurm_replies.PREPARING_WORD else task for task in job.tasks)
    return replace(job, word="RUNNING", tasks=tasks)


def _number(ref: JobRef) -> str:
    if not slurm_replies.JOB_NUMBER.fullmatch(ref.native_id):
        raise JobError(f"{ref.native_id!a}, recorded for {ref.run_id}, is not a Slurm job number")
    return ref.native_id


def _place(ref: JobRef) -> str:
    """The job's folder. Files are removed there, so that a record must not name another one."""
    if (
        not ref.place.startswith("/")
        or ref.place != f"{posixpath.dirname(ref.place).rstrip('/')}/{run_name(ref.run_id)}"
    ):
        raise JobError(f"{ref.place!a}, recorded for {ref.run_id}, is not its folder")
    if local_problem(ref.place[1:]):
        raise JobError(f"{ref.place!a}, recorded for {ref.run_id}, is not a folder")
    return ref.place


def _of_these(
    names: Mapping[str, str], found: Mapping[str, slurm_replies.SlurmJob]
) -> dict[str, slurm_replies.SlurmJob]:
    """Only the jobs with these names: other clusters use the same numbers, and Slurm restarts from 1."""
    return {number: job for number, job in found.items() if job.name in ("", names.get(number))}


def _info(run_id: str, job: slurm_replies.SlurmJob | None, end: RunInfo | None) -> RunInfo:
    """A job as Slurm has it (None: no longer), with what it recorded at its end."""
    if job is None:
        gone = RunInfo(run_id, State.UNKNOWN, reason="Slurm no longer knows it, and it recorded no exit code")
        return replace(end, run_id=run_id) if end else gone
    info = slurm_replies.as_run_info(run_id, job)
    if info.state is State.RUNNING:
        # It has the nodes requested last; when that changed is not recorded.
        size = len(info.nodes)
        info = replace(info, changes=(NodeChange(time.time(), size, size, seen=True),))
    # Slurm no longer lists all tasks that have ended.
    listed = {task.number for task in info.tasks}
    more = [task for task in end.tasks if task.number not in listed] if end else []
    return replace(info, tasks=(*info.tasks, *more))


def _demand_done(done: Completed, what: str) -> None:
    """Raise ``JobError`` for a command that failed, ``LostContactError`` if it may have been carried out."""
    if done.returncode:
        kind = LostContactError if slurm_replies.may_have_submitted(done.stderr) else JobError
        raise kind(f"{what}: {slurm_replies.complaint(done.stderr)}")


def _unavailable(program: str, stderr: str) -> BackendUnavailableError:
    return BackendUnavailableError(f"{program} does not respond: {slurm_replies.complaint(stderr)}")
