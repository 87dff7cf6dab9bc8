"""The store shared by coordinator and workers: one holder per claim, atomic documents, and nothing else is touched."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError, BlobNotFoundError, LocalFileError, StorageError
from blobsync.local.index import Index
from blobsync.spread.earlier_records import merge_records
from blobsync.spread.shared_store import ContainerStore, FolderStore
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import upload

_ONE, _OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))
_LARGEST = 64 * 1024 * 1024


def _files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


# A folder.


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "place")


def test_a_document_in_a_folder_is_replaced_as_a_whole_and_leaves_nothing_beside_it(
    folder: FolderStore, tmp_path: Path
) -> None:
    folder.write("shards/1", b"one")
    folder.write("shards/1", b"two")
    folder.write("alive", b"1")
    assert folder.read("shards/1") == b"two" and folder.read("shards/2") is None
    assert _files(tmp_path / "place") == ["alive", "shards/1"]
    assert folder.shown == f"{tmp_path}/place/"
    # For its owner only.
    assert folder.claim("claims/1", _ONE)
    for name in ("shards", "claims"):
        assert stat.S_IMODE((tmp_path / "place" / name).stat().st_mode) == 0o700


def test_a_write_that_fails_names_the_file(folder: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "place").write_bytes(b"")
    for use in (lambda: folder.write("shards/1", b""), lambda: folder.claim("claims/1", _ONE)):
        with pytest.raises(LocalFileError, match="place"):
            use()
    with pytest.raises(LocalFileError, match="place/shards"):
        folder.names("shards")
    with pytest.raises(LocalFileError, match="place/shards/1"):
        folder.read("shards/1")


def test_what_is_no_file_counts_as_absent_and_what_is_too_large_as_empty(folder: FolderStore, tmp_path: Path) -> None:
    shards = tmp_path / "place" / "shards"
    (shards / "1").mkdir(parents=True)
    os.mkfifo(shards / "2")
    for name, size in (("3", _LARGEST), ("4", _LARGEST + 1)):
        (shards / name).touch()
        os.truncate(shards / name, size)
    assert [folder.read(f"shards/{each}") for each in (1, 2)] == [None, None]
    assert len(folder.read("shards/3") or b"") == _LARGEST
    assert folder.read("shards/4") == b""


@pytest.mark.parametrize("name", ["../x", "shards/../x", "shards/.x", "a/b/c", "", "Shards/1", "shards/\n"])
def test_a_foreign_name_is_never_requested(name: str, folder: FolderStore, tmp_path: Path) -> None:
    for use in (folder.read, folder.remove, ContainerStore(MemoryStore(), MemoryLeases(MemoryStore()), "x").read):
        with pytest.raises(ValueError, match="not a name of this place"):
            use(name)
    assert not list(tmp_path.iterdir())


def test_names_are_sorted_and_those_that_nobody_here_gives_are_left_out(folder: FolderStore, tmp_path: Path) -> None:
    for name in ("0002", "0001", "0001~a-b.c", "x" * 200):
        folder.write(f"shards/{name}", b"")
    for name in (".0001.half", "no word", "x" * 201, "~1"):
        (tmp_path / "place" / "shards" / name).touch()
    assert folder.names("shards") == ["0001", "0001~a-b.c", "0002", "x" * 200]
    assert folder.names("records") == []


def test_whoever_has_a_claim_on_it_a_document_goes_with_its_claims_and_no_other(folder: FolderStore) -> None:
    assert folder.claim("owner", _ONE) and folder.claim("claims/1", _ONE) and folder.claim("claims/10", _ONE)
    folder.write("claims/1", b"")
    folder.remove("claims/1")
    folder.remove("claims/1")
    assert folder.read("claims/1") is None
    assert folder.claim("claims/1", _OTHER)
    assert not folder.claim("claims/10", _OTHER) and not folder.claim("owner", _OTHER)
    folder.remove_all()
    folder.remove_all()
    assert folder.claim("claims/10", _OTHER) and folder.claim("owner", _OTHER)


def test_a_folder_under_the_name_of_a_document_stops_with_its_name_and_stays(
    folder: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    task = upload(tmp_path / "data", MemoryStore("box"), "sets")
    for name in ("shards/0000001", "claims/1~000000"):
        (tmp_path / "place" / name).mkdir(parents=True)
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    with pytest.raises(LocalFileError, match="place/shards/0000001"):
        merge_records(folder, [task.part], lambda key: index.pair(*key.roots))
    index.close()
    uses: list[Callable[[], object]] = [
        lambda: folder.remove("claims/1"),
        lambda: folder.claim("claims/1", _ONE),
        lambda: folder.release("claims/1", _ONE),
    ]
    for use in uses:
        with pytest.raises(LocalFileError, match="claims/1~000000"):
            use()
    assert (tmp_path / "place" / "shards" / "0000001").is_dir()


def test_a_claim_in_a_folder_is_kept_by_its_holder_and_given_up_by_nobody_else(
    folder: FolderStore, tmp_path: Path
) -> None:
    assert folder.claim("claims/1", _ONE) and folder.claim("claims/1", _ONE)
    folder.release("claims/1", _OTHER)
    assert not folder.claim("claims/1", _OTHER)
    folder.release("claims/1", _ONE)
    # A free claim can be released, too.
    folder.release("claims/2", _ONE)
    assert folder.claim("claims/1", _OTHER)
    assert not folder.claim("claims/1", _ONE)
    # Each holder in turn has a file of the next number, and nothing else is left.
    assert _files(tmp_path / "place") == ["claims/1~000000", "claims/1~000001"]


def test_who_gave_a_claim_up_asks_like_anybody_else(folder: FolderStore, tmp_path: Path) -> None:
    """The old file stays ended: another may just be taking the next number."""
    assert folder.claim("claims/1", _ONE)
    folder.release("claims/1", _ONE)
    assert folder.claim("claims/1", _ONE)
    assert _files(tmp_path / "place") == ["claims/1~000000", "claims/1~000001"]


def test_a_claim_ends_a_minute_after_its_holder_was_last_seen_to_live(tmp_path: Path) -> None:
    now = [1000.0]
    holder, other = FolderStore(tmp_path), FolderStore(tmp_path, clock=lambda: now[0])
    assert holder.claim("claims/1", _ONE) and not other.claim("claims/1", _OTHER)
    now[0] += 59.5
    assert not other.claim("claims/1", _OTHER)
    # It lives, as another sees at its next look; the minute begins then.
    assert holder.claim("claims/1", _ONE)
    now[0] += 59.5
    assert not other.claim("claims/1", _OTHER)
    now[0] += 59.5
    assert not other.claim("claims/1", _OTHER)
    now[0] += 0.5
    assert other.claim("claims/1", _OTHER)
    assert not holder.claim("claims/1", _ONE)


def test_each_claim_of_a_folder_has_its_own_minute(tmp_path: Path) -> None:
    now = [0.0]
    holder, other = FolderStore(tmp_path), FolderStore(tmp_path, seconds=10, clock=lambda: now[0])
    assert holder.claim("claims/1", _ONE) and holder.claim("claims/2", _ONE)
    assert not other.claim("claims/1", _OTHER)
    now[0] = 9.0
    assert not other.claim("claims/2", _OTHER)
    now[0] = 11.0
    assert other.claim("claims/1", _OTHER) and not other.claim("claims/2", _OTHER)


def test_of_two_who_take_over_a_claim_that_has_ended_one_has_it(tmp_path: Path) -> None:
    faster, given_up = FolderStore(tmp_path), False

    def look() -> float:
        """The other worker claims while this one reads the clock."""
        assert not given_up or faster.claim("claims/1", str(uuid.UUID(int=3)))
        return 0.0

    slow = FolderStore(tmp_path, clock=look)
    gone = FolderStore(tmp_path)
    assert gone.claim("claims/1", _ONE)
    assert not slow.claim("claims/1", _OTHER)
    gone.release("claims/1", _ONE)
    given_up = True
    assert not slow.claim("claims/1", _OTHER)
    assert _files(tmp_path) == ["claims/1~000000", "claims/1~000001"]


@pytest.mark.parametrize("left", [b"", b"\xff", b"[]", b"{}", b'{"holder": 1}', b'{"ended": false}', None])
def test_a_claim_that_says_nothing_is_passed_over(left: bytes | None, folder: FolderStore, tmp_path: Path) -> None:
    path = tmp_path / "place" / "claims" / "1~000041"
    path.parent.mkdir(parents=True)
    if left is None:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(left)
    path.with_name("1~mine").write_bytes(b"a stranger's")
    folder.release("claims/1", _ONE)
    assert folder.claim("claims/1", _ONE) and not folder.claim("claims/1", _OTHER)
    assert json.loads((path.parent / "1~000042").read_bytes())["holder"] == _ONE
    assert left is None or path.read_bytes() == left


# A container.


class MemoryLeases:
    """Leases of a ``MemoryStore``; none ends by itself."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.held: dict[str, str] = {}
        self.seconds: list[int] = []
        store.before = self._before

    def acquire(self, name: str, holder: str, seconds: int) -> bool:
        self._demand(name)
        self.seconds.append(seconds)
        return self.held.setdefault(name, holder) == holder

    def release(self, name: str, holder: str) -> bool:
        self._demand(name)
        return self.held.get(name) == holder and bool(self.held.pop(name))

    def end(self, name: str) -> bool:
        return bool(self.held.pop(name, ""))

    def _demand(self, name: str) -> None:
        if name not in self._store.blobs:
            raise BlobNotFoundError(f"there is no blob {name}", status=404)

    def _before(self, request: Request) -> None:
        if request.operation == "delete":
            self._demand(request.name)
            if request.name in self.held:
                raise StorageError("it is leased", status=412, service_code="LeaseIdMissing")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("box")


@pytest.fixture
def leases(store: MemoryStore) -> MemoryLeases:
    return MemoryLeases(store)


@pytest.fixture
def container(store: MemoryStore, leases: MemoryLeases) -> ContainerStore:
    return ContainerStore(store, leases, ".blobsync/spread/x")


def test_a_document_in_a_container_is_a_blob_with_its_md5(container: ContainerStore, store: MemoryStore) -> None:
    container.write("shards/1", b"one")
    container.write("shards/1", b"two")
    assert container.read("shards/1") == b"two" and container.read("shards/2") is None
    info = store.blobs[".blobsync/spread/x/shards/1"].info
    assert (info.md5, info.content_type) == (hashlib.md5(b"two").digest(), "application/json")
    assert container.shown.endswith("/box/.blobsync/spread/x/")
    container.hurry()
    assert store.hurried == 1


def test_a_blob_is_read_whole_and_one_that_is_too_large_as_empty(container: ContainerStore, store: MemoryStore) -> None:
    for name, size in (("1", _LARGEST), ("2", _LARGEST + 1)):
        store.add(f".blobsync/spread/x/shards/{name}", b"a" + bytes(size - 1), with_md5=False)
    body = container.read("shards/1") or b""
    assert len(body) == _LARGEST and body.startswith(b"a\0") and container.read("shards/2") == b""


def test_names_of_a_container_are_those_of_this_transfer_alone(container: ContainerStore, store: MemoryStore) -> None:
    for name in (
        "x/shards/0002",
        "x/shards/0001",
        "x/shards/a/b",
        "x/shards/.a",
        "x/shardsx",
        "xx/shards/3",
        "x/alive",
    ):
        store.add(f".blobsync/spread/{name}", b"")
    assert container.names("shards") == ["0001", "0002"] and container.names("records") == []
    assert container.has_more_than(["shards", "shardsx"]) and not container.has_more_than(
        ["shards", "shardsx", "alive"]
    )
    container.remove_all()
    assert list(store.blobs) == [".blobsync/spread/xx/shards/3"]


def test_a_claim_in_a_container_is_a_lease_for_a_minute_on_a_blob_that_is_made_for_it(
    container: ContainerStore, store: MemoryStore, leases: MemoryLeases
) -> None:
    assert container.claim("claims/1", _ONE) and container.claim("claims/1", _ONE)
    assert not container.claim("claims/1", _OTHER)
    assert store.body(".blobsync/spread/x/claims/1") == b"" and len(store.asked("put")) == 1
    assert set(leases.seconds) == {60}
    container.release("claims/1", _OTHER)
    assert not container.claim("claims/1", _OTHER)
    container.release("claims/1", _ONE)
    assert container.claim("claims/1", _OTHER)
    # For a name that was never claimed.
    container.release("claims/2", _ONE)


def test_of_two_who_make_the_blob_of_a_claim_both_ask_for_its_lease(
    container: ContainerStore, store: MemoryStore, leases: MemoryLeases
) -> None:
    at = ".blobsync/spread/x/claims/1"

    def faster(request: Request) -> None:
        if request.operation == "put" and at not in store.blobs:
            store.add(at, b"theirs")
            leases.held[at] = _OTHER

    store.before = faster
    assert not container.claim("claims/1", _ONE)
    assert store.body(at) == b"theirs" and leases.held == {at: _OTHER}


def test_a_claim_whose_blob_goes_each_time_is_nobodys(store: MemoryStore) -> None:
    class Gone(MemoryLeases):
        def acquire(self, name: str, holder: str, seconds: int) -> bool:
            store.blobs.clear()
            return super().acquire(name, holder, seconds)

    assert not ContainerStore(store, Gone(store), "x").claim("claims/1", _ONE)
    assert len(store.asked("put")) == 2


def test_a_claimed_blob_is_removed_all_the_same_and_what_the_service_refuses_is_reported(
    container: ContainerStore, store: MemoryStore, leases: MemoryLeases
) -> None:
    assert container.claim("claims/1", _ONE)
    container.write("shards/1", b"")
    container.remove("claims/1")
    assert list(store.blobs) == [".blobsync/spread/x/shards/1"] and not leases.held
    container.remove("claims/1")

    refusals = list[Exception]()

    def refuse(request: Request) -> None:
        if request.operation == "delete" and refusals:
            raise refusals.pop()

    store.before = refuse
    removes: list[Callable[[], None]] = [lambda: container.remove("shards/1"), container.remove_all]
    for remove in removes:
        # Once, so that a second try would succeed.
        refusals.append(AccessDeniedError("no", status=403))
        with pytest.raises(AccessDeniedError):
            remove()
