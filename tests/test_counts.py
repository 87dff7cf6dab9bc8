"""Counts as people read them: 12,211 files, never 12211, and 1 file, never 1 files."""

from __future__ import annotations

import re
from pathlib import Path

_ROOM = Path(__file__).parents[1] / "blobsync"
_COUNTED = "files|blobs|entries|bytes|jobs|nodes|tries|rows|processes|workers|lines|days|GPUs|pods"
_MORE = "(?:more |other |such |extra )?"
# What stands in braces or brackets of an expression.
_INNER = r"\[[^\]]*\]|\([^)]*\)"
# A figure in a text that stands before what it counts, without a format.
_BARE = re.compile(rf"\{{(?:[^{{}}:!'\"]|{_INNER})+\}} {_MORE}(?:{_COUNTED})\b")
# One that stands before more than one of them, whatever it is. Constants, and the second figure of 'x of y', are known
# to be more than one, or are one of several.
_MANY = re.compile(
    rf"(?<! of )(?<!to )\{{(?![A-Z_]+:)(?:[^{{}}:!'\"]|{_INNER})+:,\}} {_MORE}(?:{_COUNTED.replace('bytes|', '')})\b"
)
_KNOWS_ONE = re.compile(r"== 1\b|> 1\b")
# {{ ... }} of a template, and ${ ... } or a concatenation of a script, before what it counts.
_TEMPLATE = re.compile(rf"\{{\{{(?:(?!\}}\}})[^|]|\|(?!count\b))*\}}\}}(?:</\w+>)? {_MORE}(?:{_COUNTED})\b(?!=)")
_SCRIPT = re.compile(rf"(?:\$\{{[^}}]*\}}|\+ [\"'`]) {_MORE}(?:{_COUNTED})\b")
# Of one there is nothing to tell: one node or process has no rank to look for, and one job is not ambiguous.
_NEVER_ONE = re.compile(
    "do not fill whole nodes|evenly among|jobs could be|jobs end with|of a job on Azure ML|need launcher mpi"
    "|but the rank of this one|but the address of the master"
)
# It makes its data itself.
_DEMO = "cli/demo.py:"


def _lines(pattern: str) -> list[tuple[str, str]]:
    """Each line of the files, with its place."""
    return [
        (f"{file.relative_to(_ROOM)}:{number}", line.strip())
        for file in sorted(_ROOM.rglob(pattern))
        for number, line in enumerate(file.read_text().splitlines(), 1)
    ]


def test_large_counts_have_commas() -> None:
    bare = [f"{at}: {line}" for at, line in _lines("*.py") if "{" in line and _BARE.search(line)]
    assert not [each for each in bare if 'f"<' not in each and ": # " not in each]


def test_one_is_not_told_as_many() -> None:
    many = [f"{at}: {line}" for at, line in _lines("*.py") if ":,}" in line and _MANY.search(line)]
    told = [each for each in many if 'f"<' not in each and not each.startswith(_DEMO)]
    assert not [each for each in told if not (_KNOWS_ONE.search(each) or _NEVER_ONE.search(each))]


def test_counts_of_the_page_are_formatted() -> None:
    """By the filter ``count``, which has commas and knows one from many."""
    assert not [f"{at}: {line}" for at, line in _lines("*.html") if _TEMPLATE.search(line)]
    assert not [f"{at}: {line}" for at, line in _lines("*.js") if _SCRIPT.search(line)]
