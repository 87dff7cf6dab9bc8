"""Paths with ``*``, ``?`` or ``[...]`` in commands that only read: finds matching blobs and folders, level by level.

A name that contains such characters itself takes precedence. Commands that change something accept no patterns: the
matches could change between the question and the action.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple, Protocol

from blobsync.base.errors import NothingMatchedError
from blobsync.project.browse import ListingEntry

_MAGIC = re.compile(r"[*?\[]")


class Lister(Protocol):
    """``Project.list``."""

    def __call__(self, path: str, /, *, recursive: bool = False) -> Iterator[ListingEntry]: ...


class Matched(NamedTuple):
    """A match: the path for other commands, and its entry in a listing."""

    path: str
    entry: ListingEntry


def is_pattern(path: str) -> bool:
    """Whether the path contains a character of patterns."""
    return _MAGIC.search(path) is not None


def list_matching(listing: Lister, path: str, *, recursive: bool) -> Iterator[ListingEntry]:
    """List the blob or folder of exactly this name as ``ls`` does; else the matches of the pattern.

    A matching folder is one entry, with ``recursive`` everything below it. Raises ``NothingMatchedError``.
    """
    if not is_pattern(path):
        yield from listing(path, recursive=recursive)
        return
    exact = listing(path, recursive=recursive)
    with suppress(NothingMatchedError):
        yield from chain([next(exact)], exact)
        return
    for found in pattern_matches(listing, path):
        if recursive and found.entry.is_folder:
            yield from listing(found.path, recursive=True)
        else:
            yield found.entry


def pattern_matches(listing: Lister, path: str) -> Iterator[Matched]:
    """The matches of the pattern, sorted by name. Raises ``NothingMatchedError``."""
    parts = path.rstrip("/").split("/")
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    found = list(_below(listing, "/".join(parts[:first]), parts[first:]))
    if not found:
        raise NothingMatchedError(
            f"{path}: no blob or folder matches",
            hint="* matches any characters within a name, ? matches one, [ab] for one of these",
            path=path,
        )
    yield from found


def _below(listing: Lister, parent: str, parts: list[str]) -> Iterator[Matched]:
    fits = _fitting(parts[0])
    lead = f"{parent}/" if parent else ""
    with suppress(NothingMatchedError):
        for entry in sorted(listing(parent or "."), key=lambda one: one.path):
            name = entry.path.rstrip("/").rpartition("/")[2]
            if not fits(name):
                continue
            if len(parts) == 1:
                yield Matched(f"{lead}{name}", entry)
            elif entry.is_folder:
                yield from _below(listing, f"{lead}{name}", parts[1:])


def _fitting(part: str) -> Callable[[str], bool]:
    regex = re.compile(fnmatch.translate(part))
    return lambda name: name == part or regex.match(name) is not None
