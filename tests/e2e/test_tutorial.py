"""docs/tutorial.md, run as a reader would: each command, and what the page says that it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TOOLS, Azurite
from tools.tutorial_page import choose_free_port, differences, newcomer, run_page, steps

pytestmark = pytest.mark.e2e


@pytest.fixture
def shell(tmp_path: Path, azurite: Azurite) -> Iterator[dict[str, str]]:
    """The environment of somebody new to blobsync, whose emulator has a free port and is installed already."""
    environ = newcomer(tmp_path, Path(sys.executable).parent, TOOLS)
    choose_free_port(environ)
    yield environ
    subprocess.run(["blobsync", "emulator", "stop"], env=environ, capture_output=True)


def test_the_tutorial_runs_a_program_on_this_machine_then_as_a_job_and_again_from_its_checkpoint() -> None:
    commands = [step.command for step in steps()]
    here, job = (commands.index(f"blobsync {words} python3 show.py") for words in ("local", "submit --wait"))
    assert commands.index("blobsync init") < here < job < commands.index("blobsync resubmit")


def test_each_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path, shell: dict[str, str]) -> None:
    ran = run_page(tmp_path, shell)
    assert len(ran) > 20
    assert differences(ran, tmp_path) == []
    # These say that something differs, as the page does.
    failed = [(each.step.command, each.code) for each in ran if each.code]
    assert failed == [("blobsync status", 3), ("blobsync verify data/notes", 3)]
