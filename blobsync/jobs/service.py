"""Operations on submitted jobs: one history, and the backends of all clusters."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blobsync.backends import create_backend
from blobsync.backends.local.run_files import remove_dead_secrets
from blobsync.backends.protocol import (
    KEEP_SECRETS,
    Backend,
    KeepingSecrets,
    Recalling,
    Refused,
    Renewing,
    Scaling,
    Surroundings,
    Unknown,
)
from blobsync.base.errors import (
    AmbiguousJobError,
    BackendUnavailableError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    LoginRequiredError,
    UsageError,
)
from blobsync.base.process import ProcessRunner, SubprocessRunner
from blobsync.config.loader import cluster_names, load_cluster
from blobsync.config.log_folder import ASSETS, log_folder
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.history import History
from blobsync.jobs.home import cluster_at, home_of
from blobsync.jobs.logs import (
    BackendLogs,
    FetchedLogs,
    IncompleteLogError,
    LogSource,
    MirroredLogs,
    fetch_logs,
    follow,
    rank_of,
)
from blobsync.jobs.parse import FoundCause, log_lines, read_causes, summarise
from blobsync.jobs.record import JobRecord
from blobsync.jobs.standing import News
from blobsync.jobspec.elastic import demand_scalable
from blobsync.jobspec.node_sas import grant
from blobsync.jobspec.spec import (
    SERVICES,
    JobRef,
    JobSpec,
    LogMirror,
    RunInfo,
    State,
    run_name,
    submission_time,
)
from blobsync.jobspec.transfer_key import with_run_key
from blobsync.local.state_dir import open_state_dir
from blobsync.store.connect import connect, impatient
from blobsync.store.protocol import BlobStore
from blobsync.store.sas import sas_minter

FOLLOW_SECONDS = 1.0
# Services limit the requests of all their users.
SERVICE_SECONDS = 5.0
# Shorter ends of ids are looked for in the project's own history only.
_RECALL_CHARS = 4
_INTERRUPTED = "its submission was interrupted, and the cluster does not show it"
# How long a cluster that did not let us remove secrets is left alone, unless it is asked about other jobs.
AGAIN_SECONDS = 3600.0
# After this long, a request whose response was lost has arrived or never will.
SETTLE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class JobList:
    """Records with what is known now, and a message for each cluster that could not be queried.

    ``experiment`` is that of Azure ML whose other jobs are among them.
    """

    records: tuple[JobRecord, ...]
    problems: tuple[str, ...] = ()
    experiment: str = ""

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> JobRecord:
        return self.records[index]

    def __repr__(self) -> str:
        problems = f", {len(self.problems)} problems" if self.problems else ""
        return f"<JobList: {len(self.records):,} jobs{problems}>"


class JobService:
    """The jobs of a project, on whatever cluster they are."""

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        current: Cluster | None = None,
        *,
        process: ProcessRunner | None = None,
        backends: Mapping[str, Backend[Any]] | None = None,
        stores: Mapping[str, BlobStore] | None = None,
        note: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``current`` is the cluster that the user chose, with what ``-p`` changed; looking at jobs needs none.

        ``backends`` by cluster name stand for those that the cluster files name, ``stores`` by URL for the containers
        that hold code. ``note`` reports what is waited for; ``sleep`` passes seconds between two looks.
        """
        self.root = root
        self.environ = environ
        self.current = current
        self.state = open_state_dir(root, environ)
        self.history = History(self.state.jobs_file)
        remove_dead_secrets(self.state.root / "jobs")
        self.process = process or SubprocessRunner()
        self.note = note
        self._sleep = sleep
        self._given = backends or {}
        self._stores = stores or {}
        self._backends: dict[str, Backend[Any]] = {}

    # -- which cluster, which backend ---------------------------------------------------------------------------

    def cluster(self, name: str) -> Cluster:
        """The cluster file ``name``. Raises ``ConfigError``."""
        if self.current and name == self.current.name:
            return self.current
        return load_cluster(self.root, name, environ=self.environ)

    def backend(self, cluster: Cluster) -> Backend[Any]:
        """The backend of a cluster. Raises ``ConfigError`` and ``BackendUnavailableError``."""
        if cluster.name in self._given:
            return self._given[cluster.name]
        key = f"{cluster.name} {home_of(cluster, self.environ).key}"
        if key not in self._backends:
            around = Surroundings(
                cluster=cluster.name,
                project=self.root,
                state_dir=self.state.root,
                settings=settings_of(cluster),
                environ=self.environ,
                process=self.process,
                configured=cluster,
                note=self.note,
            )
            self._backends[key] = create_backend(cluster.platform, around)
        return self._backends[key]

    @contextmanager
    def store(self, cluster: Cluster, account: StorageAccount) -> Iterator[BlobStore]:
        """The container of an account. Raises ``CredentialError``."""
        if str(account.container) in self._stores:
            yield self._stores[str(account.container)]
            return
        with connect(account, environ=self.environ, use_cli_auth=cluster.flag("use_cli_auth")) as store:
            yield store

    @contextmanager
    def impatient_store(self, cluster: Cluster, account: StorageAccount) -> Iterator[BlobStore]:
        """The same, for a question whose answer is not worth waiting for. Raises ``CredentialError``."""
        if str(account.container) in self._stores:
            yield self._stores[str(account.container)]
            return
        with impatient(account, environ=self.environ, use_cli_auth=cluster.flag("use_cli_auth")) as store:
            yield store

    def cluster_of(self, record: JobRecord) -> Cluster:
        """The cluster that leads to the place that has the job, whatever other files have its name by now.

        Raises ``ConfigError`` and ``BackendUnavailableError``.
        """
        home = record.home
        if home and (self.current is None or home_of(self.current, self.environ).key != home.key):
            return cluster_at(home, record.cluster, self.root, self.environ)
        if home and self.current and self.current.name == record.cluster:
            return self.current
        cluster = self.cluster(record.cluster)
        if cluster.platform != record.spec.platform:
            raise BackendUnavailableError(
                f"the job belongs to {record.spec.platform}, but cluster {record.cluster} is now {cluster.platform}",
                hint=f"restore {cluster.file} as it was",
            )
        return cluster

    def backend_of(self, record: JobRecord) -> Backend[Any]:
        """The backend that has the job. Raises ``ConfigError`` and ``BackendUnavailableError``."""
        if record.cluster in self._given:
            return self._given[record.cluster]
        return self.backend(self.cluster_of(record))

    # -- states -------------------------------------------------------------------------------------------------

    def find(self, wanted: Iterable[str]) -> tuple[JobRecord, ...]:
        """The jobs whose ids begin or end so, or the newest of that name, in this order.

        Raises ``JobNotFoundError`` or ``AmbiguousJobError``; ``LoginRequiredError`` where a service may know the job.
        """
        above = {ASSETS, log_folder(self.root, self.environ).name}
        return tuple(self._find(_id_of(each, above)) for each in wanted)

    def _find(self, wanted: str) -> JobRecord:
        try:
            record = self.history.find(wanted)
        except JobNotFoundError as unknown:
            return self._recall(wanted, unknown)
        if record.spec.name == wanted:
            self.note(f"the newest job with the name {wanted}: {record.run_id}")
        return record

    def _recall(self, suffix: str, unknown: JobNotFoundError) -> JobRecord:
        """Ask the services that know jobs by themselves: a colleague's, or one from another machine."""
        found: dict[str, tuple[JobSpec, JobRef, Cluster]] = {}
        silent: list[tuple[str, BlobsyncError]] = []
        for name in cluster_names(self.root) if len(suffix) >= _RECALL_CHARS else ():
            try:
                cluster = self.cluster(name)
                backend = self.backend(cluster)
                for spec, ref in backend.recall(suffix) if isinstance(backend, Recalling) else ():
                    found.setdefault(spec.run_id, (spec, ref, cluster))
            except BlobsyncError as error:
                silent.append((name, error))
        if len(found) > 1:
            raise AmbiguousJobError(
                f"{len(found)} jobs end with {suffix!r}: {', '.join(list(found)[:8])}", hint="give more of the id"
            )
        for spec, ref, cluster in found.values():
            home, submitted = home_of(cluster, self.environ), submission_time(spec.run_id)
            spec = replace(spec, options={**spec.options, "recalled": True})
            return self.history.add(spec, ref, cluster.platform, home=home, submitted=submitted)
        raise _not_found(unknown, silent)

    def refresh(self, records: Sequence[JobRecord]) -> JobList:
        """Ask each place once for all its jobs that have not ended; failures are reported."""
        # An earlier answer is not the current state.
        records = [replace(record, current=False) for record in records]
        fresh = {record.run_id: record for record in records}
        problems: list[str] = []
        asked: dict[int, tuple[Backend[Any], list[JobRecord]]] = {}
        for record in records:
            if record.info.state.is_final:
                continue
            try:
                backend = self.backend_of(record)
                if not record.ref.native_id:
                    record = fresh[record.run_id] = self._look_up(record, backend)
                if record.ref.native_id:
                    asked.setdefault(id(backend), (backend, []))[1].append(record)
            except BlobsyncError as error:
                problems.append(_not_confirmed(record, error))
        answered: set[str] = set()
        for backend, group in asked.values():
            try:
                infos = backend.get([record.ref for record in group])
            except BlobsyncError as error:
                problems.append(_not_confirmed(group[0], error))
                continue
            for record, info in zip(group, infos, strict=True):
                fresh[record.run_id] = self.history.update(record, info)
            problems += [problem for record in group if (problem := self._renewed(record, backend))]
            answered |= {_place_of(record) for record in group}
        problems += self._remove_secrets(answered)
        return JobList(tuple(_as_known(fresh[record.run_id]) for record in records), tuple(dict.fromkeys(problems)))

    def _renewed(self, record: JobRecord, backend: Backend[Any]) -> str:
        """Hand new secrets to a job whose SAS ends before long; returns why that failed."""
        if not isinstance(backend, Renewing) or not backend.is_lapsing(record.ref):
            return ""
        try:
            cluster = self.cluster_of(record)
            _, secrets, _ = grant(record.spec, [cluster], sas_minter(cluster, self.environ))
            backend.renew(record.ref, with_run_key(record.spec, secrets, self.environ))
        except BlobsyncError as error:
            return f"the SAS of {record.run_id} expires before long, and could not be renewed: {error.message}"
        return ""

    def _remove_secrets(self, answered: Collection[str]) -> list[str]:
        """Of all jobs that have ended, from the clusters that keep them; returns why that failed.

        A cluster that has just ``answered`` is asked each time, any other one once in a while: it may be away.
        """
        places: dict[int, tuple[KeepingSecrets, list[JobRecord]]] = {}
        kept = self.history.with_secrets(KEEP_SECRETS, time.time())
        due = self.history.with_secrets(KEEP_SECRETS, time.time() - AGAIN_SECONDS) if kept else ()
        for record in kept:
            with suppress(BlobsyncError):
                backend = self.backend_of(record)
                if isinstance(backend, KeepingSecrets) and (_place_of(record) in answered or record in due):
                    places.setdefault(id(backend), (backend, []))[1].append(record)
        problems = []
        for keeping, group in places.values():
            try:
                keeping.remove_secrets([record.ref for record in group])
                self.history.note_secrets(group, gone=True)
            except BlobsyncError as error:
                self.history.note_secrets(group, gone=False)
                problems.append(_not_removed(group, error))
        return problems

    def _look_up(self, record: JobRecord, backend: Backend[Any]) -> JobRecord:
        """Resolve a submission whose response was lost. Raises what the backend raises."""
        ref = backend.locate(record.spec)
        if ref:
            return self.history.accept(record, ref)
        if time.time() - record.submitted < SETTLE_SECONDS:
            return record
        backend.forget(record.spec)
        info = RunInfo(record.run_id, State.FAILED, reason=f"{backend.name} never received it: {_INTERRUPTED}")
        return self.history.update(record, info)

    def recent(self, states: Collection[State] = (), limit: int | None = None, cluster: str | None = None) -> JobList:
        """The newest jobs in these states, as they are now."""
        refreshed = self.refresh(self.history.recent(cluster=cluster, limit=None if states else limit))
        chosen = [record for record in refreshed.records if not states or record.info.state in states]
        return replace(refreshed, records=tuple(chosen[:limit]))

    def cancel(self, record: JobRecord) -> JobRecord:
        """Stop a job; one that has ended stays as it is. Safe to repeat.

        Raises ``JobError`` and its like unless the job's own backend has taken the request.
        """
        if record.info.state.is_final:
            return record
        if not record.ref.native_id:
            raise JobError(
                f"{record.run_id} cannot be stopped yet: {record.info.reason or _INTERRUPTED}",
                hint="try again later: blobsync looks for it each time",
            )
        outcome = self.backend_of(record).cancel(record.ref)
        if isinstance(outcome, Unknown):
            raise JobError(
                f"unknown whether {record.run_id} is being stopped: {outcome.error.message}",
                hint="run the same command again: that is safe",
            )
        if isinstance(outcome, Refused):
            raise outcome.error
        known = self.refresh([self.history.ask_cancel(record)]).records[0]
        if known.info.state.is_final:
            return known
        return replace(known, info=replace(known.info, state=State.CANCELING), current=True)

    def scale(self, record: JobRecord, nodes: int) -> JobRecord:
        """Ask for another number of nodes of an elastic job. Safe to repeat; the last request counts.

        Raises ``UsageError`` outside its bounds and for a job of a fixed size, ``JobError`` and its like unless the
        job's own backend has taken the request.
        """
        demand_scalable(record.spec, record.info.state, nodes)
        if not record.ref.native_id:
            raise JobError(f"{record.run_id} cannot be scaled yet: {_INTERRUPTED}", hint="try again later")
        backend = self.backend_of(record)
        if not isinstance(backend, Scaling):
            raise UsageError(f"{record.run_id} cannot be scaled: {backend.name} cannot change a job that runs")
        asked_at = time.time()
        outcome = backend.scale(record.ref, nodes)
        if isinstance(outcome, Unknown):
            raise JobError(
                f"unknown whether {record.run_id} is being scaled: {outcome.error.message}",
                hint="run the same command again: that is safe",
            )
        if isinstance(outcome, Refused):
            raise outcome.error
        return self.refresh([self.history.ask_scale(record, nodes, asked_at)]).records[0]

    def wait(self, record: JobRecord) -> JobRecord:
        """Until the job has ended; notes what it waits for."""
        news = News(self.note)
        while not record.info.state.is_final:
            self._sleep(_pause(record))
            record = self._look(record, news)
        return record

    def _look(self, record: JobRecord, news: News) -> JobRecord:
        """The job as it is now; ``news`` is told."""
        found = self.refresh([record])
        news.tell(found[0], found.problems)
        return found[0]

    # -- logs ---------------------------------------------------------------------------------------------------

    def logs(self, record: JobRecord) -> FetchedLogs:
        """Bring the logs in ``assets/<ID>/`` up to date."""
        folder, boundary = self.log_folder(record)
        sources: list[Callable[[], LogSource]] = [lambda: BackendLogs(self.backend_of(record), record.ref)]
        if record.spec.logs:
            mirror = record.spec.logs
            sources.append(lambda: self._mirrored(record, mirror))
        over = record.info.state.is_final
        fetched = fetch_logs(sources, folder, boundary, over=over)
        if isinstance(fetched.problem, IncompleteLogError) and not over and self._has_ended(record):
            # What is missing now will not come any more.
            return fetch_logs(sources, folder, boundary, over=True)
        return fetched

    def log_folder(self, record: JobRecord) -> tuple[Path, Path]:
        """Where the logs of a job are kept, and the folder that no link leads out of: ACT's variable names another."""
        above = log_folder(self.root, self.environ)
        inside = above.resolve().is_relative_to(self.root.resolve())
        return above / run_name(record.run_id), self.root if inside else above

    def follow(self, record: JobRecord) -> Iterator[tuple[str, str]]:
        """The ranks' lines as they come, with the log's name, until the job has ended.

        Notes what the job waits for, and what is lost of its lines.
        """
        problem: BlobsyncError | None = None
        news = News(self.note)

        def ended() -> bool:
            return self._look(self.history.find(record.run_id), news).info.state.is_final

        def fetch() -> FetchedLogs:
            nonlocal problem
            fetched = self.logs(record)
            problem = fetched.problem
            return fetched

        yield from follow(fetch, ended, lambda: self._sleep(_pause(record)))
        if isinstance(problem, IncompleteLogError):
            self.note(f"{problem.message}; {problem.hint}")

    def causes(self, fetched: FetchedLogs) -> tuple[FoundCause, ...]:
        """What the fetched logs say about why a job failed."""
        found: list[FoundCause] = []
        for name in sorted(fetched.names, key=lambda name: (rank_of(name) is None, name)):
            with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
                found += read_causes(name, log_lines(stream))
        return summarise(found)

    def _has_ended(self, record: JobRecord) -> bool:
        return self.refresh([self.history.find(record.run_id)]).records[0].info.state.is_final

    def _mirrored(self, record: JobRecord, mirror: LogMirror) -> LogSource:
        known = self.cluster_of(record)
        accounts = [*(entry.account for entry in known.folders), *([known.code.account] if known.code else [])]
        for account in accounts:
            if str(account.container) == mirror.container:
                return MirroredLogs(connect(account, environ=self.environ), mirror)
        raise JobError(f"cluster {record.cluster} no longer knows {mirror.container}, where the logs are")


def _not_found(unknown: JobNotFoundError, silent: Sequence[tuple[str, BlobsyncError]]) -> BlobsyncError:
    """Nobody knows the job; where a cluster could not say so, the next step is what lets it be asked."""
    message = "; ".join(
        [unknown.message, *(f"cluster {name} could not be queried: {error.message}" for name, error in silent)]
    )
    for _, error in silent:
        if isinstance(error, LoginRequiredError):
            return LoginRequiredError(message, hint=error.hint)
    hints = [error.hint for _, error in silent if error.hint]
    return JobNotFoundError(message, hint=hints[0] if hints else unknown.hint)


def _not_confirmed(record: JobRecord, error: BlobsyncError) -> str:
    return f"cluster {record.cluster}: {error.message}; showing the last known state"


def _place_of(record: JobRecord) -> str:
    return record.home.key if record.home else record.cluster


def _not_removed(records: Sequence[JobRecord], error: BlobsyncError) -> str:
    what = records[0].run_id if len(records) == 1 else f"{len(records):,} jobs that have ended"
    return f"cluster {records[0].cluster} still has the secrets of {what}: {error.message}"


def _as_known(record: JobRecord) -> JobRecord:
    """A job that no backend has confirmed has no state."""
    if record.ref.native_id or record.info.state.is_final:
        return record
    return replace(record, info=RunInfo(record.run_id, State.UNKNOWN, reason=_INTERRUPTED))


def _id_of(given: str, above: Collection[str]) -> str:
    """Shells complete a folder: ``ID/``, or ``assets/ID/`` from wherever the user is."""
    parts = given.rstrip("/").split("/")
    return parts[-1] if len(parts) == 1 or parts[-2] in above else given


def settings_of(cluster: Cluster) -> Mapping[str, object]:
    """What a backend needs to know of its cluster file, under the names that it uses."""
    python = cluster.text("interpreter_path")
    return {
        **cluster.values,
        **cluster.mapping("runtime"),
        **({"python": python} if python else {}),
        **cluster.mapping(cluster.platform),
        "local": cluster.mapping("local"),
    }


def _pause(record: JobRecord) -> float:
    return SERVICE_SECONDS if record.spec.platform in SERVICES else FOLLOW_SECONDS
