"""Records of the blocks that a service has fetched from outside Azure, so that a killed copy of a large object goes on.

Of each blob there is a record of the object's version, of how it is cut, and of each block that the service has
acknowledged, with the CRC64 that it answered. It only saves fetching: what counts is the service's own list of
uncommitted blocks, and without a record the object is copied whole.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict

from blobsync.base.records import dataclass
from blobsync.local.resume_records import KEPT_SECONDS, Journal, OpenWork
from blobsync.local.state_dir import StateDir

_RUN = re.compile("[0-9a-f]{16}")
_CRC64_BYTES = 8


@dataclass(frozen=True, slots=True)
class Fetch:
    """One version of an object, cut in blocks of ``block`` bytes; ``blob`` is the URL of what it becomes."""

    blob: str
    source: str
    version: str
    etag: str
    size: int
    block: int


class FetchRecord(OpenWork):
    """The record of one copy. ``run`` is what its block ids are made of; ``blocks`` the CRC64 of each block that is
    there, None where the service told none."""

    def __init__(self, journal: Journal, id: int, run: str, blocks: Mapping[int, int | None]) -> None:
        super().__init__(journal, id)
        self.run, self.blocks = run, blocks

    def add(self, index: int, crc64: int | None) -> None:
        """Record a block that the service has."""
        self.put(index, 1, None if crc64 is None else crc64.to_bytes(_CRC64_BYTES, "big"))


class FetchRecords:
    """The records of a project's unfinished copies; safe to use from several threads and processes.

    Two copies of one version to one blob share a record: their blocks are the same.
    """

    def __init__(self, state: StateDir) -> None:
        self._state = state

    def take(self, fetch: Fetch) -> FetchRecord | None:
        """The record of a copy, new if there is none of this version. None if it cannot be written: then the copy
        cannot go on after a kill. Forgets what no command has taken up within a week."""
        # The blocks are large, and few.
        journal = Journal(self._state.unfinished_file, "fetches", seconds=0.0)
        for work in journal.find():
            run = str(work.head.pop("run", ""))
            if work.at < time.time() - KEPT_SECONDS:
                journal.remove(work.id)
            elif work.head == asdict(fetch) and _RUN.fullmatch(run):
                blocks = {key: mark and int.from_bytes(mark, "big") for key, _, mark in journal.pieces(work.id)}
                return FetchRecord(journal, work.id, run, blocks)
        run = secrets.token_hex(8)
        id = journal.begin_work(fetch.blob, {"run": run, **asdict(fetch)})
        return None if id is None else FetchRecord(journal, id, run, {})
