"""A file as one look at it showed it: here by ``stat``, there by a listing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LocalState:
    """A local file as ``stat`` shows it. Bytes, nanoseconds. ``md5`` only where it was computed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    md5: bytes | None = None

    @classmethod
    def of(cls, stat: os.stat_result, md5: bytes | None = None) -> LocalState:
        """From what ``os.stat`` or ``os.fstat`` answered."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, md5)

    def same_file(self, other: LocalState) -> bool:
        """Whether nothing that ``stat`` shows has changed; the MD5 is left out."""
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode) == (
            other.size,
            other.mtime_ns,
            other.ctime_ns,
            other.inode,
        )


@dataclass(frozen=True, slots=True)
class RemoteState:
    """A blob as a listing shows it. ``md5`` is its Content-MD5 property, None where it has none.

    ``tier`` is the access tier that somebody gave it, empty where nobody did, None where nobody looked. Two states that
    differ in it only are equal: it is no content.
    """

    size: int
    etag: str
    md5: bytes | None = None
    tier: str | None = field(default=None, compare=False)


FileState = LocalState | RemoteState
