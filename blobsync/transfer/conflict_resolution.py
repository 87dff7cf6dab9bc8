"""Resolves conflicts as ``--keep`` says, so that both ends hold the same afterwards and no version is lost.

Three steps; until the last one the file is in conflict, so that the same command goes on after any of them:

    set_aside     the destination's version is copied to a name of its own beside the file, at the destination
    the way back  the copy goes to the source's end, too; or (``adopt``) the destination's version itself
    (the move)    the source's version takes the file's name, only while the version set aside is still there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, Retry
from blobsync.base.events import Phase, SilentListener
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.files import WaitForDisk, hash_file, wait_for_disk
from blobsync.local.os_errors import local_error
from blobsync.plan.keep_both_names import sibling
from blobsync.plan.pairing import equal_content
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, Route, Shape
from blobsync.store.open_locations import OpenBlob, OpenLocation, remote_state, with_md5
from blobsync.transfer.batch import LAST_TRY, SECOND_TRY, Batch, LastTry, Report
from blobsync.transfer.engines import CollectedReport, Engine, Moved, MoveTask
from blobsync.transfer.ledger import Ledger
from blobsync.transfer.retries import move_and_retry

# The same command with the same credential would fail in the same way.
_MAY_NOT_WRITE = frozenset({FailureCode.ACCESS_DENIED, FailureCode.SAS_PERMISSION})


class Kept(NamedTuple):
    """A conflict whose destination version is safe under another name: ``state`` is that of the copy."""

    action: FileAction
    state: FileState


# The files that were kept, and the failures of the others.
Aside: TypeAlias = tuple[list[Kept], list[tuple[FileAction, FileFailure]]]


def keep_both(
    batch: Batch, ledger: Ledger, actions: Sequence[FileAction], to_come: frozenset[Retry] = SECOND_TRY
) -> None:
    """Resolve conflicts with both versions kept: a version is replaced only after it is safe under another name at both
    ends, and only if the plan saw it. If this fails, the conflict remains, so that the same command can finish it."""
    if not actions:
        return
    for action in actions:
        ledger.failures.pop(action.path, None)
    is_copy = ledger.part.route not in (Route.UPLOAD, Route.DOWNLOAD)
    # Uploads and downloads pass through this machine anyway. azcopy would overwrite unconditionally.
    first = "relay" if not is_copy or batch.plan.engine.name == "relay" else "direct"
    names = dict.fromkeys([first, *(["relay"] if batch.engines.relay_allowed else [])])
    if isinstance(ledger.part.destination, LocalLocation):
        names = dict.fromkeys(["direct"])
    kept, failed = set_aside(ledger.part, actions, [batch.engines.make[name] for name in names])
    if batch.plan.settles_both_ends:
        copies = brought(ledger.part, kept)
        batch.brought += len(copies.actions)
        back = _move_back(batch, ledger, copies)
        kept, missing = arrived(ledger.part, kept, _stopped(back))
        failed = [*failed, *missing]
    report = Report(batch, ledger, first, to_come)
    for action, failure in failed:
        report.file_failed(action, failure)
    left = [action for action, _ in failed]
    batch.last_tries.append(LastTry(ledger, left, partial(keep_both, batch, ledger, to_come=LAST_TRY)))
    move_and_retry(batch, ledger, [each.action for each in kept], first if is_copy else "direct")


def adopt(batch: Batch, ledger: Ledger, actions: Iterable[FileAction]) -> None:
    """Bring the destination's version to the source's end. If that may not be written, the file is recorded as it is;
    after any other failure it stays a conflict, so that the same command can finish it."""
    turned = [
        each._replace(action=Action.TRANSFER, source=each.destination, destination=each.source) for each in actions
    ]
    back = _move_back(batch, ledger, ledger.part.turned_round(turned))
    refused = back.failures.keys() - _stopped(back).keys()
    ledger.record_settled(action for action in ledger.part.actions if action.path in refused)


def _stopped(back: Ledger) -> dict[str, FileFailure]:
    """The failures that the same command may resolve: not those of a credential that may not write."""
    return {path: failure for path, failure in back.failures.items() if failure.code not in _MAY_NOT_WRITE}


def _move_back(batch: Batch, ledger: Ledger, part: LivePart) -> Ledger:
    """Move what ``--keep`` brings to the source's end, with a ledger of its own."""
    back = Ledger(part, ledger.records)
    batch.ledgers.append(back)
    move_and_retry(batch, back, part.actions, "direct")
    if back.pending:
        batch.verify(back)
        batch.listener.emit(Phase("moving"))
    return back


def brought(part: LivePart, kept: Sequence[Kept]) -> LivePart:
    """The part that copies to the source's end the set-aside versions that are not there already."""
    folders = _folders(part)
    moves = []
    for action, state in kept:
        path = folders.aside(action)
        if not _holds(folders.part.source, path, state):
            moves.append(FileAction(path, Action.TRANSFER, Reason.KEEP_BOTH, state.size, state))
    return folders.part.turned_round(moves)


def arrived(part: LivePart, kept: Sequence[Kept], failures: Mapping[str, FileFailure]) -> Aside:
    """The files whose copy is at both ends, and the failures of the others; ``failures`` are those of the copies' way
    back to the source."""
    folders = _folders(part)
    there, missing = [], []
    for each in kept:
        failure = failures.get(folders.aside(each.action))
        if failure is None:
            there.append(each)
        else:
            missing.append((each.action, _not_kept(folders, each.action, failure)))
    return there, missing


def set_aside(
    part: LivePart,
    actions: Sequence[FileAction],
    engines: Iterable[Callable[[], Engine]],
    wait: WaitForDisk = wait_for_disk,
) -> Aside:
    """Copy the destination's version of each file to its name aside.

    ``engines`` copy at the destination; each gets the files that the previous one could not copy. They read only the
    version that the plan saw, and write only to a free name.
    """
    folders = _folders(part)
    end = folders.part.destination
    waiting = {folders.path(action): action for action in actions}
    kept: dict[str, Kept] = {}
    failures: dict[str, FileFailure] = {}
    for engine in engines:
        if not waiting:
            break
        copies = [
            FileAction(path, Action.TRANSFER, Reason.KEEP_BOTH, version.size, version, target=folders.aside(action))
            for path, action in waiting.items()
            if (version := action.destination) is not None
        ]
        task = MoveTask(replace(folders.part, route=Route.SAME_ACCOUNT, source=end), copies)
        report = CollectedReport()
        engine().move(task, report, SilentListener())
        failures |= {copy.path: failure for copy, failure in report.failed}
        for moved in [*report.moved, *(Moved(copy, copy.source) for copy, _ in report.failed)]:
            state = _copy_seen(end, moved)
            if state is not None:
                kept[moved.action.path] = Kept(waiting.pop(moved.action.path), state)
    if isinstance(end, LocalLocation):
        files = {str(end.at(folders.aside(each.action))): path for path, each in kept.items()}
        # The original is replaced next: a power failure must leave one of the two.
        for file, error in wait(files).items():
            path, why = files[file], local_error(error, file)
            failures[path] = FileFailure(path, why.code, why.message, why.hint)
            waiting[path] = kept.pop(path).action
    failed = [(action, _not_kept(folders, action, failures.get(path))) for path, action in waiting.items()]
    return list(kept.values()), failed


class _Folders(NamedTuple):
    """A part with folders at both ends; ``file`` is the destination's file name if the part is a single file."""

    part: LivePart
    file: str

    def path(self, action: FileAction) -> str:
        """The path of the destination's file."""
        return action.path or self.file

    def aside(self, action: FileAction) -> str:
        """The path that it is set aside under."""
        return sibling(self.path(action), action.aside or "")


def _folders(part: LivePart) -> _Folders:
    if part.shape is Shape.FOLDER:
        return _Folders(part, "")
    # A part that is itself a folder entry and a single file: files beside it are in no entry, and not recorded.
    key = part.key._replace(path=part.key.path.rpartition("/")[0] if part.key.path else "..")
    end = part.destination
    name = end.path.name if isinstance(end, LocalLocation) else end.name.rpartition("/")[2]
    path, source, destination = part.path.rpartition("/")[0], part.source.parent, end.parent
    folder = replace(part, path=path, source=source, destination=destination, key=key, shape=Shape.FOLDER)
    return _Folders(folder, name)


def _copy_seen(end: OpenLocation, moved: Moved) -> FileState | None:
    """The copy as its end shows it, also an earlier run's; None unless it equals the version."""
    version = moved.source or moved.action.source
    name = moved.action.target or ""
    with suppress(BlobsyncError):
        state = moved.destination or _state_at(end, name)
        if state is not None and version is not None:
            # Equal sizes are not enough if neither has an MD5.
            version, state = _hashed(end, moved.action.path, version), _hashed(end, name, state)
            return state if equal_content(state, version) is True else None
    return None


def _hashed(end: OpenLocation, path: str, state: FileState) -> FileState:
    """The state with the MD5 of its bytes, unless the file is another version now."""
    if isinstance(end, OpenBlob):
        return with_md5(end, path, state)
    if isinstance(state, LocalState) and state.md5 is None:
        found = hash_file(end.at(path))
        return found if found is not None and found.same_file(state) else state
    return state


def _state_at(end: OpenLocation, path: str) -> FileState | None:
    if isinstance(end, LocalLocation):
        return hash_file(end.at(path))
    blob = end.store.head(end.at(path))
    return remote_state(blob) if blob else None


def _holds(end: OpenLocation, path: str, version: FileState) -> bool:
    """Whether the file exists with the same bytes, as far as can be seen."""
    with suppress(BlobsyncError):
        state = _state_at(end, path)
        return state is not None and equal_content(state, version) is True
    return False


def _not_kept(folders: _Folders, action: FileAction, failure: FileFailure | None) -> FileFailure:
    shown = folders.part.shown(action._replace(path=folders.path(action)))
    why = failure.message if failure else "it was not there afterwards"
    return FileFailure(
        shown,
        failure.code if failure else FailureCode.MISSING_AFTER_TRANSFER,
        f"{shown}: left alone, because the other version could not be saved beside it as {action.aside}: {why}",
        (failure.hint if failure else None) or "run the same command again",
    )
