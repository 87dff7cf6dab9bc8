"""Background threads that do not delay the exit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from blobsync.base.background_calls import side_by_side


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item % 4 == 0 else 0)
        return item * item

    assert list(side_by_side(slow_first, range(300), 4)) == [item * item for item in range(300)]
    assert list(side_by_side(slow_first, [], 4)) == []


def test_so_many_calls_run_at_a_time() -> None:
    together = threading.Barrier(4, timeout=20)
    assert len(list(side_by_side(lambda _: together.wait(), range(8), 4))) == 8


def test_no_more_threads_than_items_or_than_asked_for() -> None:
    def who(_: int) -> int:
        time.sleep(0.005)
        return threading.get_ident()

    assert len(set(side_by_side(who, range(60), 3))) <= 3


def test_the_first_failure_is_raised_and_what_has_not_begun_never_does() -> None:
    known, began, failed = set(threading.enumerate()), list[int](), threading.Event()

    def fail(item: int) -> None:
        began.append(item)
        if item > 0:
            # Until the caller has the first failure, however long that takes.
            assert failed.wait(60)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        list(side_by_side(fail, range(1000), 2))
    failed.set()
    for thread in set(threading.enumerate()) - known:
        thread.join(60)
    # The first one, and those that both threads had begun.
    assert len(began) <= 3


def test_a_long_stream_is_not_taken_into_memory() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    found = side_by_side(lambda item: item, endless(), 2)
    assert [next(found) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert taken < 200


def test_a_caller_that_goes_away_does_not_wait_nor_does_the_interpreter() -> None:
    program = """
import time
from blobsync.base.background_calls import Ahead, side_by_side
Ahead(time.sleep, 600)
for done in side_by_side(lambda seconds: time.sleep(seconds) or seconds, [0, 600, 600, 600], 2):
    raise KeyboardInterrupt
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0 and "KeyboardInterrupt" in ended.stderr
