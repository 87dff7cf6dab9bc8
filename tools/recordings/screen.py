"""What a terminal shows over time: from the bytes that arrived to rows of coloured text, and how long each stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyte

# More often makes the file longer, without a visible difference.
_SHORTEST = 0.15


class Run(NamedTuple):
    """Characters of one look, beside each other; ``at`` is the first one's column."""

    at: int
    text: str
    color: str
    bold: bool


Row = tuple[Run, ...]


@dataclass(frozen=True)
class Stay:
    """A row that stands in line ``line`` from ``begin`` to ``end`` (seconds; the end of the recording: None)."""

    line: int
    row: Row
    begin: float
    end: float | None


def row_of(screen: pyte.Screen, line: int) -> Row:
    """One line of the screen, without the spaces at its end."""
    runs: list[Run] = []
    cells = screen.buffer[line]
    for at in range(screen.columns):
        cell = cells[at]
        look = (cell.fg, cell.bold)
        if runs and (runs[-1].color, runs[-1].bold) == look:
            runs[-1] = runs[-1]._replace(text=runs[-1].text + cell.data)
        else:
            runs.append(Run(at, cell.data, *look))
    if runs and not runs[-1].text.strip():
        runs.pop()
    elif runs:
        runs[-1] = runs[-1]._replace(text=runs[-1].text.rstrip())
    return tuple(run for run in runs if run.text.strip())


def stays(events: Iterable[tuple[float, bytes]], columns: int, lines: int) -> Iterator[Stay]:
    """Each row that was seen, in the order in which they left; those of the end come last.

    ``events`` are moments and what arrived then. What stands for less than a moment is left out.
    """
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    shown: dict[int, tuple[Row, float]] = {}
    last = None
    for moment, data in events:
        if last is not None and moment - last >= _SHORTEST:
            yield from _changed(screen, shown, last)
        last = moment
        stream.feed(data)
    yield from _changed(screen, shown, last or 0.0)
    for line, (row, begin) in sorted(shown.items()):
        if row:
            yield Stay(line, row, begin, None)


def _changed(screen: pyte.Screen, shown: dict[int, tuple[Row, float]], moment: float) -> Iterator[Stay]:
    for line in range(screen.lines):
        now = row_of(screen, line)
        before, begin = shown.get(line, ((), 0.0))
        if now != before:
            if before:
                yield Stay(line, before, begin, moment)
            shown[line] = (now, moment)
