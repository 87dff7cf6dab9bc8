"""``--nodes`` with kills at random moments: a task of a detached transfer in which a file fails, and a task while files
change under the transfer. ``tests/soak/test_spread_kills.py`` has many more; a failure prints its seed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest
from azure.storage.blob import BlobBlock

from tests.e2e.test_spread import fill, nothing_is_left, tasks_of
from tests.e2e.test_spread_faults import line
from tests.e2e.world import Container, Project, random_files, read_tree, sha256, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle
from tests.waiting import meanwhile, wait_until

__all__ = ["line", "nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.timeout(300)]

_FILES = random_files(20261222, 60, [5 << 20] * 2)
# Requests for it are always refused.
_REFUSED = sorted(_FILES)[7]
# Files that other programs change all the time, the first of all files among them.
_CHANGING = sorted(_FILES)[:3]
_TWO = ("--nodes", "2")
# The kill happens within so many seconds after the start of the process.
_MOMENTS = 2.5


class KilledTasks:
    """Repeats detached transfers in separate folders; kills a task of each once."""

    def __init__(self, word: str, project: Project, container: Container, line: FaultHandle) -> None:
        self._word, self._project, self._container, self._line = word, project, container, line
        project.configure(container, url=line.url)

    def kill_after(self, seconds: float, number: int, choice: random.Random) -> bool:
        """Run one, complete in the end; returns whether a task was killed."""
        project, folder = self._project, f"data/r{number}"
        here = project.root / folder
        if self._word == "u":
            write_tree(here, _FILES)
        else:
            fill(self._container, {f"r{number}/{name}": data for name, data in _FILES.items()})
        operation = "put blob" if self._word == "u" else "get blob"
        self._line.inject(Fault("status", rate=1, status=403, operations=(operation,), pattern=f"/{_REFUSED}"))
        done = project.json(self._word, folder, *_TWO, "--detach")
        assert done.code == 0, str(done)
        job = done.data["job_id"]
        assert wait_until(lambda: tasks_of(project.root) or self._state(job) == "Failed", seconds=60, pause=0.05)
        time.sleep(seconds)
        there = tasks_of(project.root)
        killed = choice.sample(there, min(1, len(there)))
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: self._state(job) in ("Completed", "Failed"), seconds=120, pause=0.5)
        shown, told = project.json("q", job).data["jobs"][0], self._log(job)
        # One file is refused, so that it is never Completed. What nobody has looked at is not counted.
        assert shown["status"] == "Failed", f"{shown}\n{told}"
        if "moved, not verified" not in shown["reason"]:
            # The task that closed it may have been killed right after that, before it said so.
            assert shown["exit_code"] == 3, f"{shown}\n{told}"
            assert "verified" not in told or f"{len(_FILES) - 1:,} files verified, 1 failed" in told, told
            assert "verified" not in told or f"{folder}/{_REFUSED}" in told, told
        self._line.inject()
        again = project.json(self._word, folder, *_TWO)
        assert (again.code, again.data["conflicts"]) == (0, 0), str(again)
        assert again.data["transferred"] >= 1 and again.data["verified"] == len(_FILES), str(again)
        assert self._there(here, number) == _FILES.hashes
        assert not list(here.glob(".probe-of-*")), told
        return bool(killed)

    def _state(self, job: str) -> str:
        return str(self._project.json("q", job).data["jobs"][0]["status"])

    def _log(self, job: str) -> str:
        return "".join(self._project.run("logs", job, "--rank", str(rank)).out for rank in range(2))

    def _there(self, here: Path, number: int) -> dict[str, str]:
        return read_tree(here) if self._word == "d" else self._container.contents(f"data/r{number}/")


def kill_a_task_while_files_change(
    project: Project, container: Container, seconds: float, number: int, choice: random.Random
) -> bool:
    """Run one; all unchanged files arrive. Returns whether a task was killed."""
    folder = f"data/r{number}"
    here = project.root / folder
    write_tree(here, _FILES)

    def append() -> None:
        for name in _CHANGING:
            with (here / name).open("ab") as file:
                file.write(b"more")

    with meanwhile(append):
        process = project.start("u", folder, *_TWO, "--cap-mbps", "60", "--json")
        _until_at_work(project, process)
        time.sleep(seconds)
        victims = tasks_of(project.root)
        if victims:
            with suppress(ProcessLookupError):
                os.kill(choice.choice(victims), signal.SIGKILL)
        done = project.finish(process)
    assert done.code in (0, 3), str(done)
    assert done.named() <= {f"{folder}/{name}" for name in _CHANGING}, str(done)
    there = container.contents(f"{folder}/")
    assert not [name for name, digest in _FILES.hashes.items() if name not in _CHANGING and there.get(name) != digest]
    again = project.json("u", folder, *_TWO)
    assert again.code == 0, str(again)
    assert container.contents(f"{folder}/") == read_tree(here)
    assert not list(here.glob(".probe-of-*"))
    return bool(victims)


class ChangingSources:
    """Repeats copies in separate folders while blobs of the source are replaced.

    Some have no MD5.
    """

    def __init__(self, project: Project, source: Container, destination: Container, url: str, choice: random.Random):
        self._project, self._source, self._destination, self._choice = project, source, destination, choice
        # Only requests with a SAS pass the proxy, also those of the command itself.
        project.configure(source, cluster="from", url=url, sas=source.sas())
        project.configure(destination, url=url, sas=destination.sas())

    def copy(self, how: str, seconds: float, number: int) -> bool:
        """Run one, complete after the next command; returns whether a process was stopped."""
        bodies = {f"r{number}/{name}": data for name, data in _FILES.items()}
        without = set(sorted(bodies)[::7])
        for name, data in bodies.items():
            put(self._source, f"data/{name}", data, with_md5=name not in without)
        words = ("u", f"data/r{number}", "-f", "from", *_TWO)
        process = self._project.start(*words, "--json")
        with meanwhile(partial(self._replace, bodies, sorted(bodies.keys() - without))):
            copied = f"data/r{number}/"
            assert wait_until(
                lambda: self._destination.names(copied) or process.poll() is not None, seconds=60, pause=0.05
            )
            time.sleep(seconds)
            hit = self._stop(how, process)
            first = self._project.finish(process)
        assert first.code in (-signal.SIGKILL, 0, 3, 130), str(first)
        again = self._project.json(*words)
        assert (again.code, again.errors) == (0, []), str(again)
        expected = {name.partition("/")[2]: sha256(data) for name, data in bodies.items()}
        assert self._destination.contents(f"data/r{number}/") == expected
        return hit

    def _stop(self, how: str, process: Popen[str]) -> bool:
        if how == "a task is killed":
            tasks = tasks_of(self._project.root)
            for pid in self._choice.sample(tasks, min(1, len(tasks))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return bool(tasks)
        was_there = process.poll() is None
        process.send_signal(signal.SIGKILL if how == "the command is killed" else signal.SIGINT)
        return was_there

    def _replace(self, bodies: dict[str, bytes], names: list[str]) -> None:
        for name in self._choice.sample(names, 3):
            bodies[name] = self._choice.randbytes(len(bodies[name]) + self._choice.choice([0, 1]))
            self._source.put(f"data/{name}", bodies[name])


def put(container: Container, name: str, data: bytes, *, with_md5: bool) -> None:
    """Upload in one request, or in blocks, for which the service stores no MD5."""
    if with_md5:
        container.put(name, data)
        return
    blob = container.blob(name)
    blob.stage_block("0" * 36, data)
    blob.commit_block_list([BlobBlock("0" * 36)])


def _until_at_work(project: Project, process: Popen[str]) -> None:
    assert wait_until(lambda: tasks_of(project.root) or process.poll() is not None, seconds=60)


def at_random_moments(
    one: Callable[[float, int, random.Random], bool], moments: int, seed: int, *, longest: float = _MOMENTS
) -> None:
    """Repeat until so many runs had a process to kill."""
    choice, hit, number = random.Random(seed), 0, 0
    while hit < moments:
        seconds, number = choice.uniform(0, longest), number + 1
        print(f"seed {seed}, round {number}: after {seconds:.2f} s")
        hit += one(seconds, number, choice)
        assert number < 3 * moments + 5, "there is hardly anything to kill"


@pytest.mark.soak
@pytest.mark.parametrize("word", ["u", "d"])
def test_a_detached_transfer_with_a_failure_says_so_whenever_a_task_is_killed(
    word: str, project: Project, container: Container, line: FaultHandle
) -> None:
    rounds = KilledTasks(word, project, container, line)
    at_random_moments(rounds.kill_after, 1, 20261222)


@pytest.mark.soak
def test_files_that_change_and_a_task_that_is_killed_stop_no_other_file(project: Project, container: Container) -> None:
    project.configure(container)

    def one(seconds: float, number: int, choice: random.Random) -> bool:
        return kill_a_task_while_files_change(project, container, seconds, number, choice)

    at_random_moments(one, 2, 20261222)


HOW = ["the command is killed", "a task is killed", "Ctrl-C"]


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
def test_a_copy_whose_source_changes_is_finished_by_the_next_command(
    how: str, project: Project, new_container: Callable[[str], Container], service: str
) -> None:
    with copy_source_proxy(service) as copying:
        copies = ChangingSources(
            project, new_container("one"), new_container("two"), copying.url, random.Random(20261222)
        )
        at_random_moments(lambda seconds, number, _: copies.copy(how, seconds, number), 1, 20261222, longest=0.3)
