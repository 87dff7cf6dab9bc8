"""Downloads one large blob: ranges side by side into a part file, hashed as they arrive; then the file gets its name.

A run that is killed leaves the part file and a record of its ranges; the next run checks them and fetches the rest.
Blocks that the local version has at the same place are copied from there. Ranges are recorded only once the download
takes long enough for that to be worth it: a download that ends sooner costs nothing more, and leaves nothing when it
is killed, because its part file has no name until then. What arrived before is recorded afterwards, little by little.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from blobsync.base.errors import ChecksumError, LocalFileError
from blobsync.base.file_states import RemoteState
from blobsync.direct.download import demand_md5
from blobsync.direct.download_blocks import KnownBlock, known_blocks
from blobsync.direct.pool import FileJob, RunState, Stopped
from blobsync.direct.reads import CHUNK, read_range, version_of
from blobsync.local.errors import ChangedWhileReadError
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import RelativeName, relative_name
from blobsync.local.part_files import KeptName, PartFile
from blobsync.local.range_records import RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobStore
from blobsync.transfer.engines import Moved


class Piece(NamedTuple):
    """So many bytes from ``start`` on. ``recorded`` are ranges that fill it and were written before.

    ``sha256`` is what the bytes have if they are a whole block: the version before may have it at the same place.
    """

    start: int
    length: int
    recorded: tuple[RecordedRange, ...] = ()
    sha256: bytes | None = None


def pieces_of(
    size: int, piece: int, recorded: Iterable[RecordedRange] = (), blocks: Sequence[KnownBlock] = ()
) -> list[Piece]:
    """A file of ``size`` bytes in its order, in pieces of ``piece`` bytes or less; one for an empty file.

    ``recorded`` are in that order as well, and none is over another. ``blocks``, if there are any, are all of the
    file, and no piece goes over their edges; each that is whole is one piece, whatever its length.
    """
    found: list[Piece] = []
    at = 0
    for group in _groups(recorded, piece):
        start, end = group[0].start, group[-1].start + group[-1].length
        found += _cut(at, start, piece, blocks)
        found.append(Piece(start, end - start, group))
        at = end
    found += _cut(at, size, piece, blocks)
    return found or [Piece(0, 0)]


def _cut(start: int, end: int, piece: int, blocks: Sequence[KnownBlock]) -> Iterator[Piece]:
    if not blocks:
        yield from _even(start, end, piece)
    else:
        first = bisect_right(blocks, start, key=lambda each: each.start) - 1
        behind = bisect_left(blocks, end, key=lambda each: each.start)
        for block in blocks[first:behind]:
            if start <= block.start and block.start + block.length <= end:
                yield Piece(block.start, block.length, sha256=block.sha256)
            else:
                yield from _even(max(start, block.start), min(end, block.start + block.length), piece)


def _even(start: int, end: int, piece: int) -> Iterator[Piece]:
    return (Piece(at, min(piece, end - at)) for at in range(start, end, piece))


def _groups(recorded: Iterable[RecordedRange], piece: int) -> Iterator[tuple[RecordedRange, ...]]:
    """Neighbours together, as long as they are no longer than a piece."""
    group: list[RecordedRange] = []
    for each in recorded:
        if group and (
            group[-1].start + group[-1].length != each.start or each.start + each.length - group[0].start > piece
        ):
            yield tuple(group)
            group = []
        group.append(each)
    if group:
        yield tuple(group)


# How many ranges that landed earlier are put on record with each piece that lands.
_CATCH_UP = 3

# About so many lines in a record at most; of smaller files each range has a MiB.
_MOST_LINES = 100_000

_NEVER = math.inf


class Recording:
    """What has landed in one part file. For any thread."""

    def __init__(
        self,
        part: PartFile,
        size: int,
        start: Callable[[], RangeRecord | None],
        after: float,
        *,
        resumed: RangeRecord | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``start`` makes the record when ``after`` seconds have passed; None: there is to be none.

        ``resumed`` is the record of an earlier run, which this one goes on with.
        """
        self.grain = max(CHUNK, -(-size // _MOST_LINES))
        self.record = resumed
        self._part = part
        self._start = start
        self._clock = clock
        self._due = clock() + after
        self._lock = threading.Lock()
        self._landed: deque[tuple[int, int]] = deque()

    def range_at(self, start: int) -> LandingRange:
        """What one thread writes from ``start`` on."""
        return LandingRange(self, start)

    def is_on(self) -> bool:
        """Whether ranges are put on record now; begins with it when it is time."""
        return self._on() is not None

    def add(self, start: int, length: int, sha256: bytes) -> None:
        """These bytes have been written, or were there; without a record nothing says so."""
        record = self._on()
        if record is not None:
            record.add(RecordedRange(start, length, sha256))

    def lost(self, found: RecordedRange) -> None:
        """A range on record is not there any more."""
        if self.record is not None:
            self.record.lost(found)

    def later(self, start: int, length: int) -> None:
        """These bytes have been written, unhashed."""
        self._landed.append((start, length))

    def catch_up(self) -> None:
        """Put some of them on record, when it is time for that."""
        if not self.is_on():
            return
        for _ in range(_CATCH_UP):
            try:
                start, length = self._landed.popleft()
            except IndexError:
                return
            digest = hashlib.sha256()
            for data in self._part.chunks(start, length, CHUNK):
                digest.update(data)
            self.add(start, length, digest.digest())

    def _on(self) -> RangeRecord | None:
        if self.record is None and self._clock() >= self._due:
            with self._lock:
                if self._due != _NEVER:
                    self._due = _NEVER
                    self.record = self._start()
        return self.record


class LandingRange:
    """One range as it is written, front to back, by one thread."""

    def __init__(self, recording: Recording, start: int) -> None:
        self._recording = recording
        self._start = start
        self._length = 0
        self._digest = hashlib.sha256()
        self._hashed = recording.is_on()

    def wrote(self, data: bytes) -> None:
        """So much more, directly behind what was written before."""
        if not self._hashed and self._recording.is_on():
            self.end()
            self._hashed = True
            self._recording.catch_up()
        self._length += len(data)
        if self._hashed:
            self._digest.update(data)
            if self._length >= self._recording.grain:
                self.end()

    def end(self) -> None:
        """Nothing more follows, or nothing that belongs to this line of the record."""
        if self._length and self._hashed:
            self._recording.add(self._start, self._length, self._digest.digest())
        elif self._length:
            self._recording.later(self._start, self._length)
        self._start += self._length
        self._length = 0
        self._digest = hashlib.sha256()


def start_record(
    records: RangeRecords, part: PartFile, destination: str, blob: str, version: RemoteState
) -> RangeRecord | None:
    """A record for a part file, which gets a name; None where another process has one, or none can be made.

    ``destination`` is the path that the file will have, ``blob`` the URL of what it is fetched from, without a SAS.
    """
    record = records.take(destination, make=True)
    if record is None:
        return None
    with suppress(LocalFileError):
        kept = part.keep()
        if record.begin(UnfinishedDownload(destination, blob, version.etag, version.size, kept.name, kept.inode)):
            return record
    record.remove()
    return None


# After these nothing that has landed is worth keeping: wrong bytes, another version, a disk that is full.
_SPOILING = (ChecksumError, ChangedWhileReadError, LocalFileError)


class OrderedHash:
    """MD5 of a file whose pieces are written in any order; each piece is hashed once, in the file's order."""

    def __init__(self, part: PartFile, pieces: Sequence[Piece]) -> None:
        self._part = part
        self._pieces = pieces
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._lock = threading.Lock()
        self._landed: set[int] = set()
        self._next = 0
        self._at_work = False

    def landed(self, index: int) -> None:
        """Piece ``index`` is written. Hashes what can be hashed now, unless another thread is at it."""
        with self._lock:
            self._landed.add(index)
            if self._at_work:
                return
            piece = self._take()
        while piece is not None:
            # From the page cache: these bytes were written a moment ago.
            for data in self._part.chunks(piece.start, piece.length, CHUNK):
                self._md5.update(data)
            with self._lock:
                piece = self._take()

    def digest(self) -> bytes:
        """Once every piece has landed."""
        return self._md5.digest()

    def _take(self) -> Piece | None:
        """The next piece in the file's order, if it has landed."""
        self._at_work = self._next in self._landed
        if not self._at_work:
            return None
        self._next += 1
        return self._pieces[self._next - 1]


class LargeDownloadJob(FileJob):
    """The file appears under its name only when its length, and its MD5 where the blob has one, are right."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        store: BlobStore,
        name: str,
        folder: LocalFolder,
        relative: str,
        piece: int,
        records: RangeRecords | None = None,
    ) -> None:
        """``piece`` is the length of a request in bytes. Without ``records`` a run that is killed leaves nothing."""
        super().__init__(run, action)
        self._store = store
        self._name = name
        self._folder = folder
        self._relative = relative
        self._piece = piece
        self._records = records
        self._part: PartFile | None = None
        self._before: SourceFile | None = None
        self._told = False

    def open(self) -> int:
        self._version = version_of(self._store, self._name, self.action)
        self._spoiled = False
        relative = relative_name(self._relative)
        left = self._left(relative)
        self._part, record = left or (self._folder.create(relative, self._version.size), None)
        # Once the MD5 was wrong, the ids of the blocks are believed no more.
        expected = self.action.destination if self.attempt == 1 else None
        self._before = self._folder.version_before(relative, expected)
        blocks = known_blocks(self._store, self._name, self._version) if self._before is not None else ()
        self._pieces = pieces_of(self._version.size, self._piece, record.ranges if record else (), blocks)
        after = self._records.worth_seconds if self._records else math.inf
        self._recording = Recording(self._part, self._version.size, self._start_record, after, resumed=record)
        self._hash = OrderedHash(self._part, self._pieces)
        self._index = itertools.count()
        return len(self._pieces)

    def piece(self) -> None:
        index = next(self._index)
        piece = self._pieces[index]
        try:
            if piece.recorded:
                self._check(piece.recorded)
            elif not self._reuse(piece):
                self._fetch(piece.start, piece.length)
            self._hash.landed(index)
            self._recording.catch_up()
        except _SPOILING:
            self._spoiled = True
            raise

    def commit(self) -> Moved:
        try:
            md5 = self._hash.digest()
            demand_md5(self._name, self._version, md5)
            expected = self.action.destination if self.action.target is None else None
            state = self._opened.commit(expected, md5)
        except BaseException:
            self._spoiled = True
            raise
        if self._recording.record is not None:
            self._recording.record.remove()
            self._recording.record = None
        source = RemoteState(self._version.size, self._version.etag, md5)
        return Moved(self.action, source=source, destination=state, reused=self.reused)

    def release(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        if self._before is not None:
            self._before.close()
        record = self._recording.record
        if self._keeps(record):
            part.leave()
        else:
            part.discard()
        if record is not None:
            record.close()

    def abandon(self) -> None:
        part = self._part
        if part is not None and not self._keeps(self._recording.record):
            part.abandon()

    @property
    def _opened(self) -> PartFile:
        assert self._part is not None, "not open"
        return self._part

    @property
    def _blob(self) -> str:
        return str(self._store.container.blob(self._name))

    def _check(self, recorded: Sequence[RecordedRange]) -> None:
        """Count what an earlier run left if it is still there, and fetch it if it is not."""
        for each in recorded:
            if self.run.stop.is_set():
                raise Stopped
            if _holds(self._opened, each):
                self.count_reused(each.length)
            else:
                self._recording.lost(each)
                self._fetch(each.start, each.length)

    def _reuse(self, piece: Piece) -> bool:
        """Copy a block that the version before has at the same place; whether it has.

        That version may change between the two looks at it: the MD5 of the whole tells.
        """
        if piece.sha256 is None:
            return False
        before = self._before
        assert before is not None, "blocks are asked for only where there is a version before"
        digest = hashlib.sha256()
        try:
            for at in range(piece.start, piece.start + piece.length, CHUNK):
                if self.run.stop.is_set():
                    raise Stopped
                digest.update(before.read_at(at, min(CHUNK, piece.start + piece.length - at)))
        except (LocalFileError, ChangedWhileReadError):
            return False
        same = digest.digest() == piece.sha256
        if not same or not self._opened.copy_from(before.fd, piece.start, piece.length):
            return False
        self._recording.add(piece.start, piece.length, piece.sha256)
        self.count_reused(piece.length)
        return True

    def _fetch(self, start: int, length: int) -> None:
        landing = self._recording.range_at(start)
        try:
            for data in read_range(self._store, self._name, self._version, start, length):
                self.run.pace(len(data))
                self._opened.write_at(start, data)
                start += len(data)
                landing.wrote(data)
                self.count(len(data))
        finally:
            landing.end()

    def _left(self, relative: RelativeName) -> tuple[PartFile, RangeRecord] | None:
        """What an earlier run left of this version; what it left of another is removed."""
        record = self._records.take(self._folder.path_of(relative), make=False) if self._records else None
        if record is None:
            return None
        try:
            part = self._reopened(relative, record)
            if part is not None:
                if _holds(part, record.ranges[0]):
                    return part, record
                # Whatever it is, nothing of it was written by us: it is not the file to write to.
                part.discard()
        except BaseException:
            record.close()
            raise
        record.remove_with_part()
        return None

    def _reopened(self, relative: RelativeName, record: RangeRecord) -> PartFile | None:
        """The part file of a record that has ranges of this version, if it is there as it was left."""
        of, version = record.of, self._version
        if not record.ranges:
            return None
        assert of is not None, "ranges are of something"
        if not of.is_of(self._blob, version.etag, version.size):
            return None
        return self._folder.reopen(relative, version.size, KeptName(of.part, of.inode))

    def _start_record(self) -> RangeRecord | None:
        assert self._records is not None
        destination = self._folder.path_of(relative_name(self._relative))
        return start_record(self._records, self._opened, destination, self._blob, self._version)

    def _keeps(self, record: RangeRecord | None) -> bool:
        """Whether the next run goes on from here, which is told once; else the record is removed."""
        if record is None:
            return False
        if self._spoiled or not record.bytes:
            record.remove()
            return False
        if not self._told:
            self._told = True
            self.run.report.file_kept(self.action, record.bytes)
        return True


def _holds(part: PartFile, found: RecordedRange) -> bool:
    digest = hashlib.sha256()
    for data in part.chunks(found.start, found.length, CHUNK):
        digest.update(data)
    return digest.digest() == found.sha256
