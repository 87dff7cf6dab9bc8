"""``--include`` and ``--exclude``: as lines of a .gitignore; what they leave out is not moved, counted or deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import IgnorePatternError, NothingMatchedError
from blobsync.base.plan_reasons import Reason
from blobsync.plan.transfer_options import TransferOptions, selector
from blobsync.plan.transfer_plan import Action
from tests.fakes.project_context import World, account, cluster

JPG = TransferOptions(include=("*.jpg",))
EXTRA = ("extra.jpg", "extra.txt")


@pytest.fixture
def world(tmp_path: Path) -> World:
    here = cluster("eu", data=account("eu"), data__coco=account("coco"))
    return World(tmp_path / "project", here, cluster("us", data=account("us")))


def write(world: World, **files: bytes) -> None:
    for name, body in files.items():
        world.write(f"data/voc/{name.replace('__', '.')}", body)


def add(world: World, store: str, **blobs: bytes) -> None:
    for name, body in blobs.items():
        world.store(store).add(f"store/data/voc/{name.replace('__', '.')}", body)


def blobs(world: World, store: str = "eu") -> dict[str, bytes]:
    return {name.removeprefix("store/data/"): blob.body for name, blob in world.store(store).blobs.items()}


@pytest.mark.parametrize("route", ["upload", "download", "copy"])
def test_excluded_files_are_ignored_on_both_sides(world: World, route: str) -> None:
    command, source = {"upload": ("u", ""), "download": ("d", "eu"), "copy": ("u", "us")}[route]
    if route == "upload":
        write(world, a__jpg=b"1", b__txt=b"2")
        add(world, "eu", extra__jpg=b"3", extra__txt=b"4")
    else:
        add(world, source, a__jpg=b"1", b__txt=b"2")
        if route == "download":
            write(world, extra__jpg=b"3", extra__txt=b"4")
        else:
            add(world, "eu", extra__jpg=b"3", extra__txt=b"4")
    options = TransferOptions(include=("*.jpg",), mirror=True, max_delete_percent=100.0)
    plan = world.plan(command, "data/voc", options=options, copy=route == "copy")
    assert {action.path: action.action for _, action in plan.each()} == {
        "a.jpg": Action.TRANSFER,
        "extra.jpg": Action.DELETE,
    }
    assert plan.extras == 1


def test_an_invalid_name_that_is_excluded_is_no_error(world: World) -> None:
    write(world, a__jpg=b"1")
    (world.root / "data/voc/b.txt").symlink_to("nowhere")
    plan = world.plan("u", "data/voc", options=JPG)
    assert (plan.unreadable, plan.warnings) == ((), ())
    assert plan.count(Action.TRANSFER) == 1


def test_an_invalid_name_excluded_at_the_destination_is_no_error(world: World) -> None:
    add(world, "eu", a__jpg=b"1")
    (world.root / "data/voc").mkdir(parents=True)
    (world.root / "data/voc/b.txt").symlink_to("nowhere")
    assert world.plan("d", "data/voc", options=JPG).warnings == ()
    assert world.plan("d", "data/voc").warnings != ()


def test_a_second_run_does_not_replace_what_changed_at_the_destination(world: World) -> None:
    write(world, a__jpg=b"mine", b__txt=b"2")
    assert world.run("u", "data/voc", options=JPG).transferred == 1
    add(world, "eu", a__jpg=b"theirs", b__txt=b"theirs, too")
    again = world.run("u", "data/voc", options=JPG)
    assert [(action.path, action.action) for _, action in again.plan.each()] == [("a.jpg", Action.NEWER_AT_DESTINATION)]
    assert blobs(world) == {"voc/a.jpg": b"theirs", "voc/b.txt": b"theirs, too"}
    # With an edit here, too, it is a conflict.
    write(world, a__jpg=b"mine again")
    conflict = world.run("u", "data/voc", options=JPG)
    assert [action.reason for _, action in conflict.plan.each()] == [Reason.BOTH_CHANGED]
    assert (conflict.exit_code, blobs(world)["voc/a.jpg"]) == (3, b"theirs")


def test_a_second_run_moves_nothing(world: World) -> None:
    write(world, a__jpg=b"1", b__txt=b"2")
    world.run("u", "data/voc", options=JPG)
    again = world.run("u", "data/voc", options=JPG)
    assert (again.transferred, again.plan.count(Action.UNCHANGED)) == (0, 1)


def test_patterns_apply_inside_and_outside_of_a_nested_entry(world: World) -> None:
    for name in ("data/a.jpg", "data/b.txt", "data/coco/c.jpg", "data/coco/d.txt", "data/coco/old/e.jpg"):
        world.write(name, name.encode())
    # Blobs where the outer entry would have the nested folder are ignored.
    world.store("eu").add("store/data/coco/hidden.jpg", b"hidden")
    options = TransferOptions(include=("*.jpg",), exclude=("old/",), mirror=True, max_delete_percent=100.0)
    for expected in (2, 0):
        result = world.run("u", "data", options=options)
        assert (result.transferred, result.deleted) == (expected, 0)
    assert blobs(world) == {"a.jpg": b"data/a.jpg", "coco/hidden.jpg": b"hidden"}
    assert blobs(world, "coco") == {"coco/c.jpg": b"data/coco/c.jpg"}


@pytest.mark.parametrize("command", ["u", "d"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TransferOptions(include=("*.jpeg", "*.png")), "--include '*.jpeg' --include '*.png'"),
        (TransferOptions(exclude=("*",)), "--exclude '*'"),
        (TransferOptions(include=("*.jpeg",), mirror=True), "--include '*.jpeg'"),
    ],
)
def test_patterns_that_choose_nothing_are_named(
    world: World, command: str, options: TransferOptions, said: str
) -> None:
    write(world, a__jpg=b"1")
    add(world, "eu", a__jpg=b"1")
    # What the other end has is not chosen from.
    if command == "u":
        add(world, "eu", b__jpeg=b"3")
    else:
        write(world, b__jpeg=b"3")
    with pytest.raises(NothingMatchedError) as nothing:
        world.plan(command, "data/voc", options=options)
    assert nothing.value.message == f"data/voc: no file at the source is chosen by {said}"
    assert nothing.value.exit_code == 4


def test_patterns_need_to_choose_in_one_of_several_paths(world: World) -> None:
    write(world, a__jpg=b"1")
    (world.root / "data/other").mkdir()
    (world.root / "data/other/b.txt").write_bytes(b"2")
    assert world.plan("u", "data/voc", "data/other", options=JPG).files_to_transfer == 1


def test_what_is_chosen_and_ignored_or_unreadable_was_chosen(world: World) -> None:
    ignoring = world.here.folders[0]._replace(ignore=("*.jpg",))
    world.here = world.here._replace(folders=(ignoring, *world.here.folders[1:]))
    write(world, a__jpg=b"1", b__txt=b"2")
    assert world.plan("u", "data/voc", options=JPG).ignored == 1
    (world.root / "data/voc/broken.txt").symlink_to("gone.txt")
    (failure,) = world.plan("u", "data/voc", options=TransferOptions(include=("broken*",))).unreadable
    assert failure.path == "data/voc/broken.txt"


def test_patterns_count_for_a_single_file_by_its_name(world: World) -> None:
    write(world, a__jpg=b"1", b__txt=b"2")
    plan = world.plan("u", "data/voc/a.jpg", "data/voc/b.txt", options=JPG)
    assert [part.shown(action) for part, action in plan.each()] == ["data/voc/a.jpg"]
    with pytest.raises(NothingMatchedError, match=r"data/voc/b.txt: no file .* --include '\*.jpg'"):
        world.plan("u", "data/voc/b.txt", options=JPG)


PATHS = ("a.jpg", "b.txt", "old/c.jpg", "old/keep/d.jpg", "deep/old/e.jpg", "é #1.jpg")


def chosen(include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> set[str]:
    takes_part = selector(include, exclude)
    assert takes_part is not None
    return {path for path in PATHS if takes_part(path)}


def test_without_patterns_every_file_is_included() -> None:
    assert selector((), ()) is None


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("*.jpg",), (), {"a.jpg", "old/c.jpg", "old/keep/d.jpg", "deep/old/e.jpg", "é #1.jpg"}),
        ((), ("old/",), {"a.jpg", "b.txt", "é #1.jpg"}),
        ((), ("/old",), {"a.jpg", "b.txt", "deep/old/e.jpg", "é #1.jpg"}),
        (("old/",), ("keep",), {"old/c.jpg", "deep/old/e.jpg"}),
        (("*", "!b.txt"), (), set(PATHS) - {"b.txt"}),
        (("é*",), (), {"é #1.jpg"}),
    ],
)
def test_patterns_are_those_of_gitignore(
    include: tuple[str, ...], exclude: tuple[str, ...], expected: set[str]
) -> None:
    assert chosen(include, exclude) == expected


def test_an_invalid_pattern_is_an_error_that_names_the_option() -> None:
    with pytest.raises(IgnorePatternError, match="--exclude"):
        selector((), ("[",))
