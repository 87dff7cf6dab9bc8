"""The state that all pages share while the server runs: the project, who is logged in, what is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from blobsync.web.login import Logins, Visit
from blobsync.web.source import Source
from blobsync.web.status_cache import Boards
from blobsync.web.transfer_tasks import Works


@dataclass(frozen=True, slots=True)
class Desk:
    """One per server. ``is_stopping`` tells streams that the server is about to stop. ``told_of_jobs`` are the warnings
    with which jobs were submitted here, by the jobs' ids."""

    source: Source
    logins: Logins
    boards: Boards
    works: Works
    is_stopping: Callable[[], bool]
    told_of_jobs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def close(self) -> None:
        """Stop what is under way, and end all logins."""
        self.logins.close()
        self.works.close()


def desk_of(request: Request) -> Desk:
    """The state of the server that got this request."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk


def visit_of(request: Request) -> Visit:
    """The login of the request; behind the gate there is always one."""
    visit = request.state.visit
    assert isinstance(visit, Visit)
    return visit


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the submitted form."""
    form: Mapping[str, str] = request.state.form
    return form
