"""A blob container in memory behind HTTP: the requests of a compute node, with faults on demand."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CONTAINER = "/acct/box"
_PIECE = 1 << 20
_DATE = "Sun, 22 Nov 2026 03:00:00 GMT"
SAS = "sv=2021-12-02&sp=rwl&sig=SENTINEL"


class BlobService:
    """``blobs`` holds the bytes. ``refuse`` answers the next so many requests with 503, ``cut`` truncates bodies.

    ``meanwhile`` are blobs that another client writes just before a write of the same name arrives.
    ``pause`` is how long (seconds) each MiB of a body takes, ``pieces`` how many of them were sent; while ``gate`` is
    closed (cleared), none is. After ``hangs_after`` pieces in all, or ``hangs_within`` of one body, no other one comes
    until ``over``.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.md5: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.append_blobs: set[str] = set()
        self.blocks: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.meanwhile: dict[str, bytes] = {}
        self.refuse = 0
        self.cut = 0
        self.pause = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.pieces = 0
        self.hangs_after: int | None = None
        self.hangs_within: int | None = None
        self.over = threading.Event()
        self.page = 2
        self.url = ""

    def put(self, name: str, body: bytes) -> None:
        self.blobs[name] = body
        self.md5[name] = base64.b64encode(hashlib.md5(body).digest()).decode()
        self.versions[name] = self.versions.get(name, 0) + 1
        self.append_blobs.discard(name)

    def etag(self, name: str) -> str:
        return f'"0x{self.versions.get(name, 0):X}"'

    def listing(self, prefix: str, marker: str) -> bytes:
        names = sorted(name for name in self.blobs if name.startswith(prefix) and name >= marker)
        shown, rest = names[: self.page], names[self.page :]
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>{len(self.blobs[name])}</Content-Length>"
            f"<Etag>{self.etag(name)}</Etag><Last-Modified>{_DATE}</Last-Modified>"
            f"<Content-MD5>{self.md5.get(name, '')}</Content-MD5></Properties></Blob>"
            for name in shown
        )
        return (
            f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{escape(rest[0]) if rest else ''}</NextMarker>"
            "</EnumerationResults>"
        ).encode()


@contextmanager
def serve() -> Iterator[BlobService]:  # noqa: C901 - one handler class, counted as one function
    service = BlobService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self._refused():
                return
            name, query = self._where()
            if query.get("comp") == "list":
                self._answer(200, service.listing(query.get("prefix", ""), query.get("marker", "")))
            elif name not in service.blobs:
                self._answer(404, b"", code="BlobNotFound")
            elif self.headers.get("If-Match") not in (None, service.etag(name)):
                self._answer(412, b"", code="ConditionNotMet")
            else:
                self._send(name)

        do_HEAD = do_GET  # noqa: N815 - http.server's name

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self._refused():
                return
            name, query = self._where()
            sent = self.headers.get("Content-MD5")
            if sent and sent != base64.b64encode(hashlib.md5(body).digest()).decode():
                self._answer(400, b"", code="Md5Mismatch")
                return
            comp = query.get("comp")
            if comp in (None, "blocklist") and self._condition_fails(name):
                return
            if comp == "block":
                service.blocks[query["blockid"]] = body
            elif comp == "blocklist":
                ids = [part.split("</Latest>")[0] for part in body.decode().split("<Latest>")[1:]]
                service.put(name, b"".join(service.blocks[block] for block in ids))
                service.md5[name] = self.headers["x-ms-blob-content-md5"]
            elif comp == "appendblock":
                if int(self.headers["x-ms-blob-condition-appendpos"]) != len(service.blobs[name]):
                    self._answer(412, b"", code="AppendPositionConditionNotMet")
                    return
                service.blobs[name] += body
            else:
                service.put(name, body)
                if self.headers.get("x-ms-blob-type") == "AppendBlob":
                    service.append_blobs.add(name)
            self._answer(201, b"", written=name)

        def _condition_fails(self, name: str) -> bool:
            if name in service.meanwhile:
                service.put(name, service.meanwhile.pop(name))
            if self.headers.get("If-None-Match") == "*" and name in service.blobs:
                self._answer(409, b"", code="BlobAlreadyExists")
                return True
            if self.headers.get("If-Match") not in (None, service.etag(name)):
                self._answer(412, b"", code="ConditionNotMet")
                return True
            return False

        def _send(self, name: str) -> None:
            body = service.blobs[name]
            given = self.headers.get("x-ms-range") or self.headers.get("Range") or ""
            first, _, last = given.removeprefix("bytes=").partition("-")
            rest = body[int(first or 0) : int(last) + 1 if last else None]
            self.send_response(206 if given else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.send_header("ETag", service.etag(name))
            self.send_header("Last-Modified", _DATE)
            self.send_header("x-ms-blob-type", "AppendBlob" if name in service.append_blobs else "BlockBlob")
            if given:
                self.send_header("Content-Range", f"bytes {given.removeprefix('bytes=')}/{len(body)}")
            if name in service.md5 and name not in service.append_blobs:
                self.send_header("x-ms-blob-content-md5" if given else "Content-MD5", service.md5[name])
            self.end_headers()
            if self.command == "GET" and service.cut and len(rest) > 1:
                service.cut -= 1
                self.wfile.write(rest[: len(rest) // 2])
                self.close_connection = True
            elif self.command == "GET":
                # The client has closed the connection.
                with suppress(OSError):
                    for number, start in enumerate(range(0, len(rest), _PIECE)):
                        hangs = service.hangs_after is not None and service.pieces >= service.hangs_after
                        if hangs or number == service.hangs_within:
                            service.over.wait()
                        time.sleep(service.pause)
                        service.gate.wait()
                        self.wfile.write(rest[start : start + _PIECE])
                        service.pieces += 1

        def _refused(self) -> bool:
            service.requests.append(f"{self.command} {urlsplit(self.path).path}")
            if "sig=SENTINEL" not in self.path:
                self._answer(403, b"", code="AuthenticationFailed")
                return True
            if service.refuse:
                service.refuse -= 1
                self._answer(503, b"", code="ServerBusy")
                return True
            return False

        def _where(self) -> tuple[str, dict[str, str]]:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            return unquote(parts.path[len(CONTAINER) :]).lstrip("/"), query

        def _answer(self, status: int, body: bytes, *, code: str = "", written: str = "") -> None:
            self.send_response(status)
            if written:
                self.send_header("ETag", service.etag(written))
                self.send_header("Last-Modified", _DATE)
                self.send_header("Content-MD5", service.md5.get(written, ""))
            if code:
                self.send_header("x-ms-error-code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}{CONTAINER}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.gate.set()
        service.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
