"""What a job is: the frozen description that is submitted, recorded and submitted again, and its state.

A :class:`JobSpec` holds no secret. Environment values that look like one are kept by name only
(``secret_env``) and taken from the cluster's configuration again whenever the job is submitted; SAS
tokens are minted per submission and travel in :class:`Secrets`, beside the spec.
"""

from __future__ import annotations

import getpass
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TypedDict

from blobsync.base.plain_json import demand_types, parse_object
from blobsync.base.redaction import redact
from blobsync.config.model import AML_PLATFORMS
from blobsync.local.names import SafeName, safe_name

VERSION = 1
# How much of a command line a representation shows.
_SHOWN_CHARS = 60

# The node could not be prepared (code, folders, setup commands): not a failure of the user's program.
SETUP_FAILED_EXIT = 72
# The program succeeded, but its outputs could not be uploaded.
OUTPUT_FAILED_EXIT = 73

# By this variable the programs that a node of an elastic job has left behind are known.
MARK = "BLOBSYNC_NODE_OF"

# The file of an elastic job's run folder with what its command ended with on node 0.
JOB_CODE = "job_code"

# MASTER_PORT, where no launcher says it: one of so many ports from the first on, by the job's id, so that all processes
# work out the same one.
FIRST_MASTER_PORT, MASTER_PORTS = 20_000, 20_000

# https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2
_PLACEHOLDER = re.compile(r"\$\{\{\s*(\w+\.\w+)\s*\}\}")
# The option that names the folder in which the job has one of its own, called like its id; the variable that says
# where that is on a node.
OWN_OUTPUT, OUTPUT_VARIABLE = "own_output", "BLOBSYNC_OUTPUT"

# The secret variable with which the workers of a transfer know what is theirs, in hexadecimal digits.
SPREAD_KEY = "BLOBSYNC_SPREAD_KEY"

# Platforms that reach containers, and keep logs, by themselves.
SERVICES = AML_PLATFORMS


# The characters of ids on every service: no option, no path, nothing special to a shell or a URL.
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_variable_name(name: str) -> bool:
    """Whether a shell takes it as the name of a variable."""
    return _VARIABLE.fullmatch(name) is not None


def run_name(run_id: str) -> SafeName:
    """The id of a job as the name of a folder. Raises ``UnsafeNameError`` for what is no id of a job."""
    return safe_name(run_id, allowed=RUN_ID)


def owner_name(environ: Mapping[str, str]) -> str:
    """The user, as ids of jobs begin."""
    user = environ.get("USER") or getpass.getuser()
    return re.sub(r"[^a-z0-9-]+", "-", user.lower()).strip("-")[:24] or "job"


def submission_time(run_id: str) -> float | None:
    """When the job was submitted, in seconds since 1970, as its id says; None where that is no time."""
    match = re.fullmatch(r".*_([0-9]{9,11})_[0-9a-f]+", run_id)
    return float(match[1]) if match else None


class State(str, Enum):
    """Where a job stands, in ACT's words. A job that was preempted and waits again is ``QUEUED``."""

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
        """Whether nothing will change any more."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})


@dataclass(frozen=True, slots=True)
class CodeRef:
    """The code archive that a job runs: a blob (``container`` is a URL without a SAS) and the digest of its content.

    The node refuses other content; an empty digest means that it is not known. ``size`` is how many bytes the files
    have when they are unpacked, 0 where nobody knows.
    """

    container: str
    blob: str
    digest: str
    git_commit: str = ""
    git_dirty: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class FolderLink:
    """One folder entry as a node sees it: ``$ROOT/<name>`` stands for ``<container>/<path>``.

    ``source`` is the directory that mode ``link`` points at. ``include`` names the parts of the folder
    that ``download`` brings; empty means all of it. ``cache_seconds`` is for mounts. ``read_only`` says that
    nothing may be written behind a ``link``. ``ignore`` are patterns of files that transfers leave out;
    ``fuse_options`` are words for blobfuse2.
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


@dataclass(frozen=True, slots=True)
class LogMirror:
    """The blob folder that rank logs are copied to while the job runs, so that they outlive the machine."""

    container: str
    path: str


@dataclass(frozen=True, slots=True)
class NodeArchiveRef:
    """The part of blobsync that runs on nodes: a blob (``container`` is a URL without a SAS), its SHA-256 and bytes."""

    container: str
    path: str
    digest: str
    size: int


class NodeOptions(TypedDict, total=False):
    """What the node does around the command: keys of the cluster file as they stand there (``work_dir``,
    ``command_prefix``, ``sleep_if_fail``, ``sleep_if_succeed``, ``batchai``), and where the job runs.

    ``container`` says how to run the image, ``own_output`` names the folder with one of the job alone, ``in_place`` is
    the project of a job without a code archive, and ``hold`` how many seconds an interactive job waits.
    """

    work_dir: str
    command_prefix: str
    sleep_if_fail: Any
    sleep_if_succeed: Any
    batchai: Mapping[str, Any]
    container: Mapping[str, Any]
    own_output: str
    in_place: str
    hold: int


class SlurmOptions(TypedDict, total=False):
    """Options of ``sbatch``, as they were given to ``submit``."""

    array: str
    partition: str
    qos: str
    time: str
    gres: str


class SpreadOptions(TypedDict, total=False):
    """The orders of a transfer's workers, with their seal."""

    spread: Mapping[str, Any]


class ForeignOptions(TypedDict, total=False):
    """Marks a job that was not submitted from here: by another program (``foreign``, with what of it is ``unread``),
    or elsewhere (``recalled``)."""

    foreign: bool
    unread: Sequence[str]
    recalled: bool


class JobOptions(NodeOptions, SlurmOptions, SpreadOptions, ForeignOptions, total=False):
    """What only some jobs have. JSON values; keys of another version of blobsync are kept as they are."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything that is needed to run a job, and to run it again elsewhere.

    ``argv`` is what the user's shell passed, never joined and split again; one single argument with
    spaces in it is a shell line. ``setup`` are shell lines, run once per node. ``options`` are what
    only some jobs have. An elastic job begins with ``nodes``; its
    command runs once on each and starts ``workers_per_node`` processes itself.
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

    def __repr__(self) -> str:
        command = redact(shlex.join(self.argv))
        shown = command if len(command) <= _SHOWN_CHARS else f"{command[: _SHOWN_CHARS - 3]}..."
        return f"<JobSpec {self.run_id}: {shown!r} on {self.cluster} ({self.platform})>"

    @property
    def is_elastic(self) -> bool:
        """Whether its number of nodes may change while it runs, and blobsync sees to that."""
        return bool(self.min_nodes and self.max_nodes) and self.platform not in SERVICES

    @property
    def hold(self) -> int:
        """How many seconds an interactive job waits for people at least; 0: it runs a command."""
        seconds: object = self.options.get("hold", 0)
        return seconds if isinstance(seconds, int) and seconds > 0 else 0

    @property
    def spread(self) -> Mapping[str, Any] | None:
        """The orders of a transfer's workers; None for a job with a command of the user's."""
        found = self.options.get("spread")
        return found if isinstance(found, Mapping) else None

    @property
    def is_foreign(self) -> bool:
        """Whether another program submitted it: then this is only what could be read of it."""
        return bool(self.options.get("foreign"))

    @property
    def unread(self) -> tuple[str, ...]:
        """What such a job has that could not be read."""
        found = self.options.get("unread")
        return tuple(str(each) for each in found) if self.is_foreign and isinstance(found, (list, tuple)) else ()

    @property
    def has_numbered_logs(self) -> bool:
        """Whether the logs of its processes are told apart by their ranks."""
        return self.world_size > 1 or self.is_elastic

    @property
    def has_many_logs(self) -> bool:
        """Whether several programs of it write a log each."""
        return self.has_numbered_logs or "array" in self.options

    @property
    def world_size(self) -> int:
        """How many processes run the command."""
        return self.nodes * self.procs_per_node

    def to_json(self) -> str:
        """One line of JSON, the same for equal specs."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """The inverse of :meth:`to_json`; ``ValueError`` for another version's text, or one that nobody here wrote.

        Raises ``UnsafeNameError`` where the id is none.
        """
        values = parse_object(text)
        if values.pop("version", None) != VERSION:
            raise ValueError("not a job specification of this version of blobsync")
        run_name(str(values.get("run_id")))
        try:
            spec = _from_plain(values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a job specification: {error}") from error
        demand_types(spec)
        return spec


def own_inputs(spec: JobSpec) -> list[str]:
    """What the command of a job of Azure ML names that only the job itself has: ``inputs.data``."""
    return sorted({match[1] for word in spec.argv for match in _PLACEHOLDER.finditer(word)})


def _from_plain(values: dict[str, Any]) -> JobSpec:
    code, logs, archive = values.pop("code"), values.pop("logs"), values.pop("node_archive", None)
    folders = tuple(_folder_link(entry) for entry in values.pop("folders"))
    for name in ("argv", "secret_env", "setup", "retry_exit_codes"):
        values[name] = _listed(values[name])
    return JobSpec(
        **values,
        code=CodeRef(**code) if code else None,
        logs=LogMirror(**logs) if logs else None,
        node_archive=NodeArchiveRef(**archive) if archive else None,
        folders=folders,
    )


def _folder_link(entry: dict[str, Any]) -> FolderLink:
    include = _listed(entry["include"])
    # Jobs that an older blobsync recorded have neither of these.
    listed = {name: _listed(entry.get(name, [])) for name in ("ignore", "fuse_options")}
    return FolderLink(**{**entry, "include": include, **listed})


def _listed(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list):
        # A text is a sequence, too.
        raise TypeError("a list is missing")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a node: SAS tokens by container URL, and secret environment values."""

    sas: Mapping[str, str] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def asked_for(self, spec: JobSpec) -> Secrets:
        """Without variables that the job does not ask for: ``BASH_ENV`` would be a command."""
        names = (*spec.secret_env, *((SPREAD_KEY,) if spec.spread is not None else ()))
        return Secrets(self.sas, {name: self.env[name] for name in names if name in self.env})

    def to_json(self) -> str:
        """The content of a file that only its owner may read."""
        return json.dumps({"sas": dict(self.sas), "env": dict(self.env)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Secrets:
        """The inverse of :meth:`to_json`; ``ValueError`` for anything else, without quoting it."""
        try:
            values = parse_object(text)
            secrets = cls(values["sas"], values["env"])
            demand_types(secrets)
        except (KeyError, ValueError):
            raise ValueError("not a file of secrets that blobsync wrote") from None
        return secrets


@dataclass(frozen=True, slots=True)
class JobRef:
    """How a job is found again: our id, the backend's own, and where its files, or its page, are (empty: nowhere)."""

    run_id: str
    native_id: str
    place: str = ""

    @property
    def url(self) -> str:
        """The page that shows the job, where its place is one."""
        return self.place if self.place.startswith("https://") else ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """From ``at`` on (seconds since 1970) an elastic job had ``running`` nodes, and was to have ``wanted``.

    ``seen``: nobody records when that began; it was so when blobsync asked.
    """

    at: float
    running: int
    wanted: int
    seen: bool = False


@dataclass(frozen=True, slots=True)
class StateChange:
    """From ``at`` on (seconds since 1970) a job was in ``state``, after so many ``restarts``.

    ``seen``: its cluster did not say since when; it was so when blobsync asked.
    """

    at: float
    state: State
    restarts: int = 0
    seen: bool = False


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a backend says about a job now. Times in seconds since 1970; ``reason`` is for people.

    ``restarts`` counts how often the job was taken off its machines and put back into the queue. ``changes`` are those
    of an elastic job's size that are known, the last of which holds now. ``states`` are the changes of its state whose
    times the backend knows, besides ``started`` and ``ended``.
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


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log of a job: its name (``user_logs/std_log.txt``), bytes so far, and the backend's handle on it.

    ``begins`` is the first byte that can still be read.
    """

    name: str
    size: int | None
    handle: str
    begins: int = 0


def batchai_settings(spec: JobSpec) -> Mapping[str, Any] | None:
    """The job's ``batchai`` key; None for other jobs."""
    found = spec.options.get("batchai")
    return found if isinstance(found, Mapping) else None
