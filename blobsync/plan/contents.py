"""Adds to each pair what the decision needs: its record in the index, and MD5s that are not known yet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.connection_events import ignore
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.stop_request import NEVER, StopRequest
from blobsync.local.files import hash_file, reading_threads
from blobsync.local.index import PairIndex
from blobsync.plan.events import Emit, Hashing
from blobsync.plan.pairs import Pair, is_as_recorded, needs_local_md5, source_is_near
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Route
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd, with_md5

_BATCH = 2000


def complete(
    pairs: Iterator[Pair],
    part: LivePart,
    records: PairIndex,
    compare_content: bool,
    emit: Emit = ignore,
    stop: StopRequest = NEVER,
) -> Iterator[Pair]:
    """Add each pair's record, and the MD5s that are needed to decide, a batch at a time.

    ``compare_content``: blobs without an MD5 are read where their size alone would leave a doubt. ``emit`` gets a
    ``Hashing`` for what is read; ``stop`` ends the reading.
    """
    threads = reading_threads()
    while batch := list(islice(pairs, _BATCH)):
        batch = _with_records(batch, part, records)
        unknown = [at for at, pair in enumerate(batch) if needs_local_md5(pair, part.route)]
        size = sum(_near(batch[at], part).size for at in unknown)
        if unknown:
            emit(Hashing(len(unknown), size))
        read = side_by_side(partial(_with_local_md5, part), [batch[at] for at in unknown], threads, stop)
        for at, pair in zip(unknown, read, strict=True):
            batch[at] = pair
        if unknown:
            emit(Hashing(-len(unknown), -size))
        if compare_content:
            batch = list(side_by_side(partial(_with_remote_md5, part), batch, threads, stop))
        yield from batch


def _with_records(batch: list[Pair], part: LivePart, records: PairIndex) -> list[Pair]:
    both = [pair for pair in batch if pair.source is not None and pair.destination is not None]
    at = {pair.path: part.key.at(pair.path) for pair in both}
    known = records.get(list(at.values()))
    # Not `replace`: this line runs once for each file of an unchanged tree.
    return [
        Pair(pair.path, pair.source, pair.destination, known.get(at[pair.path])) if pair.path in at else pair
        for pair in batch
    ]


def _near(pair: Pair, part: LivePart) -> LocalState:
    state = pair.source if source_is_near(part.route) else pair.destination
    assert isinstance(state, LocalState)
    return state


def _with_local_md5(part: LivePart, pair: Pair) -> Pair:
    near = source_is_near(part.route)
    end = part.source if near else part.destination
    state = _near(pair, part)
    assert isinstance(end, LocalEnd)
    hashed = _hash_file(end.at(pair.path), state)
    return pair._replace(source=hashed) if near else pair._replace(destination=hashed)


def _hash_file(file: Path, state: LocalState) -> LocalState:
    """The state with its MD5; as it was, where the file cannot be read or changed since it was checked."""
    hashed = hash_file(file)
    return hashed if hashed is not None and hashed.same_file(state) else state


def _is_on_record(pair: Pair, route: Route) -> bool:
    """Whether the record still tells what the blob holds."""
    blob = pair.destination if source_is_near(route) else pair.source
    assert blob is not None
    return pair.record is not None and is_as_recorded(blob, pair.record.remote)


def _with_remote_md5(part: LivePart, pair: Pair) -> Pair:
    """Read blobs that have no MD5, where size alone would leave a doubt."""
    if pair.source is None or pair.destination is None or _is_on_record(pair, part.route):
        return pair
    if pair.source.size != pair.destination.size:
        return pair
    source = _read_content(part.source, pair.path, pair.source)
    destination = _read_content(part.destination, pair.path, pair.destination)
    return pair._replace(source=source, destination=destination)


def _read_content(end: LiveEnd, path: str, state: FileState) -> FileState:
    if isinstance(end, RemoteEnd):
        return with_md5(end, path, state)
    assert isinstance(state, LocalState)
    return state if state.md5 is not None else _hash_file(end.at(path), state)
