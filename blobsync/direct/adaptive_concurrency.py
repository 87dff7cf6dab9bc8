"""How many requests are under way at a time: more while that is faster, fewer when the service asks for that."""

from __future__ import annotations

import time
from collections.abc import Callable

# A larger width is kept only if it raises the rate by this factor.
_GAIN = 1.15
# A measurement lasts at least this long (seconds), and this many times the width in finished requests.
_SHORTEST = 0.05
_TURNS = 2
# Seconds after which a larger width is tried again, since networks and services change.
_TRY_AGAIN = 10.0
# Throttled responses within this many seconds count as one.
_SAME = 1.0


class AdaptiveConcurrency:
    """``now`` is how many requests may be under way. Call ``finished`` after some; for use by one thread.

    ``clock`` is in seconds and monotonic.
    """

    def __init__(self, start: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = start
        self._most = most
        self._clock = clock
        self._throttled = 0
        self._shrunk = float("-inf")
        # When the width was last found to be enough; None after a step up, until that is judged.
        self._settled: float | None = None
        # The width before the last step up, and how many requests a second finished with it.
        self._before, self._rate = start, 0.0
        self._measure_from(clock())

    def finished(self, throttled: int, count: int = 1) -> None:
        """Count finished requests; ``throttled`` is how often the service has asked to slow down so far."""
        self._count += count
        if throttled != self._throttled:
            self._throttled = throttled
            self._shrink(self._clock())
        elif self._count >= _TURNS * self.now and (now := self._clock()) - self._since >= _SHORTEST:
            self._judge(self._count / (now - self._since), now)
            self._measure_from(now)

    def _judge(self, rate: float, now: float) -> None:
        if self._settled is None and rate < self._rate * _GAIN:
            # The last step up did not help.
            self.now, self._settled = self._before, now
        elif self._settled is None or now - self._settled > _TRY_AGAIN:
            self._before, self._rate = self.now, rate
            self.now, self._settled = min(self._most, self.now * 2), None

    def _shrink(self, now: float) -> None:
        if now - self._shrunk > _SAME:
            self._shrunk = now
            self.now = max(1, self.now // 2)
        self._settled = now
        self._measure_from(now)

    def _measure_from(self, now: float) -> None:
        self._count, self._since = 0, now
