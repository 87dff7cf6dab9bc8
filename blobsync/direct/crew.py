"""Threads that work while the calling one waits, and an end that is clean whatever happens."""

from __future__ import annotations

import threading
import time
from typing import Protocol

# How long an interrupted run waits for its threads (seconds); what they hold is cleaned up without them.
_STOP_PATIENCE = 0.7


class Trade(Protocol):
    """Work that any number of threads do together."""

    def labour(self) -> None:
        """What each thread does, until there is nothing left or the run is stopped."""
        ...

    def wake(self) -> None:
        """The run is stopped: let threads that wait for work see it."""
        ...

    def abandon(self) -> None:
        """Remove from the disk what is unfinished, while threads may still be at it."""
        ...


class Crew:
    """The threads of one run; ``stop`` is the run's signal to end."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._trades: list[Trade] = []
        self._over = threading.Condition()
        self._started = 0
        self._ended = 0
        self._bug: BaseException | None = None

    def work(self, *shifts: tuple[Trade, int]) -> None:
        """Start so many threads for each, and return when all have ended; re-raises what interrupts, cleaned up."""
        try:
            for trade, threads in shifts:
                self._trades.append(trade)
                for _ in range(threads):
                    # A daemon: a thread blocked on a socket must not keep an interrupted process alive.
                    threading.Thread(target=self._labour, args=(trade,), daemon=True).start()
                    with self._over:
                        self._started += 1
            with self._over:
                # Not Thread.join: interrupted, it takes the thread for ended (CPython 3.10 to 3.12).
                while self._ended < self._started:
                    self._over.wait()
        except BaseException:
            self._interrupt()
            raise
        if self._bug is not None:
            self._interrupt()
            raise self._bug

    def _interrupt(self) -> None:
        self._stop.set()
        deadline = time.monotonic() + _STOP_PATIENCE
        for trade in self._trades:
            trade.wake()
        with self._over:
            while self._ended < self._started and (left := deadline - time.monotonic()) > 0:
                self._over.wait(left)
        for trade in self._trades:
            trade.abandon()

    def _labour(self, trade: Trade) -> None:
        try:
            trade.labour()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits for this one
            # A bug of ours, in one of many threads: stop them all.
            self._bug = error
            self._stop.set()
        finally:
            with self._over:
                self._ended += 1
                self._over.notify_all()
