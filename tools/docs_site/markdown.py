"""Texts of the code as Markdown: help, docstrings, cells of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_MARKS = ("\\", "`", "*", "_", "<", "[", "$")
# In a docstring: code, and references such as :meth:`open` or :class:`~blobsync.Project`.
_CODE = re.compile(r":(\w+):`~?([^`]+)`|``(.+?)``|`([^`]+)`", re.DOTALL)


def plain(text: str) -> str:
    """Escape text for Markdown."""
    for mark in _MARKS:
        text = text.replace(mark, f"\\{mark}")
    return text


def in_cell(text: str) -> str:
    """Escape bars, which would end the cell, also within code."""
    return text.replace("|", "\\|")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells that are Markdown already."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return lines + [f"| {' | '.join(in_cell(cell) for cell in row)} |" for row in rows]


def from_docstring(text: str, link: Callable[[str], str]) -> str:
    """A docstring as Markdown; ``link`` makes what stands for a name that is code: ``TransferPlan``, ``upload()``."""
    blocks = []
    for block in text.split("\n\n"):
        indented = all(line.startswith("    ") for line in block.splitlines() if line.strip())
        blocks.append(block.rstrip() if indented else _paragraph(block, link))
    return "\n\n".join(block for block in blocks if block.strip())


def _paragraph(block: str, link: Callable[[str], str]) -> str:
    text = " ".join(block.split())
    done, at = [], 0
    for found in _CODE.finditer(text):
        role, referred, double, single = found.groups()
        done.append(plain(text[at : found.start()]))
        name = referred or double or single
        done.append(link(f"{name}()" if role in ("meth", "func") else name))
        at = found.end()
    return "".join(done) + plain(text[at:])
