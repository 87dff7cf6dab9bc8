"""Jobs of an experiment that this project has no record of: of colleagues, of other clones, of other programs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from blobsync.backends.protocol import Grouping, SeenJob
from blobsync.base.errors import BlobsyncError, ConfigError
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.home import home_of
from blobsync.jobs.record import JobRecord
from blobsync.jobs.service import Board, JobList
from blobsync.jobspec.spec import SERVICES, State, submission_time


def with_others(
    board: Board, found: JobList, states: Collection[State], limit: int | None, cluster_name: str | None
) -> JobList:
    """The list with the newest jobs of the experiment of this cluster (None: the default one); nothing is recorded.

    A service that does not answer costs a sentence. Clusters that keep no lists of their own add nothing.
    """
    cluster = _service(board, cluster_name)
    # Where a cluster did not answer just now, asking again would only take time.
    if cluster is None or found.problems:
        return found
    try:
        backend = board.backend(cluster)
        if not isinstance(backend, Grouping):
            return found
        seen, experiment = tuple(backend.newest(states, limit)), backend.experiment
    except BlobsyncError as error:
        told = f"cluster {cluster.name}: {error.message}; jobs that this project did not submit are not shown"
        return replace(found, problems=(*found.problems, told))
    others = (_record(board, cluster, one) for one in seen if not board.history.holds(one.spec.run_id))
    newest = sorted((*found.records, *others), key=lambda record: record.submitted, reverse=True)
    return replace(found, records=tuple(newest[:limit]), experiment=experiment)


def _service(board: Board, name: str | None) -> Cluster | None:
    if board.current and name in (None, board.current.name):
        cluster = board.current
    else:
        try:
            cluster = load_cluster(board.root, name, environ=board.environ)
        except ConfigError:
            return None
    return cluster if cluster.platform in SERVICES else None


def _record(board: Board, cluster: Cluster, seen: SeenJob) -> JobRecord:
    now, home = time.time(), home_of(cluster, board.environ)
    submitted = submission_time(seen.spec.run_id) or seen.submitted
    return JobRecord(
        seen.spec, seen.ref, cluster.platform, seen.info, submitted, home=home, confirmed=now, current=True
    )
