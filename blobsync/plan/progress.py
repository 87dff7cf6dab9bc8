"""Progress of a command in numbers, for the bar on a terminal and a caller's ``on_progress``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from blobsync.base.events import (
    NO_ANSWER,
    BytesMoved,
    BytesReused,
    Connected,
    Disconnected,
    Event,
    Expected,
    FilesCounted,
    FilesDone,
    Hashing,
    Looked,
    Moving,
    Note,
    Phase,
    UnderWay,
    WorkerMoved,
)
from blobsync.base.formatting import count_text, duration_text
from blobsync.base.records import NamedTuple
from blobsync.plan.remaining_time import RECENT_MOST, RemainingTime

# Seconds over which the rate of a worker is measured; in less time it would jump with each block.
_RATE_SECONDS = 5.0
# Seconds without a response that are reported, if the reason is known, and if not.
_WORTH_SAYING = 2.0
_STALLED = 8.0
# A copy from server to server is counted only as whole blocks or files end: so many times its longest silence so far,
# but no longer than what counts as recent, since by then nothing recent has moved.
_STALLED_COPIES = 2.0
# Seconds until a time is estimated: after the first bytes of a slow connection it would be years.
_TELLS_LITTLE = 1.0
# Maximum number of points of a rate curve; beyond that, every other one is dropped.
_MOST_POINTS = 240
# What users call a phase.
_WORDS = {"surveying": "listing", "verifying": "checking"}
# Phases in which files move or are deleted; in the others names are looked at.
WORKING = ("moving", "deleting")


class WorkerProgress(NamedTuple):
    """What one of several workers has moved so far; ``rate`` is as that of :class:`Progress`.

    ``name`` is what the engine calls it: ``process 4711`` on this machine, ``node0.1`` on a node.
    """

    name: str
    files: int = 0
    bytes: int = 0
    rate: float = 0.0


# Seconds since it began, bytes that moved so far, and bytes a second.
RatePoint = tuple[float, int, float]


def add_point(points: list[RatePoint], seconds: float, progress: Progress) -> None:
    """Add a point to the rate curve of a transfer; in a long one, points are farther apart."""
    points.append((seconds, max(progress.bytes - progress.reused, 0), progress.rate))
    if len(points) > _MOST_POINTS:
        del points[1::2]


def by_node(workers: Iterable[WorkerProgress]) -> list[WorkerProgress]:
    """Sum the workers of each node: ``node0.0`` and ``node0.1`` are workers of ``node0``."""
    nodes: dict[str, WorkerProgress] = {}
    for each in workers:
        name = each.name.partition(".")[0]
        other = nodes.get(name, WorkerProgress(name))
        nodes[name] = WorkerProgress(name, other.files + each.files, other.bytes + each.bytes, other.rate + each.rate)
    # node10 after node2.
    return sorted(nodes.values(), key=lambda node: (len(node.name), node.name))


class Progress(NamedTuple):
    """The progress of a command: files, bytes, seconds.

    ``phase`` is one of ``surveying``, ``hashing``, ``moving``, ``verifying`` or ``deleting``. If ``files_expected`` is
    0, the end is unknown, and only ``looked``, the names looked at so far, is meaningful. ``seconds`` is the time since
    this phase began. ``bytes`` can decrease if a retry starts over, and are never more than ``bytes_expected``;
    ``reused`` are those of them that did not have to move. ``rate`` is in bytes a second, over the same seconds as
    ``seconds_left``. ``doing`` is the phase in a user's word, such as ``uploading``. If nothing moves, ``waiting`` says
    why (``no connection``, ``no answer``, ``the service is busy``), for ``waiting_seconds`` so far, ``retrying``
    whether there are retries; then there is neither a rate nor a time left. While ``hashing``, ``under_way`` files of
    ``bytes_expected`` bytes are being read. ``seconds_left`` is the time for the rest of this phase, None if that is
    unknown or nothing is left. ``under_way`` are the files that move now, and ``current`` the path that began last, if
    the engine reports them. ``workers`` has several processes or nodes in the order of their first report.
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
    workers: tuple[WorkerProgress, ...] = ()
    doing: str = ""
    waiting: str = ""
    waiting_seconds: float = 0.0
    retrying: bool = False

    def __repr__(self) -> str:
        workers = f", {count_text(len(self.workers), 'worker')}" if self.workers else ""
        return f"<Progress {self.phase}: {self.files:,} of {self.files_expected:,} files{workers}>"

    def values(self) -> dict[str, Any]:
        """The fields by their names, as JSON has them."""
        return {**self._asdict(), "workers": [each._asdict() for each in self.workers]}

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1; 0 if the end is unknown."""
        done, total = self.files, self.files_expected
        if self.bytes_expected:
            # A retry may have taken bytes back, or sent some twice.
            done, total = self.bytes, self.bytes_expected
        return min(max(done / total, 0.0), 1.0) if total else 0.0


def step_verb(phase: str) -> str:
    """The word for a phase: ``listing`` for ``surveying``, ``checking`` for ``verifying``."""
    return _WORDS.get(phase, phase)


def waiting_text(progress: Progress) -> str:
    """``no connection for 8 s, trying again``; empty if nothing waits."""
    if not progress.waiting:
        return ""
    again = ", trying again" if progress.retrying else ""
    return f"{progress.waiting} for {duration_text(progress.waiting_seconds)}{again}"


class _WorkerCount:
    """The counts of a worker that has moved nothing since ``began``."""

    def __init__(self, began: float) -> None:
        self.files = self.bytes = 0
        self._samples = deque([(began, 0)])

    def rate(self, now: float) -> float:
        """The rate over the last few seconds."""
        self._samples.append((now, self.bytes))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        return max(self.bytes - before, 0) / (now - since) if now > since else 0.0


class ProgressCounter:
    """A listener that counts, for events from any thread. ``show`` is called, locked, after each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.step = ""
        self.files = self.files_expected = self.failures = self.bytes = self.bytes_expected = self.looked = 0
        self.reused = self.moving_now = 0
        self.current = ""
        self._failed: set[str] = set()
        self.began = clock()
        self._workers: dict[str, _WorkerCount] = {}
        self._remaining = RemainingTime()
        self._doing = ""
        self._on_record = self._counted = 0
        self._hashing = self._hashing_bytes = 0
        # Hosts that do not answer: since when, and why.
        self._lost: dict[str, tuple[float, str]] = {}
        self._stirred = clock()
        self._longest_silence = 0.0

    def emit(self, event: Event) -> None:
        """Count the event."""
        with self.lock:
            began = False
            match event:
                case Note():
                    return
                case Phase():
                    began = self._phase(event)
                case FilesDone():
                    self._files_done(event)
                case WorkerMoved():
                    self._worker_moved(event)
                case Disconnected() | Connected():
                    self._reached(event)
                case _:
                    self._add(event)
            # Files that are subtracted are reported by name at once: shown in between, the count would jump back.
            is_followed = isinstance(event, WorkerMoved) or (isinstance(event, FilesCounted) and event.files < 0)
            if not is_followed:
                self.show(force=False, began=began)

    def _phase(self, event: Phase) -> bool:
        began = event.name != self.step
        if began:
            self.looked = 0
            self.began = self._stirred = self.clock()
            self._longest_silence = 0.0
        if event.name == "deleting" and self.step == "moving":
            # The files expected so far are those that moved.
            self.files = self.files_expected = self.bytes = self.bytes_expected = self.reused = 0
            self._on_record = self._counted = 0
        if began:
            self._remaining = RemainingTime(self._files, self._work, self._moved)
        self.step = event.name
        return began

    def _add(
        self, event: BytesMoved | BytesReused | UnderWay | FilesCounted | Expected | Looked | Hashing | Moving
    ) -> None:
        match event:
            case BytesMoved(size) | BytesReused(size):
                self.bytes += size
                self.reused += size if isinstance(event, BytesReused) else 0
                self._stir()
            case UnderWay():
                self.moving_now, self.current = event
            case FilesCounted():
                self._counted += event.files
                self._stir()
            case Expected():
                self.files_expected, self.bytes_expected = (
                    self.files_expected + event.files,
                    self.bytes_expected + event.size,
                )
            case Looked():
                self.looked += event.files
            case Hashing():
                self._hashing, self._hashing_bytes = self._hashing + event.files, self._hashing_bytes + event.size
            case Moving():
                self._doing, self._on_record = event

    def _worker_moved(self, event: WorkerMoved) -> None:
        count = self._workers.get(event.worker)
        if count is None:
            # A worker reports what it has moved already: measured from then on, it would be faster than all together.
            began = max(self.began, self.clock() - _RATE_SECONDS)
            count = self._workers[event.worker] = _WorkerCount(began)
        count.files += event.files
        count.bytes += event.size

    def _files_done(self, event: FilesDone) -> None:
        # A second engine may have tried a file again.
        again = len(self._failed.intersection(event.paths))
        self.files += len(event.paths) - again
        (self._failed.difference_update if event.failure is None else self._failed.update)(event.paths)
        self.failures = len(self._failed)
        self._stir()

    def _reached(self, event: Disconnected | Connected) -> None:
        if isinstance(event, Disconnected):
            self._note()
            self._lost.setdefault(event.host, (self.clock() - event.seconds, event.why))
        elif self._lost.pop(event.host, None) and not self._lost:
            self._stirred = self.clock()
            self._remaining.go_on(self._stirred - self.began, self._files, self._work, self._moved)

    def show(self, *, force: bool, began: bool = False) -> None:
        """For displays; ``force``: even if one was just made; ``began``: a phase began."""

    def snapshot(self) -> Progress:
        """The present numbers, for another thread."""
        with self.lock:
            return self.progress(self.clock())

    def progress(self, now: float) -> Progress:
        """The present numbers; ``now`` is the clock's time in seconds."""
        if self.step in WORKING:
            self._note()
        waiting, since, retrying = self._waiting(now)
        looking = Progress(
            self.step,
            now - self.began,
            looked=self.looked,
            doing=self.doing,
            waiting=waiting,
            waiting_seconds=now - since,
            retrying=retrying,
        )
        if self.step not in WORKING:
            hashing = looking.doing == "hashing"
            return looking._replace(under_way=self._hashing, bytes_expected=self._hashing_bytes) if hashing else looking
        return looking._replace(
            files=_within(self._files, self.files_expected),
            files_expected=self.files_expected,
            bytes=_within(self.bytes, self.bytes_expected),
            bytes_expected=self.bytes_expected,
            failures=self.failures,
            rate=0.0 if waiting else self._remaining.rate(now - self.began, self._moved),
            reused=self.reused,
            seconds_left=None if waiting else self._seconds_left(),
            under_way=self.moving_now,
            current=self.current,
            workers=self.workers(now),
        )

    def _waiting(self, now: float) -> tuple[str, float, bool]:
        """Why nothing moves, since when, and whether there are retries; empty if something moves."""
        for since, why in sorted(self._lost.values())[:1]:
            if now - since >= _WORTH_SAYING:
                return why, since, True
        if self.step == "moving" and now - self._stirred >= self._patience and self._seconds_left():
            return NO_ANSWER, self._stirred, False
        return "", now, False

    @property
    def _patience(self) -> float:
        """The seconds of silence that are reported."""
        usual = _STALLED_COPIES * self._longest_silence if self._doing == "copying" else 0.0
        return min(max(_STALLED, usual), RECENT_MOST)

    def workers(self, now: float) -> tuple[WorkerProgress, ...]:
        """The progress of each worker; empty if this process works alone."""
        return tuple(
            WorkerProgress(name, each.files, max(each.bytes, 0), each.rate(now)) for name, each in self._workers.items()
        )

    @property
    def doing(self) -> str:
        """The phase in a user's word; empty if that is the phase itself."""
        if self.step == "surveying" and self._hashing > 0:
            return "hashing"
        return self._doing if self.step == "moving" else ""

    @property
    def _files(self) -> int:
        return self.files + self._counted

    @property
    def _moved(self) -> int:
        return self.bytes - self.reused

    @property
    def _work(self) -> int:
        """The bytes that took time: those that moved or were compared, but not those on record, which are only read."""
        return self.bytes - min(self.reused, self._on_record)

    def _stir(self) -> None:
        now = self.clock()
        self._longest_silence = max(self._longest_silence, now - self._stirred)
        self._stirred = now
        # Several times for each file, and each note counts until the next: one for each interval is enough.
        if self._remaining.is_due(now - self.began):
            self._note()

    def _note(self) -> None:
        # The time of an outage does not count.
        if not self._lost:
            self._remaining.add(self.clock() - self.began, self._files, self._work, self._moved)

    def _seconds_left(self) -> float | None:
        if self.clock() - self.began < _TELLS_LITTLE:
            return None
        files, size = self.files_expected - self._files, self.bytes_expected - self.bytes
        size -= max(self._on_record - self.reused, 0)
        return self._remaining.left(files, size) if files > 0 or size > 0 else None


def _within(done: int, whole: int) -> int:
    """Limit ``done`` to the range from 0 to ``whole``, if that is known."""
    return max(min(done, whole) if whole else done, 0)
