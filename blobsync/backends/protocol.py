"""The interface of every backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from blobsync.base.check_results import CheckResult
from blobsync.base.errors import BackendFailingError, BlobsyncError, LostContactError, UsageError
from blobsync.base.process import ProcessRunner
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.model import Cluster
from blobsync.jobspec.spec import JobRef, JobSpec, LogFile, RunInfo, Secrets, State


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A planned submission, decided without I/O.

    ``text`` is what ``submit --dry-run`` prints; ``request`` is the backend's form of it. Neither contains secrets.
    ``shown`` is ``text`` without unreadable parts.
    """

    spec: JobSpec
    text: str
    request: Any
    shown: str = ""

    def __repr__(self) -> str:
        return f"<Plan of {self.spec.run_id}: {len(self.text):,} characters>"


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend refused and did nothing; ``error`` is the reason."""

    error: BlobsyncError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The response was lost, and the request may have been carried out. ``error`` is the cause."""

    error: BlobsyncError


# The outcome of a submission; a reference to the job if the backend has accepted it.
Outcome = JobRef | Refused | Unknown
# The response was lost, or the other side failed: the request may have been carried out.
DOUBTFUL = (LostContactError, BackendFailingError)


@dataclass(frozen=True, slots=True)
class Holder:
    """A job of any user on the cluster, as in ``blame``."""

    user: str
    native_id: str
    name: str
    state: State
    gpus: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """The capacity of a cluster and its use; None: unknown."""

    nodes_total: int | None = None
    nodes_free: int | None = None
    gpus_total: int | None = None
    gpus_free: int | None = None
    jobs_running: int = 0
    jobs_queued: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The arguments of a backend; ``note`` reports waits to the user."""

    cluster: Cluster = field(repr=False)
    state_dir: Path
    environ: Mapping[str, str] = field(repr=False)
    process: ProcessRunner
    note: Callable[[str], None] = lambda text: None


def settings_of(cluster: Cluster) -> Mapping[str, Any]:
    """What a backend needs to know of its cluster file, under the names that it uses."""
    python = cluster.text("interpreter_path")
    return {
        **cluster.values,
        **cluster.mapping("runtime"),
        **({"python": python} if python else {}),
        **cluster.mapping(cluster.platform),
    }


# Backends whose clusters keep the secrets of an ended job until they are removed.
KEEP_SECRETS = ("kubernetes",)


class SeenJob(NamedTuple):
    """A job in the service's list, of any user; ``submitted`` in seconds since 1970."""

    spec: JobSpec
    ref: JobRef
    info: RunInfo
    submitted: float


class PortForward(NamedTuple):
    """Forwards port ``local`` of this machine to ``remote`` of a job's node.

    ``node_ssh``: nodes allow ssh for their jobs' owners, so that ports at 127.0.0.1 can be reached, too.
    """

    local: int
    remote: int
    node: int = 0
    node_ssh: bool = False


class Backend(Protocol):
    """A system that runs jobs; each derives from this. Every method except :meth:`plan` may do I/O.

    Errors: ``BackendUnavailableError`` if the backend cannot be reached, ``JobError`` for the rest. One of ``DOUBTFUL``
    from a request that changes a job: it may have been carried out. :meth:`submit` returns an outcome instead.
    """

    name: str

    def plan(self, spec: JobSpec) -> Plan:
        """Pure: the same spec gives the same plan, without I/O."""
        ...

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        """Submit the plan. Submitting one ``run_id`` twice creates one job if the backend allows it.

        ``Refused`` leaves no secret behind; ``Unknown`` leaves everything that the job would need.
        """
        ...

    def locate(self, spec: JobSpec) -> JobRef | None:
        """Find the job of a submission whose response was lost; None: not there (yet)."""
        ...

    def forget(self, spec: JobSpec) -> None:
        """Remove the secrets of a failed submission. Safe to repeat."""
        ...

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        """The states of jobs, in order, with few requests; ``UNKNOWN`` for jobs that no longer exist there."""
        ...

    def cancel(self, ref: JobRef) -> None:
        """Stop a job. Safe to repeat, also after its end. Raises ``JobNotFoundError`` for an unknown one."""
        ...

    def cancel_task(self, ref: JobRef, number: int) -> None:
        """Stop one task of a job, and let the others run. Safe to repeat, also after its end."""
        ...

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        """The logs so far, sorted by name; of these ``tasks`` alone where that costs less."""
        ...

    def last_lines(self, ref: JobRef) -> Mapping[int, str]:
        """The last line of each task that wrote any, by its number; empty where only the logs have it."""
        return {}

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive; None: to the end)."""
        ...

    def summary(self) -> ClusterSummary: ...

    def blame(self) -> Sequence[Holder]:
        """The users of the cluster."""
        ...

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        """The command that opens a shell on a node.

        ``holds``: the job is interactive, and the shell is part of it.
        """
        ...

    # -- what only some can do ----------------------------------------------------------------------------------

    def has_gpus(self) -> bool:
        """Whether there is any GPU for its jobs; only one of one machine can count them."""
        return True

    def examine(self, plan: Plan | None) -> Iterator[CheckResult]:
        """Check in advance the requirements of :meth:`submit`; a refusal is a result, not an error.

        ``plan`` None: the file is invalid. Raises ``ConfigError``.
        """
        return iter(())

    def scale(self, ref: JobRef, nodes: int) -> None:
        """Request a number of nodes within an elastic job's bounds. The last request counts; safe to repeat.

        Nodes with the highest numbers are removed first; node 0 stays.
        """
        raise UsageError(f"{ref.run_id} cannot be scaled: {self.name} cannot change a job that runs")

    def forward_argv(self, ref: JobRef, forward: PortForward) -> Sequence[str]:
        """The command that forwards the port while it runs. Raises ``JobError`` unless that node of the job runs."""
        raise UsageError(f"{self.name} opens no port of a job", hint=f"blobsync ssh {ref.run_id}")

    def python_beside(self, ref: JobRef, node: int, source: str) -> Sequence[str]:
        """The command that runs a Python program on a node, with our standard input and no terminal."""
        return (sys.executable, "-I", "-c", source)

    def program_address(self, ref: JobRef, forward: PortForward) -> str:
        """The address at which a program on the node must listen: 127.0.0.1, or the node's own."""
        return "127.0.0.1"

    def renew(self, ref: JobRef, secrets: Secrets) -> None:
        """Replace the secrets of a job that may outlive its SAS. Safe to repeat."""
        return

    def remove_secrets(self, refs: Sequence[JobRef]) -> None:
        """Remove what the cluster keeps of the secrets of ended jobs. Safe to repeat; raises if some may be left."""
        return

    @property
    def experiment(self) -> str:
        """The experiment of this cluster's jobs, where its service groups them."""
        return ""

    def newest(self, states: Collection[State], limit: int | None) -> Iterator[SeenJob]:
        """The experiment's jobs in these states, newest first, also of other programs."""
        return iter(())

    def recall(self, suffix: str) -> Iterator[tuple[JobSpec, JobRef]]:
        """Jobs whose id ends so, as the service keeps their specifications: of all users and machines, newest first."""
        return iter(())
