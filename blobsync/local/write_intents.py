"""What a process is about to write, line by line in a file of its own: for the next command, if the process is killed.

The index gets what was written and verified, some seconds later. A file that a killed process wrote in those seconds is
in no record; once its source changes it looks like somebody else's. So a line with the size and the MD5 is
written before the request, or the rename, that gives a file its new content.

A line is no proof that the file was written. The next command compares the file with it: one that has the MD5 of the
line is the killed run's, or as good as that (``project/killed_runs``). What has no MD5 gets no line.

Lines outlive the process, not a power failure. The process holds a lock on its file, so that others know when it is
gone. A file that cannot be written costs nothing but that knowledge.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from blobsync.local.state_dir import StateDir

# The files' folder in the state folder.
FOLDER = "intents"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SUFFIX = ".intents"
_KEPT_SECONDS = 7 * 86_400
_MD5_BYTES = 16


class Ends(NamedTuple):
    """The two ends of a part, as text without secrets."""

    source: str
    destination: str


class WriteIntent(NamedTuple):
    """So many bytes with this MD5 were about to be written to ``target`` below the destination; ``path`` is the file's
    name below the source."""

    ends: Ends
    path: str
    target: str
    size: int
    md5: bytes


class WriteIntents:
    """The file of this process, created with its first line. Thread-safe. Never raises."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._fd: int | None = None
        self._file: Path | None = None
        self._broken = not state.lasting
        self._ends: Ends | None = None
        self._lock = threading.Lock()

    def add(self, ends: Ends, path: str, target: str | None, size: int, md5: bytes) -> None:
        """Write a line. Call it before the file gets this content. ``target`` is None if it is ``path``."""
        name = path if target is None else f"{path}\0{target}"
        if "\n" in name:
            return
        data = f"f{md5.hex()}\0{size}\0{name}\n".encode("utf-8", "surrogateescape")
        with self._lock:
            if ends is not self._ends:
                self._ends = ends
                data = f"e{json.dumps(ends)}\n".encode("ascii") + data
            self._write(data)

    def forget(self) -> None:
        """Remove the file: everything is recorded."""
        with self._lock:
            fd, self._fd, self._ends = self._fd, None, None
            if fd is not None and self._file is not None:
                with suppress(OSError):
                    self._file.unlink()
                os.close(fd)

    def _write(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            if self._fd is None:
                self._file = self._state.folder(FOLDER) / f"{os.urandom(8).hex()}{_SUFFIX}"
                self._fd = os.open(self._file, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, data)
        except Exception:  # noqa: BLE001 - a transfer goes on without it
            self._broken = True


class LeftIntents(NamedTuple):
    """The file of a process that is gone; read ``intents`` before the next file."""

    file: Path
    intents: Iterator[WriteIntent]

    def remove(self) -> None:
        """Remove the file: nobody needs it any more."""
        with suppress(OSError):
            self.file.unlink()


def has_intents(state: StateDir) -> bool:
    """Whether a process has left intents, or is at work."""
    try:
        return bool(os.listdir(state.root / FOLDER))
    except OSError:
        return False


def left_intents(state: StateDir, now: float | None = None) -> Iterator[LeftIntents]:
    """The files of processes that are gone; removes those older than a week. ``now`` is in seconds since 1970."""
    folder = state.root / FOLDER
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
    except OSError:
        return
    for name in names:
        file = folder / name
        with suppress(OSError):
            fd = os.open(file, _OPEN)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (time.time() if now is None else now) - os.fstat(fd).st_mtime > _KEPT_SECONDS:
                    file.unlink()
                else:
                    with open(fd, "rb", closefd=False) as stream:
                        yield LeftIntents(file, _parsed(stream))
            finally:
                os.close(fd)


def _parsed(lines: Iterable[bytes]) -> Iterator[WriteIntent]:
    """The intents of a file's lines; ignores those that are cut off or invalid."""
    ends: Ends | None = None
    for each in lines:
        line = each.decode("utf-8", "surrogateescape")
        intent = None
        with suppress(ValueError, TypeError):
            if line.startswith("e"):
                ends = _ends(line[1:])
            elif ends is not None and line.startswith("f") and line.endswith("\n"):
                intent = _intent(ends, line[1:-1])
        if intent is not None:
            yield intent


def _ends(line: str) -> Ends:
    source, destination = json.loads(line)
    return Ends(str(source), str(destination))


def _intent(ends: Ends, line: str) -> WriteIntent:
    digest, size, path, *target = line.split("\0")
    md5 = bytes.fromhex(digest)
    if len(md5) != _MD5_BYTES or len(target) > 1:
        raise ValueError("no intent")
    return WriteIntent(ends, path, target[0] if target else path, int(size), md5)
