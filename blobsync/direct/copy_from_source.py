"""Copies an object from outside Azure without its bytes: the destination's service fetches them, block by block.

The service answers each Put Block From URL with the CRC64 of the bytes that it stored. Joined in the order of the
blocks, they are the CRC64 of the whole object, which S3 keeps for many of its objects: compared before Put Block List
gives the blob its content. An object that has an MD5 goes in one block where that is not too large, and the service
compares it itself.

An object that is replaced on the way is a failure, never a mixture: the URL names its version, or the object is looked
up again before the blob is committed.

Blocks that a killed run had fetched of the same version are not fetched again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from blobsync.base.errors import ChecksumError, CopySourceRefusedError, PreconditionFailedError, StorageError
from blobsync.base.file_states import RemoteState
from blobsync.base.redaction import SignedUrl
from blobsync.direct.copy import BlobCopyJob
from blobsync.direct.range_reads import demand_same, looked_up, naming_the_source, read_range, version_of
from blobsync.direct.thread_pool import MIB, RunState
from blobsync.direct.upload import BLOCKS_DROPPED, BlockIds, BlockSizes, precondition_of
from blobsync.local.fetch_records import Fetch, FetchRecord, FetchRecords
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.checksums import CRC64, JoinedCrc64, comparison
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobProperties
from blobsync.store.read_only import LONGEST_SOURCE_URL, SourceStore
from blobsync.transfer.engines import NOTHING_COMPARED, Moved

# ``single``: up to this many bytes an object that has only an MD5 is one block. The answer waits for it.
FETCHED = BlockSizes(single=1024 * MIB, block=64 * MIB)
# Objects of fewer blocks are fetched anew.
_WORTH_A_RECORD = 2
# A URL is valid for one request, which may have to wait and to be repeated.
_URL_SECONDS = 3600
_EMPTY_MD5 = hashlib.md5(b"", usedforsecurity=False).digest()


class CopyFromSourceJob(BlobCopyJob):
    """One object. With ``comparing`` its bytes are read once if nothing else tells whether the copy is right."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        source: OpenBlob,
        destination: OpenBlob,
        *,
        comparing: bool,
        sizes: BlockSizes = FETCHED,
        records: FetchRecords | None = None,
        joining: Callable[[], JoinedCrc64] = JoinedCrc64,
    ) -> None:
        if not isinstance(source.store, SourceStore):
            raise ValueError(f"{source} is not outside Azure")
        super().__init__(run, action, source, destination)
        self._of = source.store
        self._comparing, self._sizes, self._joining = comparing, sizes, joining
        self._records = records
        self._record: FetchRecord | None = None
        self._noting = threading.Lock()

    def open(self) -> int:
        self._version = version_of(self._of, self._source, self.action)
        found, self._properties = self._of.described(self._source) or (None, BlobProperties())
        self._info = demand_same(self._source, found, self._version)
        if self._info.archived:
            raise StorageError(f"{self._source}: {self._info.archived}", path=self._source)
        # One URL now: one that is too long is found before anything is sent.
        self._url()
        size = self._info.size
        kept = self._info.checksum
        self._crc64 = kept.value if kept is not None and kept.name == CRC64 else None
        # With an MD5 in the only block, the blob has one, too.
        most = self._sizes.single if self._crc64 is None else self._sizes.block
        whole = 0 < size <= most and self._info.md5 is not None
        self._block = size if whole else self._sizes.block_for(size)
        self._md5 = self._info.md5 if whole else None
        # Of all bytes, as the service stored them.
        self._stored: bytes | None = None
        self._pieces = -(-size // self._block)
        self._crc64s = dict(self._there())
        self.count_reused(sum(map(self._length, self._crc64s)))
        self._left = iter([index for index in range(self._pieces) if index not in self._crc64s])
        return max(1, self._pieces - len(self._crc64s))

    def _there(self) -> Mapping[int, int | None]:
        """The blocks of this version that a killed run had fetched, with their CRC64s."""
        self._ids = BlockIds()
        if self._records is None or self._pieces < _WORTH_A_RECORD:
            return {}
        blob, source = str(self._to.container.child(self._name)), str(self._of.container.child(self._source))
        info = self._info
        self._record = self._records.take(Fetch(blob, source, info.version, info.etag, info.size, self._block))
        if self._record is None:
            return {}
        self._ids = BlockIds(self._record.run)
        if not self._record.blocks:
            return {}
        found = None
        # It needs the right to read.
        with suppress(StorageError):
            found = self._to.block_list(self._name, "uncommitted")
        sizes = {block.id: block.size for block in found.uncommitted} if found is not None else {}
        known = self._record.blocks.items()
        return {index: crc64 for index, crc64 in known if sizes.get(self._ids[index]) == self._length(index)}

    def piece(self) -> None:
        self.run.wait_for_rate(0)
        with self._noting:
            index = next(self._left, None)
        if index is None:
            return
        length = self._length(index)
        with naming_the_source(self._source):
            crc64 = self._to.put_block_from_url(
                self._name,
                self._ids[index],
                self._url(),
                None,
                start=index * self._block,
                length=length,
                source_md5=self._md5,
            )
        with self._noting:
            self._crc64s[index] = crc64
        if self._record is not None:
            self._record.add(index, crc64)
        self.count(length)

    def commit(self) -> Moved:
        try:
            moved = self._committed()
        except (ChecksumError, PreconditionFailedError):
            self._forget()
            raise
        except StorageError as error:
            if error.service_code in BLOCKS_DROPPED:
                self._forget()
            raise
        self._forget()
        return moved

    def _forget(self) -> None:
        if self._record is not None:
            self._record.remove()

    def _committed(self) -> Moved:
        compared_by = self._compare()
        if not self._info.version:
            # Blocks were fetched by name, from whatever had it at that moment.
            looked_up(self._of, self._source, self._version)
        md5 = self._md5 if self._pieces else _EMPTY_MD5
        self.run.about_to_write((self.action, self._info.size, md5 or b""))
        if not self._pieces:
            condition = precondition_of(self.action)
            there = self._to.put(self._name, b"", md5=_EMPTY_MD5, properties=self._properties, condition=condition)
        else:
            there = self._put_list(self._pieces, md5, self._properties)
        source = RemoteState(self._info.size, self._info.etag, md5)
        # With the size that the service counted.
        seen = self._seen(there.etag)
        destination = seen and replace(seen, crc64=self._stored)
        return Moved(self.action, source=source, destination=destination, reused=self.reused, compared_by=compared_by)

    def release(self) -> None:
        if self._record is not None:
            self._record.close()

    def _url(self) -> SignedUrl:
        url = self._of.source_url(self._source, self._info.version, _URL_SECONDS)
        if url.length > LONGEST_SOURCE_URL:
            # Its code's retry is the relay: ``carry_out`` has that engine move this one file.
            raise CopySourceRefusedError(
                f"{self._source}: its URL is longer than the {LONGEST_SOURCE_URL:,} characters that the service takes",
                path=self._source,
            )
        return url

    def _length(self, index: int) -> int:
        return min(self._block, self._info.size - index * self._block)

    def _compare(self) -> str:
        """Compare what the service stored with what the source says; returns by what."""
        if not self._pieces:
            return "md5"
        joined = self._stored = self._joined()
        if joined is not None and self._crc64 is not None:
            if joined != self._crc64:
                raise ChecksumError(f"{self._source} arrived with a different CRC64 than its own", path=self._source)
            return CRC64
        if self._md5 is not None:
            # The service has compared the only block.
            return "md5"
        if joined is not None and self._comparing:
            content, other = self._joining(), comparison(self._info.checksum)
            for data in read_range(self._of, self._source, self._version, 0, self._info.size):
                self.run.wait_for_rate(len(data))
                content.update(data)
                if other is not None:
                    other.update(data)
            if joined != content.digest() or (other is not None and not other.is_right()):
                raise ChecksumError(f"{self._source} arrived with other bytes than its own", path=self._source)
            return "content"
        return NOTHING_COMPARED

    def _joined(self) -> bytes | None:
        """The CRC64 of all blocks; None if the service did not tell each, or nothing here joins them."""
        try:
            joined = self._joining()
        except ImportError:
            return None
        for index in range(self._pieces):
            crc64 = self._crc64s.get(index)
            if crc64 is None:
                return None
            joined.add(crc64, self._length(index))
        return joined.digest()
