"""Plans a round: what happens to each file that may have changed, without a look at all the others.

The destination of a file is looked at only where that is unknown. A file on record is presumed to have the blob that
was verified, and a new one none: the service checks both when it writes (``If-Match``, ``If-None-Match``), and refuses
where somebody else was there. Then the next round looks.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import Emit
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.locations import LocalLocation, at_and_above
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.files import hash_file
from blobsync.local.index import PairIndex
from blobsync.local.names import blob_problem
from blobsync.plan.decisions import decide_all
from blobsync.plan.left_out_files import name_failure
from blobsync.plan.pairing import Pair, is_as_recorded, needs_local_md5
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import states_at_destination


class PlannedRound(NamedTuple):
    """What happens to the files that are not as recorded, and the failures of those that no blob can have."""

    actions: tuple[FileAction, ...]
    misnamed: tuple[FileFailure, ...] = ()


def plan_round(
    part: LivePart,
    files: Mapping[str, LocalState],
    records: PairIndex,
    options: TransferOptions,
    emit: Emit,
    doubtful: Collection[str] | None = None,
) -> PlannedRound:
    """Decide on ``files`` (paths below the part's source, with their states).

    Only the destinations of ``doubtful`` paths are looked at; None: all. Raises the store's errors.
    """
    source, destination = part.source, part.destination
    assert isinstance(source, LocalLocation)
    assert isinstance(destination, OpenBlob)
    misnamed = {path: why for path in files if (why := blob_problem(destination.at(path)))}
    named = {path: state for path, state in files.items() if path not in misnamed}
    pairs = changed_pairs(part, named, records)
    looked_for = [pair for pair in pairs if doubtful is None or pair.path in doubtful]
    there: dict[str, FileState | None] = {pair.path: pair.record.remote if pair.record else None for pair in pairs}
    there.update(dict.fromkeys(pair.path for pair in looked_for))
    there.update(states_at_destination(destination, [Moved(_looked_for(pair)) for pair in looked_for], emit))
    pairs = [_with_md5(pair._replace(destination=there[pair.path]), source.path) for pair in pairs]
    actions, _ = decide_all(pairs, Route.UPLOAD, options, shown=part.path)
    return PlannedRound(actions, tuple(name_failure(f"{part.path}/{path}", why) for path, why in misnamed.items()))


def changed_pairs(part: LivePart, files: Mapping[str, LocalState], records: PairIndex) -> list[Pair]:
    """A pair for each file that is not recorded as unchanged since its upload."""
    at = {path: part.key.at(path) for path in files}
    known = records.get(list(at.values()))
    pairs = (Pair(path, state, None, known.get(at[path])) for path, state in files.items())
    return [pair for pair in pairs if pair.record is None or not is_as_recorded(files[pair.path], pair.record.near)]


def shape_conflicts(part: LivePart, files: Mapping[str, LocalState], records: PairIndex) -> Mapping[str, FileFailure]:
    """The new files that would be a blob beside a folder of its name, by what was uploaded before; with the failures.

    A file in the place of a folder, or the reverse, while the container has what was there before: ``d`` could not
    bring both.
    """
    at = {path: part.key.at(path) for path in files}
    known = records.get(list(at.values()))
    new = [path for path in files if at[path] not in known]
    above = {folder for path in new for folder in at_and_above(path.rpartition("/")[0])}
    taken = records.get([part.key.at(folder) for folder in above])
    found: dict[str, FileFailure] = {}
    for path in new:
        blob = next((folder for folder in at_and_above(path.rpartition("/")[0]) if part.key.at(folder) in taken), None)
        below = None if blob else next(iter(records.as_last_listed(at[path])), None)
        if blob is not None or below is not None:
            shown = f"{part.path}/{path}"
            what = f"a blob of the name of its folder {part.path}/{blob}" if blob else "a folder of its name"
            hint = (
                f"blobsync rm --blob {shlex.quote(f'{part.path}/{blob}')}" if blob else "remove that with blobsync rm"
            )
            said = f"{shown}: left alone, the container has {what} from before"
            found[path] = FileFailure(shown, FailureCode.SHAPE_CONFLICT, said, f"{hint}, or rename the file")
    return found


def forget_replaced(part: LivePart, files: Mapping[str, LocalState], records: PairIndex, emit: Emit) -> None:
    """Forget the records of files whose blob is another version now: what is marked has to be there."""
    assert isinstance(part.destination, OpenBlob)
    at = {path: part.key.at(path) for path in files}
    known = records.get(list(at.values()))
    moved = [Moved(_looked_for(Pair(path, files[path], None))) for path in files if at[path] in known]
    there = states_at_destination(part.destination, moved, emit)
    records.forget(
        at[each.action.path] for each in moved if there.get(each.action.path) != known[at[each.action.path]].remote
    )


def _looked_for(pair: Pair) -> FileAction:
    size = pair.source.size if pair.source else 0
    return FileAction(pair.path, Action.TRANSFER, Reason.NEW, size, pair.source)


def _with_md5(pair: Pair, folder: Path) -> Pair:
    """The pair with the file's MD5, if only that shows whether the container has the file."""
    if not needs_local_md5(pair, Route.UPLOAD):
        return pair
    hashed: FileState | None = hash_file(folder / pair.path)
    return pair if hashed is None else pair._replace(source=hashed)
