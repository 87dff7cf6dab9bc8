"""A limit on bytes per second (``--cap-mbps``) that all threads of a run share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class TokenBucket:
    """A limit on bytes per second, shared by all threads; allows bursts of a quarter of a second."""

    def __init__(self, mbps: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``mbps`` is in megabits (10^6 bits) per second; None means no limit."""
        self._rate = mbps * 1e6 / 8 if mbps else None
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = -math.inf

    def delay(self, count: int) -> float:
        """Reserve ``count`` bytes; returns how many seconds to wait before sending them."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.25)
            self._free_at = start + count / self._rate
            return max(0.0, start - now)
