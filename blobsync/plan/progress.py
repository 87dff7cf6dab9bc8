"""Progress of a command in numbers, for the bar on a terminal and a caller's ``on_progress``.

The time left is estimated from the files and bytes so far. Each file takes a request, and its bytes take time as well;
with small and large files mixed, neither alone predicts the time. So the seconds for a file and for a byte are fitted
by least squares to the intervals of the transfer so far, recent ones with more weight. If the connection has become
faster or slower, both are scaled by a factor from the last intervals.

:func:`interleaved` puts files of all sizes early in the order, so that both prices are known soon.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
    Phase,
    UnderWay,
    WorkerMoved,
)
from blobsync.base.formatting import count_text, duration_text
from blobsync.base.plain_json import demand_types

if TYPE_CHECKING:
    from blobsync.plan.transfer_plan import FileAction


# Seconds: the shortest interval, and the shortest time that counts as recent; in a long transfer, a quarter of it.
_STRETCH = 0.25
_RECENT = 5.0
_RECENT_SHARE = 0.25
# The longest time that counts as recent, so that the rate is the present one.
_RECENT_MOST = 30.0
# More intervals are joined in pairs.
_MOST = 256
# Prior: a file takes as long as this many bytes, with this weight.
_FILE_AS_BYTES = 4 << 10
_RIDGE = 1e-3
# Limits of the factor by which the connection may have become faster or slower.
_CHANGE = 20.0
# Each class of sizes is so many times (as a power of two) larger than the one before.
_CLASS_BITS = 3


class _Stretch(NamedTuple):
    """The files and bytes of an interval."""

    seconds: float
    files: float
    size: float
    moved: float = 0.0


class RemainingTime:
    """Estimates the remaining seconds and the rate from totals, which ``add`` gets from time to time.

    ``add`` takes totals: seconds since it began, files done, the bytes that took time, and those of them that moved
    (the others were compared with what is there); at first the totals with which it began.
    """

    def __init__(self, files: int = 0, size: int = 0, moved: int = 0) -> None:
        self._stretches: list[_Stretch] = []
        self._at = self._now = _Stretch(0.0, files, size, moved)

    def add(self, seconds: float, files: int, size: int, moved: int | None = None) -> None:
        """Add the present totals. An interval that is too short is joined with the next one. ``moved`` None: all of
        ``size``."""
        self._now = _Stretch(seconds, files, size, size if moved is None else moved)
        if not self.is_due(seconds):
            return
        self._stretches.append(_since(self._at, self._now))
        self._at = self._now
        if len(self._stretches) > _MOST:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=False)
            odd = self._stretches[-1:] if len(self._stretches) % 2 else []
            self._stretches = [_joined(one, other) for one, other in pairs] + odd

    def is_due(self, seconds: float) -> bool:
        """Whether the present interval is long enough by now."""
        return seconds - self._at.seconds >= _STRETCH

    def go_on(self, seconds: float, files: int, size: int, moved: int) -> None:
        """Set the totals after an outage, whose time does not count."""
        self._at = self._now = _Stretch(seconds, files, size, moved)

    def rate(self, seconds: float, moved: int) -> float:
        """The recent rate in bytes a second; ``moved`` bytes in all by now."""
        recent = _recent(self._stretches, _sum(self._stretches).seconds)
        took = recent.seconds + seconds - self._at.seconds
        return max(recent.moved + moved - self._at.moved, 0.0) / took if took > 0 else 0.0

    def left(self, files: int, size: int) -> float | None:
        """The seconds for more files and bytes; None if unknown."""
        stretches = self._until_now()
        total = _sum(stretches)
        if not total.files and not total.size:
            return None
        recent = _recent(stretches, total.seconds)
        file, byte = _prices(stretches, total)
        expected = file * recent.files + byte * recent.size
        change = recent.seconds / expected if expected > 0 else _CHANGE
        return (file * max(files, 0) + byte * max(size, 0)) * min(max(change, 1 / _CHANGE), _CHANGE)

    def _until_now(self) -> list[_Stretch]:
        """The intervals, with the time since the last one added to it: in the first seconds this may be nearly all."""
        if self._now.seconds <= self._at.seconds:
            return self._stretches
        begun = _since(self._at, self._now)
        return [*self._stretches[:-1], _joined(self._stretches[-1], begun)] if self._stretches else [begun]


def _since(before: _Stretch, now: _Stretch) -> _Stretch:
    # A retry takes bytes back; moving them again takes time.
    gone = (max(each - earlier, 0) for each, earlier in zip(now[1:], before[1:], strict=True))
    return _Stretch(now.seconds - before.seconds, *gone)


def _recent(stretches: Sequence[_Stretch], elapsed: float) -> _Stretch:
    wanted = min(max(_RECENT, _RECENT_SHARE * elapsed), _RECENT_MOST)
    recent = _Stretch(0.0, 0, 0)
    for stretch in reversed(stretches):
        recent = _joined(recent, stretch)
        if recent.seconds >= wanted and (recent.files or recent.size):
            break
    return recent


def _prices(stretches: Sequence[_Stretch], total: _Stretch) -> tuple[float, float]:
    """Seconds for a file and for a byte.

    In units of all files and all bytes so far, so that both unknowns are shares of the time that passed.
    """
    if not total.files or not total.size:
        return (total.seconds / total.files, 0.0) if total.files else (0.0, total.seconds / total.size)
    ff = fs = ss = ft = st = 0.0
    age = 0.0
    for stretch in reversed(stretches):
        age += stretch.seconds
        # The first count a fifth of the last; a long one is as good as many short ones.
        weight = total.seconds / ((age + _RECENT_SHARE * total.seconds) * stretch.seconds)
        files, size = stretch.files / total.files, stretch.size / total.size
        ff, fs, ss = ff + weight * files * files, fs + weight * files * size, ss + weight * size * size
        ft, st = ft + weight * files * stretch.seconds, st + weight * size * stretch.seconds
    for_files = total.files * _FILE_AS_BYTES / (total.files * _FILE_AS_BYTES + total.size)
    ridge = _RIDGE * (ff + ss)
    ff, ss = ff + ridge, ss + ridge
    ft, st = ft + ridge * total.seconds * for_files, st + ridge * total.seconds * (1 - for_files)
    determinant = ff * ss - fs * fs
    file, byte = (ft * ss - st * fs) / determinant, (st * ff - ft * fs) / determinant
    if file < 0:
        file, byte = 0.0, st / ss
    elif byte < 0:
        file, byte = ft / ff, 0.0
    return file / total.files, byte / total.size


def _joined(one: _Stretch, other: _Stretch) -> _Stretch:
    return _Stretch(*(a + b for a, b in zip(one, other, strict=True)))


def _sum(stretches: Sequence[_Stretch]) -> _Stretch:
    return _Stretch(*(sum(column) for column in zip(*stretches, strict=True))) if stretches else _Stretch(0.0, 0, 0)


def interleaved(actions: Sequence[FileAction]) -> Sequence[FileAction]:
    """Reorder files: those of each class of sizes are spread evenly, and the first of each comes early.

    So the rate of any interval is that of the whole, and no large file is left for the end.
    """
    classes: dict[int, list[int]] = {}
    for at, action in enumerate(actions):
        classes.setdefault(action.size.bit_length() // _CLASS_BITS, []).append(at)
    if len(classes) < 2:
        return actions
    # A single file of a class comes after a twentieth of the others, whose cost is known by then.
    places = [((turn + 0.05) / len(each), at) for each in classes.values() for turn, at in enumerate(each)]
    return [actions[at] for _, at in sorted(places)]


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


@dataclass(frozen=True, slots=True)
class WorkerProgress:
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


@dataclass(frozen=True, slots=True, repr=False)
class Progress:
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


def read_progress(values: Mapping[str, Any]) -> Progress:
    """Read the result of ``asdict`` of another process. Raises ``ValueError`` for anything else."""
    try:
        workers = tuple(WorkerProgress(**each) for each in values.get("workers", ()))
        found = Progress(**{**values, "workers": workers})
    except TypeError as error:
        raise ValueError(f"not a progress report: {error}") from None
    demand_types(found)
    return found


class _Rate:
    """The rate over the last few seconds."""

    def __init__(self, began: float) -> None:
        self._samples = deque([(began, 0)])

    def at(self, now: float, moved: int) -> float:
        """The rate at ``now``, with ``moved`` bytes so far."""
        self._samples.append((now, moved))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        return max(moved - before, 0) / (now - since) if now > since else 0.0


class _WorkerCount:
    """The counts of a worker that has moved nothing since ``began``."""

    def __init__(self, began: float) -> None:
        self.files = 0
        self.bytes = 0
        self.rate = _Rate(began)


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
        # By the type of the event, for speed; notes are not counted.
        self._takes: Mapping[type[Event], Callable[[Any], object]] = {
            Phase: self._phase,
            Expected: self._expected,
            Looked: self._looked,
            BytesMoved: self._bytes_moved,
            BytesReused: self._bytes_reused,
            WorkerMoved: self._worker_moved,
            UnderWay: self._under_way,
            FilesDone: self._files_done,
            FilesCounted: self._files_counted,
            Disconnected: self._disconnected,
            Connected: self._connected,
            Moving: self._begins_to_move,
            Hashing: self._reading,
        }

    def emit(self, event: Event) -> None:
        """Count the event."""
        with self.lock:
            take = self._takes.get(type(event))
            if take is None:
                return
            began = take(event) is True
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

    def _expected(self, event: Expected) -> None:
        self.files_expected += event.files
        self.bytes_expected += event.size

    def _looked(self, event: Looked) -> None:
        self.looked += event.files

    def _bytes_moved(self, event: BytesMoved) -> None:
        self.bytes += event.size
        self._stir()

    def _bytes_reused(self, event: BytesReused) -> None:
        self.bytes += event.size
        self.reused += event.size
        self._stir()

    def _worker_moved(self, event: WorkerMoved) -> None:
        count = self._workers.get(event.worker)
        if count is None:
            # A worker reports what it has moved already: measured from then on, it would be faster than all together.
            began = max(self.began, self.clock() - _RATE_SECONDS)
            count = self._workers[event.worker] = _WorkerCount(began)
        count.files += event.files
        count.bytes += event.size

    def _under_way(self, event: UnderWay) -> None:
        self.moving_now, self.current = event.files, event.path

    def _files_done(self, event: FilesDone) -> None:
        # A second engine may have tried a file again.
        again = len(self._failed.intersection(event.paths))
        self.files += len(event.paths) - again
        (self._failed.difference_update if event.failure is None else self._failed.update)(event.paths)
        self.failures = len(self._failed)
        self._stir()

    def _files_counted(self, event: FilesCounted) -> None:
        self._counted += event.files
        self._stir()

    def _disconnected(self, event: Disconnected) -> None:
        self._note()
        self._lost.setdefault(event.host, (self.clock() - event.seconds, event.why))

    def _connected(self, event: Connected) -> None:
        if self._lost.pop(event.host, None) and not self._lost:
            self._stirred = self.clock()
            self._remaining.go_on(self._stirred - self.began, self._files, self._work, self._moved)

    def _begins_to_move(self, event: Moving) -> None:
        self._doing, self._on_record = event.doing, event.on_record

    def _reading(self, event: Hashing) -> None:
        self._hashing, self._hashing_bytes = self._hashing + event.files, self._hashing_bytes + event.size

    def show(self, *, force: bool, began: bool = False) -> None:
        raise NotImplementedError

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
            return replace(looking, under_way=self._hashing, bytes_expected=self._hashing_bytes) if hashing else looking
        return replace(
            looking,
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
        return min(max(_STALLED, usual), _RECENT_MOST)

    def workers(self, now: float) -> tuple[WorkerProgress, ...]:
        """The progress of each worker; empty if this process works alone."""
        return tuple(
            WorkerProgress(name, each.files, max(each.bytes, 0), each.rate.at(now, each.bytes))
            for name, each in self._workers.items()
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
