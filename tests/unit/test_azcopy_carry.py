"""What is given to azcopy, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.azcopy.carry import action_refusal, cannot_carry, refusal
from blobsync.engines import LiveEnd, LocalEnd, MoveTask, RemoteEnd
from blobsync.plan import Action, FileAction, Reason, Route
from tests.fakes.store import MemoryStore

STORE = MemoryStore("one", {})
MIB = 1 << 20


def action(path: str, size: int = 1) -> FileAction:
    return FileAction(path, Action.TRANSFER, Reason.NEW, size)


def task(route: Route, *actions: FileAction, whole: bool = False, local: str = "/p/data") -> MoveTask:
    here, there = LocalEnd(Path(local)), RemoteEnd(STORE, "x")
    source: LiveEnd = here if route is Route.UPLOAD else there
    destination: LiveEnd = here if route is Route.DOWNLOAD else RemoteEnd(STORE, "y")
    return MoveTask(route, "data/x", source, destination, actions, whole_folder=whole)


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
    assert action_refusal(task(Route.DOWNLOAD, action(name), action("b")), action(name))
    assert action_refusal(task(Route.DOWNLOAD, action(name), whole=True), action(name)) is None


def test_any_set_of_files_can_be_uploaded() -> None:
    assert refusal(task(Route.UPLOAD, action("a"), action("b"))) is None


@pytest.mark.parametrize("route", [Route.DOWNLOAD, Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT])
def test_part_of_a_remote_folder_is_for_azcopy_only_when_its_files_are_large(route: Route) -> None:
    assert refusal(task(route, action("a"), action("b")))
    assert refusal(task(route, action("a", 16 * MIB), action("b", 1))) is None
    assert refusal(task(route, action("a"), action("b"), whole=True)) is None
    assert refusal(task(route, action(""))) is None


def test_a_star_in_the_way_of_a_download() -> None:
    assert refusal(task(Route.DOWNLOAD, action("a"), whole=True, local="/p/*/data"))


def test_a_copy_cannot_rename() -> None:
    renamed = replace(action("a"), target="a.other")
    assert action_refusal(task(Route.CROSS_ACCOUNT, renamed, whole=True), renamed)
    assert action_refusal(task(Route.UPLOAD, renamed, whole=True), renamed) is None
