"""The log of transfers and removals, and the records of those that run now.

The log has one row for each upload, download, copy and removal, written at the end. When bytes begin to move, a
record is left instead, without waiting for the disk; the next reader puts it into the log, so that a running
and a killed transfer show as well. After a power failure such a beginning may be missing. The log contains no secret,
but whole command lines, so only the owner can read it. A failure to log stops nothing.

A running transfer is shown to other processes, which can ask it to stop. Each transfer writes a small record, twice a
second, from its first half second to its end, and so does the planning before it; each time it checks for a request to
stop. The record contains no secret. The record of a killed transfer, whose process is gone, is removed by the next
reader.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, LocalFileError, NothingMatchedError, TransferCancelledError, UsageError
from blobsync.base.events import Listener, together
from blobsync.base.exit_codes import ExitCode
from blobsync.base.locations import BlobLocation
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.process_identity import ProcessMark
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact, redact_tree
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.base.user_folders import user_name
from blobsync.config.mapping import PathName, is_below, path_text, project_relative
from blobsync.config.project_root import current_folder, find_project
from blobsync.local.database import Database
from blobsync.local.running_records import EVERY, Reporter, Running, RunningRecords
from blobsync.local.state_databases import JOBS
from blobsync.local.state_dir import StateDir, open_state_dir
from blobsync.plan.progress import WORKING, Progress, ProgressCounter, RatePoint, add_point
from blobsync.plan.transfer_plan import Action, Direction, Route, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import Connections

RUNNING = "running"
KILLED = "killed"


@dataclass(frozen=True, repr=False)
class TransferEntry:
    """One transfer or removal. Times in seconds since 1970, ``seconds`` is the duration.

    ``kind`` is ``upload``, ``download``, ``copy``, ``rm`` or ``undo``; ``mirror``: it also deleted what its source did
    not have. ``result`` is ``done``, ``partial``, ``failed``, ``cancelled``, ``running``, or ``killed`` for one that
    ended without a result. Counts are files; ``problem`` is why it failed as a whole. ``receipt`` names the file that
    lists every file of it.
    """

    kind: str
    paths: tuple[str, ...]
    command: str = ""
    cluster: str = ""
    from_cluster: str | None = None
    engine: str | None = None
    mirror: bool = False
    planned: int = 0
    transferred: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    conflicts: int = 0
    bytes: int = 0
    seconds: float | None = None
    result: str = RUNNING
    problem: str = ""
    receipt: str | None = None
    began: float = field(default_factory=time.time)
    user: str = field(default_factory=lambda: user_name(os.getuid()))
    host: str = field(default_factory=lambda: os.uname().nodename)
    pid: int = field(default_factory=os.getpid)
    id: str = field(default_factory=lambda: os.urandom(4).hex())

    @property
    def rate(self) -> float | None:
        """Bytes a second; None where nothing moved, as in a removal."""
        return self.bytes / self.seconds if self.kind != "rm" and self.bytes and self.seconds else None

    def __repr__(self) -> str:
        shown = f"{self.paths[0]!r}" if self.paths else "nothing"
        return f"<TransferEntry {self.id}: {self.kind} {shown}, {self.result}>"

    def ended(self, result: str, **known: Any) -> TransferEntry:
        """A copy with the result of the transfer."""
        return replace(self, result=result, seconds=round(max(0.0, time.time() - self.began), 3), **known)

    def concerns(self, path: str) -> bool:
        """Whether a file or folder of the project took part, or may have taken part."""
        return _concerns(self.paths, path)


def _concerns(paths: Iterable[str], path: str) -> bool:
    path = path.strip("/") or "."
    return any(is_below(path, each or ".") or is_below(each, path) for each in paths)


class TransferLog:
    """``file`` is created on first use. ``on_trouble`` gets one sentence if something could not be logged."""

    def __init__(self, file: Path, on_trouble: Callable[[str], None] = lambda text: None) -> None:
        # A short command waits for the disk no more often than SQLite requires.
        self._file = Database(file, JOBS, "the history", "running jobs are not affected", synchronous="NORMAL")
        self._begun = RunningRecords(StateDir(file.parent), "begun")
        self._on_trouble = on_trouble

    def begin(self, entry: TransferEntry) -> None:
        """Leave a record for the next reader. Raises ``UsageError`` while an earlier version works in the project."""
        try:
            self._begun.write(entry.id, _values(entry))
        except LocalFileError:
            self.write(entry)

    def write(self, entry: TransferEntry) -> None:
        """Add or replace a row; never raises."""
        try:
            with self._file.writing() as db:
                row = entry.id, entry.began, json.dumps(_values(entry))
                db.execute("INSERT OR REPLACE INTO transfers (id, began, entry) VALUES (?, ?, ?)", row)
        except BlobsyncError as error:
            self._on_trouble(f"this transfer is not in the history: {error.message}")
        else:
            with suppress(LocalFileError):
                self._begun.remove(entry.id)

    def _take_in(self) -> None:
        """Put the beginnings into the log. A transfer that has ended since has a row already, which stays."""
        found: list[tuple[str, float, str]] = []
        for id, values in self._begun.each():
            try:
                entry = made_of(TransferEntry, values, newer=True)
                if entry.id != id:
                    raise ValueError("it has the name of another one")
                found.append((id, entry.began, json.dumps(values)))
            except ValueError:
                self._begun.remove(id)
        if not found:
            return
        with self._file.writing() as db:
            db.executemany("INSERT OR IGNORE INTO transfers (id, began, entry) VALUES (?, ?, ?)", found)
        for id, _, _ in found:
            self._begun.remove(id)

    def recent(
        self, *, since: float | None = None, path: str | None = None, limit: int | None = None, offset: int = 0
    ) -> tuple[TransferEntry, ...]:
        """The rows, newest first; reads no more than needed. Raises ``LocalFileError`` if the file cannot be used."""
        query = "SELECT entry FROM transfers WHERE began >= ? ORDER BY began DESC, id"
        with closing(self._rows(query, since or 0.0)) as rows:
            chosen = (entry for entry in rows if path is None or entry.concerns(path))
            return tuple(islice(chosen, offset, None if limit is None else offset + limit))

    def each(self, ids: Iterable[str]) -> tuple[TransferEntry, ...]:
        """Those of these IDs that exist. Raises ``LocalFileError``."""
        wanted = sorted(set(ids))
        marks = ", ".join("?" * len(wanted))
        query = f"SELECT entry FROM transfers WHERE id IN ({marks}) ORDER BY began DESC, id"  # noqa: S608 - marks only
        return tuple(self._rows(query, *wanted)) if wanted else ()

    def count(self) -> int:
        """How many rows there are. Raises ``LocalFileError``."""
        self._take_in()
        if not self._file.exists:
            return 0
        with self._file.reading() as db:
            return int(db.execute("SELECT COUNT(*) FROM transfers").fetchone()[0])

    def find(self, wanted: str) -> TransferEntry:
        """The one of that id, or of an id that begins or ends so. Raises ``NothingMatchedError``, ``UsageError`` if
        there are several."""
        found = list(self._rows("SELECT entry FROM transfers WHERE id = ?", wanted))
        if not found and wanted:
            query = "SELECT entry FROM transfers WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1"
            found = list(self._rows(query, wanted))
        if not found:
            raise NothingMatchedError(
                f"no transfer or job of this project has an id that begins or ends with {wanted!r}",
                hint="'blobsync history' lists them",
            )
        if len(found) > 1:
            raise UsageError(f"{len(found)} transfers could be {wanted!r}", hint="give more of the id")
        return found[0]

    def _rows(self, query: str, *values: object) -> Generator[TransferEntry, None, None]:
        self._take_in()
        if not self._file.exists:
            return
        with self._file.reading() as db:
            for row in db.execute(query, values):
                try:
                    entry = _entry(parse_object(row[0]))
                except ValueError as error:
                    raise self._file.failure(f"holds a row that blobsync did not write: {error}", error) from error
                yield entry


def _values(entry: TransferEntry) -> Any:
    said = replace(entry, command=redact(entry.command), problem=redact(entry.problem))
    return redact_tree({**asdict(said), "born": ProcessMark.of(entry.pid).born})


def _entry(values: Mapping[str, Any]) -> TransferEntry:
    entry = made_of(TransferEntry, values, newer=True)
    # Earlier versions did not write when the process was born.
    process = ProcessMark(entry.pid, str(values.get("born", ProcessMark.of(entry.pid).born)))
    if entry.result == RUNNING and entry.host == os.uname().nodename and not process.is_alive:
        return replace(entry, result=KILLED)
    return entry


# Maximum number of workers and paths in a record, which is written often.
_MOST_WORKERS = 200
_MOST_PATHS = 100
# Seconds without an update from another machine, after which its transfer may not see a request to stop.
_SILENT = 60.0


@dataclass(frozen=True, eq=False, repr=False)
class RunningTransfer(Running):
    """A transfer under way. ``id`` is that of its entry in the history. ``stoppable``: other processes may stop it,
    since a blobsync command runs it, or a program that used ``start_upload`` or the like. ``kind``, ``paths``,
    ``command``, ``user`` and ``began`` are as in the history. ``planning``: nothing moves yet, and the history does not
    have it; the transfer then gets an id of its own. ``points`` are those of its rate curve, oldest first."""

    stoppable: bool
    progress: Progress
    kind: str = ""
    paths: tuple[str, ...] = ()
    command: str = ""
    user: str = ""
    began: float = 0.0
    planning: bool = False
    # The fields of RatePoint.
    points: tuple[tuple[float, int, float], ...] = ()

    def __repr__(self) -> str:
        return f"<RunningTransfer {self.id}: {'planning' if self.planning else self.progress!r}, process {self.pid}>"

    def concerns(self, path: str) -> bool:
        """Whether a file or folder of the project takes part, or may take part."""
        return not self.paths or _concerns(self.paths, path)


class RunningTransfers:
    """The running transfers of a project, from their records."""

    def __init__(self, state: StateDir) -> None:
        self._records = RunningRecords(state)

    def all(self) -> Mapping[str, RunningTransfer]:
        """The transfers by their ids. Records that are no longer updated are removed. Raises ``LocalFileError``."""
        return self._records.alive(RunningTransfer)

    def stop(self, id: str) -> None:
        """Ask the transfer to stop, as Ctrl-C does; returns at once. It sees the request within half a second.

        Raises ``NothingMatchedError`` if it has ended, ``UsageError`` if it would not see the request.
        """
        one = self.all().get(id)
        if one is None:
            raise NothingMatchedError(
                f"the transfer {id} is not running any more, or does not answer", hint="'blobsync history' has it"
            )
        if not one.is_here and one.silent > _SILENT:
            raise UsageError(f"the transfer {id} runs on {one.host}", hint="press Ctrl-C there")
        if not one.stoppable:
            raise UsageError(
                f"process {one.pid} is a program that uses blobsync, not a blobsync command",
                hint="stop the transfer in that program",
            )
        self._records.request_stop(id)


@contextmanager
def recorded_while_running(
    state: StateDir,
    entry: TransferEntry,
    listener: Listener,
    *,
    stoppable: bool,
    planning: bool = False,
    stop: StopRequest = NEVER,
    every: float = EVERY,
) -> Iterator[Listener]:
    """Keep a record of the transfer ``entry`` while the block runs. Yields a listener that passes its events to
    ``listener`` and into the record. Other processes can make the request ``stop`` if the transfer is ``stoppable``.
    ``planning``: it is being planned, and the log has no such entry."""
    if not state.lasting:
        yield listener
        return
    known = RunningTransfer(
        entry.id, entry.pid, ProcessMark.of(entry.pid).born, entry.host, 0.0, stoppable, Progress("", 0.0),
        entry.kind, entry.paths[:_MOST_PATHS], redact(entry.command), entry.user, entry.began, planning,
    )  # fmt: skip
    recorder = _Recorder(RunningRecords(state), known, every, stop)
    recorder.reporter.begin()
    try:
        yield together(listener, recorder)
    finally:
        recorder.reporter.end()


class _Recorder(ProgressCounter):
    """Counts what the record says."""

    def __init__(self, records: RunningRecords, known: RunningTransfer, every: float, stop: StopRequest) -> None:
        super().__init__()
        self._known = known
        self._points: list[RatePoint] = []
        self._start = self.clock()
        self.reporter = Reporter(records, known.id, self._values, stop if known.stoppable else None, every)

    def _values(self) -> Mapping[str, Any]:
        now = self._now()
        if now.phase == "moving":
            add_point(self._points, round(self.clock() - self._start, 2), now)
        self._known = replace(self._known, told=time.time(), progress=now, points=tuple(self._points))
        return {**asdict(self._known), "progress": now.values()}

    def _now(self) -> Progress:
        now = self.snapshot()
        last = self._known.progress
        if now.phase not in WORKING and last.files_expected:
            # While verifying, the numbers of the moves.
            now = last._replace(
                phase=now.phase, rate=0.0, seconds_left=None, doing="",
                waiting=now.waiting, waiting_seconds=now.waiting_seconds, retrying=now.retrying,
            )  # fmt: skip
        return now._replace(current=redact(now.current), workers=now.workers[:_MOST_WORKERS])


_RESULTS = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}


class LogBook:
    """The log in a project's state folder, and the receipts beside it. Needs no cluster file."""

    def __init__(self, root: Path, cwd: Path, state: StateDir, on_trouble: Callable[[str], None]) -> None:
        self._root = root
        self._cwd = cwd
        self._state = state
        self.log = TransferLog(state.root / "jobs.sqlite", on_trouble)
        self.running = RunningTransfers(state)

    def recent(
        self, *, since: float | None = None, path: PathName | None = None, limit: int | None = None, offset: int = 0
    ) -> tuple[TransferEntry, ...]:
        """See ``Project.history``; the newest ``offset`` entries are skipped."""
        chosen = None if path is None else project_relative(path_text(path), cwd=self._cwd, root=self._root)
        return self.log.recent(since=since, path=chosen, limit=limit, offset=offset)

    def receipt(self, entry: TransferEntry) -> Mapping[str, Any] | None:
        """See ``Project.receipt``."""
        from blobsync.transfer.ledger import read_receipt  # late: what runs has none yet

        return read_receipt(self._state.folder("receipts"), entry.receipt) if entry.receipt else None


def failures_in(receipt: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The failures in a receipt: path, code and message. Receipts of older versions have no messages."""
    return [
        {"path": str(each.get("path")), "code": str(each.get("code")), "message": each.get("message")}
        for each in (receipt or {}).get("failures", ())
    ]


def files_in(receipt: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The files in a receipt: the route or ``deleted`` as the ``action``, path, size, MD5 and ETag, and those of what
    was replaced or deleted (``was``)."""
    for file in (receipt or {}).get("files", ()):
        known = {name: file.get(name) for name in ("path", "size", "md5", "etag")}
        yield {"action": file.get("route"), **known, "was": file.get("replaced")}
    for file in (receipt or {}).get("deleted_files", ()):
        was = {name: file.get(name) for name in ("size", "md5", "etag")}
        yield {"action": "deleted", "path": file.get("path"), "size": None, "md5": None, "etag": None, "was": was}


def failure_text(failure: Mapping[str, Any]) -> str:
    """One of :func:`failures_in` for people."""
    path, message = failure["path"], failure["message"]
    if not message:
        return f"{path} ({failure['code']})"
    return f"{message if message.startswith(path) else f'{path}: {message}'} ({failure['code']})"


def open_logbook(environ: Mapping[str, str], on_trouble: Callable[[str], None]) -> LogBook:
    """The log of the project that contains the current folder. Raises ``ConfigError`` if there is none."""
    cwd = current_folder(environ)
    root = find_project(cwd, environ)
    return LogBook(root, cwd, open_state_dir(root, environ, on_trouble), on_trouble)


EndWith = Callable[[TransferEntry], None]


@contextmanager
def logged(log: TransferLog, entry: TransferEntry) -> Iterator[EndWith]:
    """Note ``entry`` now, and write at the end the entry that the block passed to its argument, or the failure of the
    block."""
    log.begin(entry)
    ends: list[TransferEntry] = []
    try:
        yield ends.append
    except TransferCancelledError as stop:
        done = entry_of(entry, stop.result, "cancelled") if isinstance(stop.result, TransferResult) else None
        log.write(done or entry.ended("cancelled", problem=stop.message))
        raise
    except KeyboardInterrupt:
        log.write(entry.ended("cancelled"))
        raise
    except Exception as error:
        log.write(entry.ended("failed", problem=error.message if isinstance(error, BlobsyncError) else repr(error)))
        raise
    for ended in ends:
        log.write(ended)


def transfer_kind(direction: Direction, *, copies: bool) -> str:
    """The kind of a transfer in the log; ``copies``: its source is in another cluster."""
    if direction is Direction.DOWN:
        return "download"
    return "copy" if copies else "upload"


def transfer_begun(plan: TransferPlan, command: str) -> TransferEntry:
    """The entry of a transfer that begins now; ``command`` is empty without a command line."""
    return TransferEntry(
        kind="undo"
        if plan.undoes
        else transfer_kind(plan.route.direction, copies=plan.route not in (Route.UPLOAD, Route.DOWNLOAD)),
        paths=plan.paths,
        command=command or plan.command,
        cluster=plan.cluster,
        from_cluster=plan.from_cluster,
        engine=plan.engine.name,
        mirror=plan.options.mirror and not plan.undoes,
        planned=plan.files_to_transfer,
        unchanged=plan.count(Action.UNCHANGED),
        conflicts=plan.count(Action.CONFLICT),
    )


def entry_of(entry: TransferEntry, result: TransferResult, word: str | None = None) -> TransferEntry:
    """The entry of a transfer that ended; ``word`` is its result if the exit code does not tell. Its duration is that
    of the result, as shown everywhere else."""
    ended = entry.ended(
        word or _RESULTS.get(result.exit_code, "failed"),
        transferred=result.transferred,
        deleted=result.deleted,
        failed=len(result.failures),
        bytes=result.bytes_transferred,
        receipt=result.receipt.name if result.receipt else entry.receipt,
    )
    return replace(ended, seconds=result.seconds)


def is_worth_logging(plan: TransferPlan) -> bool:
    """Whether anything moves, or is deleted, or should have been."""
    return bool(plan.files_to_transfer or plan.count(Action.DELETE) or plan.unreadable)


def upload_receipts(result: TransferResult, connections: Connections, note: Callable[[str], None]) -> None:
    """Upload the receipt beside the data, if ``--receipt`` was given."""
    if not result.plan.options.receipt or result.receipt is None:
        return
    from blobsync.transfer.ledger import upload_receipt

    for part in result.plan.parts:
        if isinstance(part.destination, BlobLocation):
            note(f"receipt: {upload_receipt(result.receipt, connections.open(part.destination))}")
