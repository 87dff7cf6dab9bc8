"""A reverse proxy before Azurite that carries out Put Blob From URL and Put Block From URL.

Azurite answers "not implemented" to both, so that a server-to-server copy cannot be tested against it alone. Here the
proxy reads the source itself, from the same upstream (both accounts live in one Azurite), and writes an ordinary Put
Blob or Put Block with the headers that the request sets and, for a whole blob, the source's properties and metadata
(https://learn.microsoft.com/rest/api/storageservices/put-blob-from-url, .../put-block-from-url). Everything else
passes through byte for byte, requests signed with an account key included.

The rewritten requests need a SAS at the destination: a SharedKey signature covers headers that have to change. A body
is held in memory, of some requests at a time. Not covered: page and append blobs From URL, and the asynchronous Copy
Blob, which Azurite has.

A source at one of the ``outside`` addresses is fetched from there instead, as the service fetches from anywhere; of
``URL=OTHER`` the other stands in for the URL. The answer to a block from a URL has the CRC64 of its bytes, as that of
the service has.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from anycrc import Model

from tests.servers import child
from tests.servers.proxy import Entry, Link, Proxy, Stats
from tests.servers.wire import (
    MAX_HEAD_BYTES,
    Headers,
    Request,
    Response,
    encode_request,
    encode_response,
    pump,
    read_body,
    read_response,
)

# Status, x-ms-error-code and first line of the message of each refusal.
REFUSALS: Mapping[str, tuple[int, str, str]] = {
    "cannot_verify": (403, "CannotVerifyCopySource", "This request is not authorized to perform this operation."),
    "firewall": (403, "AuthorizationFailure", "This request is not authorized to perform this operation."),
    "not_implemented": (501, "APINotImplemented", "Current API is not implemented yet."),
    "tenant": (401, "InvalidAuthenticationInfo", "Issuer validation failed. Issuer did not match."),
}

_PROPERTIES = {
    "content-type": "x-ms-blob-content-type",
    "content-encoding": "x-ms-blob-content-encoding",
    "content-language": "x-ms-blob-content-language",
    "content-disposition": "x-ms-blob-content-disposition",
    "cache-control": "x-ms-blob-cache-control",
}
_DROPPED = (
    "connection",
    "content-length",
    "content-md5",
    "content-type",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_SOURCE_CONDITIONS = "x-ms-source-if-"
# A hundred requests for blocks of 100 MB, each body held two or three times, were more than a machine of 24 GB has.
_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which From URL requests are refused: ``kind`` is a key of ``REFUSALS``; ``pattern`` searches the raw target;
    ``limit`` is how often, None for always."""

    kind: str
    pattern: str = ""
    limit: int | None = None


class CopySourceProxy(Proxy):
    """See the module's docstring."""

    def __init__(self, upstream: str, outside: Sequence[str] = ()) -> None:
        super().__init__(upstream)
        pairs = (each.partition("=") for each in outside)
        self._outside = {urlsplit(url).netloc: urlsplit(other or url).netloc for url, _, other in pairs}
        self._refusals: list[tuple[Refusal, int]] = []
        self._room = asyncio.Semaphore(_AT_A_TIME)
        self.tells_crc64 = True

    async def handle(self, link: Link, request: Request) -> bool:
        if request.method != "PUT" or not request.get("x-ms-copy-source"):
            return await self.forward(link, request)
        block = "comp=block" in urlsplit(request.target).query.split("&")
        if not block and request.get("x-ms-blob-type") not in (None, "BlockBlob"):
            return await self.forward(link, request)
        # These requests have no body by definition; one that comes nevertheless is not the next request.
        await pump(link.reader, None, request.framing())
        refusal = self._refusal(request)
        if refusal:
            self.injected(refusal.kind)
            return await self._fail(link, request, *REFUSALS[refusal.kind])
        if not block and request.get("x-ms-blob-type") is None:
            return await self.forward(link, request)
        async with self._room:
            return await self._copy(link, request, block=block)

    async def _copy(self, link: Link, request: Request, *, block: bool) -> bool:
        """Read the source, write the destination, respond as the service does."""
        netloc = urlsplit(request.get("x-ms-copy-source") or "").netloc
        try:
            source, body = await self._fetch(link, request, netloc)
        except (OSError, asyncio.IncompleteReadError):
            return await self._fail(link, request, 500, "CannotVerifyCopySource", "The source cannot be read.")
        self.stats.fetched += len(body)
        if source.status in (304, 412):
            return await self._fail(
                link, request, 412, "SourceConditionNotMet", "The source condition specified was not met."
            )
        if source.status not in (200, 206):
            status = source.status if source.status in (403, 404) else 403
            return await self._fail(link, request, status, "CannotVerifyCopySource", source.first[2])
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        expected = request.get("x-ms-source-content-md5")
        if expected not in (None, digest):
            return await self._fail(link, request, 400, "Md5Mismatch", "The MD5 of the source is not as given.")
        headers = _write_headers(request, block=block, source=source.headers)
        head = encode_request("PUT", request.target, [*headers, ("Content-Length", str(len(body)))])
        crc64 = Model("CRC64-NVME").calc(body).to_bytes(8, "little") if block and self.tells_crc64 else b""
        return await self._write(link, request, head, body, digest, base64.b64encode(crc64).decode())

    async def _fetch(self, link: Link, request: Request, netloc: str) -> tuple[Response, bytes]:
        """The source's answer and its body, from upstream or from outside."""
        asked = self._source_request(request, outside=netloc in self._outside)
        if netloc not in self._outside:
            reader, source = await link.ask(asked)
            return source, await read_body(reader, source.framing("GET"))
        host, _, port = self._outside[netloc].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=MAX_HEAD_BYTES * 8)
        try:
            writer.write(asked)
            await writer.drain()
            source = await read_response(reader)
            return source, await read_body(reader, source.framing("GET"))
        finally:
            writer.close()

    async def _write(self, link: Link, request: Request, head: bytes, body: bytes, digest: str, crc64: str) -> bool:
        reader, answer = await link.ask(head, body)
        text = await read_body(reader, answer.framing("PUT"))
        headers = answer.without(lambda name: name in ("content-length", "transfer-encoding"))
        if answer.status == 201 and answer.get("content-md5") is None:
            headers.append(("Content-MD5", digest))
        if answer.status == 201 and crc64:
            headers.append(("x-ms-content-crc64", crc64))
        link.writer.write(
            encode_response(answer.status, answer.first[2], [*headers, ("Content-Length", str(len(text)))]) + text
        )
        await link.writer.drain()
        self.count(request, answer.status, 0, len(text))
        return not (request.last_on_connection() or answer.last_on_connection())

    def _source_request(self, request: Request, *, outside: bool) -> bytes:
        source = urlsplit(request.get("x-ms-copy-source") or "")
        target = source.path + (f"?{source.query}" if source.query else "")
        headers: Headers = [("Host", source.netloc)]
        if outside:
            headers.append(("Connection", "close"))
        else:
            headers.append(("x-ms-version", request.get("x-ms-version") or "2021-12-02"))
        for name, value in request.headers:
            lower = name.lower()
            if lower == "x-ms-source-range":
                headers.append(("Range" if outside else "x-ms-range", value))
            elif lower == "x-ms-copy-source-authorization":
                headers.append(("Authorization", value))
            elif lower.startswith(_SOURCE_CONDITIONS):
                headers.append((lower.removeprefix("x-ms-source-"), value))
        return encode_request("GET", target, headers)

    async def _fail(self, link: Link, request: Request, status: int, code: str, message: str) -> bool:
        return await self.reply(link, request, error_response(status, code, message), read=True)

    def _refusal(self, request: Request) -> Refusal | None:
        for place, (refusal, done) in enumerate(self._refusals):
            if (refusal.limit is None or done < refusal.limit) and re.search(refusal.pattern, request.target):
                self._refusals[place] = (refusal, done + 1)
                return refusal
        return None

    def command(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "refuse":
            refusals = [Refusal(**each) for each in values["refusals"]]
            unknown = [each.kind for each in refusals if each.kind not in REFUSALS]
            if unknown:
                raise ValueError(f"no such refusal: {unknown}")
            self._refusals = [(each, 0) for each in refusals]
            return None
        if name == "tell crc64":
            self.tells_crc64 = bool(values["tells"])
            return None
        return super().command(name, values)


def error_response(
    status: int, code: str, message: str, headers: Sequence[tuple[str, str]] = (), *, detail: str = ""
) -> bytes:
    """An error response with the service's message and XML; ``detail`` is for a failed authentication."""
    added = f"<AuthenticationErrorDetail>{escape(detail)}</AuthenticationErrorDetail>" if detail else ""
    error = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>{added}</Error>"
    body = f'<?xml version="1.0" encoding="utf-8"?>{error}'.encode()
    return (
        encode_response(
            status,
            message[:60],
            [
                ("Content-Type", "application/xml"),
                ("x-ms-error-code", code),
                ("x-ms-request-id", "00000000-0000-0000-0000-000000000000"),
                ("Content-Length", str(len(body))),
                *headers,
            ],
        )
        + body
    )


def _write_headers(request: Request, *, block: bool, source: Headers) -> Headers:
    headers = request.without(
        lambda name: name in _DROPPED or name.startswith(("x-ms-copy-source", "x-ms-source-")),
    )
    if block:
        return headers
    given = {name.lower() for name, _ in headers}
    if (request.get("x-ms-copy-source-blob-properties") or "true").lower() == "true":
        for name, value in source:
            wanted = _PROPERTIES.get(name.lower())
            if wanted and wanted not in given:
                headers.append((wanted, value))
    if not any(name.startswith("x-ms-meta-") for name in given):
        headers += [(name, value) for name, value in source if name.lower().startswith("x-ms-meta-")]
    return headers


class CopySourceHandle(child.ServerProcess):
    """The parent's handle of the proxy; ``url`` replaces the upstream's."""

    def stats(self) -> Stats:
        return Stats(**self.ask("stats"))

    def journal(self) -> list[Entry]:
        return [Entry(**each) for each in self.ask("journal")]

    def reset(self) -> None:
        """Reset the figures and the journal."""
        self.ask("reset")

    def refuse(self, *refusals: Refusal) -> None:
        """Refuse these requests from now on, and no others."""
        self.ask("refuse", refusals=[asdict(each) for each in refusals])

    def tell_crc64(self, *, tells: bool) -> None:
        """Whether answers have the CRC64 of blocks from now on."""
        self.ask("tell crc64", tells=tells)


@contextmanager
def copy_source_proxy(
    upstream: str, *refusals: Refusal, host: str = "127.0.0.1", outside: Sequence[str] = ()
) -> Iterator[CopySourceHandle]:
    """Run the proxy for ``upstream`` (``http://host:port``) in a child process, listening at ``host``. It fetches from
    the URLs ``outside``, too."""
    elsewhere = [word for url in outside for word in ("--outside", url)]
    handle = CopySourceHandle("copy_source_proxy", ["--upstream", upstream, "--host", host, *elsewhere])
    with handle:
        if refusals:
            handle.refuse(*refusals)
        yield handle


def main() -> None:
    options = child.parser("Carries out Put Blob From URL and Put Block From URL before Azurite.")
    options.add_argument("--outside", action="append", default=[], help="http://host:port that is fetched from, too")
    options.add_argument("--refuse", default="[]", help='JSON, e.g. [{"kind": "cannot_verify"}]')
    chosen = options.parse_args()
    proxy = CopySourceProxy(chosen.upstream, chosen.outside)
    proxy.command("refuse", {"refusals": json.loads(chosen.refuse)})
    child.run(proxy, chosen)


if __name__ == "__main__":
    main()
