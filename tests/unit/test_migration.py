"""What an earlier version kept of a project is taken over once, whole, and by nobody while that version works there.

``tests/data/earlier_state`` was written by that version.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest

from blobsync.base.errors import BlobsyncError, LocalFileError, UsageError
from blobsync.base.file_states import LocalState
from blobsync.base.process_identity import ProcessMark
from blobsync.jobs.history import History
from blobsync.local.fetch_records import Fetch, FetchRecords
from blobsync.local.resume_records import BlockJournal, RangeRecords, RecordedRange, Unfinished, UnfinishedDownload
from blobsync.local.state_dir import StateDir
from blobsync.project.transfer_history import TransferEntry, TransferLog

SAMPLE = Path(__file__).parent.parent / "data/earlier_state"
EARLIER = {"blocks.sqlite", "begun", "running", "downloads", "fetches"}
WRITTEN = 1_760_000_000.0
BLOB = "https://account.blob.core.windows.net/container/data/big.bin"
DOWNLOAD = UnfinishedDownload(
    "/home/me/project/data/large.bin",
    "https://account.blob.core.windows.net/container/data/large.bin",
    "0x8E",
    20_000_000,
    ".blobsync-0123abcd.part",
    77,
)
RANGES = (RecordedRange(0, 8_000_000, bytes(4)), RecordedRange(8_000_000, 4_000_000, bytes(range(32))))
FETCH = Fetch(
    "https://account.blob.core.windows.net/container/data/object",
    "https://bucket.example.com/object",
    "v1",
    "0x8F",
    200_000_000,
    64 << 20,
)
DONE = "https://account.blob.core.windows.net/container/data/done.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "state"))


def log(folder: Path) -> list[tuple[str, str]]:
    return [(each.id, each.result) for each in TransferLog(folder / "jobs.sqlite").recent()]


def jobs(folder: Path) -> list[tuple[str, str]]:
    return [(each.run_id, str(each.state)) for each in History(folder / "jobs.sqlite").page()]


TRANSFERS = [
    ("00000005", "running"),
    ("00000004", "partial"),
    ("00000003", "done"),
    ("00000002", "done"),
    ("00000001", "done"),
]
JOBS = [
    ("me_1760000002_00000002", "Running"),
    ("me_1760000001_00000001", "Failed"),
    ("me_1760000000_00000000", "Completed"),
]


def whole(folder: Path) -> bool:
    return blocks(folder) and arrived(folder)


def blocks(folder: Path) -> bool:
    journal = BlockJournal(folder / "unfinished.sqlite", clock=lambda: WRITTEN)
    with closing(journal):
        sent = {hashlib.sha256(bytes([number])).digest(): 4_000_000 for number in range(3)}
        known = {BLOB: Unfinished(30_000_000, 1, 3, 12_000_000)}
        is_known = journal.staged(BLOB) == sent and journal.unfinished([BLOB]) == known
        return is_known and journal.committed([DONE]) == {DONE: "0x8D"}


def arrived(folder: Path) -> bool:
    download, fetch = (
        RangeRecords(StateDir(folder)).take(DOWNLOAD.destination),
        FetchRecords(StateDir(folder)).take(FETCH),
    )
    assert fetch is not None
    with closing(fetch):
        is_known = (fetch.run, fetch.blocks) == ("5fea9d1c8709c718", {0: 0x0123456789ABCDEF, 2: None})
    if download is None:
        return False
    with closing(download):
        return is_known and (download.of, download.ranges) == (DOWNLOAD, RANGES)


@pytest.mark.parametrize("first", [log, jobs, whole])
def test_all_is_there_whatever_is_asked_for_first(folder: Path, first: Callable[[Path], object]) -> None:
    first(folder)
    assert log(folder) == TRANSFERS and jobs(folder) == JOBS and whole(folder)
    assert {"jobs.sqlite", "transfers.sqlite", "unfinished.sqlite"} <= set(os.listdir(folder))
    assert not EARLIER & set(os.listdir(folder))
    # Once: what comes later is the newer version's own.
    TransferLog(folder / "jobs.sqlite").write(TransferEntry("rm", ("x",), id="00000006").ended("done"))
    assert [id for id, _ in log(folder)] == ["00000006", *(id for id, _ in TRANSFERS)]


def test_an_entry_is_what_it_was(folder: Path) -> None:
    found = TransferLog(folder / "jobs.sqlite").find("00000003")
    assert (found.kind, found.paths, found.bytes, found.host, found.began) == (
        *("upload", ("data/voc20",), 3000, "node1", WRITTEN + 3),
    )


def earlier_version(folder: Path, statement: str) -> None:
    """What that version did with its log."""
    with closing(sqlite3.connect(folder / "transfers.sqlite")) as db, db:
        if db.execute("PRAGMA user_version").fetchone()[0] != 1:
            db.executescript(
                "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS transfers (id TEXT PRIMARY KEY, began REAL NOT NULL,"
                " entry TEXT NOT NULL); CREATE INDEX IF NOT EXISTS by_time ON transfers (began);"
                " PRAGMA user_version = 1; COMMIT;"
            )
        db.execute(statement).fetchall()


@pytest.mark.parametrize("had_one", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT entry FROM transfers WHERE began >= 0.0 ORDER BY began DESC, id",
        "SELECT COUNT(*) FROM transfers",
        "INSERT OR REPLACE INTO transfers (id, began, entry) VALUES ('1', 2.0, '{}')",
    ],
)
def test_the_earlier_version_neither_reads_nor_writes_its_log_any_more(
    folder: Path, statement: str, *, had_one: bool
) -> None:
    if not had_one:
        (folder / "transfers.sqlite").unlink()
    jobs(folder)
    with pytest.raises(sqlite3.OperationalError, match="use a newer blobsync"):
        earlier_version(folder, statement)
    with closing(sqlite3.connect(folder / "jobs.sqlite")) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] > 5


def test_a_project_without_an_earlier_state_gets_no_file_of_one(tmp_path: Path) -> None:
    TransferLog(tmp_path / "jobs.sqlite").begin(TransferEntry("upload", ("data",), id="00000001"))
    assert log(tmp_path) == [("00000001", "running")]
    assert {name for name in os.listdir(tmp_path) if not name.endswith("-journal")} == {
        "jobs.sqlite",
        "unfinished.sqlite",
    }


def test_nothing_is_taken_from_the_folder_of_another_file(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with closing(BlockJournal(folder / "job.blocks.sqlite")) as journal:
        journal.begin(BLOB, LocalState(1, 2, 3, 4))
    assert {path: path.read_bytes() for path in before} == before


# -- the earlier version at work --------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def at_work(folder: Path, kind: str, pid: int, **changes: object) -> None:
    (folder / kind).mkdir(exist_ok=True)
    known = {"pid": pid, "born": ProcessMark.of(pid).born, "host": os.uname().nodename, "told": time.time()}
    (folder / kind / "0123abcd.json").write_text(json.dumps({"id": "0123abcd", "command": "u x", **known, **changes}))


@pytest.mark.parametrize("kind", ["running", "keepers"])
@pytest.mark.parametrize("ask", [log, jobs, whole])
def test_nothing_is_taken_from_a_process_of_the_earlier_version(
    folder: Path, other: subprocess.Popen[bytes], kind: str, ask: Callable[[Path], object]
) -> None:
    at_work(folder, kind, other.pid)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=rf"process {other.pid} of an earlier blobsync is at work .* \(u x\)"):
        ask(folder)
    assert {path: path.read_bytes() for path in before} == before
    other.kill()
    other.wait()
    assert log(folder) == TRANSFERS and jobs(folder) == JOBS and whole(folder)
    assert not list((folder / "keepers").glob("*.json")) if kind == "keepers" else not (folder / kind).exists()


def test_nothing_moves_while_the_earlier_version_works(folder: Path, other: subprocess.Popen[bytes]) -> None:
    at_work(folder, "keepers", other.pid)
    with pytest.raises(UsageError):
        TransferLog(folder / "jobs.sqlite").begin(TransferEntry("upload", ("data",)))


@pytest.mark.parametrize(("silent", "refused"), [(10.0, True), (600.0, False)])
def test_of_another_machine_it_is_at_work_while_it_says_so(folder: Path, *, silent: float, refused: bool) -> None:
    at_work(folder, "running", 7, host="elsewhere", told=time.time() - silent)
    if refused:
        with pytest.raises(UsageError, match="process 7 on elsewhere of an earlier blobsync"):
            log(folder)
    else:
        assert log(folder) == TRANSFERS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', '{"pid": 1e999, "host": 1, "told": 2}', "\0"])
def test_what_is_no_record_of_a_process_refuses_nothing(folder: Path, text: str) -> None:
    (folder / "running").mkdir()
    (folder / "running/0123abcd.json").write_text(text)
    assert log(folder) == TRANSFERS


# -- damage, kills and others at the same time ----------------------------------------------------------------------


def test_a_damaged_log_is_named_and_the_jobs_stay(folder: Path) -> None:
    jobs_before = (folder / "jobs.sqlite").read_bytes()
    (folder / "transfers.sqlite").write_bytes(b"no database, but long enough to be looked at" * 50)
    for ask in (log, jobs):
        with pytest.raises(LocalFileError, match=r"transfers\.sqlite of an earlier blobsync cannot be used") as raised:
            ask(folder)
        assert raised.value.hint and raised.value.hint.startswith("move transfers.sqlite away")
    assert (folder / "jobs.sqlite").read_bytes() == jobs_before
    (folder / "transfers.sqlite").replace(folder / "away")
    assert jobs(folder) == JOBS and log(folder) == TRANSFERS[:1]


@pytest.mark.parametrize("name", ["blocks.sqlite", "begun/00000005.json", "downloads/*.ranges"])
def test_damage_of_what_may_be_lost_loses_that_alone(folder: Path, name: str) -> None:
    (file,) = folder.glob(name)
    file.write_bytes(b"no database, but long enough to be looked at" * 50)
    assert jobs(folder) == JOBS
    assert blocks(folder) is (name != "blocks.sqlite")
    assert arrived(folder) is not name.startswith("downloads")
    assert log(folder) == TRANSFERS[name.startswith("begun") :]


def test_two_processes_at_once_take_it_over_once(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from blobsync.project.transfer_history import TransferLog; input();"
        "print(len(TransferLog(Path(sys.argv[1])).recent()))"
    )
    words = [sys.executable, "-c", program, str(folder / "jobs.sqlite")]
    both = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for each in both:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    assert [each.communicate()[0].strip() for each in both] == [str(len(TRANSFERS))] * 3
    assert log(folder) == TRANSFERS and jobs(folder) == JOBS and whole(folder)


def in_a_child(work: Callable[[], object]) -> int:
    """How a fork of this process that does it ends."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BlobsyncError:
            os._exit(2)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(call: int, work: Callable[[], object]) -> None:
    """Do it, and be killed at this call of or from a module of ``local``."""
    left = call

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if f"{os.sep}local{os.sep}" in frame.f_code.co_filename and event in ("call", "c_call"):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    work()


@pytest.mark.parametrize("step", [35, pytest.param(5, marks=pytest.mark.soak)])
def test_a_kill_at_any_call_loses_nothing(step: int, tmp_path: Path) -> None:
    kills = 0
    for call in range(1, 4_000, step):
        folder = Path(shutil.copytree(SAMPLE, tmp_path / f"{call}"))
        killed = in_a_child(lambda folder=folder, call=call: killed_at(call, lambda: (whole(folder), log(folder))))  # type: ignore[misc]
        assert log(folder) == TRANSFERS and jobs(folder) == JOBS and whole(folder), call
        assert not EARLIER & set(os.listdir(folder)), call
        shutil.rmtree(folder)
        kills += killed == -signal.SIGKILL
        if not killed:
            break
    assert kills > 250 / step


def test_a_disk_that_takes_nothing_leaves_the_earlier_state(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        jobs(folder)

    assert in_a_child(full) == 2
    assert {path: path.read_bytes() for path in before} == before
    assert log(folder) == TRANSFERS and jobs(folder) == JOBS and whole(folder)
