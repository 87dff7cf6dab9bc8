"""After ``--keep`` both ends hold the same: ``u`` and ``d`` have nothing left to do, and nothing kept is lost."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError, FailureCode, FileFailure, StorageError, TransferCancelledError
from blobsync.base.events import BytesMoved, Event, Listener
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_options import Keep, TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer import conflict_resolution
from blobsync.transfer.engines import Moved, MoveReport, MoveTask
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import Request


def here(world: World) -> dict[str, bytes]:
    root = world.root / "data"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def there(world: World, name: str = "eu") -> dict[str, bytes]:
    return {key.removeprefix("store/data/"): blob.body for key, blob in world.store(name).blobs.items()}


def edit_both(world: World) -> None:
    """``v/a.txt`` was verified once, and changed at both ends since."""
    world.write("data/v/a.txt", b"base")
    world.write("data/v/b.txt", b"beside it")
    assert world.run("u", "data").ok
    world.write("data/v/a.txt", b"mine")
    world.store("eu").add("store/data/v/a.txt", b"theirs")


def never_verified(world: World) -> None:
    """``v/a.txt`` differs at both ends, which know nothing of each other; the blob has no MD5."""
    world.write("data/v/a.txt", b"mine")
    world.store("eu").add("store/data/v/a.txt", b"them", with_md5=False)


def is_quiet(result: TransferResult) -> bool:
    moved = result.transferred, result.plan.files_to_transfer, result.plan.count(Action.CONFLICT)
    return result.exit_code == 0 and moved == (0, 0, 0)


@pytest.mark.parametrize("make", [edit_both, never_verified])
@pytest.mark.parametrize("path", ["data", "data/v", "data/v/", "data/v/a.txt"])
@pytest.mark.parametrize("command", ["u", "d"])
@pytest.mark.parametrize("keep", ["local", "remote", "both"])
def test_after_keeping_a_side_or_both_neither_command_has_anything_to_do(
    keep: Keep, command: str, path: str, make: object, world: World
) -> None:
    assert callable(make)
    make(world)
    theirs = there(world)["v/a.txt"]
    assert world.run(command, path).exit_code == 3
    result = world.run(command, path, options=TransferOptions(keep=keep))
    assert result.exit_code == 0, result.failures
    assert result.transferred == result.plan.files_to_transfer
    assert here(world) == there(world)
    versions = {name: body for name, body in here(world).items() if name.startswith("v/a.")}
    expected = {"local": {b"mine"}, "remote": {theirs}, "both": {b"mine", theirs}}[keep]
    assert sorted(versions.values()) == sorted(expected)
    if keep == "both":
        assert versions["v/a.txt"] == (b"mine" if command == "u" else theirs)
    for again in ("u", "d", "u"):
        for where in ("data", path):
            assert is_quiet(world.run(again, where)), (again, where)


@pytest.mark.parametrize("command", ["u", "d"])
@pytest.mark.parametrize("keep", ["local", "remote", "both"])
def test_the_other_cluster_of_a_copy_is_only_read(keep: Keep, command: str, world: World) -> None:
    world.there = cluster("us", data=account("us"))
    world.store("us").add("store/data/v/a.txt", b"from us")
    if command == "u":
        world.store("eu").add("store/data/v/a.txt", b"before")
    else:
        world.write("data/v/a.txt", b"before")
    for path in ("data/v/a.txt", "data"):
        options = TransferOptions(keep=keep)
        result = world.run(command, path, options=options, copy=True)
        assert result.exit_code == 0, result.failures
        assert is_quiet(world.run(command, path, copy=True))
    assert there(world, "us") == {"v/a.txt": b"from us"}
    found = there(world) if command == "u" else here(world)
    wins = {"both": b"from us", "local": b"from us" if command == "u" else b"before"}
    wins["remote"] = b"before" if wins["local"] == b"from us" else b"from us"
    assert found["v/a.txt"] == wins[keep]
    assert sorted(found.values()) == ([b"before", b"from us"] if keep == "both" else [wins[keep]])
    world.store("us").add("store/data/v/a.txt", b"changed again")
    again = world.run(command, "data", copy=True)
    kept_theirs = found["v/a.txt"] == b"from us"
    assert (again.exit_code, again.transferred) == ((0, 1) if kept_theirs else (3, 0))


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_version_that_came_after_the_plan_is_not_replaced(command: str, world: World) -> None:
    edit_both(world)
    plan = world.plan(command, "data", options=TransferOptions(keep="both"))
    if command == "u":
        world.store("eu").add("store/data/v/a.txt", b"newer")
    else:
        world.write("data/v/a.txt", b"newer")
    result = world.carry_out(plan)
    assert (result.exit_code, result.verified) == (3, 1)
    assert result.failures[0].path == "data/v/a.txt"
    assert (there(world) if command == "u" else here(world))["v/a.txt"] == b"newer"
    assert {b"mine" if command == "u" else b"theirs", b"newer"} <= {*here(world).values(), *there(world).values()}


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_name_aside_that_was_taken_since_the_plan_leaves_the_file_alone(command: str, world: World) -> None:
    edit_both(world)
    plan = world.plan(command, "data", options=TransferOptions(keep="both"))
    ((_, action),) = [each for each in plan.each() if each[1].aside]
    world.store("eu").add(f"store/data/v/{action.aside}", b"somebody's")
    world.write(f"data/v/{action.aside}", b"somebody's")
    result = world.carry_out(plan)
    assert result.exit_code == 3
    assert str(action.aside) in result.failures[0].message
    assert (here(world)["v/a.txt"], there(world)["v/a.txt"]) == (b"mine", b"theirs")


def test_a_download_keeps_both_here_where_the_container_may_not_be_written(world: World) -> None:
    edit_both(world)

    def refuse(request: Request) -> None:
        if request.operation == "put":
            raise AccessDeniedError("this SAS may only read", status=403)

    world.store("eu").before = refuse
    result = world.run("d", "data", options=TransferOptions(keep="both"))
    assert result.exit_code == 3
    assert [failure.code for failure in result.failures] == ["access_denied"]
    assert sorted(here(world).values()) == [b"beside it", b"mine", b"theirs"]
    assert is_quiet(world.run("d", "data"))


def test_a_refused_way_back_settles_the_file_all_the_same(world: World) -> None:
    edit_both(world)

    def refuse(request: Request) -> None:
        if request.operation == "put":
            raise AccessDeniedError("this SAS may only read", status=403)

    world.store("eu").before = refuse
    assert world.run("d", "data", options=TransferOptions(keep="local")).exit_code == 3
    assert is_quiet(world.run("d", "data"))
    world.store("eu").before = lambda request: None
    assert world.run("u", "data").transferred == 1
    assert there(world) == here(world)


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_large_file_is_kept_whole(command: str, world: World) -> None:
    mine, theirs = b"m" * ((5 << 20) + 7), b"t" * (9 << 20)
    world.write("data/v/a.bin", mine)
    world.store("eu").add("store/data/v/a.bin", theirs, with_md5=False)
    for _ in range(2):
        assert world.run(command, "data", options=TransferOptions(keep="both")).ok
        assert sorted(here(world).values()) == [mine, theirs]
        assert here(world) == there(world)


def test_a_copy_left_by_a_killed_run_is_used(world: World) -> None:
    edit_both(world)
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))

    def kill(request: Request) -> None:
        if request.operation == "put" and request.name.endswith("/a.txt"):
            raise KeyboardInterrupt

    store = world.store("eu")
    store.before = kill
    with pytest.raises((TransferCancelledError, KeyboardInterrupt)):
        world.carry_out(plan)
    store.before = lambda request: None
    assert sorted(there(world).values()) == [b"beside it", b"theirs", b"theirs"]
    assert world.run("u", "data", options=TransferOptions(keep="both")).ok
    assert sorted(here(world).values()) == [b"beside it", b"mine", b"theirs"]
    assert here(world) == there(world)


class Relay:
    """Says that it copied; ``body`` is what it wrote, None for nothing, and ``fails`` what it says of it."""

    name = "relay"

    def __init__(self, body: bytes | None, *, fails: bool = False, hint: str | None = "wait") -> None:
        self._body = body
        self._fails = fails
        self._hint = hint

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        assert isinstance(task.part.destination, OpenBlob)
        for action in task.actions:
            if self._body is not None:
                name = task.part.destination.at(action.target or "")
                task.part.destination.store.put(name, self._body, md5=hashlib.md5(self._body).digest())
            if self._fails:
                failure = FileFailure(action.path, FailureCode.SERVICE_BUSY, "the service is busy", self._hint)
                report.file_failed(action, failure)
            else:
                report.files_moved([Moved(action)])


@pytest.mark.parametrize("body", [None, b"other.", b"longer than theirs"])
def test_a_copy_that_is_not_seen_to_be_right_replaces_nothing(body: bytes | None, world: World) -> None:
    edit_both(world)
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))
    result = world.carry_out(plan, relay=lambda: Relay(body))
    assert (result.exit_code, [failure.path for failure in result.failures]) == (3, ["data/v/a.txt"])
    assert "left alone" in result.failures[0].message
    assert (here(world)["v/a.txt"], there(world)["v/a.txt"]) == (b"mine", b"theirs")


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_of_a_blob_without_md5_is_compared_by_its_bytes(fails: bool, world: World) -> None:
    never_verified(world)
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))
    result = world.carry_out(plan, relay=lambda: Relay(b"THEM", fails=fails))
    assert [failure.path for failure in result.failures] == ["data/v/a.txt"]
    assert there(world)["v/a.txt"] == b"them"


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("make", [edit_both, never_verified])
def test_a_copy_that_is_there_counts_whatever_was_said_of_it(make: object, fails: bool, world: World) -> None:
    assert callable(make)
    make(world)
    theirs = there(world)["v/a.txt"]
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))
    result = world.carry_out(plan, relay=lambda: Relay(theirs, fails=fails))
    assert result.exit_code == 0, result.failures
    assert here(world) == there(world)
    assert {b"mine", theirs} <= set(here(world).values())


def test_a_failed_copy_says_why_and_what_to_do(world: World) -> None:
    edit_both(world)
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))
    (failure,) = world.carry_out(plan, relay=lambda: Relay(None, fails=True)).failures
    assert (failure.code, failure.hint) == ("service_busy", "wait")
    assert "the service is busy" in failure.message


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("path", ["data", "data/v/a.txt"])
def test_a_failed_copy_names_the_file_and_a_next_step_whatever_is_known_of_it(
    path: str, fails: bool, world: World
) -> None:
    edit_both(world)
    plan = world.plan("u", path, options=TransferOptions(keep="both"))
    (failure,) = world.carry_out(plan, relay=lambda: Relay(None, fails=fails, hint=None)).failures
    assert (failure.path, failure.hint) == ("data/v/a.txt", "run the same command again")
    assert failure.message.startswith("data/v/a.txt: left alone, because the other version could not be saved")


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_version_that_is_not_safe_at_both_ends_is_not_replaced(command: str, world: World) -> None:
    edit_both(world)
    plan = world.plan(command, "data", options=TransferOptions(keep="both"))
    ((_, action),) = [each for each in plan.each() if each[1].aside]

    def break_the_way_back(request: Request) -> None:
        way = request.operation == ("get" if command == "u" else "put")
        if way and request.name.endswith(f"/{action.aside}"):
            raise StorageError("the service said no", status=400)

    # The copy itself needs no request to the service.
    world.store("eu").before = break_the_way_back
    result = world.carry_out(plan, relay=lambda: Relay(b"theirs"))
    assert (result.exit_code, {failure.path for failure in result.failures}) == (
        3,
        {"data/v/a.txt", f"data/v/{action.aside}"},
    )
    left = [failure.message for failure in result.failures if failure.path == "data/v/a.txt"]
    assert len(left) == 1 and "left alone" in left[0] and "the service said no" in left[0]
    assert (here(world)["v/a.txt"], there(world)["v/a.txt"]) == (b"mine", b"theirs")
    world.store("eu").before = lambda request: None
    assert world.run(command, "data", options=TransferOptions(keep="both")).ok
    assert here(world) == there(world) and {b"mine", b"theirs"} <= set(here(world).values())


@pytest.mark.parametrize("path", ["data", "data/v/a.txt"])
def test_the_copy_beside_the_file_is_on_record_at_both_ends(path: str, world: World) -> None:
    """So that it is not read again, and is known where the service keeps no MD5 of it."""
    edit_both(world)
    plan = world.plan("u", path, options=TransferOptions(keep="both"))
    ((_, action),) = [each for each in plan.each() if each[1].aside]
    assert world.carry_out(plan).ok
    reasons = {each.path: each.reason for _, each in world.plan("u", "data").each()}
    assert reasons[f"v/{action.aside}"] is Reason.SAME_RECORD


def test_a_copy_beside_an_entry_that_is_a_file_is_in_no_record(tmp_path: Path) -> None:
    world = World(tmp_path / "project", cluster("eu", one=account("eu")))
    world.root.mkdir(exist_ok=True)
    (world.root / "one").write_bytes(b"mine")
    world.store("eu").add("store/one", b"theirs")
    plan = world.plan("u", "one", options=TransferOptions(keep="both"))
    ((part, action),) = plan.each()
    assert action.aside and world.carry_out(plan).ok
    assert (world.root / action.aside).read_bytes() == b"theirs"
    assert list(world.index.pair(*part.key.roots).get(["", action.aside])) == [""]


def test_what_the_relay_read_and_wrote_is_not_read_again(world: World) -> None:
    never_verified(world)
    plan = world.plan("u", "data", options=TransferOptions(keep="both"))
    part, actions = opened(world, plan)
    world.store("eu").requests.clear()
    kept, failed = conflict_resolution.set_aside(part, actions, [RelayEngine])
    assert (len(kept), failed) == (1, [])
    asked = [(request.operation, request.name) for request in world.store("eu").requests]
    (name,) = {each.target or each.aside for each in actions}
    assert asked.count(("get", "store/data/v/a.txt")) == 1
    assert ("get", f"store/data/v/{name}") not in asked and ("head", f"store/data/v/{name}") not in asked


@pytest.mark.parametrize("lost", [False, True])
def test_a_copy_is_on_the_disk_before_the_original_is_replaced(lost: bool, world: World) -> None:
    edit_both(world)
    part, actions = opened(world, world.plan("d", "data", options=TransferOptions(keep="both")))
    waited: list[str] = []

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        waited.extend(files)
        return dict.fromkeys(files, OSError(errno.EIO, "Input/output error")) if lost else {}

    kept, failed = conflict_resolution.set_aside(part, actions, [DirectEngine], wait)
    assert isinstance(part.destination, LocalLocation)
    assert waited == [str(part.destination.at(f"v/{each.aside}")) for each in actions] != []
    assert ([each.action for each in kept], [each for each, _ in failed]) == (([], actions) if lost else (actions, []))
    assert all(failure.code == "local_file" and "Input/output" in failure.message for _, failure in failed)


def opened(world: World, plan: TransferPlan) -> tuple[LivePart, list[FileAction]]:
    """The only part of a plan, and its files that are kept in both versions."""
    part = world.context().opened(plan.parts[0])
    return part, [action for action in part.actions if action.aside]


@dataclass(frozen=True)
class Busy:
    """The direct engine; ``meanwhile`` comes when it has read a file."""

    meanwhile: Callable[[], None]
    name = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        DirectEngine().move(task, report, self)

    def emit(self, event: Event) -> None:
        if isinstance(event, BytesMoved) and event.size > 0:
            self.meanwhile()


def set_aside_here(world: World, meanwhile: Callable[[str], None]) -> tuple[conflict_resolution.Aside, str]:
    """As ``d --keep both`` does it; ``meanwhile`` is told the name aside. With the latter.

    No file that it opened stays open.
    """
    plan = world.plan("d", "data", options=TransferOptions(keep="both"))
    part, actions = opened(world, plan)
    aside = f"v/{actions[0].aside}"
    before = open_files()
    found = conflict_resolution.set_aside(part, actions, [lambda: Busy(lambda: meanwhile(aside))])
    assert open_files() <= before
    return found, aside


def open_files() -> set[tuple[int, int]]:
    """Which files this process has open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            state = os.fstat(int(name))
            if stat.S_ISREG(state.st_mode):
                found.add((state.st_dev, state.st_ino))
    return found


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_that_changes_while_it_is_copied_is_left_alone(is_there: bool, is_gone: bool, world: World) -> None:
    edit_both(world)

    def change(aside: str) -> None:
        if is_there:
            world.write(f"data/{aside}", b"mine")
        if is_gone:
            (world.root / "data/v/a.txt").unlink()
        else:
            world.write("data/v/a.txt", b"mine, and more")

    (kept, failed), aside = set_aside_here(world, change)
    # A copy that is there has the version of the plan; the move then finds that the file has another.
    codes = [] if is_there else [FailureCode.CHANGED_WHILE_READ]
    assert (len(kept), [failure.code for _, failure in failed]) == (int(is_there), codes)
    left = {} if is_gone else {"v/a.txt": b"mine, and more"}
    assert here(world) == {"v/b.txt": b"beside it", **left, **({aside: b"mine"} if is_there else {})}


def test_the_checksum_of_a_copy_is_known_without_reading_it(world: World) -> None:
    edit_both(world)
    (kept, _), _ = set_aside_here(world, lambda _: None)
    assert [each.state.md5 for each in kept] == [hashlib.md5(b"mine").digest()]


@pytest.mark.parametrize("end", ["here", "there", "both"])
@pytest.mark.parametrize("command", ["u", "d"])
def test_a_copy_that_patterns_hide_is_used_where_it_holds_the_version(command: str, end: str, world: World) -> None:
    edit_both(world)
    options = TransferOptions(keep="both", include=("/v/a.txt",))
    ((_, action),) = world.plan(command, "data", options=options).each()
    kept = b"theirs" if command == "u" else b"mine"
    if end in ("here", "both"):
        world.write(f"data/v/{action.aside}", kept)
    if end in ("there", "both"):
        world.store("eu").add(f"store/data/v/{action.aside}", kept)
    world.store("eu").requests.clear()
    result = world.run(command, "data", options=options)
    assert result.exit_code == 0, result.failures
    assert here(world) == there(world)
    assert sorted(here(world).values()) == [b"beside it", b"mine", b"theirs"]
    asked = {(request.operation, request.name) for request in world.store("eu").requests}
    # The source's end gets it only if it lacks it.
    way, source = ("get", "here") if command == "u" else ("put", "there")
    assert ((way, f"store/data/v/{action.aside}") in asked) is (end not in (source, "both"))


@pytest.mark.parametrize(
    ("aside", "now", "counts"),
    [
        (b"mine, and longer", b"mine, and longer", True),
        (b"mine, and LONGER", b"mine, and longer", False),
        (b"edited since", b"edited since", False),
        (b"mine, and longer", None, False),
    ],
)
def test_a_copy_that_is_there_is_compared_with_the_version_of_the_plan_by_its_bytes(
    aside: bytes, now: bytes | None, counts: bool, world: World
) -> None:
    edit_both(world)
    # Of another size than the record's: the plan need not read it.
    world.write("data/v/a.txt", b"mine, and longer")
    part, actions = opened(world, world.plan("d", "data", options=TransferOptions(keep="both")))
    assert [isinstance(each.destination, LocalState) and each.destination.md5 for each in actions] == [None]
    world.write(f"data/v/{actions[0].aside}", aside)
    if now is None:
        (world.root / "data/v/a.txt").unlink()
    elif now != b"mine, and longer":
        world.write("data/v/a.txt", now)
    kept, failed = conflict_resolution.set_aside(part, actions, [DirectEngine])
    assert (len(kept), len(failed)) == ((1, 0) if counts else (0, 1))


def test_an_end_that_cannot_be_asked_or_holds_something_else_gets_the_copy_or_the_file_is_left_alone(
    world: World,
) -> None:
    edit_both(world)
    options = TransferOptions(keep="both", include=("/v/a.txt",))
    ((_, action),) = world.plan("d", "data", options=options).each()
    name = f"store/data/v/{action.aside}"
    world.store("eu").add(name, b"something else")
    result = world.run("d", "data", options=options)
    assert "data/v/a.txt" in [failure.path for failure in result.failures]
    assert (here(world)["v/a.txt"], there(world)["v/a.txt"]) == (b"mine", b"theirs")
    del world.store("eu").blobs[name]

    def refuse(request: Request) -> None:
        if (request.operation, request.name) == ("head", name):
            world.store("eu").before = lambda request: None
            raise StorageError("no", status=400)

    world.store("eu").before = refuse
    assert world.run("d", "data", options=options).ok
    assert world.store("eu").body(name) == b"mine" and here(world) == there(world)


def test_a_local_file_that_was_edited_is_left_alone_also_where_the_version_of_the_plan_is_safe(world: World) -> None:
    edit_both(world)
    plan = world.plan("d", "data", options=TransferOptions(keep="both"))
    ((_, action),) = [each for each in plan.each() if each[1].aside]
    world.write(f"data/v/{action.aside}", b"mine")
    world.write("data/v/a.txt", b"mine, later")
    result = world.carry_out(plan)
    assert [failure.path for failure in result.failures] == ["data/v/a.txt"]
    assert here(world) == {"v/a.txt": b"mine, later", f"v/{action.aside}": b"mine", "v/b.txt": b"beside it"}


def test_a_local_file_that_was_edited_since_the_plan_is_left_alone(world: World) -> None:
    edit_both(world)
    plan = world.plan("d", "data", options=TransferOptions(keep="both"))
    world.write("data/v/a.txt", b"mine, later")
    result = world.carry_out(plan)
    assert [failure.path for failure in result.failures] == ["data/v/a.txt"]
    assert here(world)["v/a.txt"] == b"mine, later"
    assert sorted(here(world)) == ["v/a.txt", "v/b.txt"]
