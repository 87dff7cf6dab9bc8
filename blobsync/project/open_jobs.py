"""Opens the jobs of a project, even where its cluster files cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.user_data import environment
from blobsync.config.model import Cluster
from blobsync.config.project_root import current_folder, find_project
from blobsync.jobs.queries import JobQueries
from blobsync.jobs.service import JobService
from blobsync.project.jobs import Jobs
from blobsync.project.options import PathName, path_text

if TYPE_CHECKING:
    from blobsync.base.events import Listener
    from blobsync.jobs.first_free import Candidate
    from blobsync.jobspec.describe import SubmitRequest
    from blobsync.project.api import Project
    from blobsync.project.job_forms import JobForms


def open_jobs(
    start: PathName = ".", *, environ: Mapping[str, str] | None = None, listener: Listener | None = None
) -> Jobs:
    """The jobs of the project that holds ``start``, whatever its cluster files say by now.

    For looking at jobs, stopping and resubmitting them; ``Project.open().jobs`` can also submit. Raises
    ``ConfigError`` if there is no project; uses no network.
    """
    environ = environment(environ)
    start = path_text(start)
    root = find_project(current_folder(environ) if start == "." else Path(start).absolute(), environ)
    from blobsync.base.events import notes_to

    told = listener or _log_listener()
    return Jobs(JobService(root, environ, note=notes_to(told)), lambda cluster: _through(root, cluster, environ, told))


def open_job_queries(root: Path, *, environ: Mapping[str, str]) -> JobQueries:
    """What pages show of the jobs of the project at ``root``, whatever its cluster files say by now."""
    from blobsync.base.events import notes_to

    return JobQueries(JobService(root, environ, note=notes_to(_log_listener())))


def open_job_forms(root: Path, *, environ: Mapping[str, str]) -> JobForms:
    """The forms for jobs of the project at ``root``."""
    from blobsync.project.job_forms import JobForms

    return JobForms(root, environ, lambda cluster: _through(root, cluster, environ, _log_listener()))


def _through(root: Path, cluster: Cluster, environ: Mapping[str, str], listener: Listener) -> Project:
    """The project through a cluster, from its root."""
    from blobsync.project.api import Project

    project = Project(root, root, cluster, environ=environ)
    project.listener = listener
    return project


def first_free(
    names: Sequence[str], request: SubmitRequest, *, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> tuple[Candidate, ...]:
    """Which of these clusters of the project around the current folder the job goes to; ``overrides`` are ``-p``'s.

    Raises ``ConfigError``, and ``BackendUnavailableError`` where none has enough.
    """
    from blobsync.config.loader import load_cluster
    from blobsync.jobs.first_free import choose_cluster

    root = find_project(current_folder(environ), environ)
    clusters = [load_cluster(root, name, overrides=overrides, environ=environ) for name in names]
    return choose_cluster(JobService(root, environ), clusters, request)


def _log_listener() -> Listener:
    from blobsync.project.progress_listeners import LoggingListener

    return LoggingListener()
