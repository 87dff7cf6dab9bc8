"""Faults of a spread transfer that take longer than a claim lasts: a worker that hangs, and one whose line is cut."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.spread.shared_store import CLAIM_SECONDS
from tests.e2e.conftest import new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.test_spread import fill, nothing_is_left, workers_of
from tests.e2e.test_spread_faults import line, records_told
from tests.e2e.world import Container, Project, hashes, random_files, read_tree, wait_until, write_tree
from tests.servers.fault_proxy import Fault, FaultHandle

__all__ = ["line", "nothing_is_left"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

_FILES = random_files(20261220, 400, [12 << 20] * 3)
_HASHES = hashes(_FILES)
_TWO = ("--nodes", "2")


class Ends:
    """One way of moving ``_FILES``: the command, and the container (None: this disk) that they go to."""

    def __init__(self, word: str, project: Project, new_container: Callable[[str], Container], url: str) -> None:  # noqa: F811
        source, destination = new_container("one"), new_container("two")
        self.project = project
        self.container = None if word == "d" else destination
        if word == "u":
            write_tree(project.data, _FILES)
        else:
            fill(source, _FILES)
        project.configure(source, cluster="from", url=url)
        project.configure(source if word == "d" else destination, url=url)
        copying = ("-f", "from") if word == "copy" else ()
        self.words = ("d" if word == "d" else "u", "data", *copying, *_TWO)

    def demand_exact(self) -> None:
        """Every file, and nothing else: no uncommitted block, no part of a file, no shard."""
        if self.container is None:
            assert read_tree(self.project.data) == _HASHES
            return
        assert self.container.contents("data/") == _HASHES
        assert set(self.container.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}

    def attempts(self) -> set[tuple[str, str]]:
        """Who has begun which shard: its number, and the worker."""
        found = (attempt.partition("~") for attempt in records_told(self.project, self.container))
        return {(shard, worker.partition("-")[0]) for shard, _, worker in found}


@pytest.fixture(params=["u", "d", "copy"])
def ends(
    request: pytest.FixtureRequest,
    project: Project,  # noqa: F811
    new_container: Callable[[str], Container],  # noqa: F811
    line: FaultHandle,
) -> Ends:
    return Ends(request.param, project, new_container, line.url)


def _worker_of(project: Project, node: int) -> int | None:  # noqa: F811
    """The process that works as this node at the moment."""
    for pid in workers_of(project.root):
        if f"\0--node-rank\0{node}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def test_a_worker_that_hangs_loses_its_shard_by_the_services_clock_and_does_no_harm_when_it_wakes_up(
    ends: Ends,
) -> None:
    process = ends.project.start(*ends.words, "--cap-mbps", "40", "--json")
    assert wait_until(lambda: ("0000001", "node1.0") in ends.attempts() or process.poll() is not None, seconds=60)
    victim = _worker_of(ends.project, 1)
    assert victim is not None, str(ends.project.finish(process))
    os.kill(victim, signal.SIGSTOP)
    stopped = time.monotonic()

    def taken_over() -> bool:
        shards = [shard for shard, _ in ends.attempts()]
        return len(shards) > len(set(shards))

    assert wait_until(lambda: taken_over() or process.poll() is not None, seconds=240, pause=0.2)
    lasted = time.monotonic() - stopped
    os.kill(victim, signal.SIGCONT)
    done = ends.project.finish(process, seconds=300)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    ends.demand_exact()
    # It was renewed a quarter of that ago at most.
    assert lasted > CLAIM_SECONDS * 3 / 4


def test_a_worker_whose_line_is_cut_for_more_than_a_minute_leaves_nothing_missing(
    ends: Ends,
    line: FaultHandle,
) -> None:
    process = ends.project.start(*ends.words, "--cap-mbps", "40", "--json")
    assert wait_until(lambda: ends.attempts() or process.poll() is not None, seconds=60)
    until, cut = time.monotonic() + CLAIM_SECONDS * 1.25, None
    while time.monotonic() < until and process.poll() is None:
        # It ends, and is started again: with another process, on the same line.
        if (pid := _worker_of(ends.project, 1)) not in (None, cut):
            cut = pid
            line.inject(Fault("reset_before", rate=1, pid=pid))
        time.sleep(0.05)
    assert line.stats().injected["reset_before"] > 0
    line.inject()
    done = ends.project.finish(process, seconds=300)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    ends.demand_exact()
