"""Runs calls in background threads that never delay the end of the program.

A pool of ``concurrent.futures`` blocks at the end of its ``with`` block, and again when the interpreter exits.
Ctrl-C would then take as long as the slowest request, or as reading all queued files.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

from blobsync.base.stopping import NEVER, StopRequest

# Items started before their results are wanted, per thread.
_AHEAD = 64
# Seconds between two checks for a request to stop.
_LOOK_EVERY = 0.1

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


class _Answer(Generic[T]):
    """What a call in another thread returned or raised. A future of ``concurrent.futures`` would load ``logging``."""

    def __init__(self) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._is_there = threading.Event()

    def fetch(self, call: Callable[[], T]) -> None:
        try:
            self._found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
            self._error = error
        self._is_there.set()

    def is_done(self, seconds: float) -> bool:
        """Whether the call has ended, after waiting at most ``seconds``."""
        return self._is_there.wait(max(0.0, seconds))

    def result(self, stop: StopRequest = NEVER) -> T:
        """Wait for the call; return its result, or raise its exception. ``stop`` raises ``KeyboardInterrupt``."""
        while not self._is_there.wait(_LOOK_EVERY):
            stop.check()
        if self._error is not None:
            raise self._error
        return self._found[0]


class Ahead(_Answer[T]):
    """Starts ``call`` at once in its own thread; :meth:`result` waits for it.

    Unlike in a pool, nothing waits for the thread: a caller that stops early, or an interpreter that
    exits on Ctrl-C, does not hang on a server that does not respond.
    """

    def __init__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        super().__init__()
        threading.Thread(target=lambda: self.fetch(lambda: call(*args, **kwargs)), daemon=True).start()


def side_by_side(call: Callable[[A], T], items: Iterable[A], threads: int, stop: StopRequest = NEVER) -> Iterator[T]:
    """``map(call, items)`` with up to ``threads`` calls at a time; the results come in the order of the items.

    Raises the exception of the first call that failed. A caller that stops (Ctrl-C, ``stop``, an exception, no more
    ``next``) does not wait for running calls, and the remaining calls never start.
    """
    todo: SimpleQueue[tuple[_Answer[T], A] | None] = SimpleQueue()
    gone = threading.Event()

    def work() -> None:
        while (one := todo.get()) is not None and not gone.is_set():
            answer, item = one
            answer.fetch(partial(call, item))

    started = 0
    waiting: deque[_Answer[T]] = deque()
    try:
        for item in items:
            waiting.append(_Answer())
            todo.put((waiting[-1], item))
            if started < threads:
                started += 1
                threading.Thread(target=work, daemon=True).start()
            if len(waiting) >= threads * _AHEAD:
                yield waiting.popleft().result(stop)
        while waiting:
            yield waiting.popleft().result(stop)
    finally:
        gone.set()
        for _ in range(started):
            todo.put(None)


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
