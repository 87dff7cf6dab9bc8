"""The launcher on this kernel: a confined program writes only below its folders, and ends with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blobsync.azcopy.sandbox import REFUSED, Landlock

pytestmark = pytest.mark.skipif(not Landlock().is_possible, reason="this kernel has no Landlock")


def confined(script: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*Landlock().words(folders), "/bin/sh", "-c", script], capture_output=True, text=True, timeout=120
    )


def test_only_the_named_folders_can_be_changed(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "file").write_text("old")
    script = f"""
        cd {other}
        echo new > file; echo new > more; mkdir folder; rm file; mv file gone; ln -s file link; ln file hard
        mkfifo pipe; truncate -s 0 file; mv {mine}/file {other}/stolen; mv {other}/file {mine}/stolen
        cd {mine}
        echo new > more && mkdir folder && mv more folder/ && ln -s file link && echo quiet > /dev/null
        cat {other}/file
    """
    done = confined(script, mine)
    assert (done.returncode, done.stdout) == (0, "old"), done.stderr
    assert {path.name: path.read_text() for path in other.iterdir()} == {"file": "old"}
    assert {str(path.relative_to(mine)) for path in mine.rglob("*")} == {"file", "folder", "folder/more", "link"}


def test_with_no_folder_nothing_is_confined_but_the_life_of_the_program(tmp_path: Path) -> None:
    assert confined(f"echo new > {tmp_path}/file").returncode == 0
    assert (tmp_path / "file").read_text() == "new\n"


@pytest.mark.parametrize("kind", ["missing", "link"])
def test_a_folder_that_is_not_one_starts_nothing(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "link":
        place.symlink_to(tmp_path)
    done = confined(f"echo new > {tmp_path}/file", place)
    assert done.returncode == REFUSED
    assert "confined" in done.stderr
    assert not (tmp_path / "file").exists()


def test_the_program_ends_with_its_parent(tmp_path: Path) -> None:
    words = [*Landlock().words([tmp_path])]
    at = words.index("--parent") + 1
    code = (
        "import os, subprocess, sys; words = sys.argv[2:]; words[int(sys.argv[1])] = str(os.getpid()); "
        "child = subprocess.Popen([*words, '/bin/sleep', '600']); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(at), *words], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until = time.monotonic() + 60
    while Path(f"/proc/{child}/comm").read_text().strip() != "sleep" and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and _state(child) != "Z" and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists() or _state(child) == "Z"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
