"""The trash: what goes there before it is replaced or deleted, what it holds, and how it comes back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, NothingMatchedError, TrashTooSmallError, UsageError
from blobsync.local.trash import Trash, TrashLimits, put_aside
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.api import Project
from blobsync.project.trash import trash_of
from tests.fakes.opened_project import ACCOUNT, Opened
from tests.fakes.project_context import cluster
from tests.fakes.store import MemoryStore


def opened(root: Path, **values: Any) -> tuple[Project, MemoryStore]:
    """A project with ``data/a`` and ``data/b`` at both ends."""
    made = Opened(root, cluster("eu", data=ACCOUNT)._replace(values=values))
    for name in ("a", "b"):
        made.write(f"data/{name}", f"{name} of both".encode())
    assert made.project.upload("data").ok
    return made.project, made.store


def overwritten(project: Project, **options: Any) -> TransferResult:
    """``d --overwrite`` of a file that was edited on both sides."""
    (project.root / "data/a").write_text("my edit")
    container = project.connections.store(project.cluster.folders[0].account.container)
    assert isinstance(container, MemoryStore)
    container.add("store/data/a", b"theirs")
    return project.download("data", overwrite=True, **options)


def trashed(project: Project) -> dict[str, str]:
    return {file.path: file.place.read_text() for run in trash_of(project.state).runs() for file in run.files}


def test_a_download_that_overwrites_keeps_the_edit_in_the_trash_from_where_it_comes_back(tmp_path: Path) -> None:
    project, _ = opened(tmp_path)
    with project:
        edit = os.stat(tmp_path / "data/a")
        assert overwritten(project).ok
        assert trashed(project) == {"data/a": "my edit"}
        (run,) = trash_of(project.state).runs()
        assert run.id == project.history(limit=1)[0].id
        done = project.restore(run.id[:5])
        assert not done.files and [each.path for each in done.failures] == ["data/a"]
        assert (tmp_path / "data/a").read_text() == "theirs"
        done = project.restore(run.id, overwrite=True)
        assert [file.path for file in done.files] == ["data/a"] and not done.failures
        assert (tmp_path / "data/a").read_text() == "my edit"
        assert (tmp_path / "data/a").stat().st_mode == edit.st_mode
        assert trashed(project) == {"data/a": "theirs"}


def test_a_mirror_keeps_what_it_deletes_here(tmp_path: Path) -> None:
    project, _ = opened(tmp_path)
    with project:
        (tmp_path / "data/sub").mkdir()
        (tmp_path / "data/sub/extra").write_text("only here")
        assert project.download("data", mirror=True, max_delete_percent=60.0).ok
        assert not (tmp_path / "data/sub").exists()
        assert trashed(project) == {"data/sub/extra": "only here"}
        done = project.restore(trash_of(project.state).runs()[0].id, "data/sub")
        assert [file.path for file in done.files] == ["data/sub/extra"]
        assert (tmp_path / "data/sub/extra").read_text() == "only here"
        assert trash_of(project.state).runs() == ()


def test_a_plain_download_and_one_without_the_trash_keep_nothing(tmp_path: Path) -> None:
    project, store = opened(tmp_path)
    with project:
        store.add("store/data/b", b"newer")
        assert project.download("data").transferred == 1
        assert overwritten(project, no_trash=True).ok
        assert trashed(project) == {}
        with pytest.raises(UsageError, match="--no-trash"):
            project.upload("data", no_trash=True)


def test_more_than_the_trash_holds_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    project, _ = opened(tmp_path, trash={"size": 6})
    with project:
        with pytest.raises(TrashTooSmallError, match="1 local file, 7 B") as refused:
            overwritten(project)
        assert refused.value.code is FailureCode.TRASH_TOO_SMALL and "--no-trash" in str(refused.value.hint)
        assert (tmp_path / "data/a").read_text() == "my edit"


def test_the_oldest_runs_make_room_and_old_ones_go(tmp_path: Path) -> None:
    trash = Trash(tmp_path)
    for id, at, size in (("one", 100.0, 5), ("two", 200.0, 5), ("three", 300.0, 5)):
        file = trash.of_run(id) / "data/x"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * size)
        os.utime(trash.of_run(id), (at, at))
    trash.make_room(TrashLimits(days=7, size=10), 0, now=400.0)
    assert [run.id for run in trash.runs()] == ["three", "two"]
    trash.make_room(TrashLimits(days=1, size=10), 0, now=86_400.0 + 250.0)
    assert [run.id for run in trash.runs()] == ["three"]
    trash.make_room(TrashLimits(days=7, size=10), 6, now=400.0)
    assert trash.runs() == ()
    with pytest.raises(NothingMatchedError, match="of a run 'three'"):
        trash.find("three")


@pytest.mark.parametrize("error", [0, errno.EXDEV, errno.EPERM])
def test_a_file_gets_a_second_name_or_a_copy_and_no_version_hides_another(tmp_path: Path, error: int) -> None:
    file, kept = tmp_path / "a", tmp_path / "trash/run/a"
    folder = os.open(tmp_path, os.O_RDONLY)

    def link(*words: Any, **names: Any) -> None:
        if error and not os.path.lexists(words[1]):
            raise OSError(error, os.strerror(error))
        os.link(*words, **names)

    try:
        for text in ("one", "two"):
            file.write_text(text)
            os.utime(file, ns=(5, 7))
            file.chmod(0o640)
            put_aside(folder, "a", kept, link)
            file.unlink()
        put_aside(folder, "a", kept, link)
        file.symlink_to(kept)
        put_aside(folder, "a", kept, link)
    finally:
        os.close(folder)
    assert {each.name: each.read_text() for each in kept.parent.iterdir()} == {"a": "one", "a~2": "two"}
    assert (kept.stat().st_mtime_ns, kept.stat().st_mode & 0o777) == (7, 0o640)
