"""A block is checked by its CRC64 where the service proves that it checks it, else by its MD5; never by nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    BlobsyncError,
    ChecksumError,
    ContainerNotFoundError,
    StorageUnreachableError,
)
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken
from blobsync.store.checksums import BlockChecks, Crc64, installed_crc64
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Timeouts
from tests.fakes.crc64 import crc64
from tests.fakes.scripted_http import Script, Seen, Step, scripted

SAS = SasToken.parse("sv=2023-11-03&sp=rwl&sr=c&se=2099-01-01T00:00:00Z&sig=SENTINEL%3D")
QUICK = RetryPolicy(tries=3, base=0.001, longest=0.002)

# What the service answered, from the recordings of Azure's SDK for JavaScript (github.com/Azure/azure-sdk-for-js, below
# sdk/storage/storage-blob/recordings/node): the header of Put Block in blockblobclient/recording_stageblock.js, what
# the service computed of a refused block in blockblobclient/recording_stageblock_with_invalid_crc64_should_fail.json,
# of refused pages in pageblobclient/recording_uploadpages_with_invalid_crc64_should_fail.js, and the header of Put Blob
# in syncuploadfromurl/recording_syncuploadfromurl__destination_bearer_token.js.
RECORDED = {
    b"HelloWorld": "8R2aIe9T07E=",
    b"Hello World!": "peH8Xsgc5QI=",
    b"b" * 1024: "pK+ypU+jreM=",
    b"Hello World": "YeJLfssylmU=",
}


def told(body: bytes, by: Crc64 = crc64) -> str:
    """The value of the header."""
    value = BlockChecks(by).crc64(body, "")
    assert value is not None
    return value


def md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()


Opened = Callable[..., RestBlobStore]


@pytest.fixture(params=["curl", "urllib3"])
def open_store(request: pytest.FixtureRequest) -> Opened:
    """A store for a script, with the tests' own CRC64."""

    def opened(script: Script, found: Crc64 | None = crc64) -> RestBlobStore:
        container = BlobContainer("acct", "box", script.url)
        environ = {"BLOBSYNC_TRANSPORT": request.param}
        http = BlobHttp(container, SasSigner(SAS), environ=environ, retry=QUICK, timeouts=Timeouts(20.0, 20.0))
        return RestBlobStore(container, http, lambda: found)

    return opened


def checked(body: bytes) -> Step:
    """The answer of a service that has checked a block's CRC64."""
    return Step(201, headers={"x-ms-content-crc64": told(body)})


def refused(status: int, code: str) -> Step:
    return Step(status, headers={"x-ms-error-code": code})


def sent(script: Script) -> list[tuple[bytes, str]]:
    """The body of each request, and by what it was to be checked; each one by one thing alone, and that is right."""
    return [(seen.body, _check(seen)) for seen in script.seen]


def _check(seen: Seen) -> str:
    crc, whole = seen.headers.get("x-ms-content-crc64"), seen.headers.get("content-md5")
    assert (crc is None) != (whole is None)
    assert (crc or told(seen.body), whole or md5(seen.body)) == (told(seen.body), md5(seen.body))
    return "CRC64" if crc else "MD5"


UNCHECKED = Step(201)


@pytest.mark.parametrize("body", RECORDED, ids=lambda body: body[:12].decode())
def test_the_header_is_the_one_that_the_service_computed(body: bytes) -> None:
    assert told(body) == RECORDED[body]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4096 + 3])
def test_the_package_computes_what_the_definition_says(size: int) -> None:
    pytest.importorskip("anycrc")
    found = installed_crc64()
    assert found is not None
    body = bytes(number * 7 % 251 for number in range(size))
    assert told(body, found) == told(body)
    assert {body: told(body, found) for body in RECORDED} == RECORDED


def test_a_service_that_answers_with_the_crc64_gets_it_with_every_block(open_store: Opened) -> None:
    bodies = [b"one", b"two", b""]
    with scripted([checked(body) for body in bodies]) as script:
        store = open_store(script)
        for body in bodies:
            store.put_block("a", "AAAA", body)
    assert sent(script) == [(body, "CRC64") for body in bodies]


@pytest.mark.parametrize(
    "answer",
    [
        UNCHECKED,
        Step(201, headers={"x-ms-content-crc64": told(b"other")}),
        Step(201, headers={"x-ms-content-crc64": ""}),
        refused(500, "FeatureNotSupported"),
        refused(400, "UnsupportedHeader"),
        refused(400, "Crc64Mismatch"),
        refused(501, "NotImplemented"),
    ],
    ids=["no word", "another", "empty", "Azurite", "unknown header", "read in another way", "not implemented"],
)
def test_without_a_matching_answer_the_block_is_sent_again_with_an_md5_as_are_all_others(
    open_store: Opened, answer: Step
) -> None:
    with scripted([answer, UNCHECKED, UNCHECKED]) as script:
        store = open_store(script)
        store.put_block("a", "AAAA", b"one")
        store.put_block("b", "BBBB", b"two")
    assert sent(script) == [(b"one", "CRC64"), (b"one", "MD5"), (b"two", "MD5")]
    assert script.seen[0].target == script.seen[1].target


def test_what_damaged_an_unchecked_block_is_found_by_the_md5(open_store: Opened) -> None:
    with scripted([UNCHECKED, refused(400, "Md5Mismatch")]) as script, pytest.raises(ChecksumError):
        open_store(script).put_block("a", "AAAA", b"one")


def test_a_service_that_stops_answering_with_the_crc64_gets_md5_from_then_on(open_store: Opened) -> None:
    with scripted([checked(b"one"), UNCHECKED, UNCHECKED, UNCHECKED]) as script:
        store = open_store(script)
        for body in (b"one", b"two", b"three"):
            store.put_block("a", "AAAA", body)
    assert sent(script) == [(b"one", "CRC64"), (b"two", "CRC64"), (b"two", "MD5"), (b"three", "MD5")]


def test_a_damaged_block_is_a_checksum_error_and_the_next_has_a_crc64(open_store: Opened) -> None:
    with scripted([checked(b"one"), refused(400, "Crc64Mismatch"), checked(b"two")]) as script:
        store = open_store(script)
        store.put_block("a", "AAAA", b"one")
        with pytest.raises(
            ChecksumError, match="a in acct/box: the bytes that arrived are not the bytes that were sent"
        ):
            store.put_block("a", "BBBB", b"two")
        store.put_block("a", "BBBB", b"two")
    assert [how for _, how in sent(script)] == ["CRC64"] * 3


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([refused(403, "AuthorizationPermissionMismatch")], AccessDeniedError),
        ([refused(404, "ContainerNotFound")], ContainerNotFoundError),
        ([Step(reset=True)] * 6, StorageUnreachableError),
    ],
    ids=["no right", "no container", "no answer"],
)
def test_a_failure_that_says_nothing_about_the_crc64_decides_nothing(
    open_store: Opened, steps: list[Step], kind: type[BlobsyncError]
) -> None:
    with scripted(steps) as script:
        store = open_store(script)
        with pytest.raises(kind):
            store.put_block("a", "AAAA", b"one")
        script.steps[:] = [checked(b"one"), checked(b"two")]
        store.put_block("a", "AAAA", b"one")
        store.put_block("a", "BBBB", b"two")
    assert {how for _, how in sent(script)} == {"CRC64"}


def test_a_retried_block_keeps_its_crc64(open_store: Opened) -> None:
    with scripted([refused(503, "ServerBusy"), refused(500, "InternalError"), checked(b"one")]) as script:
        open_store(script).put_block("a", "AAAA", b"one")
    assert sent(script) == [(b"one", "CRC64")] * 3


def test_azurite_is_known_by_its_first_answer_and_gets_md5_alone(open_store: Opened) -> None:
    azurite = Step(404, headers={"Server": "Azurite-Blob/3.35.0", "x-ms-error-code": "BlobNotFound"})
    with scripted([azurite, UNCHECKED]) as script:
        store = open_store(script)
        assert store.head("a") is None
        store.put_block("a", "AAAA", b"one")
    assert _check(script.seen[1]) == "MD5"


def test_without_the_package_blocks_have_an_md5(open_store: Opened) -> None:
    with scripted([UNCHECKED]) as script:
        open_store(script, None).put_block("a", "AAAA", b"one")
    assert sent(script) == [(b"one", "MD5")]


def test_of_blocks_under_way_each_is_judged_by_its_own_answer() -> None:
    checks = BlockChecks(crc64)
    first = told(b"one")
    assert checks.crc64(b"one", "") == first and checks.verified(first, 201, first)
    two, three, four = (checks.crc64(body, "") or "" for body in (b"two", b"three", b"four"))
    assert checks.verified(two, 201, None) is False
    assert checks.verified(three, 201, three) is True
    assert checks.verified(four, 201, three) is False
    assert checks.crc64(b"five", "") is None
