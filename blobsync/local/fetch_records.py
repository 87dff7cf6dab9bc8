"""Records of the blocks that a service has fetched from outside Azure, so that a killed copy of a large object goes on.

A small file for each blob. Its first line names the object's version and how it is cut, each further line is one block
that the service has acknowledged, with the CRC64 that it answered. It only saves fetching: what counts is the service's
own list of uncommitted blocks, and without a record the object is copied whole. A line outlives the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from blobsync.base.errors import LocalFileError
from blobsync.base.plain_json import parse_object
from blobsync.local.resume_records import KEPT_SECONDS
from blobsync.local.state_dir import StateDir

FOLDER = "fetches"
_VERSION = 1
_SUFFIX = ".blocks"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# More than 50,000 lines have; the rest is not read.
_MOST_BYTES = 4 << 20
_LINE = re.compile(rb"^([0-9]{1,5}) ([0-9a-f]{16}|-)$", re.MULTILINE)
_RUN = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Fetch:
    """One version of an object, cut in blocks of ``block`` bytes; ``blob`` is the URL of what it becomes."""

    blob: str
    source: str
    version: str
    etag: str
    size: int
    block: int


class FetchRecord:
    """The record of one copy, locked while it is open; safe to use from several threads. ``run`` is what its block ids
    are made of, ``blocks`` the CRC64 of each block that is there, None where the service told none."""

    def __init__(self, fd: int, path: str, fetch: Fetch) -> None:
        """Takes over ``fd``, which is locked. Raises ``OSError``."""
        self._fd, self._path = fd, path
        self._lock = threading.Lock()
        self.blocks: Mapping[int, int | None] = {}
        head, _, body = os.pread(fd, _MOST_BYTES, 0).partition(b"\n")
        self.run = _run_of(head, fetch)
        if self.run and not _is_old(os.fstat(fd)):
            # A line that was cut off does not end.
            whole = _LINE.findall(body[: body.rfind(b"\n") + 1])
            self.blocks = {int(index): None if crc64 == b"-" else int(crc64, 16) for index, crc64 in whole}
            return
        self.run = secrets.token_hex(8)
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps({"blobsync_fetch": _VERSION, "run": self.run, **asdict(fetch)}).encode() + b"\n")

    def add(self, index: int, crc64: int | None) -> None:
        """Record a block that the service has. If that fails, it is only fetched again."""
        line = f"{index} {'-' if crc64 is None else format(crc64, '016x')}\n".encode()
        with self._lock, suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, line)

    def remove(self) -> None:
        """The copy is finished, or its blocks are of no use. Safe to call again."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Release the lock; the record stays."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _run_of(head: bytes, fetch: Fetch) -> str:
    """What the block ids of the record are made of; empty if it is of another version, or none."""
    try:
        values = parse_object(head)
    except ValueError:
        return ""
    run = values.pop("run", None)
    is_same = values == {"blobsync_fetch": _VERSION, **asdict(fetch)}
    return run if is_same and isinstance(run, str) and _RUN.fullmatch(run) else ""


class FetchRecords:
    """The records of a project's unfinished copies; safe to use from several threads and processes."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._tidied = False

    def take(self, fetch: Fetch) -> FetchRecord | None:
        """The record of a copy, new if there is none of this version. None if another process has it, or if it cannot
        be written: then the copy cannot go on after a kill."""
        name = hashlib.sha256(fetch.blob.encode("utf-8", "surrogatepass")).hexdigest()[:32] + _SUFFIX
        try:
            folder = str(self._state.folder(FOLDER))
            self._tidy(folder, name)
            path = os.path.join(folder, name)
            fd = os.open(path, _OPEN, 0o600)
        except (OSError, LocalFileError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without a name its owner has just finished it.
            if os.fstat(fd).st_nlink:
                return FetchRecord(fd, path, fetch)
        except OSError:
            pass
        os.close(fd)
        return None

    def _tidy(self, folder: str, but: str) -> None:
        """Remove records of copies that no command has taken up within a week, but for one."""
        if self._tidied:
            return
        self._tidied = True
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with suppress(OSError):
                if name != but and name.endswith(_SUFFIX) and _is_old(os.stat(path)):
                    os.unlink(path)


def _is_old(found: os.stat_result) -> bool:
    return time.time() - found.st_mtime > KEPT_SECONDS
