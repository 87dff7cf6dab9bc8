"""A request to stop work: from any thread, what Ctrl-C is for the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final


class StopRequest:
    """Made once, from any thread; the thread that works looks for it wherever it waits or begins something.

    There it is a ``KeyboardInterrupt``, so that whatever cleans up after Ctrl-C cleans up after it, too.
    """

    def __init__(self) -> None:
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def made(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._made.is_set()

    def make(self) -> None:
        """Ask the work to stop; returns at once. Safe to repeat."""
        with self._lock:
            self._made.set()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if somebody has asked to stop."""
        if self.made:
            raise KeyboardInterrupt

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call ``wake`` when the request is made, in the thread that makes it.

        Whoever begins after the request was made has to look with :attr:`made`.
        """
        with self._lock:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


# For work that only Ctrl-C stops: nobody makes this request.
NEVER: Final = StopRequest()
