"""What a watcher finds: told by a listener that a test speaks for, or by walking; and when it falls back to that."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from blobsync.base.events import Event, Note
from blobsync.base.plan_reasons import Reason
from blobsync.keep.watcher import FolderWatcher, file_system_of, installed_listener, watched_folders
from blobsync.local.link_policy import LinkPolicy
from blobsync.project.keep import walk_of
from tests.waiting import wait_until


class Told:
    """Says what a test wants to have happened, and of a probe file that it happened."""

    def __init__(self, *, probes: bool = True, error: Exception | None = None) -> None:
        self.queue: SimpleQueue[list[str] | Exception] = SimpleQueue()
        self.probes, self.error = probes, error
        self.over: threading.Event | None = None
        # How much of what was said the watcher's thread has taken in.
        self.taken_in = 0

    def __call__(self, folder: Path, over: threading.Event) -> Iterator[Iterable[str]]:
        self.over = over
        if self.error is not None:
            raise self.error
        if self.probes:
            yield [f"{folder}/.blobsync-0123abcd.part"]
        while not over.is_set():
            try:
                said = self.queue.get(timeout=0.01)
            except Empty:
                continue
            if isinstance(said, Exception):
                raise said
            yield said
            self.taken_in += 1


class Scene:
    def __init__(self, folder: Path, listen: Told | None, *, kind: str = "ext4", cost: float = 0.0) -> None:
        self.folder, self.listen = folder, listen
        self.now = 0.0
        self.said: list[str] = []
        self.walks = 0
        self.wall, self.watched = time.time(), 1_000_000
        self._cost, self._spent = cost, 0.0
        links = LinkPolicy("follow", os.path.realpath(folder.parent), "data")
        walk = walk_of(folder, links)

        def counted(below: str, followed: dict[str, str]) -> Iterator[object]:
            if not below:
                self.walks += 1
                self._spent += cost
            return walk(below, followed)

        self.watcher = FolderWatcher(
            folder, counted, listen=listen, emit=self.emit, shown="data", clock=self.clock,  # type: ignore[arg-type]
            cost=lambda: self._spent, file_system=lambda place: kind, wall=lambda: self.wall,
            watched=lambda: self.watched,
        )  # fmt: skip

    def clock(self) -> float:
        # Real time passes, too, where the watcher waits for a probe.
        return self.now + time.monotonic() / 1000

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self.said.append(event.text)

    def polls(self) -> bool:
        return self.watcher.polls

    def tell(self, *paths: str) -> frozenset[str]:
        """Say that these have changed; what the watcher makes of it."""
        assert self.listen is not None
        before = self.listen.taken_in
        self.listen.queue.put([f"{self.folder}/{path}" for path in paths])
        assert wait_until(lambda: self.listen is not None and self.listen.taken_in > before, seconds=60, pause=0.005)
        return self.watcher.look().changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "project" / "data"
    place.mkdir(parents=True)
    (place / "a").write_text("one")
    return place


@pytest.fixture
def told(folder: Path) -> Iterator[Scene]:
    scene = Scene(folder, Told())
    assert scene.watcher.look().changed == {"a"}
    assert not scene.watcher.polls and scene.walks == 1
    yield scene
    scene.watcher.close()


def test_a_change_that_is_told_needs_no_walk(told: Scene) -> None:
    (told.folder / "a").write_text("other")
    (told.folder / "sub").mkdir()
    (told.folder / "sub" / "b").write_text("new")
    assert told.tell("a", "sub/b") == {"a", "sub/b"}
    assert set(told.watcher.look().files) == {"a", "sub/b"}
    (told.folder / "a").unlink()
    assert told.tell("a") == {"a"}
    assert set(told.watcher.look().files) == {"sub/b"}
    assert told.walks == 1


def test_what_did_not_change_is_not_told_on(told: Scene) -> None:
    assert told.tell("a", "never-there") == frozenset()


def test_a_new_folder_is_walked_since_its_first_files_are_not_told_of(told: Scene) -> None:
    (told.folder / "deep" / "er").mkdir(parents=True)
    for name in ("deep/x", "deep/er/y"):
        (told.folder / name).write_text(name)
    assert told.tell("deep") == {"deep/x", "deep/er/y"}
    assert told.walks == 1


def test_a_folder_that_was_removed_and_made_again_is_walked_again(told: Scene) -> None:
    (told.folder / "run").mkdir()
    (told.folder / "run" / "old").write_text("old")
    assert told.tell("run") == {"run/old"}
    shutil.rmtree(told.folder / "run")
    (told.folder / "run").mkdir()
    (told.folder / "run" / "new").write_text("new")
    assert told.tell("run") == {"run/old", "run/new"}
    assert set(told.watcher.look().files) == {"a", "run/new"}


def test_a_folder_that_was_renamed_takes_its_files_along(told: Scene) -> None:
    (told.folder / "one").mkdir()
    (told.folder / "one" / "x").write_text("x")
    told.tell("one")
    (told.folder / "one").rename(told.folder / "two")
    assert told.tell("one", "two") == {"one/x", "two/x"}
    assert set(told.watcher.look().files) == {"a", "two/x"}


def test_a_file_in_the_place_of_a_folder_and_back(told: Scene) -> None:
    (told.folder / "x").mkdir()
    (told.folder / "x" / "in").write_text("in")
    told.tell("x")
    shutil.rmtree(told.folder / "x")
    (told.folder / "x").write_text("file")
    assert told.tell("x") == {"x", "x/in"}
    assert set(told.watcher.look().files) == {"a", "x"}


def test_our_own_names_are_never_seen(told: Scene) -> None:
    (told.folder / ".blobsync-0a1b2c3d.part").write_text("unfinished")
    (told.folder / ".blobsync").mkdir()
    (told.folder / ".blobsync" / "index").write_text("ours")
    assert told.tell(".blobsync-0a1b2c3d.part", ".blobsync", ".blobsync/index") == frozenset()
    assert set(told.watcher.look(anew=True).files) == {"a"}


def test_what_is_no_file_is_left_out_with_the_reason(told: Scene) -> None:
    os.mkfifo(told.folder / "pipe")
    told.tell("pipe")
    assert told.watcher.look().left_out["pipe"].reason is Reason.NOT_A_FILE
    (told.folder / "pipe").unlink()
    told.tell("pipe")
    assert not told.watcher.look().left_out


def test_events_that_get_lost_are_made_good_by_a_walk_now_and_then(told: Scene) -> None:
    (told.folder / "lost").write_text("nobody tells")
    assert not told.watcher.look().changed
    told.now += 61
    assert told.watcher.look().changed == {"lost"} and told.walks == 2
    assert not told.watcher.look().changed and told.walks == 2


def test_where_a_change_was_not_told_of_watching_begins_anew(told: Scene) -> None:
    """As after an overflow of the kernel's queue; where the limit is the cause, beginning anew fails and says so."""
    assert told.listen is not None
    first = told.listen.over
    (told.folder / "lost").write_text("nobody tells")
    told.now, told.wall = told.now + 61, time.time() + 61
    assert told.watcher.look().changed == {"lost"}
    assert told.polls() is False and told.listen.over is not first
    told.listen.error = OSError(28, "OS file watch limit reached.")
    (told.folder / "lost").write_text("again")
    told.now, told.wall = told.now + 61, time.time() + 122
    assert told.watcher.look().changed == {"lost"}
    assert told.polls() and "limit of watched folders" in told.watcher.why and len(told.said) == 1


def test_a_new_folder_that_the_system_does_not_watch_is_noticed_by_counting(told: Scene) -> None:
    assert told.listen is not None
    (told.folder / "new").mkdir()
    (told.folder / "new" / "x").write_text("x")
    told.watched = 1
    assert told.tell("new") == {"new/x"} and told.polls() is False
    told.listen.error = OSError(28, "OS file watch limit reached.")
    (told.folder / "new" / "y").write_text("not told of")
    told.now += 1.1
    assert told.watcher.look().changed == {"new/y"}
    assert told.polls() and "limit of watched folders" in told.watcher.why


def test_a_flood_of_events_is_one_walk(told: Scene) -> None:
    for number in range(1300):
        (told.folder / f"f{number}").write_text("x")
    assert len(told.tell(*(f"f{number}" for number in range(1300)))) == 1300
    assert told.walks == 2


def test_a_link_needs_a_walk_and_ends_listening_if_it_is_followed(told: Scene) -> None:
    (told.folder.parent / "elsewhere").write_text("elsewhere")
    (told.folder / "link").symlink_to(told.folder.parent / "elsewhere")
    assert told.tell("link") == {"link"}
    assert told.watcher.polls and len(told.said) == 1 and "links" in told.said[0]


@pytest.mark.parametrize(
    ("listen", "kind", "word"),
    [
        (Told(error=OSError(28, "OS file watch limit reached.")), "ext4", "limit of watched folders"),
        (Told(error=OSError(24, "Too many open files")), "ext4", "limit of watched folders"),
        (Told(error=RuntimeError("no such thing")), "ext4", "no such thing"),
        (Told(probes=False), "overlay", "does not tell of changes"),
        (Told(), "nfs4", "nfs4 does not tell what other machines write"),
        (Told(), "lustre", "lustre does not tell what other machines write"),
        (Told(), "fuse.sshfs", "fuse.sshfs does not tell"),
    ],
)
def test_where_nothing_is_told_it_walks_and_says_so_once(folder: Path, listen: Told, kind: str, word: str) -> None:
    scene = Scene(folder, listen, kind=kind)
    real, began = scene.watcher._clock, time.monotonic()
    if not listen.probes:
        # Nothing will be told, however long it waits.
        scene.watcher._clock = lambda: 20 * (time.monotonic() - began)
    assert scene.watcher.look().changed == {"a"}
    scene.watcher._clock = real
    assert scene.watcher.polls and word in scene.watcher.why
    scene.now = 1e9
    (folder / "b").write_text("b")
    assert scene.watcher.look().changed == {"b"}
    assert len(scene.said) == 1 and word in scene.said[0]
    assert not list(folder.glob(".blobsync*"))


def test_a_limit_that_is_reached_later_ends_in_walking_too(told: Scene) -> None:
    assert told.listen is not None
    (told.folder / "b").write_text("b")
    told.listen.queue.put(OSError(28, "OS file watch limit reached."))
    until = time.monotonic() + 60
    changed: frozenset[str] = frozenset()
    while not changed and time.monotonic() < until:
        changed = told.watcher.look().changed
        time.sleep(0.01)
    assert changed == {"b"} and told.watcher.polls and len(told.said) == 1


def test_a_file_that_is_gone_is_a_change_however_it_is_found(told: Scene, tmp_path: Path) -> None:
    (told.folder / "sub").mkdir()
    (told.folder / "sub/b").write_text("b")
    assert told.tell("sub") == {"sub/b"}
    shutil.rmtree(told.folder / "sub")
    assert told.tell("sub") == {"sub/b"}, "as the system tells of it"
    (told.folder / "a").unlink()
    told.now += 1e9
    found = told.watcher.look()
    assert found.changed == {"a"} and not found.files, "as a walk finds it"


def test_a_walk_takes_a_tenth_of_a_core_at_most(folder: Path) -> None:
    scene = Scene(folder, None, cost=0.5)
    scene.watcher.look()
    for _ in range(200):
        scene.now += 0.5
        scene.watcher.look()
    # 100 seconds, of which ten may be spent: twenty walks of half a second.
    assert 18 <= scene.walks <= 21


def test_a_small_folder_is_walked_each_second_and_not_more_often(folder: Path) -> None:
    scene = Scene(folder, None)
    for _ in range(100):
        scene.now += 0.1
        scene.watcher.look()
    assert 9 <= scene.walks <= 11
    scene.watcher.look(anew=True)
    assert scene.walks <= 12


def test_a_folder_that_is_moved_away_and_comes_back(folder: Path) -> None:
    scene = Scene(folder, None)
    scene.watcher.look()
    away = folder.with_name("away")
    folder.rename(away)
    found = scene.watcher.look()
    assert "not there" in found.problem and set(found.files) == {"a"} and not found.changed
    (away / "b").write_text("b")
    away.rename(folder)
    assert scene.watcher.look().changed == {"b"}


def test_a_listener_of_a_folder_that_was_away_begins_anew(told: Scene) -> None:
    assert told.listen is not None
    first = told.listen.over
    away = told.folder.with_name("away")
    told.folder.rename(away)
    assert told.watcher.look().problem
    assert first is not None and first.is_set()
    away.rename(told.folder)
    (told.folder / "b").write_text("b")
    assert told.watcher.look().changed == {"b"}
    assert not told.watcher.polls and told.listen.over is not first


def test_an_empty_mount_point_is_not_a_folder_whose_files_were_deleted(folder: Path) -> None:
    scene = Scene(folder, None)
    scene.watcher.look()
    scene.watcher._device += 1
    (folder / "a").unlink()
    found = scene.watcher.look()
    assert "not mounted" in found.problem and set(found.files) == {"a"} and not found.changed


def test_a_file_in_the_place_of_the_folder_is_a_problem(folder: Path) -> None:
    scene = Scene(folder, None)
    scene.watcher.look()
    shutil.rmtree(folder)
    folder.write_text("a file")
    assert "no folder any more" in scene.watcher.look().problem


def test_the_type_of_a_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    real = os.path.realpath(tmp_path)
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"30 22 0:40 / {real}/my\\040data rw shared:7 - nfs4 host:/x rw\n"
        f"31 22 0:41 / {real}/my rw - lustre x rw\n"
    )
    assert file_system_of(tmp_path / "my data" / "run", mounts) == "nfs4"
    assert file_system_of(tmp_path / "my", mounts) == "lustre"
    assert file_system_of(tmp_path / "mine", mounts) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "absent") == ""


def test_what_the_system_watches_for_a_process_can_be_counted(tmp_path: Path) -> None:
    assert watched_folders(tmp_path) is None
    (tmp_path / "fd").mkdir()
    (tmp_path / "fdinfo").mkdir()
    for fd, target, text in (("3", "anon_inode:inotify", "pos:\t0\ninotify wd:2 x\ninotify wd:1 x\n"), ("4", "/x", "")):
        (tmp_path / "fd" / fd).symlink_to(target)
        (tmp_path / "fdinfo" / fd).write_text(text)
    assert watched_folders(tmp_path) == 2


_KILLED = """
import os, signal, sys, time
from pathlib import Path
from blobsync.keep.watcher import FolderWatcher

def listen(folder, over):
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
    yield []

FolderWatcher(Path(sys.argv[1]), lambda below, followed: iter(()), listen=listen, file_system=lambda _: "ext4").look()
"""


def test_a_keeper_that_is_killed_in_its_start_leaves_no_probe_file(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL and os.listdir(tmp_path) == []


@pytest.mark.skipif(installed_listener() is None, reason="watchfiles is not installed")
def test_the_real_listener_tells_of_each_kind_of_change(folder: Path) -> None:
    links = LinkPolicy("follow", os.path.realpath(folder.parent), "data")
    # Slow, since a busy machine may take seconds to tell of the first change.
    watcher = FolderWatcher(
        folder, walk_of(folder, links), listen=installed_listener(), file_system=lambda _: "ext4",
        clock=lambda: time.monotonic() / 20,
    )  # fmt: skip
    stop = threading.Event()

    def seen(expected: set[str]) -> None:
        until, changed = time.monotonic() + 60, set[str]()
        while not expected <= changed and time.monotonic() < until:
            watcher.wait(0.05, stop)
            changed |= watcher.look().changed
        assert changed == expected

    try:
        assert watcher.look().changed == {"a"}
        assert not watcher.polls
        steps: list[tuple[Callable[[], object], set[str]]] = [
            (lambda: (folder / "b").write_text("b"), {"b"}),
            (lambda: os.truncate(folder / "a", 1), {"a"}),
            (lambda: (folder / "b").rename(folder / "c"), {"b", "c"}),
            (lambda: shutil.copytree(folder, folder / "copy"), {"copy/a", "copy/c"}),
            (lambda: (folder / "copy" / "a").write_text("again"), {"copy/a"}),
            (lambda: (folder / "copy").rename(folder / "moved"), {"copy/a", "copy/c", "moved/a", "moved/c"}),
            (lambda: shutil.rmtree(folder / "moved"), {"moved/a", "moved/c"}),
        ]
        for step, expected in steps:
            step()
            seen(expected)
    finally:
        watcher.close()
