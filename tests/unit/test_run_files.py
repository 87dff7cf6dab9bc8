from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from blobsync.backends.local.run_files import RunFiles, remove_dead_secrets
from blobsync.jobspec.spec import RunInfo, State


def make_run(jobs: Path, *, state: State | None = State.RUNNING, age: float = 0.0) -> RunFiles:
    """A run whose first files are so many seconds old."""
    files = RunFiles(jobs / "me_1_0badcafe")
    files.make({files.job: "{}", files.local: "{}", files.secrets: "{}"})
    if state:
        files.write_status(state)
    for path in (files.local, files.secrets, *([files.state] if state else [])):
        os.utime(path, (time.time() - age, time.time() - age))
    return files


def test_what_an_earlier_version_saved_of_a_run_is_read(tmp_path: Path) -> None:
    files = make_run(tmp_path, state=None)
    saved = {"state": "Failed", "exit_code": 3, "started": 1.5, "ended": 2.5, "gpus": ["0", "1"], "reason": "why"}
    files.state.write_text(json.dumps(saved))
    assert files.read_status() == RunInfo("me_1_0badcafe", State.FAILED, 3, started=1.5, ended=2.5, reason="why")
    for torn in ('["Failed"]', '{"state": "Fai', '{"state": "Done"}', ""):
        files.state.write_text(torn)
        assert files.read_status() == RunInfo("me_1_0badcafe", State.UNKNOWN), torn


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.FAILED, State.COMPLETED])
def test_secrets_go_when_their_supervisor_was_killed(tmp_path: Path, state: State) -> None:
    files = make_run(tmp_path, state=state)
    files.lock.touch()
    assert remove_dead_secrets(tmp_path) == (files.secrets,)
    assert not files.secrets.exists() and files.job.exists()
    assert remove_dead_secrets(tmp_path) == ()


def test_secrets_stay_while_a_supervisor_lives(tmp_path: Path) -> None:
    files = make_run(tmp_path, age=9000)
    with files.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_dead_secrets(tmp_path) == ()
    assert files.secrets.exists()


def test_whoever_looks_while_supervisors_start_finds_none_of_them_dead(tmp_path: Path) -> None:
    over, found = threading.Event(), []
    runs = [RunFiles(tmp_path / f"me_1_{number:08x}") for number in range(300)]
    for files in runs:
        files.make({files.local: "{}"})

    def look() -> None:
        for files in runs:
            while not over.is_set() and not files.lock.exists():
                continue
            found.append(files.supervisor_is_gone())

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    with ExitStack() as stack:
        try:
            for files in runs:
                stack.enter_context(files.supervised())
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert len(found) == 2 * len(runs) and not any(found)
    assert {path.name for files in runs for path in files.folder.iterdir() if path.is_file()} == {
        "local.json",
        "supervisor.lock",
    }


@pytest.mark.parametrize("state", [None, State.QUEUED])
def test_secrets_stay_while_a_run_is_being_started(tmp_path: Path, state: State | None) -> None:
    files = make_run(tmp_path, state=state, age=5)
    assert remove_dead_secrets(tmp_path) == ()
    assert files.secrets.exists()


@pytest.mark.parametrize("state", [None, State.QUEUED])
def test_secrets_of_a_submission_that_died_go_after_a_while(tmp_path: Path, state: State | None) -> None:
    files = make_run(tmp_path, state=state, age=120)
    assert remove_dead_secrets(tmp_path) == (files.secrets,)


def test_other_backends_keep_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "me_1_0badcafe"
    folder.mkdir()
    (folder / "job.sh").touch()
    (folder / "secrets.json").touch()
    os.utime(folder / "secrets.json", (0, 0))
    assert remove_dead_secrets(tmp_path) == ()
    assert remove_dead_secrets(tmp_path / "nothing here") == ()
