"""TLS before a server of plain http, at 127.0.0.1 and, as a proxy, at names of other hosts."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.tls_azurite import make_certificate


@dataclass(frozen=True)
class TlsFront:
    """``url`` is ``https://127.0.0.1:port``, ``proxy`` what a client that connects to one of the other names takes for
    its proxy; ``certificate`` is the PEM file for clients to trust."""

    url: str
    proxy: str
    certificate: Path


@contextmanager
def tls_front(target: str, *names: str) -> Iterator[TlsFront]:
    """Pass everything on to ``target`` (``http://host:port``), also what is meant for hosts of these ``names``."""
    there = urlsplit(target)
    assert there.hostname and there.port
    address = (there.hostname, there.port)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        certificate, key = make_certificate(Path(folder), *names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    words = (listening.accept()[0], context, address)
                    threading.Thread(target=_serve, args=words, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield TlsFront(f"https://{place}", f"http://{place}", certificate)
        finally:
            # shutdown wakes the thread in accept; close does not.
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    with suppress(OSError), client:
        if client.recv(1, socket.MSG_PEEK) == b"C":
            # CONNECT HOST:PORT, whatever the host.
            while not client.recv(1 << 16).endswith(b"\r\n\r\n"):
                pass
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with context.wrap_socket(client, server_side=True) as inside, socket.create_connection(address) as there:
            back = threading.Thread(target=_pump, args=(there, inside), daemon=True)
            back.start()
            _pump(inside, there)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
