"""The observed state of a file: a local one by ``stat``, a blob by a listing.

Opens regular files only, since someone may have put a pipe, a socket or a device in a file's place.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import field

from blobsync.base.records import dataclass


@dataclass(frozen=True, slots=True)
class LocalState:
    """A local file as ``stat`` shows it, in bytes and nanoseconds. ``md5`` and ``crc64`` are set only if they were
    computed, and ``blocks`` only in the process that did: the SHA-256 of each of its blocks, one after the other, from
    the same bytes as the MD5."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    md5: bytes | None = None
    crc64: bytes | None = field(default=None, compare=False)
    blocks: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, stat: os.stat_result, md5: bytes | None = None) -> LocalState:
        """Convert the result of ``os.stat`` or ``os.fstat``."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, md5)

    @classmethod
    def at(cls, file: str | os.PathLike[str]) -> LocalState | None:
        """The regular file as it is now, through links; None for anything else, and for what cannot be looked at."""
        with suppress(OSError):
            found = os.stat(file)
            return cls.of(found) if stat.S_ISREG(found.st_mode) else None
        return None

    def is_still(self, found: os.stat_result) -> bool:
        """As :meth:`same_file`, for the result of ``os.stat`` or ``os.fstat``."""
        return (
            self.mtime_ns == found.st_mtime_ns
            and self.ctime_ns == found.st_ctime_ns
            and self.size == found.st_size
            and self.inode == found.st_ino
        )

    def same_file(self, other: LocalState) -> bool:
        """Whether nothing that ``stat`` shows has changed; ignores the MD5."""
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode) == (
            other.size,
            other.mtime_ns,
            other.ctime_ns,
            other.inode,
        )


@dataclass(frozen=True, slots=True)
class RemoteState:
    """A blob as a listing shows it. ``md5`` is its Content-MD5 property, None if it has none.

    ``tier`` is the access tier if it was set explicitly, empty if it was not, None if unknown. ``crc64`` is that of the
    bytes (CRC-64/NVME, 8 bytes from the great end), None if unknown. ``version`` names an earlier version, which a copy
    brings back, or has the words below in its place. Two states that differ only in these three are equal: a tier is
    not content, and no listing shows a CRC64.
    """

    size: int
    etag: str
    md5: bytes | None = None
    tier: str | None = field(default=None, compare=False)
    crc64: bytes | None = field(default=None, compare=False)
    version: str = field(default="", compare=False)


# In place of a version: "deleted" is a blob that is deleted and still kept (where there are directories, the id of the
# deletion follows); "snapshot TIME" is one of a blob, "deleted snapshot TIME" what soft delete keeps of a replaced one.
DELETED, SNAPSHOT = "deleted", "snapshot"

FileState = LocalState | RemoteState


def regular_only(path: str, _flags: int) -> int:
    """An ``opener`` for the built-in ``open``, for reading: raises ``OSError`` if it is no regular file. Never blocks.

    Without O_NONBLOCK, opening a pipe blocks until another process writes to it (fifo(7)).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "neither a file nor a folder", path)
