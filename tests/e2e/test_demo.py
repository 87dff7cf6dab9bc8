"""The demo does what it says, and leaves what it was asked to leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.base.errors import UsageError
from blobsync.cli.demo import change_some, checksums, copy_data_set, run_demo
from tests.conftest import TOOLS

pytestmark = pytest.mark.e2e


def environ(home: Path) -> dict[str, str]:
    """The tools of the tests, in a data directory of the demo's own."""
    data = home / "blobsync"
    data.mkdir(parents=True)
    for installed in TOOLS.iterdir():
        if installed.name != "emulator":
            (data / installed.name).symlink_to(installed)
    return {**os.environ, "XDG_DATA_HOME": str(home)}


def test_the_whole_demo_runs_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    report = run_demo(None, keep=False, environ=environ(tmp_path), say=said.append, max_files=120)
    assert report.files == 120
    assert len(report.checks) == 5
    assert not report.folder.exists()
    shown = capfd.readouterr().out
    assert "uploaded 120 files" in shown
    assert "uploaded 3 files" in shown
    assert "downloaded 121 files" in shown
    assert any("here$ blobsync -c east -f aml u data/library" in line for line in said)


@pytest.mark.parametrize("what", ["file", "full folder"])
def test_a_place_that_is_taken_is_refused_before_anything_starts(tmp_path: Path, what: str) -> None:
    place = tmp_path / "taken"
    if what == "file":
        place.touch()
    else:
        place.mkdir()
        (place / "mine").touch()
    with pytest.raises(UsageError, match="already exists"):
        run_demo(place, keep=False, environ={}, say=print)


def test_the_data_set_is_real_and_its_changes_cannot_be_seen_by_size_or_clock(tmp_path: Path) -> None:
    files, _ = copy_data_set(tmp_path, 300)
    assert files == 300
    before = checksums(tmp_path)
    sizes = {path: (tmp_path / path).stat().st_size for path in before}
    changed = change_some(tmp_path)
    after = checksums(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} == set(changed)
    swapped = changed[1]
    assert (tmp_path / swapped).stat().st_size == sizes[swapped]
