"""Copies one file of this machine to another place here: out of the trash, or beside the file."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack

from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.direct.range_reads import CHUNK
from blobsync.direct.thread_pool import FileJob, RunState, Stopped
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import relative_name
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction
from blobsync.transfer.engines import Moved


class LocalCopyJob(FileJob):
    """The copy appears whole or not at all, with the time and the permissions of its source."""

    _source: SourceFile
    _part: PartFile

    def __init__(
        self, run: RunState, action: FileAction, source: LocalLocation, destination: LocalLocation, folder: LocalFolder
    ) -> None:
        super().__init__(run, action)
        self._from = source.at(action.path)
        self._name = relative_name(action.target or action.path or destination.path.name)
        self._folder = folder
        self._opened = ExitStack()

    def open(self) -> int:
        self._source = SourceFile(self._from, self.action.source)
        self._opened.callback(self._source.close)
        self._part = self._folder.create(self._name)
        self._opened.callback(self._part.discard)
        return 1

    def piece(self) -> None:
        source, part = self._source, self._part
        digest, size = hashlib.md5(usedforsecurity=False), source.state.size
        for at in range(0, size, CHUNK):
            if self.run.stop.is_set():
                raise Stopped
            data = source.read_at(at, min(CHUNK, size - at))
            part.write_at(at, data)
            digest.update(data)
            self.count(len(data))
        source.check_unchanged()
        part.look_like(source.fd)
        self._md5 = digest.digest()

    def commit(self) -> Moved:
        read = self._source.state
        read = LocalState(read.size, read.mtime_ns, read.ctime_ns, read.inode, self._md5)
        return Moved(self.action, source=read, destination=self._part.commit(self.action.destination, self._md5))

    def release(self) -> None:
        self._opened.close()
