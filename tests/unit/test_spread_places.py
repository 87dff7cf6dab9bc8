"""Where a spread transfer's documents are: seals against strangers, and one command at a time."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.errors import AccessDeniedError, LocalFileError, SpreadBusyError
from blobsync.base.seals import SealKey
from blobsync.spread.claim import free_claim, leave_claim, project_lock, take_claim
from blobsync.spread.shared_store import (
    LARGEST,
    ContainerStore,
    FolderStore,
    SealedStore,
    SharedStore,
    new_run,
    orders_seal,
)
from tests.fakes.store import MemoryStore, Request

_RUN = SealKey(bytes(range(32)))
_ONE, _OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))
_NAMES = ("shards/0000001", "records/0000001", "ended", "closing", "result")


@pytest.fixture
def blobs() -> MemoryStore:
    return MemoryStore("box")


@pytest.fixture
def container(blobs: MemoryStore) -> ContainerStore:
    return ContainerStore(blobs, ".blobsync/spread/x")


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "place")


@pytest.fixture(params=["container", "folder"])
def place(request: pytest.FixtureRequest) -> SharedStore:
    found: SharedStore = request.getfixturevalue(request.param)
    return found


# -- documents -----------------------------------------------------------------------------------------------------


def test_documents_are_whole_are_replaced_are_created_once_and_go(place: SharedStore) -> None:
    assert place.read("shards/0001") is None and place.names("shards") == []
    place.write("shards/0001", b"one")
    place.write("shards/0002~a", b"")
    place.write("shards/0001", b"two")
    assert (place.read("shards/0001"), place.read("shards/0002~a")) == (b"two", b"")
    assert place.create("closing", b"1") and not place.create("closing", b"2") and place.read("closing") == b"1"
    below = place.below("runs/1a")
    below.write("shards/0003", b"three")
    assert place.names("shards") == ["0001", "0002~a"] and below.names("shards") == ["0003"]
    place.fail_soon()
    place.remove_all()
    place.remove_all()
    assert place.names("shards") == [] == below.names("shards") and place.read("closing") is None


@pytest.mark.parametrize("name", ["../x", "shards/../x", "shards/.x", "a/b/c", "", "Shards/1", "shards/\n"])
def test_a_foreign_name_is_never_requested(name: str, place: SharedStore, blobs: MemoryStore, tmp_path: Path) -> None:
    uses: tuple[Callable[[str], object], ...] = (place.read, place.below)
    for use in uses:
        with pytest.raises(ValueError, match="not a name of this place"):
            use(name)
    assert not list(tmp_path.iterdir()) and not blobs.requests


def test_names_are_sorted_and_those_that_nobody_here_gives_are_left_out(
    place: SharedStore, blobs: MemoryStore, tmp_path: Path
) -> None:
    for name in ("0002", "0001", "0001~a-b.c", "x" * 200):
        place.write(f"shards/{name}", b"")
    for name in (".0001.half", "no word", "x" * 201, "~1", "a/b"):
        blobs.add(f".blobsync/spread/x/shards/{name}", b"")
        file = tmp_path / "place" / "shards" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name in ("xx/shards/3", "x/shardsx"):
        blobs.add(f".blobsync/spread/{name}", b"")
    assert [name for name in place.names("shards") if name != "a"] == ["0001", "0001~a-b.c", "0002", "x" * 200]
    assert place.names("records") == []
    place.remove_all()
    assert ".blobsync/spread/xx/shards/3" in blobs.blobs


def test_a_document_in_a_folder_is_for_its_owner_only_and_leaves_nothing_beside_it(
    folder: FolderStore, tmp_path: Path
) -> None:
    folder.write("shards/1", b"one")
    assert folder.create("shards/2", b"two") and not folder.create("shards/2", b"other")
    assert sorted(path.name for path in (tmp_path / "place" / "shards").iterdir()) == ["1", "2"]
    assert stat.S_IMODE((tmp_path / "place" / "shards").stat().st_mode) == 0o700
    assert folder.shown == f"{tmp_path}/place/"


def test_a_write_that_fails_names_the_file(folder: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "place").write_bytes(b"")
    with pytest.raises(LocalFileError, match="place"):
        folder.write("shards/1", b"")
    with pytest.raises(LocalFileError, match="place/shards"):
        folder.names("shards")
    with pytest.raises(LocalFileError, match="place/shards/1"):
        folder.read("shards/1")


def test_what_is_no_file_counts_as_absent_and_what_is_too_large_as_empty(
    folder: FolderStore, container: ContainerStore, blobs: MemoryStore, tmp_path: Path
) -> None:
    shards = tmp_path / "place" / "shards"
    (shards / "1").mkdir(parents=True)
    os.mkfifo(shards / "2")
    (shards / "4").touch()
    os.truncate(shards / "4", LARGEST + 1)
    assert [folder.read(f"shards/{each}") for each in (1, 2, 4)] == [None, None, b""]
    blobs.add(".blobsync/spread/x/shards/4", bytes(LARGEST + 1), with_md5=False)
    assert container.read("shards/4") == b""


def test_a_document_in_a_container_is_a_blob_with_its_md5(container: ContainerStore, blobs: MemoryStore) -> None:
    container.write("shards/1", b"two")
    info = blobs.blobs[".blobsync/spread/x/shards/1"].info
    assert (info.md5, info.content_type) == (hashlib.md5(b"two").digest(), "application/json")
    assert container.shown.endswith("/box/.blobsync/spread/x/")
    container.fail_soon()
    assert blobs.failing_soon == 1


# -- seals ---------------------------------------------------------------------------------------------------------


class World:
    """One store, as the command and the tasks see it, and a stranger (``raw``)."""

    def __init__(self, root: Path) -> None:
        self.told = list[str]()
        self.root, self.raw = root, FolderStore(root)
        self.place = self.of("run", _RUN)

    def of(self, run: str, key: SealKey) -> SealedStore:
        return SealedStore(FolderStore(self.root), key, run, self.told.append)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("name", _NAMES)
def test_who_has_the_key_reads_what_the_others_write(name: str, world: World) -> None:
    world.place.write(name, b"said")
    other = world.of("run", _RUN)
    assert other.read(name) == b"said" and not other.create(name, b"another") and not world.told
    (world.root / name).unlink()
    assert world.place.read(name) is None and other.create(name, b"another") and world.place.read(name) == b"another"


@pytest.mark.parametrize("name", _NAMES)
def test_what_a_stranger_writes_counts_as_absent_and_is_named_once(name: str, world: World) -> None:
    for body in (b"forged", b"", world_document(world, "shards/0000009"), other_run(world, name)):
        world.raw.write(name, body)
        assert world.place.read(name) is None
    assert [text.partition(" has no seal")[0] for text in world.told] == [f"{world.root}/{name}"]


def world_document(world: World, name: str) -> bytes:
    """The bytes of a document of this run under another name."""
    world.place.write(name, b"said")
    return world.raw.read(name) or b""


def other_run(world: World, name: str) -> bytes:
    """The bytes of the same document of another run of the same user."""
    world.of("two", _RUN).write(name, b"said")
    return world.raw.read(name) or b""


def test_documents_of_another_key_are_absent(world: World) -> None:
    world.of("run", SealKey(bytes(32))).write("result", b"said")
    assert world.place.read("result") is None


def test_a_flood_of_strangers_documents_is_named_in_part(world: World) -> None:
    for number in range(50):
        world.raw.write(f"shards/{number:07}", b"junk")
        assert world.place.read(f"shards/{number:07}") is None
    assert len(world.told) == 10
    assert [text.endswith("others are not named any more") for text in world.told] == [False] * 9 + [True]


@given(at=st.integers(0, 400), change=st.integers(1, 255), name=st.sampled_from(_NAMES))
def test_a_changed_byte_or_a_cut_makes_it_absent(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int, name: str
) -> None:
    world = World(tmp_path_factory.mktemp("place"))
    whole = world_document(world, name)
    document = bytearray(whole)
    document[at % len(document)] ^= change
    for body in (bytes(document), whole[: at % len(whole)], whole + b"x"):
        world.raw.write(name, body)
        assert world.place.read(name) is None


def test_runs_differ() -> None:
    assert new_run() != new_run()


def test_orders_are_those_that_were_sealed() -> None:
    orders = {"run": "one", "place": "p", "ends": [{"source": {"root": "/p", "boundary": ["/p"]}}], "workers": 4}
    orders["seal"] = orders_seal(_RUN, orders)
    assert orders_seal(_RUN, orders) == orders["seal"]
    changes: list[dict[str, object]] = [{"place": "q"}, {"ends": []}, {"workers": 5}, {"more": 1}, {"run": "two"}]
    for change in changes:
        assert orders_seal(_RUN, {**orders, **change}) != orders["seal"]
    assert orders_seal(SealKey(bytes(32)), orders) != orders["seal"]
    # Another program may have rewritten the file in another order.
    assert orders_seal(_RUN, dict(reversed(orders.items()))) == orders["seal"]


# -- one command at a time -----------------------------------------------------------------------------------------


def test_who_claims_first_has_it_until_it_is_left(container: ContainerStore, blobs: MemoryStore) -> None:
    take_claim(container, _ONE, "ann on one")
    # Also the next command of the same project, after a kill.
    take_claim(container, _ONE, "ann on one")
    with pytest.raises(SpreadBusyError, match=r"that of ann on one: it has .*/x/claim") as busy:
        take_claim(container, _OTHER, "bob on two")
    assert "remove that blob" in (busy.value.hint or "")
    leave_claim(container)
    take_claim(container, _OTHER, "bob on two")
    # A detached transfer may not delete.
    free_claim(container)
    take_claim(container, _ONE, "ann on one")
    assert len(blobs.blobs) == 1


@pytest.mark.parametrize("left", [b"", b"forged", b'{"holder": 5}', b'{"by": "x\\u001b[2J"}', b"\xff"])
def test_a_claim_that_says_nothing_is_somebodys(left: bytes, container: ContainerStore) -> None:
    container.write("claim", left)
    with pytest.raises(SpreadBusyError) as busy:
        take_claim(container, _ONE, "ann")
    assert "\x1b" not in busy.value.message and container.read("claim") == left


def test_of_two_who_take_a_free_claim_one_has_it(container: ContainerStore) -> None:
    free_claim(container)
    known = container.read("claim")
    take_claim(container, _OTHER, "bob")
    assert known is not None and not container.swap("claim", known, b"mine")
    with pytest.raises(SpreadBusyError):
        take_claim(container, _ONE, "ann")


def test_without_the_right_to_delete_a_claim_is_given_up_all_the_same_and_what_stays_is_said(
    container: ContainerStore, blobs: MemoryStore
) -> None:
    def refuse(request: Request) -> None:
        if request.operation == "delete":
            raise AccessDeniedError("no right to delete", status=403)

    take_claim(container, _ONE, "ann")
    blobs.before = refuse
    leave_claim(container)
    take_claim(container, _OTHER, "bob")
    assert "no right to delete" in container.remove_all()


def test_one_command_of_a_project_at_a_time_has_the_lock_and_all_have_the_same_name(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with project_lock(file) as holder:
        assert str(uuid.UUID(holder)) == holder
        with pytest.raises(SpreadBusyError, match="another command of this project"), project_lock(file):
            pass
    with project_lock(file) as again:
        assert again == holder
    assert file.read_text() == holder


@pytest.mark.parametrize("left", ["", "no name", "6f0c2f5e"])
def test_what_is_no_name_in_the_lock_is_replaced(tmp_path: Path, left: str) -> None:
    file = tmp_path / "lock"
    file.write_text(left)
    with project_lock(file) as holder:
        assert file.read_text() == holder != left
    with project_lock(file) as again:
        assert again == holder


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match="missing"), project_lock(tmp_path / "missing" / "lock"):
        pass
