"""Takes over what an earlier version kept of a project; nothing else reads its files.

It is refused while a process of that version works in the project: that would go on writing to the old files. What
must not be lost moves in one transaction over both files. The old log is left as a view of nothing, which the earlier
version can neither read nor write: it says so, and never shows an empty history.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from blobsync.base.errors import LocalFileError, UsageError
from blobsync.base.plain_json import parse_object
from blobsync.base.process_identity import ProcessMark
from blobsync.local.database import transaction, version_of

TRANSFERS = ("transfers.sqlite",)
_BLOCKS = "blocks.sqlite"
_BEGUN, _RUNNING, _KEEPERS = "begun", "running", "keepers"
_DOWNLOADS, _FETCHES = "downloads", "fetches"
UNFINISHED = (_BLOCKS, _BEGUN, _RUNNING, _DOWNLOADS, _FETCHES)

# Of jobs.sqlite.
VERSION = 5

# The earlier version fails to read it, and shows the name of the missing table.
_REFUSAL = """
create view earlier.transfers as select id, began, entry from "its rows are in jobs.sqlite now: use a newer blobsync"
"""
# A process of another machine that has written nothing for so long (seconds) is taken to be gone.
_SILENT = 60.0
_MOST = 32 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def take_over_transfers(db: sqlite3.Connection, file: Path, bring_up_to_date: Callable[[], None]) -> None:
    """Move the log of transfers into the file of the jobs."""
    (old,) = map(file.with_name, TRANSFERS)
    version = version_of(db)
    if version not in (0, VERSION) or (not version and not old.exists()):
        return
    _demand_alone(file.parent)
    try:
        # Made if it is missing: an earlier version must not find that nothing was transferred.
        db.execute("ATTACH ? AS earlier", (str(old),))
        db.execute("PRAGMA earlier.synchronous = FULL")
        db.execute("PRAGMA earlier.journal_mode = TRUNCATE")
        with transaction(db):
            bring_up_to_date()
            _move_log(db)
    except sqlite3.OperationalError:
        # Locked, or the disk is full: the file itself may be fine.
        raise
    except sqlite3.DatabaseError as error:
        raise LocalFileError(
            f"the log of transfers {old} of an earlier blobsync cannot be used: {error}",
            hint=f"move {old.name} away, and blobsync starts a new one; no data is affected",
            path=str(old),
        ) from error
    db.execute("DETACH earlier")
    with suppress(OSError):
        old.chmod(0o600)


def _move_log(db: sqlite3.Connection) -> None:
    (kind,) = db.execute("SELECT max(type) FROM earlier.sqlite_master WHERE name = 'transfers'").fetchone()
    if kind == "table":
        db.execute("INSERT OR IGNORE INTO main.transfers SELECT id, began, entry FROM earlier.transfers")
        db.execute("DROP TABLE earlier.transfers")
    if kind != "view":
        db.execute(_REFUSAL)
        db.execute("PRAGMA earlier.user_version = 1")


def take_over_unfinished(db: sqlite3.Connection, file: Path, bring_up_to_date: Callable[[], None]) -> None:
    """Move into the file which blocks were sent and which transfers had begun, and remove where that was."""
    folder = file.parent
    # On nodes a file of another name has these tables, in a folder that is not ours alone.
    if file.name != "unfinished.sqlite" or not any(os.path.lexists(folder / name) for name in UNFINISHED):
        return
    _demand_alone(folder)
    with transaction(db):
        if version_of(db):
            return
        bring_up_to_date()
        _copy_blocks(db, folder / _BLOCKS)
        begun = _records(folder / _BEGUN)
        db.executemany("INSERT OR IGNORE INTO running (kind, id, record) VALUES ('begun', ?, ?)", begun)
        _copy_pieces(db, folder / _DOWNLOADS, "destination", _range)
        _copy_pieces(db, folder / _FETCHES, "blob", _block)
        # Killed before the end, it starts once more.
        db.execute("PRAGMA user_version = 0")
    import shutil  # late, as an earlier state is seldom found

    for name in (_BEGUN, _RUNNING, _DOWNLOADS, _FETCHES):
        shutil.rmtree(folder / name, ignore_errors=True)
    for left in (*folder.glob(f"{_BLOCKS}*"), *(folder / _KEEPERS).glob("*.json")):
        left.unlink(missing_ok=True)


def _copy_blocks(db: sqlite3.Connection, file: Path) -> None:
    """All rows of the earlier journal of blocks; what is damaged saved sending only."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as old:
        rows = old.execute("SELECT blob, etag FROM committed").fetchall()
        db.executemany("INSERT OR IGNORE INTO committed VALUES (?, ?)", rows)
        for id, blob, size, mtime_ns, inode, at in old.execute("SELECT * FROM uploads").fetchall():
            head = {"size": size, "mtime_ns": mtime_ns, "inode": int(inode)}
            blocks = old.execute("SELECT sha256, size, current FROM blocks WHERE upload = ?", (id,)).fetchall()
            _copy_work(db, ("uploads", json.dumps(blob), json.dumps(head), at), blocks)


def _copy_pieces(
    db: sqlite3.Connection, folder: Path, name: str, piece: Callable[..., tuple[int, int, bytes | None]]
) -> None:
    """What had arrived of files and blobs: each was a file with a head, and a line for each piece.

    One that is not whole saved fetching only.
    """
    for _, text in _records(folder):
        head, *lines = text.splitlines()
        with suppress(ValueError, TypeError, KeyError):
            known = {key: value for key, value in parse_object(head).items() if not key.startswith("blobsync_")}
            work = (folder.name, json.dumps(known[name]), json.dumps(known), time.time())
            _copy_work(db, work, [piece(*line.split(" ")) for line in lines])


def _copy_work(
    db: sqlite3.Connection, work: tuple[str, str, str, float], pieces: list[tuple[bytes | int, int, bytes | int | None]]
) -> None:
    id = int.from_bytes(os.urandom(7), "big")
    if db.execute("INSERT OR IGNORE INTO unfinished VALUES (?, ?, ?, ?, ?)", (id, *work)).rowcount:
        db.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?)", [(id, *piece) for piece in pieces])


def _range(start: str, length: str, checksum: str) -> tuple[int, int, bytes]:
    return int(start, 16), int(length, 16), bytes.fromhex(checksum)


def _block(index: str, crc64: str) -> tuple[int, int, bytes | None]:
    return int(index), 1, None if crc64 == "-" else bytes.fromhex(crc64)


def _demand_alone(folder: Path) -> None:
    """Raise ``UsageError`` if a process of the earlier version transfers or keeps files in this project."""
    for _, text in (*_records(folder / _RUNNING), *_records(folder / _KEEPERS)):
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            known = parse_object(text)
            pid, host, told = int(known["pid"]), str(known["host"]), float(known["told"])
            is_here = host == os.uname().nodename
            if ProcessMark(pid, known["born"]).is_alive if is_here else time.time() - told < _SILENT:
                raise UsageError(
                    f"process {pid}{'' if is_here else f' on {host}'} of an earlier blobsync is at work in this project"
                    f" ({known.get('command') or 'no command line'}): its records in {folder} cannot be taken over yet",
                    hint="run the command again when it has ended; the earlier blobsync ends a keeper with"
                    " 'blobsync keep stop', anything else with Ctrl-C",
                )


def _records(folder: Path) -> Iterator[tuple[str, str]]:
    """The records in a folder, by the names of their files."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith((".json", ".ranges", ".blocks")) and not name.startswith("."):
                with suppress(OSError), open(os.open(folder / name, _READ), "rb") as source:
                    yield name.partition(".")[0], source.read(_MOST).decode("utf-8", "replace")
