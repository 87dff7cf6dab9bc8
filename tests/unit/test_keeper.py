"""The keeper: which files are still, what a round uploads, and what it does about failures. With its own clock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, StorageUnreachableError
from blobsync.base.events import Event, Note
from blobsync.base.file_states import LocalState
from blobsync.base.plan_reasons import Reason
from blobsync.keep.keeper import Files, Found, Keeper, Sets
from blobsync.local.tree import TreeEntry

SETTLE = 5.0


class Scene:
    """A folder, a clock that is set, and an upload that is told what to do."""

    def __init__(self, folder: Path, *, sets: Sets | None = None, settle: float = SETTLE) -> None:
        self.folder = folder
        self.now, self.wall = 1000.0, 1_700_000_000.0
        self.files: dict[str, LocalState] = {}
        self.left_out: dict[str, TreeEntry] = {}
        self.changed: set[str] = set()
        self.problem = ""
        self.given: list[list[str]] = []
        self.fails: Callable[[Files], Sequence[FileFailure]] = lambda files: ()
        self.said: list[str] = []
        self.waits: list[float] = []
        self.anew: list[bool] = []
        self.keeper = Keeper(
            folder, self, self.upload, settle=settle, ignored=lambda path: path.endswith(".tmp"), sets=sets,
            clock=lambda: self.now, wall=lambda: self.wall, emit=self.emit, shown="data",
        )  # fmt: skip

    def look(self, *, anew: bool = False) -> Found:
        self.anew.append(anew)
        if self.problem:
            return Found(self.files, problem=self.problem)
        changed, self.changed = frozenset(self.changed), set()
        return Found(dict(self.files), changed, dict(self.left_out))

    def wait(self, seconds: float, stop: threading.Event) -> None:
        self.waits.append(seconds)

    def upload(self, files: Files) -> Sequence[FileFailure]:
        self.given.append(sorted(files))
        return self.fails(files)

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self.said.append(event.text)

    def write(self, path: str, body: bytes = b"x") -> None:
        """Write a file, and let the watcher see it."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        self.files[path] = LocalState.of(file.stat())
        self.changed.add(path)

    def touch_unseen(self, path: str) -> None:
        os.utime(self.folder / path, ns=(1, 1))

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def failure(path: str, code: FailureCode = FailureCode.CHANGED_WHILE_READ) -> FileFailure:
    return FileFailure(f"data/{path}", code, f"data/{path}: failed")


def test_a_file_goes_up_when_it_has_been_still_for_the_time(scene: Scene) -> None:
    scene.write("a")
    made = scene.keeper.round()
    assert (made.given, made.waiting, made.idle) == (0, 1, False)
    scene.later(SETTLE - 0.1)
    assert scene.keeper.round().given == 0
    scene.later(0.2)
    made = scene.keeper.round()
    assert (made.given, made.waiting) == (1, 0) and scene.given == [["a"]]
    scene.later(SETTLE)
    assert scene.keeper.round().idle and scene.given == [["a"]]


def test_a_file_that_changes_again_waits_again(scene: Scene) -> None:
    scene.write("a")
    scene.keeper.round()
    scene.later(SETTLE - 1)
    scene.write("a", b"more")
    scene.keeper.round()
    scene.later(2)
    assert scene.keeper.round().given == 0
    scene.later(SETTLE)
    assert scene.keeper.round().given == 1


def test_what_changed_unseen_since_the_last_look_waits(scene: Scene) -> None:
    scene.write("a")
    scene.keeper.round()
    scene.later(SETTLE + 1)
    scene.touch_unseen("a")
    assert scene.keeper.round().given == 0
    scene.later(SETTLE + 1)
    assert scene.keeper.round().given == 1


def test_an_old_file_is_believed_its_age_at_the_first_look_and_a_young_one_waits_for_the_rest(scene: Scene) -> None:
    scene.write("a")
    scene.wall = scene.files["a"].ctime_ns / 1e9 + SETTLE
    assert scene.keeper.round().given == 1
    scene.later(1)
    scene.write("b")
    scene.wall = scene.files["b"].ctime_ns / 1e9 + 0.5
    assert scene.keeper.round().given == 0
    scene.later(SETTLE - 0.4)
    assert scene.keeper.round().given == 1


def test_times_that_lie_in_the_future_make_nobody_wait_for_them(scene: Scene) -> None:
    scene.write("a")
    scene.wall = scene.files["a"].ctime_ns / 1e9 - 86400
    scene.keeper.round()
    scene.later(SETTLE)
    assert scene.keeper.round().given == 1


def test_a_sleep_makes_no_half_file_still(scene: Scene) -> None:
    scene.write("a")
    scene.keeper.round()
    # Suspended for eight hours: the monotonic clock stood still, and the wall clock did not.
    scene.wall += 8 * 3600
    assert scene.keeper.round().given == 0
    scene.later(SETTLE)
    assert scene.keeper.round().given == 1


def test_a_file_that_appeared_before_a_sleep_is_no_older_than_the_last_look(scene: Scene) -> None:
    scene.keeper.round()
    scene.write("half")
    scene.now += 0.5
    scene.wall = scene.files["half"].ctime_ns / 1e9 + 8 * 3600
    assert scene.keeper.round().given == 0
    scene.later(SETTLE - 1)
    assert scene.keeper.round().given == 0
    scene.later(1)
    assert scene.keeper.round().given == 1


def test_a_clock_that_is_set_back_delays_nothing_for_ever(scene: Scene) -> None:
    scene.wall -= 10 * 86400
    scene.write("a")
    scene.keeper.round()
    scene.wall -= 86400
    scene.later(SETTLE)
    assert scene.keeper.round().given == 1


def test_a_failed_file_is_tried_again_after_pauses_that_grow_and_told_once(scene: Scene) -> None:
    scene.fails = lambda files: [failure(path) for path in files if path == "bad"]
    scene.write("bad")
    scene.write("good")
    scene.keeper.round()
    scene.later(SETTLE)
    made = scene.keeper.round()
    assert [each.path for each in made.fresh] == ["data/bad"] and made.waiting == 1
    tries = []
    for second in range(600):
        scene.later(1)
        before = len(scene.given)
        made = scene.keeper.round()
        assert not made.fresh and [each.path for each in made.failures] == ["data/bad"]
        if len(scene.given) > before:
            tries.append(second)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == sorted(gaps) and 5 <= len(tries) <= 8
    assert scene.keeper.round().idle
    scene.fails = lambda files: ()
    scene.later(300)
    assert scene.keeper.round().failures == []


def test_a_file_that_was_unlucky_once_is_not_given_up(scene: Scene) -> None:
    scene.fails = lambda files: [failure(path) for path in files]
    scene.write("a")
    scene.keeper.round()
    scene.later(SETTLE)
    scene.keeper.round()
    scene.fails = lambda files: ()
    scene.later(SETTLE)
    assert scene.keeper.round().given == 1 and not scene.keeper.round().failures


def test_a_conflict_is_told_once_and_counts_as_tried(scene: Scene) -> None:
    scene.fails = lambda files: [failure(path, FailureCode.CONFLICT) for path in files]
    scene.write("a")
    scene.keeper.round()
    scene.later(SETTLE)
    assert len(scene.keeper.round().fresh) == 1
    scene.later(60)
    made = scene.keeper.round()
    assert made.idle and not made.fresh and len(scene.given) == 1
    # A file that changes again is another case.
    scene.write("a", b"other")
    scene.keeper.round()
    scene.later(SETTLE)
    scene.keeper.round()
    assert len(scene.given) == 2


def test_an_outage_is_said_once_with_its_beginning_and_its_end(scene: Scene) -> None:
    def down(files: Files) -> Sequence[FileFailure]:
        raise StorageUnreachableError("the service does not answer")

    scene.fails = down
    scene.write("a")
    scene.keeper.round()
    scene.later(SETTLE)
    began = scene.wall
    assert scene.keeper.round().problem == "the service does not answer"
    for _ in range(3600):
        scene.later(1)
        made = scene.keeper.round()
        assert made.problem and made.since == began and made.waiting == 1 and not made.idle
    # An hour of it: after a minute, a try each minute.
    assert 55 <= len(scene.given) <= 70
    assert len(scene.said) == 1
    scene.fails = lambda files: ()
    scene.later(60)
    made = scene.keeper.round()
    assert made.given == 1 and not made.problem and not made.waiting
    assert len(scene.said) == 2 and "it goes on, after 61 min" in scene.said[1]


def test_when_every_file_fails_for_a_cause_that_is_in_none_of_them_the_round_has_failed(scene: Scene) -> None:
    scene.fails = lambda files: [failure(path, FailureCode.ACCESS_DENIED) for path in files]
    for number in range(3):
        scene.write(f"f{number}")
    scene.keeper.round()
    scene.later(SETTLE)
    made = scene.keeper.round()
    assert made.problem.endswith(": failed") and not made.failures and made.waiting == 3
    assert scene.keeper.cause is not None and scene.keeper.cause.code is FailureCode.ACCESS_DENIED


def test_a_file_that_fails_for_its_own_cause_shows_that_the_service_works(scene: Scene) -> None:
    codes = {"a": FailureCode.ACCESS_DENIED, "b": FailureCode.CHANGED_WHILE_READ}
    scene.fails = lambda files: [failure(path, codes[path]) for path in files]
    for path in codes:
        scene.write(path)
    scene.keeper.round()
    scene.later(SETTLE)
    made = scene.keeper.round()
    assert not made.problem and {each.path for each in made.failures} == {"data/a", "data/b"}


def test_a_folder_that_is_away_is_waited_for_and_forgets_nothing(scene: Scene) -> None:
    scene.write("a")
    scene.keeper.round()
    scene.problem = "it was moved away"
    scene.later(SETTLE)
    made = scene.keeper.round()
    assert made.problem == "it was moved away" and made.waiting == 1 and not scene.given
    scene.problem = ""
    scene.later(2)
    assert scene.keeper.round().given == 1


def test_deleted_and_ignored_files_are_nothing_to_wait_for(scene: Scene) -> None:
    scene.write("a")
    scene.write("b.tmp")
    assert scene.keeper.round().waiting == 1
    del scene.files["a"]
    (scene.folder / "a").unlink()
    scene.changed.add("a")
    assert scene.keeper.round().waiting == 0
    scene.later(SETTLE)
    assert scene.keeper.round().idle and not scene.given


def test_the_last_round_takes_what_is_not_still_and_looks_anew(scene: Scene) -> None:
    scene.write("a")
    assert scene.keeper.round(last=True).given == 1
    assert scene.anew == [True]


def test_what_is_no_file_is_told_once_and_what_cannot_be_read_is_a_failure_while_it_lasts(scene: Scene) -> None:
    scene.left_out["pipe"] = TreeEntry("pipe", None, Reason.NOT_A_FILE)
    scene.left_out["locked"] = TreeEntry("locked", None, Reason.UNREADABLE, "Permission denied")
    made = scene.keeper.round()
    assert scene.said == ["data/pipe: left out, neither a file nor a folder"]
    assert [each.path for each in made.fresh] == ["data/locked"]
    assert not scene.keeper.round().fresh and len(scene.said) == 1
    del scene.left_out["locked"]
    assert not scene.keeper.round().failures
    scene.left_out["locked"] = TreeEntry("locked", None, Reason.UNREADABLE, "Permission denied")
    assert len(scene.keeper.round().fresh) == 1


def test_it_waits_for_events_when_nothing_is_left_and_never_spins(scene: Scene) -> None:
    stop = threading.Event()
    stop.set()
    scene.later(SETTLE)
    scene.keeper.round()
    scene.keeper.wait(stop)
    assert scene.waits == [5.0]
    scene.write("a")
    scene.keeper.round()
    scene.keeper.wait(stop)
    assert scene.waits == [5.0]


class Stop(threading.Event):
    """Records how long it is waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds = timeout
        return True


@pytest.mark.parametrize(("settle", "least"), [(5.0, 1.0), (0.3, 0.3)])
def test_changes_wait_together_for_a_second_or_the_settle_time(tmp_path: Path, settle: float, least: float) -> None:
    scene, stop = Scene(tmp_path, settle=settle), Stop()
    scene.write("a")
    scene.keeper.round()
    scene.later(settle - 0.01)
    scene.keeper.wait(stop)
    assert stop.seconds == least


class CheckpointSets:
    def __init__(self) -> None:
        self.rounds: list[tuple[list[str], bool]] = []

    def owns(self, path: str) -> bool:
        return path.startswith("checkpoint")

    def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
        self.rounds.append((sorted(files), last))
        return [failure("checkpoint/a", FailureCode.CHANGED_MEANWHILE)] if last else ()

    def behind(self, now: float) -> float | None:
        return 7.0


def test_files_of_a_set_are_left_to_it_settled_or_not(tmp_path: Path) -> None:
    sets = CheckpointSets()
    scene = Scene(tmp_path, sets=sets)
    scene.write("checkpoint/a")
    scene.write("log")
    scene.keeper.round()
    assert sets.rounds == [(["checkpoint/a"], False)] and not scene.given
    made = scene.keeper.round(last=True)
    assert scene.given == [["log"]] and sets.rounds[-1] == (["checkpoint/a"], True)
    assert [each.path for each in made.failures] == ["data/checkpoint/a"]
    assert scene.keeper.behind() == 7.0


def test_a_set_that_cannot_be_brought_out_is_a_problem_of_the_round(tmp_path: Path) -> None:
    class Broken(CheckpointSets):
        def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
            raise BlobsyncError("no right to write")

    scene = Scene(tmp_path, sets=Broken())
    scene.write("checkpoint/a")
    assert scene.keeper.round().problem == "no right to write"
