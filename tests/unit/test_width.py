"""How many requests run at a time, against services with a clock of their own."""

from __future__ import annotations

from collections.abc import Callable

from blobsync.direct.width import Width


class Service:
    """Answers requests: ``rate`` says how many a second when so many are under way."""

    def __init__(self, rate: Callable[[int], float], *, start: int = 8, most: int = 64) -> None:
        self.now = 1000.0
        self.rate = rate
        self.throttled = 0
        self.width = Width(start, most, lambda: self.now)

    def serve(self, seconds: float) -> list[int]:
        """The widths of these seconds."""
        end = self.now + seconds
        seen = []
        while self.now < end:
            self.now += 1 / self.rate(self.width.now)
            self.width.finished(self.throttled)
            seen.append(self.width.now)
        return seen


def test_it_grows_to_the_most_while_each_step_makes_it_faster() -> None:
    far = Service(lambda width: width / 0.04)
    far.serve(2)
    assert far.width.now == 64


def test_it_stays_where_more_brings_nothing() -> None:
    near = Service(lambda width: 5000.0 if width >= 16 else 1000.0)
    widths = near.serve(5)
    assert near.width.now == 16
    assert max(widths) == 32, "one step further was tried"


def test_a_step_that_makes_it_slower_is_taken_back() -> None:
    crowded = Service(lambda width: 4000.0 if width == 8 else 1000.0)
    crowded.serve(5)
    assert crowded.width.now == 8


def test_it_is_halved_once_for_a_burst_of_refusals_and_again_for_the_next() -> None:
    busy = Service(lambda width: 2000.0, start=64)
    for _ in range(20):
        busy.throttled += 1
        busy.serve(0.01)
    assert busy.width.now == 32
    busy.serve(2)
    assert busy.width.now == 32, "it does not grow right after"
    busy.throttled += 1
    busy.serve(0.01)
    assert busy.width.now == 16


def test_it_never_falls_below_one() -> None:
    busy = Service(lambda width: 100.0, start=2)
    for _ in range(6):
        busy.throttled += 1
        busy.serve(2)
    assert busy.width.now == 1


def test_it_tries_to_grow_again_after_a_while() -> None:
    busy = Service(lambda width: width / 0.04, start=32)
    busy.throttled += 1
    busy.serve(1)
    assert busy.width.now == 16
    busy.serve(30)
    assert busy.width.now == 64


def test_a_line_that_got_faster_is_found_out() -> None:
    changing = Service(lambda width: 500.0)
    changing.serve(5)
    assert changing.width.now == 8
    changing.rate = lambda width: width / 0.01
    changing.serve(30)
    assert changing.width.now == 64
