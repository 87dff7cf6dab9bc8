"""Runs many operations side by side from one thread.

An operation is a generator of tries and pauses that does no I/O itself. So the same code decides about retries and
reads answers, whether one thread waits for one request (``BlobHttp.run``) or drives many (``SideBySide``).
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar, final

from blobsync.base.errors import BlobsyncError
from blobsync.store.rest.transport import Exchanges, HttpRequest, TransportError

T = TypeVar("T")


class Pause(NamedTuple):
    """Wait before the next try, in seconds; None comes back."""

    seconds: float


# What comes back differs by what was yielded.
Steps = Generator[HttpRequest | Pause, Any, T]


_Running = tuple[object, Steps[Any]]


@final
class SideBySide:
    """Used by one thread at a time. ``closing`` ends what waits for its next try, with the error of ``closed``."""

    def __init__(self, exchanges: Exchanges, closing: threading.Event, closed: Callable[[], BlobsyncError]) -> None:
        self._exchanges = exchanges
        self._closing = closing
        self._closed = closed
        self._pausing: list[tuple[float, int, _Running]] = []
        self._numbers = itertools.count()
        self._tried = 0
        self._ended: list[tuple[object, Any]] = []

    @property
    def under_way(self) -> int:
        """How many operations have begun and not been told of by :meth:`ended`."""
        return self._tried + len(self._pausing) + len(self._ended)

    def begin(self, key: object, steps: Steps[Any]) -> None:
        """Start an operation; ``key`` comes back with its end."""
        self._go_on((key, steps), None, None)

    def ended(self, seconds: float) -> list[tuple[object, Any]]:
        """Those that have ended, each with what it returned or the ``BlobsyncError`` that it raised.

        Waits for one up to ``seconds``.
        """
        self._resume()
        if self._ended:
            seconds = 0
        elif self._pausing:
            seconds = min(seconds, max(0.0, self._pausing[0][0] - time.monotonic()))
        if self._tried:
            for running, end in self._exchanges.wait(seconds):
                self._tried -= 1
                assert isinstance(running, tuple)
                error = end if isinstance(end, TransportError) else None
                self._go_on(running, None if error else end, error)
        elif seconds:
            self._closing.wait(seconds)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Cut what is under way."""
        self._exchanges.close()

    def _resume(self) -> None:
        closing = self._closing.is_set()
        while self._pausing and (closing or self._pausing[0][0] <= time.monotonic()):
            running = heapq.heappop(self._pausing)[2]
            self._go_on(running, None, self._closed() if closing else None)

    def _go_on(self, running: _Running, back: object, error: Exception | None) -> None:
        key, steps = running
        while True:
            try:
                step = steps.send(back) if error is None else steps.throw(error)
                if isinstance(step, Pause):
                    heapq.heappush(self._pausing, (time.monotonic() + step.seconds, next(self._numbers), running))
                    return
                self._exchanges.begin(running, step)
            except StopIteration as end:
                self._ended.append((key, end.value))
                return
            except BlobsyncError as caught:
                # One of the operation's own ends it; one of sending it (a header that cannot be sent) goes back to it.
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    self._ended.append((key, caught))
                    return
                back, error = None, caught
            else:
                self._tried += 1
                return
