"""Colours of lines that are printed: by what a line begins with, so that no command has to know of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO

from blobsync.base.errors import UsageError

CHOICES = ("auto", "always", "never")
# https://en.wikipedia.org/wiki/ANSI_escape_code#Select_Graphic_Rendition_parameters
_OFF, _BOLD = "\x1b[0m", "\x1b[1m"
_RED, _GREEN, _YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"

_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("FAIL", "conflict", "delete", "Failed", "differs", "damaged"), _RED),
    **dict.fromkeys(("ok", "upload", "download", "copy", "Completed", "Running"), _GREEN),
    **dict.fromkeys(("warn", "?", "keep", "Queued", "Preparing", "Canceling", "Canceled", "Unknown"), _YELLOW),
}
_FIRST = re.compile(r"(\s*)(\?|[A-Za-z]+)(?=\s|:)")
# A table of jobs: the id, then the state.
_STATE = re.compile(r"(\S+_\S+  +)([A-Z][a-z]+)\b")
_HEADING = re.compile(r"[a-z][^:]*:$")


def wants_color(choice: str | None, environ: Mapping[str, str], stream: TextIO) -> bool:
    """Whether a stream gets colours: ``--color``, else a terminal without ``NO_COLOR`` (https://no-color.org).

    Raises ``UsageError`` for another word.
    """
    if choice not in (None, *CHOICES):
        raise UsageError(f"--color {choice}: not one of {', '.join(CHOICES)}")
    if choice in ("always", "never"):
        return choice == "always"
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def painted(line: str) -> str:
    """A line of an answer; its text is the same."""
    found = _STATE.match(line) or _FIRST.match(line)
    if found and found[2] in _WORDS:
        return f"{found[1]}{_WORDS[found[2]]}{found[2]}{_OFF}{line[found.end(2) :]}"
    return f"{_BOLD}{line}{_OFF}" if _HEADING.fullmatch(line) else line


def painted_error(text: str) -> str:
    """The name in front of an error."""
    return f"{_RED}{text}{_OFF}"
