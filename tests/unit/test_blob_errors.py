from __future__ import annotations

from email.utils import formatdate

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    ContainerNotFoundError,
    CopySourceRefusedError,
    PreconditionFailedError,
    SasExpiredError,
    StorageError,
    ThrottledError,
)
from blobsync.base.locations import BlobContainer
from blobsync.store.rest.error_codes import Answer, describe_skew, skew_seconds, translate

BOX = BlobContainer("acct", "box", "https://acct.blob.core.windows.net")
EMULATED = BlobContainer("acct", "box", "http://127.0.0.1:10000/acct")
NOW = 1_795_155_180.0


def answer(status: int, code: str = "", message: str = "", detail: str = "", *, ahead: float = 0.0) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message>"
    body += f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail></Error>"
    headers = {"date": formatdate(NOW - ahead, usegmt=True), "x-ms-request-id": "req-7"}
    return Answer(status, headers, body.encode() if code else b"")


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (answer(403, "AuthenticationFailed"), AccessDeniedError, "a wrong key, or a SAS that is damaged"),
        (
            answer(403, "AuthorizationFailure"),
            AccessDeniedError,
            "acct does not allow this machine to read d/a in acct/box",
        ),
        (answer(403, "AuthorizationFailure", "Server failed to authenticate"), AccessDeniedError, "a wrong key"),
        (answer(403, "AuthorizationPermissionMismatch"), AccessDeniedError, "not allowed to read d/a in acct/box"),
        (answer(403, "AuthorizationResourceTypeMismatch"), AccessDeniedError, "needs srt=co"),
        (answer(403, "KeyBasedAuthenticationNotPermitted"), AccessDeniedError, "does not allow account keys"),
        (answer(403, "AccountIsDisabled"), AccessDeniedError, "the storage account acct is disabled"),
        (answer(401, "InvalidAuthenticationInfo"), AccessDeniedError, "cannot read the credential"),
        (answer(401), AccessDeniedError, "cannot read the credential"),
        (answer(403), AccessDeniedError, "does not allow this machine to read"),
        (answer(404, "ContainerNotFound"), ContainerNotFoundError, "there is no container box in acct"),
        (answer(404, "BlobNotFound"), BlobNotFoundError, "there is no blob d/a in acct/box"),
        (answer(404), BlobNotFoundError, "there is no blob d/a in acct/box"),
        (answer(412, "ConditionNotMet"), PreconditionFailedError, "d/a in acct/box changed since it was checked"),
        (answer(304), PreconditionFailedError, "changed since it was checked"),
        (answer(409, "BlobAlreadyExists"), PreconditionFailedError, "was created in the meantime"),
        (answer(409, "BlobArchived"), StorageError, "is in the archive tier"),
        (answer(409, "BlobOperationNotSupported"), StorageError, "written through the Data Lake end of acct"),
        (answer(409, "ResourceTypeMismatch"), StorageError, "d/a in acct/box is a directory, or a file has the name"),
        (answer(400, "Md5Mismatch"), ChecksumError, "not the bytes that were sent"),
        (answer(400, "InvalidOperation", "Provided contentMD5 doesn't match."), ChecksumError, "not the bytes"),
        (answer(503, "ServerBusy"), ThrottledError, "acct is busy"),
        (answer(500, "InternalError"), ThrottledError, "internal error"),
        (answer(502), ThrottledError, "cannot read d/a in acct/box: the service answered 502"),
        (answer(400, "Odd", "{x}"), StorageError, "cannot read d/a in acct/box: the service answered 400 Odd: {x}"),
    ],
)
def test_which_error_each_code_becomes(given: Answer, kind: type[BlobsyncError], says: str) -> None:
    error = translate(given, "read", BOX, "d/a", now=NOW)
    assert type(error) is kind
    assert says in str(error)
    assert isinstance(error, StorageError) and error.request_id == "req-7" and error.path == "d/a"
    assert "`" not in (error.hint or ""), "commands are quoted as in all other hints"


def test_an_authorization_failure_of_the_emulator_means_a_wrong_key() -> None:
    refused = Answer(403, {"x-ms-error-code": "AuthorizationFailure"})
    here = BlobContainer("acct", "box", "http://127.0.0.1:1/acct")
    assert "a wrong key" in str(translate(refused, "read", here, "d/a", now=NOW))
    assert "does not allow this machine" in str(translate(refused, "read", BOX, "d/a", now=NOW))


def test_a_404_of_a_listing_means_that_the_container_is_missing() -> None:
    assert isinstance(translate(answer(404), "list", BOX, now=NOW), ContainerNotFoundError)
    assert isinstance(translate(answer(404, "ResourceNotFound"), "list", BOX, now=NOW), ContainerNotFoundError)


@pytest.mark.parametrize(
    ("box", "command"), [(BOX, "az storage container create"), (EMULATED, "blobsync emulator start")]
)
def test_a_missing_container_is_made_where_it_is(box: BlobContainer, command: str) -> None:
    error = translate(answer(404, "ContainerNotFound"), "list", box, now=NOW)
    assert f"or create it: {command}" in str(error.hint)


def test_a_sas_outside_its_validity_is_recognised_by_the_error_detail() -> None:
    detail = "Signature not valid in the specified time frame: Start [...] - Expiry [...] - Current [...]"
    error = translate(answer(403, "AuthenticationFailed", "Server failed", detail), "read", BOX, "a", now=NOW)
    assert isinstance(error, SasExpiredError)
    assert "time frame" not in str(error)


@pytest.mark.parametrize(("ahead", "says"), [(3600.0, "1 h 0 min ahead of"), (-1200.0, "20 min behind")])
def test_a_skewed_clock_is_reported_before_the_signature(ahead: float, says: str) -> None:
    error = translate(answer(403, "AuthenticationFailed", ahead=ahead), "read", BOX, "a", now=NOW)
    assert str(error) == f"this machine's clock is {says} the service's, so the service rejects our signatures"
    small = translate(answer(403, "AuthenticationFailed", ahead=600), "read", BOX, "a", now=NOW)
    assert "clock" not in str(small)


def test_the_hint_of_a_refused_copy_is_relay() -> None:
    error = translate(answer(403, "CannotVerifyCopySource"), "write", BOX, "a", now=NOW, copying=True)
    assert isinstance(error, CopySourceRefusedError) and "--relay" in str(error.hint)
    plain = translate(answer(412, "ConditionNotMet"), "write", BOX, "a", now=NOW, copying=True)
    assert isinstance(plain, PreconditionFailedError)


def test_signatures_are_not_in_messages() -> None:
    told = "https://acct/box?sp=r&amp;sig=SENTINEL%3D rest, Signature=SENTINEL"
    error = translate(answer(400, "Odd", told), "read", BOX, "a", now=NOW)
    assert "SENTINEL" not in str(error) and "sig=***" in str(error)


def test_names_with_control_characters_are_escaped() -> None:
    assert "a\\x1b[2J" in str(translate(answer(404), "read", BOX, "a\x1b[2J", now=NOW))


def test_the_clock_skew_of_a_response() -> None:
    assert skew_seconds(answer(200, ahead=90).headers, NOW) == 90
    assert skew_seconds({}, NOW) is None
    assert describe_skew(-60 * 61) == "1 h 1 min behind"
