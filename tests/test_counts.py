"""Counts as people read them: 12,211 files, never 12211."""

from __future__ import annotations

import re
from pathlib import Path

_ROOM = Path(__file__).parents[1] / "blobsync"
# A figure in a text that stands before what it counts, without a format.
_BARE = re.compile(
    r"\{(?:[^{}:!'\"]|\[[^\]]*\]|\([^)]*\))+\} (?:more |other |such |extra )?(?:files|blobs|entries|bytes)\b"
)


def test_large_counts_have_commas() -> None:
    bare = [
        f"{file.relative_to(_ROOM)}:{number}: {line.strip()}"
        for file in sorted(_ROOM.rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "{" in line and _BARE.search(line) and 'return f"<' not in line
    ]
    assert not bare
