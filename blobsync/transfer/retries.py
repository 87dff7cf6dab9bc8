"""Second tries of files that failed: by the next engine at once, or by the same one when everything else is done.

``Retry`` of a failure's code says which. A file that arrived without a report, or that another command has moved
meanwhile, needs none: it is counted as moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from blobsync.base.errors import BlobsyncError, FailureCode, Retry, StorageError
from blobsync.base.events import Expected, Note
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import remote_state
from blobsync.transfer.batch import FIRST_TRY, LAST_TRY, SECOND_TRY, Batch, LastTry, Report, remove_unrecorded
from blobsync.transfer.fresh_look import arrived_anyway, written_before
from blobsync.transfer.ledger import Ledger, record_unreported, retry_with

# Failures of a file that an earlier attempt may have moved without a report.
_MAY_HAVE_ARRIVED = frozenset({FailureCode.CHANGED_WHILE_READ, FailureCode.CHANGED_MEANWHILE, FailureCode.NOT_REPORTED})


def move_and_retry(batch: Batch, ledger: Ledger, actions: Sequence[FileAction], engine: str) -> None:
    """Have ``engine`` move files, and retry once those that another engine or a second attempt may move."""
    # Unfinished parts of killed downloads are removed before their files are downloaded again.
    remove_unrecorded(batch.engines.unfinished, ledger.part, actions)
    batch.last_tries.append(LastTry(ledger, actions, partial(_move_at_the_end, batch, ledger, engine)))
    batch.move(ledger, actions, engine, FIRST_TRY)
    by_engine: dict[str, list[FileAction]] = {}
    for action in actions:
        failure = ledger.failures.get(action.path)
        second = batch.engines.second(failure.code, engine) if failure else None
        if failure is None or second is None or failure.code.retry is Retry.AT_THE_END:
            continue
        there = None
        if failure.code.retry is Retry.DIRECT_AFTER_AZCOPY:
            # Only the content shows that a file is azcopy's. Any other version may be someone else's and is kept.
            there = written_before(ledger.part, action)
        if there is not None:
            ledger.failures.pop(action.path)
            Report(batch, ledger, engine, LAST_TRY).files_moved([there])
        else:
            by_engine.setdefault(second, []).append(action)
    for second, again in by_engine.items():
        _move_again(batch, ledger, again, engine, second, SECOND_TRY)
    _count_equal(batch, ledger, actions, engine)


def retry_at_the_end(batch: Batch) -> None:
    """Try once more, when everything else is done, files that failed for a temporary reason, such as an outage."""
    for ledger, actions, move in tuple(batch.last_tries):
        failed = [(action, ledger.failures.get(action.path)) for action in actions]
        move([action for action, failure in failed if failure and failure.code.retry is Retry.AT_THE_END])
    batch.report_rest()


def _move_at_the_end(batch: Batch, ledger: Ledger, first: str, again: Sequence[FileAction]) -> None:
    engine = Retry.AT_THE_END.engine_after(first) or first
    _move_again(batch, ledger, again, first, engine, LAST_TRY)
    _count_equal(batch, ledger, again, engine)


def _move_again(
    batch: Batch, ledger: Ledger, again: Sequence[FileAction], first: str, engine: str, to_come: frozenset[Retry]
) -> None:
    """Have ``engine`` move files, as they are now, on which the engine ``first`` failed."""
    ours = record_arrived(batch, ledger, again)
    fresh = retry_with(again, {action.path: _source_now(batch, ledger, action) for action in again}, ours)
    if not fresh:
        return
    from blobsync.plan.failure_groups import again_sentence

    failed = [ledger.failures.pop(each.path) for each in fresh]
    batch.listener.emit(Note(again_sentence(failed, engine if engine != first else "")))
    known = {action.path: action.size for action in again}
    if grown := sum(action.size - known[action.path] for action in fresh):
        batch.listener.emit(Expected(0, grown))
    batch.move(ledger, fresh, engine, to_come)


def _source_now(batch: Batch, ledger: Ledger, action: FileAction) -> FileState | None:
    source = ledger.part.source
    if isinstance(action.source, RemoteState) and action.source.version:
        # An earlier version of the blob stays as it is.
        return action.source
    if isinstance(source, LocalLocation):
        try:
            # What the plan would leave out by now is not tried again: a link that is not to be followed, a pipe.
            found = os.stat(source.at(action.path), follow_symlinks=batch.plan.options.links == "follow")
        except OSError:
            return None
        return LocalState.of(found) if stat.S_ISREG(found.st_mode) else None
    # A lock names a content: whatever is there now is another.
    if ledger.failures[action.path].code is FailureCode.CHANGED_WHILE_READ and not batch.plan.options.locked:
        with suppress(StorageError):
            blob = source.store.head(source.at(action.path))
            return remote_state(blob) if blob else None
    return action.source


def _count_equal(batch: Batch, ledger: Ledger, actions: Iterable[FileAction], engine: str) -> None:
    """Count those as moved that became, at the destination, what was to be moved there: another command moves the same
    files; or the service had all of a file whose answer was lost, and the next attempt found it."""
    changed = ledger.failed_by(actions, {FailureCode.CHANGED_MEANWHILE})
    with suppress(StorageError):
        arrived = arrived_anyway(ledger.part, changed, batch.engines.stop)
        for moved in arrived:
            ledger.failures.pop(moved.action.path, None)
        Report(batch, ledger, engine, LAST_TRY).files_moved(arrived)


def record_arrived(batch: Batch, ledger: Ledger, actions: Sequence[FileAction]) -> Mapping[str, FileState]:
    """Record those of the failed files whose planned version arrived all the same; returns what is there, by path.

    A worker that was killed had moved them, and by now the source may be another version.
    """
    failed = ledger.failed_by(actions, _MAY_HAVE_ARRIVED)
    with suppress(BlobsyncError):
        return record_unreported(ledger.part, failed, ledger.records, batch.engines.stop) if failed else {}
    return {}
