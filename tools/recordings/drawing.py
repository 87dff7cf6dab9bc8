"""A recording as one SVG: rows that come and go by CSS, no script. The end comes first: a
reader who asked for less motion sees only that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, unescape

from tools.recordings.screen import Row, Run, Stay
from tools.svg import opening

_CELL, _LINE, _PAD, _SIZE = 8.4, 19, 14, 14
# How long the end stands before it begins anew. A reader sees that first: an empty terminal says nothing.
_REST = 6.0
_BACK, _TEXT = "#161b22", "#e6edf3"
_COLORS = {"red": "#ff7b72", "green": "#56d364", "brown": "#e3b341", "default": _TEXT}


def svg(seen: Sequence[Stay], columns: int, alt: str) -> str:
    """The whole file."""
    lines = max(stay.line for stay in seen) + 1
    width, height = columns * _CELL + 2 * _PAD, lines * _LINE + 2 * _PAD
    whole = max(stay.end or stay.begin for stay in seen) + _REST
    rules, rows = [], []
    for number, stay in enumerate(seen):
        rules.append(_rule(number, stay, whole))
        rows.append(f'<g id="r{number}" class="{"end" if stay.end is None else "row"}">{_row(stay.line, stay.row)}</g>')
    return "\n".join(
        [
            opening(alt, round(width), height, kind="terminal"),
            f"<style>\n{_style(whole)}\n" + "\n".join(rules) + "\n</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{_BACK}"/>',
            *rows,
            "</svg>\n",
        ]
    )


def _style(whole: float) -> str:
    mono = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    return "\n".join(
        [
            f"text {{ font: {_SIZE}px {mono}; white-space: pre; fill: {_TEXT}; }}",
            ".row { visibility: hidden; }",
            f"g {{ animation: {whole:.2f}s step-end {_REST - whole:.2f}s infinite; }}",
            "@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }",
        ]
    )


def _rule(number: int, stay: Stay, whole: float) -> str:
    stops = f"0% {{ visibility: hidden }} {stay.begin / whole:.3%} {{ visibility: visible }}"
    if stay.end is not None:
        stops += f" {stay.end / whole:.3%} {{ visibility: hidden }}"
    return f"@keyframes k{number} {{ {stops} }} #r{number} {{ animation-name: k{number} }}"


def _row(line: int, row: Row) -> str:
    y = _PAD + line * _LINE + _SIZE
    return "".join(_run(run, y) for run in row)


def _run(run: Run, y: int) -> str:
    """Each cell has its width, whatever the reader's font is."""
    looks = "" if run.color == "default" else f' style="fill: {_COLORS[run.color]}"'
    looks += ' font-weight="bold"' if run.bold else ""
    grid = f'x="{_PAD + run.at * _CELL:.1f}" y="{y}" textLength="{len(run.text) * _CELL:.1f}"'
    return f'<text {grid} lengthAdjust="spacingAndGlyphs"{looks}>{escape(run.text)}</text>'


def last_lines(text: str) -> list[str]:
    """Lines that a recording shows at its end; the reverse of :func:`svg`, for tests."""
    return list(_last_lines(text))


def _last_lines(text: str) -> Iterator[str]:
    for group in re.findall(r'<g id="r\d+" class="end">(.*?)</g>', text):
        shown = ""
        for x, inner in re.findall(r'<text x="([\d.]+)"[^>]*>(.*?)</text>', group):
            shown = shown.ljust(round((float(x) - _PAD) / _CELL)) + unescape(inner)
        yield shown
