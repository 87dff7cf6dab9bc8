"""Tables of text: columns by their widest cells, and on a narrow terminal which columns are left out or cut."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from blobsync.cli.output import cells, columns_of, cut

_COMMAND_CHARS = 60
# On a terminal: the minimum width of the last column, and the order in which other columns are left out.
_LAST_LEAST = 12
# The minimum width if no other column can be left out.
_LAST_CUT = 8
_LEAST_COLUMNS = (
    *("GPUS", "NODES", "TOOK", "FILES", "MINUTES", "CLUSTER", "SIZE", "RESULT", "STATUS", "TIME", "USER", "AGE"),
)
# Columns whose cells are shortened at the end of a clause.
_SENTENCES = ("RESULT", "STATUS")
_SENTENCE_LEAST = 16
# A sentence of this width is a state ("Failed (1)"), a cell of this width a word ("upload"): cut last.
_STATE_LEAST, _WORD_LEAST = 10, 6
# The minimum width of any column.
_CELL_LEAST = 5


def table(rows: Sequence[Sequence[str]], columns: int | None = None) -> Iterator[str]:
    """Align columns by their widest cells; the last one is cut, on a terminal (``columns``) to the remaining width.

    On a narrow terminal ids are shortened to their ends, which commands accept, and less important columns are left
    out.
    """
    columns = columns_of(sys.stdout) if columns is None else columns
    if columns:
        rows = _fitted(rows, columns)
    widths = _widths(rows)
    most = max(columns - sum(widths) - 2 * len(widths), _LAST_CUT) if columns else _COMMAND_CHARS
    for row in rows:
        filled = [cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*filled, cut(row[-1], most)]).rstrip()


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The widths of all columns but the last."""
    return [max(cells(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]


def _fitted(rows: Sequence[Sequence[str]], columns: int) -> Sequence[Sequence[str]]:
    for least in ("ID", *_LEAST_COLUMNS):
        widths = _widths(rows)
        lacking = _LAST_LEAST - (columns - sum(widths) - 2 * len(widths))
        if lacking <= 0:
            return rows
        if least not in rows[0][:-1]:
            continue
        at = rows[0].index(least)
        if least == "ID":
            rows = _changed(rows, at, lambda text: text.rpartition("_")[2])
        elif least in _SENTENCES:
            room = max(widths[at] - lacking, _SENTENCE_LEAST)
            rows = _changed(rows, at, partial(_said_in, room=room))
        else:
            rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return _squeezed(rows, columns)


def _squeezed(rows: Sequence[Sequence[str]], columns: int) -> Sequence[Sequence[str]]:
    """If no other column can be left out: cut the widest ones, a short state last, never what identifies the job."""
    while True:
        widths = _widths(rows)
        wide = [
            (_more_than_it_needs(rows[0][at], width), width, at)
            for at, width in enumerate(widths)
            if rows[0][at] != "ID" and width > _CELL_LEAST
        ]
        if columns - sum(widths) - 2 * len(widths) >= _LAST_CUT or not wide:
            return rows
        _, most, at = max(wide)
        rows = _changed(rows, at, partial(_said_in, room=most - 1))


def _more_than_it_needs(heading: str, width: int) -> int:
    """The columns with the highest number are cut first."""
    if heading in _SENTENCES:
        return (width > _STATE_LEAST) + (width > _SENTENCE_LEAST)
    return 2 if width > _WORD_LEAST else 0


def _changed(rows: Sequence[Sequence[str]], at: int, change: Callable[[str], str]) -> Sequence[Sequence[str]]:
    return [(*row[:at], change(row[at]), *row[at + 1 :]) for row in rows]


def _said_in(text: str, room: int) -> str:
    """As many clauses of a text, or words of a command, from the first on, as fit."""
    for end in (", ", " --"):
        while cells(text) > room and end in text:
            text = text.rpartition(end)[0]
    return cut(text, room)
