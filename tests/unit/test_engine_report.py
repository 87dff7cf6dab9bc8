"""Tasks and reports of engines: a file without a report has not moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import SilentListener
from blobsync.base.plan_reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.transfer.engines import CollectedReport, Engines, Moved, MoveTask
from tests.fakes.project_context import World, account, cluster

ACTION = FileAction("a", Action.TRANSFER, Reason.NEW, 3)


def test_a_report_keeps_all_that_it_hears() -> None:
    failure = FileFailure("data/a", FailureCode.AZCOPY_FAILED, "it gave up")
    report = CollectedReport()
    report.files_moved([Moved(ACTION)])
    report.file_failed(ACTION, failure)
    report.file_kept(ACTION, 2)
    report.stray("odd")
    report.azcopy_job("job-1")
    assert report == CollectedReport([Moved(ACTION)], [(ACTION, failure)], [(ACTION, 2)], ["odd"], ["job-1"])


def test_a_file_of_which_an_engine_says_nothing_more_moved_whole_and_was_not_seen() -> None:
    report = CollectedReport()
    report.files_moved([Moved(ACTION)])
    assert report.moved == [Moved(ACTION, source=None, destination=None, reused=0)]


def test_a_task_is_a_part_of_the_folder_and_a_first_try_unless_it_says_otherwise(tmp_path: Path) -> None:
    """azcopy moves a whole folder by its name, with whatever else is in it."""
    world = World(tmp_path / "project", cluster("eu", data=account("eu")))
    (world.root / "data").mkdir()
    (world.root / "data/a").write_bytes(b"aaa")
    (part,) = world.plan("u", "data").parts
    task = MoveTask(world.context().opened(part), part.actions)
    report = CollectedReport()
    DirectEngine().move(task, report, SilentListener())
    assert [moved.action for moved in report.moved] == list(part.actions)
    assert (task.whole_folder, task.cap_mbps, task.again) == (False, None, False)


@pytest.mark.parametrize(
    ("code", "first", "allowed", "second"),
    [
        (FailureCode.COPY_SOURCE_REFUSED, "direct", True, "relay"),
        (FailureCode.COPY_SOURCE_REFUSED, "direct", False, None),
        (FailureCode.COPY_SOURCE_REFUSED, "relay", False, "relay"),
        (FailureCode.CHANGED_WHILE_READ, "azcopy", False, "direct"),
        (FailureCode.BLOB_NOT_FOUND, "direct", True, None),
    ],
)
def test_only_what_is_allowed_to_or_has_before_goes_through_this_machine(
    code: FailureCode, first: str, allowed: bool, second: str | None
) -> None:
    engines = Engines({}, relay_allowed=True) if allowed else Engines({})
    assert engines.second(code, first) == second
