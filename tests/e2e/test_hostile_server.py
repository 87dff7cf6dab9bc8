"""A malicious server: no credential is passed on, nothing hangs, nothing is trusted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.e2e.world import Container, Project
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


class Exchange(BaseHTTPRequestHandler):
    """One request; the server's ``answer`` makes the response."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> Callable[[], None]:
        # http.server calls do_GET and the like.
        if name.startswith("do_"):
            return self.any_method
        raise AttributeError(name)

    def any_method(self) -> None:
        found = self.server
        assert isinstance(found, Server)
        if self.command == "HEAD":
            self.reply(404, b"", **{"x-ms-error-code": "BlobNotFound"})
            return
        found.seen.append(self.path)
        try:
            found.answer(self)
        except OSError:
            self.close_connection = True

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[Exchange], None]) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answer = answer
        self.seen: list[str] = []
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@dataclass
class Servers:
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, answer: Callable[[Exchange], None]) -> Server:
        server = Server(answer)
        self.stack.callback(server.server_close)
        self.stack.callback(server.shutdown)
        return server


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers()
    with found.stack:
        yield found


def test_a_redirect_is_not_followed(project: Project, container: Container, servers: Servers) -> None:
    elsewhere = servers.start(lambda exchange: exchange.reply(200, b""))
    server = servers.start(lambda exchange: exchange.reply(307, b"", Location=f"{elsewhere.url}{exchange.path}"))
    project.configure(container, url=server.url, sas=container.sas(), key=False)
    (project.root / "data").mkdir()
    (project.root / "data" / "a").write_text("x")
    for words in (("ls", "data"), ("d", "data"), ("u", "data")):
        done = project.run(*words)
        assert (done.code, "answered 307" in done.err) == (1, True), str(done)
    assert server.seen
    assert elsewhere.seen == []


_LEVELS = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 20}">' for number in range(1, 12))
_BOMB = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY l0 "ha">{_LEVELS}]><EnumerationResults>&l11;</EnumerationResults>'
_FILE = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY f SYSTEM "file:///etc/passwd">]><EnumerationResults><Blobs><Blob>\
<Name>d/&f;</Name></Blob></Blobs></EnumerationResults>'


@pytest.mark.parametrize("body", [_BOMB, _FILE])
def test_entities_of_a_listing_are_not_expanded(
    body: str, project: Project, container: Container, servers: Servers
) -> None:
    server = servers.start(lambda exchange: exchange.reply(200, body.encode()))
    project.configure(container, url=server.url)
    done = project.run("ls", "data")
    assert (done.code, "cannot parse the listing" in done.err) == (1, True), str(done)
    assert "root:" not in done.out + done.err


def _endless(exchange: Exchange) -> None:
    number = exchange.path.rpartition("marker=m")[2].partition("&")[0]
    following = int(number) + 1 if number.isdigit() else 0
    body = f"<EnumerationResults><Blobs/><NextMarker>m{following}</NextMarker></EnumerationResults>"
    exchange.reply(200, body.encode())


def _drop_by_drop(exchange: Exchange) -> None:
    exchange.send_response(200)
    exchange.send_header("Content-Length", "1000000")
    exchange.end_headers()
    while True:
        exchange.wfile.write(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("answer", [_endless, _drop_by_drop])
def test_a_command_that_waits_for_a_server_ends_when_it_is_told_to(
    answer: Callable[[Exchange], None], project: Project, container: Container, servers: Servers
) -> None:
    server = servers.start(answer)
    project.configure(container, url=server.url)
    process = project.start("ls", "data")
    assert wait_until(lambda: server.seen, seconds=60)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    # By itself it would not end for hours.
    done = project.finish(process, seconds=60)
    assert (done.code, "interrupted" in done.err) == (130, True), str(done)
