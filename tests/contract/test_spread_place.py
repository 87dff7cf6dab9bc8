"""The shared store of a spread transfer: one suite for blobs of a container and for a folder."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.emulator import ACCOUNT, KEY
from benchmarks.fast_server import fast_server
from blobsync.base.errors import SpreadBusyError, StorageUnreachableError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import Secret
from blobsync.config.model import StorageAccount
from blobsync.spread.coordinator_lock import CoordinatorLock, OwnerLock
from blobsync.spread.shared_store import ContainerStore, FolderStore, SharedStore
from blobsync.store.connect import connect
from tests.conftest import TOOLS, Azurite
from tests.contract.test_engines import azurite_containers

_ONE, _OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))

Opener = Callable[[], SharedStore]


@pytest.fixture(params=["container", "container of the benchmarks' server", "folder"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store as another machine."""
    if request.param == "folder":
        yield lambda: FolderStore(tmp_path / "place")
        return
    with ExitStack() as held:
        if request.param == "container":
            azurite: Azurite = request.getfixturevalue("azurite")
            url = azurite_containers(azurite)[0].container
            assert isinstance(url, BlobContainer)
            account, container, endpoint, key = url.account, url.name, url.endpoint, azurite.keys[url.account]
        else:
            server = held.enter_context(fast_server(tools=TOOLS))
            account, container, key = ACCOUNT, server.new_container(), KEY
            endpoint = f"{server.url}/{ACCOUNT}"
        file = StorageAccount("t.yaml", account, container, endpoint, account_key=Secret(key))
        store = held.enter_context(connect(file))
        yield lambda: ContainerStore(store, store.leases(), ".blobsync/spread/x")


def test_files_are_whole_are_replaced_and_go(opener: Opener) -> None:
    here, there = opener(), opener()
    assert here.read("shards/0001") is None and here.names("shards") == []
    here.write("shards/0001", b"one")
    here.write("shards/0002~a", b"")
    here.write("shards/0001", b"two")
    assert (there.read("shards/0001"), there.read("shards/0002~a")) == (b"two", b"")
    assert there.names("shards") == ["0001", "0002~a"]
    there.remove("shards/0001")
    there.remove("shards/0001")
    assert here.names("shards") == ["0002~a"]
    there.remove_all()
    assert here.names("shards") == []


@pytest.mark.parametrize("name", ["../x", "shards/../x", "shards/.x", "a/b/c", "", "Shards/1", "shards/\n"])
def test_a_foreign_name_is_never_requested(opener: Opener, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        opener().read(name)


def test_of_two_who_claim_one_has_it_until_it_gives_it_up(opener: Opener) -> None:
    here, there = opener(), opener()
    assert here.claim("claims/1", _ONE)
    assert not there.claim("claims/1", _OTHER)
    # The holder keeps it, also after a restart.
    assert here.claim("claims/1", _ONE) and opener().claim("claims/1", _ONE)
    there.release("claims/1", _OTHER)
    assert not there.claim("claims/1", _OTHER)
    here.release("claims/1", _ONE)
    assert there.claim("claims/1", _OTHER)
    assert not here.claim("claims/1", _ONE)
    # A claimed document can be removed nevertheless.
    here.remove_all()
    assert opener().claim("claims/1", _ONE)


def test_a_second_parent_is_told_and_the_same_one_comes_back(opener: Opener, tmp_path: Path) -> None:
    with OwnerLock(tmp_path / "lock") as holder, CoordinatorLock(opener(), holder) as presence:
        presence.show(opener())
        assert opener().read("alive")
        with pytest.raises(SpreadBusyError), CoordinatorLock(opener(), _OTHER):
            pass
        with pytest.raises(SpreadBusyError), OwnerLock(tmp_path / "lock"):
            pass
    assert not opener().read("alive")
    with OwnerLock(tmp_path / "lock") as again:
        assert again == holder


def test_a_place_that_nobody_waits_for_is_the_same_while_it_is_there(opener: Opener) -> None:
    here, there = opener(), opener()
    here.hurry()
    here.write("alive", b"1")
    assert there.read("alive") == b"1"
    assert here.claim("owner", _ONE) and not there.claim("owner", _OTHER)
    here.release("owner", _ONE)
    assert there.claim("owner", _OTHER)


class _Down(FolderStore):
    """A store that does not respond after ``down`` is set: requests wait until they are hurried."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.down, self.hurried = threading.Event(), threading.Event()

    def write(self, name: str, body: bytes) -> None:
        self._wait()
        super().write(name, body)

    def claim(self, name: str, holder: str) -> bool:
        self._wait()
        return super().claim(name, holder)

    def release(self, name: str, holder: str) -> None:
        self._wait()
        super().release(name, holder)

    def hurry(self) -> None:
        self.hurried.set()

    def _wait(self) -> None:
        if self.down.is_set():
            assert self.hurried.wait(60)
            raise StorageUnreachableError("the service does not answer")


def test_ctrl_c_is_what_a_parent_hears_whose_place_is_down(tmp_path: Path) -> None:
    place = _Down(tmp_path / "place")

    def stopped() -> None:
        with CoordinatorLock(place, _ONE) as presence:
            presence.show(place)
            place.down.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    # The release failed; the claim expires, and the same parent gets it again at once.
    again = FolderStore(tmp_path / "place")
    assert again.read("alive")
    assert not again.claim("owner", _OTHER) and again.claim("owner", _ONE)


def test_a_claim_whose_file_stays_the_same_for_a_minute_has_ended(tmp_path: Path) -> None:
    now = [0.0]
    holder, other = FolderStore(tmp_path), FolderStore(tmp_path, clock=lambda: now[0])
    assert holder.claim("claims/1", _ONE)
    assert not other.claim("claims/1", _OTHER)
    now[0] = 59.0
    assert not other.claim("claims/1", _OTHER)
    assert holder.claim("claims/1", _ONE)
    now[0] = 61.0
    assert not other.claim("claims/1", _OTHER), "its holder has just shown that it lives"
    now[0] = 122.0
    assert other.claim("claims/1", _OTHER)
    assert not holder.claim("claims/1", _ONE)
