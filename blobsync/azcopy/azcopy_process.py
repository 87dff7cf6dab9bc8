"""One azcopy process from start to reaped: its messages, its prompts, its stalls (``engine`` says how long), its end.

azcopy checks only every two seconds whether it is done, so a caller that knows earlier may say so, and the
process is ended at once (``AzcopyJob.finished``).

``--output-type=json`` prints one object a line: ``TimeStamp, MessageType, MessageContent, PromptDetails``, where the
content is a text that is often JSON itself, with most of its numbers as strings (azcopy 10.32,
``cmd/uihooks_models.go`` and ``common/rpc-models.go``). Any other line becomes ``Info``.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blobsync.azcopy.argv import Command
from blobsync.base.plain_json import parse_json
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.redaction import redact

logger = logging.getLogger(__name__)

# How often the caller's own view is asked, and how long azcopy may take to wind up after "cancel" (seconds).
_TICK = 0.1
_CANCEL_PATIENCE = 3.0

_KEPT_WORDS = 50


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The first message of a job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A file that azcopy failed to move, or skipped. ``http_status`` is 0 where it knows none. Local paths and URLs
    without SAS."""

    source: str
    destination: str
    http_status: int


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Counts of files and bytes. ``failed`` names only what is new since the last message.

    Of the last one (``is_last``) ``status`` is Completed, CompletedWithErrors, Cancelled, Failed, ...
    """

    status: str
    files_total: int
    files_done: int
    files_failed: int
    bytes_done: int
    bytes_over_wire: int
    failed: tuple[FailedTransfer, ...] = ()
    error: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """azcopy waits for an answer; ``options`` are (title, what to type)."""

    kind: str
    text: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Info:
    """A note or warning for people, and any other line, unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class FatalError:
    """A fatal error: azcopy ends after it."""

    text: str


AzcopyMessage = JobStarted | JobProgress | Prompt | Info | FatalError


@dataclass(slots=True)
class AzcopyJobOutcome:
    """The result of a job. ``status`` is azcopy's word, empty if it never sent one.

    ``failed`` is united over all messages, since azcopy names each file only once.
    """

    job_id: str = ""
    status: str = ""
    failed: dict[str, FailedTransfer] = field(default_factory=dict)
    fatal: str = ""
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_WORDS))
    stderr: str = ""
    exit_code: int | None = None
    ended_early: bool = False
    stalled: bool = False

    @property
    def clean(self) -> bool:
        """Whether azcopy processed all of its files; some of them may have failed."""
        return self.ended_early or (not self.fatal and self.status.startswith("Completed"))


@dataclass(slots=True)
class AzcopyJob:
    """Runs one job; stops azcopy after ``stall_after`` seconds without progress.

    ``started`` gets the process's ID, ``progress`` azcopy's counts every two seconds (every two minutes from a million
    files on), and ``finished`` says whether everything is known to be done, so that azcopy's end need not be awaited.
    All are called in the thread that runs the job.
    """

    runner: ProcessRunner
    command: Command
    env: Mapping[str, str]
    started: Callable[[int], None]
    progress: Callable[[JobProgress], None]
    finished: Callable[[], bool]
    stall_after: float
    clock: Callable[[], float] = time.monotonic
    outcome: AzcopyJobOutcome = field(default_factory=AzcopyJobOutcome)
    _seen: tuple[int, ...] = ()
    _moved_at: float = 0.0

    def run(self) -> AzcopyJobOutcome:
        """Run the job. ``KeyboardInterrupt`` and errors of the callbacks stop azcopy first.

        Raises ``ProcessError`` when azcopy cannot be started.
        """
        logger.debug("starting %s", self.command.display)
        process = self.runner.start(self.command.argv, env=self.env)
        reader = _Reader(process)
        try:
            self.started(process.pid)
            self._follow(process, reader)
        except BaseException:
            self._cancel(process, reader)
            raise
        finally:
            # Always end the process: stop() on one that has ended only reaps it.
            self.outcome.exit_code = process.stop()
            reader.join()
        self.outcome.stderr = redact(process.stderr_tail())
        return self.outcome

    def _follow(self, process: RunningProcess, reader: _Reader) -> None:
        self._moved_at = self.clock()
        while True:
            line = reader.next(_TICK)
            if line is not None:
                self._take(parse_line(line), process)
            elif reader.ended:
                # azcopy exits by itself now; see its exit code.
                process.wait(_CANCEL_PATIENCE)
                return
            if not self.outcome.status and self.finished():
                self._cancel(process, reader)
                return
            if self.clock() - self._moved_at > self.stall_after:
                self.outcome.stalled = True
                self._cancel(process, reader)
                return

    def _take(self, message: AzcopyMessage | None, process: RunningProcess) -> None:
        outcome = self.outcome
        match message:
            case JobStarted():
                outcome.job_id = message.job_id
            case JobProgress():
                self._count(message)
                self.progress(message)
                if message.is_last:
                    outcome.status = message.status
                    outcome.fatal = outcome.fatal or message.error
            case Info():
                outcome.words.append(redact(message.text))
            case FatalError():
                outcome.fatal = redact(message.text)
            case Prompt():
                outcome.words.append(redact(message.text))
                process.send_line(answer(message))
            case _:
                pass

    def _count(self, progress: JobProgress) -> None:
        self.outcome.failed.update({each.source: each for each in progress.failed})
        seen = (
            progress.files_total,
            progress.files_done + progress.files_failed,
            progress.bytes_done,
            # Grows within a block as well: over a slow connection the first block may take longer than ``stall_after``.
            progress.bytes_over_wire,
        )
        if seen != self._seen:
            self._seen = seen
            self._moved_at = self.clock()

    def _cancel(self, process: RunningProcess, reader: _Reader) -> None:
        """Ask azcopy to cancel, and answer its prompts; the caller stops the process afterwards."""
        process.send_line("cancel")
        until = self.clock() + _CANCEL_PATIENCE
        while self.clock() < until and not reader.ended:
            line = reader.next(_TICK)
            if line is None:
                continue
            message = parse_line(line)
            if isinstance(message, Prompt):
                process.send_line(answer(message))
            if isinstance(message, JobProgress) and message.is_last:
                self._count(message)
                self.outcome.status = message.status
                return
            if isinstance(message, FatalError):
                # The answer of a job that has nothing left to cancel (azcopy 10.32).
                self.outcome.ended_early = "has already completed" in message.text
                return


def answer(prompt: Prompt) -> str:
    """Yes to "cancel?", which only our own request causes; no to everything else, such as overwriting."""
    wanted = "yes" if prompt.kind.lower() == "cancel" else "no"
    for title, reply in prompt.options:
        if title.lower() == wanted:
            return reply
    return wanted[0]


class _Reader:
    """Reads the process's lines in a thread, so that waiting for one can end."""

    def __init__(self, process: RunningProcess) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.ended = False
        self._thread.start()

    def next(self, timeout: float) -> str | None:
        """The next line, or None: none came within ``timeout`` seconds, or there will be no more."""
        if self.ended:
            return None
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        self.ended = line is None
        return line

    def join(self) -> None:
        """Wait a moment for the thread to see the end."""
        self._thread.join(1.0)

    def _read(self) -> None:
        try:
            for line in self._process.lines():
                self._lines.put(line)
        except (OSError, ValueError):
            # The pipe was closed under us, which only stopping the process does.
            pass
        finally:
            self._lines.put(None)


def parse_line(line: str) -> AzcopyMessage | None:
    """Parse one line; never raises. None is for the progress of a job that is still listing."""
    outer = _object(line)
    if outer is None or not isinstance(outer.get("MessageType"), str):
        return Info(line)
    kind = outer["MessageType"]
    text = outer.get("MessageContent")
    text = text if isinstance(text, str) else json.dumps(text)
    if kind == "Info":
        return Info(text.removeprefix("INFO: ").removeprefix("WARN: "))
    if kind == "Error":
        return FatalError(text)
    if kind == "Prompt":
        return _prompt(text, outer.get("PromptDetails"))
    content = _object(text)
    if content is None:
        return Info(line)
    if kind == "Init" and content.get("JobID"):
        return JobStarted(str(content["JobID"]))
    if kind in ("Progress", "EndOfJob") and "JobStatus" in content:
        return _progress(content, is_last=kind == "EndOfJob")
    if kind == "Progress" and "FilesScannedAtSource" in content:
        return None
    return Info(line)


def _progress(content: Mapping[str, Any], *, is_last: bool) -> JobProgress:
    return JobProgress(
        status=str(content["JobStatus"]),
        files_total=_int(content, "TotalTransfers"),
        files_done=_int(content, "TransfersCompleted"),
        files_failed=_int(content, "TransfersFailed") + _int(content, "TransfersSkipped"),
        bytes_done=_int(content, "TotalBytesTransferred"),
        bytes_over_wire=_int(content, "BytesOverWire"),
        failed=(*_transfers(content.get("FailedTransfers")), *_transfers(content.get("SkippedTransfers"))),
        error=str(content.get("ErrorMsg") or ""),
        is_last=is_last,
    )


def _transfers(found: object) -> tuple[FailedTransfer, ...]:
    entries = found if isinstance(found, list) else []
    return tuple(
        FailedTransfer(
            source=str(entry.get("Src", "")),
            destination=str(entry.get("Dst", "")),
            http_status=_int(entry, "ErrorCode"),
        )
        for entry in entries
        if isinstance(entry, dict)
    )


def _prompt(text: str, details: object) -> Prompt:
    known = details if isinstance(details, dict) else {}
    options = known.get("ResponseOptions")
    return Prompt(
        kind=str(known.get("PromptType", "")),
        text=text,
        options=tuple(
            (str(each.get("UserFriendlyResponseType", "")), str(each.get("ResponseString", "")))
            for each in (options if isinstance(options, list) else [])
            if isinstance(each, dict)
        ),
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _int(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    try:
        return int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        return 0
