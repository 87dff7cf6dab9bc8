"""The line that shows how it goes: what it says at each width, whatever the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from blobsync.cli.bar import TerminalLine, bar_text
from blobsync.plan.progress import Progress

_MOVING = Progress(
    "moving",
    12.0,
    files=1234,
    files_expected=8000,
    bytes=1_234_567_890,
    bytes_expected=34_567_890_123,
    failures=12,
    seconds_left=324.0,
)
_WORST = Progress(
    "downloading",
    9e5,
    files=10**9,
    files_expected=10**9,
    bytes=10**15 - 1,
    bytes_expected=10**15,
    failures=10**9,
    seconds_left=9e8,
)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (12, "moving   3%"),
        (24, "moving   3%  5 min left"),
        (40, "moving   3%  12 failed, 5 min left"),
        (50, "moving   3%  12 failed, 103 MB/s, 5 min left"),
        (70, "moving   3%  1.23 GB of 34.6 GB, 12 failed, 103 MB/s, 5 min left"),
        (90, "moving   3% |▊                      | 1.23 GB of 34.6 GB, 12 failed, 103 MB/s, 5 min left"),
        (
            100,
            "moving   3% |▌             | 1.23 GB of 34.6 GB, 1,234/8,000 files, 12 failed, 103 MB/s, 5 min left",
        ),
    ],
)
def test_the_less_room_there_is_the_less_it_says(columns: int, text: str) -> None:
    assert bar_text(_MOVING, columns) == text


@pytest.mark.parametrize("progress", [_MOVING, _WORST, replace(_WORST, bytes_expected=0), Progress("surveying", 3e7)])
def test_it_never_reaches_the_last_column(progress: Progress) -> None:
    for columns in range(2, 300):
        assert len(bar_text(progress, columns)) < columns


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("surveying", 2.0), "looking  2 s"),
        (Progress("surveying", 2.0, looked=3000), "looking  3,000 names, 1,500 a second, 2 s"),
        (Progress("deleting", 3.0, files_expected=8), "deleting   0%  0/8 files, 3 s"),
        (Progress("deleting", 3.0, files=2, files_expected=8, seconds_left=9.0), "deleting  25%  2/8 files, 9 s left"),
        (
            replace(_MOVING, bytes=-5, failures=0, seconds_left=None),
            "moving   0%  0 B of 34.6 GB, 1,234/8,000 files, 12 s",
        ),
        (
            replace(_MOVING, bytes=40_000_000_000, failures=0, seconds_left=None),
            "moving 100%  40 GB of 34.6 GB, 1,234/8,000 files, 3.33 GB/s, 12 s",
        ),
    ],
)
def test_what_it_says_of_each_step(progress: Progress, text: str) -> None:
    wide = bar_text(progress, 200)
    assert text == (wide if "|" not in wide else wide[: wide.index(" |")] + " " + wide[wide.rindex("|") + 1 :])


def test_what_was_there_already_counts_for_the_share_and_not_for_the_speed() -> None:
    begun = Progress("moving", 10.0, files_expected=1, bytes=600, bytes_expected=1000, reused=500, seconds_left=40.0)
    assert bar_text(begun, 60, plain=True) == "moving  60% |#######2    | 600 B of 1 KB, 10 B/s, 40 s left"
    assert (
        bar_text(replace(begun, bytes=500, seconds_left=None), 50, plain=True)
        == "moving  50% |#######5       | 500 B of 1 KB, 10 s"
    )


def test_the_graph_is_as_full_as_the_work_is_done() -> None:
    for done, graph in ((0, ""), (50, "#" * 20), (99, "#" * 39 + "6"), (100, "#" * 40)):
        text = bar_text(Progress("deleting", 1.0, files=done, files_expected=100), 120, plain=True)
        assert f"|{graph:40}|" in text


def test_a_terminal_that_was_closed_stops_nothing() -> None:
    gone = io.StringIO()
    gone.close()
    line = TerminalLine(gone)
    line.draw("moving")
    line.clear()
    assert line.columns == 80
