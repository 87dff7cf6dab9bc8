"""The result of one check, as ``doctor`` shows it."""

from __future__ import annotations

import enum

from blobsync.base.errors import BlobsyncError, FailureCode
from blobsync.base.records import dataclass

_ITSELF = "; 'blobsync doctor' "


class CheckStatus(str, enum.Enum):
    """``ok`` (tried, and it works), ``warn`` (something that may never be needed does not work), ``fail``, or
    ``untried`` (unknown)."""

    OK = "ok"
    UNTRIED = "untried"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. ``about`` is the file that was checked, or ``azcopy``; ``hint`` says what to do;
    ``code`` is the error's code, if there was an error."""

    about: str
    name: str
    status: CheckStatus
    detail: str
    hint: str | None = None
    code: FailureCode | None = None


def failed_check(about: str, name: str, error: BlobsyncError, status: CheckStatus = CheckStatus.FAIL) -> CheckResult:
    """The result of a check that raised ``error``. A hint to run doctor is left out: it is running."""
    hint = error.hint.partition(_ITSELF)[0] if error.hint else None
    return CheckResult(about, name, status, error.message, hint, error.code)
