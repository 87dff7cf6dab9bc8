"""``rm``: finds the blobs of a path, deletes them, checks that they are gone, and writes a receipt."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from pathlib import Path

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import FailureCode, FileFailure, NothingMatchedError, ShapeConflictError, UsageError
from blobsync.base.events import Expected, FilesDone, Listener, Note, Phase, SilentListener
from blobsync.base.locations import reaches_another
from blobsync.base.records import dataclass
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.config.mapping import Resolution
from blobsync.local.index import Index
from blobsync.local.names import OWN_BLOBS
from blobsync.plan.name_clashes import both_hint
from blobsync.plan.path_suggestions import look_nearby
from blobsync.plan.wildcards import ABOUT_PATTERNS, PathPattern, is_pattern, is_there
from blobsync.project.browse import nothing_at
from blobsync.project.transfer_history import TransferEntry
from blobsync.store.open_locations import Connections, OpenBlob
from blobsync.store.protocol import BlobInfo
from blobsync.transfer import ledger

# Blobs per call of delete_many. After an interrupt, the state of this many is unknown.
_DELETE_CHUNK = 4096


@dataclass(frozen=True, slots=True, repr=False)
class Deletion:
    """The blobs that ``rm`` of one path deletes, as they were when listed; ``pattern`` chose them below ``place``.

    ``directories`` are those of a hierarchical namespace, or stubs of folders, that go if nothing is left in them.
    """

    place: Resolution
    blobs: tuple[BlobInfo, ...]
    pattern: str = ""
    directories: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Deletion {self.place.path!r}: {len(self.blobs):,} blobs, {self.size:,} bytes>"

    @property
    def size(self) -> int:
        """The total in bytes."""
        return sum(blob.size for blob in self.blobs)

    @property
    def shown(self) -> str:
        """The path or the pattern, as a user would type it."""
        return self.pattern or self.place.path

    def names(self, most: int) -> list[str]:
        """The first of its blobs, as a user would type them."""
        name = _shown_at(self.place)
        return [name(blob.name) for blob in self.blobs[:most]]


@dataclass(frozen=True, slots=True, repr=False)
class Removal:
    """The result of ``rm``; ``gone`` are the deleted blobs, as a user would type them, with their former state.

    ``unsure`` are those whose state is unknown after an interrupt, ``receipt`` is the file that names all of them.
    """

    gone: tuple[tuple[str, BlobInfo], ...] = ()
    unsure: tuple[tuple[str, BlobInfo], ...] = ()
    failures: tuple[FileFailure, ...] = ()
    receipt: Path | None = None

    def __repr__(self) -> str:
        return f"<Removal: {len(self.gone):,} gone, {len(self.unsure):,} unsure, {len(self.failures):,} failed>"

    def entry(self, begun: TransferEntry) -> TransferEntry:
        """The entry in the log."""
        word = "done" if not self.failures else "partial" if self.gone else "failed"
        name = self.receipt.name if self.receipt else begun.receipt
        deleted, failed = len(self.gone), len(self.failures)
        return begun.ended(word, deleted=deleted, failed=failed, bytes=self.bytes_deleted, receipt=name)

    @property
    def bytes_deleted(self) -> int:
        """The bytes of the deleted blobs."""
        return sum(blob.size for _, blob in self.gone)


def removal_begun(deletions: Sequence[Deletion], cluster: str, command: str) -> TransferEntry:
    """The log entry of a removal that begins now."""
    paths = tuple(each.shown for each in deletions)
    planned = sum(len(each.blobs) for each in deletions)
    said = command or shlex.join(["blobsync", "-c", cluster, "rm", *paths])
    return TransferEntry("rm", paths, said, cluster, planned=planned)


def find_blob(connections: Connections, place: Resolution) -> Deletion:
    """The one blob of this name, without those below it. Raises ``NothingMatchedError`` and ``UsageError``."""
    if place.folder_only:
        raise UsageError(f"{place.given} ends with a slash, so it is not a blob", hint=f"--blob {place.path}")
    end = connections.open(place.remote)
    blob = _named(end)
    if blob is None:
        raise NothingMatchedError(
            f"{place.path}: no blob has exactly that name: {place.remote}",
            hint=f"'blobsync ls {place.path}' shows what is below it",
            path=place.path,
            nearby=look_nearby(place.path, place.relative, end),
        )
    return Deletion(place, (blob,))


def find_deletions(connections: Connections, place: Resolution, inner: Sequence[Resolution]) -> Iterator[Deletion]:
    """Everything that ``rm`` of this path would delete, also in nested folder entries.

    Raises ``NothingMatchedError``, and ``ShapeConflictError`` if there is both a blob and a folder of this name.
    """
    end = connections.open(place.remote)
    blob = None if place.folder_only else _named(end)
    prefix = f"{end.name}/" if end.name else ""
    hidden = (OWN_BLOBS, *(f"{prefix}{other.path[len(place.path) + 1 :]}/" for other in inner))
    found = [item for item in end.store.list_blobs(prefix) if not item.name.startswith(hidden)]
    if blob is not None and found and not blob.is_folder_stub:
        raise ShapeConflictError(
            f"{place.path} is both a blob and a folder: {place.remote} and {place.remote}/...",
            hint=both_hint(place.path),
            path=place.path,
        )
    if blob is not None:
        found.append(blob)
    others = [deletion for other in inner for deletion in _nested(connections, other)]
    if not found and not others:
        raise nothing_at(place, end)
    if found:
        blobs = tuple(item for item in found if not item.is_folder_stub)
        yield Deletion(place, blobs, directories=tuple(item.name for item in found if item.is_folder_stub))
    yield from others


def _named(end: OpenBlob) -> BlobInfo | None:
    """The blob of exactly this name; None for blobsync's own, as of those below a folder."""
    return end.store.head(end.name) if end.name and not end.name.startswith(OWN_BLOBS) else None


def pattern_of(connections: Connections, place: Resolution) -> PathPattern | None:
    """The pattern that ``place`` is, if the container has nothing of exactly that name."""
    if not is_pattern(place.path) or is_there(connections.open(place.remote), folder_only=place.folder_only):
        return None
    return PathPattern(f"{place.path}/" if place.folder_only else place.path)


def find_matches(
    connections: Connections, folder: Resolution, inner: Sequence[Resolution], matches: PathPattern
) -> Iterator[Deletion]:
    """What ``matches`` of all that ``rm`` of its folder would delete. Raises ``NothingMatchedError``."""
    none = True
    for deletion in find_deletions(connections, folder, inner):
        name = _shown_at(deletion.place)
        blobs = tuple(blob for blob in deletion.blobs if matches(name(blob.name)))
        directories = tuple(each for each in deletion.directories if matches(name(each)))
        if blobs or directories:
            none = False
            yield Deletion(deletion.place, blobs, matches.path, directories)
    if none:
        raise NothingMatchedError(f"{matches.path}: no blob matches", hint=ABOUT_PATTERNS, path=matches.path)


def without_repeats(deletions: Iterable[Deletion]) -> tuple[Deletion, ...]:
    """Each blob once, with the first path that has it."""
    seen: set[str] = set()
    found = []
    for each in deletions:
        container = each.place.remote.container
        new = tuple(blob for blob in each.blobs if str(container.child(blob.name)) not in seen)
        seen |= {str(container.child(blob.name)) for blob in new}
        found.append(replace(each, blobs=new))
    return tuple(each for each in found if each.blobs or each.directories)


def _nested(connections: Connections, place: Resolution) -> Iterator[Deletion]:
    try:
        yield from find_deletions(connections, place, ())
    except NothingMatchedError:
        return


def remove(
    connections: Connections,
    index: Index,
    deletions: Sequence[Deletion],
    listener: Listener,
    receipt_folder: Path,
    cluster: str,
    stop: StopRequest = NEVER,
) -> Removal:
    """Delete in batches, and check that the blobs are gone; a receipt names them, also after an interrupt.

    Raises ``KeyboardInterrupt`` after a request by ``stop``; the receipt has the blobs deleted by then.
    """
    listener.emit(Phase("deleting"))
    listener.emit(Expected(sum(len(each.blobs) for each in deletions), 0))
    result = _Result()
    receipt: Path | None = None
    whole = False
    try:
        for each in deletions:
            _remove(connections, index, each, listener, result, stop)
        whole = True
    finally:
        if result.gone or result.unsure or result.failures:
            receipt = _leave_receipt(result, deletions, listener, receipt_folder, cluster, interrupted=not whole)
    return Removal(tuple(result.gone), tuple(result.unsure), tuple(result.failures), receipt)


def write_begun(deletions: Sequence[Deletion], folder: Path, cluster: str) -> Path | None:
    """A receipt of what is about to be deleted, for who undoes a removal that is killed; None if none is written."""
    shown = ((each, _shown_at(each.place)) for each in deletions)
    planned = [(name(blob.name), blob) for each, name in shown for blob in each.blobs]
    return _leave_receipt(_Result(unsure=planned), deletions, SilentListener(), folder, cluster, interrupted=True)


@dataclass(slots=True)
class _Result:
    """Collects the result of a removal."""

    gone: list[tuple[str, BlobInfo]] = field(default_factory=list)
    unsure: list[tuple[str, BlobInfo]] = field(default_factory=list)
    failures: list[FileFailure] = field(default_factory=list)


def _leave_receipt(
    result: _Result, deletions: Sequence[Deletion], listener: Listener, folder: Path, cluster: str, *, interrupted: bool
) -> Path | None:
    places = [str(each.place.remote) for each in deletions]
    removed = ledger.Deletions(result.gone, result.unsure)
    try:
        return ledger.write_removal(folder, cluster, places, removed, result.failures, interrupted=interrupted)
    except OSError as error:
        listener.emit(Note(f"no receipt was written to {folder}: {error.strerror}"))
        return None


def _remove(
    connections: Connections,
    index: Index,
    deletion: Deletion,
    listener: Listener,
    result: _Result,
    stop: StopRequest,
) -> None:
    end = connections.open(deletion.place.remote)
    shown = _shown_at(deletion.place)
    failed: dict[str, str] = {}
    for start in range(0, len(deletion.blobs), _DELETE_CHUNK):
        stop.check()
        chunk = deletion.blobs[start : start + _DELETE_CHUNK]
        # From here on the service may have deleted them, even if the response is lost.
        result.unsure += [(shown(blob.name), blob) for blob in chunk]
        unsafe = {blob.name: f"its name {why}" for blob in chunk if (why := reaches_another(blob.name))}
        failed.update(end.store.delete_many([blob.name for blob in chunk if blob.name not in unsafe]))
        failed.update(unsafe)
        listener.emit(FilesDone([shown(blob.name) for blob in chunk]))
    for name in _still_there(end, deletion):
        failed.setdefault(name, "it is still there")
    # The directories of one depth at a time, the deepest first: only an empty one can be deleted.
    for _, names in groupby(sorted(deletion.directories, key=_depth, reverse=True), _depth):
        failed.update(end.store.delete_many(list(names)))
    for name, reason in sorted(failed.items()):
        result.failures.append(
            FileFailure(
                shown(name), FailureCode.DELETE_FAILED, f"{shown(name)}: not deleted, {reason}", "run the command again"
            )
        )
    gone = [blob for blob in deletion.blobs if blob.name not in failed]
    result.gone += [(shown(blob.name), blob) for blob in gone]
    result.unsure.clear()
    prefix = len(end.name) + 1 if end.name else 0
    base = deletion.place.relative
    paths = (blob.name[prefix:] if blob.name != end.name else "" for blob in gone)
    index.pair(deletion.place.entry.prefix, str(deletion.place.entry.remote)).forget(
        "/".join(part for part in (base, path) if part) for path in paths
    )


def _depth(name: str) -> int:
    return name.count("/")


def _still_there(end: OpenBlob, deletion: Deletion) -> set[str]:
    names = {blob.name for blob in deletion.blobs if reaches_another(blob.name) is None}
    if len(names) <= 16:
        return {blob.name for blob in side_by_side(end.store.head, names, 8) if blob is not None}
    listing = end.store.list_blobs(f"{end.name}/" if end.name else "")
    found = {blob.name for blob in listing if blob.name in names}
    # The blob of the folder's own name has no slash after it.
    return found | ({end.name} if end.name in names and end.store.head(end.name) is not None else set())


def _shown_at(place: Resolution) -> Callable[[str], str]:
    """A function that gives the path of a blob at or below ``place``."""
    start = len(place.remote.name)
    return lambda name: place.path + name[start:] if start else f"{place.path}/{name}"
