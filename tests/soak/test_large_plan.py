"""Ten million files, planned by the installed program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.test_large_plan import planned
from tests.servers.listing_server import PER_FOLDER, listing_server, name_of

MANY = 10_000_000
# 2 GiB.
MOST_MB = 2147.0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("word", ["d", "u"])
def test_ten_million_files_are_planned_in_two_gigabytes(word: str, tmp_path: Path) -> None:
    tree = tmp_path / "project" / "data" / "tree"
    base = tmp_path / "names"
    for start in range(0, MANY if word == "u" else 0, PER_FOLDER):
        folder = tree / name_of(start).partition("/")[0]
        folder.mkdir(parents=True)
        if start % (60 * PER_FOLDER) == 0:
            # Hard links take no inode each, and a file has up to 65,000 of them on ext4.
            base.unlink(missing_ok=True)
            base.touch()
        for number in range(start, start + PER_FOLDER):
            os.link(base, tree / name_of(number))
    with listing_server(MANY) as url:
        data, peak = planned(tmp_path / "project", url, word, large=None)
    print(f"{word}: {MANY:,} files: {peak:.0f} MB")
    assert peak < MOST_MB
    assert data["planned" if word == "d" else "unchanged"] == MANY
