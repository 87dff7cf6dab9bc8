"""blobsync started by a fork of a process that has imported it, as if by ``subprocess.Popen``."""

from __future__ import annotations

import atexit
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.servers import fork_server

# Python, the dynamic linker, the locale and the colours of the help are settled before the first order.
_SETTLED = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "OPENSSL_", "FORCE_COLOR", "TERMINAL_WIDTH", "GITHUB_ACTIONS")
_LOCK = threading.Lock()


class _Server:
    """The process that forks for the process ``owner``."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self.settled = _settled(os.environ)
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        words = [sys.executable, fork_server.__file__, str(theirs.fileno())]
        # As what it starts: of pipes, since Python's streams depend on what they are; and nothing is written to them.
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self._end)

    def ask(self, message: Mapping[str, Any], descriptors: list[int] | None = None) -> int:
        with self._lock:
            fork_server.send(self._channel, message, descriptors)
            answer, _ = fork_server.receive(self._channel)
        if answer is None:
            raise AssertionError(f"the server that forks ended: {self._process.communicate()[1].decode()}")
        return int(answer)

    def _end(self) -> None:
        if os.getpid() != self._owner:
            return
        self._channel.close()
        self._process.communicate()


_server_of = cache(_Server)


def _server() -> _Server:
    """One for each process of pytest: forks of it, in which mutants are tried, share none."""
    return _server_of(os.getpid())


def _settled(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_SETTLED)}


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a fork is like a fresh start in this environment."""
    with _LOCK:
        return hasattr(os, "pidfd_open") and _settled(environ) == _server().settled


class Forked(subprocess.Popen[str]):
    """A blobsync in a session of its own, with nothing on its input and pipes for its output.

    A process of its own with its number, exit code and signals; only ``/proc/PID/cmdline``, ``/proc/PID/environ`` and
    the number of its parent are those of the server. ``module``: what ``python -m`` runs, instead of the command.
    """

    def __init__(
        self, argv: Sequence[str], *, folder: str | Path, environ: Mapping[str, str], module: str = ""
    ) -> None:
        # What Popen's destructor asks for.
        self.returncode: int | None = None
        self._child_created = False
        self.args = list(argv)
        self.stdin = None
        order = {"argv": self.args, "folder": str(folder), "environ": dict(environ), "module": module}
        reading, writing = zip(os.pipe(), os.pipe(), strict=True)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self.pid = _server().ask(order, [nothing, *writing])
        finally:
            for each in (nothing, *writing):
                os.close(each)
        self._pidfd = os.pidfd_open(self.pid)
        self.stdout, self.stderr = (os.fdopen(each, encoding="utf-8") for each in reading)
        self._said: dict[IO[str], bytes] = {self.stdout: b"", self.stderr: b""}
        self._ending = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._ending:
            if self.returncode is None:
                ended = select.poll()
                ended.register(self._pidfd, select.POLLIN)
                if not ended.poll(None if timeout is None else max(0.0, timeout) * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = _server().ask({"ended": self.pid})
                os.close(self._pidfd)
            return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        until = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        with selectors.DefaultSelector() as waiting:
            for stream in self._said:
                if not stream.closed:
                    waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                ready = waiting.select(left())
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    self._read(waiting, key.fileobj)
        self.wait(left())
        out, err = (said.decode().replace("\r\n", "\n").replace("\r", "\n") for said in self._said.values())
        return out, err

    def _read(self, waiting: selectors.BaseSelector, stream: Any) -> None:
        data = os.read(stream.fileno(), 1 << 16)
        self._said[stream] += data
        if not data:
            waiting.unregister(stream)
            stream.close()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._said:
            stream.close()
        self.wait()
