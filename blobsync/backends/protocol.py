"""The interface of every backend; everything else is built on it once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from blobsync.base.check_results import CheckResult
from blobsync.base.errors import BlobsyncError
from blobsync.base.process import ProcessRunner
from blobsync.config.model import Cluster
from blobsync.jobspec.spec import JobRef, JobSpec, LogFile, RunInfo, Secrets, State

# Optional capabilities of a backend.
CAPABILITIES = frozenset({"array", "blame", "elastic", "live_logs", "nodes", "requeue", "scale", "ssh"})


# A backend's own form of a request.
_Request = TypeVar("_Request")


@dataclass(frozen=True, slots=True)
class Plan(Generic[_Request]):
    """What would be submitted, decided without reading anything outside.

    ``text`` is what ``submit --dry-run`` prints; ``request`` is the backend's form of it.
    Neither holds a secret. ``shown`` is ``text`` for people, where that holds what nobody can read.
    ``warnings`` are what the user should know before the job is accepted.
    """

    spec: JobSpec
    text: str
    request: _Request
    warnings: tuple[str, ...] = ()
    shown: str = ""

    def __repr__(self) -> str:
        return f"<Plan of {self.spec.run_id}: {len(self.text):,} characters>"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The backend accepted: it has the job, or will stop it."""

    ref: JobRef


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend refused and did nothing; ``error`` is the reason."""

    error: BlobsyncError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The response was lost: the request may have been carried out. ``error`` is the cause."""

    error: BlobsyncError


# The outcome of a request to another system.
Outcome = Accepted | Refused | Unknown


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody's job on the cluster, as ``blame`` shows it."""

    user: str
    native_id: str
    name: str
    state: State
    gpus: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """What a cluster has and what is in use; None if unknown."""

    nodes_total: int | None = None
    nodes_free: int | None = None
    gpus_total: int | None = None
    gpus_free: int | None = None
    jobs_running: int = 0
    jobs_queued: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a backend is built from. ``settings`` are the cluster's options that only the backend understands.

    ``configured`` is the whole cluster file with its storage accounts, for places that reach containers themselves.
    ``note`` is told what a user should know while waiting.
    """

    cluster: str
    project: Path
    state_dir: Path
    settings: Mapping[str, Any]
    environ: Mapping[str, str] = field(repr=False)
    process: ProcessRunner
    configured: Cluster | None = field(default=None, repr=False)
    note: Callable[[str], None] = lambda text: None


@runtime_checkable
class Examining(Protocol):
    """A backend that tries beforehand what :meth:`Backend.submit` asks for."""

    def examine(self, plan: Plan[Any] | None) -> Iterator[CheckResult]:
        """What would be refused is a result, not an error; ``plan`` None: the file allows none. Raises
        ``ConfigError``."""
        ...


class Backend(Protocol[_Request]):
    """One place that runs jobs. Every method except :meth:`plan` may do I/O.

    Errors: ``BackendUnavailableError`` if the backend cannot be reached, ``JobError`` for the rest. :meth:`submit`
    and :meth:`cancel`, which change something there, return the outcome instead.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[str]: ...

    def plan(self, spec: JobSpec) -> Plan[_Request]:
        """Pure: the same spec gives the same plan, without I/O."""
        ...

    def submit(self, plan: Plan[_Request], secrets: Secrets) -> Outcome:
        """Submit the plan. Submitting one ``run_id`` twice creates one job if the backend allows it.

        ``Refused`` leaves no secret there; ``Unknown`` leaves everything that the job would need.
        """
        ...

    def locate(self, spec: JobSpec) -> JobRef | None:
        """The job of a submission whose response was lost; None: the backend does not know it (yet)."""
        ...

    def forget(self, spec: JobSpec) -> None:
        """Remove the secrets of a submission that never arrived. Safe to repeat."""
        ...

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        """The state of all of them, in their order, with few requests; forgotten ones are ``UNKNOWN``."""
        ...

    def list(self, *, states: Collection[State] = (), limit: int | None = None) -> Iterator[RunInfo]:
        """Jobs of blobsync that the backend knows, newest first."""
        ...

    def cancel(self, ref: JobRef) -> Outcome:
        """Stop it. Safe to call twice, and for a job that has ended; an unknown one is ``Refused``."""
        ...

    def logs(self, ref: JobRef) -> Sequence[LogFile]:
        """The logs there are so far, sorted by name."""
        ...

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive; None: all there is)."""
        ...

    def summary(self) -> ClusterSummary: ...

    def blame(self) -> Sequence[Holder]:
        """Who uses the cluster; only with capability ``blame``."""
        ...

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        """The command that opens a shell beside the job; only with capability ``ssh``.

        ``holds``: the job waits for people, and the shell is to be one of its own.
        """
        ...


@runtime_checkable
class Scaling(Protocol):
    """A backend that changes the number of nodes of elastic jobs while they run (capability ``scale``)."""

    def scale(self, ref: JobRef, nodes: int) -> Outcome:
        """Ask for this number of nodes, which lies within the job's bounds. The last request counts; safe to repeat.

        Node 0 stays; when there are to be fewer, those with the highest numbers go.
        """
        ...


@dataclass(frozen=True, slots=True)
class PortForward:
    """``local`` of this machine stands for ``remote`` of a job's node.

    ``node_ssh``: the nodes let their jobs' owner in by ssh, so that also what listens at their 127.0.0.1 is reached.
    """

    local: int
    remote: int
    node: int = 0
    node_ssh: bool = False


@runtime_checkable
class Tunnelling(Protocol):
    """A backend whose nodes are reached through a command that stays: their ports, and programs beside the job."""

    def forward_argv(self, ref: JobRef, forward: PortForward) -> Sequence[str]:
        """The command that holds the port open. Raises ``JobError`` unless that node of the job runs."""
        ...

    def python_beside(self, ref: JobRef, node: int, source: str) -> Sequence[str]:
        """The command that runs a Python program on a node of the job, with our standard input and no terminal."""
        ...

    def program_address(self, ref: JobRef, forward: PortForward) -> str:
        """Where a program on the node has to listen to be reached: 127.0.0.1, or the node's own address."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A backend that can hand a job new secrets while it runs: a job may outlive its SAS."""

    def is_lapsing(self, ref: JobRef) -> bool:
        """Whether half of the time of its SAS has passed, as the latest :meth:`Backend.get` has shown."""
        ...

    def renew(self, ref: JobRef, secrets: Secrets) -> None:
        """Put these in the place of the job's secrets. Safe to repeat."""
        ...


# Backends whose clusters keep the secrets of a job that has ended until somebody removes them.
KEEP_SECRETS = ("kubernetes",)


@runtime_checkable
class KeepingSecrets(Protocol):
    """One of those."""

    def remove_secrets(self, refs: Sequence[JobRef]) -> None:
        """The secrets of jobs that have ended. Safe to repeat; raises where some may be left."""
        ...


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as its service lists it, whoever submitted it; ``submitted`` in seconds since 1970."""

    spec: JobSpec
    ref: JobRef
    info: RunInfo
    submitted: float


@runtime_checkable
class Grouping(Protocol):
    """A backend whose service keeps jobs in experiments, whoever submitted them."""

    @property
    def experiment(self) -> str:
        """The one that this cluster's jobs belong to."""
        ...

    def newest(self, states: Collection[State], limit: int | None) -> Iterator[SeenJob]:
        """Its jobs in these states, newest first, other programs' included."""
        ...


@runtime_checkable
class Recalling(Protocol):
    """A backend that stores specifications, so it can find jobs that this project has no record of."""

    def recall(self, suffix: str) -> Iterator[tuple[JobSpec, JobRef]]:
        """Jobs whose id ends so, other people's and other machines' included, newest first."""
        ...
