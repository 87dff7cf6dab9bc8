"""``status``: compares each folder entry here with the last listing of its container.

The local files are walked. The content of the container is that of its last listing, with later transfers; with
``fresh`` it is listed now. So a result without ``fresh`` is as old as its ``as_of``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from blobsync.base.background_calls import Ahead
from blobsync.base.errors import AccessDeniedError, BlobsyncError, FileFailure, NothingMatchedError
from blobsync.base.events import Emit
from blobsync.base.exit_codes import ExitCode
from blobsync.base.locations import BlobContainer, below
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import dataclass
from blobsync.config.mapping import resolve
from blobsync.config.model import StorageAccount
from blobsync.config.project_root import LOCK_FOLDER
from blobsync.local.index import PAGE, Listed, PairIndex
from blobsync.local.names import blob_problem
from blobsync.plan.left_out_files import FAULTS, name_failure
from blobsync.plan.pairing import Pair
from blobsync.plan.path_mapping import both_ends
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.plan.transfer_plan import Action, Route, Shape, batches_of
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.verify import both_sides, classify
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobStore

if TYPE_CHECKING:
    from blobsync.project.job_writes import WritingJob

# Class of `verify` -> what is to be done.
_UPLOAD = ("local_only", "changed_here")
_DOWNLOAD = ("remote_only", "changed_there")

# Seconds that `status` waits for accounts.
ANSWER_SECONDS = 2.0
_NO_BLOB = "blobsync-asks-whether-you-answer"


@dataclass(frozen=True, slots=True)
class FileTally:
    """Files and bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class EntryStatus:
    """One folder entry, or one PATH of it.

    ``here`` and ``there`` count the files of each side. ``newer_at_destination`` are those of ``to_download`` that
    changed in the container since they were verified, ``missing_here`` those that do not exist here; ``conflicts``
    changed on both sides. ``never_verified`` are files that may or may not differ: the blob has no MD5 and the same
    size, or the container was not listed. ``ignored`` counts local files that the entry ignores, ``left_out`` links
    that are not followed, ``not_files`` pipes and other special files, ``unreadable`` files that cannot be read or have
    a name that no blob can have. A file counts in one of these. ``as_of`` is when the container was last listed as a
    whole (seconds since 1970; None: never, and ``there`` is incomplete), ``fresh``: it was now. ``problem`` is why the
    entry could not be examined, ``silence`` why its account did not answer (None: it did). ``jobs`` are those of the
    project that upload there and may have done so after ``as_of``. ``drifted`` are the paths whose lock says something
    else than what is known of the container.
    """

    path: str
    url: str
    here: FileTally = field(default_factory=FileTally)
    there: FileTally = field(default_factory=FileTally)
    to_upload: FileTally = field(default_factory=FileTally)
    to_download: FileTally = field(default_factory=FileTally)
    conflicts: FileTally = field(default_factory=FileTally)
    never_verified: FileTally = field(default_factory=FileTally)
    newer_at_destination: int = 0
    missing_here: int = 0
    ignored: int = 0
    left_out: int = 0
    not_files: int = 0
    unreadable: tuple[FileFailure, ...] = ()
    as_of: float | None = None
    fresh: bool = False
    problem: BlobsyncError | None = None
    silence: str | None = None
    jobs: tuple[WritingJob, ...] = ()
    drifted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<EntryStatus {self.path!r}: {self.here.files:,} files here, {self.there.files:,} there>"

    @property
    def differs(self) -> bool:
        """Something is known to differ, or a job ran that uploads there, of which the listing knows nothing."""
        counts = self.to_upload.files or self.to_download.files or self.conflicts.files
        return bool(counts) or any(job.ran for job in self.jobs)

    @property
    def ok(self) -> bool:
        """Nothing is known to differ, and everything could be examined."""
        return not self.differs and self.problem is None and not self.unreadable


@dataclass(frozen=True, slots=True, repr=False)
class ProjectStatus:
    """The status of the folder entries of a project. ``fresh``: their containers were listed."""

    entries: tuple[EntryStatus, ...]
    fresh: bool

    def __repr__(self) -> str:
        return f"<ProjectStatus: {len(self.entries)} entries, {'some differ' if self.differs else 'none differs'}>"

    @property
    def differs(self) -> bool:
        """Something is known to differ."""
        return any(entry.differs for entry in self.entries)

    @property
    def exit_code(self) -> ExitCode:
        """0: nothing is known to differ (with ``fresh``: nothing does); 3: something does, or was not examined; 1: no
        entry could be examined."""
        doubtful = any(entry.never_verified.files for entry in self.entries)
        if all(entry.ok for entry in self.entries) and not (self.fresh and doubtful):
            return ExitCode.DONE
        return ExitCode.FAILED if all(entry.problem for entry in self.entries) else ExitCode.PARTIAL


class _LastSeen:
    """The container as the index remembers it."""

    def __init__(self, records: PairIndex, end: OpenBlob, path: str) -> None:
        self._records = records
        self._start = len(end.name) + 1 if end.name else 0
        self._end = end
        self._path = path

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """The remembered blobs below the folder of this status."""
        skip = len(self._path) + 1 if self._path else 0
        for path, state in self._records.as_last_listed(self._path):
            yield BlobInfo(self._end.at(path[skip:]), state.size, state.etag, state.md5)

    def head(self, name: str) -> BlobInfo | None:
        """The blob of the PATH itself."""
        state = self._records.blob_as_last_listed(self._path)
        return None if state is None else BlobInfo(name, state.size, state.etag, state.md5)


def as_remembered(request: Request) -> Request:
    """The same request, with the remembered content of the container."""
    end, key = request.part.destination, request.part.key
    assert isinstance(end, OpenBlob)
    return request._replace(remembered=_LastSeen(request.records, end, key.path))


class AccountCheck:
    """Checks in the background whether the account of each folder entry answers."""

    def __init__(
        self,
        connect: Callable[[StorageAccount], BlobStore],
        accounts: Iterable[StorageAccount],
        patience: float = ANSWER_SECONDS,
    ) -> None:
        """``connect`` should open stores with few retries; ``patience`` is in seconds."""
        by_container = {account.container: account for account in accounts}
        self._asked = {place: Ahead(_silence, connect, account) for place, account in by_container.items()}
        self._patience = patience
        self._until = time.monotonic() + patience

    def silence(self, account: StorageAccount) -> str | None:
        """Why the account does not answer; None if it does."""
        asked = self._asked[account.container]
        if asked.is_done(self._until - time.monotonic()):
            return asked.result()
        return f"{account.account_name} did not answer within {self._patience:g} s"


def _silence(connect: Callable[[StorageAccount], BlobStore], account: StorageAccount) -> str | None:
    try:
        store = connect(account)
        try:
            store.head(_NO_BLOB)
        finally:
            store.close()
    except AccessDeniedError:
        # The SAS may be for writing only; the account has answered.
        return None
    except BlobsyncError as error:
        return error.message
    return None


class FileCounts:
    """Counts files and adds up their bytes, each under a name; ``numbers`` are counts of files alone."""

    def __init__(self) -> None:
        self._files, self._bytes, self.numbers = Counter[str](), Counter[str](), Counter[str]()

    def add(self, name: str, size: int) -> None:
        """Add a file."""
        self._files[name] += 1
        self._bytes[name] += size

    def tally(self, name: str) -> FileTally:
        """The sums so far."""
        return FileTally(self._files[name], self._bytes[name])

    def added_to(self, status: EntryStatus) -> EntryStatus:
        """The status with these as its fields."""
        found: dict[str, Any] = {**self.numbers, **{name: self.tally(name) for name in self._files}}
        return replace(status, **found)


def entry_status(request: Request, emit: Emit, *, fresh: bool, now: float) -> EntryStatus:
    """The status of one part, whose source is the local end. Problems of the entry are in the result, not raised."""
    end, key = request.part.destination, request.part.key
    assert isinstance(end, OpenBlob)
    as_of = now if fresh else request.records.listed_at(key.path)
    status = EntryStatus(request.part.path, str(end), fresh=fresh, as_of=as_of)
    counts, unnamable = FileCounts(), list[FileFailure]()
    if not fresh:
        request = as_remembered(request)
    try:
        found, pairs = both_sides(request, emit)
        if found.shape is Shape.FILE and not fresh:
            status = replace(status, as_of=request.records.blob_listed_at(key.path))
        listed = Listed() if status.as_of is not None else request.records.listed_in(key.path)
        for pair in pairs:
            if pair.source is not None and (why := blob_problem(end.at(pair.path))):
                counts.add("here", pair.source.size)
                unnamable.append(name_failure(f"{status.path}/{pair.path}" if pair.path else status.path, why))
                continue
            is_known = status.as_of is not None or pair.record is not None or key.at(pair.path) in listed
            _count(counts, pair, is_known=is_known)
    except NothingMatchedError:
        # Neither end exists: the entry is still empty.
        return counts.added_to(status)
    except BlobsyncError as error:
        return replace(counts.added_to(status), problem=error)
    return replace(counts.added_to(status), ignored=found.ignored, unreadable=(*found.unreadable, *unnamable))


def _count(counts: FileCounts, pair: Pair, *, is_known: bool) -> None:
    """Count a pair. ``is_known``: whether the container has this file."""
    local, remote = pair.source, pair.destination
    kind = classify(pair)
    if local is not None:
        counts.add("here", local.size)
    if remote is not None:
        counts.add("there", remote.size)
    if pair.left_out is not None:
        # What cannot be read counts as that.
        counts.numbers["not_files"] += pair.left_out is Reason.NOT_A_FILE
        counts.numbers["left_out"] += pair.left_out is not Reason.NOT_A_FILE and pair.left_out not in FAULTS
    elif kind in _UPLOAD and local is not None:
        counts.add("to_upload" if is_known else "never_verified", local.size)
    elif kind in _DOWNLOAD and remote is not None:
        counts.add("to_download", remote.size)
        counts.numbers["missing_here"] += kind == "remote_only"
        counts.numbers["newer_at_destination"] += kind == "changed_there"
    elif local is not None:
        if kind == "differs":
            counts.add("conflicts", local.size)
        elif kind == "unknown":
            counts.add("never_verified", local.size)


def project_status(
    context: ProjectContext,
    paths: Sequence[str],
    emit: Emit,
    *,
    fresh: bool,
    connect: Callable[[StorageAccount], BlobStore],
    writing: Callable[[float], Sequence[WritingJob]],
) -> ProjectStatus:
    """The status of each of ``paths``, and of the folder entries inside it; ``connect`` opens stores with few retries.

    ``writing`` finds the project's jobs that may have uploaded after a time. Raises mapping errors, ``JobError`` if the
    history of jobs cannot be used, and ``UntrustedLinkError`` for untrusted links out of the project.
    """
    requests = [request for path in paths for request in both_ends(context, path)]
    accounts = [context.connections.account(_container(request)) for request in requests]
    check = None if fresh else AccountCheck(connect, accounts)
    found = [entry_status(request, emit, fresh=fresh, now=time.time()) for request in requests]
    if check is not None:
        jobs = writing(min((status.as_of or 0.0 for status in found), default=0.0))
        found = [
            replace(status, silence=check.silence(account), jobs=_writing_to(request, status, jobs))
            for request, status, account in zip(requests, found, accounts, strict=True)
        ]
    if (context.root / LOCK_FOLDER).is_dir():
        from blobsync.project.locks import drifted_locks  # late: few projects have locks

        pairs = zip(requests, found, strict=True)
        found = [replace(status, drifted=drifted_locks(context.root, request)) for request, status in pairs]
    return ProjectStatus(tuple(found), fresh)


def remember_copied(context: ProjectContext, result: TransferResult) -> None:
    """After copies from containers, also of an undo: store what they wrote as a listing would, and forget what they
    deleted. The local files of the same paths took no part."""
    failed = {failure.path for failure in result.failures}
    for part in result.plan.parts:
        if part.route in (Route.UPLOAD, Route.DOWNLOAD):
            continue
        place = resolve(f"{context.root}/{part.path}", cwd=context.root, root=context.root, cluster=context.cluster)
        near = context.index.pair(place.entry.prefix, str(place.entry.remote))
        done = (action for action in part.actions if part.shown(action) not in failed)
        for batch in batches_of(done, PAGE):
            moved = {part.key.at(each.path): each.path for each in batch if each.action is Action.TRANSFER}
            written = context.records(part.key).get(list(moved))
            near.remember_blobs({below(place.relative, moved[key]): each.remote for key, each in written.items()})
            if gone := [below(place.relative, each.path) for each in batch if each.action is Action.DELETE]:
                near.forget(gone)


def _writing_to(request: Request, status: EntryStatus, jobs: Sequence[WritingJob]) -> tuple[WritingJob, ...]:
    assert isinstance(request.part.destination, OpenBlob)
    end = request.part.destination.in_container()
    return tuple(job for job in jobs if job.wrote_to(end, status.as_of or 0.0))


def _container(request: Request) -> BlobContainer:
    assert isinstance(request.part.destination, OpenBlob)
    return request.part.destination.in_container().container
