"""Files and folders that only their owner may change, and others can: who they are, and how that ends. Folders that
containers write to, and how they go.

Groups that share a project run ``chmod -R g+rwX`` on all of it. What others could have changed is not believed
(``state_dir``), and is closed to them only after the user said so.
"""

from __future__ import annotations

import errno
import grp
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from blobsync.base.user_folders import user_name

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ACCESS_LIST = "system.posix_acl_access"
# Members of a group, and files of other users, that a sentence names.
_NAMED = 4


def open_places(keys: Iterable[Path], folders: Iterable[Path]) -> dict[Path, str]:
    """Those that are the user's own and not for them alone, with a sentence of who could do what: ``keys`` must not be
    read, ``folders`` not be written. Of ``folders`` only those count that are folders."""
    kinds = ((keys, _OTHERS, stat.S_ISREG), (folders, _OTHERS_WRITE, stat.S_ISDIR))
    opened = {}
    for path, bits, is_one in ((path, bits, is_one) for paths, bits, is_one in kinds for path in paths):
        with suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and found.st_mode & bits and is_one(found.st_mode):
                verb, mode = "change" if found.st_mode & _OTHERS_WRITE else "read", stat.S_IMODE(found.st_mode)
                opened[path] = f"{_who(path, found, bits)} could {verb} {path} (mode {mode:o})"
    return opened


def _who(path: Path, found: os.stat_result, bits: int) -> str:
    if found.st_mode & bits & stat.S_IRWXO:
        return "every user of this machine"
    try:
        group = grp.getgrgid(found.st_gid)
        members = ", ".join([*group.gr_mem[:_NAMED], *(["..."] if len(group.gr_mem) > _NAMED else [])])
        who = f"the group {group.gr_name}" + (f" ({members})" if members else "")
    except KeyError:
        who = f"the group {found.st_gid}"
    with suppress(OSError, AttributeError):
        if os.getxattr(path, _ACCESS_LIST, follow_symlinks=False):
            who += f" and those of its access list (getfacl {path})"
    return who


def files_of_others(folder: Path) -> str:
    """Names files in it that neither this user nor root made, in words; empty if there are none."""
    found: list[str] = []
    for above, folders, files in os.walk(folder):
        for path in (Path(above, name) for name in (*folders, *files)):
            with suppress(OSError):
                owner = path.lstat().st_uid
                if owner not in (os.geteuid(), 0):
                    found.append(f"{path} of {user_name(owner)}")
        if len(found) > _NAMED:
            break
    return ", ".join([*islice(found, _NAMED), *(["..."] if len(found) > _NAMED else [])])


def close_to_others(path: Path) -> None:
    """Take all rights of others from it and from everything of the user's in it; follows no link.

    What belongs to others stays as it is. Raises ``OSError``, also where the file system keeps no permissions.
    """
    fd = os.open(path, _OPEN)
    try:
        _close(fd)
        if os.fstat(fd).st_mode & _OTHERS_WRITE:
            raise PermissionError(errno.EPERM, "this file system keeps no permissions", str(path))
    finally:
        os.close(fd)


def _close(fd: int) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        return
    # The folder first: from then on nobody else gets in.
    os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    for name in os.listdir(fd) if stat.S_ISDIR(found.st_mode) else ():
        try:
            below = os.open(name, _OPEN, dir_fd=fd)
        except OSError:
            # A link, a socket, or something of another user's.
            continue
        try:
            _close(below)
        finally:
            os.close(below)


@contextmanager
def container_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder that a container writes to; removed at the end of the block, as far as this user may.

    No ``TemporaryDirectory``: that fails on what the container's root owns, and before Python 3.10.14 and 3.11.8 it
    changes permissions where links lead (CVE-2023-6597).
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        for above, folders, _ in os.walk(folder):
            for path in (os.path.join(above, name) for name in folders):
                with suppress(OSError):
                    if not os.path.islink(path):
                        # Of a folder that nobody may write to nothing can be removed.
                        os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)
