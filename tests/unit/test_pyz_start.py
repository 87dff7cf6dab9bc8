"""Folders of unpacked ``blobsync.pyz``: which are removed, and which kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.pyz_start import MARK, held, remove_unused

DAY = 86_400.0
NOW = 2_000_000_000.0
THIS, OLD = "a" * 32, "b" * 32


def version(home: Path, name: str, days: float) -> Path:
    """A folder that was last used so many days ago."""
    folder = home / name
    (folder / "blobsync").mkdir(parents=True)
    (folder / MARK).write_text(name)
    os.utime(folder, (NOW - days * DAY, NOW - days * DAY))
    return folder


def names(home: Path) -> set[str]:
    return {each.name for each in home.iterdir()}


@pytest.mark.parametrize(("days", "stays"), [(0.0, True), (29.9, True), (30.1, False), (400.0, False)])
def test_a_version_goes_that_was_not_started_for_thirty_days(tmp_path: Path, days: float, stays: bool) -> None:
    version(tmp_path, OLD, days)
    version(tmp_path, THIS, 400)
    remove_unused(str(tmp_path), THIS, NOW)
    assert names(tmp_path) == ({THIS, OLD} if stays else {THIS})


def test_a_version_stays_that_a_process_holds_and_each_start_counts_as_use(tmp_path: Path) -> None:
    folder = version(tmp_path, OLD, 400)
    # As a process of last month that still runs: it has the lock, and the old time.
    assert held(str(folder), NOW - 399.5 * DAY)
    remove_unused(str(tmp_path), THIS, NOW)
    assert names(tmp_path) == {OLD}
    started = version(tmp_path, "c" * 32, 400)
    assert held(str(started), NOW) and started.stat().st_mtime == NOW


def test_a_version_that_is_gone_is_not_held(tmp_path: Path) -> None:
    assert not held(str(tmp_path / OLD), NOW)


def test_links_strange_names_and_what_they_lead_to_stay(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "pyz", version(tmp_path, "elsewhere", 400)
    home.mkdir()
    (home / OLD).symlink_to(elsewhere)
    version(home, "notes", 400)
    (home / ("d" * 32)).write_text("a file")
    gone = version(home, "e" * 32, 400)
    (gone / "link").symlink_to(elsewhere)
    os.utime(gone, (0.0, 0.0))
    partial = home / "tmp1234abcd"
    partial.mkdir()
    os.utime(partial, (0.0, 0.0))
    remove_unused(str(home), THIS, NOW)
    assert names(home) == {OLD, "notes", "d" * 32}
    assert (elsewhere / MARK).read_text() == "elsewhere"
