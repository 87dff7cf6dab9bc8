"""One folder of the project, name by name: what is here, what is in its container, and the state of each.

What the container holds is what it held when it was last listed, as with ``status``; a folder that never was, or with
``fresh``, is listed now. Folders have the sizes of everything below them, on both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blobsync.base.errors import NothingMatchedError
from blobsync.base.file_states import LocalState
from blobsync.plan.pairs import Pair
from blobsync.plan.planner import both_ends
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.project.status import FileTally, as_remembered
from blobsync.project.verify import both_sides, classify

# More names of one folder are counted, and not kept.
MOST_NAMES = 200_000
# Seconds between two looks at what is known so far.
_TELL_EVERY = 0.5


@dataclass(slots=True)
class FolderName:
    """A file, or a folder with all that is below it.

    ``states`` counts files by class, as ``verify`` names them: ``equal``, ``changed_here``, ``local_only``, ...
    ``modified`` is the local file's time (seconds since 1970).
    """

    name: str
    is_folder: bool
    here: FileTally = field(default_factory=FileTally)
    there: FileTally = field(default_factory=FileTally)
    states: dict[str, int] = field(default_factory=dict)
    modified: float | None = None

    def __repr__(self) -> str:
        return f"<FolderName {self.name!r}: {self.here.files:,} files here, {self.there.files:,} there>"


@dataclass(slots=True)
class FolderStatus:
    """What is known of a folder.

    ``as_of`` is when the container was listed (seconds since 1970), ``fresh`` says that it was now, ``whole`` that
    everything was looked at. ``is_file``: the path is no folder. ``names_in_all`` may be more than ``names`` has.
    """

    path: str
    names: dict[str, FolderName] = field(default_factory=dict)
    names_in_all: int = 0
    as_of: float | None = None
    fresh: bool = False
    whole: bool = False
    is_file: bool = False
    unreadable: int = 0

    def __repr__(self) -> str:
        return f"<FolderStatus {self.path!r}: {self.names_in_all:,} names>"

    @property
    def blobs(self) -> int:
        """How many the container has below this folder."""
        return sum(each.there.files for each in list(self.names.values()))


def look_into(
    context: ProjectContext,
    path: str,
    seen: Callable[[int], None],
    *,
    fresh: bool,
    clock: Callable[[], float] = time.time,
) -> Iterator[FolderStatus]:
    """The folder ``path`` as far as it is known, again and again, the last time as a whole.

    Raises mapping errors, those of the store, and ``UntrustedLinkError``.
    """
    requests = both_ends(context, path)
    status = FolderStatus(os.path.commonpath([request.part.path for request in requests]))
    told = now = clock()
    # What was never listed is listed now, also where it is a folder entry inside this one.
    listed = [None if fresh else request.records.listed_at(request.part.key.path) for request in requests]
    status.as_of = min((at for at in listed if at is not None), default=now)
    status.fresh = not any(listed)
    for request, at in zip(requests, listed, strict=True):
        for pair in _pairs(request if at is None else as_remembered(request), status, seen):
            _add(status, request.part.path, pair)
            if (now := clock()) - told > _TELL_EVERY:
                told = now
                yield status
    status.whole = True
    yield status


def _pairs(request: Request, status: FolderStatus, seen: Callable[[int], None]) -> Iterator[Pair]:
    try:
        found, pairs = both_sides(request, seen)
        yield from pairs
    except NothingMatchedError:
        # Nothing at either end.
        return
    status.unreadable += len(found.unreadable)


def _add(status: FolderStatus, part: str, pair: Pair) -> None:
    kind = "left_out" if pair.left_out is not None else classify(pair)
    shown = f"{part}/{pair.path}" if pair.path else part
    if kind is None or shown == status.path:
        status.is_file = status.is_file or kind is not None
        return
    first, below, _ = shown[len(status.path) + bool(status.path) :].partition("/")
    key = first + below
    entry = status.names.get(key)
    if entry is None:
        status.names_in_all += 1
        if len(status.names) >= MOST_NAMES:
            return
        # Names that are not UTF-8 arrive as surrogates, which no page can hold.
        shown_name = first.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        entry = status.names[key] = FolderName(shown_name, bool(below))
    entry.states[kind] = entry.states.get(kind, 0) + 1
    if pair.source is not None:
        entry.here.add(pair.source.size)
        if not below and isinstance(pair.source, LocalState):
            entry.modified = pair.source.mtime_ns / 1e9
    if pair.destination is not None:
        entry.there.add(pair.destination.size)
