"""Local files, written so that they appear whole or not at all, and read so that a change is noticed.

Everything below a destination folder is reached through directory descriptors that follow no symlink: a
link inside the folder that leads out of it is refused, whatever is swapped while we work. A file is
written under a temporary name in its final directory and renamed at the end.

A temporary file is locked (``flock``) while its writer lives, so that a later run can tell the leftovers
of a killed run from the work of a live one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from blobsync.errors import BlobsyncError, LocalFileError, PreconditionFailedError
from blobsync.names import is_temporary
from blobsync.plan import FileState, LocalState

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

# Where the file system has no locks (some network mounts), only what nobody touched for a day is dead.
_DEAD_WITHOUT_LOCK = 24 * 3600.0

_HINTS = {
    errno.ENOSPC: "free some space, then run the same command again: what is done is kept",
    errno.EDQUOT: "your quota is used up: free some space, then run the same command again",
    errno.EROFS: "the file system is mounted read-only: choose another folder, or remount it",
    errno.EACCES: "check the permissions of the file and its folder with 'ls -ld'",
    errno.EPERM: "check the permissions of the file and its folder with 'ls -ld'",
    errno.EISDIR: "a folder stands where the file belongs: move it away, then run the same command again",
    errno.ENOTDIR: "a file or a link stands where a folder belongs: move it away, then run the same command again",
    errno.ELOOP: "a link stands where a file or folder belongs: move it away, then run the same command again",
    errno.ENAMETOOLONG: "this file system has no room for such a name: leave the file out with --exclude",
    errno.EINVAL: "this file system refuses such a name: leave the file out with --exclude",
    errno.ENOENT: "it disappeared while blobsync was at work: run the same command again",
    errno.EMFILE: "too many open files: raise the limit with 'ulimit -n 4096'",
    errno.EIO: "the disk or the mount reports damage: look at 'dmesg'",
}


class ChangedWhileReadError(BlobsyncError):
    """The source is not the file that was planned any more, so that what was read is worth nothing."""

    code = "changed_while_read"


def local_error(error: OSError, path: Path | str) -> LocalFileError:
    """``error`` as a sentence that names ``path``, with what to do next."""
    number = error.errno or 0
    reason = error.strerror or type(error).__name__
    return LocalFileError(f"{path}: {reason}", hint=_HINTS.get(number), path=str(path))


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise local_error(error, path) from error


class SourceFile:
    """A regular file that is read in pieces, from any thread, and must not change meanwhile."""

    def __init__(self, path: Path, expected: FileState | None = None) -> None:
        """Raises ``LocalFileError``, or ``ChangedWhileReadError`` when it is not ``expected`` any more."""
        self._path = path
        with _naming(path):
            self._fd = os.open(path, _READ)
            found = os.fstat(self._fd)
        self.state = LocalState.of(found)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise LocalFileError(f"{path}: not a regular file", path=str(path))
        if isinstance(expected, LocalState) and not expected.same_file(self.state):
            self.close()
            raise self._changed()

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes; a file that became shorter raises ``ChangedWhileReadError``."""
        with _naming(self._path):
            data = os.pread(self._fd, length, offset)
            if len(data) < length:
                data = self._read_on(data, offset, length)
        if len(data) != length:
            raise self._changed()
        return data

    def check_unchanged(self) -> None:
        """Raises ``ChangedWhileReadError`` when the file was written to since it was opened."""
        with _naming(self._path):
            now = LocalState.of(os.fstat(self._fd))
        if not now.same_file(self.state):
            raise self._changed()

    def close(self) -> None:
        """Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_on(self, data: bytes, offset: int, length: int) -> bytes:
        # A read may be short without being at the end (signals, network mounts, 2 GiB limits).
        pieces = [data]
        got = len(data)
        while data and got < length:
            data = os.pread(self._fd, length - got, offset + got)
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def _changed(self) -> ChangedWhileReadError:
        return ChangedWhileReadError(
            f"{self._path} changed while it was being read",
            hint="run the same command again once nothing writes to it",
            path=str(self._path),
        )


class LocalFolder:
    """A destination folder; every file below it is made through its descriptor.

    Only the owner closes it, after the last file. Safe for several threads.
    """

    def __init__(self, root: Path, boundary: Path | None = None) -> None:
        """Make ``root`` where it is missing. Links are followed inside ``boundary`` (default: ``root``) only."""
        self._root = root
        with _naming(root):
            self._boundary = os.path.realpath(boundary or root)
            real = os.path.realpath(root)
            self._demand_inside(real, root)
            os.makedirs(real, exist_ok=True)
            self._fd = os.open(real, _FOLDER | os.O_NOFOLLOW)

    def __enter__(self) -> LocalFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def create(self, relative: str, size: int = 0) -> PartFile:
        """A new temporary file that will become ``relative`` (of ``size`` bytes), missing folders included.

        Raises ``LocalFileError``; ``..``, an absolute name or a link that leads out is one.
        """
        parts = relative.split("/")
        path = self._root / relative
        if not all(parts) or "." in parts or ".." in parts or "\x00" in relative:
            raise LocalFileError(f"{relative!r} is no name below {self._root}", path=relative)
        with _naming(path):
            folder = self._open_parent(parts[:-1])
            try:
                return PartFile(folder, parts[-1], path, size)
            except BaseException:
                os.close(folder)
                raise

    def _open_parent(self, parts: list[str]) -> int:
        folder = os.dup(self._fd)
        for depth, part in enumerate(parts):
            try:
                below = _open_folder(folder, part)
            except OSError as error:
                # O_NOFOLLOW on a link: ELOOP, or ENOTDIR together with O_DIRECTORY.
                if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                    raise
                below = self._through_link("/".join(parts[: depth + 1]), error)
            finally:
                os.close(folder)
            folder = below
        return folder

    def _through_link(self, relative: str, error: OSError) -> int:
        """Follow a link of the user's that stays inside the boundary, from there on without links."""
        path = self._root / relative
        if not path.is_symlink():
            raise error
        real = os.path.realpath(path)
        self._demand_inside(real, path)
        folder = os.open(self._boundary, _FOLDER)
        for part in Path(real).relative_to(self._boundary).parts:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
        return folder

    def _demand_inside(self, real: str, path: Path) -> None:
        if real != self._boundary and not real.startswith(self._boundary.rstrip("/") + "/"):
            raise LocalFileError(
                f"{path} leads to {real}, outside of {self._boundary}",
                hint="blobsync writes through no link that leaves the project: replace the link by a folder",
                path=str(path),
            )


def _open_folder(folder: int, part: str) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=folder)
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


class PartFile:
    """A file under its temporary name: written at any offset from any thread, then committed or discarded."""

    def __init__(self, folder: int, name: str, path: Path, size: int) -> None:
        """Takes over the descriptor ``folder``; made by :meth:`LocalFolder.create`."""
        self._folder = folder
        self._name = name
        self._path = path
        self._fd, self._temporary = _create_locked(folder)
        self._fresh_mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        try:
            _probe_name(folder, name)
            if size:
                # Sparse: tells early where a file of this size is not possible at all.
                os.ftruncate(self._fd, size)
        except BaseException:
            self._unlink()
            os.close(self._fd)
            raise

    def write_at(self, offset: int, data: bytes) -> None:
        """All of ``data``; raises ``LocalFileError`` (disk full, quota, ...)."""
        with _naming(self._path):
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], offset + written)

    def read_at(self, offset: int, length: int) -> bytes:
        """What was written before."""
        with _naming(self._path):
            return os.pread(self._fd, length, offset)

    def take(self, staged: Path) -> None:
        """Become ``staged``, a complete file of this file system that nobody writes to; it is moved from there."""
        with _naming(self._path):
            fd = os.open(staged, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(fd, self._fresh_mode)
                os.replace(staged, self._temporary, dst_dir_fd=self._folder)
            except OSError:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd = fd

    def commit(self, expected: FileState | None, md5: bytes | None = None) -> LocalState:
        """Put it under its final name and tell what it is there.

        Raises ``PreconditionFailedError``, and leaves the present file alone, when that is not ``expected``
        (None: no file) any more. The permissions of a file that is replaced are kept.
        """
        try:
            with _naming(self._path):
                self._demand(expected)
                os.replace(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                # After the rename: it moves the change time.
                state = LocalState.of(os.fstat(self._fd), md5)
        except BaseException:
            self.discard()
            raise
        self.close()
        return state

    def discard(self) -> None:
        """Remove it; safe to call again, and after a commit."""
        self._unlink()
        self.close()

    def abandon(self) -> None:
        """Remove the name only: a thread that is still writing must not find its descriptor reused."""
        self._unlink()

    def close(self) -> None:
        """Release the descriptors and with them the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._folder)
            self._fd = self._folder = -1

    def _demand(self, expected: FileState | None) -> None:
        try:
            found = os.stat(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            if expected is None:
                return
            raise self._changed() from None
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not isinstance(expected, LocalState) or not expected.same_file(LocalState.of(found)):
            raise self._changed()
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISREG(found.st_mode) and mode != self._fresh_mode:
            os.fchmod(self._fd, mode)

    def _changed(self) -> PreconditionFailedError:
        return PreconditionFailedError(
            f"{self._path} changed since it was looked at, and was left alone",
            hint="run the same command again",
            path=str(self._path),
        )

    def _unlink(self) -> None:
        if self._folder >= 0:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)


def _create_locked(folder: int) -> tuple[int, str]:
    while True:
        name = f".blobsync-{os.urandom(4).hex()}.part"
        try:
            fd = os.open(name, _CREATE, 0o644, dir_fd=folder)
        except FileExistsError:
            continue
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd, name
        # A cleanup came between creating and locking, and took it for a dead run's.
        os.close(fd)


def _probe_name(folder: int, name: str) -> None:
    """Find out before the bytes move that the file system has no room for the final name."""
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)


def remove_leftovers(folder: Path) -> int:
    """Remove the temporary files that dead runs left in ``folder`` itself; returns how many.

    Each stands beside the file that it should have become, so that the run which finishes the work comes by.
    Leaves those of running processes, and is silent about what it cannot read or remove: they are never taken
    for data anyway.
    """
    try:
        # azcopy's own temporary files are not locked, so that nobody can tell whether it still runs.
        ours = [name for name in os.listdir(folder) if name.startswith(".blobsync-") and is_temporary(name)]
    except OSError:
        return 0
    return sum(remove_leftover(os.path.join(folder, name)) for name in ours)


def remove_leftover(path: str) -> bool:
    """Remove one temporary file unless its writer lives; whether it was removed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not _is_dead(fd):
            return False
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_dead(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(fd).st_mtime > _DEAD_WITHOUT_LOCK
    return True
