"""The pages, behind the gate, as one ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from blobsync.base.errors import BlobsyncError
from blobsync.base.exit_codes import ExitCode
from blobsync.web.app_state import AppState, app_state_of, form_of, visit_of
from blobsync.web.events import live_parts
from blobsync.web.gate import Gate, cookie_name
from blobsync.web.open_project import problem_of
from blobsync.web.pages import all_routes
from blobsync.web.render import FOLDER, page

_log = logging.getLogger(__name__)
# What is said instead of the names that HTTP has for it.
_OF_NO_PAGE: Mapping[int, tuple[str, str]] = {
    HTTPStatus.NOT_FOUND: ("this page does not exist", ""),
    HTTPStatus.METHOD_NOT_ALLOWED: ("only a button makes this page", "go back, and press the button again"),
}


def web_application(app_state: AppState) -> Gate:
    """Everything that ``blobsync web`` serves."""
    own = [
        Route("/login", _show_login, methods=["GET"]),
        Route("/login", _log_in, methods=["POST"]),
        Route("/logout", _log_out, methods=["POST"]),
        Route("/live", _alive),
        Route("/whoami", _known),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]
    app = Starlette(
        routes=[*own, *all_routes()],
        exception_handlers={BlobsyncError: _failed, HTTPException: _no_such_page, Exception: _failed},
    )
    app.state.shared = app_state
    return Gate(app, app_state.logins)


def _show_login(request: Request) -> Response:
    # Every user of this machine can request this page, so it does not name the project.
    return page(request, "login.html", login_file=app_state_of(request).logins.file.name, wrong=False)


def _log_in(request: Request) -> Response:
    app_state = app_state_of(request)
    visit = app_state.logins.exchange(form_of(request).get("login_token", "").strip())
    if visit is None:
        return page(request, "login.html", code=403, login_file=app_state.logins.file.name, wrong=True)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(cookie_name(request.headers["host"]), visit.cookie, httponly=True, samesite="strict")
    return answer


def _log_out(request: Request) -> Response:
    app_state_of(request).logins.forget(visit_of(request))
    return RedirectResponse("/login", 303)


def _alive(request: Request) -> Response:
    """A stream that shows that the server runs, for pages without live parts."""
    return live_parts(request, dict)


def _known(request: Request) -> Response:
    """Whether the request is logged in, for a page that lost its stream."""
    return Response(status_code=200)


def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, hint = _OF_NO_PAGE.get(error.status_code, (error.detail, ""))
    return _problem(request, error.status_code, message, hint)


def _failed(request: Request, error: Exception) -> Response:
    status = 500
    if isinstance(error, BlobsyncError):
        status = 404 if error.exit_code == ExitCode.NOTHING_MATCHED else 400
    else:
        _log.info("a bug", exc_info=error)
    return _problem(request, status, *problem_of(error))


def _problem(request: Request, status: int, message: str, hint: str) -> Response:
    return page(request, "problem.html", code=status, message=message, hint=hint)
