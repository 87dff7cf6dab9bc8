"""Files of azcopy's staging folder: checked, placed, and counted."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.azcopy.staged_downloads import Arrivals
from blobsync.base.errors import LocalFileError, StorageError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.direct.thread_pool import Stopped
from blobsync.local.files import LocalFolder
from blobsync.local.names import RelativeName
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.crc64 import crc64
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordedRun, RecordingListener, action, live_part, local_state
from tests.waiting import wait_until

PATIENCE = 60.0


def md5(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


def blob(body: bytes, *, with_md5: bool = True) -> RemoteState:
    return RemoteState(len(body), "e1", md5(body) if with_md5 else None)


class Case:
    """A staging folder beside a destination, and its ``Arrivals``."""

    def __init__(
        self, tmp_path: Path, *actions: FileAction, only: str = "", folder: type[LocalFolder] = LocalFolder
    ) -> None:
        self.staging, self.target = tmp_path / "staging", tmp_path / "target"
        self.staging.mkdir()
        self.store = MemoryStore()
        source = OpenBlob(self.store, "x")
        task = MoveTask(live_part(Route.DOWNLOAD, source, LocalLocation(self.target)), actions)
        self.run = RecordedRun(task, RecordingListener(), 0)
        names = {each.path or only: each for each in actions}
        self.arrivals = Arrivals(self.run, self.staging, folder(self.target), names, source, only=only)

    @property
    def report(self) -> CollectedReport:
        return self.run.report

    @property
    def codes(self) -> dict[str, str]:
        return {each.path: failure.code for each, failure in self.report.failed}

    def stage(self, name: str, body: bytes) -> Path:
        path = self.staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    def finish(self) -> list[str]:
        self.arrivals.start()
        return [each.path for each in self.arrivals.finish()]

    def tree(self) -> dict[str, bytes]:
        files = (path for path in self.target.rglob("*") if path.is_file())
        return {path.relative_to(self.target).as_posix(): path.read_bytes() for path in files}


def test_files_are_placed_and_told_with_what_both_sides_are_now(tmp_path: Path) -> None:
    case = Case(
        tmp_path,
        action("a", blob(b"AA"), None),
        action("sub/deep/b", blob(b""), None),
        action("sub/c", blob(b"c"), None),
    )
    staged = case.stage("a", b"AA")
    case.stage("sub/deep/b", b"")
    assert case.finish() == ["sub/c"]
    assert case.tree() == {"a": b"AA", "sub/deep/b": b""}
    assert not staged.exists()
    moved = next(each for each in case.report.moved if each.action.path == "a")
    seen = local_state(case.target / "a")
    assert seen is not None
    assert (moved.source, moved.destination) == (blob(b"AA"), replace(seen, md5=md5(b"AA")))
    assert (case.run.bytes_moved, case.codes, case.arrivals.complete) == (2, {}, False)


def test_files_are_placed_while_azcopy_still_works(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA"), None), action("sub/b", blob(b"BB"), None))
    case.arrivals.start()
    assert not case.arrivals.complete
    case.stage("a", b"AA")
    assert wait_until(lambda: "a" in case.tree())
    assert not case.arrivals.complete
    case.stage("sub/b", b"XX")
    # A file that was found wrong is finished, too.
    assert wait_until(lambda: case.arrivals.complete)
    assert case.arrivals.finish() == []
    assert (case.tree(), set(case.codes)) == ({"a": b"AA"}, {"sub/b"})


UNFINISHED = ".azDownload-11111111-2222-3333-4444-555555555555-"


def test_files_that_azcopy_has_begun_are_named(tmp_path: Path) -> None:
    case = Case(tmp_path, *(action(name, blob(b"AA"), None) for name in ("a", "sub/b", "sub/c", "sub/d")))
    listener = case.run.listener
    assert isinstance(listener, RecordingListener)
    for name in ("b", "c", "other"):
        case.stage(f"sub/{UNFINISHED}{name}", b"AA")
    case.arrivals.start()
    assert wait_until(lambda: len(listener.begun) == 1)
    case.stage(f"{UNFINISHED}a", b"A")
    assert wait_until(lambda: len(listener.begun) == 2)
    (case.staging / f"sub/{UNFINISHED}b").rename(case.staging / "sub/b")
    assert wait_until(lambda: "sub/b" in case.tree())
    case.stage(f"sub/{UNFINISHED}d", b"A")
    assert wait_until(lambda: len(listener.begun) == 3)
    assert {each.path for each in case.arrivals.finish()} == {"a", "sub/c", "sub/d"}
    assert listener.begun == [(2, "data/x/sub/c"), (3, "data/x/a"), (3, "data/x/sub/d")]


def test_a_single_file_that_azcopy_has_begun_is_named_as_the_user_did(tmp_path: Path) -> None:
    case = Case(tmp_path, action("", blob(b"AA"), None), only="target")
    listener = case.run.listener
    assert isinstance(listener, RecordingListener)
    case.stage(f"{UNFINISHED}target", b"A")
    case.arrivals.start()
    assert wait_until(lambda: bool(listener.begun))
    case.arrivals.finish()
    assert listener.begun == [(1, "data/x")]


def test_what_arrives_between_the_last_look_and_the_end_is_placed(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA"), None))
    case.arrivals.start()
    time.sleep(0.03)
    case.stage("a", b"AA")
    assert case.arrivals.finish() == []
    assert case.tree() == {"a": b"AA"}


@pytest.mark.parametrize("arrived", [b"A", b"AAA", b""])
def test_another_length_is_refused_without_reading(tmp_path: Path, arrived: bytes) -> None:
    case = Case(tmp_path, action("a", blob(b"AA", with_md5=False), None))
    case.stage("a", arrived)
    assert case.finish() == []
    assert (case.tree(), case.codes) == ({}, {"a": "changed_while_read"})
    assert f"a: {len(arrived)} bytes arrived instead of 2" in case.report.failed[0][1].message
    assert case.store.requests == []


@pytest.mark.parametrize(
    ("there", "code"),
    [("the planned one", "checksum_mismatch"), ("a newer one", "changed_while_read"), ("none", "changed_while_read")],
)
def test_other_content_is_a_change_or_a_damage(tmp_path: Path, there: str, code: str) -> None:
    planned = blob(b"AA")
    if there != "none":
        store = MemoryStore()
        planned = replace(planned, etag=store.add("x/a", b"AA").etag)
    case = Case(tmp_path, action("a", planned, None))
    if there != "none":
        case.store.add("x/a", b"AA")
    if there == "a newer one":
        case.store.add("x/a", b"AX")
    case.stage("a", b"AX")
    assert case.finish() == []
    assert (case.tree(), case.codes) == ({}, {"a": code})
    assert [each.name for each in case.store.requests] == ["x/a"] * len(case.store.asked("head"))


def test_other_content_is_a_damage_where_nobody_can_be_asked(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA"), None))

    def refuse(request: Request) -> None:
        raise StorageError("no")

    case.store.before = refuse
    case.stage("a", b"AX")
    case.finish()
    assert (case.tree(), case.codes) == ({}, {"a": "checksum_mismatch"})


def test_a_blob_without_an_md5_gets_that_of_what_arrived(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA", with_md5=False), None))
    case.stage("a", b"AX")
    case.finish()
    (moved,) = case.report.moved
    assert moved.source == RemoteState(2, "e1", md5(b"AX"))


def test_a_blob_of_which_the_plan_knows_nothing_has_the_planned_size(tmp_path: Path) -> None:
    unknown = action("a", None, None)._replace(size=2)
    case = Case(tmp_path, unknown, unknown._replace(path="b"))
    case.stage("a", b"AA")
    case.stage("b", b"AAA")
    case.finish()
    assert (case.tree(), set(case.codes)) == ({"a": b"AA"}, {"b"})
    assert [each.source for each in case.report.moved] == [None]


def test_a_large_file_is_hashed_to_its_end(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096 * 2 + b"end"
    case = Case(tmp_path, action("a", blob(body), None))
    case.stage("a", body)
    case.finish()
    assert case.tree() == {"a": body}


def present(tmp_path: Path, name: str, body: bytes) -> LocalState:
    path = tmp_path / "target" / name
    path.parent.mkdir()
    path.write_bytes(body)
    state = local_state(path)
    assert state is not None
    return state


@pytest.mark.parametrize("edited", [False, True])
def test_only_the_planned_version_is_replaced(tmp_path: Path, *, edited: bool) -> None:
    old = present(tmp_path, "a", b"old")
    case = Case(tmp_path, action("a", blob(b"AA"), old))
    if edited:
        (case.target / "a").write_bytes(b"edited")
    case.stage("a", b"AA")
    case.finish()
    assert case.tree() == {"a": b"edited" if edited else b"AA"}
    assert case.codes == ({"a": "changed_meanwhile"} if edited else {})
    # Nothing is left of the file that could not be placed.
    assert [path.name for path in case.target.iterdir()] == ["a"]


@pytest.mark.parametrize("taken", [False, True])
def test_a_second_version_takes_a_name_that_is_free(tmp_path: Path, *, taken: bool) -> None:
    old = present(tmp_path, "a", b"mine")
    case = Case(tmp_path, action("a", blob(b"AA"), old)._replace(target="a.remote"))
    if taken:
        (case.target / "a.remote").write_bytes(b"mine, too")
    case.stage("a", b"AA")
    case.finish()
    assert case.tree() == {"a": b"mine", "a.remote": b"mine, too" if taken else b"AA"}
    assert case.codes == ({"a": "changed_meanwhile"} if taken else {})


def test_a_single_file_gets_its_final_name(tmp_path: Path) -> None:
    case = Case(tmp_path, action("", blob(b"AA"), None), only="f")
    case.stage("f", b"AA")
    case.finish()
    assert case.tree() == {"f": b"AA"}


def test_a_file_that_vanishes_again_is_a_failure_of_its_own(tmp_path: Path) -> None:
    one = action("a", blob(b"AA"), None)
    case = Case(tmp_path, one)
    with pytest.raises(LocalFileError):
        case.arrivals._checked(case.staging / "a", one)
    case.arrivals._place_one((case.staging / "a", one))
    assert case.codes == {"a": "local_file"}


def test_a_folder_that_never_comes_keeps_nothing_else_from_its_place(tmp_path: Path) -> None:
    case = Case(tmp_path, action("never/a", blob(b"AA"), None), action("sub/b", blob(b"BB"), None))
    case.stage("sub/b", b"BB")
    assert case.finish() == ["never/a"]
    assert case.tree() == {"sub/b": b"BB"}


def test_what_has_another_crc64_than_the_blob_gets_no_name(tmp_path: Path) -> None:
    known = replace(blob(b"AA", with_md5=False), crc64=crc64(b"AA").to_bytes(8, "big"))
    # Of the first blob that a store gets.
    known = replace(known, etag=MemoryStore().add("x/b", b"AA").etag)
    case = Case(tmp_path, action("a", known, None), action("b", known, None))
    case.store.add("x/b", b"AA", with_md5=False)
    case.stage("a", b"AA")
    case.stage("b", b"AX")
    case.finish()
    assert case.tree() == {"a": b"AA"}
    assert [(each.action.path, each.compared_by) for each in case.report.moved] == [("a", "crc64nvme")]
    assert case.codes == {"b": "checksum_mismatch"}


def test_files_that_are_hashed_are_closed(tmp_path: Path) -> None:
    one = action("a", blob(b"AA"), None)
    case = Case(tmp_path, one)
    path = case.stage("a", b"AA")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        case.arrivals._checked(path, one)
    assert len(os.listdir("/proc/self/fd")) <= before


class Named(LocalFolder):
    """A disk without unnamed files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, unnamed=False)


def test_a_destination_on_another_disk_is_for_another_engine(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    case = Case(tmp_path, action("a", blob(b"AA"), None), action("b", blob(b"BB"), None), folder=Named)
    case.stage("b", b"BX")
    elsewhere = other / f"blobsync-test-{os.getpid()}"
    elsewhere.write_bytes(b"AA")
    try:
        with pytest.raises(LocalFileError) as refused:
            case.arrivals._place(elsewhere, action("a", blob(b"AA"), None))
        assert elsewhere.exists()
        # The same as a failure, which tells whose work it is.
        case.arrivals._missing[""].pop("a")
        case.arrivals._place_one((elsewhere, action("a", blob(b"AA"), None)))
        case.finish()
    finally:
        elsewhere.unlink(missing_ok=True)
    assert "cross-device" in refused.value.message.lower()
    assert case.codes == {"a": "azcopy_cannot_carry", "b": "changed_while_read"}
    assert list(case.target.iterdir()) == []


class Faulty(LocalFolder):
    """A bug of ours."""

    def create(self, relative: RelativeName, size: int = 0) -> PartFile:
        raise RuntimeError("a bug")


def test_a_bug_is_raised_at_the_end(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA"), None), folder=Faulty)
    case.stage("a", b"AA")
    with pytest.raises(RuntimeError, match="a bug"):
        case.finish()


class Held(LocalFolder):
    """Places no file before ``gate`` opens."""

    gate = threading.Event()
    entered = threading.Semaphore(0)

    def create(self, relative: RelativeName, size: int = 0) -> PartFile:
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        return super().create(relative, size)


class OneHeld(LocalFolder):
    """Places ``large`` when ``gate`` opens, and all others at once."""

    gate = threading.Event()
    entered = threading.Event()

    def create(self, relative: RelativeName, size: int = 0) -> PartFile:
        if str(relative) == "large":
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        return super().create(relative, size)


def test_a_large_file_keeps_no_other_waiting(tmp_path: Path) -> None:
    small = [str(number) for number in range(300)]
    case = Case(tmp_path, *(action(name, blob(b""), None) for name in ("large", *small)), folder=OneHeld)
    case.stage("large", b"")
    case.arrivals.start()
    assert OneHeld.entered.wait(PATIENCE)
    for name in small:
        case.stage(name, b"")
    try:
        assert wait_until(lambda: len(case.report.moved) == len(small), seconds=PATIENCE)
        assert not case.arrivals.complete
    finally:
        OneHeld.gate.set()
    assert case.arrivals.finish() == [] and case.arrivals.complete


def test_after_a_stop_nothing_new_is_placed_and_nobody_looks_any_more(tmp_path: Path) -> None:
    Held.gate.clear()
    case = Case(tmp_path, *(action(str(n), blob(b""), None) for n in range(50)), folder=Held)
    for number in range(50):
        case.stage(str(number), b"")
    case.arrivals.start()
    for _ in range(2):
        assert Held.entered.acquire(timeout=PATIENCE)
    stopping = threading.Thread(target=case.arrivals.stop)
    stopping.start()
    # Stopping waits for the two files that are under way.
    assert wait_until(case.arrivals._abandoned.is_set)
    Held.gate.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert len(case.tree()) == len(case.report.moved) == 2
    assert case.arrivals._all.is_done(0)


def test_a_file_that_is_being_hashed_is_left_when_everything_stops(tmp_path: Path) -> None:
    # A hole, which takes minutes to hash: longer than this thread may be kept from stopping it.
    size = 1 << 38
    one = action("a", RemoteState(size, "e1", md5(b"another")), None)
    case = Case(tmp_path, one)
    path = case.stage("a", b"")
    os.truncate(path, size)
    case.arrivals.start()
    assert wait_until(lambda: not case.arrivals._missing[""])
    time.sleep(0.05)
    case.arrivals.stop()
    assert path.exists()
    assert (case.tree(), case.codes, case.arrivals.complete) == ({}, {}, False)
    with pytest.raises(Stopped):
        case.arrivals._checked(path, one)


def test_what_nobody_asked_for_is_a_stray(tmp_path: Path) -> None:
    case = Case(tmp_path, action("a", blob(b"AA"), None), action("sub/b", blob(b"BB"), None))
    for name in ("a", "sub/b", "sub/odd", "odd", ".azDownload-12345678-1234-1234-1234-123456789012-a"):
        case.stage(name, b"")
    (tmp_path / "staging" / "empty").mkdir()
    assert case.arrivals.strays(case.staging) == ["odd", "sub/odd"]
    (tmp_path / "beside").write_bytes(b"")
    assert case.arrivals.strays(tmp_path) == ["../beside", "odd", "sub/odd"]
