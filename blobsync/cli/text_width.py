"""Texts that fit the terminal: its width, how many columns a text takes, and where lines break or are cut."""

from __future__ import annotations

import os
from typing import TextIO

from blobsync.base.lazy_regexes import pattern

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
