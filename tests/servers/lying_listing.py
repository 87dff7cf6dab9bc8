"""A blob service whose listings contain additional names, for azcopy only.

The names are below the listed folder; each can be read, and has the content of one real blob. azcopy does not find a
``hidden`` blob until it has listed what is below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers import child
from tests.servers.proxy import Link, Proxy, operation
from tests.servers.wire import Request, encode_request


class LyingListing(Proxy):
    """``extra`` are names relative to the listed folder; ``real`` is the path of the blob with their content.

    ``hidden`` is the suffix of paths that azcopy's HEAD requests do not find.
    """

    def __init__(self, upstream: str, real: str, extra: Sequence[str], hidden: str = "") -> None:
        super().__init__(upstream)
        self._real = real
        self._extra = tuple(extra)
        self._hidden = hidden

    async def handle(self, link: Link, request: Request) -> bool:
        agent = (request.get("user-agent") or "").lower()
        if operation(request) == "list" and "azcopy" in agent:
            return await self._list(link, request)
        path, _, query = request.target.partition("?")
        if self._hidden and request.method == "HEAD" and "azcopy" in agent and unquote(path).endswith(self._hidden):
            self.injected("blob that is none")
            link.writer.write(_NO_BLOB)
            await link.writer.drain()
            return True
        # Clients may resolve ".." in a URL before they send it.
        read = request.method in ("GET", "HEAD")
        if read and unquote(path).rpartition("/")[2] in {name.rpartition("/")[2] for name in self._extra}:
            self.injected("read of a name that nobody asked for")
            headers = request.without(lambda name: name.startswith("if-"))
            raw = encode_request(request.method, f"{self._real}?{query}", headers)
            request = Request((request.method, f"{self._real}?{query}", request.first[2]), headers, raw)
        return await self.forward(link, request)

    async def _list(self, link: Link, request: Request) -> bool:
        reader, response = await link.ask(request.raw)
        length = response.get("content-length")
        body = await reader.readexactly(int(length)) if length else await _chunks(reader)
        prefix = parse_qs(urlsplit(request.target).query).get("prefix", [""])[0]
        added = "".join(_entry(prefix + name) for name in self._extra).encode()
        body = body.replace(b"<Blobs/>", b"<Blobs></Blobs>").replace(b"<Blobs>", b"<Blobs>" + added)
        self.injected("listing with more names")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        link.writer.write(f"{head}x-ms-version: 2021-12-02\r\nx-ms-request-id: 1\r\n\r\n".encode() + body)
        await link.writer.drain()
        return True


_NO_BLOB = (
    b"HTTP/1.1 404 The specified blob does not exist.\r\nContent-Length: 0\r\nx-ms-error-code: BlobNotFound\r\n"
    b"x-ms-version: 2021-12-02\r\nx-ms-request-id: 1\r\n\r\n"
)


async def _chunks(reader: Any) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _entry(name: str) -> str:
    return (
        f'<Blob><Name Encoded="true">{quote(name, safe="")}</Name><Properties>'
        "<Creation-Time>Fri, 20 Nov 2026 10:00:00 GMT</Creation-Time>"
        "<Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified><Etag>0x1</Etag>"
        "<Content-Length>4</Content-Length><Content-Type>application/octet-stream</Content-Type>"
        "<BlobType>BlockBlob</BlobType><LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        "<ServerEncrypted>true</ServerEncrypted></Properties></Blob>"
    )


class LyingHandle(child.ServerProcess):
    """The parent's handle of the server."""

    def injected(self) -> Mapping[str, int]:
        """The number of false listings, by kind."""
        found: dict[str, int] = self.ask("stats")["injected"]
        return found


@contextmanager
def lying_listing(upstream: str, real: str, extra: Sequence[str], *, hidden: str = "") -> Iterator[LyingHandle]:
    """Run the server for ``upstream`` in a child process."""
    words = ["--upstream", upstream, "--real", real, "--hidden", hidden, "--", *extra]
    with LyingHandle("lying_listing", words) as handle:
        yield handle


def main() -> None:
    options = child.parser("Shows azcopy names that others are not shown.")
    options.add_argument("--real", required=True)
    options.add_argument("--hidden", default="")
    options.add_argument("extra", nargs="+")
    chosen = options.parse_args()
    child.run(LyingListing(chosen.upstream, chosen.real, chosen.extra, chosen.hidden), chosen)


if __name__ == "__main__":
    main()
