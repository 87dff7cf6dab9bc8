"""Where the nodes of an elastic job know of each other: node 0 listens, each other node keeps a connection to it.

A connection that breaks tells a node at once that the other one is gone; what node 0 says tells whether its command
runs (and which start of it that is), and whether the job is over. Lines of text, in both directions:

    hello RUN_ID NODE        from a node, first
    done                     from a node: its outputs are uploaded
    beat                     from both, so that a machine without power is noticed
    runs TOKEN | waits | over CODE      from node 0, at the beginning and at each change

Nothing secret is said, and nothing that arrives is used for anything but these four facts. The network between the
nodes has to let this port through as it does that of the rendezvous.
"""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from blobsync.jobspec.spec import FIRST_MASTER_PORT
from blobsync.node.ranks import NotReadyError

BEAT_SECONDS = 2.0
# Longer than that without a word, the other side is gone.
SILENCE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
# A predecessor's connections may hold the port for a moment.
BIND_SECONDS = 30.0
_LINE_BYTES = 300
_APART = 5_000
_FROM_NODE = re.compile(r"hello ([A-Za-z0-9_-]{1,128}) ([0-9]{1,6})|done|beat")
_FROM_FIRST = re.compile(r"runs ([0-9a-f]{1,64})|waits|over ([0-9]{1,3})|beat")


def meeting_port(rendezvous: int) -> int:
    """Beside the port of the rendezvous; far enough that the next job's, one higher, is not taken."""
    return rendezvous + (-_APART if rendezvous >= FIRST_MASTER_PORT else _APART)


class _Line:
    """One connection: whole lines come out of it, and what cannot be sent closes it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_CONNECT_SECONDS)
        self.connection = connection
        self.heard = time.monotonic()
        self._rest = b""

    def read(self) -> list[str]:
        """The lines that have arrived. Raises ``OSError`` at the end, and for what is no line of ours."""
        got = self.connection.recv(4096)
        if not got:
            raise ConnectionError("closed")
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + got).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            raise ConnectionError("not a line")
        return [line[:_LINE_BYTES].decode("ascii", "replace") for line in lines]

    def send(self, text: str) -> None:
        self.connection.sendall(text.encode() + b"\n")

    @property
    def is_silent(self) -> bool:
        return time.monotonic() - self.heard > SILENCE_SECONDS


class Rendezvous:
    """Node 0's side. Listens until closed. Raises ``NotReadyError`` where the port is taken."""

    def __init__(self, run_id: str, port: int, most: int, *, bind_seconds: float = BIND_SECONDS) -> None:
        """``most`` nodes may come; for ``bind_seconds`` somebody else may have the port."""
        self._run_id, self._most = run_id, most
        self._listening = _listen(port, bind_seconds)
        self._lines: dict[int, _Line] = {}
        self._done: set[int] = set()
        self._lost: dict[int, float] = {}
        self._says = "waits"
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._beat_at = 0.0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def present(self) -> frozenset[int]:
        """The other nodes that are here, or were a moment ago, and have not finished."""
        with self._lock:
            missed = {node for node, since in self._lost.items() if time.monotonic() - since < SILENCE_SECONDS}
            return frozenset(self._lines.keys() | missed) - self._done

    def say(self, text: str) -> None:
        """Tell all nodes, now and when they come."""
        with self._lock:
            self._says = text
            for line in list(self._lines.values()):
                self._send(line, text)

    def close(self) -> None:
        """Let go of all nodes, and of the port."""
        self._closed.set()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._closed.is_set():
                for key, _ in self._selector.select(_POLL_SECONDS):
                    self._look_at(key)
                if time.monotonic() - self._beat_at > BEAT_SECONDS:
                    self._beat()
        finally:
            for key in list(self._selector.get_map().values()):
                _socket_of(key).close()
            self._selector.close()

    def _look_at(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            with suppress(OSError):
                connection, _ = self._listening.accept()
                self._selector.register(connection, selectors.EVENT_READ, _Line(connection))
            return
        line: _Line = key.data
        try:
            for text in line.read():
                self._hear(line, text)
        except OSError:
            self._drop(line)

    def _hear(self, line: _Line, text: str) -> None:
        match = _FROM_NODE.fullmatch(text)
        if not match:
            raise ConnectionError("not a word of ours")
        with self._lock:
            node = next((number for number, known in self._lines.items() if known is line), 0)
            if match[1]:
                node = int(match[2])
                if match[1] != self._run_id or not 0 < node < self._most:
                    raise ConnectionError("not a node of this job")
                self._lines[node] = line
                self._lost.pop(node, None)
                self._done.discard(node)
                self._send(line, self._says)
            elif text == "done" and node:
                self._done.add(node)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        with self._lock:
            for line in list(self._lines.values()):
                self._send(line, "beat")
        lines = [key.data for key in self._selector.get_map().values() if key.data is not None]
        for line in lines:
            if line.is_silent:
                self._drop(line)

    def _send(self, line: _Line, text: str) -> None:
        try:
            line.send(text)
        except OSError:
            # The end of the connection is seen at the next look.
            self._forget(line)

    def _drop(self, line: _Line) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()
        with self._lock:
            self._forget(line)

    def _forget(self, line: _Line) -> None:
        for node in [node for node, known in self._lines.items() if known is line]:
            del self._lines[node]
            self._lost[node] = time.monotonic()


@dataclass(frozen=True, slots=True)
class News:
    """What a node knows of node 0.

    ``start`` names the start of its command that runs, empty while none does or there is no contact; ``over`` is the
    code that the job ended with, None before.
    """

    start: str = ""
    over: int | None = None


class Contact:
    """Another node's side: keeps a connection to node 0, makes a new one when it breaks, and knows the news."""

    def __init__(self, run_id: str, node: int, address: str, port: int) -> None:
        self._hello = f"hello {run_id} {node}"
        self._place = (address, port)
        self._news = News()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    @property
    def news(self) -> News:
        """The last that is known."""
        return self._news

    def leave(self) -> None:
        """Tell node 0 that this node has finished, if it can be told."""
        self._leaving.set()
        self._thread.join(SILENCE_SECONDS)

    def _keep(self) -> None:
        while not self._leaving.is_set():
            with suppress(OSError), socket.create_connection(self._place, _CONNECT_SECONDS) as connection:
                self._listen(_Line(connection))
            # What the job ended with stays true.
            self._news = News(over=self._news.over)
            self._leaving.wait(_POLL_SECONDS)

    def _listen(self, line: _Line) -> None:
        line.send(self._hello)
        beat_at = time.monotonic()
        for text in self._texts(line):
            match = _FROM_FIRST.fullmatch(text)
            if text and not match:
                raise ConnectionError("not a word of ours")
            if match and text != "beat":
                self._news = News(match[1] or "", int(match[2]) if match[2] else None)
            if self._leaving.is_set():
                line.send("done")
                return
            if time.monotonic() - beat_at > BEAT_SECONDS:
                beat_at = time.monotonic()
                line.send("beat")

    def _texts(self, line: _Line) -> Iterator[str]:
        """The lines as they come, and an empty one from time to time."""
        line.connection.settimeout(_POLL_SECONDS)
        while not line.is_silent:
            try:
                yield from line.read()
            except TimeoutError:
                pass
            yield ""


def _listen(port: int, seconds: float) -> socket.socket:
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_server(("", port), backlog=128)
        except OSError as error:
            if time.monotonic() >= until:
                raise NotReadyError(
                    f"port {port}, where the job's nodes meet, cannot be used: {error.strerror}",
                    hint="submit it again: another job gets another port",
                ) from error
        time.sleep(1)


def _socket_of(key: selectors.SelectorKey) -> socket.socket:
    found = key.fileobj
    assert isinstance(found, socket.socket)
    return found
