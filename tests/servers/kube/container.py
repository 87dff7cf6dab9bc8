"""Becomes a container: run alone as the first process of its namespaces, it arranges the files and then is the program.

The container's root is this machine's, with whatever it writes kept apart in memory; over it come the volumes, the
hosts file and a ``/proc`` of its own. Standard library only; ``python -I container.py SPEC`` with a JSON file.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
# Where the container's own stand, or what is mounted with its parent.
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
    """What is mounted below the root of this machine: an overlay shows the root's own files only."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    wanted = [each for each in points if each != "/" and not f"{each}/".startswith(tuple(f"{own}/" for own in _OWN))]
    return [each for each in dict.fromkeys(wanted) if not each.startswith(base) and os.path.isdir(each)]


def arrange(spec: dict[str, Any]) -> str:
    """Mount everything; returns the new root."""
    base = spec["folder"]
    _mount("none", "/", None, _REC | _PRIVATE)
    elsewhere = _mounted_elsewhere(base)
    _mount("tmpfs", base, "tmpfs", 0)
    upper, scratch, root = f"{base}/upper", f"{base}/scratch", f"{base}/root"
    for each in (upper, scratch, root):
        os.mkdir(each)
    _mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={scratch}")
    for each in elsewhere:
        if os.path.isdir(root + each):
            _mount(each, root + each, None, _BIND)
    _mount("proc", f"{root}/proc", "proc", 0)
    for each in ("/dev", "/sys"):
        _mount(each, root + each, None, _BIND | _REC)
    for source, target, read_only in spec["mounts"]:
        _bind(source, root, target, read_only=read_only)
    return root


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    argv, environ = spec["argv"], spec["environ"]
    try:
        root = arrange(spec)
        socket.sethostname(spec["hostname"])
        os.chroot(root)
        os.makedirs(spec["folder_in"], exist_ok=True)
        os.chdir(spec["folder_in"])
        found = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
        if found is None:
            print(f'exec: "{argv[0]}": executable file not found in $PATH', flush=True)
            return 128
        os.execve(found, argv, environ)
    except OSError as error:
        print(f"the container cannot start: {error}", flush=True)
        return 128


if __name__ == "__main__":
    sys.exit(main())
