"""How a download is cut: every byte in one piece, in the file's order, nothing longer than a request should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.direct.large_download import Piece, pieces_of
from blobsync.direct.range_reads import KnownBlock
from blobsync.local.resume_records import RecordedRange


def recorded(start: int, length: int) -> RecordedRange:
    return RecordedRange(start, length, b"")


@pytest.mark.parametrize(
    ("size", "found", "pieces"),
    [
        (0, (), [Piece(0, 0)]),
        (10, (), [Piece(0, 10)]),
        (25, (), [Piece(0, 10), Piece(10, 10), Piece(20, 5)]),
        (25, (recorded(12, 3),), [Piece(0, 10), Piece(10, 2), Piece(12, 3, (recorded(12, 3),)), Piece(15, 10)]),
        (9, (recorded(0, 4), recorded(4, 5)), [Piece(0, 9, (recorded(0, 4), recorded(4, 5)))]),
        (
            20,
            (recorded(0, 6), recorded(6, 5), recorded(13, 7)),
            [
                Piece(0, 6, (recorded(0, 6),)),
                Piece(6, 5, (recorded(6, 5),)),
                Piece(11, 2),
                Piece(13, 7, (recorded(13, 7),)),
            ],
        ),
        (
            8,
            (recorded(0, 2), recorded(5, 2)),
            [Piece(0, 2, (recorded(0, 2),)), Piece(2, 3), Piece(5, 2, (recorded(5, 2),)), Piece(7, 1)],
        ),
        (30, (recorded(0, 30),), [Piece(0, 30, (recorded(0, 30),))]),
        (
            20,
            (recorded(12, 2), recorded(14, 3), recorded(17, 1)),
            [
                Piece(0, 10),
                Piece(10, 2),
                Piece(12, 6, (recorded(12, 2), recorded(14, 3), recorded(17, 1))),
                Piece(18, 2),
            ],
        ),
        (
            14,
            (recorded(0, 6), recorded(6, 4), recorded(10, 4)),
            [Piece(0, 10, (recorded(0, 6), recorded(6, 4))), Piece(10, 4, (recorded(10, 4),))],
        ),
    ],
)
def test_what_is_on_record_stays_together_and_the_rest_is_cut(
    size: int, found: tuple[RecordedRange, ...], pieces: list[Piece]
) -> None:
    assert pieces_of(size, 10, found) == pieces


# Of a file of 23 bytes: the second is longer than a piece may be, the last shorter than the others.
BLOCKS = [KnownBlock(0, 5, b"a"), KnownBlock(5, 12, b"b"), KnownBlock(17, 4, b"c"), KnownBlock(21, 2, b"d")]
WHOLE = [Piece(each.start, each.length, sha256=each.sha256) for each in BLOCKS]


@pytest.mark.parametrize(
    ("found", "pieces"),
    [
        ((), WHOLE),
        ((recorded(5, 12),), [WHOLE[0], Piece(5, 12, (recorded(5, 12),)), *WHOLE[2:]]),
        ((recorded(0, 3),), [Piece(0, 3, (recorded(0, 3),)), Piece(3, 2), *WHOLE[1:]]),
        ((recorded(21, 1),), [*WHOLE[:3], Piece(21, 1, (recorded(21, 1),)), Piece(22, 1)]),
        ((recorded(22, 1),), [*WHOLE[:3], Piece(21, 1), Piece(22, 1, (recorded(22, 1),))]),
        (
            (recorded(4, 2),),
            [Piece(0, 4), Piece(4, 2, (recorded(4, 2),)), Piece(6, 10), Piece(16, 1), *WHOLE[2:]],
        ),
        (
            (recorded(6, 1), recorded(16, 2)),
            [
                *(WHOLE[0], Piece(5, 1), Piece(6, 1, (recorded(6, 1),))),
                *(Piece(7, 9), Piece(16, 2, (recorded(16, 2),)), Piece(18, 3), WHOLE[3]),
            ],
        ),
    ],
    ids=[
        *("nothing", "a whole block", "the beginning", "in the last block", "the end", "over an edge"),
        "in the middle of two blocks",
    ],
)
def test_a_block_is_one_piece_unless_some_of_it_is_on_record(
    found: tuple[RecordedRange, ...], pieces: list[Piece]
) -> None:
    assert pieces_of(23, 10, found, BLOCKS) == pieces


@given(st.integers(1, 200), st.integers(1, 50), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=9))
def test_every_byte_is_in_one_piece(size: int, piece: int, gaps: list[tuple[int, int]]) -> None:
    found, at = [], 0
    for gap, length in gaps:
        if at + gap + length <= size:
            found.append(recorded(at + gap, length))
            at += gap + length
    at = 0
    kept: list[RecordedRange] = []
    for each in pieces_of(size, piece, found):
        assert each.start == at and each.length > 0
        assert each.recorded or each.length <= piece
        assert sum(one.length for one in each.recorded) in (0, each.length)
        kept += each.recorded
        at += each.length
    assert (at, kept) == (size, found)
