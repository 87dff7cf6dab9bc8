"""An elastic job on this machine: nodes started and stopped in histories of requests, losses and time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.backends.local.elastic_nodes import (
    FIRST_PAUSE_SECONDS,
    LOST_TIMES,
    FleetNode,
    Steps,
    after_node,
    next_steps,
    shown_nodes,
)

RUNS = FleetNode(starts=1, runs=True)
LEAVES = FleetNode(starts=1, runs=True, leaving=True)
KILLED = -9


@pytest.mark.parametrize(
    ("nodes", "wanted", "steps"),
    [
        ({}, 3, Steps(start=(0, 1, 2))),
        ({0: RUNS}, 3, Steps(start=(1, 2))),
        ({0: RUNS, 1: RUNS, 2: RUNS}, 3, Steps()),
        # The highest are stopped first, and node 0 stays.
        ({0: RUNS, 1: RUNS, 2: RUNS}, 1, Steps(end=(2, 1))),
        # A stopping node keeps its number until its end, whatever is requested meanwhile.
        ({0: RUNS, 1: LEAVES}, 2, Steps(end=(1,))),
        ({0: RUNS, 1: FleetNode(starts=1)}, 2, Steps(start=(1,))),
        # One that ended by itself stays ended; the job goes on.
        ({0: RUNS, 1: FleetNode(starts=1, code=0)}, 2, Steps()),
        ({0: RUNS, 1: FleetNode(starts=1, code=1)}, 2, Steps()),
        ({0: RUNS, 1: FleetNode(starts=1, code=72)}, 2, Steps()),
        # A lost node is restarted after its pause.
        ({0: RUNS, 1: FleetNode(1, 1, code=KILLED, again_at=9.0)}, 2, Steps()),
        ({0: RUNS, 1: FleetNode(1, 1, code=KILLED, again_at=5.0)}, 2, Steps(start=(1,))),
        ({0: FleetNode(1, 1, code=KILLED, again_at=5.0), 1: RUNS}, 2, Steps(start=(0,))),
        ({0: RUNS, 1: FleetNode(9, LOST_TIMES + 1, code=KILLED)}, 2, Steps()),
        # The job ends with node 0; another node's lost outputs count as the job's, too.
        ({0: FleetNode(1, code=0), 1: FleetNode(1, code=73, unsaved=True)}, 2, Steps(over=73)),
        ({0: FleetNode(1, code=5), 1: FleetNode(1, code=73, unsaved=True)}, 2, Steps(over=5)),
        ({0: FleetNode(1, code=0), 1: RUNS}, 2, Steps(end=(1,), over=0)),
        ({0: FleetNode(1, code=7), 1: RUNS, 2: LEAVES}, 3, Steps(end=(2, 1), over=7)),
        ({0: FleetNode(9, LOST_TIMES + 1, code=KILLED), 1: RUNS}, 2, Steps(end=(1,), over=137)),
    ],
)
def test_what_is_done_follows_from_the_nodes_and_from_what_is_wanted(
    nodes: dict[int, FleetNode], wanted: int, steps: Steps
) -> None:
    assert next_steps(nodes, wanted, 5.0) == steps


def test_a_node_that_was_lost_waits_twice_as_long_each_time() -> None:
    node, pauses = RUNS, []
    for _ in range(3):
        node = after_node(node, KILLED, 10.0)
        pauses.append(node.again_at - 10.0)
    assert pauses == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]


def test_a_node_that_left_when_it_was_asked_to_can_come_again() -> None:
    assert after_node(LEAVES, 143, 1.0) == FleetNode(starts=1)
    assert after_node(LEAVES, KILLED, 1.0).lost == 0
    assert after_node(LEAVES, 73, 1.0) == FleetNode(starts=1, unsaved=True)


class History:
    """Simulates a machine: a node that is asked to stop ends some time later."""

    def __init__(self) -> None:
        self.nodes: dict[int, FleetNode] = {}
        self.now = 0.0
        self.over: int | None = None

    def look(self, wanted: int) -> None:
        self.now += 1.0
        steps = next_steps(self.nodes, wanted, self.now)
        assert list(steps.end) == sorted(steps.end, reverse=True)
        assert self.over is None or steps.over in (self.over, 73), "a job that is over stays so"
        self.over = steps.over
        if self.over is None:
            assert 0 not in steps.end, "node 0 goes only with the job"
        else:
            assert not steps.start
        for number in steps.end:
            node = self.nodes[number]
            assert node.runs
            self.nodes[number] = replace(node, leaving=True)
        for number in steps.start:
            node = self.nodes.get(number, FleetNode())
            assert number < wanted and not node.runs
            self.nodes[number] = replace(node, starts=node.starts + 1, runs=True, code=None)

    def end(self, number: int, code: int) -> None:
        node = self.nodes.get(number)
        if node and node.runs:
            self.nodes[number] = after_node(node, code, self.now)

    def settle(self, wanted: int) -> None:
        """Run without further requests until all stopping nodes have ended."""
        for _ in range(40):
            self.look(wanted)
            for number in [number for number, node in self.nodes.items() if node.leaving]:
                self.end(number, 143)


WANTED = st.integers(1, 6)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), WANTED, st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([0, 1, 72, 73, 143, -9, -15])),
        st.tuples(st.just("look"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(WANTED, EVENTS)
def test_whatever_happens_the_job_comes_to_the_size_that_was_asked_for_last(
    first: int, events: list[tuple[str, int, int]]
) -> None:
    history, wanted = History(), first
    history.look(wanted)
    for what, number, code in events:
        if what == "scale":
            wanted = number
        elif what == "end":
            history.end(number, code)
        history.look(wanted)
    history.settle(wanted)
    running = shown_nodes(history.nodes)
    if history.over is not None:
        assert not running
        return
    gone = [number for number, node in history.nodes.items() if node.code is not None]
    assert 0 in running
    assert running == [number for number in range(wanted) if number not in gone]


@settings(max_examples=200)
@given(st.lists(WANTED, min_size=1, max_size=30))
def test_a_scale_during_a_scale_is_safe(requests: list[int]) -> None:
    history = History()
    for wanted in requests:
        history.look(wanted)
    history.settle(requests[-1])
    assert shown_nodes(history.nodes) == list(range(requests[-1]))
    assert history.nodes[0].starts == 1, "node 0 was never ended"
