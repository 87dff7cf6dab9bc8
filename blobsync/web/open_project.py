"""How pages open the project, and what they say if that or something else fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact
from blobsync.config.loader import cluster_names
from blobsync.local.state_dir import open_state_dir
from blobsync.project.api import Project
from blobsync.project.jobs import Jobs
from blobsync.project.keeper_records import Keepers, KeeperState
from blobsync.project.open_jobs import open_jobs
from blobsync.project.transfer_history import LogBook


@dataclass(frozen=True, slots=True)
class Source:
    """How pages open the project: as the command line did that started the server.

    ``folder`` is the current folder, ``cluster`` the value of -c, ``cluster_name`` the cluster that was chosen.
    """

    root: Path
    folder: Path
    cluster: str | None
    cluster_name: str
    overrides: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    def open(
        self,
        cluster: str | None = None,
        *,
        from_cluster: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Project:
        """Open the project for one request, since it is for one thread at a time. Raises ``ConfigError``.

        ``changes`` are those of a form, instead of -p and -n of the command line.
        """
        through = self.through(cluster)
        return Project.open(
            self.folder,
            cluster=through.cluster,
            from_cluster=from_cluster,
            overrides=(through.overrides if changes is None else changes) or None,
            environ=self.environ,
        )

    def through(self, cluster: str | None) -> Source:
        """The same project with that cluster; -p and -n of the command line apply only to the cluster that -c chose."""
        if not cluster or cluster == self.cluster_name:
            return self
        return replace(self, cluster=cluster, cluster_name=cluster, overrides={})

    def clusters(self) -> tuple[str, ...]:
        """The names of all clusters, sorted."""
        return tuple(sorted({self.cluster_name, *cluster_names(self.root)}))

    def jobs(self) -> Jobs:
        """The jobs of the project, which need no cluster."""
        return open_jobs(self.root, environ=self.environ)

    def logbook(self) -> LogBook:
        """The log of transfers, which needs no cluster."""
        return LogBook(self.root, self.folder, open_state_dir(self.root, self.environ), lambda text: None)

    def keepers(self) -> tuple[KeeperState, ...]:
        """Who keeps folders of the project uploaded; needs no cluster."""
        return tuple(Keepers(open_state_dir(self.root, self.environ)).all().values())


def look_through(request: Request, cluster: str | None) -> Source:
    """The source of a page about that cluster (None: the one of the command line); its links and forms stay with it.
    Raises ``UsageError`` if there is no cluster of that name."""
    source: Source = request.app.state.shared.source
    found = source.through(cluster)
    if found is not source and found.cluster_name not in source.clusters():
        raise UsageError(f"there is no cluster {found.cluster_name!r}", hint="choose one on the Project page")
    request.state.source = found
    return found


def source_of(request: Request) -> Source:
    """The source that the address or the form names; see :func:`look_through`."""
    form: Mapping[str, str] = request.state.form
    return look_through(request, form.get("cluster") or request.query_params.get("cluster"))


def problem_of(error: Exception) -> tuple[str, str]:
    """What pages say of an error, and its hint, without secrets. One that is not ours is a bug."""
    if isinstance(error, BlobsyncError):
        return redact(error.message), redact(error.hint or "")
    what = f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}"
    return what, "please report it with the output of blobsync -vv web"
