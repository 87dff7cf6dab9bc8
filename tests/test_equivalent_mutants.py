"""The mutants that are said to be equivalent: of lines that exist, each with its reason."""

from __future__ import annotations

from typing import Any

import yaml

from tests.source import ROOT

ENTRIES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/equivalent_mutants.yaml").read_text("utf-8")) or []


def _lines(module: str) -> str:
    text = (ROOT / "blobsync" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return " ".join(line.strip() for line in text.splitlines())


def test_each_is_of_a_line_that_exists() -> None:
    assert [entry for entry in ENTRIES if entry["before"] not in _lines(entry["module"])] == []


def test_each_says_why_no_test_can_notice_it() -> None:
    assert [entry for entry in ENTRIES if len(entry["reason"].split()) < 5] == []
