"""The message after Ctrl-C counts bytes that must move again, and the next run counts what it moves."""

from __future__ import annotations

import random
import re
import time

import pytest

from blobsync.base.errors import TransferCancelledError
from blobsync.base.events import BytesMoved, BytesReused, Listener
from blobsync.plan.transfer_options import TransferOptions
from blobsync.transfer.engines import MoveReport, MoveTask
from tests.fakes.project_context import World
from tests.fakes.store import Request
from tests.fakes.tasks import RecordingListener

MIB = 1 << 20


def place(world: World, command: str, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        if command == "d":
            world.store("eu").add(f"store/data/{name}", body)
        else:
            world.write(f"data/{name}", body)


def stop_in(world: World, name: str, operations: tuple[str, ...], listener: RecordingListener, *, after: int) -> None:
    """Ctrl-C at the request on ``name`` that comes after so many, once bytes of those have been told."""
    seen = [0]

    def before(request: Request) -> None:
        if request.name.endswith(name) and request.operation in operations:
            seen[0] += 1
            if seen[0] > after:
                while after and not listener.bytes:
                    time.sleep(0.01)
                raise KeyboardInterrupt

    world.store("eu").before = before


@pytest.mark.parametrize(("command", "verb"), [("u", "sent"), ("d", "fetched")])
def test_the_bytes_of_an_unfinished_file_are_said_to_move_again(command: str, verb: str, world: World) -> None:
    large = random.Random(7).randbytes(40 * MIB)
    place(world, command, {"large": large})
    listener = RecordingListener()
    stop_in(world, "large", ("put_block", "get"), listener, after=2)
    with pytest.raises(TransferCancelledError) as stopped:
        world.carry_out(world.plan(command, "data"), listener=listener)
    # What is on record of an upload need not move again; downloads of this world are on no record.
    said = re.fullmatch(
        r"stopped: 0 of 1 file is done and verified, 1 is left"
        r"(?:; ([\d.]+) MB of unfinished files are kept, and the next run resumes from there)?"
        rf"(?:; ([\d.]+) MB of unfinished files were {verb} and will be {verb} again)?",
        stopped.value.message,
    )
    assert said, stopped.value.message
    # Three digits are said.
    kept, again = (float(size or "0") * 1e6 for size in said.groups())
    assert 0 < kept + again <= listener.bytes * 1.01 < len(large)
    assert command == "u" or not kept

    world.store("eu").before = lambda request: None
    second = RecordingListener()
    result = world.carry_out(world.plan(command, "data"), listener=second)
    assert (result.ok, result.bytes_transferred) == (True, second.bytes)
    assert second.expected == [(1, len(large))]
    assert second.bytes <= len(large) - kept * 0.99 and result.bytes_reused == len(large) - second.bytes


class Keeps:
    """An engine that is interrupted when 30 of a file's bytes were there and 20 came, of which 15 are on record."""

    name = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        listener.emit(BytesReused(30))
        listener.emit(BytesMoved(20))
        report.file_kept(task.actions[0], 45)
        raise KeyboardInterrupt


def test_what_is_kept_of_an_unfinished_file_is_distinguished(world: World) -> None:
    place(world, "u", {"large": b"x" * 100})
    with pytest.raises(TransferCancelledError) as stopped:
        world.carry_out(world.plan("u", "data"), direct=Keeps)
    assert stopped.value.message == (
        "stopped: 0 of 1 file is done and verified, 1 is left; 45 B of unfinished files are kept, and the next"
        " run resumes from there; 5 B of unfinished files were sent and will be sent again"
    )


@pytest.mark.parametrize("command", ["u", "d"])
def test_finished_files_are_not_among_what_moves_again(command: str, world: World) -> None:
    place(world, command, {"a": b"a" * 5000})
    assert world.run(command, "data").ok
    place(world, command, {"b": b"b" * 7000, "z": b"z" * 9})
    listener = RecordingListener()
    stop_in(world, "/z", ("put", "get"), listener, after=0)
    with pytest.raises(TransferCancelledError) as stopped:
        world.carry_out(world.plan(command, "data", options=TransferOptions()), listener=listener)
    if "stopped: 1 of 2" in stopped.value.message:
        assert "again" not in stopped.value.message
    second = RecordingListener()
    world.store("eu").before = lambda request: None
    plan = world.plan(command, "data")
    assert world.carry_out(plan, listener=second).ok
    assert second.bytes == plan.bytes_to_transfer <= 7009
