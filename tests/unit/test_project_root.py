"""The owner of a project: git's rule for repositories, and its exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.user_folders import is_own
from blobsync.config.project_root import is_safe_project


@pytest.mark.parametrize(
    ("owner", "user", "environ", "own"),
    [
        (1000, 1000, {}, True),
        (1001, 1000, {}, False),
        (0, 1000, {}, False),
        (0, 0, {}, True),
        (1000, 0, {}, False),
        (1000, 0, {"SUDO_UID": "1000"}, True),
        (1001, 0, {"SUDO_UID": "1000"}, False),
        (1000, 0, {"SUDO_UID": ""}, False),
        # Only for root does it say who called.
        (1001, 1000, {"SUDO_UID": "1001"}, False),
    ],
)
def test_own_is_what_git_takes_for_it(owner: int, user: int, environ: dict[str, str], own: bool) -> None:
    assert is_own(owner, user, environ) is own


@pytest.mark.parametrize(
    ("entry", "listed"),
    [
        ("/a/b", True),
        ("/a/b/", True),
        ("/a/*", True),
        ("/*", True),
        ("*", True),
        ("/a", False),
        ("/a/b/*", False),
        ("/a/b/c", False),
        ("/a/bc", False),
        ("a/b", False),
        ("", False),
    ],
)
def test_a_project_is_listed_by_its_path_or_by_a_folder_above(entry: str, listed: bool) -> None:
    assert is_safe_project(Path("/a/b"), (entry,)) is listed
