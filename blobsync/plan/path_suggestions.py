"""Suggests an existing path for one that does not exist.

It lists the folder around it, at most one page, and only when the error is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import LocalLocation
from blobsync.config.known_keys import nearest
from blobsync.store.open_locations import OpenLocation

# The number of names in one page of a listing.
# https://learn.microsoft.com/rest/api/storageservices/list-blobs
_NAMES = 5000


def look_nearby(shown: str, relative: str, *ends: OpenLocation) -> Callable[[], str | None]:
    """A function that finds the most similar path, or None.

    ``shown`` is the path that none of ``ends`` has, ``relative`` its part below the folder entry.
    """

    def look() -> str | None:
        near = shown.removesuffix(relative).rstrip("/")
        found = (_nearest_at(end, near, relative.split("/")) for end in ends if relative)
        return next((each for each in found if each is not None), None)

    return look


def _nearest_at(end: OpenLocation, near: str, words: Sequence[str]) -> str | None:
    """The most similar path at an end; if its folder does not exist either, the search goes up to the folder entry."""
    if (str(end.path) if isinstance(end, LocalLocation) else end.name).split("/")[-len(words) :] != words:
        # The source of a copy may have another path than the one that is shown.
        return None
    for up in range(1, len(words) + 1):
        try:
            names = list(_names_around(end, up))
        except (BlobsyncError, OSError):
            return None
        if names:
            guess = nearest(words[-up], names)
            folder = "/".join([near, *words[:-up]])
            return f"{folder}/{guess}" if guess and guess != words[-up] else None
    return None


def _names_around(end: OpenLocation, up: int) -> Iterator[str]:
    """The names in the folder ``up`` levels above the end."""
    if isinstance(end, LocalLocation):
        folder = end.path.parents[up - 1]
        if folder.is_dir():
            with os.scandir(folder) as entries:
                yield from (entry.name for entry in islice(entries, _NAMES))
        return
    parts = end.name.split("/")
    prefix = "".join(f"{part}/" for part in parts[:-up])
    for item in islice(end.store.list_folder(prefix), _NAMES):
        name = item if isinstance(item, str) else item.name
        yield name[len(prefix) :].rstrip("/")
