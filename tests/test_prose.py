"""The language of README, docs, help and public docstrings; the rules are in tools/prose."""

from __future__ import annotations

import pytest

pytest.importorskip("proselint", reason="./dev setup installs it")
pytest.importorskip("spellchecker", reason="./dev setup installs it")

from tools.prose.rules import known_words, problems
from tools.prose.texts import prose, texts


def test_no_text_has_a_mistake_that_the_rules_know() -> None:
    found = [f"{name}:{problem.line}: {problem.what}" for name, text in texts() for problem in problems(text)]
    assert found == [], "a name or a term goes into tools/prose/words.txt"


def test_all_that_users_read_is_looked_at() -> None:
    names = {name for name, _ in texts()}
    assert {"README.md", "docs/jobs.md", "docs/how-to/in-ci.md", "the help", "docstrings (python-errors)"} <= names


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("# Plan\n\nIt uplaods the file.\n", 3, "uplaods: misspelt"),
        ("It moves the the file.\n", 1, "lexical illusion"),
        ("We utilize a plan.\n", 1, "utilize: use is plainer"),
        ("One.\n\nIt is done, in order to be safe.\n", 3, "in order to: to is plainer"),
        ("This is a very unique file.\n", 1, "unique"),
        (f"It goes {'on and ' * 30}on.\n", 1, "a sentence of 63 words"),
    ],
)
def test_each_rule_finds_its_mistake_and_the_line(text: str, line: int, told: str) -> None:
    assert [problem for problem in problems(text) if problem.line == line and told in problem.what], problems(text)


def test_code_and_links_are_no_prose() -> None:
    text = "Run `blobsync uplod`:\n\n```\nutilize teh\n```\n\n    indented teh\n\n[a page](teh/uplod.md), --teh\n"
    assert problems(text) == []
    assert prose(text).count("\n") == text.count("\n")


def test_the_list_of_words_is_sorted_and_holds_what_is_used() -> None:
    words = known_words()
    assert words == sorted(set(words))
    used = " ".join(prose(text) for _, text in texts()).lower()
    assert [word for word in words if word not in used] == []
