"""The names that library users rely on."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import blobsync
from blobsync.base.user_data import data_home
from tests.source import ROOT, modules


def test_names_are_sorted_and_there() -> None:
    assert blobsync.__all__ == sorted(blobsync.__all__)
    assert dir(blobsync) == blobsync.__all__
    for name in blobsync.__all__:
        assert getattr(blobsync, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        blobsync.nothing_of_ours  # noqa: B018 - looking at it is the test


def test_the_version_stands_in_one_place() -> None:
    assert version("blobsync") == blobsync.__version__


def test_importing_the_package_imports_next_to_nothing() -> None:
    code = "import sys, blobsync; print(*sorted(name for name in sys.modules if name.startswith('blobsync')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["blobsync"]


def test_types_are_marked_and_files_that_are_no_modules_come_along() -> None:
    package = Path(blobsync.__file__).parent
    for name in ("py.typed", "emulator/guard.js", "emulator/package.json", "emulator/package-lock.json"):
        assert (package / name).is_file()


def test_python_examples_of_the_readme_use_names_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
        for line in block.splitlines():
            if line.startswith("project = Project."):
                assert hasattr(blobsync.Project, line.removeprefix("project = Project.").partition("(")[0])
            elif line.startswith("result = project."):
                assert hasattr(blobsync.Project, line.removeprefix("result = project.").partition("(")[0])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.local/share/blobsync"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/data"}, "/data/blobsync"),
        ({"HOME": "/h", "XDG_DATA_HOME": "relative"}, "/h/.local/share/blobsync"),
        ({"HOME": "/h", "XDG_DATA_HOME": ""}, "/h/.local/share/blobsync"),
    ],
)
def test_programs_are_kept_where_the_desktop_specification_says(environ: dict[str, str], expected: str) -> None:
    assert data_home(environ) == Path(expected)


def _callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function, class and method of every module, under its own name."""
    for module in modules():
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if getattr(value, "__module__", None) != module.name or not callable(value):
                continue
            yield f"{module.name}.{name}", value
            for inner, method in vars(value).items() if inspect.isclass(value) else ():
                method = getattr(method, "__func__", method)
                if inspect.isfunction(method):
                    yield f"{module.name}.{name}.{inner}", method


def test_no_default_of_any_signature_is_the_environment() -> None:
    found = dict(_callables())
    assert {
        "blobsync.project.open_project.OpenProject.open",
        "blobsync.store.connect.connect",
        "blobsync.azcopy.binary.find_azcopy",
    } <= set(found)
    telling = []
    for name, value in found.items():
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError:
            continue
        for each in parameters:
            same = isinstance(each.default, Mapping) and (each.default is os.environ or "PATH" in each.default)
            if same:
                telling.append(f"{name}({each.name})")
    assert not telling


def test_no_dataclass_shows_an_environment_in_its_repr() -> None:
    shown = [
        f"{name}.{field.name}"
        for name, value in _callables()
        if dataclasses.is_dataclass(value)
        for field in dataclasses.fields(value)
        if field.name in ("environ", "environment_variables") and field.repr
    ]
    assert not shown


def test_help_on_the_public_face_shows_no_secret_of_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import blobsync; help(blobsync.Project)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MARKED_SECRET": "s3cr3t-of-the-environment"},
    )
    assert "open(" in done.stdout
    assert "s3cr3t-of-the-environment" not in done.stdout
