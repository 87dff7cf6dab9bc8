"""A file counts as moved only if its destination was verified, whatever an engine or a store reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import UnsafeNamesError
from blobsync.base.events import FilesDone, SilentListener
from blobsync.base.plan_reasons import Reason
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.protocol import BlobInfo
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import Engines
from tests.fakes import liars
from tests.fakes.liars import LyingEngine, LyingStore, Tell
from tests.fakes.project_context import World, account, cluster
from tests.fakes.tasks import RecordingListener

AZCOPY = TransferOptions(engine="azcopy")
MIRROR = TransferOptions(mirror=True)
FILES = {"a": b"aaa", "b": b"bb", "c": b""}
# So many that the destination is listed instead of requested file by file.
MANY = {f"{n:03}": b"%d" % n for n in range(70)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project", cluster("eu", data=account("eu")))
    store = LyingStore()
    store.container_url = account("eu").container
    world.stores["eu"] = store
    return world


def store_of(world: World) -> LyingStore:
    store = world.stores["eu"]
    assert isinstance(store, LyingStore)
    return store


def write(world: World, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        world.write(f"data/x/{name}", body)


def codes(result: TransferResult) -> dict[str, str]:
    return {failure.path: failure.code for failure in result.failures}


def told_by(
    world: World,
    tell: Tell,
    command: str = "u",
    *,
    works: bool = True,
) -> TransferResult:
    engine = LyingEngine(tell, works=works)
    return world.run(command, "data/x", options=AZCOPY, azcopy=lambda: engine)


def test_an_engine_that_says_nothing_of_its_files_fails_them_all(world: World) -> None:
    write(world, FILES)
    result = told_by(world, liars.nothing)
    assert (result.exit_code, result.transferred) == (1, 0)
    assert codes(result) == {f"data/x/{name}": "not_reported" for name in FILES}
    assert "the azcopy engine reported no result for it" in result.failures[0].message


def test_a_file_that_an_engine_passes_over_is_a_failure_by_name(world: World) -> None:
    write(world, FILES)
    result = told_by(world, liars.all_but_the_first)
    assert (result.exit_code, result.transferred) == (3, 2)
    assert codes(result) == {"data/x/a": "not_reported"}


def test_a_file_that_was_passed_over_is_told_to_the_listener(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = RecordingListener()
    context = world.context()
    plan = world.plan("u", "data/x", options=AZCOPY)
    engines = Engines({"azcopy": lambda: LyingEngine(liars.nothing)})
    result = carry_out(plan, context, engines, heard, world.root)
    assert [each.failure for each in heard.events if isinstance(each, FilesDone)] == [*result.failures]


@pytest.mark.parametrize("command", ["u", "d"])
@pytest.mark.parametrize("files", [FILES, MANY], ids=["asked one by one", "listed"])
def test_files_that_an_engine_only_says_it_moved_are_missing(
    world: World, files: dict[str, bytes], command: str
) -> None:
    if command == "u":
        write(world, files)
    else:
        for name, body in files.items():
            world.store("eu").add(f"store/data/x/{name}", body)
    result = told_by(world, liars.all_moved, command, works=False)
    assert (result.exit_code, result.transferred) == (1, 0)
    assert set(codes(result).values()) == {"missing_after_transfer"}
    assert len(codes(result)) == len(files)


def test_a_file_that_is_reported_twice_counts_once(world: World) -> None:
    write(world, FILES)
    engine = LyingEngine(liars.everything_twice)
    result = world.run("u", "data/x", options=AZCOPY, azcopy=lambda: engine)
    assert (result.exit_code, result.transferred, result.bytes_transferred) == (0, 3, 5)


def test_a_file_that_is_reported_as_moved_and_as_failed_failed(world: World) -> None:
    write(world, FILES)
    engine = LyingEngine(liars.moved_and_failed)
    result = world.run("u", "data/x", options=AZCOPY, azcopy=lambda: engine)
    assert (result.exit_code, result.transferred) == (1, 0)
    assert [failure.code for failure in result.failures] == ["storage_error"] * 3


@pytest.mark.parametrize("tell", [liars.a_stranger, liars.a_failed_stranger])
def test_a_file_that_nobody_planned_is_no_success(world: World, tell: Tell) -> None:
    write(world, FILES)
    result = told_by(world, tell)
    assert (result.exit_code, result.transferred) == (3, 3)
    assert codes(result) == {"data/x/stranger": "not_planned"}


def test_nothing_is_deleted_when_an_engine_moved_what_nobody_planned(world: World) -> None:
    write(world, {str(n): b"x" for n in range(20)})
    world.run("u", "data/x")
    (world.root / "data/x/7").unlink()
    write(world, {"new": b"y"})
    engine = LyingEngine(liars.a_stranger)
    result = world.run("u", "data/x", options=MIRROR._replace(engine="azcopy"), azcopy=lambda: engine)
    assert (result.exit_code, result.deleted) == (3, 0)
    assert "store/data/x/7" in store_of(world).blobs


def test_counts_that_do_not_add_up_are_a_fault_that_is_reported(world: World) -> None:
    write(world, FILES)
    plan = world.plan("u", "data/x")
    (part,) = plan.parts
    twice = replace(plan, parts=(replace(part, actions=(*part.actions, part.actions[0])),))
    context = world.context()
    engines = Engines({"direct": lambda: LyingEngine(liars.the_truth)})
    result = carry_out(twice, context, engines, SilentListener(), world.root)
    assert result.exit_code == 3
    assert codes(result)["data/x"] == "account_wrong"
    assert "4 files planned, 3 verified and 0 failed" in result.failures[-1].message


LIES = [
    pytest.param(liars.missing, "missing_after_transfer", id="not there"),
    pytest.param(liars.another_size, "size_mismatch", id="another size"),
    pytest.param(liars.another_md5, "md5_mismatch", id="another MD5"),
    pytest.param(liars.no_md5, "md5_missing", id="no MD5"),
]


@pytest.mark.parametrize("files", [FILES, MANY], ids=["asked one by one", "listed"])
@pytest.mark.parametrize(("lie", "code"), LIES)
def test_what_the_destination_shows_decides_and_not_the_engine(
    world: World, files: dict[str, bytes], lie: liars.Lie, code: str
) -> None:
    write(world, files)
    # Only one of them is shown wrong.
    one = f"store/data/x/{min(files)}"
    store_of(world).lie = lambda blob: lie(blob) if blob.name == one else blob
    result = told_by(world, liars.the_truth)
    assert (result.exit_code, result.transferred) == (3, len(files) - 1)
    assert codes(result) == {f"data/x/{min(files)}": code}
    # Unverified files are not recorded: a true listing compares them again.
    store_of(world).lies = False
    plan = world.plan("u", "data/x")
    recorded = {action.path for _, action in plan.each() if action.reason is Reason.SAME_RECORD}
    assert recorded == files.keys() - {min(files)}


def test_more_than_the_plan_at_the_destination_is_nobodys_concern(world: World) -> None:
    write(world, MANY)
    store_of(world).invented = [BlobInfo("store/data/x/more", 5, "0x9", b"m" * 16), BlobInfo("store/data/x/", 0, "0x8")]
    result = told_by(world, liars.the_truth)
    assert (result.exit_code, result.transferred) == (0, 70)


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_listing_that_tells_a_name_twice_moves_and_deletes_nothing(world: World, command: str) -> None:
    write(world, {str(n): b"x" for n in range(20)})
    world.run("u", "data/x")
    store_of(world).repeated = {"store/data/x/7"}
    if command == "d":
        (world.root / "data/x/7").unlink()
    with pytest.raises(UnsafeNamesError, match=r"data/x/7 is listed twice"):
        world.run(command, "data/x", options=MIRROR)
    assert "store/data/x/7" in store_of(world).blobs


def test_a_deletion_that_was_only_promised_is_a_failure(world: World) -> None:
    write(world, {str(n): b"x" for n in range(20)})
    world.run("u", "data/x")
    (world.root / "data/x/7").unlink()
    store_of(world).keeps = True
    result = world.run("u", "data/x", options=MIRROR)
    assert (result.exit_code, result.deleted) == (3, 0)
    assert codes(result) == {"data/x/7": "delete_failed"}
    assert "it is still there" in result.failures[0].message


def test_a_download_is_checked_against_the_listing_that_was_planned_from(world: World) -> None:
    for name, body in FILES.items():
        world.store("eu").add(f"store/data/x/{name}", body)
    store_of(world).lie = liars.another_md5
    result = world.run("d", "data/x")
    assert result.exit_code == 1
    assert result.plan.count(Action.TRANSFER) == 3
    assert set(codes(result).values()) == {"checksum_mismatch"}
    assert not list((world.root / "data").rglob("a"))
