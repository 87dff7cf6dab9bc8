"""A process runner with a scripted azcopy: lines of output, pauses, and answers to input."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blobsync.azcopy.sandbox import Landlock
from blobsync.base.process import Completed, RunningProcess
from tests.fakes.runner import ScriptedRunner

TRANSCRIPTS = Path(__file__).resolve().parent.parent / "data" / "transcripts"


def transcript(name: str) -> list[str]:
    """The recorded lines of one run."""
    return (TRANSCRIPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()


def log_lines(name: str) -> list[str]:
    """The recorded log of one run."""
    return (TRANSCRIPTS / f"{name}.log").read_text(encoding="utf-8").splitlines()


@dataclass
class ScriptedAzcopy(RunningProcess):
    """A ``RunningProcess`` that prints ``first``, then the answer of ``on_line`` to each line of input.

    It ends when it is stopped, when an answer contains None, or after ``first`` if ``ends`` is set.
    """

    first: Sequence[str]
    on_line: Callable[[str], Sequence[str | None]] = lambda line: ()
    ends: bool = True
    exit_code: int = 0
    stderr: str = ""
    pid: int = 4711
    received: list[str] = field(default_factory=list)
    stopped: int = 0

    def __post_init__(self) -> None:
        self._out: queue.Queue[str | None] = queue.Queue()
        for line in self.first:
            self._out.put(line)
        if self.ends:
            self._out.put(None)

    def lines(self) -> Iterator[str]:
        while (line := self._out.get()) is not None:
            yield line

    def send_line(self, text: str) -> None:
        self.received.append(text)
        for line in self.on_line(text):
            self._out.put(line)

    def wait(self, timeout: float | None = None) -> int | None:
        return self.exit_code

    def stop(self) -> int:
        self.stopped += 1
        self._out.put(None)
        return self.exit_code

    def stderr_tail(self) -> str:
        return self.stderr


@dataclass
class PlayedConfinement(Landlock):
    """One that does nothing; ``folders`` are those that it was given."""

    is_possible: bool = True
    folders: Sequence[Path] = ()

    def words(self, folders: Sequence[Path]) -> tuple[str, ...]:
        self.folders = tuple(folders)
        return ()


class AzcopyRunner(ScriptedRunner):
    """Starts ``process`` for any argv, and records the calls; ``starting`` may write files first."""

    def __init__(
        self,
        process: ScriptedAzcopy,
        starting: Callable[[Sequence[str], Mapping[str, str]], None] = lambda argv, env: None,
    ) -> None:
        super().__init__(lambda call: Completed(0, "azcopy version 10.32.2\n", ""))
        self.process, self.starting = process, starting
        self.argv: tuple[str, ...] = ()
        self.env: Mapping[str, str] = {}
        self.confinement = PlayedConfinement()

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> RunningProcess:
        self.argv, self.env = tuple(argv), env or {}
        self.starting(self.argv, self.env)
        return self.process
