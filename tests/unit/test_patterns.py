"""Patterns that are compiled at their first use are those of ``re``."""

from __future__ import annotations

import re

import pytest

from blobsync.base.lazy_regexes import pattern


def test_a_pattern_does_what_a_compiled_one_does() -> None:
    late, now = pattern(r"(a)(\d*)", re.IGNORECASE), re.compile(r"(a)(\d*)", re.IGNORECASE)
    assert late.findall("A1 b a22") == now.findall("A1 b a22")
    assert late.sub("x", "A1 b") == "x b" and late.split("b a b") == now.split("b a b")
    match = late.fullmatch("a7")
    assert match is not None and match[2] == "7" and late.search("b") is None
    assert late.pattern == now.pattern


def test_it_is_compiled_once_and_not_before() -> None:
    broken = pattern("(")
    with pytest.raises(re.error):
        broken.search("x")
    good = pattern("x")
    assert good.search == good.search and good.match("x")


def test_what_a_pattern_does_not_have_is_an_error() -> None:
    with pytest.raises(AttributeError):
        pattern("x").compile()  # type: ignore[attr-defined]
