"""HTTP to one storage account: signatures, retries, and what a broken connection means.

A library keeps the connections, TLS and proxies (``transport.py``). Retrying is done here instead of by the library:
each try needs a new signature, and the service's own rules apply
(https://learn.microsoft.com/azure/architecture/best-practices/retry-service-specific#azure-storage).
The secondary endpoint of an account is never read: it may lag.
"""

from __future__ import annotations

import copy
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from blobsync.base.errors import BlobsyncError, StorageError, StorageUnreachableError
from blobsync.base.locations import ContainerUrl
from blobsync.base.redaction import redact
from blobsync.config.model import EMULATOR_ACCOUNT
from blobsync.store.protocol import Sent
from blobsync.store.rest.auth import SignedAlready, Signer
from blobsync.store.rest.errors import RETRYABLE_STATUS, Answer
from blobsync.store.rest.pace import Pace
from blobsync.store.rest.side_by_side import SideBySide
from blobsync.store.rest.steps import Pause, Steps
from blobsync.store.rest.transport import (
    NOT_CONNECTED,
    Answered,
    Response,
    Timeouts,
    TransportError,
    Trouble,
    Try,
)
from blobsync.store.rest.transport_choice import transport_to

_T = TypeVar("_T")

# https://learn.microsoft.com/rest/api/storageservices/versioning-for-the-azure-storage-services
# Old enough for every sovereign cloud and Azurite, new enough for 4000 MiB blocks, Put Blob From URL with
# OAuth, and listings that encode names XML cannot hold.
API_VERSION = "2023-11-03"

# Bytes. A page of a listing has 5,000 names of up to 1,024 characters, each up to 9 bytes where it is encoded; that
# all of them are so long was never seen. All other answers are far smaller.
MAX_BODY = 64 << 20

_LOG = logging.getLogger("blobsync.http")
_FIRST_CONTACT_TRIES = 3
# https://learn.microsoft.com/azure/storage/blobs/scalability-targets: over its limits an account answers with 503.
_BUSY = frozenset({429, 503})


class RetryPolicy(NamedTuple):
    """How often a request is tried and how long to wait in between, in seconds.

    ``longest_asked`` limits ``Retry-After``; no try begins after ``patience``.
    """

    tries: int = 7
    base: float = 0.3
    longest: float = 20.0
    longest_asked: float = 90.0
    patience: float = 240.0

    def wait(self, failures: int, asked: str | None) -> float:
        """Exponential with jitter, or what ``Retry-After`` (seconds) asks for if that is longer."""
        doubled = self.base * float(2 ** (failures - 1))
        own = min(self.longest, doubled) * random.uniform(0.5, 1.0)
        if asked and asked.isascii() and asked.strip().isdigit():
            return max(own, min(self.longest_asked, float(asked)))
        return own


@dataclass(slots=True)
class Reply:
    """An answer of the service. ``attempts`` above 1: an earlier try may have had its effect already."""

    status: int
    response: Response
    attempts: int
    read: bytes | None = None
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.headers = self.response.headers

    @property
    def body(self) -> bytes:
        """The whole body; of a streamed reply what is left of it."""
        if self.read is None:
            self.read = _whole_body(self.response)
        return self.read

    def answer(self) -> Answer:
        """The form in which ``rest.errors`` takes it; ends a streamed reply."""
        try:
            body = self.body
        except TransportError:
            # The status and a header give the reason as well.
            body = b""
        self.response.close()
        return Answer(self.status, {name.lower(): value for name, value in self.headers.items()}, body)


class BlobHttp:
    """Sends signed requests to one container's endpoint; safe to use from several threads.

    ``environ`` is read for proxies and CA bundles only. ``pace`` is shared with others that ask the same account.
    """

    def __init__(
        self,
        container: ContainerUrl,
        signer: Signer,
        *,
        environ: Mapping[str, str],
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
    ) -> None:
        parts = urlsplit(container.endpoint)
        self._host = parts.hostname or ""
        self._port = parts.port
        self.signer = signer
        self._retry = retry or RetryPolicy()
        self._pace = pace
        self._closing = threading.Event()
        self._answered = False
        # Answers so far that asked for fewer requests.
        self.throttled = 0
        self._account = container.account
        self.clock = clock
        self.root = f"{parts.path.rstrip('/')}/{container.container}"
        self._transport = transport_to(container.endpoint, environ, timeouts or Timeouts())

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        stream: bool = False,
        retry_bare_500: bool = True,
    ) -> Reply:
        """Send until the service gives an answer that will not change by asking again.

        ``path`` is percent-encoded. With ``stream`` the body is left unread in ``Reply.response``.
        ``retry_bare_500`` False does not retry a 500 without an error code: Azure always sends a code,
        emulators omit it for unsupported requests.
        Raises ``StorageUnreachableError`` when no answer comes.
        """
        return self.run(
            self.tries(
                method, path, query, headers, body, most=0 if stream else MAX_BODY, retry_bare_500=retry_bare_500
            )
        )

    def run(self, steps: Steps[_T], sent: Sent | None = None) -> _T:
        """Drive one operation to its end in this thread; ``sent`` hears of each try's body on its way."""
        back: Answered | None = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(back) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast(_T, end.value)
            back = error = None
            try:
                if isinstance(step, Pause):
                    self._sleep(step.seconds)
                else:
                    back = self._exchange(step, sent)
            except (TransportError, BlobsyncError) as caught:
                error = caught

    def side_by_side(self) -> SideBySide | None:
        """Drives many operations from one thread; None where the library in use cannot."""
        exchanges = self._transport.exchanges()
        return None if exchanges is None else SideBySide(exchanges, self._closing, self._closed)

    def tries(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        most: int = MAX_BODY,
        retry_bare_500: bool = True,
    ) -> Steps[Reply]:
        """See :meth:`send`; ``most`` bytes of the answer's body are read, with 0 it is left unread."""
        failures = 0
        started = time.monotonic()
        while True:
            while held := self._held_back():
                yield Pause(held)
            asked, busy = None, False
            late = time.monotonic() - started > self._retry.patience
            attempt = self._attempt(method, path, query, headers, body, most)
            try:
                response, body_read = yield attempt
            except TransportError as error:
                if error.trouble is Trouble.TOO_LARGE:
                    raise _too_large(most) from error
                failures += 1
                if late or failures >= self._tries(error.trouble):
                    raise self._unreachable(error.trouble, failures) from error
            else:
                self._answered = True
                status = response.status
                if _LOG.isEnabledFor(logging.DEBUG):
                    _LOG.debug("%s %s: %d", method, redact(attempt.target), status)
                bare_500 = status == 500 and not retry_bare_500 and "x-ms-error-code" not in response.headers
                refused = status == 401 and failures == 0 and self.signer.renew()
                patient = status in RETRYABLE_STATUS and not bare_500 and not late and failures + 1 < self._retry.tries
                if not refused and not patient:
                    return Reply(status, response, failures + 1 + response.resent, body_read)
                failures += 1
                busy = status in _BUSY
                self.throttled += busy
                asked = response.headers.get("Retry-After")
                _drain(response)
            seconds = self._retry.wait(failures, asked)
            if busy and self._pace is not None:
                self._pace.asked(seconds)
            yield Pause(seconds)

    def _held_back(self) -> float:
        """For how long (seconds) a request may not begin, because others are to wait: one that is, counts as one that
        was asked to."""
        held = self._pace.left if self._pace is not None else 0.0
        self.throttled += held > 0
        return held

    def _attempt(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        most: int,
    ) -> Try:
        signed = {"x-ms-version": API_VERSION, "User-Agent": "blobsync", **headers}
        if body is not None:
            signed["Content-Length"] = str(len(body))
        text = self.signer.sign(method, path, query, signed)
        # Bodies have a length of their own, which the transport tells.
        signed.pop("Content-Length", None)
        return Try(method, f"{path}?{text}" if text else path, signed, body, most)

    def _exchange(self, attempt: Try, sent: Sent | None) -> Answered:
        response = self._transport.exchange(attempt.method, attempt.target, attempt.headers, attempt.body, sent)
        return Answered(response, _whole_body(response, attempt.most) if attempt.most else None)

    def _sleep(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise self._closed()

    def _closed(self) -> StorageUnreachableError:
        return StorageUnreachableError(f"the connection to {self._account} was closed")

    def pause(self, failures: int, asked: str | None = None) -> None:
        """Wait before the next try; raises ``StorageUnreachableError`` when the store is closed meanwhile."""
        self._sleep(self._retry.wait(failures, asked))

    def resumes(self, failures: int) -> bool:
        """Whether a body that broke ``failures`` times in a row is worth another try."""
        return failures < self._retry.tries and not self._closing.is_set()

    def for_signed_requests(self) -> BlobHttp:
        """The same connections, retries and end, for requests that somebody else has signed."""
        http = copy.copy(self)
        http.signer = SignedAlready()
        return http

    def close(self) -> None:
        """End waiting retries and idle connections."""
        self._closing.set()
        self._transport.close()

    def _tries(self, trouble: Trouble) -> int:
        if trouble is Trouble.CERTIFICATE:
            return 1
        # A wrong host name or port should fail in less than half a minute; a network that worked a
        # moment ago gets more retries.
        if not self._answered and trouble in NOT_CONNECTED:
            return min(_FIRST_CONTACT_TRIES, self._retry.tries)
        return self._retry.tries

    def _unreachable(self, trouble: Trouble, tries: int) -> StorageUnreachableError:
        sentence, hint = _SENTENCES[trouble]
        if self._host.startswith("127.") and self._account == EMULATOR_ACCOUNT and trouble is Trouble.REFUSED:
            sentence = f"the emulator is not running at {{host}}, port {self._port}"
            hint = f"blobsync emulator start --port {self._port}"
        tried = f" ({tries} tries)" if tries > 1 else ""
        return StorageUnreachableError(redact(sentence.format(host=self._host)) + tried, hint=hint)


def _drain(response: Response) -> None:
    """Read what is left, so that the connection can be used again."""
    with suppress(TransportError, StorageError):
        _whole_body(response)


def _whole_body(response: Response, most: int = MAX_BODY) -> bytes:
    """All that is left of an answer that is no blob's content. Raises ``StorageError`` where it is far too much."""
    pieces = []
    size = 0
    while size <= most and (piece := response.read(most + 1 - size)):
        pieces.append(piece)
        size += len(piece)
    response.close()
    if size > most:
        raise _too_large(most)
    return b"".join(pieces)


def _too_large(most: int) -> StorageError:
    return StorageError(
        f"the response is larger than {most >> 20} MiB, so it is not from a blob service",
        hint="check blob_endpoint: something else answers there",
    )


# One sentence for a request that got no answer, and what to do about it.
_SENTENCES = {
    Trouble.PROXY: (
        "the proxy for {host} refused the connection or failed",
        "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    ),
    Trouble.CERTIFICATE: (
        "{host} presented a TLS certificate that this machine does not trust",
        "behind a TLS-inspecting proxy, set SSL_CERT_FILE to its CA bundle",
    ),
    Trouble.TLS: ("the TLS connection to {host} failed", "check that blob_endpoint is an https endpoint"),
    Trouble.NO_HOST: ("cannot resolve the host {host}", "check account_name and blob_endpoint, and this machine's DNS"),
    Trouble.REFUSED: ("{host} refuses connections or cannot be reached", "check blob_endpoint and the network"),
    Trouble.CONNECT_TIMEOUT: (
        "the connection to {host} timed out",
        "check the network, the firewall and the proxy",
    ),
    Trouble.READ_TIMEOUT: (
        "{host} stopped responding in the middle of a request",
        "check the network; run it again",
    ),
    Trouble.BROKEN: ("the connection to {host} broke", "check the network; run it again"),
}
