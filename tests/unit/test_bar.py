"""The progress line: its text at each width, on every terminal."""

from __future__ import annotations

import io

import pytest

from blobsync.base.events import Phase
from blobsync.cli.output import Console
from blobsync.cli.progress import BarListener, bar_text
from blobsync.plan.progress import Progress

_MOVING = Progress(
    "moving",
    12.0,
    files=1234,
    files_expected=8000,
    bytes=1_234_567_890,
    bytes_expected=34_567_890_123,
    failures=12,
    rate=103e6,
    seconds_left=324.0,
    doing="uploading",
)
_WORST = Progress(
    "moving",
    9e5,
    files=10**9,
    files_expected=10**9,
    bytes=10**15 - 1,
    bytes_expected=10**15,
    failures=10**9,
    rate=9e14,
    seconds_left=9e8,
    doing="downloading",
)
_OFFLINE = _MOVING._replace(
    failures=0, rate=0.0, seconds_left=None, waiting="no connection", waiting_seconds=8.4, retrying=True
)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (15, "uploading   3%"),
        (28, "uploading   3%  5 min left"),
        (40, "uploading   3%  5 min left,  12 failed"),
        (50, "uploading   3%   103 MB/s, 5 min left,  12 failed"),
        (70, "uploading   3%  1,234/8,000 files,  103 MB/s, 5 min left,  12 failed"),
        (80, "uploading   3%  1,234/8,000 files,  103 MB/s, 5 min left,  12 failed"),
        (90, "uploading   3%  1,234/8,000 files,  1.2 of 34.6 GB,  103 MB/s, 5 min left,  12 failed"),
    ],
)
def test_a_narrow_terminal_gets_a_shorter_line(columns: int, text: str) -> None:
    assert bar_text(_MOVING, columns) == text


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (24, "no connection for 8 s"),
        (40, "uploading   3%  no connection for 8 s"),
        (80, "uploading   3%  1,234/8,000 files, no connection for 8 s, trying again"),
        (120, "uploading   3%  1,234/8,000 files,  1.2 of 34.6 GB, no connection for 8 s, trying again"),
    ],
)
def test_a_lost_connection_is_shown_instead_of_rate_and_time(columns: int, text: str) -> None:
    bar = bar_text(_OFFLINE, columns)
    assert text == (bar if "|" not in bar else bar[: bar.index(" |")] + " " + bar[bar.rindex("|") + 1 :])


def test_columns_stay_in_place_while_numbers_grow() -> None:
    """Each part keeps its columns from the first file to the last; in a wide line failures move none."""
    for columns in (60, 80, 100, 120):
        places = set()
        for done in range(0, 8001, 40):
            share = done / 8000
            now = _MOVING._replace(
                files=done, bytes=int(34_567_890_123 * share), rate=1e9 * share, seconds_left=90 * (1 - share),
                failures=done // 4000 if columns >= 100 else 0, under_way=3, current="data/" + "x" * (done % 50),
            )  # fmt: skip
            bar = bar_text(now, columns)
            places.add(tuple(bar.index(part) for part in ("/8,000", "/s", " of 34.6") if part in bar))
        assert len(places) == 1, (columns, places)


def test_a_long_time_moves_nothing() -> None:
    """Minutes, hours and days, left or gone, have the columns of seconds."""
    times = (5.0, 89.0, 91.0, 5_300.0, 5_370.0, 5_420.0, 9_000.0, 86_400.0, 359_600.0, 360_000.0, 9e9)
    for columns in (60, 80, 100, 120):
        bars = [bar_text(_MOVING._replace(seconds=seconds, seconds_left=None), columns) for seconds in times]
        bars += [bar_text(_MOVING._replace(seconds_left=seconds), columns) for seconds in times]
        parts = ("/8,000", "/s", " of 34.6", " failed", "|")
        places = {tuple(bar.index(part) for part in parts if part in bar) for bar in bars}
        assert len(places) == 1, (columns, places)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_of_usual_width_shows_the_file_count(columns: int) -> None:
    assert "12,211/12,211 files" in bar_text(_MOVING._replace(files=12_211, files_expected=12_211), columns)


@pytest.mark.parametrize(
    "progress", [_MOVING, _WORST, _OFFLINE, _WORST._replace(bytes_expected=0), Progress("surveying", 3e7)]
)
def test_the_line_leaves_the_last_column_empty(progress: Progress) -> None:
    for columns in range(2, 300):
        assert len(bar_text(progress, columns)) < columns


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("surveying", 2.0), "listing  2 s"),
        (Progress("surveying", 2.0, looked=3000), "listing  3,000 names, 1,500 a second, 2 s"),
        (
            Progress("surveying", 9.0, looked=3000, doing="hashing", under_way=12, bytes_expected=120_000_000_000),
            "hashing  12 files of 120 GB, 3,000 names, 9 s",
        ),
        (Progress("verifying", 2.0, looked=3000), "checking  3,000 names, 1,500 a second, 2 s"),
        (
            Progress("surveying", 9.0, looked=3, waiting="no answer", waiting_seconds=9.0),
            "listing  3 names, no answer for 9 s",
        ),
        (Progress("deleting", 3.0, files_expected=8), "deleting   0%  0/8 files, for 3 s"),
        (Progress("deleting", 3.0, files=2, files_expected=8, seconds_left=9.0), "deleting  25%  2/8 files, 9 s left"),
        (
            _MOVING._replace(bytes=-5, failures=0, rate=0.0, seconds_left=None),
            "uploading   0%  1,234/8,000 files,  0.0 of 34.6 GB,     0 B/s, for 12 s",
        ),
        (
            _MOVING._replace(bytes=40_000_000_000, failures=0, seconds_left=None),
            "uploading 100%  1,234/8,000 files, 34.6 of 34.6 GB,  103 MB/s, for 12 s",
        ),
    ],
)
def test_the_label_of_each_step(progress: Progress, text: str) -> None:
    wide = bar_text(progress, 200)
    assert text == (wide if "|" not in wide else wide[: wide.index(" |")] + " " + wide[wide.rindex("|") + 1 :])


def test_the_bar_is_filled_in_proportion_to_the_work_done() -> None:
    for done, graph in ((0, ""), (50, "#" * 10 + "5"), (99, "#" * 20 + "7"), (100, "#" * 21)):
        text = bar_text(Progress("deleting", 1.0, files=done, files_expected=100), 120, plain=True)
        assert f"|{graph:21}|" in text, text


def test_a_closed_terminal_does_not_stop_the_transfer() -> None:
    gone = io.StringIO()
    gone.close()
    bar = BarListener(Console(err=io.StringIO()), after=0.0, terminal=gone)
    bar.emit(Phase("moving"))
    bar.show(force=True)
    bar.close()
