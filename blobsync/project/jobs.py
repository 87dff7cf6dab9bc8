"""The jobs of a project, ``project.jobs``: submitting, looking, stopping, and what these return.

Errors raise ``BlobsyncError``; warnings come with the result (``warnings``, ``problems``), and go to the listener's
notes if a cluster could not be asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from blobsync.backends.protocol import KEEP_SECRETS
from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.jobs.logs import FetchedLogs, rank_of
from blobsync.jobs.queries import with_others
from blobsync.jobs.record import JobRecord
from blobsync.jobs.service import JobList, JobService
from blobsync.jobspec.spec import JobSpec, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from blobsync.backends.aml.computes import Computes
    from blobsync.backends.protocol import ClusterSummary, Holder
    from blobsync.config.model import Cluster
    from blobsync.jobs.outputs import CopiedOutputs, JobOutputs
    from blobsync.jobs.parse import FoundCause
    from blobsync.jobs.submit import Submitted
    from blobsync.jobs.watch import Attempt
    from blobsync.jobspec.code_choice import ChooseCode, ProjectOpener
    from blobsync.jobspec.describe import SubmitKeywords, SubmitRequest
    from blobsync.tunnels.job_tunnel import JobTunnel
    from blobsync.tunnels.node_apps import TunnelRequest


class LogLine(NamedTuple):
    """One line of a running job: its text, the process that wrote it (None: the system), and the log's name."""

    text: str
    rank: int | None
    log: str


@dataclass(frozen=True, slots=True)
class JobLog:
    """The lines of one log; ``name`` is None where the job has no such log yet. ``fetched`` are all that are here."""

    record: JobRecord
    name: str | None
    lines: tuple[str, ...]
    fetched: FetchedLogs

    def __repr__(self) -> str:
        return f"<JobLog {self.name!r} of {self.record.run_id}: {len(self.lines):,} lines>"


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job with the last lines of rank 0, its logs, and, where it failed, the causes that are known."""

    record: JobRecord
    tail: tuple[str, ...]
    fetched: FetchedLogs
    causes: tuple[FoundCause, ...] = ()

    def __repr__(self) -> str:
        return f"<JobReport {self.record.run_id}: {self.record.state}, {len(self.causes)} causes>"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The known causes of failure that a job's logs show; ``is_retriable``: another try may help."""

    record: JobRecord
    causes: tuple[FoundCause, ...]
    is_retriable: bool

    def __repr__(self) -> str:
        codes = ", ".join(found.cause.code for found in self.causes) or "no known cause"
        return f"<Diagnosis of {self.record.run_id}: {codes}>"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Several jobs after a request to stop; ``errors`` name those that could not be asked, and why."""

    records: tuple[JobRecord, ...]
    errors: tuple[BlobsyncError, ...] = ()

    def __repr__(self) -> str:
        return f"<Cancellation: {len(self.records) - len(self.errors):,} of {len(self.records):,} jobs>"


# A command: words, never split again; one text alone is a line for the shell.
Command = str | Sequence[str | os.PathLike[str]]
# A job: its record, its id, or any unique end of that.
JobName = str | JobRecord

# How many jobs a list has, and how much of rank 0's log a report shows (lines).
DEFAULT_LIMIT = 20
REPORT_LINES = 100
_ALL_LINES = 10**9


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """What would be submitted: its id, the text for the backend, the same for people, warnings; what it asks for in
    words, and the job itself."""

    run_id: str
    text: str
    shown: str
    warnings: tuple[str, ...] = ()
    asked: str = ""
    spec: JobSpec | None = None

    def __repr__(self) -> str:
        return f"<PlannedJob {self.run_id}: {len(self.text):,} characters, {len(self.warnings)} warnings>"


class Jobs:
    """The jobs of one project, on whatever clusters they are. Made by ``project.jobs`` and ``open_jobs``.

    A job is named by its id, any unique end of it, the id that its cluster gave it, or a record.
    """

    def __init__(self, service: JobService, open_project: ProjectOpener) -> None:
        """``open_project`` gives the project through a cluster, to find or pack its code."""
        self._service = service
        self._open_project = open_project

    def __repr__(self) -> str:
        return f"<Jobs of {str(self._service.root)!r}>"

    # -- starting -----------------------------------------------------------------------------------------------

    def plan(self, command: Command, **keywords: Unpack[SubmitKeywords]) -> PlannedJob:
        """What :meth:`submit` would submit; nothing is uploaded, submitted or recorded."""
        from blobsync.jobs.submit import asked_text, empty_links, plan_job

        cluster, request = self._asked(command, keywords)
        plan, warnings = plan_job(self._service, cluster, request, self._chooser(keywords, looks_only=True))
        warnings = (*empty_links(self._service, cluster, plan.spec), *warnings)
        asked = asked_text(cluster, plan.spec)
        return PlannedJob(plan.spec.run_id, plan.text, plan.shown or plan.text, warnings, asked, plan.spec)

    def submit(self, command: Command, **keywords: Unpack[SubmitKeywords]) -> Submitted:
        """Run a command on the project's cluster, with the code of the last ``init`` and the folders in place.

        Raises ``UsageError`` and ``ConfigError`` before anything runs, ``UntrustedCodeError`` for code that was neither
        published from here nor trusted (``project.trust_code``), ``SubmissionError`` if the cluster rejected it, and
        ``SubmissionUnknownError`` if its answer got lost: the job then stays in the history.
        """
        from blobsync.jobs.submit import submit

        cluster, request = self._asked(command, keywords)
        return submit(self._service, cluster, request, self._chooser(keywords))

    def resubmit(
        self, job: JobName, *, cluster: str | None = None, num_gpu: int | None = None, latest_code: bool = False
    ) -> Submitted:
        """Submit a recorded job again, with the code that it had; then cancel it if it has not ended.

        ``cluster`` is another one, ``num_gpu`` another number of GPUs, ``latest_code`` the code of the last ``init``.
        """
        from blobsync.jobs.submit import resubmit

        record = self.find(job)
        # The code of another program's job is somewhere else.
        choose = self._chooser({}) if latest_code or record.spec.is_foreign else None
        return resubmit(self._service, record, to=cluster, num_gpu=num_gpu, choose_code=choose)

    def run_here(self, command: Command, *, num_gpu: int | None = None) -> int:
        """Run a command in the foreground of this terminal, as a job would be; returns its exit code."""
        from blobsync.jobs.foreground import run_here
        from blobsync.jobspec.describe import SubmitRequest

        request = SubmitRequest(_words(command), num_gpu, here=True)
        code, note = run_here(self._cluster(), request, self._service.process, self._service.environ)
        if note:
            self._service.note(note)
        return code

    # -- looking ------------------------------------------------------------------------------------------------

    def find(self, job: JobName) -> JobRecord:
        """What is recorded of a job. Raises ``JobNotFoundError`` or ``AmbiguousJobError``."""
        return job if isinstance(job, JobRecord) else self._service.find([job])[0]

    def newest(self) -> JobRecord:
        """What is recorded of the job that was submitted last. Raises ``JobNotFoundError``."""
        return self._service.history.newest()

    def get(self, job: JobName) -> JobRecord:
        """A job as its cluster says that it is now; ``is_settled`` is False where it could not be asked."""
        return self.refresh([job])[0]

    def refresh(self, jobs: Iterable[JobName]) -> JobList:
        """Several jobs as they are now, in this order; each cluster is asked once."""
        return self._told(self._service.refresh([self.find(job) for job in jobs]))

    def list(
        self, states: Iterable[State | str] = (), *, limit: int | None = DEFAULT_LIMIT, cluster: str | None = None
    ) -> JobList:
        """The newest jobs (in one of ``states``) as they are now; of all clusters, unless one is named.

        On Azure ML those of the cluster's experiment are among them, whoever submitted them. Raises ``UsageError``
        for a word that is no state, ``UnknownClusterError`` where a cluster has neither a file nor jobs.
        """
        wanted = tuple(map(_state, states))
        found = with_others(self._service, self._service.recent(wanted, limit, cluster), wanted, limit, cluster)
        self._told(found)
        if cluster and not found:
            from blobsync.config.loader import find_cluster_file

            # A cluster whose file is gone may still have jobs; a name with neither is a typing error.
            find_cluster_file(self._service.root, cluster, self._service.environ)
        return found

    def history(self, *, limit: int | None = None, cluster: str | None = None) -> tuple[JobRecord, ...]:
        """All jobs that were ever submitted from this project, newest first; asks no cluster."""
        return self._service.history.recent(cluster=cluster, limit=limit)

    def report(self, job: JobName, *, lines: int = REPORT_LINES) -> JobReport:
        """A job with its logs, the last lines of rank 0, and, where it failed, the causes that are known."""
        record = self.find(job)
        fetched = self._service.logs(record)
        leading = fetched.leading
        tail = tuple(fetched.tail(leading, lines)) if leading else ()
        causes = self._service.causes(fetched) if record.state is State.FAILED else ()
        return JobReport(record, tail, fetched, causes)

    def logs(self, job: JobName) -> FetchedLogs:
        """Update the logs in ``assets/<ID>/``; returns their folder."""
        return self._service.logs(self._looked_at(job))

    def read_log(self, job: JobName, *, rank: int | None = None, tail: int | None = None) -> JobLog:
        """The log of one process (default: rank 0), or its last ``tail`` lines.

        Raises the error of fetching it if there is no such log here.
        """
        record = self._looked_at(job)
        fetched = self._service.logs(record)
        name = fetched.leading if rank is None else fetched.of_rank(rank)
        if name is None and fetched.problem:
            raise fetched.problem
        return JobLog(record, name, tuple(fetched.tail(name, tail or _ALL_LINES)) if name else (), fetched)

    def outputs(self, job: JobName, path: str = "") -> JobOutputs:
        """What a job has written so far, below ``path``; see ``blobsync.jobs.outputs``."""
        from blobsync.jobs.outputs import list_outputs

        return list_outputs(self._service, self.refresh([job])[0], path)

    def copy_outputs(self, outputs: JobOutputs) -> CopiedOutputs:
        """Bring those files of a job that are on a disk, but not in the project, to their paths in it.

        Each is verified, and none replaces another version: see ``failures``. Raises ``LocalFileError``.
        """
        from blobsync.jobs.outputs import copy_outputs

        return copy_outputs(outputs, self._service.root, self._service.environ)

    def follow(self, job: JobName, *, rank: int | None = None) -> Iterator[LogLine]:
        """The lines of all processes (or of one) as they arrive, until the job has ended."""
        for name, text in self._service.follow(self.find(job)):
            found = rank_of(name)
            if rank is None or (found and found[1] == rank):
                yield LogLine(text, found[1] if found else None, name)

    def wait(self, job: JobName) -> JobRecord:
        """Wait until the job has ended, in whatever state."""
        return self._service.wait(self.find(job))

    def diagnose(self, job: JobName) -> Diagnosis:
        """Look for known causes of failure in a job's logs and in what its cluster says."""
        from blobsync.jobs.parse import is_retriable
        from blobsync.jobs.watch import find_causes

        record = self.get(job)
        causes = find_causes(self._service, record)
        return Diagnosis(record, causes, is_retriable(causes))

    # -- stopping, and going on ---------------------------------------------------------------------------------

    def cancel(self, job: JobName) -> JobRecord:
        """Stop a job; one that has ended stays as it is. Safe to repeat.

        Raises ``JobError`` and its like unless the job's own backend has taken the request.
        """
        return self._service.cancel(self.get(job))

    def cancel_all(self, jobs: Iterable[JobName]) -> Cancellation:
        """Stop several jobs; an error with one does not stop the others."""
        records: list[JobRecord] = []
        errors: list[BlobsyncError] = []
        for record in self.refresh(jobs):
            try:
                records.append(self._service.cancel(record))
            except BlobsyncError as error:
                records.append(record)
                errors.append(error)
        return Cancellation(tuple(records), tuple(errors))

    def scale(self, job: JobName, nodes: int) -> JobRecord:
        """Ask for another number of nodes of an elastic job; node 0 stays, and the last request counts.

        Raises ``UsageError`` outside the job's bounds and for a job of a fixed size, ``JobError`` and its like unless
        the job's own backend has taken the request.
        """
        return self._service.scale(self.get(job), nodes)

    def watch(self, job: JobName, *, retries: int | None = None) -> Iterator[Attempt]:
        """Wait for the end of a job; submit it again when the failure looks temporary, ``retries`` times at most.

        Yields each attempt when it has ended. Without ``retries``, the cluster file's are taken.
        """
        from blobsync.jobs.watch import watch

        record = self.find(job)
        return watch(self._service, record, record.spec.retries if retries is None else retries)

    def ssh_command(self, job: JobName, *, node: int = 0) -> tuple[str, ...]:
        """The command that opens a shell on one of a job's nodes."""
        record = self.find(job)
        return tuple(self._service.backend_of(record).ssh_command(record.ref, node, holds=bool(record.spec.hold)))

    def ssh(self, job: JobName, *, node: int = 0) -> int:
        """Run that command with this terminal; returns its exit code."""
        return self._service.process.attach(self.ssh_command(job, node=node), env=self._service.environ)

    def tunnel(self, job: JobName, request: TunnelRequest) -> JobTunnel:
        """Open a port of a running job's node at 127.0.0.1; ``with`` closes it. Raises ``JobError`` unless it runs."""
        from blobsync.tunnels.job_tunnel import open_tunnel

        return open_tunnel(self._service, self.find(job), request)

    # -- the cluster --------------------------------------------------------------------------------------------

    def summary(self) -> ClusterSummary:
        """What the project's cluster has free, and how many jobs wait."""
        return self._service.backend(self._cluster()).summary()

    def holders(self) -> tuple[Holder, ...]:
        """Who has jobs on the project's cluster. Raises ``UsageError`` where it does not tell."""
        cluster = self._cluster()
        backend = self._service.backend(cluster)
        if "blame" not in backend.capabilities:
            raise UsageError(f"cluster {cluster.name} ({backend.name}) does not report who uses it")
        return tuple(backend.blame())

    def computes(self) -> Computes:
        """The compute clusters of the project's workspace. Raises ``UsageError`` where the cluster has none."""
        from blobsync.backends.aml.backend import computes_of

        return computes_of(self._service.backend(self._cluster()))

    # -- inside -------------------------------------------------------------------------------------------------

    def _looked_at(self, job: JobName) -> JobRecord:
        """Who reads a log looks at the job: secrets of one that has ended go, of one that goes on they are renewed."""
        record = self.find(job)
        return self.refresh([record])[0] if record.backend in KEEP_SECRETS else record

    def _cluster(self) -> Cluster:
        if self._service.current is None:
            raise UsageError("no cluster selected", hint="use Project.open(cluster=NAME).jobs")
        return self._service.current

    def _asked(self, command: Command, keywords: SubmitKeywords) -> tuple[Cluster, SubmitRequest]:
        from blobsync.jobspec.describe import SLURM_OPTIONS, SubmitKeywords, SubmitRequest

        unknown = keywords.keys() - SubmitKeywords.__annotations__.keys()
        if unknown:
            raise TypeError(f"submit has no option {min(unknown)!r}")
        for name, least in (("num_gpu", 0), ("nodes", 1)):
            value = keywords.get(name)
            if isinstance(value, int) and value < least:
                raise UsageError(f"{name} {value}: at least {least}")
        options = {name: text for name, text in keywords.items() if name in SLURM_OPTIONS and text}
        return self._cluster(), SubmitRequest(
            _words(command),
            keywords.get("num_gpu"),
            keywords.get("nodes"),
            keywords.get("name", ""),
            keywords.get("multi_process"),
            options,
            elastic=keywords.get("elastic") or "",
            hold=keywords.get("hold") or "",
        )

    def _chooser(self, keywords: SubmitKeywords, *, looks_only: bool = False) -> ChooseCode:
        from blobsync.jobspec.code_choice import CodeWish, code_chooser

        digest, trust = keywords.get("code") or "", keywords.get("trust_code") or ""
        return code_chooser(self._open_project, CodeWish(bool(keywords.get("init")), digest, trust, looks_only))

    def _told(self, found: JobList) -> JobList:
        for problem in found.problems:
            self._service.note(problem)
        return found


def _words(command: Command) -> tuple[str, ...]:
    return (command,) if isinstance(command, str) else tuple(os.fspath(word) for word in command)


def _state(word: State | str) -> State:
    try:
        return State(word)
    except ValueError:
        known = ", ".join(state.value for state in State)
        raise UsageError(f"{word!r} is not a job state", hint=f"one of {known}") from None
