"""Requests by urllib3, which keeps the connections, TLS and proxies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast, final
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse

from blobsync.store.protocol import FileBody, Sent
from blobsync.store.rest.transport import POOL_SIZE, Guard, HttpRequest, ServerOrigin, Timeouts, TransportError, Trouble

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse

# A connection that answered this many seconds ago or less is reused without checking its socket: servers close only
# those that are idle for long, and a request on a closed one is sent again.
_WARM_SECONDS = 1.0

# A socket's timeout applies to a whole call of sendall; larger bodies are sent in pieces, so that a slow connection
# does not time out.
_PIECE = 128 * 1024

_NO_RETRIES = urllib3.Retry(False)


class _WarmConnection(HTTPConnection):
    """Saves a system call for each request, which would release the interpreter's lock to other threads."""

    _answered = 0.0

    @property
    def is_connected(self) -> bool:
        warm = time.monotonic() - self._answered < _WARM_SECONDS
        return (warm and self.sock is not None) or super().is_connected

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        response = super().getresponse()
        self._answered = time.monotonic()
        return response


class _WarmSecureConnection(_WarmConnection, HTTPSConnection):
    pass


def _guarded(guard: Guard, *, secure: bool) -> type[_WarmConnection]:
    """A connection class that calls ``guard`` for each new connection."""

    class Guarded(_WarmConnection):
        def connect(self) -> None:
            super().connect()
            try:
                guard(self.sock)
            except BaseException:
                self.close()
                raise

    class GuardedSecure(Guarded, _WarmSecureConnection):
        pass

    return GuardedSecure if secure else Guarded


@final
class Urllib3Transport:
    """See :class:`blobsync.store.rest.transport.Transport`."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._pool = _pool(origin, timeouts)
        # A plain-http proxy wants the whole URL in the request line.
        whole = origin.proxy is not None and origin.scheme == "http"
        self._prefix = f"{origin.scheme}://{origin.netloc}" if whole else ""

    def exchange(self, request: HttpRequest, sent: Sent | None = None) -> Urllib3Response:
        method, target, headers, body, _ = request
        fields = dict(headers)
        if body is not None:
            fields["Content-Length"] = str(len(body))
        try:
            raw = self._pool.urlopen(
                method,
                self._prefix + target,
                body=_as_sent(body, sent),
                headers=fields,
                retries=_NO_RETRIES,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise TransportError(trouble_of(error)) from error
        return Urllib3Response(raw)

    def exchanges(self) -> None:
        """See the protocol; None, since urllib3 blocks the thread that sends."""
        return

    def close(self) -> None:
        self._pool.close()


@final
class Urllib3Response:
    """See :class:`blobsync.store.rest.transport.Response`."""

    def __init__(self, raw: BaseHTTPResponse) -> None:
        self._raw = raw
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers
        # A request on a closed connection fails; the caller sends it again.
        self.attempts, self.body = 1, b""

    def read(self, limit: int) -> bytes:
        try:
            return self._raw.read(limit)
        except (HTTPError, OSError) as error:
            raise TransportError(trouble_of(error)) from error

    def close(self) -> None:
        if getattr(self._raw, "length_remaining", None) == 0:
            # Responses without a body end only after a read.
            self._raw.read(1)
        self._raw.close()
        self._raw.release_conn()


def connections(proxy: str | None, bundle: str | None, timeouts: Timeouts) -> urllib3.PoolManager:
    """Connections through a proxy, whose URL may have a login, or without one; ``bundle`` is a PEM file to trust."""
    timeout = urllib3.Timeout(connect=timeouts.connect, read=timeouts.read)
    if not proxy:
        return urllib3.PoolManager(maxsize=POOL_SIZE, timeout=timeout, ca_certs=bundle)
    parts = urlsplit(proxy)
    login = None if parts.username is None else f"{parts.username}:{parts.password or ''}"
    headers = urllib3.make_headers(proxy_basic_auth=login)
    return urllib3.ProxyManager(proxy, maxsize=POOL_SIZE, timeout=timeout, ca_certs=bundle, proxy_headers=headers)


def _pool(origin: ServerOrigin, timeouts: Timeouts) -> urllib3.HTTPConnectionPool:
    parts = urlsplit(f"{origin.scheme}://{origin.netloc}")
    opened = connections(origin.proxy, origin.bundle, timeouts)
    pool = opened.connection_from_host(parts.hostname, parts.port, origin.scheme)
    pool.ConnectionCls = _WarmSecureConnection if origin.scheme == "https" else _WarmConnection
    if origin.guard is not None:
        pool.ConnectionCls = _guarded(origin.guard, secure=origin.scheme == "https")
    return pool


def _as_sent(body: bytes | FileBody | None, sent: Sent | None) -> bytes | Iterable[bytes] | None:
    if isinstance(body, FileBody):
        return _pieces(lambda start, end: body.read_at(start, end - start), len(body), sent)
    if body is None or len(body) <= _PIECE:
        return body
    view = memoryview(body)
    return _pieces(lambda start, end: cast("bytes", view[start:end]), len(body), sent)


def _pieces(read: Callable[[int, int], bytes], size: int, sent: Sent | None) -> Iterator[bytes]:
    for start in range(0, size, _PIECE):
        if sent is not None:
            sent(start)
        yield read(start, min(start + _PIECE, size))


def trouble_of(error: Exception) -> Trouble:
    """What an error of urllib3 means."""
    error = (error.reason or error) if isinstance(error, MaxRetryError) else error
    if isinstance(error, ProxyError):
        return Trouble.PROXY
    inner = _inner(error)
    if isinstance(inner, SSLError):
        return Trouble.CERTIFICATE if "certificate" in str(error).lower() else Trouble.TLS
    # An unresolved name is also a failed connection, so check for it first.
    for kind, trouble in (
        (NameResolutionError, Trouble.NO_HOST),
        (NewConnectionError, Trouble.REFUSED),
        (ConnectTimeoutError, Trouble.CONNECT_TIMEOUT),
        (ReadTimeoutError, Trouble.READ_TIMEOUT),
    ):
        if isinstance(inner, kind):
            return trouble
    return Trouble.BROKEN


def _inner(error: Exception) -> Exception:
    cause = getattr(error, "original_error", None) or getattr(error, "reason", None)
    return cause if isinstance(cause, HTTPError) else error
