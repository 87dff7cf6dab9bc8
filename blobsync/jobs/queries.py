"""Questions about jobs that change nothing: pages of the history, pieces of logs, use of the nodes, comparisons.

``with_others`` adds the jobs of an Azure ML experiment that this project has no record of: of colleagues, of other
clones, of other programs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blobsync.backends.protocol import Grouping, SeenJob
from blobsync.base.errors import BlobsyncError, ConfigError
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.home import home_of
from blobsync.jobs.logs import fetch_logs, rank_of
from blobsync.jobs.parse import FoundCause, read_causes, summarise
from blobsync.jobs.record import JobFilter, JobRecord
from blobsync.jobs.service import JobList, JobService
from blobsync.jobspec.spec import SERVICES, State, submission_time

if TYPE_CHECKING:
    from blobsync.jobs.compare import ComparedFiles, ComparedJobs
    from blobsync.jobs.logs import FetchedLogs, FoundLine, LogPiece
    from blobsync.jobs.node_use import NodeUse


# How many jobs that have not ended are asked for at once, and how many lines a search returns.
MOST_ASKED = 200
MOST_FOUND = 500


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, as they were last known, how many there are in all, and how many are in each state."""

    records: tuple[JobRecord, ...]
    total: int
    states: Mapping[State, int]

    def __repr__(self) -> str:
        return f"<JobPage: {len(self.records):,} of {self.total:,} jobs>"


class JobQueries:
    """What pages show of the jobs of one project."""

    def __init__(self, service: JobService) -> None:
        self._service = service

    def page(self, chosen: JobFilter, *, limit: int, offset: int = 0) -> JobPage:
        """The newest jobs that are ``chosen``, from number ``offset`` on; asks no cluster."""
        history = self._service.history
        counts = history.count_states(chosen)
        total = sum(count for state, count in counts.items() if not chosen.states or state in chosen.states)
        return JobPage(history.page(chosen, limit=limit, offset=offset), total, counts)

    def refresh_unfinished(self) -> tuple[str, ...]:
        """Ask the clusters for the newest jobs that have not ended; returns why some could not be asked."""
        unfinished = tuple(state for state in State if not state.is_final)
        records = self._service.history.page(JobFilter(unfinished), limit=MOST_ASKED)
        return self._service.refresh(records).problems

    def clusters_of_jobs(self) -> tuple[str, ...]:
        """The clusters that have jobs, sorted."""
        return self._service.history.clusters()

    def fetched(self, record: JobRecord) -> FetchedLogs:
        """The logs that are here already; asks nobody."""
        return fetch_logs((), *self._service.log_folder(record))

    def log_piece(self, fetched: FetchedLogs, name: str, start: int | None = None, *, ended: bool = False) -> LogPiece:
        """Lines of one of the ``fetched`` logs from byte ``start`` on; without it, the last ones.

        ``ended`` says that nothing will be written any more. Raises ``ConfigError`` for a log that is not among them.
        """
        from blobsync.jobs.logs import log_piece

        if name not in fetched.names:
            raise ConfigError(f"there is no log {name!a}")
        return log_piece(fetched.path(name), name, start, everything=ended)

    def search_logs(self, fetched: FetchedLogs, text: str, *, limit: int = MOST_FOUND) -> tuple[FoundLine, ...]:
        """The first lines that hold ``text``: in the logs of the processes, then in those of the system."""
        from blobsync.jobs.logs import find_lines

        names = sorted(fetched.names, key=lambda name: (rank_of(name) is None, name))
        return find_lines(fetched, names, text, limit) if text else ()

    def node_use(self, fetched: FetchedLogs) -> tuple[NodeUse, ...]:
        """What the logs of the nodes say of disk, load and GPUs; nodes that said nothing are left out."""
        from blobsync.jobs.node_use import node_of_log, node_use

        found = []
        for name in fetched.names:
            node = node_of_log(name)
            if node is not None:
                with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
                    found.append(node_use(node, stream))
        return tuple(use for use in sorted(found, key=lambda use: use.node) if use.samples)

    def causes(self, record: JobRecord, fetched: FetchedLogs) -> tuple[FoundCause, ...]:
        """Why a job failed, as far as its logs and its cluster say; none for one that did not."""
        if record.state is not State.FAILED:
            return ()
        return summarise([*read_causes("the cluster", [record.reason]), *self._service.causes(fetched)])

    def compare(self, left: JobRecord, right: JobRecord) -> ComparedJobs:
        """What was different between two jobs; the lists of their files are read where their code is kept."""
        from blobsync.jobs.compare import compare_records

        return compare_records(left, right, self._compared_files(left, right))

    def _compared_files(self, left: JobRecord, right: JobRecord) -> ComparedFiles:
        from blobsync.jobs.compare import ComparedFiles, compare_files

        digests = [record.spec.code.digest if record.spec.code else "" for record in (left, right)]
        if not all(digests):
            return ComparedFiles(problem="a job without a code archive has no list of its files")
        if digests[0] == digests[1]:
            return ComparedFiles()
        try:
            return compare_files(self._code_files(left), self._code_files(right))
        except BlobsyncError as error:
            return ComparedFiles(problem=error.message)

    def _code_files(self, record: JobRecord) -> Mapping[str, str]:
        """The files of a job's code. Raises ``ArchiveError``, ``ConfigError`` and ``StorageError``."""
        from blobsync.code.publish import published_files
        from blobsync.jobspec.node_sas import known_accounts

        code = record.spec.code
        assert code is not None
        cluster = self._service.cluster_of(record)
        account = known_accounts([cluster]).get(code.container)
        if account is None:
            raise ConfigError(f"cluster {record.cluster} no longer knows {code.container}, where the code is")
        with self._service.store(cluster, account) as store:
            return published_files(store, code.blob, code.digest)


def with_others(
    service: JobService, found: JobList, states: Collection[State], limit: int | None, cluster_name: str | None
) -> JobList:
    """The list with the newest jobs of the experiment of this cluster (None: the default one); nothing is recorded.

    A service that does not answer costs a sentence. Clusters that keep no lists of their own add nothing.
    """
    cluster = _experiment_cluster(service, cluster_name)
    # Where a cluster did not answer just now, asking again would only take time.
    if cluster is None or found.problems:
        return found
    try:
        backend = service.backend(cluster)
        if not isinstance(backend, Grouping):
            return found
        seen, experiment = tuple(backend.newest(states, limit)), backend.experiment
    except BlobsyncError as error:
        told = f"cluster {cluster.name}: {error.message}; jobs that this project did not submit are not shown"
        return replace(found, problems=(*found.problems, told))
    others = (_record(service, cluster, one) for one in seen if not service.history.holds(one.spec.run_id))
    newest = sorted((*found.records, *others), key=lambda record: record.submitted, reverse=True)
    return replace(found, records=tuple(newest[:limit]), experiment=experiment)


def _experiment_cluster(service: JobService, name: str | None) -> Cluster | None:
    if service.current and name in (None, service.current.name):
        cluster = service.current
    else:
        try:
            cluster = load_cluster(service.root, name, environ=service.environ)
        except ConfigError:
            return None
    return cluster if cluster.platform in SERVICES else None


def _record(service: JobService, cluster: Cluster, seen: SeenJob) -> JobRecord:
    now, home = time.time(), home_of(cluster, service.environ)
    submitted = submission_time(seen.spec.run_id) or seen.submitted
    return JobRecord(
        seen.spec, seen.ref, cluster.platform, seen.info, submitted, home=home, confirmed=now, current=True
    )
