"""Which names can exist at a destination; pure.

A blob name can be almost any text; a local path cannot, and some names would even escape the folder
that they belong to. The checks here return a reason, or None if the name is valid.

:func:`relative_name` and :func:`safe_name` are the gate: only they make a :data:`RelativeName` or a :data:`SafeName`,
and all code that joins an external name (a blob's, a log's, a job's ID) to a path takes one of these two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Generic, NewType, TypeVar

from blobsync.base.errors import UnsafeNameError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import MAX_NAME_CHARS, reaches_another

_T = TypeVar("_T")

# Parts separated by '/', always inside a folder: ``user_logs/std_log.txt``.
RelativeName = NewType("RelativeName", str)
# One such part: ``me_1718000000_0badcafe``.
SafeName = NewType("SafeName", str)

# Linux: NAME_MAX and PATH_MAX of limits.h.
MAX_PART_BYTES = 255
_MAX_PATH_BYTES = 4095

# Our own unfinished downloads, and azcopy's after it was killed (``.azDownload-<36 characters>-`` and the file's name).
# Never uploaded, never listed as data.
_OWN_TEMPORARY = pattern(r"\.blobsync-[0-9a-f]{8}\.part")
_AZCOPYS_TEMPORARY = pattern(r"\.azDownload-[0-9a-fA-F-]{36}-(.*)", re.DOTALL)
# The temporary file of a download over several nodes in its folder: each node has to see it.
PROBE_PREFIX = ".probe-of-blobsync-"
_PROBE = pattern(rf"{re.escape(PROBE_PREFIX)}[0-9a-f]{{16}}")
# Beside a set of files: a program says that it is complete (``mark_complete``, which programs import alone).
_SET_REQUEST = pattern(r"\..+\.blobsync-complete", re.DOTALL)
AZCOPYS_PREFIX_BYTES = len(".azDownload-") + 36 + 1

# What a container keeps for blobsync itself: no data, also where a folder entry maps the container's root.
OWN_BLOBS = ".blobsync/"

# The service refuses these in a blob's name: "Naming and Referencing Containers, Blobs, and Metadata".
_CONTROL = pattern("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
_SURROGATE = pattern("[\ud800-\udfff]")
_MAX_SEGMENTS = 254


def is_temporary(name: str) -> bool:
    """Whether the last part of a path is the unfinished file of a download, the probe of one over several nodes, or
    what a program said about a set of files."""
    # Asked several times for each file; all of these names begin with a dot, and few others do.
    return name[:1] == "." and any(
        each.fullmatch(name) for each in (_OWN_TEMPORARY, _AZCOPYS_TEMPORARY, _PROBE, _SET_REQUEST)
    )


def unfinished_name(name: str) -> str | None:
    """The file that azcopy's temporary name stands for; None for any other name."""
    found = _AZCOPYS_TEMPORARY.fullmatch(name)
    return found[1] if found else None


def is_own_temporary(name: str) -> bool:
    """Whether it is a temporary file of blobsync's own."""
    return _OWN_TEMPORARY.fullmatch(name) is not None


def new_temporary_name() -> str:
    """A name for an unfinished file, which no walk treats as data."""
    return f".blobsync-{os.urandom(4).hex()}.part"


def relative_name(name: str, root: str = "", *, allowed: re.Pattern[str] | None = None) -> RelativeName:
    """Check that ``name`` may be joined to the folder ``root``. Raises ``UnsafeNameError``.

    ``allowed`` is the pattern that the whole name must match, if given.
    """
    problem = local_problem(name, root)
    if problem is None and allowed is not None and not allowed.fullmatch(name):
        problem = "has an invalid form"
    if problem:
        raise UnsafeNameError(f"the name {name!a} {problem}", path=ascii(name))
    return RelativeName(name)


def safe_name(name: str, *, allowed: re.Pattern[str] | None = None) -> SafeName:
    """The same for a single part."""
    if "/" in name:
        raise UnsafeNameError(f"the name {name!a} has a '/' in it", path=ascii(name))
    return SafeName(relative_name(name, allowed=allowed))


def local_problem(relative: str, root: str = "") -> str | None:
    """Why the blob ``relative`` (below the mapped folder) cannot or must not become a file below ``root``."""
    if "\x00" in relative:
        return "contains a NUL character"
    between = f"/{relative}/"
    if "//" in between:
        return "has an empty part ('//', or a '/' at an end)"
    for part in (".", ".."):
        if f"/{part}/" in between:
            return f"has the part '{part}', which would escape the folder"
    if len(relative) > MAX_PART_BYTES or not relative.isascii():
        if any(len(part.encode("utf-8", "surrogatepass")) > MAX_PART_BYTES for part in relative.split("/")):
            return f"has a part of more than {MAX_PART_BYTES:,} bytes"
        if _SURROGATE.search(relative):
            return "is not valid Unicode"
    if is_temporary(relative.rpartition("/")[2]):
        return "looks like an unfinished download"
    # A folder's own path may contain bytes that are not UTF-8.
    if len(f"{root}/{relative}".encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES:
        return f"makes a path of more than {_MAX_PATH_BYTES:,} bytes"
    return None


def blob_problem(name: str) -> str | None:
    """Why the service would refuse ``name`` (the whole blob name), or treat it as another one."""
    if not (name.isascii() and name.isprintable()):
        if _SURROGATE.search(name):
            return "is not valid UTF-8"
        if found := _CONTROL.search(name):
            return f"contains the control character {found.group()!a}"
    if len(name) > MAX_NAME_CHARS:
        return f"makes a blob name of more than {MAX_NAME_CHARS} characters"
    if name.count("/") >= _MAX_SEGMENTS:
        return f"makes a blob name of more than {_MAX_SEGMENTS} parts"
    if "/./" in (between := f"/{name}/") or "/../" in between:
        return "has a part that is '.' or '..', which URLs cannot contain"
    return reaches_another(name)


class FoldersAbove(Generic[_T]):
    """For names in code point order, finds which earlier names are folders above each.

    Holds no more names than the longest one has characters.
    """

    def __init__(self) -> None:
        self._way: list[tuple[str, _T]] = []

    def enter(self, name: str, value: _T) -> list[_T]:
        """The values of the folders above ``name``; ``value`` is returned for names below ``name`` later on."""
        while self._way and not name.startswith(self._way[-1][0]):
            self._way.pop()
        found = [value for folder, value in self._way if folder and name[len(folder) : len(folder) + 1] == "/"]
        self._way.append((name, value))
        return found


def shape_clashes(names: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, str, bool]]:
    """Names that are both a file and a folder, ``x`` and ``x/y``, where at least one of the two is new.

    ``names`` come in code point order, any number of them, each with whether it is new; a name may come several times.
    Names that exist already and stay as they are, are not reported. The third value of a clash is the second of
    its name.
    """
    above: FoldersAbove[tuple[str, list[bool]]] = FoldersAbove()
    for name, group in groupby(names, key=itemgetter(0)):
        fresh = any(is_new for _, is_new in group)
        known = [fresh, False]
        for folder, clash in above.enter(name, (name, known)):
            if not clash[1] and (fresh or clash[0]):
                clash[1] = True
                yield folder, f"is a file beside '{name}', which makes it a folder", clash[0]
