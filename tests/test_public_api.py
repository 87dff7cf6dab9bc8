"""The names that library users rely on."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import blobsync
from blobsync.base import errors
from blobsync.base.user_folders import data_home
from tests.source import ROOT, modules

PUBLIC = dir(blobsync)


def test_names_are_sorted_and_there() -> None:
    assert sorted(PUBLIC) == PUBLIC
    assert getattr(blobsync, "__all__") == PUBLIC  # noqa: B009 - type checkers know the names from the imports
    for name in PUBLIC:
        assert getattr(blobsync, name) is not None


def test_late_imports_are_those_that_type_checkers_see() -> None:
    (block,) = (each for each in ast.parse(Path(blobsync.__file__).read_text()).body if isinstance(each, ast.If))
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    seen = {alias.asname or alias.name: (each.module, alias.name) for each in imports for alias in each.names}
    assert seen.pop("*") == (errors.__name__, "*")
    for alias in ("CodeDecision", "JobState"):
        module, own = blobsync._homes()[alias]
        assert seen.pop(own) == (module, own)
        seen[alias] = (module, own)
    theirs = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    seen.update(
        {name: (errors.__name__, name) for name in theirs}, __version__=("blobsync.base.version", "__version__")
    )
    assert seen == blobsync._homes()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        blobsync.nothing_of_ours  # noqa: B018 - looking at it is the test


def test_the_version_is_that_of_what_is_installed() -> None:
    assert version("blobsync") == blobsync.__version__


def test_importing_the_package_imports_next_to_nothing() -> None:
    code = "import sys, blobsync; print(*sorted(name for name in sys.modules if name.startswith('blobsync')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["blobsync"]


def test_types_are_marked_and_files_that_are_no_modules_come_along() -> None:
    package = Path(blobsync.__file__).parent
    for name in ("py.typed", "emulator/guard.js", "emulator/package.json", "emulator/package-lock.json"):
        assert (package / name).is_file()


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
        "blobsync.project.api.Project.open",
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


def test_values_that_callers_get_are_frozen() -> None:
    public = [getattr(blobsync, name) for name in PUBLIC]
    mutable = [
        one.__name__
        for one in public
        if inspect.isclass(one) and dataclasses.is_dataclass(one) and not one.__dataclass_params__.frozen  # type: ignore[attr-defined]
    ]
    assert not mutable


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


# Types of fields that hold many things, or values that have a page of them.
_MANY = re.compile(r"tuple\[|dict\[|list\[|Mapping\[|Home")
_FEW = {"ClusterSummary", "Docker", "FolderLink", "JobFilter"}

# What is handed out, and is nobody's to build on.
_INSIDE = {
    *("JobContext", "CodeProject", "Connections", "Option", "StateDir"),
    *(
        "AccountFeatures",
        "KeptAttributes",
        "BlobStore",
        "Home",
        "folders",
        "status",
        "IndexKey",
        "ProcessRunner",
        "ProgressCounter",
        "ProjectOpener",
        "SasToken",
        "Secret",
        "StopRequest",
        "Written",
        "Document",
        "JobRefusal",
    ),
    *("AmlClient", "BesideProgram", "KeeperRecord", "KeptFolder", "TunnelKeeper"),
}


def _annotations(node: ast.ClassDef | ast.FunctionDef) -> Iterator[ast.expr]:
    """What the public calls, properties and fields of a class take and give."""
    for item in ast.walk(node) if isinstance(node, ast.FunctionDef) else node.body:
        if isinstance(item, ast.AnnAssign) and not getattr(item.target, "id", "_").startswith("_"):
            yield item.annotation
        elif isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name == "__init__"):
            every = (*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs, item.args.vararg, item.args.kwarg)
            yield from (each.annotation for each in every if each and each.annotation)
            yield from [item.returns] if item.returns else []


def _origins(tree: ast.Module, module: str) -> dict[str, str]:
    """Where each name of ours in a module is from: its own, or that of an import."""
    found = {node.name: module for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blobsync"):
            found |= {alias.asname or alias.name: str(node.module) for alias in node.names}
    return found


def _touched() -> Iterator[tuple[str, str]]:
    """Each class of ours in the annotations of what is public, with what has it there."""
    trees = {module.name: module.tree for module in modules()}
    for name in PUBLIC:
        value = getattr(blobsync, name)
        for one in value.__mro__ if inspect.isclass(value) else [value]:
            home = getattr(one, "__module__", "")
            if home not in trees or not hasattr(one, "__name__"):
                continue
            defined = [node for node in trees[home].body if getattr(node, "name", None) == one.__name__]
            origins = _origins(trees[home], home)
            for annotation in (each for node in defined for each in _annotations(node)):  # type: ignore[arg-type]
                for part in ast.walk(annotation):
                    used = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                    owner = (
                        part.value.id if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) else used
                    )
                    if owner in origins and used not in ("browse", "content", "removal", "sharing"):
                        yield f"{home}.{one.__name__}", used


def test_everything_that_a_caller_touches_is_exported() -> None:
    touched = list(_touched())
    assert ("blobsync.project.api.Project", "VerifyReport") in touched
    assert ("blobsync.jobs.queries.JobQueries", "JobRecord") in touched
    # The last two are exported under longer names.
    public = {*PUBLIC, "State", "Decision"}
    assert not sorted({f"{used}, of {where}" for where, used in touched if used not in public | _INSIDE})


def test_what_can_hold_much_shows_itself_in_a_few_words() -> None:
    """Pages of files, and values that hold such values, have a representation of their own."""
    long = []
    for name in PUBLIC:
        value = getattr(blobsync, name)
        if not (inspect.isclass(value) and dataclasses.is_dataclass(value)):
            continue
        many = [field.name for field in dataclasses.fields(value) if field.repr and _MANY.search(str(field.type))]
        if many and name not in _FEW and "def __repr__" not in inspect.getsource(value):
            long.append(f"{name}: {', '.join(many)}")
    assert not long


def test_every_error_is_exported() -> None:
    mine = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert mine <= set(PUBLIC)


@pytest.mark.parametrize("value", [blobsync.Project, blobsync.Jobs, blobsync.TransferOptions, blobsync.Progress])
def test_the_page_about_python_names_every_call_and_field(value: type) -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    names = {name for one in value.__mro__ if one.__module__.startswith("blobsync") for name in vars(one)}
    missing = {name for name in names if not name.startswith("_") and not re.search(rf"\b{name}\b", text)}
    # For those who build on them, not for callers.
    assert missing <= {
        "with_cluster",
        "connections",
        "state",
        "features",
        "features_in",
        "recovery",
        "settles_both_ends",
    }
