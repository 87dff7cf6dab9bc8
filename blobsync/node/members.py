"""The command of an elastic job on one of its nodes: when it is started, started again, and over.

torchrun's rendezvous is on node 0. When that is lost, the torchrun of each other node ends within two seconds although
nothing is wrong with it; so it is started again there when node 0 is back. Node 0 begins when enough nodes are there,
which spares torchrun waiting for nodes that still download, and ends when the others have uploaded what they have.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from blobsync.node.job import NodeJob
from blobsync.node.processes import end_strays
from blobsync.node.ranks import Ranks, master_address, master_port
from blobsync.node.rendezvous import SILENCE_SECONDS, Contact, News, Rendezvous, meeting_port
from blobsync.node.stopping import HeldSignals, run_once, stay

# How long a node waits for node 0 to come back: another machine may have to start, and images to be pulled.
REJOIN_SECONDS = 900.0
# Node 0 waits so long for the last uploads of the others.
GOODBYE_SECONDS = 900.0
# After a failure while node 0 seems well: as long as it takes to notice that it is not.
_NEWS_SECONDS = SILENCE_SECONDS + 2.0
# A command that somebody kills is started again so often.
_KILLED_TIMES = 3
_POLL_SECONDS = 0.1
_STOPPED = 143

LogOf = Callable[[Ranks], Path | None]


class Next(Enum):
    """What follows the end of a command."""

    END = auto()
    AGAIN = auto()
    WAIT = auto()


def after_end(code: int, began: str, news: News, waited: float) -> Next:
    """What a node other than 0 does when its command has ended with ``code``, ``waited`` seconds ago. Pure.

    ``began`` names the start of node 0's command with which this one was started.
    """
    if code == 0 or news.over is not None:
        return Next.END
    if news.start and news.start != began:
        return Next.AGAIN
    return Next.WAIT if waited < (_NEWS_SECONDS if news.start else REJOIN_SECONDS) else Next.END


def final_code(code: int | None, news: News) -> int:
    """What a node ends with; None: its command never ran. Pure.

    When node 0 succeeded, others that end because it has gone did not fail.
    """
    if code is None or news.over == 0:
        return _STOPPED if news.over is None else news.over
    return code


def was_killed(code: int) -> bool:
    """Whether a signal ended a command. torchrun itself ends with 1 when what it started fails. Pure."""
    return code > 128


class FirstNode:
    """Node 0: its command holds the rendezvous, and its end is the job's."""

    def __init__(self, job: NodeJob, held: HeldSignals) -> None:
        self._job, self._held = job, held
        port = meeting_port(int(master_port(job.spec, job.environ)))
        self._place = Rendezvous(job.spec.run_id, port, job.spec.max_nodes or 1)
        self._parent = os.getppid()

    def run(self, log_of: LogOf, ranks: Ranks) -> int:
        """Start the command once there are enough nodes, and again when it was killed; returns its code."""
        end_strays(self._job)
        if not self._wait_for_enough():
            return _STOPPED
        for left in reversed(range(_KILLED_TIMES + 1)):
            self._place.say(f"runs {secrets.token_hex(8)}")
            code = run_once(self._job, self._held, log_of, [ranks])
            if self._job.stopped or not was_killed(code) or not left:
                break
            self._place.say("waits")
            self._job.say(f"the command was killed ({code}); starting it again, {left - 1} more times at most")
            end_strays(self._job)
        # One that was asked to stop may come back: the job is not over.
        self._place.say("waits" if self._job.stopped else f"over {code}")
        stay(self._job, self._held, code)
        return code

    def leave(self) -> None:
        """Wait for the others' last uploads: where node 0's end is the job's, they are ended then."""
        until = time.monotonic() + GOODBYE_SECONDS
        while (missing := self._place.present) and time.monotonic() < until and not self._job.stopped:
            time.sleep(_POLL_SECONDS)
        if missing and not self._job.stopped:
            names = ", ".join(str(node) for node in sorted(missing))
            self._job.say(f"ending although these nodes have not reported that their outputs are uploaded: {names}")
        end_strays(self._job)
        self._place.close()

    def _wait_for_enough(self) -> bool:
        wanted, told = (self._job.spec.min_nodes or 1) - 1, -1
        self._held.catch_all()
        while (here := len(self._place.present)) < wanted:
            if here != told:
                told = here
                self._job.say(f"waiting for {wanted - here} more nodes before the command starts")
            if is_to_end(self._job, self._held, self._parent):
                return False
            time.sleep(_POLL_SECONDS)
        return True


class LaterNode:
    """Any other node: its command runs while node 0's does."""

    def __init__(self, job: NodeJob, held: HeldSignals) -> None:
        self._job, self._held = job, held
        address = master_address(job.spec, job.environ)
        port = meeting_port(int(master_port(job.spec, job.environ)))
        self._contact = Contact(job.spec.run_id, job.node_rank, address, port)
        self._parent = os.getppid()

    def run(self, log_of: LogOf, ranks: Ranks) -> int:
        """Start the command when node 0's runs, and again when it ended because node 0 was gone; returns its code."""
        end_strays(self._job)
        code, began = None, ""
        while self._is_to_begin(code, began):
            began = self._contact.news.start
            code = run_once(self._job, self._held, log_of, [ranks])
            end_strays(self._job)
            if self._job.stopped:
                break
        final = _stopped(code) if self._job.stopped else final_code(code, self._contact.news)
        stay(self._job, self._held, final)
        return final

    def leave(self) -> None:
        """Tell node 0 that the outputs of this node are uploaded."""
        self._contact.leave()

    def _is_to_begin(self, code: int | None, began: str) -> bool:
        """Wait for node 0's command; False when this node is to end."""
        since, told = time.monotonic(), False
        self._held.catch_all()
        while not is_to_end(self._job, self._held, self._parent):
            news = self._contact.news
            if code is None:
                then = Next.END if news.over is not None else Next.AGAIN if news.start else Next.WAIT
            else:
                then = after_end(code, began, news, time.monotonic() - since)
            if then is not Next.WAIT:
                return then is Next.AGAIN
            if not told and not news.start:
                told = True
                self._job.say(_waiting(code))
            time.sleep(_POLL_SECONDS)
        return False


def _stopped(code: int | None) -> int:
    return _STOPPED if code is None else code


def _waiting(code: int | None) -> str:
    if code is None:
        return "waiting for node 0 before the command starts"
    return f"the command ended with {code} and node 0 is gone; waiting {REJOIN_SECONDS:.0f} s for it to come back"


Member = FirstNode | LaterNode


def member_of(job: NodeJob, held: HeldSignals) -> Member | None:
    """What looks after the command on this node; None for a job of a fixed size. Raises ``NotReadyError``."""
    if not job.spec.is_elastic:
        return None
    return LaterNode(job, held) if job.node_rank else FirstNode(job, held)


def is_to_end(job: NodeJob, held: HeldSignals, parent: int) -> bool:
    """Whether this node was asked to stop while no command ran, or whoever started us has gone."""
    if held.asks_to_end:
        job.asked_to_stop_at = job.asked_to_stop_at or time.monotonic()
        while held.take() is not None:
            pass
    return job.stopped or os.getppid() != parent
