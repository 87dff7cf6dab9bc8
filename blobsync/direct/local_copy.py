"""Copies one file of this machine to another place here: out of the trash, or beside the file."""

from __future__ import annotations

import hashlib

from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.direct.range_reads import CHUNK
from blobsync.direct.thread_pool import FileJob, RunState
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import relative_name
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction
from blobsync.transfer.engines import Moved


class LocalCopyJob(FileJob):
    """The copy appears whole or not at all, with the time and the permissions of its source."""

    def __init__(
        self, run: RunState, action: FileAction, source: LocalLocation, destination: LocalLocation, folder: LocalFolder
    ) -> None:
        super().__init__(run, action)
        self._from = source.at(action.path)
        self._name = relative_name(action.target or action.path or destination.path.name)
        self._folder = folder
        self._source: SourceFile | None = None
        self._part: PartFile | None = None

    def open(self) -> int:
        self._source = SourceFile(self._from, self.action.source)
        self._part = self._folder.create(self._name)
        return 1

    def piece(self) -> None:
        source, part = self._opened
        digest, size = hashlib.md5(usedforsecurity=False), source.state.size
        for at in range(0, size, CHUNK):
            data = source.read_at(at, min(CHUNK, size - at))
            part.write_at(at, data)
            digest.update(data)
            self.count(len(data))
        source.check_unchanged()
        part.look_like(source.fd)
        self._md5 = digest.digest()

    def commit(self) -> Moved:
        source, part = self._opened
        read = LocalState(
            source.state.size, source.state.mtime_ns, source.state.ctime_ns, source.state.inode, self._md5
        )
        return Moved(self.action, source=read, destination=part.commit(self.action.destination, self._md5))

    def release(self) -> None:
        source, self._source = self._source, None
        part, self._part = self._part, None
        if source is not None:
            source.close()
        if part is not None:
            part.discard()

    @property
    def _opened(self) -> tuple[SourceFile, PartFile]:
        assert self._source is not None and self._part is not None, "not open"
        return self._source, self._part
