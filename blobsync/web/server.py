"""The pages, behind the gate, as one ASGI application; the server of it on 127.0.0.1 or on the user's own Unix socket;
and the browser that opens it."""

from __future__ import annotations

import errno
import logging
import os
import socket
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.web.gate import Gate, Logins, cookie_name
from blobsync.web.open_project import Source, problem_of
from blobsync.web.pages import ROUTES
from blobsync.web.render import FOLDER, AppState, app_state_of, form_of, live_parts, page, visit_of
from blobsync.web.status_cache import StatusCaches
from blobsync.web.transfer_tasks import TransferTasks

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
        routes=[*own, *ROUTES],
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


USUAL_PORT = 8737
_LOOPBACK = "127.0.0.1"
# Seconds that requests under way get when the server is stopped.
_PATIENCE = 2


def _listen(wanted: int | None, path: Path | None) -> socket.socket:
    """The socket at a port (0: a free one; None: the usual one, or a free one), or a Unix socket.

    Raises ``UsageError`` if the port or path is in use.
    """
    if path is not None:
        return _unix(path)
    port = USUAL_PORT if wanted is None else wanted
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        if wanted is None:
            return socket.create_server((_LOOPBACK, 0))
        raise UsageError(
            f"cannot listen on port {port}: {os.strerror(error.errno or 0)}",
            hint="leave out --port, and blobsync picks a free port",
        ) from error


def _unix(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _remove_dead(path)
        made.bind(str(path))
        made.listen(128)
    except OSError as error:
        made.close()
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise UsageError(f"cannot listen on {path}: {why}", hint="give --socket the path of a new file") from error
    finally:
        os.umask(before)
    return made


def _remove_dead(path: Path) -> None:
    """Remove a socket file whose server was killed; anything else stays, and binding fails."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def show_in_browser(address: str, environ: Mapping[str, str]) -> bool:
    """Open ``address`` in a browser with a window; False if there is none."""
    if (
        not any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
        and os.uname().sysname == "Linux"
    ):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


def serve_pages(
    source: Source, port: int | None, path: Path | None, folder: Path, open_browser: Callable[[str], bool]
) -> Iterator[str]:
    """Serve at a port or a Unix socket until Ctrl-C; yields messages for the user. ``folder`` is for the file that logs
    the browser in.

    ``open_browser`` gets the address of that file, and returns whether there is a browser.
    """
    place = _listen(port, path)
    port = place.getsockname()[1] if path is None else USUAL_PORT
    name = f"login-{port if path is None else os.getpid()}.html"
    logins = Logins(folder / name, f"http://{_LOOPBACK}:{port}")
    servers: list[uvicorn.Server] = []
    caches = StatusCaches()
    tasks = TransferTasks(source, caches.outdate)
    app_state = AppState(source, logins, caches, tasks, lambda: servers[0].should_exit)
    config = uvicorn.Config(
        web_application(app_state),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
    )
    servers.append(uvicorn.Server(config))
    try:
        yield from _greeting(logins, port, path, shown=open_browser(logins.file.as_uri()))
        servers[0].run(sockets=[place])
    except KeyboardInterrupt:
        pass
    finally:
        app_state.close()
        place.close()
        if path is not None:
            path.unlink(missing_ok=True)
    yield "stopped"


def _greeting(logins: Logins, port: int, path: Path | None, *, shown: bool) -> Iterator[str]:
    there = f"{_LOOPBACK}:{port}" if path is None else str(path)
    if shown:
        yield "your browser opens the page; if it does not, open this file or this link, which works once:"
    else:
        yield "open this file or this link, which works once:"
    yield f"  {logins.file.as_uri()}"
    yield f"  {logins.link}"
    yield "from another machine: run this there, then open the link there:"
    yield f"  ssh -L {port}:{there} {os.environ.get('USER', 'USER')}@{os.uname().nodename}"
    yield "Ctrl-C stops it"
