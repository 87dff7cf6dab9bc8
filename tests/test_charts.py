"""The charts of docs/performance-results.json."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from benchmarks.charts import CHARTS, PAGE, drawn_charts, lines_for_the_page, svg

_ROWS = [("one file, up", [("blobsync", 0.5), ("azcopy", 2.0)]), ("many & more", [("blobsync", 3.0), ("rclone", 1.5)])]


def test_the_charts_are_those_of_the_measurements() -> None:
    drawn = drawn_charts()
    assert drawn
    stale = [
        file.name for file, text in drawn.items() if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python -m benchmarks.charts"
    assert lines_for_the_page(drawn) in PAGE.read_text(encoding="utf-8"), "run: python -m benchmarks.charts"


def test_a_bar_is_as_long_as_its_share_of_the_longest_in_its_case_and_has_its_figure() -> None:
    text = svg(CHARTS[0], _ROWS)
    widths = [float(width) for width in re.findall(r'<rect class="\w+" [^>]*?width="([\d.]+)"', text)]
    assert [round(width / 500, 2) for width in widths] == [0.25, 1.0, 1.0, 0.5]
    shown = ["".join(each.itertext()) for each in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert shown[2:7] == ["one file, up", "blobsync", "0.50 s", "azcopy", "2.00 s"]
    assert shown[7] == "many & more"


def test_a_chart_says_all_of_its_figures_to_whoever_cannot_see_it() -> None:
    root = ElementTree.fromstring(svg(CHARTS[0], _ROWS))
    assert root.get("role") == "img"
    assert "one file, up: blobsync 0.50 s, azcopy 2.00 s; many & more: blobsync 3.00 s" in (
        root.get("aria-label") or ""
    )
