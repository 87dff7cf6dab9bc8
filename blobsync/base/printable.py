"""Writes characters of hostile names that nobody sees, or that reorder the text around them, so that they are seen."""

from __future__ import annotations


def printable(text: str, *, kept: str = "") -> str:
    r"""Escape control, format and space characters but the space (``\x1b``, ``\u202e``) unless they are in ``kept``;
    names that are not UTF-8 stay readable."""
    shown = "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()
