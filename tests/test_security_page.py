"""docs/security.md and tools/read_back.py name tests; each of them exists, and each line of the tables has one."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.source import ROOT
from tools.read_back import ROWS

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_OF_ROWS = " ".join(f"`tests/{test}`" for row in ROWS for test in row.tests)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE + _OF_ROWS)))


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_tests_are_named() -> None:
    assert len(NAMED) > 120


def test_each_named_test_exists() -> None:
    assert [file for file, _ in NAMED if not (ROOT / file).is_file()] == []
    assert [f"{file}::{name}" for file, name in NAMED if name and name not in _tests_of(file)] == []


def test_every_line_of_what_somebody_may_not_do_names_its_attack() -> None:
    without, inside = [], False
    for line in PAGE.splitlines():
        inside = line.startswith("|") and (inside or "may not |" in line)
        if inside and not re.fullmatch(r"\|[-|]+\|", line) and "may not |" not in line and "`tests/" not in line:
            without.append(line)
    assert not without
