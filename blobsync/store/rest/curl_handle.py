"""One handle of libcurl: its fixed options, one request put into it, and what came out of it.

Shared by both ways to drive handles: ``curl_transport`` (one, which is waited for) and ``curl_exchanges`` (many).
Options: https://curl.se/libcurl/c/curl_easy_setopt.html, errors: https://curl.se/libcurl/c/libcurl-errors.html.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
import termios
from collections.abc import Mapping

import pycurl

from blobsync.base.errors import StorageError
from blobsync.store.rest.transport import Guard, Headers, ServerOrigin, Timeouts, TransportError, Trouble

# Bytes that one call may read or write.
_BUFFER = 64 * 1024
# CURLE_PROXY, which pycurl does not name.
_E_PROXY = 97
# A sent body of this size is freed at once, not at the connection's next request.
_LARGE = 64 * 1024

# What no header may hold.
_NO_HEADER = re.compile(r"[^\x00-\x7f]|[\r\n\0]")

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
    pycurl.E_FILESIZE_EXCEEDED: Trouble.TOO_LARGE,
}


class CurlHandle:
    """An easy handle, and what arrived of the exchange that it is on; one exchange at a time."""

    __slots__ = ("_origin", "_refusals", "_used", "easy", "lines", "pieces", "sent")

    def __init__(self, origin: ServerOrigin, timeouts: Timeouts) -> None:
        self._origin = origin
        self._used = False
        self.lines: list[bytes] = []
        self.pieces: list[bytes] = []
        self.sent = 0
        self._refusals: list[BaseException] = []
        self.easy = _handle(origin, timeouts, self.lines, self.pieces)
        if origin.guard is not None:
            _guard(self.easy, origin.guard, timeouts, self._refusals)

    def load(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Put one request in. Raises ``StorageError`` for a header that cannot be sent."""
        self.lines.clear()
        self.pieces.clear()
        self._refusals.clear()
        easy = self.easy
        # PUT without a body says so; and nothing may be added to what was signed.
        content = b"" if body is None and method in ("PUT", "POST") else body
        fields = _header_lines(headers)
        if content is None:
            easy.setopt(pycurl.HTTPGET, 1)
            easy.setopt(pycurl.NOBODY, method == "HEAD")
        else:
            easy.setopt(pycurl.NOBODY, 0)
            easy.setopt(pycurl.POSTFIELDS, content)
            fields.append("Expect:")
            if "Content-Type" not in headers:
                fields.append("Content-Type:")
        if method in ("GET", "HEAD"):
            easy.unsetopt(pycurl.CUSTOMREQUEST)
        else:
            easy.setopt(pycurl.CUSTOMREQUEST, method)
        easy.setopt(pycurl.HTTPHEADER, fields)
        easy.setopt(pycurl.URL, f"{self._origin.scheme}://{self._origin.netloc}{target}")
        self.sent = len(content or b"")

    def unload(self) -> None:
        """The exchange is over: let a large body go."""
        if self.sent > _LARGE:
            self.easy.setopt(pycurl.POSTFIELDS, b"")

    def status(self) -> int:
        """Of the last answer so far."""
        return int(self.easy.getinfo(pycurl.RESPONSE_CODE))

    def has_headers(self) -> bool:
        """Whether the final answer's headers are all here: interim responses and a proxy's response to CONNECT end
        the same way."""
        return bool(self.lines) and not self.lines[-1].strip() and self.status() >= 200

    def headers(self) -> Headers:
        """Those of the last answer."""
        start = len(self.lines) - 1
        while not self.lines[start].startswith(b"HTTP/"):
            start -= 1
        found = []
        for line in b"".join(self.lines[start + 1 :]).decode("latin-1").split("\n"):
            name, colon, value = line.partition(":")
            if colon:
                found.append((name.strip(), value.strip()))
        return Headers(found)

    def was_resent(self) -> bool:
        """Whether the request may have been sent twice; asked once for each exchange.

        A kept connection that turns out to be dead is replaced by libcurl itself, which may have sent on it.
        """
        again = self._used and self.easy.getinfo(pycurl.NUM_CONNECTS) > 0
        self._used = True
        return again

    def moved(self) -> int:
        """Bytes of the body that went out so far."""
        return int(self.easy.getinfo(pycurl.SIZE_UPLOAD_T)) if self.sent else 0

    def received(self) -> int:
        """Bytes of the body that the other side's system has acknowledged, so far as this one can tell: on a thin line
        the rest of what went out waits for a long time."""
        waiting = bytearray(4)
        try:
            fcntl.ioctl(self.easy.getinfo(pycurl.ACTIVESOCKET), termios.TIOCOUTQ, waiting)
        except (OSError, ValueError):
            return self.moved()
        return max(0, self.moved() - int.from_bytes(waiting, sys.byteorder))

    def is_connected(self) -> bool:
        """Whether the request is on its way: from then on the time limit for connecting is over."""
        return bool(self.easy.getinfo(pycurl.PRETRANSFER_TIME) > 0)

    def failure(self, code: int, text: str) -> TransportError:
        """What an error of libcurl means."""
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


class _Lent:
    """A socket of which libcurl is given a copy; this one is closed with the object."""

    __slots__ = ("_socket",)

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

    def fileno(self) -> int:
        return self._socket.fileno()

    def __del__(self) -> None:
        self._socket.close()


def _guard(easy: pycurl.Curl, guard: Guard, timeouts: Timeouts, refusals: list[BaseException]) -> None:
    """Connect in the place of libcurl, which does so when it needs a new connection, and only then.

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
    """The given bundle, or what Python itself would trust: wheels of libcurl do not know where a system keeps it."""
    folder, file = None, bundle
    if bundle is None:
        # Importing it takes a measurable part of a short command, which may not need TLS.
        import ssl

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


def _header_lines(headers: Mapping[str, str]) -> list[str]:
    """As libcurl wants them: an empty one ends with a semicolon. Raises ``StorageError``."""
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers.items()]
    # libcurl sends what it is given, and what follows a line break would be a header of its own.
    if _NO_HEADER.search("".join(lines)):
        name = next(name for name, value in headers.items() if _NO_HEADER.search(f"{name}{value}"))
        raise StorageError(f"the value of the header {name} has characters that are not allowed in a header")
    return lines
