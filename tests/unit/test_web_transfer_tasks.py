"""A transfer started on the page: its states, from the plan to the result, and how it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import NothingMatchedError
from blobsync.plan.progress import Progress
from blobsync.plan.transfer_plan import Direction
from blobsync.project.api import Project
from blobsync.web.open_project import Source
from blobsync.web.transfer_tasks import TransferRequest, TransferTask, TransferTasks
from tests.fakes.opened_project import Opened
from tests.fakes.store import Request
from tests.waiting import wait_until

_DATA = TransferRequest(Direction.UP, ("data",))


class OpenedSource(Source):
    """Opens a project whose one container is in memory."""

    __slots__ = ("opened",)
    opened: Opened

    def open(self, cluster: str | None = None, **others: Any) -> Project:
        project: Project = self.opened.open()
        return project


class Page:
    """The transfers of the page, for one folder; ``ended`` counts those that are over."""

    def __init__(self, root: Path) -> None:
        self.opened = Opened(root)
        source = OpenedSource(root, root, None, "eu", {}, {})
        object.__setattr__(source, "opened", self.opened)
        self.ended: list[str] = []
        self.tasks = TransferTasks(source, lambda: self.ended.append("one"))

    def planned(self) -> TransferTask:
        task = self.tasks.begin(_DATA)
        assert wait_until(lambda: task.state != "planning")
        return task

    def carried_out(self) -> TransferTask:
        task = self.planned()
        self.tasks.carry_out(task)
        assert wait_until(lambda: bool(self.ended))
        return task


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path / "project")
    yield made
    made.opened.store.before = lambda request: None
    made.tasks.close()
    made.opened.project.close()


def test_a_plan_is_carried_out_once_with_its_progress_and_its_result(page: Page) -> None:
    page.opened.write("data/a", b"one")
    task = page.carried_out()
    assert (task.state, task.problem, page.opened.blobs()) == ("done", "", {"data/a": b"one"})
    assert task.result is not None and task.result.transferred == 1
    assert task.moving is not None and task.moving.bytes == 3 and task.points
    (entry,) = page.opened.project.history()
    assert (entry.result, entry.paths) == ("done", ("data",))
    page.tasks.carry_out(task)
    assert page.ended == ["one"] and len(page.opened.project.history()) == 1


def test_what_changed_since_the_plan_is_named_and_the_rest_moves(page: Page) -> None:
    page.opened.write("data/a", b"one")
    gone = page.opened.write("data/b", b"two")
    task = page.planned()
    gone.unlink()
    page.tasks.carry_out(task)
    assert wait_until(lambda: bool(page.ended))
    assert task.state == "partial" and task.result is not None
    assert [each.path for each in task.result.failures] == ["data/b"] and page.opened.blobs() == {"data/a": b"one"}


def test_a_plan_that_cannot_be_made_is_refused_and_a_bug_is_said(page: Page) -> None:
    refused = page.tasks.begin(TransferRequest(Direction.UP, ("data/nowhere",)))
    assert wait_until(lambda: refused.state != "planning")
    assert refused.state == "refused" and "nowhere" in refused.problem
    page.tasks.carry_out(refused)
    assert refused.state == "refused"
    page.opened.write("data/a", b"one")

    def fails(request: Request) -> None:
        if request.operation.startswith("put"):
            raise RuntimeError("no such thing")

    page.opened.store.before = fails
    task = page.carried_out()
    assert task.state == "failed" and task.problem.startswith("a bug in blobsync: RuntimeError")


@pytest.mark.parametrize("by", ["cancel", "close"])
def test_a_transfer_is_stopped_as_by_ctrl_c(page: Page, by: str) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.operation.startswith("put"):
            reached.set()
            assert go_on.wait(60)

    page.opened.write("data/a", b"one")
    page.opened.store.before = hold
    task = page.planned()
    page.tasks.carry_out(task)
    assert reached.wait(60)
    if by == "cancel":
        page.tasks.cancel(task)
        assert task.state == "stopping"
        page.tasks.cancel(task)
        go_on.set()
    else:
        threading.Timer(0.1, go_on.set).start()
        page.tasks.close()
    assert wait_until(lambda: bool(page.ended))
    assert task.state == "cancelled" and task.problem.startswith("stopped: "), task.problem
    assert [entry.result for entry in page.opened.project.history()] == ["cancelled"]


def test_an_expired_plan_says_what_to_do(page: Page) -> None:
    with pytest.raises(NothingMatchedError, match="no longer has this plan"):
        page.tasks.find("0")


def test_the_rate_curve_of_a_long_transfer_has_bounded_size() -> None:
    task = TransferTask(_DATA, "aml", began=time.time())
    for number in range(2000):
        task.add_progress(Progress("moving", 1.0, bytes=number, bytes_expected=2000, rate=1.0))
    assert len(task.points) <= 240
    assert task.points[-1][1] == 1999
    assert task.points[0][1] == 0
