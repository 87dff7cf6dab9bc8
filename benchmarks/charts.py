"""``python -m benchmarks.charts``: bars of docs/performance-results.json as SVG, in docs/images.

Each case has a scale of its own, so that a file of 1 KiB and 20,000 files fit on one page: the longest bar of a case is
the program that took most, and each bar has its figure. ``./dev bench --write`` draws them anew with the tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.cases import CASES, FAST, PROGRAMS, Case
from benchmarks.measure import Series
from benchmarks.report import IN_SHORT, SERVERS, write_into
from tools.svg import opening, style

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "performance-results.json"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "performance.md"

_WIDTH, _LEFT, _BARS = 720, 90, 500
_BAR, _GAP, _CASE = 15, 4, 34
_TOP = 56
_KINDS = dict(zip(PROGRAMS, ("good", "here", "there"), strict=True))
_MOVED = ("1k", "8m", "300m", "2000", "20000")


@dataclass(frozen=True)
class Chart:
    """One file: ``measure`` of a sample in ``unit``, for these cases on the fast server, or both directions of them."""

    name: str
    title: str
    measure: str
    unit: str
    keys: tuple[str, ...]


CHARTS = (
    Chart("seconds-fast", "Seconds of whole commands", "wall", "s", tuple(key.partition("@")[0] for key in IN_SHORT)),
    Chart("cpu", "CPU seconds of the client", "cpu", "s", _MOVED),
    Chart("memory", "Peak memory of the client", "peak_mb", "MB", _MOVED),
)

_Row = tuple[str, list[tuple[str, float]]]


def rows_of(chart: Chart, measured: Mapping[str, Sequence[Series]]) -> list[_Row]:
    """Each case's title with the medians of the programs that were measured in it."""
    found = []
    for case in CASES:
        if _is_of(case, chart) and case.key in measured:
            by_tool = {one.tool: one.median(chart.measure) for one in measured[case.key]}
            found.append((case.title, [(tool, by_tool[tool]) for tool in PROGRAMS if tool in by_tool]))
    return found


def _is_of(case: Case, chart: Chart) -> bool:
    plain = not (case.tls or case.round_trip_ms or case.words) and case.action in ("up", "down")
    key = case.key.partition("@")[0]
    return plain and case.server == FAST and bool({key, key.rpartition("-")[0]} & {*chart.keys})


def svg(chart: Chart, rows: Sequence[_Row]) -> str:
    """The whole file. A bar is as long as its share of the longest one in its case."""
    height = _TOP + sum(_CASE + len(bars) * (_BAR + _GAP) for _, bars in rows)
    title = f"{chart.title}, on {SERVERS[FAST]}"
    said = [
        f"{case}: {', '.join(f'{tool} {_figure(value, chart.unit)}' for tool, value in bars)}" for case, bars in rows
    ]
    lines = [opening(f"{title}. {'; '.join(said)}.", _WIDTH, height), f"<style>\n{style()}\n</style>"]
    lines.append(_text(0, 18, title, 'font-size="16" font-weight="600"'))
    lines.append(
        _text(0, 38, "medians; each case has a scale of its own, less is better", 'font-size="12" class="quiet"')
    )
    y = _TOP
    for case, bars in rows:
        lines.append(_text(0, y + 18, case, 'font-size="13" font-weight="600"'))
        y += _CASE - 8
        lines += _bars(chart, bars, y)
        y += len(bars) * (_BAR + _GAP) + 8
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bars(chart: Chart, bars: Sequence[tuple[str, float]], y: int) -> Iterator[str]:
    most = max(value for _, value in bars) or 1.0
    for tool, value in bars:
        width = max(value / most * _BARS, 1.0)
        yield _text(_LEFT - 8, y + 12, tool, 'font-size="12" text-anchor="end"')
        yield f'<rect class="{_KINDS[tool]}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
        yield _text(_LEFT + width + 6, y + 12, _figure(value, chart.unit), 'font-size="12"')
        y += _BAR + _GAP


def _figure(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 100 or unit == "MB" else f"{value:.2f} {unit}"


def _text(x: float, y: float, text: str, looks: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" {looks}>{escape(text.replace("`", ""))}</text>'


def drawn_charts(results: Path = RESULTS) -> dict[Path, str]:
    """Each file with its content; none for a chart of which nothing was measured."""
    raw = json.loads(results.read_text(encoding="utf-8"))["cases"]
    measured = {each["key"]: [Series.from_json(one) for one in each["series"]] for each in raw}
    with_rows = ((chart, rows_of(chart, measured)) for chart in CHARTS)
    return {IMAGES / f"bench-{chart.name}.svg": svg(chart, rows) for chart, rows in with_rows if rows}


def lines_for_the_page(files: Iterable[Path]) -> str:
    """Markdown that shows the charts on docs/performance.md."""
    titles = {f"bench-{chart.name}": f"{chart.title}, on {SERVERS[FAST]}" for chart in CHARTS}
    return "\n\n".join(
        f"![{titles[file.stem]}: bars for each case, with the figures of the table](images/{file.name})"
        for file in files
    )


def main() -> int:
    """Write them, and show them on the page; returns the exit code."""
    drawn = drawn_charts()
    for file, content in drawn.items():
        file.write_text(content, encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")
    if write_into(PAGE, "charts", lines_for_the_page(drawn)):
        return 0
    print(f"{PAGE.name} has no place for the charts", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
