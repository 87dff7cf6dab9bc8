"""Folders that containers write to: they go at the end, and nothing changes where their links lead."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blobsync.local.private_folders import container_folder
from tests.servers.other_user import UID


@contextmanager
def without_root() -> Iterator[Path]:
    """Yields a folder of an ordinary user, whom permissions bind, and makes this process that user."""
    was = os.geteuid()
    os.seteuid(was or UID)
    try:
        with tempfile.TemporaryDirectory() as place:
            yield Path(place)
    finally:
        os.seteuid(was)


def test_a_folder_that_nobody_may_write_to_goes_too_and_what_its_links_lead_to_stays_as_it_is() -> None:
    with without_root() as place:
        mine = place / "mine"
        mine.write_bytes(b"")
        mine.chmod(0o640)
        (place / "folder").mkdir(mode=0o750)
        with container_folder("made-", place) as folder:
            inner = folder / "inner"
            (inner / "deeper").mkdir(parents=True)
            (inner / "link").symlink_to(mine)
            (inner / "to-folder").symlink_to(place / "folder")
            (inner / "deeper").chmod(0)
            inner.chmod(0o500)
        assert sorted(os.listdir(place)) == ["folder", "mine"]
        assert stat.S_IMODE(mine.stat().st_mode) == 0o640
        assert stat.S_IMODE((place / "folder").stat().st_mode) == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of root")
def test_what_the_containers_root_made_is_no_error() -> None:
    with without_root() as place:
        user = os.geteuid()
        with container_folder("made-", place) as folder:
            os.seteuid(0)
            (folder / "cache").mkdir()
            (folder / "cache" / "file").write_bytes(b"")
            os.seteuid(user)
        assert (folder / "cache" / "file").exists()
        os.seteuid(0)
        (folder / "cache" / "file").unlink()
        (folder / "cache").rmdir()
        os.seteuid(user)
