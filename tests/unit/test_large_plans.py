"""A plan on the disk equals the plan in memory: the same decisions, totals and refusals."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blobsync.base.errors import (
    BlobsyncError,
    MirrorRefusedError,
    StorageError,
    TransferCancelledError,
    UnsafeNamesError,
)
from blobsync.local.sorted_runs import Spill
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import Request

# Names that sort before and after '/', that contain each other, and that differ only in case.
NAMES = ("a", "a/b", "a/b/c", "a-b", "a.b", "a0", "b", "b/a", "b/a.txt", "B", "é", "\U0001f600", "b/.hid", "c/d/e.txt")
BODIES = (b"", b"1", b"2", b"22")
FEW = Spill(most=2)

trees = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(BODIES), max_size=9)
blobs = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(BODIES), st.booleans()), max_size=9)
# Of a named tuple st.builds would invent the other fields, too.
choices = st.builds(
    lambda **given: TransferOptions(**given),
    mirror=st.booleans(),
    max_delete_percent=st.sampled_from((10.0, 100.0)),
    overwrite=st.booleans(),
    keep=st.sampled_from((None, "local", "remote", "both")),
    include=st.sampled_from(((), ("*.txt",), ("a*",))),
    exclude=st.sampled_from(((), ("b/",), ("a/b",))),
)


def fill(folder: Path, tree: dict[str, bytes]) -> None:
    for name, body in sorted(tree.items()):
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.is_dir():
                file.write_bytes(body)
        except (FileExistsError, NotADirectoryError):
            continue


def outcome(world: World, spill: Spill, command: str, options: TransferOptions, *, copy: bool) -> Any:
    """Everything that a plan contains, or the error that refused it."""
    world.spill = spill
    try:
        plan = world.plan(command, "data", options=options, copy=copy)
    except UnsafeNamesError as refused:
        return type(refused), {name for name, _ in refused.names}
    except BlobsyncError as refused:
        return type(refused), refused.message
    return shown(plan)


def shown(plan: TransferPlan) -> dict[str, Any]:
    values = {each.name: getattr(plan, each.name) for each in fields(TransferPlan)}
    del values["created_at"], values["engine"], values["processes"]
    values["parts"] = [(part.path, part.route, part.shape) for part in plan.parts]
    values["warnings"] = sorted(plan.warnings)
    values["unreadable"] = sorted(plan.unreadable, key=lambda failure: failure.path)
    return values | {
        "actions": [(part.path, action) for part, action in plan.each()],
        "moving": (plan.files_to_transfer, plan.bytes_to_transfer),
        "on_record": plan.bytes_on_record,
        "conflicts": plan.conflicts,
        "counts": {kind: (plan.count(kind), plan.size(kind)) for kind in Action},
        "containers": {kind: [part.path for part in plan.parts_with(kind)] for kind in Action},
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(("u", "d", "copy")), trees, blobs, trees, blobs, choices, st.sampled_from((None, "a", "b", "c/d"))
)
def test_a_plan_on_disk_equals_the_plan_in_memory(
    tmp_path: Path,
    word: str,
    verified: dict[str, bytes],
    other: dict[str, tuple[bytes, bool]],
    changed: dict[str, bytes],
    there: dict[str, tuple[bytes, bool]],
    options: TransferOptions,
    link: str | None,
) -> None:
    root = tmp_path / "project"
    shutil.rmtree(root, ignore_errors=True)
    world = World(root, cluster("eu", data=account("eu")), cluster("us", data=account("us")))
    command, copy = ("u", True) if word == "copy" else (word, False)
    data = root / "data"
    data.mkdir()
    fill(data, verified)
    if verified:
        world.run("u", "data", options=TransferOptions(engine="direct"))
    for name, (body, with_md5) in other.items():
        world.store("us").add(f"store/data/{name}", body, with_md5=with_md5)
    if copy and other:
        # Files that can be copied are in the index afterwards.
        outcome(world, Spill(), command, TransferOptions(), copy=True)
    fill(data, changed)
    for name, (body, with_md5) in there.items():
        world.store("eu").add(f"store/data/{name}", body, with_md5=with_md5)
    if link is not None and (data / link).is_dir() and not (data / "link").exists():
        os.symlink(data / link, data / "link")
    known, large = (outcome(world, spill, command, options, copy=copy) for spill in (Spill(), FEW))
    assert known == large


def large(tmp_path: Path, count: int = 23) -> World:
    """A project whose plans are on the disk from three files on, with files of several folders here."""
    world = World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("us", data=account("us")))
    world.spill = Spill(most=3)
    fill(world.root / "data", {f"{number % 4}/{number:03}.txt": str(number).encode() for number in range(count)})
    return world


def files(world: World) -> dict[str, bytes]:
    data = world.root / "data"
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def stored(world: World, name: str) -> dict[str, bytes]:
    found = world.store(name).blobs.items()
    return {name.removeprefix("store/data/"): blob.body for name, blob in found}


def test_a_plan_on_disk_moves_in_batches_with_one_result_and_one_receipt(tmp_path: Path) -> None:
    world = large(tmp_path)
    here = files(world)
    up = world.run("u", "data")
    assert up.plan.is_large and up.ok
    assert (up.transferred, up.verified, up.bytes_transferred) == (23, 23, sum(map(len, here.values())))
    assert stored(world, "eu") == here
    receipt = json.loads(up.receipt.read_text()) if up.receipt else {}
    assert sorted(each["path"] for each in receipt["files"]) == sorted(f"data/{name}" for name in here)
    assert len(list((world.root / "receipts").iterdir())) == 1

    again = world.run("u", "data")
    assert again.ok and again.transferred == 0 and again.plan.count(Action.UNCHANGED) == 23
    shutil.rmtree(world.root / "data")
    down = world.run("d", "data")
    assert down.ok and down.transferred == 23 and files(world) == here


def test_a_large_copy_between_clusters_arrives(tmp_path: Path) -> None:
    world = large(tmp_path, count=0)
    bodies = {f"{number % 3}/{number:02}": bytes([number]) for number in range(17)}
    for name, body in bodies.items():
        world.store("us").add(f"store/data/{name}", body)
    done = world.run("u", "data", copy=True)
    assert done.ok and done.transferred == 17 and stored(world, "eu") == bodies


def test_deletions_of_a_large_mirror_come_after_all_batches_and_only_without_failures(tmp_path: Path) -> None:
    world = large(tmp_path)
    for number in range(9):
        world.store("eu").add(f"store/data/extra/{number}", b"x")
    mirror = TransferOptions(mirror=True, max_delete_percent=100.0)

    def refuse(request: Request) -> None:
        if request.operation == "put" and request.name.endswith("/022.txt"):
            raise StorageError("the service said no", status=500)

    world.store("eu").before = refuse
    failed = world.run("u", "data", options=mirror)
    assert [each.path for each in failed.failures] == ["data/2/022.txt"]
    assert (failed.transferred, failed.deleted, failed.exit_code) == (22, 0, 3)
    assert sum(name.startswith("extra/") for name in stored(world, "eu")) == 9

    world.store("eu").before = lambda _: None
    done = world.run("u", "data", options=mirror)
    assert (done.transferred, done.deleted, done.ok) == (1, 9, True)
    assert stored(world, "eu") == files(world)
    operations = [each.operation for each in world.store("eu").requests]
    assert operations.index("delete") > len(operations) - 1 - operations[::-1].index("put")


def test_too_many_deletions_of_a_large_mirror_are_refused_before_anything_moves(tmp_path: Path) -> None:
    world = large(tmp_path, count=4)
    for number in range(20):
        world.store("eu").add(f"store/data/extra/{number}", b"x")
    with pytest.raises(MirrorRefusedError, match="would delete 20 of 20 files"):
        world.run("u", "data", options=TransferOptions(mirror=True))
    assert len(stored(world, "eu")) == 20


def test_an_interrupted_large_transfer_reports_what_is_done_and_resumes(tmp_path: Path) -> None:
    world = large(tmp_path)

    def stop(request: Request) -> None:
        if request.operation == "put" and len(world.store("eu").blobs) >= 10:
            raise KeyboardInterrupt

    world.store("eu").before = stop
    with pytest.raises(
        TransferCancelledError, match=r"^stopped: 1[0-2] of 23 files are done and verified, 1[1-3] are left$"
    ) as stopped:
        world.run("u", "data")
    outcome = stopped.value.result
    assert isinstance(outcome, TransferResult) and outcome.receipt is not None
    assert json.loads(outcome.receipt.read_text())["interrupted"] is True
    world.store("eu").before = lambda _: None
    done = world.run("u", "data")
    assert done.ok and done.transferred + outcome.transferred == 23 and stored(world, "eu") == files(world)
