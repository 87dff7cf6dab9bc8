"""``blobsync.pyz``: one file, run by a Python that has no packages at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.process import UNPACKED_MARK
from tests.conftest import TOOLS
from tests.documents import check_output
from tests.e2e.world import Container, Project, hashes, random_files, read_tree, write_tree
from tools.pyz import PURE, build_wheel, pyz
from tools.pyz_start import MARK, unpacked

pytestmark = pytest.mark.e2e

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatch_vcs", reason="./dev setup installs it")
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def one_file(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, far from the checkout."""
    made = tmp_path_factory.mktemp("pyz") / "blobsync.pyz"
    made.write_bytes(pyz(wheel))
    return made


def _run(one_file: Path, project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    # No site-packages, no environment of Python's, no folder of ours.
    argv = [sys.executable, "-I", "-S", str(one_file), *words]
    environ = {**os.environ, **project.environ}
    done = subprocess.run(argv, cwd=project.root, env=environ, capture_output=True, text=True, timeout=150)
    check_output(done.stdout)
    return done


def test_it_uploads_lists_downloads_and_removes(one_file: Path, project: Project, container: Container) -> None:
    project.configure(container, key=False, sas=container.sas("rwdl"))
    files = random_files(7, 30, (200_000,))
    write_tree(project.data, files)
    for words, expected in (
        (("u", "data"), {"transferred": 31, "verified": 31}),
        (("u", "data"), {"unchanged": 31, "transferred": 0}),
        # Two processes: each of them has to find what the file holds.
        (("u", "data", "--processes", "2", "--overwrite", "--engine", "direct"), {"unchanged": 31}),
        (("ls", "-r", "data"), {"count": 31}),
    ):
        done = _run(one_file, project, *words, "--json")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["data"].items() >= expected.items(), done
    assert container.contents("data/") == hashes(files)
    shutil.rmtree(project.data)
    assert _run(one_file, project, "d", "data", "--processes", "2").returncode == 0
    assert read_tree(project.data) == hashes(files)
    # With Azure's SDK so many are deleted in batches.
    done = _run(one_file, project, "rm", "-y", "data", "--json")
    assert done.returncode == 0 and container.names() == [], done


def test_it_says_what_it_lacks_and_unpacks_once_for_its_user_alone(
    one_file: Path, project: Project, container: Container
) -> None:
    project.configure(container, url="https://127.0.0.1:1", key=False)
    done = _run(one_file, project, "ls", "data")
    assert (
        done.returncode == 2 and "blobsync: this needs azure" in done.stderr and "SAS or an account key" in done.stderr
    )
    cache = Path(project.environ["HOME"], ".cache/blobsync/pyz")
    [folder] = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / MARK).is_file() and MARK == UNPACKED_MARK
    made = (folder / MARK).stat().st_ctime_ns
    assert _run(one_file, project, "--version").stdout.startswith("blobsync ")
    assert (folder / MARK).stat().st_ctime_ns == made
    folder.chmod(0o777)
    done = _run(one_file, project, "--version")
    assert done.returncode == 2 and "is not a folder that only you can write to" in done.stderr


def test_an_emulator_that_it_cannot_prepare_does_not_stay(one_file: Path, project: Project) -> None:
    data = Path(project.environ["HOME"], ".local/share/blobsync")
    data.mkdir(parents=True)
    for installed in TOOLS.glob("azurite-*"):
        (data / installed.name).symlink_to(installed)
    done = _run(one_file, project, "emulator", "start", "--port", "0", "--in-memory")
    assert done.returncode == 2 and "blobsync: this needs azure" in done.stderr, done
    assert "successfully listens" in (data / "emulator" / "azurite.log").read_text(encoding="utf-8")
    assert _run(one_file, project, "emulator", "status").stdout.startswith("not running")


def test_a_cache_of_somebody_else_is_not_run(one_file: Path, tmp_path: Path) -> None:
    strange = tmp_path / "blobsync" / "pyz" / "digest"
    strange.parent.mkdir(parents=True, mode=0o700)
    strange.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="only you can write to"):
        unpacked(str(one_file), "digest", {"XDG_CACHE_HOME": str(tmp_path)})


def test_two_builds_are_the_same_bytes_and_hold_nothing_native(one_file: Path, wheel: Path) -> None:
    assert pyz(wheel) == one_file.read_bytes()
    with zipfile.ZipFile(one_file) as opened:
        names = opened.namelist()
    assert not [name for name in names if name.endswith((".so", ".pyd", ".pyc")) or name.startswith("azure/")]
    for package in PURE:
        about = [name for name in names if name.lower().startswith(f"{package.replace('-', '_')}-")]
        assert any("licen" in name.lower() for name in about), f"{package} goes without its licence"
