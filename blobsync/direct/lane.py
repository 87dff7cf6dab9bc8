"""Small files: one thread that has many of them under way, where a thread for each would cost three times the CPU time.

A small file is one request. The time goes into handing the interpreter's lock from thread to thread, and into waking
them, not into the bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from blobsync.base.errors import BlobsyncError
from blobsync.direct.pool import FileJob, RunState, Stopped
from blobsync.direct.width import Width
from blobsync.store.protocol import BlobInfo, Orders

# Seconds until an interrupted run is noticed.
_NOTICE = 0.2
# Files that are opened before the connections are looked at again.
_AT_ONCE = 8


class Lane:
    """Moves jobs of one piece each. One thread drives ``orders``, and closes them at the end."""

    def __init__(self, run: RunState, jobs: Iterable[FileJob], orders: Orders, width: Width) -> None:
        self._run = run
        self._waiting = iter(jobs)
        self._orders = orders
        self._width = width
        self._again: deque[FileJob] = deque()
        self._open: set[FileJob] = set()
        self._lock = threading.Lock()

    def labour(self) -> None:
        """See :class:`blobsync.direct.crew.Trade`."""
        orders = self._orders
        try:
            while not self._run.stop.is_set():
                more = self._begin_some(orders)
                if not orders.under_way:
                    if not more:
                        return
                    continue
                for job, end in orders.ended(0 if more else _NOTICE):
                    assert isinstance(job, FileJob)
                    self._ended(job, end)
                    self._width.finished(orders.throttled)
        finally:
            orders.close()

    def wake(self) -> None:
        """See :class:`blobsync.direct.crew.Trade`: nobody waits long."""

    def abandon(self) -> None:
        """See :class:`blobsync.direct.crew.Trade`."""
        with self._lock:
            hanging = list(self._open)
        for job in hanging:
            job.abandon()

    def _begin_some(self, orders: Orders) -> bool:
        """Begin a few; whether there is room, and work, for more."""
        for _ in range(_AT_ONCE):
            if orders.under_way >= self._width.now:
                return False
            job = self._next()
            if job is None:
                return False
            self._begin(job, orders)
        return True

    def _next(self) -> FileJob | None:
        with self._lock:
            job = self._again.popleft() if self._again else next(self._waiting, None)
            if job is not None:
                self._open.add(job)
            return job

    def _begin(self, job: FileJob, orders: Orders) -> None:
        error: BaseException | None = self._run.hopeless
        if error is None:
            try:
                pieces = job.open()
                assert pieces == 1, "only what goes in one piece is given to a lane"
                orders.begin(job, job.order())
                return
            except (BlobsyncError, Stopped) as caught:
                error = caught
        self._close(job, error)

    def _ended(self, job: FileJob, end: BlobInfo | bytes | BlobsyncError) -> None:
        error: BaseException | None = None
        if isinstance(end, BlobsyncError):
            error = job.refused(end)
        else:
            try:
                job.landed(end)
            except (BlobsyncError, Stopped) as caught:
                error = caught
        self._close(job, error)

    def _close(self, job: FileJob, error: BaseException | None) -> None:
        again = self._run.finish(job, error)
        with self._lock:
            self._open.discard(job)
            if again:
                self._again.append(job)
