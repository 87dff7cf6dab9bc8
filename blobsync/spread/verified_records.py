"""Which files of a shard have a record, which bytes count, and which records of a task count as verified.

Of tasks whose command was killed, and of detached transfers that nobody closed, what is verified goes into the index,
so that it does not move again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from blobsync.base.events import BytesMoved, BytesReused, Emit, Listener, Looked, UnderWay, WorkerMoved
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.index import PairIndex
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, IndexKey, Route
from blobsync.spread.file_json import FormatError, shown_name
from blobsync.spread.record import FileRecord, read_body
from blobsync.spread.shard import Shard, read_shard
from blobsync.spread.shared_store import SealedStore
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import states_at_destination
from blobsync.transfer.ledger import Ledger, record_unreported

# Maximum attempts of a shard.
TRIES = 3


@dataclass(slots=True)
class ShardAccount:
    """Attempt number ``attempt`` of a shard, by ``worker``. ``left`` are the files without a record; ``moving`` and
    ``reused`` are the bytes that the worker reported and that belong to no finished file."""

    shard: Shard
    attempt: int = 1
    worker: str = ""
    left: dict[str, FileAction] = field(init=False)
    moving: int = 0
    reused: int = 0

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
        moved = _counted(action, record, self.shard.route)
        del self.left[action.path]
        self.moving -= moved.action.size - moved.reused
        self.reused -= moved.reused
        return moved

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

    def again(self) -> list[ShardAccount]:
        """Shards for another worker: the files that are left, in halves, so that a file that crashes its worker affects
        fewer others. Empty after the last attempt."""
        actions = tuple(self.left.values())
        middle = (len(actions) + 1) // 2
        halves = [half for half in (actions[:middle], actions[middle:]) if half]
        if self.attempt >= TRIES:
            return []
        return [ShardAccount(replace(self.shard, actions=half), self.attempt + 1) for half in halves]


def _counted(action: FileAction, record: FileRecord, route: Route) -> Moved:
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
    is_there = _is_there(end, moved.action.target or moved.action.path, moved.destination)
    return moved if is_there else moved._replace(destination=None)


def known_source(moved: Moved) -> FileState | None:
    """The source as the plan knows it; a blob without an MD5 gets the one of the worker that read it."""
    planned, reported = moved.action.source, moved.source
    if isinstance(planned, RemoteState) and isinstance(reported, RemoteState) and planned.md5 is not None:
        return replace(reported, md5=planned.md5)
    return reported


class Compared(NamedTuple):
    """Reports of tasks beside a fresh look. ``verified``, with the present state of the destination; ``changed``: the
    source is no more the version that moved; ``others``: the destination is not what the task wrote."""

    verified: Sequence[Moved]
    changed: Sequence[Moved]
    others: Sequence[Moved]


def compared(part: LivePart, reports: Sequence[Moved], emit: Emit, stop: StopRequest = NEVER) -> Compared:
    """Look at both ends of files that tasks have reported; nothing is read but the listing and ``stat``.

    A blob is what its task wrote if it has the reported ETag, size and MD5, a file if ``stat`` shows nothing else. Of
    an upload the source has to be the file that the task read, too.
    """
    found: tuple[list[Moved], list[Moved], list[Moved]] = ([], [], [])
    states = _destinations(part, reports, emit, stop)
    for moved in reports:
        now = states.get(moved.action.path)
        source, there = moved.source, moved.destination
        if now is None or there is None or not _is_same(there, now):
            found[2].append(moved)
        elif isinstance(source, LocalState) and not _is_there(part.source, moved.action.path, source):
            found[1].append(moved)
        else:
            # Of a file only the task knows the MD5.
            seen = there if isinstance(there, LocalState) else now
            found[0].append(moved._replace(source=known_source(moved), destination=seen))
    return Compared(*found)


def _destinations(part: LivePart, reports: Sequence[Moved], emit: Emit, stop: StopRequest) -> Mapping[str, FileState]:
    end = part.destination
    if isinstance(end, OpenBlob):
        return states_at_destination(end, reports, emit, stop) if reports else {}
    names = {each.action.path: each.action.target or each.action.path for each in reports}
    stats = {path: LocalState.at(end.at(name)) for path, name in names.items()}
    emit(Looked(len(stats)))
    return {path: state for path, state in stats.items() if state is not None}


def _is_same(reported: FileState, now: FileState) -> bool:
    # The answer to a copy from server to server has no MD5; of a file only the task knows it.
    return is_same_version(reported, now) and (isinstance(now, LocalState) or reported.md5 in (None, now.md5))


def _is_there(end: OpenLocation, name: str, known: LocalState) -> bool:
    now = LocalState.at(end.at(name))
    return now is not None and now.same_file(known)


class TakenOver(NamedTuple):
    """Of ``planned`` files of earlier runs so many are verified now."""

    planned: int = 0
    files: int = 0


def take_over(
    place: SealedStore, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex], begun_ns: int
) -> TakenOver:
    """Record what the tasks of the run at ``place`` have moved between the ends of these parts. Call it when none of
    them is left. No task read a file before ``begun_ns`` (since 1970).

    The index then has the states at the time of the move; the next survey detects later changes. Files that were
    written without a record count if their content shows it.
    """
    by_ends = {(str(part.source), str(part.destination)): part for part in parts}
    told: dict[tuple[str, str], list[Moved]] = {}
    untold: dict[tuple[str, str], list[FileAction]] = {}
    planned = count = 0
    for name in place.names("shards"):
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            key = shard.source, shard.destination
            planned += len(shard.actions)
            if key in by_ends:
                account = ShardAccount(shard)
                told.setdefault(key, []).extend(_moved(place, name, account))
                untold.setdefault(key, []).extend(account.left.values())
    for key, reports in told.items():
        part, index = by_ends[key], records(by_ends[key].key)
        ledger = Ledger(replace(part, actions=tuple(each.action for each in reports)), index, now_ns=lambda: begun_ns)
        verified = compared(part, reports, lambda event: None).verified
        ledger.seen([(moved, moved.destination) for moved in verified])
        ledger.save()
        left = [*untold[key], *(each.action for each in reports if each.action.path not in ledger.verified)]
        count += len(ledger.verified) + len(record_unreported(part, left, index))
    return TakenOver(planned, count)


def _moved(place: SealedStore, name: str, account: ShardAccount) -> list[Moved]:
    found: list[Moved] = []
    with suppress(FormatError):
        for answer in read_body(place.read(f"records/{name}") or b"", account.shard.route):
            if isinstance(answer, FileRecord) and answer.failure is None:
                # A record that names a file twice, or what cannot be, is ignored from there on.
                found.append(account.moved(answer))
    return found


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
