"""Into which pieces a download is cut; pure. What is on record already is to be checked, the rest to be fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from blobsync.local.range_records import RecordedRange


class Piece(NamedTuple):
    """So many bytes from ``start`` on. ``recorded`` are ranges that fill it and were written before."""

    start: int
    length: int
    recorded: tuple[RecordedRange, ...] = ()


def pieces_of(size: int, piece: int, recorded: Iterable[RecordedRange] = ()) -> list[Piece]:
    """A file of ``size`` bytes in its order, in pieces of ``piece`` bytes or less; one for an empty file.

    ``recorded`` are in that order as well, and none is over another.
    """
    found: list[Piece] = []
    at = 0
    for group in _groups(recorded, piece):
        start, end = group[0].start, group[-1].start + group[-1].length
        found += _cut(at, start, piece)
        found.append(Piece(start, end - start, group))
        at = end
    found += _cut(at, size, piece)
    return found or [Piece(0, 0)]


def _cut(start: int, end: int, piece: int) -> Iterator[Piece]:
    return (Piece(at, min(piece, end - at)) for at in range(start, end, piece))


def _groups(recorded: Iterable[RecordedRange], piece: int) -> Iterator[tuple[RecordedRange, ...]]:
    """Neighbours together, as long as they are no longer than a piece."""
    group: list[RecordedRange] = []
    for each in recorded:
        if group and (
            group[-1].start + group[-1].length != each.start or each.start + each.length - group[0].start > piece
        ):
            yield tuple(group)
            group = []
        group.append(each)
    if group:
        yield tuple(group)
