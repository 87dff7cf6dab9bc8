"""Starts, restarts and ends the command of an elastic job on its nodes, and knows which nodes there are.

torchrun's rendezvous is on node 0. When that is lost, the torchrun of each other node ends within two seconds; it is
restarted there when node 0 is back. Node 0 starts its command once enough nodes are ready, so that torchrun does not
wait for nodes that still download, and ends when the others have uploaded their outputs. Before a command starts for
another time, the last checkpoint comes to its node: that of the node's own start is old.

Node 0 listens, and each other node asks it four times a second what holds. The answer is whether node 0's command runs
(and which start of it), or that the job is over. A node that no longer asks is lost, and so is node 0 for a node that
gets no answer. Lines of text:

    RUN_ID NODE here | RUN_ID NODE done      from a node; done: its outputs are uploaded
    runs TOKEN | waits | over CODE      node 0's answer

Nothing secret is sent, and anything else that arrives closes the connection. The network between the nodes has to
allow this port as it does that of the rendezvous.
"""

from __future__ import annotations

import re
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from blobsync.base.formatting import count_text
from blobsync.base.records import dataclass
from blobsync.jobspec.spec import FIRST_MASTER_PORT
from blobsync.node.job import NodeJob
from blobsync.node.processes import HeldSignals, kill_strays, run_once, stay
from blobsync.node.ranks import NotReadyError, Ranks, master_address, master_port

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
    """Another node's side: keeps a connection to node 0, and connects again when it breaks. ``state`` is the last one
    that is known."""

    def __init__(self, run_id: str, node: int, address: str, port: int) -> None:
        self._name = f"{run_id} {node}"
        self._place = (address, port)
        self.state = FirstNodeState()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

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
            self.state = FirstNodeState(over=self.state.over)
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
                self.state = FirstNodeState(match[1] or "", int(match[2]) if match[2] else None)
                self._leaving.wait(_ASK_SECONDS)


# How long a node waits for node 0 to come back: another machine may have to start and pull images.
REJOIN_SECONDS = 900.0
# How long node 0 waits for the last uploads of the others.
GOODBYE_SECONDS = 900.0
# After a failure while node 0 seems to run: the time it takes to notice that it is lost.
_NOTICE_SECONDS = SILENCE_SECONDS + 2.0
# How often a killed command is restarted.
_KILLED_TIMES = 3
_POLL_SECONDS = 0.1
_STOPPED = 143

LogOf = Callable[[Ranks], Path | None]


class Next(Enum):
    """What to do after the command's end."""

    END = auto()
    AGAIN = auto()
    WAIT = auto()


def after_end(code: int | None, began: str, state: FirstNodeState, waited: float) -> Next:
    """Decide what a node other than 0 does ``waited`` seconds after its command ended with ``code``; None: it waits to
    run for the first time, however long that takes. Pure.

    ``began`` is the token of node 0's start for which this command was started.
    """
    if code == 0 or state.over is not None:
        return Next.END
    if state.start and state.start != began:
        return Next.AGAIN
    return Next.WAIT if code is None or waited < (_NOTICE_SECONDS if state.start else REJOIN_SECONDS) else Next.END


def final_code(code: int | None, state: FirstNodeState) -> int:
    """The exit code of a node; ``code`` None: its command never ran. Pure.

    When node 0 succeeded, commands that ended because it left did not fail.
    """
    if code is None or state.over == 0:
        return _STOPPED if state.over is None else state.over
    return code


def was_killed(code: int) -> bool:
    """Whether a signal ended the command; torchrun ends with 1 when its workers fail. Pure."""
    return code > 128


class FirstNode:
    """Node 0: its command has the rendezvous, and its end is the job's."""

    def __init__(self, job: NodeJob, held: HeldSignals, restore: Callable[[], None]) -> None:
        self._job, self._held, self._restore = job, held, restore
        port = membership_port(int(master_port(job.spec, job.environ)))
        self._server = RendezvousServer(job.spec.run_id, port, job.spec.max_nodes or 1)
        job.members = lambda: {0} | self._server.present

    def run(self, log_of: LogOf, ranks: Ranks) -> int:
        """Start the command once there are enough nodes, and again when it was killed; returns its code."""
        kill_strays(self._job)
        if not self._wait_for_enough():
            return _STOPPED
        for left in reversed(range(_KILLED_TIMES + 1)):
            self._server.announce(f"runs {secrets.token_hex(8)}")
            code = run_once(self._job, self._held, log_of, [ranks])
            if self._job.stopped or not was_killed(code) or not left:
                break
            self._server.announce("waits")
            self._job.say(f"the command was killed ({code}); starting it again, {left - 1} more times at most")
            kill_strays(self._job)
            if not _can_start_again(self._job, self._restore):
                break
        # A node that was asked to stop may come back: the job is not over.
        self._server.announce("waits" if self._job.stopped else f"over {code}")
        stay(self._job, self._held, code)
        return code

    def leave(self) -> None:
        """Wait for the others' last uploads, since the job may end with node 0."""
        until = time.monotonic() + GOODBYE_SECONDS
        while (missing := self._server.present) and time.monotonic() < until and not self._job.stopped:
            time.sleep(_POLL_SECONDS)
        if missing and not self._job.stopped:
            names = ", ".join(str(node) for node in sorted(missing))
            self._job.say(f"ending although these nodes have not reported that their outputs are uploaded: {names}")
        kill_strays(self._job)
        self._server.close()

    def _wait_for_enough(self) -> bool:
        wanted, reported = (self._job.spec.min_nodes or 1) - 1, -1
        self._held.catch_all()
        while (here := len(self._server.present)) < wanted:
            if here != reported:
                reported = here
                self._job.say(f"waiting for {count_text(wanted - here, 'more node')} before the command starts")
            if should_end(self._job, self._held):
                return False
            time.sleep(_POLL_SECONDS)
        return True


class LaterNode:
    """Any other node: its command runs while node 0's runs."""

    def __init__(self, job: NodeJob, held: HeldSignals, restore: Callable[[], None]) -> None:
        self._job, self._held, self._restore = job, held, restore
        address = master_address(job.spec, job.environ)
        port = membership_port(int(master_port(job.spec, job.environ)))
        self._client = RendezvousClient(job.spec.run_id, job.node_rank, address, port)

    def run(self, log_of: LogOf, ranks: Ranks) -> int:
        """Start the command when node 0's runs, and again when it ended because node 0 left; returns its code."""
        kill_strays(self._job)
        code, began = None, ""
        while self._wait_to_start(code, began) and (code is None or _can_start_again(self._job, self._restore)):
            began = self._client.state.start
            code = run_once(self._job, self._held, log_of, [ranks])
            kill_strays(self._job)
            if self._job.stopped:
                break
        if not self._job.stopped:
            final = final_code(code, self._client.state)
        else:
            final = _STOPPED if code is None else code
        stay(self._job, self._held, final)
        return final

    def leave(self) -> None:
        """Tell node 0 that the outputs of this node are uploaded."""
        self._client.leave()

    def _wait_to_start(self, code: int | None, began: str) -> bool:
        """Wait for node 0's command; False when this node is to end."""
        since, reported = time.monotonic(), False
        self._held.catch_all()
        while not should_end(self._job, self._held):
            state = self._client.state
            then = after_end(code, began, state, time.monotonic() - since)
            if then is not Next.WAIT:
                return then is Next.AGAIN
            if not reported and not state.start:
                reported = True
                self._job.say(_waiting(code))
            time.sleep(_POLL_SECONDS)
        return False


def _can_start_again(job: NodeJob, restore: Callable[[], None]) -> bool:
    """Bring the last checkpoint; False if that failed, and the command would begin with an old one."""
    try:
        restore()
    except NotReadyError as error:
        job.say(f"the command is not started again: {error}")
        return False
    return True


def _waiting(code: int | None) -> str:
    if code is None:
        return "waiting for node 0 before the command starts"
    return f"the command ended with {code} and node 0 is gone; waiting {REJOIN_SECONDS:.0f} s for it to come back"


Member = FirstNode | LaterNode


def member_of(job: NodeJob, held: HeldSignals, restore: Callable[[], None]) -> Member | None:
    """This node of an elastic job; None for a job of a fixed size. Raises ``NotReadyError``.

    ``restore`` brings the last checkpoint before the command starts for another time; it raises ``NotReadyError``.
    """
    if not job.spec.is_elastic:
        return None
    return LaterNode(job, held, restore) if job.node_rank else FirstNode(job, held, restore)


def should_end(job: NodeJob, held: HeldSignals) -> bool:
    """Whether this node was asked to stop while no command ran, or its parent process has exited."""
    if held.asks_to_end:
        job.asked_to_stop_at = job.asked_to_stop_at or time.monotonic()
        while held.take() is not None:
            pass
    return job.stopped or job.is_orphaned()
