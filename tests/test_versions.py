"""The version is that of the git tag, wherever the files are: a clone, an archive, an sdist, a mere copy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import blobsync
from tests.source import ROOT

_VERSIONS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
print(json.dumps([ProjectMetadata(root, PluginManager()).version for root in sys.argv[1:]]))
"""
# What decides.
_FILES = (
    "pyproject.toml",
    "tools/index_readme.py",
    ".gitattributes",
    ".git_archival.txt",
    "README.md",
    "LICENSE",
    "blobsync/__init__.py",
)


def _newest() -> str:
    """The release that a clone without tags takes for its own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^fallback-version = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def _git(folder: Path, *words: str) -> str:
    own = [
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@localhost",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    ]
    done = subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """A repository whose only commit is tagged."""
    folder = tmp_path / "tagged"
    for name in _FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "all")
    _git(folder, "tag", "-a", "v1.2.3", "-m", "1.2.3")
    return folder


def test_the_version_is_that_of_the_tag_and_each_copy_knows_it(tagged: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatch_vcs", reason="./dev setup installs it")
    if not (ROOT / ".git_archival.txt").is_file():
        pytest.skip("an sdist has no file of git's")
    later, shallow, archive, copy, sdist = (
        tmp_path / name for name in ("later", "shallow", "archive", "copy", "sdist")
    )
    _git(tmp_path, "clone", "-q", str(tagged), str(later))
    _git(later, "commit", "-q", "--allow-empty", "-m", "more")
    _git(tmp_path, "clone", "-q", "--depth", "1", "--no-tags", later.as_uri(), str(shallow))
    archive.mkdir()
    _git(tagged, "archive", "--output", str(tmp_path / "archive.tar"), "v1.2.3")
    with tarfile.open(tmp_path / "archive.tar") as opened:
        opened.extractall(archive, filter="data")
    shutil.copytree(tagged, copy, ignore=shutil.ignore_patterns(".git"))
    shutil.copytree(copy, sdist)
    (sdist / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: blobsync\nVersion: 1.2.3\n")
    places = [str(each) for each in (tagged, later, shallow, archive, sdist, copy)]
    done = subprocess.run([sys.executable, "-c", _VERSIONS, *places], capture_output=True, text=True, check=True)
    revision = _git(later, "rev-parse", "HEAD")[:7]
    found = json.loads(done.stdout)
    assert found[:1] + found[3:5] == ["1.2.3"] * 3
    assert found[1].startswith(f"1.2.3+g{revision}"), found
    # Where no tag is, the release that pyproject.toml names.
    assert found[2].startswith(f"{_newest()}+g") and revision in found[2], found
    assert found[5] == _newest()


def test_a_clone_without_tags_has_the_version_of_the_newest_release() -> None:
    releases = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0] == _newest()


def test_modules_without_an_installation_have_no_version() -> None:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import blobsync; print(blobsync.__version__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0.0.0\n"
    assert blobsync.__version__ != "0.0.0"
