"""Each command as it is installed, and that a fork, which most tests start instead, does the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from blobsync.cli.command_words import SECTIONS, Word
from tests.e2e.world import AS_INSTALLED, Container, Done, Project, write_tree
from tests.servers.forked import Forked
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

# What follows the word of a command; nothing, where it has work without.
_REST = {
    "u": "data --dry-run",
    "d": "data --dry-run",
    "keep": "ls",
    "plan": "u data",
    "apply": "none.plan",
    "verify": "data",
    "ls": "-r data",
    "du": "data",
    "stat": "data/a",
    "checkpoint": "done",
    "cat": "data/b",
    "diff": "data/a",
    "resolve": "data/a",
    "url": "data/b",
    "rm": "data/none",
    "init": "--dry-run",
    "submit": "--dry-run true",
    "local": "echo here",
    "logs": "nobody",
    "scale": "nobody 2",
    "ssh": "nobody",
    "tunnel": "ls",
    "watch": "nobody",
    "web": "--port none",
    "config": "check",
    "convert": "batchai none.yaml",
    "compute": "ls",
    "azcopy": "path",
    "emulator": "status",
    "schema": "u",
    "demo": "--size none",
}
_VARIES = re.compile(r"sig=[^&\s]+|[0-9a-f]{8,}|[0-9]+|me_\S+")


def _said(done: Done) -> tuple[int, str, str]:
    return done.code, _VARIES.sub("*", done.out), _VARIES.sub("*", done.err)


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=name, marks=[pytest.mark.soak] if name != "Set-up" else []) for name, words in SECTIONS],
)
def test_each_command_is_installed_and_a_fork_says_the_same(
    project: Project, container: Container, words: Sequence[Word]
) -> None:
    project.configure(container, extra={"platform": "local"})
    write_tree(project.data, {"a": b"one\n", "sub/c": b"three"})
    container.put("data/a", b"two\n")
    container.put("data/b", b"three\n")
    installed = replace(project, before=AS_INSTALLED)
    for word in words:
        line = (word.names[0], *_REST.get(word.names[0], "").split())
        fresh, forked = installed.run(*line), project.run(*line)
        assert "Traceback" not in fresh.err and _said(fresh) == _said(forked), f"{fresh}\n{forked}"


def _looks(process: subprocess.Popen[str]) -> dict[str, object]:
    """What a process has of its parent and of itself, past blobsync."""
    at = Path("/proc", str(process.pid))
    status = dict(line.split(":\t", 1) for line in (at / "status").read_text().splitlines())
    kinds = {each.name: os.readlink(each).partition(":")[0] for each in (at / "fd").iterdir()}
    return {
        "signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Umask", "NoNewPrivs")},
        "limits": (at / "limits").read_text(),
        "folder": os.readlink(at / "cwd"),
        "program": (os.readlink(at / "exe"), (at / "comm").read_text()),
        "session": (os.getsid(process.pid) - process.pid, os.getpgid(process.pid) - process.pid),
        "streams": [kinds[number] for number in "012"],
        "pipes": len([kind for kind in kinds.values() if kind == "pipe"]),
    }


def test_a_fork_is_a_process_like_the_installed_program(project: Project, container: Container) -> None:
    project.configure(container)
    write_tree(project.data, {"a": b"one"})
    looks: list[dict[str, object]] = []
    for each in (replace(project, before=AS_INSTALLED), project):
        with each.start("keep", "data", "--settle", "1m") as process:
            assert isinstance(process, Forked) == (each is project)
            assert wait_until(partial(_waits, process))
            looks.append(_looks(process))
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, process.poll(), process.wait()) == (130, 130, 130), out + err
    assert looks[0] == looks[1]


def _waits(process: subprocess.Popen[str]) -> bool:
    """Whether the keeper watches the folder; true of one that has ended, too."""
    with suppress(OSError):
        places = [os.readlink(each) for each in Path("/proc", str(process.pid), "fd").iterdir()]
        return "anon_inode:inotify" in places or process.poll() is not None
    return process.poll() is not None


def test_a_fork_that_is_killed_says_so(project: Project, container: Container) -> None:
    project.configure(container)
    write_tree(project.data, {"a": b"one"})
    process = project.start("keep", "data")
    process.kill()
    assert project.finish(process).code == -signal.SIGKILL


def test_nothing_of_one_start_is_in_the_next(project: Project, tmp_path: Path) -> None:
    project.configure(Container("http://127.0.0.1:9", "one", "a2V5", "none"), extra={"platform": "local"})
    script = "import os; print(os.environ.get('FIRST'), os.environ.get('SECOND'), os.environ['TMPDIR'])"
    for name in ("FIRST", "SECOND"):
        each = replace(project, environ={**project.environ, name: name, "TMPDIR": str(tmp_path / name)})
        (tmp_path / name).mkdir()
        done = each.run("local", "python3", "-c", script)
        expected = ("FIRST", "None") if name == "FIRST" else ("None", "SECOND")
        assert done.out.split()[-3:] == [*expected, str(tmp_path / name)], str(done)
