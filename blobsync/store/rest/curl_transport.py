"""Requests by libcurl: cheaper than urllib3, because nothing between the socket and the body is Python.

Each connection has its own handle in its own multi handle, driven by one thread at a time, so a response can
be read piece by piece, a stall is detected, and ``close`` works. Many small exchanges at a time from one thread, which
is cheaper still, are in ``curl_exchanges``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import final

import pycurl

from blobsync.store.protocol import Sent
from blobsync.store.rest.curl_exchanges import CurlExchanges, sleep
from blobsync.store.rest.curl_handle import CurlHandle
from blobsync.store.rest.transport import POOL_SIZE, Headers, ServerOrigin, Timeouts, TransportError, Trouble

# Bytes of a body that nobody needs to be told of on its way, and seconds between two times.
_SOON_GONE = 256 * 1024
_TELL = 0.1


@final
class CurlTransport:
    """See :class:`blobsync.store.rest.transport.Transport`."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._origin = origin
        self._timeouts = timeouts
        self._closing = threading.Event()
        # Reuse the last used one first: servers close idle connections.
        self._idle: list[_Line] = []

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, sent: Sent | None = None
    ) -> CurlResponse:
        """See the protocol."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(self._origin, self._timeouts, self._closing)
        try:
            line.send(method, target, headers, body)
            status, found = line.await_headers(sent if body is not None and len(body) > _SOON_GONE else None)
        except BaseException:
            line.cut()
            raise
        return CurlResponse(self, line, status, found)

    def exchanges(self) -> CurlExchanges:
        """See the protocol."""
        return CurlExchanges(self._origin, self._timeouts, self._closing)

    def close(self) -> None:
        """See the protocol."""
        self._closing.set()
        while self._idle:
            self._idle.pop().cut()

    def keep(self, line: _Line) -> None:
        """Take back a line that is at the end of its answer."""
        if self._closing.is_set() or len(self._idle) >= POOL_SIZE:
            line.cut()
        else:
            self._idle.append(line)


@final
class CurlResponse:
    """See :class:`blobsync.store.rest.transport.Response`."""

    def __init__(self, transport: CurlTransport, line: _Line, status: int, headers: Headers) -> None:
        self._transport = transport
        self._line: _Line | None = line
        self.status = status
        self.headers: Mapping[str, str] = headers
        self.resent = line.resent

    def read(self, limit: int) -> bytes:
        """See the protocol."""
        if self._line is None:
            return b""
        try:
            piece = self._line.read(limit)
        except BaseException:
            line, self._line = self._line, None
            line.cut()
            raise
        if not piece:
            self.close()
        return piece

    def close(self) -> None:
        """See the protocol."""
        line, self._line = self._line, None
        if line is None:
            return
        if line.is_at_end():
            self._transport.keep(line)
        else:
            line.cut()


class _Line:
    """One connection, and the exchange that is on it. Used by one thread at a time."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts, closing: threading.Event) -> None:
        self._timeouts = timeouts
        self._closing = closing
        self._running = False
        self._failure: TransportError | None = None
        self.resent = False
        self._multi = pycurl.CurlMulti()
        self._handle = CurlHandle(origin, timeouts)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Begin the exchange."""
        self._failure = None
        self._handle.load(method, target, headers, body)
        self._multi.add_handle(self._handle.easy)
        self._running = True

    def await_headers(self, sent: Sent | None = None) -> tuple[int, Headers]:
        """Wait for the final status line and its headers."""
        while not self._handle.has_headers():
            if not self._running:
                raise self._failure or TransportError(Trouble.BROKEN)
            self._wait(sent)
        self.resent = self._handle.was_resent()
        return self._handle.status(), self._handle.headers()

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body, empty at its end."""
        pieces = self._handle.pieces
        while not pieces and self._running:
            self._wait()
        if not pieces:
            # First return what arrived before the error.
            if self._failure is not None:
                raise self._failure
            return b""
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # libcurl holds a reference to this list: do not replace it.
        pieces[:] = [piece[limit:]] if len(piece) > limit else []
        return piece[:limit]

    def is_at_end(self) -> bool:
        """Whether the whole answer was read, so that the connection is good for another request."""
        if self._running and not self._handle.pieces:
            self._step()
        return not self._running and not self._handle.pieces and self._failure is None

    def cut(self) -> None:
        """Close the connection."""
        if self._running:
            self._running = False
            self._multi.remove_handle(self._handle.easy)
        self._handle.close()
        self._multi.close()

    def _wait(self, sent: Sent | None = None) -> None:
        """Go on until something has come, or the exchange has ended. Raises :class:`TransportError`."""
        lines, pieces = self._handle.lines, self._handle.pieces
        had = (len(lines), len(pieces))
        deadline = time.monotonic() + self._timeouts.read
        uploaded, told = 0, 0.0
        while True:
            self._step()
            if not self._running or (len(lines), len(pieces)) != had:
                return
            sleep(self._multi, self._timeouts.read)
            if self._closing.is_set():
                raise TransportError(Trouble.BROKEN)
            now = time.monotonic()
            if sent is not None and now >= told + _TELL:
                told = now
                sent(self._handle.received())
            if now > deadline and self._handle.is_connected():
                moved = self._handle.moved()
                if moved == uploaded:
                    raise TransportError(Trouble.READ_TIMEOUT)
                uploaded, deadline = moved, now + self._timeouts.read

    def _step(self) -> None:
        _, running = self._multi.perform()
        if running:
            return
        _, _, failed = self._multi.info_read()
        self._running = False
        self._multi.remove_handle(self._handle.easy)
        self._handle.unload()
        for _, code, text in failed:
            self._failure = self._handle.failure(code, text)
