"""What output looks like: colours, tables on narrow terminals, where the time went, the log file."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from blobsync.base.errors import UsageError
from blobsync.cli.bar import bar_text
from blobsync.cli.colors import painted, wants_color
from blobsync.cli.job_words import table
from blobsync.cli.progress import QuietListener
from blobsync.cli.timings import TimedListener
from blobsync.plan.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "environ", "terminal", "wanted"),
    [
        (None, {}, True, True),
        (None, {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_colours_are_for_terminals_unless_the_user_says_otherwise(
    choice: str | None, environ: Mapping[str, str], terminal: bool, wanted: bool
) -> None:
    assert wants_color(choice, environ, _Terminal() if terminal else io.StringIO()) is wanted


def test_another_word_for_colours_is_refused() -> None:
    with pytest.raises(UsageError, match="--color sometimes"):
        wants_color("sometimes", {}, io.StringIO())


@pytest.mark.parametrize(
    ("line", "colored"),
    [
        ("  FAIL  listing: no", "FAIL"),
        ("  upload       4 B  data/notes/a.txt", "upload"),
        ("root_1_ab  Failed (1)  aml", "Failed"),
        ("not at the destination yet:", "not at the destination yet:"),
        ("uploaded 2 files", ""),
        ("data/FAIL", ""),
        ("", ""),
    ],
)
def test_a_colour_is_on_the_word_that_says_what_it_is_about_and_changes_no_text(line: str, colored: str) -> None:
    shown = painted(line)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == line
    assert "".join(re.findall(r"\x1b\[[1-9][0-9]*m(.*?)\x1b\[0m", shown)) == colored


_ROWS = [
    ("ID", "STATUS", "CLUSTER", "GPUS", "TIME", "COMMAND"),
    ("someone_1795330959_9055041b", "Completed", "cluster-eu", "16", "2 h 13 min", "python train.py --data voc20 " * 4),
    ("someone_1795330960_1234abcd", "Failed (1)", "aml", "0", "3s", "x"),
]


@pytest.mark.parametrize("columns", [40, 50, 60, 80, 120, 200])
def test_a_table_fits_the_terminal_and_keeps_what_a_job_is_known_by(columns: int) -> None:
    lines = list(table(_ROWS, columns))
    assert max(map(len, lines)) <= columns
    assert all(word in lines[1] for word in ("9055041b", "Completed", "pytho"))
    assert ("CLUSTER" in lines[0]) == (columns >= 60)


def test_a_table_for_a_file_is_as_it_was() -> None:
    lines = list(table(_ROWS, 0))
    assert "someone_1795330959_9055041b" in lines[1] and lines[1].endswith("...")


def test_the_time_of_a_command_is_that_of_its_phases() -> None:
    now = [10.0]
    timed = TimedListener(QuietListener(), 9.0, clock=lambda: now[0])
    for at, phase in ((10, "surveying"), (12, "moving"), (13, "moving"), (15, "verifying"), (16, "surveying")):
        now[0] = float(at)
        timed.phase(phase)
    now[0] = 16.5
    timed.answers()
    now[0] = 17.0
    spans = {"starting": 1.0, "looking": 2.5, "moving": 3.0, "verifying": 1.0, "answering": 0.5}
    assert dict(timed.spans()) == spans
    assert timed.sentence().startswith("8.00 s in all: starting 1.00 s, looking 2.50 s, ")


_MOVING = Progress("moving", 2.0, files=3, files_expected=9, under_way=4, current="data/voc20/a-long-name/x.jpg")


def test_the_bar_names_the_file_that_began_last_and_how_many_are_under_way_where_there_is_room() -> None:
    assert "4 at a time: data/voc20/a-long-name/x.jpg" in bar_text(_MOVING, 120)
    assert "4 at a time: ...-long-name/x.jpg" in bar_text(_MOVING, 75)
    assert "at a time" not in bar_text(_MOVING, 40)
    assert "\x1b" not in bar_text(replace(_MOVING, current="data/\x1b[2Jx"), 120)
    for columns in range(20, 140):
        assert len(bar_text(_MOVING, columns)) < columns
