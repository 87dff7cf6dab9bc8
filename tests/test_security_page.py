"""docs/security.md names tests; each of them exists, and each line of its tables has one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.source import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_tests_are_named() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert not name or name in _tests_of(file)


def test_every_line_of_what_somebody_may_not_do_names_its_attack() -> None:
    without, inside = [], False
    for line in PAGE.splitlines():
        inside = line.startswith("|") and (inside or "may not |" in line)
        if inside and not re.fullmatch(r"\|[-|]+\|", line) and "may not |" not in line and "`tests/" not in line:
            without.append(line)
    assert not without
