"""``undo``: finds what a run of the history wrote and deleted, and where its former content is, and plans the way back.

Blobs come back as earlier versions, by Undelete, or from a local file of equal MD5; local files come from the trash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import FailureCode, FileFailure, NothingMatchedError
from blobsync.base.events import Emit
from blobsync.base.file_states import SNAPSHOT, FileState, LocalState, RemoteState
from blobsync.base.locations import BlobContainer, BlobLocation, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.mapping import Resolution, is_below
from blobsync.local.files import hash_file, reading_threads
from blobsync.local.index import Record
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import (
    Action,
    EngineChoice,
    FileAction,
    IndexKey,
    Part,
    PlanPart,
    Route,
    TransferPlan,
    actions_of,
)
from blobsync.plan.undoing import Touched, Version, undo_action
from blobsync.store.account_features import AccountFeatures
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, UndeletingStore, VersionedStore
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import folder_of_all, states_at_destination

# Up to so many blobs are looked for one by one, as in a fresh look at them.
_ONE_BY_ONE = 64
_THREADS = 16
# Of a killed run that is not known to have written the file: no file has this content.
_UNKNOWN = Version(-1)
_ENGINE = EngineChoice("direct", "an undo copies within the container")


@dataclass(frozen=True, slots=True)
class Undoing:
    """The run that is undone: its ``id``, its cluster, the project's ``context``, and the run's folder of the trash.

    ``resolve`` finds where a path lives, ``features`` what an account keeps.
    """

    id: str
    context: ProjectContext
    trash: Path
    resolve: Callable[[str], Resolution]
    features: Callable[[OpenBlob], AccountFeatures]
    emit: Emit


class _File(NamedTuple):
    """A file of the run, and where it lives; ``path`` is below the folder entry."""

    touched: Touched
    place: Resolution

    @property
    def path(self) -> str:
        return self.place.relative


def plan_undo(run: Undoing, touched: Sequence[Touched], paths: Sequence[str]) -> TransferPlan:
    """The plan that takes a run back: all of it, or what is at or below ``paths``. Reads only.

    Raises ``NothingMatchedError``, and ``MappingError`` where a path is in no folder entry any more.
    """
    chosen = [each for each in touched if not paths or any(is_below(each.path, path) for path in paths)]
    if not chosen:
        what = f"nothing at {', '.join(paths)}" if paths else "no file"
        raise NothingMatchedError(
            f"the run {run.id} wrote and deleted {what}", hint=f"'blobsync history {run.id}' shows what it did"
        )
    files = [_File(each, run.resolve(each.path)) for each in chosen]
    parts: list[PlanPart] = []
    for (_, here), group in groupby(sorted(files, key=_group), key=_group):
        mine = list({file.path: file for file in group}.values())
        parts += _parts_here(run, mine) if here else _parts_there(run, mine)
    parts = [part for part in parts if part.actions]
    deletes = any(action.action is Action.DELETE for part in parts for action in part.actions)
    return TransferPlan(
        route=parts[0].route,
        cluster=run.context.cluster.name,
        from_cluster=None,
        paths=tuple(paths) or tuple(dict.fromkeys(part.path for part in parts)),
        options=TransferOptions(overwrite=True, mirror=deletes, wildcards=False),
        parts=tuple(parts),
        engine=_ENGINE,
        undoes=run.id,
        created_at=time.time(),
    )


def _group(file: _File) -> tuple[str, bool]:
    return file.place.entry.prefix, file.touched.here


def _parts_here(run: Undoing, files: Sequence[_File]) -> Iterator[PlanPart]:
    """Local files, which come back from the trash."""
    entry = files[0].place.entry
    end = LocalLocation(run.context.root / entry.prefix)
    now = _states(run, end, files)
    records = run.context.index.pair(entry.prefix, str(entry.remote)).get([file.path for file in files])
    actions = []
    for file in sorted(files):
        kept = hash_file(run.trash / file.touched.path) if file.touched.was else None
        touched = _with_former(file.touched, kept)
        if not touched.is_sure:
            touched = touched._replace(left=_recorded(records.get(file.path)) or _UNKNOWN)
        actions.append(undo_action(file.path, touched, now.get(file.path), kept))
    key = IndexKey(LocalLocation(Path(entry.prefix)), entry.remote, "")
    yield Part(
        entry.prefix, Route.DOWNLOAD, LocalLocation(run.trash / entry.prefix), end, key, actions=_sorted(actions)
    )


def _with_former(touched: Touched, kept: LocalState | None) -> Touched:
    """A file that was not read before it was replaced has no MD5 in the receipt: what is in the trash is it."""
    if touched.was is None or touched.was.md5 or kept is None:
        return touched
    return touched._replace(was=Version(kept.size, kept.md5 or b""))


def _parts_there(run: Undoing, files: Sequence[_File]) -> Iterator[PlanPart]:
    """Blobs: those that come from the container itself, and those that are uploaded again."""
    entry = files[0].place.entry
    end = run.context.connections.open(entry.remote)
    now = _states(run, end, files)
    doubtful = [file for file in files if not file.touched.is_sure]
    left = _left_by_killed(run, entry.remote, doubtful)
    known = [
        _File(file.touched._replace(left=left.get(file.path, _UNKNOWN)), file.place)
        if not file.touched.is_sure
        else file
        for file in files
    ]
    missing = {file.path: file.touched.was for file in known if file.touched.was is not None}
    kept = _kept_there(run, end, missing, now)
    here = _equal_here(run, {file.path: file for file in known if file.path in missing and file.path not in kept})
    there: list[FileAction] = []
    uploads: list[FileAction] = []
    for file in known:
        back = kept.get(file.path) or here.get(file.path)
        action = undo_action(file.path, file.touched, now.get(file.path), back)
        (uploads if action.source is not None and isinstance(back, LocalState) else there).append(action)
    own = IndexKey(entry.remote, entry.remote, "")
    yield Part(entry.prefix, Route.SAME_ACCOUNT, entry.remote, entry.remote, own, actions=_sorted(there))
    root, key = LocalLocation(run.context.root / entry.prefix), LocalLocation(Path(entry.prefix))
    pair = IndexKey(key, entry.remote, "")
    yield Part(entry.prefix, Route.UPLOAD, root, entry.remote, pair, actions=_sorted(uploads))


def _sorted(actions: Sequence[FileAction]) -> Sequence[FileAction]:
    return actions_of(tuple(sorted(actions, key=lambda action: action.path)))


def _states(run: Undoing, end: LocalLocation | OpenBlob, files: Sequence[_File]) -> Mapping[str, FileState]:
    looked = [Moved(FileAction(file.path, Action.TRANSFER, Reason.REPLACED, 0)) for file in files]
    return states_at_destination(end, looked, run.emit, run.context.stop)


def _recorded(record: Record | None) -> Version | None:
    """What the index says that a killed run wrote."""
    return Version(record.remote.size, record.md5 or b"", record.remote.etag) if record else None


def _left_by_killed(run: Undoing, remote: BlobLocation, files: Sequence[_File]) -> dict[str, Version]:
    """What a killed run wrote: as the index says, or what the local file is."""
    if not files:
        return {}
    prefix = files[0].place.entry.prefix
    records = run.context.index.pair(prefix, str(remote)).get([file.path for file in files])
    hashed = side_by_side(hash_file, [file.place.local for file in files], reading_threads(), run.context.stop)
    found = {}
    for file, state in zip(files, hashed, strict=True):
        if state is not None:
            etag = records[file.path].remote.etag if file.path in records else ""
            found[file.path] = Version(state.size, state.md5 or b"", etag)
        elif (version := _recorded(records.get(file.path))) is not None:
            found[file.path] = version
    return found


def _kept_there(
    run: Undoing, end: OpenBlob, was: Mapping[str, Version], now: Mapping[str, FileState]
) -> dict[str, RemoteState]:
    """The earlier versions and the deleted blobs that have this content, by path."""
    store, found = end.store, dict[str, RemoteState]()
    if not was:
        return found
    features = run.features(end)
    names = {end.at(path): path for path in was}
    if features.versioning is not False and isinstance(store, VersionedStore):
        for blob in _listed(store.list_versions, list(names)):
            path = names.get(blob.name)
            if path is None or not blob.version or not was[path].is_in(state := _state(blob, blob.version)):
                continue
            # The version itself wins over one of equal content.
            if path not in found or state.etag == was[path].etag:
                found[path] = state
    if features.soft_delete_days != 0 and not features.versioning and isinstance(store, UndeletingStore):
        gone = [name for name, path in names.items() if path not in found]
        for blob in _listed(partial(store.list_deleted, hns=bool(features.hns)), gone) if gone else ():
            path = names.get(blob.name)
            # A snapshot is copied over the blob, and a deleted blob comes back only where there is none.
            if path is None or (SNAPSHOT in blob.version.split()) != (path in now):
                continue
            if was[path].is_in(state := _state(blob, blob.version)):
                found[path] = state
    return found


def _listed(listing: Callable[[str], Iterator[BlobInfo]], names: Sequence[str]) -> Iterator[BlobInfo]:
    if len(names) > _ONE_BY_ONE:
        yield from listing(folder_of_all(names))
        return
    for found in side_by_side(lambda name: [each for each in listing(name) if each.name == name], names, _THREADS):
        yield from found


def _state(blob: BlobInfo, version: str) -> RemoteState:
    return RemoteState(blob.size, blob.etag, blob.md5, blob.given_tier, version=version)


def _equal_here(run: Undoing, files: Mapping[str, _File]) -> dict[str, LocalState]:
    """The local files at the same paths whose content is that."""

    def read(path: str) -> LocalState | None:
        was = files[path].touched.was
        if was is None or not was.md5:
            return None
        state = hash_file(files[path].place.local)
        return state if state is not None and was.is_in(state) else None

    found = side_by_side(read, list(files), reading_threads(), run.context.stop)
    return {path: state for path, state in zip(files, found, strict=True) if state is not None}


def not_undone(container: BlobContainer, features: AccountFeatures, *, replaces: bool) -> tuple[FileFailure, ...]:
    """A refusal if what is deleted from a container, or replaced there, could not be brought back, or if that is
    unknown."""
    if features.versioning or (features.soft_delete_days and not features.hns):
        return ()
    what = "replaced or deleted" if replaces else "deleted"
    said = f"the cluster file says 'undo: required', and what would be {what} could not be brought back: {container}"
    hint = "turn on versioning for the storage account, or override it: -p 'undo: optional'"
    return (FileFailure(str(container), FailureCode.UNDO_IMPOSSIBLE, f"{said} {features.recovery}", hint),)
