"""Starts, restarts and ends the command of an elastic job on its nodes.

torchrun's rendezvous is on node 0. When that is lost, the torchrun of each other node ends within two seconds; it is
restarted there when node 0 is back. Node 0 starts its command once enough nodes are ready, so that torchrun does not
wait for nodes that still download, and ends when the others have uploaded their outputs.

Before a command starts for another time, the last checkpoint comes to its node: that of the node's own start is old.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from blobsync.base.formatting import count_text
from blobsync.node.job import NodeJob
from blobsync.node.processes import kill_strays
from blobsync.node.ranks import NotReadyError, Ranks, master_address, master_port
from blobsync.node.rendezvous import (
    SILENCE_SECONDS,
    FirstNodeState,
    RendezvousClient,
    RendezvousServer,
    membership_port,
)
from blobsync.node.stopping import HeldSignals, run_once, stay

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
