"""What output looks like: colours, tables on narrow terminals, where the time went, the log file."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import signal
import struct
import termios
from collections.abc import Mapping

import pytest

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, UsageError
from blobsync.base.events import Expected, FilesDone, Phase
from blobsync.base.stopping import stop_on_other_signals
from blobsync.cli.output import (
    CommandInterruptedError,
    Console,
    PhaseTimes,
    Result,
    cells,
    painted,
    wants_color,
    wrapped,
)
from blobsync.cli.progress import LineListener, bar_text
from blobsync.cli.tables import table
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
        ("75ebe10d  Failed (1)  11s", "Failed"),
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


def test_a_table_of_what_was_done_fits_the_narrowest_terminal() -> None:
    rows = [("ID", "WHAT", "RESULT", "PATHS, OR COMMAND"), ("8e083925", "download", "Completed", "data/voc20/a/b")]
    assert list(table(rows, 40)) == [
        "ID        WHAT      RESULT     PATHS,...",
        "8e083925  download  Completed  data/v...",
    ]


def test_the_state_of_a_job_is_cut_after_its_name() -> None:
    rows = [("ID", "STATUS", "NAME", "COMMAND"), ("75ebe10d", "Failed (1)", "a long name of a job", "python3 train.py")]
    assert list(table(rows, 40)) == [
        "ID        STATUS      NAME      COMMAND",
        "75ebe10d  Failed (1)  a lon...  pytho...",
    ]


def test_what_is_done_is_a_whole_word_on_a_narrow_terminal() -> None:
    rows = [
        ("ID", "WHAT", "RESULT", "PATHS, OR COMMAND"),
        ("0c1d951e", "upload --mirror", "running, 1 %, 2 min left", "data/a/long/folder/name"),
        ("7ad85832", "job", "Queued as of 14m ago, not confirmed", "sleep 600"),
    ]
    assert list(table(rows, 40)) == [
        "ID        WHAT    RESULT        PATHS...",
        "0c1d951e  upload  running, 1 %  data/...",
        "7ad85832  job     Queued as...  sleep...",
    ]


_RUNNING = [
    ("TIME", "ID", "WHAT", "FILES", "SIZE", "TOOK", "RESULT", "PATHS, OR COMMAND"),
    ("2026-11-23 12:00", "0123abcd", "upload --mirror", "1,234", "12.3 GB", "",
     "running, 43 %, 2 min left, nothing heard for 3 min", "data/voc20/データ/a/b"),
    ("2026-11-23 12:00", "someone_1795330959_9055041b", "job", "", "", "2 h 13 min",
     "Running as of 2h ago, not confirmed", "python train.py --lr 3"),
    ("2026-11-23 12:00", "someone_1795330959_9055041c", "job", "", "", "3s", "Running", "python train.py"),
]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_a_table_of_what_runs_fits_and_says_that_it_runs(columns: int) -> None:
    lines = list(table(_RUNNING, columns))
    assert max(map(cells, lines)) <= columns
    for line, row in zip(lines, _RUNNING, strict=True):
        assert row[1].rpartition("_")[2] in line
    if columns >= 40:
        assert [line.lower().count("runn") for line in lines] == [0, 1, 1, 1]
    if columns >= 80:
        assert "running, 43 %" in lines[1] and "Running as of" in lines[2] and "2026-11-23 12:00" in lines[1]
    if columns == 200:
        assert lines[1].endswith("nothing heard for 3 min  data/voc20/データ/a/b") and "not confirmed" in lines[2]


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("row", _RUNNING[1:], ids=["transfer", "unconfirmed", "job"])
def test_a_table_of_one_that_runs_fits(columns: int, row: tuple[str, ...]) -> None:
    lines = list(table([_RUNNING[0], row], columns))
    assert max(map(cells, lines)) <= columns and "runn" in lines[1].lower()


def test_a_table_for_a_file_is_as_it_was() -> None:
    lines = list(table(_ROWS, 0))
    assert "someone_1795330959_9055041b" in lines[1] and lines[1].endswith("...")


def test_the_time_of_a_command_is_that_of_its_phases() -> None:
    now = [10.0]
    timed = PhaseTimes(9.0, clock=lambda: now[0])
    for at, phase in ((10, "surveying"), (12, "moving"), (13, "moving"), (15, "verifying"), (16, "surveying")):
        now[0] = float(at)
        timed.emit(Phase(phase))
    now[0] = 16.5
    timed.begin("answering")
    now[0] = 17.0
    spans = {"starting": 1.0, "listing": 2.5, "moving": 3.0, "verifying": 1.0, "answering": 0.5}
    assert dict(timed.spans()) == spans
    assert timed.sentence().startswith("8.00 s in all: starting 1.00 s, listing 2.50 s, ")


_MOVING = Progress("moving", 2.0, files=3, files_expected=9, under_way=4, current="data/voc20/a-long-name/x.jpg")


def test_the_bar_names_the_file_that_began_last_and_how_many_are_under_way_where_there_is_room() -> None:
    assert "4 at a time: data/voc20/a-long-name/x.jpg" in bar_text(_MOVING, 120)
    assert "at a time" not in bar_text(_MOVING, 40)
    assert "\x1b" not in bar_text(_MOVING._replace(current="data/\x1b[2Jx"), 120)
    for columns in range(20, 140):
        assert len(bar_text(_MOVING, columns)) < columns


_BUSY = Progress(
    "moving",
    6.0,
    files=32,
    files_expected=60,
    bytes=6_600_000,
    bytes_expected=12_000_000,
    rate=1.1e6,
    seconds_left=5.0,
    under_way=44,
    current="data/voc20/a-file-with-a-rather-long-name-49.bin",
)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (40, "moving  55%   1.1 MB/s, 5 s left"),
        (50, "moving  55%  32/60 files,  1.1 MB/s, 5 s left"),
        (60, "moving  55%  32/60 files,  1.1 MB/s, 5 s left"),
        (80, "moving  55%  32/60 files,  6.6 of 12.0 MB,  1.1 MB/s, 5 s left     dat...49.bin"),
        (
            100,
            "moving  55%  32/60 files,  6.6 of 12.0 MB,  1.1 MB/s, 5 s left     data/voc2...her-long-name-49.bin",
        ),
    ],
)
def test_the_name_of_the_current_file_has_its_own_share_of_the_bar(columns: int, shown: str) -> None:
    assert bar_text(_BUSY, columns, plain=True) == shown


def test_no_line_of_the_bar_is_wider_than_the_terminal_in_columns_rather_than_characters() -> None:
    chinese = _BUSY._replace(current="data/\u6570\u636e\u96c6" + "/\u56fe\u50cf" * 20 + ".jpg", failures=3)
    for columns in range(20, 140):
        assert cells(bar_text(chinese, columns)) < columns
    assert "\u50cf.jpg" in bar_text(chinese, 100)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (0, None),
        (63, None),
        # A number stays with what it counts.
        (62, "uploaded 1 file, 24 KB in 12 s; 1,234 unchanged;\n    1,235 verified"),
        (50, "uploaded 1 file, 24 KB in 12 s; 1,234 unchanged;\n    1,235 verified"),
        (20, "uploaded 1 file,\n    24 KB in 12 s;\n    1,234 unchanged;\n    1,235 verified"),
    ],
)
def test_a_sentence_breaks_at_blanks_where_the_terminal_is_narrow(columns: int, shown: str | None) -> None:
    line = "uploaded 1 file, 24 KB in 12 s; 1,234 unchanged; 1,235 verified"
    assert wrapped(line, columns) == (line if shown is None else shown)


def test_a_path_that_fits_no_line_is_left_for_the_terminal_to_break() -> None:
    row = "  upload    200 KB  data/voc20/a-file-with-a-rather-long-name-49.bin"
    assert wrapped(row, 40) == row
    assert wrapped(row, 60) == "  upload    200 KB\n      data/voc20/a-file-with-a-rather-long-name-49.bin"
    for columns in range(20, 100):
        assert "".join(wrapped(row, columns).split()) == "".join(row.split())


def test_a_file_that_is_tried_a_second_time_counts_once() -> None:
    counter = LineListener(Console(quiet=True))
    counter.emit(Phase("moving"))
    counter.emit(Expected(3, 0))
    failure = FileFailure("data/a", FailureCode.ACCESS_DENIED, "no")
    for path, failed in (
        ("data/a", failure),
        ("data/b", failure),
        ("data/a", None),
        ("data/b", failure),
        ("data/c", None),
    ):
        counter.emit(FilesDone([path], failed))
    shown = counter.progress(counter.began)
    assert (shown.files, shown.failures) == (3, 1)


_MARK = "<the end>"


def _written(columns: int, result: Result) -> str:
    """What a console writes to a terminal that is so wide, to both streams."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(slave, "w", encoding="utf-8") as terminal:
        console = Console(out=terminal, err=terminal)
        console.show(result)
        console.say("a sentence of our own that has a hint", "one that is long, too, for so narrow a terminal")
        # What comes before the mark may come in several pieces.
        terminal.write(_MARK)
        terminal.flush()
        shown = ""
        while not shown.endswith(_MARK):
            shown += os.read(master, 1 << 16).decode()
    os.close(master)
    return shown.removesuffix(_MARK).replace("\r\n", "\n")


def test_answers_errors_and_hints_break_at_blanks_on_a_terminal_and_nowhere_else() -> None:
    line = "uploaded 120 files, 240 KB in 12 s; 120 verified"
    broken = "uploaded 120 files, 240 KB in 12 s;\n    120 verified\n"
    said = (
        "blobsync: a sentence of our own that has\n    a hint\n"
        "  hint: one that is long, too, for so\n      narrow a terminal\n"
    )
    assert _written(40, Result({}, [line], wraps=True)) == broken + said
    # What is to be copied from the terminal, or is as it is.
    assert _written(40, Result({}, [line])) == f"{line}\n{said}"
    pipe = io.StringIO()
    Console(out=pipe, err=pipe).show(Result({}, [line], wraps=True))
    assert pipe.getvalue() == f"{line}\n"


def test_a_hint_that_several_failures_in_a_row_have_is_reported_once_and_a_sentence_is_not_repeated() -> None:
    err = io.StringIO()
    code = FailureCode.ACCESS_DENIED
    failures = [
        FileFailure("data/a", code, "data/a: no space", "free some space"),
        FileFailure("data/b", code, "data/b: no space", "free some space"),
        FileFailure("data/c", code, "data/c: changed", "run it again"),
        FileFailure("", code, "the host does not answer"),
        FileFailure("", code, "the host does not answer"),
    ]
    Console(out=io.StringIO(), err=err).show(Result({}, failures=failures))
    assert err.getvalue().splitlines() == [
        "blobsync: 2 files: no space",
        "  data/a",
        "  data/b",
        "  hint: free some space",
        "blobsync: data/c: changed",
        "  hint: run it again",
        "blobsync: the host does not answer",
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_after_the_answer_changes_nothing_of_it(as_json: bool) -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(["verify"], as_json=as_json, out=out, err=err)
    assert console.show(Result({"files": 3}, ["3 files"], exit_code=3)) == 3
    told = out.getvalue()
    assert console.fail(CommandInterruptedError("interrupted")) == 3
    assert (out.getvalue(), err.getvalue()) == (told, "")
    # Anything else is said, but not in a second document.
    assert console.fail(BlobsyncError("the disk is gone")) == 1
    assert (out.getvalue(), err.getvalue()) == (told, "blobsync: the disk is gone\n")


class _Signalling(io.StringIO):
    """Someone stops the command as soon as it writes."""

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


def test_a_document_that_was_begun_is_completed_when_a_signal_comes() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    stop_on_other_signals()
    try:
        out = _Signalling()
        assert Console(["ls"], as_json=True, out=out).show(Result({"count": 3})) == 0
        assert json.loads(out.getvalue())["data"] == {"count": 3}
        with pytest.raises(KeyboardInterrupt):
            Console(["ls"], out=out).show(Result({}, ["a"]))
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
