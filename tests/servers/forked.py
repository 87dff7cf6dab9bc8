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
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE
from types import TracebackType
from typing import IO, Any

from tests.servers import fork_server

# Python, the dynamic linker, the locale and the colours of the help are settled before the first order.
_SETTLED = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "OPENSSL_", "FORCE_COLOR", "TERMINAL_WIDTH", "GITHUB_ACTIONS")
_LOCK = threading.Lock()


class _Server:
    """The process that forks for the process ``owner``; ``before`` it stands setpriv or env."""

    def __init__(self, owner: int, before: tuple[str, ...]) -> None:
        self._owner = owner
        self.settled = _settled(os.environ)
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        words = [*before, sys.executable, fork_server.__file__, str(theirs.fileno())]
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


def _server(before: tuple[str, ...] = ()) -> _Server:
    """One for each process of pytest: forks of it, in which mutants are tried, share none."""
    return _server_of(os.getpid(), before)


def _settled(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_SETTLED)}


def can_fork(environ: Mapping[str, str], before: tuple[str, ...] = ()) -> bool:
    """Whether a fork is like a fresh start in this environment, with these words before it."""
    if not hasattr(os, "pidfd_open") or (before and before[0] != "setpriv"):
        return False
    with _LOCK:
        return _settled(environ) == _server(before).settled


def _ends(stream: int, number: int, closing: ExitStack) -> tuple[int, int | None]:
    """The descriptor that the process gets as ``number``, which ``closing`` closes here; of a pipe also our end."""
    if stream >= 0:
        return stream, None
    if stream == DEVNULL:
        theirs, ours = os.open(os.devnull, os.O_RDWR), None
    else:
        reading, writing = os.pipe()
        theirs, ours = (writing, reading) if number else (reading, writing)
    closing.callback(os.close, theirs)
    return theirs, ours


class Forked(subprocess.Popen[str]):
    """A blobsync in a session of its own, with nothing on its input and pipes for its output, unless descriptors of
    others are given.

    A process of its own with its number, exit code and signals; only ``/proc/PID/cmdline``, ``/proc/PID/environ`` and
    the number of its parent are those of the server. ``module``: what ``python -m`` runs, instead of the command;
    ``before``: setpriv and its options, as which user and with which rights; or env and variables.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: str | Path,
        environ: Mapping[str, str],
        module: str = "",
        before: tuple[str, ...] = (),
        stdin: int = DEVNULL,
        stdout: int = PIPE,
        stderr: int = PIPE,
    ) -> None:
        self._server = _server(before)
        # What Popen's destructor asks for.
        self.returncode: int | None = None
        self._child_created = False
        self.args = list(argv)
        order = {"argv": self.args, "folder": str(folder), "environ": dict(environ), "module": module}
        with ExitStack() as closing:
            ends = [_ends(stream, number, closing) for number, stream in enumerate((stdin, stdout, stderr))]
            self.pid = self._server.ask(order, [theirs for theirs, _ in ends])
        self._pidfd = os.pidfd_open(self.pid)
        self.stdin, self.stdout, self.stderr = (
            None if ours is None else os.fdopen(ours, mode, encoding="utf-8")
            for (_, ours), mode in zip(ends, "wrr", strict=True)
        )
        self._said: dict[IO[str], bytes] = {each: b"" for each in (self.stdout, self.stderr) if each is not None}
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
                self.returncode = self._server.ask({"ended": self.pid})
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


def start_module(
    module: str,
    words: Sequence[str],
    *,
    folder: str | Path,
    environ: Mapping[str, str],
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = PIPE,
) -> subprocess.Popen[str]:
    """``python -m MODULE WORDS`` in a session of its own: a fork, or a fresh start where that is something else."""
    if can_fork(environ):
        return Forked(
            [module, *words],
            folder=folder,
            environ=environ,
            module=module,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=dict(environ),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
