"""Lists both ends once, and pairs up their files. A PATH that is a file and a folder at once is refused here.

The local side is walked while the first pages of the listing arrive. Files are read for their MD5 only if sizes are
equal and there is no valid record.

Each pair gets its record in the index, and the missing checksums that the decision needs: the CRC64s that the index
knows of blobs without an MD5, what a source outside Azure says of an object, and those of local files.

Listings are stored, so that ``status`` works without a new one.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import (
    FailureCode,
    FileFailure,
    LocalFileError,
    NothingMatchedError,
    ShapeConflictError,
    StorageError,
)
from blobsync.base.events import Emit, Hashing, Looked, ignore
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation, is_source, reaches_another
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.files import SourceFile, hash_file, reading_threads
from blobsync.local.index import PairIndex
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.names import OWN_BLOBS, is_temporary, local_problem
from blobsync.local.os_errors import ChangedWhileReadError, where_to_look
from blobsync.local.resume_records import BlockJournal
from blobsync.local.sorted_runs import Spill, Spool
from blobsync.plan.blocks import ONE_REQUEST, digests_of
from blobsync.plan.left_out_files import FAULTS, IN_THE_WAY, ExcludedFiles, Exclusion, LeftOut, left_out_message
from blobsync.plan.name_clashes import blob_hint, both_hint
from blobsync.plan.pairing import HeldFiles, Pair, is_as_recorded, needs_local_md5, source_is_near
from blobsync.plan.parallel_listing import list_wide
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Route, Shape
from blobsync.plan.wildcards import PathPattern
from blobsync.store.open_locations import OpenBlob, OpenLocation, with_md5
from blobsync.store.protocol import BlobInfo, BlobSource

if TYPE_CHECKING:
    from blobsync.store.checksums import JoinedCrc64

_BATCH = 2000
_HEAD_THREADS = 16
_RESTORE = "restore it with the service's own tools, then run the same command again; --exclude leaves it out"


def complete(
    pairs: Iterator[Pair],
    part: LivePart,
    records: PairIndex,
    compare_content: bool,
    emit: Emit = ignore,
    stop: StopRequest = NEVER,
    now_ns: Callable[[], int] = time.time_ns,
    journal: BlockJournal | None = None,
) -> Iterator[Pair]:
    """Add each pair's record, and the checksums that are needed to decide, a batch at a time.

    ``compare_content``: blobs without an MD5 are read if their size does not decide. ``emit`` gets a ``Looked`` for
    names, and a ``Hashing`` for files that are read; ``stop`` ends the reading; ``now_ns`` is the clock of file times;
    ``journal`` knows the blocks of what this project wrote.
    """
    threads = reading_threads()
    while batch := list(islice(pairs, _BATCH)):
        stop.check()
        emit(Looked(len(batch)))
        batch = _with_known_crc64s(_with_records(batch, part, records), part, records)
        if is_source(part.source.location if isinstance(part.source, OpenBlob) else part.source):
            batch = list(side_by_side(partial(_with_said_checksums, part), batch, _HEAD_THREADS, stop))
        unknown = [at for at, pair in enumerate(batch) if needs_local_md5(pair, part.route)]
        size = sum(_near(batch[at], part).size for at in unknown)
        if unknown:
            emit(Hashing(len(unknown), size))
        look = partial(_with_local_checksums, part, journal, now_ns)
        read = side_by_side(look, [batch[at] for at in unknown], threads, stop)
        for at, pair in zip(unknown, read, strict=True):
            batch[at] = pair
        if unknown:
            emit(Hashing(-len(unknown), -size))
        if compare_content:
            batch = list(side_by_side(partial(_with_remote_md5, part), batch, threads, stop))
        yield from batch


def _with_records(batch: list[Pair], part: LivePart, records: PairIndex) -> list[Pair]:
    both = [pair for pair in batch if pair.source is not None and pair.destination is not None]
    paths = [pair.path for pair in both]
    at = dict(zip(paths, part.key.each_at(paths), strict=True))
    known = records.get(list(at.values()))
    # Not `replace`: this line runs once for each file of an unchanged tree.
    return [
        Pair(pair.path, pair.source, pair.destination, known.get(at[pair.path])) if pair.path in at else pair
        for pair in batch
    ]


def _with_known_crc64s(batch: list[Pair], part: LivePart, records: PairIndex) -> list[Pair]:
    """Add the CRC64s of blobs without an MD5, as far as the index knows them."""
    for end, is_source_end in ((part.source, True), (part.destination, False)):
        if not isinstance(end, OpenBlob):
            continue
        unknown: dict[str, tuple[int, RemoteState]] = {}
        for at, pair in enumerate(batch):
            state = pair.source if is_source_end else pair.destination
            if isinstance(state, RemoteState) and state.md5 is None:
                unknown[end.at(pair.path)] = at, state
        known = known_crc64s(end, records, {name: state.etag for name, (_, state) in unknown.items()})
        for name, crc64 in known.items():
            at, state = unknown[name]
            found = replace(state, crc64=crc64)
            batch[at] = batch[at]._replace(source=found) if is_source_end else batch[at]._replace(destination=found)
    return batch


def _new_crc64() -> "JoinedCrc64 | None":
    from blobsync.store.checksums import new_crc64  # late: few blobs have one

    return new_crc64()


def known_crc64s(
    end: OpenBlob, records: PairIndex, etags: Mapping[str, str], new: "Callable[[], JoinedCrc64 | None]" = _new_crc64
) -> Mapping[str, bytes]:
    """The CRC64s that the index knows of these versions, by name. None if ``new`` computes none: what nothing here can
    be compared with is not worth reading a file."""
    found = records.checksums(str(end.store.container)).get(etags)
    return found if found and new() is not None else {}


def _with_said_checksums(part: LivePart, pair: Pair) -> Pair:
    """Ask a source outside Azure for the MD5 and the CRC64 of an object that may be equal: its listing has none."""
    source, there, end = pair.source, pair.destination, part.source
    assert isinstance(end, OpenBlob)
    if not isinstance(source, RemoteState) or there is None or source.size != there.size or source.md5 is not None:
        return pair
    record = pair.record
    if record is not None and is_as_recorded(source, record.near if source_is_near(part.route) else record.remote):
        return pair
    with suppress(StorageError):
        found = end.store.head(end.at(pair.path))
        if found is not None and (found.size, found.etag) == (source.size, source.etag):
            from blobsync.store.checksums import crc64_in  # late: only for sources

            return pair._replace(source=replace(source, md5=found.md5, crc64=crc64_in(found.checksum)))
    return pair


def _near(pair: Pair, part: LivePart) -> LocalState:
    state = pair.source if source_is_near(part.route) else pair.destination
    assert isinstance(state, LocalState)
    return state


# Changes of a file within one tick of its file system's clock do not show in its times; the coarsest ticks every 2 s.
_TICK_NS = 2_000_000_000


def _with_local_checksums(part: LivePart, journal: BlockJournal | None, now_ns: Callable[[], int], pair: Pair) -> Pair:
    near = source_is_near(part.route)
    end, other = (part.source, pair.destination) if near else (part.destination, pair.source)
    state, there = _near(pair, part), part.destination
    assert isinstance(end, LocalLocation)
    assert other is not None
    is_settled = now_ns() - max(state.mtime_ns, state.ctime_ns) > _TICK_NS
    known = b""
    if journal is not None and is_settled and isinstance(there, OpenBlob) and isinstance(other, RemoteState):
        known = journal.digests(str(there.child(pair.path)), other.etag) if state.size > ONE_REQUEST else b""
    if known:
        # If it has changed it is sent in blocks, and only those are read again that the service lacks.
        hashed = _hash_with_blocks(end.at(pair.path), state, known)
    else:
        hashed = _hash_file(end.at(pair.path), state, with_crc64=other.crc64 is not None)
    return pair._replace(source=hashed) if near else pair._replace(destination=hashed)


def _hash_file(file: Path, state: LocalState, *, with_crc64: bool) -> LocalState:
    """The state with its checksums; unchanged if the file cannot be read or has changed meanwhile."""
    hashed = hash_with_crc64(file) if with_crc64 else hash_file(file)
    return hashed if hashed is not None and hashed.same_file(state) else state


def _hash_with_blocks(file: Path, state: LocalState, known: bytes) -> LocalState:
    """As :func:`_hash_file`, with the blocks; ``known`` as of ``digests_of``."""
    with suppress(LocalFileError, ChangedWhileReadError), closing(SourceFile(file, state)) as source:
        digests = digests_of(source.read_at, state.size, known)
        source.check_unchanged()
        return replace(state, md5=digests[:16], blocks=digests[16:])
    return state


def hash_with_crc64(file: Path, new: "Callable[[], JoinedCrc64 | None]" = _new_crc64) -> LocalState | None:
    """As :func:`blobsync.local.files.hash_file`, with the CRC64, too, if ``new`` computes one."""
    crc64 = new()
    if crc64 is None:
        return hash_file(file)
    hashed = hash_file(file, also=crc64.update)
    return hashed and replace(hashed, crc64=crc64.digest())


def _is_on_record(pair: Pair, route: Route) -> bool:
    """Whether the record is about the blob's present version."""
    blob = pair.destination if source_is_near(route) else pair.source
    assert blob is not None
    return pair.record is not None and is_as_recorded(blob, pair.record.remote)


def _with_remote_md5(part: LivePart, pair: Pair) -> Pair:
    """Read blobs that have no MD5, if their size does not decide."""
    if pair.source is None or pair.destination is None or _is_on_record(pair, part.route):
        return pair
    if pair.source.size != pair.destination.size:
        return pair
    source = _read_content(part.source, pair.path, pair.source)
    destination = _read_content(part.destination, pair.path, pair.destination)
    return pair._replace(source=source, destination=destination)


def _read_content(end: OpenLocation, path: str, state: FileState) -> FileState:
    if isinstance(end, OpenBlob):
        return with_md5(end, path, state)
    assert isinstance(state, LocalState)
    return state if state.md5 is not None else _hash_file(end.at(path), state, with_crc64=False)


# A path with its state, or with the reason and detail why it is left out.
Entry = tuple[str, FileState | None, Reason | None, str]


class Request(NamedTuple):
    """The ends of one part to look at, and how.

    ``folder_only``: the user wrote a trailing ``/``. ``wanted`` is whether a relative path takes part (``""``: the file
    that the part is); ``selective``: the command selects paths, so that it does not see the whole folder. ``apart`` is
    whether a path belongs to another part, ``covered`` whether such a path is hidden at the destination; ``ignored`` is
    whether the folder entry ignores it. ``patterns`` are PATHs that may match its files. ``remembered`` is used in
    place of the container. ``records`` are those of the index between the roots of the part's key. ``spill`` limits the
    files in memory.
    """

    part: LivePart
    links: LinkPolicy
    records: PairIndex
    folder_only: bool = False
    wanted: Callable[[str], bool] | None = None
    compare_content: bool = False
    selective: bool = False
    ignored: Callable[[str], bool] | None = None
    apart: Callable[[str], bool] | None = None
    covered: Callable[[str], bool] | None = None
    patterns: tuple[PathPattern, ...] = ()
    remembered: BlobSource | None = None
    clock: Callable[[], float] = time.monotonic
    spill: Spill = Spill()
    stop: StopRequest = NEVER
    journal: BlockJournal | None = None

    @property
    def chooses(self) -> bool:
        """Whether some files may be excluded."""
        return self.wanted is not None or self.ignored is not None or self.apart is not None


class Survey:
    """Both ends of one PATH. ``pairs`` can be iterated once; the counts are complete after that.

    ``blocked`` are links at the destination that files must not be written through. ``followed`` are the local links
    that count as their targets, with their real paths. ``excluded`` are excluded files at the destination.
    """

    def __init__(
        self, shape: Shape, *, followed: Mapping[str, str], round_trips: list[float], not_chosen: Spool
    ) -> None:
        self.shape = shape
        self.pairs: Iterator[Pair] = iter(())
        self.source_files = 0
        self.destination_files = 0
        # Whether the patterns of a selective command choose a name at the source, be it ignored or unreadable.
        self.has_chosen = False
        # The patterns that match one of these.
        self.matched: set[str] = set()
        # Of the source.
        self.ignored = 0
        self.unreadable: list[FileFailure] = []
        self.warnings: list[str] = []
        # Excluded names at the destination: what is written must not clash with them.
        self.not_chosen = not_chosen
        # A tool that lists the source itself would find more than the pairs.
        self.has_hidden = False
        self.blocked: list[FileFailure] = []
        self.followed = followed
        self.excluded = ExcludedFiles()
        # In seconds, one for each end that is a container.
        self.round_trips = round_trips


class _Side(NamedTuple):
    """The content of one end: a file, or the entries of a folder (empty if it does not exist).

    While the entries are iterated, ``hidden`` gets the blobs that contain no data although they look like it, and
    ``unsafe`` those that a request for their names would not reach, and ``archived`` objects outside Azure that nobody
    can read now, with the reasons.
    """

    file: FileState | None
    entries: Iterator[Entry]
    is_folder: bool
    hidden: Sequence[str] = ()
    unsafe: Mapping[str, str] = MappingProxyType({})
    archived: Mapping[str, str] = MappingProxyType({})
    followed: Mapping[str, str] = MappingProxyType({})
    round_trip: float | None = None


def survey(request: Request, emit: Emit) -> Survey:
    """Look at both ends. ``emit`` gets a ``Looked`` for names, and a ``Hashing`` for files that are read.

    Raises ``NothingMatchedError`` if the source does not exist, ``ShapeConflictError`` if one side is a file and the
    other a folder, and the store's errors.
    """
    looks = [Ahead(_look_at, end, request) for end in (request.part.source, request.part.destination)]
    source, destination = (look.result(request.stop) for look in looks)
    shape = _shape(request, source, destination)
    # Filled while the entries are read; still empty here.
    near = source if isinstance(request.part.source, LocalLocation) else destination
    trips = [side.round_trip for side in (source, destination) if side.round_trip is not None]
    not_chosen = Spool(request.spill)
    found = Survey(shape, followed=near.followed, round_trips=trips, not_chosen=not_chosen)
    if shape is Shape.FILE:
        if request.wanted is None or request.wanted(""):
            _note_chosen(request, found, request.part.path)
        found.source_files = int(found.has_chosen)
        found.destination_files = int(destination.file is not None)
        pairs: Iterator[Pair] = iter([Pair("", source.file, destination.file)][: found.source_files])
        _note_odd(request, source, destination, found)
    else:
        pairs = _pair_up(request, source, destination, found)
    found.pairs = complete(
        pairs, request.part, request.records, request.compare_content, emit, request.stop, journal=request.journal
    )
    return found


def _note_odd(request: Request, source: _Side, destination: _Side, found: Survey) -> None:
    """Add warnings that are known only after both ends were iterated."""
    found.has_hidden = bool(source.hidden)
    for path, why in source.unsafe.items():
        shown = f"{request.part.path}/{path}"
        hint = "its owner can store it under another name"
        found.blocked.append(FileFailure(shown, FailureCode.NAMES_UNSAFE, f"left out: its name {why}", hint))
    for path, why in source.archived.items():
        shown = f"{request.part.path}/{path}"
        found.unreadable.append(FileFailure(shown, FailureCode.UNREADABLE, f"left out: {why}", _RESTORE))
    for path, why in destination.unsafe.items():
        found.warnings.append(f"{request.part.path}/{path} at the destination: left alone, its name {why}")


def _shape(request: Request, source: _Side, destination: _Side) -> Shape:
    if source.file is not None and source.is_folder:
        shown, end = request.part.path, request.part.source
        said = f"{shown} is both a blob and a folder at the source: {end} and {end}/..."
        raise ShapeConflictError(said, hint=both_hint(shown), path=shown)
    if source.file is None and not source.is_folder:
        from blobsync.plan.path_suggestions import look_nearby

        what = "folder" if request.folder_only else "file or folder"
        blobs = "'blobsync ls' shows what is there, 'blobsync resolve PATH' where a path lives"
        raise NothingMatchedError(
            f"{request.part.path}: no such {what} at the source, {request.part.source}",
            hint=where_to_look(request.part.source.path) if isinstance(request.part.source, LocalLocation) else blobs,
            path=request.part.path,
            nearby=look_nearby(request.part.path, request.part.key.path, request.part.source),
            elsewhere=destination.file is not None or destination.is_folder,
        )
    if source.file is not None:
        if destination.is_folder:
            raise _mixed(request.part.path, "a file at the source, but a folder", request.part.destination)
        return Shape.FILE
    if destination.file is not None:
        raise _mixed(request.part.path, "a folder at the source, but a file", request.part.destination)
    return Shape.FOLDER


def _mixed(shown: str, what: str, end: OpenLocation) -> ShapeConflictError:
    return ShapeConflictError(
        f"{shown} is {what} at the destination, {end}",
        hint=f"move one of the two out of the way, or use another path{blob_hint(shown, end, what)}",
        path=shown,
    )


def _look_at(end: OpenLocation, request: Request) -> _Side:
    if isinstance(end, LocalLocation):
        return _look_at_disk(end.path, request)
    return _look_at_blobs(end, request)


def _look_at_disk(root: Path, request: Request) -> _Side:
    try:
        status = os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return _Side(None, iter(()), is_folder=False)
    except OSError as error:
        raise LocalFileError(
            f"{request.part.path}: cannot read {root}: {error.strerror}",
            hint="check its permissions and those of the folders above it",
            path=request.part.path,
        ) from error
    if root.is_dir():
        from blobsync.local.tree import walk  # late: a file needs none

        followed: dict[str, str] = {}
        return _Side(None, walk(root, request.links, followed), is_folder=True, followed=followed)
    if request.folder_only:
        return _Side(None, iter(()), is_folder=False)
    if not root.is_file():
        raise LocalFileError(
            f"{request.part.path}: {root} is neither a file nor a folder",
            hint="move it away, or use another path",
            path=request.part.path,
        )
    return _Side(LocalState.of(status), iter(()), is_folder=False)


def _look_at_blobs(end: OpenBlob, request: Request) -> _Side:
    """HEAD of the exact name beside the first page of the folder: two requests, file or folder or both."""
    prefix = f"{end.name}/" if end.name else ""
    hidden: list[str] = []
    unsafe: dict[str, str] = {}
    archived: dict[str, str] = {}
    store = request.remembered or end.store
    blobs = store.list_blobs(prefix) if request.remembered else list_wide(end.store, prefix, request.spill)
    start = len(prefix)
    listing = (
        blob
        for blob in blobs
        if not (_is_archived(blob, request, archived, start) or _is_odd(blob, request, hidden, unsafe, start))
    )
    began = request.clock()
    head = Ahead(store.head, end.name) if end.name and not request.folder_only else None
    first = list(islice(listing, 1))
    blob = head.result() if head else None
    # The two run side by side, each on a connection of its own: a handshake (RFC 9293), one of TLS 1.3, the answer.
    trips = 3 if str(end).startswith("https:") else 2
    round_trip = None if request.remembered else (request.clock() - began) / trips
    file = None if blob is None or blob.is_folder_stub else _state(blob)
    if blob is not None and blob.archived:
        raise StorageError(f"{request.part.path}: {end.location} cannot be copied: {blob.archived}")
    entries = ((blob.name[start:], _state(blob), None, "") for blob in chain(first, listing))
    return _Side(*(file, entries, bool(first)), hidden=hidden, unsafe=unsafe, archived=archived, round_trip=round_trip)


def _is_archived(blob: BlobInfo, request: Request, archived: dict[str, str], start: int) -> bool:
    """Whether an object outside Azure has to be restored before it is read; ``archived`` gets it, if it takes part."""
    if not blob.archived:
        return False
    if _exclusion(request, blob.name[start:]) is None:
        archived[blob.name[start:]] = blob.archived
    return True


def _is_odd(blob: BlobInfo, request: Request, hidden: list[str], unsafe: dict[str, str], start: int) -> bool:
    """Whether a blob is no data: it only represents a folder (``hdi_isfolder``, or an empty ``name/``), or is ours; or
    one that a request would not reach, which ``unsafe`` gets, if it takes part.

    ``hidden`` gets those that azcopy would treat as data, or whose name (from ``start`` on) is not possible on a disk,
    and what the container keeps for blobsync itself.
    """
    if why := reaches_another(blob.name):
        hidden.append(blob.name)
        if _exclusion(request, blob.name[start:]) is None:
            unsafe[blob.name[start:]] = why
        return True
    if blob.is_folder_stub:
        if local_problem(blob.name[start:]):
            hidden.append(blob.name)
        return True
    # Called for each blob of a listing; almost no last part begins with a dot.
    last = blob.name.rfind("/") + 1
    if (blob.size == 0 and blob.name[-1:] == "/") or (
        blob.name[last : last + 1] == "." and is_temporary(blob.name[last:])
    ):
        hidden.append(blob.name)
        return True
    if blob.name.startswith(OWN_BLOBS):
        hidden.append(blob.name)
        return True
    return False


def _state(blob: BlobInfo) -> RemoteState:
    # Share one string between all blobs of a tier.
    return RemoteState(blob.size, blob.etag, blob.md5, sys.intern(blob.given_tier))


def _pair_up(request: Request, source: _Side, destination: _Side, found: Survey) -> Iterator[Pair]:
    """Read one side first (the local one, if any), and match the other while it is listed.

    So the listed side has blobs, of which none is left out.
    """
    held_is_source = source_is_near(request.part.route)
    left_out = LeftOut()
    mine, theirs = (source, destination) if held_is_source else (destination, source)
    held = _hold(request, mine.entries, found, left_out, is_source=held_is_source)
    streamed = _streamed(request, theirs.entries, found, is_source=not held_is_source)
    skips = bool(left_out.entries)
    for path, near, listed in held.matched(streamed):
        if skips and listed is not None and (why := left_out.hit(path)) is not None:
            pair = Pair(path, None, listed) if held_is_source else Pair(path, listed, None)
            yield pair._replace(left_out=why[0], detail=why[1])
            listed = None
            if near is None:
                continue
        yield Pair(path, near, listed) if held_is_source else Pair(path, listed, near)
    yield from _left_out_pairs(request, found, left_out)
    _note_odd(request, source, destination, found)


def _streamed(
    request: Request, entries: Iterable[Entry], found: Survey, *, is_source: bool
) -> Iterator[tuple[str, FileState | None]]:
    chooses, count = request.chooses, 0
    for path, state, _, _ in entries:
        if not chooses or _is_included(request, found, path, is_source=is_source):
            count += 1
            yield path, state
        elif not is_source:
            found.not_chosen.append(path)
    _count(found, count, is_source=is_source)


def _left_out_pairs(request: Request, found: Survey, left_out: LeftOut) -> Iterator[Pair]:
    """The pairs of entries that are left out, after all blobs were compared with them."""
    if source_is_near(request.part.route):
        # Those with a blob of their name are reported with it.
        for path, (reason, detail) in left_out.entries.items():
            if reason not in FAULTS and path not in left_out.named:
                yield Pair(path, None, None, left_out=reason, detail=detail)
    else:
        failures, warnings = left_out.stays_out(request.part.path)
        found.blocked += failures
        found.warnings += warnings


def _hold(
    request: Request, entries: Iterable[Entry], found: Survey, left_out: LeftOut, *, is_source: bool
) -> HeldFiles:
    held = HeldFiles(request.spill)
    chooses, count = request.chooses, 0
    for path, state, reason, detail in entries:
        if chooses and not _is_included(request, found, path, is_source=is_source):
            continue
        if state is None:
            assert reason is not None
            if is_source or reason in IN_THE_WAY:
                left_out.entries[path] = (reason, detail)
            _note(request, found, path, reason, detail, is_source=is_source)
            continue
        count += 1
        held.add(path, state)
    _count(found, count, is_source=is_source)
    return held


def _is_included(request: Request, found: Survey, path: str, *, is_source: bool) -> bool:
    why = _exclusion(request, path)
    if is_source and why in (None, Exclusion.IGNORED):
        _note_chosen(request, found, f"{request.part.path}/{path}")
    if why is None:
        return True
    if is_source:
        found.ignored += why is Exclusion.IGNORED
    elif why is not Exclusion.COVERED or (request.covered is not None and request.covered(path)):
        found.excluded.add(why, path)
    return False


def _note_chosen(request: Request, found: Survey, path: str) -> None:
    """Note that the command's patterns choose this name at the source, from the root."""
    found.has_chosen = True
    if len(found.matched) < len(request.patterns):
        found.matched |= {matches.path for matches in request.patterns if matches(path)}


def _exclusion(request: Request, path: str) -> Exclusion | None:
    if request.apart is not None and request.apart(path):
        return Exclusion.COVERED
    if request.wanted is not None and not request.wanted(path):
        return Exclusion.NOT_CHOSEN
    return Exclusion.IGNORED if request.ignored is not None and request.ignored(path) else None


def _count(found: Survey, count: int, *, is_source: bool) -> None:
    if is_source:
        found.source_files = count
    else:
        found.destination_files = count


def _note(request: Request, found: Survey, path: str, reason: Reason, detail: str, *, is_source: bool) -> None:
    """Record an entry that is left out: a failure if it should have been included, else a warning."""
    shown = f"{request.part.path}/{path}" if path else request.part.path
    if is_source:
        message = left_out_message(shown, reason, detail)
        if isinstance(message, FileFailure):
            found.unreadable.append(message)
        else:
            found.warnings.append(message)
    elif reason is Reason.UNREADABLE:
        found.warnings.append(f"{shown} at the destination: {reason.value} ({detail})")


def remember(request: Request, looked: Survey, now: Callable[[], float] = time.time) -> None:
    """Store the pairs of ``looked`` as a listing, after the last one.

    Only a listing of a whole folder shows what is missing, and a copy has no local side to compare with.
    """
    if _lists_everything(request):
        note = _noting if looked.shape is Shape.FOLDER else _noting_file
        looked.pairs = note(request, looked.pairs, now())


def remember_nothing(request: Request, nothing: NothingMatchedError, now: Callable[[], float] = time.time) -> None:
    """Store that the container has no such blobs, if that is why the survey raised ``nothing``."""
    if _lists_everything(request) and (not nothing.elsewhere or not source_is_near(request.part.route)):
        path, began = request.part.key.path, now()
        request.records.remember_listing(path, request.records.differences(path, request.spill), began)
        if not request.folder_only:
            request.records.remember_blob(path, None, began)


def _lists_everything(request: Request) -> bool:
    is_listing = request.remembered is None and not request.selective
    return request.part.route in (Route.UPLOAD, Route.DOWNLOAD) and is_listing


def _noting(request: Request, pairs: Iterator[Pair], began: float) -> Iterator[Pair]:
    key = request.part.key
    found = request.records.differences(key.path, request.spill)
    near = source_is_near(request.part.route)
    for pair in pairs:
        blob = pair.destination if near else pair.source
        if isinstance(blob, RemoteState):
            found.seen(key.at(pair.path), blob)
        yield pair
    request.records.remember_listing(key.path, found, began)


def _noting_file(request: Request, pairs: Iterator[Pair], began: float) -> Iterator[Pair]:
    near = source_is_near(request.part.route)
    for pair in pairs:
        blob = pair.destination if near else pair.source
        request.records.remember_blob(request.part.key.path, blob if isinstance(blob, RemoteState) else None, began)
        yield pair
