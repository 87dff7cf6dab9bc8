"""All listeners of a command get all of its events."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import get_args

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import (
    NO_CONNECTION,
    BytesMoved,
    BytesReused,
    Connected,
    Disconnected,
    Event,
    Expected,
    FilesCounted,
    FilesDone,
    Hashing,
    Listener,
    LoggingListener,
    Looked,
    Moving,
    Note,
    NoteListener,
    Phase,
    SilentListener,
    UnderWay,
    WorkerMoved,
    notes_to,
    together,
)
from blobsync.cli.output import Console, PhaseTimes, QuietListener
from blobsync.cli.progress import BarListener, LineListener
from blobsync.local.state_dir import StateDir
from blobsync.plan.progress import Progress, ProgressCounter
from blobsync.project.progress_listeners import CallbackListener
from blobsync.project.transfer_history import TransferEntry, recorded_while_running
from blobsync.spread.worker_process import Outgoing
from blobsync.transfer.carry_out import ByteTally
from tests.fakes.tasks import RecordingListener

ONE_OF_EACH: tuple[Event, ...] = (
    *(Phase("surveying"), Looked(7), Hashing(1, 5), Hashing(-1, -5)),
    *(Expected(2, 300), Moving("uploading", 10), Phase("moving"), UnderWay(1, "data/a")),
    *(BytesMoved(90), BytesReused(10), WorkerMoved("process 17", 1, 90)),
    *(FilesCounted(1), FilesCounted(-1), FilesDone(["data/a"])),
    FilesDone(["data/b"], FileFailure("data/b", FailureCode.STORAGE_ERROR, "broke")),
    *(Note("a note"), Disconnected("host", NO_CONNECTION, 9.0), Connected("host")),
)


def test_the_list_above_has_every_kind() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(get_args(Event))


def test_each_of_several_listeners_gets_each_event_once_and_in_order() -> None:
    first, second, third = RecordingListener(), RecordingListener(), RecordingListener()
    listener = together(together(first, second), SilentListener(), third)
    for event in ONE_OF_EACH:
        listener.emit(event)
    assert first.events == second.events == third.events == list(ONE_OF_EACH)


def test_a_text_becomes_a_note() -> None:
    heard = RecordingListener()
    notes_to(heard)("a note")
    assert heard.events == [Note("a note")]


def test_every_number_of_the_events_is_in_the_progress() -> None:
    counter = ProgressCounter()
    for event in ONE_OF_EACH:
        counter.emit(event)
    now = counter.progress(counter.clock())
    assert (now.phase, now.doing, now.under_way, now.current) == ("moving", "uploading", 1, "data/a")
    assert (now.files, now.files_expected, now.bytes, now.bytes_expected) == (2, 2, 100, 300)
    assert (now.reused, now.failures, now.waiting) == (10, 1, "")
    assert [(each.name, each.files, each.bytes) for each in now.workers] == [("process 17", 1, 90)]


def test_while_a_host_is_lost_the_progress_says_so() -> None:
    counter = ProgressCounter()
    for event in ONE_OF_EACH[:-1]:
        counter.emit(event)
    now = counter.progress(counter.clock())
    assert (now.waiting, now.retrying) == (NO_CONNECTION, True)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_listener_takes_every_event(event: Event, tmp_path: Path) -> None:
    console = Console()
    console.quiet = True
    bar, lines = BarListener(console), LineListener(console)
    told = list[Progress]()
    listeners: list[Listener] = [
        *(SilentListener(), QuietListener(console), bar, lines, PhaseTimes(0.0), LoggingListener()),
        *(
            CallbackListener(told.append),
            ByteTally(),
            NoteListener(lambda text: None),
            Outgoing(lambda data: None),
        ),
    ]
    try:
        for listener in listeners:
            listener.emit(event)
    finally:
        bar.close()
        lines.close()


def test_notes_reach_the_terminal_with_and_without_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar, lines = BarListener(Console(), after=1000.0), LineListener(Console())
    for listener in (bar, lines, QuietListener(Console())):
        for event in ONE_OF_EACH:
            listener.emit(event)
        listener.close()
    assert capsys.readouterr().err.count("a note") == 3


def test_notes_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    listener = LoggingListener()
    with caplog.at_level(logging.INFO, "blobsync"):
        for event in ONE_OF_EACH:
            listener.emit(event)
    assert caplog.messages == ["a note"]


def test_notes_alone_are_handed_on() -> None:
    texts: list[str] = []
    listener = NoteListener(texts.append)
    for event in ONE_OF_EACH:
        listener.emit(event)
    assert texts == ["a note"]


def test_the_record_of_what_runs_passes_every_event_on(tmp_path: Path) -> None:
    entry = TransferEntry("upload", ("data",), id="1", pid=os.getpid(), host=os.uname().nodename)
    heard = RecordingListener()
    with recorded_while_running(StateDir(tmp_path), entry, heard, stoppable=True) as listener:
        for event in ONE_OF_EACH:
            listener.emit(event)
    assert heard.events == list(ONE_OF_EACH)
