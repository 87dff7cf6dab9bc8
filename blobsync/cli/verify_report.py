"""What ``verify`` found, over all its PATHs, as JSON data and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from blobsync.base.amounts import size_text
from blobsync.base.failure_codes import ExitCode
from blobsync.cli.reports import more_line

if TYPE_CHECKING:
    from blobsync.project.verify import VerifyReport


def verify_data(reports: Sequence[VerifyReport]) -> dict[str, Any]:
    """``data`` of ``verify``."""
    return {
        "counts": _counts(reports),
        "bytes_equal": _bytes(reports),
        "not_equal": [
            {"path": file.path, "status": file.status, "size": file.size}
            for report in reports
            for file in report.not_equal
        ],
    }


def verify_lines(reports: Sequence[VerifyReport], shown: int) -> Iterator[str]:
    """The first ``shown`` files of each class that is not ``equal``, then the counts."""
    not_equal = [file for report in reports for file in report.not_equal]
    counts = _counts(reports)
    for status in (each for each in counts if each != "equal" and shown):
        said = status.replace("_", " ")
        paths = [file.path for file in not_equal if file.status == status]
        yield from (f"{said}: {path}" for path in paths[:shown])
        if len(paths) > shown:
            yield more_line(len(paths) - shown, f" {said}")
    if not counts:
        unread = any(report.unreadable for report in reports)
        yield "nothing could be compared" if unread else "nothing to compare: no files here, none in the container"
        return
    words = ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items())
    yield f"{words}; {size_text(_bytes(reports))} equal"


def verify_code(reports: Sequence[VerifyReport]) -> ExitCode:
    """What all PATHs have in common; else ``PARTIAL``."""
    codes = {report.exit_code for report in reports}
    return codes.pop() if len(codes) == 1 else ExitCode.PARTIAL


def _counts(reports: Sequence[VerifyReport]) -> dict[str, int]:
    """How many files of each class, in the order of the classes."""
    from blobsync.project.verify import CLASSES

    found: Counter[str] = Counter()
    for report in reports:
        found.update(report.counts)
    return {status: found[status] for status in CLASSES if found[status]}


def _bytes(reports: Sequence[VerifyReport]) -> int:
    return sum(report.bytes_equal for report in reports)
