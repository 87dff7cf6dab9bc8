"""``--include`` and ``--exclude`` mean what the same lines in a .gitignore would mean."""

from __future__ import annotations

import pytest

from blobsync.base.errors import IgnorePatternError
from blobsync.plan.transfer_options import selector

PATHS = ("a.jpg", "b.txt", "old/c.jpg", "old/keep/d.jpg", "deep/old/e.jpg", "é #1.jpg")


def chosen(include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> set[str]:
    takes_part = selector(include, exclude)
    assert takes_part is not None
    return {path for path in PATHS if takes_part(path)}


def test_without_patterns_every_file_is_included() -> None:
    assert selector((), ()) is None


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("*.jpg",), (), {"a.jpg", "old/c.jpg", "old/keep/d.jpg", "deep/old/e.jpg", "é #1.jpg"}),
        ((), ("old/",), {"a.jpg", "b.txt", "é #1.jpg"}),
        ((), ("/old",), {"a.jpg", "b.txt", "deep/old/e.jpg", "é #1.jpg"}),
        (("old/",), ("keep",), {"old/c.jpg", "deep/old/e.jpg"}),
        (("*", "!b.txt"), (), set(PATHS) - {"b.txt"}),
        (("é*",), (), {"é #1.jpg"}),
    ],
)
def test_patterns_are_those_of_gitignore(
    include: tuple[str, ...], exclude: tuple[str, ...], expected: set[str]
) -> None:
    assert chosen(include, exclude) == expected


def test_an_invalid_pattern_is_an_error_that_names_the_option() -> None:
    with pytest.raises(IgnorePatternError, match="--exclude"):
        selector((), ("[",))
