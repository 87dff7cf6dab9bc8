"""Groups failures of the same kind: one sentence, the first files, and how many more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from blobsync.base.errors import BlobsyncError, FileFailure
from blobsync.base.formatting import count_text
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple

# Maximum number of files that are named in a group.
NAMED = 3
_TRIES = pattern(r"\(\d[\d,]* tries[^)]*\)$")


# ``path`` of an error is None, or empty, if it is not that of a file.
Failing: TypeAlias = FileFailure | BlobsyncError


class FailureGroup(NamedTuple):
    """``sentence`` is what all failures have in common, ``paths`` are the first files of ``total``. For a single
    failure, or without files, it is the whole message, and there are no paths."""

    sentence: str
    hint: str | None
    paths: tuple[str, ...]
    total: int

    @property
    def more(self) -> int:
        """The number of files that are not named."""
        return self.total - len(self.paths) if self.paths else 0


def grouped(failures: Iterable[Failing]) -> list[FailureGroup]:
    """Group failures, in the order of each kind's first one. The number of attempts makes no other kind."""
    found: dict[tuple[str, str], list[Failing]] = {}
    counts: dict[tuple[str, str], int] = {}
    for each in failures:
        kind = each.code, _TRIES.sub("", _without(each.message, each.path))
        members = found.setdefault(kind, [])
        counts[kind] = counts.get(kind, 0) + 1
        if len(members) < NAMED:
            members.append(each)
    return [_group(members, counts[kind]) for kind, members in found.items()]


def again_sentence(failures: Sequence[Failing], engine: str) -> str:
    """Which files are tried again, and why; ``engine`` is the engine that tries, empty if it is the same as before."""
    by = f" with the {engine} engine" if engine else ""
    groups = grouped(failures)
    if len(failures) == 1:
        return f"{whole_message(failures[0])}; trying it again{by}"
    said = "; ".join(map(_listed, groups))
    return f"trying {count_text(len(failures), 'file')} again{by}. {said}"


def whole_message(failure: Failing) -> str:
    """The message, with the file's path before it unless it contains that."""
    if failure.path and failure.path not in failure.message:
        return f"{failure.path}: {failure.message}"
    return failure.message


def _listed(group: FailureGroup) -> str:
    names = ", ".join(group.paths)
    more = f" and {group.more:,} more" if group.more else ""
    return f"{group.sentence}: {names}{more}" if names else group.sentence


def _group(members: Sequence[Failing], count: int) -> FailureGroup:
    first = members[0]
    sentence = _without(first.message, first.path)
    paths = tuple(each.path for each in members if each.path)
    if count == 1 or not paths:
        return FailureGroup(whole_message(first), first.hint, (), 1)
    return FailureGroup(sentence, first.hint, paths, count)


def _without(message: str, path: str | None) -> str:
    """The message without the file's name at its beginning; a blob's name may have other folders before it."""
    if not path:
        return message
    message = message.removeprefix(f"{path}: ")
    leaf = re.escape(path.rpartition("/")[2])
    # A name without a slash may be a word of the sentence.
    folders = r"(?:[^\s'\"]*/)" + ("?" if "." in leaf else "")
    named = rf"(?<!\S)(?:'[^']*{leaf}'|\"[^\"]*{leaf}\"|{folders}{leaf})(?![\w.])"
    return re.sub(named, "the file", message).removeprefix("the file: ") if leaf else message
