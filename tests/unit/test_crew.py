"""Threads that work while the caller waits: all are joined, or their files are cleaned up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from blobsync.base.stopping import StopRequest
from blobsync.direct.thread_pool import STOP_PATIENCE, WorkerThreads
from tests.fakes.tasks import ctrl_c_after


class Scripted:
    """A trade whose threads do ``what``; records the calls in order."""

    def __init__(self, what: Callable[[], None] = lambda: None) -> None:
        self._what = what
        self._lock = threading.Lock()
        self.said: list[str] = []
        self.woken = threading.Event()

    def say(self, text: str) -> None:
        with self._lock:
            self.said.append(text)

    def run(self) -> None:
        self.say("daemon" if threading.current_thread().daemon else "thread")
        self._what()
        self.say("ended")

    def wake(self) -> None:
        self.say("wake")
        self.woken.set()

    def abandon(self) -> None:
        self.say("abandon")


def test_each_trade_has_its_threads_and_all_have_ended_at_the_end() -> None:
    # Each waits for the other two: all three are there at the same time.
    together = threading.Barrier(3)
    one, two, none = Scripted(lambda: _meet(together)), Scripted(lambda: _meet(together)), Scripted()
    stop = threading.Event()
    WorkerThreads(stop).work((one, 2), (two, 1), (none, 0))
    assert sorted(one.said) == ["daemon", "daemon", "ended", "ended"]
    assert two.said == ["daemon", "ended"] and none.said == []
    assert not stop.is_set()


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(60)


def test_no_thread_is_left_at_work_when_the_crew_is_done() -> None:
    slow = Scripted(lambda: time.sleep(0.1))
    WorkerThreads(threading.Event()).work((slow, 1), (Scripted(), 3))
    assert slow.said == ["daemon", "ended"]


def test_nothing_to_do_ends_at_once() -> None:
    WorkerThreads(threading.Event()).work()


def test_a_bug_in_one_thread_stops_the_others_and_is_raised_after_the_cleaning() -> None:
    stop = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("ours")

    faulty, other = Scripted(fail), Scripted(lambda: _end_of(stop))
    with pytest.raises(ZeroDivisionError, match="ours"):
        WorkerThreads(stop, patience=60).work((other, 2), (faulty, 1))
    assert stop.is_set()
    assert faulty.said == ["daemon", "wake", "abandon"]
    assert sorted(other.said[:-1]) == ["daemon", "daemon", "ended", "ended", "wake"] and other.said[-1] == "abandon"


def test_a_bug_waits_no_longer_than_ctrl_c_for_a_thread_that_hangs() -> None:
    released = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("ours")

    stuck = Scripted(lambda: none_of(released.wait(120)))
    try:
        with pytest.raises(ZeroDivisionError, match="ours"):
            WorkerThreads(threading.Event(), patience=0.05).work((stuck, 1), (Scripted(fail), 1))
        assert stuck.said == ["daemon", "wake", "abandon"]
    finally:
        released.set()


def none_of(_: object) -> None: ...


def _end_of(stop: threading.Event) -> None:
    assert stop.wait(60), "it was never stopped"


@pytest.mark.parametrize("hanging", [True, False], ids=["one thread hangs", "all end when they are woken"])
def test_ctrl_c_wakes_all_waits_a_moment_and_cleans_up(hanging: bool) -> None:
    stop, released = threading.Event(), threading.Event()
    # When all threads are at work.
    interrupt = threading.Barrier(3, _interrupt_soon)

    def end_a_little_after_the_call() -> None:
        interrupt.wait(60)
        waiting.woken.wait(60)
        time.sleep(0.05)

    def hang_or_end() -> None:
        interrupt.wait(60)
        # A thread that waits for a socket sees neither the signal nor that it is woken.
        (released if hanging else stop).wait(120)

    waiting, stuck = Scripted(end_a_little_after_the_call), Scripted(hang_or_end)
    try:
        with ctrl_c_after(60), pytest.raises(KeyboardInterrupt):
            WorkerThreads(stop, patience=STOP_PATIENCE if hanging else 60).work((stuck, 1), (waiting, 2))
        told, waited = list(stuck.said), list(waiting.said)
    finally:
        released.set()
    assert stop.is_set()
    if hanging:
        # On a busy machine the others may take longer than the patience with the one that hangs.
        waited = [each for each in waited if each != "ended"]
        assert waited == ["daemon", "daemon", "wake", "abandon"]
    else:
        assert waited == ["daemon", "daemon", "wake", "ended", "ended", "abandon"]
    assert [each for each in told if each != "ended"] == ["daemon", "wake", "abandon"]
    assert ("ended" in told) is not hanging


def _interrupt_soon() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def test_a_request_from_another_thread_ends_the_run_as_ctrl_c_does() -> None:
    stop, request = threading.Event(), StopRequest()

    def ask() -> None:
        request.make()
        assert stop.wait(60)

    working = Scripted(ask)
    with pytest.raises(KeyboardInterrupt):
        WorkerThreads(stop, request, patience=60).work((working, 1))
    assert working.said == ["daemon", "wake", "ended", "abandon"] or working.said == [
        "daemon",
        "ended",
        "wake",
        "abandon",
    ]
    with pytest.raises(KeyboardInterrupt):
        # One that was made before it began.
        WorkerThreads(stop, request).work((Scripted(lambda: time.sleep(60)), 1))


def test_threads_that_never_end_hold_an_interrupted_run_for_less_than_a_second() -> None:
    assert 0.5 < STOP_PATIENCE < 1
    # A busy machine adds to it; without an end the thread would hang for longer.
    assert 0.9 * STOP_PATIENCE < _seconds_to_end(ends=False, patience=STOP_PATIENCE) < 30


def test_threads_that_end_when_they_are_told_hold_an_interrupted_run_no_longer() -> None:
    assert _seconds_to_end(ends=True, patience=60) < 30


def _seconds_to_end(*, ends: bool, patience: float) -> float:
    """From Ctrl-C on, with one thread that sees the end or hangs."""
    stop, released = threading.Event(), threading.Event()
    interrupted = []

    def work() -> None:
        interrupted.append(time.monotonic() + 0.05)
        _interrupt_soon()
        (stop if ends else released).wait(120)
        if ends:
            # The calling thread is waiting by now.
            time.sleep(0.05)

    try:
        with ctrl_c_after(60), pytest.raises(KeyboardInterrupt):
            WorkerThreads(stop, patience=patience).work((Scripted(work), 1))
        return time.monotonic() - interrupted[0]
    finally:
        released.set()
