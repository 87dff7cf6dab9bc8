"""Keeping folders of a project: what a round asks the container, its results, locks and records. With a store in
memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from blobsync.base.errors import (
    FailureCode,
    LoginRequiredError,
    NothingMatchedError,
    StorageUnreachableError,
    TransferCancelledError,
    UsageError,
)
from blobsync.base.process_identity import ProcessMark
from blobsync.base.stopping import StopRequest
from blobsync.local.running_records import RunningRecords
from blobsync.local.state_dir import StateDir
from blobsync.project.keep import KeepResult, KeptRound
from blobsync.project.keeper_records import Keepers, KeeperState, keeper_state, new_log
from tests.fakes.opened_project import Opened
from tests.fakes.store import Request

_PATIENCE = 60.0
_SETTLE = 0.2


class Running:
    """A keeper in a thread of its own; ``rounds`` are those so far."""

    def __init__(self, opened: Opened, *paths: str) -> None:
        self.rounds: list[KeptRound] = []
        self.ended: list[BaseException | KeepResult] = []
        self._project = opened.open()
        self._thread = threading.Thread(target=self._run, args=(paths or ("data",),), daemon=True)
        self._thread.start()

    def _run(self, paths: tuple[str, ...]) -> None:
        try:
            self.ended.append(self._project.keep(list(paths), settle=_SETTLE, on_round=self.rounds.append))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.ended.append(error)

    def until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + _PATIENCE
        while not true() and time.monotonic() < end and not self.ended:
            time.sleep(0.02)
        assert true(), (self.rounds[-3:], self.ended)

    @property
    def uploaded(self) -> int:
        """Files of the rounds that have ended."""
        return sum(each.uploaded for each in self.rounds)

    def stop(self, opened: Opened) -> BaseException | KeepResult:
        if not self.ended:
            opened.project.stop_keeper("data")
        return self.end()

    def end(self) -> BaseException | KeepResult:
        """What it ends with once it was asked to stop."""
        self._thread.join(_PATIENCE)
        self._project.close()
        return self.ended[0]


def test_until_idle_returns_what_was_done(opened: Opened) -> None:
    opened.write("data/a", b"one")
    opened.write("data/sub/b", b"two")
    done = opened.project.keep("data", settle=_SETTLE, until_idle=True)
    assert (done.uploaded, done.bytes, done.waiting, done.idle, done.ok, done.exit_code) == (2, 6, 0, True, True, 0)
    assert opened.blobs() == {"data/a": b"one", "data/sub/b": b"two"}
    assert opened.project.verify("data").ok
    (entry,) = opened.project.history()
    assert entry.kind == "upload" and opened.project.receipt(entry)


def test_after_the_first_round_a_changed_file_is_one_request(opened: Opened) -> None:
    for number in range(80):
        opened.write(f"data/f{number}", b"first")
    running = Running(opened)
    running.until(lambda: running.uploaded == 80)
    opened.store.requests.clear()
    opened.write("data/f7", b"second")
    opened.write("data/new", b"new")
    running.until(lambda: opened.blobs().get("data/new") == b"new" and opened.blobs()["data/f7"] == b"second")
    assert sorted(each.operation for each in opened.store.requests) == ["put", "put"]
    running.stop(opened)


def test_what_somebody_else_wrote_meanwhile_is_found_by_the_services_refusal(opened: Opened) -> None:
    opened.write("data/a", b"first")
    running = Running(opened)
    running.until(lambda: running.uploaded == 1)
    opened.store.add("store/data/a", b"theirs")
    opened.store.add("store/data/new", b"theirs")
    opened.write("data/a", b"mine")
    opened.write("data/new", b"mine")

    def conflicts() -> set[str]:
        codes = {FailureCode.CONFLICT}
        return {each.path for each in (running.rounds[-1].failures if running.rounds else ()) if each.code in codes}

    running.until(lambda: conflicts() == {"data/a", "data/new"})
    assert opened.blobs() == {"data/a": b"theirs", "data/new": b"theirs"}
    assert [each.path for made in running.rounds for each in made.fresh].count("data/a") <= 2
    running.stop(opened)


def test_a_touched_file_is_not_sent_again(opened: Opened) -> None:
    path = opened.write("data/a", b"first")
    running = Running(opened)
    running.until(lambda: running.uploaded == 1)
    opened.store.requests.clear()
    os.utime(path)
    opened.write("data/b", b"later")
    running.until(lambda: "data/b" in opened.blobs())
    assert [each.name for each in opened.store.requests if each.operation == "put"] == ["store/data/b"]
    running.stop(opened)


def test_a_file_in_the_place_of_a_folder_and_the_reverse_are_left_alone_by_name(opened: Opened) -> None:
    opened.write("data/x", b"a file")
    opened.write("data/y/in", b"in a folder")
    assert opened.project.keep("data", settle=_SETTLE, until_idle=True).ok
    (opened.root / "data/x").unlink()
    (opened.root / "data/y/in").unlink()
    (opened.root / "data/y").rmdir()
    opened.write("data/x/deep/in", b"now a folder")
    opened.write("data/y", b"now a file")
    opened.write("data/xy", b"another")
    done = opened.project.keep("data", settle=_SETTLE, until_idle=True)
    assert {(each.path, each.code) for each in done.failures} == {
        ("data/x/deep/in", FailureCode.SHAPE_CONFLICT),
        ("data/y", FailureCode.SHAPE_CONFLICT),
    }
    assert "rm --blob data/x" in str({each.path: each.hint for each in done.failures}["data/x/deep/in"])
    assert opened.blobs() == {"data/x": b"a file", "data/y/in": b"in a folder", "data/xy": b"another"}
    opened.project.remove(opened.project.find_removal(["data/x"], blob_only=True))
    opened.project.remove(opened.project.find_removal(["data/y/in"]))
    assert opened.project.keep("data", settle=_SETTLE, until_idle=True).ok
    assert opened.blobs() == {"data/x/deep/in": b"now a folder", "data/y": b"now a file", "data/xy": b"another"}


def test_an_outage_leaves_no_record_but_the_first_and_asks_before_it_begins_again(opened: Opened) -> None:
    opened.write("data/a", b"first")
    running = Running(opened)
    running.until(lambda: running.uploaded == 1)

    def down(request: Request) -> None:
        raise StorageUnreachableError("no line")

    opened.store.before = down
    opened.write("data/a", b"second")
    running.until(lambda: running.rounds and running.rounds[-1].problem)
    records = len(opened.project.history())
    opened.store.requests.clear()
    tries = len(running.rounds)
    running.until(lambda: len([each for each in running.rounds[tries:] if each.problem]) >= 2)
    assert {each.operation for each in opened.store.requests} == {"head"}
    assert len(opened.project.history()) == records
    (state,) = opened.project.keepers().values()
    assert "no line" in state.problem and state.problem_since and "nothing works for" in state.standing
    opened.store.before = lambda request: None
    running.until(lambda: opened.blobs()["data/a"] == b"second")
    running.stop(opened)


def test_a_mistake_from_the_beginning_is_raised(opened: Opened) -> None:
    def refused(request: Request) -> None:
        raise LoginRequiredError("nobody is logged in")

    opened.write("data/a", b"one")
    opened.store.before = refused
    with pytest.raises(LoginRequiredError):
        opened.project.keep("data", settle=_SETTLE)
    assert not opened.project.keepers()


@pytest.mark.parametrize(("path", "error"), [("data/nix", NothingMatchedError), ("data/a", UsageError)])
def test_only_folders_that_are_there_are_kept(opened: Opened, path: str, error: type[Exception]) -> None:
    opened.write("data/a", b"one")
    for act in (opened.project.keep, opened.project.demand_keepable):
        with pytest.raises(error):
            act(path)


@pytest.mark.parametrize("settle", [0, -1, 3601, float("nan")])
def test_a_time_that_is_none_is_refused(opened: Opened, settle: float) -> None:
    with pytest.raises(UsageError, match="no time to settle"):
        opened.project.keep("data", settle=settle)


def test_who_is_asked_to_stop_says_what_was_done_and_what_is_left(opened: Opened) -> None:
    opened.write("data/a", b"one")
    running = Running(opened)
    # What is on its way when the request comes may be stopped.
    running.until(lambda: running.uploaded == 1)
    ended = running.stop(opened)
    assert isinstance(ended, TransferCancelledError) and ended.message == (
        "stopped: 1 file uploaded and verified in 1 round; no file was waiting"
    )
    assert isinstance(ended.result, KeepResult) and ended.result.uploaded == 1
    assert not opened.project.keepers()


def test_ctrl_c_while_a_round_is_shown_says_what_was_done(opened: Opened) -> None:
    opened.write("data/a", b"one")

    def shown(made: KeptRound) -> None:
        if made.uploaded:
            raise KeyboardInterrupt

    with pytest.raises(TransferCancelledError) as stopped:
        opened.project.keep("data", settle=_SETTLE, on_round=shown)
    assert stopped.value.message == "stopped: 1 file uploaded and verified in 1 round; no file was waiting"
    assert not opened.project.keepers()


def test_one_folder_has_one_keeper(opened: Opened) -> None:
    opened.write("data/sub/a", b"one")
    opened.write("data/beside/a", b"one")
    running = Running(opened, "data/sub")
    running.until(lambda: opened.project.keepers())
    for path in ("data", "data/sub"):
        with pytest.raises(UsageError, match=f"data/sub is kept already, by process {os.getpid()} of ") as caught:
            opened.project.keep(path, settle=_SETTLE, until_idle=True)
        assert "keep stop" in str(caught.value.hint)
    assert opened.project.keep("data/beside", settle=_SETTLE, until_idle=True).ok
    with pytest.raises(NothingMatchedError):
        opened.project.stop_keeper("")
    opened.project.stop_keeper("data/sub")
    running.end()


# -- records -----------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def _known(folder: Path, *paths: str) -> KeeperState:
    return keeper_state(paths, [str(folder / path) for path in paths], cluster="eu")


def test_a_record_of_a_process_that_is_gone_counts_for_nothing_and_goes(state: StateDir, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = replace(_known(tmp_path, "data"), pid=process.pid, born=ProcessMark.of(process.pid).born, told=time.time())
    RunningRecords(state, "keepers").write(known.id, asdict(known))
    keepers = Keepers(state)
    assert set(keepers.all()) == {known.id}
    process.kill()
    process.communicate()
    assert not keepers.all() and not list((tmp_path / "keepers").glob("*.json"))


def test_a_process_has_the_age_that_its_start_says() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.5)
        assert 0.4 < ProcessMark.of(process.pid).age < ProcessMark.of(1).age
        process.kill()
    assert ProcessMark.of(process.pid).age == 0


def test_an_invalid_record_is_nobodys(state: StateDir, tmp_path: Path) -> None:
    records, known = RunningRecords(state, "keepers"), asdict(_known(tmp_path, "data"))
    for wrong in ({"pid": -1}, {"pid": "x"}, {"more": 1}, {"paths": 3}, {"uploaded": None}, {"id": "00000000"}):
        records.write(known["id"], {**known, **wrong})
        assert not Keepers(state).all(), wrong


def test_a_keeper_of_another_machine_is_shown_and_stops_nobody_here(state: StateDir, tmp_path: Path) -> None:
    known = replace(_known(tmp_path, "data"), host="elsewhere", pid=4711, told=time.time())
    RunningRecords(state, "keepers").write(known.id, asdict(known))
    keepers = Keepers(state)
    assert "on elsewhere, for " in keepers.all()[known.id].who
    (tmp_path / "data").mkdir()
    with keepers.held(_known(tmp_path, "data"), StopRequest()):
        pass
    with pytest.raises(UsageError, match="runs on elsewhere"):
        keepers.stop([known])


def test_a_lock_of_another_keeper_is_seen_without_its_record(state: StateDir, tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    other = StateDir(tmp_path / "other")
    other.root.mkdir()
    with ExitStack() as held:
        held.enter_context(Keepers(state).held(_known(tmp_path, "data"), StopRequest()))
        for path in ("data", "data/sub"):
            with (
                pytest.raises(UsageError, match=f"kept already, by process {os.getpid()} of "),
                Keepers(other).held(_known(tmp_path, path), StopRequest()),
            ):
                pass
        assert not Keepers(other).all()
    with Keepers(other).held(_known(tmp_path, "data/sub"), StopRequest()):
        pass


@contextmanager
def locked_by(uid: int, folder: Path) -> Iterator[None]:
    """Another user's process has the lock, and hides its memory, so that its folder in /proc is root's."""
    code = f"""if True:
        import ctypes, fcntl, os
        fd = os.open({str(folder)!r}, os.O_RDONLY)
        os.setuid({uid})
        ctypes.CDLL(None).prctl(4, 0)
        fcntl.flock(fd, fcntl.LOCK_EX)
        print("locked", flush=True)
        input()
    """
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    yield
    process.communicate("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_of_other_users_only_the_owner_of_a_folder_keeps_others_out_of_it(state: StateDir, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for folder in (tmp_path, data):
        with locked_by(12345, folder), Keepers(state).held(_known(tmp_path, "data"), StopRequest()):
            pass
    os.chown(data, 12345, 12345)
    with (
        locked_by(12345, data),
        pytest.raises(UsageError, match=r"kept already, by process [0-9]+ of 12345, for "),
        Keepers(state).held(_known(tmp_path, "data"), StopRequest()),
    ):
        pass


def test_only_the_newest_logs_stay(state: StateDir) -> None:
    logs = []
    for number in range(14):
        logs.append(new_log(state))
        logs[-1].write_text("said")
        os.utime(logs[-1], (number, number))
    assert sorted((state.root / "keepers").glob("log-*")) == sorted(logs[-10:])


def test_an_entry_inside_another_one_is_no_second_keeper(state: StateDir, tmp_path: Path) -> None:
    (tmp_path / "data" / "sub").mkdir(parents=True)
    with Keepers(state).held(_known(tmp_path, "data", "data/sub"), StopRequest()):
        assert len(Keepers(state).all()) == 1


def test_a_request_to_stop_is_seen(state: StateDir, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    stop = StopRequest()
    with Keepers(state).held(_known(tmp_path, "data"), stop) as record:
        record.change(lambda known: replace(known, uploaded=7))
        RunningRecords(state, "keepers").request_stop(record.state.id)
        end = time.monotonic() + _PATIENCE
        # Either may be seen first.
        while not (stop.made and Keepers(state).all()[record.state.id].uploaded == 7):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert not Keepers(state).all() and not list((tmp_path / "keepers").glob(".*.stop"))
