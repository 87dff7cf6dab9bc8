"""One blob to a local file: ranges side by side into a temporary file, hashed as they land, then renamed."""

from __future__ import annotations

import hashlib
import itertools
import threading

from blobsync.base.errors import ChecksumError
from blobsync.base.file_states import RemoteState
from blobsync.direct.pool import FileJob, RunState
from blobsync.direct.reads import CHUNK, read_range, version_of
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.local.part_files import PartFile
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobStore
from blobsync.transfer.engines import Moved


class OrderedHash:
    """MD5 of a file whose pieces are written in any order; each piece is hashed once, in the file's order."""

    def __init__(self, part: PartFile, piece: int, size: int) -> None:
        self._part = part
        self._piece = piece
        self._size = size
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._lock = threading.Lock()
        self._landed: set[int] = set()
        self._next = 0
        self._at_work = False

    def landed(self, index: int) -> None:
        """Piece ``index`` is written. Hashes what can be hashed now, unless another thread is at it."""
        with self._lock:
            self._landed.add(index)
            if self._at_work:
                return
            self._at_work = True
        while self._take_next():
            start = (self._next - 1) * self._piece
            end = min(start + self._piece, self._size)
            # From the page cache: these bytes were written a moment ago.
            for offset in range(start, end, CHUNK):
                self._md5.update(self._part.read_at(offset, min(CHUNK, end - offset)))

    def digest(self) -> bytes:
        """Once every piece has landed."""
        return self._md5.digest()

    def _take_next(self) -> bool:
        with self._lock:
            self._at_work = self._next in self._landed
            if self._at_work:
                self._landed.discard(self._next)
                self._next += 1
            return self._at_work


class DownloadJob(FileJob):
    """The file appears under its name only when its length, and its MD5 where the blob has one, are right."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        store: BlobStore,
        name: str,
        folder: LocalFolder,
        relative: str,
        piece: int,
    ) -> None:
        super().__init__(run, action)
        self._store = store
        self._name = name
        self._folder = folder
        self._relative = relative
        self._piece = piece
        self._part: PartFile | None = None

    def open(self) -> int:
        self._version = version_of(self._store, self._name, self.action)
        self._pieces = max(1, -(-self._version.size // self._piece))
        self._part = self._folder.create(relative_name(self._relative), self._version.size if self._pieces > 1 else 0)
        self._index = itertools.count()
        self._hash = OrderedHash(self._part, self._piece, self._version.size)
        self._md5 = hashlib.md5(usedforsecurity=False)
        return self._pieces

    def piece(self) -> None:
        index = next(self._index)
        start = index * self._piece
        length = min(self._piece, self._version.size - start)
        part = self._opened
        for data in read_range(self._store, self._name, self._version, start, length):
            self.run.pace(len(data))
            part.write_at(start, data)
            start += len(data)
            if self._pieces == 1:
                self._md5.update(data)
            self.count(len(data))
        if self._pieces > 1:
            self._hash.landed(index)

    def commit(self) -> Moved:
        md5 = self._md5.digest() if self._pieces == 1 else self._hash.digest()
        if self._version.md5 not in {None, md5}:
            raise ChecksumError(
                f"{self._name} arrived with a different MD5 than the blob's own",
                hint="the blob or the connection is damaged: try again, then upload the blob again",
                path=self._name,
            )
        expected = self.action.destination if self.action.target is None else None
        state = self._opened.commit(expected, md5)
        source = RemoteState(self._version.size, self._version.etag, md5)
        return Moved(self.action, source=source, destination=state)

    def release(self) -> None:
        if self._part is not None:
            self._part.discard()
            self._part = None

    def abandon(self) -> None:
        part = self._part
        if part is not None:
            part.abandon()

    @property
    def _opened(self) -> PartFile:
        if self._part is None:
            raise ValueError("not open")
        return self._part
