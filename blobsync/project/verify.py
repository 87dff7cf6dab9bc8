"""``verify``: compares the local files, the index and the blobs.

Transfers nothing. A file is ``equal`` if the index confirms both sides as they are now or their size and MD5 (of a blob
without one, the CRC64 that the index knows) agree; ``deep`` reads every byte on both sides instead.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobsyncError, FileFailure, NothingMatchedError
from blobsync.base.events import Emit
from blobsync.base.exit_codes import ExitCode
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation, below
from blobsync.base.records import dataclass
from blobsync.local.files import hash_file
from blobsync.local.sorted_runs import IN_MEMORY, ReadInOrder, SortedRuns
from blobsync.plan.pairing import Pair, changes_since_verified, known_equal
from blobsync.plan.path_suggestions import look_nearby
from blobsync.plan.survey import Request, Survey, remember, remember_nothing, survey
from blobsync.plan.wildcards import ABOUT_PATTERNS
from blobsync.store.checksums import CRC64
from blobsync.store.open_locations import OpenBlob, blob_md5

# The classes of a file in the order of the summary; docs/commands.md says what each means.
CLASSES = (
    *("equal", "changed_here", "changed_there", "differs", "damaged", "unknown"),
    *("local_only", "remote_only", "unreadable", "left_out"),
)
# By what an equal file is known to be equal.
COMPARED_BY = ("record", "md5", CRC64, "content")


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """A file and its class; ``compared_by`` says by what an equal one is known to be equal."""

    path: str
    status: str
    size: int
    compared_by: str = ""


class ManyComparedFiles(ReadInOrder[ComparedFile]):
    """Compared files in the order of their paths; some of them are on the disk. Read any number of times."""

    def __init__(self, rows: SortedRuns) -> None:
        """``rows`` have the values of a :class:`ComparedFile`."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ComparedFile]:
        return (ComparedFile(*row) for row in self._rows)


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """Counts by class, the files that are not equal, the bytes that are equal, and by what that is known: equal files
    by ``record``, ``md5``, ``crc64nvme``, or ``content`` (read on both sides).

    Of more than 100,000 files that are not equal, most are on the disk while the report is kept.
    """

    counts: dict[str, int]
    not_equal: Sequence[ComparedFile]
    bytes_equal: int
    unreadable: tuple[FileFailure, ...] = ()
    compared_by: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts.items())
        return f"<VerifyReport: {counts or 'nothing compared'}>"

    @property
    def ok(self) -> bool:
        """Everything that was compared is equal, and all of it could be read."""
        return not self.not_equal and not self.unreadable

    @property
    def exit_code(self) -> ExitCode:
        """0 all equal; 3 some equal, some not; 1 none equal."""
        if self.ok:
            return ExitCode.DONE
        return ExitCode.PARTIAL if self.counts.get("equal") else ExitCode.FAILED


def verify(requests: Sequence[Request], emit: Emit, *, deep: bool = False) -> VerifyReport:
    """Compare the two ends of each request, whose source is the local one.

    Raises ``NothingMatchedError`` if neither side has any of the names, or a match of the pattern.
    """
    counts, compared_by, unreadable = Counter[str](), Counter[str](), list[FileFailure]()
    not_equal = SortedRuns(requests[0].spill if requests else IN_MEMORY)
    bytes_equal, nothing = 0, list[NothingMatchedError]()
    for request in requests:
        try:
            found, pairs = both_sides(request, emit)
        except NothingMatchedError as error:
            nothing.append(error)
            continue
        for file in _classify_all(request, pairs, deep=deep):
            counts[file.status] += 1
            if file.status == "equal":
                bytes_equal += file.size
                compared_by[file.compared_by] += 1
            elif file.status != "left_out":
                not_equal.add(file.path, file.status, file.size)
        unreadable += found.unreadable
    if nothing and len(nothing) == len(requests):
        raise nothing[0]
    if requests[0].patterns and not counts and not unreadable:
        path = requests[0].patterns[0].path
        raise NothingMatchedError(
            f"{path}: no file matches, neither here nor in the container", hint=ABOUT_PATTERNS, path=path
        )
    many = ManyComparedFiles(not_equal)
    files = many if not_equal.is_on_disk else tuple(many)
    return VerifyReport(dict(counts), files, bytes_equal, tuple(unreadable), dict(compared_by))


def both_sides(request: Request, emit: Emit) -> tuple[Survey, Iterator[Pair]]:
    """Survey both ends; the local file is the source of each pair, even if only the container has files.

    Raises ``NothingMatchedError`` if neither has any. The listing is remembered.
    """
    try:
        found = survey(request, emit)
        turned = False
    except NothingMatchedError:
        request = request._replace(part=request.part.turned_round())
        try:
            found = survey(request, emit)
        except NothingMatchedError as neither:
            part = request.part
            what = "folder" if request.folder_only else "file or folder"
            neither.message = f"{part.path}: no such {what}, neither here nor in the container, {part.source}"
            neither.nearby = look_nearby(part.path, part.key.path, part.destination, part.source)
            remember_nothing(request, neither)
            raise
        turned = True
    remember(request, found)
    if not turned:
        return found, found.pairs
    return found, (pair._replace(source=pair.destination, destination=pair.source) for pair in found.pairs)


def _classify_all(request: Request, pairs: Iterator[Pair], *, deep: bool) -> Iterator[ComparedFile]:
    if not deep:
        for pair in pairs:
            yield from _one(request, pair, classify(pair), _known_by(pair))
        return
    threads = max(4, os.cpu_count() or 2)
    for pair, status in side_by_side(lambda pair: (pair, _classify_deep(request, pair)), pairs, threads):
        yield from _one(request, pair, status, "content")


def _one(request: Request, pair: Pair, status: str | None, compared_by: str) -> Iterator[ComparedFile]:
    if status is not None:
        state = pair.source or pair.destination
        shown = below(request.part.path, pair.path)
        yield ComparedFile(shown, status, state.size if state else 0, compared_by if status == "equal" else "")


def _known_by(pair: Pair) -> str:
    """By what an equal pair is known to be equal."""
    local, remote, record = pair.source, pair.destination, pair.record
    if local is None or remote is None:
        return ""
    if record is not None and not any(changes_since_verified(local, remote, record)):
        return "record"
    return CRC64 if local.md5 is None or remote.md5 is None else "md5"


def classify(pair: Pair) -> str | None:
    """The class of one pair (the local file is its source); None for entries that take no part."""
    local, remote, record = pair.source, pair.destination, pair.record
    if local is None or remote is None:
        if local is None and remote is None:
            return None if pair.left_out is None else "left_out"
        return "local_only" if remote is None else "remote_only"
    equal = known_equal(local, remote, record)
    if equal:
        return "equal"
    if record is None:
        return "unknown" if equal is None else "differs"
    here, there = changes_since_verified(local, remote, record)
    if here and there:
        return "differs"
    return "changed_here" if here else "changed_there"


def _classify_deep(request: Request, pair: Pair) -> str | None:
    if pair.source is None or pair.destination is None:
        return classify(pair)
    # Of a lock's files the MD5 is all that there is.
    remote = _read_remote(request, pair) if request.remembered is None else pair.destination
    local = _read_local(request, pair)
    if local is None or remote is None:
        return "unreadable"
    believed = pair.destination.md5
    if believed is not None and believed != remote.md5:
        return "damaged"
    return classify(pair._replace(source=local, destination=remote))


def _read_local(request: Request, pair: Pair) -> FileState | None:
    end = request.part.source
    if not isinstance(end, LocalLocation) or not isinstance(pair.source, LocalState):
        return None
    # A separate stat: the record must not apply to the bytes that were just read.
    state = hash_file(end.at(pair.path))
    return None if state is None else replace(state, mtime_ns=-1)


def _read_remote(request: Request, pair: Pair) -> FileState | None:
    end, state = request.part.destination, pair.destination
    if not isinstance(end, OpenBlob) or not isinstance(state, RemoteState):
        return None
    try:
        return replace(state, md5=blob_md5(end, pair.path, state.etag))
    except BlobsyncError:
        return None
