"""The log of transfers and removals, and the records of those that run now.

The log has one row for each upload, download, copy and removal, in SQLite, written at the end. When bytes begin to
move, a file is written instead, without waiting for the disk; the next reader puts it into the log, so that a running
and a killed transfer show as well. After a power failure such a beginning may be missing. The log contains no secret,
but whole command lines, so only the owner can read it. A failure to log stops nothing.

A running transfer is shown to other processes, which can ask it to stop. Each transfer writes a small record beside
the log, twice a second, from its first half second to its end, and so does the planning before it; each time it
checks for a request to stop. The record contains no secret. The record of a killed transfer, whose process is gone,
is removed by the next reader.

The record is a file named by the transfer's id, replaced atomically; the request to stop is an empty file beside it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blobsync.base.errors import (
    BlobsyncError,
    ExitCode,
    LocalFileError,
    NothingMatchedError,
    TransferCancelledError,
    UsageError,
)
from blobsync.base.events import Listener, debug_logger, together
from blobsync.base.locations import BlobLocation
from blobsync.base.patterns import pattern
from blobsync.base.plain_json import demand_types, parse_object
from blobsync.base.process_mark import ProcessMark
from blobsync.base.redaction import redact, redact_tree
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.base.user_data import user_name
from blobsync.config.mapping import PathName, path_text, project_relative
from blobsync.config.project_root import current_folder, find_project
from blobsync.local.database import Database, Layout
from blobsync.local.state_dir import StateDir, open_state_dir
from blobsync.plan.progress import WORKING, Progress, ProgressCounter, RatePoint, add_point, read_progress
from blobsync.plan.transfer_plan import Action, Direction, Route, TransferPlan, TransferResult
from blobsync.store.open_locations import Connections
from blobsync.transfer import ledger

_TABLES = """
CREATE TABLE IF NOT EXISTS transfers (id TEXT PRIMARY KEY, began REAL NOT NULL, entry TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_time ON transfers (began)
"""
RUNNING = "running"
KILLED = "killed"


@dataclass(frozen=True, slots=True, repr=False)
class TransferEntry:
    """One transfer or removal. Times in seconds since 1970, ``seconds`` is the duration.

    ``kind`` is ``upload``, ``download``, ``copy`` or ``rm``; ``mirror``: it also deleted what its source did not
    have. ``result`` is ``done``, ``partial``, ``failed``, ``cancelled``, ``running``, or ``killed`` for one that ended
    without a result. Counts are files; ``problem`` is why it failed as a whole. ``receipt`` names the file that lists
    every file of it.
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
    path = path.strip("/")
    return any(_inside(path, each) or _inside(each, path) for each in paths)


def _inside(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or not other


class TransferLog:
    """``file`` is created on first use. ``on_trouble`` gets one sentence if something could not be logged."""

    def __init__(self, file: Path, on_trouble: Callable[[str], None] = lambda text: None) -> None:
        # A short command waits for the disk no more often than SQLite requires.
        self._file = Database(
            file, Layout(1, _TABLES), "the log of transfers", "no data is affected", synchronous="NORMAL"
        )
        self._begun = RunningRecords(StateDir(file.parent), "begun")
        self._on_trouble = on_trouble

    def begin(self, entry: TransferEntry) -> None:
        """Leave a record for the next reader; never raises."""
        values = _values(entry)
        try:
            if len(json.dumps(values)) <= _LARGEST:
                self._begun.write(entry.id, values)
                return
        except (OSError, LocalFileError):
            pass
        # A command line with thousands of paths, or a folder that cannot be written.
        self.write(entry)

    def write(self, entry: TransferEntry) -> None:
        """Add or replace a row; never raises."""
        try:
            with self._file.writing() as db:
                db.execute("INSERT OR REPLACE INTO transfers (id, began, entry) VALUES (?, ?, ?)", _row(entry))
        except LocalFileError as error:
            self._on_trouble(f"this transfer is not in the history: {error.message}")
        else:
            self._begun.remove(entry.id)

    def _take_in(self) -> None:
        """Put the beginnings into the log. A transfer that has ended since has a row already, which stays."""
        found: list[TransferEntry] = []
        for id, values in self._begun.each():
            try:
                entry = _read_entry(values)
                if entry.id != id:
                    raise ValueError("it has the name of another one")
                found.append(entry)
            except (ValueError, TypeError, KeyError):
                self._begun.remove_old(id)
        if not found:
            return
        with self._file.writing() as db:
            rows = map(_row, found)
            db.executemany("INSERT OR IGNORE INTO transfers (id, began, entry) VALUES (?, ?, ?)", rows)
        for entry in found:
            self._begun.remove(entry.id)

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
        if not self._file.file.exists():
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
        if not self._file.file.exists():
            return
        with self._file.reading() as db:
            for row in db.execute(query, values):
                try:
                    entry = _entry(parse_object(row[0]))
                except (ValueError, TypeError, KeyError) as error:
                    raise self._file.failure(f"holds a row that blobsync did not write: {error}", error) from error
                yield entry


_NAMES = {each.name for each in fields(TransferEntry)}


def _row(entry: TransferEntry) -> tuple[str, float, str]:
    return entry.id, entry.began, json.dumps(_values(entry))


def _values(entry: TransferEntry) -> Any:
    return redact_tree(asdict(replace(entry, command=redact(entry.command), problem=redact(entry.problem))))


def _entry(values: Mapping[str, Any]) -> TransferEntry:
    entry = _read_entry(values)
    if entry.result == RUNNING and entry.host == os.uname().nodename and not _is_alive(entry.pid):
        return replace(entry, result=KILLED)
    return entry


def _read_entry(values: Mapping[str, Any]) -> TransferEntry:
    # A newer blobsync may have written more fields.
    known = {name: value for name, value in values.items() if name in _NAMES}
    if not isinstance(known["paths"], list):
        raise TypeError("paths is not a list")
    entry = TransferEntry(**{**known, "paths": tuple(known["paths"])})
    demand_types(entry)
    return entry


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's process.
        return True
    return True


_FOLDER = "running"
_LARGEST = 200_000
# Seconds after which an unreadable record is removed.
_ID = pattern(r"[0-9a-f]{8}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class RunningRecords:
    """The records of a project, in a sub-folder that is created on the first write."""

    def __init__(self, state: StateDir, name: str = _FOLDER) -> None:
        self._state = state
        self._name = name
        self._folder = state.root / name

    def write(self, id: str, values: Mapping[str, Any]) -> None:
        """Replace the record. Raises ``OSError`` and ``LocalFileError``."""
        fresh = self._state.folder(self._name) / f".{id}"
        with open(os.open(fresh, _WRITE, 0o600), "w", encoding="utf-8") as file:
            json.dump(redact_tree(values), file)
        os.replace(fresh, self._file(id))

    def each(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every readable record, with its ID. Raises ``LocalFileError`` if the folder cannot be read."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LocalFileError(f"{self._folder}: {error.strerror}", path=str(self._folder)) from error
        for name in names:
            file = self._folder / name
            try:
                if not _ID.fullmatch(file.stem):
                    raise ValueError("it is not a record, or was being written when its process was killed")
                yield file.stem, parse_object(_text(file))
            except (OSError, ValueError):
                _remove_old(file)

    def remove_old(self, id: str) -> None:
        """Remove a record that nobody can read, once it is a week old."""
        _remove_old(self._file(id))

    def request_stop(self, id: str) -> None:
        """Ask the transfer with this record to stop. Raises ``OSError`` and ``LocalFileError``."""
        self._state.folder(self._name)
        os.close(os.open(self._request(id), _WRITE, 0o600))

    def is_stop_requested(self, id: str) -> bool:
        """Whether this transfer was asked to stop."""
        return os.path.lexists(self._request(id))

    def remove(self, id: str) -> None:
        """Remove the record and the request to stop."""
        for file in (self._file(id), self._request(id)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _request(self, id: str) -> Path:
        return self._folder / f".{id}.stop"

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"


def _text(file: Path) -> str:
    with open(os.open(file, _READ), "rb") as source:
        return source.read(_LARGEST).decode("utf-8", "replace")


def _remove_old(file: Path) -> None:
    with suppress(OSError):
        if time.time() - file.lstat().st_mtime > _FORGOTTEN:
            file.unlink()


# Seconds between two records.
_EVERY = 0.5
# Maximum number of workers and paths in a record, which is written often.
_MOST_WORKERS = 200
_MOST_PATHS = 100
# Seconds without an update from another machine, after which its transfer may not see a request to stop.
_SILENT = 60.0
# Seconds without an update, after which a record of another machine is removed here.
_FORGOTTEN = 7 * 86400.0


@dataclass(frozen=True, slots=True, repr=False)
class RunningTransfer:
    """A transfer under way. ``id`` is that of its entry in the history, ``pid`` its process on ``host``, which began at
    ``born`` (in the kernel's clock ticks); ``told`` is the time of its last report (seconds since 1970). ``stoppable``:
    other processes may stop it, since a blobsync command runs it, or a program that used ``start_upload`` or the like.
    ``looks_for_stop``: it checks for the request, which older versions do not. ``kind``, ``paths``, ``command``,
    ``user`` and ``began`` are as in the history. ``planning``: nothing moves yet, and the history does not have it; the
    transfer then gets an id of its own. ``points`` are those of its rate curve, oldest first."""

    id: str
    pid: int
    born: str
    host: str
    stoppable: bool
    told: float
    progress: Progress
    kind: str = ""
    paths: tuple[str, ...] = ()
    command: str = ""
    user: str = ""
    began: float = 0.0
    planning: bool = False
    # The fields of RatePoint.
    points: tuple[tuple[float, int, float], ...] = ()
    looks_for_stop: bool = False

    def __repr__(self) -> str:
        return f"<RunningTransfer {self.id}: {'planning' if self.planning else self.progress!r}, process {self.pid}>"

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == os.uname().nodename

    def concerns(self, path: str) -> bool:
        """Whether a file or folder of the project takes part, or may take part."""
        return not self.paths or _concerns(self.paths, path)

    @property
    def silent(self) -> float:
        """Seconds since its last report."""
        return max(0.0, time.time() - self.told)


class RunningTransfers:
    """The running transfers of a project, from their records."""

    def __init__(self, state: StateDir) -> None:
        self._records = RunningRecords(state)

    def all(self) -> Mapping[str, RunningTransfer]:
        """The transfers by their ids. Records that are no longer updated are removed. Raises ``LocalFileError``."""
        found = {}
        for id, values in self._records.each():
            one = _running(id, values)
            if one is not None and _is_gone(one):
                self._records.remove(id)
            elif one is not None:
                found[id] = one
        return found

    def stop(self, id: str) -> None:
        """Ask the transfer to stop, as Ctrl-C does; returns at once. It sees the request within half a second.

        Raises ``NothingMatchedError`` if it has ended, ``UsageError`` if it would not see the request.
        """
        one = self.all().get(id)
        if one is None:
            raise NothingMatchedError(
                f"the transfer {id} is not running any more, or does not answer", hint="'blobsync history' has it"
            )
        if not one.is_here and (one.silent > _SILENT or not one.looks_for_stop):
            raise UsageError(f"the transfer {id} runs on {one.host}", hint="press Ctrl-C there")
        if not one.stoppable:
            raise UsageError(
                f"process {one.pid} is a program that uses blobsync, not a blobsync command",
                hint="stop the transfer in that program",
            )
        if not one.looks_for_stop:
            raise UsageError(
                f"an older blobsync runs the transfer {id}, and does not look for requests to stop",
                hint=f"press Ctrl-C there, or run 'kill {one.pid}'",
            )
        try:
            self._records.request_stop(id)
        except OSError as error:
            raise UsageError(f"the transfer {id} cannot be asked to stop: {error.strerror}") from error


def _running(id: str, values: Mapping[str, Any]) -> RunningTransfer | None:
    """Read a record; None if it is not one of this transfer."""
    try:
        points = tuple((at, moved, rate) for at, moved, rate in values.get("points", ()))
        known = {"progress": read_progress(values["progress"]), "paths": tuple(values.get("paths", ()))}
        found = RunningTransfer(**{**values, **known, "points": points})
        demand_types(found)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if found.id == id and 0 < found.pid < 2**31 else None


def _is_gone(one: RunningTransfer) -> bool:
    return not ProcessMark(one.pid, one.born).is_alive if one.is_here else one.silent > _FORGOTTEN


@contextmanager
def recorded_while_running(
    state: StateDir,
    entry: TransferEntry,
    listener: Listener,
    *,
    stoppable: bool,
    planning: bool = False,
    stop: StopRequest = NEVER,
    every: float = _EVERY,
) -> Iterator[Listener]:
    """Keep a record of the transfer ``entry`` while the block runs. Yields a listener that passes its events to
    ``listener`` and into the record. Other processes can make the request ``stop`` if the transfer is ``stoppable``.
    ``planning``: it is being planned, and the log has no such entry."""
    if not state.lasting:
        yield listener
        return
    known = RunningTransfer(
        entry.id, entry.pid, ProcessMark.of(entry.pid).born, entry.host, stoppable, 0.0, Progress("", 0.0),
        entry.kind, entry.paths[:_MOST_PATHS], redact(entry.command), entry.user, entry.began, planning,
        looks_for_stop=True,
    )  # fmt: skip
    recorder = _Recorder(RunningRecords(state), known, every, stop)
    recorder.begin()
    try:
        yield together(listener, recorder)
    finally:
        recorder.end()


class _Recorder(ProgressCounter):
    """Writes the record in a thread of its own, since the disk may be slow, and checks for a request to stop."""

    def __init__(self, records: RunningRecords, known: RunningTransfer, every: float, stop: StopRequest) -> None:
        super().__init__()
        self._records = records
        self._stop = stop
        self._every = every
        self._known = known
        self._points: list[RatePoint] = []
        self._start = self.clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def show(self, *, force: bool, began: bool = False) -> None:
        """Do nothing: the thread reads the numbers itself."""

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        if self._known.told or self._stop.made:
            self._records.remove(self._known.id)

    def _write(self) -> None:
        try:
            # Most commands end before the first record, and never create the folder.
            while not self._over.wait(self._every):
                now = self._now()
                if now.phase == "moving":
                    add_point(self._points, round(self.clock() - self._start, 2), now)
                self._known = replace(self._known, told=time.time(), progress=now, points=tuple(self._points))
                self._records.write(self._known.id, asdict(self._known))
                self._look()
        except (OSError, BlobsyncError) as error:
            if log := debug_logger(__name__):
                log.debug("other commands cannot see the progress of this transfer: %s", error)

    def _look(self) -> None:
        if self._known.stoppable and self._records.is_stop_requested(self._known.id):
            self._stop.make()

    def _now(self) -> Progress:
        with self.lock:
            now = self.progress(self.clock())
        last = self._known.progress
        if now.phase not in WORKING and last.files_expected:
            # While verifying, the numbers of the moves.
            now = replace(
                last, phase=now.phase, rate=0.0, seconds_left=None, doing="",
                waiting=now.waiting, waiting_seconds=now.waiting_seconds, retrying=now.retrying,
            )  # fmt: skip
        return replace(now, current=redact(now.current), workers=now.workers[:_MOST_WORKERS])


_RESULTS = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}


class LogBook:
    """The log in a project's state folder, and the receipts beside it. Needs no cluster file."""

    def __init__(self, root: Path, cwd: Path, state: StateDir, on_trouble: Callable[[str], None]) -> None:
        self._root = root
        self._cwd = cwd
        self._state = state
        self.log = TransferLog(state.root / "transfers.sqlite", on_trouble)
        self.running = RunningTransfers(state)

    def recent(
        self, *, since: float | None = None, path: PathName | None = None, limit: int | None = None, offset: int = 0
    ) -> tuple[TransferEntry, ...]:
        """See ``Project.history``; the newest ``offset`` entries are skipped."""
        chosen = None if path is None else project_relative(path_text(path), cwd=self._cwd, root=self._root)
        return self.log.recent(since=since, path=chosen, limit=limit, offset=offset)

    def receipt(self, entry: TransferEntry) -> Mapping[str, Any] | None:
        """See ``Project.receipt``."""
        return ledger.read_receipt(self._state.folder("receipts"), entry.receipt) if entry.receipt else None


def failures_in(receipt: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The failures in a receipt: path, code and message. Receipts of older versions have no messages."""
    return [
        {"path": str(each.get("path")), "code": str(each.get("code")), "message": each.get("message")}
        for each in (receipt or {}).get("failures", ())
    ]


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
    except BlobsyncError as error:
        log.write(entry.ended("failed", problem=error.message))
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
        kind=transfer_kind(plan.route.direction, copies=plan.route not in (Route.UPLOAD, Route.DOWNLOAD)),
        paths=plan.paths,
        command=command or plan.command,
        cluster=plan.cluster,
        from_cluster=plan.from_cluster,
        engine=plan.engine.name,
        mirror=plan.options.mirror,
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
        receipt=result.receipt.name if result.receipt else None,
    )
    return replace(ended, seconds=round(result.seconds, 3))


def is_worth_logging(plan: TransferPlan) -> bool:
    """Whether anything moves, or is deleted, or should have been."""
    return bool(plan.files_to_transfer or plan.count(Action.DELETE) or plan.unreadable)


def upload_receipts(result: TransferResult, connections: Connections, note: Callable[[str], None]) -> None:
    """Upload the receipt beside the data, if ``--receipt`` was given."""
    if not result.plan.options.receipt or result.receipt is None:
        return
    for part in result.plan.parts:
        if isinstance(part.destination, BlobLocation):
            note(f"receipt: {ledger.upload_receipt(result.receipt, connections.open(part.destination))}")
