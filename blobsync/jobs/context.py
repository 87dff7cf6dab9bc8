"""The history of a project's jobs, and the backend and containers of each of their clusters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from blobsync.backends import create_backend
from blobsync.backends.protocol import Backend, Surroundings
from blobsync.base.errors import BackendUnavailableError, JobNotFoundError
from blobsync.base.process import ProcessRunner
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.history import History
from blobsync.jobs.record import JobRecord, cluster_at, home_of
from blobsync.local.state_dir import open_state_dir
from blobsync.store.protocol import BlobStore


class JobContext:
    """What all work with the jobs of one project needs: their history, clusters, environment and programs."""

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        current: Cluster | None = None,
        *,
        process: ProcessRunner | None = None,
        backends: Mapping[str, Backend] | None = None,
        stores: Mapping[str, BlobStore] | None = None,
        note: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``current`` is the cluster of ``-c`` with the changes of ``-p``; None is enough for looking at jobs.

        ``backends`` by cluster name replace those of the cluster files, ``stores`` by URL the containers that hold
        code. ``note`` shows a line to the user; ``sleep`` waits between two requests (seconds).
        """
        self.root = root
        self.environ = environ
        self.current = current
        self.state = open_state_dir(root, environ, note)
        self.history = History(self.state.jobs_file)
        if any((jobs := self.state.root / "jobs").glob("*/secrets.json")):
            from blobsync.backends.local.run_files import remove_dead_secrets  # late: no local job runs

            remove_dead_secrets(jobs)
        self.process = process or ProcessRunner()
        self.note = note
        self.sleep = sleep
        self._given = backends or {}
        self._stores = stores or {}
        self._backends: dict[str, Backend] = {}

    def cluster(self, name: str) -> Cluster:
        """The cluster file ``name``. Raises ``ConfigError``."""
        if self.current and name == self.current.name:
            return self.current
        return load_cluster(self.root, name, environ=self.environ)

    def backend(self, cluster: Cluster) -> Backend:
        """The backend of a cluster. Raises ``ConfigError`` and ``BackendUnavailableError``."""
        if cluster.name in self._given:
            return self._given[cluster.name]
        key = f"{cluster.name} {home_of(cluster, self.environ).key}"
        if key not in self._backends:
            self._backends[key] = self._new_backend(cluster)
        return self._backends[key]

    def own_backend(self, cluster: Cluster) -> Backend:
        """The backend that submits with all that this cluster's file, ``-p`` and options say, not only to its place.

        Raises ``ConfigError`` and ``BackendUnavailableError``.
        """
        is_shared = cluster is self.current or cluster.name in self._given
        return self.backend(cluster) if is_shared else self._new_backend(cluster)

    def _new_backend(self, cluster: Cluster) -> Backend:
        return create_backend(Surroundings(cluster, self.state.root, self.environ, self.process, self.note))

    @contextmanager
    def store(self, cluster: Cluster, account: StorageAccount, *, patient: bool = True) -> Iterator[BlobStore]:
        """The container of an account; not ``patient``: with one try of two seconds. Raises ``CredentialError``."""
        if str(account.container) in self._stores:
            yield self._stores[str(account.container)]
            return
        from blobsync.store.connect import connect, impatient

        opened = connect if patient else impatient
        with opened(account, environ=self.environ, use_cli_auth=cluster.flag("use_cli_auth")) as store:
            yield store

    def cluster_of(self, record: JobRecord) -> Cluster:
        """The cluster where the job was submitted, even if another cluster file has its name by now.

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

    def origin_of(self, record: JobRecord) -> Cluster:
        """The cluster as a job was submitted to it, with what ``-p`` and options changed then.

        Raises ``ConfigError`` and ``BackendUnavailableError``.
        """
        home = record.home
        if home and home.file and home.overrides:
            return cluster_at(home, record.cluster, self.root, self.environ)
        return self.cluster_of(record)

    def backend_of(self, record: JobRecord) -> Backend:
        """The backend that has the job. Raises ``ConfigError`` and ``BackendUnavailableError``."""
        demand_own(record)
        if record.cluster in self._given:
            return self._given[record.cluster]
        return self.backend(self.cluster_of(record))


def demand_own(record: JobRecord) -> None:
    """Raise ``JobNotFoundError`` for a job of which only the container has a record."""
    if record.by:
        raise JobNotFoundError(
            f"this project has no record of {record.run_id}: it is by {record.by}, from the container, so it can be"
            " looked at and submitted again, and nothing else",
            hint=f"blobsync q {record.run_id}",
        )
