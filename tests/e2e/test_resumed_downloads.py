"""A large download that was killed goes on from what is on record, once that is checked, and from nothing else."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import Container, Done, Project, read_tree, wait_until
from tests.servers.fault_proxy import FaultHandle, fault_proxy

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_MIB = 1 << 20
_SIZE = 160 * _MIB
_LARGE = random.Random(20261122).randbytes(_SIZE)
_SLOWLY = ("--cap-mbps", "400")


@pytest.fixture
def counting(service: str) -> Iterator[FaultHandle]:
    """A proxy without faults: it knows how many bytes were fetched."""
    with fault_proxy(service) as proxy:
        yield proxy


@pytest.fixture
def begun(project: Project, container: Container, counting: FaultHandle) -> Project:
    """A project whose download of ``data/large`` was killed when half of it was here."""
    container.put("data/large", _LARGE)
    project.configure(container, url=counting.url)
    process = project.start("d", "data", "--engine", "direct", *_SLOWLY)
    assert wait_until(lambda: counting.stats().downloaded >= _SIZE // 2, seconds=60, pause=0.005)
    os.kill(process.pid, signal.SIGKILL)
    project.finish(process)
    counting.reset()
    return project


def parts(project: Project) -> list[Path]:
    return sorted(project.data.glob(".blobsync-*.part"))


def records(project: Project) -> list[Path]:
    return sorted((project.state / "downloads").glob("*"))


def finishes(project: Project, container: Container, *words: str) -> Done:
    """The same command again: all of it is here, and nothing else."""
    done = project.json("d", "data", "--engine", "direct", *words)
    assert done.code == 0, str(done)
    assert read_tree(project.data) == container.contents("data/")
    assert not records(project)
    return done


def test_after_a_kill_at_half_the_rest_is_fetched(begun: Project, container: Container, counting: FaultHandle) -> None:
    (part,) = parts(begun)
    planned = begun.json("plan", "d", "data")
    there = planned.data["bytes_on_record"]
    assert planned.data["actions"][0]["on_record"] == there > 0.4 * _SIZE
    assert "are there already" in begun.run("plan", "d", "data").out
    assert part.exists(), "looking changes nothing"
    counting.reset()
    done = finishes(begun, container)
    assert counting.stats().downloaded <= 0.6 * _SIZE
    assert (done.data["bytes_reused"], done.data["bytes_transferred"]) == (there, _SIZE - there)
