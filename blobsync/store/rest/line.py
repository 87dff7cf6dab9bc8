"""Whether a host answers, for all requests to it: an outage is one thing, and not a failure of each file.

A request that gets no answer, or "busy", waits as long as nobody else gets one either, up to the patience of its
``RetryPolicy``. What keeps failing while others are answered is its own fault, and is given up after as many tries as
ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from blobsync.base.events import Connected, Disconnected, Event, unheard


class Line:
    """The way to one host. Safe to use from several threads; ``clock`` is in seconds and never set back.

    ``emit`` hears of each outage as it begins, and as it ends.
    """

    def __init__(
        self, host: str, emit: Callable[[Event], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._emit = emit or unheard
        self._clock = clock
        self._lock = threading.Lock()
        self._down_since: float | None = None
        # How many answers came so far: a request that fails compares it with what it was when it failed before.
        self.answers = 0

    def answered(self) -> None:
        """The host has answered a request, and not with "try again"."""
        with self._lock:
            self.answers += 1
            ended, self._down_since = self._down_since is not None, None
        if ended:
            self._emit(Connected(self._host))

    def failed(self, why: str, waited: float = 0.0) -> None:
        """A request got no answer, in ``waited`` seconds. Before the first answer that is no outage: the address may be
        wrong."""
        with self._lock:
            began = self.answers > 0 and self._down_since is None
            if began:
                self._down_since = self._clock() - waited
        if began:
            self._emit(Disconnected(self._host, why, waited))

    @property
    def down(self) -> float:
        """For how many seconds nobody was answered; 0 where somebody was, last, or never."""
        since = self._down_since
        return 0.0 if since is None else self._clock() - since
