"""``web``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from blobsync.base.errors import UsageError
from blobsync.cli.commands import Commands, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session

app = Commands()


@app.command("web")
def web(
    session: Session,
    port: Annotated[
        int | None,
        option("--port", metavar="N", min=0, max=65535, help="Listen here. Default: 8737, or a free port."),
    ] = None,
    socket: Annotated[
        Path | None, option("--socket", metavar="PATH", help="Listen on a Unix socket, for shared machines.")
    ] = None,
    no_browser: Annotated[bool, option("--no-browser", help="Only print the link.")] = False,
) -> Result:
    """Show the project in the browser: what is in sync, transfers, jobs, a form for new jobs, clusters.

    Listens on this machine only, and lets only you in. Runs until Ctrl-C.

    \b
      blobsync web
      blobsync web --no-browser --port 8080
      blobsync web --socket ~/.blobsync-web.sock
    """
    if session.json:
        raise UsageError("web runs until it is stopped, so it has no --json")
    if port is not None and socket is not None:
        raise UsageError("--port and --socket cannot be combined")
    with session.project() as project:
        folder, root, cwd, name = project.state.folder("web"), project.root, project.cwd, project.cluster.name
    try:
        from blobsync.web.open_project import Source
        from blobsync.web.server import serve_pages, show_in_browser
    except ModuleNotFoundError as error:
        raise UsageError(f"web needs {error.name}", hint="pip install 'blobsync[web]'") from error
    source = Source(root, cwd, session.cluster, name, session.overrides(), session.environ)
    opened = (lambda address: False) if no_browser else (lambda address: show_in_browser(address, session.environ))
    return Result({}, serve_pages(source, port, socket, folder, opened), live=True)
