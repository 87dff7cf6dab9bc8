"""Membership of an elastic job's nodes: node 0 listens, each other node keeps a connection to it.

A broken connection shows at once that the other node is lost. Node 0 sends whether its command runs (and which start
of it), and whether the job is over. Lines of text, in both directions:

    hello RUN_ID NODE        from a node, first
    done                     from a node: its outputs are uploaded
    beat                     from both, so that a machine that lost power is noticed
    runs TOKEN | waits | over CODE      from node 0, at first and at each change

Nothing secret is sent, and anything else that arrives closes the connection. The network between the nodes has to
allow this port as it does that of the rendezvous.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from blobsync.jobspec.spec import FIRST_MASTER_PORT
from blobsync.node.ranks import NotReadyError

BEAT_SECONDS = 2.0
# After so long without a line, the other side is lost.
SILENCE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
# Connections of a previous process may keep the port for a while.
BIND_SECONDS = 30.0
_LINE_BYTES = 300
_APART = 5_000
_FROM_NODE = re.compile(r"hello ([A-Za-z0-9_-]{1,128}) ([0-9]{1,6})|done|beat")
_FROM_FIRST = re.compile(r"runs ([0-9a-f]{1,64})|waits|over ([0-9]{1,3})|beat")


def membership_port(rendezvous: int) -> int:
    """The port for membership, far from the rendezvous's so that it is not that of the next job, one higher."""
    return rendezvous + (-_APART if rendezvous >= FIRST_MASTER_PORT else _APART)


class _Connection:
    """A connection that sends and receives lines."""

    def __init__(self, connection: socket.socket, wait: float) -> None:
        """``wait`` is how long to wait for lines at a time, in seconds."""
        connection.settimeout(wait)
        self._connection = connection

    def send(self, text: str) -> None:
        self._connection.sendall(text.encode() + b"\n")

    def received(self) -> Iterator[str]:
        """The lines as they arrive, and an empty one after each wait, until the other side is silent. Tells it
        meanwhile that this side lives. Raises ``OSError`` at the end, and for a line that is too long."""
        rest, heard_at = b"", time.monotonic()
        beat_at = heard_at
        while (now := time.monotonic()) - heard_at < SILENCE_SECONDS:
            if now - beat_at > BEAT_SECONDS:
                beat_at = now
                self.send("beat")
            with suppress(TimeoutError):
                got = self._connection.recv(4096)
                if not got:
                    raise ConnectionError("closed")
                heard_at = time.monotonic()
                *lines, rest = (rest + got).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    raise ConnectionError("not a line")
                yield from (line[:_LINE_BYTES].decode("ascii", "replace") for line in lines)
            yield ""

    def end(self) -> None:
        """End it from another thread than the one that receives."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class RendezvousServer:
    """Node 0's side: listens until closed. Raises ``NotReadyError`` if the port is in use."""

    def __init__(self, run_id: str, port: int, most: int, *, bind_seconds: float = BIND_SECONDS) -> None:
        """At most ``most`` nodes connect; a port in use is retried for ``bind_seconds``."""
        self._run_id, self._most = run_id, most
        self._listening = _listen(port, bind_seconds)
        self._listening.settimeout(_POLL_SECONDS)
        self._peers: dict[int, _Connection] = {}
        self._done: set[int] = set()
        self._lost: dict[int, float] = {}
        self._state = "waits"
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def present(self) -> frozenset[int]:
        """The other nodes that are connected, or were a moment ago, and have not finished."""
        with self._lock:
            missed = {node for node, since in self._lost.items() if time.monotonic() - since < SILENCE_SECONDS}
            return frozenset(self._peers.keys() | missed) - self._done

    def broadcast(self, text: str) -> None:
        """Send a line to all nodes, now and whenever one connects."""
        with self._lock:
            self._state = text
            for peer in list(self._peers.values()):
                self._send(peer, text)

    def close(self) -> None:
        """Close all connections and the port."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            for peer in self._peers.values():
                peer.end()

    def _accept(self) -> None:
        with self._listening:
            while not self._closed.is_set():
                # There may be none for the moment, or too many for this machine.
                with suppress(OSError, RuntimeError):
                    connection, _ = self._listening.accept()
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        peer = _Connection(connection, BEAT_SECONDS)
        with suppress(OSError), connection:
            for text in peer.received():
                if self._closed.is_set():
                    break
                if text:
                    self._handle_line(peer, text)
        with self._lock:
            self._forget(peer)

    def _handle_line(self, peer: _Connection, text: str) -> None:
        match = _FROM_NODE.fullmatch(text)
        if not match:
            raise ConnectionError("not a word of ours")
        with self._lock:
            node = next((number for number, known in self._peers.items() if known is peer), 0)
            if match[1]:
                node = int(match[2])
                if match[1] != self._run_id or not 0 < node < self._most:
                    raise ConnectionError("not a node of this job")
                self._peers[node] = peer
                self._lost.pop(node, None)
                self._done.discard(node)
                self._send(peer, self._state)
            elif text == "done" and node:
                self._done.add(node)

    def _send(self, peer: _Connection, text: str) -> None:
        try:
            peer.send(text)
        except OSError:
            # The next read sees the end of the connection.
            self._forget(peer)

    def _forget(self, peer: _Connection) -> None:
        for node in [node for node, known in self._peers.items() if known is peer]:
            del self._peers[node]
            self._lost[node] = time.monotonic()


@dataclass(frozen=True, slots=True)
class FirstNodeState:
    """The state of node 0, as another node knows it.

    ``start`` is the token of its running command, empty while none runs or there is no connection; ``over`` is the
    exit code of the job, None before its end.
    """

    start: str = ""
    over: int | None = None


class RendezvousClient:
    """Another node's side: keeps a connection to node 0, and connects again when it breaks."""

    def __init__(self, run_id: str, node: int, address: str, port: int) -> None:
        self._hello = f"hello {run_id} {node}"
        self._place = (address, port)
        self._state = FirstNodeState()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def state(self) -> FirstNodeState:
        """The last known state."""
        return self._state

    def leave(self) -> None:
        """Send node 0 that this node has finished, if it can be reached."""
        self._leaving.set()
        self._thread.join(SILENCE_SECONDS)

    def _run(self) -> None:
        while not self._leaving.is_set():
            with suppress(OSError), socket.create_connection(self._place, _CONNECT_SECONDS) as connection:
                self._listen(_Connection(connection, _POLL_SECONDS))
            # The job's end is final.
            self._state = FirstNodeState(over=self._state.over)
            self._leaving.wait(_POLL_SECONDS)

    def _listen(self, peer: _Connection) -> None:
        peer.send(self._hello)
        for text in peer.received():
            match = _FROM_FIRST.fullmatch(text)
            if text and not match:
                raise ConnectionError("not a word of ours")
            if match and text != "beat":
                self._state = FirstNodeState(match[1] or "", int(match[2]) if match[2] else None)
            if self._leaving.is_set():
                peer.send("done")
                return


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
