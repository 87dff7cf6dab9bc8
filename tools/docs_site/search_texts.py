"""The text of each section of the site, as a script: the search shows where a word stands, also on pages that are
opened as files, from which a browser fetches nothing.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

SCRIPT = Path("_static", "search_texts.js")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_SILENT = ("script", "style", "svg", "nav", "button")
_NO_END = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")


class _Sections(HTMLParser):
    """The sections of a page's article, in their order: id, heading, text without that of the sections inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []
        self._open: list[tuple[str, int | None]] = []
        self._within: list[int] = []
        self._silent = 0
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _NO_END:
            return
        given = dict(attrs)
        section = None
        if tag == "section" and given.get("id"):
            section = len(self.found)
            self.found.append([given["id"] or "", "", ""])
            self._within.append(section)
        silent = tag in _SILENT or "headerlink" in (given.get("class") or "").split()
        self._silent += silent
        self._heading = self._heading or tag in _HEADINGS
        self._open.append(("silent" if silent else tag, section))

    def handle_endtag(self, tag: str) -> None:
        if tag in _NO_END or not self._open:
            return
        kind, section = self._open.pop()
        self._silent -= kind == "silent"
        self._heading = self._heading and tag not in _HEADINGS
        if section is not None:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if self._within and not self._silent:
            # The heading, or the text.
            self.found[self._within[-1]][1 if self._heading else 2] += data


def sections(page: str) -> list[list[str]]:
    """Each section of a page: its id, its heading, its own text in one line."""
    parser = _Sections()
    parser.feed(page)
    return [[name, heading.strip(), " ".join(text.split())] for name, heading, text in parser.found]


def write_search_texts(html: Path) -> None:
    """Write the script beside Sphinx's files."""
    pages = {
        file.relative_to(html).as_posix(): sections(file.read_text(encoding="utf-8"))
        for file in sorted(html.rglob("*.html"))
    }
    text = json.dumps({name: found for name, found in pages.items() if found}, ensure_ascii=False)
    (html / SCRIPT).write_text(f"const SEARCH_TEXTS = {text};\n", encoding="utf-8")
