"""Opens ``project.jobs`` without a cluster, so it works even where the cluster files cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.events import LoggingListener, notes_to
from blobsync.base.user_folders import environment
from blobsync.config.mapping import PathName, path_text
from blobsync.config.model import Cluster
from blobsync.config.project_root import current_folder, find_project
from blobsync.jobs.context import JobContext
from blobsync.project.jobs import Jobs

if TYPE_CHECKING:
    from blobsync.base.events import Listener

    # ``Project`` imports ``project.jobs``, and looking at jobs does not need it.
    from blobsync.project.api import Project


def open_jobs(
    start: PathName = ".", *, environ: Mapping[str, str] | None = None, listener: Listener | None = None
) -> Jobs:
    """The jobs of the project that holds ``start``, even where its cluster files cannot be read.

    For looking at jobs, stopping and resubmitting them; ``Project.open().jobs`` can also submit. Raises
    ``ConfigError`` if there is no project; uses no network.
    """
    environ = environment(environ)
    start = path_text(start)
    root = find_project(current_folder(environ) if start == "." else Path(start).absolute(), environ)
    listening = listener or LoggingListener()

    def open_project(cluster: Cluster) -> Project:
        from blobsync.project.api import Project

        project = Project(root, root, cluster, environ=environ)
        project.listener = listening
        return project

    return Jobs(JobContext(root, environ, note=notes_to(listening)), open_project)
