"""Reads a plain YAML file, as most configuration files are, without PyYAML: importing that takes longer.

Plain means: ASCII; one key a line, in blocks or in the braces of one line; values are quoted without escapes, or of
characters that need no quotes; comments. A file that has anything else, or a fault, is left to PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blobsync.base.patterns import pattern

_KEY = r"[A-Za-z_][A-Za-z0-9_./-]{0,99}"
_VALUE = r"[A-Za-z0-9_./$~](?:[A-Za-z0-9_./+=$~%@-]|:(?=[A-Za-z0-9/_]))*" + r"""|'[^'\n]*'|"[^"\\\n]*\""""
_PAIR = rf"{_KEY}: +(?:{_VALUE})"
_PAIRS = pattern(rf"({_KEY}): +({_VALUE})")
_BRACES = pattern(rf"\{{ *(?:{_PAIR}(?:, *{_PAIR})*)? *\}}")
_ANY_VALUE = rf"(?P<value>{_VALUE})|(?P<braces>\{{[^{{}}\n]*\}})"
_LINE = pattern(rf"(?P<indent> *)(?:(?P<key>{_KEY}):(?: +(?:{_ANY_VALUE}))? *(?: #.*)?|(?:#.*)?)")
_TEXT = pattern(r"[\n\x20-\x7e]*")
_WHOLE = pattern(r"0|[1-9][0-9]{0,17}")
_NAMED: dict[str, bool | None] = {
    **dict.fromkeys(("~", "null", "Null", "NULL")),
    **{each: True for word in ("yes", "true", "on") for each in (word, word.capitalize(), word.upper())},
    **{each: False for word in ("no", "false", "off") for each in (word, word.capitalize(), word.upper())},
}
_MAX_LINES = 1_000
_MAX_DEPTH = 20


def read_plain_yaml(text: str) -> tuple[dict[str, Any], dict[tuple[str, ...], int]] | None:
    """The values, and the line of each key by its path; None if PyYAML has to read ``text``."""
    lines = text.split("\n")
    if len(lines) > _MAX_LINES or not _TEXT.fullmatch(text):
        return None
    values: dict[str, Any] = {}
    found: dict[tuple[str, ...], int] = {}
    around: list[_Open] = [(0, (), values)]
    last: str | None = None
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        key = match["key"]
        if key is None:
            continue
        _go_to(len(match["indent"]), around, last)
        indent, path, mapping = around[-1]
        value, pairs, below = _value(match)
        if indent != len(match["indent"]) or key in mapping or len(around) > _MAX_DEPTH or below != len(pairs):
            return None
        mapping[key] = value
        here = (*path, key)
        found |= {here: number, **{(*here, name): number for name in pairs}}
        last = key if value is None and not match["value"] else None
    return values, found


# An open mapping: its indentation, its path, its values.
_Open = tuple[int, tuple[str, ...], dict[str, Any]]


def _go_to(indent: int, around: list[_Open], last: str | None) -> None:
    """Open a mapping as the value of the key ``last``, if that has none, or close those that are indented further."""
    there, path, mapping = around[-1]
    if last is not None and indent > there:
        mapping[last] = {}
        around.append((indent, (*path, last), mapping[last]))
    while indent < around[-1][0]:
        around.pop()


def _value(match: re.Match[str]) -> tuple[Any, Mapping[str, Any], int]:
    """The value of a line; what is in its braces, and how many pairs are written there, -1 if they are not plain."""
    if match["braces"] is None:
        return _scalar(match["value"]) if match["value"] else None, {}, 0
    if not _BRACES.fullmatch(match["braces"]):
        return None, {}, -1
    pairs = _PAIRS.findall(match["braces"])
    found = {name: _scalar(value) for name, value in pairs}
    return found, found, len(pairs)


def _scalar(text: str) -> str | int | bool | None:
    if text[0] in "'\"":
        return text[1:-1]
    if _WHOLE.fullmatch(text):
        return int(text)
    return _NAMED.get(text, text)
