"""Moves some blocks of one large file, as one of several workers; and commits all of them, as their coordinator.

An upload's blocks are named by their SHA-256, and so are those of the worker that reads the whole file for its MD5:
equal names mean that both have read the same bytes. A copy's blocks are named by the source's version. So a block that
is put twice is put with the same content.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.errors import ChecksumError, PreconditionFailedError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.redaction import SasToken
from blobsync.direct.pool import FileJob, RunState
from blobsync.direct.reads import demand_version, naming_the_source, version_of
from blobsync.direct.upload import BlockIds, precondition_of
from blobsync.local.files import SourceFile, SourceFolder
from blobsync.plan.blocks import BlockRange, block_bytes, block_size, differs
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.content_types import guess_content_type
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties, Block, block_id_of
from blobsync.transfer.engines import Moved

# Called with the number and the id of each block that was put or read.
Named = Callable[[int, str], None]


class BlockOrder(NamedTuple):
    """The blocks of a file that are to be put; ``there`` are the numbers of those that were put before.

    ``only_read``: the blocks are the whole file, to be read and hashed only.
    """

    blocks: BlockRange
    there: Collection[int] = ()
    only_read: bool = False

    @property
    def left(self) -> list[int]:
        """The numbers of the blocks that still have to be put."""
        return [index for index in range(*self.blocks) if index not in self.there]


class _BlocksJob(FileJob):
    """Puts blocks in the file's order, with several threads."""

    def __init__(self, run: RunState, action: FileAction, order: BlockOrder, named: Named) -> None:
        super().__init__(run, action)
        self._order = order
        self._named = named
        self._taking = threading.Lock()

    def _begin(self) -> int:
        """Returns the number of pieces."""
        self._left = iter(self._order.left)
        # Even if no block is left, the file has to be looked at.
        return max(1, len(self._order.left))

    def _next(self) -> int | None:
        return next(self._left, None)


class UploadBlocksJob(_BlocksJob):
    """Puts blocks of a local file."""

    def __init__(
        self, run: RunState, action: FileAction, folder: SourceFolder, to: OpenBlob, order: BlockOrder, named: Named
    ) -> None:
        super().__init__(run, action, order, named)
        self._folder = folder
        self._store = to.store
        self._name = to.at(action.target or action.path)
        self._source: SourceFile | None = None

    def open(self) -> int:
        self._source = self._folder.open(self.action.path, self.action.source)
        return self._begin()

    def piece(self) -> None:
        with ExitStack() as held:
            with self._taking:
                index = self._next()
                if index is None:
                    return
                size = self._opened.state.size
                length = block_bytes(size, index)
                held.enter_context(self.run.buffer(length))
                data = self._opened.read_at(index * block_size(size), length)
                self._take(data)
            block_id = block_id_of(hashlib.sha256(data).digest())
            self._put(block_id, data)
        self._named(index, block_id)

    def commit(self) -> Moved:
        self._opened.check_unchanged()
        return Moved(self.action, source=self._opened.state)

    def release(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _take(self, data: bytes) -> None:
        """Handle the next block of the order; called by one thread at a time."""

    def _put(self, block_id: str, data: bytes) -> None:
        self.run.pace(len(data))
        with self.sending(len(data)) as sent:
            self._store.put_block(self._name, block_id, data, sent=sent)

    @property
    def _opened(self) -> SourceFile:
        assert self._source is not None, "not open"
        return self._source


class ReadBlocksJob(UploadBlocksJob):
    """Reads the whole file for its MD5 and the names of its blocks."""

    def open(self) -> int:
        self._md5 = hashlib.md5(usedforsecurity=False)
        return super().open()

    def commit(self) -> Moved:
        moved = super().commit()
        return moved._replace(source=replace(self._opened.state, md5=self._md5.digest()))

    def _take(self, data: bytes) -> None:
        self._md5.update(data)

    def _put(self, block_id: str, data: bytes) -> None:
        self.run.pace(0)


class CopyBlocksJob(_BlocksJob):
    """Puts blocks of a blob, which the destination's service reads with ``sas``."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        ends: tuple[OpenBlob, OpenBlob],
        sas: SasToken | None,
        order: BlockOrder,
        named: Named,
    ) -> None:
        super().__init__(run, action, order, named)
        self._from, to = ends
        self._source = self._from.at(action.path)
        self._to = to.store
        self._name = to.at(action.target or action.path)
        self._sas = sas

    def open(self) -> int:
        self._version = version_of(self._from.store, self._source, self.action)
        self._url = str(self._from.store.container.child(self._source))
        self._ids = BlockIds(hashlib.sha256(f"{self._url}\n{self._version.etag}".encode()).hexdigest()[:16])
        return self._begin()

    def piece(self) -> None:
        with self._taking:
            index = self._next()
        if index is None:
            return
        self.run.pace(0)
        size = self._version.size
        start, length = index * block_size(size), block_bytes(size, index)
        with naming_the_source(self._source):
            self._to.put_block_from_url(
                self._name,
                self._ids[index],
                self._url,
                self._sas,
                start=start,
                length=length,
                source_etag=self._version.etag,
            )
        self.count(length)
        self._named(index, self._ids[index])

    def commit(self) -> Moved:
        # Each block was read by itself: they are of one version only if that version still exists.
        demand_version(self._from.store, self._source, self._version)
        return Moved(self.action, source=self._version)

    def release(self) -> None:
        """Nothing to close."""


def commit_blocks(part: LivePart, action: FileAction, ids: Sequence[str], md5: bytes | None) -> Moved:
    """Commit blocks that others have put, in this order, and verify the blob's list of blocks.

    ``md5`` is that of an upload's source; a copy carries its source's over. Raises ``ChecksumError`` if the blob has
    other blocks, else the store's errors.
    """
    source, to = part.source, part.destination
    assert isinstance(to, OpenBlob)
    name = to.at(action.target or action.path)
    state: LocalState | RemoteState
    if isinstance(source, LocalLocation):
        assert isinstance(action.source, LocalState)
        properties, state = BlobProperties(content_type=guess_content_type(name)), replace(action.source, md5=md5)
    else:
        assert isinstance(action.source, RemoteState)
        properties, state = source.store.properties(source.at(action.path)), action.source
        demand_version(source.store, source.at(action.path), action.source)
    size, whole = state.size, state.md5
    condition = precondition_of(action)
    try:
        to.store.put_block_list(name, ids, size=size, md5=whole or b"", properties=properties, condition=condition)
    except PreconditionFailedError:
        # An earlier coordinator may have committed it before it was lost.
        there = to.store.head(name)
        if there is None or whole is None or (there.size, there.md5) != (size, whole):
            raise
    blocks = [Block(each, block_bytes(size, index)) for index, each in enumerate(ids)]
    why = differs(to.store.block_list(name, "committed"), blocks)
    if why is not None:
        raise ChecksumError(
            f"{name} does not consist of the blocks that were uploaded: {why}",
            hint="another program may be writing it: run the same command again",
            path=name,
        )
    return Moved(action, source=state)
