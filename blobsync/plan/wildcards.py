"""PATHs with ``*``, ``?`` or ``[...]``, which stand for characters within one name.

A file, blob or folder of exactly that name comes first. So whoever reads a PATH as a pattern asks for the name before.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable

from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import LocalLocation
from blobsync.store.open_locations import OpenLocation

_MAGIC = pattern(r"[*?\[]")
ABOUT_PATTERNS = "* matches any characters within a name, ? matches one, [ab] for one of these"


def is_pattern(path: str) -> bool:
    """Whether the path contains a character of patterns."""
    return _MAGIC.search(path) is not None


def split_pattern(path: str) -> tuple[str, list[str]]:
    """The folder above the first name with such a character, and the names from there on."""
    names = path.rstrip("/").split("/")
    first = next(number for number, name in enumerate(names) if is_pattern(name))
    return "/".join(names[:first]), names[first:]


def fitting(name: str) -> Callable[[str], bool]:
    """A function that tells whether a name matches this one of a pattern, or is the same."""
    regex = re.compile(fnmatch.translate(name))
    return lambda other: name == other or regex.match(other) is not None


class PathPattern:
    """A pattern from the project's root; ``folder`` is the one that has all matches."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder, names = split_pattern(path)
        self._fits = [fitting(name) for name in names]
        # With a slash at its end only folders match.
        self._least = len(names) + path.endswith("/")

    def __call__(self, path: str) -> bool:
        """Whether it matches ``path``, from the root, or a folder above it."""
        if not path.startswith(f"{self.folder}/"):
            return False
        names = path[len(self.folder) + 1 :].split("/")
        return len(names) >= self._least and all(fits(name) for fits, name in zip(self._fits, names, strict=False))


def is_there(end: OpenLocation, *, folder_only: bool) -> bool:
    """Whether there is a file, blob or folder of exactly this name. Raises the store's errors."""
    if isinstance(end, LocalLocation):
        return os.path.lexists(end.path)
    if not folder_only and end.name and end.store.head(end.name) is not None:
        return True
    return next(iter(end.store.list_folder(f"{end.name}/")), None) is not None
