"""``kubectl exec``: a command in a running container over a WebSocket (``v5.channel.k8s.io``, and ``v4``).

The first byte of a message is its channel. https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/4006-transition-spdy-to-websockets
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import pty
import select
import ssl
import struct
import subprocess
import termios
from collections.abc import Iterator
from typing import Any

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_BINARY, _BYE, _PING, _PONG = 2, 8, 9, 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def accept_key(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _MAGIC).digest()).decode()


class Session:
    """One command; ``run`` copies its streams until it ends or the client disconnects."""

    def __init__(self, connection: ssl.SSLSocket, argv: list[str], *, stdin: bool, tty: bool) -> None:
        self._connection, self._buffer = connection, b""
        self._terminal: int | None = None
        given = subprocess.PIPE if stdin else subprocess.DEVNULL
        if tty:
            self._terminal, inner = pty.openpty()
            self._process = subprocess.Popen(argv, stdin=inner, stdout=inner, stderr=inner)
            os.close(inner)
            self._outputs = {self._terminal: STDOUT}
            self._input: int | None = self._terminal
        else:
            out = subprocess.PIPE
            self._process = subprocess.Popen(argv, stdin=given, stdout=out, stderr=out, start_new_session=True)
            assert self._process.stdout and self._process.stderr
            self._outputs = {self._process.stdout.fileno(): STDOUT, self._process.stderr.fileno(): STDERR}
            self._input = self._process.stdin.fileno() if self._process.stdin else None

    def run(self) -> None:
        here = True
        try:
            while here and self._outputs:
                waiting: list[Any] = [self._connection, *self._outputs]
                ready = [self._connection] if self._connection.pending() else select.select(waiting, [], [], 1.0)[0]
                for each in ready:
                    if each is self._connection:
                        here = self._receive()
                    elif isinstance(each, int):
                        self._forward(each)
        except OSError:
            here = False  # the client has gone
        self._end(here)

    def _end(self, here: bool) -> None:
        if not here:
            self._process.kill()
        code = self._process.wait()
        if here:
            self._send(ERROR, json.dumps(_status(code)).encode())
            self._frame(_BYE, struct.pack(">H", 1000))
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        if self._terminal is not None:
            os.close(self._terminal)

    def _forward(self, source: int) -> None:
        try:
            data = os.read(source, 32_768)
        except OSError:
            data = b""  # a terminal whose last user has gone
        if data:
            self._send(self._outputs[source], data)
        else:
            del self._outputs[source]

    def _receive(self) -> bool:
        data = self._connection.recv(65_536)
        if not data:
            return False
        self._buffer += data
        for kind, message in self._messages():
            if kind == _BYE:
                return False
            if kind == _PING:
                self._frame(_PONG, message)
            elif message:
                self._take(message[0], message[1:])
        return True

    def _take(self, channel: int, data: bytes) -> None:
        if channel == STDIN and self._input is not None and data:
            try:
                os.write(self._input, data)
            except OSError:
                pass  # the command has closed it
        elif channel == RESIZE and self._terminal is not None:
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)
        elif channel == CLOSE and data[:1] == bytes([STDIN]) and self._process.stdin:
            self._process.stdin.close()
            self._input = None

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        """The complete frames in the buffer, unmasked."""
        while len(self._buffer) >= 6:
            size, at = self._buffer[1] & 127, 2
            if size >= 126:
                wide = 2 if size == 126 else 8
                size, at = int.from_bytes(self._buffer[2 : 2 + wide], "big"), 2 + wide
            if len(self._buffer) < at + 4 + size:
                return
            mask, body = self._buffer[at : at + 4], self._buffer[at + 4 : at + 4 + size]
            kind = self._buffer[0] & 15
            self._buffer = self._buffer[at + 4 + size :]
            yield kind, bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))

    def _send(self, channel: int, data: bytes) -> None:
        self._frame(_BINARY, bytes([channel]) + data)

    def _frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        head = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
        self._connection.sendall(
            bytes([128 | kind]) + (head if size < 65_536 else b"\x7f" + struct.pack(">Q", size)) + data
        )


def _status(code: int) -> dict[str, Any]:
    """The final message of the error channel."""
    found: dict[str, Any] = {"metadata": {}, "status": "Success" if code == 0 else "Failure"}
    if code:
        found |= {"message": f"command terminated with non-zero exit code: exit status {code}"}
        found |= {"reason": "NonZeroExitCode"}
        found |= {"details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
    return found
