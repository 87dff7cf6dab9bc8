"""What came out of trying one thing beforehand, as ``doctor`` shows it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from blobsync.base.errors import BlobsyncError
from blobsync.base.failure_codes import FailureCode

_ITSELF = "; `blobsync doctor` "


class CheckStatus(str, enum.Enum):
    """``ok`` (tried, and it works), ``warn`` (something will not work that may never be needed), ``fail``, or
    ``untried`` (unknown)."""

    OK = "ok"
    UNTRIED = "untried"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came out of one check. ``about`` is the file that it is about, or ``azcopy``; ``hint`` what to do; ``code``
    that of the error, where there was one."""

    about: str
    name: str
    status: CheckStatus
    detail: str
    hint: str | None = None
    code: FailureCode | None = None


def failed_check(about: str, name: str, error: BlobsyncError, status: CheckStatus = CheckStatus.FAIL) -> CheckResult:
    """What was tried ended with this error. A hint to run doctor is left out, which is what runs."""
    hint = error.hint.partition(_ITSELF)[0] if error.hint else None
    return CheckResult(about, name, status, error.message, hint, error.code)
