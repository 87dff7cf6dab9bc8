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
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

from blobsync.azcopy.argv import Command
from blobsync.base.plain_json import parse_object
from blobsync.base.process import LineReader, ProcessRunner, RunningProcess
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.redaction import redact

logger = logging.getLogger(__name__)

# How often the caller's own view is asked, and how long azcopy may take to wind up after "cancel" (seconds).
_TICK = 0.1
_CANCEL_PATIENCE = 3.0

_KEPT_WORDS = 50


class Message(NamedTuple):
    """A line of azcopy. ``kind`` is azcopy's word for it: ``Init``, ``Progress``, ``EndOfJob``, ``Prompt`` (it waits
    for an answer), ``Error`` (it ends then), or ``Info``, a note for people, as which any other line counts, unchanged.

    ``content`` are the values of the first three, and the details of a prompt.
    """

    kind: str
    text: str
    content: Mapping[str, Any] = {}


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
        reader = LineReader(process)
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

    def _follow(self, process: RunningProcess, reader: LineReader) -> None:
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

    def _take(self, message: Message, process: RunningProcess) -> None:
        outcome = self.outcome
        match message.kind:
            case "Init":
                outcome.job_id = str(message.content["JobID"])
            case "Progress" | "EndOfJob":
                # One without it is of a job that is still listing.
                if "JobStatus" in message.content:
                    progress = self._count(message)
                    self.progress(progress)
                    outcome.fatal = outcome.fatal or (progress.error if progress.is_last else "")
            case "Error":
                outcome.fatal = redact(message.text)
            case _:
                outcome.words.append(redact(message.text))
                if message.kind == "Prompt":
                    process.send_line(answer(message.content))

    def _count(self, message: Message) -> JobProgress:
        progress = progress_of(message)
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
        if progress.is_last:
            self.outcome.status = progress.status
        return progress

    def _cancel(self, process: RunningProcess, reader: LineReader) -> None:
        """Ask azcopy to cancel, and answer its prompts; the caller stops the process afterwards."""
        process.send_line("cancel")
        until = self.clock() + _CANCEL_PATIENCE
        while self.clock() < until and not reader.ended:
            line = reader.next(_TICK)
            if line is None:
                continue
            message = parse_line(line)
            if message.kind == "Prompt":
                process.send_line(answer(message.content))
            if message.kind == "EndOfJob":
                self._count(message)
                return
            if message.kind == "Error":
                # The answer of a job that has nothing left to cancel (azcopy 10.32).
                self.outcome.ended_early = "has already completed" in message.text
                return


def answer(prompt: Mapping[str, Any]) -> str:
    """Yes to "cancel?", which only our own request causes; no to everything else, such as overwriting."""
    wanted = "yes" if str(prompt.get("PromptType")).lower() == "cancel" else "no"
    for option in _objects(prompt, "ResponseOptions"):
        if str(option.get("UserFriendlyResponseType")).lower() == wanted:
            return str(option.get("ResponseString", ""))
    return wanted[0]


# The key that tells what these are from other lines.
_KEYS = {"Init": ("JobID",), "Progress": ("JobStatus", "FilesScannedAtSource"), "EndOfJob": ("JobStatus",)}


def parse_line(line: str) -> Message:
    """Parse one line; never raises."""
    outer = _object(line)
    kind, text = str(outer.get("MessageType")), outer.get("MessageContent")
    text = text if isinstance(text, str) else json.dumps(text)
    if kind == "Info":
        return Message(kind, text.removeprefix("INFO: ").removeprefix("WARN: "))
    if kind == "Error":
        return Message(kind, text)
    if kind == "Prompt":
        details = outer.get("PromptDetails")
        return Message(kind, text, details if isinstance(details, dict) else {})
    content = _object(text)
    is_known = any(key in content for key in _KEYS.get(kind, ())) and (kind != "Init" or content["JobID"])
    return Message(kind, text, content) if is_known else Message("Info", line)


def progress_of(message: Message) -> JobProgress:
    """The counts in a message that has a ``JobStatus``."""
    content = message.content
    return JobProgress(
        status=str(content["JobStatus"]),
        files_total=_int(content, "TotalTransfers"),
        files_done=_int(content, "TransfersCompleted"),
        files_failed=_int(content, "TransfersFailed") + _int(content, "TransfersSkipped"),
        bytes_done=_int(content, "TotalBytesTransferred"),
        bytes_over_wire=_int(content, "BytesOverWire"),
        failed=tuple(
            FailedTransfer(str(each.get("Src", "")), str(each.get("Dst", "")), _int(each, "ErrorCode"))
            for key in ("FailedTransfers", "SkippedTransfers")
            for each in _objects(content, key)
        ),
        error=str(content.get("ErrorMsg") or ""),
        is_last=message.kind == "EndOfJob",
    )


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        return parse_object(text)
    return {}


def _objects(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects in the list at ``key``."""
    found = content.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _int(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    with suppress(ValueError):
        return int(value) if isinstance(value, (int, str)) else 0
    return 0
