"""One submitted job as the history has it, with the cluster as it was then; lists of jobs, and a filter for them.

Later commands ask that cluster, even if its files have changed. What is kept of it holds no secret: credentials and
secret variables are taken from the project's files when they are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from blobsync.base.errors import BackendUnavailableError, ConfigError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.base.redaction import is_secret_name
from blobsync.config.loader import load_workspace, reload_cluster
from blobsync.config.model import Cluster, Written
from blobsync.jobspec.spec import SERVICES, JobRef, JobSpec, RunInfo, State, StateChange, TaskInfo

# Values that hold a credential, whatever their key is called.
_SECRET_VALUE = pattern(r"(?:\bsig|\w(?:KEY|SIGNATURE)|TOKEN|SECRET|PASSWORD|PASSWD|\bSAS)\s*(?:=|%3D)", re.IGNORECASE)
# Variables are in the specification, secret ones by name.
_NOT_KEPT = "env"
# Keys that look like secrets but are not.
_PUBLIC = ("ssh_public_key", "pull_secret")


@dataclass(frozen=True, slots=True)
class Home:
    """The backend of a job, and the configuration that led to it.

    ``address`` identifies the place on its platform. ``file``, ``overrides`` and ``values`` are the
    cluster file, what -p changed, and both together.
    """

    platform: str
    address: Mapping[str, str]
    file: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A text that is equal for all jobs of one place."""
        return json.dumps([self.platform, dict(self.address)], sort_keys=True)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Home:
        """The inverse of :meth:`to_json`. Raises ``ValueError`` for other texts."""
        return made_of(cls, parse_object(text))


def home_of(cluster: Cluster, environ: Mapping[str, str]) -> Home:
    """The place where jobs of this cluster run. Raises ``ConfigError`` where the Azure ML workspace cannot be read."""
    written = cluster.written or Written(Path(), {}, {})
    values = without_secrets(written.values)
    address: dict[str, str] = {}
    if cluster.platform == "slurm":
        address["ssh"] = cluster.text("ssh") or ""
    if cluster.platform == "kubernetes":
        address = {key: cluster.text(f"kubernetes.{key}") or "" for key in ("context", "namespace")}
    if cluster.platform in SERVICES:
        place = load_workspace(cluster, environ=environ)
        address = {
            "subscription_id": place.subscription_id,
            "resource_group": place.resource_group,
            "workspace_name": place.workspace_name,
            "management_endpoint": place.management_endpoint,
        }
        values["aml_config"] = {**address, **({"api_version": place.api_version} if place.api_version else {})}
    file = str(written.path) if cluster.written else ""
    return Home(cluster.platform, address, file, without_secrets(written.overrides), values)


def cluster_at(home: Home, name: str, root: Path, environ: Mapping[str, str]) -> Cluster:
    """The cluster for this home: from today's file if it still leads there, else from the file as it was recorded.

    Raises ``BackendUnavailableError`` if neither can be read.
    """
    written = Written(Path(home.file), home.overrides, home.values)
    problem: ConfigError | None = None
    for anew in (True, False) if home.file else ():
        try:
            cluster = reload_cluster(root, written, environ=environ, anew=anew)
            if cluster.platform == home.platform and home_of(cluster, environ).address == home.address:
                return cluster
        except ConfigError as error:
            problem = problem or error
    raise BackendUnavailableError(
        f"the job was submitted to {home.platform} with the cluster file {home.file or name}, which has changed"
        + (f": {problem.message}" if problem else ""),
        hint="restore the cluster file as it was",
    )


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without everything that is, or looks like, a credential."""
    return {
        key: _plain(value)
        for key, value in values.items()
        if key in _PUBLIC or not (key.split("$")[0] == _NOT_KEPT or is_secret(key, value))
    }


def is_secret(key: str, value: Any) -> bool:
    """Whether a key or value looks like a credential, which must not be recorded."""
    if isinstance(value, Mapping):
        return False
    named = is_secret_name(key) and isinstance(value, (str, int)) and not isinstance(value, bool)
    return named or (isinstance(value, str) and _SECRET_VALUE.search(value) is not None)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not is_secret("", item)]
    return value


@dataclass(frozen=True, slots=True, repr=False)
class JobRecord:
    """One submitted job with its last known state. Times in seconds since 1970.

    ``confirmed`` is when its backend last sent ``info`` (0: never), ``current`` whether that was just now. ``home`` is
    where it was submitted; jobs that an older blobsync recorded have none. ``has_just_ended``: this look was the first
    to see its end. ``states`` are the known changes of its
    state, by their times; ``spans_of`` makes spans of them.

    ``by`` is the user of a job of another machine or user (empty: the project's history has it). It is from its record
    in the container, which anybody who can write there may have written, and it has no reference to its platform: it
    can be looked at, and submitted again as the caller's own job.
    """

    spec: JobSpec
    ref: JobRef
    backend: str
    info: RunInfo
    submitted: float
    cancel_asked: bool = False
    successor_of: str = ""
    home: Home | None = None
    confirmed: float = 0.0
    current: bool = False
    states: tuple[StateChange, ...] = field(default=(), repr=False)
    has_just_ended: bool = False
    by: str = ""

    def __repr__(self) -> str:
        code = f" ({self.info.exit_code})" if self.info.exit_code else ""
        return f"<JobRecord {self.run_id}: {self.info.state}{code} on {self.cluster}>"

    @property
    def tasks(self) -> tuple[JobTask, ...]:
        """Its tasks with their last known states; empty: its command runs once. A transfer's tasks are its own."""
        array = self.spec.tasks if self.spec.spread is None else None
        known = {task.number: task for task in self.info.tasks}
        rest = self.info.state if self.info.state.is_final else State.QUEUED
        numbers = array.all_numbers if array else ()
        return tuple(
            JobTask(known.get(number) or TaskInfo(number, rest), array.parameters_at(place))
            for place, number in enumerate(numbers)
            if array
        )

    @property
    def state(self) -> State:
        """The last known state; :attr:`is_settled` says whether it is current."""
        return self.info.state

    @property
    def exit_code(self) -> int | None:
        """The exit code of its program; None if it runs or if unknown."""
        return self.info.exit_code

    @property
    def reason(self) -> str:
        """The reason for its state, for people; often empty."""
        return self.info.reason

    @property
    def url(self) -> str | None:
        """The page that shows it, where its platform has one."""
        return self.ref.url or None

    @property
    def run_id(self) -> str:
        """Our id of the job."""
        return self.spec.run_id

    @property
    def cluster(self) -> str:
        """The cluster file that it was submitted with."""
        return self.spec.cluster

    @property
    def is_settled(self) -> bool:
        """Whether the state is current: the job has ended, or its cluster has just reported it."""
        return not self.by and (self.current or self.info.state.is_final)


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of a job: its last known state, and its parameters."""

    info: TaskInfo
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def number(self) -> int:
        return self.info.number

    @property
    def state(self) -> State:
        return self.info.state

    @property
    def exit_code(self) -> int | None:
        """The exit code of its program; None if it runs or if unknown."""
        return self.info.exit_code


@dataclass(frozen=True, slots=True, repr=False)
class JobList:
    """Records with what is known now, and a message for each cluster that could not be queried.

    ``experiment`` is that of Azure ML whose other jobs are among them; ``more`` is how many older ones are left out.
    """

    records: tuple[JobRecord, ...]
    problems: tuple[str, ...] = ()
    experiment: str = ""
    more: int = 0

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> JobRecord:
        return self.records[index]

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<JobList: {len(self.records):,} jobs{problems}>"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs: in one of these states (none: any), of one cluster, with ``text`` in their id, name or command."""

    states: tuple[State, ...] = ()
    cluster: str | None = None
    text: str = ""
