"""Records that let interrupted transfers resume: what was sent or has arrived, and what was about to be written.

A :class:`Journal` has a piece for each block or range, in ``unfinished.sqlite``. A piece is written some 50 ms after
what it is about, and outlives the process. After a power failure pieces may be missing, or the file damaged, which
starts anew then: that costs bytes only, because nothing is skipped for what it says alone.

* Of uploads: which uncommitted blocks this project has sent, and what it committed last. With it a killed upload
  resumes, and a changed file sends only what changed. It is compared with the service's own list of blocks.
* Of downloads: the blob's version, the part file, and the ranges that are in it. Somebody may have changed the part
  file: a range counts only if its checksum matches what is on the disk. That is a CRC32 where the whole file is
  compared with an MD5 in the end, and a SHA-256 where it is not. Whoever writes to a part file locks it, and has the
  record with it.
* Of what a service fetches from outside Azure: ``fetch_records``.

What a process is about to write stands in files of its own, line by line, for the next command, if the process is
killed. The index gets what was written and verified, some seconds later. A file that a killed process wrote in
those seconds is in no record; once its source changes it looks like somebody else's. So a line with the size and
the MD5 is written before the request, or the rename, that gives a file its new content.

A line is no proof that the file was written. The next command compares the file with it: one that has the MD5 of the
line is the killed run's, or as good as that (``project/killed_runs``). What has no MD5 gets no line.

Lines outlive the process, not a power failure. The process holds a lock on its file, so that others know when it is
gone. A file that cannot be written costs nothing but that knowledge.
"""

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from blobsync.base.file_states import LocalState
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import NamedTuple
from blobsync.local.database import ExpendableDatabase, rows_in, storable
from blobsync.local.names import is_own_temporary
from blobsync.local.os_errors import raise_unless_gone
from blobsync.local.part_files import is_in_use, remove_leftover
from blobsync.local.state_databases import UNFINISHED
from blobsync.local.state_dir import StateDir

# Seconds between two saves; longer on a slow disk, where a save takes this share of the time at most.
_SAVE_SECONDS = 0.05
_SAVE_SHARE = 0.05
# https://learn.microsoft.com/rest/api/storageservices/put-block: uncommitted blocks are dropped after a week.
KEPT_SECONDS = 7 * 86_400.0
# The most work on one file that a kill may cost, in seconds.
WORTH_SECONDS = 0.5
# CRC32 and SHA-256.
_CHECKSUM_BYTES = (4, 32)


class Work(NamedTuple):
    """Something unfinished: ``head`` says of what it is, ``at`` when it last went on (seconds since 1970). ``key`` is
    its name in the file."""

    id: int
    key: str
    head: dict[str, Any]
    at: float


class Piece(NamedTuple):
    """What is done of it. ``key`` tells the pieces of one work apart; ``mark`` is a checksum, or what else is known."""

    key: Any
    size: int
    mark: Any


class Journal:
    """What of unfinished work of one ``kind`` is done. Safe to use from several threads and processes. Never raises.

    A name has one work. Who begins it anew gets another id; what is put under the one before is ignored.
    ``on_trouble`` gets one sentence if the file cannot be used any more. ``clock`` gives seconds since 1970, ``steady``
    seconds that are never set back. With ``seconds`` 0 each piece is saved at once.
    """

    def __init__(
        self,
        file: Path,
        kind: str,
        on_trouble: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        seconds: float = _SAVE_SECONDS,
    ) -> None:
        self._file = ExpendableDatabase(file, UNFINISHED, on_trouble)
        self._kind = kind
        self._clock = clock
        self._steady = steady
        self._seconds = seconds
        self._lock = threading.Lock()
        self._unsaved: list[tuple[int, Piece]] = []
        self._save_at = steady()

    def find(self, name: str | None = None) -> list[Work]:
        """The work of this name, or all."""
        query = "SELECT id, name, head, at FROM unfinished WHERE kind = ? AND name = ifnull(?, name)"
        rows = self.rows(query, self._kind, None if name is None else _key(name))
        return [Work(id, key, _object(head), at) for id, key, head, at in rows]

    def pieces(self, id: int) -> list[Piece]:
        """What is done of it, in the order of the keys."""
        query = "SELECT key, size, mark FROM pieces WHERE work = ? ORDER BY key"
        return list(map(Piece._make, self.rows(query, id)))

    def begin_work(self, name: str, head: Mapping[str, Any]) -> int | None:
        """Begin the work of this name anew; returns its id, None if it cannot be written."""
        id, row = int.from_bytes(os.urandom(7), "big"), (self._kind, _key(name))
        query = "DELETE FROM pieces WHERE work IN (SELECT id FROM unfinished WHERE kind = ? AND name = ?)"
        values = (id, *row, json.dumps(head), self._clock())
        self.write((query, row), ("INSERT OR REPLACE INTO unfinished VALUES (?, ?, ?, ?, ?)", values))
        return None if self._file.given_up else id

    def add(self, id: int, piece: Piece) -> None:
        """Record that this is done of a work."""
        with self._lock:
            self._unsaved.append((id, piece))
            is_due = self._steady() >= self._save_at
        if is_due:
            self.save()

    def remove(self, id: int) -> None:
        """Forget a work: it is finished or given up."""
        self.write(("DELETE FROM pieces WHERE work = ?", (id,)), ("DELETE FROM unfinished WHERE id = ?", (id,)))

    def save(self) -> None:
        """Write what was put since the last save."""
        with self._lock:
            rows, self._unsaved = self._unsaved, []
            began = self._steady()
            self._save_at = began + self._seconds

        def write(db: sqlite3.Connection) -> None:
            ids = {id for id, _ in rows}
            db.executemany("UPDATE unfinished SET at = ? WHERE id = ?", [(self._clock(), id) for id in ids])
            put = "INSERT OR REPLACE INTO pieces SELECT id, ?, ?, ? FROM unfinished WHERE id = ?"
            db.executemany(put, [(*piece, id) for id, piece in rows])

        if rows:
            self._file.write(write)
        if rows and self._seconds:
            with self._lock:
                self._save_at = max(self._save_at, began + (self._steady() - began) / _SAVE_SHARE)

    def close(self) -> None:
        """Save and close the file; the next use opens it again."""
        self.save()
        self._file.close()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What the query finds."""
        return self.read(lambda db: db.execute(query, values))

    def read(self, ask: Callable[[sqlite3.Connection], Iterable[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """The rows that ``ask`` finds."""
        self.save()
        return self._file.read(lambda db: list(ask(db))) or []

    def write(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Run the statements as one transaction."""

        def run(db: sqlite3.Connection) -> None:
            for statement, values in statements:
                db.execute(statement, values)

        self.save()
        self._file.write(run)


def _key(name: str) -> str:
    """A name as the file has it: SQLite takes no half surrogates, which a path that is no UTF-8 has."""
    return json.dumps(name)


def _object(text: str) -> dict[str, Any]:
    try:
        return parse_object(text)
    except (ValueError, TypeError):
        return {}


class Unfinished(NamedTuple):
    """An unfinished upload: how many bytes of the file the service has, and how the file looked then."""

    size: int
    mtime_ns: int
    inode: int
    there: int

    def is_of(self, near: LocalState) -> bool:
        """Whether the file still looks as it did then."""
        return (self.size, self.mtime_ns, self.inode) == (near.size, near.mtime_ns, near.inode)


class BlockJournal(Journal):
    """The blocks of uploads: blobs are named by their URL, blocks by the SHA-256 of their content.

    The mark of a block is 1 if it is of the file as it was when it was last sent.
    """

    def __init__(
        self,
        file: Path,
        on_trouble: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        def say(why: str) -> None:
            on_trouble(f"the journal of blocks {why}; whole files are sent instead")

        super().__init__(file, "uploads", say, clock=clock, steady=steady)
        self._ids: dict[str, int] = {}

    def staged(self, blob: str) -> dict[bytes, int]:
        """The blocks that were sent for ``blob`` and not committed, with their sizes in bytes."""
        return {key: size for work in self._recent(blob) for key, size, _ in self.pieces(work.id)}

    def unfinished(self, blobs: Iterable[str]) -> dict[str, Unfinished]:
        """Those of ``blobs`` that have uncommitted blocks of the file as it was when it was last sent."""
        works, found = {work.key: work for work in self._recent()}, dict[str, Unfinished]()
        for blob in blobs if works else ():
            if work := works.get(_key(blob)):
                there = sum(size for _, size, is_current in self.pieces(work.id) if is_current)
                with suppress(TypeError):
                    found |= {blob: Unfinished(**work.head, there=there)} if there else {}
        return found

    def committed(self, blobs: Iterable[str]) -> dict[str, str]:
        """The ETags of those of ``blobs`` that this project wrote last, from blocks named by content."""
        wanted, query = list(filter(storable, blobs)), "SELECT blob, etag FROM committed WHERE blob"
        return dict(self.read(lambda db: rows_in(db, query, (), wanted)))

    def digests(self, blob: str, etag: str) -> bytes:
        """The MD5 of this version, which this project wrote, and the SHA-256 of each of its blocks, one after the
        other; empty if it is not known."""
        query = "SELECT digests FROM digests WHERE blob = ? AND etag = ?"
        return b"".join(digests for (digests,) in self.rows(query, blob, etag)) if storable(blob) else b""

    def begin(self, blob: str, near: LocalState) -> None:
        """Start an upload of the file ``near`` to ``blob``. Keeps blocks that were sent for another version of it."""
        head = {"size": near.size, "mtime_ns": near.mtime_ns, "inode": near.inode}
        known = next(iter(self._recent(blob)), None)
        for work in self.find():
            if work.at <= self._oldest:
                self.remove(work.id)
        id = self.begin_work(blob, head) if known is None else known.id
        if known is not None and known.head != head:
            forget = ("UPDATE pieces SET mark = 0 WHERE work = ?", (id,))
            self.write(forget, ("UPDATE unfinished SET head = ? WHERE id = ?", (json.dumps(head), id)))
        if id is not None:
            self._ids[blob] = id

    def put(self, blob: str, sha256: bytes, size: int) -> None:
        """Record a block of the file that ``begin`` named: the service has acknowledged or listed it."""
        if blob in self._ids:
            self.add(self._ids[blob], Piece(sha256, size, 1))

    def finish(self, blob: str, etag: str, digests: bytes = b"") -> None:
        """Record that the blob was committed as the version ``etag``, with these digests, and drop its other blocks."""
        for work in self.find(blob):
            self.remove(work.id)
        if storable(blob):
            self.write(
                ("INSERT OR REPLACE INTO committed VALUES (?, ?)", (blob, etag)),
                ("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (blob, etag, digests)),
            )

    @property
    def _oldest(self) -> float:
        return self._clock() - KEPT_SECONDS

    def _recent(self, blob: str | None = None) -> list[Work]:
        return [work for work in self.find(blob) if work.at > self._oldest]


class RecordedRange(NamedTuple):
    """``length`` bytes from ``start`` on, and their CRC32 (4 bytes) or SHA-256 (32 bytes)."""

    start: int
    length: int
    checksum: bytes


class UnfinishedDownload(NamedTuple):
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

    def give_up(self) -> bool:
        """Remove the part file, unless another process writes to it; returns whether none does."""
        return remove_leftover(self.part_path) or not is_in_use(self.part_path)


class OpenWork:
    """A work that this process goes on with. Safe to use from several threads."""

    def __init__(self, journal: Journal, id: int) -> None:
        """Takes over the journal."""
        self._journal, self._id, self._is_open = journal, id, True

    def put(self, key: int, size: int, mark: bytes | None) -> None:
        """Record that this has arrived. If that fails, it is only fetched again."""
        if self._is_open:
            self._journal.add(self._id, Piece(key, size, mark))

    def save(self) -> None:
        """Write what was put since the last save."""
        self._journal.save()

    def remove(self) -> None:
        """Forget it: it is finished or given up. Safe to call again."""
        self._journal.remove(self._id)
        self.close()

    def close(self) -> None:
        """Close the file; the record stays."""
        self._is_open = False
        self._journal.close()


class RangeRecord(OpenWork):
    """The record of one download: ``ranges`` are those of earlier runs, ``bytes`` are in all."""

    def __init__(
        self, journal: Journal, id: int, of: UnfinishedDownload, ranges: tuple[RecordedRange, ...] = ()
    ) -> None:
        super().__init__(journal, id)
        self.of, self.ranges = of, ranges
        self.bytes = sum(each.length for each in ranges)
        self._counting = threading.Lock()

    def add(self, found: RecordedRange) -> None:
        """Record a range whose bytes were written."""
        self.put(*found)
        with self._counting:
            self.bytes += found.length

    def lost(self, found: RecordedRange) -> None:
        """Count a range no longer: what is written there next is recorded in its place."""
        with self._counting:
            self.bytes -= found.length

    def remove_with_part(self) -> None:
        """Give up the download, and remove what it left, unless another process writes to it by now."""
        if self.of.give_up():
            self.remove()
        self.close()


class RangeRecords:
    """The records of a project's unfinished downloads; safe to use from several threads and processes.

    A download that takes less than ``worth_seconds`` is not recorded.
    """

    def __init__(self, state: StateDir, *, worth_seconds: float = WORTH_SECONDS) -> None:
        self._state = state
        self.worth_seconds = worth_seconds

    def take(self, destination: str) -> RangeRecord | None:
        """Open the record of a file's download; None if there is none, or if another process writes to the part
        file."""
        for work, of, ranges in self._read(destination):
            if not is_in_use(of.part_path):
                return RangeRecord(self._opened(), work.id, of, ranges)
        return None

    def start(self, of: UnfinishedDownload) -> RangeRecord | None:
        """Begin the record of a download whose part file this process writes to.

        None if another process downloads the same file, or if it cannot be written: then this download cannot be
        resumed later.
        """
        if any(other.part != of.part and not other.give_up() for _, other, _ in self._read(of.destination)):
            return None
        journal = self._opened()
        id = journal.begin_work(of.destination, of._asdict())
        return None if id is None else RangeRecord(journal, id, of)

    def all(self) -> Iterator[tuple[UnfinishedDownload, int]]:
        """Every unfinished download, and how many of its bytes are recorded."""
        for _, of, ranges in self._read():
            yield of, sum(each.length for each in ranges)

    def tidy(
        self, planned: Collection[str], wanted: Callable[[UnfinishedDownload], bool], now: float | None = None
    ) -> None:
        """Remove records that no download will resume from, with their part files.

        These are records older than a week, those without a part file, and for files in ``planned`` (their paths)
        those that are not ``wanted``. Keeps what a running process works on.
        """
        for work, of, _ in list(self._read()):
            is_old = (time.time() if now is None else now) - work.at > KEPT_SECONDS
            is_good = of.destination not in planned or wanted(of)
            if is_old or not is_good or not os.path.lexists(of.part_path):
                RangeRecord(self._opened(), work.id, of).remove_with_part()

    def _opened(self) -> Journal:
        seconds = min(_SAVE_SECONDS, self.worth_seconds)
        return Journal(self._state.unfinished_file, "downloads", seconds=seconds)

    def _read(
        self, destination: str | None = None
    ) -> Iterator[tuple[Work, UnfinishedDownload, tuple[RecordedRange, ...]]]:
        with closing(self._opened()) as journal:
            for work in journal.find(destination):
                try:
                    of = _unfinished(work.head)
                except ValueError:
                    journal.remove(work.id)
                else:
                    yield work, of, tuple(_ranges_in(of.size, journal.pieces(work.id)))


def _ranges_in(size: int, pieces: Iterable[Piece]) -> Iterator[RecordedRange]:
    """Those that lie in the file, one after the other, and have a checksum."""
    end = 0
    for start, length, checksum in pieces:
        if end <= start < start + length <= size and checksum and len(checksum) in _CHECKSUM_BYTES:
            yield RecordedRange(start, length, checksum)
            end = start + length


def _unfinished(head: Mapping[str, Any]) -> UnfinishedDownload:
    of = made_of(UnfinishedDownload, head)
    # Raises ``ValueError`` for an invalid file name: half of a surrogate pair.
    name = os.fsencode(of.destination)
    if not os.path.isabs(name) or b"\0" in name or not is_own_temporary(of.part):
        raise ValueError("no path of a part file")
    if of.size < 0:
        raise ValueError("no size")
    return of


# The files' folder in the state folder.
INTENTS_FOLDER = "intents"
_INTENTS_SUFFIX = ".intents"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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
        with suppress(OSError), open(os.open(folder / name, _OPEN), "rb") as stream:
            # Fails while its process lives; one that ends meanwhile removes it.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            facts = os.fstat(stream.fileno())
            left = LeftIntents(folder / name, stream)
            if (time.time() if now is None else now) - facts.st_mtime > KEPT_SECONDS:
                left.remove()
            elif facts.st_nlink:
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
