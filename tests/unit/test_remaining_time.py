"""The estimate of the time left: within a factor of 1.5 from a quarter of the way on, for any mix of files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from blobsync.base.plan_reasons import Reason
from blobsync.plan.remaining_time import RemainingTime, interleaved
from blobsync.plan.transfer_plan import Action, FileAction

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FACTOR = 1.5
PIECE = 4 * MIB

# Speed of the connection relative to its beginning, as a function of the share of the work done.
Pace = Callable[[float], float]


def files(*groups: tuple[int, int]) -> list[FileAction]:
    """So many files of so many bytes, group after group."""
    sizes = [size for count, size in groups for _ in range(count)]
    return [FileAction(f"f{at:06}", Action.TRANSFER, Reason.NEW, size) for at, size in enumerate(sizes)]


def steps(
    order: Sequence[FileAction], file: float, byte: float, pace: Pace, noise: random.Random
) -> Iterator[tuple[float, int, int]]:
    """A simulated transfer: yields seconds, files and bytes so far. ``file`` and ``byte`` are seconds for each."""
    whole = sum(file + byte * action.size for action in order)
    work = now = 0.0
    moved = 0
    for done, action in enumerate(order, 1):
        pieces = max(1, -(-action.size // PIECE))
        for piece in range(pieces):
            size = min(PIECE, action.size - piece * PIECE)
            cost = file / pieces + byte * size
            work += cost
            now += cost / pace(work / whole) * noise.uniform(0.75, 1.25)
            moved += size
            yield now, done - (piece + 1 < pieces), moved


def worst(order: Sequence[FileAction], file: float, byte: float, pace: Pace = lambda _: 1.0, seed: int = 1) -> float:
    """The factor by which the estimate is wrong at its worst, from a quarter of the time on until two seconds before
    the end (or a fiftieth of the whole)."""
    seen = list(steps(order, file, byte, pace, random.Random(seed)))
    return worst_of(seen, seen[-1][0], len(order), sum(action.size for action in order))


def worst_of(seen: Sequence[tuple[float, int, int]], whole: float, files: int, size: int) -> float:
    """See :func:`worst`."""
    remaining = RemainingTime()
    factor = 1.0
    # As often as the progress bar asks.
    asked = 0.0
    for now, done, moved in seen:
        remaining.add(now, done, moved)
        if now < asked:
            continue
        asked = now + whole / 200
        left = whole - now
        if now >= whole / 4 and left > max(2.0, whole / 50):
            said = remaining.left(files - done, size - moved)
            assert said is not None and said > 0
            factor = max(factor, said / left, left / said)
    return factor


# How many files of how many bytes, group after group.
SHAPES: dict[str, list[tuple[int, int]]] = {
    "all small": [(4_000, 4 * KIB)],
    "all large": [(40, 100 * MIB)],
    "one file": [(1, 2 * GIB)],
    "large ones first": [(20, 200 * MIB), (4_000, 4 * KIB)],
    "large ones last": [(4_000, 4 * KIB), (20, 200 * MIB)],
    "one giant last": [(4_000, 4 * KIB), (1, 800 * MIB)],
    "one giant first": [(1, 800 * MIB), (4_000, 4 * KIB)],
    "growing": [(50, KIB << power) for power in range(14)],
    "shrinking": [(50, KIB << (13 - power)) for power in range(14)],
    "empty ones and some large ones": [(2000, 0), (4, 256 * MIB)],
    "empty ones only": [(2000, 0)],
}
# Seconds for a file and for a byte: a near server, a line of 40 ms, one of 1 MB/s, one where only requests count.
LINES = {"near": (3e-3, 5e-9), "far": (40e-3 / 16, 1e-7), "thin": (1e-3, 1e-6), "requests": (20e-3, 1e-10)}


@pytest.mark.parametrize("line", list(LINES))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_estimate_is_within_a_factor_of_one_and_a_half_from_a_quarter_on(shape: str, line: str) -> None:
    assert worst(interleaved(files(*SHAPES[shape])), *LINES[line]) <= FACTOR


@pytest.mark.parametrize("change", [3.0, 1 / 3])
@pytest.mark.parametrize("shape", ["all small", "all large", "large ones last", "growing"])
def test_the_estimate_follows_changes_of_speed(shape: str, change: float) -> None:
    # After a tenth of the time.
    begins = 0.1 / change / (0.9 + 0.1 / change)

    def pace(share: float) -> float:
        return 1.0 if share < begins else change

    order = interleaved(files(*SHAPES[shape]))
    size = sum(action.size for action in order)
    for file, byte in LINES.values():
        # Two minutes: what is recent is five seconds at least, so nothing shorter can be known so well.
        longer = 120 / (len(order) * file + size * byte)
        assert worst(order, file * longer, byte * longer, pace=pace) <= FACTOR


def two_ways(
    small: Sequence[int], large: Sequence[int], line: float, latency: float, widths: tuple[int, int]
) -> Iterator[tuple[float, int, int]]:
    """A transfer whose small files go beside its large ones, each request with its answer's delay and an even share of
    the line: seconds, files and bytes so far. ``line`` is in bytes a second; each large file counts as it goes."""
    waiting = [list(small), list(large)]
    going: list[list[tuple[float, float, int]]] = [[], []]
    now, files, moved = 0.0, 0, 0.0
    while True:
        for left, begun, width in zip(waiting, going, widths, strict=True):
            while left and len(begun) < width:
                size = left.pop()
                begun.append((latency, float(size), size))
        flowing = sum(delay <= 0 for begun in going for delay, _, _ in begun)
        if not any(going):
            return
        share = line / max(flowing, 1)
        step = min(*(delay if delay > 0 else rest / share for begun in going for delay, rest, _ in begun), 0.25)
        step = max(step, 1e-3)
        now += step
        for kind, begun in enumerate(going):
            after = [
                (delay - step, rest, size) if delay > 0 else (delay, rest - share * step, size)
                for delay, rest, size in begun
            ]
            moved += sum(share * step for delay, _, _ in begun if delay <= 0 and kind)
            gone = [size for delay, rest, size in after if delay <= 0 and rest <= 0]
            files, moved = files + len(gone), moved + (0 if kind else sum(gone))
            going[kind] = [each for each in after if each[0] > 0 or each[1] > 0]
        yield now, files, int(moved)


@pytest.mark.parametrize(("line", "latency"), [(2e6, 0.03), (12e6, 0.03), (100e6, 0.02)])
@pytest.mark.parametrize(
    ("small", "large"),
    [((1500, 2000), (4, 3_000_000)), ((5000, 16 * KIB), (10, 100 * MIB)), ((5000, 100_000), (4, 50 * MIB))],
)
def test_small_files_that_move_beside_large_ones(
    small: tuple[int, int], large: tuple[int, int], line: float, latency: float
) -> None:
    seen = list(two_ways([small[1]] * small[0], [large[1]] * large[0], line, latency, (48, min(large[0], 16))))
    whole, count = seen[-1][0], small[0] + large[0]
    assert worst_of(seen, whole, count, small[0] * small[1] + large[0] * large[1]) <= FACTOR


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_files_on_any_connection(seed: int) -> None:
    chance = random.Random(seed)
    groups = [
        (chance.choice((1, 3, 30, 300, 3000)), int(2 ** chance.uniform(0, 28))) for _ in range(chance.randint(1, 6))
    ]
    order = files(*((count if size < 16 * MIB else min(count, 30), size) for count, size in groups))
    chance.shuffle(order)
    file, byte = 10 ** chance.uniform(-3, -1.3), 10 ** chance.uniform(-9, -6)
    assert worst(interleaved(order), file, byte, seed=seed) <= FACTOR


def test_an_estimate_by_bytes_alone_is_wrong_for_small_and_large_files() -> None:
    """Why the estimate is not that simple: the same transfer, in the order of names, by bytes."""
    order = files(*SHAPES["large ones last"])
    seen = list(steps(order, *LINES["near"], lambda _: 1.0, random.Random(1)))
    whole, size = seen[-1][0], sum(action.size for action in order)
    now, _, moved = next(step for step in seen if step[0] >= whole / 4)
    assert now * (size - moved) / moved / (whole - now) > 3 * FACTOR


def test_there_is_no_estimate_before_the_first_bytes() -> None:
    remaining = RemainingTime()
    assert remaining.left(5, 100) is None
    remaining.add(3.0, 0, 0)
    assert remaining.left(5, 100) is None
    remaining.add(4.0, 1, 0)
    assert remaining.left(5, 0) == pytest.approx(20.0)


def test_recent_files_count_at_once() -> None:
    """A quarter of the files within the first moment after one of them: they say more than that one does."""
    remaining = RemainingTime()
    remaining.add(1.0, 1, KIB)
    assert remaining.left(119, 119 * KIB) == pytest.approx(119.0)
    remaining.add(1.2, 30, 30 * KIB)
    assert remaining.left(90, 90 * KIB) == pytest.approx(3.6)


def test_a_retry_that_takes_bytes_back_raises_the_estimate_and_never_makes_it_negative() -> None:
    remaining = RemainingTime()
    for second in range(1, 11):
        remaining.add(float(second), 0, second * MIB)
    before = remaining.left(1, 10 * MIB)
    remaining.add(11.0, 0, 5 * MIB)
    after = remaining.left(1, 15 * MIB)
    assert before is not None and after is not None and after > before > 0


def test_a_stalled_connection_raises_the_estimate() -> None:
    remaining = RemainingTime()
    for second in range(1, 11):
        remaining.add(float(second), second, second * MIB)
    remaining.add(30.0, 10, 10 * MIB)
    assert (remaining.left(10, 10 * MIB) or 0) > 20


def test_a_long_transfer_needs_little_memory_and_is_estimated_well() -> None:
    remaining = RemainingTime()
    for tick in range(1, 100_000):
        remaining.add(tick * 0.5, tick, tick * KIB)
    assert len(remaining._stretches) <= 257
    assert remaining.left(1000, 1000 * KIB) == pytest.approx(500.0, rel=0.05)


# -- the order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_order_loses_nothing_and_repeats_nothing(shape: str) -> None:
    assert sorted(interleaved(files(*SHAPES[shape])), key=lambda each: each.path) == files(*SHAPES[shape])


def test_every_stretch_of_the_order_is_like_the_whole() -> None:
    order = interleaved(files((1000, 4 * KIB), (100, 100 * MIB)))
    for start in range(0, 1100, 110):
        large = sum(action.size > MIB for action in order[start : start + 110])
        assert 9 <= large <= 11


def test_a_lone_large_file_comes_early_but_not_first() -> None:
    order = interleaved(files((1000, 4 * KIB), (1, GIB)))
    (at,) = (index for index, action in enumerate(order) if action.size == GIB)
    assert 10 < at < 100


def test_files_of_one_size_stay_in_the_order_of_their_names() -> None:
    same = files((50, 4 * KIB))
    assert interleaved(same) is same
    assert [each.path for each in interleaved(files((9, 5), (9, MIB))) if each.size == 5] == [
        f"f{n:06}" for n in range(9)
    ]
