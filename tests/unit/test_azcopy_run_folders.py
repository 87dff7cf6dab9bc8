"""azcopy's private folders: removed after success, a log kept after failure, and cleaned up after dead processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from blobsync.azcopy.run_folders import KEPT_LOGS, abandoned_staging, prune_workspaces, workspace
from blobsync.base.errors import LocalFileError


def runs(state: Path) -> list[Path]:
    return sorted((state / "azcopy").glob("run-*"))


def test_everything_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with workspace(tmp_path) as space:
        for place in (space.root, space.home, space.logs, space.plans, space.links):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
        staging = space.make_staging(tmp_path)
        assert stat.S_IMODE(staging.stat().st_mode) == 0o700
        (space.logs / "job.log").write_text("fine")
    assert not runs(tmp_path)
    assert not staging.exists()
    assert not (tmp_path / "azcopy" / "logs").exists()


def test_the_log_of_a_failure_is_kept_without_signatures(tmp_path: Path) -> None:
    def interrupted() -> None:
        with workspace(tmp_path) as space:
            (space.logs / "job.log").write_text("PUT http://h/c?sig=SENTINEL&se=1\nnext\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (log,) = (tmp_path / "azcopy" / "logs").rglob("*.log")
    assert log.read_text() == "PUT http://h/c?sig=***&se=1\nnext\n"
    assert not runs(tmp_path)


def test_only_the_last_logs_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT_LOGS + 2):
        with workspace(tmp_path) as space:
            (space.logs / "job.log").write_text(str(number))
            space.failed = True
    logs = list((tmp_path / "azcopy" / "logs").rglob("*.log"))
    assert len(logs) == KEPT_LOGS
    assert str(KEPT_LOGS + 1) in {log.read_text() for log in logs}


def test_a_live_transfer_is_left_alone(tmp_path: Path) -> None:
    with workspace(tmp_path) as space:
        assert prune_workspaces(tmp_path) == 0
        assert space.root.exists()


def _hang(state: Path, beside: Path, ready: Path) -> None:
    with workspace(state) as space:
        staging = space.make_staging(beside)
        (staging / "half").write_text("half")
        ready.touch()
        time.sleep(60)


def test_what_a_killed_transfer_left_is_removed(tmp_path: Path) -> None:
    data, ready = tmp_path / "data", tmp_path / "ready"
    data.mkdir()
    (data / "mine.txt").write_text("mine")
    process = multiprocessing.get_context("spawn").Process(target=_hang, args=(tmp_path, data, ready))
    process.start()
    while not ready.exists():
        time.sleep(0.01)
    assert prune_workspaces(tmp_path) == 0
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert prune_workspaces(tmp_path) == 1
    assert not runs(tmp_path)
    assert [path.name for path in data.iterdir()] == ["mine.txt"]


def test_a_staging_folder_that_could_not_be_removed_is_removed_by_a_later_run(tmp_path: Path) -> None:
    state, data, away = tmp_path / "state", tmp_path / "data", tmp_path / "away"
    data.mkdir()
    with workspace(state) as space:
        (space.make_staging(data) / "half").write_text("half")
        # As long as a network mount answers with errors: its path leads nowhere.
        data.rename(away)
        data.symlink_to(data)
    assert prune_workspaces(state) == 0
    data.unlink()
    away.rename(data)
    assert abandoned_staging(state) == list(data.iterdir()) != []
    assert prune_workspaces(state) == 1
    assert not list(data.iterdir()) and not runs(state)
    assert prune_workspaces(state) == 0


def dead_run(state: Path, **owner: object) -> Path:
    root = state / "azcopy" / "run-1-00000000"
    root.mkdir(parents=True)
    (root / "lock").touch()
    (root / "owner.json").write_text(json.dumps(owner))
    return root


def test_what_killed_transfers_left_is_known_before_it_goes(tmp_path: Path) -> None:
    staging = tmp_path / ".blobsync-00000000.part"
    dead_run(tmp_path, staging=str(staging))
    with workspace(tmp_path) as space:
        space.make_staging(tmp_path)
        assert abandoned_staging(tmp_path) == [staging]


@pytest.mark.parametrize("name", ["data", ".blobsync", "important.part"])
def test_no_other_folder_is_ever_taken_for_a_staging_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    dead_run(tmp_path, staging=str(folder))
    assert prune_workspaces(tmp_path) == 1
    assert folder.exists()


def test_a_link_in_place_of_a_staging_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    link = tmp_path / ".blobsync-00000000.part"
    link.symlink_to(folder)
    dead_run(tmp_path, staging=str(link))
    assert prune_workspaces(tmp_path) == 1
    assert folder.exists()


def test_a_process_that_got_the_number_of_a_dead_azcopy_lives_on(tmp_path: Path) -> None:
    dead_run(tmp_path, azcopy=os.getpid(), staging=None)
    assert prune_workspaces(tmp_path) == 1


def test_an_owner_file_that_cannot_be_read(tmp_path: Path) -> None:
    root = dead_run(tmp_path)
    (root / "owner.json").write_text("{")
    assert prune_workspaces(tmp_path) == 1
    assert not root.exists()


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "azcopy").write_text("a file")
    with pytest.raises(LocalFileError), workspace(tmp_path):
        pass


def test_a_full_disk_is_named_with_the_file_that_did_not_fit(tmp_path: Path) -> None:
    with workspace(tmp_path / "state") as space:
        for name, write in (
            ("owner.json.new", lambda: space.note_process(1)),
            ("files.txt", lambda: space.write("files.txt", "a\n")),
        ):
            full = space.root / name
            full.symlink_to("/dev/full")
            with pytest.raises(LocalFileError, match=re.escape(f"{full}: No space left on device")) as caught:
                write()
            assert "free some space" in (caught.value.hint or "")
