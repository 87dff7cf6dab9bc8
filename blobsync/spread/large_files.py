"""Large files that are cut into ranges: collects the workers' reports, and commits each file once.

Nothing appears under a file's name before the commit. The blocks of an upload are put by one worker and the file is
read for its MD5 by another, and this machine reads it as well: it is committed only if all have read the same. Blocks
that somebody else's commit of the same blob dropped are put once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, StorageError
from blobsync.base.events import BytesMoved, BytesReused, Listener, Note
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.direct.file_blocks import commit_blocks
from blobsync.direct.upload import BLOCKS_DROPPED
from blobsync.plan.blocks import block_bytes, block_count
from blobsync.plan.spreading import is_cut
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.spread.earlier_records import EarlierBlocks
from blobsync.spread.record import FileRecord
from blobsync.spread.shard import Shard, can_be_in_shard, cut_file, size_of_file
from blobsync.spread.shard_account import OwnReading, ShardAccount
from blobsync.transfer.engines import Moved, MoveReport, MoveTask

# How often the blocks of a file are put at most.
_TIMES = 2


class OwnFile(NamedTuple):
    """What this machine read of a file; None if it could not, or if the file changed meanwhile."""

    state: LocalState | None


@dataclass(slots=True)
class _CutFile:
    """``open`` is the number of unfinished shards. ``there`` are the ids of blocks that an earlier run has put, ``put``
    and ``read`` those of all blocks, by the workers that put them and by the worker that read the file. ``own`` is what
    this machine read itself, ``waits`` whether only that is missing."""

    action: FileAction
    open: int
    there: Mapping[int, str]
    times: int = 1
    put: dict[int, str] = field(default_factory=dict)
    read: dict[int, str] = field(default_factory=dict)
    md5: bytes | None = None
    own: OwnFile | None = None
    waits: bool = False
    failure: FileFailure | None = None

    @property
    def reused(self) -> int:
        """The number of bytes in ``there``."""
        size = size_of_file(self.action)
        return sum(block_bytes(size, index) for index in self.there)


class LargeFiles:
    """The large files of one task. Ranges have about ``about`` bytes; 0: no file is cut. ``earlier`` are blocks that an
    earlier run has put, and ``reading`` reads sources on this machine."""

    def __init__(
        self,
        task: MoveTask,
        report: MoveReport,
        listener: Listener,
        about: int,
        earlier: EarlierBlocks,
        reading: OwnReading,
    ) -> None:
        self._part = task.part
        self._report = report
        self._listener = listener
        self._about = about
        self._earlier = earlier
        self._reading = reading
        self._files: dict[str, _CutFile] = {}
        self._again_later: list[Shard] = []

    def takes(self, action: FileAction) -> bool:
        """Whether to cut the file."""
        route = self._part.route
        if action.source is None or route is Route.DOWNLOAD or not is_cut(action.source.size, self._about):
            return False
        # A part that is a single file has no name below its end.
        return can_be_in_shard(action, route) or (not action.path and action.target is None)

    def cut(self, action: FileAction) -> tuple[Shard, ...]:
        """Cut a file into shards."""
        shards = self._cut(action, self._earlier.take(self._part, action))
        if isinstance(self._part.source, LocalLocation):
            self._reading.begin(self._part.source.at(action.path), lambda own: self._read_here(action.path, own))
        return shards

    def there(self, shard: Shard) -> Mapping[int, str]:
        """The blocks of a range that need not be put, by number, with their ids."""
        order = shard.order
        if order is None or order.only_read:
            return {}
        there = self._file_of(shard).there
        return {index: there[index] for index in range(*order.blocks) if index in there}

    def heard(self, account: ShardAccount, record: FileRecord) -> None:
        """Handle the record of a finished range. Raises ``FormatError`` if it does not match."""
        file = self._file_of(account.shard)
        if record.failure is not None:
            account.failed(record)
            self._failed(file, record.failure.code, record.failure.message, record.failure.hint)
            return
        source = account.ranged(record)
        assert account.shard.order is not None
        if account.shard.order.only_read:
            file.md5 = source.md5
        (file.read if account.shard.order.only_read else file.put).update(account.named)

    def has_failed(self, account: ShardAccount) -> bool:
        """Whether the file of this shard has failed, so that its other shards are useless."""
        return self._file_of(account.shard).failure is not None

    def ended(self, account: ShardAccount, said: str) -> tuple[Shard, ...]:
        """Handle the end of a shard; ``said`` is the reason, if it has no record. The last one reports the file.
        Returns shards that are to be carried out in their place."""
        file = self._file_of(account.shard)
        file.open -= 1
        if account.left:
            hint = "run the same command again: verified files are skipped"
            self._failed(file, FailureCode.NOT_REPORTED, said, hint)
        return () if file.open else self._conclude(file)

    def again(self) -> tuple[Shard, ...]:
        """Shards that are to be carried out again, since the last call."""
        shards, self._again_later = tuple(self._again_later), []
        return shards

    def _file_of(self, shard: Shard) -> _CutFile:
        (action,) = shard.actions
        return self._files[action.path]

    def _read_here(self, path: str, own: LocalState | None) -> None:
        file = self._files[path]
        file.own = OwnFile(own)
        if file.waits:
            self._again_later += self._conclude(file)

    def _conclude(self, file: _CutFile) -> tuple[Shard, ...]:
        if self._part.route is Route.UPLOAD and file.own is None and file.failure is None:
            file.waits = True
            return ()
        try:
            moved = self._commit(file) if file.failure is None else None
        except BlobsyncError as error:
            dropped = isinstance(error, StorageError) and error.service_code in BLOCKS_DROPPED
            if dropped and file.times < _TIMES:
                return self._again(file)
            self._failed(file, error.code, error.message, error.hint)
            moved = None
        if moved is not None:
            self._report.file_moved(moved._replace(reused=file.reused))
        elif file.failure is not None:
            self._report.file_failed(file.action, file.failure)
        return ()

    def _commit(self, file: _CutFile) -> Moved | None:
        size = size_of_file(file.action)
        if self._part.route is Route.UPLOAD and (file.read != file.put or self._is_other_here(file)):
            said = f"{self._part.shown(file.action)}: two machines read different bytes of it"
            hint = "run the same command again; where that happens again a node's memory or disk may be damaged"
            self._failed(file, FailureCode.CHECKSUM_MISMATCH, said, hint)
            return None
        ids = [file.put[index] for index in range(block_count(size))]
        return commit_blocks(self._part, file.action, ids, file.md5)

    def _is_other_here(self, file: _CutFile) -> bool:
        """Whether the version that moved is still there, with other content than the worker that read it reported."""
        own = file.own.state if file.own is not None else None
        planned = file.action.source
        return own is not None and isinstance(planned, LocalState) and own.same_file(planned) and own.md5 != file.md5

    def _again(self, file: _CutFile) -> tuple[Shard, ...]:
        shown = self._part.shown(file.action)
        self._listener.emit(
            Note(f"{shown}: another writer of the same blob has dropped blocks of it; they are put once more")
        )
        self._listener.emit(BytesMoved(file.reused - size_of_file(file.action)))
        self._listener.emit(BytesReused(-file.reused))
        shards = self._cut(file.action, {})
        self._files[file.action.path].times = file.times + 1
        self._files[file.action.path].own = file.own
        return shards

    def _cut(self, action: FileAction, there: Mapping[int, str]) -> tuple[Shard, ...]:
        shards = cut_file(self._part, action, self._about, there)
        file = self._files[action.path] = _CutFile(action, len(shards), there)
        if file.reused:
            self._listener.emit(BytesReused(file.reused))
        return shards

    def _failed(self, file: _CutFile, code: FailureCode, message: str, hint: str | None) -> None:
        """Only the first failure of a file is reported."""
        if file.failure is None:
            file.failure = FileFailure(self._part.shown(file.action), code, message, hint)
