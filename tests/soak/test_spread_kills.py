"""Spread transfers, killed at twenty random moments of each kind; ``SOAK_SEED`` repeats a run."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.e2e.conftest import container, new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.test_spread import nothing_is_left
from tests.e2e.test_spread_faults import line
from tests.e2e.test_spread_kills import (
    HOW,
    ChangingSources,
    KilledTasks,
    at_random_moments,
    kill_a_task_while_files_change,
)
from tests.e2e.world import Container, Project
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import FaultHandle

__all__ = ["line", "nothing_is_left"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

_MOMENTS = 20


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("SOAK_SEED") or time.time_ns() & 0xFFFFFFFF)


@pytest.mark.parametrize("word", ["u", "d"])
def test_a_task_of_a_detached_transfer_is_killed_at_twenty_moments(
    word: str,
    project: Project,  # noqa: F811
    container: Container,  # noqa: F811
    line: FaultHandle,
    seed: int,
) -> None:
    rounds = KilledTasks(word, project, container, line)
    at_random_moments(rounds.kill_after, _MOMENTS, seed)


def test_a_task_is_killed_at_twenty_moments_while_files_change(
    project: Project,  # noqa: F811
    container: Container,  # noqa: F811
    seed: int,
) -> None:
    project.configure(container)

    def one(seconds: float, number: int, choice: random.Random) -> bool:
        return kill_a_task_while_files_change(project, container, seconds, number, choice)

    at_random_moments(one, _MOMENTS, seed)


@pytest.mark.parametrize("how", HOW)
def test_copies_are_stopped_at_twenty_moments_while_their_source_changes(
    how: str,
    project: Project,  # noqa: F811
    new_container: Callable[[str], Container],  # noqa: F811
    service: str,  # noqa: F811
    seed: int,
) -> None:
    with copy_source_proxy(service) as copying:
        copies = ChangingSources(project, new_container("one"), new_container("two"), copying.url, random.Random(seed))
        at_random_moments(lambda seconds, number, _: copies.copy(how, seconds, number), _MOMENTS, seed, longest=1.0)
