"""What an earlier run moved, told or not, is in the index before the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.local.index import Index, PairIndex
from blobsync.plan.transfer_plan import IndexKey
from blobsync.spread.record import FileRecord, read_body, record_body
from blobsync.spread.shared_store import FolderStore, SealedStore
from blobsync.spread.task import task_name
from blobsync.spread.verified_records import TakenOver, take_over
from blobsync.transfer.engines import MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import copy, download, upload
from tests.fakes.tasks_of_a_job import KEY, put_shard, store_of, task_of


@pytest.fixture
def place(tmp_path: Path) -> SealedStore:
    return SealedStore(FolderStore(tmp_path / "place"), KEY, "run", lambda text: None)


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    yield index
    index.close()


def _taken(place: SealedStore, known: Index, *tasks: MoveTask, begun_ns: int = 1 << 62) -> TakenOver:
    def records(key: IndexKey) -> PairIndex:
        return known.pair(*key.roots)

    return take_over(place, [each.part for each in tasks], records, begun_ns)


def _on_record(known: Index, names: list[str]) -> list[str]:
    return sorted(known.pair("data", "blobs").get([f"x/{name}" for name in names]))


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for name in "abc":
        (root / name).write_bytes(name.encode())
    return upload(root, MemoryStore("box"), "sets")


def test_what_tasks_recorded_is_in_the_index_as_far_as_both_ends_are_still_so(
    task: MoveTask, place: SealedStore, known: Index, tmp_path: Path
) -> None:
    put_shard(place, task)
    assert task_of(place, 0, [task.part]).run()
    (tmp_path / "data" / "b").write_bytes(b"changed since")
    store = store_of(task)
    store.add("sets/c", b"replaced since")
    assert _taken(place, known, task) == TakenOver(3, 1)
    assert _on_record(known, ["a", "b", "c"]) == ["x/a"]
    record = known.pair("data", "blobs").get(["x/a"])["x/a"]
    assert isinstance(record.near, LocalState) and isinstance(record.remote, RemoteState)
    assert record.near.same_file(LocalState.of((tmp_path / "data" / "a").stat()))
    assert record.remote.etag == store.blobs["sets/a"].info.etag
    # One that changed after the run had begun, and maybe while its task read it, is read again by the next plan.
    assert _taken(place, known, task, begun_ns=1) == TakenOver(3, 1)
    record = known.pair("data", "blobs").get(["x/a"])["x/a"]
    assert isinstance(record.near, LocalState) and record.near.mtime_ns == 0
    # Both ends were looked at, and nothing was read.
    assert not store.asked("open")


def test_a_record_of_half_a_task_counts(task: MoveTask, place: SealedStore, known: Index) -> None:
    put_shard(place, task)
    assert task_of(place, 0, [task.part]).run()
    name = f"records/{task_name(0)}"
    said = read_body(place.read(name) or b"", task.part.route)
    place.write(name, record_body(said[1:3]))
    assert _taken(place, known, task) == TakenOver(3, 2)


def test_a_record_without_a_seal_and_one_that_cannot_be_count_for_nothing(
    task: MoveTask, place: SealedStore, known: Index, tmp_path: Path
) -> None:
    put_shard(place, task)
    assert task_of(place, 0, [task.part]).run()
    name = f"records/{task_name(0)}"
    sealed, said = place.read(name) or b"", read_body(place.read(name) or b"", task.part.route)
    (tmp_path / "place" / name).write_bytes(sealed)
    assert _taken(place, known, task) == TakenOver(3, 0)
    lies = [replace(each, path="other") if isinstance(each, FileRecord) else each for each in said]
    place.write(name, record_body(lies[1:]))
    assert _taken(place, known, task) == TakenOver(3, 0)
    place.write(f"shards/{task_name(1)}", b"no shard")
    assert _taken(place, known, task) == TakenOver(3, 0)
    # Nor does a record for other ends than those of this command.
    place.write(name, sealed)
    other = task._replace(part=replace(task.part, source=LocalLocation(Path("/elsewhere"))))
    assert _taken(place, known, other) == TakenOver(3, 0)


def test_of_an_upload_nothing_is_taken_for_moved_that_no_task_recorded(
    task: MoveTask, place: SealedStore, known: Index
) -> None:
    """The content of the planned version is unknown; the next plan compares it."""
    put_shard(place, task)
    store_of(task).add("sets/a", b"a")
    assert _taken(place, known, task) == TakenOver(3, 0)


class Copied:
    """A copy of ``a``, whose task recorded nothing; ``old`` was there before."""

    def __init__(self, place: SealedStore, *, with_md5: bool = True) -> None:
        self.here = MemoryStore("here")
        self.there = MemoryStore("there", {"here": self.here})
        self.here.add("x/a", b"planned", with_md5=with_md5)
        self.there.add("y/old", b"planned")
        self.here.add("x/old", b"planned", with_md5=with_md5)
        self.task = copy(self.here, "x", self.there, "y", ["a", "old"])
        put_shard(place, self.task)


@pytest.mark.parametrize("with_md5", [True, False])
def test_what_was_copied_without_a_record_is_known_as_the_version_that_was_planned(
    with_md5: bool, place: SealedStore, known: Index
) -> None:
    copied = Copied(place, with_md5=with_md5)
    copied.there.add("y/a", b"planned", with_md5=with_md5)
    if with_md5:
        copied.here.add("x/a", b"another version")
    assert _taken(place, known, copied.task) == TakenOver(2, 1)
    record = known.pair("data", "blobs").get(["x/a"])["x/a"]
    assert record.near == copied.task.actions[0].source
    assert isinstance(record.remote, RemoteState)
    assert record.remote.etag == copied.there.blobs["y/a"].info.etag


@pytest.mark.parametrize(
    ("body", "with_md5", "changed"),
    [
        pytest.param(b"foreign", True, False, id="somebody else's, of the same size"),
        pytest.param(b"foreign", False, False, id="somebody else's, without an MD5"),
        pytest.param(b"another size", False, False, id="another size"),
        pytest.param(b"planned", False, True, id="no MD5, and the source is not there any more to be compared"),
        pytest.param(None, True, False, id="not there"),
    ],
)
def test_what_may_be_somebody_elses_is_not_on_record(
    body: bytes | None, with_md5: bool, changed: bool, place: SealedStore, known: Index
) -> None:
    copied = Copied(place, with_md5=with_md5)
    if body is not None:
        copied.there.add("y/a", body, with_md5=with_md5)
    if changed:
        copied.here.add("x/a", b"changed", with_md5=False)
    assert _taken(place, known, copied.task) == TakenOver(2, 0)


def test_what_cannot_be_read_at_either_end_is_not_equal(place: SealedStore, known: Index) -> None:
    copied = Copied(place, with_md5=False)
    copied.there.add("y/a", b"planned", with_md5=False)

    def refuse(request: Request) -> None:
        if request.operation == "get":
            raise AccessDeniedError("no right to read", status=403)

    copied.here.before = copied.there.before = refuse
    assert _taken(place, known, copied.task) == TakenOver(2, 0)


@pytest.mark.parametrize("body", [b"planned", b"foreign", None])
def test_what_was_downloaded_without_a_record_is_known_where_it_is_the_planned_version(
    body: bytes | None, place: SealedStore, known: Index, tmp_path: Path
) -> None:
    store, root = MemoryStore("box"), tmp_path / "down"
    root.mkdir()
    for name in ("a", "edited"):
        store.add(f"sets/{name}", b"planned")
    (root / "edited").write_bytes(b"planned")
    task = download(store, "sets", root, ["a", "edited"])
    put_shard(place, task)
    if body is not None:
        (root / "a").write_bytes(body)
    assert _taken(place, known, task) == TakenOver(2, body == b"planned")
    assert _on_record(known, ["a", "edited"]) == (["x/a"] if body == b"planned" else [])
