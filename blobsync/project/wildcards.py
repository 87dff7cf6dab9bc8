"""Paths with ``*``, ``?`` or ``[...]`` in ``ls`` and ``du``: finds matching blobs and folders, level by level.

A name that contains such characters itself takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TypeAlias

from blobsync.base.errors import NothingMatchedError
from blobsync.plan.wildcards import ABOUT_PATTERNS, fitting, is_pattern, split_pattern
from blobsync.project.browse import ListingEntry

# ``Project.list``.
Lister: TypeAlias = Callable[..., Iterator[ListingEntry]]


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
    for found, entry in pattern_matches(listing, path):
        if recursive and entry.is_folder:
            yield from listing(found, recursive=True)
        else:
            yield entry


def pattern_matches(listing: Lister, path: str) -> Iterator[tuple[str, ListingEntry]]:
    """The matches of the pattern, sorted by name, as paths for other commands, with their entries in a listing.

    Raises ``NothingMatchedError``."""
    found = list(_below(listing, *split_pattern(path)))
    if not found:
        raise NothingMatchedError(
            f"{path}: no blob or folder matches",
            hint=ABOUT_PATTERNS,
            path=path,
        )
    yield from found


def _below(listing: Lister, parent: str, parts: list[str]) -> Iterator[tuple[str, ListingEntry]]:
    fits = fitting(parts[0])
    lead = f"{parent}/" if parent else ""
    with suppress(NothingMatchedError):
        for entry in sorted(listing(parent or "."), key=lambda one: one.path):
            name = entry.path.rstrip("/").rpartition("/")[2]
            if not fits(name):
                continue
            if len(parts) == 1:
                yield f"{lead}{name}", entry
            elif entry.is_folder:
                yield from _below(listing, f"{lead}{name}", parts[1:])
