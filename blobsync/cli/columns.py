"""Text in the columns of a terminal: how wide it is, where it breaks, and what stays of it where there is no room.

Pure but for :func:`columns_of`. Textwrap counts characters; a Chinese one takes two columns, an accent none.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

# Deeper than the lines below a line are, so that what goes on is not taken for one of them.
_HANGING = 4
_PIECE = re.compile(r" *[^ ]+")
_NUMBER = re.compile(r" *\(?[\d.,]*\d")
_GAP = "..."


def columns_of(stream: TextIO) -> int:
    """How wide the terminal is that ``stream`` leads to, now; 0 where it leads to none, or to one that does not say."""
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
    from unicodedata import combining, east_asian_width  # late: names are ASCII, mostly

    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1


def wrapped(text: str, columns: int) -> str:
    """One line as several that fit ``columns``, broken at blanks; those after the first are set in by four more.

    A number stays with what it counts. A word that fits no line by itself begins where it would, for the terminal to
    break, so that a path can be copied in one piece. ``columns`` 0: the text as it is.
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
            # What the terminal has broken ends somewhere in its last row.
            used = used if used <= columns else used % columns
    return shown


def _pieces(text: str) -> list[str]:
    """The words, each with the blanks before it; a number and what it counts are one."""
    found: list[str] = []
    for piece in _PIECE.findall(text):
        if found and _NUMBER.fullmatch(found[-1]) and piece.lstrip(" ")[0].isalpha():
            found[-1] += piece
        else:
            found.append(piece)
    return found


def shortened(name: str, room: int) -> str:
    """A path in ``room`` columns: its middle goes first, and more is left of its end, which tells files apart."""
    if cells(name) <= room:
        return name
    room -= len(_GAP)
    if room < 2:
        return ""
    head = _first(name, room // 3)
    return f"{head}{_GAP}{_first(name[::-1], room - cells(head))[::-1]}"


def cut(text: str, room: int) -> str:
    """Its beginning in ``room`` columns, and that there is more."""
    return text if cells(text) <= room else f"{_first(text, room - len(_GAP))}{_GAP}"


def _first(text: str, room: int) -> str:
    """As much of its beginning as there is room for."""
    taken = 0
    for at, char in enumerate(text):
        taken += _cells(char)
        if taken > room:
            return text[:at]
    return text
