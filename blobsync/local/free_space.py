"""How much room the disk of a folder has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from blobsync.local.part_files import left_over


class Disk(NamedTuple):
    """One file system, by its number; ``free`` are the bytes that this user may still write."""

    device: int
    free: int


def disk_of(path: Path) -> Disk | None:
    """The disk that ``path`` is on, or will be on; None where the file system does not say how much is free."""
    for place in (path, *path.parents):
        try:
            device, room = os.stat(place).st_dev, os.statvfs(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        # statvfs(3): some blocks may be kept for root. File systems without a size, such as some of FUSE, say 0.
        blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
        return Disk(device, blocks * room.f_frsize) if room.f_blocks else None
    return None


class LocalDisks(NamedTuple):
    """What is asked about the disks here: ``of`` is the one of a path, ``left_over`` the bytes at a path that dead runs
    left, which go before the next run fetches anything."""

    of: Callable[[Path], Disk | None] = disk_of
    left_over: Callable[[Path], int] = left_over
