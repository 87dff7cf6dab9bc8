"""Stops a run whose files all fail for the same reason: no further file is begun then."""

from __future__ import annotations

from blobsync.base.errors import BlobsyncError, FailureCode
from blobsync.base.lazy_regexes import pattern

# Trying other files does not help after these errors; after the second group only if they come in a row.
_AT_ONCE = frozenset(
    {
        FailureCode.CREDENTIAL_INVALID,
        FailureCode.SAS_EXPIRED,
        FailureCode.SAS_PERMISSION,
        FailureCode.LOGIN_REQUIRED,
        FailureCode.CONTAINER_NOT_FOUND,
        # There would be no room for other files either.
        FailureCode.DISK_FULL,
    }
)
_IN_A_ROW = frozenset(
    {
        FailureCode.ACCESS_DENIED,
        FailureCode.COPY_SOURCE_REFUSED,
        FailureCode.STORAGE_UNREACHABLE,
        FailureCode.SERVICE_BUSY,
    }
)
_ROW = 16
_TRIES = pattern(r" \([\d,]+ tries[^)]*\)$")
_NOT_TRIED = "not tried, since others failed: "


def not_tried(message: str) -> str:
    """The message for files that are not tried because others failed with ``message``."""
    return _NOT_TRIED + _TRIES.sub("", message)


def was_tried(message: str) -> bool:
    """Whether this is the message of a file that was tried."""
    return not message.startswith(_NOT_TRIED)


class CircuitBreaker:
    """Call once per file. Not thread-safe."""

    def __init__(self) -> None:
        self._row = 0

    def moved(self) -> None:
        """A file moved: earlier failures were those of single files."""
        self._row = 0

    def failed(self, code: FailureCode) -> bool:
        """Count a failure; returns whether all other files would fail, too."""
        self._row = self._row + 1 if code in _IN_A_ROW else 0
        return code in _AT_ONCE or self._row >= _ROW


class NotTriedError(BlobsyncError):
    """Failure of the files that are not begun, because of ``cause``; never raised, only reported."""

    def __init__(self, cause: BlobsyncError) -> None:
        super().__init__(not_tried(cause.message), hint=cause.hint)
        self.code = cause.code
