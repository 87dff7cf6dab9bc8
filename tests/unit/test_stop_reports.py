"""The message after Ctrl-C: every file and every byte is in exactly one of the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Note,
    WorkerMoved,
)
from blobsync.plan.transfer_options import EngineName, TransferOptions
from blobsync.plan.transfer_plan import TransferPlan
from blobsync.transfer.carry_out import Arrived, ByteTally, cancelled
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import Ledger
from tests.fakes.project_context import World

SIZES = {"a": 1000, "b": 20, "c": 3}


def planned(world: World, command: str, *names: str, engine: EngineName = "direct") -> tuple[TransferPlan, Ledger]:
    """These files on their way, and the account of them."""
    copy = command == "copy"
    for name in names:
        if command == "u":
            file = world.root / "data" / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"x" * SIZES[name])
        else:
            world.store("us" if copy else "eu").add(f"store/data/{name}", b"x" * SIZES[name])
    options = TransferOptions(engine=engine)
    plan = world.plan("u" if copy else command, "data", options=options, copy=copy)
    context = world.context(copy=copy)
    (part,) = plan.parts
    return plan, Ledger(context.opened(part), context.records(part.key))


def said(plan: TransferPlan, ledger: Ledger, there: int = 0, *, verified: str = "", pending: str = "") -> str:
    """The message, of so many bytes that moved or were there."""
    moved = {action.path: Moved(action, source=action.source) for action in ledger.part.actions}
    for name in verified:
        ledger.verified[name] = moved[name]
    for name in pending:
        ledger.pending[name] = moved[name]
    error = cancelled(plan, Arrived().and_also([ledger]), there)
    assert error.hint == "run the same command again: verified files are skipped"
    return error.message


@pytest.mark.parametrize(
    ("names", "verified", "pending", "message"),
    [
        ("a", "", "", "stopped: 0 of 1 file is done and verified, 1 is left"),
        ("ab", "", "", "stopped: 0 of 2 files are done and verified, 2 are left"),
        ("abc", "a", "", "stopped: 1 of 3 files is done and verified, 2 are left"),
        ("abc", "ab", "", "stopped: 2 of 3 files are done and verified, 1 is left"),
        ("abc", "a", "b", "stopped: 1 of 3 files is done and verified, 1 moved but not yet verified, 1 is left"),
        ("abc", "", "abc", "stopped: 0 of 3 files are done and verified, 3 moved but not yet verified, 0 are left"),
    ],
)
def test_each_file_is_in_one_of_the_numbers(
    world: World, names: str, verified: str, pending: str, message: str
) -> None:
    plan, ledger = planned(world, "u", *names)
    there = sum(SIZES[name] for name in verified + pending)
    assert said(plan, ledger, there, verified=verified, pending=pending) == message


@pytest.mark.parametrize(
    ("command", "engine", "words"),
    [
        ("u", "direct", "; 1 B of unfinished files were sent and will be sent again"),
        ("d", "direct", "; 1 B of unfinished files were fetched and will be fetched again"),
        ("copy", "direct", "; 1 B of unfinished files were copied and will be copied again"),
        ("u", "azcopy", "; up to 1 B of unfinished files were sent and will be sent again"),
    ],
)
def test_bytes_of_no_file_that_is_there_move_again(world: World, command: str, engine: EngineName, words: str) -> None:
    plan, ledger = planned(world, command, "a", "b", "c", engine=engine)
    assert said(plan, ledger, 1021, verified="a", pending="b").endswith(f", 1 is left{words}")


def test_nothing_moves_again_where_what_moved_is_there(world: World) -> None:
    plan, ledger = planned(world, "u", "a", "b", "c")
    # azcopy's totals come late.
    for there in (0, 1019, 1020):
        assert said(plan, ledger, there, verified="a", pending="b").endswith(", 1 is left")


def test_what_is_kept_does_not_move_again(world: World) -> None:
    plan, ledger = planned(world, "u", "a", "b")
    ledger.kept["a"] = 600
    kept = "600 B of unfinished files are kept, and the next run resumes from there"
    start = "stopped: 1 of 2 files is done and verified, 1 is left"
    assert said(plan, ledger, 620, verified="b") == f"{start}; {kept}"
    assert said(plan, ledger, 700, verified="b").startswith(f"{start}; {kept}; 80 B of")


def test_a_file_counts_as_large_as_it_was_when_it_moved(world: World) -> None:
    plan, ledger = planned(world, "u", "a", "b")
    (one, two) = ledger.part.actions
    assert one.source is not None
    grown = replace(one.source, size=5000)
    ledger.verified["a"] = Moved(one, source=grown)
    # Of whose source nothing is known any more, the plan knows the size.
    ledger.verified["b"] = Moved(two)
    assert (
        cancelled(plan, Arrived().and_also([ledger]), 5020).message
        == "stopped: 2 of 2 files are done and verified, 0 are left"
    )
    ledger.verified["b"] = Moved(two._replace(source=None))
    assert cancelled(plan, Arrived().and_also([ledger]), 5021).message.endswith(
        "; 1 B of unfinished files were sent and will be sent again"
    )


def test_the_bytes_that_move_and_those_that_need_not_are_added_up() -> None:
    tally = ByteTally()
    assert tally.bytes == 0
    for event in (BytesMoved(5), BytesMoved(-2), BytesReused(7), BytesReused(1), WorkerMoved("node", 1, 2), Note("so")):
        tally.emit(event)
    assert tally.bytes == 11
