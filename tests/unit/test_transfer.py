"""Whole transfers with containers in memory: which files move, which do not, and the records afterwards."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from blobsync.base.errors import (
    CopySourceRefusedError,
    FailureCode,
    FileFailure,
    MirrorRefusedError,
    NothingMatchedError,
    PlanFileError,
    ShapeConflictError,
    StorageError,
    UnsafeNamesError,
    UsageError,
)
from blobsync.base.events import Listener
from blobsync.base.plan_reasons import Reason
from blobsync.plan.name_clashes import both_hint
from blobsync.plan.saved_plan import load, save
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties
from blobsync.transfer.engines import MoveReport, MoveTask
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import Request


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project", cluster("eu", data=account("eu"), data__coco=account("coco")))


def write(world: World, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        world.write(name, body)


def blobs(world: World, name: str = "eu") -> dict[str, bytes]:
    return {key: blob.body for key, blob in world.store(name).blobs.items()}


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def counts(result: TransferResult) -> tuple[int, int, int]:
    return result.transferred, result.plan.count(Action.UNCHANGED), len(result.failures)


TREE = {"data/voc/a.jpg": b"aaa", "data/voc/sub/b.jpg": b"b" * 5000, "data/voc/empty": b""}
NAMES = {name.replace("data/", "store/data/", 1): body for name, body in TREE.items()}


def test_a_folder_goes_there_and_back_and_then_nothing_moves(world: World) -> None:
    write(world, TREE)
    assert counts(world.run("u", "data/voc")) == (3, 0, 0)
    assert blobs(world) == NAMES
    assert counts(world.run("u", "data/voc")) == (0, 3, 0)
    for path in (world.root / "data" / "voc").rglob("*"):
        if path.is_file():
            path.unlink()
    assert counts(world.run("d", "data/voc")) == (3, 0, 0)
    assert tree(world.root / "data") == {name.removeprefix("data/"): body for name, body in TREE.items()}
    assert counts(world.run("d", "data/voc")) == (0, 3, 0)
    assert counts(world.run("u", "data/voc")) == (0, 3, 0)


def test_every_upload_carries_the_md5_of_its_file(world: World) -> None:
    write(world, TREE)
    world.run("u", "data/voc")
    for blob in world.store("eu").blobs.values():
        assert blob.info.md5 == hashlib.md5(blob.body).digest()


def test_a_single_file_lands_on_its_exact_name(world: World) -> None:
    write(world, TREE)
    assert counts(world.run("u", "data/voc/a.jpg")) == (1, 0, 0)
    assert blobs(world) == {"store/data/voc/a.jpg": b"aaa"}
    (world.root / "data/voc/a.jpg").unlink()
    assert counts(world.run("d", "data/voc/a.jpg")) == (1, 0, 0)
    assert (world.root / "data/voc/a.jpg").read_bytes() == b"aaa"


def test_a_sibling_with_the_same_beginning_is_not_touched(world: World) -> None:
    write(world, {"data/voc/a": b"1", "data/voc20/a": b"2", "data/voc-x": b"3"})
    world.run("u", "data/voc")
    assert set(blobs(world)) == {"store/data/voc/a"}


def test_an_edit_with_an_older_mtime_moves_and_a_touched_file_does_not(world: World) -> None:
    write(world, TREE)
    world.run("u", "data/voc")
    edited, touched = world.root / "data/voc/a.jpg", world.root / "data/voc/sub/b.jpg"
    edited.write_bytes(b"AAA")
    os.utime(edited, (1_000, 1_000))
    os.utime(touched)
    result = world.run("u", "data/voc")
    assert counts(result) == (1, 2, 0)
    assert blobs(world)["store/data/voc/a.jpg"] == b"AAA"


def test_a_conflict_is_left_alone_until_it_is_settled(world: World) -> None:
    write(world, {"data/voc/a": b"base"})
    world.run("u", "data/voc")
    (world.root / "data/voc/a").write_bytes(b"mine")
    world.store("eu").add("store/data/voc/a", b"your")
    result = world.run("u", "data/voc")
    assert result.plan.count(Action.CONFLICT) == 1
    assert (result.exit_code, blobs(world)) == (3, {"store/data/voc/a": b"your"})
    assert result.conflicts[0].hint == (
        "'blobsync diff PATH' shows how the two differ; choose with --keep local, remote or both, or with --overwrite"
    )
    both = world.run("u", "data/voc", options=TransferOptions(keep="both"))
    assert both.ok
    assert sorted(blobs(world).values()) == [b"mine", b"your"]
    again = world.run("u", "data/voc", options=TransferOptions(keep="both"))
    assert (again.transferred, len(blobs(world))) == (0, 2)
    (world.root / "data/voc/a").write_bytes(b"more")
    world.store("eu").add("store/data/voc/a", b"else")
    assert world.run("u", "data/voc", options=TransferOptions(overwrite=True)).ok
    assert blobs(world)["store/data/voc/a"] == b"more"


def test_a_download_keeps_a_local_edit(world: World) -> None:
    write(world, {"data/voc/a": b"base"})
    world.run("u", "data/voc")
    (world.root / "data/voc/a").write_bytes(b"mine")
    result = world.run("d", "data/voc")
    assert result.plan.count(Action.NEWER_AT_DESTINATION) == 1
    assert result.ok
    assert (world.root / "data/voc/a").read_bytes() == b"mine"


def test_a_lost_or_damaged_index_costs_time_and_nothing_else(world: World) -> None:
    write(world, TREE)
    world.run("u", "data/voc")
    world.index.close()
    (world.root / "index.sqlite").write_bytes(b"this is no database" * 100)
    assert counts(world.run("u", "data/voc")) == (0, 3, 0)
    assert list(world.root.glob("index.sqlite.broken-*"))
    world.index.close()
    (world.root / "index.sqlite").unlink()
    assert counts(world.run("d", "data/voc")) == (0, 3, 0)


def test_a_nested_entry_goes_where_it_is_mapped(world: World) -> None:
    write(world, {"data/a": b"1", "data/coco/b": b"2"})
    world.run("u", "data")
    assert set(blobs(world)) == {"store/data/a"}
    assert set(blobs(world, "coco")) == {"store/data/coco/b"}
    world.store("eu").add("store/data/coco/hidden", b"not ours")
    (world.root / "data/coco/b").unlink()
    world.run("d", "data")
    assert tree(world.root / "data") == {"a": b"1", "coco/b": b"2"}


def test_several_paths_are_one_plan_and_an_inner_one_moves_once(world: World) -> None:
    write(world, TREE)
    plan = world.plan("u", "data/voc", "data/voc/sub", "data/voc")
    assert [part.path for part in plan.parts] == ["data/voc"]
    assert plan.count(Action.TRANSFER) == 3


def test_mirror_deletes_extras_only_within_its_limits(world: World) -> None:
    write(world, {f"data/voc/{n}": b"x" for n in range(40)})
    world.run("u", "data/voc")
    (world.root / "data/voc/7").unlink()
    assert counts(world.run("u", "data/voc")) == (0, 39, 0)
    assert len(blobs(world)) == 40
    assert world.run("u", "data/voc", options=TransferOptions(mirror=True)).deleted == 1
    assert "store/data/voc/7" not in blobs(world)
    for n in range(10):
        (world.root / f"data/voc/{n}").unlink(missing_ok=True)
    with pytest.raises(MirrorRefusedError, match="more than the limit"):
        world.run("u", "data/voc", options=TransferOptions(mirror=True))
    assert len(blobs(world)) == 39


def test_mirror_down_removes_local_extras_and_the_folders_they_leave_empty(world: World) -> None:
    write(world, {f"data/voc/{n}": b"x" for n in range(20)})
    world.run("u", "data/voc")
    write(world, {"data/voc/deep/er/extra": b"y"})
    assert world.run("d", "data/voc", options=TransferOptions(mirror=True)).deleted == 1
    assert not (world.root / "data/voc/deep").exists()
    assert len(tree(world.root / "data/voc")) == 20


def test_a_missing_source_is_not_an_empty_source(world: World) -> None:
    world.store("eu").add("store/data/voc/a", b"1")
    for options in (TransferOptions(), TransferOptions(mirror=True)):
        with pytest.raises(NothingMatchedError, match="data/voc: no such file or folder"):
            world.run("u", "data/voc", options=options)
    assert blobs(world) == {"store/data/voc/a": b"1"}


def test_a_blob_beside_a_folder_of_its_name_is_an_error_that_says_how_to_choose(world: World) -> None:
    world.store("eu").add("store/data/a", b"1")
    world.store("eu").add("store/data/a/b", b"2")
    with pytest.raises(ShapeConflictError) as refused:
        world.run("d", "data/a")
    assert refused.value.hint == both_hint("data/a")
    assert "'data/a/' (with the slash) means the folder" in refused.value.hint
    assert counts(world.run("d", "data/a/")) == (1, 0, 0)
    assert tree(world.root / "data") == {"a/b": b"2"}


@pytest.mark.parametrize("name", ["../evil", "a//b", "/x", "a/./b", "n\x00l", "x" * 256])
def test_a_blob_that_cannot_be_a_file_here_stops_the_download_before_anything_moves(world: World, name: str) -> None:
    world.store("eu").add("store/data/voc/good", b"1")
    world.store("eu").add(f"store/data/voc/{name}", b"2")
    with pytest.raises(UnsafeNamesError):
        world.run("d", "data/voc")
    assert not (world.root / "data").exists()


def test_folder_stubs_are_not_data(world: World) -> None:
    stub = world.store("eu").add("store/data/voc/sub", b"")
    world.store("eu").blobs["store/data/voc/sub"].info = stub._replace(is_folder_stub=True)
    world.store("eu").add("store/data/voc/sub/a", b"1")
    assert counts(world.run("d", "data/voc")) == (1, 0, 0)


def refuse_copies(request: Request) -> None:
    if request.operation in {"put_from_url", "put_block_from_url"}:
        raise CopySourceRefusedError("the service is not allowed to read the source")


@pytest.mark.parametrize("refused", [False, True], ids=["by the service", "through the relay"])
def test_a_copy_between_clusters_moves_only_what_differs(tmp_path: Path, *, refused: bool) -> None:
    world = World(tmp_path, cluster("eu", data=account("eu")), cluster("us", data=account("us")), relay_allowed=True)
    world.store("us").add("store/data/voc/a", b"1", properties=BlobProperties(content_type="image/x-odd"))
    world.store("us").add("store/data/voc/b", b"22")
    if refused:
        world.store("eu").before = refuse_copies
    assert counts(world.run("u", "data/voc", copy=True)) == (2, 0, 0)
    assert blobs(world) == blobs(world, "us")
    assert world.store("eu").properties("store/data/voc/a").content_type == "image/x-odd"
    assert counts(world.run("u", "data/voc", copy=True)) == (0, 2, 0)
    assert not (tmp_path / "data").exists()


def test_a_refused_copy_names_the_way_out(tmp_path: Path) -> None:
    world = World(tmp_path, cluster("eu", data=account("eu")), cluster("us", data=account("us")))
    world.store("us").add("store/data/a", b"1")
    world.store("eu").before = refuse_copies
    result = world.run("u", "data/a", copy=True)
    assert result.exit_code == 1
    assert result.failures[0].code == "copy_source_refused"
    assert "--relay" in (result.failures[0].hint or "")


def test_the_same_place_on_both_sides_is_nothing_to_do(tmp_path: Path) -> None:
    world = World(tmp_path, cluster("eu", data=account("eu")), cluster("us", data=account("eu")))
    world.store("eu").add("store/data/a", b"1")
    result = world.run("u", "data/a", copy=True)
    assert result.ok
    assert "the same place" in result.plan.warnings[0]


def test_one_refused_file_fails_alone_and_by_name(world: World) -> None:
    write(world, TREE)

    def refuse(request: Request) -> None:
        if request.operation == "put" and request.name.endswith("a.jpg"):
            raise StorageError("the service said no", status=500)

    world.store("eu").before = refuse
    result = world.run("u", "data/voc")
    assert counts(result) == (2, 0, 1)
    assert result.exit_code == 3
    assert result.failures[0].path == "data/voc/a.jpg"


def test_links_inside_the_project_are_followed_and_others_said(world: World, tmp_path: Path) -> None:
    write(world, {"data/voc/a": b"1"})
    (tmp_path / "outside").write_bytes(b"secret")
    (world.root / "data/voc/inner").symlink_to(world.root / "data/voc/a")
    (world.root / "data/voc/outer").symlink_to(tmp_path / "outside")
    result = world.run("u", "data/voc")
    assert set(blobs(world)) == {"store/data/voc/a", "store/data/voc/inner"}
    assert any("outer" in warning for warning in result.plan.warnings)


def test_a_loop_of_links_and_an_unreadable_source_are_failures(world: World) -> None:
    write(world, {"data/voc/a": b"1"})
    (world.root / "data/voc/loop").symlink_to(world.root / "data/voc")
    (world.root / "data/voc/dangling").symlink_to(world.root / "nowhere")
    result = world.run("u", "data/voc")
    assert result.exit_code == 3
    assert {failure.path for failure in result.failures} == {"data/voc/loop", "data/voc/dangling"}


def test_a_saved_plan_is_applied_only_as_long_as_it_holds(world: World, tmp_path: Path) -> None:
    write(world, TREE)
    plan = world.plan("u", "data/voc")
    save(plan, tmp_path / "plan.json")
    saved = load(tmp_path / "plan.json")
    saved.check(world.plan(saved.direction, *saved.paths, options=saved.options))
    write(world, {"data/voc/a.jpg": b"other"})
    with pytest.raises(PlanFileError, match=r"data/voc/a\.jpg"):
        saved.check(world.plan(saved.direction, *saved.paths, options=saved.options))


def test_planning_touches_nothing_and_is_stable(world: World) -> None:
    write(world, TREE)
    before = tree(world.root)
    assert world.plan("u", "data/voc") == world.plan("u", "data/voc")
    assert blobs(world) == {}
    after = {name: body for name, body in tree(world.root).items() if not name.startswith("index.sqlite")}
    assert after == before


def test_include_and_exclude_choose_below_the_path(world: World) -> None:
    write(world, {"data/voc/a.jpg": b"1", "data/voc/b.txt": b"2", "data/voc/old/c.jpg": b"3"})
    options = TransferOptions(include=("*.jpg",), exclude=("old/",))
    world.run("u", "data/voc", options=options)
    assert set(blobs(world)) == {"store/data/voc/a.jpg"}
    with pytest.raises(UsageError, match="--from-path"):
        world.run("u", "data/voc", options=TransferOptions(from_path="data/x"))


def test_the_receipt_says_what_is_verified(world: World) -> None:
    write(world, TREE)
    result = world.run("u", "data/voc")
    assert result.receipt is not None
    receipt = json.loads(result.receipt.read_text())
    files = {entry["path"]: (entry["size"], entry["md5"]) for entry in receipt["files"]}
    assert files == {name: (len(body), hashlib.md5(body).hexdigest()) for name, body in TREE.items()}


def test_a_blob_without_md5_is_compared_by_content_where_asked(world: World) -> None:
    write(world, {"data/voc/a": b"same"})
    world.store("eu").add("store/data/voc/a", b"same", with_md5=False)
    plan = world.plan("d", "data/voc")
    assert [action.reason for _, action in plan.each()] == [Reason.NO_MD5]
    assert counts(world.run("d", "data/voc", options=TransferOptions(compare_content=True))) == (0, 1, 0)
    assert counts(world.run("d", "data/voc")) == (0, 1, 0)


def test_a_blob_that_lost_its_md5_is_compared_by_content_where_asked_also_when_it_is_on_record(world: World) -> None:
    write(world, {"data/voc/a": b"same"})
    assert world.run("u", "data/voc").ok
    os.utime(world.root / "data/voc/a", (5, 5))
    world.store("eu").add("store/data/voc/a", b"same", with_md5=False)
    for command in ("u", "d"):
        plan = world.plan(command, "data/voc", options=TransferOptions(compare_content=True))
        assert [action.action for _, action in plan.each()] == [Action.UNCHANGED]
    write(world, {"data/voc/a": b"mine"})
    assert world.run("u", "data/voc").exit_code == 3
    assert world.run("u", "data/voc", options=TransferOptions(compare_content=True)).transferred == 1


class GivesUp:
    """An engine named azcopy that fails for every file; ``meanwhile`` is the blob's content by then."""

    name = "azcopy"

    def __init__(self, meanwhile: bytes | None) -> None:
        self._meanwhile = meanwhile

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        end = task.part.destination
        assert isinstance(end, OpenBlob)
        for action in task.actions:
            if self._meanwhile is not None:
                md5 = hashlib.md5(self._meanwhile).digest()
                end.store.put(end.at(action.path), self._meanwhile, md5=md5)
            report.file_failed(action, FileFailure(task.part.path, FailureCode.AZCOPY_FAILED, "it gave up"))


def second_try(world: World, meanwhile: bytes | None) -> TransferResult:
    options = TransferOptions(engine="azcopy")
    return world.run("u", "data/voc", options=options, azcopy=lambda: GivesUp(meanwhile))


def test_what_azcopy_gives_up_on_gets_a_second_try_here(world: World) -> None:
    write(world, {"data/voc/a": b"whole"})
    assert second_try(world, None).ok
    assert blobs(world) == {"store/data/voc/a": b"whole"}


def test_what_azcopy_wrote_before_it_gave_up_is_seen_to_be_there(world: World) -> None:
    write(world, {"data/voc/a": b"whole"})
    result = second_try(world, b"whole")
    assert (result.ok, result.verified) == (True, 1)
    assert [request.name for request in world.store("eu").asked("put")] == ["store/data/voc/a"]
    assert counts(world.run("u", "data/voc")) == (0, 1, 0)


@pytest.mark.parametrize("before", [None, b"older"], ids=["new", "changed here"])
@pytest.mark.parametrize("theirs", [b"other", b"newer", b"much longer than ours"])
def test_a_retry_does_not_replace_a_version_of_somebody_else(theirs: bytes, before: bytes | None, world: World) -> None:
    if before is not None:
        write(world, {"data/voc/a": before})
        assert world.run("u", "data/voc").ok
    write(world, {"data/voc/a": b"whole"})
    result = second_try(world, theirs)
    assert [failure.code for failure in result.failures] == ["changed_meanwhile"]
    assert blobs(world) == {"store/data/voc/a": theirs}
