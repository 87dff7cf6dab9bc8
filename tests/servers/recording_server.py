"""An upstream server for tests of the proxies: records the raw bytes of requests and sends fixed answers."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

_DEFAULT = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


class RecordingServer:
    """Threads in this process; ``answers`` maps ``METHOD /raw/path``, with a query or for all, to a raw response."""

    def __init__(self, answers: Mapping[str, bytes] | None = None) -> None:
        self.answers = dict(answers or {})
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> RecordingServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # shutdown wakes the thread in accept; close does not.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = stream.readline()
                    if not line:
                        return
                    head += line
                body = _read(stream, _content_length(head))
                self.requests.append(head + body)
                if len(body) < _content_length(head):
                    return
                method, target = head.split(b" ", 2)[:2]
                asked = f"{method.decode()} {target.decode()}"
                answer = self.answers.get(asked) or self.answers.get(asked.split("?")[0], _DEFAULT)
                connection.sendall(answer)
                if b"content-length" not in answer.lower() and b"chunked" not in answer.lower():
                    return


def _read(stream: io.BufferedReader, length: int) -> bytes:
    """Read ``length`` bytes, or fewer if the peer closes the connection."""
    body = b""
    with suppress(OSError):
        while len(body) < length and (data := stream.read1(length - len(body))):
            body += data
    return body


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0
