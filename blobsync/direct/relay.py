"""The engine that streams blobs through this machine, for copies that the service itself is not allowed to make.

Which they are says ``relay_allowed`` in ``project/engine_set``; of a file that failed, ``Retry.RELAY``.

Memory: at most ``BUFFERS`` bytes of content at once, whatever the sizes of the blobs; nothing is written to disk.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from blobsync.base.events import Listener
from blobsync.base.file_states import RemoteState
from blobsync.base.records import NamedTuple
from blobsync.direct.copy import BlobCopyJob
from blobsync.direct.range_reads import Content, looked_up, read_range, version_of
from blobsync.direct.thread_pool import MIB, RunState, Stopped, WorkerPool
from blobsync.direct.upload import BlockIds, BlockSizes, precondition_of
from blobsync.local.resume_records import WriteIntents
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties, BlobReader, Sent
from blobsync.transfer.engines import Moved, MoveReport, MoveTask

_THREADS = 16
# For large blobs. The C library keeps the memory that each thread has freed: 16 threads hold 70 MB more than 8.
_THREADS_OF_LARGE = 8
_LARGE = MIB
_BLOCK = 4 * MIB
# A block is in memory twice while its pieces are joined. Eight at a time reach 800 MB a second at 40 ms latency.
BUFFERS = _THREADS_OF_LARGE * _BLOCK


class RelayEngine(NamedTuple):
    """Blob to blob: reads ranges of one version, and writes blocks with their MD5. ``intents`` tell the next command
    what a killed process wrote."""

    intents: WriteIntents | None = None

    @property
    def name(self) -> str:
        return "relay"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`. Properties, metadata and tier are carried over."""
        source, destination = task.part.source, task.part.destination
        if not isinstance(source, OpenBlob) or not isinstance(destination, OpenBlob):
            raise ValueError("a relay needs blobs at both ends")
        run = RunState(task, report, listener, BUFFERS, self.intents)
        jobs = (RelayJob(run, action, source, destination) for action in task.actions)
        is_large = sum(action.size for action in task.actions) >= _LARGE * len(task.actions)
        WorkerPool(run, jobs, _THREADS_OF_LARGE if is_large else _THREADS).work()


class RelayJob(BlobCopyJob):
    """One blob; its blocks arrive in any order and are hashed in the blob's order."""

    def __init__(self, run: RunState, action: FileAction, source: OpenBlob, destination: OpenBlob) -> None:
        super().__init__(run, action, source, destination)
        self._taking = threading.Lock()
        self._turn = threading.Condition()

    def open(self) -> int:
        self._version = version_of(self._from, self._source, self.action)
        self._properties: BlobProperties | None = None
        if self._version.tier is None:
            # Only if the survey did not record it: Get Blob returns all properties that a copy carries over, but not
            # the tier.
            self._properties = self._from.properties(self._source)
        self._whole = Content(self._from, self._version)
        self._info: BlobInfo | None = None
        self._begun = self._hashed = 0
        self._broken = False
        self._ids = BlockIds()
        size = self._version.size
        self._block = min(size, BlockSizes(_BLOCK, _BLOCK).block_for(size))
        if self._whole.waits and size > self._block:
            # The answers to requests for ranges do not say all.
            self._whole.expect(looked_up(self._from, self._source, self._version))
        return -(-size // self._block) if size else 1

    def piece(self) -> None:
        with ExitStack() as held:
            # Memory is reserved in the order of the blocks: a thread that waits for its turn to hash waits only for
            # blocks that have theirs.
            with self._taking:
                index = self._begun
                self._begun += 1
                length = min(self._block, self._version.size - index * self._block)
                held.enter_context(self.run.buffer(length))
            try:
                data = self._read(index, length)
                self._hash_in_turn(index, data)
            except BaseException:
                # Whoever waits for its turn looks again soon.
                self._broken = True
                raise
            self.run.wait_for_rate(length)
            with self.sending(length) as sent:
                if self._block == self._version.size:
                    self._put(data, sent)
                else:
                    self._to.put_block(self._name, self._ids[index], data, sent=sent)

    def commit(self) -> Moved:
        size, md5 = self._version.size, self._whole.demand(self._source)
        if self._info is None:
            self.run.about_to_write((self.action, size, md5))
            self._info = self._put_list(self._begun, md5, self._carried)
        return Moved(
            self.action,
            source=RemoteState(size, self._version.etag, md5),
            destination=RemoteState(size, self._info.etag, md5),
            compared_by=self._whole.compared_by,
        )

    def _read(self, index: int, length: int) -> bytes:
        start = index * self._block
        return b"".join(read_range(self._from, self._source, self._version, start, length, opened=self._note))

    def _note(self, reader: BlobReader) -> None:
        if self._whole.waits:
            self._whole.expect(reader.info)
        if self._properties is None:
            assert self._version.tier is not None, "else they were asked for"
            self._properties = reader.properties._replace(tier=self._version.tier)

    @property
    def _carried(self) -> BlobProperties:
        assert self._properties is not None, "nothing is read yet"
        return self._properties

    def _hash_in_turn(self, index: int, data: bytes) -> None:
        with self._turn:
            while self._hashed != index:
                if self._broken or self.run.stop.is_set():
                    raise Stopped
                self._turn.wait(0.2)
        # Only the thread whose turn it is gets this far.
        self._whole.update(data)
        with self._turn:
            self._hashed += 1
            self._turn.notify_all()

    def _put(self, data: bytes, sent: Sent) -> None:
        md5 = self._whole.demand(self._source)
        self.run.about_to_write((self.action, self._version.size, md5))
        condition = precondition_of(self.action)
        properties = self._carried
        self._info = self._to.put(self._name, data, md5=md5, properties=properties, condition=condition, sent=sent)
