"""Keeps a forwarded port open: runs its command, and again, for the node of that moment, when it is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from blobsync.base.errors import BackendUnavailableError, BlobsyncError
from blobsync.base.process import ProcessRunner, RunningProcess

# Time limit of a login through several machines, one of which may have to start (seconds).
OPEN_SECONDS = 90.0
_LONGEST_PAUSE = 30.0
# After a connection of so many seconds, failures are counted from 0 again.
_HELD_SECONDS = 60.0
_POLL_SECONDS = 0.1


class TunnelKeeper:
    """A tunnel's process. ``make`` returns its command each time: a requeued job has another node.

    ``port`` is the local one; ``note`` reports lost and restored connections, ``started`` each new process.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[str]],
        port: int,
        process: ProcessRunner,
        environ: Mapping[str, str],
        *,
        note: Callable[[str], None] = lambda text: None,
        started: Callable[[int], None] = lambda pid: None,
        answers: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = port
        self.restarts = 0
        self.problem = ""
        self._make, self._process, self._environ, self._note = make, process, environ, note
        self._answers, self._clock, self._started = answers or is_answered, clock, started
        self._child: RunningProcess | None = None
        self._opened = self._retry_at = 0.0
        self._pause = 1.0

    def open(self) -> None:
        """Start it, and wait until the port is open. Raises ``BackendUnavailableError`` and errors of ``make``."""
        argv = self._make()
        child = self._child = self._process.start(argv, env=self._environ)
        self._started(child.pid)
        # Some report each connection, which would fill a pipe.
        threading.Thread(target=_drain, args=(child,), daemon=True).start()
        until = self._clock() + OPEN_SECONDS
        while self._clock() < until:
            code = child.wait(_POLL_SECONDS)
            if code is None and self._answers(self.port):
                # If another program has taken the port meanwhile, the process ends about now.
                code = child.wait(_POLL_SECONDS * 3)
                if code is None:
                    self._opened = self._clock()
                    return
            if code is not None:
                output = child.stderr_tail()
                self._child = None
                raise BackendUnavailableError(f"{argv[0]} could not open the tunnel: {_reason(output, code)}")
        output = child.stderr_tail()
        self.close()
        raise BackendUnavailableError(
            f"{argv[0]} did not open the tunnel within {OPEN_SECONDS:g} seconds: {_reason(output, None)}"
        )

    def reopen_if_lost(self) -> bool:
        """Restart it if it has ended and a restart is due; returns whether it is open. Failures raise nothing."""
        if self._child is not None:
            code = self._child.wait(0)
            if code is None:
                return True
            if self._clock() - self._opened > _HELD_SECONDS:
                self._pause = 1.0
            self._failed(_reason(self._child.stderr_tail(), code))
            self._child = None
        if self._clock() < self._retry_at:
            return False
        try:
            self.open()
        except BlobsyncError as error:
            self._failed(error.message)
            return False
        self.restarts += 1
        self.problem = ""
        self._note(f"the tunnel is open again at 127.0.0.1:{self.port}")
        return True

    def close(self) -> None:
        """End it. Safe to repeat."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _failed(self, why: str) -> None:
        if why != self.problem:
            self._note(f"the tunnel is down, trying again: {why}")
        self.problem = why
        self._retry_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


def is_answered(port: int) -> bool:
    """Whether a program listens at this port of 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def _drain(child: RunningProcess) -> None:
    with suppress(OSError, ValueError):
        deque(child.lines(), maxlen=0)


def _reason(output: str, code: int | None) -> str:
    """The reason in ssh's messages: the last line only reports the connection, those before it the cause."""
    lines = [line for line in output.splitlines() if line.strip()]
    ended = "" if code is None else f"it ended with {code}"
    return "; ".join(line.strip() for line in lines[-4:]) or ended or "it printed nothing"
