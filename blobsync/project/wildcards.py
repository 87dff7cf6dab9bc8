"""Paths with ``*``, ``?`` or ``[...]``, for looking: the blobs and folders whose names they match, level by level.

A name that has such letters itself is meant first. What changes something takes no patterns: which blobs they mean
would change between looking and doing.
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
    """What a pattern matches: the path to give to other commands, and what a listing says of it."""

    path: str
    entry: ListingEntry


def is_pattern(path: str) -> bool:
    """Whether the path has a letter that patterns have."""
    return _MAGIC.search(path) is not None


def list_matching(listing: Lister, path: str, *, recursive: bool) -> Iterator[ListingEntry]:
    """The blob or folder of exactly this name as ``ls`` lists it; else what the pattern matches.

    A folder that matches is one line, with ``recursive`` all that is below it. Raises ``NothingMatchedError``.
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
    """What the pattern matches, in the order of the names. Raises ``NothingMatchedError``."""
    parts = path.rstrip("/").split("/")
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    found = list(_below(listing, "/".join(parts[:first]), parts[first:]))
    if not found:
        raise NothingMatchedError(
            f"{path}: no blob or folder matches",
            hint="* stands for any letters within a name, ? for one, [ab] for one of these",
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
