"""Converts the Blob service's error codes to blobsync's errors, each with a hint.

Codes: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and
.../common-rest-api-error-codes. Nothing here does I/O. The service's texts are not shown in full: the
detail of a failed authentication quotes signatures.
"""

from collections.abc import Mapping

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    ChecksumError,
    ContainerNotFoundError,
    CopySourceRefusedError,
    PreconditionFailedError,
    SasExpiredError,
    SourceChangedError,
    StorageError,
    ThrottledError,
)
from blobsync.base.locations import BlobContainer
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import redact
from blobsync.base.trusted_hosts import is_loopback
from blobsync.store.rest.retries import RETRYABLE_STATUS
from blobsync.store.rest.transport import parse_http_date
from blobsync.store.rest.xml import ServiceError, service_error
from blobsync.store.sas_token import ASK_ANEW

# The service refuses signatures made more than this many seconds away from its own clock:
# https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key#specifying-the-date-header
MAX_SKEW_SECONDS = 900.0


class Answer(NamedTuple):
    """An error response; ``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def error(self) -> ServiceError:
        """The service's code, from the header (the answer to a HEAD has no body) or from the body."""
        found = service_error(self.body) if self.body else ServiceError()
        code = self.headers.get("x-ms-error-code") or found.code
        return ServiceError(code, found.message, found.detail)


class _Meaning(NamedTuple):
    kind: type[StorageError]
    sentence: str
    hint: str | None = None


_RIGHTS_HINT = (
    "give the SAS the missing right, or the identity the role Storage Blob Data Contributor (reading: Reader); "
    "'blobsync doctor' shows what works"
)
_NETWORK_HINT = (
    "the account's network rules (firewall, private endpoint) may block this machine, or the SAS lacks "
    "the right: see Networking in the portal; 'blobsync doctor' shows what works"
)
_CONTAINER_HINT = (
    "check container_name, or create it: az storage container create --account-name {account} --name {container}"
)
_RELAY_HINT = "--relay streams the bytes through this machine instead"

_TYPE_MISMATCH = "ResourceTypeMismatch"
# Where the service says no more than that something has this name.
DIRECTORY_THERE = Answer(409, {"x-ms-error-code": _TYPE_MISMATCH})

# By the error, and one or two codes: the sentence, and a hint if there is one.
_OF_KINDS: dict[type[StorageError], dict[str, tuple[str, ...]]] = {
    AccessDeniedError: {
        "AuthenticationFailed": (
            "{account} does not accept the credential: a wrong key, or a SAS that is damaged or for another container",
            "check account_key or sas_token in the storage account file; 'blobsync doctor' tests it",
        ),
        "InvalidAuthenticationInfo": (
            "{account} cannot read the credential: malformed, ended, or for another tenant",
            "check sas_token or account_key, or sign in again: az login",
        ),
        "NoAuthenticationInformation": ("{account} requires a credential", "set sas_token or account_key, or az login"),
        "AuthorizationPermissionMismatch InsufficientAccountPermissions": (
            "the credential for {account} is not allowed to {what} {where}",
            _RIGHTS_HINT,
        ),
        "AuthorizationResourceTypeMismatch": (
            "the account SAS for {account} does not cover this kind of resource: to {what} {where} it needs srt=co",
            "make one with the resource types Container and Object, or a SAS of the container",
        ),
        "AuthorizationServiceMismatch": (
            "the account SAS for {account} is not for the Blob service",
            "make one with ss=b",
        ),
        "AuthorizationProtocolMismatch": ("the SAS for {account} is for https only", "use an https blob_endpoint"),
        "AuthorizationSourceIPMismatch": (
            "the SAS for {account} does not allow this machine's address",
            "make a SAS for this address range (sip), or without one",
        ),
        "AuthorizationFailure": ("{account} does not allow this machine to {what} {where}", _NETWORK_HINT),
        "PublicAccessNotPermitted": (
            "{account} has no public access, and no credential was sent",
            "set sas_token or account_key",
        ),
        "KeyBasedAuthenticationNotPermitted": (
            "{account} does not allow account keys, or SAS tokens signed with them",
            "use an identity: take account_key and sas_token out of the file and run az login",
        ),
        "AccountIsDisabled": (
            "the storage account {account} is disabled",
            "check the account and its subscription in the Azure portal",
        ),
        "LeaseIdMissing": ("{where} is leased by someone else and cannot be changed", "az storage blob lease break"),
        "BlobImmutableDueToPolicy": ("{where} is under an immutability policy and cannot be changed",),
    },
    ContainerNotFoundError: {
        "ContainerNotFound": (
            "there is no container {container} in {account}",
            _CONTAINER_HINT,
        ),
        "ContainerBeingDeleted": ("the container {container} in {account} is being deleted", "try again in a minute"),
    },
    StorageError: {
        "InvalidResourceName InvalidUri": ("{where}: the service does not allow this name",),
        "BlobOperationNotSupported": (
            "{where} was written through the Data Lake end of {account}: the service takes no blocks for it",
            "delete it there (blobsync rm PATH), then run the same command again",
        ),
        _TYPE_MISMATCH: (
            "{where} is a directory, or a file has the name of one of its folders: {account} has one or the other",
            "rename one of the two, or delete the other there: blobsync rm PATH (--blob PATH for a file)",
        ),
        "BlobArchived": ("{where} is in the archive tier and cannot be read", "az storage blob set-tier --tier Hot"),
        "BlobBeingRehydrated": ("{where} is being rehydrated from the archive tier", "try again later"),
        "SnapshotsPresent": ("{where} has snapshots that the service will not delete",),
        "InvalidBlobType": (
            "{where} is a page or append blob: blobsync writes block blobs only",
            "blobsync rm it first",
        ),
        "InvalidBlockList": (
            "{where}: some of its blocks are gone; is another program writing the same blob?",
            "run it again",
        ),
        "InvalidBlobOrBlock": (
            "{where}: some of its blocks are not as they were sent; another program writes it",
            "run it again",
        ),
        "InvalidBlockId": (
            "{where}: another program left uncommitted blocks with other names there",
            "blobsync rm it first",
        ),
        "RequestBodyTooLarge": ("{where}: too large for one request",),
        "FeatureVersionMismatch": ("{account} does not support this version of the REST API",),
    },
    BlobNotFoundError: {"BlobNotFound": ("there is no blob {where}",)},
    PreconditionFailedError: {
        "ConditionNotMet TargetConditionNotMet": ("{where} changed since it was checked", "run it again"),
        "AppendPositionConditionNotMet": ("{where} grew since it was checked", "run it again"),
        "BlobAlreadyExists": ("{where} was created in the meantime", "run it again"),
    },
    ChecksumError: {
        "Md5Mismatch Crc64Mismatch": ("{where}: the bytes that arrived are not the bytes that were sent",),
        "InvalidMd5": ("{where}: the service cannot read the Content-MD5",),
    },
    ThrottledError: {
        "ServerBusy": ("{account} is busy or over its request limit", "try again later"),
        "OperationTimedOut": ("{account} timed out", "try again later"),
        "InternalError": ("{account} reports an internal error", "try again later"),
    },
}
_MEANINGS = {
    code: _Meaning(kind, *words)
    for kind, meanings in _OF_KINDS.items()
    for codes, words in meanings.items()
    for code in codes.split()
}

_EMULATOR_HINT = (
    "check container_name, or create it: blobsync emulator start makes those of this project's account files"
)

_COPY_REFUSALS: dict[str, str] = {
    "CannotVerifyCopySource": "{account} is not allowed to read the source",
    "APINotImplemented": "{account} does not copy from a URL (an emulator?)",
    "NotImplemented": "{account} does not copy from a URL (an emulator?)",
    "UnsupportedHeader": "{account} does not copy from a URL",
    "UnsupportedQueryParameter": "{account} does not copy from a URL",
    "InvalidSourceBlobUrl": "{account} rejected this source",
    "InvalidSourceBlobType": "{account} does not copy this type of blob",
    "CopyAcrossAccountsNotSupported": "{account} does not copy from another account",
    "CopySourceAccountBlocked": "{account} does not copy from that account",
    "AuthorizationFailure": "{account} does not allow this machine to copy, or is not allowed to read the source",
    "InvalidAuthenticationInfo": "{account} is not allowed to read the source, which is in another tenant",
}

_BY_STATUS: dict[int, str] = {
    401: "InvalidAuthenticationInfo",
    403: "AuthorizationFailure",
    404: "BlobNotFound",
    412: "ConditionNotMet",
    304: "ConditionNotMet",
}


def translate(
    answer: Answer,
    what: str,
    container: BlobContainer,
    name: str = "",
    *,
    now: float,
    copying: bool = False,
    sas_ended: bool = False,
) -> StorageError | SasExpiredError:
    """The error for an answer.

    ``what`` is the verb for sentences (``read``, ``write``, ``list``, ``delete``), ``name`` the blob, empty
    for the container itself; ``now`` is this machine's clock in seconds since 1970; ``copying`` says
    that the service had to read another blob, ``sas_ended`` that our SAS has expired.
    """
    error = answer.error
    if answer.status == 403 and (sas_ended or _sas_time_refused(error)) and not _clock_sentence(answer, now):
        return SasExpiredError(
            f"the SAS for {container.account} is not valid now: expired, or not yet valid",
            hint=ASK_ANEW,
        )
    held = f"{container.account}/{container.name}"
    where = f"{_shown(name)} in {held}" if name else held
    words = {"what": what, "where": where, "account": container.account, "container": container.name}
    meaning = _copy_meaning(answer) if copying else None
    meaning = (
        meaning or _clock_meaning(answer, now) or _MEANINGS.get(_code(answer, name, container)) or _unknown(answer)
    )
    if meaning.kind is ContainerNotFoundError and meaning.hint and is_loopback(container.endpoint):
        meaning = meaning._replace(hint=_EMULATOR_HINT)
    return meaning.kind(
        redact(meaning.sentence.format(**words)),
        status=answer.status,
        service_code=error.code,
        request_id=answer.headers.get("x-ms-request-id", ""),
        hint=meaning.hint.format(**words) if meaning.hint else None,
        path=name or None,
    )


def _code(answer: Answer, name: str, container: BlobContainer) -> str:
    """The service's code, or the one that the status implies if there is none."""
    error = answer.error
    if answer.status == 400 and "contentmd5" in error.message.lower():
        # Azurite has no error code for it.
        return "Md5Mismatch"
    if "failed to authenticate" in error.message.lower():
        # Azurite calls a wrong signature AuthorizationFailure, which in Azure means the network rules.
        return "AuthenticationFailed"
    if error.code == "AuthorizationFailure" and not answer.body and is_loopback(container.endpoint):
        # The same for HEAD.
        return "AuthenticationFailed"
    code = error.code or _BY_STATUS.get(answer.status, "")
    if code in ("BlobNotFound", "ResourceNotFound"):
        return "BlobNotFound" if name else "ContainerNotFound"
    return code


def _copy_meaning(answer: Answer) -> _Meaning | None:
    code = answer.error.code
    if code == "SourceConditionNotMet":
        return _Meaning(SourceChangedError, "{where}: its source changed while it was being copied", "run it again")
    if code in _COPY_REFUSALS:
        return _Meaning(CopySourceRefusedError, _COPY_REFUSALS[code], _RELAY_HINT)
    if answer.status in (400, 500, 501) and not code:
        return _Meaning(CopySourceRefusedError, _COPY_REFUSALS["NotImplemented"], _RELAY_HINT)
    return None


def _clock_meaning(answer: Answer, now: float) -> _Meaning | None:
    if answer.status not in (401, 403) or answer.error.code not in ("AuthenticationFailed", "AuthorizationFailure", ""):
        return None
    sentence = _clock_sentence(answer, now)
    return _Meaning(AccessDeniedError, sentence, "set the clock: timedatectl set-ntp true") if sentence else None


def _unknown(answer: Answer) -> _Meaning:
    kind = ThrottledError if answer.status in RETRYABLE_STATUS else StorageError
    said = ": ".join(part for part in (answer.error.code, answer.error.message) if part)
    said = said.replace("{", "{{").replace("}", "}}")
    return _Meaning(kind, f"cannot {{what}} {{where}}: the service answered {answer.status} {said}".rstrip())


def skew_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """How many seconds this machine's clock is ahead of the service's, by the response's Date; None without one."""
    theirs = parse_http_date(headers.get("date", ""))
    return now - theirs if theirs else None


def describe_skew(seconds: float) -> str:
    """``1 h 5 min ahead of`` or ``20 min behind``."""
    minutes = round(abs(seconds) / 60)
    amount = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{amount} ahead of" if seconds > 0 else f"{amount} behind"


def _clock_sentence(answer: Answer, now: float) -> str | None:
    skew = skew_seconds(answer.headers, now)
    if skew is None or abs(skew) < MAX_SKEW_SECONDS:
        return None
    return f"this machine's clock is {describe_skew(skew)} the service's, so the service rejects our signatures"


def _sas_time_refused(error: ServiceError) -> bool:
    # The detail says "Signature not valid in the specified time frame", with the times.
    text = f"{error.message} {error.detail}".lower()
    return error.code == "AuthenticationFailed" and "time frame" in text


def _shown(name: str) -> str:
    # Blob names may contain line breaks and terminal escapes.
    return name if name.isprintable() else name.encode("unicode_escape").decode()
