"""What ``history`` says, and what it reads for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from blobsync import Project
from blobsync.base.process_identity import ProcessMark
from blobsync.jobs.history import History
from blobsync.jobspec.spec import JobRef, RunInfo, State
from blobsync.local.running_records import RunningRecords
from blobsync.project.transfer_history import TransferEntry, TransferLog
from tests.fakes.jobs import make_spec

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_the_history_says_how_far_a_transfer_is_that_runs_elsewhere(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        state = project.state
        log = TransferLog(state.root / "jobs.sqlite")
    running = TransferEntry("upload", ("data/x",), command="blobsync u data/x", planned=4, id="0123abcd")
    log.write(running)
    log.write(TransferEntry("upload", ("data/y",), id="4567abcd").ended("done"))
    far = {"phase": "moving", "seconds": 9.0, "files": 1, "files_expected": 4, "bytes": 43, "bytes_expected": 100}
    far |= {"seconds_left": 120.0, "workers": [{"name": "process 17", "files": 1, "bytes": 43, "rate": 4.5}]}
    mark = ProcessMark.of(running.pid)
    record = {"id": running.id, "pid": mark.pid, "born": mark.born, "host": running.host, "stoppable": True}
    RunningRecords(state).write(running.id, {**record, "told": time.time(), "progress": far})
    shown = cli("history").out.splitlines()
    assert [line for line in shown if "data/x" in line and "running, 43 %, 2 min left" in line]
    assert "so far:        43 %, 2 min left" in cli("history", "0123abcd").out.splitlines()
    found = {each["id"]: each["progress"] for each in cli("history", "--json").document["data"]["transfers"]}
    assert found["4567abcd"] is None
    assert {name: found["0123abcd"][name] for name in far} == far


def test_a_list_of_jobs_says_how_many_older_ones_it_leaves_out(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        history = History(project.state.root / "jobs.sqlite")
    for number in range(23):
        spec = make_spec("true", run_id=f"me_{1_000_000_000 + number}_{number:08x}")
        record = history.add(spec, JobRef(spec.run_id, "n", ""), "local", submitted=1_000_000_000.0 + number)
        history.update(record, RunInfo(spec.run_id, State.FAILED if number % 2 else State.COMPLETED))
    for words, more, line in (
        (("q",), 3, "  ... and 3 more, --max 23 shows all"),
        (("q", "--max", "23"), 0, ""),
        (("qf",), 0, ""),
        (("qf", "--max", "10"), 1, "  ... and 1 more, --max 11 shows all"),
    ):
        found = cli(*words, "--json").document["data"]
        lines = cli(*words).out.splitlines()
        assert found["more"] == more and len(lines) == 1 + len(found["jobs"]) + bool(more), words
        assert lines[-1] == line or not more, words
    assert cli("q", "--watch").out.splitlines()[-1] == "  ... and 3 more, --max 23 shows all"
    assert cli("history", "--max", "22").out.splitlines()[-1] == "  ... and older ones, --max shows more"
    for limit, is_cut in (("22", True), ("23", False)):
        found = cli("history", "--max", limit, "--json").document["data"]
        assert (len(found["jobs"]), found["older"]) == (int(limit), is_cut)
    assert len(cli("history", "--jobs").out.splitlines()) == 24


def test_a_removal_says_what_it_deleted(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        log = TransferLog(project.state.root / "jobs.sqlite")
    log.write(TransferEntry("rm", ("data/x",), planned=3, deleted=2, bytes=4_000, id="0123abcd").ended("partial"))
    log.write(TransferEntry("undo", ("data/x",), deleted=7, id="4567cdef").ended("done"))
    table = [line.split("  ") for line in cli("history").out.splitlines()]
    assert [row[3].strip() for row in ([each for each in line if each] for line in table)] == ["FILES", "7", "2"]
    lines = cli("history", "0123abcd").out.splitlines()
    assert "deleted:       2 of 3 files, 4 KB" in lines and not [line for line in lines if line.startswith("moved")]


def test_status_names_what_runs_at_this_moment(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        state = project.state
    mark = ProcessMark.of(os.getpid())
    known = {"pid": mark.pid, "born": mark.born, "host": os.uname().nodename, "stoppable": True, "told": time.time()}
    moving = {"phase": "moving", "seconds": 9.0, "bytes": 43, "bytes_expected": 100, "files_expected": 4}
    assert "running" not in cli("status").out
    assert cli("status", "--json").document["data"]["running"] == []
    for id, more in (
        ("0123abcd", {"kind": "upload", "paths": ["data/x"], "progress": {**moving, "seconds_left": 120.0}}),
        ("4567abcd", {"kind": "copy", "planning": True, "progress": {"phase": "surveying", "seconds": 2.0}}),
    ):
        RunningRecords(state).write(id, {"id": id, **known, **more})
    (line,) = [line for line in cli("status").out.splitlines() if "running" in line]
    assert line.startswith("2 transfers running now: ")
    assert f"process {mark.pid} uploads data/x (43 %, 2 min left)" in line
    assert f"process {mark.pid} copies all folder entries (planning)" in line
    found = {each["id"]: each for each in cli("status", "--json").document["data"]["running"]}
    assert [found[id]["planning"] for id in ("0123abcd", "4567abcd")] == [False, True]
    assert found["0123abcd"]["progress"]["bytes"] == 43 and found["0123abcd"]["paths"] == ["data/x"]
    assert "running" not in cli("status", "-q").out


def test_a_transfer_of_the_same_files_is_named_before_another_one(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        records = RunningRecords(project.state)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = ProcessMark.of(other.pid)
    known = {"pid": mark.pid, "born": mark.born, "host": os.uname().nodename, "stoppable": True, "told": time.time()}
    moving = {"phase": "moving", "seconds": 9.0, "bytes": 43, "bytes_expected": 100, "files_expected": 4}
    records.write("0123abcd", {"id": "0123abcd", "kind": "upload", "paths": ["data/x"], "progress": moving, **known})
    (cli.root / "data/x").mkdir(parents=True)
    (cli.root / "data/y").mkdir()
    said = f"process {mark.pid} uploads data/x (43 %) at this moment"
    # Without a terminal it is said alone; no server answers here.
    for words, is_said in ((("u", "data/x"), True), (("d", "data"), True), (("u", "data/y"), False)):
        assert (said in cli(*words).err) is is_said, words
    other.kill()
    other.communicate()


# Counts what Python opens; SQLite opens its files by itself.
_COUNTING = """
import sys
opened = []
def hear(event, values):
    if event == "open" and isinstance(values[0], str) and values[0].startswith(sys.argv[1]):
        opened.append(values[0])
    elif event in ("sqlite3.connect", "os.listdir", "os.scandir") and str(values[0]).startswith(sys.argv[1]):
        opened.append(f"{event} {values[0]}")
from blobsync.cli.main import main
sys.addaudithook(hear)
code = main(["history", "--since", "1d", "--transfers"])
print(*opened, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def test_the_history_of_a_day_reads_no_more_files_for_200_transfers_than_for_one(cli: Cli) -> None:
    with Project.open(cli.root) as project:
        state = project.state
        log = TransferLog(state.root / "jobs.sqlite")

    def reads(count: int) -> list[str]:
        for number in range(count):
            name = f"r{number}.json"
            log.write(TransferEntry("upload", ("data",), id=f"{number:08x}", receipt=name).ended("done"))
            (state.folder("receipts") / name).write_text("{}")
        words = [sys.executable, "-c", _COUNTING, str(cli.root)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=cli.root, check=True)
        assert len(done.stdout.splitlines()) == 1 + count
        return done.stderr.splitlines()

    one = reads(1)
    assert any("jobs.sqlite" in each for each in one) and not [each for each in one if "receipts" in each]
    assert reads(200) == one
