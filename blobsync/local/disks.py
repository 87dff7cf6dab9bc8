"""The disks of this machine: which one a path is on, how much room it has, and what killed runs left there."""

import os
from collections.abc import Callable
from pathlib import Path

from blobsync.base.records import NamedTuple
from blobsync.local.part_files import left_over


class Disk(NamedTuple):
    """A file system, by its device number; ``free`` bytes are available to this user."""

    device: int
    free: int


def disk_of(path: Path) -> Disk | None:
    """The disk that ``path`` is on, or will be on; None if the file system does not report its free space."""
    for place in (path, *path.parents):
        try:
            device, room = os.stat(place).st_dev, os.statvfs(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        # statvfs(3): some blocks may be reserved for root. File systems without a size, such as some of FUSE, report 0.
        blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
        return Disk(device, blocks * room.f_frsize) if room.f_blocks else None
    return None


class LocalDisks(NamedTuple):
    """Queries about local disks: ``of`` returns the disk of a path, ``left_over`` the bytes that killed runs left at a
    path, which the next run removes before it fetches anything."""

    of: Callable[[Path], Disk | None] = disk_of
    left_over: Callable[[Path], int] = left_over
