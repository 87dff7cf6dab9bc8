"""Moves small files: one thread runs many requests at a time, for a third of the CPU time of one thread per request.

A small file is one request. The time goes into handing the interpreter's lock from thread to thread, and into waking
them, not into the bytes. On a slow disk (a network file system) more threads help: each runs requests of its own.

Files that begin together, and those that end together, are handed on in one list. The order of their records is that of
a single file; what a kill leaves of an upload (a download):

1. before the intents of the list: nothing is requested (no file has its name);
2. after them: some blobs may be written (some files have their names), and the intents say which are ours;
3. after the ledger has seen the answers: the same, until it saves, some seconds later;
4. after that: the index says that both sides are equal.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from blobsync.base.errors import BlobsyncError
from blobsync.base.events import BytesMoved
from blobsync.direct.thread_pool import Ended, FileJob, RunState, Stopped
from blobsync.store.protocol import BlobInfo, Order, Orders, PutOrder

# Seconds until an interrupted run is noticed.
_NOTICE = 0.2
# Files that are opened before the connections are polled again.
_AT_ONCE = 8
# Threads for a slow disk. A disk counts as slow if most of so many files wait so long each (seconds): a busy processor
# delays some, too.
HANDS = 8
_SLOW_FILE = 0.001
_ENOUGH_TO_TELL = 16

# A larger width is kept only if it raises the rate by this factor.
_GAIN = 1.15
# A measurement lasts at least this long (seconds), and this many times the width in finished requests.
_SHORTEST = 0.05
_TURNS = 2
# Seconds after which a larger width is tried again, since networks and services change.
_TRY_AGAIN = 10.0
# Throttled responses within this many seconds count as one.
_SAME = 1.0


class AdaptiveConcurrency:
    """How many requests may be under way (``now``): more while that is faster, fewer when the service asks for that.

    Call ``finished`` after some; for use by one thread.
    ``clock`` is in seconds and monotonic.
    """

    def __init__(self, start: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = start
        self._most = most
        self._clock = clock
        self._throttled = 0
        self._shrunk = float("-inf")
        # When the width was last found to be enough; None after a step up, until that is judged.
        self._settled: float | None = None
        # The width before the last step up, and how many requests a second finished with it.
        self._before, self._rate = start, 0.0
        self._measure_from(clock())

    def finished(self, throttled: int, count: int = 1) -> None:
        """Count finished requests; ``throttled`` is how often the service has asked to slow down so far."""
        self._count += count
        if throttled != self._throttled:
            self._throttled = throttled
            self._shrink(self._clock())
        elif self._count >= _TURNS * self.now and (now := self._clock()) - self._since >= _SHORTEST:
            self._judge(self._count / (now - self._since), now)
            self._measure_from(now)

    def _judge(self, rate: float, now: float) -> None:
        if self._settled is None and rate < self._rate * _GAIN:
            # The last step up did not help.
            self.now, self._settled = self._before, now
        elif self._settled is None or now - self._settled > _TRY_AGAIN:
            self._before, self._rate = self.now, rate
            self.now, self._settled = min(self._most, self.now * 2), None

    def _shrink(self, now: float) -> None:
        if now - self._shrunk > _SAME:
            self._shrunk = now
            self.now = max(1, self.now // 2)
        self._settled = now
        self._measure_from(now)

    def _measure_from(self, now: float) -> None:
        self._count, self._since = 0, now


class SmallFiles:
    """Moves jobs of one piece each. The first thread works at once, the others only if the disk is slow.

    Each thread opens its connections with ``open_orders``, and closes them. ``wall`` and ``cpu`` measure the wait for
    the disk; the second one, the CPU seconds of the calling thread, is a system call.
    """

    def __init__(
        self,
        run: RunState,
        jobs: Iterable[FileJob],
        open_orders: Callable[[], Orders],
        width: AdaptiveConcurrency,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._run = run
        self._waiting = iter(jobs)
        self._open_orders = open_orders
        self._width = width
        self._wall, self._cpu = wall, cpu
        self._again: deque[FileJob] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._hands = 0
        self._over = False
        self._slow = False
        self._files = self._slow_files = 0
        self._throttled = 0

    def run(self) -> None:
        if not self._is_needed():
            return
        try:
            self._work(self._open_orders())
        finally:
            with self._changed:
                # The first thread with nothing left to begin: no other is needed.
                self._over = True
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_needed(self) -> bool:
        with self._changed:
            self._hands += 1
            if self._hands == 1:
                return True
            while not (self._slow or self._over or self._run.stop.is_set()):
                self._changed.wait()
            return not self._over and not self._run.stop.is_set()

    def _work(self, orders: Orders) -> None:
        throttled = 0
        self._cpu_seen = self._cpu()
        try:
            while not self._run.stop.is_set():
                more = self._begin_some(orders)
                if not orders.under_way:
                    if not more:
                        return
                    continue
                if ended := orders.ended(0 if more else _NOTICE):
                    self._land(ended)
                    with self._lock:
                        self._throttled += orders.throttled - throttled
                        throttled = orders.throttled
                        self._width.finished(self._throttled, len(ended))
        finally:
            orders.close()

    def abandon(self) -> None:
        self._run.abandon()

    def _begin_some(self, orders: Orders) -> bool:
        """Begin a few files; returns whether there is room, and work, for more."""
        width = max(1, self._width.now // (HANDS if self._slow else 1))
        most = max(0, min(width - orders.under_way, _AT_ONCE))
        with self._lock:
            jobs = [self._again.popleft() for _ in range(min(most, len(self._again)))]
            jobs += islice(self._waiting, most - len(jobs))
        if jobs:
            self._begin(jobs, orders)
        return bool(jobs) and orders.under_way < width

    def _begin(self, jobs: Sequence[FileJob], orders: Orders) -> None:
        hopeless = self._run.hopeless
        if hopeless is not None:
            self._close([(job, hopeless) for job in jobs])
            return
        self._run.begins(jobs)
        ready: list[tuple[FileJob, Order]] = []
        failed: list[Ended] = []
        for job in jobs:
            try:
                began = self._wall()
                pieces = job.open()
                assert pieces == 1, "only files of one piece are small"
                ready.append((job, job.order()))
                self._waited_for_disk(began)
            except (BlobsyncError, Stopped) as caught:
                failed.append((job, caught))
        puts = [(job.action, len(order.body), order.md5) for job, order in ready if isinstance(order, PutOrder)]
        self._run.about_to_write(*puts)
        for job, order in ready:
            orders.begin(job, order)
        self._close(failed)

    def _land(self, ended: Sequence[tuple[object, BlobInfo | bytes | BlobsyncError]]) -> None:
        closing: list[Ended] = []
        for job, end in ended:
            assert isinstance(job, FileJob)
            if isinstance(end, BlobsyncError):
                closing.append((job, job.refused(end)))
                continue
            try:
                began = self._wall()
                job.landed(end)
                self._waited_for_disk(began)
                job.counted = job.action.size
                closing.append((job, None))
            except (BlobsyncError, Stopped) as caught:
                closing.append((job, caught))
        self._run.listener.emit(BytesMoved(sum(job.counted for job, _ in closing)))
        self._close(closing)

    def _waited_for_disk(self, began: float) -> None:
        """Decide after a few files whether the disk is slow and more threads are needed, for the rest of the run.

        Only one thread works until then; afterwards this changes nothing.
        """
        took = self._wall() - began
        self._files += 1
        if took > _SLOW_FILE:
            # Not less than the CPU time of this file.
            seen, self._cpu_seen = self._cpu_seen, self._cpu()
            self._slow_files += took - (self._cpu_seen - seen) > _SLOW_FILE
        if self._files >= _ENOUGH_TO_TELL:
            if 2 * self._slow_files > self._files:
                with self._changed:
                    self._slow = True
                    self._changed.notify_all()
            self._files = self._slow_files = 0

    def _close(self, ended: Sequence[Ended]) -> None:
        again = self._run.finish(ended)
        with self._lock:
            self._again += again
