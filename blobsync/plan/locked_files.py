"""The remote side of ``d --locked`` and ``verify --locked``: the list of a lock in place of a listing.

The plan is made by the same table, with the lock's files as what the container has. Only for those that are to be
brought it is then looked where their content is now: in the blob as it is, in an earlier version of it, or in a file
here that the index knows by the same MD5. A content that is nowhere ends the command before anything is touched.

A content that is no current blob has an ETag made of its MD5. So the index records it as what it is: not what the
container has, which therefore counts as changed for the next ``u`` and ``d``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import LockError, LostContentError, StorageError, UsageError
from blobsync.base.file_states import RemoteState
from blobsync.base.formatting import count_text
from blobsync.base.locations import BlobLocation, LocalLocation, below, is_source
from blobsync.base.records import NamedTuple
from blobsync.local.files import hash_file
from blobsync.local.index import PairIndex
from blobsync.local.lock_files import (
    Lock,
    LockedFile,
    demand_packed,
    digest_of,
    lock_above,
    lock_name,
    read_list,
    read_lock,
    unpack,
)
from blobsync.local.sorted_runs import STATE, SortedRuns, Spill
from blobsync.plan.pairing import HeldFiles
from blobsync.plan.parallel_listing import list_wide
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.plan.transfer_plan import Action, Actions, FileAction, PlanPart, TransferPlan
from blobsync.store.old_contents import OldContent
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.protocol import BlobInfo, VersionedStore

# Up to so many blobs are looked up one by one.
_FEW = 64
_THREADS = 16
# Names that an error tells one by one.
_TOLD = 3
_PIECE = 1 << 20


class Locked(NamedTuple):
    """A lock with its list; ``files`` can be read any number of times."""

    lock: Lock
    files: Iterable[LockedFile]

    def below(self, path: str) -> Iterator[LockedFile]:
        """The files at or below ``path``, named from there; all of them if the lock is of another path."""
        inner = path[len(self.lock.path) + 1 :] if path.startswith(f"{self.lock.path}/") else ""
        if not inner:
            return iter(self.files)
        lead = f"{inner}/"
        inside = (file for file in self.files if file.path == inner or file.path.startswith(lead))
        return (file._replace(path=file.path[len(lead) :]) for file in inside)


# Returns the list of a lock that is in the container.
FetchList = Callable[[Lock], bytes]


def far_list(end: OpenBlob, lock: Lock) -> bytes:
    """The list of a lock, as the container of ``end`` has it. Raises ``LockError`` and the store's errors."""
    with end.store.open(lock.far_name) as reader:
        demand_packed(reader.info.size, f"{end.store.container}/{lock.far_name}")
        return b"".join(iter(lambda: reader.read(_PIECE), b""))


def with_list(lock: Lock, shown: str, beside: Callable[[], bytes], fetch: FetchList, spill: Spill) -> Locked:
    """The lock with its list, from where that is. Raises ``LockError`` and the store's errors."""
    data = fetch(lock) if lock.is_far else beside()
    return Locked(lock, unpack(data, lock, shown, spill))


def locked_here(root: Path, path: str, fetch: FetchList, spill: Spill) -> Locked:
    """The lock that covers ``path`` in the working tree. Raises ``LockError`` and the store's errors."""
    above = lock_above(root, path)
    if above is None:
        raise LockError(f"{path} has no lock", hint=f"blobsync lock {path} makes one", path=path)
    return with_list(read_lock(root, above), lock_name(above), lambda: read_list(root, above), fetch, spill)


class LockedBlobs:
    """The files of a lock as blobs below ``end``, whether the container has them or not.

    ``as_then``: it is the place that was locked, so that the ETags mean something.
    """

    def __init__(self, locked: Locked, path: str, end: OpenBlob, *, as_then: bool) -> None:
        self._locked, self._path, self._end, self._as_then = locked, path, end, as_then

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Those below the folder."""
        return (self._blob(file) for file in self._locked.below(self._path) if file.path)

    def head(self, name: str) -> BlobInfo | None:
        """The one of exactly this name: it is the first, if there is one."""
        first = next(self._locked.below(self._path), None)
        return None if first is None or first.path else self._blob(first)

    def _blob(self, file: LockedFile) -> BlobInfo:
        etag = file.etag if self._as_then and file.etag else _tag(file.md5)
        return BlobInfo(self._end.at(file.path), file.size, etag, file.md5)


def _tag(md5: bytes) -> str:
    return f"locked-{md5.hex()}"


def as_locked(root: Path, request: Request, end: OpenLocation) -> Request:
    """The same request, with the lock's files in place of the blobs at ``end``, its remote end.

    Raises ``LockError``, ``UsageError`` for a place outside Azure, and the store's errors.
    """
    assert isinstance(end, OpenBlob)
    if is_source(end.location):
        raise UsageError(f"{end.location} is outside Azure, and no lock is of such a place", hint="omit --locked")
    path, place = request.part.path, end.in_container()
    locked = locked_here(root, path, partial(far_list, end), request.spill)
    lock, inner = locked.lock, path[len(locked.lock.path) + 1 :]
    now = (place.container.account, place.container.name, place.name)
    as_then = now == (lock.account, lock.container, below(lock.folder, inner))
    return request._replace(remembered=LockedBlobs(locked, path, end, as_then=as_then))


def located(context: ProjectContext, request: Request, actions: Actions) -> Actions:
    """The actions, with what is to be brought from where it is now. ``context.old_contents`` gets what is no current
    blob any more.

    What is unchanged is not recorded anew: whether the container still has it was not looked at. Raises
    ``LostContentError``.
    """
    end = request.part.source
    assert isinstance(end, OpenBlob)
    wanted = HeldFiles(request.spill)
    for action in actions:
        if action.action is Action.TRANSFER and isinstance(action.source, RemoteState):
            wanted.add(action.path, action.source)
    found = SortedRuns(request.spill, STATE)
    old, present = dict[str, RemoteState](), dict[str, RemoteState]()
    for path, want, now in wanted.matched(_present(request, end, actions)):
        if not isinstance(want, RemoteState):
            continue
        if isinstance(now, RemoteState) and _has(now, want):
            found.add(path, replace(now, md5=want.md5))
            continue
        old[path] = want
        if isinstance(now, RemoteState):
            present[path] = now
    for path, content in _found_elsewhere(context.root, request, end, old).items():
        want = old[path]
        assert want.md5 is not None
        state = RemoteState(want.size, _tag(want.md5), want.md5)
        key = str(end.store.container), end.at(path), state.etag
        context.old_contents[key] = content._replace(now=present.get(path))
        found.add(path, state)
    return actions.replaced(_with_sources(actions, iter(found)))


def _with_sources(actions: Iterable[FileAction], found: Iterator[tuple[str, RemoteState]]) -> Iterator[FileAction]:
    for action in actions:
        if action.action is Action.TRANSFER:
            path, state = next(found)
            assert path == action.path
            yield action._replace(source=state)
        elif action.action is Action.UNCHANGED and action.destination is not None:
            yield action._replace(source=None, destination=None)
        else:
            yield action


def _present(request: Request, end: OpenBlob, actions: Actions) -> Iterator[tuple[str, RemoteState]]:
    """What the container has now of the files that are to be brought, and perhaps more."""
    if actions.totals.counts[Action.TRANSFER] <= _FEW:
        paths = [each.path for each in actions if each.action is Action.TRANSFER]
        heads = side_by_side(lambda path: end.store.head(end.at(path)), paths, _THREADS, request.stop)
        for path, blob in zip(paths, heads, strict=True):
            if blob is not None:
                yield path, RemoteState(blob.size, blob.etag, blob.md5, blob.given_tier)
        return
    prefix = f"{end.name}/" if end.name else ""
    for blob in list_wide(end.store, prefix, request.spill):
        yield blob.name[len(prefix) :], RemoteState(blob.size, blob.etag, blob.md5, blob.given_tier)


def _has(blob: RemoteState | BlobInfo, want: RemoteState) -> bool:
    """Whether a blob has the locked content: by its MD5, or without one as the version that was locked."""
    return blob.size == want.size and (blob.md5 == want.md5 if blob.md5 is not None else blob.etag == want.etag)


def _found_elsewhere(
    root: Path, request: Request, end: OpenBlob, old: Mapping[str, RemoteState]
) -> dict[str, OldContent]:
    if not old:
        return {}
    found, why = dict[str, OldContent](), "the container keeps no versions"
    try:
        found = dict(_versions(end, old))
    except StorageError as error:
        why = error.message
    missing = {path: want for path, want in old.items() if path not in found}
    found |= _held_here(root, request, missing)
    lost = [path for path in old if path not in found]
    if lost:
        shown = [f"{request.part.path}/{path}" if path else request.part.path for path in lost]
        more = f", and {count_text(len(lost) - _TOLD, 'more file')}" if len(lost) > _TOLD else ""
        raise LostContentError(
            f"nothing was moved: the locked content of {', '.join(shown[:_TOLD])}{more} is nowhere any more ({why},"
            " and no file here is known to have it)",
            names=tuple((each, "has other content now, or is gone") for each in shown),
            hint="versioning of the storage account keeps what is replaced or deleted; --exclude leaves files out",
        )
    return found


def _versions(end: OpenBlob, old: Mapping[str, RemoteState]) -> Iterator[tuple[str, OldContent]]:
    store = end.store
    if not isinstance(store, VersionedStore):
        return
    prefix = f"{end.name}/" if end.name else ""
    listings = [end.at(path) for path in old] if len(old) <= _FEW else [prefix]
    paths = {end.at(path): path for path in old}
    for listing in listings:
        for blob in store.list_versions(listing):
            path = paths.get(blob.name)
            if path is not None and blob.version and _has(blob, old[path]):
                yield path, OldContent(None, blob.version)


def _held_here(root: Path, request: Request, missing: Mapping[str, RemoteState]) -> dict[str, OldContent]:
    """Local files with these contents that the index knows, read to make sure."""
    near = request.part.key.near
    wanted = {want.md5 for want in missing.values() if want.md5 is not None}
    if not wanted or not isinstance(near, LocalLocation):
        return {}
    held: dict[bytes, OldContent] = {}
    for path, md5 in request.records.holding(wanted):
        file = root / near.path / path
        state = hash_file(file) if md5 not in held else None
        if state is not None and state.md5 == md5:
            held[md5] = OldContent(None, file=file, state=state)
    return {path: held[want.md5] for path, want in missing.items() if want.md5 in held}


def known_digest(records: PairIndex, key: str, ignored: Callable[[str], bool] | None) -> str | None:
    """The digest that a lock of ``key``, below both roots, would have by what is known without a request.

    None if it was never listed, or a blob has no known MD5. ``ignored`` is asked about names below ``key``.
    """
    if records.listed_at(key) is None:
        return None
    try:
        return digest_of(_known_files(records, key, ignored))
    except LookupError:
        return None


def _known_files(records: PairIndex, key: str, ignored: Callable[[str], bool] | None) -> Iterator[LockedFile]:
    """What the container presumably holds. Raises ``LookupError`` for a blob whose MD5 is not known."""
    start = len(key) + 1 if key else 0
    alone = records.blob_as_last_listed(key)
    blobs = ((name[start:], blob) for name, blob in records.as_last_listed(key))
    for name, blob in blobs if alone is None else [("", alone)]:
        if ignored is not None and ignored(name):
            continue
        if blob.md5 is None:
            raise LookupError(name)
        yield LockedFile(name, blob.size, blob.md5)


def uses_old_contents(context: ProjectContext, part: PlanPart) -> bool:
    """Whether files of ``part`` are brought from elsewhere than the present blobs."""
    return any(True for _ in _old_of(context, part))


def remember_present(context: ProjectContext, plan: TransferPlan) -> None:
    """After a plan was carried out: store what the container has in place of old contents, which are on record now."""
    for part in plan.parts if context.old_contents else ():
        for action, old in _old_of(context, part):
            context.records(part.key).remember_blob(part.key.at(action.path), old.now, plan.created_at)


def _old_of(context: ProjectContext, part: PlanPart) -> Iterator[tuple[FileAction, OldContent]]:
    end = part.source
    if not context.old_contents or not isinstance(end, BlobLocation):
        return
    for action in part.actions:
        if isinstance(action.source, RemoteState):
            key = str(end.container), end.child(action.path).name, action.source.etag
            if key in context.old_contents:
                yield action, context.old_contents[key]
