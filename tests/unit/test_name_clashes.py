"""Blobs ``t`` and ``t/...`` side by side: no upload makes them, and ``rm --blob`` removes ``t`` alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError, BlobsyncError, NothingMatchedError, UsageError
from blobsync.base.events import SilentListener
from blobsync.config.mapping import resolve
from blobsync.plan.name_clashes import refuse_blob_above
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Shape
from blobsync.project.removal import Deletion, find_blob, remove
from blobsync.store.open_locations import OpenBlob
from tests.fakes.project_context import World
from tests.fakes.store import Request


def write(world: World, *names: str) -> None:
    for name in names:
        world.write(name, name.encode())


def names(world: World) -> list[str]:
    return sorted(world.store("eu").blobs)


@pytest.mark.parametrize(
    ("blob", "path", "typed"),
    [
        ("store/data/t", "data/t/", "data/t"),
        ("store/data/t", "data/t", "data/t"),
        ("store/data/t", "data/t/a", "data/t"),
        ("store/data/t", "data/t/deep/b", "data/t"),
        ("store/data/t/deep", "data/t", "data/t/deep"),
        ("store/data/t", "data", "data/t"),
        ("store/data", "data", "data"),
        ("store/data", "data/", "data"),
        ("store/data", "data/t", "data"),
        ("store", "data/t/a", "use another path in the cluster file"),
        ("store", "data", "use another path in the cluster file"),
    ],
)
def test_no_upload_makes_a_blob_that_is_also_a_folder(blob: str, path: str, typed: str | None, world: World) -> None:
    write(world, "data/t/a", "data/t/deep/b")
    world.store("eu").add(blob, b"a blob")
    with pytest.raises(BlobsyncError) as refused:
        world.run("u", path)
    assert refused.value.exit_code == 2
    assert names(world) == [blob]
    if typed:
        hint = refused.value.hint or ""
        assert typed in hint if " " in typed else f"'blobsync rm --blob {typed}'" in hint


def test_no_upload_makes_a_blob_with_the_name_of_a_folder(world: World) -> None:
    write(world, "data/t")
    world.store("eu").add("store/data/t/a", b"1")
    for path in ("data/t", "data"):
        with pytest.raises(BlobsyncError):
            world.run("u", path)
    assert names(world) == ["store/data/t/a"]


@pytest.mark.parametrize("blob", ["store/data/t", "store/data/t/a/b"])
def test_patterns_do_not_hide_a_clash(blob: str, world: World) -> None:
    write(world, "data/t/a", "data/v")
    world.store("eu").add(blob, b"not asked for")
    with pytest.raises(BlobsyncError, match="is a file beside"):
        world.run("u", "data", options=TransferOptions(include=("t/a",), exclude=("b",)))
    assert world.run("u", "data", options=TransferOptions(include=("v",))).ok
    assert names(world) == [blob, "store/data/v"]


def test_an_existing_clash_does_not_block_other_files(world: World) -> None:
    write(world, "data/t/a")
    assert world.run("u", "data").ok
    world.store("eu").add("store/data/t", b"made by somebody else meanwhile")
    write(world, "data/v", "data/t/more")
    with pytest.raises(BlobsyncError) as refused:
        world.run("u", "data")
    assert "'blobsync rm --blob data/t'" in (refused.value.hint or "")
    assert world.run("u", "data", options=TransferOptions(exclude=("more",))).ok
    with pytest.raises(BlobsyncError) as both:
        world.run("d", "data")
    assert "'blobsync rm --blob data/t'" in (both.value.hint or "")
    assert world.run("d", "data/t/").ok


def test_parents_are_not_checked_where_the_destination_has_blobs(world: World) -> None:
    write(world, "data/deep/er/a", "data/deep/er/b")
    world.run("u", "data/deep/er")
    asked = len(world.store("eu").asked("head"))
    write(world, "data/deep/er/c", "data/deep/er/d")
    world.run("u", "data/deep/er")
    assert len(world.store("eu").asked("head")) - asked == 1


@pytest.mark.parametrize(
    ("name", "shape", "above"),
    [
        ("", Shape.FOLDER, []),
        ("a", Shape.FILE, []),
        ("a", Shape.FOLDER, ["a"]),
        ("a/b/c", Shape.FILE, ["a", "a/b"]),
        ("a/b/c", Shape.FOLDER, ["a", "a/b", "a/b/c"]),
    ],
)
def test_each_parent_name_is_checked_once(name: str, shape: Shape, above: list[str], world: World) -> None:
    refuse_blob_above(OpenBlob(world.store("eu"), name), shape, "data", "")
    assert sorted(request.name for request in world.store("eu").asked("head")) == above


def test_the_hint_is_rm_blob_only_where_a_blob_is_in_the_way(world: World) -> None:
    write(world, "data/f", "data/d/x")
    world.store("eu").add("store/data/f/x", b"below")
    world.store("eu").add("store/data/d", b"a blob")
    hints = {}
    for command, path in (("u", "data/f"), ("d", "data/f"), ("u", "data/d"), ("d", "data/d")):
        with pytest.raises(BlobsyncError) as refused:
            world.run(command, path)
        hints[command, path] = "rm --blob" in (refused.value.hint or "")
    assert [each for each, told in hints.items() if told] == [("u", "data/d")]


def test_a_sas_for_one_folder_is_enough(world: World) -> None:
    write(world, "data/deep/er/a")

    def refuse(request: Request) -> None:
        if request.operation == "head" and not request.name.startswith("store/data/deep/er"):
            raise AccessDeniedError("this SAS is for store/data/deep/er", status=403)

    world.store("eu").before = refuse
    assert world.run("u", "data/deep/er").ok


def test_folder_stubs_of_parents_do_not_clash(world: World) -> None:
    stub = world.store("eu").add("store/data/t", b"")
    world.store("eu").blobs["store/data/t"].info = stub._replace(is_folder_stub=True)
    write(world, "data/t/a")
    assert world.run("u", "data/t/").ok


def find(world: World, path: str) -> Deletion:
    context = world.context()
    return find_blob(context.connections, resolve(path, cwd=world.root, root=world.root, cluster=world.here))


def test_one_blob_is_removed_and_nothing_below_it(world: World, tmp_path: Path) -> None:
    world.store("eu").add("store/data/t", b"12345")
    world.store("eu").add("store/data/t/a", b"1")
    deletions = find(world, "data/t")
    assert (deletions.size, [blob.name for blob in deletions.blobs]) == (5, ["store/data/t"])
    gone = remove(world.context().connections, world.index, [deletions], SilentListener(), tmp_path, "eu")
    assert ([shown for shown, _ in gone.gone], gone.failures) == (["data/t"], ())
    assert names(world) == ["store/data/t/a"]
    refusals: list[tuple[str, type[BlobsyncError]]] = [("data/t", NothingMatchedError), ("data/t/", UsageError)]
    for path, error in refusals:
        with pytest.raises(error):
            find(world, path)


def test_an_interrupted_removal_leaves_a_receipt(world: World, tmp_path: Path) -> None:
    world.store("eu").add("store/data/t", b"12345")
    deletions = find(world, "data/t")

    def interrupt(request: Request) -> None:
        if request.operation == "head":
            raise KeyboardInterrupt

    world.store("eu").before = interrupt
    with pytest.raises(KeyboardInterrupt):
        remove(world.context().connections, world.index, [deletions], SilentListener(), tmp_path, "eu")
    (file,) = tmp_path.glob("*.json")
    receipt = json.loads(file.read_text())
    assert (receipt["interrupted"], receipt["deleted_files"]) == (True, [])
    assert [each["path"] for each in receipt["deletions_not_known"]] == ["data/t"]
