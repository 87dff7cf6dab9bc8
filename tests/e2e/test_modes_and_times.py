"""``modes`` and ``times`` of a folder entry: executable bits and times go there and come back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, write_tree

pytestmark = pytest.mark.e2e

_AT = 1_700_000_000_123_456_789
# More than one range of a download.
_FILES = {"run.sh": b"#!/bin/sh", "sub/notes": b"n", "large": b"x" * (9 << 20)}


def _configured(project: Project, container: Container, **keys: bool) -> Project:
    entry = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": "data", **keys}
    project.configure(container, extra={"config_param": {"data_folder": entry}})
    return project


def _seen(folder: Path) -> dict[str, tuple[bool, int]]:
    """Whether each file is executable, and its time."""
    found = {name: (folder / name).stat() for name in _FILES}
    return {name: (bool(each.st_mode & stat.S_IXUSR), each.st_mtime_ns) for name, each in found.items()}


def test_executable_bits_and_times_come_back(project: Project, container: Container, tmp_path: Path) -> None:
    _configured(project, container, modes=True, times=True)
    write_tree(project.data, _FILES)
    for number, name in enumerate(_FILES):
        (project.data / name).chmod(0o644 if name == "sub/notes" else 0o755)
        os.utime(project.data / name, ns=(_AT + number, _AT + number))
    sent = _seen(project.data)
    assert project.json("u", "data").data["transferred"] == 3
    said = container.blob("data/run.sh").get_blob_properties()
    assert said.metadata == {"mode": "100755", "mtime": "2023-11-14T22:13:20.123456789Z"}

    (tmp_path / "other").mkdir()
    other = _configured(Project(tmp_path / "other", project.environ), container, modes=True, times=True)
    assert other.json("d", "data").data["transferred"] == 3
    assert _seen(other.data) == sent
    for data in (project.data, other.data):
        os.utime(data / "run.sh")
    assert other.json("d", "data").data["transferred"] == 0
    # Of what others wrote there is neither; what a file had is not taken away.
    assert project.json("u", "data").data["unchanged"] == 3
    assert container.blob("data/run.sh").get_blob_properties().etag == said.etag
    container.put("data/run.sh", b"#!/bin/sh\nnew")
    assert other.json("d", "data").data["transferred"] == 1
    assert _seen(other.data)["run.sh"][0]

    for words in (["--engine", "azcopy"], ["--processes", "2"]):
        refused = project.run("u", "data", *words)
        assert refused.code == 2 and "modes and times" in refused.err, str(refused)
    plain = _configured(Project(tmp_path / "other", project.environ), container)
    (plain.data / "sub/notes").unlink()
    assert plain.json("d", "data").data["transferred"] == 1
    assert _seen(plain.data)["sub/notes"][1] != sent["sub/notes"][1]
