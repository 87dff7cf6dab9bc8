"""Free space on the disks, checked before a download begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.base.errors import DiskTooSmallError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.local.disks import Disk, LocalDisks, disk_of
from blobsync.plan.disk_space import WrittenHere, lacking_room
from blobsync.plan.name_clashes import Names
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction
from tests.fakes.project_context import World, account, cluster

ROOT = Names("/p/data", {})


def write(
    path: str, size: int, *, before: int | None = None, on_record: int = 0, aside: str | None = None
) -> FileAction:
    old = None if before is None else LocalState(before, 1, 1, 1)
    action = FileAction(path, Action.TRANSFER, Reason.NEW, size, RemoteState(size, "e"), old)
    return action._replace(on_record=on_record, aside=aside)


def adopt(path: str, size: int, before: int) -> FileAction:
    return FileAction(
        path, Action.ADOPT, Reason.KEEP_DESTINATION, size, LocalState(before, 1, 1, 1), RemoteState(size, "e")
    )


def room(free: int, left: int = 0) -> LocalDisks:
    return LocalDisks(lambda path: Disk(1, free), lambda path: left)


@pytest.mark.parametrize(
    ("actions", "writing", "needed"),
    [
        ([write("a", 60), write("b", 40)], Action.TRANSFER, 100),
        ([write("a", 60, on_record=50), write("b", 40)], Action.TRANSFER, 50),
        ([write("a", 60, before=50), write("b", 40)], Action.TRANSFER, 60),
        ([write("a", 60, before=90)], Action.TRANSFER, 60),
        ([write("a", 60, before=50, aside="a.local")], Action.TRANSFER, 60),
        ([write("a", 60), adopt("b", 9, 1)], Action.ADOPT, 9),
        ([adopt("b", 50, 20), adopt("c", 50, 20)], Action.ADOPT, 60),
        ([], Action.TRANSFER, 0),
        ([FileAction("x", Action.DELETE, Reason.EXTRA, 10), FileAction("y", Action.SKIP, Reason.EXTRA, 10)],
         Action.TRANSFER, 0),
    ],
)  # fmt: skip
def test_room_is_needed_for_new_files_before_the_replaced_ones_are_deleted(
    actions: list[FileAction], writing: Action, needed: int
) -> None:
    part = WrittenHere("data", ROOT, actions)
    size = sum(action.size for action in actions)
    assert lacking_room([part], writing, size, room(needed)) == []
    if needed:
        (failure,) = lacking_room([part], writing, size, room(needed - 1))
        assert (failure.path, failure.code) == ("data", "disk_too_small")
        said = f"data: {needed} B would be written to /p/data, and {needed - 1} B are free"
        assert failure.message == said and "--force" in (failure.hint or "")


def test_a_version_that_is_kept_aside_needs_room_too() -> None:
    kept = write("a", 5, aside="a.remote")
    kept = kept._replace(source=LocalState(5, 1, 1, 1), destination=RemoteState(70, "e"))
    part = WrittenHere("data", ROOT, [kept])
    assert lacking_room([part], Action.ADOPT, 75, room(70)) == []
    assert len(lacking_room([part], Action.ADOPT, 75, room(69))) == 1


def test_room_is_added_up_for_each_disk() -> None:
    disks = {"/p/data": Disk(1, 100), "/big": Disk(2, 30), "/p/output": Disk(1, 100), "/p/none": None}
    linked = Names("/p/data", {"link": "/big", "file": "/big/f"})
    parts = [
        WrittenHere("data", linked, [write("a", 60), write("link/b", 31), write("file", 1)]),
        WrittenHere("output", Names("/p/output", {}), [write("c", 40)]),
        WrittenHere("none", Names("/p/none", {}), [write("c", 10**15)]),
    ]
    found = lacking_room(parts, Action.TRANSFER, 10**16, LocalDisks(lambda path: disks[str(path)], lambda path: 0))
    assert [failure.message for failure in found] == [
        "data: 101 B would be written to /p/data, and 100 B are free",
        "data: 31 B would be written to /big, and 30 B are free",
    ]


def test_files_are_not_examined_where_there_is_plenty_of_room() -> None:
    def never() -> FileAction:
        raise AssertionError("no file needs to be examined")

    actions = (never() for _ in range(1))
    assert lacking_room([WrittenHere("data", ROOT, actions)], Action.TRANSFER, 100, room(100)) == []


def test_a_missing_folder_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    found = disk_of(tmp_path / "not" / "yet")
    assert found is not None and found.device == os.stat(tmp_path).st_dev and found.free > 0
    (tmp_path / "file").write_bytes(b"x")
    below = disk_of(tmp_path / "file" / "below")
    assert below is not None and below.device == found.device
    assert disk_of(Path("/proc/self")) is None


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project", cluster("eu", data=account("eu")), disks=room(50))
    for name in ("a", "b", "c"):
        world.store("eu").add(f"store/data/{name}", bytes(20))
    return world


@pytest.mark.parametrize("spilled", [False, True])
def test_a_download_without_room_is_refused_before_any_byte_moves(world: World, *, spilled: bool) -> None:
    if spilled:
        world.spill = world.spill._replace(most=1)
    with pytest.raises(DiskTooSmallError, match=r"60 B would be written to .*, and 50 B are free"):
        world.run("d", "data")
    assert world.store("eu").asked("get") == [] and not (world.root / "data").exists()
    plan = world.plan("d", "data")
    assert plan.is_large is spilled
    assert [refusal.code for refusal in plan.refusals] == ["disk_too_small"] and plan.files_to_transfer == 3
    assert world.run("d", "data", options=TransferOptions(exclude=("c",))).ok
    # What is here already needs no room.
    assert world.run("d", "data").ok


def test_leftovers_of_killed_runs_count_as_free_space(world: World) -> None:
    world.disks = room(50, left=9)
    with pytest.raises(DiskTooSmallError, match=r"60 B would be written to .*, and 59 B are free"):
        world.run("d", "data")
    world.disks = room(50, left=10)
    assert world.run("d", "data").ok


def test_partial_downloads_that_are_resumed_are_not_counted_twice() -> None:
    part = WrittenHere("data", ROOT, [write("a", 60, on_record=50), write("b", 40)])
    assert len(lacking_room([part], Action.TRANSFER, 100, room(45, left=54))) == 1
    assert lacking_room([part], Action.TRANSFER, 100, room(45, left=55)) == []


def test_nested_folders_are_searched_once_for_leftovers() -> None:
    asked: list[str] = []

    def left(place: Path) -> int:
        asked.append(str(place))
        return 0

    parts = [
        WrittenHere("data", ROOT, [write("a", 9)]),
        WrittenHere("data/b", Names("/p/data/b", {}), [write("c", 9)]),
        WrittenHere("data20", Names("/p/data20", {}), [write("d", 9)]),
    ]
    assert len(lacking_room(parts, Action.TRANSFER, 27, LocalDisks(lambda path: Disk(1, 26), left))) == 1
    assert asked == ["/p/data", "/p/data20"]


def test_force_downloads_without_room_and_says_so(world: World) -> None:
    result = world.run("d", "data", options=TransferOptions(force=True))
    assert result.ok and result.transferred == 3
    assert [text for text in result.plan.warnings if "60 B would be written" in text]


def test_an_upload_needs_local_room_only_with_keep_remote(world: World) -> None:
    (world.root / "data").mkdir()
    for name in ("a", "b", "c", "d"):
        (world.root / "data" / name).write_bytes(bytes([1]) * 21)
    assert world.plan("u", "data", options=TransferOptions(overwrite=True)).refusals == ()
    assert world.plan("u", "data", options=TransferOptions(keep="remote")).refusals == ()
    world.store("eu").add("store/data/a", bytes(200))
    (refusal,) = world.plan("u", "data", options=TransferOptions(keep="remote")).refusals
    assert refusal.code == "disk_too_small"
