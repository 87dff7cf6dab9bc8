"""tests/attacks.yaml and tools/read_back.py name tests that exist; each line of docs/security.md has some."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import yaml

from tests.source import ROOT
from tools.read_back import ROWS

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ATTACKS = yaml.safe_load((ROOT / "tests" / "attacks.yaml").read_text(encoding="utf-8"))
NAMED = sorted(
    {test.partition("::")[::2] for lines in ATTACKS.values() for tests in lines.values() for test in tests}
    | {test.partition("::")[::2] for row in ROWS for test in row.tests}
)


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_tests_are_named() -> None:
    assert len(NAMED) > 120


def test_each_named_test_exists() -> None:
    assert [file for file, _ in NAMED if not (ROOT / "tests" / file).is_file()] == []
    assert [f"{file}::{name}" for file, name in NAMED if name and name not in _tests_of(file)] == []


def _may_not() -> Iterator[tuple[str, str]]:
    """Each line of the tables about what somebody may not do: its heading, and what that is."""
    heading, inside = "", False
    for line in PAGE.splitlines():
        heading = line[4:] if line.startswith("### ") else heading
        inside = line.startswith("|") and (inside or "may not |" in line)
        if inside and not re.fullmatch(r"\|[-|]+\|", line) and "may not |" not in line:
            yield heading, line.split(" | ")[0].removeprefix("| ")


def test_every_line_of_what_somebody_may_not_do_has_its_attack() -> None:
    attacked = {(heading, line) for heading, lines in ATTACKS.items() for line, tests in lines.items() if tests}
    assert set(_may_not()) == {each for each in attacked if each[0] != "in the text"}, "tests/attacks.yaml names them"
