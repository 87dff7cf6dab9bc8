"""One submitted job as the history has it, lists of jobs, and a filter for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from blobsync.jobs.recorded_cluster import Home
from blobsync.jobspec.spec import JobRef, JobSpec, RunInfo, State, StateChange, TaskInfo


@dataclass(frozen=True, slots=True, repr=False)
class JobRecord:
    """One submitted job with its last known state. Times in seconds since 1970.

    ``confirmed`` is when its backend last sent ``info`` (0: never), ``current`` whether that was just now. ``home`` is
    where it was submitted; jobs that an older blobsync recorded have none. ``has_just_ended``: this look was the first
    to see its end. ``states`` are the known changes of its
    state, by their times; ``spans_of`` makes spans of them.
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
    def by(self) -> str:
        """The user of a job of which only the container has a record; empty: the project's history has it."""
        return ""

    @property
    def is_settled(self) -> bool:
        """Whether the state is current: the job has ended, or its cluster has just reported it."""
        return self.current or self.info.state.is_final


@dataclass(frozen=True, slots=True, repr=False)
class RecalledJob(JobRecord):
    """A job of another machine or user, from its record in the container, which anybody who can write there may have
    written. It has no reference to its platform: it can be looked at, and submitted again as the caller's own job."""

    @property
    def by(self) -> str:
        """The user in its id."""
        return self.run_id.rsplit("_", 2)[0]

    @property
    def is_settled(self) -> bool:
        """False: no cluster has said it."""
        return False


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
