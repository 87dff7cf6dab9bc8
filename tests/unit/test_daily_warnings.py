"""Warnings that are shown once a day."""

from __future__ import annotations

import stat
from pathlib import Path

from blobsync.base.daily_warnings import DAY_SECONDS, shown_today

NOW = 1_800_000_000.0


def test_a_warning_is_reported_once_a_day_in_each_project(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    def told(warning: str, project: str, hours: float) -> bool:
        return shown_today(warning, Path(project), environ, clock=lambda: NOW + hours * 3600)

    assert [told("a", "/p", 0), told("a", "/p", 1), told("b", "/p", 1), told("a", "/q", 1)] == [
        False,
        True,
        False,
        False,
    ]
    assert [told("a", "/p", 23.9), told("a", "/p", 24), told("a", "/p", 25)] == [True, False, True]
    # What is over is not kept, and a clock that was set back does not silence anything.
    assert told("c", "/p", 100) is False
    assert len(list((tmp_path / "blobsync" / "told").iterdir())) == 1
    assert told("c", "/p", 100 - 2 * DAY_SECONDS / 3600) is False


def test_what_is_remembered_is_for_the_user_alone_and_names_nothing(tmp_path: Path) -> None:
    shown_today("/secret/name", Path("/p"), {"XDG_STATE_HOME": str(tmp_path)})
    (file,) = (tmp_path / "blobsync" / "told").iterdir()
    assert file.read_bytes() == b""
    assert "secret" not in file.name
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_where_nothing_can_be_remembered_it_is_told_again(tmp_path: Path) -> None:
    (tmp_path / "blobsync").write_text("no folder")
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert [shown_today("a", Path("/p"), environ) for _ in range(2)] == [False, False]
