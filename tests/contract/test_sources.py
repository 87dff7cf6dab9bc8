"""The half of a store that reads, on buckets that others serve: moto, and rclone before a folder."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from blobsync.base.errors import AccessDeniedError, BlobNotFoundError, ContainerNotFoundError, PreconditionFailedError
from blobsync.base.locations import Bucket
from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess
from blobsync.local.sorted_runs import Spill
from blobsync.plan.parallel_listing import Division, list_wide
from blobsync.store.protocol import BlobInfo
from blobsync.store.s3 import S3Store, open_bucket
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.servers.s3 import KEYS, S3Server, rclone_server
from tests.waiting import wait_until

# What all services and file systems take.
NAMES = (
    "plain",
    "a b",
    "a+b",
    "a%20b",
    "a#b",
    "a?b",
    "a&b=c",
    "caf\u00e9",
    "\u65e5\u672c",
    "x;y",
    "sub/a",
    "sub/deep/b",
)
BODY = bytes(range(256)) * 100


@pytest.fixture(scope="module", params=["moto", "rclone"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with ExitStack() as held:
        if request.param == "moto":
            found = request.getfixturevalue("moto")
            found.make_bucket("laion")
        else:
            folder: Path = tmp_path_factory.mktemp("served")
            (folder / "laion").mkdir()
            found = held.enter_context(rclone_server(folder))
        for name in NAMES:
            found.put("laion", f"p/{name}", BODY + name.encode())
        found.put("laion", "p2/other", b"")
        yield found


@pytest.fixture
def store(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    account = StorageAccount(
        "laion.yaml", "", "laion", server.url, bucket=BucketAccess(region="us-east-1", by_hand=True)
    )
    opened = open_bucket(account, {"HOME": "/nonexistent"})
    yield opened
    opened.close()


def test_everything_is_listed_once(store: S3Store) -> None:
    found = {blob.name: blob for blob in store.list_blobs("p/")}
    assert found.keys() == {f"p/{name}" for name in NAMES}
    assert all(found[f"p/{name}"].size == len(BODY + name.encode()) for name in NAMES)
    assert {blob.name for blob in store.list_blobs()} == {*found, "p2/other"}
    assert not list(store.list_blobs("nothing"))


def test_one_level_is_listed(store: S3Store) -> None:
    found = list(store.list_folder("p/"))
    assert [each for each in found if isinstance(each, str)] == ["p/sub/"]
    names = {each.name for each in found if isinstance(each, BlobInfo)}
    assert names == {f"p/{name}" for name in NAMES if "/" not in name}


def test_a_level_of_many_pages(server: S3Server) -> None:
    server.make_bucket("many")
    client = S3Server(server.url).client
    # A page has 100 in place of 1,000.
    asks = "provide-client-params.s3.ListObjectsV2"
    client.meta.events.register(asks, lambda params, **_: {**params, "MaxKeys": 100})
    store = S3Store(Bucket.at("many", server.url), lambda: client)
    for number in range(104):
        server.put("many", f"p/f{number:04}/x", b"")
    server.put("many", "p/top", b"")
    found = list(store.list_folder("p/"))
    assert Counter(each if isinstance(each, str) else each.name for each in found) == Counter(
        [*(f"p/f{number:04}/" for number in range(104)), "p/top"]
    )


def test_a_long_listing_is_divided_and_eight_parts_are_asked_for_at_a_time(server: S3Server) -> None:
    names = [*(f"wide/f{folder}/{number}" for folder in range(8) for number in range(3)), "wide/top"]
    server.make_bucket("wide")
    for name in names:
        server.put("wide", name, b"")
    with fault_proxy(server.url) as proxy, ThreadPoolExecutor(1) as pool:
        client: Any = S3Server(proxy.url).client
        store = S3Store(Bucket.at("wide", proxy.url), lambda: client)
        proxy.inject(Fault("hold", rate=1.0, pattern=r"prefix=wide%2Ff\d%2F"))
        listing = pool.submit(lambda: [blob.name for blob in list_wide(store, "wide/", Spill(), Division(5, shares=8))])
        assert wait_until(lambda: proxy.stats().injected.get("hold") == 8, seconds=60), "none of them waits for another"
        proxy.inject()
        proxy.release()
        assert Counter(listing.result(60)) == Counter(names)


@pytest.mark.parametrize("name", NAMES)
def test_an_object_is_looked_up_and_read(store: S3Store, name: str) -> None:
    body = BODY + name.encode()
    info = store.head(f"p/{name}")
    assert info is not None and info.size == len(body) and info.md5 in (None, hashlib.md5(body).digest())
    with store.open(f"p/{name}", etag=info.etag) as reader:
        assert b"".join(iter(lambda: reader.read(1000), b"")) == body
        assert reader.info.size == len(body)
    with store.open(f"p/{name}", start=100, length=50) as reader:
        assert reader.read(1000) == body[100:150] and reader.read(1) == b"" and reader.info.size == len(body)


def test_what_is_not_there(store: S3Store) -> None:
    assert store.head("p/none") is None and store.head("p") is None
    for ask in (lambda: store.properties("p/none"), lambda: store.open("p/none")):
        with pytest.raises(BlobNotFoundError):
            ask()


def test_another_version_is_not_read(store: S3Store) -> None:
    with pytest.raises(PreconditionFailedError):
        store.open("p/plain", etag="0" * 32)


def test_an_empty_object(store: S3Store) -> None:
    with store.open("p2/other") as reader:
        assert reader.read(10) == b"" and reader.info.size == 0


def test_a_url_opens_the_object_to_whoever_has_it(store: S3Store, server: S3Server) -> None:
    import urllib3

    for name in NAMES:
        url = store.source_url(f"p/{name}", "", 60)
        reply = urllib3.request("GET", url.reveal(), headers={"Range": "bytes=0-9"})
        # rclone answers 200, with the range.
        assert reply.status in (200, 206) and reply.data == (BODY + name.encode())[:10]
        assert url.length <= store.url_length(f"p/{name}")


def test_no_such_bucket(server: S3Server) -> None:
    with pytest.raises((ContainerNotFoundError, BlobNotFoundError)):
        list(S3Store(Bucket.at("nothing-here", server.url), lambda: S3Server(server.url).client).list_blobs())


def test_a_wrong_key_is_refused(store: S3Store, server: S3Server, request: pytest.FixtureRequest) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto checks no signature")
    client: Any = boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="wrong",
        config=Config(s3={"addressing_style": "path"}),
    )
    with pytest.raises(AccessDeniedError):
        S3Store(Bucket.at("laion", server.url), lambda: client).head("p/plain")
