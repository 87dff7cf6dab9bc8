"""Why azcopy failed, found in its messages and its private log; pure.

azcopy's messages name a failed file and at most an HTTP status. The service's own error code is in the log
only, tied to the file by the request's id, and in one Info message when a refusal makes azcopy give up the
whole job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime, timezone
from urllib.parse import unquote, urlsplit

from blobsync.base.errors import BlobsyncError, FailureCode
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken, redact
from blobsync.plan.transfer_plan import Route

_FAILED = re.compile(r"(?:UPLOAD|DOWNLOAD|COPY)FAILED: (?P<source>.*?) : (?P<status>[0-9]{1,4}) : (?P<text>.*)$")
# Only the verbose log has these two (azcopy 10.32, ste/mgr-JobPartTransferMgr.go).
_BEGAN = re.compile(r'\] Starting transfer: Source "(?P<source>.*)" Destination "(?P<target>.*)"')
_ENDED = re.compile(r"\] (?:UPLOAD|COPY)SUCCESSFUL: ")
_TARGET = re.compile(r"^\s+Dst: (?P<target>.*)$")
_REQUEST_ID = re.compile(r"X-Ms-Request-Id: \[?(?P<id>[0-9a-fA-F-]+)\]?")
_SERVICE_CODE = re.compile(r"<Code>(?P<code>\w+)</Code>|ERROR CODE: (?P<plain>\w+)")
_STATUS = re.compile(r"RESPONSE (?P<status>\d{3})")

_EXPIRED = ("AuthenticationFailed", "ExpiredAuthenticationToken", "InvalidAuthenticationInfo")
_BUSY = {408, 429, 500, 502, 503, 504}
# Codes of a copy from URL if the service cannot read the source.
_REFUSED = {401, 403, 404, 409, 500, 501}

_AGAIN = "run the same command again"

# strerror(3) of ENOSPC and EDQUOT.
_NO_ROOM = ("no space left", "quota exceeded")
# azcopy's words where it could not reserve the room of a file, of which it fetches nothing then (10.32). File systems
# without fallocate(2) have no room to reserve: there it notices as it writes.
_NOT_RESERVED = "file creation error"

# If there is no status or code: texts of azcopy and the system -> code, sentence, hint.
_BY_WORDS = (
    (
        ("md5mismatch", "contentmd5"),
        FailureCode.CHECKSUM_MISMATCH,
        "the service received damaged bytes and rejected them",
        _AGAIN,
    ),
    (
        _NO_ROOM,
        FailureCode.DISK_FULL,
        "the disk is full",
        "free some space, then run the same command again: finished files are kept",
    ),
    (
        ("read-only file system", "permission denied", "input/output error"),
        FailureCode.LOCAL_FILE,
        "local disk error",
        "choose another folder, then run it again",
    ),
    (
        ("modified since transfer", "source modified", "changed during", "lmt"),
        FailureCode.CHANGED_WHILE_READ,
        "the source changed while azcopy read it",
        _AGAIN,
    ),
)


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """``status`` is HTTP's (0: none), ``service_code`` the service's word (empty: none), ``text`` azcopy's."""

    status: int = 0
    service_code: str = ""
    text: str = ""


@dataclass(slots=True)
class LogReader:
    """Parses the lines of azcopy's log in order.

    Where the log is verbose, ``begun`` and ``ended`` count files, and ``latest`` is the one that began last, by its
    destination as azcopy names it. ``no_room`` is the first failure of a file that was fetched, and for
    which the disk had no space.
    """

    reasons: dict[str, ErrorDetails] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    failures: int = 0
    begun: int = 0
    ended: int = 0
    latest: str = ""
    no_room: ErrorDetails | None = None
    _pending: tuple[str, ErrorDetails] | None = None
    _request: str = ""

    def feed(self, lines: Iterable[str]) -> None:
        """Parse more lines. ``reasons`` is keyed by both ends of a file as azcopy names them."""
        for line in lines:
            self._line(line.rstrip("\n"))

    def _line(self, line: str) -> None:
        if found := _FAILED.search(line):
            self.failures += 1
            self.ended += 1
            asked = _REQUEST_ID.search(found["text"])
            code = self.codes.get(asked["id"], "") if asked else ""
            reason = ErrorDetails(int(found["status"]), code, _sentence(found["text"]))
            self._pending = found["source"], reason
            is_full = not reason.status and _says(reason.text, _NO_ROOM)
            if self.no_room is None and is_full and not _says(reason.text, (_NOT_RESERVED,)):
                self.no_room = reason
        elif self._pending is not None and (target := _TARGET.match(line)):
            source, reason = self._pending
            self.reasons[blob_or_path(source)] = self.reasons[blob_or_path(target["target"])] = reason
            self._pending = None
        elif header := _REQUEST_ID.search(line):
            self._request = header["id"]
        elif (word := _SERVICE_CODE.search(line)) and self._request:
            self.codes[self._request] = word["code"] or word["plain"]
        elif began := _BEGAN.search(line):
            self.begun += 1
            self.latest = blob_or_path(began["target"])
        elif _ENDED.search(line):
            self.ended += 1
        elif "all parts of entire Job" in line and "successfully completed" in line:
            self.finished = True


def blob_or_path(text: str) -> str:
    """A URL's path without escapes, so that both sides spell a name alike; a local path unchanged."""
    if not text.startswith(("http://", "https://")):
        return text
    try:
        return unquote(urlsplit(text).path)
    except ValueError:
        return text


def reason_in(text: str) -> ErrorDetails | None:
    """The refusal in an Info or Error message; None if it is about something else."""
    status = _STATUS.search(text)
    if status is None:
        return None
    code = _SERVICE_CODE.search(text)
    first = text[status.end() :].partition("\n")[0].lstrip(": ")
    return ErrorDetails(int(status["status"]), (code["code"] or code["plain"]) if code else "", _sentence(first))


def explain(reason: ErrorDetails, route: Route, *credentials: SasToken) -> BlobsyncError:
    """Convert the cause to one of our codes, with a sentence and what to do next."""
    if reason.service_code == "BlobOperationNotSupported" or reason.text.startswith("Blob operation is not supported"):
        said = "azcopy cannot replace a file that was written through the Data Lake end of the account"
        return BlobsyncError(said, hint=_AGAIN, code=FailureCode.AZCOPY_CANNOT_CARRY)
    said = redact(": ".join(filter(None, [reason.service_code, reason.text]))) or "azcopy gave no reason"
    code, sentence, hint = _cause(reason, said, route, is_expired=expired(*credentials))
    return BlobsyncError(f"{sentence}: {said}" if sentence else said, hint=hint, code=code)


def _cause(reason: ErrorDetails, said: str, route: Route, *, is_expired: bool) -> tuple[FailureCode, str, str]:
    """The code, a sentence before what the service or azcopy said (empty: that is enough), and what to do next."""
    status, is_copy = reason.status, route in {Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT}
    if status in {401, 403} and (is_expired or _is_expiry(reason, route)):
        return FailureCode.SAS_EXPIRED, "the SAS was rejected during the transfer", _AGAIN
    if is_copy and status in _REFUSED and not _about_destination(reason):
        hint = "--relay moves the bytes through this machine instead"
        return FailureCode.COPY_SOURCE_REFUSED, "the destination's service could not read the source", hint
    if status in {401, 403}:
        return (
            FailureCode.ACCESS_DENIED,
            "the service refused access",
            "blobsync doctor shows what the credential may do",
        )
    if status == 404 and "container" in said.lower():
        return FailureCode.CONTAINER_NOT_FOUND, "", "create the container, or correct container_name"
    if status in {409, 412}:
        return FailureCode.CHANGED_MEANWHILE, "the blob was changed by someone else", _AGAIN
    if status in _BUSY:
        return FailureCode.SERVICE_BUSY, "the service did not accept it", _AGAIN
    for words, code, sentence, hint in _BY_WORDS:
        if _says(said, words):
            return code, sentence, hint
    return FailureCode.AZCOPY_FAILED, "", "run the same command again, or with --engine direct"


def _says(text: str, words: Sequence[str]) -> bool:
    return any(word in text.lower() for word in words)


def _sentence(text: str) -> str:
    """The service's message, without azcopy's status before it and azcopy's words after it."""
    said, when, doing = text.partition(". X-Ms-Request-Id")[0].partition(" When ")
    said = re.sub(r"^\d{3} ", "", said).rstrip(". ")
    return f"{said} ({doing[:1].lower()}{doing[1:].strip(' .')})" if when and "tier" in doing else said


def expired(*credentials: SasToken) -> bool:
    """Whether one of these has expired."""
    now = datetime.now(timezone.utc)
    return any(sas.expires_at is not None and sas.expires_at <= now for sas in credentials)


def _is_expiry(reason: ErrorDetails, route: Route) -> bool:
    # In a copy the same words may be about the source, which the service tells as CannotVerifyCopySource.
    return route in {Route.UPLOAD, Route.DOWNLOAD} and reason.service_code in _EXPIRED


def _about_destination(reason: ErrorDetails) -> bool:
    return (
        reason.service_code in {"AuthorizationPermissionMismatch", "AuthenticationFailed", "ContainerNotFound"}
        or "container does not exist" in reason.text
        or "tier availability" in reason.text
    )
