"""Attacks on the store of a spread transfer by a stranger who can read, write and remove, but has no key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.seals import SealKey
from blobsync.spread.sealed_store import Keys, SealedStore, new_session, orders_seal, parent_keys, worker_keys
from blobsync.spread.shared_store import LARGEST, FolderStore

_RUN = SealKey(bytes(range(32)))
_RECORD = "records/0000001~node1.0-0badcafe~000000"
_NAMES = ("shards/0000001", _RECORD, "refused/node1.0", "stop", "slow", "plan/0000000", "result", "alive")


class World:
    """One store, accessed by the coordinator, two workers and a stranger (``raw``)."""

    def __init__(self, root: Path) -> None:
        self.root, self.told = root, list[str]()
        self.raw = FolderStore(root)
        self.parent = self.as_parent("one")
        self.parent.write("alive", b"1")
        self.worker, self.other = self.as_worker("node1.0"), self.as_worker("node2.0")

    def as_parent(self, session: str, run: str = "run", key: SealKey = _RUN) -> SealedStore:
        return SealedStore(FolderStore(self.root), parent_keys(key), run, self.told.append, session=session)

    def as_worker(self, name: str) -> SealedStore:
        worker = SealedStore(FolderStore(self.root), worker_keys(_RUN, name), "run", self.told.append)
        assert worker.read("alive") is not None
        return worker


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _document(world: World, name: str) -> bytes:
    """The stored bytes of a document of this name."""
    (world.worker if name.startswith(("records", "refused")) else world.parent).write(name, b"said")
    found = world.raw.read(name)
    assert found is not None
    return found


def test_parent_and_workers_read_what_the_others_say(world: World) -> None:
    world.parent.write("shards/0000001", b"a shard")
    assert world.worker.read("shards/0000001") == world.other.read("shards/0000001") == b"a shard"
    world.worker.write(_RECORD, b"a record")
    assert world.parent.read(_RECORD) == world.worker.read(_RECORD) == world.other.read(_RECORD) == b"a record"
    world.other.write("slow", b"wait")
    assert world.worker.read("slow") == world.parent.read("slow") == b"wait"
    world.parent.write("records/0000001~parent-00000001~000000", b"blocks")
    assert world.worker.read("records/0000001~parent-00000001~000000") == b"blocks"
    assert world.other.names("shards") == ["0000001"]
    world.parent.remove("shards/0000001")
    assert world.other.names("shards") == [] and world.worker.read("shards/0000001") is None
    # Documents that need no seal have none.
    world.parent.write("node/archive", b"PK")
    assert world.raw.read("node/archive") == world.worker.read("node/archive") == b"PK"
    assert world.worker.claim("claims/0000001", "6f0c2f5e-6d3c-4a43-9d1c-1f6d1f1f1f1f")
    assert not world.told and world.worker.read("shards/0000002") is None


@pytest.mark.parametrize("name", _NAMES)
def test_what_a_stranger_writes_counts_as_absent_and_is_named_once(world: World, name: str) -> None:
    readers = (world.parent, world.worker, world.other)
    for body in (b"", b"forged", b"blobsync-seal 1 ", SealKey(bytes(32)).seal("spread", "run/one", name, b"forged")):
        world.raw.write(name, body)
        # Twice, because a worker reads again after it has checked the heartbeat.
        assert [each.read(name) for each in readers * 2] == [None] * 6
    said = [text for text in world.told if f"{name} has no seal of this transfer" in text]
    assert 0 < len(said) <= 3, "once by each process"


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("other", _NAMES)
def test_a_document_counts_under_its_own_name_only(world: World, name: str, other: str) -> None:
    if name == other:
        return
    document = _document(world, name)
    world.raw.remove(other)
    world.raw.write(other, document)
    for each in (world.parent, world.worker, world.other):
        assert each.read(other) is None


@pytest.mark.parametrize(
    "elsewhere",
    [
        "records/0000001~node2.0-0badcafe~000000",
        "records/0000002~node1.0-0badcafe~000000",
        "records/0000001~node1.0-0badcaff~000000",
        "records/0000001~node1.0-0badcafe~000001",
        "records/0000001~parent-0badcafe~000000",
    ],
    ids=["worker", "shard", "try", "piece", "parent"],
)
def test_a_record_of_another_is_none(world: World, elsewhere: str) -> None:
    world.raw.write(elsewhere, _document(world, _RECORD))
    assert world.parent.read(elsewhere) is None and world.other.read(elsewhere) is None


def test_a_worker_has_no_key_to_speak_for_another_or_for_the_parent(world: World) -> None:
    for name in (_RECORD, "refused/node1.0", "result", "records/0000001~parent-00000001~000000"):
        with pytest.raises(ValueError, match="not this worker's to write"):
            world.other.write(name, b"forged")
        # Sealed with the shared key, and inside with a key that is not the writer's.
        shared, own = world.other._keys.shared, world.other._keys.own("node2.0")
        assert own is not None
        where = "run" if name == "result" else "run/one"
        world.raw.write(name, shared.seal("spread", where, name, own.seal("own", where, name, b"forged")))
        assert world.parent.read(name) is None
    keys: Keys = worker_keys(_RUN, "node2.0")
    assert keys.own("node1.0") is None and keys.own("parent") is None
    assert _RUN.secret not in (keys.shared.secret, *(key.secret for key in [keys.own("node2.0")] if key))


@pytest.mark.parametrize("name", ["shards/0000001", _RECORD, "stop"])
def test_what_an_earlier_session_left_is_absent_in_the_next(world: World, name: str) -> None:
    document = _document(world, name)
    later = world.as_parent("two")
    later.write("alive", b"2")
    world.raw.write(name, document)
    assert later.read(name) is None
    # A worker continues its shard, and follows the new coordinator after the next check of the heartbeat.
    assert world.worker.read(name) == b"said"
    assert world.worker.read("alive") == b"2" and world.worker.read(name) is None


def test_documents_of_another_run_or_of_another_users_are_absent(world: World) -> None:
    for stranger in (world.as_parent("one", run="other"), world.as_parent("one", key=SealKey(bytes(32)))):
        stranger.write("shards/0000001", b"theirs")
        assert world.parent.read("shards/0000001") is None and world.worker.read("shards/0000001") is None
        stranger.write("alive", b"theirs")
        assert world.worker.read("alive") is None
        stranger.write("done/0000001", b"")
        assert world.parent.names("done") == []


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON",
        b"\xff",
        b"{}",
        b'{"session": "two", "number": "one", "body": ""}',
        b'{"session": "two", "number": null, "body": ""}',
    ],
)
def test_a_sign_of_life_that_a_worker_made_up_is_none(world: World, said: bytes) -> None:
    """A heartbeat by a worker: all workers have the key for it."""
    world.raw.write("alive", world.other._keys.shared.seal("spread", "run", "alive", said))
    assert world.worker.read("alive") is None and world.worker.session == "one"
    world.parent.write("alive", b"2")
    assert world.worker.read("alive") == b"2"


def test_sessions_differ() -> None:
    sessions = {new_session() for _ in range(100)}
    assert len(sessions) == 100 and {len(each) for each in sessions} == {16}


def test_who_gives_a_claim_up_leaves_it_to_others_and_the_end_leaves_nothing(world: World) -> None:
    one, other = "6f0c2f5e-6d3c-4a43-9d1c-1f6d1f1f1f1f", "6f0c2f5e-6d3c-4a43-9d1c-1f6d1f1f1f2f"
    assert world.worker.claim("claims/0000001", one) and not world.other.claim("claims/0000001", other)
    world.worker.release("claims/0000001", one)
    assert world.other.claim("claims/0000001", other)
    hurrying = _Hurrying(world.root)
    SealedStore(hurrying, parent_keys(_RUN), "run", world.told.append).hurry()
    assert hurrying.hurried, "nor does anybody who is told to hurry wait"
    world.parent.remove_all()
    assert not list(world.root.glob("*")) and world.parent.read("alive") is None


def test_an_older_sign_of_life_is_none(world: World) -> None:
    older = world.raw.read("alive") or b""
    world.parent.write("alive", b"2")
    assert world.worker.read("alive") == b"2"
    world.raw.write("alive", older)
    assert world.worker.read("alive") == b"2" and world.worker.session == "one"
    # A successor on a machine whose clock is behind is accepted nevertheless.
    ahead = world.as_parent("one")
    ahead._alive = 1 << 62, b""
    ahead.write("alive", b"3")
    assert world.worker.read("alive") == b"3"
    behind = world.as_parent("two")
    for body in (b"4", b"5"):
        behind.write("alive", body)
        assert world.worker.read("alive") == body and world.worker.session == "two"


class _Hurrying(FolderStore):
    hurried = False

    def hurry(self) -> None:
        self.hurried = True


class _Counting(FolderStore):
    """Records the documents that were read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
        return super().read(name)


def test_a_parent_looks_once_at_what_another_left_as_its_sign_of_life_and_replaces_it_without_a_word(
    world: World, tmp_path: Path
) -> None:
    world.raw.write("alive", b"of another transfer")
    place = _Counting(tmp_path)
    parent = SealedStore(place, parent_keys(_RUN), "run", world.told.append, session="two")
    for body in (b"1", b"", b"2"):
        parent.write("alive", body)
    assert place.asked == ["alive"] and not world.told
    assert world.worker.read("alive") == b"2"


def test_that_a_shard_is_done_stands_in_a_name_that_nobody_else_can_make(world: World) -> None:
    world.raw.write("done/0000001", b"")
    world.worker.write("done/0000002", b"")
    (marked,) = [name for name in world.raw.names("done") if name.startswith("0000002")]
    # 128 bits that cannot be guessed.
    assert len(marked.partition("~")[2]) == 32
    # The mark of one shard is not valid for another.
    world.raw.write(f"done/0000003~{marked.partition('~')[2]}", b"")
    world.raw.write("done/0000004~" + "0" * 32, b"")
    for each in (world.parent, world.other):
        assert each.names("done") == ["0000002"]
        assert each.read("done/0000002") is not None
        assert each.read("done/0000001") is None and each.read("done/0000003") is None
    assert world.as_parent("two").names("done") == []
    world.parent.remove("done/0000002")
    assert world.other.names("done") == []


def test_what_is_too_large_or_no_file_is_absent(world: World, tmp_path: Path) -> None:
    (tmp_path / "shards" / "0000001").mkdir(parents=True)
    (tmp_path / "records").mkdir()
    with (tmp_path / _RECORD).open("wb") as file:
        file.truncate(LARGEST + 1)
    assert world.worker.read("shards/0000001") is None and world.parent.read(_RECORD) is None


def test_a_flood_of_strangers_documents_is_named_in_part(world: World) -> None:
    for number in range(50):
        world.raw.write(f"shards/{number:07}", b"junk")
        assert world.parent.read(f"shards/{number:07}") is None
    assert len(world.told) == 10
    assert [text.endswith("others are not named any more") for text in world.told] == [False] * 9 + [True]


def test_a_worker_names_a_strangers_document_when_it_is_still_there_at_the_second_look(world: World) -> None:
    """The first read may be of a session that the worker does not know yet."""
    world.raw.write("shards/0000001", b"forged")
    counts = []
    for _ in range(4):
        assert world.worker.read("shards/0000001") is None
        counts.append(len(world.told))
    assert counts == [0, 1, 1, 1]
    # The coordinator knows its session.
    assert world.parent.read("shards/0000001") is None and len(world.told) == 2


@pytest.mark.parametrize(
    "name",
    [
        "records/0000001",
        "records/0000001~node1.0-0badcafe",
        "records/0000001~node1.0~000000",
        "records/0000001~node1.0-0badcafe~000000~0",
    ],
)
def test_a_record_under_a_name_that_tells_no_worker_is_nobodys_but_the_parents(world: World, name: str) -> None:
    with pytest.raises(ValueError, match="not this worker's to write"):
        world.worker.write(name, b"said")
    world.raw.write(name, b"forged")
    assert world.parent.read(name) is None and world.worker.read(name) is None
    world.parent.write(name, b"said")
    assert world.worker.read(name) == b"said"


@given(at=st.integers(0, 400), change=st.integers(1, 255), name=st.sampled_from(_NAMES[:-1]))
def test_a_changed_byte_or_a_cut_makes_it_absent(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int, name: str
) -> None:
    world = World(tmp_path_factory.mktemp("place"))
    document = bytearray(_document(world, name))
    whole = bytes(document)
    document[at % len(document)] ^= change
    for body in (bytes(document), whole[: at % len(whole)], whole + b"x"):
        world.raw.write(name, body)
        assert world.parent.read(name) is None and world.worker.read(name) is None


def test_orders_are_those_that_were_sealed() -> None:
    orders = {"run": "one", "path": "p", "ends": [{"source": {"root": "/p", "boundary": ["/p"]}}], "workers": 4}
    orders["seal"] = orders_seal(_RUN, orders)
    assert orders_seal(_RUN, orders) == orders["seal"]
    changes: list[dict[str, object]] = [{"path": "q"}, {"ends": []}, {"workers": 5}, {"more": 1}, {"run": "two"}]
    for change in changes:
        assert orders_seal(_RUN, {**orders, **change}) != orders["seal"]
    assert orders_seal(SealKey(bytes(32)), orders) != orders["seal"]
    # Another program may have rewritten the file in another order.
    assert orders_seal(_RUN, dict(reversed(orders.items()))) == orders["seal"]
