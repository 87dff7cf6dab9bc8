"""The blocks of one file on its way: which of them the service has, which are being sent, and whether all arrived."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from blobsync.base.errors import ChecksumError, StorageError, StorageUnreachableError, ThrottledError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.block_journal import BlockJournal
from blobsync.plan.block_reuse import NOTHING, Reusable, differs, reusable
from blobsync.store.protocol import BlobStore, Block


class Fate(enum.Enum):
    """Of one block: it has to be sent; an attempt of this run has sent it; it is there, from before or from elsewhere
    in the file."""

    SEND = enum.auto()
    SENT = enum.auto()
    THERE = enum.auto()


class BlockMemory:
    """What one run knows of blocks from before; shared by its files. Without a journal it is nothing."""

    def __init__(self, journal: BlockJournal | None, note: Callable[[str], None]) -> None:
        self.journal = journal
        self._note = note
        self._noted = threading.Lock()

    def put(self, blob: str, block: Block) -> None:
        """The service has this block of the blob (its URL)."""
        digest = block.sha256
        assert digest is not None, "blocks of files are named by their content"
        if self.journal is not None:
            self.journal.put(blob, digest, block.size)

    def unlisted(self, error: StorageError) -> None:
        """Say once why whole files are sent although blocks of theirs are there."""
        if self._noted.acquire(blocking=False):
            self._note(f"cannot list the blocks that are there already, so they are sent again: {error.message}")


class SentBlocks:
    """For one blob. Safe for several threads between :meth:`look` and :meth:`check`."""

    def __init__(self, memory: BlockMemory, store: BlobStore, name: str) -> None:
        self._memory = memory
        self._store = store
        self._name = name
        self._blob = str(store.container.blob(name))
        self._lock = threading.Lock()
        self._there = NOTHING
        # What this run has put: its size by SHA-256. What a later attempt finds of it was sent all the same.
        self._put: dict[bytes, int] = {}
        self._taken: set[str] = set()
        self._kept: set[str] = set()
        self._staged_bytes = 0
        self._reused = False

    @property
    def bytes_kept(self) -> int:
        """What a next run finds on record if this one does not end."""
        with self._lock:
            return sum(self._put.values()) + self._staged_bytes if self._memory.journal is not None else 0

    def look(self, near: LocalState, basis: RemoteState | None, *, trusting: bool = True) -> None:
        """Find out what is there. ``basis`` is the verified version that is to be replaced, if its blocks may be used.

        With ``trusting`` False nothing is taken for there.
        """
        self._there, self._reused = NOTHING, False
        self._taken, self._kept, self._staged_bytes = set(), set(), 0
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
                self._kept.add(block.id)
                return Fate.THERE
            if digest in self._put:
                return Fate.SENT
            self._staged_bytes += block.size
        self._memory.put(self._blob, block)
        return Fate.THERE

    def acknowledged(self, block: Block) -> None:
        """The service has the block."""
        digest = block.sha256
        assert digest is not None
        with self._lock:
            self._put[digest] = block.size
        self._memory.put(self._blob, block)

    @property
    def from_present_version(self) -> AbstractSet[str]:
        """The ids of the blocks that are taken from the version which is replaced."""
        return self._kept

    def check(self, blocks: Sequence[Block]) -> None:
        """The fresh look after a commit that took blocks from before: the service stores the MD5 of the whole without
        checking it. Raises ``ChecksumError`` unless the blob has these blocks, in this order."""
        if not self._reused:
            return
        why = differs(self._store.block_list(self._name, "committed"), blocks)
        if why is not None:
            raise ChecksumError(
                f"{self._name} is not made of the blocks that were sent: {why}",
                hint="another program may be writing it: run the same command again",
                path=self._name,
            )

    def finish(self, etag: str) -> None:
        """The blob has been committed and looked at."""
        if self._memory.journal is not None:
            self._memory.journal.finish(self._blob, etag)

    def _listed(self, journaled: dict[bytes, int], basis: RemoteState | None) -> Reusable:
        try:
            found = self._store.block_list(self._name)
        except (StorageUnreachableError, ThrottledError):
            raise
        except StorageError as error:
            self._memory.unlisted(error)
            return NOTHING
        return reusable(found, journaled, basis)
