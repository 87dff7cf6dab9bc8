"""What all pages share while the server runs: the project that they show, who is logged in, what is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request

from blobsync.project.api import Project
from blobsync.web.login import Logins, Visit


@dataclass(frozen=True, slots=True)
class Source:
    """From where pages open the project: as the command line did that started them.

    ``folder`` is the current folder, ``cluster`` what -c chose, ``cluster_name`` the cluster that it came to.
    """

    root: Path
    folder: Path
    cluster: str | None
    cluster_name: str
    overrides: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    def open(self, cluster: str | None = None) -> Project:
        """For one request, since a project is for one thread at a time. Raises ``ConfigError``."""
        other = cluster not in (None, self.cluster_name)
        overrides = None if other else self.overrides
        return Project.open(
            self.folder, cluster=cluster if other else self.cluster, overrides=overrides, environ=self.environ
        )


@dataclass(frozen=True, slots=True)
class Desk:
    """One for each server. ``is_stopping`` tells streams that the server wants to end."""

    source: Source
    logins: Logins
    is_stopping: Callable[[], bool] = lambda: False


def desk_of(request: Request) -> Desk:
    """The desk of the server that got this request."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk


def visit_of(request: Request) -> Visit:
    """Who asks; behind the gate there is always one."""
    visit = request.state.visit
    assert isinstance(visit, Visit)
    return visit


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the form that was sent."""
    form: Mapping[str, str] = request.state.form
    return form
