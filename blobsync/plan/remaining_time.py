"""Estimates the time left, from what the files and bytes so far took.

A file costs a request, whatever its size, and its bytes cost time as well: counting one of the two is wrong as soon as
small and large files come together. So the seconds for a file and for a byte are found by least squares over the
stretches of the transfer so far, in which recent ones count more, and what is left is priced with them. Where the
line has become faster or slower since, both prices are off by the same factor, which the last stretches tell.

:func:`interleaved` puts files of all sizes early in the order, so that both prices are known soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Every command loads this module.
    from blobsync.plan.transfer_plan import FileAction

# Seconds: the shortest stretch, and the shortest time that counts as recent; of a long transfer a quarter does.
_STRETCH = 0.25
_RECENT = 5.0
_RECENT_SHARE = 0.25
# The longest that counts as recent: a speed that is shown is that of now.
_RECENT_MOST = 30.0
# More stretches are joined in pairs.
_MOST = 256
# What has not been seen apart is shared as if a file took as long as so many bytes, by so much.
_FILE_AS_BYTES = 4 << 10
_RIDGE = 1e-3
# The line may have become so many times faster or slower.
_CHANGE = 20.0
# Each class of sizes is so many times (as a power of two) larger than the one before.
_CLASS_BITS = 3


class _Stretch(NamedTuple):
    """What was done in some seconds."""

    seconds: float
    files: float
    size: float
    moved: float = 0.0


class RemainingTime:
    """The seconds left and the rate, from totals that ``add`` gets now and then.

    ``add`` takes totals: seconds since it began, files done, the bytes that took time, and those of them that moved
    (the others were compared with what is there); at first the totals with which it began.
    """

    def __init__(self, files: int = 0, size: int = 0, moved: int = 0) -> None:
        self._stretches: list[_Stretch] = []
        self._at = self._now = _Stretch(0.0, files, size, moved)

    def add(self, seconds: float, files: int, size: int, moved: int | None = None) -> None:
        """So far it is by now. What comes too soon after the last stretch belongs to the next one. ``moved`` None: all
        of it."""
        self._now = _Stretch(seconds, files, size, size if moved is None else moved)
        if seconds - self._at.seconds < _STRETCH:
            return
        self._stretches.append(_since(self._at, self._now))
        self._at = self._now
        if len(self._stretches) > _MOST:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=False)
            odd = self._stretches[-1:] if len(self._stretches) % 2 else []
            self._stretches = [_joined(one, other) for one, other in pairs] + odd

    def go_on(self, seconds: float, files: int, size: int, moved: int) -> None:
        """So far it is after a time without a connection, which says nothing of the line's speed."""
        self._at = self._now = _Stretch(seconds, files, size, moved)

    def rate(self, seconds: float, moved: int) -> float:
        """Bytes a second that moved of late; so many in all by now."""
        recent = _recent(self._stretches, _sum(self._stretches).seconds)
        took = recent.seconds + seconds - self._at.seconds
        return max(recent.moved + moved - self._at.moved, 0.0) / took if took > 0 else 0.0

    def left(self, files: int, size: int) -> float | None:
        """Seconds for so many more files and bytes; None where nothing is known yet."""
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
        """With what came since the last stretch as a part of that: in the first seconds it may be nearly all."""
        if self._now.seconds <= self._at.seconds:
            return self._stretches
        begun = _since(self._at, self._now)
        return [*self._stretches[:-1], _joined(self._stretches[-1], begun)] if self._stretches else [begun]


def _since(before: _Stretch, now: _Stretch) -> _Stretch:
    # A retry takes bytes back: they are to be moved again, in time that counts.
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
    """The same files, those of each class of sizes spread evenly over the whole, and the first of each early.

    So the rate of any stretch is that of the whole, and a large file is not what everybody waits for at the end.
    """
    classes: dict[int, list[int]] = {}
    for at, action in enumerate(actions):
        classes.setdefault(action.size.bit_length() // _CLASS_BITS, []).append(at)
    if len(classes) < 2:
        return actions
    # A lone file comes after a twentieth of the others: by then it is known what they take.
    places = [((turn + 0.05) / len(each), at) for each in classes.values() for turn, at in enumerate(each)]
    return [actions[at] for _, at in sorted(places)]
