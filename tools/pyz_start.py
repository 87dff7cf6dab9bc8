"""How ``blobsync.pyz`` starts: it unpacks itself once, into the user's cache, and runs from there.

From the zip itself each start would compile every module again, and what blobsync sends to nodes has to be files.
Each version has its own folder there. Unpacking a new one removes those that were not started for 30 days.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MARK = ".blobsync-pyz"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DAY = 86_400.0
_UNUSED = 30 * _DAY
# A version's folder, and what is left where unpacking one was killed.
_OURS = re.compile(r"[0-9a-f]{32}|tmp\w{8}")
_TRIES = 20
_PAUSE = 0.05


def start(loader: Any) -> int:
    """Run the command line; ``loader`` is what imports from the zip. Returns the exit code."""
    archive = loader.archive
    digest = loader.get_data(os.path.join(archive, MARK)).decode()
    try:
        for _ in range(_TRIES):
            folder = unpacked(archive, digest, os.environ)
            if held(folder, time.time()):
                break
            # It is being removed: unpack it again.
            time.sleep(_PAUSE)
    except (OSError, ValueError) as error:
        sys.stderr.write(
            f"blobsync: cannot unpack {archive}: {error}\n  hint: set XDG_CACHE_HOME to a folder of yours\n"
        )
        return 2
    # Not for the programs that it starts: what is in there must not hide their own packages.
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != archive)]
    from blobsync.__main__ import main

    return main()


def unpacked(archive: str, digest: str, environ: Mapping[str, str]) -> str:
    """The folder with the files of ``archive``, made where it is not there yet.

    Raises ``OSError``, and ``ValueError`` for one that somebody else could have written.
    """
    given = environ.get("XDG_CACHE_HOME", "")
    cache = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    home = os.path.join(cache, "blobsync", "pyz")
    folder = os.path.join(home, digest)
    os.makedirs(home, mode=0o700, exist_ok=True)
    _demand_own(home)
    if not os.path.lexists(folder):
        remove_unused(home, digest, time.time())
        partial = tempfile.mkdtemp(dir=home)
        try:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(partial)
            # If another process was first, its folder is as good.
            with suppress(OSError):
                os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    _demand_own(folder)
    return folder


def held(folder: str, now: float) -> bool:
    """Keep ``folder`` from being removed until this process ends; False where it is just being removed."""
    mark = os.path.join(folder, MARK)
    try:
        # Left open: the lock is gone when the process is, however it ends.
        fcntl.flock(os.open(mark, os.O_RDONLY | os.O_NOFOLLOW), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        # A file system without locks: nothing is removed there.
        return True
    with suppress(OSError):
        if now - os.lstat(folder).st_mtime > _DAY:
            os.utime(folder, (now, now))
    return os.path.exists(mark)


def remove_unused(home: str, digest: str, now: float) -> None:
    """Remove the folders of other versions in ``home`` that no process holds and that were not started for long."""
    with suppress(OSError), os.scandir(home) as entries:
        for name in [entry.name for entry in entries if entry.name != digest and _OURS.fullmatch(entry.name)]:
            with suppress(OSError):
                found = os.lstat(os.path.join(home, name))
                mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
                if mine and now - found.st_mtime > _UNUSED:
                    _remove(home, name)


def _remove(home: str, name: str) -> None:
    """Remove a folder by renaming it first, so that no process sees a part. Raises ``OSError``, also if in use."""
    folder = os.path.join(home, name)
    with suppress(FileNotFoundError):
        mark = os.open(os.path.join(folder, MARK), os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = tempfile.mkdtemp(dir=home)
            os.rename(folder, aside)
            folder = aside
        finally:
            os.close(mark)
    # It follows no link.
    shutil.rmtree(folder, ignore_errors=True)


def _demand_own(folder: str) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise ValueError(f"{folder} is not a folder that only you can write to")
