"""Blobs that a service fetched in blocks, so that they have no MD5: compared by the CRC64 that the index knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.config.mapping import resolve
from blobsync.local.index import BlobChecksums, Index, PairIndex, Record
from blobsync.local.link_policy import LinkPolicy
from blobsync.plan.pairing import Pair
from blobsync.plan.survey import Request, complete, hash_with_crc64, known_crc64s
from blobsync.plan.transfer_plan import Action
from blobsync.project.browse import path_status
from blobsync.project.verify import VerifyReport, verify
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import Checksum
from tests.fakes.crc64 import crc64
from tests.fakes.project_context import World, account, bucket, cluster


def md5(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("laion", data=bucket("laion")))


def add(world: World, name: str, body: bytes) -> str:
    world.source("laion").add(f"store/data/x/{name}", body)
    return f"store/data/x/{name}"


def copied(world: World, body: bytes = b"in several parts") -> World:
    """The world without its source, after an object without an MD5 was copied to ``eu``."""
    world.source("laion").hides_md5.add(add(world, "a", body))
    assert world.run("u", "data/x", copy=True).ok
    assert world.store("eu").blobs["store/data/x/a"].info.md5 is None
    return replace(world, there=None)


def mine(world: World, body: bytes) -> Path:
    return world.write("data/x/a", body)


def look(world: World) -> VerifyReport:
    context = world.context()
    (part,) = world.plan("u", "data/x").parts
    links = LinkPolicy("follow", str(world.root), part.path)
    return verify([Request(context.opened(part), links, context.records(part.key))], lambda _: None)


def test_a_copied_blob_without_an_md5_is_compared_by_its_crc64(world: World) -> None:
    here = copied(world)
    mine(here, b"in several parts")
    report = look(here)
    assert (report.counts, report.compared_by) == ({"equal": 1}, {"crc64nvme": 1})
    for direction in ("u", "d"):
        (action,) = [action for _, action in here.plan(direction, "data/x").each()]
        assert (action.action, action.reason) == (Action.UNCHANGED, Reason.SAME_CRC64)
    assert here.run("d", "data/x").ok
    (action,) = [action for _, action in here.plan("d", "data/x").each()]
    assert (action.action, action.reason) == (Action.UNCHANGED, Reason.SAME_RECORD)
    assert look(here).compared_by == {"record": 1}
    assert not here.store("eu").asked("get")


def test_other_bytes_than_those_of_a_copied_blob_are_seen_by_its_crc64(world: World) -> None:
    here = copied(world)
    mine(here, b"in several darts")
    assert look(here).counts == {"differs": 1}
    (action,) = [action for _, action in here.plan("d", "data/x").each()]
    assert (action.action, action.reason) == (Action.CONFLICT, Reason.CONTENT_DIFFERS)


def test_the_crc64_of_an_earlier_version_says_nothing(world: World) -> None:
    here = copied(world)
    mine(here, b"in several parts")
    here.store("eu").add("store/data/x/a", b"in several parts", with_md5=False)
    assert look(here).counts == {"unknown": 1}
    (action,) = [action for _, action in here.plan("d", "data/x").each()]
    assert (action.action, action.reason) == (Action.CONFLICT, Reason.NO_MD5)


def test_stat_compares_by_the_crc64_as_verify_does(world: World) -> None:
    here = copied(world)
    mine(here, b"in several parts")

    def said() -> bool | None:
        place = resolve("data/x/a", cwd=here.root, root=here.root, cluster=here.here)
        return path_status(here.context().connections, here.index, place).equal

    assert said() is True
    mine(here, b"in several darts")
    assert said() is False
    here.store("eu").add("store/data/x/a", b"in several darts", with_md5=False)
    assert said() is None


@pytest.mark.parametrize("size", [100, (8 << 20) + 1])
def test_a_download_with_another_crc64_than_that_of_the_copy_gets_no_name(world: World, size: int) -> None:
    here = copied(world, bytes(size))
    blob = here.store("eu").blobs["store/data/x/a"]
    blob.body = bytes(size - 1) + b"x"
    result = here.run("d", "data/x")
    assert [failure.code for failure in result.failures] == ["checksum_mismatch"]
    assert not (here.root / "data/x/a").exists()
    blob.body = bytes(size)
    again = here.run("d", "data/x")
    assert again.ok and (here.root / "data/x/a").read_bytes() == bytes(size)


def test_an_object_with_a_crc64_needs_no_md5_to_be_known_as_equal(world: World) -> None:
    body = b"in several parts"
    name = add(world, "a", body)
    world.source("laion").hides_md5.add(name)
    world.source("laion").checksums[name] = Checksum("crc64nvme", crc64(body).to_bytes(8, "big"))
    mine(world, body)
    there = replace(world, here=world.there, there=None)  # type: ignore[arg-type]
    (action,) = [action for _, action in there.plan("d", "data/x").each()]
    assert (action.action, action.reason) == (Action.UNCHANGED, Reason.SAME_CRC64)


@pytest.mark.parametrize("with_md5", [True, False])
def test_only_of_a_blob_without_an_md5_is_the_crc64_kept(world: World, *, with_md5: bool) -> None:
    name = add(world, "a", b"in several parts")
    if not with_md5:
        world.source("laion").hides_md5.add(name)
    assert world.run("u", "data/x", copy=True).ok
    store = world.store("eu")
    info = store.blobs[name].info
    assert (info.md5 is not None) is with_md5
    kept = world.index.checksums(str(store.container)).get({name: info.etag})
    assert kept == ({} if with_md5 else {name: crc64(b"in several parts").to_bytes(8, "big")})


class Asked(BlobChecksums):
    """Knows a CRC64 of every blob, and notes which ones it was asked for."""

    def __init__(self, index: Index) -> None:
        super().__init__(index, "")
        self.names: list[str] = []

    def get(self, etags: Mapping[str, str]) -> dict[str, bytes]:
        self.names += etags
        return dict.fromkeys(etags, b"12345678")


class Records(PairIndex):
    """Without a record; its checksums are ``asked``."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def get(self, paths: Sequence[str]) -> dict[str, Record]:
        return {}

    def checksums(self, container: str) -> BlobChecksums:
        return self.asked


@pytest.mark.parametrize("direction", ["u", "d"])
def test_only_of_blobs_without_an_md5_the_index_is_asked(world: World, direction: str) -> None:
    store = world.store("eu")
    store.add("store/data/x/with", b"bytes")
    store.add("store/data/x/without", b"bytes", with_md5=False)
    for name in ("with", "without", "mine"):
        mine(world, b"bytes").rename(world.root / "data/x" / name)
    asked = Asked(world.index)
    (part,) = world.plan(direction, "data/x").parts
    sizes = {"with": md5(b"bytes"), "without": None, "mine": None}
    near = {name: LocalState.of((world.root / "data/x" / name).stat()) for name in sizes}
    far = {name: RemoteState(5, f"e-{name}", found) for name, found in sizes.items() if name != "mine"}
    pairs = [
        Pair(name, near[name], far.get(name)) if direction == "u" else Pair(name, far.get(name), near[name])
        for name in sizes
    ]
    context = world.context()
    done = {pair.path: pair for pair in complete(iter(pairs), context.opened(part), Records(asked), False)}
    assert asked.names == ["store/data/x/without"]

    def known(name: str) -> tuple[bytes | None, bytes | None]:
        ends = (done[name].source, done[name].destination)
        local, remote = ends if direction == "u" else ends[::-1]
        return (local.crc64 if local else None, remote.crc64 if remote else None)

    assert known("with") == (None, None) and known("mine") == (None, None)
    assert known("without") == (crc64(b"bytes").to_bytes(8, "big"), b"12345678")


def test_without_anycrc_no_file_is_read_for_a_crc64(world: World) -> None:
    here = copied(world)
    info = here.store("eu").blobs["store/data/x/a"].info
    (part,) = here.plan("d", "data/x").parts
    end = here.context().opened(part).source
    assert isinstance(end, OpenBlob)
    name, records = end.at("a"), here.context().records(part.key)
    assert known_crc64s(end, records, {name: info.etag}) == {name: crc64(b"in several parts").to_bytes(8, "big")}
    assert known_crc64s(end, records, {name: info.etag}, lambda: None) == {}
    # anycrc is not even looked for where the index knows nothing.
    assert known_crc64s(end, records, {name: "another"}, lambda: pytest.fail("imported")) == {}
    file = mine(here, b"bytes")
    hashed = hash_with_crc64(file, lambda: None)
    assert hashed and (hashed.md5, hashed.crc64) == (md5(b"bytes"), None)
    file.unlink()
    assert hash_with_crc64(file) is None


def test_content_is_compared_by_md5_where_no_crc64_is_known(world: World) -> None:
    store = world.store("eu")
    store.add("store/data/x/a", b"bytes", with_md5=False)
    file = mine(world, b"bytes")
    (part,) = world.plan("u", "data/x").parts
    pair = Pair("a", LocalState.of(file.stat()), RemoteState(5, store.blobs["store/data/x/a"].info.etag))
    context = world.context()
    (done,) = complete(iter([pair]), context.opened(part), context.records(part.key), True)
    assert isinstance(done.source, LocalState) and isinstance(done.destination, RemoteState)
    assert (done.source.md5, done.source.crc64, done.destination.md5) == (md5(b"bytes"), None, md5(b"bytes"))
