"""One meaning for each name: no two modules call different things alike."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.source import modules

# What several modules do in the same sense: the command has the name of the function that it calls, each backend
# answers the same questions, each program begins with main.
SAME_MEANING = {
    *("main", "register", "create", "read_holders"),
    *("resolve", "resubmit", "submit", "verify", "watch"),
}
# The runner is one file for nodes where nothing else is installed.
ALONE = ("blobsync.jobs.runner",)


def _homes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        if module.name not in ALONE:
            for node in module.tree.body:
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                    found[node.name].append(module.name)
    return {name: homes for name, homes in found.items() if len(homes) > 1}


def test_each_class_and_function_has_a_name_of_its_own() -> None:
    assert {name: homes for name, homes in _homes().items() if name not in SAME_MEANING} == {}


def test_names_that_are_shared_are_shared() -> None:
    assert set(_homes()) >= SAME_MEANING
