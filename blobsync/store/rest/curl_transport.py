"""Requests by libcurl: cheaper than urllib3, because nothing between the socket and the body is Python.

Each connection has its own handle in its own multi handle, driven by one thread at a time, so a response can
be read piece by piece, a stall is detected, and ``close`` works. Options:
https://curl.se/libcurl/c/curl_easy_setopt.html, errors: https://curl.se/libcurl/c/libcurl-errors.html.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Mapping
from typing import final

import pycurl

from blobsync.base.errors import StorageError
from blobsync.store.rest.transport import POOL_SIZE, Headers, ServerOrigin, Timeouts, TransportError, Trouble

# Bytes that one call may read or write.
_BUFFER = 64 * 1024
# Seconds until a running request notices that the transport was closed.
_NOTICE = 0.5
# libcurl has no socket to wait for while another thread of its own looks up a name.
_LOOK_UP = 0.005
# CURLE_PROXY, which pycurl does not name.
_E_PROXY = 97
# A sent body of this size is freed at once, not at the connection's next request.
_LARGE = 64 * 1024

_TROUBLES = {
    pycurl.E_COULDNT_RESOLVE_HOST: Trouble.NO_HOST,
    pycurl.E_COULDNT_RESOLVE_PROXY: Trouble.PROXY,
    pycurl.E_COULDNT_CONNECT: Trouble.REFUSED,
    # The only time limit that libcurl is given is the one for connecting.
    pycurl.E_OPERATION_TIMEDOUT: Trouble.CONNECT_TIMEOUT,
    pycurl.E_PEER_FAILED_VERIFICATION: Trouble.CERTIFICATE,
    pycurl.E_SSL_CACERT_BADFILE: Trouble.CERTIFICATE,
    pycurl.E_SSL_CONNECT_ERROR: Trouble.TLS,
    pycurl.E_SSL_CIPHER: Trouble.TLS,
    pycurl.E_USE_SSL_FAILED: Trouble.TLS,
}


@final
class CurlTransport:
    """See :class:`blobsync.store.rest.transport.Transport`."""

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._origin = origin
        self._timeouts = timeouts
        self._closing = threading.Event()
        # Reuse the last used one first: servers close idle connections.
        self._idle: list[_Line] = []

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> CurlResponse:
        """See the protocol."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(self._origin, self._timeouts, self._closing)
        try:
            line.send(method, target, headers, body)
            status, found = line.await_headers()
        except BaseException:
            line.cut()
            raise
        return CurlResponse(self, line, status, found)

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
        self._origin = origin
        self._timeouts = timeouts
        self._closing = closing
        self._lines: list[bytes] = []
        self._pieces: list[bytes] = []
        self._running = False
        self._failure: TransportError | None = None
        self._used = False
        self.resent = False
        self._multi = pycurl.CurlMulti()
        self._easy = _handle(origin, timeouts, self._lines, self._pieces)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Begin the exchange."""
        self._failure = None
        self._lines.clear()
        self._pieces.clear()
        easy = self._easy
        # PUT without a body says so; and nothing may be added to what was signed.
        content = b"" if body is None and method in ("PUT", "POST") else body
        fields = [_header(name, value) for name, value in headers.items()]
        if content is None:
            easy.setopt(pycurl.HTTPGET, 1)
            easy.setopt(pycurl.NOBODY, method == "HEAD")
        else:
            easy.setopt(pycurl.NOBODY, 0)
            easy.setopt(pycurl.POSTFIELDS, content)
            fields.append(b"Expect:")
            if "Content-Type" not in headers:
                fields.append(b"Content-Type:")
        if method in ("GET", "HEAD"):
            easy.unsetopt(pycurl.CUSTOMREQUEST)
        else:
            easy.setopt(pycurl.CUSTOMREQUEST, method)
        easy.setopt(pycurl.HTTPHEADER, fields)
        easy.setopt(pycurl.URL, f"{self._origin.scheme}://{self._origin.netloc}{target}")
        self._multi.add_handle(easy)
        self._running = True
        self._sent = len(content or b"")

    def await_headers(self) -> tuple[int, Headers]:
        """Wait for the final status line and its headers."""
        # Skip interim responses and a proxy's response to CONNECT, which end the same way.
        while not (self._lines and not self._lines[-1].strip() and self._status() >= 200):
            if not self._running:
                raise self._failure or TransportError(Trouble.BROKEN)
            self._wait()
        # A kept connection that turns out to be dead is replaced by libcurl itself, which may have sent on it.
        self.resent = self._used and self._easy.getinfo(pycurl.NUM_CONNECTS) > 0
        self._used = True
        return self._status(), _last_headers(self._lines)

    def _status(self) -> int:
        return int(self._easy.getinfo(pycurl.RESPONSE_CODE))

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body, empty at its end."""
        while not self._pieces and self._running:
            self._wait()
        if not self._pieces:
            # First return what arrived before the error.
            if self._failure is not None:
                raise self._failure
            return b""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        # libcurl holds a reference to this list: do not replace it.
        self._pieces[:] = [piece[limit:]] if len(piece) > limit else []
        return piece[:limit]

    def is_at_end(self) -> bool:
        """Whether the whole answer was read, so that the connection is good for another request."""
        if self._running and not self._pieces:
            self._step()
        return not self._running and not self._pieces and self._failure is None

    def cut(self) -> None:
        """Close the connection."""
        if self._running:
            self._running = False
            self._multi.remove_handle(self._easy)
        self._easy.close()
        self._multi.close()

    def _wait(self) -> None:
        """Go on until something has come, or the exchange has ended. Raises :class:`TransportError`."""
        had = (len(self._lines), len(self._pieces))
        deadline = time.monotonic() + self._timeouts.read
        uploaded = 0
        while True:
            self._step()
            if not self._running or (len(self._lines), len(self._pieces)) != had:
                return
            self._sleep()
            if self._closing.is_set():
                raise TransportError(Trouble.BROKEN)
            now = time.monotonic()
            if now > deadline and self._easy.getinfo(pycurl.PRETRANSFER_TIME) > 0:
                moved = int(self._easy.getinfo(pycurl.SIZE_UPLOAD)) if self._sent else 0
                if moved == uploaded:
                    raise TransportError(Trouble.READ_TIMEOUT)
                uploaded, deadline = moved, now + self._timeouts.read

    def _step(self) -> None:
        _, running = self._multi.perform()
        if running:
            return
        _, _, failed = self._multi.info_read()
        self._running = False
        self._multi.remove_handle(self._easy)
        if self._sent > _LARGE:
            self._easy.setopt(pycurl.POSTFIELDS, b"")
        for _, code, text in failed:
            self._failure = TransportError(self._trouble(code, text))

    def _sleep(self) -> None:
        wish = self._multi.timeout()
        seconds = min(_NOTICE, self._timeouts.read, wish / 1000 if wish >= 0 else _NOTICE)
        if seconds > 0 and self._multi.select(seconds) < 0:
            time.sleep(min(seconds, _LOOK_UP))

    def _trouble(self, code: int, text: str) -> Trouble:
        trouble = _TROUBLES.get(code, Trouble.BROKEN)
        if self._origin.proxy and (trouble in (Trouble.REFUSED, Trouble.NO_HOST) or "CONNECT tunnel" in text):
            return Trouble.PROXY
        return Trouble.PROXY if code == _E_PROXY else trouble


def _handle(origin: ServerOrigin, timeouts: Timeouts, lines: list[bytes], pieces: list[bytes]) -> pycurl.Curl:
    easy = pycurl.Curl()
    easy.setopt(pycurl.NOSIGNAL, 1)
    easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    # A name may have dots that libcurl would take for folders.
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


def _trust(easy: pycurl.Curl, bundle: str | None) -> None:
    """The given bundle, or what Python itself would trust: wheels of libcurl do not know where a system keeps it."""
    folder, file = None, bundle
    if bundle is None:
        paths = ssl.get_default_verify_paths()
        # A folder is looked into for the one certificate that is needed; a file is read for each connection.
        folder, file = _hashed(paths.capath), paths.cafile
    elif os.path.isdir(bundle):
        folder, file = bundle, None
    for option, place in ((pycurl.CAPATH, folder), (pycurl.PROXY_CAPATH, folder)):
        if place is not None:
            easy.setopt(option, place)
    for option in (pycurl.CAINFO, pycurl.PROXY_CAINFO):
        if folder is None and file is not None:
            easy.setopt(option, file)
        elif folder is not None:
            easy.unsetopt(option)


def _hashed(folder: str | None) -> str | None:
    """A folder of certificates that are found by their subject's hash; None where it is not one."""
    try:
        found = folder is not None and any(name.endswith(".0") for name in os.listdir(folder))
    except OSError:
        return None
    return folder if found else None


def _header(name: str, value: str) -> bytes:
    """One header as libcurl wants it: an empty one ends with a semicolon. Raises ``StorageError``."""
    line = (f"{name}: {value}" if value else f"{name};").encode("latin-1", "replace")
    # libcurl sends what it is given, and what follows a line break would be a header of its own.
    if not line.isascii() or any(sign in line for sign in b"\r\n\0"):
        raise StorageError(f"the value of the header {name} has characters that are not allowed in a header")
    return line


def _last_headers(lines: list[bytes]) -> Headers:
    """The headers of the last answer in ``lines``."""
    start = max(index for index, line in enumerate(lines) if line.startswith(b"HTTP/"))
    fields = (line.decode("latin-1").partition(":") for line in lines[start + 1 :])
    return Headers([(name.strip(), value.strip()) for name, colon, value in fields if colon])
