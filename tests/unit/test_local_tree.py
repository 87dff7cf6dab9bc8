"""The walk of a folder: every file once, no link followed out of the project, nothing skipped silently."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.base.plan_reasons import Reason
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.tree import TreeEntry, ignores_case, walk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "project" / "data"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a").write_bytes(b"1")
    (root / "sub" / "deep" / "b").write_bytes(b"22")
    (root / "empty").mkdir()
    return root


def found(root: Path, mode: str = "follow") -> dict[str, TreeEntry]:
    entries = list(walk(root, LinkPolicy(mode, os.path.realpath(root.parent))))
    assert len({entry.path for entry in entries}) == len(entries)
    return {entry.path: entry for entry in entries}


def test_every_file_is_seen_once_with_its_stat(tree: Path) -> None:
    seen = found(tree)
    assert set(seen) == {"a", "sub/deep/b"}
    state = seen["sub/deep/b"].state
    stat = (tree / "sub/deep/b").stat()
    assert state is not None
    assert (state.size, state.mtime_ns, state.inode) == (2, stat.st_mtime_ns, stat.st_ino)


def test_unfinished_downloads_and_our_own_folder_are_passed_over(tree: Path) -> None:
    (tree / ".blobsync-00000000.part").write_bytes(b"half")
    (tree / ".azDownload-01234567-89ab-cdef-0123-456789abcdef-a").write_bytes(b"half")
    (tree / ".blobsync").mkdir()
    (tree / ".blobsync" / "index.sqlite").write_bytes(b"x")
    (tree / ".blobsyncignore").write_bytes(b"data")
    assert set(found(tree)) == {"a", "sub/deep/b", ".blobsyncignore"}


def test_links_within_the_project_are_followed_files_and_folders(tree: Path) -> None:
    (tree / "file-link").symlink_to("a")
    (tree / "folder-link").symlink_to(tree / "sub")
    assert set(found(tree)) == {"a", "sub/deep/b", "file-link", "folder-link/deep/b"}


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("follow", Reason.SYMLINK_OUTSIDE), ("skip", Reason.SYMLINK_SKIPPED), ("error", Reason.SYMLINK_REFUSED)],
)
def test_a_link_out_of_the_project_is_left_out_with_its_reason(
    tree: Path, tmp_path: Path, mode: str, reason: Reason
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"x")
    (tree / "out").symlink_to(tmp_path / "elsewhere")
    entry = found(tree, mode)["out"]
    assert (entry.state, entry.reason) == (None, reason)


def test_a_mapped_folder_on_another_disk_counts_as_inside(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "a").write_bytes(b"1")
    (scratch / "again").symlink_to(scratch / "a")
    project = tmp_path / "project"
    project.mkdir()
    (project / "data").symlink_to(scratch)
    entries = {
        entry.path for entry in walk(project / "data", LinkPolicy("follow", str(project), "data")) if entry.state
    }
    assert entries == {"a", "again"}


@pytest.mark.parametrize("target", [".", "..", "sub"])
def test_a_loop_is_reported_and_does_not_hang(tree: Path, target: str) -> None:
    (tree / "sub" / "loop").symlink_to(tree / target)
    loops = [entry for entry in found(tree).values() if entry.reason is Reason.UNREADABLE]
    assert loops
    assert "loop" in loops[0].detail


def test_what_is_no_file_is_reported(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "dangling").symlink_to("nowhere")
    seen = found(tree)
    assert seen["pipe"].reason is Reason.NOT_A_FILE
    assert seen["dangling"].reason is Reason.UNREADABLE
    assert seen["dangling"].detail == "a symlink to nowhere, which does not exist"


def test_this_disk_tells_upper_from_lower_case(tmp_path: Path) -> None:
    assert not ignores_case(tmp_path / "not" / "there" / "yet")
    (tmp_path / "Name").write_text("one")
    assert not ignores_case(tmp_path)


def test_a_disk_that_does_not_is_known_by_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "Name").write_text("one")
    # On such a disk both spellings are the same file.
    os.link(tmp_path / "Name", tmp_path / "nAME")
    assert ignores_case(tmp_path)
    assert ignores_case(tmp_path / "new")


def test_links_to_folders_of_links_do_not_multiply_without_end(tree: Path) -> None:
    for number in range(40):
        folder = tree / f"f{number:02}"
        folder.mkdir()
        for name in ("l", "r"):
            (folder / name).symlink_to(f"../f{number + 1:02}")
    (tree / "f40").mkdir()
    with pytest.raises(LocalFileError, match="more than 10,000 symlinks point to folders") as caught:
        found(tree)
    assert "--links skip" in (caught.value.hint or "")
    assert {path for path, entry in found(tree, "skip").items() if entry.state} == {"a", "sub/deep/b"}


def test_many_links_to_one_folder_are_followed(tree: Path) -> None:
    for number in range(300):
        (tree / f"l{number}").symlink_to("sub")
    assert len([entry for entry in found(tree).values() if entry.state]) == 302
