"""A SQLite file of ours: opened, brought up to date, locked; a damaged one is an error, or begins anew if expendable.

A :class:`Database` is kept: if it cannot be used, that is an error, and no version but its own changes it. An
:class:`ExpendableDatabase` only saves work: it never raises, and a damaged or unknown file starts anew. Whose files
count says the seal of the folder around them (``state_dir``); they are for the owner alone to read.

They use a rollback journal (not WAL): project folders live on network file systems, where WAL's shared memory does not
work (https://www.sqlite.org/wal.html, "Disadvantages"). The journal is emptied, not deleted, after a transaction:
creating it again would sync its folder once more (https://www.sqlite.org/pragma.html#pragma_journal_mode).
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from blobsync.base.errors import BlobsyncError, LocalFileError
from blobsync.base.records import NamedTuple

_T = TypeVar("_T")

# How long to wait for another process's transaction.
_PATIENCE_SECONDS = 30.0
# Fewer host parameters than SQLite's old limit of 999 (https://www.sqlite.org/limits.html).
_BATCH = 500


class Layout(NamedTuple):
    """The ``tables`` of a ``version``, as statements that create those that are missing. The versions before it that it
    ``extends`` lack nothing but whole tables.

    An earlier version kept some of it in the files and folders ``earlier`` beside the file: ``take_over`` gets the
    connection, the file, and what brings it up to date in the transaction that is open then.
    """

    version: int
    tables: str
    extends: tuple[int, ...] = ()
    earlier: tuple[str, ...] = ()
    take_over: Callable[[sqlite3.Connection, Path, Callable[[], None]], None] | None = None

    def exists(self, file: Path) -> bool:
        """Whether there is something to read."""
        return any(map(os.path.lexists, (file, *map(file.with_name, self.earlier))))


class _NewerFileError(sqlite3.Error):
    """The file is of a version that has no step to ours."""


class Database:
    """Safe to use from several threads and processes. Raises ``error`` if the file cannot be used.

    ``what`` names it in that error; ``costs`` says what is lost with the file. ``synchronous`` is SQLite's.
    """

    def __init__(
        self,
        file: Path,
        layout: Layout,
        what: str,
        costs: str,
        *,
        error: type[BlobsyncError] = LocalFileError,
        synchronous: str = "FULL",
    ) -> None:
        self.file = file
        self._layout = layout
        self._what = what
        self._costs = costs
        self._error = error
        self._synchronous = synchronous

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the file for the block; makes it if it is missing."""
        try:
            with closing(_connected(self.file, self._layout, self._synchronous)) as db:
                db.row_factory = sqlite3.Row
                yield db
        except (sqlite3.Error, OSError) as error:
            raise self.failure(f"cannot be used: {error}", error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The same; the block is one transaction."""
        with self.reading() as db, transaction(db):
            yield db

    @property
    def exists(self) -> bool:
        """Whether there is something to read."""
        return self._layout.exists(self.file)

    def failure(self, why: str, error: Exception) -> BlobsyncError:
        """The error to raise: ``why`` goes on with a sentence that begins with the file."""
        hint = f"move {self.file.name} away, and blobsync starts a new one; {self._costs}"
        if isinstance(error, _NewerFileError):
            hint = "use that version, or a newer one"
        elif isinstance(error, (sqlite3.OperationalError, OSError)):
            # Locked, disk full, no right to write: the file itself may be fine.
            hint = f"run the command again; if that does not help, {hint}"
        return self._error(f"{self._what} {self.file} {why}", hint=hint, path=str(self.file))


class ExpendableDatabase:
    """Opens on first use; safe to use from several threads and processes. Never raises.

    ``on_trouble`` gets one sentence if the file cannot be used, or if it was damaged, with its new name.
    ``synchronous`` is SQLite's: with ``OFF`` nothing waits for the disk, and a power failure may damage the file.
    """

    def __init__(
        self, file: Path, layout: Layout, on_trouble: Callable[[str], None], *, synchronous: str = "OFF"
    ) -> None:
        self._file = file
        self._layout = layout
        self._synchronous = synchronous
        self._on_trouble = on_trouble
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._given_up = False

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Return what ``work`` returns; None if there is no readable file."""
        return self._do(work) if self._connection is not None or self._layout.exists(self._file) else None

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` as one transaction."""

        def whole(db: sqlite3.Connection) -> None:
            with transaction(db):
                work(db)

        self._do(whole)

    @property
    def given_up(self) -> bool:
        """Whether the file could not be used, and is left alone from then on."""
        return self._given_up

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            opened, self._connection = self._connection, None
            if opened is not None:
                with suppress(sqlite3.Error):
                    opened.close()

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run ``work``; if the file is damaged start a new one and try once more, else continue without it."""
        with self._lock:
            for attempt in (1, 2):
                if self._given_up:
                    return None
                try:
                    if self._connection is None:
                        self._connection = _connected(self._file, self._layout, self._synchronous, starts_anew=True)
                    return work(self._connection)
                except sqlite3.OperationalError as error:
                    # Locked for too long, disk full, read-only: the file itself may be fine.
                    self.close()
                    self._given_up = True
                    self._on_trouble(f"{self._file} cannot be used ({error})")
                except sqlite3.DatabaseError as error:
                    self.close()
                    if attempt == 1:
                        self._set_aside(error)
        return None

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        broken = self._file.with_name(f"{self._file.name}.broken-{int(time.time())}")
        with suppress(OSError):
            self._file.replace(broken)
        self._on_trouble(f"{self._file} was damaged ({error}) and is kept as {broken.name}")


def storable(text: str) -> bool:
    """Whether SQLite accepts the text. Names that are not UTF-8 arrive as surrogates; they never have a record."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _connected(file: Path, layout: Layout, synchronous: str, *, starts_anew: bool = False) -> sqlite3.Connection:
    """Open the file, with the tables of our version. Raises ``sqlite3.Error``, also for a file of an unknown version,
    unless that ``starts_anew``."""
    db = sqlite3.connect(file, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # Even with OFF, what a killed process handed to the system is kept.
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA journal_mode = TRUNCATE")
        if version_of(db) != layout.version:

            def bring_up_to_date() -> None:
                _bring_up_to_date(db, file, layout, starts_anew=starts_anew)

            if layout.take_over is not None:
                layout.take_over(db, file, bring_up_to_date)
            # Of processes that are first at once the others wait here, and find what one of them has made.
            with transaction(db):
                bring_up_to_date()
    except BaseException:
        db.close()
        raise
    return db


def _bring_up_to_date(db: sqlite3.Connection, file: Path, layout: Layout, *, starts_anew: bool) -> None:
    version = version_of(db)
    if version == layout.version:
        return
    if version and version not in layout.extends:
        if not starts_anew and version > layout.version:
            raise _NewerFileError("it was written by a newer blobsync")
        if not starts_anew:
            raise sqlite3.DatabaseError("it was written by a much older blobsync")
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            db.execute(f'DROP TABLE "{name}"')
    # Where that fails, its folder is for the owner alone.
    with suppress(OSError):
        file.chmod(0o600)
    # Not as a script: that would end the transaction.
    for statement in layout.tables.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {layout.version}")


def version_of(db: sqlite3.Connection) -> int:
    """The version of an open file; 0 if it is new."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def rows_in(
    db: sqlite3.Connection, query: str, before: tuple[object, ...], values: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """The rows of ``query``, whose last column is to be one of ``values``; ``before`` are its parameters till then."""
    for start in range(0, len(values), _BATCH):
        batch = values[start : start + _BATCH]
        yield from db.execute(f"{query} IN ({','.join('?' * len(batch))})", (*before, *batch))


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The block is one transaction."""
    # A reader that starts to write later could be refused without waiting.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
