"""A request to stop work, from any thread, like Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final


class StopRequest:
    """A request that any thread may make, and the working thread checks wherever it waits or begins something.

    There it raises ``KeyboardInterrupt``, so that the same cleanup follows as after Ctrl-C.
    """

    def __init__(self) -> None:
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def made(self) -> bool:
        """Whether the request was made."""
        return self._made.is_set()

    def make(self) -> None:
        """Ask the work to stop; returns at once. Safe to repeat."""
        with self._lock:
            self._made.set()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if the request was made."""
        if self.made:
            raise KeyboardInterrupt

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call ``wake`` when the request is made, in the thread that makes it.

        A request made before has to be checked with :attr:`made`.
        """
        with self._lock:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


# For work that only Ctrl-C stops: this request is never made.
NEVER: Final = StopRequest()
