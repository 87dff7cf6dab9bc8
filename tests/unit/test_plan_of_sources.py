"""Plans from a source outside Azure: what is the same, by which way the rest goes, and what cannot be copied."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import NothingMatchedError, StorageError, UsageError
from blobsync.base.plan_reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.local.index import Index
from blobsync.local.resume_records import INTENTS_FOLDER, WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.plan.pairing import Pair
from blobsync.plan.survey import complete
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.project.killed_runs import record_killed_runs
from blobsync.store.protocol import Checksum
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.project_context import SILENT, World, account, bucket, cluster
from tests.fakes.store import Request
from tests.fakes.tasks import remote_state


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("laion", data=bucket("laion")))


def add(world: World, name: str, body: bytes) -> str:
    world.source("laion").add(f"store/data/x/{name}", body)
    return f"store/data/x/{name}"


def plan(world: World, **options: Any) -> TransferPlan:
    return world.plan("u", "data/x", copy=True, options=TransferOptions(**options))


def actions(made: TransferPlan) -> dict[str, Action]:
    return {action.path: action.action for _, action in made.each()}


def test_the_service_fetches_and_the_plan_says_so(world: World) -> None:
    add(world, "a", b"a")
    made = plan(world)
    assert made.engine.name == "direct" and "azcopy is not used" in made.engine.why
    assert made.processes.count == plan(world, processes=4).processes.count == 1 and not made.warnings
    result = world.run("u", "data/x", copy=True)
    assert result.ok and result.transferred == 1 and world.store("eu").body("store/data/x/a") == b"a"
    assert actions(plan(world)) == {"a": Action.UNCHANGED}


def test_equal_content_is_found_by_asking_about_objects_of_equal_size_alone(world: World) -> None:
    same = add(world, "same", b"same")
    add(world, "other", b"here")
    add(world, "longer", b"longer one")
    for name, body in {"same": b"same", "other": b"elsw", "longer": b"long"}.items():
        world.store("eu").add(f"store/data/x/{name}", body)
    source = world.source("laion")
    made = plan(world)
    assert actions(made) == {"same": Action.UNCHANGED, "other": Action.CONFLICT, "longer": Action.CONFLICT}
    assert {request.name for request in source.inner.asked("head")} == {"store/data/x", same, "store/data/x/other"}
    assert not source.inner.asked("get")


@pytest.mark.parametrize("change", ["replaced", "deleted", "refused"])
def test_of_another_version_than_the_listed_one_the_md5_is_not_believed(world: World, change: str) -> None:
    name = add(world, "a", b"mine")
    world.store("eu").add("store/data/x/a", b"elsw")
    source = world.source("laion")

    def meanwhile(request: Request) -> None:
        if request != Request("head", name):
            return
        del source.inner.blobs[name]
        if change == "refused":
            raise StorageError("not now")
        if change == "replaced":
            source.add(name, b"elsw")

    source.inner.before = meanwhile
    assert actions(plan(world)) == {"a": Action.CONFLICT}


def test_an_object_whose_listing_has_an_md5_is_not_asked_about(world: World, tmp_path: Path) -> None:
    name = add(world, "a", b"same")
    made, state = plan(world), remote_state(world.source("laion").inner, name)
    live, records = world.context(copy=True).opened(made.parts[0]), Index(tmp_path / "index").pair("laion", "eu")
    world.source("laion").inner.requests.clear()
    (pair,) = complete(iter([Pair("a", state, state)]), live, records, compare_content=False)
    assert pair == Pair("a", state, state) and not world.source("laion").inner.requests


def test_without_an_md5_it_is_not_known(world: World) -> None:
    world.source("laion").hides_md5.add(add(world, "a", b"same"))
    world.store("eu").add("store/data/x/a", b"same")
    (action,) = [action for _, action in plan(world).each()]
    assert (action.action, action.reason) == (Action.CONFLICT, Reason.NO_MD5)
    assert actions(plan(world, compare_content=True)) == {"a": Action.UNCHANGED}


def test_a_recorded_pair_needs_no_question(world: World) -> None:
    # Else the first object and its copy would have the same ETag.
    world.source("laion").add("elsewhere", b"")
    world.source("laion").hides_md5.add(add(world, "a", b"a" * 100))
    result = world.run("u", "data/x", copy=True)
    assert result.ok and result.not_compared == 1
    world.source("laion").inner.requests.clear()
    assert actions(plan(world)) == {"a": Action.UNCHANGED}
    assert [each.name for each in world.source("laion").inner.asked("head")] == ["store/data/x"]
    add(world, "a", b"b" * 100)
    assert actions(plan(world)) == {"a": Action.TRANSFER}


def test_an_object_that_was_written_again_as_it_was_is_not_copied_again(world: World) -> None:
    add(world, "a", b"a")
    assert world.run("u", "data/x", copy=True).ok
    add(world, "a", b"a")
    assert actions(plan(world)) == {"a": Action.UNCHANGED}


def test_a_recorded_download_needs_no_question(world: World) -> None:
    here = replace(world, here=world.there, there=None)  # type: ignore[arg-type]
    add(world, "a", b"a" * 100)
    assert here.run("d", "data/x").ok
    world.source("laion").inner.requests.clear()
    assert actions(here.plan("d", "data/x")) == {"a": Action.UNCHANGED}
    assert [each.name for each in world.source("laion").inner.asked("head")] == ["store/data/x"]


@pytest.mark.parametrize(
    ("far", "hint"),
    [
        ("we3", "'blobsync -c we3 ls' shows"),
        ("s3://laion/a/b", "blobsync ls data/x --source s3://laion/a, with"),
        ("s3://laion", "blobsync ls data/x --source s3://laion, with"),
        ("https://h.example/f", "check https://h.example/f"),
    ],
)
def test_a_source_that_is_not_there_is_looked_for_at_the_source(world: World, far: str, hint: str) -> None:
    assert world.there is not None
    world.there = world.there._replace(name=far)
    with pytest.raises(NothingMatchedError) as nothing:
        plan(world)
    assert hint in str(nothing.value.hint)


def test_azcopy_does_not_read_sources(world: World) -> None:
    add(world, "a", b"a")
    with pytest.raises(UsageError, match="does not read"):
        plan(world, engine="azcopy")


def test_nodes_spread_what_the_service_fetches_and_nothing_else(world: World) -> None:
    add(world, "a", b"a")
    made = plan(world, nodes=2)
    assert made.engine.name == "direct" and actions(made) == {"a": Action.TRANSFER}
    here = replace(world, here=world.there, there=None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="laion are not spread over nodes"):
        here.plan("d", "data/x", options=TransferOptions(nodes=2))
    inside = replace(world, why_not_fetched="it is inside your network")
    assert plan(inside).engine.name == "relay" and plan(inside).engine.why == "it is inside your network"
    with pytest.raises(UsageError, match="go through this machine: it is inside your network"):
        plan(inside, nodes=2)


def test_a_long_url_is_named_in_the_plan(world: World) -> None:
    add(world, "a", b"a")
    add(world, "\u00e9" * 400, b"long")
    assert any("1 file goes through this machine" in warning for warning in plan(world).warnings)
    assert not plan(world, engine="relay").warnings


@pytest.mark.parametrize("name", ["a/../b", "x\\y", "tab\tname", "n" * 1020])
def test_names_that_azure_cannot_hold_are_named_and_the_others_copied(world: World, name: str) -> None:
    add(world, name, b"odd")
    add(world, "good", b"good")
    made = plan(world)
    assert [failure.path for failure in made.unreadable] == [f"data/x/{name}"]
    assert actions(made) == {"good": Action.TRANSFER}


def test_archived_objects_are_named_and_keep_a_mirror_from_deleting(world: World) -> None:
    world.source("laion").archived[add(world, "cold", b"cold")] = "it is in GLACIER"
    add(world, "warm", b"warm")
    world.store("eu").add("store/data/x/extra", b"extra")
    made = plan(world, mirror=True, max_delete_percent=100.0)
    assert [failure.path for failure in made.unreadable] == ["data/x/cold"]
    assert made.refusals and made.refusals[0].code == "mirror_refused"
    assert "cold" not in actions(made)
    assert not plan(world, exclude=("cold",)).unreadable
    assert actions(world.plan("u", "data/x/warm", copy=True)) == {"": Action.TRANSFER}
    with pytest.raises(StorageError, match="GLACIER"):
        world.plan("u", "data/x/cold", copy=True)


def test_a_listing_that_breaks_off_is_no_plan(world: World) -> None:
    for number in range(3):
        add(world, f"f{number}", b"")

    def fail(request: Request) -> None:
        if request.operation == "list":
            raise StorageError("broke off")

    world.source("laion").inner.before = fail
    with pytest.raises(StorageError, match="broke off"):
        plan(world, mirror=True)


def test_nothing_is_copied_into_a_source(tmp_path: Path) -> None:
    world = World(tmp_path / "project", cluster("laion", data=bucket("laion")), cluster("eu", data=account("eu")))
    world.store("eu").add("store/data/x/a", b"a")
    result = world.run("u", "data/x", copy=True)
    assert not result.ok and "is a source" in result.failures[0].message
    assert not world.source("laion").inner.blobs
    for keep in ("local", "remote", "both"):
        (world.root / "data/x").mkdir(parents=True, exist_ok=True)
        (world.root / "data/x/b").write_bytes(b"mine")
        world.source("laion").add("store/data/x/b", b"theirs")
        kept = world.run("d", "data/x", options=TransferOptions(keep=keep))
        assert world.source("laion").inner.body("store/data/x/b") == b"theirs", kept


def test_downloads_compare_what_the_source_keeps(world: World) -> None:
    there = replace(world, here=world.there, there=None)  # type: ignore[arg-type]
    large = bytes(range(256)) * 50_000
    add(world, "a", b"small")
    world.source("laion").hides_md5.add(add(world, "b", b"unknown"))
    add(world, "large", large)
    world.source("laion").checksums[add(world, "sha", b"sha")] = Checksum("sha256", hashlib.sha256(b"sha").digest())
    result = there.run("d", "data/x")
    assert result.ok and result.not_compared == 1
    assert (world.root / "data/x/large").read_bytes() == large


def killed(world: World, state: StateDir) -> None:
    """Copy everything, and keep only the intents, as a killed run does."""
    intents, context = WriteIntents(state), world.context(copy=True)
    for part in plan(world).parts:
        live, report = context.opened(part), CollectedReport()
        DirectEngine(intents=intents).move(MoveTask(live, tuple(part.actions)), report, SILENT)
        assert not report.failed
    for file in tuple((state.root / INTENTS_FOLDER).iterdir()):
        shutil.copy(file, file.with_name(f"0{file.name}"))
    intents.forget()


def test_a_second_run_reads_a_blob_that_has_no_md5_where_the_object_has_one(world: World, tmp_path: Path) -> None:
    state, body = StateDir(tmp_path), b"b" * 100
    name = add(world, "a", body)
    world.source("laion").hides_md5.add(name)
    killed(world, state)
    world.source("laion").hides_md5.clear()
    assert record_killed_runs(plan(world), world.context(copy=True), state) == 1
    assert actions(plan(world)) == {"a": Action.UNCHANGED}


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_second_run_knows_what_a_killed_one_has_copied(world: World, tmp_path: Path, *, with_md5: bool) -> None:
    state, name = StateDir(tmp_path), add(world, "a", b"body")
    if not with_md5:
        world.source("laion").hides_md5.add(name)
    killed(world, state)
    before = plan(world)
    assert actions(before) == {"a": Action.UNCHANGED if with_md5 else Action.CONFLICT}
    assert record_killed_runs(before, world.context(copy=True), state) == (0 if with_md5 else 1)
    assert actions(plan(world)) == {"a": Action.UNCHANGED}


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.store("eu").add("store/data/x/a", b"his!", with_md5=False),
        lambda world: world.source("laion").add("store/data/x/a", b"next"),
        lambda world: world.source("laion").add("store/data/x/a", b"longer"),
    ],
)
def test_what_is_not_equal_after_a_kill_stays_a_conflict(
    world: World, tmp_path: Path, change: Callable[[World], object]
) -> None:
    state = StateDir(tmp_path)
    world.source("laion").hides_md5.add(add(world, "a", b"body"))
    killed(world, state)
    change(world)
    assert record_killed_runs(plan(world), world.context(copy=True), state) == 0
    assert actions(plan(world)) == {"a": Action.CONFLICT}


def test_nothing_is_read_after_a_kill_that_no_run_was_about_to_write(world: World, tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    world.source("laion").hides_md5.add(add(world, "a", b"body"))
    world.store("eu").add("store/data/x/a", b"body", with_md5=False)
    assert record_killed_runs(plan(world), world.context(copy=True), state) == 0
    assert not world.source("laion").inner.asked("get")


def test_what_cannot_be_read_after_a_kill_stays_a_conflict(world: World, tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    world.source("laion").hides_md5.add(add(world, "a", b"body"))
    killed(world, state)

    def refuse(request: Request) -> None:
        if request.operation == "get":
            raise StorageError("not now")

    world.source("laion").inner.before = refuse
    assert record_killed_runs(plan(world), world.context(copy=True), state) == 0
    assert actions(plan(world)) == {"a": Action.CONFLICT}
