"""Running transfers: their records, their validation, and stopping them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.base.events import (
    BytesMoved,
    Expected,
    FilesDone,
    Listener,
    Looked,
    Phase,
    SilentListener,
    UnderWay,
    WorkerMoved,
)
from blobsync.base.process_identity import ProcessMark
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.running_records import Reporter, RunningRecords
from blobsync.local.state_dir import StateDir
from blobsync.project.transfer_history import (
    RunningTransfer,
    RunningTransfers,
    TransferEntry,
    failure_text,
    failures_in,
    recorded_while_running,
)
from tests.fakes.tasks import RecordingListener

_ID = "0123abcd"


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def entry(pid: int | None = None, host: str | None = None) -> TransferEntry:
    here = {"pid": os.getpid() if pid is None else pid, "host": host or os.uname().nodename}
    return TransferEntry("upload", ("data/x",), id=_ID, **here)  # type: ignore[arg-type]


@contextmanager
def told(
    state: StateDir,
    entry: TransferEntry,
    *,
    behind: Listener | None = None,
    stoppable: bool = True,
    stop: StopRequest = NEVER,
) -> Iterator[Listener]:
    """A transfer that tells how far it is without waiting for its half second."""
    with recorded_while_running(
        state, entry, behind or SilentListener(), stoppable=stoppable, stop=stop, every=0.01
    ) as listener:
        listener.emit(Expected(4, 1000))
        listener.emit(Phase("moving"))
        yield listener


def seen(state: StateDir, enough: Callable[[RunningTransfer], object] = bool) -> RunningTransfer:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = RunningTransfers(state).all().get(_ID)
        if found is not None and found.progress.phase and enough(found):
            return found
        time.sleep(0.01)
    raise AssertionError("it was not told")


def test_a_transfer_tells_how_far_it_is_and_nothing_of_it_stays(state: StateDir) -> None:
    behind = RecordingListener()
    with told(state, entry(), behind=behind) as listener:
        listener.emit(BytesMoved(250))
        listener.emit(WorkerMoved("process 17", 0, 250))
        listener.emit(FilesDone(["data/x/a"]))
        listener.emit(WorkerMoved("process 17", 1, 0))
        found = seen(state, lambda each: each.progress.workers and each.progress.workers[0].files)
        assert (found.progress.phase, found.progress.files, found.progress.files_expected) == ("moving", 1, 4)
        assert (found.progress.bytes, found.progress.share) == (250, 0.25)
        assert [(each.name, each.files, each.bytes) for each in found.progress.workers] == [("process 17", 1, 250)]
        assert ProcessMark(found.pid, found.born) == ProcessMark.of(os.getpid())
        assert found.is_here and found.stoppable
        # The numbers stay while what arrived is looked at.
        listener.emit(Phase("verifying"))
        checked = seen(state, lambda each: each.progress.phase == "verifying").progress
        assert (checked.bytes, checked.seconds_left) == (250, None)
        assert state.unfinished_file.stat().st_mode & 0o077 == 0
    assert rows(state) == {}
    assert (behind.bytes, behind.workers) == (250, {"process 17": [1, 250]})


def test_what_is_planned_says_so_and_what_moves_has_a_curve_of_its_rate(state: StateDir) -> None:
    one = replace(entry(), command="blobsync u data/x", user="me")
    with recorded_while_running(state, one, SilentListener(), stoppable=True, planning=True, every=0.01) as listener:
        listener.emit(Phase("surveying"))
        listener.emit(Looked(7))
        planned = seen(state, lambda each: each.progress.looked)
        assert planned.planning and planned.points == ()
        told_of = (planned.kind, planned.paths, planned.command, planned.user, planned.began)
        assert told_of == ("upload", ("data/x",), "blobsync u data/x", "me", one.began)
    assert RunningTransfers(state).all() == {}
    with told(state, one) as listener:
        listener.emit(BytesMoved(250))
        moving = seen(state, lambda each: len(each.points) > 2 and each.points[-1][1])
        assert not moving.planning
        times = [at for at, _, _ in moving.points]
        assert times == sorted(times) and moving.points[-1][1] == 250


def test_a_short_transfer_writes_nothing_nor_one_without_a_lasting_folder(tmp_path: Path) -> None:
    with recorded_while_running(StateDir(tmp_path), entry(), SilentListener(), stoppable=True) as listener:
        listener.emit(Phase("moving"))
    silent = SilentListener()
    with recorded_while_running(
        StateDir(tmp_path, lasting=False), entry(), silent, stoppable=True, every=0.0
    ) as listener:
        assert listener is silent
    assert list(tmp_path.iterdir()) == []


def test_a_record_has_no_secret_of_a_name(state: StateDir) -> None:
    with told(state, entry()) as listener:
        listener.emit(UnderWay(1, "data/x/a?sv=1&sig=c2VudGluZWw%3D"))
        found = seen(state, lambda each: each.progress.under_way)
        assert "c2VudGluZWw" not in rows(state)[_ID][0]
        assert found.progress.current.startswith("data/x/a")


def test_what_a_killed_transfer_left_is_not_believed_and_goes(state: StateDir) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    _leave(state, pid=child.pid)
    # The number of this process, of which another had it before.
    _leave(state, "0000abcd", born="7")
    assert RunningTransfers(state).all() == {}
    assert rows(state) == {}


def test_of_another_machine_it_is_believed_until_it_was_not_renewed_for_a_week(state: StateDir) -> None:
    _leave(state, host="another", told=time.time() - 3600)
    assert RunningTransfers(state).all()[_ID].silent == pytest.approx(3600, abs=60)
    _leave(state, host="another", told=time.time() - 8 * 86400)
    assert RunningTransfers(state).all() == {}


def _leave(state: StateDir, of: str = _ID, *, raw: str | None = None, **changes: Any) -> None:
    mark = ProcessMark.of(os.getpid())
    values: dict[str, Any] = {
        "id": of,
        "pid": mark.pid,
        "born": mark.born,
        "host": os.uname().nodename,
        "stoppable": True,
        "told": time.time(),
        "progress": {"phase": "moving", "seconds": 1.0},
    }
    RunningRecords(state).write(of, {})
    with closing(sqlite3.connect(state.unfinished_file)) as db, db:
        text = json.dumps({**values, **changes}).replace('"1e999"', "1e999") if raw is None else raw
        db.execute("UPDATE running SET record = ? WHERE id = ?", (text, of))


def rows(state: StateDir) -> dict[str, tuple[str, bool]]:
    """What was said last, and whether it was asked to stop."""
    with closing(sqlite3.connect(state.unfinished_file)) as db:
        return {id: (record, bool(stop)) for id, record, stop in db.execute("SELECT id, record, stop FROM running")}


@pytest.mark.parametrize(
    "raw", ["", "[]", "{}", "nan", '{"id": "0123abcd", "pid": 7, "progress": []}', "[" * 100_000, "\0" * 300]
)
def test_what_is_no_record_is_no_transfer(state: StateDir, raw: str) -> None:
    _leave(state, raw=raw)
    assert RunningTransfers(state).all() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "ffffffff"},
        {"pid": "1"},
        {"pid": -1},
        {"pid": 2**40},
        {"told": "now"},
        {"told": "1e999"},
        {"progress": {"phase": "moving", "seconds": 1.0, "rate": "1e999"}},
        {"more": 1},
        {"progress": {"phase": 7, "seconds": 1.0}},
        {"progress": {"phase": "moving", "seconds": 1.0, "workers": [{"name": 3}]}},
        {"progress": {"phase": "moving", "seconds": 1.0, "workers": 7}},
        {"progress": {"phase": "moving"}},
        {"paths": ["data", 7]},
        {"paths": 7},
        {"points": [[1.0, 2]]},
        {"points": [[1.0, 2, "fast"]]},
        {"points": 7},
        {"planning": "yes"},
    ],
)
def test_a_record_with_values_that_cannot_be_is_no_transfer(state: StateDir, changes: dict[str, Any]) -> None:
    _leave(state, _ID, **changes)
    assert RunningTransfers(state).all() == {}


# -- stopping one -----------------------------------------------------------------------------------------


def test_a_request_from_elsewhere_reaches_the_transfer_and_does_not_stay(state: StateDir) -> None:
    stop, asked = StopRequest(), threading.Event()
    with stop.waking(asked.set), told(state, entry(), stop=stop):
        found = seen(state)
        assert found.stoppable and not stop.made
        RunningTransfers(state).stop(_ID)
        assert asked.wait(60)
        # Asking again is no error.
        RunningTransfers(state).stop(_ID)
    assert rows(state) == {}


def test_a_request_that_comes_last_is_seen_at_the_end(state: StateDir) -> None:
    stop, records = StopRequest(), RunningRecords(state)
    reporter = Reporter(records, _ID, lambda: {"told": 1.0}, stop, 3600.0)
    reporter.begin()
    reporter.tell()
    records.request_stop(_ID)
    reporter.end()
    assert stop.made and rows(state) == {}


def test_a_program_that_waits_for_its_transfer_is_not_stopped(state: StateDir) -> None:
    stop = StopRequest()
    with told(state, entry(), stoppable=False, stop=stop):
        first = seen(state)
        RunningRecords(state).request_stop(_ID)
        # Two more looks at least.
        seen(state, lambda each: each.told > first.told)
        second = seen(state, lambda each: each.told > first.told)
        seen(state, lambda each: each.told > second.told)
    assert not stop.made


def test_nothing_is_asked_of_what_would_not_see_it(state: StateDir) -> None:
    running = RunningTransfers(state)
    for changes, kind, said in (
        ({"born": "1"}, NothingMatchedError, "is not running any more"),
        ({"host": "another", "told": time.time() - 600}, UsageError, "runs on another"),
        ({"stoppable": False}, UsageError, "a program that uses blobsync"),
    ):
        _leave(state, **changes)
        with pytest.raises(kind, match=said):
            running.stop(_ID)
        assert not any(asked for _, asked in rows(state).values())
    with pytest.raises(NothingMatchedError):
        running.stop("../../x")


def test_a_transfer_of_another_machine_on_a_shared_disk_can_be_asked(state: StateDir) -> None:
    _leave(state, host="another")
    RunningTransfers(state).stop(_ID)
    assert rows(state)[_ID][1]


def test_a_request_that_a_killed_transfer_never_saw_goes_with_its_record(state: StateDir) -> None:
    _leave(state)
    RunningTransfers(state).stop(_ID)
    _leave(state, born="7")
    assert RunningTransfers(state).all() == {}
    assert rows(state) == {}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, "data/x (unreadable)"),
        ("", "data/x (unreadable)"),
        ("data/x: is locked", "data/x: is locked (unreadable)"),
        ("is locked", "data/x: is locked (unreadable)"),
    ],
)
def test_a_failure_is_told_with_what_its_receipt_has(message: str | None, text: str) -> None:
    (failure,) = failures_in({"failures": [{"path": "data/x", "code": "unreadable", "message": message}]})
    assert failure_text(failure) == text
