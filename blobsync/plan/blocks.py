"""The blocks of a large file: their edges and size, and which need not be sent because the service has them.

A file is cut at fixed edges that depend only on its size, in uploads and downloads alike, whatever the connection. So
blocks that are equal in two versions have the same id (``store.protocol``).

Only two sources prove that a block exists with the content that its id names:

* uncommitted blocks that this project's journal lists (the service acknowledged them, with their MD5), as long as the
  service still lists them with the same size: what a killed upload left;
* committed blocks of the version of the blob that the index has as verified and the journal as written by this project,
  if blobsync made all of its ids. It is replaced under ``If-Match``, so that it is still that version when the blocks
  are taken from it.

Metadata proves nothing (server-side copies keep it), nor does an id alone: anyone who can write a blob can write any
id. Sizes from the service are compared with those on record.

What earlier runs left of a plan's files at the destination is found without changing anything: for an upload blocks in
the journal, for a download bytes in an unfinished local file.
"""

import hashlib
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from blobsync.base.errors import StorageError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.resume_records import BlockJournal, RangeRecords, UnfinishedDownload
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, Route, actions_of, totals_of
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import MAX_BLOB_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS, Block, BlockList

_MIB = 1024 * 1024

# Bytes; smaller files are sent in one request.
ONE_REQUEST = 2 * _MIB
_MD5, _SHA256 = 16, 32


def _steps() -> Iterator[tuple[int, int]]:
    """The largest file for each block size, and that size. Bytes.

    Small blocks keep many connections busy with one file, and fewer bytes change with the file; large blocks need fewer
    requests (docs/performance.md). Above the third step the 50,000 blocks of a blob set the size.
    """
    yield 64 * _MIB, 2 * _MIB
    yield 2048 * _MIB, 4 * _MIB
    block = 8 * _MIB
    while block < MAX_BLOCK_BYTES:
        yield MAX_BLOCKS * block, block
        block *= 2
    yield MAX_BLOB_BYTES, MAX_BLOCK_BYTES


_STEPS = tuple(_steps())
_LIMITS = [limit for limit, _ in _STEPS]


def block_size(size: int) -> int:
    """The length in bytes of each block but the last of a file of ``size`` bytes.

    Raises ``ValueError`` for a size that no blob can have.
    """
    if not 0 <= size <= MAX_BLOB_BYTES:
        raise ValueError(f"no blob has {size:,} bytes")
    return _STEPS[bisect_left(_LIMITS, size)][1]


def digests_of(read: Callable[[int, int], bytes], size: int, known: bytes) -> bytes:
    """The MD5 of a file of ``size`` bytes, and the SHA-256 of each of its blocks, one after the other.

    ``known`` are those of a version of the same size: the MD5 is computed only if a block differs. ``read`` gets an
    offset and a length.
    """

    def pieces(start: int, end: int) -> Iterator[bytes]:
        return (read(at, min(_MIB, end - at)) for at in range(start, end, _MIB))

    block, whole, blocks = block_size(size), None, []
    for start in range(0, size, block):
        end, digest = min(start + block, size), hashlib.sha256()
        for piece in pieces(start, end):
            digest.update(piece)
            if whole is not None:
                whole.update(piece)
        blocks.append(digest.digest())
        if whole is None and blocks[-1] != known[_MD5 + _SHA256 * (len(blocks) - 1) :][:_SHA256]:
            whole = hashlib.md5(usedforsecurity=False)
            for piece in pieces(0, end):
                whole.update(piece)
    return b"".join([known[:_MD5] if whole is None else whole.digest(), *blocks])


class Reusable(NamedTuple):
    """The sizes in bytes of the blocks that need not be sent, by id: those of the present version, and uncommitted
    ones."""

    committed: Mapping[str, int]
    staged: Mapping[str, int]


NOTHING = Reusable({}, {})


def reusable(listed: BlockList | None, journaled: Mapping[bytes, int], basis: RemoteState | None) -> Reusable:
    """The blocks of the service's list that may be reused. ``journaled`` are sizes by SHA-256.

    ``basis`` is the version to be replaced, None if its blocks must not be reused.
    """
    if listed is None:
        return NOTHING
    named = ((block, block.sha256) for block in listed.uncommitted)
    staged = _sizes(block for block, digest in named if digest is not None and journaled.get(digest) == block.size)
    return Reusable(_sizes(listed.committed) if basis is not None and _is_ours(listed, basis) else {}, staged)


def differs(committed: BlockList | None, blocks: Iterable[Block]) -> str | None:
    """How a blob's committed blocks differ from the expected ones; None if they do not."""
    if committed is None:
        return "the blob is not there"
    wanted = tuple(blocks)
    if len(committed.committed) != len(wanted):
        return f"it has {len(committed.committed):,} blocks instead of {len(wanted):,}"
    for number, (found, block) in enumerate(zip(committed.committed, wanted, strict=True), 1):
        if found.id != block.id:
            return f"block {number:,} is another one"
        if found.size != block.size:
            return f"block {number:,} has {found.size:,} bytes instead of {block.size:,}"
    return None


def _is_ours(listed: BlockList, basis: RemoteState) -> bool:
    blocks = listed.committed
    return (
        bool(basis.etag)
        and listed.etag == basis.etag
        and all(block.sha256 is not None for block in blocks)
        and sum(block.size for block in blocks) == basis.size
    )


def _sizes(blocks: Iterable[Block]) -> dict[str, int]:
    """Sizes by id, without blocks that are listed with two sizes."""
    found: dict[str, int] = {}
    doubtful = set()
    for block in blocks:
        if found.setdefault(block.id, block.size) != block.size:
            doubtful.add(block.id)
    return {name: size for name, size in found.items() if name not in doubtful}


class PartialUploads(NamedTuple):
    """The actions with the bytes on record, and the files that have to be sent whole once, with the reason."""

    actions: tuple[FileAction, ...]
    warnings: tuple[str, ...] = ()


def partial_uploads(part: LivePart, actions: tuple[FileAction, ...], journal: BlockJournal) -> PartialUploads:
    """Look up files that are sent in blocks in the journal; nothing else is read."""
    end = part.destination
    if part.route is not Route.UPLOAD or not isinstance(end, OpenBlob):
        return PartialUploads(actions)
    in_blocks = (each for each in actions if each.action is Action.TRANSFER and each.size > ONE_REQUEST)
    names = {each.path: str(end.child(each.path)) for each in in_blocks if each.aside is None}
    if not names:
        return PartialUploads(actions)
    begun, written = journal.unfinished(names.values()), journal.committed(names.values())
    found: list[FileAction] = []
    warnings: list[str] = []
    for action in actions:
        name = names.get(action.path)
        if name is not None and isinstance(action.source, LocalState):
            unfinished = begun.get(name)
            if unfinished is not None and unfinished.is_of(action.source):
                action = action._replace(on_record=min(unfinished.there, action.size))
            if name in written and _is_verified(action, written[name]):
                warning = _new_edges(part.shown(action), action)
                warnings += [warning] if warning else []
                action = action._replace(delta=not warning)
        found.append(action)
    return PartialUploads(tuple(found), tuple(warnings))


def for_engine(parts: tuple[PlanPart, ...], engine: str) -> tuple[tuple[PlanPart, ...], tuple[str, ...]]:
    """The parts for this engine, with notes: azcopy moves files whole, with block ids of its own."""
    spared = totals_of(parts).spared_files
    if engine != "azcopy" or not spared:
        return parts, ()
    whole = (actions_of(part.actions).replaced(map(_in_whole, part.actions)) for part in parts)
    files = "1 file is" if spared == 1 else f"{spared:,} files are"
    return tuple(replace(part, actions=actions) for part, actions in zip(parts, whole, strict=True)), (
        f"{files} at the destination in part, and azcopy moves all of it again: --engine direct moves what is missing",
    )


def _in_whole(action: FileAction) -> FileAction:
    return action._replace(on_record=0, delta=False) if action.on_record or action.delta else action


def _is_verified(action: FileAction, etag: str) -> bool:
    """Whether the destination is the version in the index (only the source changed since), written by this project."""
    there = action.destination
    return action.reason is Reason.CHANGED_HERE and isinstance(there, RemoteState) and there.etag == etag


def _new_edges(shown: str, action: FileAction) -> str | None:
    assert action.destination is not None
    before, now = block_size(action.destination.size), block_size(action.size)
    if before == now:
        return None
    word = "larger" if now > before else "smaller"
    return f"{shown} is so much {word} than before that all of it is sent; next time again only what changed"


def with_on_record(
    parts: Iterable[PlanPart], live: Iterable[LivePart], records: RangeRecords | None
) -> tuple[PlanPart, ...]:
    """The parts of a download, each file with its bytes that are already here; ``live`` are the same parts, open."""
    left = {of.destination: (of, size) for of, size in records.all()} if records else {}
    return tuple(_with_bytes(part, opened, left) for part, opened in zip(parts, live, strict=True))


def _with_bytes(part: PlanPart, live: LivePart, left: dict[str, tuple[UnfinishedDownload, int]]) -> PlanPart:
    there = {action.path: left[path][1] for path, action in places(live, left) if goes_on(live, action, left[path][0])}
    if not there:
        return part
    found = actions_of(part.actions).replaced(each._replace(on_record=there.get(each.path, 0)) for each in part.actions)
    return replace(part, actions=found)


def places(part: LivePart, wanted: Collection[str]) -> Iterator[tuple[str, FileAction]]:
    """The files of a download that are in ``wanted``, with their paths."""
    if wanted and part.route is Route.DOWNLOAD and isinstance(part.destination, LocalLocation):
        for action in part.actions:
            path = os.path.abspath(part.destination.at(action.path))
            if path in wanted:
                yield path, action


def goes_on(part: LivePart, action: FileAction, of: UnfinishedDownload) -> bool:
    """Whether the download of ``action`` continues the unfinished file of ``of``."""
    version = action.source
    if action.action is not Action.TRANSFER or not isinstance(version, RemoteState):
        return False
    assert isinstance(part.source, OpenBlob)
    blob = str(part.source.child(action.path))
    return of.is_of(blob, version.etag, version.size)


class BlockMemory:
    """The blocks that earlier runs have put; shared by the files of one run. Empty without a journal."""

    def __init__(self, journal: BlockJournal | None, note: Callable[[str], None]) -> None:
        self.journal = journal
        self._note = note
        self._noted = threading.Lock()

    def put(self, blob: str, block: Block) -> None:
        """Record that the service has this block of the blob (its URL)."""
        digest = block.sha256
        assert digest is not None, "blocks of files are named by their content"
        if self.journal is not None:
            self.journal.put(blob, digest, block.size)

    def unlisted(self, error: StorageError) -> None:
        """Note once why whole files are sent although some of their blocks are there."""
        if self._noted.acquire(blocking=False):
            self._note(f"cannot list the blocks that are there already, so they are sent again: {error.message}")
