"""Downloads one small blob: one request into a part file, hashed as it is written, then renamed."""

from __future__ import annotations

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import RemoteState
from blobsync.direct.file_attributes import attributes_in
from blobsync.direct.range_reads import (
    ANOTHER_VERSION,
    Content,
    changed_while_read,
    read_range,
    version_of,
    wrong_length,
)
from blobsync.direct.thread_pool import FileJob, RunState, Written
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobInfo, BlobReader, BlobStore, GetOrder
from blobsync.transfer.engines import Moved


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
        self._content = Content(self._store, self._version)
        return 1

    def piece(self) -> None:
        start = 0
        part = self._opened
        for data in read_range(self._store, self._name, self._version, 0, self._version.size, opened=self._expect):
            self.run.wait_for_rate(len(data))
            part.write_at(start, data)
            start += len(data)
            self._content.update(data)
            self.count(len(data))
        self._md5 = self._content.demand(self._name)

    def order(self) -> GetOrder:
        return GetOrder(self._name, self._version.etag, self._version.size)

    def landed(self, end: BlobInfo | bytes) -> None:
        assert isinstance(end, bytes)
        if len(end) != self._version.size:
            raise wrong_length(self._name, len(end), self._version.size)
        self._opened.write_at(0, end)
        self._content.update(end)
        self._md5 = self._content.demand(self._name)

    def refused(self, error: BlobsyncError) -> BlobsyncError:
        return changed_while_read(self._name) if isinstance(error, ANOTHER_VERSION) else error

    def written(self) -> Written | None:
        return self.action, self._version.size, self._md5

    def commit(self) -> Moved:
        expected = self.action.destination if self.action.target is None else None
        state = self._opened.commit(expected, self._md5)
        self._part = None
        source = RemoteState(self._version.size, self._version.etag, self._md5)
        by = self._content.compared_by
        return Moved(self.action, source=source, destination=state, reused=self.reused, compared_by=by)

    def release(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()

    def abandon(self) -> None:
        part = self._part
        if part is not None:
            part.abandon()

    def _expect(self, reader: BlobReader) -> None:
        if self._content.waits:
            self._content.expect(reader.info)
        self._opened.dress(*attributes_in(reader.properties.metadata, self.run.task.part.kept))

    @property
    def _opened(self) -> PartFile:
        assert self._part is not None, "not open"
        return self._part
