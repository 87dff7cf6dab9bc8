"""A parsed request, and its connection."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.kube.errors import Refused
from tests.servers.kube.resources import Resource, find


@dataclass(frozen=True)
class Target:
    """The object, collection or subresource that a path names."""

    resource: Resource
    namespace: str
    name: str = ""
    subresource: str = ""


def _chunks(handler: BaseHTTPRequestHandler) -> Iterator[bytes]:
    """Read a chunked body: with ``--raw`` kubectl passes on its standard input."""
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        yield handler.rfile.read(size)
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass  # trailers


class Request:
    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        self.handler, self.method, self.path = handler, handler.command, parts.path.strip("/")
        self.query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.words = parse_qs(parts.query).get("command", [])
        is_chunked = handler.headers.get("Transfer-Encoding") == "chunked"
        length = int(handler.headers.get("Content-Length") or 0)
        self.body = b"".join(_chunks(handler)) if is_chunked else handler.rfile.read(length)
        self.content_type = (handler.headers.get("Content-Type") or "").partition(";")[0]
        self.accept = handler.headers.get("Accept") or ""

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("true", "1", "True")

    def json(self) -> Any:
        """The body; kubectl sends some kinds in protobuf, if it makes them from arguments."""
        if self.content_type not in ("", "application/json"):
            accepted = "accepted media types include: application/json"
            raise Refused(415, f"the body of the request was in an unknown format - {accepted}")
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refused(400, f"the object provided is unrecognized (must be of type {self.path}): {error}") from None

    def target(self) -> Target | None:
        """Parse the path; None if it is unknown."""
        parts = self.path.split("/")
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        resource = find(group, version, rest[0])
        if resource is None or len(rest) > 3:
            return None
        return Target(resource, namespace, *rest[1:])

    def answer(self, code: int, body: Any, *, kind: str = "application/json", warnings: tuple[str, ...] = ()) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode() + b"\n"
        self.handler.send_response(code)
        for each in warnings:
            escaped = each.replace("\\", "\\\\").replace('"', '\\"')
            self.handler.send_header("Warning", f'299 - "{escaped}"')
        self.handler.send_header("Content-Type", kind)
        self.handler.send_header("Content-Length", str(len(data)))
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def begin_stream(self, kind: str) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", kind)
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()
        self.handler.wfile.flush()

    def send(self, data: bytes) -> None:
        """Send one chunk; without data, the last."""
        self.handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.handler.wfile.flush()

    def is_gone(self) -> bool:
        """Whether the client has disconnected: it sends nothing while it reads a stream."""
        return bool(select.select([self.handler.connection], [], [], 0)[0])
