"""Local files: written only inside one folder, read so that changes are noticed, and hashed.

Everything below a destination folder is opened through directory descriptors that follow no symlink: a link that leads
out of the folder is refused, whatever is swapped while we work. An MD5 belongs to one state
of a file: its size, times and inode.

For reading, no link that leads out of what the user agreed to is followed. The plan has checked each link once. By the
time a file is read, another link may be in its place, and a worker on a node gets its list of files from a place that
others can write to. So each file is opened through directory descriptors that follow no link; a link counts as its
target, and only inside the boundary of its folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import LocalFileError, PreconditionFailedError
from blobsync.base.file_states import FileState, LocalState, regular_only
from blobsync.config.mapping import is_below
from blobsync.local.link_policy import is_protected
from blobsync.local.names import RelativeName
from blobsync.local.os_errors import ChangedWhileReadError, NotAFileError, local_error, naming
from blobsync.local.part_files import (
    FolderDescriptor,
    Keep,
    KeptName,
    NotKeptError,
    PartFile,
    keep_nothing,
    unnamed_work,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that replaced a file must not wait for a writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_GROW = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# How long to wait for another process that is writing the file (seconds).
_LOCK_SECONDS, _LOCK_PAUSE = 10.0, 0.05


class SourceFile:
    """A regular file that is read in pieces, from any thread, and must not change meanwhile.

    Three of its methods run for each small file: ``naming`` would take longer than what they do.
    """

    def __init__(
        self, path: Path | str, expected: FileState | None = None, *, folder: int | None = None, shown: str = ""
    ) -> None:
        """Raises ``LocalFileError``, or ``ChangedWhileReadError`` if it is not ``expected`` any more.

        With ``folder``, an open directory, ``path`` is a name in it, and a link there is not followed; ``shown`` is
        the path for messages.
        """
        self._path = shown or path
        try:
            self.fd = os.open(path, _READ if folder is None else _READ | os.O_NOFOLLOW, dir_fd=folder)
            found = os.fstat(self.fd)
        except OSError as error:
            raise local_error(error, self._path) from error
        self.state = expected if isinstance(expected, LocalState) else LocalState.of(found)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise LocalFileError(f"{self._path}: not a regular file", path=str(self._path))
        if not self.state.is_still(found):
            self.close()
            raise self.changed()

    def read_at(self, offset: int, length: int) -> bytes:
        """Read exactly ``length`` bytes; raises ``ChangedWhileReadError`` if the file became shorter."""
        try:
            data = os.pread(self.fd, length, offset)
            if len(data) < length:
                data = self._read_on(data, offset, length)
        except OSError as error:
            raise local_error(error, self._path) from error
        if len(data) != length:
            raise self.changed()
        return data

    def check_unchanged(self) -> None:
        """Raise ``ChangedWhileReadError`` if the file was written to since it was opened."""
        try:
            now = os.fstat(self.fd)
        except OSError as error:
            raise local_error(error, self._path) from error
        if not self.state.is_still(now):
            raise self.changed()

    def close(self) -> None:
        """Close the file; safe to call again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read_on(self, data: bytes, offset: int, length: int) -> bytes:
        # A read may return less before the end of the file (signals, network mounts, 2 GiB limits).
        pieces = [data]
        got = len(data)
        while data and got < length:
            data = os.pread(self.fd, length - got, offset + got)
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def changed(self) -> ChangedWhileReadError:
        """The error if what is read is not what it was."""
        return ChangedWhileReadError(
            f"{self._path} changed while it was being read",
            hint="run the same command again once nothing writes to it",
            path=str(self._path),
        )


class GrowingFile:
    """A file that only grows at its end, such as the copy of a log; created by ``LocalFolder.grow``."""

    def __init__(self, fd: int, path: Path) -> None:
        """Takes over ``fd``."""
        self._fd = fd
        self._path = path
        self.size = os.fstat(fd).st_size

    def append(self, data: bytes) -> None:
        """Append all of ``data``; raises ``LocalFileError`` (disk full, quota, ...)."""
        with naming(self._path):
            while data:
                written = os.write(self._fd, data)
                self.size += written
                data = data[written:]

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes; fewer at the end of the file."""
        with naming(self._path):
            return os.pread(self._fd, length, offset)

    @property
    def state(self) -> LocalState:
        """The file's state now, for another file that replaces it."""
        return LocalState.of(os.fstat(self._fd))


class LocalFolder:
    """A destination folder; every file below it is created through its descriptor.

    Safe for several threads. Its descriptors are closed with the last reference to it and to its files.
    """

    def __init__(
        self,
        root: Path,
        boundary: Path | tuple[Path, ...] | None = None,
        *,
        kept: Path | None = None,
        unnamed: bool = True,
        private: bool = False,
    ) -> None:
        """Create ``root`` if it is missing. Links are followed inside ``boundary`` (default: ``root``) only.

        What is replaced or deleted below ``root`` gets a second name below ``kept`` first, if given.

        ``unnamed`` False gives each file a temporary name from the start, as on file systems without O_TMPFILE.
        ``private``: ``root``, and what is created below it, is for the user alone; existing files keep their
        permissions.
        """
        self._root = root
        self._text = str(root)
        self._kept = kept
        self._unnamed = unnamed and unnamed_work()
        self._private = private
        self._folder_mode, self._file_mode = (0o700, 0o600) if private else (0o777, 0o644)
        with naming(root):
            given = boundary if isinstance(boundary, tuple) else (boundary,) if boundary else ()
            self._boundary = tuple(os.path.realpath(place) for place in given or (root,))
            real = os.path.realpath(root)
            self._demand_inside(real, root)
            os.makedirs(real, self._folder_mode, exist_ok=True)
            self._top = self._descriptor(os.open(real, _FOLDER | os.O_NOFOLLOW))
        # Files come folder by folder: the last one is kept open for the next file.
        self._last: tuple[list[str], FolderDescriptor] = ([], self._top)

    def create(self, relative: RelativeName, size: int = 0) -> PartFile:
        """Create a temporary file that will become ``relative`` (of ``size`` bytes), and its missing folders.

        Raises ``LocalFileError``, also for ``..``, an absolute name or a link that leads out.
        """
        # A string: creating a Path for each of many small files takes longer than writing it.
        parts, path = self._parts(relative), f"{self._text}/{relative}"
        with naming(path):
            folder = self._parent(parts[:-1])
            keep = self._keep(relative)
            try:
                return PartFile(folder, parts[-1], path, size, keep=keep)
            except OSError:
                if os.fstat(folder.fd).st_nlink:
                    raise
                # Someone removed the open folder.
                self._last = ([], self._top)
                return PartFile(self._parent(parts[:-1]), parts[-1], path, size, keep=keep)

    def reopen(self, relative: RelativeName, size: int, kept: KeptName) -> PartFile | None:
        """Open the part file of ``relative`` that an earlier run left; None if it is missing or was changed.

        Raises ``LocalFileError`` as :meth:`create` does.
        """
        parts, path = self._parts(relative), self._root / relative
        with naming(path), suppress(NotKeptError):
            return PartFile(self._parent(parts[:-1]), parts[-1], path, size, kept=kept, keep=self._keep(relative))
        return None

    def version_before(self, relative: RelativeName, expected: FileState | None) -> SourceFile | None:
        """Open the file that will be replaced, for reading; None if it is not ``expected``, or no regular file."""
        parts = self._parts(relative)
        if not isinstance(expected, LocalState):
            return None
        with suppress(OSError, LocalFileError, ChangedWhileReadError):
            # Whoever uses the descriptor keeps it open: other threads move on to other folders meanwhile.
            folder = self._parent(parts[:-1])
            return SourceFile(parts[-1], expected, folder=folder.fd)
        return None

    def path_of(self, relative: RelativeName) -> str:
        """The absolute path of ``relative``."""
        return os.path.abspath(self._root / relative)

    def remove(self, relative: RelativeName, expected: FileState | None) -> None:
        """Delete a file without following any link; ignored if it is gone.

        Raises ``PreconditionFailedError`` if it is not ``expected`` any more, and ``LocalFileError``.
        """
        parts, path = self._parts(relative), self._root / relative
        with naming(path), suppress(FileNotFoundError):
            folder = self._open_plainly(parts[:-1])
            try:
                found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
                if not isinstance(expected, LocalState) or not expected.same_file(LocalState.of(found)):
                    raise PreconditionFailedError("it changed since the plan was made", path=str(path))
                self._keep(relative)(folder, parts[-1])
                os.unlink(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)

    def remove_if_empty(self, relative: RelativeName) -> None:
        """Delete a folder if it is empty; otherwise, or if it cannot be removed, keep it."""
        parts = self._parts(relative)
        with suppress(OSError):
            folder = self._open_plainly(parts[:-1])
            try:
                os.rmdir(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)

    @contextmanager
    def grow(self, relative: RelativeName) -> Iterator[GrowingFile]:
        """Open the file ``relative`` for appending, created if missing; closed at the end of the block.

        Other processes that want to write it wait meanwhile, so that nothing is written twice. Raises
        ``LocalFileError``, also for a link or anything else that is no regular file.
        """
        parts, path = self._parts(relative), self._root / relative
        with naming(path):
            folder = self._parent(parts[:-1])
            try:
                fd = _open_locked(parts[-1], folder.fd, self._file_mode)
            except OSError as error:
                # A pipe without a reader, or a socket: open(2).
                if error.errno == errno.ENXIO:
                    raise NotAFileError(path) from error
                raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotAFileError(path)
            yield GrowingFile(fd, path)
        finally:
            os.close(fd)

    def _keep(self, relative: RelativeName) -> Keep:
        if self._kept is None:
            return keep_nothing
        from blobsync.local.trash import put_aside  # late: few commands replace a file

        return partial(put_aside, kept=self._kept / relative)

    def _parts(self, relative: RelativeName) -> list[str]:
        # The type says that the name was validated; check again, because the next open would not notice a mistake.
        parts = relative.split("/")
        if not all(parts) or "." in parts or ".." in parts or "\x00" in relative:
            raise LocalFileError(f"{relative!r} is not a name below {self._root}", path=relative)
        return parts

    def _parent(self, parts: list[str]) -> FolderDescriptor:
        known, folder = self._last
        if known != parts:
            folder = self._descriptor(self._open_parent(parts)) if parts else self._top
            self._last = (parts, folder)
        return folder

    def _open_plainly(self, parts: list[str]) -> int:
        return _folder_below(os.dup(self._top.fd), parts, _FOLDER | os.O_NOFOLLOW)

    def _descriptor(self, fd: int) -> FolderDescriptor:
        return FolderDescriptor(fd, unnamed=self._unnamed, private=self._private)

    def _open_parent(self, parts: list[str]) -> int:
        folder = os.dup(self._top.fd)
        for depth, part in enumerate(parts):
            try:
                below = _open_folder(folder, part, self._folder_mode)
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
        """Follow one of the user's links that stays inside the boundary; below its target, follow none."""
        path = self._root / relative
        if not path.is_symlink():
            raise error
        real = os.path.realpath(path)
        place = self._demand_inside(real, path)
        parts = Path(real).relative_to(place).parts
        return _folder_below(os.open(place, _FOLDER | os.O_NOFOLLOW), parts, _FOLDER | os.O_NOFOLLOW)

    def _demand_inside(self, real: str, path: Path) -> str:
        """The part of the boundary that contains ``real``; raises if there is none."""
        for place in self._boundary:
            if is_below(real, place):
                return place
        raise LocalFileError(
            f"{path} leads to {real}, outside of {self._boundary[0]}",
            hint="blobsync writes only through links that you trust: blobsync config trust-link PATH",
            path=str(path),
        )


def _open_locked(name: str, folder: int, mode: int) -> int:
    """Open and lock the file; without a lock if the file system has none, or if another process keeps it for long."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        fd = os.open(name, _GROW, mode, dir_fd=folder)
        try:
            _wait_for_lock(fd, until)
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if os.path.samestat(there, os.fstat(fd)) or time.monotonic() > until:
                    return fd
        except BaseException:
            os.close(fd)
            raise
        # Another file took its place while we waited.
        os.close(fd)


def _wait_for_lock(fd: int, until: float) -> None:
    while time.monotonic() < until:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        except OSError:
            return
        else:
            return


def _folder_below(folder: int, parts: Iterable[str], how: int) -> int:
    """Open the folder ``parts`` below an open one, which is closed."""
    for part in parts:
        try:
            below = os.open(part, how, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _open_folder(folder: int, part: str, mode: int) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=folder)
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


# File systems write what is waited for together: 1,000 files of 64 KiB on ext4 take 0.1 s, one by one 3.4 s. All files
# of a list are open and being written before the first is waited for: half the CPU time of lists of 16.
_WAITING = 8
_LIST = 64
# So much of each file: what is on the disk already may leave the cache.
_BEGINNING = 1 << 20
# macOS cannot.
_CAN_BEGIN = hasattr(os, "posix_fadvise")
# macOS has no other.
_DATA_TO_DISK: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


WaitForDisk = Callable[[Collection[str]], Mapping[str, OSError]]


def wait_for_disk(files: Collection[str]) -> dict[str, OSError]:
    """Wait until these files' contents are on the disk, so that they outlive a power failure.

    Returns the errors of those of which that is not certain. A missing file is none of them.
    """
    names = list(files)
    lists = [names[at : at + _LIST] for at in range(0, len(names), _LIST)]
    return {file: error for found in side_by_side(_wait_for_each, lists, _WAITING) for file, error in found}


def _wait_for_each(files: Sequence[str]) -> list[tuple[str, OSError]]:
    errors: list[tuple[str, OSError]] = []
    opened: list[tuple[str, int]] = []
    for file in files:
        try:
            fd = os.open(file, _READ)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            errors.append((file, error))
            continue
        opened.append((file, fd))
        if _CAN_BEGIN:
            with suppress(OSError):
                # Begins to write, and does not wait.
                os.posix_fadvise(fd, 0, _BEGINNING, os.POSIX_FADV_DONTNEED)
    for file, fd in opened:
        try:
            _DATA_TO_DISK(fd)
        except OSError as error:
            errors.append((file, error))
        finally:
            os.close(fd)
    return errors


_READ_BYTES = 1 << 20
_FEWEST_THREADS = 2


def hash_file(
    file: Path,
    opener: Callable[[str, int], int] = regular_only,
    also: Callable[[bytes], object] | None = None,
) -> LocalState | None:
    """A local file's state with its MD5; None if it cannot be read, is no regular file, or changed meanwhile.

    ``also`` gets the bytes, too, in their order.
    """
    try:
        with open(file, "rb", buffering=0, opener=opener) as stream:
            before = LocalState.of(os.fstat(stream.fileno()))
            digest = hashlib.md5(usedforsecurity=False)
            while chunk := stream.read(_READ_BYTES):
                digest.update(chunk)
                if also is not None:
                    also(chunk)
            after = LocalState.of(os.fstat(stream.fileno()), digest.digest())
    except OSError:
        return None
    return after if after.same_file(before) else None


def reading_threads(processors: int | None = os.cpu_count()) -> int:
    """How many files to read at once: one for each processor, at least two because readers wait for disks."""
    return max(_FEWEST_THREADS, processors or _FEWEST_THREADS)


# A folder need not be readable for the files in it to be.
_PATH_FOLDER = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class SourceFolder:
    """Files below ``root``, or ``root`` itself if it is a file. Safe to use from several threads."""

    def __init__(self, root: Path, boundary: tuple[Path, ...] = ()) -> None:
        """Links are followed inside ``boundary``: the project first, then the targets of the user's trusted links. In
        the project only folders that hold data count. Empty: whoever named the root agreed to its links as well."""
        self._root = root
        # Of a Path each file would make a string again.
        self._text = str(root)
        self._project = boundary[0] if boundary else root
        self._boundary = tuple(os.path.realpath(place) for place in boundary)
        # Files come folder by folder: the last one is kept open for the next file.
        self._last: tuple[str, FolderDescriptor] | None = None

    def open(self, relative: str, expected: FileState | None = None) -> SourceFile:
        """Open the file ``relative``, or the root itself if that is empty.

        Raises ``LocalFileError``, also for a link that leads out of the boundary, and ``ChangedWhileReadError`` when it
        is not ``expected`` any more.
        """
        path = f"{self._text}/{relative}" if relative else self._text
        if not self._boundary:
            return SourceFile(path, expected)
        above, _, name = path.rpartition("/")
        # Whoever uses the descriptor keeps it open: other threads move on to other folders meanwhile.
        folder = self._folder(above, path)
        try:
            return SourceFile(name, expected, folder=folder.fd, shown=path)
        except LocalFileError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ELOOP:
                raise
        with naming(path):
            folder, name = self._through_links(path)
        return SourceFile(name, expected, folder=folder.fd, shown=path)

    def _folder(self, above: str, path: str) -> FolderDescriptor:
        known = self._last
        if known is None or known[0] != above:
            with naming(path):
                real, place = self._demand_inside(above)
                known = above, _opened(real, place)
            self._last = known
        return known[1]

    def _through_links(self, path: str) -> tuple[FolderDescriptor, str]:
        """The folder of a link's target, and the target's name in it."""
        real, place = self._demand_inside(path)
        above, name = os.path.split(real)
        return _opened(above, place if is_below(above, place) else above), name

    def _demand_inside(self, path: str) -> tuple[str, str]:
        """The real path, and the part of the boundary that contains it."""
        real = os.path.realpath(path)
        for place in self._boundary:
            if is_below(real, place) and not (place == self._boundary[0] and self._protects(real, path)):
                return real, place
        raise LocalFileError(
            f"{path} leads to {real}, which the plan did not allow",
            hint="blobsync reads only through links that you trust: blobsync config trust-link PATH",
            path=path,
        )

    def _protects(self, real: str, path: str) -> bool:
        """Whether a link led into a folder that holds no data. Files that lie in such a folder by their own names, as
        in ``data/.git``, are what the plan has read there."""
        project = self._boundary[0]
        if not is_protected(real, project):
            return False
        root = os.path.realpath(self._root)
        if real != os.path.normpath(f"{root}{path.removeprefix(str(self._root))}"):
            return True
        by_name = os.path.join(project, os.path.relpath(self._root, self._project))
        return root != os.path.normpath(by_name) and is_below(root, project) and is_protected(root, project)


def _opened(real: str, place: str) -> FolderDescriptor:
    """Open a folder of ``place``, through no link that replaced a part of it meanwhile."""
    how = os.O_RDONLY | _PATH_FOLDER
    folder = _folder_below(os.open(place, how), Path(real).relative_to(place).parts, how)
    return FolderDescriptor(folder, unnamed=False)
