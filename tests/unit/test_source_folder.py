from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState
from blobsync.local.files import SourceFolder
from blobsync.local.os_errors import ChangedWhileReadError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for folder in ("data", "data/deep", "elsewhere", ".git", "aux_data/configs", ".blobsync/state"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "file").write_text(folder)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    return root


def _read(folder: SourceFolder, relative: str, expected: LocalState | None = None) -> str:
    source = folder.open(relative, expected)
    try:
        return source.read_at(0, source.state.size).decode()
    finally:
        source.close()


def test_files_below_the_folder_and_behind_links_of_the_project(project: Path) -> None:
    data = project / "data"
    (data / "link").symlink_to("../elsewhere/file")
    (data / "folder").symlink_to(project / "elsewhere")
    folder = SourceFolder(data, (project,))
    assert _read(folder, "file") == "data"
    assert _read(folder, "deep/file") == "data/deep"
    assert _read(folder, "link") == _read(folder, "folder/file") == "elsewhere"
    assert _read(SourceFolder(data / "file", (project,)), "") == "data"


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        pytest.param("link", "../../outside/file", "link", id="a file elsewhere"),
        pytest.param("folder", "../../outside", "folder/file", id="a folder elsewhere"),
        pytest.param("folder", "../.git", "folder/file", id="the repository"),
        pytest.param("folder", "../aux_data", "folder/configs/file", id="the configuration"),
        pytest.param("link", "../.blobsync/state/file", "link", id="the state"),
        pytest.param("folder", "/proc/self/root", "folder/etc/passwd", id="a link of the kernel"),
    ],
)
def test_a_link_that_the_plan_did_not_allow_is_not_followed(project: Path, link: str, target: str, path: str) -> None:
    (project / "data" / link).symlink_to(target)
    with pytest.raises(LocalFileError, match="which the plan did not allow"):
        SourceFolder(project / "data", (project,)).open(path)


def test_a_link_in_the_place_of_a_folder_that_was_read_before(project: Path) -> None:
    folder = SourceFolder(project / "data", (project,))
    assert _read(folder, "deep/file") == "data/deep"
    assert _read(folder, "file") == "data"
    (project / "data" / "deep").rename(project / "data" / "away")
    (project / "data" / "deep").symlink_to("../../outside")
    with pytest.raises(LocalFileError, match="which the plan did not allow"):
        folder.open("deep/file")


def test_links_that_the_user_trusts_lead_to_what_is_in_the_boundary(project: Path, tmp_path: Path) -> None:
    data, outside = project / "data", tmp_path / "outside"
    (data / "trusted").symlink_to(outside)
    (data / "one").symlink_to(outside / "file")
    assert _read(SourceFolder(data, (project, outside)), "trusted/file") == "outside"
    assert _read(SourceFolder(data, (project, outside / "file")), "one") == "outside"
    with pytest.raises(LocalFileError, match="which the plan did not allow"):
        SourceFolder(data, (project, outside / "file")).open("trusted/file")
    # Without a boundary, the caller has walked the folder itself.
    assert _read(SourceFolder(data), "trusted/file") == "outside"


def test_a_repository_among_the_data_is_data_and_no_link_makes_the_projects_own_one(project: Path) -> None:
    (project / "data/.git").mkdir()
    (project / "data/.git/config").write_text("[core]")
    folder = SourceFolder(project / "data", (project,))
    assert _read(folder, ".git/config") == "[core]"
    (project / "clone").symlink_to(project / ".git")
    with pytest.raises(LocalFileError, match="the plan did not allow"):
        SourceFolder(project / "clone", (project,)).open("file")
    (project / "data/inner").symlink_to(project / "data/.git")
    with pytest.raises(LocalFileError, match="the plan did not allow"):
        folder.open("inner/config")


def test_what_cannot_be_opened_is_named_and_another_version_is_not_read(project: Path) -> None:
    data = project / "data"
    folder = SourceFolder(data, (project,))
    with pytest.raises(LocalFileError, match=f"{data}/gone: No such file"):
        folder.open("gone")
    with pytest.raises(LocalFileError, match=f"{data}/deep: not a regular file"):
        folder.open("deep")
    (data / "loop").symlink_to("loop")
    with pytest.raises(LocalFileError, match=f"{data}/loop"):
        folder.open("loop")
    known = LocalState.of(os.stat(data / "file"))
    assert _read(folder, "file", known) == "data"
    (data / "file").write_text("another")
    with pytest.raises(ChangedWhileReadError, match=f"{data}/file changed"):
        folder.open("file", known)


def test_threads_that_read_in_many_folders_at_once(project: Path) -> None:
    data = project / "data"
    wrong: list[object] = []
    for number in range(8):
        (data / f"d{number}").mkdir()
        (data / f"d{number}" / "file").write_text(f"{number}")
    folder = SourceFolder(data, (project,))

    def read(first: int) -> None:
        for step in range(400):
            number = (first + step) % 8
            try:
                if _read(folder, f"d{number}/file") != f"{number}":
                    wrong.append(number)
            except Exception as error:  # noqa: BLE001 - whatever a thread meets is what this test is about
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
