"""The jobs of a project whose cluster files nobody has to be able to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.environment import environment
from blobsync.config.model import Cluster
from blobsync.config.project_root import current_folder, find_project
from blobsync.jobs.board import Board
from blobsync.jobs.project_jobs import Jobs
from blobsync.project.paths import PathName, path_text

if TYPE_CHECKING:
    from blobsync.code.project_code import CodeProject
    from blobsync.plan.listener import Listener


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
    told = listener or _log_listener()

    def through(cluster: Cluster) -> CodeProject:
        from blobsync.project.api import Project

        project = Project(root, root, cluster, environ=environ)
        project.listener = told
        return project

    return Jobs(Board(root, environ, note=told.note), through)


def _log_listener() -> Listener:
    from blobsync.project.callback import LoggingListener

    return LoggingListener()
