"""Sends signed requests to one storage account: :class:`BlobHttp`, from one thread each or many from one thread.

A library keeps the connections, TLS and proxies (``transport.py``). Retrying is done here (``retries.py``) instead of
by the library: each try needs a new signature, and the service's own rules apply. The secondary endpoint of an account
is never read: it may lag.

An operation is a generator of tries and pauses that does no I/O itself. So the same code decides about retries and
reads answers, whether one thread waits for one request (``BlobHttp.run``) or drives many (``SideBySide``).

The library is libcurl (``pycurl``) if installed, else urllib3, which is pure Python and so can run on the nodes of
a job; ``BLOBSYNC_TRANSPORT`` (``curl`` or ``urllib3``) overrides this. ``python -m benchmarks.transports`` prints
what a small request costs each: with libcurl a quarter of the CPU time to send, 0.6 to receive. The same tests
cover both.
"""

from __future__ import annotations

import copy
import heapq
import inspect
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast, final
from urllib.parse import urlsplit

from blobsync.base.errors import (
    BlobsyncError,
    CredentialError,
    StorageError,
    StorageUnreachableError,
    UnsafeNameError,
    UsageError,
)
from blobsync.base.events import NO_ANSWER, NO_CONNECTION, SERVICE_BUSY, ConnectionEvent, debug_logger
from blobsync.base.formatting import duration_text
from blobsync.base.locations import BlobContainer, quote_blob_name, reaches_another
from blobsync.base.redaction import redact
from blobsync.base.trusted_hosts import TRUSTED_HOSTS_VARIABLE, Trusted, is_plain_loopback, listener_text, may_listen
from blobsync.base.user_folders import listed_in
from blobsync.config.model import EMULATOR_ACCOUNT
from blobsync.store.protocol import FileBody, Order, Sent
from blobsync.store.rest.error_codes import Answer
from blobsync.store.rest.request_signing import Signer
from blobsync.store.rest.retries import (
    BUSY_STATUS,
    Failures,
    HostState,
    RetryPolicy,
    is_to_be_repeated,
    outage_patience,
)
from blobsync.store.rest.transport import (
    CERTIFICATE_HINT,
    UNTRUSTED_CERTIFICATE,
    Exchanges,
    Guard,
    HttpRequest,
    Response,
    Timeouts,
    Transport,
    TransportError,
    Trouble,
    origin_of,
)


def transport_to(
    endpoint: str, environ: Mapping[str, str], timeouts: Timeouts, guard: Guard | None = None
) -> Transport:
    """The transport for an endpoint's host; ``guard``: see ``ServerOrigin``. Raises ``StorageUnreachableError`` for an
    unusable endpoint or proxy."""
    origin = origin_of(endpoint, environ)._replace(guard=guard)
    wanted = environ.get("BLOBSYNC_TRANSPORT") or "curl"
    if wanted not in ("curl", "urllib3"):
        raise UsageError(f"BLOBSYNC_TRANSPORT must be curl or urllib3, not {wanted!r}")
    if wanted == "curl":
        try:
            from blobsync.store.rest.curl import CurlTransport
        except ImportError:
            if "BLOBSYNC_TRANSPORT" in environ:
                raise UsageError("BLOBSYNC_TRANSPORT=curl needs pycurl", hint="pip install pycurl") from None
        else:
            return CurlTransport(origin, timeouts)
    from blobsync.store.rest.urllib3_transport import Urllib3Transport

    return Urllib3Transport(origin, timeouts)


T = TypeVar("T")


# Requests, and seconds to wait before the next one: ``send`` gets a response, or None after a wait.
Steps = Generator[HttpRequest | float, Any, T]


_Running = tuple[object, Steps[Any]]


@final
class SideBySide:
    """Runs many operations from one thread; see :class:`blobsync.store.protocol.Orders`."""

    def __init__(self, exchanges: Exchanges, http: BlobHttp, steps_of: Callable[[Order], Steps[Any]]) -> None:
        self._exchanges = exchanges
        self._http = http
        self._steps_of = steps_of
        self._pausing: list[tuple[float, int, _Running]] = []
        self._numbers = itertools.count()
        self._tried = 0
        self._ended: list[tuple[object, Any]] = []

    @property
    def under_way(self) -> int:
        """The number of operations that :meth:`ended` has not returned yet."""
        return self._tried + len(self._pausing) + len(self._ended)

    @property
    def throttled(self) -> int:
        return self._http.throttled

    def begin(self, key: object, order: Order) -> None:
        self._go_on((key, self._steps_of(order)), None, None)

    def ended(self, seconds: float) -> list[tuple[object, Any]]:
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
            self._http.closing.wait(seconds)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._exchanges.close()

    def _resume(self) -> None:
        closing = self._http.closing.is_set()
        while self._pausing and (closing or self._pausing[0][0] <= time.monotonic()):
            running = heapq.heappop(self._pausing)[2]
            self._go_on(running, None, self._http.closed() if closing else None)

    def _go_on(self, running: _Running, back: object, error: Exception | None) -> None:
        key, steps = running
        while True:
            try:
                step = steps.send(back) if error is None else steps.throw(error)
                if not isinstance(step, HttpRequest):
                    heapq.heappush(self._pausing, (time.monotonic() + step, next(self._numbers), running))
                    return
                self._exchanges.begin(running, step)
            except StopIteration as end:
                self._ended.append((key, end.value))
                return
            except BlobsyncError as caught:
                # An error of the operation ends it; an error of sending it (such as an invalid header) is thrown into
                # it.
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    self._ended.append((key, caught))
                    return
                back, error = None, caught
            else:
                self._tried += 1
                return


# What an account charges requests as; all others are writes.
_KINDS = {"GET": "read", "HEAD": "read", "DELETE": "delete"}

# https://learn.microsoft.com/rest/api/storageservices/versioning-for-the-azure-storage-services
# Old enough for every sovereign cloud and Azurite, new enough for 4000 MiB blocks, Put Blob From URL with
# OAuth, and listings that encode names XML cannot hold.
API_VERSION = "2023-11-03"

# Bytes; the limit for a page of a listing, with 5,000 names of up to 1,024 characters, each up to 9 bytes if encoded.
# Real pages and all other responses are far smaller.
MAX_BODY = 64 << 20


# The same after :meth:`BlobHttp.fail_soon`, and the time limit of one request then.
_SHORT_OUTAGE = 1.0
_SHORT_TIMEOUTS = Timeouts(connect=3.0, read=3.0)


def answer_of(response: Response) -> Answer:
    """A response as an argument for ``rest.error_codes``; ends a streamed one."""
    body = response.body
    # Without the body, the status and a header contain the reason.
    with suppress(TransportError):
        body = body or _whole_body(response)
    response.close()
    return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


class BlobHttp:
    """Sends signed requests to one container's endpoint; safe to use from several threads.

    ``environ`` is read for proxies, CA bundles, trusted hosts and ``BLOBSYNC_OUTAGE_SECONDS`` only. ``emit`` gets the
    events of outages. ``outside``: the credential is not from the file that names the endpoint; ``trusted`` are the
    user's own hosts, by default those of the environment.
    """

    def __init__(
        self,
        container: BlobContainer,
        signer: Signer,
        *,
        environ: Mapping[str, str],
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.time,
        emit: Callable[[ConnectionEvent], None] | None = None,
        outside: bool = False,
        trusted: Trusted | None = None,
    ) -> None:
        parts = urlsplit(container.endpoint)
        self._host = parts.hostname or ""
        self._port = parts.port
        self.signer = signer
        self._retry = retry or RetryPolicy(outage=outage_patience(environ))
        self.closing = threading.Event()
        # Set to end all waits for a retry.
        self._woken = threading.Event()
        self._host_state = HostState(self._host, emit)
        # Responses so far that asked for fewer requests.
        self.throttled = 0
        # Requests so far: write, list, read, delete.
        self.requests: Counter[str] = Counter()
        self._account = container.account
        self.clock = clock
        # What the service called itself in its first answer: the header Server.
        self.server: str | None = None
        self.root = f"{parts.path.rstrip('/')}/{container.name}"
        guard = _guard_of(container.endpoint, environ, trusted, outside=outside)
        self._transport_with: Callable[[Timeouts], Transport] = lambda timeouts: transport_to(
            container.endpoint, environ, timeouts, guard
        )
        self._transport_of_files: Callable[[], Transport] = lambda: transport_to(
            container.endpoint, {**environ, "BLOBSYNC_TRANSPORT": "urllib3"}, Timeouts(), guard
        )
        self._transport = self._transport_with(timeouts or Timeouts())
        # Others: of files that are read while they are sent, once there is one; and such as may still be in use.
        self._of_files: Transport | None = None
        self._older: list[Transport] = []

    def path_of(self, name: str) -> str:
        """The percent-encoded path of a blob. Raises ``UnsafeNameError`` if the request would reach another blob."""
        if why := reaches_another(name):
            raise UnsafeNameError(f"the name {name!a} {why}", path=ascii(name))
        return f"{self.root}/{quote_blob_name(name)}"

    def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """Send a request by :meth:`tries`, and return the final response with its body."""
        return self.run(self.tries(method, path, query, headers, body))

    def run(self, steps: Steps[T], sent: Sent | None = None) -> T:
        """Run one operation in this thread; ``sent`` is called with the bytes of the body sent so far."""
        back: Response | None = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(back) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast("T", end.value)
            back = error = None
            try:
                if not isinstance(step, HttpRequest):
                    self._sleep(step)
                else:
                    back = self._exchange(step, sent)
            except (TransportError, BlobsyncError) as caught:
                error = caught

    def side_by_side(self, steps_of: Callable[[Order], Steps[Any]]) -> SideBySide | None:
        """A runner of many operations from one thread; None if the HTTP library cannot do that."""
        exchanges = self._transport.exchanges()
        return None if exchanges is None else SideBySide(exchanges, self, steps_of)

    def tries(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | FileBody | None = None,
        *,
        most: int = MAX_BODY,
        retry_bare_500: bool = True,
    ) -> Steps[Response]:
        """A request with its retries, whose last response is the result; ``path`` is percent-encoded.

        ``most`` is the limit of the response's body in bytes; with 0 it is left unread. ``retry_bare_500`` False does
        not retry a 500 without an error code: Azure always sends a code, emulators omit it for unsupported requests.
        Raises ``StorageUnreachableError`` when no answer comes.
        """
        failures = Failures(self._retry, self._host_state)
        while True:
            if self._host_state.fails_soon and self._host_state.down >= _SHORT_OUTAGE:
                raise self._unreachable(failures.trouble, failures.tries)
            asked, began = None, time.monotonic()
            signed = {"x-ms-version": API_VERSION, "User-Agent": "blobsync", **headers}
            signed |= {} if body is None else {"Content-Length": str(len(body))}
            text = self.signer.sign(method, path, query, signed)
            # The transport adds the length of the body.
            signed.pop("Content-Length", None)
            attempt = HttpRequest(method, f"{path}?{text}" if text else path, signed, body, most)
            self.requests["list" if query.get("comp") == "list" else _KINDS.get(method, "write")] += 1
            try:
                response: Response = yield attempt
            except TransportError as error:
                if error.trouble in (Trouble.TOO_LARGE, Trouble.NOT_TRUSTED):
                    raise _too_large(most) if error.trouble is Trouble.TOO_LARGE else self._untrusted(error) from error
                waited = time.monotonic() - began if error.trouble in _WAITED_FOR else 0.0
                if failures.is_last(_WHY.get(error.trouble, NO_CONNECTION), error.trouble, waited):
                    raise self._unreachable(error.trouble, failures.tries) from error
            else:
                status = response.status
                self.server = response.headers.get("Server", "") if self.server is None else self.server
                if log := debug_logger("blobsync.http"):
                    log.debug("%s %s: %d", method, redact(attempt.target), status)
                again = is_to_be_repeated(status, response.headers, retry_bare_500=retry_bare_500)
                if not again:
                    self._host_state.answered()
                refused = status == 401 and failures.tries == 0 and self.signer.renew()
                if not refused and (not again or failures.is_last(SERVICE_BUSY)):
                    response.attempts += failures.tries - again
                    return response
                failures.tries += refused
                failures.trouble = None
                self.throttled += status in BUSY_STATUS
                asked = response.headers.get("Retry-After")
                _drain(response)
            yield failures.wait(asked)

    def _exchange(self, attempt: HttpRequest, sent: Sent | None) -> Response:
        if self.closing.is_set():
            raise self.closed()
        transport = self._transport
        if isinstance(attempt.body, FileBody):
            # libcurl is given bodies as a whole.
            transport = self._of_files = self._of_files or self._transport_of_files()
        response = transport.exchange(attempt, sent)
        if attempt.most:
            response.body = _whole_body(response, attempt.most)
        return response

    def _sleep(self, seconds: float) -> None:
        if self._host_state.fails_soon:
            self.closing.wait(min(seconds, _SHORT_OUTAGE))
        else:
            self._woken.wait(seconds)
        if self.closing.is_set():
            raise self.closed()

    def closed(self) -> StorageUnreachableError:
        """The error of requests that :meth:`close` ends."""
        return StorageUnreachableError(f"the connection to {self._account} was closed")

    def resumes(self, failures: int) -> bool:
        """Whether to resume a body that broke ``failures`` times in a row, after a wait. Raises
        ``StorageUnreachableError`` when the store is closed meanwhile."""
        if failures >= self._retry.tries or self.closing.is_set():
            return False
        self._sleep(self._retry.wait(failures, None))
        return True

    def for_signed_requests(self) -> BlobHttp:
        """A client with the same connections, retries and end, for requests that are already signed."""
        http = copy.copy(self)
        http.signer = Signer()
        return http

    def fail_soon(self) -> None:
        """Stop waiting: requests to a host that is down, including those that wait for a retry, fail within seconds.
        Running requests are not aborted."""
        if self._host_state.fails_soon:
            return
        self._host_state.fails_soon = True
        self._older.append(self._transport)
        self._transport = self._transport_with(_SHORT_TIMEOUTS)
        self._woken.set()

    def close(self) -> None:
        """End waits for retries, and close idle connections."""
        self.closing.set()
        self._woken.set()
        for transport in filter(None, (self._transport, self._of_files, *self._older)):
            transport.close()

    def _untrusted(self, error: TransportError) -> CredentialError:
        return CredentialError(
            f"{error}: nothing was sent there",
            hint=f"check blob_endpoint; if you trust that program: export {TRUSTED_HOSTS_VARIABLE}={self._host}",
        )

    def _unreachable(self, trouble: Trouble | None, tries: int) -> StorageUnreachableError:
        sentence, hint = ("{host} does not answer", "") if trouble is None else _SENTENCES[trouble]
        at_port = self._port is not None and trouble in (Trouble.REFUSED, Trouble.CONNECT_TIMEOUT)
        host = f"{self._host}:{self._port}" if at_port else self._host
        if self._host_state.answers:
            hint = "it answered before; run the same command again when the network is back"
        if self._host.startswith("127.") and trouble is Trouble.REFUSED:
            start = f"blobsync emulator start --port {self._port}"
            if self._account == EMULATOR_ACCOUNT:
                sentence, hint = f"the emulator is not running at {self._host}, port {self._port}", start
            elif not self._host_state.answers:
                hint = f"{start} starts an emulator there; or check blob_endpoint"
        down = self._host_state.down
        lasted = f" in {duration_text(down)}" if down >= 1 else ""
        tried = f" ({tries:,} tries{lasted})" if tries > 1 else ""
        return StorageUnreachableError(redact(sentence.format(host=host)) + tried, hint=hint)


def _guard_of(endpoint: str, environ: Mapping[str, str], trusted: Trusted | None, *, outside: bool) -> Guard | None:
    """The check of connections to this machine over plain http; None for other endpoints."""
    if not is_plain_loopback(endpoint):
        return None

    def demand_trusted(connection: socket.socket) -> None:
        from blobsync.base.socket_owners import listener_behind

        found = listener_behind(connection, environ)
        hosts = trusted or (lambda: listed_in(environ, TRUSTED_HOSTS_VARIABLE))
        if not may_listen(endpoint, found, hosts, outside=outside):
            raise TransportError(Trouble.NOT_TRUSTED, listener_text(endpoint, found))

    return demand_trusted


def _drain(response: Response) -> None:
    """Read the rest, so that the connection can be reused."""
    with suppress(TransportError, StorageError):
        _whole_body(response)


def _whole_body(response: Response, most: int = MAX_BODY) -> bytes:
    """The rest of a response that is not a blob's content. Raises ``StorageError`` if it is far too large."""
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


# These take time; other troubles show at once.
_WAITED_FOR = frozenset({Trouble.CONNECT_TIMEOUT, Trouble.READ_TIMEOUT})
_WHY = {Trouble.READ_TIMEOUT: NO_ANSWER}

# Trouble -> message and hint for a request without a response.
_SENTENCES = {
    Trouble.PROXY: (
        "the proxy for {host} refused the connection or failed",
        "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    ),
    Trouble.CERTIFICATE: (
        "{host} " + UNTRUSTED_CERTIFICATE,
        CERTIFICATE_HINT,
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
