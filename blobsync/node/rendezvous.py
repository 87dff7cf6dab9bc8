"""Membership of an elastic job's nodes: node 0 listens, and each other node asks it four times a second what holds.

The answer is whether node 0's command runs (and which start of it), or that the job is over. A node that no longer asks
is lost, and so is node 0 for a node that gets no answer. Lines of text:

    RUN_ID NODE here | RUN_ID NODE done      from a node; done: its outputs are uploaded
    runs TOKEN | waits | over CODE      node 0's answer

Nothing secret is sent, and anything else that arrives closes the connection. The network between the nodes has to
allow this port as it does that of the rendezvous.
"""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from blobsync.jobspec.spec import FIRST_MASTER_PORT
from blobsync.node.ranks import NotReadyError

# After so long without a line, the other side is lost.
SILENCE_SECONDS = 10.0
_ASK_SECONDS = 0.25
# How long the end of listening takes at most.
_CLOSE_SECONDS = 0.1
_CONNECT_SECONDS = 5.0
# Connections of a previous process may keep the port for a while.
BIND_SECONDS = 30.0
_LINE_BYTES = 300
_APART = 5_000
_ASKED = re.compile(r"([A-Za-z0-9_-]{1,128}) ([0-9]{1,6}) (here|done)\n")
_ANSWERED = re.compile(r"(?:runs ([0-9a-f]{1,64})|waits|over ([0-9]{1,3}))\n")


def membership_port(rendezvous: int) -> int:
    """The port for membership, far from the rendezvous's so that it is not that of the next job, one higher."""
    return rendezvous + (-_APART if rendezvous >= FIRST_MASTER_PORT else _APART)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128


class RendezvousServer:
    """Node 0's side: listens until closed. Raises ``NotReadyError`` if the port is in use."""

    def __init__(self, run_id: str, port: int, most: int, *, bind_seconds: float = BIND_SECONDS) -> None:
        """``most`` is the number of nodes at most; a port in use is retried for ``bind_seconds``."""
        self._run_id, self._most = run_id, most
        self._asked_at: dict[int, float] = {}
        self._done: set[int] = set()
        self._answer = "waits"
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = self._listening(port, bind_seconds)
        threading.Thread(target=self._listener.serve_forever, args=(_CLOSE_SECONDS,), daemon=True).start()

    @property
    def present(self) -> frozenset[int]:
        """The other nodes that have asked a moment ago, and have not finished."""
        with self._lock:
            asked = {node for node, at in self._asked_at.items() if time.monotonic() - at < SILENCE_SECONDS}
            return frozenset(asked - self._done)

    def announce(self, answer: str) -> None:
        """What all nodes are answered from now on."""
        self._answer = answer

    def close(self) -> None:
        """Close the port, and each connection at its next line."""
        self._is_closed = True
        self._listener.shutdown()
        self._listener.server_close()

    def _listening(self, port: int, seconds: float) -> _Listener:
        server, until = self, time.monotonic() + seconds

        class Asking(socketserver.StreamRequestHandler):
            timeout = SILENCE_SECONDS

            def handle(self) -> None:
                with suppress(OSError):
                    while answer := server._answer_to(self.rfile.readline(_LINE_BYTES)):
                        self.wfile.write(f"{answer}\n".encode())

        while True:
            try:
                return _Listener(("", port), Asking)
            except OSError as error:
                if time.monotonic() >= until:
                    raise NotReadyError(
                        f"port {port}, where the job's nodes meet, cannot be used: {error.strerror}",
                        hint="submit it again: another job gets another port",
                    ) from error
            time.sleep(1)

    def _answer_to(self, line: bytes) -> str:
        """The answer; empty to whoever is no node of this job."""
        match = _ASKED.fullmatch(line.decode("ascii", "replace"))
        if self._is_closed or not match or match[1] != self._run_id or not 0 < int(match[2]) < self._most:
            return ""
        with self._lock:
            self._asked_at[int(match[2])] = time.monotonic()
            (self._done.add if match[3] == "done" else self._done.discard)(int(match[2]))
        return self._answer


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
        self._name = f"{run_id} {node}"
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
                connection.settimeout(SILENCE_SECONDS)
                self._ask(connection)
            # The job's end is final.
            self._state = FirstNodeState(over=self._state.over)
            self._leaving.wait(_ASK_SECONDS)

    def _ask(self, connection: socket.socket) -> None:
        """Ask until this node leaves, or node 0 gives no answer of ours."""
        is_done = False
        with connection.makefile("rb") as answers:
            while not is_done:
                is_done = self._leaving.is_set()
                connection.sendall(f"{self._name} {'done' if is_done else 'here'}\n".encode())
                match = _ANSWERED.fullmatch(answers.readline(_LINE_BYTES).decode("ascii", "replace"))
                if not match:
                    return
                self._state = FirstNodeState(match[1] or "", int(match[2]) if match[2] else None)
                self._leaving.wait(_ASK_SECONDS)
