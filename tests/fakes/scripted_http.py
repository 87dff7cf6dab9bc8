"""A scripted blob service on real sockets: one step for each request."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One response. ``cut`` sends so many bytes of the body and closes; ``reset`` closes before any response."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    reset: bool = False


@dataclass(frozen=True)
class Seen:
    """One request as it arrived; ``headers`` with lower-case names."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Script:
    url: str = ""
    steps: list[Step] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


@contextmanager
def scripted(steps: Sequence[Step], certificate: tuple[Path, Path] | None = None) -> Iterator[Script]:
    """Serve ``steps`` in order on a free port; a request beyond them gets a 599. ``certificate`` and key: by TLS."""
    script = Script(steps=list(steps))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script, threading.Lock()))
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    script.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}/acct"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(script: Script, lock: threading.Lock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Callable[[], None]:
            # http.server calls do_GET and the like.
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.seen.append(Seen(self.command, self.path, headers, body))
                step = script.steps.pop(0) if script.steps else Step(599)
            if step.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            sent = {"Date": formatdate(usegmt=True), "Content-Length": str(len(step.body)), **step.headers}
            self.send_response_only(step.status)
            for name, value in sent.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(step.body if step.cut is None else step.body[: step.cut])
            if step.cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
