"""Counts and reports files that a plan leaves out.

These are local entries that are skipped, the blobs that are skipped because of them, and excluded files that a mirror
does not delete.
"""

from __future__ import annotations

import enum

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.formatting import count_text
from blobsync.base.locations import at_and_above
from blobsync.base.plan_reasons import Reason
from blobsync.config.trust_store import trust_command

# Problems that the user must fix before the tree counts as read completely.
FAULTS = (Reason.UNREADABLE, Reason.SYMLINK_REFUSED)
# A download neither replaces these nor writes through them.
_LINKS = (Reason.SYMLINK_OUTSIDE, Reason.SYMLINK_SKIPPED, Reason.SYMLINK_REFUSED, Reason.SYMLINK_PROTECTED)
# Nor these: writing to a pipe waits for a reader.
IN_THE_WAY = (*_LINKS, Reason.NOT_A_FILE)

_MOVE_AWAY = "move it away, then run the same command again"


class LeftOut:
    """``entries`` by path, with reason and detail; ``hits`` counts the blobs at or below each, ``named`` are those with
    a blob of exactly their name."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Reason, str]] = {}
        self.hits: dict[str, int] = {}
        self.named: set[str] = set()

    def hit(self, path: str) -> tuple[Reason, str] | None:
        """Why ``path`` is skipped, or is below a skipped entry; None otherwise."""
        for at in at_and_above(path) if self.entries else ():
            if at in self.entries:
                self.hits[at] = self.hits.get(at, 0) + 1
                if at == path:
                    self.named.add(at)
                return self.entries[at]
        return None

    def stays_out(self, shown: str) -> tuple[list[FileFailure], list[str]]:
        """Failures and warnings for blobs that are not downloaded because of a skipped local entry."""
        failures: list[FileFailure] = []
        warnings: list[str] = []
        for path, count in self.hits.items():
            reason, detail = self.entries[path]
            files = count_text(count, "file")
            text = f"{shown}/{path}: {files} left out, {reason.value} ({detail})"
            if reason is Reason.NOT_A_FILE:
                message = f"{shown}/{path}: {files} left out, neither a file nor a folder is in the way"
                failures.append(FileFailure(f"{shown}/{path}", FailureCode.LOCAL_FILE, message, _MOVE_AWAY))
            elif reason is Reason.SYMLINK_SKIPPED:
                warnings.append(text)
            elif reason is Reason.SYMLINK_OUTSIDE:
                hint = f"to follow it: {trust_command(f'{shown}/{path}')}"
                failures.append(FileFailure(f"{shown}/{path}", FailureCode.LINK_UNTRUSTED, text, hint))
            else:
                failures.append(
                    FileFailure(f"{shown}/{path}", FailureCode.LINK_REFUSED, text, "replace it with a folder or a file")
                )
        return failures, warnings


class Exclusion(enum.Enum):
    """Why a file is excluded; the value is the text in ``--mirror``'s report."""

    NOT_CHOSEN = "not chosen by --include and --exclude"
    IGNORED = "ignored by the folder entry"
    COVERED = "below a folder that another entry maps elsewhere"


# Maximum number of files that are named for each reason.
_NAMED = 3


class ExcludedFiles:
    """Excluded files at the destination, by reason."""

    def __init__(self) -> None:
        self.counts: dict[Exclusion, int] = {}
        self.names: dict[Exclusion, list[str]] = {}

    def add(self, why: Exclusion, path: str) -> None:
        """Add a file."""
        self.counts[why] = self.counts.get(why, 0) + 1
        named = self.names.setdefault(why, [])
        if len(named) < _NAMED:
            named.append(path)

    def warnings(self, shown: str) -> list[str]:
        """At most one line about what a mirror of ``shown`` does not delete."""
        if not self.counts:
            return []
        words = []
        for why, count in self.counts.items():
            more = f", and {count - _NAMED:,} more" if count > _NAMED else ""
            words.append(f"{count:,} {why.value} ({', '.join(self.names[why])}{more})")
        excluded = count_text(sum(self.counts.values()), "excluded file")
        return [f"{shown}: --mirror keeps {excluded} at the destination: {'; '.join(words)}"]


def left_out_message(shown: str, reason: Reason, detail: str) -> FileFailure | str:
    """The report of a skipped entry at the source: a failure if it should have been transferred, else a warning."""
    message = f"{reason.value} ({detail})" if detail else reason.value
    if reason in FAULTS:
        hint = "make it readable" if reason is Reason.UNREADABLE else "leave out --links error to follow it"
        return FileFailure(shown, FailureCode.UNREADABLE, f"{shown}: {message}", f"{hint}, or --exclude it")
    way_out = f"; to follow it: {trust_command(shown)}" if reason is Reason.SYMLINK_OUTSIDE else ""
    return f"{shown}: left out, {message}{way_out}"


def name_failure(path: str, why: str) -> FileFailure:
    """A local file whose name no blob can have; ``why`` continues "its name"."""
    return FileFailure(path, FailureCode.NAMES_UNSAFE, f"left out: its name {why}", "rename it, or --exclude it")
