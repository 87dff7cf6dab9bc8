"""Which ranges of unfinished downloads are on the disk: a small file for each download, in the project's state folder.

The first line names the blob's version and the part file; each further line is one range with its SHA-256. A line is
written after its bytes, so that after a kill all recorded ranges are there. After a power failure they may not be, and
somebody may have changed the part file: a range counts only if its SHA-256 matches what is on
the disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from blobsync.base.errors import LocalFileError
from blobsync.base.plain_json import demand_types, parse_object
from blobsync.local.names import is_own_temporary
from blobsync.local.part_files import remove_leftover
from blobsync.local.state_dir import StateDir

FOLDER = "downloads"

# As long as the service keeps blocks that were never committed.
KEPT_SECONDS = 7 * 24 * 3600.0

# The most work on one file that a kill may cost, in seconds.
WORTH_SECONDS = 0.5

_VERSION = 1
_SUFFIX = ".ranges"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# More than any download writes; the rest is not read.
_MOST_BYTES = 32 << 20
_LINE = re.compile(rb"^([0-9a-f]{1,15}) ([0-9a-f]{1,15}) ([0-9a-f]{64})$", re.MULTILINE)


class RecordedRange(NamedTuple):
    """``length`` bytes from ``start`` on, and their SHA-256."""

    start: int
    length: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class UnfinishedDownload:
    """An unfinished download: ``destination`` is the file's path, ``blob`` the URL without a SAS.

    ``part`` is the name of the part file in the destination's folder, ``inode`` its inode.
    """

    destination: str
    blob: str
    etag: str
    size: int
    part: str
    inode: int

    @property
    def part_path(self) -> str:
        """The path of the part file."""
        return os.path.join(os.path.dirname(self.destination), self.part)

    def is_of(self, blob: str, etag: str, size: int) -> bool:
        """Whether the ranges are of this version of this blob."""
        return (self.blob, self.etag, self.size) == (blob, etag, size)


class RangeRecord:
    """The record of one download, locked while it is open; safe to use from several threads."""

    def __init__(self, fd: int, path: str) -> None:
        """Takes over ``fd``, which is locked."""
        self._fd = fd
        self._path = path
        self._lock = threading.Lock()
        self.of, self.ranges = _parsed(_content(fd))
        self.bytes = sum(each.length for each in self.ranges)

    def begin(self, of: UnfinishedDownload) -> bool:
        """Start a new record for ranges of ``of``; False if it cannot be written."""
        line = json.dumps({"blobsync_ranges": _VERSION, **asdict(of)}).encode() + b"\n"
        self.of, self.ranges, self.bytes = of, (), 0
        try:
            os.ftruncate(self._fd, 0)
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False

    def add(self, found: RecordedRange) -> None:
        """Record a range whose bytes were written. If that fails, the range is only fetched again."""
        line = f"{found.start:x} {found.length:x} {found.sha256.hex()}\n".encode()
        with self._lock, suppress(OSError):
            if self._fd >= 0 and os.write(self._fd, line) == len(line):
                self.bytes += found.length

    def lost(self, found: RecordedRange) -> None:
        """Remove a range from the record: what is written there next is recorded after it, and counts."""
        with self._lock:
            self.bytes -= found.length

    def remove(self) -> None:
        """Delete the record: the download is finished or given up. Safe to call again."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
        self.close()

    def remove_with_part(self) -> None:
        """Give up the download, and remove what it left."""
        if self.of is not None:
            remove_leftover(self.of.part_path)
        self.remove()

    def close(self) -> None:
        """Release the lock; the record stays."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class RangeRecords:
    """The records of a project's unfinished downloads; safe to use from several threads and processes.

    A download that takes less than ``worth_seconds`` is not recorded.
    """

    def __init__(self, state: StateDir, *, worth_seconds: float = WORTH_SECONDS) -> None:
        self._state = state
        self.worth_seconds = worth_seconds

    def take(self, destination: str, *, make: bool) -> RangeRecord | None:
        """Open the record of a file's download; ``make`` creates it if it is missing.

        None if it is missing, if another process has it, or if it cannot be locked or written: such a download
        cannot be resumed later.
        """
        try:
            folder = self._folder(make=make)
        except (OSError, LocalFileError):
            return None
        return _take(os.path.join(folder, _name(destination)), make=make) if folder else None

    def all(self) -> Iterator[tuple[UnfinishedDownload, int]]:
        """Every unfinished download, and how many of its bytes are recorded."""
        for path in self._files():
            try:
                fd = os.open(path, _OPEN)
            except OSError:
                continue
            try:
                of, ranges = _parsed(_content(fd))
            finally:
                os.close(fd)
            if of is not None:
                yield of, sum(each.length for each in ranges)

    def tidy(
        self, planned: Collection[str], wanted: Callable[[UnfinishedDownload], bool], now: float | None = None
    ) -> None:
        """Remove records that no download will resume from, with their part files.

        These are records older than a week, those without a part file, and for files in ``planned`` (their paths)
        those that are not ``wanted``. Keeps what a running process works on.
        """
        for path in self._files():
            record = _take(path, make=False)
            if record is None:
                continue
            of = record.of
            is_good = of is not None and (of.destination not in planned or wanted(of))
            if of is None or not is_good or not os.path.lexists(of.part_path) or _is_old(path, now or time.time()):
                record.remove_with_part()
            record.close()

    def _folder(self, *, make: bool) -> str | None:
        path = self._state.root / FOLDER
        return str(self._state.folder(FOLDER)) if make or os.path.lexists(path) else None

    def _files(self) -> list[str]:
        with suppress(OSError, LocalFileError):
            if folder := self._folder(make=False):
                return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIX)]
        return []


def _name(destination: str) -> str:
    return hashlib.sha256(os.fsencode(destination)).hexdigest()[:32] + _SUFFIX


def _take(path: str, *, make: bool) -> RangeRecord | None:
    while True:
        try:
            fd = os.open(path, _OPEN | (os.O_CREAT if make else 0), 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return RangeRecord(fd, path)
        except OSError:
            os.close(fd)
            return None
        # Its owner finished and removed it between opening and locking.
        os.close(fd)


def _is_old(path: str, now: float) -> bool:
    try:
        return now - os.stat(path).st_mtime > KEPT_SECONDS
    except OSError:
        return True


def _content(fd: int) -> bytes:
    try:
        return os.pread(fd, _MOST_BYTES, 0)
    except OSError:
        return b""


def _parsed(data: bytes) -> tuple[UnfinishedDownload | None, tuple[RecordedRange, ...]]:
    """Parse a record; ignores lines that are cut off or invalid."""
    head, end, body = data.partition(b"\n")
    try:
        of = _header(parse_object(head)) if end else None
    except (ValueError, TypeError):
        of = None
    if of is None:
        return None, ()
    whole = body[: body.rfind(b"\n") + 1]
    found = (RecordedRange(int(a, 16), int(b, 16), bytes.fromhex(c.decode())) for a, b, c in _LINE.findall(whole))
    return of, _latest(each for each in found if each.length and each.start + each.length <= of.size)


def _header(fields: dict[str, Any]) -> UnfinishedDownload:
    if fields.pop("blobsync_ranges", None) != _VERSION:
        raise ValueError("another version")
    of = UnfinishedDownload(**fields)
    demand_types(of)
    # Raises ``ValueError`` for an invalid file name: half of a surrogate pair.
    name = os.fsencode(of.destination)
    if not os.path.isabs(name) or b"\0" in name or not is_own_temporary(of.part):
        raise ValueError("no path of a part file")
    if of.size < 0:
        raise ValueError("no size")
    return of


def _latest(ranges: Iterable[RecordedRange]) -> tuple[RecordedRange, ...]:
    """Sort by offset and remove overlaps: where two ranges overlap, the one written last is on the disk."""
    found = list(ranges)
    ordered = sorted(found)
    if all(one.start + one.length <= other.start for one, other in pairwise(ordered)):
        return tuple(ordered)
    kept: list[RecordedRange] = []
    for each in reversed(found):
        at = bisect_left(kept, each)
        before, after = kept[at - 1] if at else None, kept[at] if at < len(kept) else None
        if before is not None and before.start + before.length > each.start:
            continue
        if after is not None and each.start + each.length > after.start:
            continue
        kept.insert(at, each)
    return tuple(kept)
