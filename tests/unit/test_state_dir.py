"""Where state is kept, and that nothing which came with a project is taken for it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.local.state_dir import KEY_FILE, StateDir, open_state_dir, own_folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home)}


def key_file(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".config" / "blobsync" / KEY_FILE


def test_state_is_in_the_project_for_its_owner_only(project: Path, environ: dict[str, str]) -> None:
    state = open_state_dir(project, environ)
    assert state.root.parent == project / ".blobsync"
    assert (project / ".blobsync" / ".gitignore").read_text() == "*\n"
    for path in (project / ".blobsync", state.root, state.folder("receipts")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(key_file(environ).stat().st_mode) == 0o600
    assert open_state_dir(project, environ) == state


def test_another_users_state_is_another_folder(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    other = {"HOME": str(tmp_path / "other")}
    assert open_state_dir(project, environ).root != open_state_dir(project, other).root
    assert open_state_dir(project, environ).root.parent == open_state_dir(project, other).root.parent


def test_what_a_stranger_shipped_is_neither_used_nor_touched(project: Path, environ: dict[str, str]) -> None:
    shipped = {"index.sqlite": b"theirs", "jobs.sqlite": b"theirs", "state-0123456789abcdef/jobs.sqlite": b"theirs"}
    for name, data in shipped.items():
        file = project / ".blobsync" / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(data)
    state = open_state_dir(project, environ)
    assert not state.index_file.exists()
    assert not state.jobs_file.exists()
    assert {name: (project / ".blobsync" / name).read_bytes() for name in shipped} == shipped


def test_a_link_in_place_of_the_state_folder_is_not_followed(
    project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / ".blobsync").symlink_to(outside)
    state = open_state_dir(project, environ)
    assert state.root.is_relative_to(environ["HOME"])
    assert not list(outside.iterdir())


@pytest.mark.parametrize("kind", ["link", "file", "writable"])
def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").mkdir()
    place = tmp_path / "receipts"
    if kind == "link":
        place.symlink_to(tmp_path / "outside")
    elif kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(PermissionError):
        own_folder(place)
    with pytest.raises(LocalFileError):
        StateDir(tmp_path).folder("receipts")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, project: Path, environ: dict[str, str]) -> None:
    (project / ".blobsync").mkdir(mode=0o700)
    os.chown(project / ".blobsync", 12345, 12345)
    assert open_state_dir(project, environ).root.is_relative_to(environ["HOME"])


@pytest.mark.parametrize("spoil", ["link", "short", "readable"])
def test_a_key_that_others_may_know_is_not_used(
    project: Path, environ: dict[str, str], tmp_path: Path, spoil: str
) -> None:
    open_state_dir(project, environ)
    key = key_file(environ)
    if spoil == "link":
        key.rename(tmp_path / "key")
        key.symlink_to(tmp_path / "key")
    elif spoil == "short":
        key.write_bytes(b"short")
    else:
        key.chmod(0o644)
    assert open_state_dir(project, environ).root.is_relative_to(Path(environ["HOME"]) / ".local")


def test_without_any_folder_of_the_users_nothing_lasts(project: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    state = open_state_dir(project, {"HOME": str(tmp_path / "home")})
    assert not state.lasting
    assert state.folder("receipts").is_dir()
    with pytest.raises(LocalFileError, match="cannot record jobs") as refused:
        _ = state.jobs_file
    assert "XDG_STATE_HOME" in (refused.value.hint or "")


def test_commands_that_start_at_once_make_one_key(project: Path, environ: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {each.root for each in pool.map(lambda _: open_state_dir(project, environ), range(32))}
    assert len(found) == 1
    assert [path.name for path in key_file(environ).parent.iterdir()] == [KEY_FILE]
