"""One suite for every ``BlobStore``: the REST client with a key and with a SAS, the SDK, and the tests' own fake.

The SDK is the oracle: what the REST client must do is what the SDK does against the same server.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from azure.storage.blob import ContainerClient

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    ChecksumError,
    ContainerNotFoundError,
    CopySourceRefusedError,
    PreconditionFailedError,
    SourceChangedError,
    StorageError,
)
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import StorageAccount
from blobsync.local.sorted_runs import Spill
from blobsync.plan.parallel_listing import Division, list_wide
from blobsync.store.connect import connect, signer_for
from blobsync.store.protocol import (
    BlobInfo,
    BlobProperties,
    BlobStore,
    Block,
    BlockKind,
    BlockList,
    FileBody,
    Precondition,
    block_id_of,
)
from blobsync.store.rest.http import BlobHttp
from blobsync.store.sas import mint_sas
from blobsync.store.sdk import SdkContainer
from tests.conftest import Azurite
from tests.contract.sdk_store import SdkBlobStore
from tests.fakes.store import MemoryStore
from tests.servers.listing_server import listing_server, name_of

MIB = 1024 * 1024
FULL = BlobProperties(
    content_type="text/x-odd",
    content_encoding="identity",
    content_language="de",
    content_disposition="inline",
    cache_control="max-age=7",
    tier="Cool",
    metadata={"a_b": "1", "ab": "2", "a1": "three words", "hdi_none": "x"},
)

# Azurite takes a backslash for a slash and fails to list names that XML cannot hold: those are tested on
# recorded answers in the unit tests. Everything else of the catalogue of names is here.
NAMES = (
    "plain",
    "a b",
    " leading and trailing ",
    ".hidden",
    "dot.",
    "~tilde",
    "tab\tname",
    "line\nfeed",
    "carriage\rreturn",
    "del\x7f",
    "".join(map(chr, range(0x21, 0x2F))) + ":;<=>?@[]^_`{|}~",
    "a#b",
    "a?b",
    "a?sv=1&sig=x",
    "a%b",
    "a%20b",
    "test%46.txt",
    "a%2Fb",
    "a+b",
    "a&b=c",
    "a;b",
    "file*.txt",
    "quo\"te's",
    "é",
    "e\u0301",
    "日本語/🙂",
    "\u202eright to left",
    "\x81",
    "CON",
    "nul.txt",
    "A",
    "a",
    "a/b",
    "a/",
    "//x",
    "/x",
    "x//y",
    "..",
    "../evil",
    "x/../y",
    "./here",
    "C:\u29f5x",
    "n" * 255,
    "/".join(["d" * 250] * 4)[:1003] + "/" + "e" * 20,
    "seg/" * 253 + "x",
    ".azDownload-0-x",
    ".git/config",
    "-rf",
    "--x",
)

# The SDK's own HTTP client resolves these before it sends them.
SDK_LOSES = {"..", "../evil", "x/../y", "./here"}

_number = itertools.count()


def md5(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


def block_id(number: int) -> str:
    return base64.b64encode(f"{number:06}".encode()).decode()


def new_account(server: Azurite, account: str = "one") -> StorageAccount:
    name = f"store{os.getpid()}n{next(_number)}"
    key, endpoint = server.keys[account], server.endpoint(account)
    ContainerClient(endpoint, name, credential=key).create_container()
    return StorageAccount("test.yaml", account, name, endpoint, account_key=Secret(key))


def with_sas(account: StorageAccount, rights: str) -> StorageAccount:
    token = mint_sas(account, rights, 3600)
    return StorageAccount("t", account.account_name, account.container_name, account.blob_endpoint, sas_token=token)


@pytest.fixture(params=["rest-key", "rest-sas", "sdk", "memory"])
def store(request: pytest.FixtureRequest) -> Iterator[BlobStore]:
    """An empty container."""
    if request.param == "memory":
        yield MemoryStore()
        return
    server: Azurite = request.getfixturevalue("azurite")
    account = new_account(server)
    if request.param == "sdk":
        yield SdkBlobStore(account.container, server.keys["one"])
        return
    # One of the two ways to sign with one of the two transports: neither knows of the other.
    transport = "curl" if request.param == "rest-key" else "urllib3"
    signing = account if request.param == "rest-key" else with_sas(account, "racwdl")
    with connect(signing, environ={"BLOBSYNC_TRANSPORT": transport}) as rest:
        yield rest


def put(store: BlobStore, name: str, body: bytes = b"hello", properties: BlobProperties | None = None) -> BlobInfo:
    return store.put(name, body, md5=md5(body), properties=properties or BlobProperties())


def read(store: BlobStore, name: str, piece: int = MIB) -> bytes:
    with store.open(name) as reader:
        return b"".join(iter(lambda: reader.read(piece), b""))


def test_every_name_comes_back_from_listings_heads_and_reads(store: BlobStore) -> None:
    names = [name for name in NAMES if not isinstance(store, SdkBlobStore) or name not in SDK_LOSES]
    for name in names:
        put(store, name, name.encode())
    assert {blob.name for blob in store.list_blobs()} == set(names)
    for name in names:
        found = store.head(name)
        assert found is not None and found.md5 == md5(name.encode()), name
        assert read(store, name) == name.encode(), name
    assert store.delete_many(names) == {}
    assert list(store.list_blobs()) == []


@pytest.mark.parametrize("size", [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1])
def test_bodies_come_back_whole_in_pieces_and_in_ranges(store: BlobStore, size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    written = put(store, "b", body)
    assert (written.size, written.md5) == (size, md5(body))
    looked = store.head("b")
    assert looked is not None and (looked.name, looked.etag, looked.md5) == ("b", written.etag, written.md5)
    assert looked == next(iter(store.list_blobs())) == next(iter(store.list_blobs("b")))
    assert read(store, "b", 1_000_003) == body
    middle = size // 3
    with store.open("b", start=middle, length=size) as reader:
        assert reader.info.size == size and reader.info.md5 == md5(body) and reader.info.etag == written.etag
        assert b"".join(iter(lambda: reader.read(MIB), b"")) == body[middle:]
    if size > 1:
        with store.open("b", start=middle, length=1) as reader:
            assert reader.read(MIB) == body[middle : middle + 1] and reader.read(MIB) == b""


def test_a_reader_may_be_closed_early(store: BlobStore) -> None:
    put(store, "b", b"x" * MIB)
    for _ in range(5):
        with store.open("b") as reader:
            assert (reader.read(0), reader.read(10), reader.read(0)) == (b"", b"x" * 10, b"")
    assert len(read(store, "b")) == MIB


def test_blocks_become_a_blob(store: BlobStore) -> None:
    parts = [b"a" * 100_000, b"b" * 100_000, b"c"]
    whole = b"".join(parts)
    for number, part in reversed(list(enumerate(parts))):
        store.put_block("b", block_id(number), part)
    assert store.head("b") is None
    ids = [block_id(number) for number in range(3)]
    written = store.put_block_list("b", ids, size=len(whole), md5=md5(whole), properties=FULL)
    assert (written.size, written.md5) == (len(whole), md5(whole))
    assert read(store, "b") == whole
    found = store.head("b")
    assert found is not None and (found.md5, found.etag, found.tier) == (md5(whole), written.etag, "Cool")
    assert store.properties("b") == FULL


def test_blocks_without_an_md5_of_the_whole(store: BlobStore) -> None:
    store.put_block("b", block_id(0), b"hello")
    assert store.put_block_list("b", [block_id(0)], size=5, md5=b"").md5 is None
    found = store.head("b")
    assert found is not None and found.md5 is None


def content_id(body: bytes) -> str:
    return block_id_of(hashlib.sha256(body).digest())


def test_the_blocks_of_a_blob_are_listed_in_its_order(store: BlobStore) -> None:
    parts = [bytes([number]) * (number + 1) for number in range(40)]
    for part in reversed(parts):
        store.put_block("a b/é", content_id(part), part)
    expected = tuple(Block(content_id(part), len(part)) for part in parts)
    staged = store.block_list("a b/é")
    assert staged is not None and staged.committed == () and set(staged.uncommitted) == set(expected)
    whole = b"".join(parts)
    written = store.put_block_list("a b/é", [each.id for each in expected], size=len(whole), md5=md5(whole))
    assert store.block_list("a b/é") == BlockList(expected, (), written.etag)
    assert [block.sha256 for block in expected] == [hashlib.sha256(part).digest() for part in parts]


def test_each_list_of_blocks_can_be_asked_for_alone(store: BlobStore) -> None:
    old, new = Block(content_id(b"old"), 3), Block(content_id(b"newer"), 5)
    store.put_block("b", old.id, b"old")
    etag = store.put_block_list("b", [old.id], size=3, md5=md5(b"old")).etag
    store.put_block("b", new.id, b"newer")
    assert store.block_list("b", "all") == BlockList((old,), (new,), etag)
    assert store.block_list("b", "committed") == BlockList((old,), (), etag)
    assert store.block_list("b", "uncommitted") == BlockList((), (new,), etag)


def test_old_and_new_blocks_are_mixed_in_any_order_and_named_twice(store: BlobStore) -> None:
    parts = {name: name.encode() * 7 for name in ("one", "two", "three")}
    ids = {name: content_id(part) for name, part in parts.items()}
    for name in ("one", "two"):
        store.put_block("b", ids[name], parts[name])
    first = store.put_block_list("b", [ids["one"], ids["two"]], size=42, md5=b"")
    store.put_block("b", ids["three"], parts["three"])
    order = ["two", "three", "two", "one", "three"]
    body = b"".join(parts[name] for name in order)
    condition = Precondition(etag=first.etag)
    old = {ids["one"], ids["two"]}
    written = store.put_block_list(
        "b", [ids[name] for name in order], size=len(body), md5=md5(body), condition=condition, committed=old
    )
    assert read(store, "b") == body
    expected = tuple(Block(ids[name], len(parts[name])) for name in order)
    assert store.block_list("b") == BlockList(expected, (), written.etag)


def test_blocks_that_are_not_there_make_no_blob(store: BlobStore) -> None:
    store.put_block("b", content_id(b"x"), b"x")
    with pytest.raises(StorageError) as refused:
        store.put_block_list("b", [content_id(b"x"), content_id(b"y")], size=2, md5=md5(b"xy"))
    assert refused.value.service_code == "InvalidBlockList"
    assert store.head("b") is None


def test_ids_of_another_length_are_refused(store: BlobStore) -> None:
    store.put_block("b", block_id(0), b"x")
    with pytest.raises(StorageError) as refused:
        store.put_block("b", content_id(b"x"), b"x")
    assert refused.value.service_code == "InvalidBlobOrBlock"


def test_a_blob_of_one_request_has_no_blocks_and_one_that_is_not_there_no_list(store: BlobStore) -> None:
    etag = put(store, "b").etag
    assert store.block_list("b") == BlockList((), (), etag)
    assert store.block_list("gone") is None


@pytest.mark.parametrize("kind", ["all", "committed", "uncommitted"])
def test_listing_blocks_needs_the_right_to_read(azurite: Azurite, kind: BlockKind) -> None:
    account = new_account(azurite)
    with connect(with_sas(account, "cw"), environ={}) as rest:
        rest.put_block("b", content_id(b"x"), b"x")
        with pytest.raises(AccessDeniedError):
            rest.block_list("b", kind)


def test_a_committed_block_is_not_replaced_by_one_that_was_put_since(azurite: Azurite) -> None:
    with connect(new_account(azurite), environ={}) as rest:
        mine = content_id(b"mine")
        rest.put_block("b", mine, b"mine")
        rest.put_block_list("b", [mine], size=4, md5=b"")
        rest.put_block("b", mine, b"evil")
        rest.put_block_list("b", [mine, mine], size=8, md5=b"", committed={mine})
        assert read(rest, "b") == b"minemine"


@pytest.mark.parametrize("tier", ["", "Cool"])
def test_a_read_tells_the_properties_and_a_look_the_tier(store: BlobStore, tier: str) -> None:
    put(store, "a", b"hello", FULL._replace(tier=tier))
    put(store, "empty", b"", FULL._replace(tier=tier))
    for name, start, length in (("a", 0, None), ("a", 1, 3), ("empty", 0, None)):
        with store.open(name, start=start, length=length) as reader:
            assert reader.properties._replace(tier="") == FULL._replace(tier="")
    head = store.head("a")
    assert head is not None and head.content_type == "text/x-odd"
    assert {blob.given_tier for blob in (head, *store.list_blobs())} == {tier}
    assert store.properties("a") == FULL._replace(tier=tier)
    put(store, "plain", b"hello")
    assert store.properties("plain").tier == "" and store.properties("plain").metadata == {}


def test_what_is_not_there(store: BlobStore) -> None:
    assert store.head("gone") is None
    assert not store.delete("gone")
    with pytest.raises(BlobNotFoundError):
        store.properties("gone")
    with pytest.raises(BlobNotFoundError), store.open("gone"):
        pass
    assert list(store.list_blobs("gone")) == []


def test_damaged_bodies_are_refused(store: BlobStore) -> None:
    with pytest.raises(ChecksumError):
        store.put("b", b"hello", md5=md5(b"hellO"))
    assert store.head("b") is None


def test_conditions_of_writes(store: BlobStore) -> None:
    first = store.put("b", b"one", md5=md5(b"one"), condition=Precondition(absent=True))
    with pytest.raises(PreconditionFailedError):
        store.put("b", b"two", md5=md5(b"two"), condition=Precondition(absent=True))
    second = store.put("b", b"two", md5=md5(b"two"), condition=Precondition(etag=first.etag))
    assert second.etag != first.etag
    with pytest.raises(PreconditionFailedError):
        store.put("b", b"three", md5=md5(b"three"), condition=Precondition(etag=first.etag))
    store.put_block("b", block_id(0), b"four")
    for refused in (Precondition(etag=first.etag), Precondition(absent=True)):
        with pytest.raises(PreconditionFailedError):
            store.put_block_list("b", [block_id(0)], size=4, md5=md5(b"four"), condition=refused)
    assert read(store, "b") == b"two"
    # Nor is a version written over that is gone.
    assert store.delete("b")
    with pytest.raises(PreconditionFailedError):
        store.put("b", b"x", md5=md5(b"x"), condition=Precondition(etag=second.etag))
    assert store.head("b") is None


def test_reads_and_deletes_of_one_version(store: BlobStore) -> None:
    old = put(store, "b", b"old").etag
    new = put(store, "b", b"new").etag
    with pytest.raises(PreconditionFailedError), store.open("b", etag=old):
        pass
    with pytest.raises(PreconditionFailedError):
        store.delete("b", etag=old)
    with store.open("b", etag=new) as reader:
        assert reader.read(9) == b"new"
    assert store.delete("b", etag=new)
    assert store.head("b") is None


def test_prefixes_and_folders(store: BlobStore) -> None:
    for name in ("a", "a/1", "a/b/2", "a/b/3", "a b/4", "ab", "z"):
        put(store, name)
    put(store, "a/stub", b"", BlobProperties(metadata={"hdi_isfolder": "true"}))
    assert [blob.name for blob in store.list_blobs("a/")] == ["a/1", "a/b/2", "a/b/3", "a/stub"]
    assert [blob.name for blob in store.list_blobs("a/b")] == ["a/b/2", "a/b/3"]
    assert [blob.name for blob in store.first_blobs("a/", 2)] == ["a/1", "a/b/2"]
    assert [blob.name for blob in store.first_blobs("a/b", 9)] == ["a/b/2", "a/b/3"] and not store.first_blobs("x", 9)
    shown = [entry if isinstance(entry, str) else entry.name for entry in store.list_folder("a/")]
    assert sorted(shown) == ["a/1", "a/b/", "a/stub"]
    root = [entry if isinstance(entry, str) else entry.name for entry in store.list_folder()]
    assert sorted(root) == ["a", "a b/", "a/", "ab", "z"]


def test_stubs_of_folders_are_marked(azurite: Azurite) -> None:
    account = new_account(azurite)
    with connect(account, environ={}) as rest:
        put(rest, "stub", b"", BlobProperties(metadata={"hdi_isfolder": "true"}))
        put(rest, "file", b"")
        assert {blob.name: blob.is_folder_stub for blob in rest.list_blobs()} == {"stub": True, "file": False}
        for name, is_stub in (("stub", True), ("file", False)):
            found = rest.head(name)
            assert found is not None and found.is_folder_stub is is_stub


def test_deletes_in_batches_leave_what_was_written_since(store: BlobStore) -> None:
    put(store, "keep")
    # Names that are not there: a single one, a batch, and one more than a batch holds.
    for others in (1, 2, 255):
        names = [f"d/first{others} #%é", *(f"never there {number}" for number in range(others)), f"d/last{others}"]
        for name in (names[0], names[-1]):
            put(store, name)
        assert store.delete_many(names[1:-1] if others == 1 else names) == {}
        seen = {name: put(store, name, b"seen").etag for name in ("old", "kept")}
        newer = put(store, "old", b"newer").etag
        assert set(store.delete_many([*seen, *names], etags={**seen, names[1]: newer})) == {"old"}
        assert [blob.name for blob in store.list_blobs()] == ["keep", "old"]


@pytest.mark.parametrize("own", ["key", "sas"])
def test_a_batch_deletes_every_name_and_version(azurite: Azurite, own: str) -> None:
    account = new_account(azurite)
    account = account if own == "key" else with_sas(account, "rwdl")
    with connect(account, environ={}) as rest:
        versions = {name: put(rest, name).etag for name in NAMES}
        put(rest, "changed")
        batch = [*versions.items(), ("not there", None)]
        sdk = SdkContainer(account.container, BlobHttp(account.container, signer_for(account, environ={}), environ={}))
        # A batch that failed in part would be repeated singly, which hides whether batches work.
        assert sdk.delete_batch(batch) is True
        assert [blob.name for blob in rest.list_blobs()] == ["changed"]
        assert sdk.delete_batch([("changed", "0x8D")]) is False
        assert rest.head("changed") is not None


@pytest.fixture(scope="module")
def many(azurite: Azurite) -> StorageAccount:
    """5,001 blobs: one more than a page holds."""
    account = new_account(azurite)
    with connect(account, environ={}) as rest, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: put(rest, f"p/{number:05}", b""), range(5001)))
    return account


@pytest.mark.soak
def test_listings_go_on_after_a_page(many: StorageAccount) -> None:
    with connect(many, environ={}) as rest:
        assert [blob.name for blob in rest.list_blobs()] == [f"p/{number:05}" for number in range(5001)]
        assert sum(1 for _ in rest.list_folder("p/")) == 5001
        last = put(rest, "p/05000", b"")
        assert rest.delete(last.name)
        assert sum(1 for _ in rest.list_blobs("p/")) == 5000


@pytest.mark.parametrize("arrow", ["no", "refused", "yes"])
def test_a_flat_folder_is_listed_in_ranges_of_names(arrow: Literal["no", "refused", "yes"]) -> None:
    total = 12_000
    with listing_server(total, per_folder=total, arrow=arrow) as url:
        key = Secret(base64.b64encode(b"any").decode())
        account = StorageAccount("test.yaml", "acct", "box", f"{url}/acct", account_key=key)
        with connect(account, environ={}) as rest:
            found = list(list_wide(rest, "base/", Spill(), Division(5_000)))
            assert next(rest.list_from("base/", found[-1].name, 1)).name == found[-1].name
            ends = [blob.name for blob in rest.list_from("base/", found[0].name, end=found[9].name)]
    assert [blob.name for blob in found] == [f"base/tree/{name_of(number, total)}" for number in range(total)]
    # The server says so in Arrow's form only, which has no part in the first listing.
    assert sum(blob.tier_inferred for blob in found) == (7_000 if arrow == "yes" else 0)
    assert len(ends) == (9 if arrow == "yes" else total)


def test_a_listing_may_be_left_early(azurite: Azurite) -> None:
    with connect(new_account(azurite), environ={}) as rest:
        for number in range(3):
            put(rest, f"p/{number:05}", b"")
        listing = rest.list_blobs()
        assert next(listing).name == "p/00000"
        del listing
        assert rest.head("p/00001") is not None


def test_the_rest_client_sees_what_the_sdk_sees(azurite: Azurite) -> None:
    account = new_account(azurite)
    sdk = SdkBlobStore(account.container, azurite.keys["one"])
    with connect(account, environ={}) as rest:
        names = [name for name in NAMES if name not in SDK_LOSES]
        for number, name in enumerate(names):
            put(rest if number % 2 else sdk, name, name.encode(), FULL if number % 3 == 0 else None)
        assert list(rest.list_blobs()) == list(sdk.list_blobs())
        for name in names:
            assert rest.head(name) == sdk.head(name)
            assert rest.properties(name) == sdk.properties(name)
            assert read(rest, name) == read(sdk, name) == name.encode()


def test_blocks_that_a_killed_upload_left_are_no_blob(azurite: Azurite) -> None:
    with connect(new_account(azurite), environ={}) as rest:
        left = base64.b64encode(b"l" * 36).decode()
        rest.put_block("a", left, b"half")
        assert (
            rest.put("a", b"whole", md5=md5(b"whole"), properties=FULL, condition=Precondition(absent=True)).size == 5
        )
        assert (read(rest, "a"), rest.properties("a")) == (b"whole", FULL)
        with pytest.raises(PreconditionFailedError):
            rest.put("a", b"again", md5=md5(b"again"), condition=Precondition(absent=True))


@pytest.mark.parametrize("name", ["plain", "a é#%20/b"])
def test_copies_within_an_account_by_the_service(azurite: Azurite, name: str) -> None:
    source, target = new_account(azurite), new_account(azurite)
    with connect(source, environ={}) as origin, connect(target, environ={}) as rest:
        put(origin, name, b"hello", FULL)
        sas = mint_sas(source, "r", 600)
        copied = rest.put_from_url("copy", str(source.container.child(name)), sas, tier="Cool")
        there = rest.head("copy")
        assert there is not None
        assert (there.size, there.md5, there.tier, there.etag) == (5, md5(b"hello"), "Cool", copied.etag)
        assert copied.md5 in {None, md5(b"hello")}
        assert rest.properties("copy") == FULL and read(rest, "copy") == b"hello"
        version = origin.head(name)
        assert version is not None
        url = str(source.container.child(name))
        rest.put_from_url("of that version", url, sas, source_etag=version.etag)
        # Azurite has one code for the conditions of both ends.
        with pytest.raises((SourceChangedError, PreconditionFailedError)):
            rest.put_from_url("of another", url, sas, source_etag=copied.etag)
        assert rest.head("of that version") is not None and rest.head("of another") is None
        with pytest.raises(PreconditionFailedError):
            rest.put_from_url("copy", str(source.container.child(name)), sas, condition=Precondition(absent=True))


def test_copies_that_an_emulator_lacks_are_refused_as_such(azurite: Azurite) -> None:
    source, target = new_account(azurite), new_account(azurite)
    with connect(source, environ={}) as origin, connect(target, environ={}) as rest:
        put(origin, "b", b"hello")
        with pytest.raises(CopySourceRefusedError, match="does not copy from a URL"):
            rest.put_block_from_url(
                "c", block_id(0), str(source.container.child("b")), mint_sas(source, "r", 60), start=0, length=5
            )


def test_a_copy_without_the_right_to_read_is_refused(azurite: Azurite) -> None:
    source, target = new_account(azurite), new_account(azurite, "two")
    with connect(source, environ={}) as origin, connect(target, environ={}) as rest:
        put(origin, "b", b"hello")
        with pytest.raises(CopySourceRefusedError, match="is not allowed to read the source"):
            rest.put_from_url("c", str(source.container.child("b")), None)
        assert rest.head("c") is None


@pytest.mark.parametrize(
    ("rights", "call"),
    [
        ("rl", lambda rest: put(rest, "new")),
        ("rl", lambda rest: rest.delete("b")),
        ("wl", lambda rest: read(rest, "b")),
        ("rw", lambda rest: list(rest.list_blobs())),
    ],
)
def test_each_missing_right_is_refused(azurite: Azurite, rights: str, call: Callable[[BlobStore], object]) -> None:
    account = new_account(azurite)
    with connect(account, environ={}) as rest:
        put(rest, "b")
    with connect(with_sas(account, rights), environ={}) as limited:
        with pytest.raises(AccessDeniedError, match="is not allowed to"):
            call(limited)


@pytest.mark.parametrize("mistake", ["other container", "changed signature", "other key"])
def test_credentials_that_do_not_fit(azurite: Azurite, mistake: str) -> None:
    account, other = new_account(azurite), new_account(azurite)
    token = mint_sas(other, "racwdl", 600)
    if mistake == "changed signature":
        whole, _, _ = mint_sas(account, "racwdl", 600).reveal().partition("sig=")
        token = SasToken.parse(f"{whole}sig={'A' * 43}%3D")
    wrong = StorageAccount("t", "one", account.container_name, account.blob_endpoint, sas_token=token)
    if mistake == "other key":
        key = Secret(azurite.keys["two"])
        wrong = StorageAccount("t", "one", account.container_name, account.blob_endpoint, account_key=key)
    with connect(wrong, environ={}) as rest, pytest.raises(AccessDeniedError, match="does not accept the credential"):
        list(rest.list_blobs())


def test_a_missing_container_is_named(azurite: Azurite) -> None:
    account = StorageAccount("t", "one", "nobox", azurite.endpoint("one"), account_key=Secret(azurite.keys["one"]))
    with connect(account, environ={}) as rest:
        for call in (lambda: list(rest.list_blobs()), lambda: put(rest, "b"), lambda: rest.head("b")):
            with pytest.raises(ContainerNotFoundError, match="there is no container nobox in one"):
                call()


def test_sixty_four_threads_share_a_store(azurite: Azurite) -> None:
    with connect(new_account(azurite), environ={}) as rest, ThreadPoolExecutor(64) as pool:
        bodies = {f"t/{number}": os.urandom(number) for number in range(160)}
        list(pool.map(lambda name: put(rest, name, bodies[name]), bodies))
        assert dict(zip(bodies, pool.map(lambda name: read(rest, name), bodies), strict=True)) == bodies


@pytest.mark.parametrize("transport", ["curl", "urllib3"])
def test_a_file_is_read_while_it_is_sent(azurite: Azurite, transport: str) -> None:
    data, asked = os.urandom(3_000_001), []

    def read_at(start: int, length: int) -> bytes:
        asked.append(length)
        return data[start : start + length]

    with connect(new_account(azurite), environ={"BLOBSYNC_TRANSPORT": transport}) as rest:
        made = rest.put("a", FileBody(read_at, len(data)), md5=hashlib.md5(data).digest())
        assert (read(rest, "a"), made.md5) == (data, hashlib.md5(data).digest())
        with pytest.raises(ChecksumError):
            rest.put("a", FileBody(read_at, len(data) - 1), md5=hashlib.md5(data).digest())
    assert max(asked) < len(data)


def test_what_the_account_keeps_is_asked_for(azurite: Azurite) -> None:
    with connect(new_account(azurite), environ={}) as rest:
        put(rest, "a")
        found = rest.features()
    assert found.soft_delete_days in (None, 0) and found.versioning is False and not found.hns
