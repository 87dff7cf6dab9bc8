"""Records of workers whose coordinator was killed, so that nothing is moved again: moved files, for the index, and
blocks of large files that are not committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.background_calls import side_by_side
from blobsync.base.file_states import FileState, RemoteState
from blobsync.local.files import hash_file, reading_threads
from blobsync.local.index import PairIndex
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, IndexKey
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, NamedBlock, read_answer
from blobsync.spread.shard import Shard
from blobsync.spread.shard_account import ShardAccount, file_to_read, is_same_version, with_own_look
from blobsync.spread.shard_worker import read_shard
from blobsync.spread.shared_store import CLAIM_SECONDS, SharedStore
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import states_at_destination
from blobsync.transfer.ledger import Ledger, record_unreported

# Seconds between two checks whether workers have given up their shards.
_LOOK_SECONDS = 0.3


class EarlierBlocks:
    """Blocks of large files that were put but not committed. Whether they still exist shows at the commit."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], tuple[FileState, dict[int, str]]] = {}

    def add(self, shard: Shard, ids: Mapping[int, str]) -> None:
        """Add the blocks that a range's workers have named, by number."""
        (action,) = shard.actions
        assert action.source is not None
        key = _key(shard.source, shard.destination, action)
        version, known = self._files.get(key, (action.source, {}))
        if not is_same_version(action.source, version):
            known = {}
        self._files[key] = action.source, {**known, **ids}

    def take(self, part: LivePart, action: FileAction) -> Mapping[int, str]:
        """Remove and return the blocks of the version that is to move."""
        found = self._files.pop(_key(str(part.source), str(part.destination), action), None)
        return found[1] if found is not None and is_same_version(action.source, found[0]) else {}


def _key(source: str, destination: str, action: FileAction) -> tuple[str, ...]:
    return source, destination, action.path, action.target or action.path


class Merged(NamedTuple):
    """The number of files in the records, the first unused shard number, and blocks of unfinished files. ``anything``:
    workers may have moved files, so that a plan that was made before is out of date."""

    files: int
    next_number: int
    blocks: EarlierBlocks
    anything: bool


def recall(
    place: SharedStore,
    holder: str,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take back all shards from the workers of a coordinator that was killed, and wait until they have given them up:
    nobody would read what they write later. A worker that hangs is waited for until its claim expires. ``holder`` is
    that of the new coordinator's claims."""
    left = set(place.names("shards")) - set(place.names("done"))
    for name in left:
        place.write(f"done/{name}", b"")
    left &= {name.partition("~")[0] for name in place.names("claims")}
    until = now() + CLAIM_SECONDS
    while left and now() < until:
        left = {name for name in left if not place.claim(f"claims/{name}", holder)}
        if left:
            sleep(_LOOK_SECONDS)


def merge_records(place: SharedStore, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex]) -> Merged:
    """Record moved files in the index, then remove the remaining shards: their files are planned again.

    The index then has the states at the time of the move; the next survey detects later changes.
    """
    count = record_files(place, parts, records)
    pieces = place.names("records")
    following, blocks, anything = 0, EarlierBlocks(), bool(pieces)
    for name in place.names("shards"):
        following = max(following, int(name) + 1) if name.isdigit() else following
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            if shard.order is not None and not shard.order.only_read:
                # No file is complete without the coordinator's commit.
                blocks.add(shard, _named(place, _of_shard(pieces, name), shard))
        place.remove(f"shards/{name}")
    for folder in ("records", "done", "refused"):
        for name in place.names(folder):
            place.remove(f"{folder}/{name}")
    return Merged(count, following, blocks, anything)


def record_files(place: SharedStore, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex]) -> int:
    """Record in the index the files that workers have moved; returns how many. Changes nothing in the store.

    Each is verified first. Includes files that a worker wrote without a record, if their content shows it.
    """
    by_ends = _by_ends(parts)
    pieces = place.names("records")
    recorded: dict[tuple[str, str], list[Moved]] = {}
    unsaid: dict[tuple[str, str], list[FileAction]] = {}
    for name in place.names("shards"):
        mine = _of_shard(pieces, name)
        if not mine:
            continue
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            key = shard.source, shard.destination
            if shard.order is None and key in by_ends:
                account = ShardAccount(shard)
                recorded.setdefault(key, []).extend(_recorded(place, mine, account))
                unsaid.setdefault(key, []).extend(account.left.values())
    count = 0
    for key, moved in recorded.items():
        actions = tuple(each.action for each in moved)
        ledger = Ledger(replace(by_ends[key], actions=actions), records(by_ends[key].key))
        count += _look(ledger, moved)
        unsaid[key] += [each.action for each in moved if each.action.path not in ledger.verified]
    for key, left in unsaid.items():
        count += len(record_unreported(by_ends[key], left, records(by_ends[key].key)))
    return count


def leave_told(place: SharedStore, *, files: bool) -> bool:
    """Remove everything from the store except the blocks of unfinished files and, with ``files``, the moved files,
    which the next run needs. Returns whether there is anything. Call it only when no worker is left."""
    left = {}
    pieces = place.names("records")
    for name in place.names("shards"):
        body = place.read(f"shards/{name}") or b""
        mine = _of_shard(pieces, name)
        with suppress(FormatError):
            shard = read_shard(body)
            is_range = shard.order is not None and not shard.order.only_read
            if _named(place, mine, shard) if is_range else files and mine and shard.order is None:
                left[f"shards/{name}"] = body
                left |= {f"records/{piece}": place.read(f"records/{piece}") or b"" for piece in mine}
    place.remove_all()
    for name, body in left.items():
        place.write(name, body)
    return bool(left)


def _by_ends(parts: Sequence[LivePart]) -> Mapping[tuple[str, str], LivePart]:
    return {(str(part.source), str(part.destination)): part for part in parts}


def _of_shard(pieces: Sequence[str], name: str) -> list[str]:
    return [piece for piece in pieces if piece.startswith(f"{name}~")]


def _recorded(place: SharedStore, pieces: Sequence[str], account: ShardAccount) -> Iterator[Moved]:
    for answer in _answers(place, pieces, account.shard):
        # Ignore a record that names a file twice, or a failure.
        with suppress(FormatError):
            if isinstance(answer, FileRecord):
                yield account.moved(answer)


def _look(ledger: Ledger, recorded: Sequence[Moved]) -> int:
    """Record files whose present states are as the workers reported: the version of a blob, and what this machine reads
    of its own files. Returns how many."""
    part = ledger.part
    states: Mapping[str, FileState] = {}
    if isinstance(part.destination, OpenBlob):
        recorded = [each for each in recorded if isinstance(each.destination, RemoteState)]
        states = states_at_destination(part.destination, recorded, lambda count: None)
        # No other version of a blob can have the same ETag.
        recorded = [each for each in recorded if _etag(each.destination) == _etag(states.get(each.action.path))]
    files = [file_to_read(part.source, part.destination, each) for each in recorded]
    read = side_by_side(lambda file: hash_file(file) if file else None, files, reading_threads())
    for each, own in zip(recorded, read, strict=True):
        moved = with_own_look(each, own)
        ledger.seen(moved, states.get(each.action.path, moved.destination))
    ledger.save()
    return len(ledger.verified)


def _etag(state: FileState | None) -> str | None:
    return state.etag if isinstance(state, RemoteState) else None


def _named(place: SharedStore, pieces: Sequence[str], shard: Shard) -> Mapping[int, str]:
    account = ShardAccount(shard)
    for answer in _answers(place, pieces, shard):
        with suppress(FormatError):
            if isinstance(answer, NamedBlock):
                account.name(answer)
    return account.named


def _answers(place: SharedStore, pieces: Sequence[str], shard: Shard) -> Iterator[Answer]:
    for piece in pieces:
        body = place.read(f"records/{piece}") or b""
        for line in body.decode("utf-8", "replace").splitlines():
            # Ignore lines that are no records.
            with suppress(FormatError):
                yield read_answer(line, shard.route)
