"""Sizes, durations, control characters, and the progress lines."""

from __future__ import annotations

import io
import time

import pytest

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import (
    BytesMoved,
    Connected,
    Disconnected,
    Expected,
    FilesDone,
    Looked,
    Moving,
    Note,
    Phase,
    WorkerMoved,
)
from blobsync.base.formatting import count_text, duration_text, size_text
from blobsync.cli.output import Console, QuietListener, Result
from blobsync.cli.progress import BarListener, LineListener, choose_listener
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1536, "1.54 KB"),
        (999_600, "1 MB"),
        (90_000_000, "90 MB"),
        (2 * 10**15, "2e+03 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_and_durations() -> None:
    assert (count_text(1, "file"), count_text(1234, "file")) == ("1 file", "1,234 files")
    assert [duration_text(seconds) for seconds in (3.2, 89, 200, 8000)] == ["3 s", "89 s", "3 min", "2 h 13 min"]


def test_a_hostile_name_cannot_drive_the_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out=out, err=err)
    failure = FileFailure("data/\x1b[2J\n", FailureCode.STORAGE_ERROR, "cannot be read")
    console.show(Result(lines=["data/\x1b]0;title\x07", "data/é", "data/\udce9"], failures=[failure]))
    assert out.getvalue() == "data/\\x1b]0;title\\x07\ndata/é\ndata/\\udce9\n"
    assert err.getvalue() == "blobsync: data/\\x1b[2J\\n: cannot be read\n"


def test_many_failures_are_reported_as_a_number() -> None:
    err = io.StringIO()
    failures = [FileFailure(f"f{number}", FailureCode.STORAGE_ERROR, "broke") for number in range(25)]
    Console(out=io.StringIO(), err=err).show(Result(failures=failures, exit_code=3))
    lines = err.getvalue().splitlines()
    assert lines == [
        "blobsync: 25 files: broke",
        "  f0",
        "  f1",
        "  f2",
        "  and 22 more; --json lists them all",
    ]


def test_many_kinds_of_failures_are_reported_up_to_a_number() -> None:
    err = io.StringIO()
    failures = [FileFailure(f"f{number}", FailureCode.STORAGE_ERROR, f"broke at {number}") for number in range(2025)]
    Console(out=io.StringIO(), err=err).show(Result(failures=failures, exit_code=3))
    lines = err.getvalue().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (
        21,
        "blobsync: f0: broke at 0",
        "blobsync: and 2,005 more; --json lists them all",
    )


def test_a_tab_in_a_name_is_shown_and_one_in_a_log_stays() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out=out, err=err)
    failures = [FileFailure(f"data/\t{name}\x1b", FailureCode.STORAGE_ERROR, "broke") for name in "ab"]
    console.show(Result(lines=["data/\tx"], failures=failures))
    console.show(Result(lines=["epoch\tloss"], texts=True))
    assert out.getvalue() == "data/\\tx\nepoch\tloss\n"
    assert err.getvalue() == "blobsync: 2 files: broke\n  data/\\ta\\x1b\n  data/\\tb\\x1b\n"


def test_errors_carry_their_hint() -> None:
    err = io.StringIO()
    code = Console(out=io.StringIO(), err=err).fail(BlobsyncError("it broke", hint="mend it"))
    assert (code, err.getvalue()) == (1, "blobsync: it broke\n  hint: mend it\n")


def test_lines_now_and_then() -> None:
    err = io.StringIO()
    listener = LineListener(Console(out=io.StringIO(), err=err), every=0.0)
    now = [0.0]
    listener.clock = lambda: now[0]
    listener.emit(Phase("surveying"))
    listener.emit(Looked(5))
    listener.emit(Expected(2, 2_000_000))
    listener.emit(Moving("uploading"))
    listener.emit(Phase("moving"))
    now[0] = 2.0
    listener.emit(BytesMoved(1_000_000))
    listener.emit(FilesDone(["a"]))
    listener.emit(FilesDone(["b"], FileFailure("b", FailureCode.STORAGE_ERROR, "broke")))
    lines = err.getvalue().splitlines()
    assert lines[1] == "blobsync: listing: 5 names"
    assert lines[-1] == ("blobsync: uploading 2 of 2 files, 1 MB of 2 MB, 1 failed so far, 500 KB/s, about 2 s left")


def test_a_log_says_that_there_is_no_connection_although_nothing_else_happens() -> None:
    err = io.StringIO()
    listener = LineListener(Console(out=io.StringIO(), err=err), every=0.0)
    now = [0.0]
    listener.clock = lambda: now[0]
    listener.emit(Expected(2, 2_000_000))
    listener.emit(Moving("uploading"))
    listener.emit(Phase("moving"))
    listener.emit(Disconnected("acct.example", "no connection", 5.0))
    now[0] = 1.0
    said = "blobsync: uploading 0 of 2 files, 0 B of 2 MB, no connection for 6 s, trying again\n"
    assert wait_until(lambda: said in err.getvalue(), seconds=60), err.getvalue()
    listener.emit(Connected("acct.example"))
    listener.close()


def test_lines_say_on_demand_what_each_node_moves_and_in_the_end_what_it_has_moved() -> None:
    shown = []
    seconds = [0.0]
    for each_worker in (True, False):
        err = io.StringIO()
        listener = LineListener(Console(out=io.StringIO(), err=err), every=0.0, each_worker=each_worker)
        seconds[0] = 0.0
        listener.clock = lambda: seconds[0]
        listener.emit(Phase("moving"))
        for worker, files, size in (("node10.0", 0, 1), ("node0.1", 1, 3), ("node2.0", 0, 2), ("node0.0", 2, 5)):
            listener.emit(WorkerMoved(worker, files, size * 1_000_000))
        seconds[0] = 2.0
        listener.emit(BytesMoved(11_000_000))
        listener.emit(Phase("verifying"))
        listener.close()
        listener.close()
        shown.append([line for line in err.getvalue().splitlines() if "node" in line])
    told, silent = shown
    assert not silent
    assert told == [
        "blobsync: node0: 4 MB/s; node2: 1 MB/s; node10: 500 KB/s",
        "blobsync: node0: 3 files and 8 MB; node2: 0 files and 2 MB; node10: 0 files and 1 MB",
    ]


def test_few_lines_by_default() -> None:
    err = io.StringIO()
    listener = LineListener(Console(out=io.StringIO(), err=err))
    for _ in range(1000):
        listener.emit(BytesMoved(1))
    assert err.getvalue() == ""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal, 80 columns wide."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_bar_shows_bytes_files_and_failures() -> None:
    terminal = Terminal()
    listener = BarListener(Console(err=terminal), after=0.0, terminal=terminal)
    listener.emit(Expected(2, 2_000_000))
    listener.emit(Phase("moving"))
    listener.emit(BytesMoved(1_000_000))
    listener.emit(FilesDone(["a"], FileFailure("a", FailureCode.STORAGE_ERROR, "broke")))
    listener.show(force=True)
    listener.emit(Note("a note"))
    listener.close()
    shown = terminal.getvalue()
    assert "\rmoving  50%" in shown
    assert "1/2 files, 1.00 of 2.00 MB" in shown
    assert "1 failed" in shown
    assert "\r\x1b[Kblobsync: a note\n" in shown


@pytest.mark.parametrize("phase", ["surveying", "verifying", "packing"])
def test_a_bar_whose_end_is_not_known_can_be_written_over_and_closed(phase: str) -> None:
    terminal = Terminal()
    listener = BarListener(Console(err=terminal), after=0.0, terminal=terminal)
    listener.emit(Phase(phase))
    listener.emit(Looked(8000))
    listener.show(force=True)
    listener.emit(Note("a note"))
    listener.show(force=True)
    listener.close()
    listener.close()
    listener.emit(Looked(1))
    shown = terminal.getvalue()
    assert "8,000 names" in shown
    assert shown.endswith("\r\x1b[K")


def test_nothing_is_drawn_while_a_question_has_the_terminal() -> None:
    terminal = Terminal()
    listener = BarListener(Console(err=terminal), after=0.0, terminal=terminal)
    listener.emit(Phase("surveying"))
    listener.show(force=True)
    with listener.paused():
        terminal.write("delete 5 files? [y/N] ")
        time.sleep(0.7)
        assert terminal.getvalue().endswith("\r\x1b[Kdelete 5 files? [y/N] ")
    listener.emit(Phase("moving"))
    listener.show(force=True)
    listener.close()
    assert "moving" in terminal.getvalue()


def test_deleting_after_moving_does_not_count_what_moved() -> None:
    terminal = Terminal()
    listener = BarListener(Console(err=terminal), after=0.0, terminal=terminal)
    # However long drawing takes.
    listener.clock = lambda: 0.0
    listener.emit(Expected(1, 10))
    listener.emit(Phase("moving"))
    listener.emit(BytesMoved(10))
    listener.emit(FilesDone(["a"]))
    listener.emit(Phase("deleting"))
    listener.show(force=True)
    listener.close()
    assert terminal.getvalue().rpartition("\rdeleting")[2].startswith("  0 s")


def test_a_quick_command_draws_no_bar() -> None:
    terminal = Terminal()
    listener = BarListener(Console(err=terminal), after=60.0, terminal=terminal)
    listener.emit(Expected(1, 10))
    listener.emit(Phase("moving"))
    listener.emit(BytesMoved(10))
    listener.close()
    assert terminal.getvalue() == ""


def _listener(terminal: Terminal, **options: bool) -> object:
    environ = {"TERM": "dumb"} if options.pop("dumb", False) else {"TERM": "xterm"}
    console = Console(err=terminal)
    console.quiet, console.as_json = options.get("quiet", False), options.get("json", False)
    verbose = int(options.get("verbose", False))
    return choose_listener(console, verbose=verbose, environ=environ, terminal=terminal)


def test_a_bar_only_where_a_person_watches_it() -> None:
    assert isinstance(_listener(Terminal()), BarListener)
    assert isinstance(_listener(Terminal(), dumb=True), LineListener)
    assert isinstance(_listener(Terminal(), verbose=True), LineListener)
    for hushed in ("quiet", "json"):
        assert isinstance(_listener(Terminal(), **{hushed: True}), QuietListener)
