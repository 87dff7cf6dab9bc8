"""Keeps one named tunnel open, detached from the terminal that opened it.

    python -m blobsync.tunnels.background FOLDER

``FOLDER`` is the tunnel's, with its ``order.json``; this process holds ``lock`` as long as it lives. A file called
``close`` ends it, as does the end of the tunnel's job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from blobsync.base.errors import BlobsyncError
from blobsync.base.exit_codes import shell_code
from blobsync.base.plain_json import parse_object
from blobsync.base.process import ProcessRunner
from blobsync.tunnels.named import NamedTunnel, TunnelFolder
from blobsync.tunnels.tunnel_keeper import TunnelKeeper

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 5.0


def keep_tunnel(
    folder: TunnelFolder,
    process: ProcessRunner,
    environ: Mapping[str, str],
    has_ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Open the tunnel and keep it open until it is closed; the exit code is 1 if it could not be opened."""
    order = parse_object(folder.order.read_text())
    tunnel, port = NamedTunnel(**order["tunnel"]), order["port"]
    keeper = TunnelKeeper(partial(tunnel.argv, port), port, process, environ, started=folder.note_line)
    written: Mapping[str, object] = {}
    try:
        keeper.open()
        look_at = clock() + _LOOK_SECONDS
        while not folder.close.exists():
            now = {
                "open": keeper.reopen_if_lost(),
                "port": keeper.port,
                "restarts": keeper.restarts,
                "problem": keeper.problem,
            }
            if now != written:
                folder.write(folder.state, {**now, "job_id": order["job_id"]})
                written = now
            if order["job_id"] and clock() >= look_at:
                if has_ended():
                    break
                look_at = clock() + _LOOK_SECONDS
            time.sleep(_POLL_SECONDS)
        return 0
    except BlobsyncError as error:
        folder.write(folder.state, {"open": False, "problem": error.message})
        return 1
    finally:
        keeper.close()


def job_watcher(project: str, job_id: str, environ: Mapping[str, str]) -> Callable[[], bool]:
    """Whether the job has ended; False if its cluster cannot be reached."""
    if not job_id:
        return lambda: False
    from blobsync.jobs.context import JobContext
    from blobsync.jobs.states import refresh

    context = JobContext(Path(project), environ)

    def has_ended() -> bool:
        with suppress(BlobsyncError):
            return refresh(context, [context.history.find(job_id)]).records[0].info.state.is_final
        return False

    return has_ended


def main(path: str) -> int:
    """Keep the tunnel of this folder open; a second process for it exits at once."""
    folder = TunnelFolder(Path(path))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(shell_code(-signal.SIGTERM)))
    with folder.held() as ours:
        if not ours:
            return 0
        order = parse_object(folder.order.read_text())
        watcher = job_watcher(str(order["project"]), str(order["job_id"]), os.environ)
        return keep_tunnel(folder, ProcessRunner(), os.environ, watcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
