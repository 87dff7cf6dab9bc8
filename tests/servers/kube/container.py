"""Runs a program as a container: makes namespaces, mounts the files, and becomes the program, as process 1.

The container's root is this machine's, with changes in memory; over it are the volumes, the hosts file and its own
``/proc``. ``python -I -S container.py SPEC FD`` with a JSON file and the number of a pipe, which is closed when the
program has begun; the exit code is the program's, 128 and more after a signal.
``container.py --check FOLDER`` says whether this machine allows it. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_NEW_MOUNT, _NEW_HOSTNAME, _NEW_IPC, _NEW_PID = 0x20000, 0x4000000, 0x8000000, 0x20000000
_DIE_WITH_PARENT = 1
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
# Mounts of the container's own, or mounted with their parent.
_OWN = ("/proc", "/sys", "/dev", "/run")
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {target}: {os.strerror(number)}")


def _bind(source: str, root: str, target: str, *, read_only: bool = False) -> None:
    place = root + target
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.lexists(place):
            Path(place).touch()
    _mount(source, place, None, _BIND | _REC)
    if read_only:
        _mount(source, place, None, _BIND | _REMOUNT | _RDONLY)


def _mounted_elsewhere(base: str) -> list[str]:
    """The mounts below this machine's root: an overlay shows only the root's own files."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    wanted = [each for each in points if each != "/" and not f"{each}/".startswith(tuple(f"{own}/" for own in _OWN))]
    return [each for each in dict.fromkeys(wanted) if not each.startswith(base) and os.path.isdir(each)]


def overlay(base: str) -> str:
    """Mount the files of this machine with private changes; returns the mount point."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", base, "tmpfs", 0)
    upper, scratch, root = f"{base}/upper", f"{base}/scratch", f"{base}/root"
    for each in (upper, scratch, root):
        os.mkdir(each)
    _mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={scratch}")
    return root


def _arrange(spec: dict[str, Any]) -> str:
    """Mount everything; returns the new root."""
    base = spec["folder"]
    elsewhere = _mounted_elsewhere(base)
    root = overlay(base)
    for each in elsewhere:
        if os.path.isdir(root + each):
            _mount(each, root + each, None, _BIND)
    _mount("proc", f"{root}/proc", "proc", 0)
    for each in ("/dev", "/sys"):
        _mount(each, root + each, None, _BIND | _REC)
    for source, target, read_only in spec["mounts"]:
        _bind(source, root, target, read_only=read_only)
    if spec["user"]:
        _open_interpreter(root, spec["environ"].get("PATH", ""))
    return root


def _open_interpreter(root: str, path: str) -> None:
    """Make this machine's Python readable, which may be in root's home."""
    given = shutil.which("python3", path=path) or sys.executable
    for place in (given, os.path.realpath(given)):
        for folder in Path(place).parents:
            inside = root + str(folder)
            # Only the container's own folders: mounts are this machine's.
            if os.stat(inside).st_dev == os.stat(root).st_dev:
                os.chmod(inside, os.stat(inside).st_mode | 0o555)


def _become(spec: dict[str, Any]) -> int:
    argv, environ = spec["argv"], spec["environ"]
    try:
        root = _arrange(spec)
        socket.sethostname(spec["hostname"])
        os.chroot(root)
        os.makedirs(spec["folder_in"], exist_ok=True)
        os.chdir(spec["folder_in"])
        if spec["user"]:
            os.setgroups([spec["group"]])
            os.setgid(spec["group"])
            os.setuid(spec["user"])
        found = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
        if found is None:
            print(f'exec: "{argv[0]}": executable file not found in $PATH', flush=True)
            return 128
        os.execve(found, argv, environ)
    except OSError as error:
        print(f"the container cannot start: {error}", flush=True)
        return 128


def separate() -> None:
    """Make new namespaces; the next child is their first process."""
    if _libc.unshare(_NEW_MOUNT | _NEW_HOSTNAME | _NEW_IPC | _NEW_PID) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot make namespaces: {os.strerror(number)}")


def main() -> int:
    if sys.argv[1] == "--check":
        separate()
        overlay(sys.argv[2])
        return 0
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # Containers end with the server in any case; signals to a container go to its program.
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    separate()
    child = os.fork()
    started = int(sys.argv[2])
    if child == 0:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        os.set_inheritable(started, False)
        os._exit(_become(spec))
    os.close(started)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
