"""Copies a blob from server to server: Put Blob From URL, or Put Block From URL for large blobs."""

from __future__ import annotations

import itertools
from contextlib import suppress
from urllib.parse import quote

from blobsync.base.errors import PreconditionFailedError, StorageError
from blobsync.base.file_states import DELETED, SNAPSHOT, RemoteState
from blobsync.base.redaction import SasToken
from blobsync.direct.range_reads import changed_while_read, looked_up, naming_the_source, version_of
from blobsync.direct.thread_pool import MIB, FileJob, RunState
from blobsync.direct.upload import BlockIds, BlockSizes, precondition_of
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties, CopiedBlob, UndeletingStore
from blobsync.transfer.engines import Moved

# https://learn.microsoft.com/rest/api/storageservices/put-blob-from-url: one request copies up to 5,000 MiB
# (and the answer waits for it); a block from a URL up to 4,000 MiB. Smaller ones run side by side.
SERVER_SIDE = BlockSizes(single=256 * MIB, block=64 * MIB)
# Of an earlier version: one request alone keeps its properties, too.
_MOST_OF_A_VERSION = 5000 * MIB


class BlobCopyJob(FileJob):
    """From blob to blob: nothing is on this machine."""

    _version: RemoteState
    _ids: BlockIds

    def __init__(self, run: RunState, action: FileAction, source: OpenBlob, destination: OpenBlob) -> None:
        super().__init__(run, action)
        self._from, self._to = source.store, destination.store
        self._source = source.at(action.path)
        self._name = destination.at(action.target or action.path)

    def release(self) -> None:
        """Nothing to close. Blocks that are not committed are dropped by the service, after a week."""

    def _put_list(self, pieces: int, md5: bytes | None, properties: BlobProperties) -> BlobInfo:
        """Make the blob of its ``pieces`` blocks, with this MD5 if there is one."""
        return self._to.put_block_list(
            self._name,
            [self._ids[index] for index in range(pieces)],
            size=self._version.size,
            md5=md5 or b"",
            properties=properties,
            condition=precondition_of(self.action),
        )

    def _seen(self, etag: str) -> RemoteState | None:
        """The blob as the service has it now; None unless it is the version that was written."""
        with suppress(StorageError):
            there = self._to.head(self._name)
            if there is not None and there.etag == etag:
                return RemoteState(there.size, there.etag, there.md5)
        return None


class CopyJob(BlobCopyJob):
    """Copies one blob inside the service, which reads the source with the SAS it is given."""

    def __init__(
        self,
        run: RunState,
        action: FileAction,
        source: OpenBlob,
        destination: OpenBlob,
        sas: SasToken | None,
        *,
        sizes: BlockSizes = SERVER_SIDE,
    ) -> None:
        super().__init__(run, action, source, destination)
        self._past = action.source.version.split() if isinstance(action.source, RemoteState) else []
        # What Undelete brings back as it was is not copied.
        self._of_version = bool(self._past) and (SNAPSHOT in self._past or DELETED not in self._past)
        self._sizes, self._sas = sizes, sas
        self._url = str(self._from.container.child(self._source))
        if self._of_version:
            kind = "snapshot" if SNAPSHOT in self._past else "versionid"
            self._url += f"?{kind}={quote(self._past[-1])}"

    def open(self) -> int:
        self._version = version_of(self._from, self._source, self.action)
        self._copied: CopiedBlob | None = None
        self._index = itertools.count()
        self._pieces = 1
        if self._of_version and self._version.size > _MOST_OF_A_VERSION:
            raise StorageError(
                f"{self._source}: no request copies an earlier version of more than 5,000 MiB back",
                hint="make it the current version in the portal",
                path=self._source,
            )
        if not self._past and self._version.size > self._sizes.single:
            self._block = self._sizes.block_for(self._version.size)
            self._pieces = -(-self._version.size // self._block)
            self._ids = BlockIds()
            self._properties = self._from.properties(self._source)
        return self._pieces

    def piece(self) -> None:
        self.run.wait_for_rate(0)
        if DELETED in self._past:
            self._copied = self._undeleted()
        elif self._pieces == 1:
            self._copied = self._copy_whole()
        if self._copied is not None:
            self.count(self._version.size)
            return
        index = next(self._index)
        start = index * self._block
        length = min(self._block, self._version.size - start)
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

    def commit(self) -> Moved:
        version, copied = self._version, self._copied
        if copied is None:
            # Each range was requested of this version; a server that ignores the condition may have read several
            # versions.
            looked_up(self._from, self._source, version)
            self.run.about_to_write((self.action, version.size, version.md5))
            # This MD5 is the one that we sent: the service stores it without checking the blocks.
            copied = CopiedBlob(self._put_list(self._pieces, version.md5, self._properties).etag, None)
        elif version.md5 is not None and copied.md5 not in {None, version.md5}:
            raise changed_while_read(self._source)
        return Moved(self.action, source=version, destination=self._state(copied))

    def _state(self, copied: CopiedBlob) -> RemoteState | None:
        """The copied blob's state from the service's response; None if it has to be looked up.

        Without an MD5 from the service the size is unknown: the request names what to read, not how much there is.
        """
        version = self._version
        if self._pieces == 1 and version.md5 is not None:
            return RemoteState(version.size, copied.etag, copied.md5) if copied.md5 == version.md5 else None
        # Needed by the index at once: after a kill, nothing else tells a blob without an MD5 from somebody else's.
        return self._seen(copied.etag)

    def _undeleted(self) -> CopiedBlob:
        """Undelete Blob has no condition, but changes no blob that is there.

        It brings back all deleted snapshots of the blob; they are deleted again.
        """
        assert isinstance(self._to, UndeletingStore), "the plan has looked for deleted blobs"
        deletion = self._past[1] if len(self._past) == 2 else ""
        listed = [] if deletion else self._to.list_deleted(self._name)
        kept = [each.version.split() for each in listed if each.name == self._name]
        self._to.undelete(self._name, deletion)
        try:
            return self._copy_whole() if self._of_version else self._as_it_was()
        finally:
            # One that stays changes no blob.
            with suppress(StorageError):
                for words in kept:
                    if words[:2] == [DELETED, SNAPSHOT]:
                        self._to.delete_snapshot(self._name, words[-1])

    def _as_it_was(self) -> CopiedBlob:
        there = self._to.head(self._name)
        if there is None or (there.size, there.md5) != (self._version.size, self._version.md5):
            raise changed_while_read(self._name)
        return CopiedBlob(there.etag, there.md5)

    def _copy_whole(self) -> CopiedBlob:
        condition = precondition_of(self.action)
        # The request copies everything but the tier, which the survey has recorded.
        tier = self._version.tier if self._version.tier is not None else self._from.properties(self._source).tier
        self.run.about_to_write((self.action, self._version.size, self._version.md5))
        try:
            with naming_the_source(self._source):
                return self._to.put_from_url(
                    self._name,
                    self._url,
                    self._sas,
                    condition=condition,
                    tier=tier,
                    source_etag=self._version.etag,
                )
        except PreconditionFailedError:
            # An earlier attempt may have succeeded although its response was lost: equal content is the goal.
            there = self._to.head(self._name)
            if there is None or there.md5 is None or (there.size, there.md5) != (self._version.size, self._version.md5):
                # Emulators return the same error code for a failed condition at either end.
                if not self._of_version:
                    looked_up(self._from, self._source, self._version)
                raise
            return CopiedBlob(there.etag, there.md5)
