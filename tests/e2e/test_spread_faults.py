"""``--nodes`` with faults: killed workers and commands, a broken network, a throttling account, files that never
arrive, and a plan on the disk. Missing files are named in the end."""

from __future__ import annotations

import os
import pty
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from subprocess import Popen
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError

from tests.e2e.terminal import on_terminal
from tests.e2e.test_spread import HELD, fill, job_of, nothing_is_left, workers_of
from tests.e2e.world import (
    Container,
    Project,
    blobsync_command,
    every_text_below,
    hashes,
    random_files,
    read_tree,
    wait_until,
    write_tree,
)
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy

__all__ = ["nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_FILES = random_files(20261219, 160, [5 << 20] * 2)
_HASHES = hashes(_FILES)
_TWO = ("--nodes", "2")
# Only requests for files of the folder, not for shards and records.
_FOR_FILES: Mapping[str, Any] = {"operations": ("put blob", "get blob", "put blob from url"), "pattern": "/data/"}
_PATIENCE = 60.0
# It takes 3 s; more on a busy machine.
_AT_ONCE = 30.0


@pytest.fixture
def line(service: str) -> Iterator[FaultHandle]:
    """The service, with copies from server to server, behind a network that may break."""
    with copy_source_proxy(service) as copying, fault_proxy(copying.url) as proxy:
        yield proxy


def _asked_to_wait(pid: int, seconds: int) -> Fault:
    """One request of one process for a file."""
    return Fault("status", rate=1, limit=1, retry_after=seconds, pid=pid, **_FOR_FILES)


def _until(ended: Callable[[], int | None], true: Callable[[], object]) -> None:
    """Before the command ends."""
    assert wait_until(lambda: true() or ended() is not None, seconds=_PATIENCE, pause=0.05)
    assert ended() is None


def _two_workers(project: Project, process: Popen[str] | Popen[bytes]) -> list[int]:
    """Both workers, before their first requests."""
    assert wait_until(lambda: len(workers_of(project.root)) == 2 or process.poll() is not None, seconds=_PATIENCE)
    return workers_of(project.root)


def _log(project: Project, job: str) -> str:
    """The logs of both nodes."""
    return "".join(project.run("logs", job, "--rank", rank).out for rank in "01")


def records_told(project: Project, container: Container | None) -> dict[str, int]:
    """The number of recorded files of each attempt at a shard."""
    found = {}
    # Records that are in the index are removed.
    if container is None:
        for file in project.root.glob(".blobsync/state-*/spread/*/records/[0-9]*"):
            with suppress(FileNotFoundError):
                found[file.name] = file.read_bytes()
    else:
        for name in container.names(".blobsync/spread/"):
            if "/records/" in name:
                with suppress(ResourceNotFoundError):
                    found[name.rpartition("/")[2]] = container.get(name)
    told: dict[str, int] = {}
    for name, body in found.items():
        attempt = name.rpartition("~")[0]
        told[attempt] = told.get(attempt, 0) + body.count(b'{"path"')
    return told


@pytest.mark.parametrize("word", ["u", *(pytest.param(word, marks=pytest.mark.soak) for word in ("d", "copy"))])
def test_one_worker_and_then_the_command_are_killed_and_the_same_command_goes_on(
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
    # From the start: a worker may be seen only after its first requests.
    line.inject(HELD)
    process = project.start(*words)
    victim, *_ = _two_workers(project, process)

    def something_told() -> bool:
        return any(records_told(project, None if word == "d" else destination).values())

    _until(process.poll, something_told)
    os.kill(victim, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    project.finish(process)
    line.inject()
    line.release()
    done = project.json(*words)
    assert done.code == 0, str(done)
    assert done.data["verified"] == len(_FILES), str(done)
    # Files that moved in the first run do not move again.
    (taken_over,) = re.findall(r"an earlier run that was stopped moved (\d+) files", done.err)
    assert int(taken_over) <= done.data["unchanged"] == len(_FILES) - done.data["transferred"], str(done)
    # The job of the first command went on, and the second took it over.
    assert "job " not in done.err, str(done)
    if word == "d":
        # The first command's probe file is not data.
        assert read_tree(project.data) == _HASHES and done.data["extras"] == 0, str(done)
        return
    assert destination.contents("data/") == _HASHES
    # No shards, records, claims or uncommitted blocks are left.
    assert set(destination.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}


@pytest.mark.soak
def test_one_worker_is_cut_off_for_a_while_and_what_it_is_asked_to_wait_all_wait(
    project: Project, container: Container, line: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=line.url)
    with on_terminal(project, "u", "data", *_TWO, "-v", "--cap-mbps", "12", columns=200) as terminal:
        until = partial(_until, terminal.process.poll)
        victim, other = _two_workers(project, terminal.process)
        # Neither moves a file before both work, nor the other one before it has read the note.
        line.inject(*(Fault("stall", rate=1, pid=pid, **_FOR_FILES) for pid in (victim, other)))
        until(lambda: len(records_told(project, container)) == 2)
        line.inject(_asked_to_wait(victim, 4), Fault("stall", rate=1, pid=other, **_FOR_FILES))
        logs = project.root / ".blobsync"
        until(lambda: any(b"was asked by the storage" in text for _, text in every_text_below(logs)))
        line.inject(Fault("reset_before", rate=1, pid=victim))
        until(lambda: line.stats().injected.get("reset_before", 0) >= 4)
        line.inject()
        done = terminal.finish()
    assert done.code == 0, str(done)
    assert container.contents() == {f"data/{name}": digest for name, digest in _HASHES.items()}
    shown = "\n".join(done.answer())
    # The files that each node has moved.
    files = sum(int(count) for count in re.findall(r"node[01]: (\d+) files and ", shown))
    assert files == len(_FILES), str(done)
    # A job that ends early is restarted.
    told = "".join(_log(project, job) for job in sorted(set(re.findall(r"job (\S+) on ", shown))))
    asked = re.findall(r"the storage account asks for fewer requests: all workers wait (\d+) s", told)
    heard = re.findall(r"node\d\.0 was asked by the storage account for fewer requests: waiting (\d+) s", told)
    assert len(asked) == 1 and asked == heard, f"{told}\n{done}"


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
    assert read_tree(project.data) == {name: digest for name, digest in _HASHES.items() if name not in failing}
    shards = re.findall(r"shard (\d{7}) of data: ", _log(project, job_of(done.err)))
    # 162 files in batches of 60; each of them is cut for two workers.
    assert sorted(shards) == [f"{number:07}" for number in range(6)], shards
    line.inject()
    again = project.json("d", "data", *_TWO)
    assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 10, len(_FILES) - 10), str(again)
    assert read_tree(project.data) == _HASHES


@pytest.mark.soak
@pytest.mark.parametrize("how", ["the terminal is closed", "a signal"])
def test_the_end_of_the_terminal_stops_the_workers_and_the_same_command_goes_on(
    how: str, project: Project, container: Container
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container)
    words = ("u", "data", *_TWO, "--cap-mbps", "12")
    if how == "a signal":
        process = project.start(*words)
        _until(process.poll, lambda: any(records_told(project, container).values()))
        process.send_signal(signal.SIGHUP)
        stopped = project.finish(process)
        assert stopped.code == 130 and "stopped: " in stopped.err, str(stopped)
    else:
        with Shell(project, words) as shell:
            _until(shell.process.poll, lambda: any(records_told(project, container).values()))
            shell.hang_up()
            assert shell.process.wait(_PATIENCE) == 130
    assert wait_until(lambda: not workers_of(project.root), seconds=10)
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    assert container.contents("data/") == _HASHES
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
    """The processes of the command and of the workers, which wait for the same service."""
    source, destination = new_container("one"), new_container("two")
    if word == "u":
        write_tree(project.data, _FILES)
    else:
        fill(source, _FILES)
    project.configure(source, cluster="from", url=line.url)
    project.configure(source if word == "d" else destination, url=line.url)
    words = ("d" if word == "d" else "u", "data", *(("-f", "from") if word == "copy" else ()), *_TWO)
    process = project.start(*words, "--cap-mbps", "12")
    workers = _two_workers(project, process)
    _until(process.poll, lambda: any(records_told(project, None if word == "d" else destination).values()))
    line.go_away()
    # Each worker, and the command if it waits for the service itself, has been refused once.
    _until(process.poll, lambda: all(_has_no_connection(pid, line) for pid in (*workers, process.pid)))
    process.send_signal(signal.SIGINT)
    # Each request would be retried for five minutes.
    stopped = project.finish(process, seconds=_AT_ONCE)
    assert wait_until(lambda: not workers_of(project.root), seconds=_AT_ONCE)
    assert stopped.code == 130 and "stopped: " in stopped.err, str(stopped)
    assert ("could not be notified that this transfer has ended" in stopped.err) == (word != "d"), str(stopped)
    line.come_back()
    done = project.json(*words)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    if word == "d":
        assert read_tree(project.data) == _HASHES
        return
    assert destination.contents("data/") == _HASHES
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
