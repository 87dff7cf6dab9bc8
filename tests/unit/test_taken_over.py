"""A spread transfer whose command was killed, taken over by the next one: workers give up their shards, and the files
that they have moved are recorded, with or without their records."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.direct.engine import DirectEngine
from blobsync.local.index import Index, PairIndex
from blobsync.plan.transfer_plan import IndexKey
from blobsync.spread.earlier_records import merge_records, recall, record_files
from blobsync.spread.record import Answer, FileRecord, Ready, answer_line
from blobsync.spread.shard import cut, cut_file, shard_lines
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore
from blobsync.transfer.engines import MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import copy, download, noticed_by, upload

_PARENT, _WORKER, _OTHER = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
_PATIENCE = 60.0


@pytest.fixture
def place(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "place")


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    yield index
    index.close()


def _pair(known: Index) -> PairIndex:
    return known.pair("data", "blobs")


def _put(place: FolderStore, task: MoveTask) -> None:
    """All files as one shard."""
    (shard,) = cut(task.part, task.actions, 1)
    place.write("shards/0000000", ("\n".join(shard_lines(shard)) + "\n").encode())


def _begun(place: FolderStore, *records: FileRecord) -> None:
    told: list[Answer] = [Ready(), *records]
    lines = "".join(f"{answer_line(each)}\n" for each in told)
    place.write("records/0000000~node1.0-00000001~000000", lines.encode())


def _hauler(
    place: FolderStore, task: MoveTask, interrupt: object = None, noticed: threading.Event | None = None
) -> ShardWorker:
    ends = Ends(task.part.source, task.part.destination)
    settings = ShardWorkerSettings("node1.0", 0, _WORKER, poll=0.01, flush=0.01)
    key = str(ends.source), str(ends.destination)
    stop = interrupt if callable(interrupt) else lambda: None
    engine = DirectEngine(stopping=noticed_by(noticed)) if noticed else DirectEngine()
    return ShardWorker(place, {key: ends}, engine, settings, stop, lambda text: None)


def test_a_worker_gives_up_what_is_taken_back_after_it_said_what_it_has_moved(
    place: FolderStore, tmp_path: Path, known: Index
) -> None:
    root, store = tmp_path / "data", MemoryStore("box")
    root.mkdir()
    for number in range(30):
        (root / f"f{number:02}").write_bytes(b"x" * number)
    task = upload(root, store, "sets")
    _put(place, task)
    place.write("alive", b"1")
    at_work, interrupted, noticed, ended = (threading.Event() for _ in range(4))

    def hold(request: Request) -> None:
        if request.operation == "put" and len(store.asked("put")) > 5:
            at_work.set()
            assert interrupted.wait(_PATIENCE)
            # The worker has other files, and would be done with all of them first.
            assert noticed.wait(_PATIENCE)

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        interrupted.set()

    def take_over() -> None:
        assert at_work.wait(_PATIENCE)
        began = time.monotonic()
        recall(place, _PARENT)
        if time.monotonic() - began < CLAIM_SECONDS / 2:
            ended.set()
        place.write("alive", b"")

    store.before = hold
    parent = threading.Thread(target=take_over)
    parent.start()
    _hauler(place, task, interrupt, noticed).work()
    parent.join(_PATIENCE)
    # Long before its claim would have expired.
    assert ended.is_set()
    assert 0 < len(store.blobs) < 30
    merged = merge_records(place, [task.part], lambda key: known.pair(*key.roots))
    # The response to a request under way may come too late to be recorded; the next plan compares that file.
    assert len(store.blobs) - 1 <= merged.files <= len(store.blobs)


def test_nobody_takes_a_shard_that_was_taken_back_and_a_worker_that_hangs_is_waited_for_once(
    place: FolderStore, tmp_path: Path
) -> None:
    store = MemoryStore("box")
    store.add("sets/a", b"a")
    task = download(store, "sets", tmp_path / "down", ["a"])
    _put(place, task)
    place.write("shards/0000001", place.read("shards/0000000") or b"")
    place.claim("claims/0000001", _OTHER)
    seconds: list[float] = []

    recall(place, _PARENT, now=lambda: sum(seconds), sleep=seconds.append)
    assert CLAIM_SECONDS <= sum(seconds) < CLAIM_SECONDS + 1
    assert place.names("done") == ["0000000", "0000001"]
    place.write("alive", b"1")
    worker = threading.Thread(target=_hauler(place, task).work)
    worker.start()
    time.sleep(0.2)
    place.write("alive", b"")
    worker.join(_PATIENCE)
    assert not place.names("records") and not store.asked("get")


def test_a_worker_that_is_started_again_gives_back_what_it_had_and_nothing_else(
    place: FolderStore, tmp_path: Path
) -> None:
    task = download(MemoryStore("box"), "sets", tmp_path, [])
    _begun(place)
    place.write("records/0000001~node1.10-00000001~000000", b"")
    for number, holder in (("0000000", _WORKER), ("0000001", _OTHER)):
        assert place.claim(f"claims/{number}", holder)
    _hauler(place, task).work()
    assert place.claim("claims/0000000", _PARENT) and not place.claim("claims/0000001", _PARENT)


class Copied:
    """A blob that a worker has copied without a record, and whose source has changed since."""

    def __init__(self, place: FolderStore, known: Index, *, with_md5: bool = True) -> None:
        self.here, self.place, self.known, self.with_md5 = MemoryStore("here"), place, known, with_md5
        self.there = MemoryStore("there", {"here": self.here})
        self.here.add("x/a", b"planned", with_md5=with_md5)
        self.there.add("y/old", b"planned")
        self.here.add("x/old", b"planned", with_md5=with_md5)
        self.task = copy(self.here, "x", self.there, "y", ["a", "old"])
        _put(place, self.task)

    def recorded(self) -> list[str]:
        count = record_files(self.place, [self.task.part], self._records)
        found = _pair(self.known).get(["x/a", "x/old"])
        assert count == len(found)
        for path, record in found.items():
            (action,) = [each for each in self.task.actions if path == f"x/{each.path}"]
            # The planned version; the next plan checks whether the source still has it.
            assert record.near == action.source
            assert isinstance(record.remote, RemoteState)
            assert record.remote.etag == self.there.blobs[f"y/{action.path}"].info.etag
        return sorted(found)

    def _records(self, key: IndexKey) -> PairIndex:
        return self.known.pair(*key.roots)


def test_what_was_copied_without_a_word_is_on_record_as_the_version_that_was_planned(
    place: FolderStore, known: Index
) -> None:
    copied = Copied(place, known)
    _begun(place)
    copied.there.add("y/a", b"planned")
    copied.here.add("x/a", b"another version")
    assert copied.recorded() == ["x/a"]
    assert place.names("shards") and place.names("records")


def test_what_has_no_md5_is_compared_by_its_content(place: FolderStore, known: Index) -> None:
    copied = Copied(place, known, with_md5=False)
    _begun(place)
    copied.there.add("y/a", b"planned", with_md5=False)
    assert copied.recorded() == ["x/a"]


def test_what_cannot_be_read_at_either_end_is_not_equal(place: FolderStore, known: Index) -> None:
    copied = Copied(place, known, with_md5=False)
    _begun(place)
    copied.there.add("y/a", b"foreign", with_md5=False)

    def refuse(request: Request) -> None:
        if request.operation == "get":
            raise AccessDeniedError("no right to read", status=403)

    copied.here.before = copied.there.before = refuse
    assert copied.recorded() == []


@pytest.mark.parametrize(("body", "with_md5"), [(b"planned", True), (b"another size", False)])
def test_nothing_is_read_where_size_or_md5_tells(body: bytes, with_md5: bool, place: FolderStore, known: Index) -> None:
    copied = Copied(place, known, with_md5=with_md5)
    _begun(place)
    copied.there.add("y/a", body, with_md5=with_md5)
    assert copied.recorded() == (["x/a"] if with_md5 else [])
    assert not copied.here.asked("get") and not copied.there.asked("get")


def test_one_file_that_is_somebody_elses_keeps_no_other_from_being_found(place: FolderStore, known: Index) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    for name in "abc":
        here.add(f"x/{name}", b"planned", with_md5=False)
    task = copy(here, "x", there, "y", ["a", "b", "c"])
    _put(place, task)
    # A shard that has not been claimed, before one that has.
    place.write("shards/0000001", place.read("shards/0000000") or b"")
    place.write("records/0000001~node1.0-00000001~000000", answer_line(Ready()).encode())
    there.add("y/b", b"foreign", with_md5=False)
    there.add("y/c", b"planned", with_md5=False)
    assert record_files(place, [task.part], lambda key: known.pair(*key.roots)) == 1
    assert list(_pair(known).get(["x/a", "x/b", "x/c"])) == ["x/c"]


def test_a_range_of_a_copy_that_came_to_its_end_is_no_file(place: FolderStore, known: Index) -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    here.add("x/big", bytes(8 << 20))
    task = copy(here, "x", there, "y", ["big"])
    (action,) = task.actions
    for number, shard in enumerate(cut_file(task.part, action, 4 << 20)):
        body = "\n".join(shard_lines(replace(shard, number=number))) + "\n"
        place.write(f"shards/{number:07}", body.encode())
    _begun(place, FileRecord("big", action.source, None))
    there.add("y/big", bytes(8 << 20))
    merged = merge_records(place, [task.part], lambda key: known.pair(*key.roots))
    assert merged.files == 0 and not list(_pair(known).get(["x/big"]))


@pytest.mark.parametrize("seen", [True, False])
def test_what_a_worker_told_without_a_look_is_looked_at(place: FolderStore, known: Index, seen: bool) -> None:
    copied = Copied(place, known)
    _begun(place, FileRecord("a", copied.task.actions[0].source, None))
    if seen:
        copied.there.add("y/a", b"planned")
    assert copied.recorded() == (["x/a"] if seen else [])


@pytest.mark.parametrize(
    ("body", "with_md5", "begun", "changed"),
    [
        pytest.param(b"foreign", True, True, False, id="somebody else's, of the same size"),
        pytest.param(b"foreign", False, True, False, id="somebody else's, without an MD5"),
        pytest.param(b"another size", False, True, False, id="another size"),
        pytest.param(b"planned", True, False, False, id="nobody has begun it"),
        pytest.param(b"planned", False, True, True, id="no MD5, and the source is not there any more to be compared"),
        pytest.param(None, True, True, False, id="not there"),
    ],
)
def test_what_may_be_somebody_elses_is_not_on_record(
    body: bytes | None, with_md5: bool, begun: bool, changed: bool, place: FolderStore, known: Index
) -> None:
    copied = Copied(place, known, with_md5=with_md5)
    if begun:
        _begun(place)
    if body is not None:
        copied.there.add("y/a", body, with_md5=with_md5)
    if changed:
        copied.here.add("x/a", b"changed", with_md5=False)
    assert copied.recorded() == []


@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("body", [b"planned", b"foreign", None])
def test_what_was_downloaded_without_a_word_is_on_record_where_it_is_the_planned_version(
    body: bytes | None, with_md5: bool, place: FolderStore, known: Index, tmp_path: Path
) -> None:
    store, root = MemoryStore("box"), tmp_path / "down"
    root.mkdir()
    for name in ("a", "edited"):
        store.add(f"sets/{name}", b"planned", with_md5=with_md5)
    (root / "edited").write_bytes(b"planned")
    task = download(store, "sets", root, ["a", "edited"])
    _put(place, task)
    _begun(place)
    if body is not None:
        (root / "a").write_bytes(body)
    count = record_files(place, [task.part], lambda key: known.pair(*key.roots))
    found = _pair(known).get(["x/a", "x/edited"])
    assert count == len(found) and sorted(found) == (["x/a"] if body == b"planned" else [])
    for record in found.values():
        assert isinstance(record.near, LocalState) and record.near.same_file(LocalState.of((root / "a").stat()))


def test_of_an_upload_nothing_is_taken_for_moved_that_nobody_told_of(
    place: FolderStore, known: Index, tmp_path: Path
) -> None:
    """The content of the planned version is unknown."""
    root, store = tmp_path / "data", MemoryStore("box")
    root.mkdir()
    (root / "a").write_bytes(b"planned")
    task = upload(root, store, "sets")
    _put(place, task)
    _begun(place)
    store.add("sets/a", b"planned")
    assert record_files(place, [task.part], lambda key: known.pair(*key.roots)) == 0


def test_records_of_other_ends_and_of_no_shard_say_nothing(place: FolderStore, known: Index) -> None:
    copied = Copied(place, known)
    _begun(place)
    copied.there.add("y/a", b"planned")
    place.write("shards/0000001", b"no shard")
    place.write("records/0000001~node1.0-00000001~000000", b"")
    elsewhere = replace(copied.task.part, destination=copied.task.part.source)
    assert record_files(place, [elsewhere], lambda key: known.pair(*key.roots)) == 0
    assert copied.recorded() == ["x/a"]
