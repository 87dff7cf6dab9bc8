"""The fresh look at the destination: its requests and comparisons."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from blobsync.base.errors import StorageError
from blobsync.base.events import Event, Looked
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.local.files import hash_file, reading_threads
from blobsync.store.open_locations import OpenBlob, remote_state
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import (
    arrived_anyway,
    check_arrival,
    read_without_md5,
    states_at_destination,
    unreported,
    written_before,
)
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import action, copy, download, upload
from tests.waiting import wait_until

ONE, TWO = b"1" * 16, b"2" * 16
HERE = LocalState(10, 1, 1, 1, ONE)


def verdict(
    destination: FileState | None, *, read: FileState | None = None, planned: FileState | None = HERE
) -> str | None:
    """The code of the failure. ``read`` is the source as the engine saw it."""
    failure = check_arrival("data/a", Moved(action("a", planned, None), source=read), destination)
    if failure is None:
        return None
    assert failure.path == "data/a" and failure.message.startswith("data/a: ") and failure.hint
    return failure.code


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        (RemoteState(10, "e", ONE), None),
        (None, "missing_after_transfer"),
        (RemoteState(9, "e", ONE), "size_mismatch"),
        (RemoteState(11, "e", ONE), "size_mismatch"),
        (RemoteState(10, "e", TWO), "md5_mismatch"),
        (RemoteState(10, "e", None), "md5_missing"),
    ],
)
def test_the_destination_must_be_there_with_the_size_and_the_md5(
    destination: FileState | None, expected: str | None
) -> None:
    assert verdict(destination) == expected


def test_both_sizes_are_reported() -> None:
    failure = check_arrival("data/a", Moved(action("a", HERE, None)), RemoteState(9, "e", ONE))
    assert failure is not None
    assert "9 bytes at the destination, 10 at the source" in failure.message


def test_what_the_engine_read_counts_before_what_was_planned() -> None:
    read = LocalState(12, 2, 2, 2, TWO)
    assert verdict(RemoteState(12, "e", TWO), read=read) is None
    assert verdict(RemoteState(10, "e", ONE), read=read) == "size_mismatch"
    assert verdict(RemoteState(12, "e", ONE), read=read) == "md5_mismatch"


@pytest.mark.parametrize("md5", [None, TWO])
def test_a_source_without_an_md5_is_compared_by_size(md5: bytes | None) -> None:
    planned = RemoteState(10, "e", None)
    assert verdict(RemoteState(10, "f", md5), planned=planned) is None
    assert verdict(RemoteState(11, "f", md5), planned=planned) == "size_mismatch"


def test_a_source_of_which_nothing_is_known_has_the_planned_size() -> None:
    assert verdict(RemoteState(0, "f", TWO), planned=None) is None
    assert verdict(RemoteState(1, "f", TWO), planned=None) == "size_mismatch"


class Seen:
    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, event: Event) -> None:
        assert isinstance(event, Looked)
        self.counts.append(event.files)


def moved(*paths: str) -> list[Moved]:
    return [Moved(action(path, None, None)) for path in paths]


def test_files_are_read_and_absent_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"aa")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b").write_bytes(b"")
    seen = Seen()
    found = states_at_destination(LocalLocation(tmp_path), moved("a", "sub/b", "gone"), seen)
    assert found == {
        "a": LocalState.of(os.stat(tmp_path / "a"), hashlib.md5(b"aa").digest()),
        "sub/b": LocalState.of(os.stat(tmp_path / "sub/b"), hashlib.md5(b"").digest()),
    }
    assert seen.counts == [1, 1, 1]


def filled(*names: str) -> MemoryStore:
    store = MemoryStore()
    for name in names:
        store.add(name, name.encode())
    return store


def test_a_file_that_got_another_name_is_looked_for_there() -> None:
    store = filled("x/a", "x/a.local")
    renamed = action("a", None, None)._replace(target="a.local")
    assert states_at_destination(OpenBlob(store, "x"), [Moved(renamed)], Seen()) == {
        "a": remote_state(store.blobs["x/a.local"].info)
    }


@pytest.mark.parametrize("folder", ["x", ""])
@pytest.mark.parametrize(("count", "asked"), [(64, {"head": 64}), (65, {"list": 1})])
def test_few_blobs_are_asked_for_and_many_listed(folder: str, count: int, asked: dict[str, int]) -> None:
    names = [f"{n:03}" for n in range(count)]
    at = f"{folder}/" if folder else ""
    store = filled(*(at + name for name in names[1:]), "other/000", *([] if not folder else ["000"]))
    seen = Seen()
    found = states_at_destination(OpenBlob(store, folder), moved(*names), seen)
    assert found == {name: remote_state(store.blobs[at + name].info) for name in names[1:]}
    assert {each.operation: len(store.asked(each.operation)) for each in store.requests} == asked
    assert {each.name for each in store.asked("list")} <= {at}
    assert seen.counts == ([1] * 64 if count == 64 else [])


@pytest.mark.parametrize(
    ("folders", "listed"),
    [(("sub/", "sub/"), "x/sub/"), (("sub/a", "sub/b"), "x/sub/"), (("a/", "b/"), "x/"), (("", "sub/"), "x/")],
)
def test_only_the_folder_of_all_files_is_listed(folders: tuple[str, str], listed: str) -> None:
    names = [f"{folders[n % 2]}{n}" for n in range(65)]
    store = filled(*(f"x/{name}" for name in names))
    assert len(states_at_destination(OpenBlob(store, "x"), moved(*names), Seen())) == 65
    assert [each.name for each in store.asked("list")] == [listed]


@pytest.mark.parametrize(("count", "told"), [(999, []), (1000, [1000]), (2000, [1000, 1000])])
def test_a_long_listing_tells_how_far_it_is(count: int, told: list[int]) -> None:
    store = filled(*(f"x/{n}" for n in range(count)))
    seen = Seen()
    assert len(states_at_destination(OpenBlob(store, "x"), moved(*(str(n) for n in range(65))), seen)) == 65
    assert seen.counts == told


def _waiting_in(pipe: int) -> int:
    """How many bytes nobody has read yet."""
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return int.from_bytes(found, sys.byteorder)


def test_a_file_that_is_written_to_while_it_is_read_has_no_md5(tmp_path: Path) -> None:
    # A pipe is the one kind of file that can be held in the middle of being read.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as stream:
            stream.write(b"early")
            # Whoever has read this has looked at the pipe's times before.
            assert wait_until(lambda: not _waiting_in(stream.fileno()), seconds=60)
            # The next tick of the clock of file systems.
            time.sleep(0.02)
            stream.write(b"late")

    thread = threading.Thread(target=write)
    thread.start()
    assert hash_file(pipe, os.open) is None
    thread.join()


def test_what_cannot_be_read_has_no_md5(tmp_path: Path) -> None:
    assert hash_file(tmp_path / "gone") is None
    assert hash_file(tmp_path) is None
    os.mkfifo(tmp_path / "pipe")
    assert hash_file(tmp_path / "pipe") is None


@pytest.mark.parametrize(("processors", "threads"), [(None, 2), (1, 2), (3, 3)])
def test_files_are_read_by_as_many_threads_as_there_are_processors_but_two_at_least(
    processors: int | None, threads: int
) -> None:
    assert reading_threads(processors) == threads
    assert reading_threads() >= 2


# -- blobs that arrived without an MD5 ------------------------------------------------------------------------


def test_a_blob_without_an_md5_is_read_if_its_source_has_one() -> None:
    store = MemoryStore()
    store.add("x/a", b"content", with_md5=False)
    store.add("x/b.local", b"more", with_md5=False)
    planned = [
        Moved(action("a", LocalState(7, 1, 1, 1, ONE), None)),
        # What the engine read counts, and the name that the file got.
        Moved(action("b", LocalState(9, 1, 1, 1), None)._replace(target="b.local"), source=LocalState(4, 1, 1, 1, TWO)),
        Moved(action("gone", LocalState(7, 1, 1, 1, ONE), None)),
    ]
    end = OpenBlob(store, "x")
    found = read_without_md5(end, planned, states_at_destination(end, planned, Seen()))
    assert {path: state.md5 for path, state in found.items()} == {
        "a": hashlib.md5(b"content").digest(),
        "b": hashlib.md5(b"more").digest(),
    }


@pytest.mark.parametrize(
    ("source", "with_md5"),
    [
        (None, False),
        (LocalState(7, 1, 1, 1), False),
        (LocalState(6, 1, 1, 1, ONE), False),
        (LocalState(7, 1, 1, 1, ONE), True),
    ],
    ids=["no source", "no MD5 to compare", "another size", "has an MD5"],
)
def test_a_blob_is_not_read_where_that_decides_nothing(source: LocalState | None, with_md5: bool) -> None:
    store = MemoryStore()
    store.add("x/a", b"content", with_md5=with_md5)
    planned, end = [Moved(action("a", source, None))], OpenBlob(store, "x")
    states = states_at_destination(end, planned, Seen())
    assert read_without_md5(end, planned, states) == states
    assert store.asked("get") == []


# -- unreported files -----------------------------------------------------------------------------------------


def test_a_blob_with_the_content_of_the_file_was_written_before(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "a").write_bytes(b"content")
    (planned,) = (task := upload(tmp_path, store, "p")).actions
    assert written_before(task.part, planned) is None
    store.add("p/a", b"other!!")
    assert written_before(task.part, planned) is None
    store.add("p/a", b"content", with_md5=False)
    assert written_before(task.part, planned) is None
    store.add("p/a", b"content")
    found = written_before(task.part, planned)
    assert found is not None
    assert (found.action, found.destination) == (planned, None)
    assert found.source is not None and found.source.md5 == hashlib.md5(b"content").digest()
    aside = planned._replace(target="b")
    assert written_before(task.part, aside) is None
    store.add("p/b", b"content")
    assert written_before(task.part, aside) is not None
    (tmp_path / "a").unlink()
    assert written_before(task.part, planned) is None


def test_a_file_with_the_content_of_the_blob_was_written_before(tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", b"content")
    (planned,) = (task := download(store, "p", tmp_path, ["a"])).actions
    assert written_before(task.part, planned) is None
    (tmp_path / "a").write_bytes(b"other!!")
    assert written_before(task.part, planned) is None
    (tmp_path / "a").write_bytes(b"content")
    assert written_before(task.part, planned) == Moved(planned, planned.source)
    assert written_before(task.part, planned._replace(source=None)) is None
    aside = planned._replace(target="b")
    assert written_before(task.part, aside) is None
    (tmp_path / "a").rename(tmp_path / "b")
    assert written_before(task.part, aside) is not None


def test_of_several_files_each_is_compared_with_its_own_blob(tmp_path: Path) -> None:
    store = MemoryStore()
    for name in "abc":
        (tmp_path / name).write_bytes(f"content of {name}".encode())
    task = upload(tmp_path, store, "p", ["a", "b", "c"])
    store.add("p/b", b"content of a")
    store.add("p/c", b"content of c")
    assert [moved.action.path for moved in arrived_anyway(task.part, task.actions)] == ["c"]


def test_what_cannot_be_looked_at_is_not_certain(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "a").write_bytes(b"content")
    (planned,) = (task := upload(tmp_path, store, "p")).actions
    store.add("p/a", b"content")

    def refuse(request: Request) -> None:
        raise StorageError("out of order", status=500)

    store.before = refuse
    assert written_before(task.part, planned) is None


@pytest.mark.parametrize("with_md5", [True, False])
def test_of_blobs_without_md5_only_the_bytes_show_that_they_are_equal(with_md5: bool) -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content", with_md5=False)
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    two.add("p/a", b"other!!", with_md5=with_md5)
    assert written_before(task.part, planned) is None
    two.add("p/a", b"content", with_md5=with_md5)
    assert written_before(task.part, planned) == Moved(planned, planned.source)
    one.add("p/a", b"changed", with_md5=False)
    assert written_before(task.part, planned) is None


def test_what_the_plan_saw_was_not_written_since() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content")
    two.add("p/a", b"content")
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    assert written_before(task.part, planned) is None


def test_a_file_that_is_as_the_plan_saw_it_was_not_written_since(tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", b"content")
    (tmp_path / "a").write_bytes(b"content")
    (planned,) = (task := download(store, "p", tmp_path, ["a"])).actions
    assert written_before(task.part, planned) is None


def test_blobs_of_other_sizes_are_not_read() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content", with_md5=False)
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    two.add("p/a", b"other", with_md5=False)
    assert written_before(task.part, planned) is None
    assert [*one.asked("get"), *two.asked("get")] == []


def test_a_blob_without_the_md5_of_its_source_is_no_copy_of_it() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content")
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    two.add("p/a", b"content", with_md5=False)
    assert written_before(task.part, planned) is None


def test_every_file_is_looked_at_although_one_before_it_is_not_there() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    for name in "ab":
        one.add(f"p/{name}", b"content")
    task = copy(one, "p", two, "p", ["a", "b"])
    two.add("p/b", b"content")
    assert [found.path for found, _ in unreported(task.part, task.actions)] == ["b"]


def test_a_copy_is_looked_for_under_the_name_that_it_was_to_get() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content", with_md5=False)
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    two.add("p/b", b"content", with_md5=False)
    assert written_before(task.part, planned) is None
    assert written_before(task.part, planned._replace(target="b")) is not None


def test_a_file_that_the_plan_saw_and_that_has_the_content_now_was_written_since(tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", b"content")
    (tmp_path / "a").write_bytes(b"old")
    (planned,) = (task := download(store, "p", tmp_path, ["a"])).actions
    assert written_before(task.part, planned) is None
    (tmp_path / "a").write_bytes(b"content")
    assert written_before(task.part, planned) is not None


def test_blobs_whose_content_cannot_be_read_are_not_known_to_be_equal() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", b"content", with_md5=False)
    (planned,) = (task := copy(one, "p", two, "p", ["a"])).actions
    two.add("p/a", b"other!!", with_md5=False)

    def refuse(request: Request) -> None:
        if request.operation == "get":
            raise StorageError("out of order", status=500)

    one.before = two.before = refuse
    assert written_before(task.part, planned) is None
