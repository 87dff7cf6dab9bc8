"""Uploads one local file: Put Blob, or parallel Put Block requests and one Put Block List."""

from __future__ import annotations

import enum
import hashlib
import os
import threading
from base64 import b64encode
from collections.abc import Sequence
from contextlib import ExitStack

from blobsync.base.errors import BlobsyncError, ChecksumError, StorageError, StorageUnreachableError, ThrottledError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.records import NamedTuple
from blobsync.direct.file_attributes import guess_content_type, metadata_of
from blobsync.direct.thread_pool import MIB, FileJob, RunState
from blobsync.local.files import SourceFile, SourceFolder
from blobsync.plan.blocks import NOTHING, BlockMemory, Reusable, block_size, differs, reusable
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import (
    MAX_BLOCKS,
    MAX_PUT_BYTES,
    BlobInfo,
    BlobProperties,
    BlobStore,
    Block,
    FileBody,
    Precondition,
    PutOrder,
    block_id_of,
)
from blobsync.transfer.engines import Moved

_SHA256 = 32
_READ_BYTES = 8 * MIB
_NEW = Precondition(absent=True)


class Fate(enum.Enum):
    """What to do with a block: send it; an attempt of this run has sent it; or it is there, from an earlier run or from
    elsewhere in the file."""

    SEND = enum.auto()
    SENT = enum.auto()
    THERE = enum.auto()


class SentBlocks:
    """The blocks of one blob. Thread-safe between :meth:`look` and :meth:`check`."""

    def __init__(self, memory: BlockMemory, store: BlobStore, name: str) -> None:
        self._memory = memory
        self._store = store
        self._name = name
        self._blob = str(store.container.child(name))
        self._lock = threading.Lock()
        self._there = NOTHING
        # Blocks that this run has put: size by SHA-256. A later attempt counts them as sent, not as reused.
        self._put: dict[bytes, int] = {}
        self._taken: set[str] = set()
        # The ids of the blocks that are reused from the version being replaced.
        self.from_present_version: set[str] = set()
        self._staged_bytes = 0
        self._reused = False

    @property
    def bytes_kept(self) -> int:
        """The bytes that the next run finds on record if this one does not finish."""
        with self._lock:
            return sum(self._put.values()) + self._staged_bytes if self._memory.journal is not None else 0

    def look(self, near: LocalState, basis: RemoteState | None, *, trusting: bool = True) -> None:
        """Find the blocks that are there. ``basis`` is the verified version to be replaced, if its blocks may be
        reused.

        With ``trusting`` False no block is reused.
        """
        self._there, self._reused = NOTHING, False
        self._taken, self.from_present_version, self._staged_bytes = set(), set(), 0
        journal = self._memory.journal
        journaled = dict(self._put)
        if journal is not None:
            journaled |= journal.staged(self._blob)
            if basis is not None and journal.committed([self._blob]).get(self._blob) != basis.etag:
                basis = None
            journal.begin(self._blob, near)
        if trusting and (journaled or (basis is not None and journal is not None)):
            self._there = self._listed(journaled, basis)

    def fate(self, block: Block) -> Fate:
        """What to do with the next block of the file; ``SEND`` once for each content."""
        digest = block.sha256
        with self._lock:
            if block.id in self._taken:
                return Fate.THERE
            self._taken.add(block.id)
            is_committed = self._there.committed.get(block.id) == block.size
            if not is_committed and self._there.staged.get(block.id) != block.size:
                return Fate.SEND
            self._reused = True
            if is_committed:
                self.from_present_version.add(block.id)
                return Fate.THERE
            if digest in self._put:
                return Fate.SENT
            self._staged_bytes += block.size
        self._memory.put(self._blob, block)
        return Fate.THERE

    def acknowledged(self, block: Block) -> None:
        """Record that the service has the block."""
        digest = block.sha256
        assert digest is not None
        with self._lock:
            self._put[digest] = block.size
        self._memory.put(self._blob, block)

    def check(self, blocks: Sequence[Block]) -> None:
        """Verify the blob after a commit that reused blocks: the service stores the MD5 of the whole without checking
        it. Raises ``ChecksumError`` unless the blob has these blocks, in this order."""
        if not self._reused:
            return
        why = differs(self._store.block_list(self._name, "committed"), blocks)
        if why is not None:
            raise ChecksumError(
                f"{self._name} is not made of the blocks that were sent: {why}",
                hint="another program may be writing it: run the same command again",
                path=self._name,
            )

    def finish(self, etag: str, md5: bytes = b"", blocks: Sequence[Block] = ()) -> None:
        """The blob is committed and verified."""
        if self._memory.journal is not None:
            digests = (block.sha256 or b"" for block in blocks)
            self._memory.journal.finish(self._blob, etag, b"".join([md5, *digests]))

    def _listed(self, journaled: dict[bytes, int], basis: RemoteState | None) -> Reusable:
        try:
            found = self._store.block_list(self._name)
        except (StorageUnreachableError, ThrottledError):
            raise
        except StorageError as error:
            self._memory.unlisted(error)
            return NOTHING
        return reusable(found, journaled, basis)


# https://learn.microsoft.com/rest/api/storageservices/put-block: all block ids of a blob, including uncommitted ones
# of a killed run, must have the same length. azcopy's are 36 bytes before base64; with the same length blobsync and
# azcopy can each finish what the other began.
_BLOCK_ID_BYTES = 36


class BlockSizes(NamedTuple):
    """Files up to ``single`` bytes go in one request, larger ones in blocks of ``block`` bytes."""

    single: int
    block: int

    def block_for(self, size: int) -> int:
        """The block size for a file of ``size`` bytes: larger if 50,000 blocks of ``block`` bytes are not enough."""
        needed = -(-size // MAX_BLOCKS)
        return max(self.block, -(-needed // MIB) * MIB)


class BlockIds:
    """The block ids of one upload: different from those of any other upload of the same blob, unless ``run`` (16
    characters) is the same."""

    def __init__(self, run: str = "") -> None:
        self._run = run or os.urandom(8).hex()

    def __getitem__(self, index: int) -> str:
        return b64encode(f"blobsync-{self._run}-{index:06d}".ljust(_BLOCK_ID_BYTES, ".").encode()).decode()


def precondition_of(action: FileAction) -> Precondition:
    """A precondition that lets the write replace only the version that the plan saw."""
    if action.target is None and isinstance(action.destination, RemoteState):
        return Precondition(etag=action.destination.etag)
    return _NEW


# The service takes no blocks for a file that was written through the Data Lake end of its account, but a whole blob.
_TAKES_NO_BLOCKS = "BlobOperationNotSupported"
# Another writer's commit has dropped blocks that were put, or another writer's blocks have ids of another length.
BLOCKS_DROPPED = ("InvalidBlockList", "InvalidBlobOrBlock")


class UploadJob(FileJob):
    """Nothing appears under the blob's name before all of it is there; a block that fails leaves nothing.

    If the file goes in blocks, those that the service already has are read and hashed, but not sent; if planning has
    hashed its blocks together with its MD5, they are not even read.
    """

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        folder: SourceFolder,
        store: BlobStore,
        name: str,
        single: int,
        memory: BlockMemory,
    ) -> None:
        """Reads the file from ``folder``. Files up to ``single`` bytes go in one request."""
        super().__init__(run, action)
        self._folder = folder
        self._store = store
        self._name = name
        self._single = single
        self._source: SourceFile | None = None
        self._reading = threading.Lock()
        self._memory = memory
        self._sent: SentBlocks | None = None
        self._trusting = True
        self._sends_again = False
        self._in_one_request = False
        self._info: BlobInfo | None = None
        self._condition = precondition_of(action)

    def open(self) -> int:
        self._source = self._folder.open(self.action.path, self.action.source)
        self._size = self._source.state.size
        self._whole = hashlib.md5(usedforsecurity=False)
        self._info = None
        self._begun = 0
        self._known = b""
        # A file that went in blocks before goes in blocks again, unless it is empty by now.
        before = self.action.delta or self.action.on_record > 0
        self._in_blocks = self._size > self._single or (before and self._size > 0)
        if not self._in_blocks or self._in_one_request:
            self._block = self._size
            return 1
        # Not the best size for this connection, but the one that the next upload of the file and a download use as
        # well.
        self._block = block_size(self._size)
        self._order: dict[int, Block] = {}
        self._known = self._source.state.blocks
        destination = self.action.destination
        basis = destination if self.action.delta and isinstance(destination, RemoteState) else None
        self._blocks.look(self._source.state, basis, trusting=self._trusting)
        return -(-self._size // self._block)

    def piece(self) -> None:
        if self._in_one_request:
            self._put_whole()
            return
        with ExitStack() as held:
            # One thread at a time reads and hashes, in order, while the others send: so the MD5 of the whole file
            # needs no second pass over it.
            with self._reading:
                index = self._begun
                self._begun += 1
                length = min(self._block, self._size - index * self._block)
                known = self._known[index * _SHA256 :][:_SHA256]
                if known and not self._is_sent(index, known, length):
                    return
                held.enter_context(self.run.buffer(length))
                data = self._opened.read_at(index * self._block, length)
                if not known:
                    self._whole.update(data)
            if known and hashlib.sha256(data).digest() != known:
                raise self._opened.changed()
            if not self._in_blocks:
                self.run.wait_for_rate(length)
                name, _, md5, properties, condition = self._whole_order(data)
                self.run.about_to_write((self.action, length, md5))
                with self.sending(length) as sent:
                    self._info = self._store.put(
                        name, data, md5=md5, properties=properties, condition=condition, sent=sent
                    )
            elif known or self._is_sent(index, hashlib.sha256(data).digest(), length):
                self._put_block(self._order[index], data)

    def _put_whole(self) -> None:
        """Send the file as one request, read twice: its MD5 goes ahead."""
        for start in range(0, self._size, _READ_BYTES):
            length = min(_READ_BYTES, self._size - start)
            with self.run.buffer(length):
                self._whole.update(self._opened.read_at(start, length))
        self._opened.check_unchanged()
        md5 = self._whole.digest()
        self.run.wait_for_rate(self._size)
        self.run.about_to_write((self.action, self._size, md5))
        body = FileBody(self._opened.read_at, self._size)
        with self.sending(self._size) as sent:
            self._info = self._store.put(
                self._name, body, md5=md5, properties=self._properties(), condition=self._condition, sent=sent
            )
        self._opened.check_unchanged()
        self._blocks.finish(self._info.etag)

    def order(self) -> PutOrder:
        data = self._opened.read_at(0, self._size)
        self._whole.update(data)
        return self._whole_order(data)

    def landed(self, end: BlobInfo | bytes) -> None:
        assert isinstance(end, BlobInfo)
        self._info = end

    def commit(self) -> Moved:
        read = self._opened.state
        md5 = read.md5 if self._known else self._whole.digest()
        assert md5 is not None, "planning hashes the blocks together with the whole"
        if self._info is None:
            self._info = self._put_list(md5)
        if self._info.md5 not in {None, md5}:
            raise ChecksumError(f"the service stored other bytes of {self._name} than were sent", path=self._name)
        source = LocalState(read.size, read.mtime_ns, read.ctime_ns, read.inode, md5)
        return Moved(self.action, source, RemoteState(self._size, self._info.etag, md5), self.reused)

    def worth_another_try(self, error: BlobsyncError) -> bool:
        """Also once more if blocks that were put are gone: then the missing ones are sent. And once more in one request
        if the service takes no blocks."""
        code = error.service_code if isinstance(error, StorageError) else ""
        if code in BLOCKS_DROPPED and not self._sends_again:
            self._sends_again = True
            return True
        if code == _TAKES_NO_BLOCKS and not self._in_one_request and self._size <= MAX_PUT_BYTES:
            self._in_one_request = True
            return True
        return super().worth_another_try(error)

    def release(self) -> None:
        if self.run.stop.is_set():
            self.abandon()
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def abandon(self) -> None:
        """Nothing to remove: sent blocks stay with the service, and the next run continues from there."""
        if self._info is None and self._sent is not None and self._sent.bytes_kept:
            self.run.report.file_kept(self.action, self._sent.bytes_kept)

    @property
    def _blocks(self) -> SentBlocks:
        """The blocks of a file that goes in blocks; created by :meth:`open`."""
        if self._sent is None:
            self._sent = SentBlocks(self._memory, self._store, self._name)
        return self._sent

    @property
    def _opened(self) -> SourceFile:
        assert self._source is not None, "not open"
        return self._source

    def _whole_order(self, data: bytes) -> PutOrder:
        self._opened.check_unchanged()
        return PutOrder(self._name, data, self._whole.digest(), self._properties(), self._condition)

    def _is_sent(self, index: int, sha256: bytes, length: int) -> bool:
        """Decide what to do with a block; returns whether it has to be sent."""
        block = self._order[index] = Block(block_id_of(sha256), length)
        fate = self._blocks.fate(block)
        if fate is not Fate.SEND:
            self.run.wait_for_rate(0)
            (self.count if fate is Fate.SENT else self.count_reused)(block.size)
        return fate is Fate.SEND

    def _put_block(self, block: Block, data: bytes) -> None:
        self.run.wait_for_rate(block.size)
        with self.sending(block.size) as sent:
            self._store.put_block(self._name, block.id, data, sent=sent)
        self._blocks.acknowledged(block)

    def _put_list(self, md5: bytes) -> BlobInfo:
        self._opened.check_unchanged()
        self.run.about_to_write((self.action, self._size, md5))
        blocks = [self._order[index] for index in range(self._begun)]
        written = self._store.put_block_list(
            self._name,
            [block.id for block in blocks],
            size=self._size,
            md5=md5,
            properties=self._properties(),
            condition=self._condition,
            committed=self._blocks.from_present_version,
        )
        # If the blob has other blocks than these, the next attempt replaces what this one wrote, and reuses nothing.
        self._condition, self._trusting = Precondition(etag=written.etag), False
        self._blocks.check(blocks)
        self._blocks.finish(written.etag, md5, blocks)
        return written

    def _properties(self) -> BlobProperties:
        metadata = metadata_of(os.fstat(self._opened.fd), self.run.task.part.kept)
        return BlobProperties(guess_content_type(self._name), metadata=metadata)
