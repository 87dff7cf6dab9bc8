"""One place for each rule: what is written down here stands once in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.source import modules

# The runner is one file for nodes where nothing else is installed; it repeats what it needs.
ALONE = ("blobsync.jobs.runner",)


def _texts() -> Iterator[tuple[str, str]]:
    """Every text of the code that is no docstring, with its module; of an f-string each fixed part."""
    for module in modules():
        if module.name in ALONE:
            continue
        documents = {
            id(node.body[0].value)
            for node in ast.walk(module.tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                yield module.name, node.value


TEXTS = list(_texts())


@pytest.mark.parametrize(
    ("rule", "pattern", "homes"),
    [
        ("what stands in the place of a secret", r"\*\*\*", {"blobsync.base.redaction"}),
        # The scan of code for credentials looks for them in bytes.
        ("how a signature looks in a text", r"sig\(\?:|\[sS\]\[iI\]\[gG\]", {"blobsync.base.redaction"}),
    ],
)
def test_the_rule_is_written_in_one_place(rule: str, pattern: str, homes: set[str]) -> None:
    found = {name for name, text in TEXTS if re.search(pattern, text)}
    assert found == homes, rule
