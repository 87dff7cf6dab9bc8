"""After which failures it is useless to go on with other files."""

from __future__ import annotations

import re

from blobsync.base.failure_codes import FailureCode

# Retrying does not help after these; after the second kind only in a row.
_AT_ONCE = frozenset(
    {
        FailureCode.CREDENTIAL_INVALID,
        FailureCode.SAS_EXPIRED,
        FailureCode.SAS_PERMISSION,
        FailureCode.LOGIN_REQUIRED,
        FailureCode.CONTAINER_NOT_FOUND,
        # What else is fetched would have no room either.
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
_TRIES = re.compile(r" \([\d,]+ tries[^)]*\)$")
_NOT_TRIED = "not tried, since others failed: "


def not_tried(message: str) -> str:
    """What is said of the files that are not begun because others failed so: no try of theirs is made up."""
    return _NOT_TRIED + _TRIES.sub("", message)


def was_tried(message: str) -> bool:
    """Whether this is said of a file that failed itself."""
    return not message.startswith(_NOT_TRIED)


class GivingUp:
    """Hears of each file in turn. Not for several threads at a time."""

    def __init__(self) -> None:
        self._row = 0

    def moved(self) -> None:
        """A file moved: whatever failed before was its own."""
        self._row = 0

    def failed(self, code: FailureCode) -> bool:
        """A file failed; whether all others would."""
        self._row = self._row + 1 if code in _IN_A_ROW else 0
        return code in _AT_ONCE or self._row >= _ROW
