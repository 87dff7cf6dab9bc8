"""What all pages share while the server runs: the project that they show, who is logged in, what is under way."""

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
    """One for each server. ``is_stopping`` tells streams that the server wants to end. ``told_of_jobs`` are the
    warnings with which jobs were submitted here, by the jobs' ids."""

    source: Source
    logins: Logins
    boards: Boards
    works: Works
    is_stopping: Callable[[], bool]
    told_of_jobs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def close(self) -> None:
        """Stop what is under way, and let nobody in any more."""
        self.logins.close()
        self.works.close()


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
