"""``--processes``: the installed command with several workers, killed and interrupted, exact by SHA-256."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, processes, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_FILES = random_files(20261122, 50, [5 << 20] * 2)
_TWO = ("--processes", "2")
# No transfer ends before its large files may go on, however long the test takes to stop it.
_HELD = Fault("hold", rate=1, operations=("put blob", "put block", "get blob"), pattern="/large")
_PATIENCE = 60.0


def _gone(pids: list[int], seconds: float) -> bool:
    return wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids), seconds=seconds, pause=0.01)


def _moves(counting: FaultHandle) -> int:
    done = counting.stats().operations
    return sum(done.get(each, 0) for each in ("put blob", "put block", "get blob"))


def _fill(container: Container) -> None:
    for name, data in _FILES.items():
        container.put(f"data/{name}", data)


def test_two_processes_upload_and_download_every_file(project: Project, container: Container) -> None:
    write_tree(project.data, _FILES)
    project.configure(container)
    plan = project.json("plan", "u", "data", *_TWO)
    assert (plan.data["engine"], plan.data["processes"]) == ("direct", 2), str(plan)
    assert plan.data["processes_why"] == "--processes 2 was given"
    assert "Processes: 2, --processes 2 was given" in project.run("plan", "u", "data", *_TWO).out
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["transferred"], done.data["verified"]) == (0, len(_FILES), len(_FILES)), str(done)
    assert container.contents("data/") == _FILES.hashes
    other = Project(project.root.parent / "other", project.environ, project.before)
    other.configure(container)
    done = other.json("d", "data", *_TWO)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    assert read_tree(other.data) == _FILES.hashes
    # The index of this process has the files that workers moved.
    again = other.json("u", "data", *_TWO)
    assert (again.code, again.data["unchanged"], again.data["transferred"]) == (0, len(_FILES), 0), str(again)


@pytest.mark.parametrize("direction", ["d", pytest.param("u", marks=pytest.mark.soak)])
def test_after_kill_9_the_workers_end_and_the_same_command_finishes(
    direction: str, project: Project, container: Container, counting: FaultHandle
) -> None:
    if direction == "u":
        write_tree(project.data, _FILES)
    else:
        _fill(container)
    project.configure(container, url=counting.url)
    counting.inject(_HELD)
    words = (direction, "data", *_TWO, "--cap-mbps", "200")
    process = project.start(*words)
    assert wait_until(lambda: _moves(counting) > 20 or process.poll() is not None, seconds=_PATIENCE)
    workers = processes(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    # Interrupted threads get 0.7 s to clean up, the rest is for a busy machine; by themselves they would never end.
    assert _gone(workers, 30)
    project.finish(process)
    counting.inject()
    done = project.json(*words)
    assert done.code == 0, str(done)
    assert (container.contents("data/") if direction == "u" else read_tree(project.data)) == _FILES.hashes
    if direction == "u":
        assert set(container.names(uncommitted=True)) == set(container.names())


def test_a_worker_killed_in_the_middle_is_a_note_and_nothing_more(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    counting.inject(_HELD)
    process = project.start("u", "data", *_TWO, "--cap-mbps", "200")
    assert wait_until(lambda: _moves(counting) > 20 or process.poll() is not None, seconds=_PATIENCE)
    for worker in processes(process.pid):
        os.kill(worker, signal.SIGKILL)
    counting.inject()
    done = project.finish(process)
    assert done.code == 0, str(done)
    assert "a worker process was lost, it was killed by signal 9" in done.err
    assert container.contents("data/") == _FILES.hashes
    assert set(container.names(uncommitted=True)) == set(container.names())


def test_an_interrupt_says_what_is_left_and_ends_the_workers(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    _fill(container)
    project.configure(container, url=counting.url)
    counting.inject(_HELD)
    process = project.start("d", "data", *_TWO, "--cap-mbps", "100", "--json")
    assert wait_until(lambda: _moves(counting) > 20 or process.poll() is not None, seconds=_PATIENCE)
    workers = processes(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGINT)
    done = project.finish(process)
    assert (done.code, done.document["status"]) == (130, "cancelled"), str(done)
    assert "left" in done.errors[0]["message"], str(done)
    assert _gone(workers, 10)
    counting.inject()
    whole = {item for item in read_tree(project.data).items() if not item[0].endswith(".part")}
    assert whole <= set(_FILES.hashes.items()), "partial files have a final name"
    done = project.json("d", "data", *_TWO)
    assert done.code == 0, str(done)
    # The workers' records are used, and removed.
    assert read_tree(project.data) == _FILES.hashes


def test_in_the_background_of_a_script_ctrl_c_stops_nothing(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    counting.inject(_HELD)
    in_background = replace(project, before=("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    process = in_background.start("u", "data", *_TWO, "--cap-mbps", "100", "-v")
    assert wait_until(lambda: processes(process.pid) or process.poll() is not None, seconds=_PATIENCE)
    os.kill(process.pid, signal.SIGINT)
    counting.inject()
    counting.release()
    done = in_background.finish(process)
    assert done.code == 0, str(done)
    assert container.contents("data/") == _FILES.hashes
    # A command with the terminal ignores signals like blobsync itself.
    (mask,) = re.findall(r"SigIgn:\s+(\w+)", in_background.run("local", "cat", "/proc/self/status").out)
    # Bit 0 is that of signal 1.
    assert int(mask, 16) >> (signal.SIGINT - 1) & 1 == 1


def test_two_processes_copy_between_accounts_server_to_server(
    project: Project, new_container: Callable[[str], Container], service: str
) -> None:
    source, destination = new_container("one"), new_container("two")
    _fill(source)
    with copy_source_proxy(service) as copying:
        project.configure(source, cluster="from", url=copying.url, sas=source.sas())
        project.configure(destination, url=copying.url, sas=destination.sas())
        done = project.json("u", "data", "-f", "from", *_TWO)
        assert (done.code, done.data["transferred"]) == (0, len(_FILES)), str(done)
        assert copying.stats().downloaded == 0
    assert destination.contents("data/") == _FILES.hashes
