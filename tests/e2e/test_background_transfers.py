"""Transfers that a program starts in the background: stopped in the middle and completed by a second run, exact by
SHA-256, with every engine of this machine; and a command that another process stops."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import pytest

from blobsync import Project as Opened
from blobsync import Transfer
from tests.e2e.world import Container, Project, random_files, read_tree, write_tree
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

_FILES = random_files(20261123, 60, [9 << 20] * 2)
_ENGINES: dict[str, dict[str, Any]] = {
    "direct": {"engine": "direct"},
    "azcopy": {"engine": "azcopy"},
    "processes": {"processes": 2},
}
_SECONDS = 120.0


@pytest.fixture
def opened(with_azcopy: Project, container: Container) -> Opened:
    write_tree(with_azcopy.data, _FILES)
    with_azcopy.configure(container)
    return Opened.open(with_azcopy.root, environ={**os.environ, **with_azcopy.environ})


def _is_moving(transfer: Transfer) -> bool:
    return transfer.done() or transfer.progress.bytes > 1 << 20


def _stopped(transfer: Transfer) -> None:
    """It was, and says what is done."""
    with pytest.raises(CancelledError, match="stopped: "):
        transfer.result(_SECONDS)
    found = transfer.partial_result
    assert found is not None and found.interrupted and found.transferred < len(_FILES)


@pytest.mark.parametrize(
    "name", ["processes", *(pytest.param(name, marks=pytest.mark.soak) for name in ("direct", "azcopy"))]
)
def test_an_upload_that_is_cancelled_in_the_middle_is_completed_by_the_same_call(
    opened: Opened, container: Container, name: str
) -> None:
    options = _ENGINES[name]
    with opened as project:
        transfer = project.start_upload("data", cap_mbps=16, **options)
        with pytest.raises(FutureTimeoutError):
            transfer.result(0.01)
        assert wait_until(lambda: _is_moving(transfer), seconds=_SECONDS, pause=0.02)
        assert transfer.cancel(), transfer.exception()
        _stopped(transfer)
        left = container.contents("data/")
        assert left.items() < _FILES.hashes.items(), "whole files only"
        result = project.start_upload("data", **options).result(_SECONDS)
        assert result.ok and result.verified == len(_FILES)
        assert [entry.result for entry in project.history()] == ["done", "cancelled"]
    assert container.contents("data/") == _FILES.hashes


def test_a_download_that_is_cancelled_leaves_whole_files_and_is_completed_by_the_same_call(
    opened: Opened, project: Project
) -> None:
    with opened as here:
        assert here.upload("data").ok
        for name in _FILES:
            (project.data / name).unlink()
        transfer = here.start_download("data", engine="direct", cap_mbps=16)
        assert wait_until(lambda: _is_moving(transfer), seconds=_SECONDS, pause=0.02)
        transfer.cancel()
        _stopped(transfer)
        whole = {name: sha for name, sha in read_tree(project.data).items() if name in _FILES.hashes}
        assert whole.items() < _FILES.hashes.items()
        assert here.start_download("data").result(_SECONDS).ok
    assert read_tree(project.data) == _FILES.hashes


def test_a_task_of_asyncio_that_is_cancelled_stops_its_upload(opened: Opened, container: Container) -> None:
    async def run(project: Opened) -> Transfer:
        transfer = project.start_upload("data", engine="direct", cap_mbps=16)
        task = asyncio.ensure_future(asyncio.wait_for(asyncio.wrap_future(transfer), _SECONDS))
        while not _is_moving(transfer):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return transfer

    async def again(project: Opened) -> int:
        return (await asyncio.wrap_future(project.start_upload("data"))).verified

    with opened as project:
        _stopped(asyncio.run(run(project)))
        assert container.contents("data/").items() < _FILES.hashes.items()
        assert asyncio.run(again(project)) == len(_FILES)
    assert container.contents("data/") == _FILES.hashes


@pytest.mark.parametrize(
    "words",
    [("--engine", "azcopy"), ("--processes", "2"), pytest.param(("--engine", "direct"), marks=pytest.mark.soak)],
)
def test_a_command_is_stopped_from_another_process_without_a_signal(
    opened: Opened, project: Project, container: Container, words: tuple[str, ...]
) -> None:
    with opened as here:
        process = project.start("u", "data", "--cap-mbps", "16", *words)
        moving = _first(here, lambda each: not each.planning and each.progress.bytes > 1 << 20)
        here.stop(moving)
        done = project.finish(process)
        assert done.code == 130 and "stopped: " in done.err, str(done)
        assert here.running() == {} and here.find_transfer(moving).result == "cancelled"
        assert container.contents("data/").items() < _FILES.hashes.items()
        assert project.run("u", "data", *words).code == 0
    assert container.contents("data/") == _FILES.hashes


def _first(project: Opened, enough: Callable[[Any], bool]) -> str:
    found: list[str] = []

    def look() -> bool:
        found.extend(id for id, each in project.running().items() if enough(each))
        return bool(found)

    assert wait_until(look, seconds=_SECONDS, pause=0.05)
    return found[0]
