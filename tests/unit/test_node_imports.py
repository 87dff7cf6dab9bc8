"""Nodes need Python 3.10, blobsync and urllib3, nothing else."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blobsync.jobspec.node_archive import node_archive
from tests.fakes.bootstrap import python_of

# Only modules in the archive may be imported; all others are missing.
BLOCKED = """
import sys
class Gate:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first not in ("blobsync", "urllib3"):
            raise ModuleNotFoundError(f"a node has no {name}", name=name)
sys.meta_path.insert(0, Gate())
"""


def unpacked_archive(folder: Path) -> Path:
    """The unpacked node archive."""
    with zipfile.ZipFile(io.BytesIO(node_archive({"HOME": str(folder.parent)}).body)) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_every_module_of_the_node_imports_with_urllib3_alone(version: str, tmp_path: Path) -> None:
    program = python_of(version)
    if program is None:
        pytest.skip(f"there is no Python {version} on this machine")
    place = unpacked_archive(tmp_path / "archive")
    files = [path.relative_to(place).with_suffix("") for path in (place / "blobsync").rglob("*.py")]
    names = sorted(".".join(path.parts).removesuffix(".__init__") for path in files)
    assert len([name for name in names if name.startswith("blobsync.node.")]) > 10
    script = f"import sys; sys.path.insert(0, {str(place)!r})\n{BLOCKED}\nimport importlib\n"
    script += f"for name in {names}:\n    try:\n        importlib.import_module(name)\n"
    # What reads a cluster file needs YAML; no node does.
    script += "    except ModuleNotFoundError as error:\n        assert 'a node has no' in str(error), error\n"
    script += "        assert not name.startswith('blobsync.node.'), error\n"
    done = subprocess.run([program, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_gate_of_these_tests_closes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED + "import yaml"], capture_output=True, text=True, timeout=60)
    assert "a node has no yaml" in done.stderr
