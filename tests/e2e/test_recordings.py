"""The recordings of the docs: blobsync still prints what they show."""

from __future__ import annotations

import re

import pytest

from tests.source import ROOT
from tools.recordings.__main__ import FILES, little_project, recorded
from tools.recordings.drawing import last_lines

pytestmark = pytest.mark.e2e


def _steady(text: str) -> str:
    """What a recording shows at its end, without times, estimates, ports and the places where lines wrap."""
    whole = re.sub(r"\s+", "", "".join(last_lines(text)))
    whole = re.sub(r"Engine:.*?(?=\$blobsync)", "", whole)
    whole = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", whole)
    return re.sub(r"in[\d.]+s;", "inNs;", whole)


def test_a_terminal_shows_today_what_the_docs_show() -> None:
    kept = (ROOT / "docs/images/terminal-80.svg").read_text(encoding="utf-8")
    with little_project(FILES, round_trip_ms=1.0) as project:
        now = recorded(project, 80)
    assert _steady(now) == _steady(kept), "run: python -m tools.recordings"
    assert f"uploaded{FILES + 1}files" in _steady(now)
