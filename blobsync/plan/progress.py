"""How far a command is, as numbers: what the bar on a terminal shows and a caller's ``on_progress`` gets."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blobsync.plan.remaining_time import RemainingTime

if TYPE_CHECKING:
    # Every command loads this module.
    from blobsync.plan.transfer_plan import FileFailure

# The current rate is that of so many seconds; a shorter time jumps with each block that arrives.
_RATE_SECONDS = 5.0
# In these phases files move or go; in the others names are looked at.
WORKING = ("moving", "deleting")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a command is. Files, bytes, seconds.

    ``phase`` is what it does now: ``surveying``, ``hashing``, ``moving``, ``verifying`` or ``deleting``. Where
    ``files_expected`` is 0 nothing is known of the end, and only ``looked``, the names looked at so far, can be told.
    ``seconds`` is the time since this phase began. ``bytes`` can go back where a retry starts over; ``reused`` are
    those of them that did not have to move. ``rate`` is in bytes a second that move, over the last few seconds.
    ``seconds_left`` is how long the rest of this phase will take, None where that is unknown or nothing is left.
    ``under_way`` are the files that move now, and ``current`` the path that began last, as far as the engine tells.
    """

    phase: str
    seconds: float
    looked: int = 0
    files: int = 0
    files_expected: int = 0
    bytes: int = 0
    bytes_expected: int = 0
    failures: int = 0
    rate: float = 0.0
    reused: int = 0
    seconds_left: float | None = None
    under_way: int = 0
    current: str = ""


class ProgressCounter:
    """The part of a listener that counts; any thread may bring numbers. ``show`` is called, locked, after each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.step = ""
        self.files = self.files_expected = self.failures = self.bytes = self.bytes_expected = self.looked = 0
        self.reused = self.moving_now = 0
        self.current = ""
        self.began = clock()
        self._samples: deque[tuple[float, int]] = deque()
        self._remaining = RemainingTime()

    def phase(self, name: str) -> None:
        with self.lock:
            if name != self.step:
                self.looked = 0
                self.began = self.clock()
                self._samples.clear()
            if name == "deleting" and self.step == "moving":
                # What was expected so far are the files that moved.
                self.files = self.files_expected = self.bytes = self.bytes_expected = self.reused = 0
            began = name != self.step
            if began:
                self._remaining = RemainingTime(self.files, self.bytes - self.reused)
            self.step = name
            self.show(force=False, began=began)

    def expect(self, files: int, size: int) -> None:
        with self.lock:
            self.files_expected += files
            self.bytes_expected += size
            self.show(force=False)

    def seen(self, files: int) -> None:
        with self.lock:
            self.looked += files
            self.show(force=False)

    def bytes_moved(self, count: int) -> None:
        with self.lock:
            self.bytes += count
            self._note()
            self.show(force=False)

    def bytes_reused(self, count: int) -> None:
        with self.lock:
            self.bytes += count
            self.reused += count
            self.show(force=False)

    def under_way(self, files: int, path: str) -> None:
        with self.lock:
            self.moving_now, self.current = files, path

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        with self.lock:
            self.files += 1
            self.failures += failure is not None
            self._note()
            self.show(force=False)

    def show(self, *, force: bool, began: bool = False) -> None:
        raise NotImplementedError

    def progress(self, now: float) -> Progress:
        """The numbers as they are; ``now`` is the clock's time in seconds."""
        if self.step not in WORKING:
            return Progress(self.step, now - self.began, looked=self.looked)
        return Progress(
            self.step,
            now - self.began,
            files=self.files,
            files_expected=self.files_expected,
            bytes=self.bytes,
            bytes_expected=self.bytes_expected,
            failures=self.failures,
            rate=self._rate(now),
            reused=self.reused,
            seconds_left=self._seconds_left(),
            under_way=self.moving_now,
            current=self.current,
        )

    def _note(self) -> None:
        self._remaining.add(self.clock() - self.began, self.files, self.bytes - self.reused)

    def _seconds_left(self) -> float | None:
        self._note()
        files, size = self.files_expected - self.files, self.bytes_expected - self.bytes
        return self._remaining.left(files, size) if files > 0 or size > 0 else None

    def _rate(self, now: float) -> float:
        """Bytes a second since the oldest sample that is not too old."""
        moved = self.bytes - self.reused
        self._samples.append((now, moved))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        if since == now:
            since, before = self.began, 0
        return max(moved - before, 0) / (now - since) if now > since else 0.0
