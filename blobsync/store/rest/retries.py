"""When a request is sent again, and how long it waits first: retryable answers, ``Retry-After``, outages of a host.

The service's own rules:
https://learn.microsoft.com/azure/architecture/best-practices/retry-service-specific#azure-storage

An outage is one event and not a failure of each file: a request that gets no answer, or "busy", waits as long as no
other request gets one either, up to the patience of its ``RetryPolicy``. A request that keeps failing while others
are answered is given up after the policy's number of tries.

Over its limits an account answers with 503, and may say in ``Retry-After`` how long to wait
(https://learn.microsoft.com/azure/storage/blobs/scalability-targets). The refused request waits; engines then send
fewer at a time.
"""

import threading
import time
from collections.abc import Callable, Mapping

from blobsync.base.errors import UsageError
from blobsync.base.events import Connected, ConnectionEvent, Disconnected, ignore
from blobsync.base.records import NamedTuple
from blobsync.store.rest.transport import NOT_CONNECTED, Trouble


class HostState:
    """The state of one host. Safe to use from several threads; ``clock`` is in seconds and never set back.

    ``emit`` is called when an outage begins and when it ends.
    """

    def __init__(
        self,
        host: str,
        emit: Callable[[ConnectionEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._emit = emit or ignore
        self._clock = clock
        self._lock = threading.Lock()
        self._down_since: float | None = None
        # Responses so far; a failing request compares it with the number at its previous failure.
        self.answers = 0
        # Whether requests stop waiting for it: see ``BlobHttp.fail_soon``.
        self.fails_soon = False

    def answered(self) -> None:
        """Record a response other than "busy"."""
        with self._lock:
            self.answers += 1
            ended, self._down_since = self._down_since is not None, None
        if ended:
            self._emit(Connected(self._host))

    def failed(self, why: str, waited: float = 0.0) -> None:
        """Record a request without a response after ``waited`` seconds. Before the first response that is no outage:
        the address may be wrong."""
        with self._lock:
            began = self.answers > 0 and self._down_since is None
            if began:
                self._down_since = self._clock() - waited
        if began:
            self._emit(Disconnected(self._host, why, waited))

    @property
    def down(self) -> float:
        """Seconds since the outage began; 0 without one."""
        since = self._down_since
        return 0.0 if since is None else self._clock() - since


# Seconds for which a transfer waits for a host that stopped answering. Long enough for a router that restarts or a
# laptop that changes networks.
OUTAGE_PATIENCE = 300.0
OUTAGE_VARIABLE = "BLOBSYNC_OUTAGE_SECONDS"
FIRST_CONTACT_TRIES = 3
RETRYABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})
# https://learn.microsoft.com/azure/storage/blobs/scalability-targets: over its limits an account answers with 503.
BUSY_STATUS = frozenset({429, 503})


class RetryPolicy(NamedTuple):
    """How often a request is tried and how long to wait in between, in seconds.

    ``longest_asked`` limits ``Retry-After``; no attempt begins after ``patience``. While a host that answered before
    does not answer at all, neither counts: there is an attempt every ``offline`` seconds, for ``outage`` seconds.
    """

    tries: int = 7
    base: float = 0.3
    longest: float = 20.0
    longest_asked: float = 90.0
    patience: float = 240.0
    offline: float = 2.0
    outage: float = OUTAGE_PATIENCE

    def wait(self, failures: int, asked: str | None) -> float:
        """Exponential with jitter, or what ``Retry-After`` (seconds) says if that is longer."""
        doubled = self.base * float(2 ** (failures - 1))
        import random  # late: it is for what is tried again

        own = min(self.longest, doubled) * random.uniform(0.5, 1.0)
        if asked and asked.isascii() and asked.strip().isdigit():
            return max(own, min(self.longest_asked, float(asked)))
        return own


def is_to_be_repeated(status: int, headers: Mapping[str, str], *, retry_bare_500: bool) -> bool:
    """Whether the service asks for another try. Without ``retry_bare_500`` not if a 500 has no error code."""
    if status not in RETRYABLE_STATUS:
        return False
    code = headers.get("x-ms-error-code")
    # Azurite says so, with 500, of a header that it does not know.
    return code != "FeatureNotSupported" and (status != 500 or retry_bare_500 or code is not None)


class Failures:
    """The failures of one request, and whether to retry it. ``tries`` is the number of attempts."""

    def __init__(self, policy: RetryPolicy, host: HostState) -> None:
        self._policy = policy
        self._host = host
        self._started = time.monotonic()
        self._answers = -1
        # Failures while other requests were answered, so not caused by an outage.
        self._own = 0
        self._offline = False
        self.tries = 0
        # That of the last failure; None without one, or for a response.
        self.trouble: Trouble | None = None

    def is_last(self, why: str, trouble: Trouble | None = None, waited: float = 0.0) -> bool:
        """Record an attempt that failed by ``trouble``, or by its response; True if it was the last.
        ``waited``: see ``HostState.failed``."""
        most = self._most(trouble)
        self.trouble = trouble
        self.tries += 1
        self._offline = self._answers == self._host.answers > 0
        self._answers = self._host.answers
        now = time.monotonic()
        late = now - self._started > self._policy.patience
        self._host.failed(why, waited)
        if not self._offline:
            self._own += 1
            return self._own >= most or late
        # Failures before the outage still count; the patience restarts when the host is back.
        self._started = now
        return self._own >= most or (self._host.down >= self._policy.outage and self.tries >= FIRST_CONTACT_TRIES)

    def _most(self, trouble: Trouble | None) -> int:
        """The maximum number of attempts of a request that fails in this way."""
        tries = self._policy.tries
        if trouble is Trouble.CERTIFICATE or (trouble and self._host.fails_soon and not self._host.answers):
            return 1
        # A wrong host name or port should fail in less than half a minute; a network that worked a
        # moment ago gets more retries.
        return tries if self._host.answers or trouble not in NOT_CONNECTED else min(FIRST_CONTACT_TRIES, tries)

    def wait(self, asked: str | None) -> float:
        """Seconds until the next attempt; ``asked``: see ``RetryPolicy.wait``."""
        seconds = self._policy.wait(max(self.tries, 1), asked)
        return min(seconds, self._policy.offline) if self._offline and asked is None else seconds


def outage_patience(environ: Mapping[str, str]) -> float:
    """How long to wait for a host that is down, in seconds. Raises ``UsageError`` for a value that is no number."""
    found = environ.get(OUTAGE_VARIABLE) or ""
    if not found:
        return OUTAGE_PATIENCE
    if not (found.isascii() and found.isdigit()):
        raise UsageError(f"{OUTAGE_VARIABLE}={found}: not a number of seconds", hint=f"unset {OUTAGE_VARIABLE}")
    return float(found)
