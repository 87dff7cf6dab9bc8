"""What workers have told a parent that is gone, so that nothing of it moves again: files, for the index, and blocks of
large files that nobody has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from blobsync.base.file_states import FileState
from blobsync.local.index import PairIndex
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, IndexKey
from blobsync.spread.arrivals_here import as_seen_here
from blobsync.spread.file_json import FormatError
from blobsync.spread.hauler import read_shard
from blobsync.spread.place import SharedPlace
from blobsync.spread.record import Answer, FileRecord, NamedBlock, read_answer
from blobsync.spread.shard import Shard, end_text
from blobsync.spread.shard_account import ShardAccount, is_same_version
from blobsync.transfer.ledger import Ledger


class EarlierBlocks:
    """Blocks of large files that are at the destination, in no blob. Whether they still are, the commit tells."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, ...], tuple[FileState, dict[int, str]]] = {}

    def add(self, shard: Shard, ids: Mapping[int, str]) -> None:
        """Those that a range's workers have named, by number."""
        (action,) = shard.actions
        assert action.source is not None
        key = _key(shard.source, shard.destination, action)
        version, known = self._files.get(key, (action.source, {}))
        if not is_same_version(action.source, version):
            known = {}
        self._files[key] = action.source, {**known, **ids}

    def take(self, part: LivePart, action: FileAction) -> Mapping[int, str]:
        """Those of the version that is to move; once."""
        found = self._files.pop(_key(end_text(part.source), end_text(part.destination), action), None)
        return found[1] if found is not None and is_same_version(action.source, found[0]) else {}


def _key(source: str, destination: str, action: FileAction) -> tuple[str, ...]:
    return source, destination, action.path, action.target or action.path


class Merged(NamedTuple):
    """How many files the records tell of, the first number that no shard has had, and blocks of unfinished files."""

    files: int
    next_number: int
    blocks: EarlierBlocks


def merge_records(place: SharedPlace, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex]) -> Merged:
    """Take over what was moved, then remove the shards that are left: the files are planned anew.

    The index then has them as each side was when it was moved; whether they still are is for the next look.
    """
    by_ends = {(end_text(part.source), end_text(part.destination)): part for part in parts}
    pieces = place.names("records")
    count, following, blocks = 0, 0, EarlierBlocks()
    for name in place.names("shards"):
        following = max(following, int(name) + 1) if name.isdigit() else following
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            part = by_ends.get((shard.source, shard.destination))
            mine = [piece for piece in pieces if piece.startswith(f"{name}~")]
            if part is not None and shard.order is None:
                count += _merge_shard(place, mine, shard, part, records(part.key))
            elif part is not None and shard.order is not None and not shard.order.only_read:
                # No file is whole without the parent's commit.
                blocks.add(shard, _named(place, mine, shard))
        place.remove(f"shards/{name}")
    for folder in ("records", "done", "refused"):
        for name in place.names(folder):
            place.remove(f"{folder}/{name}")
    return Merged(count, following, blocks)


def leave_blocks(place: SharedPlace) -> None:
    """Remove all of the place but what tells the next run which blocks of unfinished files are there. Only when no
    worker is there any more."""
    left = {}
    pieces = place.names("records")
    for name in place.names("shards"):
        body = place.read(f"shards/{name}") or b""
        mine = [piece for piece in pieces if piece.startswith(f"{name}~")]
        with suppress(FormatError):
            shard = read_shard(body)
            if shard.order is not None and not shard.order.only_read and _named(place, mine, shard):
                left[f"shards/{name}"] = body
                left |= {f"records/{piece}": place.read(f"records/{piece}") or b"" for piece in mine}
    place.remove_all()
    for name, body in left.items():
        place.write(name, body)


def _merge_shard(place: SharedPlace, pieces: Sequence[str], shard: Shard, part: LivePart, records: PairIndex) -> int:
    ledger = Ledger(replace(part, actions=shard.actions), records)
    account = ShardAccount(shard)
    for answer in _answers(place, pieces, shard):
        # One that tells of a file twice says nothing.
        with suppress(FormatError):
            if isinstance(answer, FileRecord) and answer.failure is None:
                ledger.moved(as_seen_here(part.destination, account.moved(answer)))
    ledger.save()
    return len(ledger.verified)


def _named(place: SharedPlace, pieces: Sequence[str], shard: Shard) -> Mapping[int, str]:
    account = ShardAccount(shard)
    for answer in _answers(place, pieces, shard):
        with suppress(FormatError):
            if isinstance(answer, NamedBlock):
                account.name(answer)
    return account.named


def _answers(place: SharedPlace, pieces: Sequence[str], shard: Shard) -> Iterator[Answer]:
    for piece in pieces:
        body = place.read(f"records/{piece}") or b""
        for line in body.decode("utf-8", "replace").splitlines():
            # One that is no record says nothing.
            with suppress(FormatError):
                yield read_answer(line, shard.route)
