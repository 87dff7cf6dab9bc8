"""Downloads one small blob: one request into a part file, hashed as it is written, then renamed."""

from __future__ import annotations

import hashlib

from blobsync.base.errors import BlobsyncError, ChecksumError
from blobsync.base.file_states import RemoteState
from blobsync.direct.pool import FileJob, RunState
from blobsync.direct.reads import ANOTHER_VERSION, changed_while_read, read_range, version_of, wrong_length
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobInfo, BlobStore, GetOrder
from blobsync.transfer.engines import Moved


def demand_md5(name: str, version: RemoteState, md5: bytes) -> None:
    """Raise ``ChecksumError`` if the received bytes do not have the blob's MD5."""
    if version.md5 not in {None, md5}:
        raise ChecksumError(
            f"{name} arrived with a different MD5 than the blob's own",
            hint="the blob or the connection is damaged: try again, then upload the blob again",
            path=name,
        )


class DownloadJob(FileJob):
    """The file gets its name only after its length, and its MD5 if the blob has one, are verified."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        store: BlobStore,
        name: str,
        folder: LocalFolder,
        relative: str,
    ) -> None:
        super().__init__(run, action)
        self._store = store
        self._name = name
        self._folder = folder
        self._relative = relative
        self._part: PartFile | None = None

    def open(self) -> int:
        self._version = version_of(self._store, self._name, self.action)
        self._part = self._folder.create(relative_name(self._relative))
        self._md5 = hashlib.md5(usedforsecurity=False)
        return 1

    def piece(self) -> None:
        start = 0
        part = self._opened
        for data in read_range(self._store, self._name, self._version, 0, self._version.size):
            self.run.pace(len(data))
            part.write_at(start, data)
            start += len(data)
            self._md5.update(data)
            self.count(len(data))

    def order(self) -> GetOrder:
        return GetOrder(self._name, self._version.etag, self._version.size)

    def landed(self, end: BlobInfo | bytes) -> None:
        assert isinstance(end, bytes)
        if len(end) != self._version.size:
            raise wrong_length(self._name, len(end), self._version.size)
        self._opened.write_at(0, end)
        self._md5.update(end)
        self.count(len(end))

    def refused(self, error: BlobsyncError) -> BlobsyncError:
        return changed_while_read(self._name) if isinstance(error, ANOTHER_VERSION) else error

    def commit(self) -> Moved:
        md5 = self._md5.digest()
        demand_md5(self._name, self._version, md5)
        expected = self.action.destination if self.action.target is None else None
        self.run.about_to_write(self.action, self._version.size, md5)
        state = self._opened.commit(expected, md5)
        source = RemoteState(self._version.size, self._version.etag, md5)
        return Moved(self.action, source=source, destination=state)

    def release(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()

    def abandon(self) -> None:
        part = self._part
        if part is not None:
            part.abandon()

    @property
    def _opened(self) -> PartFile:
        assert self._part is not None, "not open"
        return self._part
