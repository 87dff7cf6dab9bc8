"""Requests by libcurl: cheaper than urllib3, because nothing between the socket and the body is Python.

A handle is driven in one of two ways. :class:`CurlTransport` gives each connection its own handle in its own multi
handle, driven by one thread at a time, so a response can be read piece by piece, a stall is detected, and ``close``
works. :class:`CurlExchanges` drives many small requests from one thread: each costs a third of what it does with a
thread of its own, because no thread hands the interpreter's lock to another.

Options: https://curl.se/libcurl/c/curl_easy_setopt.html, errors: https://curl.se/libcurl/c/libcurl-errors.html.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import termios
import threading
import time
from collections.abc import Mapping
from typing import final

import pycurl

from blobsync.base.errors import StorageError
from blobsync.base.lazy_regexes import pattern
from blobsync.store.protocol import FileBody, Sent
from blobsync.store.rest.transport import (
    POOL_SIZE,
    Guard,
    Headers,
    HttpRequest,
    Response,
    ServerOrigin,
    Timeouts,
    TransportError,
    Trouble,
    WholeResponse,
)

# Bytes that one call may read or write.
_BUFFER = 64 * 1024
# CURLE_PROXY, which pycurl does not name.
_E_PROXY = 97
# A sent body of this size is freed at once, not at the connection's next request.
_LARGE = 64 * 1024

# Characters that no header may contain.
_NO_HEADER = pattern(r"[^\x00-\x7f]|[\r\n\0]")

_TROUBLES = {
    pycurl.E_COULDNT_RESOLVE_HOST: Trouble.NO_HOST,
    pycurl.E_COULDNT_RESOLVE_PROXY: Trouble.PROXY,
    pycurl.E_COULDNT_CONNECT: Trouble.REFUSED,
    # libcurl has only the time limit for connecting; all others are enforced here.
    pycurl.E_OPERATION_TIMEDOUT: Trouble.CONNECT_TIMEOUT,
    pycurl.E_PEER_FAILED_VERIFICATION: Trouble.CERTIFICATE,
    pycurl.E_SSL_CACERT_BADFILE: Trouble.CERTIFICATE,
    pycurl.E_SSL_CONNECT_ERROR: Trouble.TLS,
    pycurl.E_SSL_CIPHER: Trouble.TLS,
    pycurl.E_USE_SSL_FAILED: Trouble.TLS,
    pycurl.E_FILESIZE_EXCEEDED: Trouble.TOO_LARGE,
}


class CurlHandle:
    """An easy handle and the data received on it; one exchange at a time.

    Of several side by side, ``key`` tells which one it is.
    """

    __slots__ = (
        *("_deadline", "_method", "_origin", "_patience", "_refusals", "_seen", "_used"),
        *("easy", "key", "lines", "pieces", "sent"),
    )

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._origin = origin
        self._used = False
        self._method = ""
        self.lines: list[bytes] = []
        self.pieces: list[bytes] = []
        self.sent = 0
        self.key: object = None
        self._patience, self._deadline, self._seen = timeouts.read, 0.0, (0, 0, 0)
        self._refusals: list[BaseException] = []
        self.easy = _handle(origin, timeouts, self.lines, self.pieces)
        if origin.guard is not None:
            _guard(self.easy, origin.guard, timeouts, self._refusals)

    def load(self, request: HttpRequest) -> None:
        """Set up one request. Raises ``StorageError`` for a header that cannot be sent."""
        method, target, headers, body, _ = request
        assert not isinstance(body, FileBody), "libcurl is given bodies as a whole"
        self.lines.clear()
        self.pieces.clear()
        self._refusals.clear()
        easy = self.easy
        # A PUT without a body declares its length; libcurl must not add headers to a signed request.
        content = b"" if body is None and method in ("PUT", "POST") else body
        fields = _header_lines(headers)
        if method != self._method:
            # Most requests of a handle are of one method.
            easy.setopt(pycurl.HTTPGET, 1)
            easy.setopt(pycurl.NOBODY, method == "HEAD")
            easy.setopt(pycurl.CUSTOMREQUEST, method)
            self._method = method
        if content is not None:
            easy.setopt(pycurl.POSTFIELDS, content)
            fields.append("Expect:")
            if "Content-Type" not in headers:
                fields.append("Content-Type:")
        easy.setopt(pycurl.HTTPHEADER, fields)
        easy.setopt(pycurl.URL, f"{self._origin.scheme}://{self._origin.netloc}{target}")
        self.sent = len(content or b"")

    def unload(self) -> None:
        """Free a large body after the exchange."""
        if self.sent > _LARGE:
            self.easy.setopt(pycurl.POSTFIELDS, b"")

    def head(self) -> tuple[int, Headers] | None:
        """The status and the headers of the final response, once all are here: not those of an interim response or of a
        proxy's response to CONNECT, which end the same way."""
        if not self.lines or self.lines[-1].strip():
            return None
        status: int = self.easy.getinfo(pycurl.RESPONSE_CODE)
        if status < 200:
            return None
        text = b"".join(self.lines).decode("latin-1")
        return status, Headers(text=text[text.find("\n", text.rfind("\nHTTP/") + 1) + 1 :])

    def attempts(self) -> int:
        """How often the request may have been sent; call once for each exchange.

        libcurl itself replaces a dead connection, on which it may already have sent the request.
        """
        again = self._used and self.easy.getinfo(pycurl.NUM_CONNECTS) > 0
        self._used = True
        return 1 + again

    def moved(self) -> int:
        """Bytes of the body sent so far."""
        return int(self.easy.getinfo(pycurl.SIZE_UPLOAD_T)) if self.sent else 0

    def received(self) -> int:
        """Bytes of the body that the other side has acknowledged, as far as known; on a slow connection the rest waits
        in buffers."""
        waiting = bytearray(4)
        try:
            fcntl.ioctl(self.easy.getinfo(pycurl.ACTIVESOCKET), termios.TIOCOUTQ, waiting)
        except (OSError, ValueError):
            return self.moved()
        return max(0, self.moved() - int.from_bytes(waiting, sys.byteorder))

    def watch(self) -> None:
        """Begin to count the time without progress."""
        self._deadline, self._seen = time.monotonic() + self._patience, (0, 0, 0)

    def is_stalled(self, now: float) -> bool:
        """Whether nothing has moved for too long. libcurl itself limits the time for connecting."""
        seen = (len(self.lines), len(self.pieces), self.moved())
        if seen != self._seen:
            self._seen, self._deadline = seen, now + self._patience
        return now > self._deadline and bool(self.easy.getinfo(pycurl.PRETRANSFER_TIME) > 0)

    def failure(self, code: int, text: str) -> TransportError:
        """Convert an error of libcurl."""
        for refusal in self._refusals:
            if isinstance(refusal, TransportError):
                return refusal
            raise refusal
        trouble = _TROUBLES.get(code, Trouble.BROKEN)
        if self._origin.proxy and (trouble in (Trouble.REFUSED, Trouble.NO_HOST) or "CONNECT tunnel" in text):
            return TransportError(Trouble.PROXY)
        return TransportError(Trouble.PROXY if code == _E_PROXY else trouble)

    def close(self) -> None:
        """Also closes its connection, unless a multi handle keeps it."""
        self.easy.close()


def _handle(origin: ServerOrigin, timeouts: Timeouts, lines: list[bytes], pieces: list[bytes]) -> pycurl.Curl:
    easy = pycurl.Curl()
    easy.setopt(pycurl.NOSIGNAL, 1)
    easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    # Without this, libcurl would normalize dots in names as folders.
    easy.setopt(pycurl.PATH_AS_IS, 1)
    easy.setopt(pycurl.CONNECTTIMEOUT_MS, int(timeouts.connect * 1000))
    easy.setopt(pycurl.TCP_KEEPALIVE, 1)
    easy.setopt(pycurl.BUFFERSIZE, _BUFFER)
    easy.setopt(pycurl.UPLOAD_BUFFERSIZE, _BUFFER)
    easy.setopt(pycurl.HEADERFUNCTION, lines.append)
    easy.setopt(pycurl.WRITEFUNCTION, pieces.append)
    # Empty, so that libcurl reads no environment variable: the caller has done so.
    easy.setopt(pycurl.PROXY, origin.proxy or "")
    easy.setopt(pycurl.NOPROXY, "")
    if origin.scheme == "https" or (origin.proxy or "").startswith("https:"):
        _trust(easy, origin.bundle)
    return easy


class _Lent:
    """A socket of which libcurl gets a duplicate; it is closed with the object."""

    __slots__ = ("_socket",)

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()


def _guard(easy: pycurl.Curl, guard: Guard, timeouts: Timeouts, refusals: list[BaseException]) -> None:
    """Open new connections in place of libcurl, and let ``guard`` check them first.

    On this machine that takes no time. https://curl.se/libcurl/c/CURLOPT_OPENSOCKETFUNCTION.html
    """

    def connected(purpose: int, address: tuple[int, int, int, tuple[str, int]]) -> _Lent | int:
        family, kind, protocol, place = address
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeouts.connect)
            made.connect(place)
            guard(made)
            made.setblocking(False)
        except BaseException as error:  # noqa: BLE001 - libcurl would drop it: it is raised where the exchange ends
            made.close()
            if not isinstance(error, OSError):
                refusals.append(error)
            return int(pycurl.SOCKET_BAD)
        return _Lent(made)

    easy.setopt(pycurl.OPENSOCKETFUNCTION, connected)
    easy.setopt(pycurl.SOCKOPTFUNCTION, lambda opened, purpose: pycurl.SOCKOPT_ALREADY_CONNECTED)


def _trust(easy: pycurl.Curl, bundle: str | None) -> None:
    """Trust the given bundle, or what Python trusts: wheels of libcurl do not know the system's certificates."""
    folder, file = None, bundle
    if bundle is None:
        # Importing it takes a measurable part of a short command, which may not need TLS.
        import ssl

        paths = ssl.get_default_verify_paths()
        # From a folder only the needed certificate is read; a file is read whole for each connection.
        folder, file = _hashed(paths.capath), paths.cafile
    elif os.path.isdir(bundle):
        folder, file = bundle, None
    for of_folder, of_file in ((pycurl.CAPATH, pycurl.CAINFO), (pycurl.PROXY_CAPATH, pycurl.PROXY_CAINFO)):
        if folder is not None:
            easy.setopt(of_folder, folder)
            easy.unsetopt(of_file)
        elif file is not None:
            easy.setopt(of_file, file)


def _hashed(folder: str | None) -> str | None:
    """The folder, if its certificates are named by the hash of their subject; else None."""
    try:
        found = folder is not None and any(name.endswith(".0") for name in os.listdir(folder))
    except OSError:
        return None
    return folder if found else None


def _header_lines(headers: Mapping[str, str]) -> list[str]:
    """Headers in libcurl's form: an empty one ends with a semicolon. Raises ``StorageError``."""
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers.items()]
    # libcurl does not check headers: text after a line break would be another header.
    text = "".join(lines)
    if not (text.isascii() and text.isprintable()) and _NO_HEADER.search(text):
        name = next(name for name, value in headers.items() if _NO_HEADER.search(f"{name}{value}"))
        raise StorageError(f"the value of the header {name} has characters that are not allowed in a header")
    return lines


# Seconds until a running request notices that the transport was closed.
_NOTICE = 0.5
# libcurl has no socket to wait for while a thread of its own resolves a name.
_LOOK_UP = 0.005


@final
class CurlExchanges:
    """See :class:`blobsync.store.rest.transport.Exchanges`."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts, closing: threading.Event) -> None:
        self._origin = origin
        self._timeouts = timeouts
        self._closing = closing
        self._idle: list[CurlHandle] = []
        self._under_way: dict[pycurl.Curl, CurlHandle] = {}
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, POOL_SIZE)
        self._look_again = 0.0

    def begin(self, key: object, request: HttpRequest) -> None:
        handle = self._idle.pop() if self._idle else CurlHandle(self._origin, self._timeouts)
        handle.load(request)
        handle.easy.setopt(pycurl.MAXFILESIZE, request.most)
        handle.key = key
        handle.watch()
        self._under_way[handle.easy] = handle
        self._multi.add_handle(handle.easy)

    def wait(self, seconds: float) -> list[tuple[object, Response | TransportError]]:
        ended = self._step()
        if not ended and seconds > 0:
            sleep(self._multi, min(seconds, self._timeouts.read))
            ended = self._step()
        if self._closing.is_set():
            ended += [self._cut(each, Trouble.BROKEN) for each in list(self._under_way.values())]
        elif time.monotonic() > self._look_again:
            ended += self._stalled()
        return ended

    def close(self) -> None:
        for each in list(self._under_way.values()):
            self._cut(each, Trouble.BROKEN)
        while self._idle:
            self._idle.pop().close()
        self._multi.close()

    def _step(self) -> list[tuple[object, Response | TransportError]]:
        self._multi.perform()
        ended: list[tuple[object, Response | TransportError]] = []
        left = 1
        while left:
            left, whole, failed = self._multi.info_read()
            ended += [self._end(easy, None) for easy in whole]
            ended += [self._end(easy, (code, text)) for easy, code, text in failed]
        return ended

    def _end(self, easy: pycurl.Curl, error: tuple[int, str] | None) -> tuple[object, Response | TransportError]:
        self._multi.remove_handle(easy)
        handle = self._under_way.pop(easy)
        handle.unload()
        self._idle.append(handle)
        if error is not None:
            return handle.key, handle.failure(*error)
        head = handle.head()
        if head is None:
            return handle.key, TransportError(Trouble.BROKEN)
        body = handle.pieces[0] if len(handle.pieces) == 1 else b"".join(handle.pieces)
        return handle.key, WholeResponse(*head, body, handle.attempts())

    def _stalled(self) -> list[tuple[object, Response | TransportError]]:
        """Exchanges without progress for too long."""
        now = time.monotonic()
        self._look_again = now + min(1.0, self._timeouts.read / 4)
        stalled = [each for each in self._under_way.values() if each.is_stalled(now)]
        return [self._cut(each, Trouble.READ_TIMEOUT) for each in stalled]

    def _cut(self, handle: CurlHandle, trouble: Trouble) -> tuple[object, Response | TransportError]:
        # Removed before its end, so libcurl closes the connection.
        del self._under_way[handle.easy]
        self._multi.remove_handle(handle.easy)
        handle.close()
        return handle.key, TransportError(trouble)


def sleep(multi: pycurl.CurlMulti, most: float) -> None:
    """Wait until a socket of ``multi`` is ready or a timeout of libcurl expires, at most ``most`` seconds."""
    timeout = multi.timeout()
    seconds = min(_NOTICE, most, timeout / 1000 if timeout >= 0 else _NOTICE)
    if seconds > 0 and multi.select(seconds) < 0:
        time.sleep(min(seconds, _LOOK_UP))


# Bodies up to this size (bytes) report no progress; seconds between two reports.
_SMALL_BODY = 256 * 1024
_REPORT_SECONDS = 0.1


# A connection: its handle, in a multi handle of its own.
_Connection = tuple[pycurl.CurlMulti, CurlHandle]


@final
class CurlTransport:
    """See :class:`blobsync.store.rest.transport.Transport`."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._origin = origin
        self.timeouts = timeouts
        self.closing = threading.Event()
        # Reuse the last used one first: servers close idle connections.
        self._idle: list[_Connection] = []

    def exchange(self, request: HttpRequest, sent: Sent | None = None) -> CurlResponse:
        reports = request.body is not None and len(request.body) > _SMALL_BODY
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = pycurl.CurlMulti(), CurlHandle(self._origin, self.timeouts)
        return CurlResponse(self, connection, request, sent if reports else None)

    def exchanges(self) -> CurlExchanges:
        return CurlExchanges(self._origin, self.timeouts, self.closing)

    def close(self) -> None:
        self.closing.set()
        while self._idle:
            cut(self._idle.pop())

    def keep(self, connection: _Connection) -> None:
        """Keep a connection whose response was read to its end."""
        if self.closing.is_set() or len(self._idle) >= POOL_SIZE:
            cut(connection)
        else:
            self._idle.append(connection)


def cut(connection: _Connection) -> None:
    """Close a connection."""
    multi, handle = connection
    handle.close()
    multi.close()


@final
class CurlResponse:
    """See :class:`blobsync.store.rest.transport.Response`. Used by one thread at a time."""

    def __init__(
        self, transport: CurlTransport, connection: _Connection, request: HttpRequest, sent: Sent | None
    ) -> None:
        """Send the request, and wait for the final status line and its headers."""
        self._transport, self._connection = transport, connection
        self._multi, self._handle = connection
        self._running, self._closed = False, False
        self._failure: TransportError | None = None
        self.headers: Mapping[str, str]
        try:
            self._handle.load(request)
            self._multi.add_handle(self._handle.easy)
            self._running = True
            self.status, self.headers = self._head(sent)
        except BaseException:
            self._cut()
            raise
        self.attempts, self.body = self._handle.attempts(), b""

    def read(self, limit: int) -> bytes:
        if self._closed:
            return b""
        pieces = self._handle.pieces
        try:
            while not pieces and self._running:
                self._wait()
            # Return what arrived before the error first.
            if not pieces and self._failure is not None:
                raise self._failure
        except BaseException:
            self._cut()
            raise
        if not pieces:
            self.close()
            return b""
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # libcurl holds a reference to this list: do not replace it.
        pieces[:] = [piece[limit:]] if len(piece) > limit else []
        return piece[:limit]

    def close(self) -> None:
        if self._closed:
            return
        pieces = self._handle.pieces
        if self._running and not pieces:
            self._step()
        if self._running or pieces or self._failure is not None:
            self._cut()
        else:
            self._closed = True
            self._transport.keep(self._connection)

    def _head(self, sent: Sent | None) -> tuple[int, Headers]:
        while (head := self._handle.head()) is None:
            if not self._running:
                raise self._failure or TransportError(Trouble.BROKEN)
            self._wait(sent)
        return head

    def _cut(self) -> None:
        self._closed = True
        if self._running:
            self._running = False
            self._multi.remove_handle(self._handle.easy)
        cut(self._connection)

    def _wait(self, sent: Sent | None = None) -> None:
        """Wait until data has arrived or the exchange has ended. Raises :class:`TransportError`."""
        lines, pieces = self._handle.lines, self._handle.pieces
        had = (len(lines), len(pieces))
        reported = 0.0
        self._handle.watch()
        while True:
            self._step()
            if not self._running or (len(lines), len(pieces)) != had:
                return
            sleep(self._multi, self._transport.timeouts.read / 4)
            if self._transport.closing.is_set():
                raise TransportError(Trouble.BROKEN)
            now = time.monotonic()
            if sent is not None and now >= reported + _REPORT_SECONDS:
                reported = now
                sent(self._handle.received())
            if self._handle.is_stalled(now):
                raise TransportError(Trouble.READ_TIMEOUT)

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
