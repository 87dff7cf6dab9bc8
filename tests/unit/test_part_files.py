"""Unfinished files on different disks, with interference of other processes, and without leaked descriptors."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from blobsync.base.errors import DiskFullError, LocalFileError, PreconditionFailedError
from blobsync.base.file_states import LocalState
from blobsync.local.names import is_temporary
from blobsync.local.os_errors import NotAFileError
from blobsync.local.part_files import (
    DISK,
    Disk,
    FolderDescriptor,
    KeptName,
    NotKeptError,
    PartFile,
    is_in_use,
    left_over,
    remove_leftover,
    remove_leftovers,
    unnamed_work,
)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux has files without a name")


def part(folder: Path, name: str = "a", size: int = 0, *, unnamed: bool = True, disk: Disk = DISK) -> PartFile:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return PartFile(FolderDescriptor(fd, unnamed=unnamed), name, folder / name, size, disk)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def state(path: Path) -> LocalState:
    return LocalState.of(os.stat(path))


@contextmanager
def no_descriptor_stays_open() -> Iterator[None]:
    # The garbage collector must not close files of other tests in between.
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        yield
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("tmpfile", "descriptors", "works"),
    [(os.O_TMPFILE, "/proc/self/fd", True), (0, "/proc/self/fd", False), (os.O_TMPFILE, "/nowhere", False)],
)
def test_files_without_a_name_need_the_kernel_and_proc(tmpfile: int, descriptors: str, works: bool) -> None:
    assert unnamed_work(tmpfile, descriptors) is works


def test_an_unfinished_file_has_no_name_or_one_that_is_known_as_temporary(tmp_path: Path) -> None:
    without = part(tmp_path)
    assert names(tmp_path) == []
    without.discard()
    named = part(tmp_path, unnamed=False)
    (name,) = names(tmp_path)
    assert is_temporary(name) and name.startswith(".blobsync-")
    named.discard()
    assert names(tmp_path) == []


def refusing(number: int) -> Callable[[int], int]:
    def refuse(folder: int) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS])
def test_where_the_disk_knows_no_files_without_a_name_they_get_one(tmp_path: Path, number: int) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    folder = FolderDescriptor(fd, unnamed=True)
    one = PartFile(folder, "a", tmp_path / "a", 1, Disk(open_unnamed=refusing(number)))
    assert not folder.unnamed
    assert len(names(tmp_path)) == 1
    one.write_at(0, b"x")
    one.commit(None)
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EACCES])
def test_any_other_refusal_is_reported(tmp_path: Path, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        part(tmp_path, disk=Disk(open_unnamed=refusing(number)))
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_name_that_the_disk_has_no_room_for_is_refused_before_a_byte_moves(
    tmp_path: Path, size: int, *, unnamed: bool
) -> None:
    with no_descriptor_stays_open(), pytest.raises(OSError, match="too long"):
        part(tmp_path, "n" * 256, size, unnamed=unnamed)
    assert names(tmp_path) == []


def test_a_size_that_the_disk_has_no_room_for_is_refused_before_a_byte_moves(tmp_path: Path) -> None:
    with no_descriptor_stays_open(), pytest.raises(OSError, match=r"too large|Invalid"):
        part(tmp_path, size=(1 << 63) - 1)


def test_a_link_that_leads_in_circles_is_nothing_to_complain_of_yet(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    part(tmp_path, size=1).discard()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one = part(tmp_path, disk=Disk(write=full))
    with pytest.raises(DiskFullError, match=f"{tmp_path / 'a'}: No space left"):
        one.write_at(0, b"x")
    one.discard()
    assert not names(tmp_path)


def test_writes_that_stop_half_way_go_on_where_they_stopped(tmp_path: Path) -> None:
    def three_at_most(fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data[:3], offset)

    one = part(tmp_path, size=15, disk=Disk(write=three_at_most))
    one.write_at(5, b"0123456789")
    one.write_at(0, b"abcde")
    one.commit(None)
    assert (tmp_path / "a").read_bytes() == b"abcde0123456789"


def taken_then_free() -> Callable[[], str]:
    offered = chain([".blobsync-00000000.part"], repeat(".blobsync-00000001.part"))
    return lambda: next(offered)


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_temporary_name_that_is_taken_is_left_to_its_owner(tmp_path: Path, *, unnamed: bool) -> None:
    (tmp_path / ".blobsync-00000000.part").write_bytes(b"another's")
    (tmp_path / "a").write_bytes(b"old")
    one = part(tmp_path, unnamed=unnamed, disk=Disk(new_name=taken_then_free()))
    one.write_at(0, b"new")
    one.commit(state(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / ".blobsync-00000000.part").read_bytes() == b"another's"
    assert names(tmp_path) == [".blobsync-00000000.part", "a"]


def test_a_file_that_a_cleanup_takes_before_it_is_locked_is_begun_again(tmp_path: Path) -> None:
    def cleanup_first(fd: int) -> None:
        for name in names(tmp_path):
            if name == ".blobsync-00000000.part":
                os.unlink(tmp_path / name)

    with no_descriptor_stays_open():
        one = part(tmp_path, unnamed=False, disk=Disk(new_name=taken_then_free(), lock=cleanup_first))
        assert names(tmp_path) == [".blobsync-00000001.part"]
        one.commit(None)
        del one
    assert names(tmp_path) == ["a"]


def is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_cleanup_leaves_what_is_being_worked_on(tmp_path: Path, *, unnamed: bool) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "staged").write_bytes(b"complete")
    one = part(folder, unnamed=unnamed)
    one.take(tmp_path / "staged")
    (name,) = names(folder)
    assert is_locked(folder / name)
    assert remove_leftovers(folder) == 0
    one.commit(None)
    assert names(folder) == ["a"]


def test_a_file_is_locked_before_it_gets_a_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    there: list[list[str]] = []
    one = part(tmp_path, disk=Disk(lock=lambda fd: there.append(names(tmp_path))))
    one.commit(state(tmp_path / "a"))
    assert there == [["a"]]


def test_a_new_file_is_locked_while_it_has_a_name(tmp_path: Path) -> None:
    one = part(tmp_path, unnamed=False)
    assert is_locked(tmp_path / names(tmp_path)[0])
    one.discard()


@pytest.mark.parametrize(
    ("was", "dressed"),
    [
        (None, {None: 0o644, False: 0o644, True: 0o755}),
        (0o644, {None: 0o644, False: 0o644, True: 0o755}),
        (0o600, {None: 0o600, False: 0o600, True: 0o700}),
        (0o654, {None: 0o654, False: 0o644, True: 0o755}),
        (0o777, {None: 0o777, False: 0o666, True: 0o777}),
    ],
)
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_file_is_dressed_over_the_permissions_of_the_one_that_it_replaces(
    tmp_path: Path, was: int | None, dressed: dict[bool | None, int], *, unnamed: bool
) -> None:
    usual = os.umask(0o022)
    try:
        for executable, mode in dressed.items():
            place = tmp_path / f"{executable}"
            if was is not None:
                place.touch()
                place.chmod(was)
            one = part(tmp_path, place.name, unnamed=unnamed)
            one.dress(executable, 1_700_000_000_123_456_789 if executable else None)
            one.commit(None if was is None else state(place))
            found = place.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns == 1_700_000_000_123_456_789) == (
                mode,
                bool(executable),
            ), executable
    finally:
        os.umask(usual)


def test_a_copy_can_look_like_what_it_was_made_of(tmp_path: Path) -> None:
    (tmp_path / "source").touch()
    (tmp_path / "source").chmod(0o751)
    os.utime(tmp_path / "source", ns=(1_600_000_000_000_000_001, 1_700_000_000_123_456_789))
    one = part(tmp_path)
    with (tmp_path / "source").open("rb") as source:
        one.look_like(source.fileno())
    one.commit(None)
    found = (tmp_path / "a").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o751, 1_700_000_000_123_456_789)


def test_a_temporary_file_is_in_use_while_its_writer_lives(tmp_path: Path) -> None:
    one = part(tmp_path, unnamed=False)
    (name,) = names(tmp_path)
    with no_descriptor_stays_open():
        assert is_in_use(str(tmp_path / name)) and not is_in_use(str(tmp_path / "nowhere"))
        one.discard()
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
        assert not is_in_use(str(tmp_path / name))


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    kept = [".azDownload-12345678-1234-1234-1234-123456789012-a", ".blobsync-notes", "x.part"]
    for name in [*kept, ".blobsync-0123abcd.part"]:
        (tmp_path / name).write_bytes(b"")
    with no_descriptor_stays_open():
        assert remove_leftovers(tmp_path) == 1
        assert remove_leftovers(tmp_path / "nowhere") == 0
    assert names(tmp_path) == kept


def test_the_bytes_that_dead_runs_left_are_those_on_the_disk(tmp_path: Path) -> None:
    data, staging = tmp_path / "data", tmp_path / "data" / "sub" / ".blobsync-00000001.part"
    (staging / "f").mkdir(parents=True)
    azcopys = staging / "f" / ".azDownload-12345678-1234-1234-1234-123456789012-a"
    left, inner, other = data / ".blobsync-0123abcd.part", staging / "f" / ".blobsync-0123abcf.part", data / "sub" / "a"
    for file, size in ((azcopys, 300_000), (left, 100_000), (inner, 200_000), (other, 5_000_000)):
        file.write_bytes(bytes([1]) * size)
    os.truncate(left, 10**9)
    (data / ".blobsync-0123abce.part").symlink_to(other)
    os.mkfifo(data / ".blobsync-0123abd0.part")
    running = part(data, unnamed=False)
    running.write_at(0, bytes([1]) * 900_000)
    of_left, of_inner, of_azcopy = (file.stat().st_blocks * 512 for file in (left, inner, azcopys))
    assert 100_000 <= of_left < 200_000
    with no_descriptor_stays_open():
        assert left_over(data) == of_left + of_inner
        assert left_over(data, [staging]) == of_left + of_inner + of_azcopy
        # Beside a file that is to be replaced.
        assert left_over(data / "b") == of_left
        assert left_over(tmp_path / "nowhere" / "b") == 0
    running.discard()


def without_locks(fd: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "no locks")


@pytest.mark.parametrize(("age", "removed"), [(86_400, False), (86_401, True)])
def test_where_there_are_no_locks_only_what_is_a_day_old_is_dead(tmp_path: Path, age: int, removed: bool) -> None:
    path = tmp_path / ".blobsync-0123abcd.part"
    path.write_bytes(b"")
    os.utime(path, (1_000, 1_000))
    with no_descriptor_stays_open():
        assert remove_leftover(str(path), flock=without_locks, now=lambda: 1_000.0 + age) is removed
    assert path.exists() is not removed


def test_what_is_gone_or_may_not_be_removed_is_passed_over(tmp_path: Path) -> None:
    assert not remove_leftover(str(tmp_path / "gone"))
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"")
    assert not remove_leftover(str(tmp_path / "link"))
    path = tmp_path / ".blobsync-0123abcd.part"
    path.write_bytes(b"")

    def taken_meanwhile(fd: int, operation: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    with no_descriptor_stays_open():
        assert not remove_leftover(str(path), flock=taken_meanwhile)


@pytest.mark.parametrize("unnamed", [True, False])
@pytest.mark.parametrize("expected", ["nothing", "what is there"])
def test_what_is_neither_a_file_nor_a_folder_is_not_replaced(tmp_path: Path, unnamed: bool, expected: str) -> None:
    os.mkfifo(tmp_path / "a", 0o600)
    one = part(tmp_path, unnamed=unnamed)
    with pytest.raises(NotAFileError, match="a: neither a file nor a folder is in its place") as refused:
        one.commit(None if expected == "nothing" else state(tmp_path / "a"))
    assert refused.value.hint is not None and "move it away" in refused.value.hint
    assert names(tmp_path) == ["a"] and stat.S_ISFIFO((tmp_path / "a").lstat().st_mode)


def test_a_file_that_appears_after_the_look_is_not_replaced_where_files_have_names(tmp_path: Path) -> None:
    """A network file system whose cache says for some seconds that the name is free."""

    def late(old: str, new: str, **folders: int) -> None:
        (tmp_path / new).write_bytes(b"somebody's")
        DISK.link(old, new, **folders)

    one = part(tmp_path, size=3, unnamed=False, disk=Disk(link=late))
    one.write_at(0, b"our")
    with pytest.raises(PreconditionFailedError, match="was left alone"):
        one.commit(None)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {"a": b"somebody's"}


def test_a_file_that_is_seen_by_nobody_but_the_disk_is_not_replaced(tmp_path: Path) -> None:
    def taken(old: str, new: str, **folders: int) -> None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    with pytest.raises(PreconditionFailedError, match="was left alone"):
        part(tmp_path, unnamed=False, disk=Disk(link=taken)).commit(None)
    assert names(tmp_path) == []


def _replace_in_the_same_moment(path: Path) -> None:
    moment = path.stat().st_mtime_ns
    theirs = path.with_name("theirs")
    theirs.write_bytes(b"theirs")
    os.utime(theirs, ns=(moment, moment))
    theirs.replace(path)


def _move_behind_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


@pytest.mark.parametrize(
    "change",
    [Path.unlink, lambda path: path.write_bytes(b"theirs"), _replace_in_the_same_moment, _move_behind_a_link],
    ids=["gone", "written", "replaced", "moved"],
)
def test_a_new_file_that_another_changes_at_once_is_not_taken_for_what_was_written(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    class BeforeTheLastLook(PartFile):
        def abandon(self) -> None:
            assert self._fd < 0, "NFS keeps the name of an open file"
            super().abandon()
            if self._temporary:
                change(tmp_path / "a")

    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    one = BeforeTheLastLook(FolderDescriptor(fd, unnamed=False), "a", tmp_path / "a", 3)
    one.write_at(0, b"our")
    inode = one.keep().inode
    seen = one.commit(None)
    assert (seen.size, seen.inode) == (3, inode)
    assert not (tmp_path / "a").exists() or not seen.same_file(state(tmp_path / "a"))


def test_where_files_cannot_have_two_names_a_new_one_is_renamed(tmp_path: Path) -> None:
    def none(old: str, new: str, **folders: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def keep(folder: int, name: str) -> None:
        pytest.fail("there is nothing to keep")

    folder = FolderDescriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), unnamed=False)
    one = PartFile(folder, "a", tmp_path / "a", 3, Disk(link=none), keep=keep)
    one.write_at(0, b"our")
    seen = one.commit(None)
    assert names(tmp_path) == ["a"]
    assert seen == state(tmp_path / "a")
    assert (tmp_path / "a").stat().st_nlink == 1


@pytest.mark.parametrize("unnamed", [True, False])
def test_no_descriptor_stays_open_after_the_end(tmp_path: Path, *, unnamed: bool) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "there").write_bytes(b"")
    (tmp_path / "staged").write_bytes(b"complete")
    with no_descriptor_stays_open():
        one = part(folder, unnamed=unnamed)
        one.commit(None)
        one.discard()
        one = part(folder, unnamed=unnamed)
        one.discard()
        one.discard()
        del one
    (folder / "a").unlink()
    with no_descriptor_stays_open():
        one = part(folder, unnamed=unnamed)
        one.take(tmp_path / "staged")
        one.commit(None)
        one = part(folder, unnamed=unnamed)
        with pytest.raises(LocalFileError):
            one.take(tmp_path / "gone")
        one.discard()
        one = part(folder, "there", unnamed=unnamed)
        with pytest.raises(PreconditionFailedError):
            one.commit(None)
        del one
    assert names(folder) == ["a", "there"]


def test_a_file_that_gets_the_descriptor_of_a_closed_standard_input_is_closed_too(tmp_path: Path) -> None:
    kept = os.dup(0)

    def as_standard_input(folder: int) -> int:
        os.close(0)
        return DISK.open_unnamed(folder)

    try:
        part(tmp_path, disk=Disk(open_unnamed=as_standard_input)).commit(None)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert names(tmp_path) == ["a"]


def test_a_staged_file_that_cannot_be_moved_is_let_go_of(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    staged = other / f"blobsync-test-{os.getpid()}"
    staged.write_bytes(b"complete")
    try:
        with no_descriptor_stays_open():
            one = part(tmp_path)
            with pytest.raises(LocalFileError):
                one.take(staged)
            one.discard()
            del one
        assert not is_locked(staged)
    finally:
        staged.unlink()
    assert names(tmp_path) == []


def kept_part(folder: Path, *, unnamed: bool = True, size: int = 4) -> KeptName:
    """The part file of an interrupted run."""
    one = part(folder, size=size, unnamed=unnamed)
    one.write_at(0, b"left")
    kept = one.keep()
    assert one.keep() == kept
    one.leave()
    return kept


def reopened(folder: Path, kept: KeptName, *, size: int = 4, disk: Disk = DISK) -> PartFile:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return PartFile(FolderDescriptor(fd, unnamed=True), "a", folder / "a", size, disk, kept=kept)


@pytest.mark.parametrize("unnamed", [True, False])
def test_what_is_kept_is_found_again(tmp_path: Path, *, unnamed: bool) -> None:
    with no_descriptor_stays_open():
        kept = kept_part(tmp_path, unnamed=unnamed)
        assert names(tmp_path) == [kept.name] and is_temporary(kept.name)
        assert not is_locked(tmp_path / kept.name)
        one = reopened(tmp_path, kept)
        assert is_locked(tmp_path / kept.name)
        assert list(one.chunks(0, 4, 3)) == [b"lef", b"t"]
        assert list(one.chunks(1, 2, 3)) == [b"ef"]
        one.write_at(2, b"ST")
        one.commit(None)
        del one
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"leST"


def test_what_is_kept_and_then_discarded_is_gone(tmp_path: Path) -> None:
    kept = kept_part(tmp_path)
    with no_descriptor_stays_open():
        reopened(tmp_path, kept).discard()
    assert names(tmp_path) == []


def test_what_was_left_is_not_discarded_any_more(tmp_path: Path) -> None:
    one = part(tmp_path)
    one.keep()
    one.leave()
    one.discard()
    assert len(names(tmp_path)) == 1


def test_what_is_left_replaces_nothing_that_was_removed_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    was = state(tmp_path / "a")
    one = part(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(PreconditionFailedError):
        one.commit(was)
    assert names(tmp_path) == []


def test_a_cleanup_spares_what_is_kept(tmp_path: Path) -> None:
    kept, other = kept_part(tmp_path), kept_part(tmp_path)
    assert remove_leftovers(tmp_path, {kept.name}) == 1
    assert names(tmp_path) == [kept.name]
    assert other.name != kept.name


def test_a_kept_file_replaces_only_what_was_expected(tmp_path: Path) -> None:
    one = reopened(tmp_path, kept_part(tmp_path))
    (tmp_path / "a").write_bytes(b"made meanwhile")
    with pytest.raises(PreconditionFailedError):
        one.commit(None)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"made meanwhile"
    one = reopened(tmp_path, kept_part(tmp_path))
    one.commit(state(tmp_path / "a"))
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"left"


def test_the_final_name_is_that_of_the_file_itself_whatever_took_its_temporary_name(tmp_path: Path) -> None:
    kept = kept_part(tmp_path)
    one = reopened(tmp_path, kept)
    os.rename(tmp_path / kept.name, tmp_path / "aside")
    (tmp_path / kept.name).write_bytes(b"evil")
    one.commit(None)
    assert (tmp_path / "a").read_bytes() == b"left"


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.unlink(),
        lambda file: os.truncate(file, 3),
        lambda file: os.truncate(file, 5),
        lambda file: file.chmod(0o664),
        lambda file: file.chmod(0o646),
        lambda file: os.link(file, file.with_name("second")),
        lambda file: (file.rename(file.with_name("second")), file.write_bytes(b"left")),
        lambda file: (file.rename(file.with_name("second")), file.symlink_to("second")),
        lambda file: [step(file) for step in (os.unlink, os.mkfifo)],
        lambda file: [step(file) for step in (os.unlink, os.mkdir)],
    ],
    ids=["gone", "shorter", "longer", "group", "others", "second name", "another", "link", "pipe", "folder"],
)
def test_what_is_not_as_it_was_left_is_not_opened(tmp_path: Path, change: Callable[[Path], object]) -> None:
    kept = kept_part(tmp_path)
    change(tmp_path / kept.name)
    there = names(tmp_path)
    with no_descriptor_stays_open(), pytest.raises(NotKeptError):
        reopened(tmp_path, kept)
    assert names(tmp_path) == there


def test_what_another_process_writes_to_is_not_opened(tmp_path: Path) -> None:
    kept = kept_part(tmp_path)
    one = reopened(tmp_path, kept)
    with no_descriptor_stays_open(), pytest.raises(NotKeptError):
        reopened(tmp_path, kept)
    one.discard()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_file_of_another_user_is_not_opened(tmp_path: Path) -> None:
    kept = kept_part(tmp_path)
    os.chown(tmp_path / kept.name, 12345, -1)
    with no_descriptor_stays_open(), pytest.raises(NotKeptError):
        reopened(tmp_path, kept)


def two_at_most(source: int, destination: int, count: int, offset: int) -> int:
    return os.pwrite(destination, os.pread(source, min(count, 2), offset), offset)


@pytest.mark.parametrize("copy", [DISK.copy, two_at_most])
def test_bytes_of_another_file_come_to_the_same_place(
    tmp_path: Path, copy: Callable[[int, int, int, int], int]
) -> None:
    (tmp_path / "old").write_bytes(b"0123456789")
    with (tmp_path / "old").open("rb") as old:
        one = part(tmp_path, size=10, disk=Disk(copy=copy))
        assert one.copy_from(old.fileno(), 3, 5)
        assert not one.copy_from(old.fileno(), 8, 5)
        one.commit(None)
    assert (tmp_path / "a").read_bytes() == b"\0\0\0" + b"3456789"


def test_a_disk_that_is_full_while_bytes_are_copied_is_reported(tmp_path: Path) -> None:
    def full(source: int, destination: int, count: int, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one = part(tmp_path, size=10, disk=Disk(copy=full))
    with pytest.raises(LocalFileError, match="No space"):
        one.copy_from(0, 0, 5)
    one.discard()


def test_where_the_kernel_copies_nothing_the_bytes_are_read_and_written(tmp_path: Path) -> None:
    # A file that is open for writing only can be neither copied nor read.
    (tmp_path / "old").write_bytes(b"0123456789")
    with (tmp_path / "old").open("rb") as old, (tmp_path / "to").open("ab") as appended:
        # copy_file_range(2): EBADF for a destination that is appended to.
        assert DISK.copy(old.fileno(), appended.fileno(), 4, 0) == 4
    assert (tmp_path / "to").read_bytes() == b"0123"
