"""Into which pieces a download is cut; pure. What is on record already is to be checked, the rest to be fetched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from blobsync.direct.known_blocks import KnownBlock
from blobsync.local.range_records import RecordedRange


class Piece(NamedTuple):
    """So many bytes from ``start`` on. ``recorded`` are ranges that fill it and were written before.

    ``sha256`` is what the bytes have if they are a whole block: the version before may have it at the same place.
    """

    start: int
    length: int
    recorded: tuple[RecordedRange, ...] = ()
    sha256: bytes | None = None


def pieces_of(
    size: int, piece: int, recorded: Iterable[RecordedRange] = (), blocks: Sequence[KnownBlock] = ()
) -> list[Piece]:
    """A file of ``size`` bytes in its order, in pieces of ``piece`` bytes or less; one for an empty file.

    ``recorded`` are in that order as well, and none is over another. ``blocks``, if there are any, are all of the
    file, and no piece goes over their edges; each that is whole is one piece, whatever its length.
    """
    found: list[Piece] = []
    at = 0
    for group in _groups(recorded, piece):
        start, end = group[0].start, group[-1].start + group[-1].length
        found += _cut(at, start, piece, blocks)
        found.append(Piece(start, end - start, group))
        at = end
    found += _cut(at, size, piece, blocks)
    return found or [Piece(0, 0)]


def _cut(start: int, end: int, piece: int, blocks: Sequence[KnownBlock]) -> Iterator[Piece]:
    if not blocks:
        yield from _even(start, end, piece)
    else:
        first = bisect_right(blocks, start, key=lambda each: each.start) - 1
        behind = bisect_left(blocks, end, key=lambda each: each.start)
        for block in blocks[first:behind]:
            if start <= block.start and block.start + block.length <= end:
                yield Piece(block.start, block.length, sha256=block.sha256)
            else:
                yield from _even(max(start, block.start), min(end, block.start + block.length), piece)


def _even(start: int, end: int, piece: int) -> Iterator[Piece]:
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
