"""Starts other programs; no other module does.

Callers take a :class:`ProcessRunner` as an argument; tests pass one that follows a script.
Nothing here knows what azcopy, sbatch or docker are.

Process groups use ``start_new_session`` and ``killpg``. psutil, a compiled package, would walk the tree of children and
miss those whose parent has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from blobsync.base.errors import ProcessError, ProcessTimeoutError
from blobsync.base.exit_codes import shell_code
from blobsync.base.records import NamedTuple
from blobsync.base.stopping import hearing_what_we_hear

# Seconds that a child may take to react to a request to stop, before the next, harsher one.
TERMINATE_AFTER = 5.0
KILL_AFTER = 5.0

_STDERR_TAIL_BYTES = 16_384

# The marker file in the folder into which blobsync.pyz has unpacked itself.
UNPACKED_MARK = ".blobsync-pyz"

# An empty entry in the path is the current folder.
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


class Completed(NamedTuple):
    """The result of a program that ran to its end; texts are UTF-8 with undecodable bytes replaced. ``output`` is
    standard output as it came."""

    returncode: int
    stdout: str
    stderr: str
    output: bytes = b""


class ProcessRunner:
    """The four ways in which blobsync starts programs; tests override them.

    ``env`` None means this process's environment. The arguments are seconds to wait for children that do not stop when
    asked.
    """

    def __init__(self, *, terminate_after: float = TERMINATE_AFTER, kill_after: float = KILL_AFTER) -> None:
        self._patience = (terminate_after, kill_after)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a program to its end.

        Raises ``ProcessError`` if it cannot start, ``ProcessTimeoutError`` if it was killed after ``timeout`` seconds.
        """
        given = (input or "").encode()
        try:
            with _starting(argv):
                done = subprocess.run(
                    argv, input=given, capture_output=True, env=env, cwd=cwd, timeout=timeout, check=False
                )
        except subprocess.TimeoutExpired as error:
            raise ProcessTimeoutError(f"{_program(argv)} did not finish within {timeout:g} seconds") from error
        out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return Completed(done.returncode, out, err, done.stdout)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> RunningProcess:
        """Start a program with pipes on all three streams. Raises ``ProcessError`` if it cannot start."""
        with _starting(argv):
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                # A process group of its own: Ctrl-C in the terminal reaches us only, and we stop the
                # child in the order that we choose.
                start_new_session=True,
            )
        return RunningProcess(process, self._patience)

    def spawn_detached(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Start a program in its own session that outlives this one; append its output to ``log``. Returns the pid,
        once it has read ``input``."""
        with _starting(argv), log.open("ab") as sink:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        if process.stdin is not None and input is not None:
            # One that ends at once says why in its log.
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(input.encode())
        # We do not wait for this child; without this the interpreter warns at exit.
        process.returncode = 0
        return process.pid

    def attach(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Run a program to its end with this terminal's streams; returns the exit code, 128 and its number for a signal
        that ended it, as a shell does."""
        with _starting(argv), hearing_what_we_hear():
            process = subprocess.Popen(argv, env=env, cwd=cwd)
        while True:
            # The terminal sends Ctrl-C to the child as well; the child decides how to react.
            with suppress(KeyboardInterrupt):
                code = process.wait()
                return shell_code(code)


class ProcessGroup:
    """A child in its own session, so that it and all its children can be signalled; it gets no input.

    ``pid`` is the ID of the child and of the group. ``output`` receives both output streams; None: ours. Raises
    ``OSError`` if it cannot start.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes] | None = None
    ) -> None:
        self._child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._child.pid

    def poll(self) -> int | None:
        """The child's exit code (negative: minus the signal), None while it runs."""
        return self._child.poll()

    def wait(self) -> int:
        """Wait for the exit code; an exception meanwhile kills the whole group."""
        try:
            return self._child.wait()
        except BaseException:
            self.signal(signal.SIGKILL, to_all=True)
            raise

    def signal(self, number: int, *, to_all: bool) -> None:
        """Signal the child, or the whole group including what the child left behind; ignored if nothing runs."""
        with suppress(ProcessLookupError, PermissionError):
            (os.killpg if to_all else os.kill)(self._child.pid, number)


class RunningProcess:
    """A child whose standard output is read line by line and whose standard input stays open."""

    def __init__(self, process: subprocess.Popen[bytes], patience: tuple[float, float]) -> None:
        self.pid = process.pid
        self._process = process
        self._patience = patience
        self._tail = bytearray()
        self._drain = threading.Thread(target=self._keep_tail, daemon=True)
        self._drain.start()

    def lines(self) -> Iterator[str]:
        """Each line of standard output without its line end, until the child closes it."""
        for raw in _pipe(self._process.stdout):
            yield raw.decode("utf-8", "replace").rstrip("\r\n")

    def send_line(self, text: str) -> None:
        """Write one line to the child's standard input; ignored if the child has ended."""
        with suppress(OSError, ValueError):
            stdin = _pipe(self._process.stdin)
            stdin.write(text.encode() + b"\n")
            stdin.flush()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code (negative: minus the signal), or None if ``timeout`` seconds passed."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        return code

    def stop(self) -> int:
        """Interrupt, then terminate, then kill, and reap; returns the exit code."""
        for signum, patience in zip((signal.SIGINT, signal.SIGTERM), self._patience, strict=True):
            if self._process.poll() is None:
                self._signal(signum)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        else:
            self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._close()
        return code

    def stderr_tail(self) -> str:
        """The last part of the child's standard error."""
        self._drain.join(timeout=1.0)
        return bytes(self._tail).decode("utf-8", "replace").strip()

    def _signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signum)

    def _keep_tail(self) -> None:
        with suppress(OSError, ValueError):
            for chunk in iter(lambda: _pipe(self._process.stderr).read1(4096), b""):  # type: ignore[attr-defined]
                self._tail += chunk
                del self._tail[:-_STDERR_TAIL_BYTES]

    def _close(self) -> None:
        self._drain.join(timeout=1.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(OSError):
                if stream:
                    stream.close()


class LineReader:
    """Reads a process's lines in a thread, so that waiting for one can end. ``ended``: no more will come."""

    def __init__(self, process: RunningProcess) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self.ended = False
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def next(self, timeout: float) -> str | None:
        """The next line, or None: none came within ``timeout`` seconds, or there will be no more."""
        with suppress(Empty):
            line = None if self.ended else self._lines.get(timeout=timeout)
            self.ended = line is None
            return line
        return None

    def join(self) -> None:
        """Wait a moment for the thread to see the end."""
        self._thread.join(1.0)

    def _read(self, process: RunningProcess) -> None:
        try:
            # The pipe is closed under us when the process is stopped.
            with suppress(OSError, ValueError):
                for line in process.lines():
                    self._lines.put(line)
        finally:
            # Whatever ends this thread: nobody waits for it without end.
            self._lines.put(None)


@contextmanager
def _starting(argv: Sequence[str]) -> Iterator[None]:
    """Converts "no such program" and the like to ``ProcessError``."""
    try:
        yield
    except OSError as error:
        raise ProcessError(f"cannot start {_program(argv)}: {error.strerror or error}") from error


def run_detached(work: Callable[[], object], seconds: int) -> None:
    """Do ``work`` in a copy of this process that holds none of its streams, and ends after at most ``seconds``.

    For a process without other threads that ends soon: nothing waits for the copy or reports how it ended.
    """
    if os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        work()
    finally:
        os._exit(0)


def why_it_fails(runner: ProcessRunner, argv: Sequence[str], timeout: float) -> str | None:
    """Why a command cannot run here, as its last line on standard error says it; None if it can."""
    try:
        done = runner.run(argv, timeout=timeout)
    except ProcessError as error:
        return error.message
    last = done.stderr.strip().rpartition("\n")[2]
    return (last or f"{_program(argv)} failed") if done.returncode else None


# Says whether docker's daemon answers.
DOCKER_VERSION = ("docker", "version", "--format", "{{.Server.Version}}")


def python_module(name: str) -> tuple[str, ...]:
    """The first words of an argv that runs a module with this Python, whatever the current folder is.

    ``python -m`` looks for modules in the current folder first, which may be an untrusted project. ``-I`` would also
    hide what ``pip install --user`` installed, blobsync itself included. Python does not search the folder into which
    blobsync.pyz has unpacked itself, so that folder is named.
    """
    home = Path(__file__).parents[2]
    lead = f"import sys; sys.path.insert(0, {str(home)!r}); " if (home / UNPACKED_MARK).is_file() else ""
    return (sys.executable, "-c", lead + _RUN_MODULE, name)


def _program(argv: Sequence[str]) -> str:
    # The program's name only: arguments may contain a SAS.
    return Path(argv[0]).name if argv else "nothing"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ValueError("the process was started without this pipe")
    return stream
