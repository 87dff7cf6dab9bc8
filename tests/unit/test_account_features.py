"""What an account keeps: how the service is asked, and what is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken
from blobsync.local.index import Index
from blobsync.store.account_features import UNKNOWN, AccountFeatures
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from tests.servers.recording_server import RecordingServer

SAS = "sv=2021-12-02&sig=x"


def answer(status: int, headers: str = "", body: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def version(name: str, day: int, found: str) -> str:
    date = f"<Last-Modified>Sun, {day:02} Nov 2026 03:00:00 GMT</Last-Modified>"
    return f"<Blob><Name>{name}</Name>{found}<Properties>{date}</Properties></Blob>"


def asked(account: bytes, settings: bytes, container: bytes, versions: bytes) -> AccountFeatures:
    answers = {
        f"GET /acct/box?restype=account&comp=properties&{SAS}": account,
        f"GET /acct/?restype=service&comp=properties&{SAS}": settings,
        f"GET /acct/box?restype=container&{SAS}": container,
        "GET /acct/box": versions,
    }
    with RecordingServer(answers) as server:
        box = BlobContainer("acct", "box", f"{server.url}/acct")
        http = BlobHttp(box, SasSigner(SasToken(SAS)), environ={}, retry=RetryPolicy(tries=1))
        with RestBlobStore(box, http) as store:
            return store.features()


def listing(blobs: str) -> bytes:
    return answer(200, body=f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>")


def kept(policy: str) -> bytes:
    return answer(200, body=f"<StorageServiceProperties>{policy}</StorageServiceProperties>")


REFUSED = answer(403, "x-ms-error-code: AuthorizationPermissionMismatch\r\n")
FLAT = answer(200, "x-ms-is-hns-enabled: false\r\n")
PLAIN = answer(200, "x-ms-has-immutability-policy: false\r\nx-ms-has-legal-hold: false\r\n")
HELD = answer(200, "x-ms-has-immutability-policy: false\r\nx-ms-has-legal-hold: true\r\n")
SEVEN = "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy>"
OFF = "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
# Written before versioning was on, and after.
OLD, NEW = version("a", 1, ""), version("b", 22, "<VersionId>2026</VersionId>")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((FLAT, kept(SEVEN), PLAIN, listing(OLD + NEW)), AccountFeatures(True, 7, False, False)),
        ((FLAT, kept(OFF), HELD, listing(OLD)), AccountFeatures(False, 0, False, True)),
        # Versions that stayed after versioning was turned off.
        (
            (FLAT, kept(OFF), PLAIN, listing(NEW + version("a", 23, ""))),
            AccountFeatures(False, 0, False, False),
        ),
        # The SAS of a container, and nothing in it.
        ((FLAT, REFUSED, REFUSED, listing("")), AccountFeatures(None, None, False, None)),
        # Directories, and no versions: whatever the listing answers.
        (
            (answer(200, "x-ms-is-hns-enabled: true\r\n"), kept(SEVEN), PLAIN, answer(400)),
            AccountFeatures(False, 7, True, False),
        ),
        ((REFUSED, kept(""), REFUSED, REFUSED), UNKNOWN),
        ((answer(200), answer(200, body="<broken"), answer(200), answer(200, body="{}")), UNKNOWN),
        ((REFUSED, kept(SEVEN.replace("7", "366")), REFUSED, REFUSED), UNKNOWN),
        ((REFUSED, kept(SEVEN.replace("7", "soon")), REFUSED, REFUSED), UNKNOWN),
    ],
)
def test_what_the_service_says_is_known_and_all_else_is_not(
    answers: tuple[bytes, bytes, bytes, bytes], found: AccountFeatures
) -> None:
    assert asked(*answers) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "{}", "null"),
        '{"versioning": 1, "soft_delete_days": 7, "hns": null, "immutability": null}',
        '{"versioning": true, "soft_delete_days": "7", "hns": null, "immutability": null}',
    ],
)
def test_what_was_remembered_and_is_damaged_is_unknown(text: str) -> None:
    assert AccountFeatures.from_text(text) == UNKNOWN


def test_each_container_has_its_own(tmp_path: Path) -> None:
    index, found = Index(tmp_path / "index.sqlite"), AccountFeatures(True, 7, False, None)
    assert index.features("https://a/one") is None
    index.remember_features("https://a/one", UNKNOWN.to_text())
    index.remember_features("https://a/one", found.to_text())
    assert AccountFeatures.from_text(index.features("https://a/one") or "") == found
    assert index.features("https://a/two") is None


def test_it_is_said_in_one_line() -> None:
    found = AccountFeatures(True, 1, None, False)
    assert str(found) == "versioning: yes; soft delete: 1 day; HNS: unknown; immutability: no"
    assert "soft delete: no;" in str(AccountFeatures(soft_delete_days=0))
    assert str(AccountFeatures()) == "what it keeps is unknown"
