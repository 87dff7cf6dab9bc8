"""Records that let interrupted transfers resume: the blocks that were sent, the ranges that were fetched, and what was
about to be written.

The journal of blocks holds which uncommitted blocks this project has sent, and what it committed last. With it a
killed upload resumes, and a changed file sends only what changed. It only saves bytes: its contents are compared
with the service's own list of blocks before anything is skipped, and without it whole files are sent.

A block's row is written some 50 ms after the service acknowledged it, and outlives the process. After a power failure
the journal may lack rows, or be damaged and start anew: that costs bytes only.

A small file for each unfinished download holds which of its ranges are on the disk. The first line names the blob's
version and the part file; each further line is one range with its checksum. A line is written after its bytes, so that
after a kill all recorded ranges are there. After a power failure they may not be, and somebody may have changed the
part file: a range counts only if its checksum matches what is on the disk. That is a CRC32 where the whole file is
compared with an MD5 in the end, and a SHA-256 where it is not.

What a process is about to write stands in files of its own, line by line, for the next command, if the process is
killed. The index gets what was written and verified, some seconds later. A file that a killed process wrote in
those seconds is in no record; once its source changes it looks like somebody else's. So a line with the size and
the MD5 is written before the request, or the rename, that gives a file its new content.

A line is no proof that the file was written. The next command compares the file with it: one that has the MD5 of the
line is the killed run's, or as good as that (``project/killed_runs``). What has no MD5 gets no line.

Lines outlive the process, not a power failure. The process holds a lock on its file, so that others know when it is
gone. A file that cannot be written costs nothing but that knowledge.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState
from blobsync.base.plain_json import demand_types, parse_object
from blobsync.local.database import BATCH, ExpendableDatabase, storable
from blobsync.local.errors import raise_unless_gone
from blobsync.local.names import is_own_temporary
from blobsync.local.part_files import remove_leftover
from blobsync.local.state_databases import UNFINISHED
from blobsync.local.state_dir import StateDir

# Seconds between two saves; longer on a slow disk, where a save takes this share of the time at most.
_SAVE_SECONDS = 0.05
_SAVE_SHARE = 0.05
# https://learn.microsoft.com/rest/api/storageservices/put-block: uncommitted blocks are dropped after a week.
_BLOCKS_LIVE_SECONDS = 7 * 86_400

_STAGED = "SELECT sha256, blocks.size FROM blocks JOIN uploads ON upload = id WHERE blob = ? AND at > ?"
_UNFINISHED = (
    "SELECT blob, uploads.size, mtime_ns, inode, SUM(blocks.size) FROM uploads JOIN blocks ON upload = id"
    " WHERE current AND at > ? AND blob IN (MARKS) GROUP BY id"
)


class Unfinished(NamedTuple):
    """An unfinished upload: how many bytes of the file the service has, and how the file looked then."""

    size: int
    mtime_ns: int
    inode: int
    there: int

    def is_of(self, near: LocalState) -> bool:
        """Whether the file still looks as it did then."""
        return (self.size, self.mtime_ns, self.inode) == (near.size, near.mtime_ns, near.inode)


class BlockJournal:
    """Safe to use from several threads and processes. Never raises.

    Blobs are named by their URL, blocks by the SHA-256 of their content. ``on_trouble`` gets one sentence if the file
    cannot be used any more. ``clock`` gives seconds since 1970, ``steady`` seconds that are never set back.
    """

    def __init__(
        self,
        file: Path,
        on_trouble: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = ExpendableDatabase(
            file,
            UNFINISHED,
            lambda why: on_trouble(f"the journal of blocks {why}; whole files are sent instead"),
        )
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._unsaved: list[tuple[str, bytes, int]] = []
        self._save_at = steady()

    # -- queries ------------------------------------------------------------------------------------------------

    def staged(self, blob: str) -> dict[bytes, int]:
        """The blocks that were sent for ``blob`` and not committed, with their sizes in bytes."""
        if not storable(blob):
            return {}
        self.save()
        return dict(self._file.read(lambda db: db.execute(_STAGED, (blob, self._oldest)).fetchall()) or ())

    def unfinished(self, blobs: Iterable[str]) -> dict[str, Unfinished]:
        """Those of ``blobs`` that have uncommitted blocks of the file as it was when it was last sent."""
        rows = self._select(blobs, _UNFINISHED, self._oldest)
        return {blob: Unfinished(size, mtime_ns, int(inode), there) for blob, size, mtime_ns, inode, there in rows}

    def committed(self, blobs: Iterable[str]) -> dict[str, str]:
        """The ETags of those of ``blobs`` that this project wrote last, from blocks named by content."""
        return dict(self._select(blobs, "SELECT blob, etag FROM committed WHERE blob IN (MARKS)"))

    # -- updates ------------------------------------------------------------------------------------------------

    def begin(self, blob: str, near: LocalState) -> None:
        """Start an upload of the file ``near`` to ``blob``. Keeps blocks that were sent for another version of it."""
        if not storable(blob):
            return
        stamp = (near.size, near.mtime_ns, str(near.inode))

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM blocks WHERE upload IN (SELECT id FROM uploads WHERE at <= ?)", (self._oldest,))
            db.execute("DELETE FROM uploads WHERE at <= ?", (self._oldest,))
            row = db.execute("SELECT id, size, mtime_ns, inode FROM uploads WHERE blob = ?", (blob,)).fetchone()
            if row is None:
                row_of = "INSERT INTO uploads (blob, size, mtime_ns, inode, at) VALUES (?, ?, ?, ?, ?)"
                db.execute(row_of, (blob, *stamp, self._clock()))
            elif row[1:] != stamp:
                db.execute("UPDATE blocks SET current = 0 WHERE upload = ?", (row[0],))
                db.execute("UPDATE uploads SET size = ?, mtime_ns = ?, inode = ? WHERE id = ?", (*stamp, row[0]))

        self.save()
        self._file.write(write)

    def put(self, blob: str, sha256: bytes, size: int) -> None:
        """Record a block of the file that ``begin`` named: the service has acknowledged or listed it."""
        with self._lock:
            self._unsaved.append((blob, sha256, size))
            due = self._steady() >= self._save_at
        if due:
            self.save()

    def finish(self, blob: str, etag: str) -> None:
        """Record that the blob was committed as the version ``etag``, and drop its other blocks."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM blocks WHERE upload = (SELECT id FROM uploads WHERE blob = ?)", (blob,))
            db.execute("DELETE FROM uploads WHERE blob = ?", (blob,))
            db.execute("INSERT OR REPLACE INTO committed (blob, etag) VALUES (?, ?)", (blob, etag))

        self.save()
        if storable(blob):
            self._file.write(write)

    def save(self) -> None:
        """Write what was recorded since the last save."""
        with self._lock:
            rows, self._unsaved = self._unsaved, []
            began = self._steady()
            self._save_at = began + _SAVE_SECONDS

        def write(db: sqlite3.Connection) -> None:
            blobs = {blob for blob, _, _ in rows}
            db.executemany("UPDATE uploads SET at = ? WHERE blob = ?", [(self._clock(), blob) for blob in blobs])
            db.executemany(
                "INSERT OR REPLACE INTO blocks (upload, sha256, size, current)"
                " SELECT id, ?, ?, 1 FROM uploads WHERE blob = ?",
                [(sha256, size, blob) for blob, sha256, size in rows],
            )

        rows = [row for row in rows if storable(row[0])]
        if rows:
            self._file.write(write)
            with self._lock:
                self._save_at = max(self._save_at, began + (self._steady() - began) / _SAVE_SHARE)

    def close(self) -> None:
        """Save and close the file; the next use opens it again."""
        self.save()
        self._file.close()

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _oldest(self) -> float:
        return self._clock() - _BLOCKS_LIVE_SECONDS

    def _select(self, blobs: Iterable[str], query: str, *first: object) -> list[tuple[Any, ...]]:
        wanted = [blob for blob in blobs if storable(blob)]
        self.save()

        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            found = []
            for start in range(0, len(wanted), BATCH):
                batch = wanted[start : start + BATCH]
                found += db.execute(query.replace("MARKS", ",".join("?" * len(batch))), (*first, *batch)).fetchall()
            return found

        return (self._file.read(read) if wanted else None) or []


FOLDER = "downloads"

# As long as the service keeps blocks that were never committed.
KEPT_SECONDS = 7 * 24 * 3600.0

# The most work on one file that a kill may cost, in seconds.
WORTH_SECONDS = 0.5

_RANGES_VERSION = 1
_SUFFIX = ".ranges"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# More than any download writes; the rest is not read.
_MOST_BYTES = 32 << 20
_LINE = re.compile(rb"^([0-9a-f]{1,15}) ([0-9a-f]{1,15}) ([0-9a-f]{8}|[0-9a-f]{64})$", re.MULTILINE)


class RecordedRange(NamedTuple):
    """``length`` bytes from ``start`` on, and their CRC32 (4 bytes) or SHA-256 (32 bytes)."""

    start: int
    length: int
    checksum: bytes


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


class LineFile:
    """A record whose first line says of what it is, locked while it is open; safe to use from several threads."""

    def __init__(self, fd: int, path: str) -> None:
        """Takes over ``fd``, which is locked."""
        self._fd, self._path = fd, path
        self._lock = threading.RLock()

    def _begin(self, head: Mapping[str, Any]) -> bool:
        """Start anew with this first line; False if it cannot be written."""
        line = json.dumps(head).encode() + b"\n"
        try:
            os.ftruncate(self._fd, 0)
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False

    def _append(self, text: str) -> bool:
        """Add a line; False if that fails, or the file is closed."""
        line = text.encode() + b"\n"
        with self._lock, suppress(OSError):
            return self._fd >= 0 and os.write(self._fd, line) == len(line)
        return False

    def remove(self) -> None:
        """Delete the record: the work is finished or given up. Safe to call again."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Release the lock; the record stays."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class RangeRecord(LineFile):
    """The record of one download."""

    def __init__(self, fd: int, path: str) -> None:
        """Takes over ``fd``, which is locked."""
        super().__init__(fd, path)
        self.of, self.ranges = _parsed(content_of(fd))
        self.bytes = sum(each.length for each in self.ranges)

    def begin(self, of: UnfinishedDownload) -> bool:
        """Start a new record for ranges of ``of``; False if it cannot be written."""
        self.of, self.ranges, self.bytes = of, (), 0
        return self._begin({"blobsync_ranges": _RANGES_VERSION, **asdict(of)})

    def add(self, found: RecordedRange) -> None:
        """Record a range whose bytes were written. If that fails, the range is only fetched again."""
        with self._lock:
            if self._append(f"{found.start:x} {found.length:x} {found.checksum.hex()}"):
                self.bytes += found.length

    def lost(self, found: RecordedRange) -> None:
        """Remove a range from the record: what is written there next is recorded after it, and counts."""
        with self._lock:
            self.bytes -= found.length

    def remove_with_part(self) -> None:
        """Give up the download, and remove what it left."""
        if self.of is not None:
            remove_leftover(self.of.part_path)
        self.remove()


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
        name = record_name(os.fsencode(destination), _SUFFIX)
        return _take(os.path.join(folder, name), make=make) if folder else None

    def all(self) -> Iterator[tuple[UnfinishedDownload, int]]:
        """Every unfinished download, and how many of its bytes are recorded."""
        for path in self._files():
            try:
                fd = os.open(path, _OPEN)
            except OSError:
                continue
            try:
                of, ranges = _parsed(content_of(fd))
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
            if of is None or not is_good or not os.path.lexists(of.part_path) or is_old(path, now):
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


def record_name(of: bytes, suffix: str) -> str:
    """The name of the record of a file or blob."""
    return hashlib.sha256(of).hexdigest()[:32] + suffix


def _take(path: str, *, make: bool) -> RangeRecord | None:
    fd = open_locked(path, make=make)
    return None if fd is None else RangeRecord(fd, path)


def open_locked(path: str, *, make: bool) -> int | None:
    """Open and lock a record; None if it is missing, if another process has it, or if it cannot be written."""
    while True:
        try:
            fd = os.open(path, _OPEN | (os.O_CREAT if make else 0), 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        except OSError:
            os.close(fd)
            return None
        # Its owner finished and removed it between opening and locking.
        os.close(fd)


def is_old(path: str, now: float | None = None) -> bool:
    """Whether nobody has written to a record for a week; ``now`` is in seconds since 1970."""
    try:
        return (time.time() if now is None else now) - os.stat(path).st_mtime > KEPT_SECONDS
    except OSError:
        return True


def content_of(fd: int) -> bytes:
    """What an open record holds; empty if it cannot be read."""
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
    if fields.pop("blobsync_ranges", None) != _RANGES_VERSION:
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


# The files' folder in the state folder.
INTENTS_FOLDER = "intents"
_INTENTS_SUFFIX = ".intents"
# Bytes of a file, some 600,000 lines, and how many of these files a process keeps.
_INTENTS_BYTES = 64 << 20
_INTENTS_FILES = 2
_MD5_BYTES = 16
_ZERO = "\0"


class Ends(NamedTuple):
    """The two ends of a part, as text without secrets."""

    source: str
    destination: str


class WriteIntent(NamedTuple):
    """So many bytes with this MD5 were about to be written to ``target`` below the destination; ``path`` is the file's
    name below the source. ``md5`` is empty if nobody knew it, because a service fetched the bytes itself."""

    ends: Ends
    path: str
    target: str
    size: int
    md5: bytes


class WriteIntents:
    """The files of this process: the first begins with its first line. Thread-safe. Never raises."""

    def __init__(self, state: StateDir, most: int = _INTENTS_BYTES) -> None:
        """After ``most`` bytes another file begins, and the one before the last is removed: by then the index has what
        it says."""
        self._state = state
        self._most = most
        self._files: deque[tuple[int, Path]] = deque()
        self._size = 0
        self._broken = not state.lasting
        self._ends: Ends | None = None
        self._lock = threading.Lock()

    def add(self, ends: Ends, *files: tuple[str, str | None, int, bytes]) -> None:
        """Write a line for each of these: path, target, size, MD5. Call it before any of the files gets this content.
        A target is None if it is the path."""
        lines = [
            f"f{md5.hex()}\0{size}\0{path if target is None else f'{path}{_ZERO}{target}'}\n"
            for path, target, size, md5 in files
            if "\n" not in path and "\n" not in (target or "")
        ]
        data = "".join(lines).encode("utf-8", "surrogateescape")
        with self._lock:
            if self._broken or not data:
                return
            try:
                if not self._files or self._size >= self._most:
                    self._begin()
                if ends is not self._ends:
                    self._ends = ends
                    data = f"e{json.dumps(ends)}\n".encode("ascii") + data
                os.write(self._files[-1][0], data)
                self._size += len(data)
            except Exception:  # noqa: BLE001 - a transfer goes on without it
                self._broken = True

    def forget(self) -> None:
        """Remove the files: everything is recorded."""
        with self._lock:
            while self._files:
                self._remove_oldest()

    def _begin(self) -> None:
        file = self._state.folder(INTENTS_FOLDER) / f"{os.urandom(8).hex()}{_INTENTS_SUFFIX}"
        fd = os.open(file, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        self._files.append((fd, file))
        self._size, self._ends = 0, None
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if len(self._files) > _INTENTS_FILES:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        fd, file = self._files.popleft()
        with suppress(OSError):
            file.unlink()
        os.close(fd)


class LeftIntents(NamedTuple):
    """The file of a process that is gone. Read its lines once, before the next file."""

    file: Path
    lines: Iterable[bytes]

    def intents(self) -> Iterator[WriteIntent]:
        """Each line that is whole and valid."""
        return _parsed_intents(self.lines)

    def ends(self) -> set[Ends]:
        """The ends between which the process wrote."""
        found = set()
        for line in self.lines:
            if line.startswith(b"e"):
                with suppress(ValueError, TypeError):
                    found.add(_ends(line[1:].decode()))
        return found

    def remove(self) -> None:
        """Remove the file: nobody needs it any more."""
        with suppress(OSError):
            self.file.unlink()


def has_intents(state: StateDir) -> bool:
    """Whether a process has left intents, or is at work."""
    return bool(_names_in(state.root / INTENTS_FOLDER))


def left_intents(state: StateDir, now: float | None = None) -> Iterator[LeftIntents]:
    """The files of processes that are gone; removes those older than a week. ``now`` is in seconds since 1970."""
    folder = state.root / INTENTS_FOLDER
    for name in sorted(name for name in _names_in(folder) if name.endswith(_INTENTS_SUFFIX)):
        fd = open_locked(str(folder / name), make=False)
        if fd is None:
            continue
        with open(fd, "rb") as stream:
            left = LeftIntents(folder / name, stream)
            if is_old(str(left.file), now):
                left.remove()
            else:
                yield left


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise_unless_gone(error)
        return []


def _parsed_intents(lines: Iterable[bytes]) -> Iterator[WriteIntent]:
    """The intents of a file's lines; ignores those that are cut off or invalid."""
    ends: Ends | None = None
    for each in lines:
        line = each.decode("utf-8", "surrogateescape")
        intent = None
        with suppress(ValueError, TypeError):
            if line.startswith("e"):
                ends = _ends(line[1:])
            elif ends is not None and line.startswith("f") and line.endswith("\n"):
                intent = _intent(ends, line[1:-1])
        if intent is not None:
            yield intent


def _ends(line: str) -> Ends:
    source, destination = json.loads(line)
    return Ends(str(source), str(destination))


def _intent(ends: Ends, line: str) -> WriteIntent:
    digest, size, path, *target = line.split("\0")
    md5 = bytes.fromhex(digest)
    if len(md5) not in (0, _MD5_BYTES) or len(target) > 1:
        raise ValueError("no intent")
    return WriteIntent(ends, path, target[0] if target else path, int(size), md5)
