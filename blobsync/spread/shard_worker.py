"""A worker of a spread transfer: claims one shard after the other in the shared store, moves it, and leaves records.

    alive             the coordinator's heartbeat: changes while it lives, and is removed when nothing is left
    shards/NUMBER     what is to be moved (``shard``)
    claims/NUMBER     who moves it at this moment
    records/NUMBER~ATTEMPT~PIECE      the result (``record``); the last piece ends with ``done``
    done/NUMBER       the shard is finished; its worker gives it up
    refused/WORKER    why this worker cannot work at all
    slow              how long the storage account asked a worker to wait: {"seconds": 5, "by": "node3.1", "mark": ".."}
    stop              the coordinator gives up

Others may write there as well: documents without the transfer's seal count as missing (``sealed_store``). A claim needs
no seal, but keeps a worker waiting only while its holder writes sealed documents, and then for twice the duration of
claims.

Writes are idempotent: a file that somebody else has written meanwhile fails under its precondition, and the coordinator
compares it. So claims need not be perfect. No clocks are compared: every worker that finds a new ``slow`` waits that
many seconds from then on.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, StorageUnreachableError
from blobsync.base.events import Listener
from blobsync.base.formatting import count_text
from blobsync.base.locations import LocalLocation
from blobsync.direct.file_blocks import BlockOrder, Named
from blobsync.local.errors import local_error
from blobsync.local.files import WaitForDisk, wait_for_disk
from blobsync.plan.project_context import LivePart, key_between
from blobsync.plan.transfer_plan import FileAction, Part
from blobsync.spread.file_json import FormatError, object_of, size_of, text_of
from blobsync.spread.record import FileRecord, NamedBlock, Ready, ShardDone, read_answer
from blobsync.spread.shard import Shard, ShardReader, listed_at
from blobsync.spread.shard_account import TRIES
from blobsync.spread.shared_store import CLAIM_SECONDS, SharedStore
from blobsync.spread.worker_process import Outgoing
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.rest.http import Pace
from blobsync.store.url_list import UrlListStore
from blobsync.transfer.engines import Engine, MoveReport, MoveTask

_NOTE = "slow"
# Seconds. Maximum pause of requests, whatever the note says: anybody who can write to the store may write one.
_LONGEST = 90
_WORKER = re.compile(r"[A-Za-z0-9.-]{1,60}")


class SharedPace:
    """Shares pauses that the service asks for. ``name`` is the worker's, ``log`` gets messages for its log. Used by
    one thread at a time."""

    def __init__(self, place: SharedStore, name: str, pace: Pace, log: Callable[[str], None]) -> None:
        self._place = place
        self._name = name
        self._pace = pace
        self._log = log
        self._known: bytes | None = None

    def begin(self) -> None:
        """Ignore a note that exists already, since its age is unknown. Raises what the store raises."""
        self._known = self._place.read(_NOTE)

    def look(self) -> None:
        """Publish the pause that the service has asked this worker for, or take over another worker's.

        Raises what the store raises; an invalid note is ignored.
        """
        if asked := math.ceil(min(self._pace.take(), _LONGEST)):
            note = {"seconds": asked, "by": self._name, "mark": secrets.token_hex(8)}
            self._known = json.dumps(note).encode()
            self._log(f"the storage account asks for fewer requests: all workers wait {asked} s")
            self._place.write(_NOTE, self._known)
            return
        body = self._place.read(_NOTE)
        if body is None or body == self._known:
            return
        self._known = body
        try:
            note = object_of(body.decode("utf-8", "replace"))
            seconds, other = size_of(note, "seconds", _LONGEST), text_of(note, "by")
        except FormatError:
            return
        if _WORKER.fullmatch(other):
            self._pace.hold(seconds)
            self._log(f"{other} was asked by the storage account for fewer requests: waiting {seconds} s")


# Seconds without a heartbeat after which the coordinator counts as gone.
PARENT_SECONDS = 180.0
# How many new records of a shard are read, to see whether one is sealed.
_LOOKED_AT = 3
# A claim is renewed this often while it lasts, and one of another worker is requested as often.
_PARTS = 4
# How long a worker that is stopped waits for its check of the store (seconds).
_LAST_LOOK_SECONDS = 2.0
# The coordinator's records have this instead of a worker's name; they do not count as attempts.
FROM_PARENT = "parent-"
# Without a response from the storage the fault may be this worker's network.
_OF_THE_LINE = frozenset({FailureCode.STORAGE_UNREACHABLE, FailureCode.SERVICE_BUSY})


class Ends(NamedTuple):
    """The two ends between which a worker may move files; a shard names them as strings."""

    source: OpenLocation
    destination: OpenLocation


class BlockEngine(Engine, Protocol):
    """An engine that also moves some blocks of a file."""

    def move_blocks(
        self, task: MoveTask, order: BlockOrder, named: Named, report: MoveReport, listener: Listener
    ) -> None:
        """See :meth:`blobsync.direct.engine.DirectEngine.move_blocks`."""
        ...


class ShardWorkerSettings(NamedTuple):
    """``name`` is the worker's, ``number`` its index among all workers, ``holder`` the UUID of its claims: the same
    after a restart, so that it gets its claims back at once. Times in seconds; ``claim`` is how long claims last, and
    without a heartbeat for ``parent`` the coordinator counts as gone."""

    name: str
    number: int
    holder: str
    cap_mbps: float | None = None
    poll: float = 1.0
    flush: float = 1.0
    parent: float = PARENT_SECONDS
    claim: float = CLAIM_SECONDS


class ShardWorker:
    """One worker. ``interrupt`` stops the thread that works, as Ctrl-C does."""

    def __init__(
        self,
        place: SharedStore,
        ends: Mapping[tuple[str, str], Ends],
        engine: BlockEngine,
        settings: ShardWorkerSettings,
        interrupt: Callable[[], None],
        log: Callable[[str], None],
        *,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wait: WaitForDisk = wait_for_disk,
    ) -> None:
        """``pace`` is that of the stores of ``ends``. ``clock`` is monotonic; ``clock`` and ``sleep`` in seconds."""
        self._place = place
        self._ends = ends
        self._engine = engine
        self._settings = settings
        self._interrupt = interrupt
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._wait = wait
        self._busy: dict[str, float] = {}
        # Shards of other workers: since when they are silent, and their documents.
        self._held: dict[str, tuple[float, frozenset[str]]] = {}
        self._unclaimed: set[str] = set()
        self._unread: set[str] = set()
        self._beat: tuple[bytes | None, float] = (None, clock())
        self._pace = SharedPace(place, settings.name, pace or Pace(), log)

    def work(self) -> None:
        """Work until nothing is left to do, or the coordinator is gone."""
        self._pace.begin()
        self._give_back()
        while not self.is_over():
            number = self._next()
            if number is None:
                self._sleep(self._settings.poll)
                continue
            try:
                self._carry(number)
            except KeyboardInterrupt:
                self._place.hurry()
                raise
            finally:
                self._release(number)

    def _release(self, number: str) -> None:
        if number in self._unclaimed:
            self._unclaimed.discard(number)
            return
        # If the store cannot be reached, the claim expires by itself.
        with suppress(StorageUnreachableError):
            self._place.release(f"claims/{number}", self._settings.holder)

    def _give_back(self) -> None:
        """Release the claims from before a restart, so that nobody has to wait for them to expire."""
        mine = f"~{self._settings.name}-"
        for number in {name.partition("~")[0] for name in self._place.names("records") if mine in name}:
            self._place.release(f"claims/{number}", self._settings.holder)

    def refuse(self, why: str) -> None:
        """Say why this worker cannot work."""
        self._place.write(f"refused/{self._settings.name}", why.encode())

    def is_over(self) -> bool:
        """Whether nothing is left to do, or the coordinator is gone."""
        beat = self._place.read("alive")
        if not beat or self._place.read("stop") is not None:
            return True
        if beat != self._beat[0]:
            self._beat = beat, self._clock()
        if self._clock() - self._beat[1] < self._settings.parent:
            return False
        self._log("the command that started this transfer does not answer any more; ending")
        return True

    def _next(self) -> str | None:
        """Claim the next shard. Each worker begins at another one."""
        done = set(self._place.names("done"))
        open_shards = [name for name in self._place.names("shards") if name not in done]
        now, start = self._clock(), self._settings.number % max(1, len(open_shards))
        for name in open_shards[start:] + open_shards[:start]:
            if self._busy.get(name, 0.0) > now:
                continue
            if not self._place.claim(f"claims/{name}", self._settings.holder):
                self._busy[name] = now + self._settings.claim / _PARTS
                if self._is_held_for_nothing(name):
                    self._log(f"shard {name} is claimed, and nobody moves it: moving it all the same")
                    self._unclaimed.add(name)
                    return name
            elif self._place.read(f"done/{name}") is not None:
                self._place.release(f"claims/{name}", self._settings.holder)
            else:
                return name
        return None

    def _is_held_for_nothing(self, number: str) -> bool:
        """Whether the holder of the claim has been silent for longer than claims last: it is a stranger, or hangs, and
        a shard may be moved twice."""
        now = self._clock()
        pieces = frozenset(name for name in self._place.names("records") if name.startswith(f"{number}~"))
        since, known = self._held.get(number, (now, frozenset()))
        news = sorted(pieces - known)[-_LOOKED_AT:]
        if any(self._place.read(f"records/{name}") is not None for name in news):
            since = now
        self._held[number] = since, pieces
        return now - since > 2 * self._settings.claim

    def _carry(self, number: str) -> None:
        shard = self._read(number)
        if shard is None:
            # The coordinator has taken it back, its session has just begun, or it is a stranger's.
            again = number in self._unread
            self._unread.add(number)
            self._busy[number] = self._clock() + (self._settings.claim / _PARTS if again else self._settings.poll)
            return
        self._unread.discard(number)
        earlier = self._earlier(number, shard)
        writer = _Records(self._place, f"records/{number}~{self._settings.name}-{secrets.token_hex(4)}")
        out = _Answers(writer.write, partial(self._on_disk, shard), is_last=earlier.attempts >= TRIES - 1)
        out.say(Ready())
        out.flush()
        has_claim = number not in self._unclaimed
        keeping = _Keeping(
            self._place, number, self._settings, self._pace, out, self._interrupt, self._clock, has_claim=has_claim
        )
        if earlier.attempts < TRIES:
            left = tuple(action for action in shard.actions if action.path not in earlier.reported)
            try:
                with keeping:
                    self._move(shard, left, earlier.blocks, out)
            except KeyboardInterrupt:
                # Losing the shard to another worker is no failure; any other error ends this worker.
                if not keeping.lost:
                    raise
        over = self._stays_open(number, out, keeping)
        if not over:
            out.say(ShardDone(shard.number))
        out.flush()
        writer.finish()
        if over:
            self._log(f"shard {number} of {shard.path}: {over}")
            return
        self._place.write(f"done/{number}", b"")
        size = sum(action.size for action in shard.actions)
        self._log(f"shard {number} of {shard.path}: {count_text(len(shard.actions), 'file')}, {size:,} bytes")

    def _stays_open(self, number: str, out: _Answers, keeping: _Keeping) -> str:
        """Why another worker has to finish the shard; empty if this one can."""
        if not keeping.is_ours():
            return keeping.lost
        if out.put_off:
            # Other workers first: they may have a better network connection.
            self._busy[number] = self._clock() + self._settings.claim / _PARTS
            return "the storage did not answer; another try follows"
        return ""

    def _move(self, shard: Shard, left: tuple[FileAction, ...], blocks: frozenset[int], out: Outgoing) -> None:
        ends = self._ends.get((shard.source, shard.destination))
        if ends is None:
            raise FormatError("the shard names other ends than the orders of this worker")
        if isinstance(ends.source, OpenBlob) and isinstance(ends.source.store, UrlListStore):
            ends.source.store.set_files(listed_at(ends.source, shard))
        key = key_between(ends.source, ends.destination)
        part: LivePart = Part(shard.path, shard.route, ends.source, ends.destination, key)
        task = MoveTask(part, left, cap_mbps=self._settings.cap_mbps)
        if shard.order is None:
            self._engine.move(task, out, out)
        elif left:
            # The worker that reads a file for its MD5 reads all of it.
            there = frozenset[int]() if shard.order.only_read else blocks
            self._engine.move_blocks(task, shard.order._replace(there=there), out.block_named, out, out)

    def _on_disk(self, shard: Shard, names: Sequence[str]) -> None:
        """Wait for downloaded files: the coordinator's machine cannot wait for what this one has in memory."""
        ends = self._ends.get((shard.source, shard.destination))
        if ends is not None and isinstance(ends.destination, LocalLocation):
            for file, error in self._wait([str(ends.destination.at(name)) for name in names]).items():
                self._log(f"{local_error(error, file)}: a power failure may take it")

    def _read(self, number: str) -> Shard | None:
        """Read a shard; None if there is none. Raises ``FormatError`` if it is invalid."""
        body = self._place.read(f"shards/{number}")
        if body is None:
            return None
        return read_shard(body)

    def _earlier(self, number: str, shard: Shard) -> _Earlier:
        """The records of earlier attempts at the shard."""
        reported, attempts, blocks = set(), set(), set()
        for name in self._place.names("records"):
            body = self._place.read(f"records/{name}") if name.startswith(f"{number}~") else None
            if body is not None:
                attempt = name.split("~")[1]
                if not attempt.startswith(FROM_PARENT):
                    attempts.add(attempt)
                for line in body.decode("utf-8", "replace").splitlines():
                    answer = read_answer(line, shard.route)
                    if isinstance(answer, FileRecord):
                        reported.add(answer.path)
                    elif isinstance(answer, NamedBlock):
                        blocks.add(answer.index)
        return _Earlier(len(attempts), frozenset(reported), frozenset(blocks))


class _Earlier(NamedTuple):
    attempts: int
    reported: frozenset[str]
    blocks: frozenset[int]


def read_shard(body: bytes) -> Shard:
    """Parse a shard's file. Raises ``FormatError``."""
    reader = ShardReader()
    for line in body.decode("utf-8", "replace").splitlines():
        if (shard := reader.take(line)) is not None:
            return shard
    raise FormatError("lines of the shard are missing")


class _Records:
    """Writes records as numbered pieces. A piece that cannot be written now is added to the next one."""

    def __init__(self, place: SharedStore, name: str) -> None:
        self._place, self._name = place, name
        self._count = 0
        self._waiting = b""

    def write(self, data: bytes) -> None:
        self._waiting += data
        # The network may be down for a minute.
        with suppress(BlobsyncError):
            self.finish()

    def finish(self) -> None:
        """Raises what the store raises if something is still unwritten."""
        if self._waiting:
            self._place.write(f"{self._name}~{self._count:06}", self._waiting)
            self._count += 1
            self._waiting = b""


class _Answers(Outgoing):
    """Leaves out failures that may be those of the network, unless this is the last attempt (``is_last``)."""

    def __init__(
        self, write: Callable[[bytes], None], before: Callable[[Sequence[str]], None], *, is_last: bool
    ) -> None:
        super().__init__(write, before)
        self._is_last = is_last
        self.put_off = False

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        if failure.code in _OF_THE_LINE and not self._is_last:
            self.put_off = True
            return
        super().file_failed(action, failure)


class _Keeping:
    """While a shard moves: writes its records, renews its claim, and watches the coordinator and other workers."""

    def __init__(
        self,
        place: SharedStore,
        number: str,
        settings: ShardWorkerSettings,
        pace: SharedPace,
        out: Outgoing,
        interrupt: Callable[[], None],
        clock: Callable[[], float],
        *,
        has_claim: bool,
    ) -> None:
        self._place, self._name, self._settings = place, f"claims/{number}", settings
        self._done = f"done/{number}"
        self._pace, self._out, self._interrupt = pace, out, interrupt
        self._over = threading.Event()
        # Why the shard no longer belongs to this worker.
        self.lost = ""
        self._has_claim = has_claim
        self._clock = clock
        self._renewed = clock()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        stopped = isinstance(error, KeyboardInterrupt) and not self.lost
        if stopped:
            # A worker that is stopped is killed after a short time.
            self._place.hurry()
        self._over.set()
        self._thread.join(_LAST_LOOK_SECONDS if stopped else None)

    def is_ours(self) -> bool:
        """Whether no other worker has taken the shard; checked only if the claim may have expired."""
        if not self.lost and self._clock() - self._renewed > self._settings.claim / 2:
            self._renew()
        return not self.lost

    def _renew(self) -> None:
        began = self._clock()
        if not self._has_claim or self._place.claim(self._name, self._settings.holder):
            self._renewed = began
        else:
            self.lost = "another worker has taken it over, because nothing was heard of this one"

    def _keep(self) -> None:
        tried = self._renewed
        while not self._over.wait(self._settings.flush):
            self._out.flush()
            try:
                if self._place.read(self._done) is not None:
                    self.lost = "it was taken back"
                is_time = self._clock() - tried >= self._settings.claim / _PARTS
                if is_time and not self.lost:
                    tried = self._clock()
                    self._renew()
                if self.lost or (is_time and self._place.read("stop") is not None):
                    self._interrupt()
                    return
                self._pace.look()
            except BlobsyncError:
                # The next round tries again. An expired claim at worst means that work is done twice.
                continue
