"""Causes of failure, from recorded logs and messages."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from blobsync.azcopy.azcopy_process import parse_line
from blobsync.azcopy.failure_reasons import ErrorDetails, LogReader, blob_or_path, expired, explain, reason_in
from blobsync.base.redaction import SasToken
from blobsync.plan.transfer_plan import Route
from tests.fakes.azcopy_process import log_lines, transcript


def read(name: str) -> LogReader:
    reader = LogReader()
    reader.feed(log_lines(name))
    return reader


def sas(hours: int) -> SasToken:
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    return SasToken.parse(f"se={moment:%Y-%m-%dT%H:%M:%SZ}&sig=x")


def test_a_log_of_success() -> None:
    reader = read("upload_completed")
    assert (reader.finished, reader.failures, reader.reasons) == (True, 0, {})


def test_the_services_code_is_found_by_the_requests_id() -> None:
    reason = ErrorDetails(
        403,
        "AuthorizationPermissionMismatch",
        "This request is not authorized to perform this operation using this permission",
    )
    assert read("upload_denied").reasons == {
        "/links/b/é #1.txt": reason,
        "/one/rec/up/b/é #1.txt": reason,
    }


def test_a_log_that_comes_in_pieces() -> None:
    reader = LogReader()
    for line in log_lines("upload_denied"):
        reader.feed([line])
    assert reader.reasons == read("upload_denied").reasons


def test_a_refusal_in_the_messages() -> None:
    (refusal,) = [
        found
        for line in transcript("copy_cannot_verify")
        if (message := parse_line(line)).kind == "Info" and (found := reason_in(message.text))
    ]
    assert refusal == ErrorDetails(
        403, "CannotVerifyCopySource", "This request is not authorized to perform this operation"
    )
    assert reason_in("Scanning...") is None


@pytest.mark.parametrize(
    ("reason", "route", "code"),
    [
        (ErrorDetails(403, "CannotVerifyCopySource", "no"), Route.CROSS_ACCOUNT, "copy_source_refused"),
        (ErrorDetails(403, "AuthorizationFailure", "no"), Route.CROSS_ACCOUNT, "copy_source_refused"),
        (ErrorDetails(401, "InvalidAuthenticationInfo", "no"), Route.CROSS_ACCOUNT, "copy_source_refused"),
        (ErrorDetails(501, "APINotImplemented", "no"), Route.SAME_ACCOUNT, "copy_source_refused"),
        (ErrorDetails(500, "", "Internal Server Error"), Route.CROSS_ACCOUNT, "copy_source_refused"),
        (ErrorDetails(403, "AuthorizationPermissionMismatch", "no"), Route.CROSS_ACCOUNT, "access_denied"),
        (ErrorDetails(404, "", "The specified container does not exist"), Route.CROSS_ACCOUNT, "container_not_found"),
        (ErrorDetails(403, "AuthorizationFailure", "no"), Route.UPLOAD, "access_denied"),
        (
            ErrorDetails(403, "AuthenticationFailed", "Signature not valid in the time frame"),
            Route.UPLOAD,
            "sas_expired",
        ),
        (ErrorDetails(404, "", "The specified container does not exist"), Route.UPLOAD, "container_not_found"),
        (ErrorDetails(412, "ConditionNotMet", ""), Route.UPLOAD, "changed_meanwhile"),
        (ErrorDetails(409, "BlobOperationNotSupported", ""), Route.SAME_ACCOUNT, "azcopy_cannot_carry"),
        (ErrorDetails(409, "", "Blob operation is not supported"), Route.UPLOAD, "azcopy_cannot_carry"),
        (ErrorDetails(503, "ServerBusy", ""), Route.UPLOAD, "service_busy"),
        (ErrorDetails(500, "InternalError", ""), Route.DOWNLOAD, "service_busy"),
        (ErrorDetails(0, "", "File modified since transfer scheduled"), Route.UPLOAD, "changed_while_read"),
        (ErrorDetails(0, "", "write /p/x: no space left on device"), Route.DOWNLOAD, "disk_full"),
        (ErrorDetails(0, "", "something new"), Route.DOWNLOAD, "azcopy_failed"),
    ],
)
def test_each_cause_has_a_code_and_a_sentence(reason: ErrorDetails, route: Route, code: str) -> None:
    error = explain(reason, route)
    assert error.code == code
    assert error.message
    assert error.hint


def test_a_sas_past_its_time_explains_any_refusal() -> None:
    refusal = ErrorDetails(403, "AuthorizationFailure", "no")
    assert explain(refusal, Route.UPLOAD, sas(-1)).code == "sas_expired"
    assert explain(refusal, Route.UPLOAD, sas(1)).code == "access_denied"
    assert explain(refusal, Route.CROSS_ACCOUNT, sas(1), sas(-1)).code == "sas_expired"
    assert expired(sas(1), sas(-1))
    assert not expired(sas(1), SasToken.parse("si=policy&sig=x"))


def test_a_damaged_download_names_both_ends() -> None:
    reasons = read("download_damaged").reasons
    assert set(reasons) == {"/one/rec/dl/damaged", "/staging/f/damaged"}


def test_urls_and_paths_spell_names_alike() -> None:
    assert blob_or_path("http://127.0.0.1:1/one/d/%C3%A9%20%2541?sv=1&sig=x") == "/one/d/é %41"
    assert blob_or_path("/tmp/%41") == "/tmp/%41"


def test_signatures_are_taken_out() -> None:
    text = 'GET http://h/c?sp=r&sig=SENTINEL%3D&sv=1 "SIG=SENTINEL"'
    assert "SENTINEL" not in explain(ErrorDetails(400, "", text), Route.UPLOAD).message
