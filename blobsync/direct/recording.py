"""Puts on record which ranges of a download have landed, once the download takes long enough for that to be worth it.

A download that is over sooner costs nothing more than without, and leaves nothing when it is killed: its part file has
no name then, and no range is hashed twice. What landed before is put on record afterwards, little by little.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import RemoteState
from blobsync.direct.reads import CHUNK
from blobsync.local.part_files import PartFile
from blobsync.local.range_records import RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload

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
