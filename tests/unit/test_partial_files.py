"""Uploads of parts of a file, after a kill or a change; and blocks that must not be reused."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.cli.reports import plan_data, plan_lines
from blobsync.direct.engine import DirectEngine
from blobsync.local.resume_records import BlockJournal
from blobsync.plan.blocks import block_size, for_engine
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Part, PlanPart, Route, TransferPlan, totals_of
from blobsync.store.protocol import block_id_of
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.project_context import DEFAULTS, World
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordingListener, index_key, moved_by, upload

MIB = 1024 * 1024
# Too large for a single request.
SIZE = 16 * MIB + 5
BLOCK = block_size(SIZE)


def random_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


BODY = random_bytes(SIZE)


class Place:
    """One file, one container, one project."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.file = folder / "up" / "a.bin"
        self.file.parent.mkdir()
        self.write(BODY)
        self.journal = BlockJournal(folder / "unfinished.sqlite")
        self.listener = RecordingListener()

    @property
    def blob(self) -> str:
        return str(self.store.container.child("p/a.bin"))

    def write(self, body: bytes) -> None:
        self.body = body
        self.file.write_bytes(body)

    def edit(self, at: int, data: bytes) -> None:
        self.write(self.body[:at] + data + self.body[at + len(data) :])

    def task(self, *, delta: bool = False) -> MoveTask:
        task = upload(self.file.parent, self.store, "p")
        return task._replace(actions=[action._replace(delta=delta) for action in task.actions])

    def run(self, *, delta: bool = False) -> CollectedReport:
        self.listener = RecordingListener()
        report = moved_by(DirectEngine(journal=self.journal), self.task(delta=delta), self.listener)
        self.store.before = lambda _: None
        return report

    def succeed(self, *, delta: bool = False) -> int:
        """Carry the plan out without a failure and return the number of sent bytes."""
        before = len(self.store.requests)
        report = self.run(delta=delta)
        assert report.failed == [] and len(report.moved) == 1
        assert self.store.body("p/a.bin") == self.body
        found = self.store.head("p/a.bin")
        assert found is not None and found.md5 == hashlib.md5(self.body).digest()
        sent = sum(each.size for each in self.store.requests[before:] if each.operation == "put_block")
        assert report.moved[0].reused == len(self.body) - sent == self.listener.reused
        assert self.listener.bytes == sent
        return sent

    def kill_after(self, blocks: int) -> int:
        """Break the connection after so many blocks and return how many bytes they have."""
        left = threading.Semaphore(blocks)

        def refuse(request: Request) -> None:
            if request.operation == "put_block" and not left.acquire(blocking=False):
                raise AccessDeniedError("gone", status=403)

        self.store.before = refuse
        report = self.run()
        assert len(report.failed) == 1 and "p/a.bin" not in self.store.blobs
        assert len(self.store.blocks["p/a.bin"]) == blocks
        return sum(map(len, self.store.blocks["p/a.bin"].values()))

    def foreign_journal(self, folder: Path) -> None:
        """The journal of another project, without these blocks."""
        self.journal = BlockJournal(folder / "other.sqlite")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_blocks_sent_before_a_kill_are_not_sent_again(place: Place) -> None:
    there = place.kill_after(5)
    assert place.succeed() == SIZE - there
    assert place.journal.staged(place.blob) == {}


def test_after_a_kill_and_a_change_only_new_blocks_are_sent(place: Place) -> None:
    there = place.kill_after(8)
    place.edit(3 * MIB + 7, b"changed")
    assert place.succeed() in (SIZE - there, SIZE - there + BLOCK)


def test_blocks_that_the_service_dropped_are_sent_again(place: Place) -> None:
    place.kill_after(5)
    place.store.blocks.clear()
    assert place.succeed() == SIZE


def test_uncommitted_blocks_with_our_ids_but_other_content_are_replaced(place: Place, tmp_path: Path) -> None:
    for start in range(0, SIZE, BLOCK):
        body = place.body[start : start + BLOCK]
        evil = b"\0" * len(body)
        name = block_id_of(hashlib.sha256(body).digest())
        place.store.put_block("p/a.bin", name, evil)
    assert place.succeed() == SIZE


def test_a_sas_without_the_read_right_sends_everything_and_says_so(place: Place) -> None:
    place.kill_after(5)

    def refuse(request: Request) -> None:
        if request.operation == "block_list":
            raise AccessDeniedError("not allowed to read", status=403)

    place.store.before = refuse
    assert place.succeed() == SIZE
    assert len(place.listener.notes) == 1
    assert "cannot list the blocks" in place.listener.notes[0] and "not allowed to read" in place.listener.notes[0]


def test_a_first_upload_requests_no_block_list(place: Place) -> None:
    assert place.succeed() == SIZE
    assert place.store.asked("block_list") == []


def test_a_block_that_occurs_twice_in_a_file_is_sent_once(place: Place) -> None:
    place.write(b"\0" * (4 * BLOCK) + random_bytes(2 * BLOCK) + b"\0" * (4 * BLOCK))
    assert place.succeed() == 3 * BLOCK


# -- changed files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "most"),
    [
        (lambda body: body[: 5 * MIB] + b"x" + body[5 * MIB + 1 :], BLOCK),
        (lambda body: body + b"appended", BLOCK),
        (lambda body: body[: 7 * BLOCK + 1], 1),
        (lambda body: body[: 7 * BLOCK], 0),
        (lambda body: body[BLOCK : 2 * BLOCK] + body[:BLOCK] + body[2 * BLOCK :], 0),
    ],
    ids=["edit", "append", "truncate", "truncate-at-an-edge", "move-blocks"],
)
def test_a_changed_file_sends_the_blocks_that_changed(place: Place, edit: object, most: int) -> None:
    assert callable(edit)
    place.succeed()
    place.write(edit(place.body))
    assert place.succeed(delta=True) <= most
    assert place.succeed(delta=True) == 0


def test_a_changed_file_is_sent_whole_if_the_blob_is_not_verified(place: Place) -> None:
    place.succeed()
    place.edit(5 * MIB, b"x")
    assert place.succeed() == SIZE


def test_a_blob_written_by_another_program_is_replaced_whole(place: Place, tmp_path: Path) -> None:
    place.succeed()
    place.foreign_journal(tmp_path)
    place.edit(5 * MIB, b"x")
    assert place.succeed(delta=True) == SIZE


def commit(place: Place, blocks: list[tuple[bytes, bytes]]) -> None:
    """Upload blocks of one content under the ids of another, as a foreign program could."""
    names = []
    for content, said in blocks:
        names.append(block_id_of(hashlib.sha256(said).digest()))
        place.store.put_block("p/a.bin", names[-1], content)
    whole = b"".join(content for content, _ in blocks)
    # With the MD5 of what it pretends to be: the service does not check it.
    md5 = hashlib.md5(b"".join(said for _, said in blocks)).digest()
    place.store.put_block_list("p/a.bin", names, size=len(whole), md5=md5)


def test_blocks_forged_with_our_ids_between_two_uploads_are_not_reused(place: Place) -> None:
    place.succeed()
    pieces = [place.body[start : start + BLOCK] for start in range(0, SIZE, BLOCK)]
    commit(place, [(b"\0" * len(piece), piece) for piece in pieces])
    place.edit(5 * MIB, b"x")
    assert place.succeed(delta=True) == SIZE


def test_a_blob_replaced_during_the_upload_is_not_overwritten(place: Place) -> None:
    place.succeed()
    place.edit(5 * MIB, b"x")

    def replace_it(request: Request) -> None:
        if request.operation == "put_block_list":
            place.store.before = lambda _: None
            place.store.add("p/a.bin", b"theirs")

    place.store.before = replace_it
    report = place.run(delta=True)
    assert len(report.failed) == 1 and place.store.body("p/a.bin") == b"theirs"


# -- two writers of one blob ---------------------------------------------------------------------------------------


def test_blocks_missing_at_the_commit_are_sent_once_more(place: Place) -> None:
    def drop(request: Request) -> None:
        if request.operation == "put_block_list":
            place.store.before = lambda _: None
            staged = place.store.blocks["p/a.bin"]
            for name in list(staged)[:3]:
                del staged[name]

    place.store.before = drop
    report = place.run()
    assert report.failed == [] and place.store.body("p/a.bin") == place.body
    assert sum(each.size for each in place.store.asked("put_block")) in range(SIZE + 2 * BLOCK, SIZE + 3 * BLOCK + 1)
    assert report.moved[0].reused == 0


def test_blocks_dropped_repeatedly_are_a_failure(place: Place) -> None:
    def drop(request: Request) -> None:
        if request.operation == "put_block_list":
            place.store.blocks["p/a.bin"].clear()

    place.store.before = drop
    report = place.run()
    assert len(report.failed) == 1 and len(place.store.asked("put_block_list")) == 2
    assert "p/a.bin" not in place.store.blobs


def test_ids_of_another_length_are_tried_once_more(place: Place) -> None:
    place.store.put_block("p/a.bin", "AAAA", b"x")

    def drop(request: Request) -> None:
        if request.operation == "block_list":
            place.store.blocks.clear()

    place.store.before = drop
    report = place.run()
    assert len(report.failed) == 1
    place.store.blocks.clear()
    assert place.succeed() == SIZE


# -- check of the commit -----------------------------------------------------------------------------------------


def test_after_a_wrong_commit_no_block_is_reused(place: Place) -> None:
    """The block list of such a blob is not trusted: the whole file is sent again."""
    place.succeed()
    place.edit(5 * MIB, b"x")
    times = 0

    def lying(request: Request) -> None:
        nonlocal times
        if request.operation == "block_list":
            times += 1
            if times == 2:
                # Both blocks are committed in the wrong order: only the check after the commit finds it.
                blob = place.store.blobs["p/a.bin"]
                blob.blocks = (blob.blocks[1], blob.blocks[0], *blob.blocks[2:])

    place.store.before = lying
    before = len(place.store.requests)
    report = place.run(delta=True)
    (moved,) = report.moved
    assert moved.reused == 0 and place.store.body("p/a.bin") == place.body
    sent = [each.size for each in place.store.requests[before:] if each.operation == "put_block"]
    # The block that changed, then all.
    assert sum(sent) == BLOCK + SIZE
    # One list before the first commit and one after it; the last upload reuses nothing and needs none.
    assert times == 2


def test_a_file_that_changes_during_its_upload_is_not_committed(place: Place) -> None:
    def change(request: Request) -> None:
        if request.operation == "put_block" and len(place.store.asked("put_block")) == 4:
            os.utime(place.file, ns=(1, 1))

    place.store.before = change
    report = place.run()
    assert [failure.code.value for _, failure in report.failed] == ["changed_while_read"]
    assert "p/a.bin" not in place.store.blobs
    # The blocks already sent are reused by the next try.
    assert place.succeed() == 0


# -- what a plan shows ---------------------------------------------------------------------------------------------


def write(world: World, body: bytes, name: str = "a.bin") -> None:
    world.write(f"data/x/{name}", body)


def planned(world: World, options: TransferOptions = DEFAULTS) -> tuple[TransferPlan, FileAction]:
    plan = world.plan("u", "data/x", options=options)
    (only,) = (action for _, action in plan.each() if action.action is Action.TRANSFER)
    return plan, only


def half(world: World) -> int:
    """Interrupt an upload in the middle and return how many bytes it sent."""
    refused = iter(range(4))

    def refuse(request: Request) -> None:
        if request.operation == "put_block" and next(refused, None) is None:
            raise AccessDeniedError("gone", status=403)

    world.store("eu").before = refuse
    assert not world.run("u", "data/x").ok
    world.store("eu").before = lambda _: None
    (staged,) = world.store("eu").blocks.values()
    return sum(map(len, staged.values()))


def test_the_plan_after_a_kill_says_how_much_was_sent_already(world: World) -> None:
    write(world, BODY)
    there = half(world)
    plan, action = planned(world)
    assert action.on_record == there == plan.bytes_on_record and not action.delta
    result = world.carry_out(plan)
    assert (result.bytes_reused, result.bytes_transferred) == (there, SIZE - there)
    assert world.plan("u", "data/x").count(Action.UNCHANGED) == 1


def test_the_plan_ignores_blocks_of_an_older_content(world: World) -> None:
    write(world, BODY)
    half(world)
    write(world, random_bytes(SIZE, 2))
    assert planned(world)[1].on_record == 0


def test_the_plan_of_a_changed_file_says_that_only_changed_blocks_are_sent(world: World) -> None:
    write(world, BODY)
    first = world.run("u", "data/x")
    assert (first.bytes_transferred, first.bytes_reused) == (SIZE, 0)
    write(world, BODY[:-3] + b"new")
    plan, action = planned(world)
    assert action.delta and plan.warnings == ()
    assert any("a.bin, only the blocks that changed" in line for line in plan_lines(plan, 10, unchanged=False))
    assert plan_data(plan)["actions"][0]["delta"] is True
    result = world.carry_out(plan)
    assert (result.bytes_transferred, result.bytes_reused) == (5, SIZE - 5)


def test_the_plan_says_when_the_block_size_of_a_file_changes(world: World) -> None:
    body = b"".join(bytes([number]) * MIB for number in range(65))
    write(world, body[: 63 * MIB])
    world.run("u", "data/x")
    for size, word in ((65 * MIB, "larger"), (63 * MIB, "smaller")):
        write(world, body[:size])
        plan, action = planned(world)
        assert not action.delta
        (warning,) = plan.warnings
        assert warning.startswith(f"data/x/a.bin is so much {word} than before that all of it is sent")
        assert world.carry_out(plan).bytes_transferred == size


def test_a_blob_replaced_elsewhere_is_sent_whole(world: World) -> None:
    write(world, BODY)
    world.run("u", "data/x")
    commit_foreign(world)
    write(world, BODY[:-3] + b"new")
    # Its MD5 is the recorded one, so this is not a conflict, but the version is not the verified one.
    plan, action = planned(world)
    assert not action.delta
    assert world.carry_out(plan).bytes_transferred == SIZE
    assert world.store("eu").body("store/data/x/a.bin") == BODY[:-3] + b"new"


def commit_foreign(world: World) -> None:
    """Commit other bytes under the same ids and with the MD5 in the index."""
    store = world.store("eu")
    blob = store.blobs["store/data/x/a.bin"]
    for name, body in blob.blocks:
        evil = b"\0" * len(body)
        store.put_block("store/data/x/a.bin", name, evil)
    names = [name for name, _ in blob.blocks]
    store.put_block_list("store/data/x/a.bin", names, size=SIZE, md5=blob.info.md5 or b"")


def test_a_blob_with_a_forged_md5_is_replaced_whole(world: World) -> None:
    """The survey compares MD5 properties, which can be forged: the index then holds the ETag of the forged blob."""
    write(world, BODY)
    world.run("u", "data/x")
    commit_foreign(world)
    os.utime(world.root / "data/x/a.bin", ns=(5, 5))
    assert world.run("u", "data/x").plan.count(Action.UNCHANGED) == 1
    write(world, BODY[:-3] + b"new")
    plan, action = planned(world)
    assert not action.delta
    world.carry_out(plan)
    assert world.store("eu").body("store/data/x/a.bin") == BODY[:-3] + b"new"


@pytest.mark.parametrize("case", ["resume", "delta"])
def test_azcopy_moves_whole_files_and_the_plan_says_so(world: World, case: str) -> None:
    write(world, BODY)
    if case == "resume":
        half(world)
    else:
        world.run("u", "data/x")
        write(world, BODY[:-3] + b"new")
    plan, action = planned(world, TransferOptions(engine="azcopy"))
    assert not action.delta and not action.on_record
    (warning,) = plan.warnings
    assert "azcopy moves all of it again" in warning and "--engine direct" in warning


def test_small_files_are_not_looked_up_in_the_block_journal(world: World) -> None:
    write(world, b"x" * 2 * MIB)
    assert not planned(world)[1].on_record
    assert not (world.root / "unfinished.sqlite").exists()


def test_a_plan_for_azcopy_counts_the_partial_files_that_start_over() -> None:
    whole = FileAction("a", Action.TRANSFER, Reason.NEW, 100)
    begun, changed = whole._replace(path="b", on_record=40), whole._replace(path="c", delta=True)
    both: PlanPart = Part(
        "data/x",
        Route.UPLOAD,
        LocalLocation(Path("up")),
        LocalLocation(Path("to")),
        index_key("", "", ""),
        actions=(whole, begun, changed),
    )
    assert totals_of([both]).spared == 140
    assert for_engine((both,), "direct") == ((both,), ())
    assert for_engine((replace(both, actions=(whole,)),), "azcopy")[1] == ()
    (part,), (said,) = for_engine((both,), "azcopy")
    assert part.actions == (whole, whole._replace(path="b"), whole._replace(path="c"))
    assert said.startswith("2 files are at the destination in part, and azcopy moves all of it again")
    (said,) = for_engine((replace(both, actions=(begun,)),), "azcopy")[1]
    assert said.startswith("1 file is at the destination in part")
