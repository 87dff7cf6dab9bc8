"""A folder that a service has mounted for the job, as a read-only container."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    PreconditionFailedError,
    StorageError,
)
from blobsync.base.locations import MountedLocation
from blobsync.store.protocol import BlobInfo, BlobProperties, BlockKind, BlockList
from blobsync.store.read_only import ReadOnlyStore
from blobsync.store.resumed_reader import ResumedReader


@final
class MountedStore(ReadOnlyStore):
    """A ``BlobStore`` of a folder; a file's ETag is made of its ``stat``."""

    def __init__(self, location: MountedLocation) -> None:
        self._location, self._root = location, location.path

    @property
    def container(self) -> MountedLocation:
        return self._location

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Every file whose path below the folder starts with ``prefix``. Raises ``StorageError``."""
        for folder, names, files in os.walk(self._root / prefix.rpartition("/")[0], onerror=_raise_unreadable):
            names.sort()
            for file in sorted(files):
                path = Path(folder, file)
                name = path.relative_to(self._root).as_posix()
                if name.startswith(prefix) and (found := self.head(name)) is not None:
                    yield found

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """One level below ``prefix``."""
        shown = set()
        for blob in self.list_blobs(prefix):
            below, slash, _ = blob.name[len(prefix) :].partition("/")
            if not slash:
                yield blob
            elif below not in shown:
                shown.add(below)
                yield f"{prefix}{below}/"

    def head(self, name: str) -> BlobInfo | None:
        try:
            found = os.stat(self._root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(name, error) from error
        return _info(name, found) if stat.S_ISREG(found.st_mode) else None

    def properties(self, name: str) -> BlobProperties:
        """Empty: a file has none."""
        if self.head(name) is None:
            raise BlobNotFoundError(f"there is no {name} in {self._root}", path=name)
        return BlobProperties()

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Empty: a file has no blocks."""
        found = self.head(name)
        return BlockList((), (), found.etag) if found else None

    def open(self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> ResumedReader:
        """A range of one version of a file. What breaks off here has changed, and is not continued."""
        return ResumedReader(self._get, lambda breaks: False, StorageError, name, start, length, etag)

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], _OpenFile]:
        try:
            fd = os.open(self._root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise BlobNotFoundError(f"there is no {name} in {self._root}", path=name) from error
        except OSError as error:
            raise _unreadable(name, error) from error
        info = _info(name, os.fstat(fd))
        if etag not in (None, info.etag):
            os.close(fd)
            raise PreconditionFailedError(f"{name} changed since it was checked", path=name)
        return info, BlobProperties, _OpenFile(info, fd, start)

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def fail_soon(self) -> None:
        """Does nothing: there are no waits to cut short."""

    def refusal(self, name: str) -> BlobsyncError:
        return AccessDeniedError(f"{name}: the mount at {self._root} is read-only", path=name)


class _OpenFile:
    """The rest of a file that must not change."""

    def __init__(self, info: BlobInfo, fd: int, at: int) -> None:
        self._info, self._fd, self._at = info, fd, at

    def close(self) -> None:
        """Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes. Raises ``PreconditionFailedError`` for a file that has changed, or has no more."""
        name = self._info.name
        try:
            data = os.pread(self._fd, limit, self._at)
        except OSError as error:
            raise _unreadable(name, error) from error
        if not data or _info(name, os.fstat(self._fd)).etag != self._info.etag:
            raise PreconditionFailedError(f"{name} changed while it was being read", path=name)
        self._at += len(data)
        return data


def _info(name: str, found: os.stat_result) -> BlobInfo:
    version = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    return BlobInfo(name, found.st_size, version, None, found.st_mtime)


def _raise_unreadable(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise _unreadable(str(error.filename), error) from error


def _unreadable(name: str, error: OSError) -> StorageError:
    return StorageError(f"{name}: cannot be read: {error.strerror}", path=name)
