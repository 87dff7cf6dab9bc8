"""A ``ProcessRunner`` that starts nothing: a function returns the results, and calls are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blobsync.base.errors import ProcessError
from blobsync.base.process import Completed, ProcessRunner, RunningProcess


@dataclass(frozen=True)
class Call:
    """One call to start a program."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None
    cwd: Path | None
    input: str | None = None


def silence(call: Call) -> Completed:
    return Completed(0, "", "")


@dataclass
class ScriptedRunner(ProcessRunner):
    """``answer`` returns a program's result; raise ``ProcessError`` in it for a missing program."""

    answer: Callable[[Call], Completed] = silence
    calls: list[Call] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        self.calls.append(Call(tuple(argv), env, cwd, input))
        return self.answer(self.calls[-1])

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> RunningProcess:
        raise ProcessError("this runner starts nothing that goes on")

    def spawn_detached(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        raise ProcessError("this runner starts nothing that goes on")

    def attach(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
        return self.run(argv, env=env, cwd=cwd).returncode


class FakeProcess(RunningProcess):
    """A program that runs until it has a ``code``, and says these lines. ``stderr`` is the end of its errors."""

    pid = 2**22 + 1

    def __init__(self, code: int | None = None, *said: str, stderr: str = "") -> None:
        self.code, self.stderr = code, stderr
        self.sent: list[str] = []
        self.stops = 0
        self.argv: tuple[str, ...] = ()
        self.env: Mapping[str, str] = {}
        self._said = said

    def lines(self) -> Iterator[str]:
        yield from self._said

    def send_line(self, text: str) -> None:
        self.sent.append(text)

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def stop(self) -> int:
        self.stops += 1
        return self.code or 0

    def stderr_tail(self) -> str:
        return self.stderr


class Starting(ScriptedRunner):
    """Starts these processes in their order, and then others that run."""

    def __init__(self, *waiting: FakeProcess) -> None:
        super().__init__()
        self.waiting, self.started = list(waiting), list[FakeProcess]()

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> RunningProcess:
        process = self.waiting.pop(0) if self.waiting else FakeProcess()
        process.argv, process.env = tuple(argv), env or {}
        self.started.append(process)
        return process
