"""Errors of the operating system about local files, as errors that name the file and the next step."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path
from types import TracebackType

from blobsync.base.errors import BlobsyncError, DiskFullError, FailureCode, LocalFileError

_HINTS = {
    errno.ENOSPC: "free some space, then run the same command again: finished files are kept",
    errno.EDQUOT: "your quota is used up: free some space, then run the same command again",
    errno.EROFS: "the file system is mounted read-only: choose another folder, or remount it",
    errno.EACCES: "check the permissions of the file and its folder with 'ls -ld'",
    errno.EPERM: "check the permissions of the file and its folder with 'ls -ld'",
    errno.EISDIR: "a folder is in the way of the file: move it away, then run the same command again",
    errno.ENOTDIR: "a file or a link is in the way of a folder: move it away, then run the same command again",
    errno.ELOOP: "a link is in the way of a file or folder: move it away, then run the same command again",
    errno.ENAMETOOLONG: "the name is too long for this file system: leave the file out with --exclude",
    errno.EINVAL: "this file system does not allow the name: leave the file out with --exclude",
    errno.ENOENT: "it disappeared while blobsync was running: run the same command again",
    errno.EMFILE: "too many open files: raise the limit with 'ulimit -n 4096'",
    errno.EIO: "the disk or the mount reports an I/O error: see 'dmesg'",
}


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# What was written is not all there.
LOST = _FULL | {errno.EIO}


def where_to_look(path: Path) -> str:
    """A hint for a path that does not exist: a command that lists the nearest folder above it that exists."""
    nearest = next(folder for folder in path.parents if folder.is_dir())
    return f"'ls {shlex.quote(str(nearest))}' shows what is there"


class ChangedWhileReadError(BlobsyncError):
    """The source differs from the planned file, so what was read is useless."""

    code = FailureCode.CHANGED_WHILE_READ


class NotAFileError(LocalFileError):
    """A pipe, a socket or a device is where a file is to be written: blobsync neither waits for it nor replaces it."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"{path}: neither a file nor a folder is in its place",
            hint="move it away, then run the same command again",
            path=str(path),
        )


def local_error(error: OSError, path: Path | str) -> LocalFileError:
    """Convert ``error`` to a sentence that names ``path``, with what to do next."""
    number = error.errno or 0
    reason = error.strerror or type(error).__name__
    kind = DiskFullError if number in _FULL else LocalFileError
    return kind(f"{path}: {reason}", hint=_HINTS.get(number), path=str(path))


def raise_unless_gone(error: OSError) -> None:
    """For ``os.walk``: a folder that cannot be read is not an empty one. A program may remove its files meanwhile,
    and leave dangling links and files in the place of folders."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise local_error(error, error.filename) from error


class naming:
    """Converts an ``OSError`` in the block to a ``LocalFileError`` about ``path``."""

    # A class because it runs several times for each file: a generator-based context manager takes four times as long.
    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise local_error(error, self._path) from error
