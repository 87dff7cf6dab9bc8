"""``--nodes`` with faults: killed tasks and commands, a broken network, files that never arrive, a plan on the disk.

Missing files are named in the end."""

from __future__ import annotations

import os
import pty
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from subprocess import Popen

import pytest

from tests.e2e.test_spread import HELD, fill, jobs_of, nothing_is_left, tasks_of
from tests.e2e.world import Container, Project, blobsync_command, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.waiting import wait_until

__all__ = ["nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_FILES = random_files(20261219, 160, [5 << 20] * 2)
_TWO = ("--nodes", "2")
_PATIENCE = 60.0
# It takes 3 s; more on a busy machine.
_AT_ONCE = 30.0


@pytest.fixture
def line(service: str) -> Iterator[FaultHandle]:
    """The service, with copies from server to server, behind a network that may break."""
    with copy_source_proxy(service) as copying, fault_proxy(copying.url) as proxy:
        yield proxy


def _until(ended: Callable[[], int | None], true: Callable[[], object]) -> None:
    """Before the command ends."""
    assert wait_until(lambda: true() or ended() is not None, seconds=_PATIENCE, pause=0.05)
    assert ended() is None


def _two_tasks(project: Project, process: Popen[str] | Popen[bytes]) -> list[int]:
    """Both tasks, before their first requests."""
    assert wait_until(lambda: len(tasks_of(project.root)) == 2 or process.poll() is not None, seconds=_PATIENCE)
    return tasks_of(project.root)


def some_moved(project: Project, container: Container | None, count: int = 20) -> bool:
    """Whether some files are at the destination; None: on this disk."""
    if container is None:
        return sum(len(names) for _, _, names in os.walk(project.data)) > count
    return len(container.names("data/")) > count


@pytest.mark.parametrize("word", ["u", *(pytest.param(word, marks=pytest.mark.soak) for word in ("d", "copy"))])
def test_a_task_and_then_the_command_are_killed_and_the_same_command_goes_on(
    word: str, project: Project, new_container: Callable[[str], Container], line: FaultHandle
) -> None:
    source, destination = new_container("one"), new_container("two")
    if word == "u":
        write_tree(project.data, _FILES)
    else:
        fill(source, _FILES)
    project.configure(source, cluster="from", url=line.url)
    project.configure(source if word == "d" else destination, url=line.url)
    words = ("d" if word == "d" else "u", "data", *(("-f", "from") if word == "copy" else ()), *_TWO)
    # From the start: a task may be seen only after its first requests.
    line.inject(HELD)
    process = project.start(*words)
    victim, *_ = _two_tasks(project, process)
    _until(process.poll, lambda: some_moved(project, None if word == "d" else destination, 120))
    os.kill(victim, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    project.finish(process)
    line.inject()
    line.release()
    done = project.json(*words)
    assert done.code == 0, str(done)
    assert done.data["verified"] == len(_FILES), str(done)
    # The job of the first command went on until the second one stopped it. What its tasks recorded, and what the killed
    # one had moved, does not move again.
    assert "an earlier command left the job " in done.err or "an earlier run moved" in done.err
    assert done.data["unchanged"] >= 100 and done.data["conflicts"] == 0, str(done)
    if word == "d":
        # The first command's probe file is not data.
        assert read_tree(project.data) == _FILES.hashes and done.data["extras"] == 0, str(done)
        return
    assert destination.contents("data/") == _FILES.hashes
    # No shards, records, claims or uncommitted blocks are left.
    assert set(destination.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}


@pytest.mark.soak
def test_a_plan_on_the_disk_goes_in_batches_and_what_always_fails_is_named_while_the_rest_goes_on(
    project: Project, container: Container, line: FaultHandle
) -> None:
    fill(container, _FILES)
    project.environ["BLOBSYNC_LARGE_PLAN"] = "60"
    project.configure(container, url=line.url)
    line.inject(Fault("status", rate=1, status=403, operations=("get blob",), pattern=r"/data/part2/f008\d"))
    failing = {name for name in _FILES if name.startswith("part2/f008")}
    done = project.json("d", "data", *_TWO)
    assert (done.code, done.data["verified"]) == (3, len(_FILES) - len(failing)), str(done)
    assert done.named() == {f"data/{name}" for name in failing} and len(failing) == 10, str(done)
    assert read_tree(project.data) == {name: digest for name, digest in _FILES.hashes.items() if name not in failing}
    # 162 files in batches of 60, each of which is a job of two tasks.
    assert len(jobs_of(done.err)) == 3 and done.err.count(": 2 tasks, 2 at a time") == 3, str(done)
    line.inject()
    again = project.json("d", "data", *_TWO)
    assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 10, len(_FILES) - 10), str(again)
    assert read_tree(project.data) == _FILES.hashes


@pytest.mark.soak
@pytest.mark.parametrize("how", ["the terminal is closed", "a signal"])
def test_the_end_of_the_terminal_stops_the_tasks_and_the_same_command_goes_on(
    how: str, project: Project, container: Container
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container)
    words = ("u", "data", *_TWO, "--cap-mbps", "12")
    if how == "a signal":
        process = project.start(*words)
        _until(process.poll, lambda: some_moved(project, container))
        process.send_signal(signal.SIGHUP)
        stopped = project.finish(process)
        assert stopped.code == 130 and "stopped: " in stopped.err, str(stopped)
    else:
        with Shell(project, words) as shell:
            _until(shell.process.poll, lambda: some_moved(project, container))
            shell.hang_up()
            assert shell.process.wait(_PATIENCE) == 130
    assert wait_until(lambda: not tasks_of(project.root), seconds=10)
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    # Each task recorded what it had moved.
    (count,) = re.findall(r"an earlier run moved (\d+) files", done.err)
    assert 20 < int(count) == done.data["unchanged"], str(done)
    assert container.contents("data/") == _FILES.hashes
    assert set(container.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}


class Shell:
    """A command in the foreground of a terminal, which can be closed."""

    def __init__(self, project: Project, words: tuple[str, ...]) -> None:
        self._project, self._words = project, words

    def __enter__(self) -> Shell:
        self._master, slave = pty.openpty()
        # The first terminal that a session opens becomes its controlling terminal.
        command = ("/bin/sh", "-c", 'terminal=$1; shift; exec "$@" <"$terminal" >"$terminal" 2>&1', "sh")
        environ = {**os.environ, **self._project.environ}
        self.process = Popen(
            (*command, os.ttyname(slave), blobsync_command(), *self._words),
            cwd=self._project.root,
            env=environ,
            start_new_session=True,
        )
        # Only the command keeps it open.
        assert wait_until(lambda: self._is_ready(), seconds=_PATIENCE)
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _is_ready(self) -> bool:
        return os.readlink(f"/proc/{self.process.pid}/fd/1").startswith("/dev/pts/")

    def _read(self) -> None:
        with suppress(OSError):
            while os.read(self._master, 1 << 16):
                pass

    def hang_up(self) -> None:
        master, self._master = self._master, -1
        os.close(master)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.mark.soak
@pytest.mark.parametrize("word", ["u", "d", "copy"])
def test_ctrl_c_in_an_outage_ends_within_seconds_and_the_same_command_goes_on(
    word: str, project: Project, new_container: Callable[[str], Container], line: FaultHandle
) -> None:
    """The processes of the command and of the tasks, which wait for the same service."""
    source, destination = new_container("one"), new_container("two")
    if word == "u":
        write_tree(project.data, _FILES)
    else:
        fill(source, _FILES)
    project.configure(source, cluster="from", url=line.url)
    project.configure(source if word == "d" else destination, url=line.url)
    words = ("d" if word == "d" else "u", "data", *(("-f", "from") if word == "copy" else ()), *_TWO)
    process = project.start(*words, "--cap-mbps", "12")
    tasks = _two_tasks(project, process)
    _until(process.poll, lambda: some_moved(project, None if word == "d" else destination))
    line.go_away()
    # Each task, and the command if it waits for the service itself, has been refused once.
    _until(process.poll, lambda: all(_has_no_connection(pid, line) for pid in (*tasks, process.pid)))
    process.send_signal(signal.SIGINT)
    # Each request would be retried for five minutes.
    stopped = project.finish(process, seconds=_AT_ONCE)
    assert wait_until(lambda: not tasks_of(project.root), seconds=_AT_ONCE)
    assert stopped.code == 130 and "stopped: " in stopped.err, str(stopped)
    assert ("could not be notified that this transfer has ended" in stopped.err) == (word != "d"), str(stopped)
    line.come_back()
    done = project.json(*words)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    if word == "d":
        assert read_tree(project.data) == _FILES.hashes
        return
    assert destination.contents("data/") == _FILES.hashes
    assert set(destination.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}


def _has_no_connection(pid: int, line: FaultHandle) -> bool:
    """Whether a process has no connection to the proxy."""
    there = f"{line.port:04X}"
    sockets = set()
    with suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                sockets.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
    with open("/proc/net/tcp") as file:
        for row in file:
            fields = row.split()
            if fields[2].endswith(f":{there}") and fields[3] == "01" and f"socket:[{fields[9]}]" in sockets:
                return False
    return True
