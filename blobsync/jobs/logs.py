"""A job's logs on this machine: fetched bit by bit into ``assets/<ID>/``, from the backend or from the container.

While the backend has the job, it is asked; when it is gone, or has nothing, the copies that the nodes made in
the container are read. Both hold the same bytes, so that what was fetched from one is continued from the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blobsync.base.errors import BlobsyncError, UnsafeNameError
from blobsync.jobs.backends.base import Backend
from blobsync.jobs.spec import JobRef, LogFile, LogMirror
from blobsync.local.files import LocalFolder
from blobsync.local.names import RelativeName, relative_name
from blobsync.store.protocol import BlobStore

# More is fetched in several rounds (bytes).
_CHUNK = 8 * 1024 * 1024

# What a log may be called, whoever lists it: no part is hidden, and nothing in it moves a terminal's cursor.
_LOG_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_ .+@=,-]*/)*[A-Za-z0-9_][A-Za-z0-9_ .+@=,-]*")

# On Slurm: what srun, mpirun and the batch script say themselves, and what a node said that was not made ready.
_LAUNCHER_LOG, _PREPARE_LOG = "system_logs/batch.txt", "system_logs/prepare.txt"

# The logs of users' programs: Azure ML's and our names, and those of Azure ML before 2021.
_RANK_LOG = re.compile(
    r"(?:task_(?P<task>\d+)/|attempt_(?P<attempt>\d{1,6})/)?(?:user_logs/std_log(?:_process_(?P<a>\d+))?(?:_ps)?\.txt"
    r"|azureml-logs/70_driver_log(?:_(?P<b>\d+))?\.txt|azureml-logs/00_stdout\.txt|azureml-logs/ps-(?P<c>\d+)_stdout\.txt)"
)


class LogSource(Protocol):
    """Where logs can be read from."""

    def files(self) -> Sequence[LogFile]: ...

    def read(self, log: LogFile, start: int, end: int | None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class BackendLogs:
    """The logs as the backend has them."""

    backend: Backend
    ref: JobRef

    def files(self) -> Sequence[LogFile]:
        return self.backend.logs(self.ref)

    def read(self, log: LogFile, start: int, end: int | None) -> bytes:
        return self.backend.read_log(log, start, end)


@dataclass(frozen=True, slots=True)
class MirroredLogs:
    """The copies in the container."""

    store: BlobStore
    mirror: LogMirror

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


@dataclass(frozen=True, slots=True)
class FetchedLogs:
    """What is here now: the files, sorted by name.

    ``problem`` is why they may be older than what there is, or not all of it.
    """

    folder: Path
    names: tuple[str, ...]
    problem: BlobsyncError | None = None

    def __repr__(self) -> str:
        return f"<FetchedLogs in {str(self.folder)!r}: {len(self.names):,} logs>"

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def leading(self) -> str | None:
        """The log of rank 0, of its latest attempt. Where no rank has said anything: what its launcher said, or the
        node's log."""
        ranked = sorted((rank_of(name), -attempt_of(name), name) for name in self.names if rank_of(name) is not None)
        if not any(self._has_text(name) for _, _, name in ranked) and self._launcher_alone():
            return _LAUNCHER_LOG
        told = [name for name in self.names if name.startswith("system_logs/node_")]
        return ranked[0][2] if ranked else next(iter([*told, *self.names]), None)

    def _launcher_alone(self) -> bool:
        """Whether a launcher had to say why nothing ran: of a node that was not made ready, the node's log does."""
        return self._has_text(_LAUNCHER_LOG) and not self._has_text(_PREPARE_LOG)

    def _has_text(self, name: str) -> bool:
        return name in self.names and self.path(name).is_file() and self.path(name).stat().st_size > 0

    def of_rank(self, rank: int) -> str | None:
        """The log of one process, of its latest attempt; None where it has none yet."""
        found = [name for name in self.names if (known := rank_of(name)) and known[1] == rank]
        return max(found, key=attempt_of, default=None)

    def tail(self, name: str, lines: int) -> list[str]:
        """The last lines of one log."""
        text = self.path(name).read_text(encoding="utf-8", errors="replace")
        return text.splitlines()[-lines:] if lines else []


def rank_of(name: str) -> tuple[int, int] | None:
    """Array task and rank that a log belongs to, or None for a log of the system."""
    match = _RANK_LOG.fullmatch(name)
    if not match:
        return None
    rank = match["a"] or match["b"] or match["c"] or "0"
    return int(match["task"] or 0), int(rank)


def attempt_of(name: str) -> int:
    """Which pod of its node wrote the log, on Kubernetes: 0 is the first one, and all other platforms."""
    match = re.match(r"attempt_([0-9]{1,6})/", name)
    return int(match[1]) if match else 0


def fetch_logs(sources: Sequence[Callable[[], LogSource]], folder: Path, boundary: Path | None = None) -> FetchedLogs:
    """Bring ``folder`` up to date from the first source that has logs; nothing is fetched twice.

    Logs of pods go with them: those of attempts before the latest one may be in the next source only.

    Nothing is written through a link that leads out of ``boundary`` (None: out of ``folder``). A log whose name must
    not become a file here is left where it is; the first of them is the ``problem``, the others are still fetched.
    """
    problem: BlobsyncError | None = None
    known: set[str] = set()
    for make in sources:
        try:
            source = make()
            files = [log for log in source.files() if log.name not in known]
            refused = _continue_all(source, files, folder, boundary)
        except BlobsyncError as error:
            problem = problem or error
            continue
        known.update(log.name for log in files)
        if files:
            problem = refused
        if known and not _lacks_attempts(known):
            break
    return FetchedLogs(folder, tuple(sorted(_kept(folder))), problem)


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
            yield from ((name, line) for line in _new_lines(fetched.path(name), name, seen, everything=over))
        if over:
            return
        over = ended()
        if not over:
            pause()


def _new_lines(path: Path, name: str, seen: dict[str, int], *, everything: bool) -> list[str]:
    with path.open("rb") as log:
        log.seek(seen.get(name, 0))
        body = log.read()
    # A line without its end is still being written.
    whole = len(body) if everything else body.rfind(b"\n") + 1
    seen[name] = seen.get(name, 0) + whole
    return body[:whole].decode("utf-8", "replace").splitlines()


def _continue_all(
    source: LogSource, files: Sequence[LogFile], folder: Path, boundary: Path | None
) -> UnsafeNameError | None:
    refused: UnsafeNameError | None = None
    target: LocalFolder | None = None
    for log in files:
        try:
            name = relative_name(log.name, str(folder), allowed=_LOG_NAME)
        except UnsafeNameError as error:
            refused = refused or UnsafeNameError(
                f"a log was left out: {error.message}",
                hint="someone else wrote it: check the container",
                path=error.path,
            )
            continue
        target = target or LocalFolder(folder, boundary)
        _continue(source, log, target, name)
    return refused


def _continue(source: LogSource, log: LogFile, folder: LocalFolder, name: RelativeName) -> None:
    with folder.grow(name) as target:
        if log.size is not None and target.size > log.size:
            # It was restarted on the node.
            target.restart()
        while log.size is None or target.size < log.size:
            body = source.read(log, target.size, target.size + _CHUNK)
            if not body:
                return
            target.append(body)
