"""How files are opened whose place anybody may have given to something else: a pipe, a socket, a device."""

from __future__ import annotations

import errno
import os
import stat


def regular_only(path: str, _flags: int) -> int:
    """An ``opener`` for the built-in ``open``, to read: a regular file, else ``OSError``. Never waits.

    Without O_NONBLOCK, opening a pipe waits until somebody writes to it (fifo(7)).
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "neither a file nor a folder", path)
