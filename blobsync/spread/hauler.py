"""A worker of a spread transfer: claims one shard after the other at the place, moves it, and leaves records there.

    alive             from the parent; what it says changes while the parent lives, and it goes when nothing is left
    shards/NUMBER     what is to be moved (``shard``)
    claims/NUMBER     who moves it at this moment
    records/NUMBER~ATTEMPT~PIECE      what became of it (``record``); the last piece ends with ``done``
    done/NUMBER       nobody has to look at this shard again
    refused/WORKER    why this worker cannot work at all
    stop              the parent gives up

A write done twice is idempotent: a file that somebody else has put there meanwhile fails under its condition, and the
parent compares it. So a claim need not be perfect.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from blobsync.base.errors import BlobsyncError
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, IndexKey, Part
from blobsync.spread.file_json import FormatError
from blobsync.spread.place import CLAIM_SECONDS, SharedPlace
from blobsync.spread.record import FileRecord, Ready, ShardDone, read_answer
from blobsync.spread.shard import Shard, ShardReader
from blobsync.spread.shard_account import TRIES
from blobsync.spread.worker import Outgoing
from blobsync.store.ends import LiveEnd
from blobsync.transfer.engines import Engine, MoveTask

# Seconds. A parent from which nothing was heard for so long is gone.
PARENT_SECONDS = 180.0
_RENEW_SECONDS = CLAIM_SECONDS / 4
# What somebody else has claimed is not asked for again so soon.
_BUSY_SECONDS = CLAIM_SECONDS / 4


class Ends(NamedTuple):
    """Two ends between which a worker may move files; a shard names them as texts."""

    source: LiveEnd
    destination: LiveEnd


class HaulerSettings(NamedTuple):
    """``name`` is the worker's, ``number`` its place among all of them, ``holder`` the UUID under which it claims: the
    same after it was started again, so that it takes back at once what it had. Times in seconds."""

    name: str
    number: int
    holder: str
    cap_mbps: float | None = None
    poll: float = 1.0
    flush: float = 1.0
    parent: float = PARENT_SECONDS


class Hauler:
    """One worker. ``interrupt`` stops the thread that works, as Ctrl-C does."""

    def __init__(
        self,
        place: SharedPlace,
        ends: Mapping[tuple[str, str], Ends],
        engine: Engine,
        settings: HaulerSettings,
        interrupt: Callable[[], None],
        told: Callable[[str], None],
    ) -> None:
        self._place = place
        self._ends = ends
        self._engine = engine
        self._settings = settings
        self._interrupt = interrupt
        self._told = told
        self._busy: dict[str, float] = {}
        self._beat: tuple[bytes | None, float] = (None, time.monotonic())

    def work(self) -> None:
        """Until nothing is left to do, or nobody is left who wants it."""
        while not self._is_over():
            number = self._next()
            if number is None:
                time.sleep(self._settings.poll)
                continue
            try:
                self._carry(number)
            finally:
                self._place.release(f"claims/{number}", self._settings.holder)

    def refuse(self, why: str) -> None:
        """Say why this worker cannot work."""
        self._place.write(f"refused/{self._settings.name}", why.encode())

    def _is_over(self) -> bool:
        beat = self._place.read("alive")
        if not beat or self._place.read("stop") is not None:
            return True
        if beat != self._beat[0]:
            self._beat = beat, time.monotonic()
        if time.monotonic() - self._beat[1] < self._settings.parent:
            return False
        self._told("nothing was heard of the command that began this transfer; ending")
        return True

    def _next(self) -> str | None:
        """A shard that is ours now. Each worker begins at another one."""
        done = set(self._place.names("done"))
        open_shards = [name for name in self._place.names("shards") if name not in done]
        now, start = time.monotonic(), self._settings.number % max(1, len(open_shards))
        for name in open_shards[start:] + open_shards[:start]:
            if self._busy.get(name, 0.0) > now:
                continue
            if not self._place.claim(f"claims/{name}", self._settings.holder):
                self._busy[name] = now + _BUSY_SECONDS
            elif self._place.read(f"done/{name}") is not None:
                self._place.release(f"claims/{name}", self._settings.holder)
            else:
                return name
        return None

    def _carry(self, number: str) -> None:
        shard = self._read(number)
        if shard is None:
            return
        earlier = self._earlier(number, shard)
        writer = _Records(self._place, f"records/{number}~{self._settings.name}-{secrets.token_hex(4)}")
        out = Outgoing(writer.write)
        out.say(Ready())
        out.flush()
        if earlier.attempts < TRIES:
            left = tuple(action for action in shard.actions if action.path not in earlier.told)
            with _Keeping(self._place, number, self._settings, out, self._interrupt):
                self._move(shard, left, out)
        out.say(ShardDone(shard.number))
        out.flush()
        writer.finish()
        self._place.write(f"done/{number}", b"")
        size = sum(action.size for action in shard.actions)
        self._told(f"shard {number} of {shard.path}: {len(shard.actions):,} files, {size:,} bytes")

    def _move(self, shard: Shard, left: tuple[FileAction, ...], out: Outgoing) -> None:
        ends = self._ends.get((shard.source, shard.destination))
        if ends is None:
            raise FormatError("the shard names other ends than the orders of this worker")
        part: LivePart = Part(shard.path, shard.route, ends.source, ends.destination, IndexKey("", "", ""))
        self._engine.move(MoveTask(part, left, cap_mbps=self._settings.cap_mbps), out, out)

    def _read(self, number: str) -> Shard | None:
        """None where the parent has taken it back meanwhile. Raises ``FormatError`` for what is no shard."""
        body = self._place.read(f"shards/{number}")
        if body is None:
            return None
        return read_shard(body)

    def _earlier(self, number: str, shard: Shard) -> _Earlier:
        """What those who had the shard before have said of it."""
        told, attempts = set(), set()
        for name in self._place.names("records"):
            if name.startswith(f"{number}~"):
                attempts.add(name.split("~")[1])
                body = self._place.read(f"records/{name}") or b""
                for line in body.decode("utf-8", "replace").splitlines():
                    answer = read_answer(line, shard.route)
                    if isinstance(answer, FileRecord):
                        told.add(answer.path)
        return _Earlier(len(attempts), frozenset(told))


class _Earlier(NamedTuple):
    attempts: int
    told: frozenset[str]


def read_shard(body: bytes) -> Shard:
    """A shard's file. Raises ``FormatError``."""
    reader = ShardReader()
    for line in body.decode("utf-8", "replace").splitlines():
        if (shard := reader.take(line)) is not None:
            return shard
    raise FormatError("lines of the shard are missing")


class _Records:
    """Writes records as pieces with numbers. What cannot be written now goes along with the next piece."""

    def __init__(self, place: SharedPlace, name: str) -> None:
        self._place, self._name = place, name
        self._count = 0
        self._waiting = b""

    def write(self, data: bytes) -> None:
        self._waiting += data
        try:
            self.finish()
        except BlobsyncError:
            # The line may be cut for a minute.
            return

    def finish(self) -> None:
        """Raises what the place raises while something still waits."""
        if self._waiting:
            self._place.write(f"{self._name}~{self._count:06}", self._waiting)
            self._count += 1
            self._waiting = b""


class _Keeping:
    """While a shard moves: its records go out, its claim stays ours, and the parent is listened to."""

    def __init__(
        self, place: SharedPlace, number: str, settings: HaulerSettings, out: Outgoing, interrupt: Callable[[], None]
    ) -> None:
        self._place, self._number, self._settings = place, number, settings
        self._out, self._interrupt = out, interrupt
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        renewed = time.monotonic()
        while not self._over.wait(self._settings.flush):
            self._out.flush()
            if time.monotonic() - renewed < _RENEW_SECONDS:
                continue
            renewed = time.monotonic()
            try:
                self._place.claim(f"claims/{self._number}", self._settings.holder)
                if self._place.read("stop") is not None:
                    self._interrupt()
            except BlobsyncError:
                # The next round tries again. A claim that ran out meanwhile means work done twice, no more.
                continue
