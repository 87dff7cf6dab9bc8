"""The nodes of an elastic job on this machine: starts them, starts lost ones again, and stops them.

A node is a group of processes with an address on loopback. The rules are those of an Indexed Job of Kubernetes: the
highest numbers are removed first and node 0 stays; a node that is stopping keeps its number until its end; a node that
is lost is restarted under its number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from blobsync.backends.local.children import CANCELED, Children
from blobsync.base.exit_codes import OUTPUT_FAILED_EXIT, shell_code
from blobsync.base.process import RunningProcess
from blobsync.base.records import dataclass
from blobsync.jobspec.spec import NodeChange
from blobsync.jobspec.topology import bounds_of

# How often a lost node is restarted, each time after twice the pause (seconds).
LOST_TIMES = 3
FIRST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node: how often it was started and lost, whether it runs, and whether it was asked to stop.

    ``code`` is its exit code as in ``subprocess``, negative after a signal; None before. ``again_at`` is when a lost
    node is restarted, ``unsaved`` whether an upload of its outputs has failed.
    """

    starts: int = 0
    lost: int = 0
    runs: bool = False
    leaving: bool = False
    code: int | None = None
    again_at: float = 0.0
    unsaved: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """The next steps: nodes to start, nodes to stop, and the job's exit code when it is over."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    over: int | None = None


def next_steps(nodes: Mapping[int, FleetNode], wanted: int, now: float) -> Steps:
    """Decide the next steps; ``wanted`` is the requested number of nodes."""
    first = nodes.get(0, FleetNode())
    if first.code is not None and not first.runs and not _is_to_return(first):
        code = shell_code(first.code)
        lost_output = not code and any(node.unsaved for node in nodes.values())
        return Steps(end=_leaving(nodes, 0), over=OUTPUT_FAILED_EXIT if lost_output else code)
    start = [number for number in range(wanted) if _is_startable(nodes.get(number, FleetNode()), now)]
    return Steps(tuple(start), _leaving(nodes, wanted))


def after_node(node: FleetNode, code: int, now: float) -> FleetNode:
    """The state of a node that has just ended with ``code``."""
    node = replace(node, unsaved=node.unsaved or code == OUTPUT_FAILED_EXIT)
    if node.leaving:
        # It ended as requested, and may be started again.
        return replace(node, runs=False, leaving=False, code=None)
    ended = replace(node, runs=False, code=code)
    if not is_lost(code):
        return ended
    return replace(ended, lost=node.lost + 1, again_at=now + FIRST_PAUSE_SECONDS * 2**node.lost)


def is_lost(code: int) -> bool:
    """Whether a node's runner was killed; otherwise the code is its command's."""
    return code < 0


def _is_startable(node: FleetNode, now: float) -> bool:
    if node.runs:
        return False
    return node.code is None or (_is_to_return(node) and now >= node.again_at)


def _is_to_return(node: FleetNode) -> bool:
    return node.code is not None and is_lost(node.code) and node.lost <= LOST_TIMES


def _leaving(nodes: Mapping[int, FleetNode], wanted: int) -> tuple[int, ...]:
    """The nodes to stop, the highest first, with those that are stopping already."""
    running = [number for number, node in nodes.items() if node.runs and (node.leaving or number >= wanted)]
    return tuple(sorted(running, reverse=True))


def shown_nodes(nodes: Mapping[int, FleetNode]) -> Sequence[int]:
    """The numbers of running nodes."""
    return sorted(number for number, node in nodes.items() if node.runs)


MASTER_ADDRESS = "127.0.0.1"


def address_of(node: int) -> str:
    """The address of a node on this machine. Only Linux has more than one on loopback."""
    return f"127.0.0.{node + 1}" if sys.platform == "linux" else MASTER_ADDRESS


class Fleet(Children):
    """The nodes of one job."""

    def _prepare(self) -> None:
        self._nodes: dict[int, FleetNode] = {}
        self._children: dict[int, RunningProcess] = {}
        self._recorded: tuple[tuple[int, ...], int] | None = None

    @property
    def wanted(self) -> int:
        """The requested number of nodes, within the job's bounds."""
        asked, bounds = self._files.read_wanted(), bounds_of(self._spec)
        return asked if asked is not None and bounds and asked in bounds else self._spec.nodes

    def look(self, *, canceled: bool) -> int | None:
        for number, child in list(self._children.items()):
            code = child.wait(0)
            if code is not None:
                self._has_ended(number, child, code)
        steps = next_steps(self._nodes, self.wanted, self._clock())
        if canceled:
            over = CANCELED if steps.over is None else steps.over
            steps = Steps(end=tuple(sorted(self._children, reverse=True)), over=over)
        for number in steps.end:
            self._nodes[number] = replace(self._nodes[number], leaving=True)
            self._ask_to_stop(number, self._children[number].pid)
        for number in steps.start:
            self._start(number)
        self._record_change()
        return steps.over if not self._children else None

    def _start(self, number: int) -> None:
        node = self._nodes.get(number, FleetNode())
        env = {
            "MASTER_ADDR": MASTER_ADDRESS,
            "BLOBSYNC_ATTEMPT": str(node.starts),
            "PET_LOCAL_ADDR": address_of(number),
        }
        each = self._spec.gpus_per_node
        if self._gpus or not each:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[number * each : (number + 1) * each])
        self._children[number] = self._run(self._files.root_for(self._spec, number), number, env)
        self._nodes[number] = replace(node, starts=node.starts + 1, runs=True, code=None)

    def _has_ended(self, number: int, child: RunningProcess, code: int) -> None:
        self._nodes[number] = after_node(self._nodes[number], code, self._clock())
        del self._children[number]
        self._asked.pop(number, None)
        self._end(number, code, f"node {number} ended with {code}\n{child.stderr_tail()}".rstrip())

    def _record_change(self) -> None:
        now = tuple(shown_nodes(self._nodes)), self.wanted
        if now != self._recorded:
            self._recorded = now
            self._files.add_change(NodeChange(self._clock(), len(now[0]), now[1]), now[0])
