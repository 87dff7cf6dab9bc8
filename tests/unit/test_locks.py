"""Locks of a project: what the container held, at the time of any commit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, LockError, NothingMatchedError, UnsafeNamesError, UsageError
from blobsync.local.lock_files import list_name, lock_name, read_lock
from blobsync.plan.path_mapping import both_ends
from blobsync.plan.survey import Request
from blobsync.project import locks
from tests.fakes.opened_project import Opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "project")
    for name, body in (("a", b"one"), ("b/c", b"two!"), ("b/d", b"")):
        opened.write(f"data/v/{name}", body)
    assert opened.project.upload("data/v").ok
    yield opened
    opened.project.close()


def git(root: Path, *words: str) -> None:
    name = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)


def commit(opened: Opened, tag: str) -> None:
    if not (opened.root / ".git").exists():
        git(opened.root, "init", "-q")
    git(opened.root, "add", "aux_data")
    git(opened.root, "commit", "-qm", tag, "--allow-empty")
    git(opened.root, "tag", tag)


def requests(opened: Opened, path: str) -> tuple[Request, ...]:
    return both_ends(opened.project._open_context, path)


def test_a_lock_is_of_the_container_and_says_how_the_files_here_differ(opened: Opened) -> None:
    opened.write("data/v/a", b"edit!")
    opened.write("data/v/new", b"n")
    opened.store.add("store/data/v/far", b"far")
    report = opened.project.lock("data/v")
    assert (report.files, report.bytes, report.changed) == (4, 10, True)
    assert dict(report.here) == {"equal": 2, "changed_here": 1, "local_only": 1, "remote_only": 1}
    assert report.files_written == ("aux_data/locks/data/v.lock", "aux_data/locks/data/v.lock.gz")
    lock = read_lock(opened.root, "data/v")
    assert (lock.digest, lock.folder, lock.container) == (report.digest, "store/data/v", "data")
    files = {name: (opened.root / name).read_bytes() for name in report.files_written}
    again = opened.project.lock("data/v")
    assert not again.changed
    assert files == {name: (opened.root / name).read_bytes() for name in again.files_written}


def test_one_file_is_locked_as_a_folder_is(opened: Opened) -> None:
    assert opened.project.lock("data/v/a").files == 1
    assert [entry.path for entry in opened.project.list("data/v/a", at=lock_name("data/v/a"))] == ["data/v/a"]


def test_a_blob_without_an_md5_is_read_or_refused_but_never_locked_by_its_size(opened: Opened) -> None:
    opened.store.add("store/data/v/odd", b"odd", with_md5=False)
    with pytest.raises(UnsafeNamesError, match="data/v/odd has no MD5") as caught:
        opened.project.lock("data/v")
    assert caught.value.names == (("data/v/odd", "has no MD5"),)
    assert not (opened.root / lock_name("data/v")).exists()
    assert opened.project.lock("data/v", compare_content=True).files == 4
    # By now the index knows it, as the version that was verified.
    assert opened.project.download("data/v").ok
    assert opened.project.lock("data/v").files == 4
    opened.store.add("store/data/v/odd", b"ODD", with_md5=False)
    with pytest.raises(UnsafeNamesError):
        opened.project.lock("data/v")


@pytest.mark.parametrize("name", ["tab\there", "b//x", "../x"])
def test_a_name_that_is_no_path_is_refused(opened: Opened, name: str) -> None:
    opened.store.add(f"store/data/v/{name}", b"x")
    with pytest.raises(UnsafeNamesError, match="nothing is locked"):
        opened.project.lock("data/v")


def test_nothing_in_the_container_is_nothing_to_lock(opened: Opened) -> None:
    opened.write("data/w/x", b"x")
    with pytest.raises(NothingMatchedError):
        opened.project.lock("data/w")


def test_two_commits_are_compared_file_by_file(opened: Opened) -> None:
    opened.project.lock("data/v")
    commit(opened, "v1")
    opened.write("data/v/a", b"ONE+")
    opened.write("data/v/e", b"e")
    (opened.root / "data/v/b/d").unlink()
    assert opened.project.upload("data/v", mirror=True, max_delete_percent=100).ok
    # The same content as another version is no change.
    opened.store.add("store/data/v/b/c", b"two!")
    opened.project.lock("data/v")
    found = opened.project.compare_locks("data/v", "v1")
    assert [tuple(each) for each in found.changes] == [
        ("data/v/a", "changed", 3, 4),
        ("data/v/b/d", "removed", 0, None),
        ("data/v/e", "added", None, 1),
    ]
    commit(opened, "v2")
    assert opened.project.compare_locks("data/v", "v1", "v2").changes == found.changes
    assert opened.project.compare_locks("data/v", "v2").changes == ()
    assert [each.path for each in opened.project.compare_locks("data/v/b", "v1", "v2").changes] == ["data/v/b/d"]
    back = opened.project.compare_locks("data/v", lock_name("data/v"), "v1")
    assert [each.status for each in back.changes] == ["changed", "added", "removed"]


def test_what_was_locked_is_listed_as_ls_would_have_done(opened: Opened) -> None:
    opened.project.lock("data/v")
    commit(opened, "v1")
    opened.store.blobs.clear()

    def listed(path: str, *, recursive: bool = False) -> list[tuple[str, int | None]]:
        return [(entry.path, entry.size) for entry in opened.project.list(path, recursive=recursive, at="v1")]

    assert listed("data/v") == [("data/v/a", 3), ("data/v/b/", None)]
    assert listed("data/v", recursive=True) == [("data/v/a", 3), ("data/v/b/c", 4), ("data/v/b/d", 0)]
    assert listed("data/v/b") == [("data/v/b/c", 4), ("data/v/b/d", 0)]
    assert listed("data/v/b/c") == [("data/v/b/c", 4)]
    for path in ("data/v/no", "data/w"):
        with pytest.raises(NothingMatchedError):
            listed(path)


@pytest.mark.parametrize("revision", ["-x", "--output=x", "v1:aux_data", "no-such", "", "a b", "HEAD:./x", "v1^{tree}"])
def test_a_revision_is_a_revision_and_no_option_of_git(opened: Opened, revision: str) -> None:
    opened.project.lock("data/v")
    commit(opened, "v1")
    with pytest.raises(UsageError):
        opened.project.compare_locks("data/v", revision)


def test_a_commit_of_a_strangers_clone_runs_nothing_and_is_checked(opened: Opened) -> None:
    opened.project.lock("data/v")
    (opened.root / ".gitattributes").write_text("*.gz diff=evil filter=evil\n*.lock diff=evil\n")
    commit(opened, "v1")
    for key in ("diff.evil.textconv", "filter.evil.smudge", "core.fsmonitor", "core.pager"):
        git(opened.root, "config", key, "touch ran; cat")
    assert opened.project.compare_locks("data/v", "v1").changes == ()
    assert not (opened.root / "ran").exists()
    (opened.root / list_name("data/v")).write_bytes(b"no list")
    commit(opened, "v2")
    for call in (
        lambda: opened.project.compare_locks("data/v", "v1"),
        lambda: list(opened.project.list("data/v", at="v2")),
    ):
        with pytest.raises(LockError):
            call()


def test_the_working_tree_without_a_lock_says_how_to_make_one(opened: Opened) -> None:
    opened.project.lock("data/v")
    commit(opened, "v1")
    (opened.root / lock_name("data/v")).unlink()
    with pytest.raises(LockError, match="has no lock") as caught:
        opened.project.compare_locks("data/v", "v1")
    assert caught.value.hint == "blobsync lock data/v makes one"


def test_a_long_list_is_in_the_container_under_its_digest(opened: Opened) -> None:
    request = locks.demand_one(requests(opened, "data/v"), "data/v")
    report = locks.lock(opened.root, request, lambda _: None, compare_content=False, most_beside=2)
    name = f".blobsync/locks/{report.digest}.gz"
    assert report.list_url is not None and report.list_url.endswith(name)
    assert report.files_written == ("aux_data/locks/data/v.lock",)
    assert not (opened.root / list_name("data/v")).exists()
    assert [entry.size for entry in opened.project.list("data/v", recursive=True, at=lock_name("data/v"))] == [3, 4, 0]
    other = locks.lock(
        opened.root, requests(opened, "data/v/b")[0], lambda _: None, compare_content=False, most_beside=1
    )
    opened.store.blobs[name].body = opened.store.blobs[f".blobsync/locks/{other.digest}.gz"].body
    with pytest.raises(BlobsyncError, match="not a lock to go by"):
        list(opened.project.list("data/v", at=lock_name("data/v")))
