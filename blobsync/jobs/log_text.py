"""Logs as a person reads them elsewhere than in a terminal: pieces that follow each other, lines without escapes, and
what is found in them.

A log is what somebody's program wrote: escape codes, half a line, a progress bar of a gigabyte. Nothing of it moves
a cursor here, and no line is longer than ``LINE_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blobsync.jobs.logs import FetchedLogs
from blobsync.jobs.parse import log_lines

# How much of a line is shown (characters), and how much of a log is read at once (bytes).
LINE_CHARS = 4000
PIECE_BYTES = 1 << 18

# Colours, cursor movements, titles, and whatever else a terminal would take for a command.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
# They change the order in which the others are read.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Whole lines of a log from byte ``start`` to byte ``end``, where the next piece begins."""

    name: str
    lines: tuple[str, ...]
    start: int
    end: int

    def __repr__(self) -> str:
        return f"<LogPiece of {self.name!r}: {len(self.lines):,} lines, bytes {self.start:,} to {self.end:,}>"


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that holds what was looked for; numbers begin at 1."""

    log: str
    number: int
    line: str


def inert_line(line: str) -> str:
    """A line as a terminal would leave it, without what only a terminal understands."""
    text = _ESCAPE.sub("", line.rstrip("\r\n"))
    # A progress bar writes over itself.
    text = _UNSEEN.sub("\ufffd", text.rpartition("\r")[2])
    return text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]} ..."


def log_piece(path: Path, name: str, start: int | None, *, everything: bool = False) -> LogPiece:
    """The lines from byte ``start`` on (None: the last ones), at most ``PIECE_BYTES``.

    The last line counts with its end only, unless ``everything``: nothing will be written any more. A log that became
    shorter is begun again.
    """
    with path.open("rb") as log:
        size = log.seek(0, 2)
        begin = max(0, size - PIECE_BYTES) if start is None else start if start <= size else 0
        log.seek(begin)
        body = log.read(PIECE_BYTES)
    if start is None and begin:
        # The rest of a line whose beginning was not read.
        skipped = body.find(b"\n") + 1
        begin, body = begin + skipped, body[skipped:]
    at_end = begin + len(body) >= size
    whole = len(body) if everything and at_end else body.rfind(b"\n") + 1
    # A line that fills a piece is passed on in parts.
    whole = whole or (len(body) if len(body) == PIECE_BYTES else 0)
    lines = body[:whole].decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return LogPiece(name, tuple(map(inert_line, lines)), begin, begin + whole)


def find_lines(fetched: FetchedLogs, names: Iterable[str], text: str, limit: int) -> tuple[FoundLine, ...]:
    """The first ``limit`` lines of these logs that hold ``text``, in small or capital letters."""
    wanted = text.casefold()
    found: list[FoundLine] = []
    for name, number, line in _lines(fetched, names):
        if wanted in line.casefold():
            found.append(FoundLine(name, number, line))
            if len(found) == limit:
                break
    return tuple(found)


def _lines(fetched: FetchedLogs, names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    for name in names:
        with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(log_lines(stream), 1):
                yield name, number, inert_line(line)
