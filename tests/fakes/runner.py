"""A ``ProcessRunner`` that starts nothing: a function returns the results, and calls are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
