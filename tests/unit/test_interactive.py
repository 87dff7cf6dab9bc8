"""The program of an interactive job on a node."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from blobsync.base.errors import UsageError
from blobsync.jobspec.interactive import DEFAULT_HOLD, hold_seconds, hold_text
from blobsync.node.standalone import interactive
from tests.servers.other_user import needs_root, program_of_another_user
from tests.waiting import wait_until

FILE = str(interactive.__file__)
PATIENCE = 60.0


@pytest.mark.parametrize(
    ("seconds", "hold", "limit", "inside", "step"),
    [
        (0.0, 10, 0, 0, "wait"),
        (9.9, 10, 0, 3, "wait"),
        (10.0, 10, 0, 1, "stay"),
        (10.0, 10, 0, 0, "end"),
        (10.0, 60, 10, 1, "end"),
        (9.9, 60, 10, 0, "wait"),
        (60.0, 10, 61, 1, "stay"),
        (0.0, 0, 0, 0, "end"),
    ],
)
def test_a_job_waits_for_its_time_stays_for_those_inside_and_ends_at_its_limit(
    seconds: float, hold: float, limit: float, inside: int, step: str
) -> None:
    assert interactive.next_step(seconds, hold, limit, inside) == step


@pytest.mark.parametrize(
    ("argv", "asked", "seconds"),
    [
        (("ssh",), "", DEFAULT_HOLD),
        (("ssh",), "4h", 14_400),
        ((), "90m", 5_400),
        ((), "30", 30),
        (("ssh", "host", "ls"), "", None),
        (("python", "a.py"), "", None),
        ((), "", None),
    ],
)
def test_the_word_ssh_alone_or_a_time_makes_a_job_wait(argv: tuple[str, ...], asked: str, seconds: int | None) -> None:
    assert hold_seconds(argv, asked) == seconds
    assert seconds is None or hold_seconds((), hold_text(seconds)) == seconds


@pytest.mark.parametrize("asked", ["soon", "0", "0h", "-1h", "4 weeks", "99999d", "٤h"])
def test_a_time_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        hold_seconds((), asked)


class Waiting:
    """A running holder, and its shells."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.place, self.work = folder / "place", folder / "work"
        self.work.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []

    def hold(self, *words: str, node: int = 0) -> subprocess.Popen[bytes]:
        # Without HOME, bash would read the start-up files of this machine's user.
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "BLOBSYNC_RUN_ID": "me_1_abc", "OF_THE_JOB": "a b"}
        with self.log.open("ab") as log:
            return self._start(["hold", "--node", str(node), *words], log=log, env=env, cwd=self.work)

    def enter(self, *, node: int = 0) -> tuple[subprocess.Popen[bytes], int]:
        """A shell on a terminal; what is written to the descriptor is typed."""
        master, slave = pty.openpty()
        process = self._start(["enter", "--node", str(node)], terminal=slave, env={"TERM": "dumb"})
        os.close(slave)
        return process, master

    def _start(
        self,
        words: list[str],
        *,
        env: dict[str, str],
        log: IO[bytes] | None = None,
        terminal: int | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", FILE, words[0], "--place", str(self.place), *words[1:]]
        source = terminal if terminal is not None else subprocess.DEVNULL
        output = terminal if terminal is not None else log
        process: subprocess.Popen[bytes] = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=source, stdout=output, stderr=output, start_new_session=True
        )
        self.started.append(process)
        return process

    def says(self, text: str) -> bool:
        return wait_until(lambda: text in self.log.read_text(), seconds=PATIENCE)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    found = Waiting(tmp_path)
    yield found
    for process in found.started:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_a_job_that_nobody_enters_ends_with_its_time(waiting: Waiting) -> None:
    job = waiting.hold("--seconds", "600")
    assert waiting.says("0 shells open")
    assert (waiting.place / "hold").read_text() == "600\n"
    # Made shorter only now: a busy machine may need a second before it says anything.
    (waiting.place / "hold").write_text("1\n")
    assert job.wait(PATIENCE) == 0
    said = waiting.log.read_text()
    assert "waiting for you: blobsync ssh abc" in said
    assert said.endswith("the time is over, and nobody is inside\n")
    late = waiting.enter()[0]
    assert late.wait(PATIENCE) == 1


def test_a_shell_has_the_jobs_environment_and_folder_and_keeps_the_job(waiting: Waiting) -> None:
    job = waiting.hold("--seconds", "600")
    assert waiting.says("0 shells open")
    shell, typed = waiting.enter()
    assert waiting.says("1 shell open")
    os.write(typed, b'printf "%s|%s|%s" "$OF_THE_JOB" "$PWD" "$TERM" > told; echo 0 > "$BLOBSYNC_HOLD"\n')
    assert waiting.says("the job ends when the last shell is closed (1 shell open)")
    assert (waiting.work / "told").read_text() == f"a b|{waiting.work}|dumb"
    assert job.poll() is None
    os.write(typed, b"exit\n")
    assert (shell.wait(PATIENCE), job.wait(PATIENCE)) == (0, 0)
    assert not list(waiting.place.glob("*.shell")) and not list(waiting.place.glob("node_*.json"))


@pytest.mark.parametrize(("way", "code"), [("limit", 0), ("stop", 143)])
def test_shells_end_with_the_job_also_those_that_ignore_a_hang_up(waiting: Waiting, way: str, code: int) -> None:
    job = waiting.hold("--seconds", "600", *(("--limit", "3") if way == "limit" else ()))
    assert waiting.says("0 shells open")
    shell, typed = waiting.enter()
    if way == "stop":
        os.write(typed, b'trap "" HUP; touch ready\n')
        assert wait_until((waiting.work / "ready").exists, seconds=PATIENCE)
        job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == code
    assert shell.wait(PATIENCE) != 0


def test_nodes_that_share_a_folder_see_each_others_shells(waiting: Waiting) -> None:
    first, second = (waiting.hold("--seconds", "600", node=node) for node in (0, 1))
    assert wait_until(lambda: len(list(waiting.place.glob("node_*.json"))) == 2, seconds=PATIENCE)
    shell, _ = waiting.enter(node=1)
    assert wait_until(lambda: list(waiting.place.glob("*.shell")), seconds=PATIENCE)
    (waiting.place / "hold").write_text("0")
    assert wait_until(lambda: waiting.log.read_text().count("(1 shell open)") == 2, seconds=PATIENCE)
    assert (first.poll(), second.poll()) == (None, None)
    # A killed shell has not removed its file, but does not count.
    shell.kill()
    assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)


def test_a_record_of_another_process_with_the_same_number_is_nobody(tmp_path: Path) -> None:
    place = interactive.Place(tmp_path, 0)
    own = os.getpid()
    assert interactive.is_same_process(own, interactive.birth(own))
    for name, content in (("1", json.dumps([own, "1"])), ("2", json.dumps([2**22, ""])), ("3", "no json"), ("4", "{}")):
        (tmp_path / f"node_0.{name}.shell").write_text(content)
    assert place.count() == 0 and not list(tmp_path.glob("*.shell"))


@needs_root
@pytest.mark.parametrize("as_root", [False, True])
def test_a_shell_has_nothing_of_another_users_process(waiting: Waiting, as_root: bool) -> None:
    """A process with the reused id of a killed holder."""
    job = waiting.hold("--seconds", "600")
    assert waiting.says("0 shells open")
    job.kill()
    job.wait()
    (file,) = waiting.place.glob("node_*.json")
    holder = json.loads(file.read_text())
    with program_of_another_user({"PATH": "/home/other/bin", "BASH_ENV": "/home/other/x"}, as_root=as_root) as pid:
        for born in (holder["born"], interactive.birth(pid), ""):
            file.write_text(json.dumps({**holder, "pid": pid, "born": born}))
            assert waiting.enter()[0].wait(PATIENCE) == 1


def test_a_shell_has_nothing_of_a_process_that_got_the_number(waiting: Waiting) -> None:
    waiting.hold("--seconds", "600")
    assert waiting.says("0 shells open")
    (file,) = waiting.place.glob("node_*.json")
    holder = json.loads(file.read_text())
    assert holder["born"] == interactive.birth(holder["pid"])
    file.write_text(json.dumps({**holder, "pid": os.getpid()}))
    assert not os.path.isdir("/proc/self") or waiting.enter()[0].wait(PATIENCE) == 1


@pytest.mark.parametrize(("text", "seconds"), [("0\n", 0), ("2h", 7200), ("90m\n", 5400), ("soon", 7), ("", 7)])
def test_the_time_to_wait_can_be_changed_and_a_word_that_is_no_time_changes_nothing(
    tmp_path: Path, text: str, seconds: int
) -> None:
    place = interactive.Place(tmp_path, 0)
    place.hold.write_text(text)
    assert place.read_hold(7) == seconds


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="terminals of other processes are read from /proc")
def test_in_a_container_of_the_job_every_open_terminal_is_somebody(waiting: Waiting) -> None:
    before = set(interactive.open_terminals())
    waiting.hold("--seconds", "600")
    assert waiting.says("0 shells open")
    assert not {process.pid for process in waiting.started} & set(interactive.open_terminals())
    script = "import os, pty, time; pid, _ = pty.fork(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    waiting.started.append(child)
    assert wait_until(lambda: set(interactive.open_terminals()) - before, seconds=PATIENCE)
