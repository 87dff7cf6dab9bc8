"""docs/tutorial.md, run as a reader would: each command, and what the page says that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import TOOLS, Azurite
from tests.e2e.world import blobsync_command
from tests.source import ROOT

pytestmark = pytest.mark.e2e


class _Step(NamedTuple):
    command: str
    output: str


def _steps() -> Iterator[_Step]:
    for block in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").split("```console\n")[1:]:
        for part in re.split(r"^\$ ", block.split("```")[0], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield _Step(command, output)


def _steady(text: str) -> str:
    """Without what differs from run to run: times, estimates, processes, archives."""
    text = re.sub(r"\d+\.\d+ s\b", "N s", text)
    text = re.sub(r"Engine: direct.*", "Engine: direct", text)
    text = re.sub(r"packed 3 files, .* in", "packed 3 files in", text)
    return re.sub(r"process \d+|is now [0-9a-f]{12}", "-", text)


@pytest.fixture
def shell(tmp_path: Path, azurite: Azurite) -> Iterator[dict[str, str]]:
    """The environment of somebody new to blobsync, whose emulator has a free port and is installed already."""
    data = tmp_path / "share" / "blobsync"
    data.mkdir(parents=True)
    for installed in TOOLS.glob("azurite-*"):
        (data / installed.name).symlink_to(installed)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BLOBSYNC_", "AML_"))}
    environ = {**kept, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "share"), "PATH": path}
    # The port of a start is that of the next one.
    for words in (("start", "--port", "0"), ("stop",)):
        subprocess.run([blobsync_command(), "emulator", *words], env=environ, check=True, capture_output=True)
    yield environ
    subprocess.run([blobsync_command(), "emulator", "stop"], env=environ, capture_output=True)


def test_each_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path, shell: dict[str, str]) -> None:
    steps = list(_steps())
    assert len(steps) > 20
    script = "".join(f"{step.command}\nprintf '\\0%s\\0' $?\n" for step in steps)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=150)
    *printed, rest = done.stdout.split("\0")
    outputs, codes = printed[::2], printed[1::2]
    ports = set(re.findall(r"http://127\.0\.0\.1:(\d+)", outputs[2]))
    assert len(ports) == 1 and not rest, done.stdout + done.stderr
    (port,) = ports
    for step, output in zip(steps, outputs, strict=True):
        shown = output.replace(f"127.0.0.1:{port}", "127.0.0.1:10000").replace(str(tmp_path), "/home/me")
        assert _steady(shown) == _steady(step.output), f"{step.command}\n{done.stderr}"
    # `status` and `verify` say with 3 that something differs.
    failed = [(step.command, code) for step, code in zip(steps, codes, strict=True) if code != "0"]
    assert failed == [("blobsync status", "3"), ("blobsync verify data/notes", "3")]
