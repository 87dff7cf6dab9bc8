"""The interface of an HTTP library: a request and its response, its headers and their dates; and the way to a server.

No transport follows redirects, retries, decodes bodies, or looks for a proxy or a certificate by itself. Proxies are
those of the environment, which is an argument: ``urllib.request`` reads the process's own only.
"""

import enum
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlsplit

from blobsync.base.errors import StorageUnreachableError
from blobsync.base.records import NamedTuple
from blobsync.base.trusted_hosts import is_loopback
from blobsync.store.protocol import FileBody, Sent

# Connections that stay open, so that as many threads can work without reconnecting.
POOL_SIZE = 64

# What a host did whose certificate is not trusted, and what helps.
UNTRUSTED_CERTIFICATE = "presented a TLS certificate that this machine does not trust"
CERTIFICATE_HINT = "behind a TLS-inspecting proxy, set SSL_CERT_FILE to its CA bundle"


class Timeouts(NamedTuple):
    """Seconds to connect, and between two pieces of a body."""

    connect: float = 10.0
    read: float = 60.0


class Trouble(enum.Enum):
    """Why a request got no response, or not all of it."""

    NO_HOST = enum.auto()
    REFUSED = enum.auto()
    CONNECT_TIMEOUT = enum.auto()
    READ_TIMEOUT = enum.auto()
    CERTIFICATE = enum.auto()
    TLS = enum.auto()
    PROXY = enum.auto()
    BROKEN = enum.auto()
    TOO_LARGE = enum.auto()
    NOT_TRUSTED = enum.auto()


# The request was not sent in these cases.
NOT_CONNECTED = frozenset(
    {
        *(Trouble.NO_HOST, Trouble.REFUSED, Trouble.CONNECT_TIMEOUT, Trouble.TLS, Trouble.CERTIFICATE, Trouble.PROXY),
        Trouble.NOT_TRUSTED,
    }
)


class TransportError(Exception):
    """No response, or an incomplete body. Its text contains no URL."""

    def __init__(self, trouble: Trouble, text: str = "") -> None:
        super().__init__(text or trouble.name)
        self.trouble = trouble


class Headers(Mapping[str, str]):
    """Header lines, found by name whatever its case; repeated ones are joined by a comma."""

    def __init__(self, lines: Sequence[tuple[str, str]] = (), *, text: str = "") -> None:
        """``text`` are lines as they came, without the status line: few of them are ever looked at."""
        self._text, self._small = f"\n{text}", f"\n{text.lower()}"
        # A blank where none belongs: in such a text no line begins with just the name and a colon.
        is_odd = "\n " in text or "\n\t" in text or " :" in text or text[:1].isspace()
        self._found = _by_name([*lines, *_split(text)]) if lines or is_odd else None

    def __getitem__(self, name: str) -> str:
        return self._all[name.lower()][1]

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """As ``dict.get``."""
        if self._found is None:
            sign = _sign(name)
            start = self._small.find(sign) + len(sign)
            if start < len(sign):
                return default
            if self._small.find(sign, start) < 0:
                end = self._text.find("\n", start)
                return self._text[start : end if end >= 0 else None].strip()
        known = self._all.get(name.lower())
        return default if known is None else known[1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    @property
    def _all(self) -> dict[str, tuple[str, str]]:
        if self._found is None:
            self._found = _by_name(_split(self._text))
        return self._found


@lru_cache(maxsize=256)
def _sign(name: str) -> str:
    return f"\n{name.lower()}:"


def _split(text: str) -> list[tuple[str, str]]:
    parts = (line.partition(":") for line in text.split("\n"))
    return [(name.strip(), value.strip()) for name, colon, value in parts if colon]


def _by_name(lines: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        low = line[0].lower()
        known = found.get(low)
        found[low] = line if known is None else (known[0], f"{known[1]}, {line[1]}")
    return found


# See ``ServerOrigin``.
Guard = Callable[[socket.socket], None]


# Dates of headers: ``Fri, 20 Nov 2026 06:13:00 GMT`` (RFC 9110, 5.6.7). Written by hand: a listing has a million of
# them, and ``email.utils`` and ``calendar`` take longer to import than all dates of a short command.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = date(1970, 1, 1).toordinal()
_NUMBER = {name: number for number, name in enumerate(_MONTHS, start=1)}


@lru_cache(maxsize=16)
def http_date(second: int) -> str:
    """Format a time (seconds since 1970) as a date of HTTP."""
    at = time.gmtime(second)
    # Not by strftime, which uses the locale's names.
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


@lru_cache(maxsize=4096)
def parse_http_date(text: str) -> float:
    """Parse a date of HTTP to seconds since 1970; 0.0 for anything else."""
    try:
        days = date(int(text[12:16]), _NUMBER[text[8:11]], 1).toordinal() - _EPOCH + int(text[5:7]) - 1
        return float(((days * 24 + int(text[17:19])) * 60 + int(text[20:22])) * 60 + int(text[23:25]))
    except (ValueError, KeyError):
        return 0.0


class Response(Protocol):
    """A response. ``body`` is empty if the caller is to read it. ``attempts`` above 1: an earlier attempt, perhaps one
    that the library has repeated by itself, may have taken effect."""

    status: int
    headers: Mapping[str, str]
    attempts: int
    body: bytes

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes, empty at the end. Raises :class:`TransportError` if the body is cut off."""
        ...

    def close(self) -> None:
        """Give the connection back; one with unread bytes on it is cut."""
        ...


class WholeResponse:
    """A response whose body has been read."""

    __slots__ = ("attempts", "body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, attempts: int) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.attempts = attempts

    def read(self, limit: int) -> bytes:
        return b""

    def close(self) -> None:
        """See :class:`Response`."""


class HttpRequest(NamedTuple):
    """A request, to be sent once; it ends with a :class:`Response` or a ``TransportError``.

    ``target`` is path and query, percent-encoded. ``most`` bytes of the body are read, and more are
    ``Trouble.TOO_LARGE``; with 0 the body is left unread.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | FileBody | None = None
    most: int = 0


class Exchanges(Protocol):
    """Runs many exchanges at a time from one thread."""

    def begin(self, key: object, request: HttpRequest) -> None:
        """Begin an exchange; ``key`` is returned with its result."""
        ...

    def wait(self, seconds: float) -> list[tuple[object, Response | TransportError]]:
        """The exchanges that have ended; waits for one up to ``seconds``."""
        ...

    def close(self) -> None:
        """Abort running exchanges."""
        ...


class Transport(Protocol):
    """Connections to one host; safe to use from several threads."""

    def exchange(self, request: HttpRequest, sent: Sent | None = None) -> Response:
        """Send one request, once. Raises :class:`TransportError`. The body is left unread, whatever ``request.most``.

        ``sent`` is called in this thread, but not for small bodies.
        """
        ...

    def exchanges(self) -> Exchanges | None:
        """Separate connections for many small exchanges at a time; None if the library cannot do that."""
        ...

    def close(self) -> None:
        """Close idle connections; running requests end with :class:`TransportError` within a second."""
        ...


class ServerOrigin(NamedTuple):
    """A server and the way to it. ``netloc`` as in the endpoint's URL; ``bundle``: a PEM file to trust.

    ``guard`` checks each new connection before anything is sent: it raises :class:`TransportError` for one that must
    not be used.
    """

    scheme: str
    netloc: str
    proxy: str | None
    bundle: str | None
    guard: Guard | None = None


_PROXY_SCHEMES = frozenset({"http", "https"})


def origin_of(endpoint: str, environ: Mapping[str, str]) -> ServerOrigin:
    """The server of a URL, and the way to it. Raises ``StorageUnreachableError``."""
    try:
        parts = urlsplit(endpoint)
        scheme, host, _ = parts.scheme or "https", parts.hostname, parts.port
        proxy = proxy_for(scheme, parts.netloc, environ)
        usable = bool(host) and (proxy is None or _is_proxy(proxy))
    except ValueError:
        usable = False
    if not usable:
        raise StorageUnreachableError(
            f"cannot use the endpoint or proxy for {endpoint.partition('://')[2].partition('/')[0]}",
            hint="check blob_endpoint, HTTPS_PROXY and HTTP_PROXY",
        )
    # SSL_CERT_FILE first: azcopy honours only that one, and both should trust the same certificates.
    bundle = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or None
    return ServerOrigin(scheme, parts.netloc, proxy, bundle)


def _is_proxy(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in _PROXY_SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0


def proxy_for(scheme: str, netloc: str, environ: Mapping[str, str]) -> str | None:
    """The proxy URL that the environment names for this host: ``NO_PROXY`` lists hosts, domains or ``*``.

    None for this machine, as in Go's programs (azcopy, kubectl): else a proxy elsewhere would get its requests, with a
    SAS or signature.
    """
    if is_loopback(f"{scheme}://{netloc.rpartition('@')[2]}"):
        return None
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in environ.items()
        if value and name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    }
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None:
        return None
    if _bypassed(netloc.rpartition("@")[2].lower(), proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypassed(netloc: str, no_proxy: str) -> bool:
    host = netloc.rpartition(":")[0] if netloc.rpartition(":")[2].isdigit() else netloc
    for entry in (part.strip().lower().lstrip(".") for part in no_proxy.split(",")):
        if entry and (entry in ("*", netloc, host) or host.endswith(f".{entry}")):
            return True
    return False
