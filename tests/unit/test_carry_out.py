"""How a plan is carried out, step by step: engines, events, and retries."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from blobsync.base.errors import (
    CopySourceRefusedError,
    FailureCode,
    FileFailure,
    LocalFileError,
    StorageError,
    StorageUnreachableError,
    TransferCancelledError,
)
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Event,
    Expected,
    FilesCounted,
    FilesDone,
    Listener,
    Looked,
    Moving,
    Note,
    Phase,
    SilentListener,
)
from blobsync.base.exit_codes import ExitCode
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import BlobLocation, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.stopping import StopRequest
from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.plan.path_mapping import route_of
from blobsync.plan.transfer_options import EngineName, Links, TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import CollectedReport, Engine, Engines, Moved, MoveReport, MoveTask
from tests.fakes import liars
from tests.fakes.liars import LyingEngine
from tests.fakes.project_context import World, account
from tests.fakes.store import MemoryStore, Request

AZCOPY = TransferOptions(engine="azcopy")
FILES = {"a": b"aaa", "b": b"bb", "sub/c": b""}


def write(world: World, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        world.write(f"data/x/{name}", body)


def add(world: World, store: str, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        world.store(store).add(f"store/data/x/{name}", body)


@dataclass
class Heard:
    """A listener that records all events."""

    phases: list[str] = field(default_factory=list)
    expected: list[tuple[int, int]] = field(default_factory=list)
    done: list[tuple[str, str | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    looked: int = 0

    def emit(self, event: Event) -> None:
        match event:
            case Phase(name):
                self.phases.append(name)
            case Expected(files, size):
                self.expected.append((files, size))
            case FilesDone(paths, failure):
                assert paths, "an event of nothing"
                self.done += [(path, failure.code if failure else None) for path in paths]
            case Note(text):
                self.notes.append(text)
            case Looked(files):
                self.looked += files
            case Moving() | FilesCounted():
                self.events.append(event)


def carry(
    world: World,
    plan: TransferPlan,
    engines: Engines | dict[str, Callable[[], Engine]],
    *,
    heard: Heard | None = None,
    receipts: Path | None = None,
) -> TransferResult:
    """Carry a plan out with these engines."""
    context = world.context(copy=plan.from_cluster is not None)
    made = engines if isinstance(engines, Engines) else Engines(engines)
    return carry_out(plan, context, made, heard or Heard(), receipts or world.root)


def codes(result: TransferResult) -> dict[str, str]:
    return {failure.path: failure.code for failure in result.failures}


@dataclass(frozen=True)
class Does:
    """An engine that does ``what``."""

    what: Callable[[MoveTask, MoveReport, Listener], None]
    name: str

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.what(task, report, listener)


def does(what: Callable[[MoveTask, MoveReport, Listener], None], name: str = "azcopy") -> Callable[[], Engine]:
    return lambda: Does(what, name)


def none_is_needed() -> Engine:
    raise AssertionError("there is nothing to move")


def test_the_listener_hears_what_comes_and_how_each_file_ends(world: World) -> None:
    write(world, FILES)
    heard = Heard()
    carry(
        world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lambda: LyingEngine(liars.the_truth)}, heard=heard
    )
    assert heard.expected == [(3, 5)]
    assert heard.phases == ["moving", "verifying"]
    # Each counts once it has moved, until it is reported by name after the fresh look.
    assert heard.events == [Moving("uploading", 0), *[FilesCounted(1)] * 3, FilesCounted(-3)]
    every = [("data/x/a", None), ("data/x/b", None), ("data/x/sub/c", None)]
    assert sorted(heard.done) == every
    world.store("eu").blobs.clear()
    heard = Heard()
    direct = AZCOPY._replace(engine="direct")
    carry(world, world.plan("u", "data/x", options=direct), {"direct": DirectEngine}, heard=heard)
    # A file that the service confirms at once needs no look.
    assert heard.phases == ["moving"] and heard.events == [Moving("uploading", 0)]
    assert sorted(heard.done) == every


def test_of_a_list_only_what_has_to_be_looked_at_first_is_shown_after_that(world: World) -> None:
    def together(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        seen = CollectedReport()
        DirectEngine().move(task, seen, listener)
        first, *others = seen.moved
        report.files_moved([first._replace(destination=None), *others])

    write(world, FILES)
    heard = Heard()
    carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": does(together)}, heard=heard)
    assert heard.events == [Moving("uploading", 0), FilesCounted(1), FilesCounted(-1)]
    assert sorted(heard.done) == [("data/x/a", None), ("data/x/b", None), ("data/x/sub/c", None)]


def test_a_failure_of_a_file_that_nobody_planned_is_shown_as_that(world: World) -> None:
    def fails_another(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        other = task.actions[0]._replace(path="other")
        report.file_failed(other, FileFailure("data/x/other", FailureCode.SIZE_MISMATCH, "no"))
        DirectEngine().move(task, report, listener)

    write(world, {"a": b"aaa"})
    heard = Heard()
    carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": does(fails_another)}, heard=heard)
    assert sorted(heard.done) == [("data/x/a", None), ("data/x/other", "not_planned")]


def test_a_file_that_is_found_wrong_is_reported_once(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = Heard()
    lying = lambda: LyingEngine(liars.all_moved, works=False)  # noqa: E731 - an engine is made by a call
    carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lying}, heard=heard)
    assert heard.done == [("data/x/a", "missing_after_transfer")]


def test_a_file_that_an_engine_reports_twice_is_reported_once(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = Heard()
    engine = LyingEngine(liars.everything_twice)
    carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lambda: engine}, heard=heard)
    assert heard.done == [("data/x/a", None)]
    assert heard.events == [Moving("uploading", 0), FilesCounted(1), FilesCounted(-1)]


class FailsFirst:
    """The first file fails with ``code`` in so many attempts; the direct engine moves the others."""

    name = "direct"

    def __init__(self, code: FailureCode, tries: int, *also: str) -> None:
        self.code = code
        self.left = {"a": tries} | dict.fromkeys(also, 1)

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        for action in task.actions:
            self.left[action.path] = self.left.get(action.path, 0) - 1
            if self.left[action.path] >= 0:
                report.file_failed(action, FileFailure(task.part.shown(action), self.code, "no"))
            else:
                DirectEngine().move(task._replace(actions=[action]), report, listener)


@pytest.mark.parametrize(
    ("code", "tries", "also"),
    [
        pytest.param(FailureCode.ACCESS_DENIED, 1, (), id="no other try would help"),
        pytest.param(FailureCode.COPY_SOURCE_REFUSED, 1, (), id="no other engine is allowed"),
        pytest.param(FailureCode.STORAGE_UNREACHABLE, 9, ("b",), id="this was the last try"),
    ],
)
def test_a_failure_that_stays_is_reported_at_once(
    world: World, code: FailureCode, tries: int, also: tuple[str]
) -> None:
    write(world, {"a": b"aaa", "b": b"bb"})
    heard = Heard()
    engine = FailsFirst(code, tries, *also)
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    carry(world, plan, {"direct": lambda: engine}, heard=heard)
    assert heard.done == [("data/x/a", code), ("data/x/b", None)]


@pytest.mark.parametrize("how", ["written to", "replaced"])
def test_a_file_that_changes_during_each_attempt_is_tried_again_once_and_then_named(world: World, how: str) -> None:
    size = 20 << 20
    write(world, {"a": bytes(size), "b": b"still"})
    file, other = world.root / "data/x/a", world.root / "other"
    lock, times = threading.Lock(), itertools.count(1)

    def write_on(request: Request) -> None:
        if request.operation == "put_block":
            with lock:
                (file if how == "written to" else other).write_bytes(bytes(size + next(times)))
                if how == "replaced":
                    other.replace(file)

    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct"))
    world.store("eu").before = write_on
    result = carry(world, plan, {"direct": DirectEngine})
    [failure] = result.failures
    assert (failure.path, failure.code, result.transferred) == ("data/x/a", "changed_while_read", 1)
    assert failure.message.endswith(" changed while it was being read")
    assert failure.hint == "run the same command again once nothing writes to it"
    world.store("eu").before = lambda _: None
    assert world.carry_out(world.plan("u", "data/x")).ok
    assert world.store("eu").body("store/data/x/a") == file.read_bytes()


def test_a_version_that_could_not_be_set_aside_at_first_has_another_try_at_the_end(world: World) -> None:
    write(world, {"a": b"mine"})
    add(world, "eu", {"a": b"theirs"})
    outage = iter([True])

    def break_once(request: Request) -> None:
        if request.operation == "get" and next(outage, False):
            raise StorageUnreachableError("gone for a moment")

    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct", keep="both"))
    world.store("eu").before = break_once
    heard = Heard()
    result = carry(world, plan, {"direct": DirectEngine, "relay": RelayEngine}, heard=heard)
    assert result.ok and next(outage, None) is None
    # A failure that a retry resolved was not reported.
    assert [code for path, code in heard.done if path == "data/x/a"] == [None]
    assert sorted(blob.body for blob in world.store("eu").blobs.values()) == [b"mine", b"theirs"]


def test_a_version_that_cannot_be_set_aside_at_last_is_reported_at_once(world: World) -> None:
    write(world, {"a": b"mine"})
    add(world, "eu", {"a": b"theirs"})
    (world.root / "data/y").mkdir(parents=True)
    (world.root / "data/y/b").write_bytes(b"b")
    outage = iter([True])

    def stay_broken(request: Request) -> None:
        upload = request.operation == "put" and request.name.endswith("/b")
        if request.name.endswith("x/a") or (upload and next(outage, False)):
            raise StorageUnreachableError("gone")

    options = TransferOptions(engine="direct", keep="both")
    plan = world.plan("u", "data/x", "data/y", options=options)
    world.store("eu").before = stay_broken
    heard = Heard()
    carry(world, plan, {"direct": DirectEngine, "relay": RelayEngine}, heard=heard)
    assert heard.done == [("data/x/a", "storage_unreachable"), ("data/y/b", None)]
    assert world.store("eu").body("store/data/x/a") == b"theirs"


class SaysBack:
    """The direct engine, whose downloads are reported without destination states."""

    name = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        if task.part.route is not Route.DOWNLOAD:
            DirectEngine().move(task, report, listener)
            return
        for action in task.actions:
            report.files_moved([Moved(action, source=action.source)])


def test_a_version_whose_copy_is_not_seen_at_the_other_end_is_not_replaced(world: World) -> None:
    write(world, {"a": b"mine"})
    add(world, "eu", {"a": b"theirs"})
    heard = Heard()
    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct", keep="both"))
    ((_, action),) = plan.each()
    result = carry(world, plan, {"direct": SaysBack, "relay": RelayEngine}, heard=heard)
    aside = f"data/x/{action.aside}"
    assert codes(result) == {aside: "missing_after_transfer", "data/x/a": "missing_after_transfer"}
    assert world.store("eu").body("store/data/x/a") == b"theirs"
    # The look comes before the file that it decides about, whose turn is then.
    assert heard.phases == ["moving", "verifying", "moving"]


def test_a_file_that_cannot_come_to_the_source_for_now_stays_a_conflict(world: World) -> None:
    write(world, {"a": b"mine"})
    add(world, "eu", {"a": b"theirs"})
    keep = TransferOptions(engine="direct", keep="remote")
    plan = world.plan("u", "data/x", options=keep)

    def refuse(request: Request) -> None:
        if request.operation == "get":
            raise StorageError("no", status=400)

    world.store("eu").before = refuse
    assert codes(carry(world, plan, {"direct": DirectEngine})) == {"data/x/a": "storage_error"}
    world.store("eu").before = lambda request: None
    assert world.plan("u", "data/x").count(Action.CONFLICT) == 1
    assert carry(world, world.plan("u", "data/x", options=keep), {"direct": DirectEngine}).ok
    assert (world.root / "data/x/a").read_bytes() == b"theirs"


@pytest.mark.parametrize("tell", [liars.nothing, liars.all_but_the_first])
def test_silence_of_an_engine_is_no_success(world: World, tell: liars.Tell) -> None:
    write(world, FILES)
    result = carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lambda: LyingEngine(tell)})
    silent = 3 if tell is liars.nothing else 1
    assert (result.ok, result.transferred) == (False, 3 - silent)
    assert [failure.code for failure in result.failures] == ["not_reported"] * silent
    for failure in result.failures:
        assert failure.message == f"{failure.path}: the azcopy engine reported no result for it"
        assert failure.hint == "run the same command again: verified files are skipped"


def test_a_plan_that_names_a_file_twice_does_not_look_done(world: World) -> None:
    write(world, {"a": b"aaa"})
    plan = world.plan("u", "data/x")
    (part,) = plan.parts
    twice = replace(part, actions=(*part.actions, *part.actions))
    result = carry(world, replace(plan, parts=(twice,)), {"direct": DirectEngine})
    *_, failure = result.failures
    assert (result.ok, failure.path, failure.code) == (False, "data/x", "account_wrong")
    assert failure.message == "data/x: 2 files planned, 1 verified and 0 failed: that does not add up"


def test_a_file_that_moved_at_its_second_try_and_was_not_looked_at_is_not_told_as_done(world: World) -> None:
    write(world, {"a": b"aaa"})
    tries: list[MoveTask] = []

    def interrupted(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        tries.append(task)
        (action,) = task.actions
        if len(tries) == 1:
            report.file_failed(action, FileFailure("data/x/a", FailureCode.SAS_EXPIRED, "no"))
            return
        report.files_moved([Moved(action, source=action.source)])
        raise KeyboardInterrupt

    heard = Heard()
    with pytest.raises(TransferCancelledError, match="1 moved but not yet verified"):
        carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": does(interrupted)}, heard=heard)
    assert len(tries) == 2 and heard.done == []


def test_what_moved_for_nothing_is_said_of_a_stopped_transfer(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bbbb"})

    def interrupted(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        one = [action for action in task.actions if action.path == "a"]
        DirectEngine().move(task._replace(actions=one), report, SilentListener())
        # Two of the three were there before; then one of the other file.
        listener.emit(BytesReused(2))
        listener.emit(BytesMoved(1))
        listener.emit(BytesMoved(1))
        raise KeyboardInterrupt

    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    with pytest.raises(TransferCancelledError) as stopped:
        carry(world, plan, {"direct": does(interrupted, "direct")})
    assert stopped.value.message == (
        "stopped: 1 of 2 files is done and verified, 1 is left;"
        " 1 B of unfinished files were sent and will be sent again"
    )


def test_what_cannot_be_reached_twice_is_not_asked_for_a_third_time(world: World) -> None:
    """Each request to an unreachable service takes minutes."""
    write(world, {"a": b"aaa"})
    engine = Passing({"a": FailureCode.STORAGE_UNREACHABLE}, arrives=True, tries=2)
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    world.store("eu").requests.clear()
    assert codes(carry(world, plan, {"direct": lambda: engine})) == {"data/x/a": "storage_unreachable"}
    assert world.store("eu").asked("head") == []


def test_only_a_blob_that_changed_is_asked_for_anew_before_the_second_try(world: World) -> None:
    add(world, "eu", {"a": b"aaa"})
    plan = world.plan("d", "data/x", options=AZCOPY._replace(engine="direct"))
    world.store("eu").requests.clear()
    engine = Passing({"a": FailureCode.STORAGE_UNREACHABLE})
    assert carry(world, plan, {"direct": lambda: engine}).ok
    assert world.store("eu").asked("head") == []


@pytest.mark.parametrize("theirs", [b"aaa", b"bbb"])
def test_a_file_that_somebody_put_here_during_a_download_is_done_where_it_is_equal(world: World, theirs: bytes) -> None:
    add(world, "eu", {"a": b"aaa"})

    def put_there(task: MoveTask, report: CollectedReport) -> CollectedReport:
        write(world, {"a": theirs})
        failure = FileFailure("data/x/a", FailureCode.AZCOPY_FAILED, "it gave up")
        return CollectedReport(failed=[(action, failure) for action in task.actions])

    plan = world.plan("d", "data/x", options=AZCOPY)
    engines: dict[str, Callable[[], Engine]] = {
        "azcopy": lambda: LyingEngine(put_there, works=False),
        "direct": DirectEngine,
    }
    found = codes(carry(world, plan, engines))
    assert found == ({} if theirs == b"aaa" else {"data/x/a": "changed_meanwhile"})
    assert (world.root / "data/x/a").read_bytes() == theirs


@dataclass
class Overtaken:
    """Another command has replaced the files of ``theirs`` when this engine comes to write them."""

    world: World
    theirs: dict[str, bytes]
    name: str = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        add(self.world, "eu", self.theirs)
        DirectEngine().move(task, report, listener)


def test_what_another_command_uploaded_of_the_same_files_is_done(world: World) -> None:
    write(world, {"a": b"old", "b": b"old", "c": b"old"})
    world.run("u", "data/x")
    write(world, {"a": b"new a", "b": b"new b", "c": b"new c"})
    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct"))
    engine, heard = Overtaken(world, {"a": b"new a", "b": b"somebody else's"}), Heard()
    result = carry(world, plan, {"direct": lambda: engine}, heard=heard)
    assert (codes(result), result.transferred) == ({"data/x/b": "changed_meanwhile"}, 2)
    assert sorted(heard.done) == [("data/x/a", None), ("data/x/b", "changed_meanwhile"), ("data/x/c", None)]
    assert world.store("eu").body("store/data/x/b") == b"somebody else's"
    # It is on record: only the other one is a conflict.
    again = {action.path: action.action for _, action in world.plan("u", "data/x").each()}
    assert again == {"a": Action.UNCHANGED, "b": Action.CONFLICT, "c": Action.UNCHANGED}


def test_where_nobody_answers_what_changed_meanwhile_stays_a_failure(world: World) -> None:
    write(world, {"a": b"old"})
    world.run("u", "data/x")
    write(world, {"a": b"new"})
    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct"))
    engine = Overtaken(world, {"a": b"new"})

    def refuse(request: Request) -> None:
        if request.operation == "head":
            raise StorageError("out of order", status=500)

    world.store("eu").before = refuse
    assert codes(carry(world, plan, {"direct": lambda: engine})) == {"data/x/a": "changed_meanwhile"}


@pytest.mark.parametrize("tell", [liars.a_stranger, liars.a_failed_stranger])
def test_a_mirror_deletes_nothing_after_an_engine_moved_what_was_not_planned(world: World, tell: liars.Tell) -> None:
    add(world, "eu", {"extra": b"x"})
    write(world, {"a": b"aaa"})
    options = AZCOPY._replace(mirror=True, max_delete_percent=100.0)
    heard = Heard()
    plan = world.plan("u", "data/x", options=options)
    result = carry(world, plan, {"azcopy": lambda: LyingEngine(tell)}, heard=heard)
    assert (result.deleted, codes(result)) == (0, {"data/x/stranger": "not_planned"})
    assert world.store("eu").body("store/data/x/extra") == b"x"
    assert heard.notes == ["1 extra file kept: nothing is deleted after a transfer with failures"]


def test_nothing_to_move_needs_no_engine(world: World) -> None:
    write(world, FILES)
    world.run("u", "data/x")
    result = carry(world, world.plan("u", "data/x"), {"direct": none_is_needed, "azcopy": none_is_needed})
    assert (result.exit_code, result.transferred, result.verified, result.receipt) == (0, 0, 3, None)


def test_a_stop_counts_before_anything_is_recorded(world: World) -> None:
    write(world, FILES)
    world.run("u", "data/x")
    stop, heard = StopRequest(), Heard()
    stop.make()
    with pytest.raises(TransferCancelledError):
        carry(world, world.plan("u", "data/x"), Engines({"direct": none_is_needed}, stop=stop), heard=heard)
    assert (heard.phases, heard.events) == ([], [])


@pytest.mark.parametrize("case", ["all of them", "one is there", "one is left out"])
def test_an_engine_is_told_whether_it_gets_the_whole_folder(world: World, case: str) -> None:
    write(world, FILES)
    options = AZCOPY
    if case == "one is there":
        world.run("u", "data/x/a")
    if case == "one is left out":
        options = AZCOPY._replace(exclude=("a",))
    engine = LyingEngine(liars.the_truth)
    carry(world, world.plan("u", "data/x", options=options._replace(cap_mbps=800)), {"azcopy": lambda: engine})
    (task,) = engine.tasks
    assert task.whole_folder is (case == "all of them")
    assert {action.path for action in task.actions} == ({*FILES} if case == "all of them" else {"b", "sub/c"})
    assert (task.cap_mbps, task.part.path, task.part.route) == (800, "data/x", Route.UPLOAD)


def test_what_is_left_over_of_a_whole_folder_is_not_the_whole_folder(world: World) -> None:
    write(world, FILES)

    def gives_one_up(task: MoveTask, report: CollectedReport) -> CollectedReport:
        lost = [each for each in report.moved if each.action.path == "a"]
        report.moved = [each for each in report.moved if each.action.path != "a"]
        report.failed = [(each.action, FileFailure("data/x/a", FailureCode.SAS_EXPIRED, "no")) for each in lost]
        if lost and len(task.actions) == 3:
            world.store("eu").blobs.pop("store/data/x/a", None)
        return report

    engine = LyingEngine(gives_one_up)
    carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lambda: engine})
    given = [(len(task.actions), task.whole_folder, task.again) for task in engine.tasks]
    assert given == [(3, True, False), (1, False, True)]


@pytest.mark.parametrize(
    ("command", "said"), [("u", "this blob appeared at the destination"), ("d", "the copy was discarded")]
)
def test_azcopys_jobs_and_strays_are_in_the_result(world: World, command: str, said: str) -> None:
    if command == "u":
        write(world, {"a": b"aaa"})
    else:
        add(world, "eu", {"a": b"aaa", "b": b"bb"})

    def tell(task: MoveTask, report: CollectedReport) -> CollectedReport:
        return replace(report, azcopy_job_ids=["job-1"], strays=["odd"])

    result = carry(world, world.plan(command, "data/x", options=AZCOPY), {"azcopy": lambda: LyingEngine(tell)})
    assert result.azcopy_job_ids == ("job-1",)
    (stray,) = [failure for failure in result.failures if failure.path == "data/x/odd"]
    assert stray.code == "not_asked_for"
    assert said in stray.message


def test_where_there_is_no_place_for_a_receipt_none_is_written(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = Heard()
    plan = world.plan("u", "data/x")
    result = carry_out(plan, world.context(), Engines({"direct": DirectEngine}), heard, None)
    assert (result.ok, result.transferred, result.receipt, heard.notes) == (True, 1, None, [])


def test_what_a_killed_download_left_goes_before_its_files_come(world: World) -> None:
    add(world, "eu", FILES)
    folder = world.root / "data/x/sub"
    folder.mkdir(parents=True)
    left, other = folder / ".blobsync-0123abcd.part", folder.parent / ".blobsync-0123abcd.part"
    left.write_bytes(b"half")
    other.write_bytes(b"half")
    seen: list[bool] = []

    def look(task: MoveTask, report: CollectedReport) -> CollectedReport:
        seen.append(left.exists() or other.exists())
        return report

    plan = world.plan("d", "data/x", options=AZCOPY)
    carry(world, plan, {"azcopy": lambda: LyingEngine(look)})
    assert seen == [False]


def fails_with(code: str, *, only: str = "a") -> LyingEngine:
    def tell(task: MoveTask, report: CollectedReport) -> CollectedReport:
        failed = [each for each in task.actions if each.path == only]
        return CollectedReport(
            [each for each in report.moved if each.action.path != only],
            [(each, FileFailure(task.part.path, FailureCode(code), "no")) for each in failed],
        )

    return LyingEngine(tell, works=False)


@dataclass
class Spy:
    """A real engine that records its tasks; ``name`` is its reported name."""

    make: Callable[[], Engine]
    tasks: list[MoveTask] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.make().name

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(task)
        self.make().move(task, report, listener)


@pytest.mark.parametrize(
    ("code", "second"),
    [
        ("changed_while_read", "direct"),
        ("azcopy_cannot_carry", "direct"),
        ("sas_expired", "azcopy"),
        ("checksum_mismatch", "direct"),
        ("azcopy_failed", "direct"),
        ("service_busy", "direct"),
        ("access_denied", None),
    ],
)
def test_a_second_try_goes_to_the_engine_that_can_mend_it(world: World, code: str, second: str | None) -> None:
    write(world, {"a": b"aaa"})
    first = fails_with(code)
    spies = {"direct": Spy(DirectEngine), "relay": Spy(RelayEngine)}
    heard = Heard()
    made: dict[str, Callable[[], Engine]] = {
        "azcopy": lambda: first,
        "direct": lambda: spies["direct"],
        "relay": lambda: spies["relay"],
    }
    result = carry(world, world.plan("u", "data/x", options=AZCOPY), made, heard=heard)
    tries = {"azcopy": len(first.tasks) - 1, **{name: len(spy.tasks) for name, spy in spies.items()}}
    assert {name for name, count in tries.items() if count} == ({second} if second else set())
    by = "" if second == "azcopy" else " with the direct engine"
    assert heard.notes == ([f"data/x: no; trying it again{by}"] if second else [])
    assert result.ok is (second == "direct")
    if second != "direct":
        assert codes(result) == {"data/x": code}
        assert result.failures[0].hint is None


def test_each_file_that_can_be_mended_gets_its_second_try_whatever_became_of_others(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bb", "c": b"c"})
    failing = {"b": FailureCode.ACCESS_DENIED, "c": FailureCode.CHANGED_WHILE_READ}

    def tell(task: MoveTask, report: CollectedReport) -> CollectedReport:
        failed = [each for each in task.actions if each.path in failing]
        return CollectedReport(
            [each for each in report.moved if each.action.path not in failing],
            [(each, FileFailure(each.path, failing[each.path], "no")) for each in failed],
        )

    spy = Spy(DirectEngine)
    engines: dict[str, Callable[[], Engine]] = {
        "azcopy": lambda: LyingEngine(tell),
        "direct": lambda: spy,
    }
    result = carry(world, world.plan("u", "data/x", options=AZCOPY), engines)
    assert [[each.path for each in task.actions] for task in spy.tasks] == [["c"]]
    assert "a" not in codes(result)
    assert codes(result)["b"] == "access_denied"


@pytest.mark.parametrize("code", ["checksum_mismatch"])
def test_what_the_other_engines_tried_themselves_is_not_tried_again(world: World, code: str) -> None:
    write(world, {"a": b"aaa"})
    engine = fails_with(code)
    result = carry(
        world, world.plan("u", "data/x", options=AZCOPY._replace(engine="direct")), {"direct": lambda: engine}
    )
    assert (len(engine.tasks), codes(result)) == (1, {"data/x": code})


class Passing:
    """The direct engine, with temporary failures of some files' first attempts."""

    name = "direct"

    def __init__(self, failing: dict[str, FailureCode], *, arrives: bool = False, tries: int = 1) -> None:
        self.failing = failing
        self.left = tries
        self.arrives = arrives
        self.tasks: list[list[str]] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(sorted(action.path for action in task.actions))
        failing = self.failing if self.left > 0 else {}
        self.left -= 1
        fine = [action for action in task.actions if action.path not in failing]
        DirectEngine().move(task._replace(actions=fine), report, listener)
        for action in task.actions:
            if action.path in failing:
                if self.arrives:
                    DirectEngine().move(task._replace(actions=[action]), CollectedReport(), listener)
                said = f"the connection to acct broke ({action.size} tries)"
                report.file_failed(action, FileFailure(task.part.shown(action), failing[action.path], said))


@pytest.mark.parametrize("code", [FailureCode.STORAGE_UNREACHABLE, FailureCode.SERVICE_BUSY])
def test_what_failed_for_a_passing_reason_is_tried_again_when_all_else_is_done(world: World, code: FailureCode) -> None:
    write(world, FILES)
    engine = Passing({"a": code, "sub/c": code})
    heard = Heard()
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    result = carry(world, plan, {"direct": lambda: engine}, heard=heard)
    assert engine.tasks == [["a", "b", "sub/c"], ["a", "sub/c"]]
    assert (result.ok, result.transferred) == (True, 3)
    # A failure that a retry resolved was not reported.
    assert sorted(heard.done) == [("data/x/a", None), ("data/x/b", None), ("data/x/sub/c", None)]
    # No more is reported than was announced.
    assert heard.expected == [(3, 5)]
    (note,) = heard.notes
    assert note.startswith("trying 2 files again. the connection to acct broke (")
    assert note.endswith("tries): data/x/a, data/x/sub/c")


def test_parts_of_a_plan_wait_for_each_other_before_anything_is_tried_again(world: World) -> None:
    write(world, {"a": b"aaa"})
    (world.root / "data/y").mkdir(parents=True)
    (world.root / "data/y/b").write_bytes(b"b")
    engine = Passing({"a": FailureCode.STORAGE_UNREACHABLE})
    plan = world.plan("u", "data/x", "data/y", options=AZCOPY._replace(engine="direct"))
    assert carry(world, plan, {"direct": lambda: engine}).ok
    assert engine.tasks == [["a"], ["b"], ["a"]]


def test_after_a_stop_no_further_part_is_begun(world: World) -> None:
    for name in ("x", "y"):
        write(world, {f"../{name}/a": b"aaa"})
    stop = StopRequest()

    def stop_then(task: MoveTask, report: CollectedReport) -> CollectedReport:
        stop.make()
        return report

    engine = LyingEngine(stop_then)
    plan = world.plan("u", "data/x", "data/y", options=AZCOPY)
    with pytest.raises(TransferCancelledError, match="0 of 2 files are done and verified, 1 moved"):
        carry(world, plan, Engines({"azcopy": lambda: engine}, stop=stop))
    assert [task.part.path for task in engine.tasks] == ["data/x"]


def gone_after_it_failed(world: World) -> Passing:
    """``a`` fails for a passing reason, and is not here any more when it could be tried again."""

    class Gone(Passing):
        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            super().move(task, report, listener)
            (world.root / "data/x/a").unlink(missing_ok=True)

    return Gone({"a": FailureCode.STORAGE_UNREACHABLE})


def test_what_cannot_be_tried_again_after_all_is_reported_as_it_failed(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bb"})
    heard = Heard()
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    result = carry(world, plan, {"direct": lambda: gone_after_it_failed(world)}, heard=heard)
    assert codes(result) == {"data/x/a": "storage_unreachable"}
    assert sorted(heard.done) == [("data/x/a", "storage_unreachable"), ("data/x/b", None)]


def test_what_was_reported_before_a_stop_is_not_reported_by_it_again(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bb"})
    stop, heard = StopRequest(), Heard()

    class Blind(Passing):
        """The service's answer to ``b`` is lost: it is looked at in the end."""

        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            done = CollectedReport()
            gone_after_it_failed(world).move(task, done, listener)
            for moved in done.moved:
                report.files_moved([moved._replace(destination=None)])
            for action, failure in done.failed:
                report.file_failed(action, failure)

    def stop_at_the_look(request: Request) -> None:
        if request.operation == "head":
            stop.make()
            raise KeyboardInterrupt

    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    world.store("eu").before = stop_at_the_look
    with pytest.raises(TransferCancelledError):
        carry(world, plan, Engines({"direct": lambda: Blind({})}, stop=stop), heard=heard)
    assert heard.done == [("data/x/a", "storage_unreachable")]


def test_what_fails_again_at_the_end_is_a_failure_and_told_once(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = Heard()
    engine = Passing({"a": FailureCode.STORAGE_UNREACHABLE, "": FailureCode.STORAGE_UNREACHABLE}, tries=2)
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    result = carry(world, plan, {"direct": lambda: engine}, heard=heard)
    assert (result.exit_code, codes(result)) == (1, {"data/x/a": "storage_unreachable"})
    assert heard.done == [("data/x/a", "storage_unreachable")]


def test_a_file_whose_answer_alone_was_lost_is_ours(world: World) -> None:
    """It is there when it is tried again; only its content tells that it is not somebody else's."""
    write(world, {"a": b"aaa"})
    engine = Passing({"a": FailureCode.STORAGE_UNREACHABLE}, arrives=True)
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    assert carry(world, plan, {"direct": lambda: engine}).ok
    write(world, {"n": b"nnn"})
    engine = Passing({"n": FailureCode.STORAGE_UNREACHABLE})
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="direct"))
    add(world, "eu", {"n": b"somebody else's"})
    assert codes(carry(world, plan, {"direct": lambda: engine})) == {"data/x/n": "changed_meanwhile"}


def test_a_copy_is_tried_again_by_the_engine_that_may_do_it(world: World) -> None:
    add(world, "us", {"a": b"aaa"})

    class Relays(Passing):
        name = "relay"

        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            self.tasks.append(["relay"])
            if len(self.tasks) > 1:
                RelayEngine().move(task, report, listener)
                return
            for action in task.actions:
                failure = FileFailure(task.part.shown(action), FailureCode.STORAGE_UNREACHABLE, "broke")
                report.file_failed(action, failure)

    engine = Relays({})
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="relay"), copy=True)
    heard = Heard()
    assert carry(world, plan, {"relay": lambda: engine, "direct": none_is_needed}, heard=heard).ok
    assert engine.tasks == [["relay"], ["relay"]]
    assert heard.done == [("data/x/a", None)]


@pytest.mark.parametrize("allowed", [None, False, True])
def test_a_refused_copy_goes_through_this_machine_only_where_that_is_allowed(
    world: World, allowed: bool | None
) -> None:
    add(world, "us", {"a": b"aaa"})
    make: dict[str, Callable[[], Engine]] = {"azcopy": lambda: fails_with("copy_source_refused"), "relay": RelayEngine}
    engines = Engines(make) if allowed is None else Engines(make, relay_allowed=allowed)
    result = carry(world, world.plan("u", "data/x", options=AZCOPY, copy=True), engines)
    assert result.ok is bool(allowed)
    assert ["--relay" in (failure.hint or "") for failure in result.failures] == ([] if allowed else [True])
    assert bool(world.store("eu").blobs) is bool(allowed)


def test_a_second_try_takes_the_file_as_it_is_now(world: World) -> None:
    write(world, {"a": b"aaa", "gone": b"g", "b": b"bb"})
    spy = Spy(DirectEngine)

    def tell(task: MoveTask, report: CollectedReport) -> CollectedReport:
        write(world, {"a": b"longer now"})
        (world.root / "data/x/gone").unlink()
        return CollectedReport(
            report.moved,
            [
                (each, FileFailure(each.path, FailureCode.CHANGED_WHILE_READ, "no"))
                for each in task.actions
                if each.path != "b"
            ],
        )

    engine = LyingEngine(tell)
    plan = world.plan("u", "data/x", options=AZCOPY)
    world.store("eu").before = refuse_writes_of("a", "gone", times=1)
    heard = Heard()
    result = carry(world, plan, {"azcopy": lambda: engine, "direct": lambda: spy}, heard=heard)
    # Its bytes are announced as it grew.
    assert heard.expected == [(3, 6), (0, 7)]
    assert [[each.path for each in task.actions] for task in spy.tasks] == [["a"]]
    assert world.store("eu").body("store/data/x/a") == b"longer now"
    assert codes(result) == {"gone": "changed_while_read"}
    assert result.transferred == 2


def test_a_file_that_is_gone_gets_no_second_try(world: World) -> None:
    write(world, {"a": b"aaa"})
    plan = world.plan("u", "data/x", options=AZCOPY)
    (world.root / "data/x/a").unlink()
    heard = Heard()
    engine = fails_with("changed_while_read")
    result = carry(world, plan, {"azcopy": lambda: engine, "direct": none_is_needed}, heard=heard)
    assert (codes(result), heard.notes) == ({"data/x": "changed_while_read"}, [])


def test_only_what_azcopy_tried_is_looked_for_before_the_second_try(world: World) -> None:
    write(world, {"a": b"aaa"})
    plan = world.plan("u", "data/x", options=AZCOPY)
    world.store("eu").requests.clear()
    engine = fails_with("azcopy_cannot_carry")
    assert carry(world, plan, {"azcopy": lambda: engine, "direct": DirectEngine}).ok
    assert world.store("eu").asked("head") == []


def refuse_writes_of(*names: str, times: int) -> Callable[[Request], None]:
    left = dict.fromkeys((f"store/data/x/{name}" for name in names), times)

    def refuse(request: Request) -> None:
        if request.operation == "put" and left.get(request.name, 0):
            left[request.name] -= 1
            raise StorageError("no", status=400)

    return refuse


@dataclass
class Wrote:
    """azcopy that writes ``body`` but reports the file as failed."""

    body: bytes
    with_md5: bool = True
    name: str = "azcopy"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        end = task.part.destination
        assert isinstance(end, OpenBlob)
        assert isinstance(end.store, MemoryStore)
        for action in task.actions:
            end.store.add(end.at(action.path), self.body, with_md5=self.with_md5)
            report.file_failed(action, FileFailure(action.path, FailureCode.AZCOPY_FAILED, "it gave up"))


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(
    ("wrote", "ours"),
    [
        pytest.param(Wrote(b"aaa"), True, id="the file"),
        pytest.param(Wrote(b"aab"), False, id="other content"),
        pytest.param(Wrote(b"aa"), False, id="another size"),
        pytest.param(Wrote(b"aaa", with_md5=False), False, id="unknown content"),
    ],
)
def test_what_azcopy_wrote_before_it_gave_up_is_known_by_its_content(
    world: World, wrote: Wrote, *, ours: bool, copy: bool
) -> None:
    if copy:
        add(world, "us", {"a": b"aaa"})
    else:
        write(world, {"a": b"aaa"})
    spy = Spy(DirectEngine)
    plan = world.plan("u", "data/x", options=AZCOPY, copy=copy)
    result = carry(world, plan, {"azcopy": lambda: wrote, "direct": lambda: spy})
    # A version that is not ours is kept.
    assert world.store("eu").body("store/data/x/a") == wrote.body
    assert (result.ok, result.transferred, len(spy.tasks)) == ((True, 1, 0) if ours else (False, 0, 1))
    if not ours:
        assert set(codes(result).values()) == {"changed_meanwhile"}


def test_unknown_content_is_never_taken_for_azcopys(world: World) -> None:
    world.store("us").add("store/data/x/a", b"aaa", with_md5=False)
    plan = world.plan("u", "data/x", options=AZCOPY, copy=True)
    made: dict[str, Callable[[], Engine]] = {"azcopy": lambda: Wrote(b"aab", with_md5=False), "direct": DirectEngine}
    result = carry(world, plan, made)
    assert (result.ok, world.store("eu").body("store/data/x/a")) == (False, b"aab")


def test_what_azcopy_wrote_of_a_file_that_is_gone_is_no_success(world: World) -> None:
    write(world, {"a": b"aaa"})
    plan = world.plan("u", "data/x", options=AZCOPY)
    (world.root / "data/x/a").unlink()
    result = carry(world, plan, {"azcopy": lambda: Wrote(b"aaa"), "direct": none_is_needed})
    assert codes(result) == {"a": "azcopy_failed"}


def test_a_destination_that_cannot_be_asked_gets_the_second_try(world: World) -> None:
    write(world, {"a": b"aaa"})
    refused: list[Request] = []

    def refuse_one_look(request: Request) -> None:
        if request.operation == "head" and not refused:
            refused.append(request)
            raise StorageError("no", status=400)

    plan = world.plan("u", "data/x", options=AZCOPY)
    world.store("eu").before = refuse_one_look
    result = carry(world, plan, {"azcopy": lambda: fails_with("azcopy_failed"), "direct": DirectEngine})
    assert (result.ok, len(refused)) == (True, 1)


def test_a_download_that_azcopy_gave_up_gets_the_second_try(world: World) -> None:
    add(world, "eu", {"a": b"aaa"})
    plan = world.plan("d", "data/x", options=AZCOPY)
    result = carry(world, plan, {"azcopy": lambda: fails_with("azcopy_failed"), "direct": DirectEngine})
    assert (result.ok, (world.root / "data/x/a").read_bytes()) == (True, b"aaa")


def test_only_a_mirror_deletes(world: World) -> None:
    add(world, "eu", {"extra": b"x"})
    write(world, {"a": b"aaa"})
    mirror = TransferOptions(mirror=True, max_delete_percent=100.0)
    plan = world.plan("u", "data/x", options=mirror)
    assert plan.count(Action.DELETE) == 1
    result = carry(world, replace(plan, options=TransferOptions()), {"direct": DirectEngine})
    assert (result.deleted, "store/data/x/extra" in world.store("eu").blobs) == (0, True)
    heard = Heard()
    result = carry(world, world.plan("u", "data/x", options=mirror), {"direct": DirectEngine}, heard=heard)
    assert (result.deleted, "store/data/x/extra" in world.store("eu").blobs) == (1, False)
    assert heard.phases == ["moving", "deleting"]
    heard = Heard()
    carry(world, world.plan("u", "data/x", options=mirror), {"direct": none_is_needed}, heard=heard)
    assert heard.phases == ["moving"]


def test_a_mirror_of_several_paths_deletes_in_each_that_has_extras(world: World) -> None:
    for name in ("x", "y", "z"):
        write(world, {f"../{name}/a": b"aaa"})
    eu = world.store("eu")
    for name in ("x/a", "y/a", "y/extra", "z/a", "z/extra"):
        eu.add(f"store/data/{name}", b"aaa")
    mirror = TransferOptions(mirror=True, max_delete_percent=100.0)
    plan = world.plan("u", "data/x", "data/y", "data/z", options=mirror)
    assert carry(world, plan, {"direct": none_is_needed}).deleted == 2
    assert sorted(eu.blobs) == ["store/data/x/a", "store/data/y/a", "store/data/z/a"]


def test_what_was_deleted_is_on_record_nowhere_and_in_the_receipt(world: World) -> None:
    write(world, {**FILES, "extra": b"x"})
    world.run("u", "data/x")
    (world.root / "data/x/extra").unlink()
    mirror = TransferOptions(mirror=True, max_delete_percent=100.0)
    plan = world.plan("u", "data/x", options=mirror)
    key = plan.parts[0].key
    records, gone = world.context().records(key), key.at("extra")
    assert records.get([gone])
    result = carry(world, plan, {"direct": none_is_needed})
    assert records.get([gone]) == {}
    assert result.receipt is not None
    assert json.loads(result.receipt.read_text())["interrupted"] is False


def test_nothing_is_deleted_where_part_of_the_source_could_not_be_read(world: World) -> None:
    # A mirror of such a source is refused, too: for what comes from elsewhere than the planner, this is the only guard.
    add(world, "eu", {"extra": b"x"})
    write(world, {"a": b"aaa"})
    plan = world.plan("u", "data/x", options=TransferOptions(mirror=True, max_delete_percent=100.0))
    unreadable = FileFailure("data/x/b", FailureCode.UNREADABLE, "no")
    result = carry(world, replace(plan, unreadable=(unreadable,)), {"direct": DirectEngine})
    assert (result.deleted, codes(result)) == (0, {"data/x/b": "unreadable"})


def test_extras_that_stay_after_a_failure_are_reported(world: World) -> None:
    add(world, "eu", {"extra": b"x"})
    write(world, {"a": b"aaa"})
    mirror = TransferOptions(mirror=True, max_delete_percent=100.0, engine="azcopy")
    for plan, said in (
        (
            world.plan("u", "data/x", options=mirror),
            ["1 extra file kept: nothing is deleted after a transfer with failures"],
        ),
        (world.plan("u", "data/x", options=AZCOPY), []),
    ):
        heard = Heard()
        carry(world, plan, {"azcopy": lambda: fails_with("access_denied")}, heard=heard)
        assert heard.notes == said
    assert "store/data/x/extra" in world.store("eu").blobs


def test_after_a_stop_nothing_more_is_deleted(world: World) -> None:
    add(world, "eu", {"a": b"aaa", "extra": b"x"})
    write(world, {"a": b"aaa"})
    stop = StopRequest()

    class StopsThen(Heard):
        def emit(self, event: Event) -> None:
            if event == Phase("deleting"):
                stop.make()

    plan = world.plan("u", "data/x", options=TransferOptions(mirror=True, max_delete_percent=100.0))
    with pytest.raises(TransferCancelledError):
        carry(world, plan, Engines({"direct": none_is_needed}, stop=stop), heard=StopsThen())
    assert "store/data/x/extra" in world.store("eu").blobs


def test_a_receipt_that_cannot_be_written_is_reported_and_no_failure(world: World) -> None:
    write(world, {"a": b"aaa"})
    heard = Heard()
    nowhere = world.root / "nowhere"
    result = carry(world, world.plan("u", "data/x"), {"direct": DirectEngine}, heard=heard, receipts=nowhere)
    assert (result.ok, result.receipt) == (True, None)
    assert heard.notes == [f"no receipt was written to {nowhere}: {os.strerror(2)}"]


def test_what_a_failed_file_leaves_for_the_next_run_is_reported(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bb"})

    def keeps_one(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        one, other = task.actions
        report.file_kept(one, 2)
        report.file_failed(one, FileFailure("data/x/a", FailureCode.STORAGE_ERROR, "no"))
        DirectEngine().move(task._replace(actions=[other]), report, listener)

    heard = Heard()
    result = carry(world, world.plan("u", "data/x"), {"direct": does(keeps_one, "direct")}, heard=heard)
    assert codes(result) == {"data/x/a": "storage_error"}
    assert heard.notes == ["2 B of unfinished files are kept, and the next run resumes from there"]


def test_what_is_verified_is_on_record_also_after_an_interrupt(world: World) -> None:
    write(world, FILES)

    def interrupted(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        DirectEngine().move(task._replace(actions=task.actions[:2]), report, listener)
        raise KeyboardInterrupt

    plan = world.plan("u", "data/x", options=AZCOPY)
    with pytest.raises(TransferCancelledError, match="2 of 3 files are done and verified"):
        carry(world, plan, {"azcopy": does(interrupted)})
    key = plan.parts[0].key
    assert set(world.context().records(key).get([key.at(name) for name in FILES])) == {key.at("a"), key.at("b")}


def test_what_failed_before_an_interrupt_is_in_its_receipt(world: World, tmp_path: Path) -> None:
    write(world, FILES)

    def interrupted(task: MoveTask, report: MoveReport, listener: Listener) -> None:
        report.azcopy_job("job-1")
        report.file_failed(task.actions[0], FileFailure("data/x/a", FailureCode.AZCOPY_FAILED, "it gave up"))
        raise KeyboardInterrupt

    heard = Heard()
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    plan = world.plan("u", "data/x", options=AZCOPY)
    with pytest.raises(TransferCancelledError) as stopped:
        carry(world, plan, {"azcopy": does(interrupted)}, heard=heard, receipts=receipts)
    (receipt,) = receipts.iterdir()
    outcome = stopped.value.result
    assert isinstance(outcome, TransferResult)
    assert (outcome.interrupted, outcome.exit_code) == (True, 130)
    assert (outcome.azcopy_job_ids, outcome.receipt, codes(outcome)) == (
        ("job-1",),
        receipt,
        {"data/x/a": "azcopy_failed"},
    )
    (failure,) = json.loads(receipt.read_text())["failures"]
    assert (failure["path"], failure["code"], "gave" in failure["message"]) == ("data/x/a", "azcopy_failed", True)
    assert heard.done == [("data/x/a", "azcopy_failed")]


def test_a_plan_holds_no_store_and_can_go_through_a_file(world: World) -> None:
    write(world, FILES)
    plan = world.plan("u", "data/x")
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert [type(end) for end in (plan.parts[0].source, plan.parts[0].destination)] == [LocalLocation, BlobLocation]
    result = carry(world, again, {"direct": DirectEngine})
    assert (result.ok, result.transferred) == (True, 3)


def test_the_way_back_of_a_part_swaps_its_ends_and_its_route(world: World) -> None:
    write(world, FILES)
    (part,) = world.plan("u", "data/x").parts
    back = part.turned_round(part.actions[:1])
    assert (back.source, back.destination, back.route) == (part.destination, part.source, Route.DOWNLOAD)
    assert (back.key, back.actions, back.whole, part.whole) == (part.key, part.actions[:1], False, True)
    copy = replace(part, route=Route.SAME_ACCOUNT)
    assert copy.turned_round().route is Route.SAME_ACCOUNT
    assert [route.direction.value for route in Route] == ["u", "d", "u", "u"]


def test_an_engine_gets_large_and_small_files_in_turns(world: World) -> None:
    small, large = {f"a{number:02}": b"1" for number in range(40)}, {f"z{number}": b"2" * 70_000 for number in range(4)}
    write(world, {**small, **large})
    spy = Spy(DirectEngine)
    assert carry(world, world.plan("u", "data/x"), {"direct": lambda: spy}).ok
    (task,) = spy.tasks
    places = [at for at, action in enumerate(task.actions) if action.size > 1]
    assert [at // 11 for at in places] == [0, 1, 2, 3]


def test_a_plan_says_what_each_engine_would_take(world: World) -> None:
    write(world, FILES)
    engine = world.plan("u", "data/x").engine
    assert engine.name == "direct"
    assert engine.direct_seconds is not None and engine.azcopy_seconds is not None
    assert engine.why.startswith("about ") and "azcopy would" in engine.why


def test_routes_by_their_ends(world: World) -> None:
    here, there, other = (
        LocalLocation(world.root),
        account("eu").container.child("x"),
        account("us").container.child("x"),
    )
    assert route_of(here, there) is Route.UPLOAD
    assert route_of(there, here) is Route.DOWNLOAD
    assert route_of(there, there) is Route.SAME_ACCOUNT
    assert route_of(there, other) is Route.CROSS_ACCOUNT
    for ends in ((None, there), (there, None)):
        with pytest.raises(LocalFileError):
            route_of(*ends)


def test_the_bytes_are_those_of_the_version_that_was_read(world: World) -> None:
    write(world, {"a": b"aaa"})

    def newer(task: MoveTask, report: CollectedReport) -> CollectedReport:
        write(world, {"a": b"newer"})
        add(world, "eu", {"a": b"newer"})
        state = LocalState.of(os.stat(world.root / "data/x/a"), hashlib.md5(b"newer").digest())
        return CollectedReport([Moved(task.actions[0], source=state)])

    engine = LyingEngine(newer, works=False)
    result = carry(world, world.plan("u", "data/x", options=AZCOPY), {"azcopy": lambda: engine})
    assert (result.ok, result.bytes_transferred) == (True, 5)


def test_the_result_counts_bytes_as_they_were_read(world: World) -> None:
    write(world, {"a": b"aaa", "b": b"bb"})
    result = world.run("u", "data/x")
    assert (result.bytes_transferred, result.verified, result.transferred) == (5, 2, 2)
    assert 0 <= result.seconds < 60 and result.seconds == round(result.seconds, 3), "as the history has it"
    assert world.store("eu").blobs["store/data/x/a"].info.md5 == hashlib.md5(b"aaa").digest()


@pytest.mark.parametrize(
    ("engine", "refused", "allowed", "asides", "moves"),
    [
        pytest.param("auto", False, True, ["direct"], ["direct"], id="from server to server"),
        pytest.param("auto", True, True, ["direct", "relay"], ["direct", "relay"], id="refused: through this machine"),
        pytest.param("auto", True, False, ["direct"], [], id="refused, and nothing else is allowed"),
        pytest.param("relay", False, True, ["relay"], ["relay"], id="--engine relay"),
        pytest.param("azcopy", False, True, ["direct"], ["direct"], id="never by azcopy, which replaces what is there"),
    ],
)
def test_a_copy_that_keeps_both_uses_the_engines_that_the_service_allows(
    world: World, engine: EngineName, refused: bool, allowed: bool, asides: list[str], moves: list[str]
) -> None:
    add(world, "us", {"a": b"theirs"})
    add(world, "eu", {"a": b"ours"})
    plan = world.plan("u", "data/x", options=TransferOptions(keep="both", engine=engine), copy=True)

    def refuse(request: Request) -> None:
        if refused and request.operation == "put_from_url":
            raise CopySourceRefusedError("the service is not allowed to read the source")

    world.store("eu").before = refuse
    used: list[tuple[str, bool]] = []

    def spied(name: str, make: Callable[[], Engine]) -> Callable[[], Engine]:
        class Told(Spy):
            def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
                used.append((name, task.actions[0].target is None))
                super().move(task, report, listener)

        return lambda: Told(make)

    make = {"direct": spied("direct", DirectEngine), "relay": spied("relay", RelayEngine), "azcopy": none_is_needed}
    heard = Heard()
    result = carry(world, plan, Engines(make, relay_allowed=allowed), heard=heard)
    assert [name for name, is_move in used if not is_move] == asides
    assert [name for name, is_move in used if is_move] == moves
    bodies = sorted(blob.body for blob in world.store("eu").blobs.values())
    assert (result.ok, bodies) == ((True, [b"ours", b"theirs"]) if moves else (False, [b"ours"]))
    if not moves:
        assert [path for path, code in heard.done if code] == ["data/x/a"]


@pytest.mark.parametrize("word", ["u", "d"])
def test_a_blob_that_changes_while_it_is_read_is_moved_in_its_new_version(world: World, word: str) -> None:
    source = "us" if word == "u" else "eu"
    add(world, source, {"a": b"old", "b": b"as it was"})
    plan = world.plan(word, "data/x", copy=word == "u")
    moving = world.store("eu")

    def change(request: Request) -> None:
        if request.operation in ("put_from_url", "get") and request.name.endswith("x/a"):
            moving.before = lambda _: None
            add(world, source, {"a": b"the new one"})

    moving.before = change
    result = carry(world, plan, {"direct": DirectEngine})
    assert (result.failures, result.verified) == ((), 2)
    if word == "u":
        assert moving.blobs["store/data/x/a"].body == b"the new one"
    else:
        assert (world.root / "data/x/a").read_bytes() == b"the new one"


def test_an_earlier_version_is_tried_again_as_it_is(world: World) -> None:
    add(world, "eu", {"a": b"now"})
    plan = world.plan("d", "data/x")
    ((_, action),) = plan.each()
    assert isinstance(action.source, RemoteState)
    earlier = action._replace(source=replace(action.source, etag="0x9", version="2026-11-20T10:00:00Z"))
    plan = replace(plan, parts=(replace(plan.parts[0], actions=[earlier]),))
    engine = fails_with("changed_while_read")
    tried: list[FileAction] = []

    def again(task: MoveTask, report: CollectedReport) -> CollectedReport:
        tried.extend(task.actions)
        return report

    carry(world, plan, {"direct": lambda: LyingEngine(again, works=False) if engine.tasks else engine})
    assert [each.source for each in tried] == [earlier.source]


def test_a_changed_blob_goes_through_this_machine_again_where_it_did_before(world: World) -> None:
    add(world, "us", {"a": b"old", "b": b"as it was"})
    plan = world.plan("u", "data/x", options=AZCOPY._replace(engine="relay"), copy=True)
    store = world.store("us")

    def change(request: Request) -> None:
        if request.operation == "get" and request.name.endswith("x/a"):
            store.before = lambda _: None
            add(world, "us", {"a": b"the new one"})

    store.before = change
    heard = Heard()
    result = carry(world, plan, {"relay": RelayEngine, "direct": none_is_needed}, heard=heard)
    assert (result.failures, result.verified) == ((), 2)
    assert world.store("eu").body("store/data/x/a") == b"the new one"
    assert len(heard.notes) == 1 and "direct engine" not in heard.notes[0]


def test_a_blob_that_is_gone_when_it_is_read_again_keeps_its_failure(world: World) -> None:
    add(world, "us", {"a": b"old", "b": b"as it was"})
    plan = world.plan("u", "data/x", copy=True)
    store = world.store("us")

    def gone(request: Request) -> None:
        store.blobs = {name: blob for name, blob in store.blobs.items() if not name.endswith("x/a")}

    def change(request: Request) -> None:
        if request.operation == "put_from_url":
            world.store("eu").before = lambda _: None
            add(world, "us", {"a": b"the new one"})
            store.before = gone

    world.store("eu").before = change
    result = carry(world, plan, {"direct": DirectEngine})
    assert [each.code for each in result.failures] == ["changed_while_read"] and result.verified == 1


def test_what_is_found_equal_is_on_record_from_then_on(world: World) -> None:
    write(world, FILES)
    add(world, "eu", FILES)
    plan = world.plan("u", "data/x")
    assert {action.reason for _, action in plan.each()} == {Reason.SAME_MD5}
    carry(world, plan, {"direct": none_is_needed})
    assert {action.reason for _, action in world.plan("u", "data/x").each()} == {Reason.SAME_RECORD}


class Careless:
    """Uploads other bytes of the same size, without an MD5."""

    name = "azcopy"

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        for action in task.actions:
            self._store.add(f"store/data/x/{action.path}", b"?" * action.size, with_md5=False)
            assert action.source is not None
            report.files_moved([Moved(action, source=replace(action.source, md5=hashlib.md5(b"aaa").digest()))])


@pytest.mark.parametrize("compare", [True, False])
def test_what_is_compared_by_content_is_checked_by_content(world: World, *, compare: bool) -> None:
    write(world, {"a": b"aaa"})
    store = world.store("eu")
    plan = world.plan("u", "data/x", options=AZCOPY._replace(compare_content=compare))
    result = carry(world, plan, {"azcopy": lambda: Careless(store)})
    assert codes(result) == {"data/x/a": "md5_mismatch" if compare else "md5_missing"}
    assert bool(store.asked("get")) is compare


def test_a_download_that_is_compared_by_content_is_looked_at_here(world: World) -> None:
    add(world, "eu", {"a": b"aaa"})
    plan = world.plan("d", "data/x", options=AZCOPY._replace(compare_content=True))
    assert carry(world, plan, {"azcopy": lambda: LyingEngine(liars.the_truth)}).ok
    assert (world.root / "data/x/a").read_bytes() == b"aaa"


@pytest.mark.parametrize(("links", "sent"), [("skip", b"mine"), ("error", b"mine"), ("follow", b"of another")])
def test_a_file_that_became_a_link_is_tried_again_only_where_links_are_followed(
    world: World, links: Links, sent: bytes
) -> None:
    write(world, {"a": b"mine", "other": b"of another"})
    assert world.carry_out(world.plan("u", "data/x")).ok
    write(world, {"a": b"mine again"})
    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct", links=links))
    file = world.root / "data/x/a"
    file.unlink()
    file.symlink_to("other")
    heard = Heard()
    found = codes(carry(world, plan, {"direct": DirectEngine}, heard=heard))
    assert found == ({} if links == "follow" else {"data/x/a": FailureCode.CHANGED_WHILE_READ})
    assert any("again" in note for note in heard.notes) == (links == "follow")
    assert world.store("eu").body("store/data/x/a") == sent


class ChangesOnce:
    """The direct engine, whose first file changes while it is read, without destination states."""

    name = "direct"

    def __init__(self) -> None:
        self.tries = 0

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tries += 1
        if self.tries == 1:
            for action in task.actions:
                failure = FileFailure(task.part.shown(action), FailureCode.CHANGED_WHILE_READ, "it changed")
                report.file_failed(action, failure)
            return
        done = CollectedReport()
        DirectEngine().move(task, done, listener)
        for moved in done.moved:
            report.files_moved([moved._replace(destination=None)])


def test_what_comes_back_at_its_second_try_is_reported_once(world: World) -> None:
    write(world, {"a": b"mine"})
    add(world, "eu", {"a": b"theirs"})
    heard, engine = Heard(), ChangesOnce()
    plan = world.plan("u", "data/x", options=TransferOptions(engine="direct", keep="remote"))
    assert carry(world, plan, {"direct": lambda: engine, "relay": RelayEngine}, heard=heard).ok
    assert engine.tries == 2 and heard.done == [("data/x/a", None)]
    assert (world.root / "data/x/a").read_bytes() == b"theirs"


def test_an_old_plan_does_not_replace_what_changed_since_whichever_engine_writes(world: World) -> None:
    write(world, FILES)
    plan = replace(world.plan("u", "data/x", options=AZCOPY), created_at=time.time() - 3600)
    # Meanwhile somebody else uploads one of them, and another file appears here.
    theirs = world.store("eu").add("store/data/x/a", b"theirs")
    write(world, {"new": b"not in the plan"})
    blobs: list[FileAction] = []

    def overwrite(task: MoveTask, report: CollectedReport) -> CollectedReport:
        blobs.extend(task.actions)
        return report

    engine = LyingEngine(overwrite)
    result = carry(world, plan, {"azcopy": lambda: engine})
    assert codes(result) == {"data/x/a": FailureCode.CHANGED_MEANWHILE}
    assert "changed since the plan was made, and was left alone" in result.failures[0].message
    assert {each.path for each in blobs} == {"b", "sub/c"}
    assert [task.whole_folder for task in engine.tasks] == [False], "azcopy would find the new file there"
    there = world.store("eu").head("store/data/x/a")
    assert there is not None and there.etag == theirs.etag
    assert result.exit_code is ExitCode.PARTIAL


def test_an_old_plan_does_not_know_all_files_of_a_folder(world: World) -> None:
    write(world, FILES)
    plan = replace(world.plan("u", "data/x", options=AZCOPY), created_at=time.time() - 3600)
    engine = LyingEngine(liars.the_truth)
    assert carry(world, plan, {"azcopy": lambda: engine}).ok
    assert [(len(task.actions), task.whole_folder) for task in engine.tasks] == [(3, False)]


def test_an_old_plan_is_not_looked_at_first_where_the_engine_checks_each_file_itself(world: World) -> None:
    write(world, FILES)
    plan = replace(world.plan("u", "data/x"), created_at=time.time() - 3600)
    world.store("eu").requests.clear()
    engine = LyingEngine(liars.the_truth)
    assert carry(world, plan, {"direct": lambda: engine}).ok
    assert [task.whole_folder for task in engine.tasks] == [True]
    assert world.store("eu").requests[0].operation == "put"


def test_an_old_plan_of_which_all_has_changed_needs_no_engine(world: World) -> None:
    write(world, {"a": b"mine"})
    plan = replace(world.plan("u", "data/x", options=AZCOPY), created_at=time.time() - 3600)
    add(world, "eu", {"a": b"theirs"})
    assert codes(carry(world, plan, {"azcopy": none_is_needed})) == {"data/x/a": FailureCode.CHANGED_MEANWHILE}


def test_files_that_an_old_download_would_replace_are_not_read_before_it(world: World) -> None:
    write(world, {"a": b"old"})
    world.run("u", "data/x")
    add(world, "eu", {"a": b"new"})
    plan = replace(world.plan("d", "data/x", options=AZCOPY), created_at=time.time() - 3600)
    heard = Heard()

    def not_yet(task: MoveTask, report: CollectedReport) -> CollectedReport:
        assert heard.looked == 0
        return report

    assert carry(world, plan, {"azcopy": lambda: LyingEngine(not_yet)}, heard=heard).ok
    assert heard.looked == 1


def test_a_plan_that_was_just_made_needs_no_second_look(world: World) -> None:
    write(world, FILES)
    plan = world.plan("u", "data/x", options=AZCOPY)
    world.store("eu").requests.clear()
    looked: list[int] = []

    def count(task: MoveTask, report: CollectedReport) -> CollectedReport:
        looked.append(len(world.store("eu").asked("head")) + len(world.store("eu").asked("list")))
        return report

    carry(world, plan, {"azcopy": lambda: LyingEngine(count)})
    assert looked == [0]


# -- what a lost worker has moved without a report ----------------------------------------------------------------


@dataclass
class LostWorker:
    """Moves the files of its first attempt without a report. ``after`` follows; then they fail with ``codes``, one for
    each attempt, and in a further attempt the direct engine moves them."""

    after: Callable[[], None]
    codes: list[FailureCode]
    name: str = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        if not self.codes:
            DirectEngine().move(task, report, listener)
            return
        if not task.again:
            DirectEngine().move(task, CollectedReport(), listener)
            self.after()
        code = self.codes.pop(0)
        for action in task.actions:
            report.file_failed(action, FileFailure(task.part.shown(action), code, "no"))


_CHANGED, _MEANWHILE = FailureCode.CHANGED_WHILE_READ, FailureCode.CHANGED_MEANWHILE


def lose(
    world: World, word: str, *codes: FailureCode, after: Callable[[], None] = lambda: None, with_md5: bool = True
) -> TransferResult:
    """A copy or a download of one file, whose first worker is lost."""
    world.store("us" if word == "u" else "eu").add("store/data/x/a", b"old", with_md5=with_md5)
    plan = world.plan(word, "data/x", copy=word == "u", options=AZCOPY._replace(engine="direct"))
    engine = LostWorker(after, list(codes))
    return carry(world, plan, {"direct": lambda: engine})


def next_actions(world: World, word: str) -> list[Action]:
    return [action.action for _, action in world.plan(word, "data/x", copy=word == "u").each()]


def arrived(world: World, word: str) -> bytes:
    return world.store("eu").body("store/data/x/a") if word == "u" else (world.root / "data/x/a").read_bytes()


@pytest.mark.parametrize("word", ["u", "d"])
def test_what_a_lost_worker_wrote_of_a_source_that_changed_is_replaced_by_the_new_version(
    world: World, word: str
) -> None:
    source = "us" if word == "u" else "eu"
    result = lose(world, word, _CHANGED, after=lambda: add(world, source, {"a": b"the new one"}))
    assert (result.failures, arrived(world, word)) == ((), b"the new one")


@pytest.mark.parametrize("word", ["u", "d"])
def test_what_a_lost_worker_wrote_is_no_conflict_where_the_source_changes_on_and_on(world: World, word: str) -> None:
    source = "us" if word == "u" else "eu"
    result = lose(world, word, _CHANGED, _CHANGED, after=lambda: add(world, source, {"a": b"the new one"}))
    assert set(codes(result).values()) == {"changed_while_read"}
    assert next_actions(world, word) == [Action.TRANSFER]


@pytest.mark.parametrize("word", ["u", "d"])
@pytest.mark.parametrize("code", [FailureCode.NOT_REPORTED, _MEANWHILE])
@pytest.mark.parametrize("with_md5", [True, False])
def test_what_a_lost_worker_wrote_is_known_to_the_next_command(
    world: World, word: str, code: FailureCode, *, with_md5: bool
) -> None:
    # Another command may have moved it; of one that was not reported the next command finds that out.
    expected = set() if code is _MEANWHILE else {code}
    assert set(codes(lose(world, word, code, with_md5=with_md5)).values()) == expected
    assert next_actions(world, word) == [Action.UNCHANGED]
    add(world, "us" if word == "u" else "eu", {"a": b"the new one"})
    assert next_actions(world, word) == [Action.TRANSFER]


@pytest.mark.parametrize("word", ["u", "d"])
@pytest.mark.parametrize("theirs", [b"his", b"somebody else's"])
def test_what_somebody_else_wrote_meanwhile_stays_and_is_a_conflict(world: World, word: str, theirs: bytes) -> None:
    def change() -> None:
        if word == "u":
            add(world, "eu", {"a": theirs})
            add(world, "us", {"a": b"the new one"})
        else:
            write(world, {"a": theirs})
            add(world, "eu", {"a": b"the new one"})

    result = lose(world, word, _CHANGED, after=change)
    assert (result.ok, arrived(world, word)) == (False, theirs)
    assert next_actions(world, word) == [Action.CONFLICT]


def test_a_copy_without_md5_whose_source_changed_cannot_be_told_from_somebody_elses(world: World) -> None:
    result = lose(world, "u", _CHANGED, after=lambda: add(world, "us", {"a": b"new"}), with_md5=False)
    assert (result.ok, arrived(world, "u"), next_actions(world, "u")) == (False, b"old", [Action.CONFLICT])


def test_what_fails_for_a_reason_of_its_own_is_not_looked_for(world: World) -> None:
    lose(world, "u", FailureCode.ACCESS_DENIED, after=world.store("eu").requests.clear)
    assert world.store("eu").asked("head") == []


def test_a_destination_that_does_not_answer_at_the_end_changes_no_result(world: World) -> None:
    def refuse(request: Request) -> None:
        raise StorageUnreachableError("gone")

    def end() -> None:
        world.store("eu").before = refuse

    assert set(codes(lose(world, "u", FailureCode.NOT_REPORTED, after=end)).values()) == {"not_reported"}
