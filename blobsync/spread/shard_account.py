"""The state of one shard: which files have a record, which bytes count, and what this machine has verified itself.

Files that workers report are read on this machine. A worker's MD5 counts only for a version of a file that no longer
exists.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from blobsync.base.events import BytesMoved, BytesReused, Listener, UnderWay, WorkerMoved
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.local.files import hash_file, reading_threads
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.spread.file_json import FormatError, shown_name
from blobsync.spread.record import FileRecord, NamedBlock
from blobsync.spread.shard import Shard
from blobsync.store.open_locations import OpenLocation
from blobsync.transfer.engines import Moved

# Maximum attempts of a shard.
TRIES = 3


@dataclass(slots=True)
class ShardAccount:
    """Attempt number ``attempt`` of a shard, by ``worker``. ``left`` are the files without a record; ``moving`` and
    ``reused`` are the bytes that the worker reported and that belong to no finished file. ``named`` are the ids of a
    range's blocks."""

    shard: Shard
    attempt: int = 1
    worker: str = ""
    left: dict[str, FileAction] = field(init=False)
    moving: int = 0
    reused: int = 0
    named: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = {action.path: action for action in self.shard.actions}

    def failed(self, record: FileRecord) -> FileAction:
        """The file of a failure record. Raises ``FormatError`` for a file that is not in the shard, or that has a
        record already."""
        action = self._waiting(record)
        del self.left[action.path]
        return action

    def moved(self, record: FileRecord) -> Moved:
        """Convert the record of a moved file. Raises ``FormatError`` also if it cannot be about that file, which then
        is still without a record."""
        action = self._waiting(record)
        moved = _believed(action, record, self.shard.route)
        del self.left[action.path]
        self.moving -= moved.action.size - moved.reused
        self.reused -= moved.reused
        return moved

    def name(self, block: NamedBlock) -> None:
        """Add a worker's report of a block. Raises ``FormatError`` for one that is not in the shard."""
        order = self.shard.order
        if order is None or not order.blocks.first <= block.index < order.blocks.stop:
            raise FormatError(f"block {block.index} is not in this shard")
        self.named[block.index] = block.id

    def ranged(self, record: FileRecord) -> FileState:
        """The state of the source in the record of a finished range. Raises ``FormatError`` if it is impossible."""
        action, order = self._waiting(record), self.shard.order
        source = record.source
        if order is None or source is None or not is_same_version(action.source, source):
            raise FormatError(f"{shown_name(record.path)} is reported in another version than the plan's")
        if len(self.named) != order.blocks.stop - order.blocks.first or (order.only_read and source.md5 is None):
            raise FormatError(f"{shown_name(record.path)} is reported without all of its blocks")
        del self.left[action.path]
        self.moving -= action.size
        return source

    def _waiting(self, record: FileRecord) -> FileAction:
        action = self.left.get(record.path)
        if action is None:
            raise FormatError(f"{shown_name(record.path)} is not in this shard, or was reported before")
        return action

    def planned(self, path: str) -> FileAction:
        """A file of the shard, with or without a record. Raises ``FormatError`` for any other."""
        for action in self.shard.actions:
            if action.path == path:
                return action
        raise FormatError(f"{shown_name(path)} is not in this shard")

    def found(self, action: FileAction) -> None:
        """Count a file of a lost worker that is at the destination, although another worker failed to move it."""
        self.moving -= action.size

    def close(self, listener: Listener) -> None:
        """End the shard: reports to the listener bytes of files that were there already."""
        self._count(max(0, -self.moving), listener)
        self.moving = max(0, self.moving)

    def tell(self, moved: int, reused: int, listener: Listener) -> None:
        """Report a worker's bytes under way to the listener."""
        self.moving += moved
        self.reused += reused
        self._count(moved, listener)
        if reused:
            listener.emit(BytesReused(reused))

    def arrived(self, listener: Listener) -> None:
        """Count one finished file of the worker."""
        listener.emit(WorkerMoved(self.worker, 1, 0))

    def _count(self, moved: int, listener: Listener) -> None:
        if moved:
            listener.emit(BytesMoved(moved))
            listener.emit(WorkerMoved(self.worker, 0, moved))

    def take_back(self, listener: Listener) -> None:
        """Uncount the bytes that a lost worker had under way; they move again."""
        self._count(-self.moving, listener)
        if self.reused:
            listener.emit(BytesReused(-self.reused))

    def begin_again(self, worker: str, listener: Listener) -> None:
        """Begin another attempt, by another worker."""
        self.take_back(listener)
        self.moving = self.reused = 0
        self.worker = worker

    def again(self) -> list[ShardAccount]:
        """Shards for another worker: the files that are left, in halves, so that a file that crashes its worker affects
        fewer others. Empty after the last attempt."""
        actions = tuple(self.left.values())
        middle = (len(actions) + 1) // 2
        halves = [half for half in (actions[:middle], actions[middle:]) if half]
        if self.attempt >= TRIES:
            return []
        return [ShardAccount(replace(self.shard, actions=half), self.attempt + 1) for half in halves]


def _believed(action: FileAction, record: FileRecord, route: Route) -> Moved:
    source, destination = record.source, record.destination
    if source is None or not is_same_version(action.source, source):
        raise FormatError(f"{shown_name(record.path)} is reported in another version than the plan's")
    if route is Route.UPLOAD and (destination is None or source.md5 is None):
        raise FormatError(f"{shown_name(record.path)} is reported without what the service answered")
    if record.reused > source.size:
        raise FormatError(f"{shown_name(record.path)} is reported with more bytes than it has")
    return Moved(action, source, destination, record.reused, record.compared_by)


def is_same_version(planned: FileState | None, reported: FileState) -> bool:
    """Whether ``reported`` is the planned version of the source."""
    if isinstance(planned, LocalState) and isinstance(reported, LocalState):
        return planned.same_file(reported)
    if isinstance(planned, RemoteState) and isinstance(reported, RemoteState):
        return (planned.size, planned.etag) == (reported.size, reported.etag)
    return planned is None


def as_seen_here(end: OpenLocation, moved: Moved) -> Moved:
    """A file that a worker wrote here counts only if it exists; else it is read again at the end."""
    if not isinstance(end, LocalLocation) or not isinstance(moved.destination, LocalState):
        return moved
    with suppress(OSError):
        found = os.stat(end.at(moved.action.target or moved.action.path))
        if moved.destination.same_file(LocalState.of(found)):
            return moved
    return moved._replace(destination=None)


def file_to_read(source: OpenLocation, destination: OpenLocation, moved: Moved) -> Path | None:
    """The file whose content this machine can read itself; None if both ends are containers, or if the file does not
    exist here."""
    if isinstance(source, LocalLocation):
        return source.at(moved.action.path)
    if isinstance(destination, LocalLocation) and as_seen_here(destination, moved).destination is not None:
        return destination.at(moved.action.target or moved.action.path)
    return None


def with_own_look(moved: Moved, own: LocalState | None) -> Moved:
    """A worker's report, with what this machine read of its local end (``own``)."""
    if isinstance(moved.source, LocalState):
        # Another version by now: only the worker knows the one that moved.
        return moved._replace(source=own) if own is not None and own.same_file(moved.source) else moved
    there = moved.destination
    if isinstance(there, LocalState):
        seen = own if own is not None and own.same_file(there) else None
        return moved._replace(destination=seen, source=known_source(moved))
    return moved._replace(source=known_source(moved))


def known_source(moved: Moved) -> FileState | None:
    """The source as the plan knows it; a blob without an MD5 gets the one of the worker that read it."""
    planned, reported = moved.action.source, moved.source
    if isinstance(planned, RemoteState) and isinstance(reported, RemoteState) and planned.md5 is not None:
        return replace(reported, md5=planned.md5)
    return reported


class OwnReading:
    """Reads local files in threads while workers move others. Callbacks run in the thread that calls :meth:`settle`.
    A file that is still being read does not delay the end."""

    def __init__(self, threads: int | None = None, read: Callable[[Path], LocalState | None] = hash_file) -> None:
        self._most = threads or reading_threads()
        self._hashed = read
        self._todo: SimpleQueue[tuple[Path, Callable[[LocalState | None], None]] | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[LocalState | None, Callable[[LocalState | None], None]]] = SimpleQueue()
        self._gone = threading.Event()
        self._threads = 0
        self.open = 0

    def begin(self, file: Path, then: Callable[[LocalState | None], None]) -> None:
        """Read the file in a thread; ``then`` gets its state with MD5, or None if it cannot be read as one version."""
        self.open += 1
        self._todo.put((file, then))
        if self._threads < min(self._most, self.open):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()

    def settle(self, seconds: float = 0.0) -> None:
        """Run the callbacks of files that are read, after waiting at most ``seconds`` for the first."""
        with suppress(Empty):
            state, then = self._read.get(timeout=seconds)
            while True:
                self.open -= 1
                then(state)
                state, then = self._read.get_nowait()

    def close(self) -> None:
        """Begin no other file."""
        self._gone.set()
        for _ in range(self._threads):
            self._todo.put(None)

    def _work(self) -> None:
        while (one := self._todo.get()) is not None and not self._gone.is_set():
            file, then = one
            self._read.put((self._hashed(file), then))


class WorkersBusy:
    """Sums up the progress of all workers. Thread-safe. ``path`` is that of the transfer's part."""

    def __init__(self, listener: Listener, path: str) -> None:
        self._listener = listener
        self._path = path
        self._counts: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def hear(self, worker: Hashable, reported: UnderWay) -> None:
        """Raises ``FormatError`` for a file that is not of this transfer."""
        if self._path and reported.path != self._path and not reported.path.startswith(f"{self._path}/"):
            raise FormatError(f"{shown_name(reported.path)} is not of this transfer")
        with self._lock:
            self._counts[worker] = reported.files
            count = sum(self._counts.values())
        self._listener.emit(UnderWay(count, reported.path))

    def ends(self, worker: Hashable) -> None:
        """Remove a worker that has nothing under way any more."""
        with self._lock:
            self._counts.pop(worker, None)
