"""Runs calls in background threads that never delay the end of the program.

A pool of ``concurrent.futures`` blocks at the end of its ``with`` block, and again when the interpreter exits.
Ctrl-C would then take as long as the slowest request, or as reading all queued files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
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


class Ahead(Generic[T]):
    """Starts ``call`` at once in its own thread; :meth:`result` waits for it.

    Unlike in a pool, nothing waits for the thread: a caller that stops early, or an interpreter that
    exits on Ctrl-C, does not hang on a server that does not respond.
    """

    def __init__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._found.append(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def is_done(self, seconds: float) -> bool:
        """Whether the call has ended, after waiting at most ``seconds``."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def result(self, stop: StopRequest = NEVER) -> T:
        """Wait for the call; return its result, or raise its exception. ``stop`` raises ``KeyboardInterrupt``."""
        while not self.is_done(_LOOK_EVERY):
            stop.check()
        if self._error is not None:
            raise self._error
        return self._found[0]


def side_by_side(call: Callable[[A], T], items: Iterable[A], threads: int, stop: StopRequest = NEVER) -> Iterator[T]:
    """``map(call, items)`` with up to ``threads`` calls at a time; the results come in the order of the items.

    Raises the exception of the first call that failed. A caller that stops (Ctrl-C, ``stop``, an exception, no more
    ``next``) does not wait for running calls, and the remaining calls never start.
    """
    todo: SimpleQueue[tuple[Future[T], A] | None] = SimpleQueue()
    gone = threading.Event()

    def work() -> None:
        while (one := todo.get()) is not None and not gone.is_set():
            future, item = one
            try:
                future.set_result(call(item))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                future.set_exception(error)

    started = 0
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(Future())
            todo.put((waiting[-1], item))
            if started < threads:
                started += 1
                threading.Thread(target=work, daemon=True).start()
            if len(waiting) >= threads * _AHEAD:
                yield _result(waiting.popleft(), stop)
        while waiting:
            yield _result(waiting.popleft(), stop)
    finally:
        gone.set()
        for _ in range(started):
            todo.put(None)


def _result(of: Future[T], stop: StopRequest) -> T:
    while not of.done():
        stop.check()
        with suppress(FutureTimeoutError):
            of.exception(_LOOK_EVERY)
    return of.result()
