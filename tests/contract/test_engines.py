"""One suite for every engine: what arrives is what was sent, or nothing is there and the report says why."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from blobsync.base.errors import StorageError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.redaction import Secret
from blobsync.config.model import StorageAccount
from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.store.connect import connect
from blobsync.store.protocol import BlobProperties, BlobStore
from blobsync.transfer.engines import CollectedReport, Engine, MoveTask
from tests.conftest import Azurite
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordingListener, capped, copy, ctrl_c_after, download, moved_by, upload

_MIB = 1024 * 1024
_BLOCK = 8 * _MIB
# Several blocks and ranges, of which the last one is short.
LARGE = 17 * _MIB

# Around every boundary: empty, one request or two, the largest single request, several blocks.
SIZES = (0, 1, 4095, 4 * _MIB - 1, 4 * _MIB, 4 * _MIB + 1, _BLOCK, _BLOCK + 1, 16 * _MIB, 16 * _MIB + 1)

# What a service of another process has to add to them: each way to send and to read.
_OVER_THERE = (0, 4095, 4 * _MIB + 1, 16 * _MIB + 1)

# No backslash among them: Azurite takes it for a slash.
NAMES = (
    "plain.txt",
    "a b",
    " led and trailed ",
    "é-nfc",
    "e\u0301-nfd",
    "日本語/🙂.bin",
    "a#b",
    "a?b",
    "a?sv=1&sig=x",
    "a%b",
    "a%20b",
    "test%46.txt",
    "a%2Fb",
    "a+b",
    "a&b=c;d,e",
    "a*b",
    "quo\"te's",
    "<[{(|)}]>",
    "-rf",
    "--x",
    "...",
    "~",
    "CON",
    "A",
    "a",
    "deep/" * 30 + "end",
    "n" * 255,
)


@cache
def _random_bytes(seed: int) -> bytes:
    return random.Random(seed).randbytes(LARGE)


def content(size: int, seed: int = 7) -> bytes:
    """At most ``LARGE`` bytes that no shift or swap of blocks leaves equal."""
    assert size <= LARGE
    return _random_bytes(seed)[:size]


def run(engine: Engine, task: MoveTask) -> CollectedReport:
    """All of it, with nothing unaccounted for."""
    listener = RecordingListener()
    report = moved_by(engine, task, listener)
    assert len(report.moved) + len(report.failed) == len(task.actions)
    if not report.failed:
        assert listener.bytes == sum(action.size for action in task.actions)
    return report


def succeed(engine: Engine, task: MoveTask) -> CollectedReport:
    report = run(engine, task)
    assert report.failed == []
    return report


def only_failure(report: CollectedReport) -> str:
    """The code of the one failure."""
    ((_, failure),) = report.failed
    return failure.code


def read(store: BlobStore, name: str) -> bytes:
    with store.open(name) as reader:
        return b"".join(iter(lambda: reader.read(_MIB), b""))


_number = itertools.count()


def azurite_containers(server: Azurite) -> tuple[BlobStore, BlobStore]:
    """A new, empty container in each of the two accounts."""
    name = f"engines{os.getpid()}n{next(_number)}"
    stores = []
    for account in ("one", "two"):
        key, endpoint = server.keys[account], server.endpoint(account)
        ContainerClient(endpoint, name, credential=key).create_container()
        stores.append(connect(StorageAccount("test.yaml", account, name, endpoint, account_key=Secret(key))))
    return stores[0], stores[1]


@pytest.fixture(params=["memory", "azurite"])
def stores(request: pytest.FixtureRequest) -> Iterator[tuple[BlobStore, BlobStore]]:
    """Two empty containers of two accounts."""
    if request.param == "memory":
        known: dict[str, MemoryStore] = {}
        known["one"] = MemoryStore("one", known)
        known["two"] = MemoryStore("two", known)
        yield known["one"], known["two"]
    else:
        yield azurite_containers(request.getfixturevalue("azurite"))


@pytest.fixture
def store(stores: tuple[BlobStore, BlobStore]) -> BlobStore:
    return stores[0]


@pytest.fixture(params=["pool", "lane"])
def direct(request: pytest.FixtureRequest) -> DirectEngine:
    """Small files one by one from threads, as on nodes, and many at a time from one thread."""
    return DirectEngine(fewest_small=1 if request.param == "lane" else 1_000_000)


def sizes_for(store: BlobStore) -> tuple[int, ...]:
    return SIZES if isinstance(store, MemoryStore) else _OVER_THERE


def write_tree(root: Path, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


# -- there and back ---------------------------------------------------------------------------------------


def test_every_size_goes_there_and_back(direct: DirectEngine, store: BlobStore, tmp_path: Path) -> None:
    files = {f"size-{size}": content(size) for size in sizes_for(store)}
    write_tree(tmp_path / "up", files)
    up = succeed(direct, upload(tmp_path / "up", store, "p/q"))
    for moved in up.moved:
        body = files[moved.action.path]
        md5 = hashlib.md5(body).digest()
        info = store.head(f"p/q/{moved.action.path}")
        assert info is not None
        assert (info.size, info.md5) == (len(body), md5)
        assert moved.destination == RemoteState(info.size, info.etag, md5)
        assert moved.source == LocalState.of(os.stat(tmp_path / "up" / moved.action.path), md5)
    down = succeed(direct, download(store, "p/q", tmp_path / "down", list(files)))
    for moved in down.moved:
        file = tmp_path / "down" / moved.action.path
        body = files[moved.action.path]
        assert file.read_bytes() == body
        assert moved.destination == LocalState.of(os.stat(file), hashlib.md5(body).digest())
    assert not list((tmp_path / "down").glob("**/.blobsync-*"))


def test_odd_names_go_there_and_back(direct: DirectEngine, store: BlobStore, tmp_path: Path) -> None:
    files = {name: name.encode() for name in NAMES}
    write_tree(tmp_path / "up", files)
    succeed(direct, upload(tmp_path / "up", store, "odd names/é"))
    assert {blob.name for blob in store.list_blobs("odd names/é/")} == {f"odd names/é/{name}" for name in NAMES}
    succeed(direct, download(store, "odd names/é", tmp_path / "down", NAMES))
    found = {
        str(path.relative_to(tmp_path / "down")): path.read_bytes()
        for path in (tmp_path / "down").rglob("*")
        if path.is_file()
    }
    assert found == files


def test_a_single_file_takes_exactly_the_given_name(direct: DirectEngine, store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "local.bin").write_bytes(b"one")
    succeed(direct, upload(tmp_path / "local.bin", store, "x/remote.bin", [""]))
    succeed(direct, download(store, "x/remote.bin", tmp_path / "new" / "other.bin", [""]))
    assert read(store, "x/remote.bin") == b"one"
    assert (tmp_path / "new" / "other.bin").read_bytes() == b"one"


def test_the_content_type_comes_from_the_name(direct: DirectEngine, store: BlobStore, tmp_path: Path) -> None:
    write_tree(tmp_path, {"a.JPG": b"1", "b.json": b"2", "c.tar.gz": b"3", "d": b"4", "e.jpg/f": b"5"})
    succeed(direct, upload(tmp_path, store, "t"))
    types = {blob.name[2:]: blob.content_type for blob in store.list_blobs("t/")}
    assert types == {
        "a.JPG": "image/jpeg",
        "b.json": "application/json",
        "c.tar.gz": "application/gzip",
        "d": "application/octet-stream",
        "e.jpg/f": "application/octet-stream",
    }


def test_a_blob_without_md5_arrives_and_its_md5_is_reported(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", b"no md5", with_md5=False)
    (moved,) = succeed(direct, download(store, "p", tmp_path, ["a"])).moved
    assert moved.destination is not None
    assert moved.destination.md5 == hashlib.md5(b"no md5").digest()


# -- what must not be replaced ----------------------------------------------------------------------------


def test_an_upload_replaces_only_the_version_that_was_planned_for(
    direct: DirectEngine, store: BlobStore, tmp_path: Path
) -> None:
    sizes = {"small": 10, "large": 16 * _MIB + 1}
    write_tree(tmp_path, {name: content(size) for name, size in sizes.items()})
    new = upload(tmp_path, store, "p")
    succeed(direct, new)
    again = run(direct, new)  # its plan says that nothing is there
    assert {failure.code for _, failure in again.failed} == {"changed_meanwhile"}
    write_tree(tmp_path, {name: content(size, seed=8) for name, size in sizes.items()})
    change = upload(tmp_path, store, "p")
    succeed(direct, change)
    for name, size in sizes.items():
        assert read(store, f"p/{name}") == content(size, seed=8)
    stale = change._replace(actions=[each._replace(source=None) for each in change.actions])
    assert len(run(direct, stale).failed) == 2


def test_a_download_replaces_only_the_version_that_was_planned_for(
    direct: DirectEngine, store: BlobStore, tmp_path: Path
) -> None:
    store.put("p/a", b"remote", md5=hashlib.md5(b"remote").digest())
    task = download(store, "p", tmp_path, ["a"])
    (tmp_path / "a").write_bytes(b"made meanwhile")
    assert only_failure(run(direct, task)) == "changed_meanwhile"
    assert (tmp_path / "a").read_bytes() == b"made meanwhile"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    succeed(direct, download(store, "p", tmp_path, ["a"]))
    assert (tmp_path / "a").read_bytes() == b"remote"


def test_a_blob_that_changed_since_the_plan_is_not_downloaded(
    direct: DirectEngine, store: BlobStore, tmp_path: Path
) -> None:
    store.put("p/a", b"first", md5=hashlib.md5(b"first").digest())
    task = download(store, "p", tmp_path, ["a"])
    store.put("p/a", b"other", md5=hashlib.md5(b"other").digest())
    assert only_failure(run(direct, task)) == "changed_while_read"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changed_since_the_plan_is_not_uploaded(
    direct: DirectEngine, store: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"first")
    task = upload(tmp_path, store, "p")
    (tmp_path / "a").write_bytes(b"second version")
    assert only_failure(run(direct, task)) == "changed_while_read"
    assert store.head("p/a") is None


# -- failures in the middle -------------------------------------------------------------------------------


def fail_at(operation: str, nth: int) -> Callable[[Request], None]:
    """The nth request of that kind fails for good."""
    count = iter(range(1, 10_000))

    def before(request: Request) -> None:
        if request.operation == operation and next(count) == nth:
            raise StorageError("out of order", status=500)

    return before


@pytest.mark.parametrize("operation", ["put_block", "put_block_list"])
def test_a_failed_upload_leaves_nothing_under_the_name(direct: DirectEngine, tmp_path: Path, operation: str) -> None:
    store = MemoryStore()
    write_tree(tmp_path, {"large": content(LARGE), "small": b"fine"})
    task = upload(tmp_path, store, "p")
    store.before = fail_at(operation, 1 if operation == "put_block_list" else 2)
    report = run(direct, task)
    assert only_failure(report) == "storage_error"
    assert set(store.blobs) == {"p/small"}
    store.before = lambda _: None
    succeed(direct, upload(tmp_path, store, "p", ["large"]))
    assert store.body("p/large") == content(LARGE)
    assert store.blocks == {}


def test_a_failed_download_leaves_nothing_under_the_name(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/large", content(LARGE))
    store.add("p/small", b"fine")
    task = download(store, "p", tmp_path, ["large", "small"])
    store.before = fail_at("get", 3)
    run(direct, task)
    found = [entry.name for entry in tmp_path.iterdir()]
    assert len(found) == 1
    store.before = lambda _: None
    succeed(direct, download(store, "p", tmp_path, ["large"]))
    assert (tmp_path / "large").read_bytes() == content(LARGE)


def test_a_body_that_ends_early_is_never_taken_for_the_file(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", content(5000))
    store.truncate["p/a"] = 4999
    report = run(direct, download(store, "p", tmp_path, ["a"]))
    assert only_failure(report) == "storage_error"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [5000, LARGE])
@pytest.mark.parametrize(("times", "arrives"), [(1, True), (1000, False)])
def test_damaged_bytes_are_fetched_again_or_refused(
    direct: DirectEngine, tmp_path: Path, size: int, times: int, arrives: bool
) -> None:
    store = MemoryStore()
    store.add("p/a", content(size))
    store.damage["p/a"] = times
    report = run(direct, download(store, "p", tmp_path, ["a"]))
    if arrives:
        assert report.failed == []
        assert (tmp_path / "a").read_bytes() == content(size)
    else:
        assert only_failure(report) == "checksum_mismatch"
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_grows_while_it_is_sent_leaves_no_blob(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "log").write_bytes(content(LARGE))

    def grow(request: Request) -> None:
        if request.operation == "put_block":
            with (tmp_path / "log").open("ab") as log:
                log.write(b"more")

    store.before = grow
    assert only_failure(run(direct, upload(tmp_path, store, "p"))) == "changed_while_read"
    assert store.blobs == {}


def test_a_destination_that_cannot_be_made_fails_every_file_by_name(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    store.add("p/a", b"1")
    store.add("p/b", b"2")
    (tmp_path / "file").write_text("in the way")
    report = run(direct, download(store, "p", tmp_path / "file", ["a", "b"]))
    assert sorted(failure.path for _, failure in report.failed) == ["data/x/a", "data/x/b"]
    assert {failure.code for _, failure in report.failed} == {"local_file"}


def test_names_that_lead_out_of_the_folder_are_written_nowhere(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    evil = ["../evil", "a/../../evil", "/tmp/evil", "a//b"]
    for name in evil:
        store.add(f"p/{name}", b"evil")
    report = run(direct, download(store, "p", tmp_path / "in", evil))
    assert len(report.failed) == 4
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


# -- interrupts and caps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["up", "down"])
def test_an_interrupt_is_quick_and_leaves_nothing_half_done(direct: DirectEngine, tmp_path: Path, way: str) -> None:
    store = MemoryStore()
    gate = threading.Event()
    if way == "up":
        write_tree(tmp_path, {"large": content(LARGE)})
        task = upload(tmp_path, store, "p")
    else:
        store.add("p/large", content(LARGE))
        task = download(store, "p", tmp_path, ["large"])

    def hang(request: Request) -> None:
        if request.operation in {"put_block", "get"} and len(store.asked(request.operation)) > 2:
            gate.wait(60)

    store.before = hang
    began = time.monotonic()
    with ctrl_c_after(0.3), pytest.raises(KeyboardInterrupt):
        moved_by(direct, task)
    assert time.monotonic() - began < 30
    if way == "down":
        assert list(tmp_path.iterdir()) == []
    assert set(store.blobs) <= {"p/large"} - ({"p/large"} if way == "up" else set())
    gate.set()


def test_the_cap_holds(direct: DirectEngine, tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(20):
        store.add(f"p/{number}", content(50_000, number))
    began = time.monotonic()
    task = capped(download(store, "p", tmp_path, [str(number) for number in range(20)]), mbps=10.0)
    succeed(direct, task)
    # 1,000,000 bytes at 1,250,000 a second, a quarter of a second's worth at once.
    assert 0.45 < time.monotonic() - began < 30


# -- blob to blob -----------------------------------------------------------------------------------------

_CARRIED = BlobProperties(
    content_type="image/x-special",
    content_language="de",
    cache_control="no-cache",
    metadata={"owner": "me"},
    tier="Cool",
)


@pytest.mark.parametrize("engine", [DirectEngine(), RelayEngine()], ids=["direct", "relay"])
def test_copies_carry_bytes_and_properties(engine: Engine) -> None:
    known: dict[str, MemoryStore] = {}
    known["one"], known["two"] = MemoryStore("one", known), MemoryStore("two", known)
    for size in SIZES:
        known["one"].add(f"p/{size}", content(size), properties=_CARRIED)
    task = copy(known["one"], "p", known["two"], "q", [str(size) for size in SIZES])
    report = succeed(engine, task)
    for moved in report.moved:
        name = f"q/{moved.action.path}"
        assert known["two"].body(name) == content(int(moved.action.path))
        assert known["two"].properties(name) == _CARRIED
        info = known["two"].blobs[name].info
        assert moved.destination == RemoteState(info.size, info.etag, info.md5)


def test_a_relay_goes_there_and_back(azurite: Azurite) -> None:
    one, two = azurite_containers(azurite)
    sizes = sizes_for(one)
    for size in sizes:
        body = content(size)
        one.put(f"p/{size}", body, md5=hashlib.md5(body).digest(), properties=_CARRIED)
    succeed(RelayEngine(), copy(one, "p", two, "q", [*map(str, sizes)]))
    for size in sizes:
        assert read(two, f"q/{size}") == content(size)
        assert two.properties(f"q/{size}") == _CARRIED


@pytest.mark.parametrize("engine", [DirectEngine(), RelayEngine()], ids=["direct", "relay"])
@pytest.mark.parametrize("tier", ["Cool", ""])
def test_a_copy_asks_for_a_blobs_tier_only_where_the_survey_did_not_see_it(engine: Engine, tier: str) -> None:
    for seen, asked in ((True, 0), (False, 1)):
        known: dict[str, MemoryStore] = {}
        one, two = known["one"], known["two"] = MemoryStore("one", known), MemoryStore("two", known)
        one.add("p/a", b"content", properties=_CARRIED._replace(tier=tier))
        task = copy(one, "p", two, "q", ["a"])
        if not seen:
            (action,) = task.actions
            assert isinstance(action.source, RemoteState)
            task = task._replace(actions=[action._replace(source=replace(action.source, tier=None))])
        succeed(engine, task)
        assert len(one.asked("properties")) == asked
        assert two.properties("q/a") == _CARRIED._replace(tier=tier)


def test_a_relay_never_holds_more_than_its_bound() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    size = 96 * _MIB
    one.add("p/a", content(1024) * (size // 1024))
    held = most = 0
    lock = threading.Lock()

    def before(request: Request) -> None:
        nonlocal held, most
        with lock:
            if request.operation == "get":
                held += request.size
            most = max(most, held)
        if request.operation == "put_block":
            time.sleep(0.005)
            with lock:
                held -= request.size

    one.before = two.before = before
    succeed(RelayEngine(), copy(one, "p", two, "p", ["a"]))
    assert hashlib.md5(two.body("p/a")).digest() == two.blobs["p/a"].info.md5
    assert most <= 32 * _MIB


def test_a_relay_refuses_damaged_bytes() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    one.add("p/a", content(LARGE))
    one.damage["p/a"] = 1000
    assert only_failure(run(RelayEngine(), copy(one, "p", two, "p", ["a"]))) == "checksum_mismatch"
    assert two.blobs == {}


@pytest.mark.parametrize("engine", [DirectEngine(), RelayEngine()], ids=["direct", "relay"])
def test_a_copy_replaces_only_the_version_that_was_planned_for(engine: Engine) -> None:
    known: dict[str, MemoryStore] = {}
    known["one"], known["two"] = MemoryStore("one", known), MemoryStore("two", known)
    known["one"].add("p/a", b"new")
    task = copy(known["one"], "p", known["two"], "p", ["a"])
    known["two"].add("p/a", b"made meanwhile")
    assert only_failure(run(engine, task)) == "changed_meanwhile"
    assert known["two"].body("p/a") == b"made meanwhile"


def test_a_refused_source_is_its_own_failure() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")  # two does not know one
    one.add("p/a", b"1")
    assert only_failure(run(DirectEngine(), copy(one, "p", two, "p", ["a"]))) == "copy_source_refused"
