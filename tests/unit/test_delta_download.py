"""A download that replaces a version: equal blocks are copied from the old file, and the result is checked."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.base.errors import AccessDeniedError, StorageError
from blobsync.base.file_states import RemoteState
from blobsync.direct.range_reads import known_blocks
from blobsync.plan.blocks import block_size
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.protocol import MAX_BLOCKS, Block, BlockKind, BlockList, block_id_of
from tests.fakes.project_context import World
from tests.fakes.store import MemoryStore, Request
from tests.unit import test_resumed_download as resumed
from tests.unit.test_resumed_download import MIB, NAME, SmallPieces, fetched, local, new_world, nothing_is_left

# Three ranges and nine blocks; each is hashed some five times in a test.
BODY = resumed.BODY[: 18 * MIB + 5]
OVERWRITE = TransferOptions(engine="direct", overwrite=True)


def block_lengths(size: int) -> list[int]:
    block = block_size(size)
    return [min(block, size - at) for at in range(0, size, block)]


def put_in_blocks(
    store: MemoryStore, body: bytes, lengths: Sequence[int] = (), *, name: str = NAME, named: bytes = b""
) -> RemoteState:
    """A blob as our uploads write it; with ``named`` its ids and its MD5 are those of another content."""
    named = named or body
    at, ids = 0, []
    for length in lengths or block_lengths(len(body)):
        block_id = block_id_of(hashlib.sha256(named[at : at + length]).digest())
        piece = body[at : at + length]
        store.put_block(name, block_id, piece)
        ids.append(block_id)
        at += length
    info = store.put_block_list(name, ids, size=len(body), md5=hashlib.md5(named).digest())
    return RemoteState(info.size, info.etag, info.md5)


def with_version(root: Path, body: bytes, lengths: Sequence[int] = ()) -> World:
    """A project that has this version in its folder, in the container and in its index."""
    world = new_world(root)
    put_in_blocks(world.store("eu"), body, lengths)
    assert world.run("d", "data").ok
    assert local(world).read_bytes() == body
    world.store("eu").requests.clear()
    return world


def again(world: World, options: TransferOptions = OVERWRITE) -> TransferResult:
    world.store("eu").requests.clear()
    return world.carry_out(world.plan("d", "data", options=options))


def edited(body: bytes, at: int, text: bytes) -> bytes:
    return body[:at] + text + body[at + len(text) :]


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda: edited(BODY, 12 * MIB, b"x" * MIB), 4 * MIB),
        (lambda: BODY + b"appended" * 1000, 3 * MIB),
        (lambda: BODY[: 10 * MIB], 2 * MIB),
        (lambda: BODY[: 10 * MIB + 5], 3 * MIB),
    ],
    ids=["changed in one place", "appended to", "cut at an edge", "cut"],
)
def test_only_changed_blocks_are_downloaded(tmp_path: Path, change: Callable[[], bytes], most: int) -> None:
    world, new = with_version(tmp_path, BODY), change()
    put_in_blocks(world.store("eu"), new)
    result = again(world)
    assert result.ok
    assert local(world).read_bytes() == new
    moved = fetched(world)
    assert moved == result.bytes_transferred <= most
    assert result.bytes_reused == len(new) - moved
    nothing_is_left(world)


def test_equal_content_is_found_after_the_block_size_changed(tmp_path: Path) -> None:
    body = BODY[: 17 * MIB]
    world = with_version(tmp_path, body)
    new = body + BODY[: 3 * MIB]
    assert set(block_lengths(len(new))) != set(block_lengths(len(body)))
    put_in_blocks(world.store("eu"), new)
    assert again(world).ok
    assert local(world).read_bytes() == new
    assert fetched(world) <= 5 * MIB


def test_a_local_edit_is_replaced_only_when_that_was_asked_for(tmp_path: Path) -> None:
    world = with_version(tmp_path, BODY)
    new, mine = edited(BODY, 0, b"theirs"), edited(BODY, 9 * MIB, b"mine")
    local(world).write_bytes(mine)
    put_in_blocks(world.store("eu"), new)
    assert again(world, TransferOptions(engine="direct")).conflicts
    assert local(world).read_bytes() == mine
    assert again(world).ok
    assert local(world).read_bytes() == new
    # The first block, and the one with the edit.
    assert fetched(world) == 4 * MIB


def test_without_an_md5_the_whole_blob_is_downloaded(tmp_path: Path) -> None:
    world = with_version(tmp_path, BODY)
    state = put_in_blocks(world.store("eu"), edited(BODY, 0, b"new"))
    blob = world.store("eu").blobs[NAME]
    blob.info = blob.info._replace(md5=None)
    assert known_blocks(world.store("eu"), NAME, replace(state, md5=None)) == ()
    assert again(world).ok
    assert fetched(world) == len(BODY)
    assert local(world).read_bytes() == edited(BODY, 0, b"new")


def test_wrong_block_ids_cause_a_whole_download(tmp_path: Path) -> None:
    world = with_version(tmp_path, BODY)
    other = random.Random(9).randbytes(len(BODY))
    put_in_blocks(world.store("eu"), other, named=BODY)
    # The content has another MD5 than the ids would make.
    blob = world.store("eu").blobs[NAME]
    blob.info = blob.info._replace(md5=hashlib.md5(other).digest())
    result = again(world)
    assert (result.ok, result.bytes_reused, result.bytes_transferred) == (True, 0, len(BODY))
    assert local(world).read_bytes() == other
    nothing_is_left(world)


def test_a_wrong_md5_is_an_error_and_the_file_stays(tmp_path: Path) -> None:
    world = with_version(tmp_path, BODY)
    other = random.Random(9).randbytes(len(BODY))
    put_in_blocks(world.store("eu"), other, named=edited(BODY, 5, b"no"))
    blob = world.store("eu").blobs[NAME]
    blob.info = blob.info._replace(md5=b"an MD5 of nothing"[:16])
    result = again(world)
    assert {failure.code for failure in result.failures} == {"checksum_mismatch"}
    assert local(world).read_bytes() == BODY
    nothing_is_left(world)


class Listing(MemoryStore):
    """Returns a fixed list of blocks."""

    said: BlockList | Exception | None = None

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


ID = block_id_of(bytes(32))
FOREIGN = "A" * 48


@pytest.mark.parametrize(
    "said",
    [
        None,
        AccessDeniedError("no right to read", status=403),
        StorageError("cannot parse the list of blocks"),
        BlockList((), (), "e"),
        BlockList((Block(ID, 60), Block(ID, 39)), (), "e"),
        BlockList((Block(ID, 60), Block(ID, 41)), (), "e"),
        BlockList((Block(ID, 101), Block(ID, -1)), (), "e"),
        BlockList((Block(ID, 100), Block(ID, 0)), (), "e"),
        BlockList((Block(ID, 60), Block(FOREIGN, 40)), (), "e"),
        BlockList((Block(ID, 60), Block(ID, 40)), (), "another"),
        BlockList((Block(ID, 1),) * 100_000, (), "e"),
        BlockList((), (Block(ID, 100),), "e"),
    ],
    ids=[
        *("nothing", "refused", "nonsense", "no blocks", "too short", "too long", "a negative size", "an empty block"),
        *("one that is not ours", "another version", "100,000 ids", "uncommitted"),
    ],
)
def test_a_block_list_that_does_not_match_the_blob_is_ignored(said: BlockList | Exception | None) -> None:
    store = Listing()
    store.said = said
    size = 100_000 if isinstance(said, BlockList) and len(said.committed) > MAX_BLOCKS else 100
    assert known_blocks(store, "a", RemoteState(size, "e", b"m" * 16)) == ()
    store.said = BlockList((Block(ID, 60), Block(ID, 40)), (), "e")
    assert [each.start for each in known_blocks(store, "a", RemoteState(100, "e", b"m" * 16))] == [0, 60]


def test_the_largest_block_list_is_accepted() -> None:
    store = Listing()
    store.said = BlockList((Block(ID, 1),) * MAX_BLOCKS, (), "e")
    assert len(known_blocks(store, "a", RemoteState(MAX_BLOCKS, "e", b"m" * 16))) == MAX_BLOCKS


@pytest.mark.parametrize("way", ["cut", "written", "gone", "link"])
def test_a_local_file_that_changes_while_it_is_copied_is_noticed(tmp_path: Path, way: str) -> None:
    world = with_version(tmp_path, BODY)
    new = edited(BODY, 0, b"new")
    put_in_blocks(world.store("eu"), new)
    plan = world.plan("d", "data", options=OVERWRITE)
    done: list[Request] = []

    def change(request: Request) -> None:
        if request.operation == "block_list" and not done:
            done.append(request)
            if way == "cut":
                os.truncate(local(world), 10 * MIB)
            elif way == "written":
                local(world).write_bytes(bytes(len(BODY)))
            else:
                local(world).unlink()
            if way == "link":
                local(world).symlink_to(world.root / "elsewhere")

    world.store("eu").before = change
    result = world.carry_out(plan)
    assert {failure.code for failure in result.failures} == {"changed_meanwhile"}
    assert done and not list(local(world).parent.glob(".blobsync-*"))
    world.store("eu").before = lambda _: None
    assert again(world).ok
    assert local(world).read_bytes() == new
    assert not local(world).is_symlink()


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1500, 12_000),
    edits=st.lists(st.tuples(st.integers(0, 12_000), st.binary(max_size=600), st.booleans()), max_size=4),
    cut=st.integers(0, 11_000),
    seed=st.integers(0, 3),
    breaks=st.integers(0, 20),
)
def test_after_random_edits_the_file_equals_the_blob(
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    edits: list[tuple[int, bytes, bool]],
    cut: int,
    seed: int,
    breaks: int,
) -> None:
    chance = random.Random(seed)
    lengths = [700] * (size // 700) + ([size % 700] if size % 700 else [])
    world = with_version(tmp_path_factory.mktemp("w"), BODY[:size], lengths)
    new = BODY[:size]
    for at, text, inserted in edits:
        new = new[:at] + text + new[at + (0 if inserted else len(text)) :]
    new = new[: max(1001, len(new) - cut)] if cut < size else new
    of = [700] * (len(new) // 700) + ([len(new) % 700] if len(new) % 700 else [])
    put_in_blocks(world.store("eu"), new, of)
    left = iter(range(breaks if chance.random() < 0.5 else 1000))

    def before(request: Request) -> None:
        if request.operation == "get" and next(left, None) is None:
            raise StorageError("out of order", status=500)

    plan = world.plan("d", "data", options=OVERWRITE)
    world.store("eu").before = before
    result = world.carry_out(plan, direct=lambda: SmallPieces(world.unfinished))
    assert local(world).read_bytes() == (new if result.ok else BODY[:size])
    world.store("eu").before = lambda _: None
    world.store("eu").requests.clear()
    plan = world.plan("d", "data", options=OVERWRITE)
    result = world.carry_out(plan, direct=lambda: SmallPieces(world.unfinished))
    assert result.ok and local(world).read_bytes() == new
    assert fetched(world) == result.bytes_transferred
    nothing_is_left(world)
