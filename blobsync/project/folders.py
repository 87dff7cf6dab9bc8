"""A folder of the project: its names here and in its container, and the state of each.

The last listing of the container is used, as in ``status``; a folder that was never listed, or with ``fresh``, is
listed now. Subfolders have the sizes of everything below them, on both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from blobsync.base.errors import NothingMatchedError
from blobsync.base.events import Emit
from blobsync.base.file_states import LocalState
from blobsync.base.records import dataclass
from blobsync.local.names import blob_problem
from blobsync.plan.pairing import Pair
from blobsync.plan.path_mapping import both_ends
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.project.status import FileCounts, FileTally, as_remembered
from blobsync.project.verify import both_sides, classify
from blobsync.store.open_locations import OpenBlob

# More names of a folder are counted, but not stored.
MOST_NAMES = 200_000
# Seconds between two results.
_RESULT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, repr=False)
class FolderName:
    """A file, or a folder with all that is below it.

    ``states`` counts files by class, as ``verify`` names them: ``equal``, ``changed_here``, ``local_only``, ..., and
    ``left_out``, ``unnamable`` (no blob can have that name) and ``unreadable``.
    ``modified`` is the local file's time (seconds since 1970).
    """

    name: str
    is_folder: bool
    here: FileTally = field(default_factory=FileTally)
    there: FileTally = field(default_factory=FileTally)
    states: Mapping[str, int] = field(default_factory=dict)
    modified: float | None = None

    def __repr__(self) -> str:
        return f"<FolderName {self.name!r}: {self.here.files:,} files here, {self.there.files:,} there>"


@dataclass(frozen=True, slots=True, repr=False)
class FolderStatus:
    """The known content of a folder.

    ``as_of`` is when the container was listed (seconds since 1970), ``fresh``: it was now; ``whole``: the content is
    complete. ``is_file``: the path is no folder. ``names_in_all`` may be more than ``names`` has.
    """

    path: str
    names: Mapping[str, FolderName] = field(default_factory=dict)
    names_in_all: int = 0
    as_of: float | None = None
    fresh: bool = False
    whole: bool = False
    is_file: bool = False
    unreadable: int = 0

    def __repr__(self) -> str:
        return f"<FolderStatus {self.path!r}: {self.names_in_all:,} names>"

    @property
    def here(self) -> FileTally:
        """The files here, with those below the folder."""
        return _sum([each.here for each in list(self.names.values())])

    @property
    def there(self) -> FileTally:
        """The blobs, with those below the folder."""
        return _sum([each.there for each in list(self.names.values())])

    @property
    def blobs(self) -> int:
        """The number of blobs below this folder."""
        return self.there.files


def _sum(tallies: Sequence[FileTally]) -> FileTally:
    return FileTally(sum(each.files for each in tallies), sum(each.bytes for each in tallies))


class _Look:
    """The content of a folder so far. Subfolders are copied for each result."""

    def __init__(self, status: FolderStatus) -> None:
        self._status = status
        self._names: dict[str, FolderName] = {}
        self._below: dict[str, FileCounts] = {}
        self._grown: set[str] = set()
        self._in_all = self._unreadable = 0
        self._is_file = False

    def add(self, part: str, pair: Pair, end: OpenBlob) -> None:
        kind = "left_out" if pair.left_out is not None else classify(pair)
        if pair.source is not None and blob_problem(end.at(pair.path)):
            kind = "unnamable"
        shown = f"{part}/{pair.path}" if pair.path else part
        if kind is None or shown == self._status.path:
            self._is_file = self._is_file or kind is not None
            return
        self._place(shown, kind, pair)

    def _place(self, shown: str, kind: str, pair: Pair | None) -> None:
        path = self._status.path
        first, below, _ = shown[len(path) + bool(path) :].partition("/")
        key = first + below
        if key not in self._below and not self._begin(key, first, kind, pair, is_folder=bool(below)):
            return
        counts = self._below[key]
        counts.numbers[kind] += 1
        if pair is not None and pair.source is not None:
            counts.add("here", pair.source.size)
        if pair is not None and pair.destination is not None:
            counts.add("there", pair.destination.size)
        self._grown.add(key)

    def _begin(self, key: str, first: str, kind: str, pair: Pair | None, *, is_folder: bool) -> bool:
        """Add a new name; True if it is a folder that is stored."""
        if key not in self._names:
            self._in_all += 1
            if len(self._names) >= MOST_NAMES:
                return False
        # Names that are not UTF-8 have surrogates, which a page cannot contain.
        name = first.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if is_folder:
            self._below[key] = FileCounts()
        # In the order in which they are found; of folders the rest follows.
        self._names[key] = FolderName(name, True) if is_folder else _file_of(name, kind, pair)
        return is_folder

    def add_unreadable(self, shown: str) -> None:
        """Add a name whose file here cannot be read."""
        self._unreadable += 1
        if shown != self._status.path:
            self._place(shown, "unreadable", None)

    def snapshot(self, *, whole: bool) -> FolderStatus:
        for key in self._grown:
            counts = self._below[key]
            self._names[key] = FolderName(
                self._names[key].name, True, counts.tally("here"), counts.tally("there"), dict(counts.numbers)
            )
        self._grown.clear()
        return replace(
            self._status,
            names=dict(self._names),
            names_in_all=self._in_all,
            whole=whole,
            is_file=self._is_file,
            unreadable=self._unreadable,
        )


def _file_of(name: str, kind: str, pair: Pair | None) -> FolderName:
    if pair is None:
        return FolderName(name, False, states={kind: 1})
    here, there = (FileTally() if end is None else FileTally(1, end.size) for end in (pair.source, pair.destination))
    modified = pair.source.mtime_ns / 1e9 if isinstance(pair.source, LocalState) else None
    return FolderName(name, False, here, there, {kind: 1}, modified)


def look_into(context: ProjectContext, path: str, emit: Emit, *, fresh: bool) -> Iterator[FolderStatus]:
    """Yield the known content of the folder ``path``, repeatedly, at last everything.

    Raises mapping errors, those of the store, and ``UntrustedLinkError``.
    """
    requests = both_ends(context, path)
    yielded = now = time.time()
    # List what was never listed, including folder entries inside this one.
    listed = [None if fresh else request.records.listed_at(request.part.key.path) for request in requests]
    as_of = min((at for at in listed if at is not None), default=now)
    shown = os.path.commonpath([request.part.path for request in requests])
    look = _Look(FolderStatus(shown, as_of=as_of, fresh=not any(listed)))
    for request, at in zip(requests, listed, strict=True):
        end = request.part.destination
        assert isinstance(end, OpenBlob)
        for pair in _pairs(request if at is None else as_remembered(request), look, emit):
            look.add(request.part.path, pair, end)
            if (now := time.time()) - yielded > _RESULT_SECONDS:
                yielded = now
                yield look.snapshot(whole=False)
    yield look.snapshot(whole=True)


def _pairs(request: Request, look: _Look, emit: Emit) -> Iterator[Pair]:
    try:
        found, pairs = both_sides(request, emit)
        yield from pairs
    except NothingMatchedError:
        # Neither end exists.
        return
    for failure in found.unreadable:
        look.add_unreadable(failure.path)
