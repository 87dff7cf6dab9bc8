"""One local file to a blob: Put Blob, or blocks side by side and one Put Block List."""

from __future__ import annotations

import hashlib
import os
import threading
from base64 import b64encode
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import ChecksumError
from blobsync.base.file_states import RemoteState
from blobsync.direct.pool import MIB, FileJob, RunState
from blobsync.local.files import SourceFile
from blobsync.plan.block_edges import block_size
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.block_ids import block_id_of
from blobsync.store.content_types import guess_content_type
from blobsync.store.protocol import MAX_BLOCKS, BlobInfo, BlobProperties, BlobStore, Precondition
from blobsync.transfer.engines import Moved

# https://learn.microsoft.com/rest/api/storageservices/put-block: all block ids of a blob, those that a killed
# run left uncommitted included, must have one length. azcopy's are 36 bytes before base64; with the same
# length each of the two can finish what the other began.
_BLOCK_ID_BYTES = 36


class BlockSizes(NamedTuple):
    """Files up to ``single`` bytes go in one request, larger ones in blocks of ``block`` bytes."""

    single: int
    block: int

    def block_for(self, size: int) -> int:
        """The block size for a file of ``size`` bytes: larger where 50,000 blocks would not do."""
        needed = -(-size // MAX_BLOCKS)
        return max(self.block, -(-needed // MIB) * MIB)


class BlockIds:
    """The ids of one upload's blocks, different from any other upload's of the same blob."""

    def __init__(self) -> None:
        self._run = os.urandom(8).hex()

    def __getitem__(self, index: int) -> str:
        return b64encode(f"blobsync-{self._run}-{index:06d}".ljust(_BLOCK_ID_BYTES, ".").encode()).decode()


def precondition_of(action: FileAction) -> Precondition:
    """Only what the plan saw may be replaced."""
    if action.target is None and isinstance(action.destination, RemoteState):
        return Precondition(etag=action.destination.etag)
    return Precondition(absent=True)


class UploadJob(FileJob):
    """Nothing appears under the blob's name before all of it is there; a block that fails leaves none."""

    def __init__(
        self, run: RunState, action: FileAction, path: Path, store: BlobStore, name: str, sizes: BlockSizes
    ) -> None:
        super().__init__(run, action)
        self._path = path
        self._store = store
        self._name = name
        self._sizes = sizes
        self._source: SourceFile | None = None
        self._reading = threading.Lock()

    def open(self) -> int:
        self._source = SourceFile(self._path, self.action.source)
        self._size = self._source.state.size
        self._whole = hashlib.md5(usedforsecurity=False)
        self._info: BlobInfo | None = None
        self._begun = 0
        if self._size <= self._sizes.single:
            self._block = self._size
            return 1
        # Not what suits the line, but what the next upload of the file and a download cut it into as well.
        self._block = block_size(self._size)
        self._ids: dict[int, str] = {}
        return -(-self._size // self._block)

    def piece(self) -> None:
        with ExitStack() as held:
            # One thread at a time reads and hashes, in order, while the others send: the MD5 of the whole
            # costs no second pass over the file.
            with self._reading:
                index = self._begun
                self._begun += 1
                length = min(self._block, self._size - index * self._block)
                held.enter_context(self.run.buffer(length))
                data = self._opened.read_at(index * self._block, length)
                self._whole.update(data)
            self.run.pace(length)
            if self._block == self._size:
                self._put(data)
            else:
                self._ids[index] = block_id_of(hashlib.sha256(data).digest())
                md5 = hashlib.md5(data, usedforsecurity=False).digest()
                self._store.put_block(self._name, self._ids[index], data, md5=md5)
            self.count(length)

    def commit(self) -> Moved:
        md5 = self._whole.digest()
        if self._info is None:
            self._info = self._put_list(md5)
        if self._info.md5 not in {None, md5}:
            raise ChecksumError(f"the service stored other bytes of {self._name} than were sent", path=self._name)
        return Moved(
            self.action,
            source=replace(self._opened.state, md5=md5),
            destination=RemoteState(self._size, self._info.etag, md5),
        )

    def release(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    @property
    def _opened(self) -> SourceFile:
        if self._source is None:
            raise ValueError("not open")
        return self._source

    def _put(self, data: bytes) -> None:
        self._opened.check_unchanged()
        md5 = self._whole.digest()
        self._info = self._store.put(
            self._name, data, md5=md5, properties=self._properties(), condition=precondition_of(self.action)
        )

    def _put_list(self, md5: bytes) -> BlobInfo:
        self._opened.check_unchanged()
        blocks = [self._ids[index] for index in range(self._begun)]
        return self._store.put_block_list(
            self._name,
            blocks,
            size=self._size,
            md5=md5,
            properties=self._properties(),
            condition=precondition_of(self.action),
        )

    def _properties(self) -> BlobProperties:
        return BlobProperties(content_type=guess_content_type(self._name))
