"""HTTP/1.1 for proxies: heads, the framing of bodies, and streaming them unchanged.

Heads keep their raw bytes, so that they are passed on byte for byte: a blob's name keeps its percent-encoding, and a
signature its headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

Headers = list[tuple[str, str]]
Change = Callable[[bytes], bytes]

MAX_HEAD_BYTES = 1 << 17
PIECE_BYTES = 1 << 18


class WireError(ConnectionError):
    """The peer closed the connection within a message, or does not use HTTP/1.1."""


@dataclass(slots=True)
class Head:
    """The first line and the headers of a request or response."""

    first: tuple[str, str, str]
    headers: Headers
    raw: bytes

    def get(self, name: str) -> str | None:
        """The first header of this name (in lower case)."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None

    def without(self, drop: Callable[[str], bool]) -> Headers:
        """The headers except those for whose lower-case name ``drop`` returns True."""
        return [(key, value) for key, value in self.headers if not drop(key.lower())]

    def last_on_connection(self) -> bool:
        """Whether the sender closes the connection after this message."""
        return (self.get("connection") or "").lower() == "close" or "HTTP/1.0" in self.first


class Request(Head):
    __slots__ = ()

    @property
    def method(self) -> str:
        return self.first[0]

    @property
    def target(self) -> str:
        """The raw path and query."""
        return self.first[1]

    def framing(self) -> Framing:
        if "chunked" in (self.get("transfer-encoding") or "").lower():
            return Framing(chunked=True)
        return Framing(length=int(self.get("content-length") or 0))


class Response(Head):
    __slots__ = ()

    @property
    def status(self) -> int:
        return int(self.first[1])

    def framing(self, method: str) -> Framing:
        """The framing of the body in a response to ``method`` (RFC 9112, section 6.3)."""
        if method == "HEAD" or self.status < 200 or self.status in (204, 304):
            return Framing(length=0)
        if "chunked" in (self.get("transfer-encoding") or "").lower():
            return Framing(chunked=True)
        length = self.get("content-length")
        return Framing(length=None if length is None else int(length))


@dataclass(frozen=True, slots=True)
class Framing:
    """``length`` in bytes; None and not ``chunked``: until the connection ends."""

    length: int | None = None
    chunked: bool = False


def encode_request(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A request head, ready to send."""
    return _encode(f"{method} {target} HTTP/1.1", headers)


def encode_response(status: int, reason: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A response head, ready to send."""
    return _encode(f"HTTP/1.1 {status} {reason}", headers)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None if the client has closed it."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise WireError("the client closed in the middle of a request head") from error
        return None
    return Request(*_parse(raw))


async def read_response(reader: asyncio.StreamReader) -> Response:
    """The next response head; raises ``WireError`` if the server has closed the connection."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise WireError("the server closed before it answered") from error
    return Response(*_parse(raw))


async def pieces(reader: asyncio.StreamReader, framing: Framing) -> AsyncIterator[tuple[bytes, bytes]]:
    """The body as pairs of framing bytes and the payload after them."""
    if framing.chunked:
        async for pair in _chunked(reader):
            yield pair
        return
    left = framing.length
    while left is None or left > 0:
        data = await reader.read(PIECE_BYTES if left is None else min(left, PIECE_BYTES))
        if not data:
            if left is None:
                return
            raise WireError(f"the body ended {left} bytes early")
        if left is not None:
            left -= len(data)
        yield b"", data


async def read_body(reader: asyncio.StreamReader, framing: Framing) -> bytes:
    """The whole payload."""
    return b"".join([payload async for _, payload in pieces(reader, framing)])


async def pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter | None,
    framing: Framing,
    change: Change | None = None,
) -> int:
    """Stream a body to ``writer`` (None discards it) and return its payload's size.

    ``change`` may replace each piece of payload by another of the same length.
    """
    count = 0
    async for before, payload in pieces(reader, framing):
        count += len(payload)
        if writer is None:
            continue
        data = change(payload) if change and payload else payload
        writer.write(before + data if before else data)
        await writer.drain()
    return count


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    ending = b""
    try:
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if not size:
                trailer = await reader.readuntil(b"\r\n")
                yield ending + line + trailer, b""
                return
            yield ending + line, await reader.readexactly(size)
            ending = await reader.readexactly(2)
    except asyncio.IncompleteReadError as error:
        raise WireError("a chunked body ended early") from error


def _parse(raw: bytes) -> tuple[tuple[str, str, str], Headers, bytes]:
    lines = raw[:-4].decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2:
        raise WireError(f"not HTTP: {lines[0][:80]!r}")
    headers = []
    for line in lines[1:]:
        key, _, value = line.partition(":")
        headers.append((key, value.strip()))
    return (words[0], words[1], words[2] if len(words) > 2 else ""), headers, raw


def _encode(first: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [first, *(f"{key}: {value}" for key, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
