"""Requests through azure-storage-blob: sent by our own connections, with our own errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from blobsync.base.errors import AccessDeniedError, BlobsyncError, StorageError, ThrottledError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, Secret
from blobsync.store.rest.http import API_VERSION, BlobHttp
from blobsync.store.rest.request_signing import SasSigner, SharedKeySigner, Signer
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Timeouts
from blobsync.store.sdk import SdkContainer
from tests.fakes.scripted_http import Script, Step, scripted

SIGNATURE = "c2VudGluZWwgb2YgdGhlIHRlc3Rz"
SAS = SasToken.parse(f"sv=2023-11-03&sp=rwdl&sr=c&se=2099-01-01T00:00:00Z&sig={SIGNATURE}%3D")
KEY = Secret("c2VjcmV0IGtleSBvZiB0aGUgdGVzdHM=")
QUICK = RetryPolicy(tries=3, base=0.001, longest=0.002, longest_asked=0.1)
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
MANY = [f"d/{number} #%é" for number in range(4 * 256)]


def connected(url: str, signer: Signer | None = None) -> BlobHttp:
    container = BlobContainer("acct", "box", url)
    return BlobHttp(container, signer or SasSigner(SAS), environ={}, retry=QUICK, timeouts=Timeouts(60.0, 60.0))


def sdk(script: Script, signer: Signer | None = None) -> SdkContainer:
    return SdkContainer(BlobContainer("acct", "box", script.url), connected(script.url, signer))


def store(script: Script) -> RestBlobStore:
    return RestBlobStore(BlobContainer("acct", "box", script.url), connected(script.url))


def error(status: int, code: str, message: str = "") -> Step:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Step(status, body, {"x-ms-error-code": code, "Content-Type": "application/xml"})


def xml(body: str) -> Step:
    return Step(200, f"<?xml version='1.0'?>{body}".encode(), {"Content-Type": "application/xml"})


def delegation(**changed: str) -> Step:
    fields = {
        "SignedOid": "o",
        "SignedTid": "t",
        "SignedStart": "2026-11-20T12:00:00Z",
        "SignedExpiry": "2026-11-21T12:00:00Z",
        "SignedService": "b",
        "SignedVersion": API_VERSION,
        "Value": "eA==",
        **changed,
    }
    inner = "".join(f"<{name}>{text}</{name}>" for name, text in fields.items() if text)
    return xml(f"<UserDelegationKey>{inner}</UserDelegationKey>")


def answers(*statuses: int) -> Step:
    parts = "".join(
        f"--r_1\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status} Word\r\n\r\n\r\n"
        for number, status in enumerate(statuses)
    )
    return Step(202, f"{parts}--r_1--\r\n".encode(), {"Content-Type": "multipart/mixed; boundary=r_1"})


ALL_GONE = answers(*[202] * 256)


def test_a_delegation_key_is_read_from_the_response() -> None:
    with scripted([delegation()]) as script:
        key = sdk(script).user_delegation_key(NOW, NOW + timedelta(days=1))
    assert (key.object_id, key.tenant_id, key.service, key.version) == ("o", "t", "b", API_VERSION)
    assert (key.starts, key.expires) == ("2026-11-20T12:00:00Z", "2026-11-21T12:00:00Z")
    assert key.value.reveal() == "eA=="
    asked = script.seen[0]
    assert asked.method == "POST" and "comp=userdelegationkey" in asked.target
    assert b"<Start>2026-11-20T12:00:00Z</Start>" in asked.body and asked.headers["x-ms-version"] == API_VERSION
    assert asked.headers["user-agent"] == "blobsync"


@pytest.mark.parametrize(
    "step",
    [
        xml("<UserDelegationKey/>"),
        delegation(SignedOid=""),
        delegation(SignedExpiry=""),
        delegation(SignedStart="soon"),
        delegation(Value=""),
        delegation(Value="no base64!"),
        xml("<html>proxy</html>"),
        xml("<broken"),
        Step(200, b"{}", {"Content-Type": "application/json"}),
        Step(200, b"\xff\xfe", {"Content-Type": "text/plain"}),
        Step(200, b""),
    ],
)
def test_an_invalid_delegation_key_is_refused(step: Step) -> None:
    with scripted([step]) as script, pytest.raises(StorageError, match="cannot parse the user delegation key of"):
        sdk(script).user_delegation_key(NOW, NOW)


def test_creating_an_existing_container_returns_false() -> None:
    with scripted([Step(201), error(409, "ContainerAlreadyExists"), error(409, "ContainerBeingDeleted")]) as script:
        assert sdk(script).create()
        assert not sdk(script).create()
        with pytest.raises(StorageError, match="is being deleted"):
            sdk(script).create()
    assert script.seen[0].method == "PUT" and "restype=container" in script.seen[0].target


def test_a_batch_contains_name_version_and_credential_of_each_blob() -> None:
    with scripted([answers(202, 404)]) as script:
        assert sdk(script).delete_batch([("a é#%/b", None), ("..", "0x8D")])
    body = script.seen[0].body.decode()
    assert re.findall(r"DELETE (\S+)\?", body) == ["/acct/box/a%20%C3%A9%23%25/b", "/acct/box/.."]
    assert body.count("x-ms-delete-snapshots: include") == 2 and body.count(f"sig={SIGNATURE}") == 2
    assert re.findall("If-Match: (.*)\r\n", body) == ['"0x8D"']


@pytest.mark.parametrize(
    ("step", "gone"),
    [
        (answers(202, 202), True),
        (answers(202, 412), False),
        (answers(403, 202), False),
        (answers(202), False),
        (answers(202, 202, 202), False),
        (Step(202, b"", {"Content-Type": "text/html"}), False),
        (Step(202, b"--r_1\r\n\r\n", {"Content-Type": "multipart/mixed; boundary=r_1"}), False),
        (Step(202, b"\xff", {"Content-Type": "multipart/mixed"}), False),
        (Step(202), False),
        (error(501, "NotImplemented"), False),
        (error(403, "AuthorizationFailure"), False),
    ],
)
def test_a_batch_succeeds_when_every_blob_is_deleted(step: Step, gone: bool) -> None:
    with scripted([step]) as script:
        assert sdk(script).delete_batch([("a", None), ("b", None)]) is gone


def test_no_batch_is_sent_to_a_remote_path_style_endpoint() -> None:
    with scripted([]) as script:
        url = script.url.replace("127.0.0.1", "127.1")
        assert SdkContainer(BlobContainer("acct", "box", url), connected(url)).delete_batch([("a", None)]) is False
    assert script.seen == []


def test_few_blobs_are_deleted_one_by_one_and_many_in_batches() -> None:
    few = MANY[-999:]
    with scripted([Step(202)] * len(few)) as script:
        assert store(script).delete_many(few) == {}
    assert {seen.method for seen in script.seen} == {"DELETE"}
    with scripted([ALL_GONE] * 4) as script:
        assert store(script).delete_many(MANY) == {}
    assert [seen.method for seen in script.seen] == ["POST"] * 4


def test_after_a_partly_failed_batch_each_blob_is_deleted_alone() -> None:
    locked = error(412, "LeaseIdMissing")
    partly = answers(412, *[202] * 255)
    with scripted([*[ALL_GONE] * 3, partly, *[error(404, "BlobNotFound")] * 255, locked]) as script:
        failures = store(script).delete_many(MANY)
    assert len(failures) == 1 and "is leased by someone else" in next(iter(failures.values()))
    assert len(script.seen) == 4 + 256


def test_a_server_without_batches_deletes_one_by_one() -> None:
    with scripted([*[error(501, "NotImplemented")] * 4, *[Step(202)] * len(MANY)]) as script:
        assert store(script).delete_many(MANY) == {}
    assert sorted(seen.method for seen in script.seen) == ["DELETE"] * len(MANY) + ["POST"] * 4


@pytest.mark.parametrize("signer", [SasSigner(SAS), SharedKeySigner("acct", KEY)], ids=["sas", "key"])
def test_requests_are_retried_like_all_others(signer: Signer) -> None:
    with scripted([error(503, "ServerBusy"), Step(reset=True), delegation()]) as script:
        assert sdk(script, signer).user_delegation_key(NOW, NOW).object_id == "o"
    assert len(script.seen) == 3
    with scripted([error(503, "ServerBusy")] * 9) as script, pytest.raises(ThrottledError, match="acct is busy"):
        sdk(script, signer).user_delegation_key(NOW, NOW)
    assert len(script.seen) == QUICK.tries


def test_a_redirect_is_not_followed() -> None:
    with scripted([delegation()]) as elsewhere, scripted([]) as script:
        script.steps.append(Step(307, headers={"Location": f"{elsewhere.url}/?comp=userdelegationkey"}))
        with pytest.raises(StorageError, match="the service answered 307"):
            sdk(script).user_delegation_key(NOW, NOW)
    assert elsewhere.seen == [] and len(script.seen) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.user_delegation_key(NOW, NOW),
        lambda client: client.create(),
    ],
)
@pytest.mark.parametrize(
    "step", [error(403, "AuthenticationFailed", f"Signature sig={SIGNATURE}%3D did not match"), Step(400, b"<")]
)
def test_no_message_log_or_cause_shows_a_secret(
    call: Callable[[SdkContainer], object], step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # Its own level may be that of a command that ran in this process before.
    caplog.set_level(logging.DEBUG, logger="blobsync")
    for signer in (SasSigner(SAS), SharedKeySigner("acct", KEY)):
        with scripted([step]) as script, pytest.raises(BlobsyncError) as caught:
            call(sdk(script, signer))
        said = "".join((str(caught.value), repr(caught.value), str(caught.value.hint), repr(caught.value.__cause__)))
        assert SIGNATURE not in said and KEY.reveal() not in said
        assert caught.value.__suppress_context__
    assert not [record for record in caplog.records if record.name.startswith("azure")]
    said = "".join(record.getMessage() for record in caplog.records)
    assert "POST /acct" in said or "PUT /acct" in said
    assert SIGNATURE not in said and KEY.reveal() not in said


def test_a_refusal_of_the_service_is_our_error() -> None:
    with scripted([error(403, "AuthorizationPermissionMismatch")]) as script:
        with pytest.raises(AccessDeniedError, match="the credential for acct is not allowed to sign for acct/box"):
            sdk(script).user_delegation_key(NOW, NOW)
