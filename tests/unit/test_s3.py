"""A bucket as a store: what its answers mean, and which of them are refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    SSLError,
    SSOTokenLoadError,
)

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    ContainerNotFoundError,
    CredentialError,
    PlanError,
    PreconditionFailedError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
)
from blobsync.base.locations import Bucket
from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess
from blobsync.store.protocol import BlobInfo, BlobProperties, BlobStore, Checksum
from blobsync.store.s3 import S3Store, open_bucket
from tests.fakes.scripted_http import Step, scripted

_MD5 = "0cc175b9c0f1b6a831c399e269772661"
_MD5_64 = base64.b64encode(bytes.fromhex(_MD5)).decode()
_WHEN = datetime(2026, 11, 1, tzinfo=timezone.utc)
_HEAD: Mapping[str, Any] = {"ContentLength": 1, "ETag": f'"{_MD5}"', "LastModified": _WHEN, "ContentType": "text/plain"}


class Body(io.BytesIO):
    """A body that breaks off once, after ``breaks`` bytes."""

    def __init__(self, data: bytes, breaks: int | None = None) -> None:
        super().__init__(data if breaks is None else data[:breaks])
        self.breaks = breaks is not None

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data and self.breaks:
            raise IncompleteReadError(actual_bytes=0, expected_bytes=1)
        return data


class FakeClient:
    """boto3's client: ``pages`` of the listing, answers about ``objects``; ``error`` is raised instead."""

    def __init__(self) -> None:
        self.pages: list[Mapping[str, Any]] = []
        self.objects: dict[str, Mapping[str, Any]] = {}
        self.bodies: list[Body] = []
        self.error: Exception | None = None
        self.asked: list[Mapping[str, Any]] = []

    def list_objects_v2(self, **words: Any) -> Mapping[str, Any]:
        self.asked.append(words)
        if not self.pages:
            raise self.error or AssertionError("no more pages")
        return self.pages.pop(0)

    def head_object(self, **words: Any) -> Mapping[str, Any]:
        self.asked.append(words)
        if self.error:
            raise self.error
        return self.objects[words["Key"]]

    def get_object(self, **words: Any) -> Mapping[str, Any]:
        return {**self.head_object(**words), "Body": self.bodies.pop(0)}

    def generate_presigned_url(self, name: str, Params: Mapping[str, str], ExpiresIn: int) -> str:  # noqa: N803
        self.asked.append(Params)
        version = f"&versionId={Params['VersionId']}" if "VersionId" in Params else ""
        return f"https://b.s3.example/{Params['Key']}?X-Amz-Expires={ExpiresIn}{version}&X-Amz-Signature={'e' * 64}"

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def store(client: FakeClient) -> S3Store:
    return S3Store(Bucket.at("laion"), lambda: client)


def entry(name: str, size: int = 1, **more: Any) -> dict[str, Any]:
    return {"Key": name, "Size": size, "ETag": f'"{_MD5}"', "LastModified": _WHEN, **more}


def refused(status: int, code: str = "", headers: Mapping[str, str] | None = None) -> ClientError:
    reply = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}}
    return ClientError(reply, "GetObject")


def test_pages_are_read_to_the_last(client: FakeClient, store: S3Store) -> None:
    client.pages = [
        {"IsTruncated": True, "NextContinuationToken": "t1", "Contents": [entry("p/a"), entry("p/folder/", 0)]},
        {"IsTruncated": False, "Contents": [entry("p/b", 7)]},
    ]
    found = list(store.list_blobs("p/"))
    assert [(each.name, each.size, each.is_folder_stub) for each in found] == [
        ("p/a", 1, False),
        ("p/folder/", 0, True),
        ("p/b", 7, False),
    ]
    assert all(each.md5 is None for each in found), "a listing does not tell which ETags are MD5s"
    assert found[0].etag == _MD5 and found[0].last_modified == _WHEN.timestamp() and found[0].given_tier == ""
    assert [words.get("ContinuationToken") for words in client.asked] == [None, "t1"]


@pytest.mark.parametrize(
    "page",
    [
        {"IsTruncated": True},
        {"IsTruncated": True, "NextContinuationToken": "t0"},
        {"Contents": [entry("other/x")]},
        {"Contents": [entry("p/x", -1)]},
        {"Contents": [entry("p/x", 1 << 63)]},
        {"IsTruncated": True, "NextContinuationToken": "t" * 70_000},
        {"Contents": [{"Key": "p/x"}]},
        {"Contents": [entry("p/x") | {"ETag": "a\nb"}]},
        {"Contents": [entry("p/x") | {"Size": "7"}]},
    ],
)
def test_a_listing_that_breaks_off_or_makes_no_sense_is_no_listing(
    client: FakeClient, store: S3Store, page: Mapping[str, Any]
) -> None:
    client.pages = [{"IsTruncated": True, "NextContinuationToken": "t0", "Contents": [entry("p/a")]}, page]
    with pytest.raises(StorageError):
        list(store.list_blobs("p/"))


@pytest.mark.parametrize("fresh", [True, False])
def test_a_listing_that_never_ends_ends(client: FakeClient, store: S3Store, fresh: bool) -> None:
    tokens = (str(number) if fresh else f"{number % 3}" for number in range(10_001))
    contents = {} if fresh else {"Contents": [entry("p/a")]}
    client.pages = [{"IsTruncated": True, "NextContinuationToken": token, **contents} for token in tokens]
    client.pages.append({"Contents": []})
    with pytest.raises(StorageError, match="it never ends"):
        list(store.list_blobs("p/"))
    assert len(client.asked) == (10_001 if fresh else 4)


def test_some_empty_pages_are_no_end(client: FakeClient, store: S3Store) -> None:
    client.pages = [{"IsTruncated": True, "NextContinuationToken": str(number)} for number in range(10_000)]
    client.pages.append({"Contents": [entry("p/a")]})
    assert [each.name for each in store.list_blobs("p/")] == ["p/a"]


def _asked_for_all(store: BlobStore) -> None:
    with store.open("a") as reader:
        reader.read(1)


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize("ask", [lambda store: list(store.list_blobs()), _asked_for_all])
def test_an_answer_without_end_is_not_kept_in_memory(status: int, ask: Callable[[BlobStore], object]) -> None:
    body = b"x" * ((8 << 20) + 1)
    with scripted([Step(status, body, {"ETag": '"e"'})]) as script:
        account = StorageAccount(
            "a.yaml", "", "laion", script.url, bucket=BucketAccess("eu", anonymous=True, by_hand=True)
        )
        with closing(open_bucket(account, {})) as store:
            if status == 200 and ask is _asked_for_all:
                # An object may be of any size: it is read piece by piece.
                ask(store)
            else:
                with pytest.raises(StorageError, match="larger than 8 MiB"):
                    ask(store)
    assert len(script.seen) == 1


def test_who_pays_says_so_in_each_request(client: FakeClient, store: S3Store) -> None:
    paying = S3Store(Bucket.at("laion"), lambda: client, requester_pays=True)
    for each, said in ((paying, "requester"), (store, None)):
        client.asked.clear()
        client.pages = [{"Contents": [entry("a")]}] * 2
        client.objects = {"a": {"ContentLength": 1, "ETag": f'"{_MD5}"'}}
        client.bodies = [Body(b"x")]
        list(each.list_blobs())
        list(each.list_folder())
        each.head("a")
        with each.open("a") as reader:
            reader.read(1)
        assert [words.get("RequestPayer") for words in client.asked] == [said] * 4


def test_one_level(client: FakeClient, store: S3Store) -> None:
    client.pages = [{"CommonPrefixes": [{"Prefix": "p/sub/"}], "Contents": [entry("p/a")]}]
    found = list(store.list_folder("p/"))
    assert found[0] == "p/sub/" and isinstance(found[1], BlobInfo) and client.asked[0]["Delimiter"] == "/"


def test_archived_objects_say_so_until_they_are_restored(client: FakeClient, store: S3Store) -> None:
    restored: dict[str, Any] = {"RestoreStatus": {"IsRestoreInProgress": False, "RestoreExpiryDate": _WHEN}}
    client.pages = [
        {
            "Contents": [
                entry("a", StorageClass="GLACIER"),
                entry("b", StorageClass="DEEP_ARCHIVE", **restored),
                entry("c", StorageClass="GLACIER_IR"),
            ]
        }
    ]
    assert [bool(each.archived) for each in store.list_blobs()] == [True, False, False]
    client.objects["a"] = {**_HEAD, "StorageClass": "GLACIER", "Restore": 'ongoing-request="true"'}
    client.objects["b"] = {**_HEAD, "StorageClass": "GLACIER", "Restore": 'ongoing-request="false", expiry-date="x"'}
    a, b = store.head("a"), store.head("b")
    assert a is not None and a.archived and b is not None and not b.archived


@pytest.mark.parametrize(
    ("more", "is_md5"),
    [
        ({}, True),
        ({"ServerSideEncryption": "AES256"}, True),
        ({"ServerSideEncryption": "aws:kms"}, False),
        ({"ServerSideEncryption": "aws:kms:dsse"}, False),
        ({"SSECustomerAlgorithm": "AES256"}, False),
        ({"ETag": f'"{_MD5}-2"'}, False),
        ({"ETag": f'"{_MD5.upper()}"'}, False),
    ],
)
def test_an_etag_is_an_md5_only_of_one_part_without_a_key(
    client: FakeClient, store: S3Store, more: Mapping[str, Any], is_md5: bool
) -> None:
    client.objects["a"] = {**_HEAD, **more}
    found = store.head("a")
    assert found is not None and (found.md5 == bytes.fromhex(_MD5)) is is_md5


def test_no_time_is_before_1970(client: FakeClient, store: S3Store) -> None:
    client.pages = [{"Contents": [entry("a", LastModified=datetime(1, 1, 1, tzinfo=timezone.utc))]}]
    assert [each.last_modified for each in store.list_blobs()] == [0.0]


def test_a_directory_bucket_has_no_md5s(client: FakeClient) -> None:
    client.objects["a"] = _HEAD
    found = S3Store(Bucket.at("b--euw1-az1--x-s3"), lambda: client).head("a")
    assert found is not None and found.md5 is None


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"ChecksumCRC64NVME": "ZZYyy35L4mE=", "ChecksumType": "FULL_OBJECT"}, "crc64nvme"),
        ({"ChecksumCRC64NVME": "ZZYyy35L4mE=", "ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, "crc64nvme"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, "sha256"),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode(), "ChecksumType": "COMPOSITE"}, None),
        ({"ChecksumSHA256": base64.b64encode(bytes(32)).decode() + "-3"}, None),
        ({"ChecksumCRC32": "AAAAAAA="}, None),
        ({}, None),
    ],
)
def test_the_best_checksum_of_the_whole_object(
    client: FakeClient, store: S3Store, more: Mapping[str, Any], expected: str | None
) -> None:
    client.objects["a"] = {**_HEAD, **more}
    found = store.head("a")
    assert found is not None and (found.checksum.name if found.checksum else None) == expected
    if expected == "crc64nvme":
        # Of "Hello World", in S3's order of bytes.
        assert found.checksum == Checksum("crc64nvme", (0x659632CB7E4BE261).to_bytes(8, "big"))


@pytest.mark.parametrize(
    ("headers", "md5", "crc32c"),
    [
        ({"x-goog-hash": f"crc32c=AAAAAQ==,md5={_MD5_64}"}, True, True),
        ({"x-goog-hash": f"md5={_MD5_64}, crc32c=AAAAAQ=="}, True, True),
        ({"x-goog-hash": "crc32c=AAAAAQ=="}, False, True),
        ({"x-goog-hash": "crc32c=AAAAAQ==", "x-goog-stored-content-encoding": "identity"}, False, True),
        ({"x-goog-hash": f"crc32c=AAAAAQ==,md5={_MD5_64}", "x-goog-stored-content-encoding": "gzip"}, False, False),
        ({"x-goog-hash": "crc32c=AAAAAAE=,md5=?,sha1=AAAAAQ==,,="}, False, False),
        ({}, False, False),
    ],
)
def test_google_says_more_of_an_object_than_its_etag(
    client: FakeClient, store: S3Store, headers: Mapping[str, str], md5: bool, crc32c: bool
) -> None:
    client.objects["a"] = {**_HEAD, "ETag": '"CPv_x=="', "ResponseMetadata": {"HTTPHeaders": headers}}
    found = store.head("a")
    assert found is not None and found.md5 == (bytes.fromhex(_MD5) if md5 else None)
    assert found.checksum == (Checksum("crc32c", b"\0\0\0\1") if crc32c else None)


def test_versions(client: FakeClient, store: S3Store) -> None:
    client.objects.update(a={**_HEAD, "VersionId": "v1"}, b={**_HEAD, "VersionId": "null"})
    a, b = store.head("a"), store.head("b")
    assert a is not None and a.version == "v1" and b is not None and b.version == ""
    assert "versionId=v1" in store.source_url("a", "v1", 5).reveal()
    assert "versionId" not in store.source_url("a", "", 5).reveal()
    assert store.url_length("caf\u00e9") >= store.source_url("caf%C3%A9", "", 5).length


def test_properties(client: FakeClient, store: S3Store) -> None:
    client.objects["a"] = {
        **_HEAD,
        "CacheControl": "no-cache",
        "ContentLanguage": "de\r\nx: y",
        "Metadata": {"good_1": "v", "not-azure": "v", "uni": "\u00e9"},
    }
    assert store.properties("a") == BlobProperties(
        content_type="text/plain", cache_control="no-cache", metadata={"good_1": "v"}
    )


def test_a_body_that_breaks_off_goes_on_where_it_was(client: FakeClient, store: S3Store) -> None:
    client.objects["a"] = {**_HEAD, "ContentLength": 10}
    client.bodies = [Body(b"0123456789", 4), Body(b"456789")]
    with store.open("a", etag=_MD5) as reader:
        client.objects["a"] = {**_HEAD, "ContentLength": 6, "ContentRange": "bytes 4-9/10"}
        assert b"".join(iter(lambda: reader.read(3), b"")) == b"0123456789"
        assert reader.info.size == 10
    assert client.asked[1]["Range"] == "bytes=4-9" and client.asked[1]["IfMatch"] == f'"{_MD5}"'


def test_a_body_that_ends_early_again_and_again_is_an_error(client: FakeClient, store: S3Store) -> None:
    client.objects["a"] = {**_HEAD, "ContentLength": 10, "ContentRange": "bytes 0-9/10"}
    client.bodies = [Body(b"") for _ in range(9)]
    with store.open("a") as reader, pytest.raises(StorageUnreachableError):
        reader.read(5)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"ETag": '"other"'}, PreconditionFailedError),
        ({"ContentRange": "bytes 0-3/10"}, StorageError),
        ({"ContentRange": None}, StorageError),
        ({"ContentRange": f"bytes 2-5/{'9' * 5000}"}, StorageError),
        ({"ContentRange": f"bytes 2-5/{10**15 - 1}"}, StorageError),
    ],
)
def test_other_bytes_than_those_that_were_asked_for(
    client: FakeClient, store: S3Store, more: Mapping[str, Any], kind: type[BlobsyncError]
) -> None:
    client.objects["a"] = {**_HEAD, "ContentLength": 4, "ContentRange": "bytes 2-5/10", **more}
    client.bodies = [Body(b"2345")]
    with pytest.raises(kind):
        store.open("a", start=2, length=4, etag=_MD5)


@pytest.mark.parametrize("said", [{"ContentLength": 1 << 63}, {"ContentLength": -1}, {}])
def test_a_size_that_no_object_has(client: FakeClient, store: S3Store, said: Mapping[str, Any]) -> None:
    client.objects["a"] = {"ETag": f'"{_MD5}"', **said}
    client.bodies = [Body(b"")]
    for ask in (store.head, store.open):
        with pytest.raises(StorageError, match="cannot understand"):
            ask("a")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (refused(404, "NoSuchKey"), BlobNotFoundError, "no such object"),
        (refused(404, "NoSuchBucket"), ContainerNotFoundError, "no such bucket"),
        (refused(412, "PreconditionFailed"), PreconditionFailedError, "another version"),
        (refused(403, "AccessDenied"), AccessDeniedError, "AccessDenied"),
        (refused(403, "InvalidObjectState"), AccessDeniedError, "archived"),
        (refused(400, "ExpiredToken"), AccessDeniedError, "have ended"),
        (refused(503, "SlowDown"), ThrottledError, "SlowDown"),
        (refused(500, "InternalError"), ThrottledError, "InternalError"),
        (refused(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}), StorageError, "region: eu-west-1"),
        (refused(400, "Odd"), StorageError, "Odd"),
        (NoCredentialsError(), CredentialError, "no credentials"),
        (SSOTokenLoadError(error_msg="secret"), CredentialError, "SSO has ended"),
        (EndpointConnectionError(endpoint_url="https://x?secret"), StorageUnreachableError, "cannot be reached"),
        (
            SSLError(endpoint_url="https://x?secret", error="CERTIFICATE_VERIFY_FAILED"),
            StorageUnreachableError,
            "TLS cert",
        ),
        (SSLError(endpoint_url="https://x?secret", error="EOF"), StorageUnreachableError, "cannot be reached"),
        (ParamValidationError(report="secret"), StorageError, "ParamValidationError"),
        (FlexibleChecksumError(error_msg="secret"), ChecksumError, "another checksum"),
        (OSError("secret"), StorageUnreachableError, "connection broke"),
    ],
)
def test_errors_are_ours_and_quote_nothing(
    client: FakeClient, store: S3Store, error: Exception, kind: type[BlobsyncError], said: str
) -> None:
    client.error = error
    with pytest.raises(kind, match=said) as raised:
        store.properties("a")
    assert "secret" not in str(raised.value) and "s3://laion/a" in str(raised.value)


def test_nothing_is_written(store: S3Store) -> None:
    for write in (
        lambda: store.put("a", b"", md5=b""),
        lambda: store.put_block("a", "b", b""),
        lambda: store.put_block_list("a", [], size=0, md5=b""),
        lambda: store.put_from_url("a", "u", None),
        lambda: store.put_block_from_url("a", "b", "u", None, start=0, length=1),
        lambda: store.delete("a"),
        lambda: store.delete_many(["a"]),
        lambda: store.block_list("a"),
    ):
        with pytest.raises(PlanError, match="is a source"):
            write()
    assert store.orders() is None
