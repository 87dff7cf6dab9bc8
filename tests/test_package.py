"""The wheel and the sdist: what they hold, and that two builds of the same files are the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from blobsync import __version__
from tests.source import ROOT, tracked_files

# A moment for all files, as packagers set it: https://reproducible-builds.org/specs/source-date-epoch/
_MOMENT = "1700000000"
_BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]))
print(build_sdist(sys.argv[1]))
"""


def _build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    pytest.importorskip("hatchling", reason="./dev setup installs it")
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": _MOMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    wheel, sdist = done.stdout.split()[-2:]
    return folder / wheel, folder / sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _build(tmp_path_factory.mktemp("packages") / "one")


def _tracked() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in tracked_files()}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(wheel.read(f"blobsync-{__version__}.dist-info/METADATA").decode())
        scripts = wheel.read(f"blobsync-{__version__}.dist-info/entry_points.txt").decode()
    assert names == {name for name in _tracked() if name.startswith("blobsync/")}
    assert (metadata["Name"], metadata["Version"]) == ("blobsync", __version__)
    assert "blobsync = blobsync.cli.main:main" in scripts
    assert {"web", "kubernetes", "docs"} <= set(metadata.get_all("Provides-Extra") or ())


def test_the_sdist_holds_what_its_tests_and_pages_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    hidden = {name for name in _tracked() if name.startswith(".")}
    assert _tracked() - hidden <= names
    assert names - _tracked() == {"PKG-INFO"}


def test_two_builds_of_the_same_files_are_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = _build(tmp_path / "two")
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in again] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in built
    ]
