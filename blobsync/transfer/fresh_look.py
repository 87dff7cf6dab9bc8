"""Looks at the destination after a transfer, which decides whether it succeeded.

An engine's report is never enough: a file counts as transferred when its destination was
seen, after the transfer, with the size and the MD5 of the plan. The service's response to a write
(with the ETag and the MD5 it computed) is such a look; a listing or a HEAD afterwards is another.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import FailureCode, FileFailure, StorageError
from blobsync.base.events import Emit, Looked
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.files import hash_file, reading_threads
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob, OpenLocation, remote_state, with_md5
from blobsync.transfer.engines import Moved

# Up to this many files single HEAD requests are fewer than a listing of the folder might take.
_HEADS_AT_MOST = 64
_HEAD_THREADS = 16


def check_arrival(shown: str, moved: Moved, destination: FileState | None) -> FileFailure | None:
    """Compare a file's present destination with what was to arrive; None if they are equal."""
    if destination is None:
        return FileFailure(shown, FailureCode.MISSING_AFTER_TRANSFER, f"{shown}: is not at the destination", _AGAIN)
    source = moved.source or moved.action.source
    size = source.size if source is not None else moved.action.size
    if destination.size != size:
        return FileFailure(
            shown,
            FailureCode.SIZE_MISMATCH,
            f"{shown}: has {destination.size:,} bytes at the destination, {size:,} at the source",
            _AGAIN,
        )
    expected = source.md5 if source is not None else None
    if expected is None:
        return None
    if destination.md5 is None:
        return FileFailure(shown, FailureCode.MD5_MISSING, f"{shown}: arrived without an MD5 to check", _AGAIN)
    if destination.md5 != expected:
        return FileFailure(shown, FailureCode.MD5_MISMATCH, f"{shown}: its content differs at the destination", _AGAIN)
    return None


_AGAIN = "run the same command again: verified files are skipped"


def states_at_destination(
    end: OpenLocation, moved: Sequence[Moved], emit: Emit, stop: StopRequest = NEVER
) -> Mapping[str, FileState]:
    """The present state of each moved file's destination, by the action's path; missing files are left out.

    Raises ``KeyboardInterrupt`` when ``stop`` asks for that.
    """
    names = {m.action.path: m.action.target or m.action.path for m in moved}
    if isinstance(end, LocalLocation):
        return _look_on_disk(end, names, emit, stop)
    if len(names) <= _HEADS_AT_MOST:
        return _look_by_head(end, names, emit, stop)
    return Ahead(_look_by_listing, end, names, emit).result(stop)


def read_without_md5(end: OpenBlob, moved: Sequence[Moved], states: Mapping[str, FileState]) -> Mapping[str, FileState]:
    """The same states, with MD5s computed by reading blobs that have none, if the source's MD5 is known."""
    unknown = [each for each in moved if _needs_reading(each, states.get(each.action.path))]
    names = [each.action.target or each.action.path for each in unknown]
    found = side_by_side(
        lambda at: with_md5(end, names[at], states[unknown[at].action.path]), range(len(unknown)), reading_threads()
    )
    return {**states, **{each.action.path: state for each, state in zip(unknown, found, strict=True)}}


def _needs_reading(moved: Moved, state: FileState | None) -> bool:
    source = moved.source or moved.action.source
    if source is None or source.md5 is None:
        return False
    return isinstance(state, RemoteState) and state.md5 is None and state.size == source.size


def _look_on_disk(end: LocalLocation, names: dict[str, str], emit: Emit, stop: StopRequest) -> dict[str, FileState]:
    found: dict[str, FileState] = {}
    states = side_by_side(lambda name: hash_file(end.at(name)), names.values(), reading_threads(), stop)
    for path, state in zip(names, states, strict=True):
        emit(Looked(1))
        if state is not None:
            found[path] = state
    return found


def _look_by_head(end: OpenBlob, names: dict[str, str], emit: Emit, stop: StopRequest) -> dict[str, FileState]:
    found: dict[str, FileState] = {}
    blobs = side_by_side(lambda name: end.store.head(end.at(name)), names.values(), _HEAD_THREADS, stop)
    for path, blob in zip(names, blobs, strict=True):
        emit(Looked(1))
        if blob is not None:
            found[path] = remote_state(blob)
    return found


def _look_by_listing(end: OpenBlob, names: dict[str, str], emit: Emit) -> dict[str, FileState]:
    wanted = {end.at(name): path for path, name in names.items()}
    found: dict[str, FileState] = {}
    for count, blob in enumerate(end.store.list_blobs(folder_of_all(wanted)), 1):
        if count % 1000 == 0:
            emit(Looked(1000))
        path = wanted.get(blob.name)
        if path is not None:
            found[path] = remote_state(blob)
    return found


def folder_of_all(names: Collection[str]) -> str:
    """The deepest folder that contains all of these blobs, so that nothing else is listed."""
    common = os.path.commonprefix([*names])  # noqa: RUF071 - cut at its last slash in the next line
    return common[: common.rfind("/") + 1]


def written_before(part: LivePart, action: FileAction) -> Moved | None:
    """The file, if the destination has its content although no engine reported it as moved.

    None if that is not certain.
    """
    with suppress(StorageError):
        return next(iter(arrived_anyway(part, [action])), None)
    return None


def arrived_anyway(part: LivePart, actions: Sequence[FileAction], stop: StopRequest = NEVER) -> Sequence[Moved]:
    """Those of the files whose content is at the destination although no engine reported them as moved: an engine's own
    whose answer was lost, or those of another command that moves the same files."""
    end, source = part.destination, part.source
    if isinstance(source, OpenBlob):
        return [Moved(action, source=action.source) for action, _ in unreported(part, actions, stop)]
    states = states_at_destination(end, [Moved(action) for action in actions], lambda event: None, stop)
    there = [action for action in actions if action.path in states]
    read = side_by_side(lambda each: (each, hash_file(source.at(each.path))), there, reading_threads(), stop)
    return [
        Moved(action, source=state)
        for action, state in read
        if state is not None and state.md5 == states[action.path].md5
    ]


def unreported(
    part: LivePart, actions: Sequence[FileAction], stop: StopRequest = NEVER
) -> Iterator[tuple[FileAction, FileState]]:
    """The files of a download or a copy that arrived although no engine reported them, with their present states.

    The engine may have been killed between the service's answer and its report. Nothing in a blob or a file says who
    wrote it, so only content counts: the destination is another version than the plan saw, and has the bytes of the
    version that the plan was to move. That is ours, or as good as ours: a plan would take the two for equal. Where the
    source has no MD5, both are read, while that version is there. Equal sizes, names and times prove nothing.
    """
    end, source = part.destination, part.source
    assert isinstance(source, OpenBlob)
    actions = [action for action in actions if not isinstance(end, LocalLocation) or _has_changed(end, action)]
    states = states_at_destination(end, [Moved(action) for action in actions], lambda count: None, stop)
    for action in actions:
        there, planned = states.get(action.path), action.source
        if there is None or planned is None or there.size != planned.size or there == action.destination:
            continue
        found, md5 = there, planned.md5
        if md5 is None:
            md5 = with_md5(source, action.path, planned).md5
            found = with_md5(end, action.target or action.path, there) if isinstance(end, OpenBlob) else there
        if md5 is not None and found.md5 == md5:
            yield action, there


def _has_changed(end: LocalLocation, action: FileAction) -> bool:
    """Whether the local file changed since the plan, so that it is worth reading."""
    with suppress(OSError):
        found = LocalState.of(os.stat(end.at(action.target or action.path)))
        return not (isinstance(action.destination, LocalState) and action.destination.same_file(found))
    return False
