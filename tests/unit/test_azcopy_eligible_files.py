"""Which files azcopy carries, and which it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.azcopy.eligible_files import (
    action_refusal,
    cannot_carry,
    needs_list_of_files,
    refusal,
    unconfined_problem,
)
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.engines import MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import live_part

STORE = MemoryStore("one", {})
MIB = 1 << 20


def action(path: str, size: int = 1) -> FileAction:
    return FileAction(path, Action.TRANSFER, Reason.NEW, size)


def task(route: Route, *actions: FileAction, whole: bool = False, local: str = "/p/data") -> MoveTask:
    here, there = LocalLocation(Path(local)), OpenBlob(STORE, "x")
    source: OpenLocation = here if route is Route.UPLOAD else there
    destination: OpenLocation = here if route is Route.DOWNLOAD else OpenBlob(STORE, "y")
    return MoveTask(live_part(route, source, destination), actions, whole_folder=whole)


def why_not(given: MoveTask, *, confined: bool = True) -> str | None:
    return refusal(given, listed=needs_list_of_files(given, confined=confined))


@pytest.mark.parametrize("name", ["a", "*star*", "a;b", "-rf", "trail.", "é", "%41", "a#b?c", "a/b/c", "n" * 206, ""])
def test_most_names_are_carried_everywhere(name: str) -> None:
    for route in Route:
        assert cannot_carry(name, route) is None


@pytest.mark.parametrize("name", ["a\\b", "a//b", "a/", "../x", "a/../b", "./a", "a\x00b", "\udcfe"])
def test_some_are_carried_nowhere(name: str) -> None:
    for route in Route:
        assert cannot_carry(name, route)


def test_azcopys_temporary_name_limits_downloads() -> None:
    assert cannot_carry("d/" + "n" * 207, Route.DOWNLOAD)
    assert cannot_carry("d/" + "é" * 104, Route.DOWNLOAD)
    assert cannot_carry("n" * 255, Route.UPLOAD) is None


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\ufeffa"])
def test_a_list_of_files_holds_fewer_names(name: str) -> None:
    assert cannot_carry(name, Route.DOWNLOAD, listed=True)
    assert cannot_carry(name, Route.DOWNLOAD) is None
    assert action_refusal(task(Route.DOWNLOAD, action(name), action("b")), action(name), listed=True)
    assert action_refusal(task(Route.DOWNLOAD, action(name), whole=True), action(name), listed=False) is None


def test_any_set_of_files_can_be_uploaded() -> None:
    some = task(Route.UPLOAD, action("a"), action("b"))
    assert refusal(some, listed=needs_list_of_files(some, confined=False)) is None


@pytest.mark.parametrize("route", [Route.DOWNLOAD, Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT])
def test_part_of_a_remote_folder_is_for_azcopy_only_when_its_files_are_large(route: Route) -> None:
    assert why_not(task(route, action("a"), action("b")))
    assert why_not(task(route, action("a", 16 * MIB), action("b", 1))) is None
    assert why_not(task(route, action("a"), action("b"), whole=True)) is None
    assert why_not(task(route, action(""))) is None


def test_a_whole_folder_is_downloaded_by_its_names_where_azcopy_cannot_be_confined() -> None:
    small = task(Route.DOWNLOAD, action("a"), action("b"), whole=True)
    assert needs_list_of_files(small, confined=False)
    assert not needs_list_of_files(small, confined=True)
    assert why_not(small, confined=False)
    assert why_not(task(Route.DOWNLOAD, action("a", 16 * MIB), action("b", 1), whole=True), confined=False) is None
    assert not needs_list_of_files(task(Route.CROSS_ACCOUNT, action("a"), action("b"), whole=True), confined=False)
    assert not needs_list_of_files(task(Route.DOWNLOAD, action("")), confined=False)


def test_the_choice_of_engine_knows_what_a_list_costs() -> None:
    assert "Landlock" in (unconfined_problem(Route.DOWNLOAD, 1000, 1000, confined=False) or "")
    assert unconfined_problem(Route.DOWNLOAD, 1000, 1000, confined=True) is None
    assert unconfined_problem(Route.DOWNLOAD, 10, 10 * 16 * MIB, confined=False) is None
    assert unconfined_problem(Route.UPLOAD, 1000, 1000, confined=False) is None


def test_a_star_in_the_way_of_a_download() -> None:
    assert why_not(task(Route.DOWNLOAD, action("a"), whole=True, local="/p/*/data"))


def test_a_copy_cannot_rename() -> None:
    renamed = action("a")._replace(target="a.other")
    assert action_refusal(task(Route.CROSS_ACCOUNT, renamed, whole=True), renamed, listed=False)
    assert action_refusal(task(Route.UPLOAD, renamed, whole=True), renamed, listed=False) is None
