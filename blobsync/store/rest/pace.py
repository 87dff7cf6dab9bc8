"""What a storage account asks of one process, for all that share the work.

Over its limits an account answers with 503, and may say in ``Retry-After`` how long to wait
(https://learn.microsoft.com/azure/storage/blobs/scalability-targets). The request that is answered so waits in any
case. A pace holds all others back as well, and says what other processes are to be told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds. A shorter wait is over before another process has heard of it.
_WORTH_TELLING = 1.0


class Pace:
    """When requests may begin. All times in seconds; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until = 0.0
        self._to_tell = 0.0

    def asked(self, seconds: float) -> None:
        """The service has asked this process to wait so long."""
        if seconds >= _WORTH_TELLING:
            with self._lock:
                self._to_tell = max(self._to_tell, seconds)
            self.hold(seconds)

    def hold(self, seconds: float) -> None:
        """From now on no request begins for so long."""
        with self._lock:
            self._until = max(self._until, self._clock() + seconds)

    @property
    def left(self) -> float:
        """How long the next request has to wait."""
        return max(0.0, self._until - self._clock())

    def take(self) -> float:
        """The longest wait that the service has asked for since this was called last; 0 where it asked for none."""
        with self._lock:
            asked, self._to_tell = self._to_tell, 0.0
        return asked
