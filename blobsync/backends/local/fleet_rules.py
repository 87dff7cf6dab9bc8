"""Which nodes of an elastic job on this machine are started and ended, from how they are and how many there are to be.

Pure. The rules are those of an Indexed Job of Kubernetes: the highest numbers go first and node 0 stays; a node that is
asked to end keeps its number until it has ended; a node that is lost comes back under its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blobsync.jobspec.spec import OUTPUT_FAILED_EXIT

# A node that was lost is started again so often, each time after twice as long (seconds).
LOST_TIMES = 3
FIRST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node: how often it was started and lost, whether it runs, and whether it was asked to end.

    ``code`` is what it ended with, negative after a signal as ``subprocess`` says it; None before. ``again_at`` is when
    one that was lost is started again, ``unsaved`` whether it could not upload its outputs once.
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
    """What is to be done: nodes to start, nodes to ask to end, and the job's code when it is over."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    over: int | None = None


def next_steps(nodes: Mapping[int, FleetNode], wanted: int, now: float) -> Steps:
    """What follows from the nodes as they are, when there are to be ``wanted``."""
    first = nodes.get(0, FleetNode())
    if first.code is not None and not first.runs and not _is_to_return(first):
        code = _as_in_a_shell(first.code)
        lost_output = not code and any(node.unsaved for node in nodes.values())
        return Steps(end=_leaving(nodes, 0), over=OUTPUT_FAILED_EXIT if lost_output else code)
    start = [number for number in range(wanted) if _is_startable(nodes.get(number, FleetNode()), now)]
    return Steps(tuple(start), _leaving(nodes, wanted))


def after_node(node: FleetNode, code: int, now: float) -> FleetNode:
    """A node that has just ended with ``code``."""
    node = replace(node, unsaved=node.unsaved or code == OUTPUT_FAILED_EXIT)
    if node.leaving:
        # It did as it was told, and may be asked for again.
        return replace(node, runs=False, leaving=False, code=None)
    ended = replace(node, runs=False, code=code)
    if not is_lost(code):
        return ended
    return replace(ended, lost=node.lost + 1, again_at=now + FIRST_PAUSE_SECONDS * 2**node.lost)


def is_lost(code: int) -> bool:
    """Whether a node's runner was killed. What it ends with itself says how its command did."""
    return code < 0


def _is_startable(node: FleetNode, now: float) -> bool:
    if node.runs:
        return False
    return node.code is None or (_is_to_return(node) and now >= node.again_at)


def _is_to_return(node: FleetNode) -> bool:
    return node.code is not None and is_lost(node.code) and node.lost <= LOST_TIMES


def _leaving(nodes: Mapping[int, FleetNode], wanted: int) -> tuple[int, ...]:
    """The highest first; those that were asked already and still run are among them."""
    running = [number for number, node in nodes.items() if node.runs and (node.leaving or number >= wanted)]
    return tuple(sorted(running, reverse=True))


def _as_in_a_shell(code: int) -> int:
    return 128 - code if code < 0 else code


def shown_nodes(nodes: Mapping[int, FleetNode]) -> Sequence[int]:
    """Those that run."""
    return sorted(number for number, node in nodes.items() if node.runs)
