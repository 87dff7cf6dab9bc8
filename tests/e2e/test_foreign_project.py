"""A project of another user of the machine is not used, unless the user said so outside of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.world import Project

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else"),
]

STRANGER = 54_321


@pytest.fixture
def foreign(project: Project) -> Project:
    """``aux_data/`` of a stranger, in a folder of a stranger, above the current folder."""
    cluster = project.root / "aux_data" / "aml" / "aml.yaml"
    cluster.parent.mkdir(parents=True)
    cluster.write_text("platform: local\nconfig_param: {}\n")
    os.chown(project.root, STRANGER, STRANGER)
    os.chown(project.root / "aux_data", STRANGER, STRANGER)
    below = project.root / "mine"
    below.mkdir()
    return Project(below, project.environ)


EVERY_KIND = [
    ("ls",),
    ("resolve", "x"),
    ("u", "x"),
    ("plan", "d", "x"),
    ("config", "check"),
    ("doctor",),
    ("init",),
    ("submit", "touch ran"),
    ("local", "touch ran"),
    ("q",),
]


@pytest.mark.parametrize("words", EVERY_KIND, ids=" ".join)
def test_no_command_uses_it_and_each_says_how_to(foreign: Project, words: tuple[str, ...]) -> None:
    done = foreign.run(*words)
    root = foreign.root.parent
    assert done.code == 2, str(done)
    assert f"{root} belongs to user {STRANGER}, not to you (user root)" in done.err
    assert f"/.config/blobsync/config.yaml: safe_projects: ['{root}']" in done.err
    assert f"BLOBSYNC_SAFE_PROJECTS={root}" in done.err
    assert sorted(os.listdir(root)) == ["aux_data", "mine"]
    assert not os.listdir(foreign.root)


@pytest.mark.parametrize("way", ["file", "variable", "sudo"])
def test_the_user_can_say_that_it_is_safe(foreign: Project, way: str) -> None:
    root = foreign.root.parent
    if way == "file":
        file = Path(foreign.environ["HOME"], ".config", "blobsync", "config.yaml")
        file.parent.mkdir(parents=True, mode=0o700)
        file.write_text(f"safe_projects: ['{root}']\n")
        file.chmod(0o600)
    else:
        foreign.environ |= {"variable": {"BLOBSYNC_SAFE_PROJECTS": f"/x:{root}"}, "sudo": {"SUDO_UID": str(STRANGER)}}[
            way
        ]
    assert foreign.run("ls").code == 0


def test_what_the_project_says_of_itself_does_not_count(foreign: Project) -> None:
    (foreign.root.parent / "aux_data" / "aml" / "aml.yaml").write_text("safe_projects: ['*']\nplatform: local\n")
    assert foreign.run("ls").code == 2


def test_a_strangers_aux_data_in_a_folder_of_ones_own_is_not_used(foreign: Project) -> None:
    root = foreign.root.parent
    os.chown(root, 0, 0)
    done = foreign.run("ls")
    assert done.code == 2
    assert f"{root}/aux_data belongs to user {STRANGER}" in done.err


def test_config_new_writes_no_key_into_a_strangers_folder(foreign: Project) -> None:
    done = Project(foreign.root.parent, foreign.environ).run("config", "new", "--emulator")
    assert done.code == 2, str(done)
    assert not (foreign.root.parent / "aux_data" / "configs").exists()


def test_another_user_uses_their_own_project_and_not_that_of_root(project: Project) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv (util-linux)")
    cluster = project.root / "aux_data" / "aml" / "aml.yaml"
    cluster.parent.mkdir(parents=True)
    cluster.write_text("platform: local\nconfig_param: {}\n")
    for folder in (project.root, *project.root.parents[:3]):
        folder.chmod(0o755)
    them = Project(project.root, project.environ, ("setpriv", f"--reuid={STRANGER}", "--clear-groups"))
    if "Permission denied" in them.run("--version").err:
        pytest.skip("another user cannot read this checkout")
    assert "belongs to user root" in them.run("ls").err
    os.chown(project.root, STRANGER, STRANGER)
    os.chown(project.root / "aux_data", STRANGER, STRANGER)
    assert them.run("ls").code == 0
