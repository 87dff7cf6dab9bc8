"""Records of the blocks that a service has fetched from outside Azure, so that a killed copy of a large object goes on.

A small file for each blob. Its first line names the object's version and how it is cut, each further line is one block
that the service has acknowledged, with the CRC64 that it answered. It only saves fetching: what counts is the service's
own list of uncommitted blocks, and without a record the object is copied whole. A line outlives the process.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from blobsync.base.errors import LocalFileError
from blobsync.base.plain_json import parse_object
from blobsync.local.resume_records import LineFile, content_of, is_old, open_locked, record_name
from blobsync.local.state_dir import StateDir

FOLDER = "fetches"
_VERSION = 1
_SUFFIX = ".blocks"
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


class FetchRecord(LineFile):
    """The record of one copy. ``run`` is what its block ids are made of, empty if the record cannot be written;
    ``blocks`` the CRC64 of each block that is there, None where the service told none."""

    def __init__(self, fd: int, path: str, fetch: Fetch) -> None:
        """Takes over ``fd``, which is locked."""
        super().__init__(fd, path)
        self.blocks: Mapping[int, int | None] = {}
        head, _, body = content_of(fd).partition(b"\n")
        self.run = _run_of(head, fetch)
        if self.run and not is_old(path):
            # A line that was cut off does not end.
            whole = _LINE.findall(body[: body.rfind(b"\n") + 1])
            self.blocks = {int(index): None if crc64 == b"-" else int(crc64, 16) for index, crc64 in whole}
            return
        run = secrets.token_hex(8)
        self.run = run if self._begin({"blobsync_fetch": _VERSION, "run": run, **asdict(fetch)}) else ""

    def add(self, index: int, crc64: int | None) -> None:
        """Record a block that the service has. If that fails, it is only fetched again."""
        self._append(f"{index} {'-' if crc64 is None else format(crc64, '016x')}")


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
        name = record_name(fetch.blob.encode("utf-8", "surrogatepass"), _SUFFIX)
        try:
            folder = str(self._state.folder(FOLDER))
            self._tidy(folder, name)
        except (OSError, LocalFileError):
            return None
        path = os.path.join(folder, name)
        fd = open_locked(path, make=True)
        record = None if fd is None else FetchRecord(fd, path, fetch)
        if record is None or record.run:
            return record
        record.close()
        return None

    def _tidy(self, folder: str, but: str) -> None:
        """Remove records of copies that no command has taken up within a week, but for one."""
        if self._tidied:
            return
        self._tidied = True
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with suppress(OSError):
                if name != but and name.endswith(_SUFFIX) and is_old(path):
                    os.unlink(path)
