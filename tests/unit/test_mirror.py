"""``--mirror``: deleted and kept files, in the plan and in the receipt."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import MirrorRefusedError, StorageError
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action
from blobsync.plan.transfer_result import TransferResult
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import Request

MIRROR = TransferOptions(mirror=True, max_delete_percent=60.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three files at both ends, and one more at each: ``there`` and ``here``."""
    world = World(tmp_path / "project", cluster("eu", data=account("eu")))
    for name in ("a", "b", "c"):
        world.write(f"data/{name}", name.encode())
    assert world.run("u", "data").ok
    world.write("data/here", b"only here")
    world.store("eu").add("store/data/there", b"only there")
    return world


def here(world: World) -> set[str]:
    return {file.name for file in (world.root / "data").iterdir()}


def there(world: World) -> set[str]:
    return {name.removeprefix("store/data/") for name in world.store("eu").blobs}


def receipt(result: TransferResult) -> dict[str, Any]:
    assert result.receipt is not None
    found: dict[str, Any] = json.loads(result.receipt.read_text())
    return found


@pytest.mark.parametrize("command", ["u", "d"])
def test_nothing_is_deleted_after_a_file_failed(command: str, world: World) -> None:
    def refuse(request: Request) -> None:
        if request.operation in ("put", "get"):
            raise StorageError("the service said no", status=500)

    world.store("eu").before = refuse
    result = world.run(command, "data", options=MIRROR)
    assert (len(result.failures), result.deleted) == (1, 0)
    assert {"a", "b", "c", "here"} <= here(world)
    assert {"a", "b", "c", "there"} <= there(world)
    assert receipt(result)["deleted_files"] == []


@pytest.mark.parametrize("edit", ["other bytes", "same size and time", "another file"])
def test_a_local_extra_edited_since_the_plan_is_not_deleted(edit: str, world: World) -> None:
    file = world.root / "data" / "here"
    before = file.stat()
    plan = world.plan("d", "data", options=MIRROR)
    assert plan.count(Action.DELETE) == 1
    if edit == "another file":
        (world.root / "other").write_bytes(b"only here")
        os.replace(world.root / "other", file)
    else:
        file.write_bytes(b"ONLY HERE" if edit == "same size and time" else b"somebody needs this now")
    if edit != "other bytes":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = world.carry_out(plan)
    assert (result.exit_code, result.deleted) == (3, 0)
    assert [failure.path for failure in result.failures] == ["data/here"]
    assert "it is still there" not in result.failures[0].message
    assert "here" in here(world)


def test_a_local_extra_that_stays_keeps_no_other(world: World) -> None:
    world.write("data/later", b"extra, too")
    plan = world.plan("d", "data", options=MIRROR)
    world.write("data/here", b"somebody needs this now")
    result = world.carry_out(plan)
    assert ([failure.path for failure in result.failures], result.deleted) == (["data/here"], 1)
    assert (here(world) & {"here", "later"}) == {"here"}


def test_a_blob_replaced_since_the_plan_is_not_deleted(world: World) -> None:
    plan = world.plan("u", "data", options=MIRROR)
    world.store("eu").add("store/data/there", b"somebody needs this now")
    result = world.carry_out(plan)
    assert (result.exit_code, result.deleted) == (3, 0)
    assert "there" in there(world)


def test_a_blob_whose_deletion_is_refused_is_not_looked_at_again(world: World) -> None:
    plan = world.plan("u", "data", options=MIRROR)
    store = world.store("eu")

    def refuse(request: Request) -> None:
        if request.operation == "delete":
            store.requests.clear()
            raise StorageError("the service said no", status=500)

    store.before = refuse
    (failure,) = world.carry_out(plan).failures
    assert failure.message == "data/there: not deleted, the service said no"
    # The store's own look, after its refusal.
    assert [request.operation for request in store.requests] == ["head"]


def test_a_blob_that_exists_after_its_deletion_is_a_failure(world: World) -> None:
    store = world.store("eu")
    plan = world.plan("u", "data", options=MIRROR)

    def put_back(request: Request) -> None:
        # The server reported the deletion.
        if request.operation == "head" and request.name == "store/data/there":
            store.before = lambda _: None
            store.add("store/data/there", b"only there")

    store.before = put_back
    result = world.carry_out(plan)
    assert (result.exit_code, result.deleted) == (3, 0)
    (failure,) = result.failures
    assert (failure.code, failure.message) == ("delete_failed", "data/there: not deleted, it is still there")
    assert receipt(result)["deleted_files"] == []


@pytest.mark.parametrize("command", ["u", "d"])
def test_the_receipt_names_what_was_deleted(command: str, world: World) -> None:
    etag = world.store("eu").blobs["store/data/there"].info.etag
    result = world.run(command, "data", options=MIRROR)
    assert (result.exit_code, result.deleted) == (0, 1)
    (gone,) = receipt(result)["deleted_files"]
    if command == "u":
        md5 = hashlib.md5(b"only there").hexdigest()
        assert gone == {"path": "data/there", "size": 10, "md5": md5, "etag": etag, "route": "upload"}
    else:
        assert (gone["path"], gone["size"]) == ("data/here", 9)
    assert receipt(result)["deletions_not_known"] == []


def test_a_plan_that_deletes_too_much_can_be_shown_but_not_applied(world: World) -> None:
    for name in ("a", "b", "c"):
        (world.root / "data" / name).unlink()
    plan = world.plan("u", "data", options=MIRROR)
    assert plan.count(Action.DELETE) == 4
    assert plan.count(Action.TRANSFER) == 1
    assert [refusal.code for refusal in plan.refusals] == ["mirror_refused"]
    with pytest.raises(MirrorRefusedError, match="4 of 4 files"):
        world.carry_out(plan)
    assert there(world) == {"a", "b", "c", "there"}
    assert not plan.unreadable
