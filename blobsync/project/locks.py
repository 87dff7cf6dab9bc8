"""``lock``: writes down which files a container holds; ``diff`` and ``ls --at``: what locks of other times say.

A lock says what the container held, by a fresh listing, not what is here. The MD5 of a file is that of the listing, or
of the index if the blob is the version that was verified; a blob without either is read, if the user says so, else
refused by name: equal sizes prove nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import LockError, NothingMatchedError, UnsafeNamesError, UsageError
from blobsync.base.events import Emit
from blobsync.base.file_states import RemoteState
from blobsync.base.formatting import count_text
from blobsync.base.locations import below as in_folder
from blobsync.base.process import ProcessRunner
from blobsync.base.records import NamedTuple, dataclass
from blobsync.code.git import Commit
from blobsync.config.mapping import resolve
from blobsync.local.files import reading_threads
from blobsync.local.lock_files import (
    MOST_BESIDE,
    MOST_PACKED,
    MOST_TEXT,
    SUFFIX,
    Lock,
    LockedFile,
    demand_packed,
    list_name,
    lock_name,
    locks_in,
    name_problem,
    pack,
    parse_lock,
    read_lock,
    write_lock,
)
from blobsync.local.sorted_runs import SortedRuns
from blobsync.plan.locked_files import Locked, far_list, known_digest, locked_here, with_list
from blobsync.plan.pairing import Pair, is_as_recorded
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.project.browse import ListingEntry
from blobsync.project.verify import both_sides, classify
from blobsync.store.open_locations import OpenBlob, with_md5

# Names that an error tells one by one.
_TOLD = 3


@dataclass(frozen=True, slots=True, repr=False)
class LockReport:
    """What was locked; ``digest`` is the SHA-256 of the list. ``changed``: the lock says something else than before.

    ``files_written`` are to be committed; ``list_url`` is the list in the container, if it is long. ``here`` counts the
    files by how they are here: the classes of ``verify``.
    """

    path: str
    digest: str
    files: int
    bytes: int
    changed: bool
    files_written: tuple[str, ...]
    list_url: str | None
    here: Mapping[str, int]

    def __repr__(self) -> str:
        return f"<LockReport {self.path!r}: {self.files:,} files, {self.digest[:12]}>"


def lock(
    root: Path, request: Request, emit: Emit, *, compare_content: bool, most_beside: int = MOST_BESIDE
) -> LockReport:
    """Lock what the container holds at the remote end of ``request``, whose source is the local one; a list of more
    than ``most_beside`` files is stored in the container.

    Raises ``NothingMatchedError`` if the container has nothing there, ``UnsafeNamesError`` for blobs that no lock can
    have, and the store's errors.
    """
    end, path = request.part.destination, request.part.path
    assert isinstance(end, OpenBlob)
    _, pairs = both_sides(request, emit)
    held, here = _Held(request), Counter[str]()
    for pair in pairs:
        kind = classify(pair)
        if kind is not None:
            here[kind] += 1
        if isinstance(pair.destination, RemoteState):
            held.add(pair, pair.destination)
    held.complete(end, compare_content=compare_content)
    packed = pack(held)
    if not packed.files:
        raise NothingMatchedError(f"{path}: the container has nothing there to lock, at {end}", path=path)
    place, is_far = end.in_container(), packed.files > most_beside
    made = Lock(
        path,
        packed.digest,
        packed.files,
        packed.size,
        place.container.account,
        place.container.name,
        place.name,
        is_far,
    )
    if is_far:
        # Under its digest: what is there already is the same, or was not what it says.
        md5 = hashlib.md5(packed.data, usedforsecurity=False).digest()
        end.store.put(made.far_name, packed.data, md5=md5)
    changed = write_lock(root, made, packed.data)
    written = (lock_name(path),) if is_far else (lock_name(path), list_name(path))
    url = str(place.container.child(made.far_name)) if is_far else None
    return LockReport(path, made.digest, made.files, made.bytes, changed, written, url, dict(here))


class _Held:
    """What the container holds, in the order of the paths."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._rows = SortedRuns(request.spill)
        self._unknown: list[tuple[str, RemoteState]] = []
        self._unsafe: list[tuple[str, str]] = []

    def add(self, pair: Pair, blob: RemoteState) -> None:
        """Add the blob of a pair."""
        if pair.path and (why := name_problem(pair.path)):
            self._unsafe.append((in_folder(self._request.part.path, pair.path), why))
            return
        is_known = pair.record is not None and is_as_recorded(blob, pair.record.remote)
        md5 = blob.md5 or (pair.record.md5 if pair.record is not None and is_known else None)
        if md5 is None:
            self._unknown.append((pair.path, blob))
        else:
            self._rows.add(pair.path, blob.size, md5, blob.etag)

    def complete(self, end: OpenBlob, *, compare_content: bool) -> None:
        """Read the blobs without an MD5. Raises ``UnsafeNamesError`` for those that are not to be read, or cannot be,
        and for names."""
        missing = self._unknown
        if compare_content:
            read = side_by_side(
                lambda each: (each[0], with_md5(end, *each)), missing, reading_threads(), self._request.stop
            )
            missing = []
            for path, state in read:
                assert isinstance(state, RemoteState)
                if state.md5 is None:
                    missing.append((path, state))
                else:
                    self._rows.add(path, state.size, state.md5, state.etag)
        if self._unsafe or missing:
            why = "cannot be read" if compare_content else "has no MD5"
            names = [*self._unsafe, *((in_folder(self._request.part.path, path), why) for path, _ in missing)]
            told = ", ".join(f"{name} {why}" for name, why in names[:_TOLD])
            more = f", and {count_text(len(names) - _TOLD, 'more file')}" if len(names) > _TOLD else ""
            hint = "--compare-content reads blobs that have none" if missing and not compare_content else None
            raise UnsafeNamesError(f"nothing is locked: {told}{more}", names=tuple(names), hint=hint)

    def __iter__(self) -> Iterator[LockedFile]:
        return (LockedFile(*row) for row in self._rows)


def _fetched_from(context: ProjectContext, lock: Lock) -> bytes:
    """A long list, from the container to which the lock's path belongs."""
    place = resolve(f"{context.root}/{lock.path}", cwd=context.root, root=context.root, cluster=context.cluster)
    return far_list(context.connections.open(place.remote), lock)


def drifted_locks(root: Path, request: Request) -> tuple[str, ...]:
    """The paths at or below that of ``request`` whose lock is not what the container held when it was last listed, with
    later transfers. One that cannot be read counts; one of a folder that was never listed, or has blobs whose MD5 is
    not known, does not."""
    drifted = []
    for path in locks_in(root, request.part.path):
        inner = path[len(request.part.path) + 1 :]
        if request.apart is not None and request.apart(inner):
            continue
        ignored = request.ignored and partial(_ignored_below, request.ignored, inner)
        known = known_digest(request.records, request.part.key.at(inner), ignored)
        if known is not None and known != _digest_in(root, path):
            drifted.append(path)
    return tuple(drifted)


def _ignored_below(ignored: Callable[[str], bool], inner: str, name: str) -> bool:
    return ignored(in_folder(inner, name))


def _digest_in(root: Path, path: str) -> str | None:
    try:
        return read_lock(root, path).digest
    except LockError:
        return None


def lock_at(
    context: ProjectContext,
    environ: Mapping[str, str],
    revision: str | None,
    path: str,
    runner: ProcessRunner = ProcessRunner(),  # noqa: B008 - it has no state
) -> Locked:
    """The lock that covers ``path``: in the working tree (None), in a commit, or the file ``*.lock``.

    Raises ``LockError``, ``UsageError`` for an unknown revision, and the store's errors for a list that is there.
    """
    fetch = partial(_fetched_from, context)
    if revision is None:
        return locked_here(context.root, path, fetch, context.spill)
    file = context.cwd / revision
    if revision.endswith(SUFFIX) and file.is_file():
        shown = str(file)
        if file.stat().st_size > MOST_TEXT:
            raise LockError(f"{shown} is too large for a lock", path=shown)
        return with_list(parse_lock(file.read_bytes(), shown), shown, lambda: _list_beside(file), fetch, context.spill)
    commit = Commit(context.root, revision, runner, environ)
    above, text = _lock_in(commit, path)
    shown = f"{revision}:{lock_name(above)}"
    beside = partial(commit.read, list_name(above), MOST_PACKED)
    return with_list(parse_lock(text, shown, above), shown, beside, fetch, context.spill)


def _lock_in(commit: Commit, path: str) -> tuple[str, bytes]:
    """The path of the lock that covers ``path`` in a commit, and its text."""
    above, missing = path, None
    while above:
        try:
            return above, commit.read(lock_name(above), MOST_TEXT)
        except NothingMatchedError as error:
            above, missing = above.rpartition("/")[0], missing or error
    assert missing is not None
    raise missing


def _list_beside(file: Path) -> bytes:
    beside = file.with_name(f"{file.name}.gz")
    try:
        demand_packed(beside.stat().st_size, str(beside))
        return beside.read_bytes()
    except OSError as error:
        raise LockError(f"{beside}: {error.strerror}", path=str(beside)) from error


class LockChange(NamedTuple):
    """A file that two locks do not have alike: ``added``, ``changed`` or ``removed``. Sizes in bytes, None: no such
    file."""

    path: str
    status: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, repr=False)
class LockComparison:
    """How two locks differ, below ``path``; ``changes`` in the order of their paths."""

    path: str
    before: Lock
    after: Lock
    changes: tuple[LockChange, ...]

    def __repr__(self) -> str:
        return f"<LockComparison {self.path!r}: {len(self.changes):,} changes>"

    def count(self, status: str) -> int:
        """The number of files that were ``added``, ``changed`` or ``removed``."""
        return sum(each.status == status for each in self.changes)


def compare(path: str, before: Locked, after: Locked) -> LockComparison:
    """Compare two locks, which need not be of the same folder, by the files that they have below ``path``."""
    if before.lock.digest == after.lock.digest and before.lock.path == after.lock.path:
        return LockComparison(path, before.lock, after.lock, ())
    old, new = before.below(path), after.below(path)
    return LockComparison(path, before.lock, after.lock, tuple(_changes(path, old, new)))


def _changes(path: str, before: Iterator[LockedFile], after: Iterator[LockedFile]) -> Iterator[LockChange]:
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old.path < new.path):
            assert old is not None
            yield LockChange(in_folder(path, old.path), "removed", old.size, None)
            old = next(before, None)
        elif old is None or new.path < old.path:
            yield LockChange(in_folder(path, new.path), "added", None, new.size)
            new = next(after, None)
        else:
            if (old.size, old.md5) != (new.size, new.md5):
                yield LockChange(in_folder(path, new.path), "changed", old.size, new.size)
            old, new = next(before, None), next(after, None)


def entries(locked: Locked, path: str, *, recursive: bool) -> Iterator[ListingEntry]:
    """What ``ls`` would have shown of ``path`` then: one level, or with ``recursive`` everything.

    Raises ``NothingMatchedError``.
    """
    is_empty, last = True, None
    for file in locked.below(path):
        is_empty = False
        folder, slash, _ = file.path.partition("/")
        if slash and not recursive:
            if folder != last:
                yield ListingEntry(f"{path}/{folder}/")
            last = folder
        else:
            yield ListingEntry(in_folder(path, file.path), file.size, None, file.md5, None, file.etag or None)
    if is_empty:
        raise NothingMatchedError(f"{path}: the lock {lock_name(locked.lock.path)} has nothing there", path=path)


def demand_one(requests: tuple[Request, ...], path: str) -> Request:
    """The one request of a PATH. Raises ``UsageError`` if entries of their own are below it."""
    if len(requests) > 1:
        inner = ", ".join(each.part.path for each in requests[1:])
        raise UsageError(
            f"{path} has folder entries of their own below it: {inner}", hint=f"lock each: {requests[1].part.path}"
        )
    return requests[0]
