from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.local.queue import UNCLAIMED_SECONDS, Capacity, LocalQueue
from blobsync.backends.local.run_files import RunFiles
from blobsync.backends.local.supervisor import Supervisor
from blobsync.base.process import ProcessRunner
from blobsync.jobspec.spec import State
from tests.fakes.jobs import make_spec

ONE_SLOT = Capacity(1, ())
THREE_GPUS = Capacity(1, ("0", "1", "GPU-5b"))


class Jobs:
    """Jobs in a queue, each held by a supervisor that lives until ``end``."""

    def __init__(self, folder: Path) -> None:
        self.queue = LocalQueue(folder)
        self.held: dict[str, ExitStack] = {}

    def enter(self, name: str, gpus: int = 0) -> None:
        stack = ExitStack()
        stack.enter_context(self.queue.claimed(name, gpus))
        self.held[name] = stack

    def end(self, name: str) -> None:
        self.held.pop(name).close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path / "queue")
    yield jobs
    for name in list(jobs.held):
        jobs.end(name)


def test_jobs_go_in_the_order_in_which_they_came(jobs: Jobs) -> None:
    for name in ("a", "b", "c"):
        jobs.enter(name)
    assert jobs.queue.try_start("b", ONE_SLOT) is None
    assert jobs.queue.try_start("a", ONE_SLOT) == ()
    assert jobs.queue.try_start("a", ONE_SLOT) == ()
    assert jobs.queue.try_start("b", ONE_SLOT) is None
    jobs.end("a")
    assert jobs.queue.try_start("c", ONE_SLOT) is None
    assert jobs.queue.try_start("b", ONE_SLOT) == ()
    assert [(entry.run_id, entry.running) for entry in jobs.queue.entries()] == [("b", True), ("c", False)]


@pytest.mark.parametrize(
    ("first", "state", "reason"),
    [
        (State.COMPLETED, State.COMPLETED, ""),
        (State.FAILED, State.CANCELED, "first, which had to complete first, is Failed"),
        (State.CANCELED, State.CANCELED, "first, which had to complete first, is Canceled"),
        (State.RUNNING, State.CANCELED, "first, which had to complete first, is gone"),
        (None, State.CANCELED, "first, which had to complete first, is gone"),
        # It was stopped while it waited.
        ("stopped", State.CANCELED, ""),
    ],
)
def test_a_job_runs_after_one_that_has_completed_and_else_never(
    tmp_path: Path, first: State | str | None, state: State, reason: str
) -> None:
    before, files = RunFiles(tmp_path / "jobs/first"), RunFiles(tmp_path / "jobs/second")
    options: Any = {"after": {"run_id": "first", "native_id": "first"}, "in_place": str(tmp_path)}
    spec = make_spec("true", run_id="second", options=options)
    local = {"slots": 1, "gpus": [], "queue": str(tmp_path / "queue"), "command": ["true"]}
    files.make({files.job: spec.to_json(), files.local: json.dumps(local), files.secrets: "{}"})
    if first is not None:
        before.folder.mkdir(parents=True)
        before.write_status(first if isinstance(first, State) else State.RUNNING)
    if isinstance(first, State):
        before.lock.touch()
        before.local.touch()
    elif first:
        files.cancel.touch()
    Supervisor(files, ProcessRunner(), dict(os.environ)).run()
    status = files.read_status()
    assert status is not None and (status.state, status.reason) == (state, reason)
    assert not files.secrets.exists() and LocalQueue(tmp_path / "queue").entries() == []


def test_gpus_are_given_once_and_come_back(jobs: Jobs) -> None:
    for name, gpus in (("a", 2), ("b", 1), ("c", 1)):
        jobs.enter(name, gpus)
    assert jobs.queue.try_start("a", THREE_GPUS) == ("0", "1")
    assert jobs.queue.try_start("b", THREE_GPUS) == ("GPU-5b",)
    assert jobs.queue.try_start("c", THREE_GPUS) is None
    jobs.end("a")
    assert jobs.queue.try_start("c", THREE_GPUS) == ("0",)


def test_a_small_job_does_not_pass_a_large_one(jobs: Jobs) -> None:
    for name, gpus in (("a", 1), ("large", 3), ("small", 1)):
        jobs.enter(name, gpus)
    assert jobs.queue.try_start("a", THREE_GPUS) == ("0",)
    assert jobs.queue.try_start("large", THREE_GPUS) is None
    assert jobs.queue.try_start("small", THREE_GPUS) is None
    jobs.end("a")
    assert jobs.queue.try_start("large", THREE_GPUS) == ("0", "1", "GPU-5b")


def test_a_machine_without_gpus_counts_slots(jobs: Jobs) -> None:
    for name in ("a", "b", "c"):
        jobs.enter(name, 4)
    two = Capacity(2, ())
    assert [jobs.queue.try_start(name, two) for name in ("a", "b", "c")] == [(), (), None]


def test_the_ticket_of_a_dead_supervisor_is_removed(jobs: Jobs) -> None:
    jobs.enter("a")
    jobs.enter("b")
    # Like a killed process: its lock is released, its ticket remains.
    ticket = jobs.queue.entries()[0].file
    body = ticket.read_bytes()
    jobs.end("a")
    ticket.write_bytes(body)
    assert jobs.queue.try_start("b", ONE_SLOT) == ()
    assert not ticket.exists()


def test_a_submission_has_time_to_start_its_supervisor(jobs: Jobs) -> None:
    ticket = jobs.queue.enter("a", 0)
    jobs.enter("b")
    assert jobs.queue.try_start("b", ONE_SLOT) is None
    long_ago = time.time() - UNCLAIMED_SECONDS - 1
    os.utime(ticket, (long_ago, long_ago))
    assert jobs.queue.try_start("b", ONE_SLOT) == ()


def test_a_supervisor_that_comes_late_gets_a_new_place(jobs: Jobs) -> None:
    ticket = jobs.queue.enter("a", 0)
    ticket.unlink()
    with jobs.queue.claimed("a", 0):
        assert jobs.queue.try_start("a", ONE_SLOT) == ()
    assert jobs.queue.entries() == []


def test_entering_twice_keeps_the_place(jobs: Jobs) -> None:
    assert jobs.queue.enter("a", 0) == jobs.queue.enter("a", 0)
