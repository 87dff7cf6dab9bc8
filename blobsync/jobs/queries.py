"""Looks at jobs: states, logs, outputs, causes of failure, comparisons, and what their clusters have free.

Nothing here submits, stops or changes a job. States and logs that clusters report are kept in the history and in
``assets/``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.backends.protocol import KEEP_SECRETS, SeenJob
from blobsync.base.errors import (
    BlobsyncError,
    ConfigError,
    JobError,
    JobNotFoundError,
    LoginRequiredError,
    UsageError,
)
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.loader import cluster_names, load_cluster
from blobsync.config.model import Cluster
from blobsync.config.project_root import ASSETS, log_folder
from blobsync.jobs.context import JobContext
from blobsync.jobs.failure_causes import FoundCause, is_retriable, read_causes, summarise
from blobsync.jobs.history import demand_one
from blobsync.jobs.logs import (
    BackendLogs,
    FetchedLogs,
    IncompleteLogError,
    LogSource,
    MirroredLogs,
    fetch_logs,
    follow,
    inert_line,
    log_causes,
    rank_of,
    task_of,
)
from blobsync.jobs.record import JobFilter, JobList, JobRecord, home_of
from blobsync.jobs.states import StateNotes, demand_task, recent, refresh
from blobsync.jobspec.spec import SERVICES, JobRef, JobSpec, LogMirror, State, run_name, submission_time

if TYPE_CHECKING:
    from blobsync.backends.aml.computes import Computes
    from blobsync.backends.protocol import ClusterSummary, Holder
    from blobsync.jobs.compare import ComparedCode, ComparedJobs
    from blobsync.jobs.outputs import JobOutputs
    from blobsync.jobs.task_table import TaskRow

# A job: its record, its id, or any unique end of that.
JobName = str | JobRecord

# How many jobs a list has, and how much of rank 0's log a report shows (lines).
DEFAULT_LIMIT = 20
REPORT_LINES = 100
# How many jobs that have not ended are asked for at once.
MOST_ASKED = 200
# Seconds between two queries of a job: of this machine they read files; services limit the requests of all their users.
_HERE_SECONDS, _FOLLOW_SECONDS, _SERVICE_SECONDS = 0.2, 1.0, 5.0
# The logs of so many failed tasks of a sweep are searched for causes.
_MOST_READ = 20
_ALL_LINES = 10**9
# The digits of a task's number are fewer.
_NUMBER_CHARS = 8
# Shorter ends of ids are looked for in the project's own history only.
_RECALL_CHARS = 4


class LogLine(NamedTuple):
    """One line of a running job: its text, the process that wrote it (None: the system), the log's name, and the task
    whose process that is."""

    text: str
    rank: int | None
    log: str
    task: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class JobLog:
    """The lines of one log; ``name`` is None where the job has no such log yet. ``fetched`` are all that are here."""

    record: JobRecord
    name: str | None
    lines: tuple[str, ...]
    fetched: FetchedLogs

    def __repr__(self) -> str:
        return f"<JobLog {self.name!r} of {self.record.run_id}: {len(self.lines):,} lines>"


@dataclass(frozen=True, slots=True, repr=False)
class JobReport:
    """One job with the last lines of rank 0, its logs, and, where it failed, the causes that are known."""

    record: JobRecord
    tail: tuple[str, ...]
    fetched: FetchedLogs
    causes: tuple[FoundCause, ...] = ()

    def __repr__(self) -> str:
        return f"<JobReport {self.record.run_id}: {self.record.state}, {len(self.causes)} causes>"


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """The known causes of failure that a job's logs show; ``is_retriable``: another try may help."""

    record: JobRecord
    causes: tuple[FoundCause, ...]
    is_retriable: bool

    def __repr__(self) -> str:
        codes = ", ".join(found.cause.code for found in self.causes) or "no known cause"
        return f"<Diagnosis of {self.record.run_id}: {codes}>"


@dataclass(frozen=True, slots=True, repr=False)
class JobPage:
    """Some jobs with their last known states, how many there are in all, and how many are in each state."""

    records: tuple[JobRecord, ...]
    total: int
    states: Mapping[State, int]

    def __repr__(self) -> str:
        return f"<JobPage: {len(self.records):,} of {self.total:,} jobs>"


class JobQueries:
    """Looks at the jobs of one project, on whatever clusters they are.

    A job is named by its id, any unique end of it, the id that its cluster gave it, or a record.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._context.root

    # -- records and states -------------------------------------------------------------------------------------

    def find(self, job: JobName) -> JobRecord:
        """What is recorded of a job. Raises ``JobNotFoundError`` or ``AmbiguousJobError``."""
        if isinstance(job, JobRecord):
            return job
        wanted = _id_of(job, {ASSETS, log_folder(self._context.root, self._context.environ).name})
        try:
            record = self._context.history.find(wanted)
        except JobNotFoundError as unknown:
            return self._recall(wanted, unknown)
        if record.spec.name == wanted:
            self._context.note(f"the newest job with the name {wanted}: {record.run_id}")
        return record

    def find_task(self, job: str) -> tuple[JobRecord, int | None]:
        """What is recorded of a job, and the number of its task in ``ID/7``; None without one. Raises as :meth:`find`,
        and ``UsageError`` for a task of a job that has none."""
        head, sign, last = job.rpartition("/")
        is_folder = head.rpartition("/")[2] in (ASSETS, log_folder(self._context.root, self._context.environ).name)
        if not sign or is_folder or not (last.isascii() and last.isdigit() and len(last) < _NUMBER_CHARS):
            return self.find(job), None
        record = self.find(head)
        demand_task(record, int(last))
        return record, int(last)

    def newest(self) -> JobRecord:
        """What is recorded of the job that was submitted last. Raises ``JobNotFoundError``."""
        return self._context.history.newest()

    def get(self, job: JobName) -> JobRecord:
        """A job with its state as its cluster reports it now; ``is_settled`` is False where it could not be asked."""
        return self.refresh([job])[0]

    def refresh(self, jobs: Iterable[JobName]) -> JobList:
        """Several jobs with their current states, in this order; each cluster is asked once."""
        found = refresh(self._context, [self.find(job) for job in jobs])
        self._note_all(found.problems)
        return found

    def refresh_unfinished(self) -> tuple[str, ...]:
        """Ask the clusters for the newest jobs that have not ended; returns why some could not be asked."""
        unfinished = tuple(state for state in State if not state.is_final)
        return refresh(self._context, self._context.history.page(JobFilter(unfinished), limit=MOST_ASKED)).problems

    def list(
        self,
        states: Iterable[State | str] = (),
        *,
        limit: int | None = DEFAULT_LIMIT,
        cluster: str | None = None,
        all_users: bool = False,
    ) -> JobList:
        """The newest jobs (in one of ``states``) as they are now; of all clusters, unless one is named.

        ``all_users``: also those of other users and machines, as their records in the containers have them. On Azure ML
        all jobs of the cluster's experiment are among them anyway. Raises ``UsageError`` for a word that is no state,
        ``UnknownClusterError`` where a cluster has neither a file nor jobs.
        """
        context, wanted = self._context, tuple(map(_state, states))
        found = with_others(context, recent(context, wanted, limit, cluster), wanted, limit, cluster)
        if all_users:
            found = _with_shared(context, found, wanted, limit, cluster)
        self._note_all(found.problems)
        if cluster and not found:
            from blobsync.config.loader import find_cluster_file

            # A cluster whose file is gone may still have jobs; a name with neither is a typing error.
            find_cluster_file(context.root, cluster, context.environ)
        return found

    def looks(
        self, jobs: Sequence[JobName] = (), *, limit: int | None = DEFAULT_LIMIT, cluster: str | None = None
    ) -> Iterator[JobList]:
        """These jobs, or without any the newest ones, again and again until all of them have ended."""
        while True:
            found = self.refresh(jobs) if jobs else self.list(limit=limit, cluster=cluster)
            yield found
            going = [record for record in found if not record.info.state.is_final]
            if not going:
                return
            self._context.sleep(max(map(_pause, going)))

    def unfinished(self, *, cluster: str | None = None) -> JobList:
        """All jobs that have not ended, newest first, as they are now; of all clusters, unless one is named."""
        states = tuple(state for state in State if not state.is_final)
        found = refresh(self._context, self._context.history.page(JobFilter(states, cluster)))
        self._note_all(found.problems)
        return replace(found, records=tuple(record for record in found if not record.info.state.is_final))

    def failed(self) -> tuple[JobRecord, ...]:
        """The jobs that failed and that no other was submitted in place of, oldest first."""
        self.unfinished()
        known = self.history()
        again = {record.successor_of for record in known}
        return tuple(
            record for record in reversed(known) if record.state is State.FAILED and record.run_id not in again
        )

    def history(self, *, limit: int | None = None, cluster: str | None = None) -> tuple[JobRecord, ...]:
        """All jobs that were ever submitted from this project, newest first; asks no cluster."""
        return self._context.history.page(JobFilter(cluster=cluster), limit=limit)

    def page(self, chosen: JobFilter, *, limit: int, offset: int = 0) -> JobPage:
        """The newest recorded jobs that are ``chosen``, without the first ``offset``; asks no cluster."""
        history = self._context.history
        counts = history.count_states(chosen)
        total = sum(count for state, count in counts.items() if not chosen.states or state in chosen.states)
        return JobPage(history.page(chosen, limit=limit, offset=offset), total, counts)

    def clusters_of_jobs(self) -> tuple[str, ...]:
        """The names of the clusters that have recorded jobs, sorted."""
        return self._context.history.clusters()

    def wait(self, job: JobName) -> JobRecord:
        """Wait until the job has ended, in whatever state; notes why it does not run."""
        record, notes = self.find(job), StateNotes(self._context.note)
        while not record.info.state.is_final:
            self._context.sleep(_pause(record))
            # A container tells what it says now of a job of others.
            record = self._refresh_one(self.find(record.run_id) if record.by else record, notes)
        return record

    def compare(self, left: JobName, right: JobName) -> ComparedJobs:
        """What was different between two jobs; the lists of their files are read from their code archives."""
        from blobsync.jobs.compare import compare_records

        first, second = self.find(left), self.find(right)
        return compare_records(first, second, self._compared_files(first, second))

    # -- logs and outputs ---------------------------------------------------------------------------------------

    def logs(self, job: JobName, *, task: int | None = None) -> FetchedLogs:
        """Update the logs in ``assets/<ID>/``, of all tasks or of one; returns their folder."""
        return self._fetch_logs(self._with_live_secrets(job), _alone(task))

    def fetched_logs(self, job: JobName) -> FetchedLogs:
        """The logs that are in ``assets/<ID>/`` already; asks no cluster."""
        return fetch_logs((), *job_log_folder(self._context, self.find(job)))

    def read_log(
        self, job: JobName, *, rank: int | None = None, tail: int | None = None, task: int | None = None
    ) -> JobLog:
        """The log of one process (default: rank 0) of a task (default: the first), or its last ``tail`` lines.

        Raises the error of fetching it if there is no such log here.
        """
        record = self._with_live_secrets(job)
        if record.tasks and task is None:
            task = record.tasks[0].number
        fetched = self._fetch_logs(record, _alone(task))
        from blobsync.jobs.node_use import said_at_end  # late: a list of jobs reads no logs

        if not record.state.is_final and said_at_end(fetched):
            record = self.refresh([record])[0]
        name = fetched.leading if rank is None else fetched.of_rank(rank)
        if name is None and fetched.problem:
            raise fetched.problem
        return JobLog(record, name, tuple(fetched.tail(name, tail or _ALL_LINES)) if name else (), fetched)

    def follow(self, job: JobName, *, rank: int | None = None, task: int | None = None) -> Iterator[LogLine]:
        """The lines of all processes (or of one, or of one task) as they arrive, until the job, or the task, has ended.

        Notes what the job waits for, and which lines are lost.
        """
        record, context = self.find(job), self._context
        problem: BlobsyncError | None = None
        notes = StateNotes(context.note)

        def ended() -> bool:
            now = self._refresh_one(self.find(record.run_id), notes)
            return now.info.state.is_final or any(one.number == task and one.state.is_final for one in now.tasks)

        def fetch() -> FetchedLogs:
            nonlocal problem
            fetched = self._fetch_logs(record, _alone(task))
            problem = fetched.problem
            return fetched

        for name, text in follow(fetch, ended, lambda: context.sleep(_pause(record))):
            found = rank_of(name)
            if rank is None or (found and found[1] == rank):
                yield LogLine(text, found[1] if found else None, name, task_of(name))
        if isinstance(problem, IncompleteLogError):
            context.note(f"{problem.message}; {problem.hint}")

    def report(self, job: JobName, *, lines: int = REPORT_LINES) -> JobReport:
        """A job with its logs, the last lines of rank 0, and, where it failed, the causes that are known."""
        record = self.find(job)
        # A sweep may have thousands of logs; its tasks are shown in a table.
        fetched = self.fetched_logs(record) if record.tasks else self._fetch_logs(record)
        leading = None if record.tasks else fetched.leading
        tail = tuple(fetched.tail(leading, lines)) if leading else ()
        return JobReport(record, tail, fetched, log_causes(fetched) if record.state is State.FAILED else ())

    def diagnose(self, job: JobName, *, task: int | None = None) -> Diagnosis:
        """Look for known causes of failure in a job's logs, or those of one task, and in what its cluster says. Of a
        sweep, the logs of the first failed tasks are read."""
        record = self.get(job)
        causes = self._find_causes(record, _alone(task))
        return Diagnosis(record, causes, is_retriable(causes))

    def outputs(self, job: JobName, path: str = "", *, task: int | None = None) -> JobOutputs:
        """What a job, or one task of it, has written so far, below ``path``; see ``blobsync.jobs.outputs``."""
        from blobsync.jobs.outputs import list_outputs

        return list_outputs(self._context, self.get(job), path, task)

    def task_rows(self, job: JobName, *, metric: str = "", sort: str = "") -> Sequence[TaskRow]:
        """The tasks of a job as a table, by a column (default: the tasks' numbers): with the value of the ``metric``,
        ``FILE:FIELD`` in the output of each task, else with the last line that it wrote.

        Raises ``UsageError`` for another form or column, and if the tasks have no outputs of their own.
        """
        from blobsync.jobs.task_table import INDEX, METRIC, read_metrics, sorted_rows, task_rows

        record = self.find(job)
        if sort == METRIC and not metric:
            raise UsageError("--sort metric needs --metric", hint="--metric metrics.json:eval.loss")
        metrics = read_metrics(self._context, record, metric) if metric else {}
        lines = {} if metric else self._last_lines(record)
        return sorted_rows(task_rows(record, lines, metrics), sort or INDEX, metric)

    # -- the cluster --------------------------------------------------------------------------------------------

    def summary(self) -> ClusterSummary:
        """What the project's cluster has free, and how many jobs wait."""
        return self._context.backend(self._cluster()).summary()

    def holders(self) -> tuple[Holder, ...]:
        """The users with jobs on the project's cluster."""
        return tuple(self._context.backend(self._cluster()).blame())

    def computes(self) -> Computes:
        """The compute clusters of the project's workspace. Raises ``UsageError`` where the cluster has none."""
        from blobsync.backends.aml.aml_backend import computes_of

        return computes_of(self._context.backend(self._cluster()))

    def ssh_command(self, job: JobName, *, node: int = 0) -> tuple[str, ...]:
        """The command that opens a shell on one of a job's nodes."""
        record = self.find(job)
        return tuple(self._context.backend_of(record).ssh_command(record.ref, node, holds=bool(record.spec.hold)))

    # -- inside -------------------------------------------------------------------------------------------------

    def _cluster(self) -> Cluster:
        if self._context.current is None:
            raise UsageError("no cluster selected", hint="use Project.open(cluster=NAME).jobs")
        return self._context.current

    def _note_all(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self._context.note(problem)

    def _refresh_one(self, record: JobRecord, notes: StateNotes) -> JobRecord:
        """The job with its current state; ``notes`` shows what has changed."""
        found = refresh(self._context, [record])
        notes.update(found[0], found.problems)
        return found[0]

    def _with_live_secrets(self, job: JobName) -> JobRecord:
        """The job, refreshed where its cluster keeps secrets: that renews those of a running job, and removes those
        of an ended one."""
        record = self.find(job)
        return self.refresh([record])[0] if record.backend in KEEP_SECRETS else record

    def _recall(self, suffix: str, unknown: JobNotFoundError) -> JobRecord:
        """Find a job that another user or machine submitted at the services that keep lists of jobs."""
        context = self._context
        found: dict[str, tuple[JobSpec, JobRef, Cluster]] = {}
        silent: list[tuple[str, BlobsyncError]] = []
        for name in cluster_names(context.root) if len(suffix) >= _RECALL_CHARS else ():
            try:
                cluster = context.cluster(name)
                for spec, ref in context.backend(cluster).recall(suffix):
                    found.setdefault(spec.run_id, (spec, ref, cluster))
            except BlobsyncError as error:
                silent.append((name, error))
        demand_one(suffix, list(found))
        for spec, ref, cluster in found.values():
            home, submitted = home_of(cluster, context.environ), submission_time(spec.run_id)
            spec = replace(spec, options={**spec.options, "recalled": True})
            return context.history.add(spec, ref, cluster.platform, home=home, submitted=submitted)
        from blobsync.jobs.shared_records import find_shared  # late: most jobs are in the history

        shared = find_shared(context, suffix) if len(suffix) >= _RECALL_CHARS else JobList(())
        demand_one(suffix, [one.run_id for one in shared.records])
        if shared.records:
            return shared.records[0]
        raise _not_found(unknown, silent, shared.problems)

    def _fetch_logs(self, record: JobRecord, tasks: Collection[int] | None = None) -> FetchedLogs:
        folder, boundary = job_log_folder(self._context, record)
        sources: list[Callable[[], LogSource]] = []
        if not record.by:
            sources.append(lambda: BackendLogs(self._context.backend_of(record), record.ref, tasks))
        if mirror := record.spec.logs:
            sources.append(lambda: self._mirrored(record, mirror))
        over = record.info.state.is_final
        fetched = fetch_logs(sources, folder, boundary, over=over, tasks=tasks)
        if isinstance(fetched.problem, IncompleteLogError) and not over:
            (now,) = refresh(self._context, [self.find(record.run_id)])
            if now.info.state.is_final:
                # What is missing now will not come any more.
                return fetch_logs(sources, folder, boundary, over=True, tasks=tasks)
        return fetched

    def _mirrored(self, record: JobRecord, mirror: LogMirror) -> LogSource:
        from blobsync.jobspec.node_secrets import known_accounts
        from blobsync.store.connect import connect

        account = known_accounts([self._context.cluster_of(record)]).get(mirror.container)
        if account is None:
            raise JobError(f"cluster {record.cluster} no longer knows {mirror.container}, where the logs are")
        return MirroredLogs(connect(account, environ=self._context.environ), mirror)

    def _last_lines(self, job: JobName) -> Mapping[int, str]:
        """The last line that each task of a job wrote, by its number; empty where its platform cannot say at once."""
        record = self.find(job)
        if record.by or not record.tasks:
            return {}
        try:
            found = self._context.backend_of(record).last_lines(record.ref)
        except BlobsyncError as error:
            self._context.note(f"the last lines of its tasks are not known: {error.message}")
            return {}
        return {number: inert_line(text) for number, text in found.items()}

    def _find_causes(self, record: JobRecord, tasks: Collection[int] | None = None) -> tuple[FoundCause, ...]:
        """Causes of failure in the logs, and in the reasons that the cluster gives."""
        if record.tasks and tasks is None:
            failed = [task.number for task in record.tasks if task.state is State.FAILED]
            tasks = failed[:_MOST_READ]
            if len(tasks) < len(failed):
                self._context.note(f"the logs of {len(tasks):,} of the {len(failed):,} failed tasks are read")
        reasons = [task.info.reason for task in record.tasks if tasks is not None and task.number in tasks]
        of_cluster = read_causes("the cluster", [record.info.reason, *reasons])
        return summarise([*of_cluster, *log_causes(self._fetch_logs(record, tasks))])

    def _compared_files(self, left: JobRecord, right: JobRecord) -> ComparedCode:
        from blobsync.jobs.compare import ComparedCode, compare_files

        digests = [record.spec.code.digest if record.spec.code else "" for record in (left, right)]
        if not all(digests):
            return ComparedCode(problem="a job without a code archive has no list of its files")
        if digests[0] == digests[1]:
            return ComparedCode()
        try:
            return compare_files(self._code_files(left), self._code_files(right))
        except BlobsyncError as error:
            return ComparedCode(problem=error.message)

    def _code_files(self, record: JobRecord) -> Mapping[str, str]:
        """The files of a job's code. Raises ``ArchiveError``, ``ConfigError`` and ``StorageError``."""
        from blobsync.code.publish import published_files
        from blobsync.jobspec.node_secrets import known_accounts

        code = record.spec.code
        assert code is not None
        cluster = self._context.cluster_of(record)
        account = known_accounts([cluster]).get(code.container)
        if account is None:
            raise ConfigError(f"cluster {record.cluster} no longer knows {code.container}, where the code is")
        with self._context.store(cluster, account) as store:
            return published_files(store, code.blob, code.digest)


def job_log_folder(context: JobContext, record: JobRecord) -> tuple[Path, Path]:
    """The folder of a job's logs, and the folder that no link may lead out of: ACT's variable names another."""
    above = log_folder(context.root, context.environ)
    inside = above.resolve().is_relative_to(context.root.resolve())
    return above / run_name(record.run_id), context.root if inside else above


def known_causes(record: JobRecord, fetched: FetchedLogs) -> tuple[FoundCause, ...]:
    """Why a job failed, as far as its ``fetched`` logs and its cluster say; none for one that did not fail."""
    if record.state is not State.FAILED:
        return ()
    return summarise([*read_causes("the cluster", [record.reason]), *log_causes(fetched)])


def with_others(
    context: JobContext, found: JobList, states: Collection[State], limit: int | None, cluster_name: str | None
) -> JobList:
    """The list with the newest jobs of the experiment of this cluster (None: the default one); nothing is recorded.

    If a service does not answer, ``problems`` says so. Clusters that keep no lists of their own add nothing.
    """
    cluster = _experiment_cluster(context, cluster_name)
    # A cluster that has just not answered is not asked again.
    if cluster is None or found.problems:
        return found
    try:
        backend = context.backend(cluster)
        # One more than is shown says whether there are more.
        seen, experiment = tuple(backend.newest(states, limit and limit + 1)), backend.experiment
    except BlobsyncError as error:
        problem = f"cluster {cluster.name}: {error.message}; jobs that this project did not submit are not shown"
        return replace(found, problems=(*found.problems, problem))
    others = (_record(context, cluster, one) for one in seen if not context.history.holds(one.spec.run_id))
    return _joined(replace(found, experiment=experiment), others, limit)


def _with_shared(
    context: JobContext, found: JobList, states: Collection[State], limit: int | None, cluster: str | None
) -> JobList:
    """The list with the newest jobs of other users and machines."""
    from blobsync.jobs.shared_records import newest_shared  # late: it is seldom asked for

    listed = _experiment_cluster(context, cluster)
    shared = newest_shared(context, limit or DEFAULT_LIMIT, cluster, listed.name if listed else "")
    others = (one for one in shared.records if not states or one.state in states)
    return _joined(replace(found, problems=(*found.problems, *shared.problems)), others, limit)


def _joined(found: JobList, others: Iterable[JobRecord], limit: int | None) -> JobList:
    """The newest of the list and of the others."""
    newest = sorted((*found.records, *others), key=lambda record: record.submitted, reverse=True)
    shown = tuple(newest[:limit])
    return replace(found, records=shown, more=found.more + len(newest) - len(shown))


def _experiment_cluster(context: JobContext, name: str | None) -> Cluster | None:
    if context.current and name in (None, context.current.name):
        cluster = context.current
    else:
        try:
            cluster = load_cluster(context.root, name, environ=context.environ)
        except ConfigError:
            return None
    return cluster if cluster.platform in SERVICES else None


def _record(context: JobContext, cluster: Cluster, seen: SeenJob) -> JobRecord:
    now, home = time.time(), home_of(cluster, context.environ)
    submitted = submission_time(seen.spec.run_id) or seen.submitted
    return JobRecord(
        seen.spec, seen.ref, cluster.platform, seen.info, submitted, home=home, confirmed=now, current=True
    )


def _not_found(
    unknown: JobNotFoundError, silent: Sequence[tuple[str, BlobsyncError]], problems: Sequence[str]
) -> BlobsyncError:
    """The error for an unknown job; its hint is the one of a cluster that could not be asked, if there is one."""
    asked = (f"cluster {name} could not be queried: {error.message}" for name, error in silent)
    message = "; ".join([unknown.message, *asked, *problems])
    for _, error in silent:
        if isinstance(error, LoginRequiredError):
            return LoginRequiredError(message, hint=error.hint)
    hints = [error.hint for _, error in silent if error.hint]
    return JobNotFoundError(message, hint=hints[0] if hints else unknown.hint)


def _id_of(given: str, above: Collection[str]) -> str:
    """The id in ``ID/`` or ``assets/ID/``, as shells complete the folder of a job's logs."""
    parts = given.rstrip("/").split("/")
    return parts[-1] if len(parts) == 1 or parts[-2] in above else given


def _state(word: State | str) -> State:
    try:
        return State(word)
    except ValueError:
        known = ", ".join(state.value for state in State)
        raise UsageError(f"{word!r} is not a job state", hint=f"one of {known}") from None


def _alone(task: int | None) -> Collection[int] | None:
    return None if task is None else (task,)


def _pause(record: JobRecord) -> float:
    if record.by or record.spec.platform in SERVICES:
        return _SERVICE_SECONDS
    return _HERE_SECONDS if record.spec.platform == "local" else _FOLLOW_SECONDS
