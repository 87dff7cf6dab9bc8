"""Estimates the time left and the rate of a transfer from the files and bytes so far.

Each file takes a request, and its bytes take time as well; with small and large files mixed, neither alone predicts the
time. So the seconds for a file and for a byte are fitted by least squares to the intervals of the transfer so far,
recent ones with more weight. If the connection has become faster or slower, both are scaled by a factor from the last
intervals.

:func:`interleaved` puts files of all sizes early in the order, so that both prices are known soon.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blobsync.base.records import NamedTuple

if TYPE_CHECKING:
    from blobsync.plan.transfer_plan import FileAction

# Seconds: the shortest interval, and the shortest time that counts as recent; in a long transfer, a quarter of it.
_STRETCH = 0.25
_RECENT = 5.0
_RECENT_SHARE = 0.25
# The longest time that counts as recent, so that the rate is the present one.
RECENT_MOST = 30.0
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
    wanted = min(max(_RECENT, _RECENT_SHARE * elapsed), RECENT_MOST)
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


def interleaved(actions: "Sequence[FileAction]") -> "Sequence[FileAction]":
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
