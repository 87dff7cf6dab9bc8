"""What workers have told a parent that is gone: for the index, so that nothing of it moves again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from blobsync.local.index import PairIndex
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import IndexKey
from blobsync.spread.arrivals_here import as_seen_here
from blobsync.spread.file_json import FormatError
from blobsync.spread.hauler import read_shard
from blobsync.spread.place import SharedPlace
from blobsync.spread.record import FileRecord, read_answer
from blobsync.spread.shard import Shard, end_text
from blobsync.spread.shard_account import ShardAccount
from blobsync.transfer.ledger import Ledger


class Merged(NamedTuple):
    """How many files the records tell of, and the first number that no shard has had."""

    files: int = 0
    next_number: int = 0


def merge_records(place: SharedPlace, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex]) -> Merged:
    """Take over what was moved, then remove the shards that are left: the files are planned anew.

    The index then has them as each side was when it was moved; whether they still are is for the next look.
    """
    by_ends = {(end_text(part.source), end_text(part.destination)): part for part in parts}
    pieces = place.names("records")
    count, following = 0, 0
    for name in place.names("shards"):
        following = max(following, int(name) + 1) if name.isdigit() else following
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            part = by_ends.get((shard.source, shard.destination))
            if part is not None:
                mine = [piece for piece in pieces if piece.startswith(f"{name}~")]
                count += _merge_shard(place, mine, shard, part, records(part.key))
        place.remove(f"shards/{name}")
    for folder in ("records", "done", "refused"):
        for name in place.names(folder):
            place.remove(f"{folder}/{name}")
    return Merged(count, following)


def _merge_shard(place: SharedPlace, pieces: Sequence[str], shard: Shard, part: LivePart, records: PairIndex) -> int:
    ledger = Ledger(replace(part, actions=shard.actions), records)
    account = ShardAccount(shard)
    for piece in pieces:
        body = place.read(f"records/{piece}") or b""
        for line in body.decode("utf-8", "replace").splitlines():
            # One that is no record, or tells of a file twice, says nothing.
            with suppress(FormatError):
                answer = read_answer(line, shard.route)
                if isinstance(answer, FileRecord) and answer.failure is None:
                    ledger.moved(as_seen_here(part.destination, account.moved(answer)))
    ledger.save()
    return len(ledger.verified)
