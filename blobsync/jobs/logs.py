"""A job's logs on this machine: fetched piece by piece into ``assets/<ID>/``, followed, and searched.

The backend is asked while it has the job; after that, or if it has no logs, the copies that the nodes made in
the container are read. Both hold the same bytes, so that what was fetched from one is continued from the other, also
where the backend has lost the beginning of a log. The end of a local copy is compared with the log before
anything is appended; if they differ, the whole log is fetched again.

A program may write anything into its log: escape codes, half a line, a progress bar of a gigabyte. The pieces for
pages have no control characters, and no line is longer than ``LINE_CHARS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blobsync.backends.protocol import Backend
from blobsync.base.errors import BlobsyncError, ConfigError, JobError, UnsafeNameError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple, dataclass
from blobsync.jobs.failure_causes import FoundCause, log_lines, read_causes, summarise
from blobsync.jobspec.spec import JobRef, LogFile, LogMirror
from blobsync.local.names import RelativeName, relative_name
from blobsync.local.os_errors import NotAFileError

if TYPE_CHECKING:
    from blobsync.local.files import GrowingFile, LocalFolder
    from blobsync.store.protocol import BlobStore

# More is fetched in several rounds (bytes).
_CHUNK = 8 * 1024 * 1024
# So much of the end of a local copy is compared with the log before it grows (bytes).
_COMPARED = 4096

# Allowed names of logs: no part is hidden, and no character controls a terminal.
_LOG_NAME = pattern(r"(?:[A-Za-z0-9_][A-Za-z0-9_ .+@=,-]*/)*[A-Za-z0-9_][A-Za-z0-9_ .+@=,-]*")

# On Slurm: what srun, mpirun and the batch script say themselves, and what a node said that was not made ready.
_LAUNCHER_LOG, _PREPARE_LOG = "system_logs/batch.txt", "system_logs/prepare.txt"

# The logs of users' programs: Azure ML's and our names, and those of Azure ML before 2021.
_RANK_LOG = pattern(
    r"(?:task_(?P<task>\d{1,7})/)?(?:attempt_(?P<attempt>\d{1,6})/)?"
    r"(?:user_logs/std_log(?:_process_(?P<a>\d{1,7}))?(?:_ps)?(?:\.from_byte_\d{1,15})?\.txt"
    r"|azureml-logs/70_driver_log(?:_(?P<b>\d{1,7}))?\.txt|azureml-logs/00_stdout\.txt"
    r"|azureml-logs/ps-(?P<c>\d{1,7})_stdout\.txt)"
)

# The rest of a log after a part that is lost.
_PIECE = pattern(r"\.from_byte_(\d{1,15})\.txt$")


class IncompleteLogError(JobError):
    """A part of a log cannot be fetched: for now, or for good."""


class LogSource(Protocol):
    """Where logs can be read from. ``lags``: it may be behind what another source has shown already."""

    @property
    def lags(self) -> bool: ...

    def files(self) -> Sequence[LogFile]: ...

    def read(self, log: LogFile, start: int, end: int | None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class BackendLogs:
    """The logs as the backend has them; those of some ``tasks`` alone where that costs less."""

    backend: Backend
    ref: JobRef
    tasks: Collection[int] | None = None
    lags = False

    def files(self) -> Sequence[LogFile]:
        return self.backend.logs(self.ref, self.tasks)

    def read(self, log: LogFile, start: int, end: int | None) -> bytes:
        return self.backend.read_log(log, start, end)


@dataclass(frozen=True, slots=True)
class MirroredLogs:
    """The copies in the container."""

    store: BlobStore
    mirror: LogMirror
    lags = True

    def files(self) -> Sequence[LogFile]:
        prefix = f"{self.mirror.path}/"
        blobs = [blob for blob in self.store.list_blobs(prefix) if not blob.is_folder_stub]
        return tuple(LogFile(blob.name[len(prefix) :], blob.size, blob.name) for blob in blobs)

    def read(self, log: LogFile, start: int, end: int | None) -> bytes:
        if log.size is not None and start >= log.size:
            return b""
        length = None if end is None else end - start
        with self.store.open(log.handle, start=start, length=length) as reader:
            return b"".join(iter(lambda: reader.read(_CHUNK), b""))


@dataclass(frozen=True, slots=True, repr=False)
class FetchedLogs:
    """The logs of a job on this machine, sorted by name.

    ``problem`` is why they may be out of date or incomplete.
    """

    folder: Path
    names: tuple[str, ...]
    problem: BlobsyncError | None = None

    def __repr__(self) -> str:
        return f"<FetchedLogs in {str(self.folder)!r}: {len(self.names):,} logs>"

    def path(self, name: str) -> Path:
        return self.folder / name

    def of_tasks(self, tasks: Collection[int] | None) -> FetchedLogs:
        """The logs of some tasks; None: all."""
        return replace(self, names=tuple(name for name in self.names if _is_of(name, tasks)))

    @property
    def leading(self) -> str | None:
        """The latest log of rank 0. If no rank has written anything: the log of its launcher, or of the node."""
        ranked = [(known, name) for name in self.names if (known := rank_of(name))]
        is_silent = not any(self._has_text(name) for _, name in ranked)
        # Of a node that was not made ready, its own log says why.
        if is_silent and self._has_text(_LAUNCHER_LOG) and not self._has_text(_PREPARE_LOG):
            return _LAUNCHER_LOG
        of_nodes = [name for name in self.names if name.startswith("system_logs/node_")]
        if not ranked:
            return next(iter([*of_nodes, *self.names]), None)
        first = min(known for known, _ in ranked)
        return max((name for known, name in ranked if known == first), key=_age_of)

    def _has_text(self, name: str) -> bool:
        return name in self.names and self.path(name).is_file() and self.path(name).stat().st_size > 0

    def of_rank(self, rank: int) -> str | None:
        """The latest log of one process; None if it has none yet."""
        found = [name for name in self.names if (known := rank_of(name)) and known[1] == rank]
        return max(found, key=_age_of, default=None)

    def tail(self, name: str, lines: int) -> list[str]:
        """The last lines of one log; of a large log not much more is read."""
        with self.path(name).open("rb") as log:
            start, body = log.seek(0, 2), b""
            # A progress bar ends its lines with the second, Windows with both.
            while start and body.count(b"\n") + body.count(b"\r") <= 2 * lines:
                before = start
                start = max(0, start - max(PIECE_BYTES, len(body)))
                log.seek(start)
                body = log.read(before - start) + body
        return body.decode("utf-8", "replace").splitlines()[-lines:] if lines else []


def task_of(name: str) -> int | None:
    """The task that a log belongs to; None for other logs."""
    match = re.match(r"task_([0-9]{1,7})/", name)
    return int(match[1]) if match else None


def _is_of(name: str, tasks: Collection[int] | None) -> bool:
    return tasks is None or task_of(name) in tasks


def rank_of(name: str) -> tuple[int, int] | None:
    """Array task and rank that a log belongs to, or None for a log of the system."""
    match = _RANK_LOG.fullmatch(name)
    if not match:
        return None
    rank = match["a"] or match["b"] or match["c"] or "0"
    return int(match["task"] or 0), int(rank)


def attempt_of(name: str) -> int:
    """Which pod of its node wrote the log, on Kubernetes: 0 is the first one, and all other platforms."""
    match = re.match(r"(?:task_[0-9]{1,7}/)?attempt_([0-9]{1,6})/", name)
    return int(match[1]) if match else 0


def _age_of(name: str) -> tuple[int, int]:
    """What sorts the logs of one process by their age: its attempt, and the byte from which on it is here."""
    match = _PIECE.search(name)
    return attempt_of(name), int(match[1]) if match else 0


def fetch_logs(
    sources: Sequence[Callable[[], LogSource]],
    folder: Path,
    boundary: Path | None = None,
    *,
    over: bool = False,
    tasks: Collection[int] | None = None,
) -> FetchedLogs:
    """Bring ``folder`` up to date from the first source that has logs; nothing is fetched twice. ``tasks``: the logs of
    these alone.

    Logs of pods go with them: those of attempts before the latest one may be in the next source only, and so may the
    beginning of a log. If no source has a beginning, that is an ``IncompleteLogError``; once the job is ``over``, the
    rest is kept in a file of its own (``std_log.from_byte_10485760.txt``).

    Nothing is written through a link that leads out of ``boundary`` (None: out of ``folder``). A log whose name must
    not become a file here is left where it is; the first of them is the ``problem``, the others are still fetched.
    """
    problem: BlobsyncError | None = None
    known: set[str] = set()
    copies = _Copies(folder, boundary)
    silent = False
    for make in sources:
        try:
            source = make()
            found = source.files()
            files = [log for log in found if log.name not in known and _is_of(log.name, tasks)]
            refused = copies.bring_up(source, files)
        except BlobsyncError as error:
            problem, silent = problem or error, True
            continue
        known.update(log.name for log in files)
        known -= copies.lacking.keys()
        if files:
            problem = refused
        if known and not copies.lacking and not _lacks_attempts(known):
            break
    if copies.lacking:
        # A source that did not answer may have what is missing.
        problem = copies.missing_parts(for_good=(over and not silent) or len(sources) == 1)
    return FetchedLogs(folder, tuple(sorted(_kept(folder))), problem).of_tasks(tasks)


def _lacks_attempts(names: Collection[str]) -> bool:
    """Whether there must have been attempts whose logs are not among these."""
    found = set(map(attempt_of, names))
    return bool(found) and len(found) <= max(found)


def _kept(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*.txt") if folder.is_dir() else ():
        # A link could show any file of this machine as a log.
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix()


def follow(
    fetch: Callable[[], FetchedLogs], ended: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[tuple[str, str]]:
    """Each line of the ranks' logs as it appears, with its log's name, until the job has ended."""
    seen: dict[str, int] = {}
    over = False
    while True:
        fetched = fetch()
        names = [name for name in fetched.names if rank_of(name) is not None]
        for name in names or ([fetched.leading] if over and fetched.leading else []):
            yield from ((name, line) for line in _new_lines(fetched.path(name), name, seen, ended=over))
        if over:
            return
        over = ended()
        if not over:
            pause()


def _new_lines(path: Path, name: str, seen: dict[str, int], *, ended: bool) -> Iterator[str]:
    with path.open("rb") as log:
        if log.seek(0, 2) < seen.setdefault(name, 0):
            # The file was replaced.
            seen[name] = 0
        log.seek(seen[name])
        for line in log:
            if not ended and not line.endswith(b"\n"):
                # It is still being written.
                return
            seen[name] += len(line)
            yield from line.decode("utf-8", "replace").splitlines()


class _Copies:
    """The logs of one job on this machine. ``lacking`` are those whose beginning their source has lost, by name."""

    def __init__(self, folder: Path, boundary: Path | None) -> None:
        self._path = folder
        self._boundary = boundary
        self._folder: LocalFolder | None = None
        self.lacking: dict[str, tuple[LogSource, LogFile]] = {}

    def bring_up(self, source: LogSource, files: Sequence[LogFile]) -> BlobsyncError | None:
        """Fetch what each log has gained; returns the error of the first one that was left out."""
        refused: BlobsyncError | None = None
        for log in files:
            try:
                name = relative_name(log.name, str(self._path), allowed=_LOG_NAME)
            except UnsafeNameError as error:
                refused = refused or UnsafeNameError(
                    f"a log was left out: {error.message}",
                    hint="someone else wrote it: check the container",
                    path=error.path,
                )
                continue
            if self._folder is None:
                # Made when there is something to write.
                from blobsync.local.files import LocalFolder  # late: a list of jobs fetches no logs

                self._folder = LocalFolder(self._path, self._boundary, private=True)
            try:
                if not _continue(source, log, self._folder, name):
                    self.lacking.setdefault(name, (source, log))
                elif name in self.lacking and _continue(*self.lacking[name], self._folder, name):
                    del self.lacking[name]
            except NotAFileError as error:
                # The other logs have places of their own.
                refused = refused or error
        return refused

    def missing_parts(self, *, for_good: bool) -> IncompleteLogError:
        """The error that names the missing parts; ``for_good``: the rest of these logs is kept in files of its own."""
        parts = []
        for name, (source, log) in self.lacking.items():
            here = self._size_of(name)
            part = f"bytes {here:,} to {log.begins:,}" if here < log.begins else f"the first {log.begins:,} bytes"
            parts.append(f"{part} of {name}")
            if for_good:
                self._keep_later(source, log)
        missing = ", ".join(parts)
        if for_good:
            return IncompleteLogError(
                f"lost: {missing}; the cluster had thrown them away before they were copied",
                hint="what follows on them is in the files .from_byte_* beside these",
            )
        return IncompleteLogError(
            f"not here yet: {missing}; the cluster has thrown them away, and waits for the copies in the container",
            hint="try again in a minute: the node copies its logs while it runs",
        )

    def _size_of(self, name: str) -> int:
        return (self._path / name).stat().st_size

    def _keep_later(self, source: LogSource, log: LogFile) -> None:
        """In the latest file that what the source still has follows on, or in a new one."""
        assert self._folder is not None
        stem = log.name.removesuffix(".txt")
        starts = {
            int(match[1])
            for path in (self._path / stem).parent.glob(f"{Path(stem).name}.from_byte_*.txt")
            if (match := _PIECE.search(path.name))
        }
        fitting = [start for start in starts if log.begins <= start + self._size_of(_piece(stem, start))]
        start = max(fitting, default=log.begins)
        name = relative_name(_piece(stem, start), str(self._path), allowed=_LOG_NAME)
        _continue(source, log, self._folder, name, start)


def _piece(stem: str, start: int) -> str:
    return f"{stem}.from_byte_{start}.txt"


def _continue(source: LogSource, log: LogFile, folder: LocalFolder, name: RelativeName, first: int = 0) -> bool:
    """Bring the copy of one log, from its byte ``first`` on, up to date; False where what follows on it has to come
    from another source."""
    with folder.grow(name) as copy:
        end = first + copy.size
        if end < log.begins:
            return False
        if log.size is not None and end > log.size:
            is_behind = source.lags and not first and _is_behind(source, log, copy)
            return is_behind or _fetch_anew(source, log, folder, name, copy, first)
        start = max(log.begins, first, end - _COMPARED)
        while log.size is None or end < log.size:
            body = source.read(log, start, end + _CHUNK)
            known = end - start
            if not body:
                return True
            if body[:known] != copy.read_at(start - first, known):
                return _fetch_anew(source, log, folder, name, copy, first)
            if len(body) == known:
                return True
            copy.append(body[known:])
            start = end = first + copy.size
        return True


def _is_behind(source: LogSource, log: LogFile, copy: GrowingFile) -> bool:
    """Whether the copy is the log and more, as far as their last common bytes show."""
    assert log.size is not None
    start = max(log.begins, log.size - _COMPARED)
    return source.read(log, start, log.size) == copy.read_at(start, log.size - start)


def _fetch_anew(
    source: LogSource, log: LogFile, folder: LocalFolder, name: RelativeName, copy: GrowingFile, first: int
) -> bool:
    """The whole log takes the place of the copy, in one step; False where the source has lost its beginning."""
    if log.begins > first:
        return False
    fresh, end = folder.create(name), first
    try:
        while log.size is None or end < log.size:
            body = source.read(log, end, end + _CHUNK)
            if not body:
                break
            fresh.write_at(end - first, body)
            end += len(body)
        fresh.commit(copy.state)
    finally:
        fresh.discard()
    return True


# How much of a line is shown (characters), and how much of a log is read at once (bytes).
LINE_CHARS = 4000
PIECE_BYTES = 1 << 18
# How many lines a search returns.
MOST_FOUND = 500

# Colours, cursor movements, titles, and whatever else a terminal would take for a command.
_ESCAPE = pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])")
# Control characters, and those that change the direction of text.
UNSEEN = pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class LogPiece(NamedTuple):
    """Whole lines of a log from byte ``start`` to byte ``end``, where the next piece begins."""

    name: str
    lines: tuple[str, ...]
    start: int
    end: int

    def __repr__(self) -> str:
        return f"<LogPiece of {self.name!r}: {len(self.lines):,} lines, bytes {self.start:,} to {self.end:,}>"


class FoundLine(NamedTuple):
    """A line that contains the searched text; numbers begin at 1."""

    log: str
    number: int
    line: str


def inert_line(line: str) -> str:
    """A line as a terminal would show it, without control characters."""
    text = _ESCAPE.sub("", line.rstrip("\r\n"))
    # A progress bar writes over itself.
    text = UNSEEN.sub("\ufffd", text.rpartition("\r")[2])
    return text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]} ..."


def log_piece(fetched: FetchedLogs, name: str, start: int | None = None, *, ended: bool = False) -> LogPiece:
    """Lines of one of the ``fetched`` logs from byte ``start`` on (None: the last ones), at most ``PIECE_BYTES``.

    An unfinished last line is left out, unless the job has ``ended``. A log that became shorter is read from its
    beginning. Raises ``ConfigError`` for a log that is not among them.
    """
    if name not in fetched.names:
        raise ConfigError(f"there is no log {name!a}")
    with fetched.path(name).open("rb") as log:
        size = log.seek(0, 2)
        begin = max(0, size - PIECE_BYTES) if start is None else start if start <= size else 0
        log.seek(begin)
        body = log.read(PIECE_BYTES)
    if start is None and begin:
        # The rest of a line whose beginning was not read.
        skipped = body.find(b"\n") + 1
        begin, body = begin + skipped, body[skipped:]
    at_end = begin + len(body) >= size
    whole = len(body) if ended and at_end else body.rfind(b"\n") + 1
    # A line that fills a piece is passed on in parts.
    whole = whole or (len(body) if len(body) == PIECE_BYTES else 0)
    lines = body[:whole].decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return LogPiece(name, tuple(map(inert_line, lines)), begin, begin + whole)


def search_logs(fetched: FetchedLogs, text: str, *, limit: int = MOST_FOUND) -> tuple[FoundLine, ...]:
    """The first ``limit`` lines that hold ``text``, in small or capital letters; system logs come last."""
    if not text:
        return ()
    wanted = text.casefold()
    found: list[FoundLine] = []
    for name in _system_last(fetched.names):
        with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
            lines = enumerate(map(inert_line, log_lines(stream)), 1)
            hits = (FoundLine(name, number, line) for number, line in lines if wanted in line.casefold())
            found += islice(hits, limit - len(found))
    return tuple(found)


def log_causes(fetched: FetchedLogs) -> tuple[FoundCause, ...]:
    """Known causes of failure that the logs show."""
    found: list[FoundCause] = []
    for name in _system_last(fetched.names):
        with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
            found += read_causes(name, log_lines(stream))
    return summarise(found)


def _system_last(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (rank_of(name) is None, name))
