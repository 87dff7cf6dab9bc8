"""Which texts are checked, and their prose: without code, links and tables' lines, each word in the line it was in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.docs_site.python_api import Writer
from tools.docs_site.reference import options_page
from tools.docs_site.sources import ROOT

_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# What is no prose. Each becomes a mark, so that what stands on both sides of it does not meet.
_NO_PROSE = (
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE),
    re.compile(r"^    .*$", re.MULTILINE),
    re.compile(r"``.+?``|`[^`]*`", re.DOTALL),
    re.compile(r"(?<=\])\([^)]*\)"),
    re.compile(r"https?://\S+"),
    re.compile(r"^\|[-|]+\|$", re.MULTILINE),
    # Options and variables that stand in help and docstrings as they are typed; there an underscore is escaped.
    re.compile(r"(?<![\w-])--?[a-z][\w-]*|\b[A-Z]+(?:\\?_[A-Z]+)+\b"),
)


def texts() -> Iterator[tuple[str, str]]:
    """Each page's name and Markdown; help and docstrings as the pages of the site that are made of them."""
    for name in _TOP:
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for file in sorted((ROOT / "docs").rglob("*.md")):
        yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
    yield "the help", options_page()
    yield from ((f"docstrings ({name})", text) for name, text in Writer().pages())


def prose(markdown: str) -> str:
    """The same lines, with a mark where something is no prose."""

    def mark(found: re.Match[str]) -> str:
        return "¤" + "\n" * found[0].count("\n")

    for pattern in _NO_PROSE:
        markdown = pattern.sub(mark, markdown)
    # A heading is no part of the sentences around it.
    markdown = re.sub(r"^#+ (.*)$", r"¤ \1.", markdown, flags=re.MULTILINE)
    return re.sub(r"\\([`*_<\[$\\])", r"\1", markdown)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of paragraphs and lists with the line that it begins in; tables and headings have none."""
    for block in re.finditer(r"(?:^(?![|#]).*\S.*\n?)+", text, re.MULTILINE):
        first = text.count("\n", 0, block.start()) + 1
        parts = re.split(r"(?<=[.?!:;])\s+|\n\s*(?:[*-]|\d+\.)\s", block[0])
        at = 0
        for part in parts:
            at = block[0].index(part, at)
            yield first + block[0].count("\n", 0, at), " ".join(part.split())
            at += len(part)
