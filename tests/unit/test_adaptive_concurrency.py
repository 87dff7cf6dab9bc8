"""The number of concurrent requests, for simulated services."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blobsync.direct.small_files import AdaptiveConcurrency


class Service:
    """A service that finishes ``rate`` requests a second, for a number of concurrent ones."""

    def __init__(self, rate: Callable[[int], float], *, start: int = 8, most: int = 64) -> None:
        self.now = 1000.0
        self.rate = rate
        self.throttled = 0
        self.width = AdaptiveConcurrency(start, most, lambda: self.now)

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


# -- to the request, and to the moment -----------------------------------------------------------------------------


class ByHand:
    """A width whose clock advances only between groups of finished requests."""

    def __init__(self, start: int, most: int = 64, *, began: float = 0.0) -> None:
        self.now = began
        self.width = AdaptiveConcurrency(start, most, lambda: self.now)

    def finished(self, count: int, after: float, *, throttled: int = 0) -> int:
        """The width when so many have finished, all at the moment that is ``after`` the last one."""
        self.now += after
        for _ in range(count):
            self.width.finished(throttled)
        return self.width.now


@pytest.mark.parametrize("began", [0.0, 1000.0])
def test_a_measurement_takes_two_requests_for_each_that_may_be_under_way(began: float) -> None:
    service = ByHand(4, began=began)
    assert service.finished(7, 1.0) == 4
    assert service.finished(1, 0.0) == 8
    assert service.finished(15, 0.5) == 8
    assert service.finished(1, 0.0) == 16


def test_a_measurement_takes_a_twentieth_of_a_second() -> None:
    service = ByHand(4)
    assert service.finished(20, 0.049) == 4
    service.now = 0.0
    assert service.finished(1, 0.05) == 8


def test_time_passes_for_a_clock_that_counts_from_long_ago() -> None:
    service = ByHand(4, began=1000.0)
    assert service.finished(8, 0.01) == 4
    assert service.finished(1, 0.05) == 8


def test_a_slow_service_is_tried_with_more_as_well() -> None:
    assert ByHand(1).finished(2, 2.0) == 2


@pytest.mark.parametrize(("more", "then"), [(46, 40), (45, 10)], ids=["15 percent", "less"])
def test_a_step_has_to_bring_so_much(more: int, then: int) -> None:
    service = ByHand(10)
    assert service.finished(20, 1.0) == 20
    # All but the last one wait for the end of the two seconds.
    assert service.finished(more - 1, 0.0) == 20
    assert service.finished(1, 2.0) == then


def test_a_step_that_brought_nothing_is_tried_again_after_ten_seconds() -> None:
    service = ByHand(8)
    assert service.finished(16, 1.0) == 16
    assert service.finished(32, 2.0) == 8
    assert service.finished(16, 1.0) == 8
    assert service.finished(16, 9.0) == 8
    # Not faster: it is tried nevertheless.
    assert service.finished(16, 0.0625) == 16


def test_a_step_is_not_tried_before_ten_seconds_are_over() -> None:
    service = ByHand(8)
    service.finished(16, 1.0)
    assert service.finished(32, 2.0) == 8
    assert service.finished(16, 9.5) == 8
    assert service.finished(16, 0.75) == 16


def test_refusals_of_one_second_are_one_and_what_comes_later_is_another() -> None:
    service = ByHand(64)
    assert service.finished(1, 5.0, throttled=1) == 32
    assert service.finished(1, 1.0, throttled=2) == 32
    assert service.finished(1, 0.5, throttled=3) == 16


def test_a_width_that_was_halved_stays_although_more_was_as_fast_before() -> None:
    service = ByHand(32)
    assert service.finished(64, 1.0) == 64
    assert service.finished(1, 1.0, throttled=1) == 32
    assert service.finished(64, 1.0, throttled=1) == 32


def test_what_finished_before_it_was_halved_does_not_count_for_what_follows() -> None:
    service = ByHand(8)
    assert service.finished(15, 0.0) == 8
    assert service.finished(1, 1.0, throttled=1) == 4
    assert service.finished(7, 11.0, throttled=1) == 4
    assert service.finished(1, 0.0, throttled=1) == 8
