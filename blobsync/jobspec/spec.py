"""The specification of a job, which is submitted, recorded and resubmitted, and its state.

A :class:`JobSpec` contains no secret. Secret environment variables are recorded by name only (``secret_env``) and read
from the cluster file at each submission; SAS tokens are made per submission. Both are sent in :class:`Secrets`, beside
the specification.
"""

from __future__ import annotations

import getpass
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import Enum
from typing import Any, TypedDict

from blobsync.base.lazy_regexes import pattern
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.config.model import AML_PLATFORMS
from blobsync.local.names import SafeName, safe_name

VERSION = 1
# The length of a command line in ``repr``.
_SHOWN_CHARS = 60

# This variable marks the programs of a job's node or task.
MARK = "BLOBSYNC_NODE_OF"


def mark_of(run_id: str, number: int) -> str:
    """Its value for a node, or for a task."""
    return f"{run_id}/{number}"


# The file of a run folder with the job's exit code, where a launcher's is not: what the command of an elastic job ended
# with on node 0, or what the first failing process of another job ended with.
JOB_CODE = "job_code"

# MASTER_PORT without a launcher's: one of so many ports from the first on, computed from the job's id.
FIRST_MASTER_PORT, MASTER_PORTS = 20_000, 20_000

# https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2
_PLACEHOLDER = pattern(r"\$\{\{\s*(\w+\.\w+)\s*\}\}")
# The option that names the folder with one of the job's own, named like its id; the variable with its path on a node.
OWN_OUTPUT, OUTPUT_VARIABLE = "own_output", "BLOBSYNC_OUTPUT"

# The variable with the number of a task; what the variables with its parameters begin with.
TASK_VARIABLE, PARAMETER_VARIABLE = "BLOBSYNC_TASK", "BLOBSYNC_PARAM_"

# The secret variable with the transfer's key, in hexadecimal digits.
SPREAD_KEY = "BLOBSYNC_SPREAD_KEY"
# The secret variable with the keys of its checkpoints' marks, in JSON: by lineage, in hexadecimal digits.
LINEAGE_KEYS = "BLOBSYNC_LINEAGE_KEYS"
# The secret variables that blobsync adds: they are for its own program on nodes, and no other.
OWN_SECRETS = (SPREAD_KEY, LINEAGE_KEYS)

# Platforms that access containers, and keep logs, themselves.
SERVICES = AML_PLATFORMS


# Characters of ids that every service allows: no option, no path, nothing special in a shell or a URL.
RUN_ID = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


_VARIABLE = pattern(r"[A-Za-z_][A-Za-z0-9_]*")


def is_variable_name(name: str) -> bool:
    """Whether a shell accepts it as the name of a variable."""
    return _VARIABLE.fullmatch(name) is not None


# Each task of a Slurm array has a lineage of its own.
_TASK = pattern(r"(.+)_task_[0-9]+")


def lineage_of_job(lineage: str) -> str:
    """The lineage without the number of a job's task."""
    task = _TASK.fullmatch(lineage)
    return task[1] if task else lineage


def run_name(run_id: str) -> SafeName:
    """Check a job's id, which names a folder. Raises ``UnsafeNameError``."""
    return safe_name(run_id, allowed=RUN_ID)


def owner_name(environ: Mapping[str, str]) -> str:
    """The user's name as the prefix of job ids."""
    user = environ.get("USER") or getpass.getuser()
    return re.sub(r"[^a-z0-9-]+", "-", user.lower()).strip("-")[:24] or "job"


def submission_time(run_id: str) -> float | None:
    """The time of submission in a job's id, in seconds since 1970; None if there is none."""
    match = re.fullmatch(r".*_([0-9]{9,11})_[0-9a-f]+", run_id)
    return float(match[1]) if match else None


class State(str, Enum):
    """The state of a job, in ACT's words. A preempted job that waits again is ``QUEUED``."""

    QUEUED = "Queued"
    PREPARING = "Preparing"
    RUNNING = "Running"
    CANCELING = "Canceling"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"
    UNKNOWN = "Unknown"

    @property
    def is_final(self) -> bool:
        """Whether it is final."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The code archive of a job: a blob and the digest of its content.

    ``container`` is a URL without a SAS, or ``mounted:PATH`` on a node where it is mounted. The node refuses other
    content; an empty digest is unknown. ``size`` is the unpacked size in bytes, 0 if unknown.
    """

    container: str
    blob: str
    digest: str
    git_commit: str = ""
    git_dirty: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class FolderLink:
    """A folder entry on a node: ``$ROOT/<name>`` is ``<container>/<path>``.

    ``source`` is the target of mode ``link``. ``include`` are the parts that ``download`` fetches; empty: all.
    ``cache_seconds`` is for mounts. ``read_only``: nothing may be written behind a ``link``. ``ignore`` are patterns of
    files that transfers skip; ``fuse_options`` are options of blobfuse2. ``checkpoints`` are sets of files that
    ``upload`` treats as one. ``modes`` and ``times`` are kept in metadata.
    """

    name: str
    container: str
    path: str
    mode: str
    source: str = ""
    include: tuple[str, ...] = ()
    cache_seconds: int | None = None
    read_only: bool = False
    ignore: tuple[str, ...] = ()
    fuse_options: tuple[str, ...] = ()
    checkpoints: CheckpointRule | None = None
    modes: bool = False
    times: bool = False


@dataclass(frozen=True, slots=True)
class LogMirror:
    """The blob folder to which rank logs are copied while the job runs."""

    container: str
    path: str


@dataclass(frozen=True, slots=True)
class NodeArchiveRef:
    """The part of blobsync that runs on nodes: a blob (``container`` is a URL without a SAS), its SHA-256 and bytes."""

    container: str
    path: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class TaskArray:
    """The tasks of a job: its command once each. The platform's own queue hands them out.

    ``parallel`` of the ``count`` run at a time (0: as many as have room); a task asks for ``cpus`` (0: what the cluster
    gives). ``numbers`` are those of the tasks, in ascending order; empty: from 0 on. A sweep has parameters with these
    ``names``, whose values for each task are one of the ``rows``.
    """

    count: int
    parallel: int
    cpus: int = 0
    numbers: tuple[int, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)
    rows: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    @property
    def all_numbers(self) -> Sequence[int]:
        """The number of each task."""
        return self.numbers or range(self.count)

    def parameters(self, number: int) -> dict[str, str]:
        """The parameters of one task. Raises ``ValueError`` if there is no such task."""
        return self.parameters_at(self.all_numbers.index(number))

    def parameters_at(self, place: int) -> dict[str, str]:
        """The parameters of the task at this place of the list."""
        return dict(zip(self.names, self.rows[place], strict=True)) if self.rows else {}

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The values of each parameter, in the order of the tasks."""
        return dict(zip(self.names, zip(*self.rows, strict=True), strict=False))

    def only(self, numbers: Collection[int]) -> TaskArray:
        """Those of the tasks that have one of these numbers, which they keep."""
        at = [place for place, number in enumerate(self.all_numbers) if number in numbers]
        kept = tuple(self.all_numbers[place] for place in at)
        rows = tuple(self.rows[place] for place in at) if self.rows else ()
        return replace(self, count=len(at), parallel=min(self.parallel, len(at)), numbers=kept, rows=rows)


class JobOptions(TypedDict, total=False):
    """Options that only some jobs have. JSON values; keys of another version of blobsync are kept.

    ``work_dir``, ``command_prefix``, ``sleep_if_fail`` and ``sleep_if_succeed`` are keys of the cluster file.
    ``own_env`` are the variables that were set for this job alone. ``after`` is the job that has to complete first, by
    ``run_id`` and ``native_id``. ``container`` are the options of the image, ``own_output`` is the folder with one of
    the job's own, ``in_place`` the project of a job without a code archive, and ``hold`` how many seconds an
    interactive job waits. ``lineage`` is the id of the first of the jobs that were submitted in each other's place.
    ``locks`` are the digests of its locked folders as they were known when it was submitted.
    ``sealed_marks``: its checkpoints' marks have seals. ``earlier_marks``: the first of those jobs was this user's, and
    of a version whose marks had none. ``on_cpu``: its machine has no GPU.

    ``variables`` are set for each process, with its own values in place of ``$NAME``; ``wrapper`` are words before the
    command; ``outputs`` names folders of results, from the root of the job on; ``job_file`` is what it was made of.

    ``array`` to ``gres`` are options of ``sbatch`` that were given to ``submit``. ``spread`` are the orders of a
    transfer's tasks, with their seal. A job was not submitted from here, but by another program (``foreign``;
    ``unread`` lists what is unknown), or elsewhere (``recalled``).
    """

    locks: Mapping[str, str]
    work_dir: str
    command_prefix: str
    sleep_if_fail: Any
    sleep_if_succeed: Any
    variables: Mapping[str, str]
    wrapper: Sequence[str]
    outputs: Mapping[str, str]
    job_file: str
    container: Mapping[str, Any]
    own_output: str
    in_place: str
    hold: int
    lineage: str
    after: Mapping[str, str]
    own_env: Sequence[str]
    on_cpu: bool
    sealed_marks: bool
    earlier_marks: bool
    array: str
    partition: str
    qos: str
    time: str
    gres: str
    spread: Mapping[str, Any]
    foreign: bool
    unread: Sequence[str]
    recalled: bool


@dataclass(frozen=True, slots=True, repr=False)
class JobSpec:
    """Everything needed to run a job, here or elsewhere.

    ``argv`` is what the user's shell passed; a single argument with spaces is a shell line. ``setup`` are shell lines,
    run once per node. An elastic job begins with ``nodes``; its command runs once on each and starts
    ``workers_per_node`` processes itself. A job with ``tasks`` has ``nodes`` for each of them.
    """

    run_id: str
    argv: tuple[str, ...]
    cluster: str
    platform: str
    name: str = ""
    nodes: int = 1
    procs_per_node: int = 1
    gpus_per_node: int = 0
    min_nodes: int | None = None
    max_nodes: int | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: tuple[str, ...] = ()
    code: CodeRef | None = None
    folders: tuple[FolderLink, ...] = ()
    logs: LogMirror | None = None
    setup: tuple[str, ...] = ()
    timeout_s: int | None = None
    preemptible: bool = False
    retries: int = 0
    retry_exit_codes: tuple[int, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    options: JobOptions = field(default_factory=JobOptions)
    node_archive: NodeArchiveRef | None = None
    workers_per_node: int = 1
    tasks: TaskArray | None = None

    def __repr__(self) -> str:
        command = redact(shlex.join(self.argv))
        shown = command if len(command) <= _SHOWN_CHARS else f"{command[: _SHOWN_CHARS - 3]}..."
        return f"<JobSpec {self.run_id}: {shown!r} on {self.cluster} ({self.platform})>"

    @property
    def is_elastic(self) -> bool:
        """Whether blobsync may change its number of nodes while it runs."""
        return bool(self.min_nodes and self.max_nodes) and self.platform not in SERVICES

    @property
    def gpus(self) -> int:
        """The number of GPUs that it holds; none where it asked for some and its machine has none."""
        return 0 if self.options.get("on_cpu") else self.nodes * self.gpus_per_node

    @property
    def hold(self) -> int:
        """How many seconds an interactive job waits; 0: it runs a command."""
        seconds: object = self.options.get("hold", 0)
        return seconds if isinstance(seconds, int) and seconds > 0 else 0

    @property
    def own_env(self) -> tuple[str, ...]:
        """The names of the variables that were set for this job alone."""
        found: object = self.options.get("own_env")
        return tuple(str(each) for each in found) if isinstance(found, (list, tuple)) else ()

    @property
    def after(self) -> str:
        """The id of the job that has to complete first; empty: none has."""
        found: object = self.options.get("after")
        run_id = found.get("run_id") if isinstance(found, Mapping) else None
        return run_id if isinstance(run_id, str) and RUN_ID.fullmatch(run_id) else ""

    @property
    def spread(self) -> Mapping[str, Any] | None:
        """The orders of a transfer's tasks; None for other jobs."""
        found = self.options.get("spread")
        return found if isinstance(found, Mapping) else None

    @property
    def lineage(self) -> str:
        """The id of the first of the jobs that were submitted in each other's place: its own, if it is that one."""
        first = self.options.get("lineage")
        return first if isinstance(first, str) and RUN_ID.fullmatch(first) else self.run_id

    @property
    def has_checkpoints(self) -> bool:
        """Whether a folder has sets of files that are uploaded as one."""
        return any(folder.checkpoints for folder in self.folders)

    @property
    def has_earlier_marks(self) -> bool:
        """Whether a job in this one's place may take marks without seals: its lineage is this user's, and began when
        they had none. Asked of a job that was submitted from here."""
        began = self.has_checkpoints and not self.options.get("sealed_marks")
        return bool(self.options.get("earlier_marks") or began) and "recalled" not in self.options

    @property
    def is_foreign(self) -> bool:
        """Whether another program submitted it, so that this is incomplete."""
        return bool(self.options.get("foreign"))

    @property
    def unread(self) -> tuple[str, ...]:
        """The parts of such a job that are unknown."""
        found = self.options.get("unread")
        return tuple(str(each) for each in found) if self.is_foreign and isinstance(found, (list, tuple)) else ()

    @property
    def has_numbered_logs(self) -> bool:
        """Whether the logs' names have ranks. A task of a transfer on Kubernetes has its number in place of one."""
        return self.world_size > 1 or self.is_elastic or (self.spread is not None and self.platform == "kubernetes")

    @property
    def has_many_logs(self) -> bool:
        """Whether it has several logs."""
        return self.has_numbered_logs or "array" in self.options or self.tasks is not None

    @property
    def world_size(self) -> int:
        """How many processes run the command."""
        return self.nodes * self.procs_per_node

    def to_json(self) -> str:
        """One line of JSON, the same for equal specifications."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """The inverse of :meth:`to_json`; ``ValueError`` for invalid text, or another version's.

        Raises ``UnsafeNameError`` for an invalid id.
        """
        values = parse_object(text)
        if values.pop("version", None) != VERSION:
            raise ValueError("not a job specification of this version of blobsync")
        run_name(str(values.get("run_id")))
        try:
            spec = made_of(cls, values)
        except ValueError as error:
            raise ValueError(f"not a job specification: {error}") from error
        tasks = spec.tasks or TaskArray(0, 0)
        if len(tasks.numbers) not in (0, tasks.count) or len(tasks.rows) not in (0, tasks.count):
            raise ValueError("not as many tasks as it counts")
        if any(len(row) != len(tasks.names) for row in tasks.rows):
            raise ValueError("not as many parameters as tasks have names of")
        return spec


def own_inputs(spec: JobSpec) -> list[str]:
    """The inputs and outputs in a command of Azure ML, which exist only in that job: ``inputs.data``."""
    return sorted({match[1] for word in spec.argv for match in _PLACEHOLDER.finditer(word)})


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a node: SAS tokens by container URL, and secret environment values."""

    sas: Mapping[str, str] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def asked_for(self, spec: JobSpec) -> Secrets:
        """Only the variables that the job requires: another one, such as ``BASH_ENV``, could be a command."""
        own = [*([SPREAD_KEY] if spec.spread is not None else []), *([LINEAGE_KEYS] if spec.has_checkpoints else [])]
        names = (*spec.secret_env, *own)
        return Secrets(self.sas, {name: self.env[name] for name in names if name in self.env})

    def to_json(self) -> str:
        """The text of the file of secrets, which only its owner may read."""
        return json.dumps({"sas": dict(self.sas), "env": dict(self.env)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Secrets:
        """The inverse of :meth:`to_json`; ``ValueError`` for anything else, without quoting it."""
        try:
            return made_of(cls, parse_object(text))
        except ValueError:
            raise ValueError("not a file of secrets that blobsync wrote") from None


@dataclass(frozen=True, slots=True)
class JobRef:
    """A reference to a job: our id, the backend's id, and the place of its files or its page (or empty)."""

    run_id: str
    native_id: str
    place: str = ""

    @property
    def url(self) -> str:
        """The URL of the job's page, if its place is one."""
        return self.place if self.place.startswith("https://") else ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """From ``at`` on (seconds since 1970) an elastic job had ``running`` nodes of ``wanted``.

    ``seen``: the time of the change is unknown; ``at`` is when blobsync noticed it.
    """

    at: float
    running: int
    wanted: int
    seen: bool = False


@dataclass(frozen=True, slots=True)
class StateChange:
    """From ``at`` on (seconds since 1970) a job was in ``state``, after so many ``restarts``.

    ``seen``: the time of the change is unknown; ``at`` is when blobsync noticed it.
    """

    at: float
    state: State
    restarts: int = 0
    seen: bool = False


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The current state of one task of a job. Times in seconds since 1970; ``reason`` is for people."""

    number: int
    state: State
    exit_code: int | None = None
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The current state of a job. Times in seconds since 1970; ``reason`` is for people.

    ``restarts`` counts how often the job was requeued. ``changes`` are the known changes of an elastic job's size.
    ``states`` are the changes of its state with known times, besides ``started`` and ``ended``. ``tasks`` are in the
    order of their numbers. ``granted`` is when a job that runs, and may outlive its SAS, got them; 0: not known.
    """

    run_id: str
    state: State
    exit_code: int | None = None
    restarts: int = 0
    reason: str = ""
    started: float | None = None
    ended: float | None = None
    nodes: tuple[str, ...] = field(default=(), repr=False)
    changes: tuple[NodeChange, ...] = field(default=(), repr=False)
    states: tuple[StateChange, ...] = field(default=(), repr=False)
    tasks: tuple[TaskInfo, ...] = field(default=(), repr=False)
    granted: float = field(default=0, repr=False)

    @property
    def sentence(self) -> str:
        """``Failed (7): node 1 ended with exit code 7``; ``Running``."""
        code = f" ({self.exit_code})" if self.exit_code else ""
        return f"{self.state}{code}" + (f": {self.reason}" if self.reason else "")

    def of_task(self, number: int) -> TaskInfo:
        """The same as the state of a task, of which a platform tells as of a job."""
        return TaskInfo(number, self.state, self.exit_code, self.restarts, self.started, self.ended, self.reason)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log of a job: its name (``user_logs/std_log.txt``), size so far, and the backend's handle.

    ``begins`` is the first byte that can still be read.
    """

    name: str
    size: int | None
    handle: str
    begins: int = 0
