"""The only module that prints.

Standard output gets only the answer; errors, hints, notes and progress go to standard error.
With ``--json`` the answer is one document, even if the command fails:

    {"blobsync": 1, "command": [...], "status": "success|partial|error|cancelled", "exit_code": N,
     "data": {...}, "errors": [{"code", "message", "hint", "path"}]}

The beginning of a line determines its colour, so that no command chooses colours.

Text is broken and shortened by terminal columns. Textwrap counts characters; a Chinese one takes two columns, an accent
none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

from blobsync.base.errors import BlobsyncError, FailureCode, LocalFileError, UnsafeNamesError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, printable, took_text
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact, redact_answer, redact_tree
from blobsync.base.stopping import finishing

if TYPE_CHECKING:
    from blobsync.base.errors import FileFailure
    from blobsync.base.events import Event


def more_line(count: int, what: str = "", *, full: str = "--full") -> str:
    """The line for ``count`` files or jobs that are not listed; ``full`` is the option that lists them."""
    return f"  ... and {count:,} more{what}, {full} shows all"


CHOICES = ("auto", "always", "never")
# https://en.wikipedia.org/wiki/ANSI_escape_code#Select_Graphic_Rendition_parameters
_OFF, _BOLD = "\x1b[0m", "\x1b[1m"
_CLEAR = "\x1b[H\x1b[2J"
_RED, _GREEN, _YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"

_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("FAIL", "conflict", "delete", "Failed", "differs", "damaged"), _RED),
    **dict.fromkeys(("ok", "upload", "download", "copy", "Completed", "Running"), _GREEN),
    **dict.fromkeys(("warn", "?", "keep", "Queued", "Preparing", "Canceling", "Canceled", "Unknown"), _YELLOW),
}
_FIRST = pattern(r"(\s*)(\?|[A-Za-z]+)(?=\s|:)")
# A table of jobs: the id, or on a narrow terminal its end, then the state.
_STATE = pattern(r"((?:\S+_\S+|[0-9a-f]{8})  +)([A-Z][a-z]+)\b")
_HEADING = pattern(r"[a-z][^:]*:$")


def wants_color(choice: str | None, environ: Mapping[str, str], stream: TextIO) -> bool:
    """Whether to use colours: ``--color``, else on a terminal without ``NO_COLOR`` (https://no-color.org).

    Raises ``UsageError`` for another value.
    """
    if choice not in (None, *CHOICES):
        raise UsageError(f"--color {choice}: not one of {', '.join(CHOICES)}")
    if choice in ("always", "never"):
        return choice == "always"
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def painted(line: str) -> str:
    """A line of an answer with colours; its text is unchanged."""
    found = _STATE.match(line) or _FIRST.match(line)
    if found and found[2] in _WORDS:
        return f"{found[1]}{_WORDS[found[2]]}{found[2]}{_OFF}{line[found.end(2) :]}"
    return f"{_BOLD}{line}{_OFF}" if _HEADING.fullmatch(line) else line


VERSION = 1
# Comes before messages on standard error.
_NAME = "blobsync:"
# Maximum number of kinds of failures on a terminal; --json lists all failures.
SHOWN_GROUPS = 20

# The values of ``status`` in a document.
STATUSES = ("success", "partial", "error", "cancelled")
_STATUS: Mapping[int, str] = {ExitCode.DONE: "success", ExitCode.PARTIAL: "partial", ExitCode.INTERRUPTED: "cancelled"}


class CommandInterruptedError(BlobsyncError):
    """Ctrl-C during a command. The parser would convert a ``KeyboardInterrupt`` into an error of its own."""

    code = FailureCode.CANCELLED


# Every command loads it: each method that Python writes for a class takes a hundredth of a short one.
@dataclass(eq=False, repr=False)
class Result:
    """The result of a command.

    ``data`` is the JSON answer, ``lines`` the same for people (an iterator is printed as it is produced).
    ``failures`` are the files, jobs or checks that failed. ``live`` lines are produced slowly and flushed one by one;
    ``interrupted`` is the error for Ctrl-C meanwhile. ``reveals``: the answer is a secret that the user asked for;
    everything else is redacted. ``wraps``: the lines are sentences, which are wrapped on a narrow terminal;
    commands to copy, names and texts of others are not. ``steps`` are, with ``--json``, documents of one line each
    before the last one, which are produced slowly. ``texts``: the lines are a program's output, with its tabs.
    ``body`` is bytes for standard output, instead of lines. ``screens`` are pages of lines, produced slowly, each of
    which replaces the one before on a terminal. ``then`` is called after the answer was
    shown, and returns the exit code.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    lines: Iterable[str] = ()
    failures: Sequence[FileFailure | BlobsyncError] = ()
    exit_code: int = ExitCode.DONE
    live: bool = False
    interrupted: BlobsyncError | None = None
    reveals: bool = False
    wraps: bool = False
    texts: bool = False
    body: Iterable[bytes] = ()
    screens: Iterable[Sequence[str]] = ()
    steps: Iterable[Mapping[str, Any]] = ()
    then: Callable[[], int] | None = None


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, for the data of an answer."""
    return {name: getattr(value, name) for name in names}


class Console:
    """Prints results and errors for one command."""

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        as_json: bool = False,
        quiet: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.command = list(command)
        self.as_json = as_json
        self.quiet = quiet
        self.timed: PhaseTimes | None = None
        # Whether a document was begun, and the exit code of an answer that is out as a whole.
        self._has_document = False
        self._told: int | None = None
        self._color_out = self._color_err = False
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def choose_colors(self, choice: str | None, environ: Mapping[str, str]) -> None:
        """Apply ``--color``. Raises ``UsageError`` for an invalid value."""
        self._color_out = wants_color(choice, environ, self._out)
        self._color_err = wants_color(choice, environ, self._err)

    def show(self, result: Result) -> int:
        """Print the answer and return the exit code."""
        if self.timed:
            self.timed.begin("answering")
        try:
            self._answer(result)
        except BrokenPipeError:
            # `blobsync ls -r data | head`: the reader has closed the pipe.
            _discard(self._out)
        if not self.as_json:
            self._print_failures(result.failures)
        self._told = None if result.then else int(result.exit_code)
        return int(result.exit_code)

    def _answer(self, result: Result) -> None:
        if self.as_json:
            for step in result.steps:
                self._step(step)
            failures = [_error(failure) for failure in result.failures]
            data = result.data if result.reveals else redact_tree(result.data)
            if self.timed:
                spans = [{"span": name, "seconds": round(seconds, 3)} for name, seconds in self.timed.spans()]
                data = {**data, "timings": spans}
            self._document(result.exit_code, data, failures)
            return
        try:
            self._print(result)
            self._out.flush()
        except KeyboardInterrupt:
            if result.interrupted is None:
                raise
            raise result.interrupted from None

    def _print(self, result: Result) -> None:
        columns = columns_of(self._out) if result.wraps else 0
        for line in result.lines:
            text = wrapped(
                printable(line if result.reveals else redact_answer(line), kept="\t" if result.texts else ""),
                columns,
            )
            self._line(text)
            if result.live:
                self._out.flush()
        for piece in result.body:
            self._out.buffer.write(piece)
        for screen in result.screens:
            self._screen(screen)

    def _screen(self, lines: Sequence[str]) -> None:
        if self._out.isatty():
            self._out.write(_CLEAR)
        for line in lines:
            self._line(printable(redact_answer(line)))
        self._out.flush()

    def _line(self, text: str) -> None:
        self._out.write(f"{painted(text) if self._color_out else text}\n")

    def _print_failures(self, failures: Sequence[FileFailure | BlobsyncError]) -> None:
        """Print failures of the same kind as one."""
        if not failures:
            return
        from blobsync.plan.failure_groups import grouped

        groups = grouped(failures)
        shown = groups[:SHOWN_GROUPS]
        # A hint that the next group has, too, is printed once for both.
        for group, following in zip_longest(shown, shown[1:]):
            count = f"{count_text(group.total, 'file')}: " if group.paths else ""
            rows = [*group.paths, *([f"and {group.more:,} more; --json lists them all"] if group.more else [])]
            same = following is not None and group.hint == following.hint
            self.say(f"{count}{group.sentence}", None if same else group.hint, wrong=True, rows=rows)
        if rest := sum(group.total for group in groups[SHOWN_GROUPS:]):
            self.say(f"and {rest:,} more; --json lists them all")

    def fail(self, error: BlobsyncError) -> int:
        """Print an error with its hint and return the exit code: of an interrupt, that of an answer that is out."""
        if self._told is not None and error.exit_code == ExitCode.INTERRUPTED:
            return self._told
        try:
            if self.as_json and not self._has_document:
                self._document(error.exit_code, {}, [_error(error), *_details(error)])
                return int(error.exit_code)
            self._out.flush()
        except OSError:
            # Nobody reads it, or its disk is full.
            _discard(self._out)
        if error.exit_code == ExitCode.INTERRUPTED and self._err.isatty():
            # Return to the beginning of the line, after the ^C that the terminal has printed.
            self._err.write("\r")
        self.say(error.message, error.hint, wrong=True)
        return int(error.exit_code)

    def say(self, text: str, hint: str | None = None, *, wrong: bool = False, rows: Sequence[str] = ()) -> None:
        """Print a sentence on standard error, and the files ``rows`` below it; ``wrong``: it reports a failure."""
        columns = columns_of(self._err)
        shown = wrapped(f"{_NAME} {printable(redact(text))}", columns)
        if wrong and self._color_err:
            shown = f"{_RED}{_NAME}{_OFF}{shown[len(_NAME) :]}"
        lines = [shown, *(f"  {printable(redact_answer(row))}" for row in rows)]
        if hint:
            lines.append(wrapped(f"  hint: {printable(redact(hint))}", columns))
        try:
            self._err.write("".join(f"{line}\n" for line in lines))
            self._err.flush()
        except OSError:
            # Nobody reads it, or the disk of the log is full, which stops no work.
            _discard(self._err)

    def _step(self, step: Mapping[str, Any]) -> None:
        import json

        self._out.write(json.dumps(redact_tree(step)) + "\n")
        self._out.flush()

    def _document(self, exit_code: int, data: Mapping[str, Any], errors: Sequence[Mapping[str, Any]]) -> None:
        import json

        document = {
            "blobsync": VERSION,
            "command": redact_tree(self.command),
            "status": _STATUS.get(exit_code, "error"),
            "exit_code": int(exit_code),
            "data": data,
            "errors": errors,
        }
        text = json.dumps(document, indent=1) + "\n"
        self._has_document = True
        # A half of it would be none, and says nothing of what was done.
        with finishing():
            self._out.write(text)
            self._out.flush()
            self._told = int(exit_code)


def _error(error: FileFailure | BlobsyncError) -> dict[str, str | None]:
    hint = redact(error.hint) if error.hint else None
    path = redact_answer(error.path) if error.path else error.path
    return {"code": error.code, "message": redact(error.message), "hint": hint, "path": path}


def _details(error: BlobsyncError) -> list[dict[str, str | None]]:
    """All files or problems of an error; the message names only the first few."""
    names = error.names if isinstance(error, UnsafeNamesError) else ()
    return [
        {"code": error.code, "message": redact(f"{name!r} {why}"), "hint": None, "path": redact_answer(name)}
        for name, why in names
    ]


def start_logging(verbose: int, file: str | None = None, command: Sequence[str] = ()) -> None:
    """``-v`` shows each decision, ``-vv`` each request and command line, on standard error, without secrets.

    ``file`` always gets all of it, appended. Raises ``LocalFileError``.
    """
    import logging

    class WithoutSecrets(logging.Formatter):
        """Redacts the whole record, including tracebacks."""

        def format(self, record: logging.LogRecord) -> str:
            return redact(super().format(record))

    form = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
    shown = logging.DEBUG if verbose > 1 else logging.INFO
    logger = logging.getLogger("blobsync")
    logger.setLevel(logging.DEBUG if file else shown)
    handlers: list[tuple[logging.Handler, int, str]] = [(logging.StreamHandler(), shown, "%H:%M:%S")] if verbose else []
    if file:
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            handlers.append((logging.FileHandler(file, encoding="utf-8"), logging.DEBUG, "%Y-%m-%d %H:%M:%S"))
        except OSError as error:
            raise LocalFileError(f"cannot write the log to {file}: {error.strerror}", path=file) from error
    for handler, level, times in handlers:
        handler.setFormatter(WithoutSecrets(form, times))
        handler.setLevel(level)
        logger.addHandler(handler)
    logger.debug("command: %s", " ".join(["blobsync", *command]))


def _discard(stream: TextIO) -> None:
    """Discard what is written to it from now on, and what it could not write, which would be an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class QuietListener:
    """Shows no progress; notes only if there is a console for them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def emit(self, event: Event) -> None:
        """Show a note."""
        if self._console:
            from blobsync.base.events import Note  # late: help has no events

            if isinstance(event, Note):
                self._console.say(event.text)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


# Deeper than the indentation of a following line, so that a continued line is not taken for one.
_HANGING = 4
_PIECE = pattern(r" *[^ ]+")
_NUMBER = pattern(r" *\(?[\d.,]*\d")
_GAP = "..."


def columns_of(stream: TextIO) -> int:
    """The present width of the terminal that ``stream`` writes to; 0 if there is none, or if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def cells(text: str) -> int:
    """How many columns printable ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    from unicodedata import combining, east_asian_width  # imported late: most names are ASCII

    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1


def wrapped(text: str, columns: int) -> str:
    """Break one line into several that fit ``columns``, at blanks; all but the first are indented by four more columns.

    A number stays with its unit. A word that is longer than a line is left to the terminal to break, so that a path can
    be copied in one piece. ``columns`` 0: the text is returned unchanged.
    """
    if not columns or cells(text) <= columns:
        return text
    hanging = " " * (len(text) - len(text.lstrip(" ")) + _HANGING)
    room = columns - len(hanging)
    shown, used = "", 0
    for piece in _pieces(text):
        takes, alone = cells(piece), cells(piece.lstrip(" "))
        if shown and used + takes > columns and alone <= room:
            shown += f"\n{hanging}{piece.lstrip(' ')}"
            used = len(hanging) + alone
        else:
            shown += piece
            used += takes
            # The terminal breaks such a word; this is the width of its last row.
            used = used if used <= columns else used % columns
    return shown


def _pieces(text: str) -> list[str]:
    """The words, each with the blanks before it; a number and its unit are one piece."""
    found: list[str] = []
    for piece in _PIECE.findall(text):
        if found and _NUMBER.fullmatch(found[-1]) and piece.lstrip(" ")[0].isalpha():
            found[-1] += piece
        else:
            found.append(piece)
    return found


def shortened(name: str, room: int) -> str:
    """Shorten a path to ``room`` columns: removes the middle and keeps more of the end, which tells files apart."""
    if cells(name) <= room:
        return name
    room -= len(_GAP)
    if room < 2:
        return ""
    head = _first(name, room // 3)
    return f"{head}{_GAP}{_first(name[::-1], room - cells(head))[::-1]}"


def cut(text: str, room: int) -> str:
    """Shorten a text to ``room`` columns, with a mark at the end."""
    return text if cells(text) <= room else f"{_first(text, room - len(_GAP))}{_GAP}"


def _first(text: str, room: int) -> str:
    """The longest prefix that fits ``room`` columns."""
    taken = 0
    for at, char in enumerate(text):
        taken += _cells(char)
        if taken > room:
            return text[:at]
    return text


class PhaseTimes:
    """Measures the phases of a command, from its first line of code, at ``began``, to its answer."""

    def __init__(self, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = [("starting", began)]

    def begin(self, span: str) -> None:
        """Call when the phase begins."""
        if self._began[-1][0] != span:
            self._began.append((span, self._clock()))

    def emit(self, event: Event) -> None:
        """Record the beginning of a phase."""
        from blobsync.base.events import Phase  # late: help has no events

        if isinstance(event, Phase):
            self.begin("listing" if event.name == "surveying" else event.name)

    def spans(self) -> list[tuple[str, float]]:
        """The seconds of each phase so far; a phase that occurs again has the sum."""
        ends = [at for _, at in self._began[1:]] + [self._clock()]
        sums: dict[str, float] = {}
        for (name, began), ended in zip(self._began, ends, strict=True):
            sums[name] = sums.get(name, 0.0) + max(ended - began, 0.0)
        return list(sums.items())

    def sentence(self) -> str:
        """The spans in words."""
        spans = self.spans()
        said = ", ".join(f"{name} {took_text(seconds)}" for name, seconds in spans)
        return f"{took_text(sum(seconds for _, seconds in spans))} in all: {said}"
