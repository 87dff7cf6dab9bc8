"""A project of another user of the machine is not used, unless the user said so outside of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import AS_INSTALLED, Project

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


@pytest.fixture
def in_the_open() -> Iterator[Project]:
    """A project of root's where every user of the machine can go; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="blobsync-test-") as folder:
        project = Project(Path(folder, "project"), {"HOME": f"{folder}/home"})
        for each in (project.root / "aux_data" / "aml", Path(folder, "home")):
            each.mkdir(parents=True)
        (project.root / "aux_data" / "aml" / "aml.yaml").write_text("platform: local\nconfig_param: {}\n")
        for each in (Path(folder), *Path(folder).rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        yield project


def test_another_user_uses_their_own_project_and_not_that_of_root(in_the_open: Project) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv (util-linux)")
    # Afresh: where this checkout is closed to them, nothing can be forked for them.
    in_the_open.before = (*AS_INSTALLED, "setpriv", f"--reuid={STRANGER}", "--clear-groups")
    version = in_the_open.run("--version")
    if version.code:
        pytest.skip(f"another user cannot run this checkout: {version.err}")
    done = in_the_open.run("ls")
    assert (done.code, "belongs to user root" in done.err) == (2, True), str(done)
    os.chown(in_the_open.root, STRANGER, STRANGER)
    os.chown(in_the_open.root / "aux_data", STRANGER, STRANGER)
    done = in_the_open.run("ls")
    assert done.code == 0, str(done)
