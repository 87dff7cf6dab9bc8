"""Recordings of a terminal: what pyte sees becomes rows that come and go."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.source import ROOT
from tools.recordings.drawing import last_lines, svg
from tools.recordings.screen import Run, Stay, stays

_EVENTS = [
    (0.0, b"$ u\r\n"),
    (1.0, b"\rmoving 10%\x1b[K\r"),
    (2.0, b"\rmoving 90%\x1b[K\r"),
    (3.0, b"\r\x1b[K\x1b[32muploaded\x1b[0m 2 files & more\r\n"),
]


def test_each_row_stands_as_long_as_the_terminal_showed_it() -> None:
    seen = list(stays(_EVENTS, 40, 10))
    shown = [("".join(run.text for run in stay.row), stay.line, stay.begin, stay.end) for stay in seen]
    assert shown == [
        ("moving 10%", 1, 1.0, 2.0),
        ("moving 90%", 1, 2.0, 3.0),
        ("$ u", 0, 0.0, None),
        ("uploaded 2 files & more", 1, 3.0, None),
    ]
    assert seen[-1].row == (Run(0, "uploaded", "green", False), Run(8, " 2 files & more", "default", False))


def test_what_comes_and_goes_within_a_moment_is_left_out() -> None:
    quick = [(0.0, b"one"), (0.01, b"\rtwo"), (0.02, b"\rsix"), (5.0, b"\r\n")]
    assert [stay.row[0].text for stay in stays(quick, 20, 5)] == ["six"]


def test_the_end_stands_where_nothing_moves_and_all_else_is_hidden() -> None:
    text = svg(list(stays(_EVENTS, 40, 10)), 40, "an upload & more")
    root = ElementTree.fromstring(text)
    assert (root.get("role"), root.get("aria-label")) == ("img", "an upload & more")
    assert "prefers-reduced-motion" in text and ".row { visibility: hidden; }" in text
    assert last_lines(text) == ["$ u", "uploaded 2 files & more"]
    assert re.search(r"@keyframes k0 \{ 0% \{ visibility: hidden \} 11\.111% \{ visibility: visible \} 22\.222% ", text)


def test_wide_and_far_rows_fit_into_the_picture() -> None:
    text = svg([Stay(7, (Run(10, "x" * 70, "default", True),), 0.0, None)], 80, "wide")
    width, height = (float(each) for each in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    x, y, length = (float(each) for each in re.findall(r'x="([\d.]+)" y="(\d+)" textLength="([\d.]+)"', text)[0])
    assert x + length <= width and y <= height


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_the_recordings_of_the_docs_end_with_everything_verified(columns: int) -> None:
    text = (ROOT / f"docs/images/terminal-{columns}.svg").read_text(encoding="utf-8")
    lines = last_lines(text)
    assert lines[-1].startswith("$") and "121 equal" in lines[-2], lines
    assert max(map(len, lines)) <= columns
    assert re.search(r">uploading +\d+%", text), "the bar was seen on the way"
