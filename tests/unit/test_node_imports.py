"""What a node needs: Python 3.10, blobsync and urllib3, nothing else."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

import blobsync

# Only what was found may be imported; everything else is not there.
BLOCKED = """
import sys
class Gate:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first not in ("blobsync", "urllib3"):
            raise ModuleNotFoundError(f"a node has no {name}", name=name)
sys.meta_path.insert(0, Gate())
"""


def bare_folder(folder: Path) -> Path:
    """Two packages and a start, as in the node archive."""
    for package in (blobsync, urllib3):
        place = Path(package.__path__[0])
        shutil.copytree(place, folder / place.name, ignore=shutil.ignore_patterns("__pycache__"))
    start = "import sys\nfrom blobsync.jobs.node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
    (folder / "__main__.py").write_text(BLOCKED + start)
    return folder


def find_python(version: str) -> str | None:
    """A program of this version; a version manager's shim is on PATH whether or not it has that version."""
    if version == f"3.{sys.version_info.minor}":
        return sys.executable
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    found = [*sorted(map(str, home.glob(f".pyenv/versions/{version}.*/bin/python"))), shutil.which(f"python{version}")]
    works = (path for path in found if path and not subprocess.run([path, "-c", ""], check=False).returncode)
    return next(works, None)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.13"])
def test_every_module_of_the_node_imports_with_urllib3_alone(version: str, tmp_path: Path) -> None:
    program = find_python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} on this machine")
    place = bare_folder(tmp_path / "archive")
    names = sorted(f"blobsync.jobs.node.{path.stem}" for path in (place / "blobsync/jobs/node").glob("[a-z]*.py"))
    assert len(names) > 10
    script = f"import sys; sys.path.insert(0, {str(place)!r})\n{BLOCKED}\nimport importlib\n"
    script += f"for name in {[*names, 'blobsync.jobs.node.__main__']}: importlib.import_module(name)\n"
    done = subprocess.run([program, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program, "-I", "-S", str(place), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "prepare" in done.stdout, done.stderr


def test_the_gate_of_these_tests_closes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED + "import yaml"], capture_output=True, text=True, timeout=60)
    assert "a node has no yaml" in done.stderr
