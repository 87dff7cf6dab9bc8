"""Records of tasks whose command was killed, or of detached transfers that nobody closed: what is verified counts.

It goes into the index, so that it does not move again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from blobsync.local.index import PairIndex
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction, IndexKey
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import FileRecord, read_body
from blobsync.spread.sealed_store import SealedStore
from blobsync.spread.shard import read_shard
from blobsync.spread.verified_records import ShardAccount, compared
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import Ledger, record_unreported


class TakenOver(NamedTuple):
    """Of ``planned`` files of earlier runs so many are verified now."""

    planned: int = 0
    files: int = 0


def take_over(
    place: SealedStore, parts: Sequence[LivePart], records: Callable[[IndexKey], PairIndex], begun_ns: int
) -> TakenOver:
    """Record what the tasks of the run at ``place`` have moved between the ends of these parts. Call it when none of
    them is left. No task read a file before ``begun_ns`` (since 1970).

    The index then has the states at the time of the move; the next survey detects later changes. Files that were
    written without a record count if their content shows it.
    """
    by_ends = {(str(part.source), str(part.destination)): part for part in parts}
    told: dict[tuple[str, str], list[Moved]] = {}
    untold: dict[tuple[str, str], list[FileAction]] = {}
    planned = count = 0
    for name in place.names("shards"):
        with suppress(FormatError):
            shard = read_shard(place.read(f"shards/{name}") or b"")
            key = shard.source, shard.destination
            planned += len(shard.actions)
            if key in by_ends:
                account = ShardAccount(shard)
                told.setdefault(key, []).extend(_moved(place, name, account))
                untold.setdefault(key, []).extend(account.left.values())
    for key, reports in told.items():
        part, index = by_ends[key], records(by_ends[key].key)
        ledger = Ledger(replace(part, actions=tuple(each.action for each in reports)), index, now_ns=lambda: begun_ns)
        verified = compared(part, reports, lambda event: None).verified
        ledger.seen([(moved, moved.destination) for moved in verified])
        ledger.save()
        left = [*untold[key], *(each.action for each in reports if each.action.path not in ledger.verified)]
        count += len(ledger.verified) + len(record_unreported(part, left, index))
    return TakenOver(planned, count)


def _moved(place: SealedStore, name: str, account: ShardAccount) -> list[Moved]:
    found: list[Moved] = []
    with suppress(FormatError):
        for answer in read_body(place.read(f"records/{name}") or b"", account.shard.route):
            if isinstance(answer, FileRecord) and answer.failure is None:
                # A record that names a file twice, or what cannot be, is ignored from there on.
                found.append(account.moved(answer))
    return found
