"""Downloads one large blob: parallel ranges into a part file, hashed as they arrive; then the file gets its name.

A run that is killed leaves the part file and a record of its ranges; the next run verifies them and downloads the rest.
Blocks that the local version has at the same offset are copied from it. Recording starts only after the download has
run for a while: a shorter one has no extra cost and leaves nothing when it is killed, because its part file has no
name until then. Ranges that were written earlier are then recorded little by little.
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

from blobsync.base.errors import ChecksumError, LocalFileError
from blobsync.base.file_states import RemoteState
from blobsync.base.records import NamedTuple
from blobsync.direct.download import DownloadJob
from blobsync.direct.file_attributes import attributes_in
from blobsync.direct.range_reads import CHUNK, Content, KnownBlock, known_blocks, looked_up, read_range, version_of
from blobsync.direct.thread_pool import RunState, Stopped
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import RelativeName, relative_name
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.local.part_files import KeptName, PartFile
from blobsync.local.resume_records import RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.checksums import CRC32_BYTES, Crc32, Running
from blobsync.store.protocol import BlobReader, BlobStore
from blobsync.transfer.engines import Moved


class Piece(NamedTuple):
    """``length`` bytes from ``start`` on. ``recorded`` are the recorded ranges that fill it.

    ``sha256`` is the hash of a whole block, which the local version may have at the same offset; else None.
    """

    start: int
    length: int
    recorded: tuple[RecordedRange, ...] = ()
    sha256: bytes | None = None


def pieces_of(
    size: int, piece: int, recorded: Iterable[RecordedRange] = (), blocks: Sequence[KnownBlock] = ()
) -> list[Piece]:
    """Divides a file of ``size`` bytes into pieces of ``piece`` bytes or less, in order; an empty file has one.

    ``recorded`` is sorted, and its ranges do not overlap. ``blocks``, if there are any, cover the whole file, and no
    piece crosses their boundaries; a whole block is one piece, whatever its length.
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
    """Groups adjacent ranges, each group no longer than a piece."""
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


# How many ranges that were written earlier are recorded with each piece that is written.
_CATCH_UP = 3

# About the largest number of lines in a record; in smaller files each range has a MiB.
_MOST_LINES = 100_000

_NEVER = math.inf


class Recording:
    """Records which ranges of one part file are written. Thread-safe."""

    def __init__(
        self,
        part: PartFile,
        size: int,
        start: Callable[[], RangeRecord | None],
        after: float,
        *,
        compared: bool,
        resumed: RangeRecord | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``start`` creates the record after ``after`` seconds; it returns None if there is to be none.

        ``compared``: the whole file is compared with an MD5 in the end, so that a CRC32 of each range is enough.
        ``resumed`` is the record of an earlier run, which this one continues.
        """
        self.checksum: Callable[[], Running] = Crc32 if compared else hashlib.sha256
        self.grain = max(CHUNK, -(-size // _MOST_LINES))
        self.record = resumed
        self._part = part
        self._start = start
        self._clock = clock
        self._due = clock() + after
        self._lock = threading.Lock()
        self._landed: deque[tuple[int, int]] = deque()

    def is_on(self) -> bool:
        """Whether ranges are being recorded; starts the record when it is time."""
        return self._on() is not None

    def add(self, start: int, length: int, checksum: bytes) -> None:
        """Record bytes that are in the part file; does nothing without a record."""
        record = self._on()
        if record is not None:
            record.add(RecordedRange(start, length, checksum))

    def lost(self, found: RecordedRange) -> None:
        """Remove a range from the record that is no longer in the file."""
        if self.record is not None:
            self.record.lost(found)

    def later(self, start: int, length: int) -> None:
        """Note bytes that are written, to be hashed and recorded later."""
        self._landed.append((start, length))

    def catch_up(self) -> None:
        """Record some of the ranges noted earlier, if it is time for that."""
        if not self.is_on():
            return
        for _ in range(_CATCH_UP):
            try:
                start, length = self._landed.popleft()
            except IndexError:
                return
            self.add(start, length, _checksum_of(self._part, start, length, self.checksum()))

    def _on(self) -> RangeRecord | None:
        if self.record is None and self._clock() >= self._due:
            with self._lock:
                if self._due != _NEVER:
                    self._due = _NEVER
                    self.record = self._start()
        return self.record


class LandingRange:
    """One range, written in order by one thread."""

    def __init__(self, recording: Recording, start: int) -> None:
        self._recording = recording
        self._start = start
        self._length = 0
        self._checksum = recording.checksum()
        self._hashed = recording.is_on()

    def wrote(self, data: bytes) -> None:
        """Count data that was written directly after the previous data."""
        if not self._hashed and self._recording.is_on():
            self.end()
            self._hashed = True
            self._recording.catch_up()
        self._length += len(data)
        if self._hashed:
            self._checksum.update(data)
            if self._length >= self._recording.grain:
                self.end()

    def end(self) -> None:
        """End this line of the record."""
        if self._length and self._hashed:
            self._recording.add(self._start, self._length, self._checksum.digest())
        elif self._length:
            self._recording.later(self._start, self._length)
        self._start += self._length
        self._length = 0
        self._checksum = self._recording.checksum()


def start_record(
    records: RangeRecords, part: PartFile, destination: str, blob: str, version: RemoteState
) -> RangeRecord | None:
    """Name a part file and create its record; None if another process has one, or none can be created.

    ``destination`` is the final path of the file, ``blob`` the URL of its source, without a SAS.
    """
    with suppress(LocalFileError):
        kept = part.keep()
        return records.start(UnfinishedDownload(destination, blob, version.etag, version.size, kept.name, kept.inode))
    return None


# After these errors the written ranges are not worth keeping: wrong bytes, another version, a full disk.
_SPOILING = (ChecksumError, ChangedWhileReadError, LocalFileError)


class OrderedHash:
    """Hashes a file whose pieces are written in any order into ``content``; each once, in the file's order."""

    def __init__(self, part: PartFile, pieces: Sequence[Piece], content: Content) -> None:
        self._part = part
        self._pieces = pieces
        self._content = content
        self._lock = threading.Lock()
        self._landed: set[int] = set()
        self._next = 0
        self._at_work = False

    def landed(self, index: int) -> None:
        """Mark piece ``index`` as written. Hashes all that can be hashed now, unless another thread is doing so."""
        with self._lock:
            self._landed.add(index)
            if self._at_work:
                return
            piece = self._take()
        while piece is not None:
            # Read from the page cache: these bytes were written a moment ago.
            for data in self._part.chunks(piece.start, piece.length, CHUNK):
                self._content.update(data)
            with self._lock:
                piece = self._take()

    def _take(self) -> Piece | None:
        """The next piece in the file's order, if it is written."""
        self._at_work = self._next in self._landed
        if not self._at_work:
            return None
        self._next += 1
        return self._pieces[self._next - 1]


class LargeDownloadJob(DownloadJob):
    """As its base, in pieces."""

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
        super().__init__(run, action, store, name, folder, relative)
        self._piece = piece
        self._records = records
        self._before: SourceFile | None = None
        self._noted = False

    def open(self) -> int:
        self._version = version_of(self._store, self._name, self.action)
        self._spoiled = False
        relative = relative_name(self._relative)
        left = self._left(relative)
        self._part, record = left or (self._folder.create(relative, self._version.size), None)
        # After a wrong MD5 the ids of the blocks are no longer trusted.
        expected = self.action.destination if self.attempt == 1 else None
        self._before = self._folder.version_before(relative, expected)
        blocks = known_blocks(self._store, self._name, self._version) if self._before is not None else ()
        self._pieces = pieces_of(self._version.size, self._piece, record.ranges if record else (), blocks)
        after = self._records.worth_seconds if self._records else math.inf
        self._recording = Recording(
            self._part,
            self._version.size,
            self._start_record,
            after,
            compared=self._version.md5 is not None,
            resumed=record,
        )
        self._content = Content(self._store, self._version)
        if self._content.waits:
            self._content.expect(looked_up(self._store, self._name, self._version))
        self._hash = OrderedHash(self._part, self._pieces, self._content)
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

    def written(self) -> None:
        """Its MD5 is not known yet: :meth:`commit` notes it."""

    def commit(self) -> Moved:
        try:
            self._md5 = self._content.demand(self._name)
            self._dress()
            self.run.about_to_write((self.action, self._version.size, self._md5))
            moved = super().commit()
        except BaseException:
            self._spoiled = True
            raise
        if self._recording.record is not None:
            self._recording.record.remove()
        return moved

    def _dress(self) -> None:
        """Look for what the folder entry keeps of the file besides its content."""
        kept = self.run.task.part.kept

        def look(reader: BlobReader) -> None:
            self._opened.dress(*attributes_in(reader.properties.metadata, kept))

        if any(kept):
            list(read_range(self._store, self._name, self._version, 0, 1, opened=look))

    def release(self) -> None:
        part, self._part = self._part, None
        before, self._before = self._before, None
        if before is not None:
            before.close()
        if part is None:
            return
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
    def _blob(self) -> str:
        return str(self._store.container.child(self._name))

    def _check(self, recorded: Sequence[RecordedRange]) -> None:
        """Count the ranges of an earlier run that are still there, and download the others again."""
        for each in recorded:
            if self.run.stop.is_set():
                raise Stopped
            if _holds(self._opened, each):
                self.count_reused(each.length)
            else:
                self._recording.lost(each)
                self._fetch(each.start, each.length)

    def _reuse(self, piece: Piece) -> bool:
        """Copy a block that the local version has at the same offset; returns whether it has.

        That version may change while it is read: the MD5 of the whole file detects it.
        """
        if piece.sha256 is None:
            return False
        before = self._before
        assert before is not None, "blocks are asked for only where there is a version before"
        digest, checksum = hashlib.sha256(), self._recording.checksum()
        try:
            for at in range(piece.start, piece.start + piece.length, CHUNK):
                if self.run.stop.is_set():
                    raise Stopped
                data = before.read_at(at, min(CHUNK, piece.start + piece.length - at))
                digest.update(data)
                checksum.update(data)
        except (LocalFileError, ChangedWhileReadError):
            return False
        same = digest.digest() == piece.sha256
        if not same or not self._opened.copy_from(before.fd, piece.start, piece.length):
            return False
        self._recording.add(piece.start, piece.length, checksum.digest())
        self.count_reused(piece.length)
        return True

    def _fetch(self, start: int, length: int) -> None:
        landing = LandingRange(self._recording, start)
        try:
            for data in read_range(self._store, self._name, self._version, start, length):
                self.run.wait_for_rate(len(data))
                self._opened.write_at(start, data)
                start += len(data)
                landing.wrote(data)
                self.count(len(data))
        finally:
            landing.end()

    def _left(self, relative: RelativeName) -> tuple[PartFile, RangeRecord] | None:
        """The part file and record that an earlier run left of this version; those of another version are removed."""
        record = self._records.take(self._folder.path_of(relative)) if self._records else None
        if record is None:
            return None
        try:
            part = self._reopened(relative, record)
            if part is not None:
                if _holds(part, record.ranges[0]):
                    return part, record
                # The part file has no ranges of this version: do not write to it.
                part.discard()
        except BaseException:
            record.close()
            raise
        record.remove_with_part()
        return None

    def _reopened(self, relative: RelativeName, record: RangeRecord) -> PartFile | None:
        """The part file of a record with ranges of this version, if it exists unchanged."""
        of, version = record.of, self._version
        if not record.ranges or not of.is_of(self._blob, version.etag, version.size):
            return None
        return self._folder.reopen(relative, version.size, KeptName(of.part, of.inode))

    def _start_record(self) -> RangeRecord | None:
        assert self._records is not None
        destination = self._folder.path_of(relative_name(self._relative))
        return start_record(self._records, self._opened, destination, self._blob, self._version)

    def _keeps(self, record: RangeRecord | None) -> bool:
        """Whether the record is kept for the next run, which is reported once; else it is removed."""
        if record is None:
            return False
        if self._spoiled or not record.bytes:
            record.remove()
            return False
        if not self._noted:
            self._noted = True
            # This process may end before a thread that hangs comes back and closes it.
            record.save()
            self.run.report.file_kept(self.action, record.bytes)
        return True


def _holds(part: PartFile, found: RecordedRange) -> bool:
    checksum: Running = Crc32() if len(found.checksum) == CRC32_BYTES else hashlib.sha256()
    return _checksum_of(part, found.start, found.length, checksum) == found.checksum


def _checksum_of(part: PartFile, start: int, length: int, checksum: Running) -> bytes:
    for data in part.chunks(start, length, CHUNK):
        checksum.update(data)
    return checksum.digest()
