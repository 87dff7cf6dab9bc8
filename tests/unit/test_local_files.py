"""Local files: written atomically, read and written never through a link that leads out, and changes are noticed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError, PreconditionFailedError
from blobsync.base.file_states import LocalState, regular_only
from blobsync.local.files import LocalFolder, SourceFile, SourceFolder, wait_for_disk
from blobsync.local.names import RelativeName, relative_name
from blobsync.local.os_errors import ChangedWhileReadError, NotAFileError, local_error
from blobsync.local.part_files import remove_leftovers


@pytest.fixture(params=[True, False], ids=["unnamed", "temporary name"])
def unnamed(request: pytest.FixtureRequest) -> bool:
    """Both kinds of unfinished files: unnamed, and with a temporary name."""
    assert isinstance(request.param, bool)
    return request.param


def write(
    root: Path, relative: str, body: bytes, expected: LocalState | None = None, *, unnamed: bool = True
) -> LocalState:
    part = LocalFolder(root, unnamed=unnamed).create(RelativeName(relative), len(body))
    part.write_at(0, body)
    return part.commit(expected, b"m" * 16)


def state(path: Path) -> LocalState:
    return LocalState.of(os.stat(path))


def test_a_file_appears_whole_with_its_folders_and_the_usual_permissions(tmp_path: Path, unnamed: bool) -> None:
    seen = write(tmp_path / "new" / "data", "a/b c/ü.bin", b"x" * 1000, unnamed=unnamed)
    file = tmp_path / "new" / "data" / "a" / "b c" / "ü.bin"
    assert file.read_bytes() == b"x" * 1000
    assert seen == LocalState.of(os.stat(file), b"m" * 16)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 & ~umask
    assert [entry.name for entry in file.parent.iterdir()] == ["ü.bin"]


def test_nothing_is_there_before_the_commit_nor_after_a_discard(tmp_path: Path, unnamed: bool) -> None:
    part = LocalFolder(tmp_path, unnamed=unnamed).create(relative_name("a.bin"), 3)
    part.write_at(0, b"abc")
    assert not (tmp_path / "a.bin").exists()
    part.discard()
    part.discard()
    assert list(tmp_path.iterdir()) == []


def test_pieces_may_come_in_any_order(tmp_path: Path, unnamed: bool) -> None:
    part = LocalFolder(tmp_path, unnamed=unnamed).create(relative_name("a.bin"), 6)
    part.write_at(3, b"def")
    part.write_at(0, b"abc")
    assert part.read_at(2, 2) == b"cd"
    part.commit(None)
    assert (tmp_path / "a.bin").read_bytes() == b"abcdef"


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, unnamed: bool) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    write(tmp_path, "run.sh", b"new", state(script), unnamed=unnamed)
    assert script.read_text() == "new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


@pytest.mark.parametrize("expected_is", ["nothing", "an older version"])
def test_a_version_that_nobody_looked_at_is_left_alone(tmp_path: Path, expected_is: str, unnamed: bool) -> None:
    file = tmp_path / "a.txt"
    file.write_text("first")
    expected = state(file) if expected_is == "an older version" else None
    file.write_text("written by somebody else")
    with pytest.raises(PreconditionFailedError):
        write(tmp_path, "a.txt", b"ours", expected, unnamed=unnamed)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    assert file.read_text() == "written by somebody else"


def test_a_file_that_vanished_meanwhile_was_changed_by_somebody(tmp_path: Path, unnamed: bool) -> None:
    file = tmp_path / "a.txt"
    file.write_text("first")
    expected = state(file)
    file.unlink()
    with pytest.raises(PreconditionFailedError):
        write(tmp_path, "a.txt", b"ours", expected, unnamed=unnamed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("relative", ["../x", "a/../../x", "/etc/x", "a//b", "", ".", "a/.", "a\x00b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, relative: str) -> None:
    inside = tmp_path / "inside"
    folder = LocalFolder(inside)
    with pytest.raises(LocalFileError):
        folder.create(RelativeName(relative))
    with pytest.raises(LocalFileError), folder.grow(RelativeName(relative)):
        pass
    assert list(tmp_path.iterdir()) == [inside]
    assert list(inside.iterdir()) == []


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "out").symlink_to(outside)
    with pytest.raises(LocalFileError, match="leads to"):
        write(root, "deep/out/file", b"x")
    assert list(outside.iterdir()) == []


def test_a_folder_that_becomes_a_link_while_a_file_is_written_leads_nowhere(tmp_path: Path, unnamed: bool) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside, root / "deep"):
        folder.mkdir(parents=True)
    part = LocalFolder(root, unnamed=unnamed).create(relative_name("deep/file"), 4)
    part.write_at(0, b"data")
    (root / "deep").rename(root / "moved")
    (root / "deep").symlink_to(outside)
    part.commit(None)
    assert list(outside.iterdir()) == []
    assert (root / "moved" / "file").read_bytes() == b"data"


def test_a_link_that_stays_inside_the_project_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "data"
    root.mkdir()
    (root / "link").symlink_to("../elsewhere")
    LocalFolder(root, boundary=tmp_path).create(relative_name("link/sub/file")).commit(None)
    assert (tmp_path / "elsewhere" / "sub" / "file").is_file()


def test_a_growing_file_is_continued_and_replaced(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    for text in (b"one", b"two"):
        with folder.grow(relative_name("logs/a.txt")) as file:
            file.append(text)
    assert (tmp_path / "logs" / "a.txt").read_bytes() == b"onetwo"
    with folder.grow(relative_name("logs/a.txt")) as file:
        assert file.size == 6 and file.read_at(3, 9) == b"two"
        fresh = folder.create(relative_name("logs/a.txt"))
        fresh.write_at(0, b"new")
        fresh.commit(file.state)
    assert (tmp_path / "logs" / "a.txt").read_bytes() == b"new"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_private_folder_makes_everything_for_the_user_alone(tmp_path: Path, unnamed: bool) -> None:
    folder = LocalFolder(tmp_path / "logs", unnamed=unnamed, private=True)
    fresh = folder.create(relative_name("a/b/new"), 3)
    fresh.write_at(0, b"new")
    fresh.keep()
    during = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in during] == [0o600], "while it is written"
    fresh.commit(None)
    with folder.grow(relative_name("c/grows")) as file:
        file.append(b"one")
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        **dict.fromkeys(("logs", "logs/a", "logs/a/b", "logs/c"), 0o700),
        **dict.fromkeys(("logs/a/b/new", "logs/c/grows"), 0o600),
    }


def test_two_writers_of_a_growing_file_wait_for_each_other(tmp_path: Path) -> None:
    def bring_up() -> None:
        with LocalFolder(tmp_path).grow(relative_name("a.txt")) as file:
            size = file.size
            time.sleep(0.02)
            file.append(b"x" * (100 - size))

    writers = [threading.Thread(target=bring_up) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "a.txt").stat().st_size == 100


def test_who_waited_for_a_growing_file_gets_the_one_that_took_its_place(tmp_path: Path) -> None:
    folder, sizes = LocalFolder(tmp_path), list[int]()

    def look() -> None:
        with LocalFolder(tmp_path).grow(relative_name("a.txt")) as file:
            sizes.append(file.size)

    with folder.grow(relative_name("a.txt")) as file:
        waiting = threading.Thread(target=look)
        waiting.start()
        time.sleep(0.2)
        fresh = folder.create(relative_name("a.txt"))
        fresh.write_at(0, b"the new one")
        fresh.commit(file.state)
    waiting.join()
    assert sizes == [11]


@pytest.mark.parametrize("kind", ["link", "fifo", "fifo with a reader", "socket", "folder"])
def test_only_a_regular_file_grows(tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    root = tmp_path / "root"
    root.mkdir()
    if kind == "link":
        (root / "a").symlink_to(other)
    elif kind.startswith("fifo"):
        os.mkfifo(root / "a")
    elif kind == "socket":
        os.mknod(root / "a", stat.S_IFSOCK | 0o600)
    else:
        (root / "a").mkdir()
    reader = os.open(root / "a", os.O_RDONLY | os.O_NONBLOCK) if kind == "fifo with a reader" else None
    with pytest.raises(LocalFileError) as refused, LocalFolder(root).grow(relative_name("a")) as file:
        file.append(b"theirs")
    assert isinstance(refused.value, NotAFileError) == (kind not in ("link", "folder"))
    assert other.read_text() == "mine"
    if reader is not None:
        os.close(reader)


def test_what_is_no_file_is_not_opened_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    for name in ("pipe", "socket", "folder"):
        with pytest.raises(OSError, match=name):
            regular_only(str(tmp_path / name), os.O_RDONLY)
    (tmp_path / "file").write_bytes(b"x")
    with open(tmp_path / "file", "rb", opener=regular_only) as stream:
        assert stream.read() == b"x"


def test_a_root_outside_the_boundary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(LocalFileError, match="outside of"):
        LocalFolder(project / "data", boundary=project)


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(tmp_path: Path, unnamed: bool) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("precious")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").symlink_to(outside)
    write(root, "a.txt", b"new", state(root / "a.txt"), unnamed=unnamed)
    assert outside.read_text() == "precious"
    assert not (root / "a.txt").is_symlink()
    assert (root / "a.txt").read_text() == "new"


def _a_folder(root: Path) -> None:
    (root / "name").mkdir()


def _a_file_above(root: Path) -> None:
    (root / "name").write_text("")


@pytest.mark.parametrize(
    ("prepare", "relative", "number"),
    [
        (_a_folder, "name", errno.EISDIR),
        (_a_file_above, "name/below", errno.ENOTDIR),
        (lambda _: None, "n" * 256, errno.ENAMETOOLONG),
    ],
    ids=["folder in the file's place", "file in a folder's place", "name too long"],
)
def test_what_the_disk_refuses_names_the_file_and_the_next_step(
    tmp_path: Path, prepare: Callable[[Path], None], relative: str, number: int, unnamed: bool
) -> None:
    prepare(tmp_path)
    with pytest.raises(LocalFileError) as caught:
        write(tmp_path, relative, b"x", unnamed=unnamed)
    assert relative in caught.value.message
    assert os.strerror(number) in caught.value.message
    assert caught.value.hint
    assert not list(tmp_path.glob("**/.blobsync-*"))


def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    error = local_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path / "a")
    assert "No space left" in error.message
    assert "free some space" in (error.hint or "")


_WRITER = """
import sys, time
from pathlib import Path
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
part = LocalFolder(Path(sys.argv[1]), unnamed=sys.argv[2] == "True").create(relative_name("a.bin"), 10)
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def writer(folder: Path, *, unnamed: bool) -> Iterator[None]:
    """Run another process that has begun a file; kills it at the end of the block."""
    command = [sys.executable, "-c", _WRITER, str(folder), str(unnamed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def test_leftovers_of_dead_runs_go_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    with writer(tmp_path / "sub", unnamed=False):
        mine = LocalFolder(tmp_path, unnamed=False).create(relative_name("b.bin"))
        (tmp_path / "keep.part").write_text("data of the user's")
        assert (remove_leftovers(tmp_path), remove_leftovers(tmp_path / "sub")) == (0, 0)
    assert (remove_leftovers(tmp_path), remove_leftovers(tmp_path / "sub")) == (0, 1)
    assert list((tmp_path / "sub").iterdir()) == []
    mine.commit(None)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b.bin", "keep.part", "sub"]


def test_a_run_that_is_killed_leaves_nothing_of_a_file_without_a_name(tmp_path: Path) -> None:
    with writer(tmp_path, unnamed=True):
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_removed_between_two_files_is_made_again(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.create(relative_name("sub/a")).commit(None)
    shutil.rmtree(tmp_path / "sub")
    folder.create(relative_name("sub/b")).commit(None)
    assert [entry.name for entry in (tmp_path / "sub").iterdir()] == ["b"]


def test_descriptors_are_closed_with_their_folder(tmp_path: Path) -> None:
    def open_here() -> list[str]:
        """Threads and the garbage collector may close files of other tests meanwhile."""
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return [each for each in found if each.startswith(str(tmp_path))]

    folder = LocalFolder(tmp_path)
    for number in range(20):
        folder.create(relative_name(f"d{number}/a")).commit(None)
    assert open_here()
    del folder
    assert not open_here()


def test_a_complete_file_from_elsewhere_takes_the_place(tmp_path: Path, unnamed: bool) -> None:
    staged = tmp_path / "staged"
    staged.write_bytes(b"complete")
    staged.chmod(0o600)
    part = LocalFolder(tmp_path / "data", unnamed=unnamed).create(relative_name("a.bin"))
    part.take(staged)
    assert not (tmp_path / "data" / "a.bin").exists()
    part.commit(None)
    assert not staged.exists()
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["a.bin"]
    assert (tmp_path / "data" / "a.bin").read_bytes() == b"complete"
    assert stat.S_IMODE((tmp_path / "data" / "a.bin").stat().st_mode) != 0o600


def test_a_source_that_grows_or_is_touched_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"0123456789")
    source = SourceFile(file, state(file))
    assert source.read_at(2, 3) == b"234"
    source.check_unchanged()
    with file.open("ab") as more:
        more.write(b"!")
    with pytest.raises(ChangedWhileReadError):
        source.check_unchanged()
    source.close()


def test_a_source_that_shrinks_is_noticed_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"0123456789")
    source = SourceFile(file)
    os.truncate(file, 4)
    with pytest.raises(ChangedWhileReadError):
        source.read_at(0, 10)
    source.close()


def test_a_source_that_became_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LocalFileError, match="not a regular file"):
        SourceFile(tmp_path / "pipe")


def test_the_disk_is_waited_for(tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(40)]
    for name in names:
        Path(name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    gone, below = str(tmp_path / "gone"), f"{names[0]}/below"
    # What has no data on a disk cannot be waited for. Which files are waited for: tests/e2e/test_power_failure.py.
    errors = wait_for_disk([*names, str(tmp_path / "pipe"), gone, below])
    assert {file: error.errno for file, error in errors.items()} == {str(tmp_path / "pipe"): errno.EINVAL}
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert [error.errno for error in wait_for_disk([str(loop)]).values()] == [errno.ELOOP]
    assert wait_for_disk([]) == {}


# -- files of a folder that are read -------------------------------------------------------------------------------


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
