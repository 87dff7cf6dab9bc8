"""The end of a plan that is carried out in batches: one result and one receipt for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, FileFailure, StorageError, TransferCancelledError
from blobsync.base.events import Listener
from blobsync.direct.engine import DirectEngine
from blobsync.local.sorted_runs import Spill
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import CollectedReport, Engine, Engines, MoveReport, MoveTask
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import Request
from tests.fakes.tasks import RecordingListener

FILES = 11
MIRROR = TransferOptions(engine="direct", mirror=True, max_delete_percent=100.0)
KEPT = "extra files kept: nothing is deleted after a transfer with failures"
Batches = Callable[[Iterator[TransferPlan]], Iterator[TransferPlan]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project whose plans are carried out three files at a time."""
    world = World(tmp_path / "project", cluster("eu", data=account("eu")))
    world.spill = Spill(most=3)
    (world.root / "data").mkdir()
    for number in range(FILES):
        (world.root / f"data/{number:02}").write_bytes(b"x" * 10)
    return world


def planned(world: World, options: TransferOptions = MIRROR, command: str = "u") -> TransferPlan:
    plan = world.plan(command, "data", options=options)
    assert plan.is_large
    return plan


def carry(
    world: World,
    plan: TransferPlan,
    heard: RecordingListener | None = None,
    *,
    engine: Callable[[], Engine] = DirectEngine,
    receipts: Path | None = None,
) -> TransferResult:
    engines = Engines({"direct": engine})
    return carry_out(plan, world.context(), engines, heard or RecordingListener(), receipts, world.spill)


def with_batches(plan: TransferPlan, change: Batches) -> TransferPlan:
    """The same plan, whose batches are what ``change`` makes of them."""

    class Changed(TransferPlan):
        def batches(self) -> Iterator[TransferPlan]:
            return change(plan.batches())

    return Changed(**{each.name: getattr(plan, each.name) for each in fields(TransferPlan)})


def add_extras(world: World, count: int) -> None:
    for number in range(count):
        world.store("eu").add(f"store/data/extra/{number}", b"x")


def extras(world: World) -> int:
    return sum("/extra/" in name for name in world.store("eu").blobs)


def read(folder: Path) -> dict[str, Any]:
    (file,) = folder.iterdir()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    folder = tmp_path / "receipts"
    folder.mkdir()
    return folder


class Reuses:
    """The direct engine, which finds four bytes of each file at the destination, and says that it is azcopy's job."""

    name = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        done = CollectedReport()
        DirectEngine().move(task, done, listener)
        for moved in done.moved:
            report.files_moved([moved._replace(reused=4)])
        report.azcopy_job(f"job of {len(task.actions)}")


def test_the_numbers_of_all_batches_are_in_one_result(world: World, receipts: Path) -> None:
    heard = RecordingListener()
    result = carry(world, planned(world), heard, engine=Reuses, receipts=receipts)
    assert (result.transferred, result.verified, result.deleted) == (FILES, FILES, 0)
    assert (result.bytes_transferred, result.bytes_reused) == (FILES * 6, FILES * 4)
    assert result.azcopy_job_ids == ("job of 3", "job of 3", "job of 3", "job of 2")
    assert 0 <= result.seconds < 600
    # Each batch would announce its own files once more.
    assert (heard.expected, heard.notes) == ([(FILES, FILES * 10)], [])
    found = read(receipts)
    assert (found["interrupted"], found["transferred"], len(found["files"])) == (False, FILES, FILES)


def test_what_is_there_already_is_verified_and_nothing_is_left_of_it_on_the_disk(world: World, receipts: Path) -> None:
    assert carry(world, planned(world)).receipt is None
    again = carry(world, planned(world), receipts=receipts)
    assert (again.ok, again.transferred, again.verified, again.receipt) == (True, 0, FILES, None)
    assert list(receipts.iterdir()) == []


def test_deletions_alone_have_a_receipt(world: World, receipts: Path) -> None:
    carry(world, planned(world))
    add_extras(world, 5)
    result = carry(world, planned(world), receipts=receipts)
    assert (result.ok, result.transferred, result.deleted, extras(world)) == (True, 0, 5, 0)
    assert result.receipt is not None and len(read(receipts)["deleted_files"]) == 5


def test_failures_alone_have_a_receipt_and_keep_what_is_extra(world: World, receipts: Path) -> None:
    def refuse(request: Request) -> None:
        if request.operation == "put":
            raise StorageError("the service said no", status=400)

    add_extras(world, 5)
    plan = planned(world)
    world.store("eu").before = refuse
    heard = RecordingListener()
    result = carry(world, plan, heard, receipts=receipts)
    assert (len(result.failures), result.verified, result.deleted, extras(world)) == (FILES, 0, 0, 5)
    assert heard.notes == [f"5 {KEPT}"]
    assert len(read(receipts)["failures"]) == FILES


def test_nothing_is_said_of_extra_files_where_there_are_none(world: World) -> None:
    heard = RecordingListener()
    assert len(carry(world, planned(world), heard, engine=lambda: Strays(1)).failures) == 1
    assert heard.notes == []


def test_what_could_not_be_read_here_keeps_what_is_extra_there(world: World) -> None:
    """The blob may be the same file under another name."""
    add_extras(world, 5)
    unreadable = FileFailure("data/y", FailureCode.UNREADABLE, "it cannot be read")
    heard = RecordingListener()
    result = carry(world, replace(planned(world), unreadable=(unreadable,)), heard)
    assert (result.failures, result.transferred, result.deleted, extras(world)) == ((unreadable,), FILES, 0, 5)
    assert heard.notes == [f"5 {KEPT}"]


def test_versions_that_come_to_the_source_count_as_planned(world: World) -> None:
    for number in range(FILES):
        world.store("eu").add(f"store/data/{number:02}", b"theirs")
    plan = planned(world, TransferOptions(engine="direct", keep="remote"))
    assert plan.count(Action.ADOPT) == FILES
    result = carry(world, plan)
    assert (result.failures, result.transferred) == ((), FILES)
    assert {file.read_bytes() for file in (world.root / "data").iterdir()} == {b"theirs"}


class Strays:
    """The direct engine, which reports so many unplanned files with the first one."""

    name = "direct"

    def __init__(self, count: int) -> None:
        self._count = count

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        DirectEngine().move(task, report, listener)
        for _ in range(self._count if any(each.path == "00" for each in task.actions) else 0):
            report.stray("y")


@pytest.mark.parametrize(("failures", "moved"), [(99_999, FILES), (100_000, 3)])
def test_after_a_hundred_thousand_failures_no_batch_begins_and_that_is_reported(
    world: World, failures: int, moved: int
) -> None:
    add_extras(world, 5)
    result = carry(world, planned(world), engine=lambda: Strays(failures))
    assert (result.transferred, result.deleted, extras(world)) == (moved, 0, 5)
    rest = result.failures[failures:]
    if moved == FILES:
        assert rest == ()
        return
    (said,) = rest
    assert (said.path, said.code) == ("data", "not_reported")
    assert said.message == "data: 8 more files not tried after 100,000 failures"
    assert said.hint == "fix the cause, then run the same command again"


def test_files_that_are_not_read_back_from_the_plan_are_no_success(world: World) -> None:
    def lose_one(batches: Iterator[TransferPlan]) -> Iterator[TransferPlan]:
        next(batches, None)
        yield from batches

    result = carry(world, with_batches(planned(world), lose_one))
    assert (result.ok, result.transferred, [each.code for each in result.failures]) == (False, 8, ["account_wrong"])
    assert result.failures[0].message == (
        "data: 11 files planned, 8 were read back from the plan: that does not add up"
    )


def test_a_stop_between_two_batches_counts_those_that_ended(world: World, receipts: Path) -> None:
    def end(batches: Iterator[TransferPlan]) -> Iterator[TransferPlan]:
        yield next(batches)
        raise KeyboardInterrupt

    with pytest.raises(TransferCancelledError) as stopped:
        carry(world, with_batches(planned(world), end), receipts=receipts)
    assert stopped.value.message == "stopped: 3 of 11 files are done and verified, 8 are left"
    result = stopped.value.result
    assert isinstance(result, TransferResult)
    assert (result.interrupted, result.transferred, result.exit_code) == (True, 3, 130)
    assert (read(receipts)["interrupted"], len(read(receipts)["files"])) == (True, 3)


def test_an_interrupt_while_it_deletes_leaves_a_receipt_of_what_is_not_known(world: World, receipts: Path) -> None:
    carry(world, planned(world))
    add_extras(world, 5)
    plan = planned(world)

    def interrupt(request: Request) -> None:
        if request.operation == "delete":
            raise KeyboardInterrupt

    world.store("eu").before = interrupt
    with pytest.raises(TransferCancelledError):
        carry(world, plan, receipts=receipts)
    found = read(receipts)
    assert (found["interrupted"], found["deleted_files"]) == (True, [])
    assert [each["path"] for each in found["deletions_not_known"]] == [f"data/extra/{number}" for number in range(3)]
