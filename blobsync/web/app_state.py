"""The state that all pages share while the server runs: the project, the logins, the transfers under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from blobsync.web.gate import Logins, Visit
from blobsync.web.open_project import Source
from blobsync.web.status_cache import StatusCaches
from blobsync.web.transfer_tasks import TransferTasks


@dataclass(frozen=True, slots=True)
class AppState:
    """One per server. ``is_stopping``: the server is about to stop. ``submit_warnings``: the warnings with which jobs
    were submitted here, by the jobs' ids."""

    source: Source
    logins: Logins
    caches: StatusCaches
    tasks: TransferTasks
    is_stopping: Callable[[], bool]
    submit_warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def close(self) -> None:
        """Stop all transfers and end all logins."""
        self.logins.close()
        self.tasks.close()


def app_state_of(request: Request) -> AppState:
    """The state of the server that got this request."""
    state = request.app.state.shared
    assert isinstance(state, AppState)
    return state


def visit_of(request: Request) -> Visit:
    """The login of the request; the gate ensures that there is one."""
    visit = request.state.visit
    assert isinstance(visit, Visit)
    return visit


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the submitted form."""
    form: Mapping[str, str] = request.state.form
    return form


def page_number(request: Request, first: int = 0) -> int:
    """Which page of a list the address names."""
    text = request.query_params.get("page", "")
    return max(first, int(text)) if text.isdecimal() and len(text) < 7 else first
