"""Files that appear whole or not at all, and cleanup of what killed runs left of them.

If the file system can, a file has no name until it is complete (``O_TMPFILE``): a killed run leaves
nothing. Elsewhere (NFS, Lustre, FUSE) it is written under a temporary name in its final directory and renamed
at the end; such a file is locked (``flock``) while its writer lives, so that a later run can tell the leftovers of a
killed run from the work of a live one.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from blobsync.base.errors import PreconditionFailedError
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.records import NamedTuple
from blobsync.local.names import is_own_temporary, new_temporary_name
from blobsync.local.os_errors import NotAFileError, local_error, naming

# Only Linux has it.
_TMPFILE = getattr(os, "O_TMPFILE", 0)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o644
_PRIVATE_MODE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

# Errors of file systems and old kernels without O_TMPFILE.
_NO_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS})

_CHUNK = 1 << 20

# On file systems without locks (some network mounts), only files untouched for a day count as leftovers.
_DEAD_WITHOUT_LOCK = 24 * 3600.0


class NotKeptError(Exception):
    """There is no part file that our earlier run left: start anew."""


def unnamed_work(tmpfile: int = _TMPFILE, descriptors: str = "/proc/self/fd") -> bool:
    """Whether unnamed files can be named later: that needs /proc, which some containers lack."""
    return tmpfile != 0 and os.access(descriptors, os.F_OK)


def _lock(fd: int) -> None:
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_unnamed(folder: int) -> int:
    return os.open(".", os.O_RDWR | _TMPFILE | os.O_CLOEXEC, _MODE, dir_fd=folder)


def _copy(source: int, destination: int, count: int, offset: int) -> int:
    """Copy bytes from one file to the same offset in another; returns how many, 0 at the end.

    copy_file_range(2) shares them if the file system can (btrfs, XFS), and otherwise copies them in the kernel.
    """
    # Only Linux has it, and not between all files. Other errors appear when reading and writing, too.
    with suppress(AttributeError, OSError):
        return os.copy_file_range(source, destination, count, offset, offset)
    return os.pwrite(destination, os.pread(source, min(count, _CHUNK), offset), offset)


class Disk(NamedTuple):
    """The file system calls that differ between file systems, or that tests replace."""

    new_name: Callable[[], str] = new_temporary_name
    lock: Callable[[int], None] = _lock
    open_unnamed: Callable[[int], int] = _open_unnamed
    write: Callable[[int, bytes, int], int] = os.pwrite
    copy: Callable[[int, int, int, int], int] = _copy
    link: Callable[..., None] = os.link


DISK = Disk()


# Keeps the file of that name in an open folder, before another one takes its place.
Keep = Callable[[int, str], None]


def keep_nothing(folder: int, name: str) -> None:
    """Do nothing: what is replaced is gone."""


class KeptName(NamedTuple):
    """Identifies a part file: its name and inode."""

    name: str
    inode: int


class FolderDescriptor:
    """An open directory that several files share; closed with the last reference to it."""

    __slots__ = ("fd", "private", "unnamed")

    def __init__(self, fd: int, *, unnamed: bool, private: bool = False) -> None:
        """Takes over ``fd``.

        ``unnamed``: files in it may stay unnamed until they are complete. ``private``: new files are for their
        owner alone.
        """
        self.fd = fd
        self.unnamed = unnamed
        self.private = private

    def __del__(self) -> None:
        os.close(self.fd)


class PartFile:
    """An unfinished file: written at any offset from any thread, then committed or discarded."""

    def __init__(
        self,
        folder: FolderDescriptor,
        name: str,
        path: Path | str,
        size: int,
        disk: Disk = DISK,
        *,
        kept: KeptName | None = None,
        keep: Keep = keep_nothing,
    ) -> None:
        """Will become ``name`` in ``folder``, ``path`` in messages; created by ``LocalFolder``.

        ``kept`` identifies what an earlier run left of it, ``keep`` is called before a file is replaced. Raises
        ``OSError``, or ``NotKeptError`` if that is missing or was changed.
        """
        self._disk = disk
        self._keep = keep
        self._folder = folder
        self._name = name
        self._path = path
        self._temporary = ""
        self._executable: bool | None = None
        self._mtime_ns: int | None = None
        self._fd = self._create() if kept is None else self._open_kept(kept, size)
        try:
            if self._folder.private:
                os.fchmod(self._fd, _PRIVATE_MODE)
            self._probe(size)
        except BaseException:
            self.discard()
            raise

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of ``data``; raises ``LocalFileError`` (disk full, quota, ...)."""
        # Not ``naming``, which takes as long as a small write.
        try:
            written = self._disk.write(self._fd, data, offset)
            while written < len(data):
                written += self._disk.write(self._fd, data[written:], offset + written)
        except OSError as error:
            raise local_error(error, self._path) from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Read what was written before."""
        with naming(self._path):
            return os.pread(self._fd, length, offset)

    def chunks(self, start: int, length: int, chunk: int) -> Iterator[bytes]:
        """Read a range in pieces of at most ``chunk`` bytes."""
        return (self.read_at(at, min(chunk, start + length - at)) for at in range(start, start + length, chunk))

    def copy_from(self, fd: int, offset: int, length: int) -> bool:
        """Copy a range from another open file; returns whether it was that long. Raises ``LocalFileError``."""
        with naming(self._path):
            while length:
                done = self._disk.copy(fd, self._fd, length, offset)
                if not done:
                    return False
                offset += done
                length -= done
        return True

    def dress(self, executable: bool | None, mtime_ns: int | None) -> None:
        """What the file has from its commit on: executable for whoever may read it, or for nobody, and this time
        (nanoseconds since 1970); None: as any file."""
        self._executable, self._mtime_ns = executable, mtime_ns

    def look_like(self, fd: int) -> None:
        """Have the permissions and the time of another open file. Raises ``LocalFileError``."""
        with naming(self._path):
            found = os.fstat(fd)
            os.fchmod(self._fd, stat.S_IMODE(found.st_mode))
            os.utime(self._fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def take(self, staged: Path) -> None:
        """Become ``staged``, a complete file on this file system that nobody writes to, by moving it here."""
        with naming(self._path):
            fd = os.open(staged, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                self._disk.lock(fd)
                os.fchmod(fd, self._mode)
                self._give_temporary_name()
                os.replace(staged, self._temporary, dst_dir_fd=self._folder.fd)
            except OSError:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd = fd

    def commit(self, expected: FileState | None, md5: bytes | None = None) -> LocalState:
        """Move the file to its final name and return its state.

        Raises ``PreconditionFailedError``, and leaves the present file alone, if that is not ``expected``
        (None: no file) any more. Keeps the permissions of a replaced file.
        """
        try:
            with naming(self._path):
                self._put_on()
                if expected is None and self._appears():
                    written = self._under_one_name()
                else:
                    self._demand(expected)
                    self._put_on()
                    self._give_temporary_name()
                    folder = self._folder.fd
                    if expected is not None:
                        self._keep(folder, self._name)
                    os.replace(self._temporary, self._name, src_dir_fd=folder, dst_dir_fd=folder)
                    self._temporary = ""
                    # After the rename, which changes the ctime.
                    written = os.fstat(self._fd)
                state = LocalState.of(written, md5)
        except BaseException:
            self.discard()
            raise
        self.close()
        return state

    def keep(self) -> KeptName:
        """Name the file, so that it outlives this process; raises ``LocalFileError``. Then call :meth:`leave`."""
        with naming(self._path):
            self._give_temporary_name()
            return KeptName(self._temporary, os.fstat(self._fd).st_ino)

    def leave(self) -> None:
        """Close the file and keep it for a later run; only after :meth:`keep`."""
        self._temporary = ""
        self.close()

    def discard(self) -> None:
        """Remove the file; safe to call again, and after a commit."""
        self.abandon()
        self.close()

    def abandon(self) -> None:
        """Remove only the name: a thread that is still writing must not find its descriptor reused."""
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder.fd)

    def close(self) -> None:
        """Close the descriptor, which releases the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _mode(self) -> int:
        return stat.S_IMODE(os.fstat(self._fd).st_mode)

    def _create(self) -> int:
        if self._folder.unnamed:
            try:
                return self._disk.open_unnamed(self._folder.fd)
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise
                self._folder.unnamed = False
        fd, self._temporary = self._create_locked()
        return fd

    def _open_kept(self, kept: KeptName, size: int) -> int:
        """Open the file of that name if it is the one that was left, and ours. Anyone may have put it there."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(kept.name, flags, dir_fd=self._folder.fd)
        except OSError as error:
            raise NotKeptError from error
        found = os.fstat(fd)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
        if not is_ours or found.st_mode & _OTHERS_WRITE or (found.st_ino, found.st_size) != (kept.inode, size):
            os.close(fd)
            raise NotKeptError
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Another process is writing to it, or the file system has no locks.
            os.close(fd)
            raise NotKeptError from error
        self._temporary = kept.name
        return fd

    def _create_locked(self) -> tuple[int, str]:
        while True:
            name = self._disk.new_name()
            try:
                fd = os.open(name, _CREATE, _MODE, dir_fd=self._folder.fd)
            except FileExistsError:
                continue
            self._disk.lock(fd)
            if os.fstat(fd).st_nlink:
                return fd, name
            # A cleanup ran between creating and locking, and removed it as a leftover.
            os.close(fd)

    def _probe(self, size: int) -> None:
        """Fail before any bytes move if the file system has no room for the name, or for this size."""
        with suppress(FileNotFoundError):
            os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
        if size:
            # Sparse: takes no space yet.
            os.ftruncate(self._fd, size)

    def _link(self, name: str) -> bool:
        """Give the unnamed file a name in one step; False if the name exists already."""
        try:
            # If followed, the link in /proc is the open file itself: see open(2) about O_TMPFILE.
            os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._folder.fd, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def _appears(self) -> bool:
        """Create the final name in one step if it is free; False if the disk cannot do that."""
        if self._folder.unnamed:
            return self._link(self._name)
        # A check before a rename is not enough: a network file system may cache for seconds that the name was free.
        try:
            self._disk.link(self._temporary, self._name, src_dir_fd=self._folder.fd, dst_dir_fd=self._folder.fd)
        except FileExistsError:
            self._demand(None)
            raise self._changed() from None
        except OSError:
            # FAT and some network mounts have no hard links.
            return False
        return True

    def _under_one_name(self) -> os.stat_result:
        """Remove the temporary name, if there is one; return the file's status."""
        written = os.fstat(self._fd)
        if not self._temporary:
            return written
        # NFS keeps the name of an open file, and changes the ctime when it goes.
        self.close()
        self.abandon()
        self._temporary = ""
        with suppress(OSError):
            found = os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
            if os.path.samestat(found, written) and found.st_mtime_ns == written.st_mtime_ns:
                return found
        return written

    def _give_temporary_name(self) -> None:
        if not self._temporary:
            self._disk.lock(self._fd)
            while not self._link(name := self._disk.new_name()):
                pass
            self._temporary = name

    def _demand(self, expected: FileState | None) -> None:
        try:
            found = os.stat(self._name, dir_fd=self._folder.fd)
        except FileNotFoundError:
            if expected is None:
                return
            raise self._changed() from None
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise NotAFileError(self._path)
        if not isinstance(expected, LocalState) or not expected.same_file(LocalState.of(found)):
            raise self._changed()
        mode = stat.S_IMODE(found.st_mode)
        if mode != self._mode:
            os.fchmod(self._fd, mode)

    def _put_on(self) -> None:
        """See :meth:`dress`."""
        if self._executable is not None:
            mode = self._mode
            wanted = mode | (mode & 0o444) >> 2 if self._executable else mode & ~0o111
            if wanted != mode:
                os.fchmod(self._fd, wanted)
        if self._mtime_ns is not None:
            os.utime(self._fd, ns=(self._mtime_ns, self._mtime_ns))

    def _changed(self) -> PreconditionFailedError:
        return PreconditionFailedError(
            f"{self._path} changed since it was checked, and was left alone",
            hint="run the same command again",
            path=str(self._path),
        )


def remove_leftovers(folder: Path, kept: Collection[str] = ()) -> int:
    """Remove the temporary files that dead runs left in ``folder`` itself; returns how many.

    The names in ``kept`` stay: a download will resume from them.

    Each leftover is in the folder of its final name, so the run that finishes the work finds it.
    Keeps those of running processes, and ignores errors: part files are never treated
    as data.
    """
    # azcopy's own temporary files are not locked, so it is unknown whether it is still running.
    ours = [name for name in _names_in(folder) if is_own_temporary(name) and name not in kept]
    return sum(remove_leftover(os.path.join(folder, name)) for name in ours)


def left_over(place: Path, folders: Collection[Path] = ()) -> int:
    """The bytes on the disk that dead runs left below ``place``, or next to it if it is a file.

    ``folders`` are temporary folders that count with all that is in them.
    """
    if not place.is_dir():
        return sum(_size_left(os.path.join(place.parent, name)) for name in _names_in(place.parent))
    size, counted = 0, {os.path.realpath(folder) for folder in folders}
    for at, below, names in os.walk(place):
        if os.path.realpath(at) in counted:
            size += sum(_blocks(os.path.join(inner, name)) for inner, _, all_of in os.walk(at) for name in all_of)
            below.clear()
        else:
            size += sum(_size_left(os.path.join(at, name)) for name in names)
    return size


def is_in_use(path: str) -> bool:
    """Whether the writer of a temporary file lives, or cannot be told from one that does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _is_dead(fd, fcntl.flock, time.time)
    finally:
        os.close(fd)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _size_left(path: str) -> int:
    if not is_own_temporary(os.path.basename(path)):
        return 0
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _blocks(path) if _is_dead(fd, fcntl.flock, time.time) else 0
        finally:
            os.close(fd)
    return 0


def _blocks(path: str) -> int:
    """The bytes that a file uses on the disk: it has holes where a download has not written yet."""
    with suppress(OSError):
        return os.lstat(path).st_blocks * 512
    return 0


def remove_leftover(
    path: str, *, flock: Callable[[int, int], None] = fcntl.flock, now: Callable[[], float] = time.time
) -> bool:
    """Remove one temporary file unless its writer lives; returns whether it was removed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not _is_dead(fd, flock, now):
            return False
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_dead(fd: int, flock: Callable[[int, int], None], now: Callable[[], float]) -> bool:
    try:
        flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return now() - os.fstat(fd).st_mtime > _DEAD_WITHOUT_LOCK
    return True
