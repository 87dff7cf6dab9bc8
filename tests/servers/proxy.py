"""A reverse proxy on asyncio that passes requests on unchanged, counts payload, and keeps a journal.

Subclasses override :meth:`Proxy.handle`. Each client connection has its own upstream connection, so that
closing, keep-alive and order are as without the proxy.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.wire import (
    MAX_HEAD_BYTES,
    Framing,
    Request,
    Response,
    WireError,
    pump,
    read_request,
    read_response,
)

_JOURNAL_ENTRIES = 200_000
_NAMES = {
    ("PUT", ""): "put blob",
    ("PUT", "block"): "put block",
    ("PUT", "blocklist"): "put block list",
    ("GET", "blocklist"): "get block list",
    ("GET", ""): "get blob",
    ("HEAD", ""): "head blob",
    ("DELETE", ""): "delete blob",
    ("GET", "list"): "list",
    ("POST", "batch"): "batch",
}
_CHECKS = {"content-md5": "MD5", "x-ms-content-crc64": "CRC64"}
_PAYLOAD_UP = ("put blob", "put block", "put appendblock", "put page")


@dataclass(slots=True)
class Entry:
    """One request: operation, raw path without the query, status of the response (0: none), User-Agent.

    ``check`` is what the service can check the body by: ``MD5``, ``CRC64`` or nothing. ``signer`` is the id of the key
    that signed it for S3, in a header or in the URL, or another ``Authorization``'s first word; empty for nobody.
    """

    operation: str
    path: str
    status: int
    agent: str
    check: str = ""
    signer: str = ""


@dataclass(slots=True)
class Stats:
    """Bytes of bodies that passed.

    ``uploaded`` and ``downloaded`` are contents of blobs that clients sent and received, ``other`` is all else
    (listings, block lists, error texts); ``fetched`` is what the proxy read for a client. ``by_agent`` splits
    ``uploaded + downloaded + other`` by the first word of the User-Agent.
    """

    requests: int = 0
    uploaded: int = 0
    downloaded: int = 0
    other: int = 0
    fetched: int = 0
    by_agent: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)

    @property
    def through_clients(self) -> int:
        """All bytes of bodies that clients sent or received."""
        return self.uploaded + self.downloaded + self.other


def operation(request: Request) -> str:
    """The short name of a request to the blob service; for unknown ones method and ``comp``."""
    query = parse_qs(urlsplit(request.target).query)
    comp = query.get("comp", [""])[0]
    name = _NAMES.get((request.method, comp), f"{request.method.lower()} {comp}".strip())
    if "restype" in query and comp != "list":
        name = f"{request.method.lower()} {query['restype'][0]}"
    if request.get("x-ms-copy-source"):
        typed = request.get("x-ms-blob-type") or comp
        return f"{name} from url" if typed else "copy blob"
    return name


def signer(request: Request) -> str:
    """Who signed a request; see ``Entry``."""
    header = request.get("authorization") or ""
    signed = re.search(r"[-? &]Credential=([^/%]+)", f"{header} {request.target}")
    return signed[1] if signed else header.split(" ")[0]


class Link:
    """A client's connection and its upstream connection."""

    def __init__(self, address: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._address = address
        self._up: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        # Set if the client's connection cannot be used for another request.
        self.ending = False

    async def upstream(self, *, fresh: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The upstream connection; a new one if the server has closed the last, or with ``fresh``."""
        if self._up and not fresh and not self._up[0].at_eof() and not self._up[1].is_closing():
            return self._up
        self.drop_upstream()
        self._up = await asyncio.open_connection(*self._address, limit=MAX_HEAD_BYTES * 8)
        return self._up

    @property
    def has_upstream(self) -> bool:
        return self._up is not None

    def drop_upstream(self) -> None:
        """Close the upstream connection at once."""
        if self._up:
            self._up[1].transport.abort()
            self._up = None

    async def ask(self, head: bytes, body: bytes = b"") -> tuple[asyncio.StreamReader, Response]:
        """Send a request of the proxy's own; the caller reads the response's body from the reader."""
        for fresh in (not self.has_upstream, True):
            reader, writer = await self.upstream(fresh=fresh)
            try:
                writer.write(head + body)
                await writer.drain()
                return reader, await read_response(reader)
            except ConnectionError:
                # The server may have just closed an idle connection: try a fresh one.
                if fresh:
                    raise
        raise AssertionError("unreachable")

    def reset(self) -> None:
        """Close the client's connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.drop_upstream()

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self.writer.close()
        self.drop_upstream()


class Proxy:
    """Passes everything on unchanged; ``upstream`` is ``http://host:port``."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"not an upstream of the form http://host:port: {upstream}")
        self.address = (parts.hostname, parts.port)
        self.stats = Stats()
        self.journal: deque[Entry] = deque(maxlen=_JOURNAL_ENTRIES)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client connection."""
        link = Link(self.address, reader, writer)
        try:
            while (request := await read_request(reader)) is not None:
                if (request.get("expect") or "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                if not await self.handle(link, request) or link.ending:
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            link.reset()
        finally:
            link.close()

    async def handle(self, link: Link, request: Request) -> bool:
        """Handle one request; False ends the connection."""
        return await self.forward(link, request)

    async def reply(self, link: Link, request: Request, raw: bytes, *, read: bool = False) -> bool:
        """Answer in place of the service; ``read``: the body of the request was read."""
        if not read:
            await pump(link.reader, None, request.framing())
        if request.method == "HEAD":
            raw = raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        link.writer.write(raw)
        await link.writer.drain()
        self.count(request, int(raw.split(b" ", 2)[1]), 0, 0)
        return not request.last_on_connection()

    async def forward(self, link: Link, request: Request) -> bool:
        """Pass on the request and its response byte for byte."""
        sent, reader, response = await self.send(link, request)
        link.writer.write(response.raw)
        framing = response.framing(request.method)
        received = await pump(reader, link.writer, framing)
        await link.writer.drain()
        self.count(request, response.status, sent, received)
        return not (request.last_on_connection() or response.last_on_connection() or framing == Framing())

    async def send(self, link: Link, request: Request) -> tuple[int, asyncio.StreamReader, Response]:
        """Pass the request on; returns the size of its payload and the response's head."""
        framing = request.framing()
        if framing.length == 0:
            reader, response = await link.ask(request.raw)
            sent = 0
        else:
            reader, writer = await link.upstream()
            writer.write(request.raw)
            sent = 0
            try:
                sent = await pump(link.reader, writer, framing)
            except WireError:
                raise
            except ConnectionError:
                # A server may refuse and close before it has read the body; its response says more than the error.
                link.ending = True
            response = await read_response(reader)
        while response.status < 200:
            response = await read_response(reader)
        return sent, reader, response

    def count(self, request: Request, status: int, sent: int, received: int) -> None:
        """Add one finished request to the figures and to the journal."""
        name = operation(request)
        stats = self.stats
        agent = (request.get("user-agent") or "unknown").split("/")[0].split(" ")[0]
        up = sent if name in _PAYLOAD_UP else 0
        down = received if name == "get blob" and status in (200, 206) else 0
        stats.requests += 1
        stats.uploaded += up
        stats.downloaded += down
        stats.other += sent + received - up - down
        stats.by_agent[agent] = stats.by_agent.get(agent, 0) + sent + received
        stats.operations[name] = stats.operations.get(name, 0) + 1
        check = next((check for header, check in _CHECKS.items() if request.get(header)), "")
        self.journal.append(Entry(name, request.target.split("?")[0], status, agent, check, signer(request)))

    def injected(self, kind: str) -> None:
        """Count an injected fault or refusal."""
        self.stats.injected = dict(Counter(self.stats.injected) + Counter([kind]))

    def command(self, name: str, values: Mapping[str, Any]) -> Any:
        """Handle a command of the parent process; see ``child.py``."""
        if name == "stats":
            return asdict(self.stats)
        if name == "journal":
            return [asdict(entry) for entry in self.journal]
        if name == "reset":
            self.stats = Stats()
            self.journal.clear()
            return None
        raise ValueError(f"no such command: {name}")
