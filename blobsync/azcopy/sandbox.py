"""Restricts where azcopy can write, and kills it when this process dies. Uses Linux features that need no root.

azcopy lists a folder by itself and joins the names that it finds to the target's path, ``..`` included. So before it
starts, Landlock (Linux 5.13 and newer, landlock(7)) takes away the right to write anywhere but below the folders that
are named. This cannot be undone, whatever the server sends.

This file is also the program that does so: ``python -I -S sandbox.py --write FOLDER ... -- PROGRAM ...`` confines
itself and then becomes PROGRAM. A program of its own, because threads of ours run while azcopy is started, and between
``fork`` and ``exec`` no Python is safe then. It imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# The launcher failed; azcopy was not started. (azcopy itself ends with 0, 1 or 2.)
REFUSED = 97

# From linux/landlock.h and linux/prctl.h; the numbers of the calls are those of every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1 << 0
_PATH_BENEATH = 1
_SET_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38

# Every right that changes a file or a folder, by the version of Landlock that brought it.
_WRITE_FILE = 1 << 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_VERSION = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))


class Landlock:
    """Restricts a program to its folders. If the kernel cannot, the program still dies with this process (Linux)."""

    @property
    def is_possible(self) -> bool:
        """Whether this machine can confine a program."""
        return sys.platform == "linux" and bool(sys.executable) and _version() > 0

    def words(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """The words before a command that make it write below ``folders`` only, and die with this process."""
        if sys.platform != "linux" or not sys.executable:
            return ()
        places = [word for folder in folders for word in ("--write", str(folder))] if self.is_possible else []
        return (sys.executable, "-I", "-S", os.path.abspath(__file__), *places, "--parent", str(os.getpid()), "--")


def main(words: Sequence[str]) -> int:
    """Confine this process, then become the program after ``--``."""
    end = words.index("--")
    options, program = list(words[:end]), list(words[end + 1 :])
    pairs = list(zip(options[::2], options[1::2], strict=True))
    try:
        for parent in (value for name, value in pairs if name == "--parent"):
            _die_with(int(parent))
        if folders := [value for name, value in pairs if name == "--write"]:
            _confine(folders)
        os.execv(program[0], program)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"cannot start {program[0]} confined to its folders: {error}\n")
    return REFUSED


def _version() -> int:
    """Landlock's version; 0 if the kernel has none or does not allow it."""
    try:
        return max(_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), 0)
    except OSError:
        return 0


def _die_with(parent: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise _error("prctl")
    if os.getppid() != parent:
        # The parent died before the call above.
        os.kill(os.getpid(), signal.SIGKILL)


def _confine(folders: Sequence[str]) -> None:
    version = _version()
    handled = _FIRST_VERSION | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = ctypes.c_uint64(handled)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint32(0))
    for folder in folders:
        _allow(ruleset, folder, handled, os.O_DIRECTORY | os.O_NOFOLLOW)
    _allow(ruleset, os.devnull, handled & (_WRITE_FILE | _TRUNCATE), 0)
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise _error("prctl")
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int, flags: int) -> None:
    # landlock_path_beneath_attr is packed: 8 bytes of rights, 4 of a descriptor.
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    rule = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
    _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    os.close(fd)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    result: int = syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise _error("landlock")
    return result


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
