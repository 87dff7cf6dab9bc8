"""The direct engine with worker processes: the suite of all engines, and lost or lying workers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from blobsync.base.errors import LoginRequiredError
from blobsync.base.events import BytesMoved, Event
from blobsync.base.locations import BlobContainer
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.redaction import Secret
from blobsync.base.stopping import StopRequest
from blobsync.config.model import StorageAccount
from blobsync.direct.engine import DirectEngine
from blobsync.spread.process_engine import ProcessEngine
from blobsync.spread.worker_pipe import Credentials
from blobsync.store.connect import signer_for
from blobsync.store.protocol import BlobStore
from blobsync.store.rest.request_signing import BearerSigner, Signer
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.conftest import Azurite
from tests.contract.test_engines import (  # noqa: F401 - they run here with the fixtures below
    azurite_containers,
    content,
    read,
    succeed,
    test_a_blob_that_changed_since_the_plan_is_not_downloaded,
    test_a_download_replaces_only_the_version_that_was_planned_for,
    test_a_file_that_changed_since_the_plan_is_not_uploaded,
    test_a_single_file_takes_exactly_the_given_name,
    test_an_upload_replaces_only_the_version_that_was_planned_for,
    test_every_size_goes_there_and_back,
    test_odd_names_go_there_and_back,
    test_the_content_type_comes_from_the_name,
    write_tree,
)
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, capped, ctrl_c_after, download, moved_by, upload

_MODULE = "blobsync.spread.worker_process"


def _children() -> list[int]:
    """The workers of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if _MODULE in Path("/proc", pid, "cmdline").read_text():
                found.append(int(pid))
    return found


class Killer(RecordingListener):
    """Kills all workers at once as soon as so many bytes have moved."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after
        self.killed: list[int] = []

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, BytesMoved) and not self.killed and self.bytes >= self._after:
            self.killed = _children()
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def store(azurite: Azurite) -> BlobStore:
    return azurite_containers(azurite)[0]


def _no_copies(_: object) -> None:
    return None


def _credentials(azurite: Azurite) -> Credentials:
    def signer(container: BlobContainer) -> Signer:
        key = Secret(azurite.keys[container.account])
        file = StorageAccount("t.yaml", container.account, container.name, container.endpoint, account_key=key)
        return signer_for(file)

    return Credentials(signer, _no_copies, {})


@pytest.fixture
def direct(azurite: Azurite) -> ProcessEngine:
    """Replaces the engine of one process."""
    return ProcessEngine(DirectEngine(), lambda files, size: 2, _credentials(azurite))


def _tree(count: int = 40) -> dict[str, bytes]:
    files = {f"d{number % 7}/f{number}": content(number * 37 % 20_000, seed=number) for number in range(count)}
    return files | {f"large{number}": content(3_000_000 + number, seed=number) for number in range(2)}


# -- a worker is lost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_killed_worker_loses_nothing_and_doubles_nothing(
    direct: ProcessEngine, store: BlobStore, tmp_path: Path, way: str
) -> None:
    files = _tree()
    total = sum(map(len, files.values()))
    write_tree(tmp_path / "up", files)
    # Early: a worker may be done while this process waits for the processor.
    listener = Killer(total // 10)
    up = upload(tmp_path / "up", store, "p")
    if way == "up":
        report = moved_by(direct, capped(up, 50), listener)
    else:
        succeed(DirectEngine(), up)
        report = moved_by(direct, capped(download(store, "p", tmp_path / "down", list(files)), 50), listener)
    assert listener.killed
    assert report.failed == []
    assert sorted(moved.action.path for moved in report.moved) == sorted(files)
    assert listener.bytes == total
    assert any("was killed by signal 9" in note for note in listener.notes), listener.notes
    # The bar names files of the workers, as a user would type them.
    assert listener.begun
    assert all(count > 0 and path.startswith(f"{up.part.path}/") for count, path in listener.begun)
    if way == "up":
        assert {blob.name for blob in store.list_blobs("p/")} == {f"p/{name}" for name in files}
        assert {name: read(store, f"p/{name}") for name in files} == files
    else:
        found = {path for path in (tmp_path / "down").rglob("*") if path.is_file()}
        assert {str(path.relative_to(tmp_path / "down")): path.read_bytes() for path in found} == files
    assert not _children()


def test_an_interrupt_ends_the_workers_and_leaves_nothing_half_done(
    azurite: Azurite, store: BlobStore, tmp_path: Path
) -> None:
    # Of workers that are killed because they take too long, files may be there that they have not told.
    direct = ProcessEngine(DirectEngine(), lambda files, size: 2, _credentials(azurite), patience=60.0)
    files = _tree()
    write_tree(tmp_path / "up", files)
    succeed(DirectEngine(), upload(tmp_path / "up", store, "p"))
    report = CollectedReport()
    task = capped(download(store, "p", tmp_path / "down", list(files)), 8)
    with ctrl_c_after(1.5), pytest.raises(KeyboardInterrupt):
        direct.move(task, report, RecordingListener())
    assert not _children()
    found = {str(path.relative_to(tmp_path / "down")) for path in (tmp_path / "down").rglob("*") if path.is_file()}
    assert found == {moved.action.path for moved in report.moved}
    assert len(found) < len(files)


def test_a_request_from_another_thread_ends_the_workers_as_ctrl_c_does(
    direct: ProcessEngine, store: BlobStore, tmp_path: Path
) -> None:
    files, stop = _tree(), StopRequest()
    write_tree(tmp_path / "up", files)

    class Stopping(RecordingListener):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if isinstance(event, BytesMoved):
                threading.Thread(target=stop.make).start()

    report = CollectedReport()
    with pytest.raises(KeyboardInterrupt):
        direct.move(capped(upload(tmp_path / "up", store, "p"), 8)._replace(stop=stop), report, Stopping())
    assert not _children() and len(report.moved) < len(files)


# -- a worker that is not what it should be ---------------------------------------------------------------


_WORKER = """
import json, sys
sys.stdin.readline()
print('{"blobsync_records": 1}', flush=True)
paths = []
for line in sys.stdin:
    said = json.loads(line)
    if "stop" in said:
        break
    if "path" in said and "blobsync_shard" not in said:
        paths.append(said["path"])
    if "end" in said:
        %s
        paths = []
"""


_CLAIM = """
        state = {"size": 5, "etag": "e", "md5": None}
        print(json.dumps({"path": paths[0], "source": None, "destination": state, "reused": 0}), flush=True)
""".strip()


class Kept(ProcessRunner):
    """The real runner, which keeps the processes that it starts: ``instead`` of workers, if that is given."""

    def __init__(self, *instead: str) -> None:
        patience = {"terminate_after": 0.3, "kill_after": 0.3} if instead else {}
        super().__init__(**patience)
        self._instead = instead
        self.started: list[RunningProcess] = []

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> RunningProcess:
        self.started.append(super().start(self._instead or argv, env=env, cwd=cwd))
        return self.started[-1]


class Refusing(DirectEngine):
    """Nothing may come here."""

    def move(self, task: MoveTask, report: object, listener: object) -> None:
        raise AssertionError("not for this process")


def _no_token() -> tuple[Secret, float]:
    raise LoginRequiredError("nobody is signed in", hint="az login")


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("sys.exit(7)", "it ended with code 7"),
        ("print('{\"done\": 0}', flush=True)", "it said nothing of"),
        ("print('nonsense', flush=True)", "it sent what is no record"),
        ('print(\'{"path": "../../etc/passwd", "code": "error", "message": "m"}\', flush=True)', "cannot be"),
        (_CLAIM, "cannot be"),
    ],
    ids=["dies", "is silent", "is no worker", "names another file", "claims success"],
)
def test_files_whose_workers_fail_again_and_again_are_named(then: str, why: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {f"f{number}": b"12345" for number in range(40)})
    workers, report, listener = Kept(sys.executable, "-c", _WORKER % then), CollectedReport(), RecordingListener()
    credentials = Credentials(lambda container: BearerSigner(_no_token), _no_copies, {})
    engine = ProcessEngine(Refusing(), lambda files, size: 2, credentials, workers)
    engine.move(upload(tmp_path, MemoryStore(), "p"), report, listener)
    assert report.moved == []
    assert sorted(action.path for action, _ in report.failed) == sorted(f"f{number}" for number in range(40))
    failures = [failure for _, failure in report.failed]
    assert {failure.code for failure in failures} == {"not_reported"}
    assert all(why in failure.message for failure in failures)
    assert {failure.hint for failure in failures} == {"run the same command again with --processes 1"}
    # Two shards with three attempts each, in halves.
    assert len(workers.started) <= 2 * (1 + 2 + 4)
    assert all("another one moves its" in note for note in listener.notes)


def test_a_worker_that_cannot_import_itself_says_why(store: BlobStore, azurite: Azurite, tmp_path: Path) -> None:
    write_tree(tmp_path, {"a": b"1", "b": b"2"})
    listener, broken = RecordingListener(), Kept(sys.executable, "-c", "import nothing_like_it")
    engine = ProcessEngine(DirectEngine(), lambda files, size: 2, _credentials(azurite), broken)
    assert len(moved_by(engine, upload(tmp_path, store, "p"), listener).moved) == 2
    (note,) = listener.notes
    assert "No module named 'nothing_like_it'" in note


def test_workers_of_a_program_that_ignores_ctrl_c_end_by_themselves(
    store: BlobStore, azurite: Azurite, tmp_path: Path
) -> None:
    write_tree(tmp_path, {"a": b"1", "b": b"2"})
    kept = Kept()
    # On a busy machine they may take longer than they are given, and would be killed.
    patience = 60.0
    engine = ProcessEngine(DirectEngine(), lambda files, size: 2, _credentials(azurite), kept, patience=patience)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert len(moved_by(engine, upload(tmp_path, store, "p"), RecordingListener()).moved) == 2
    finally:
        signal.signal(signal.SIGINT, usual)
    assert [process.wait(0) for process in kept.started] == [130, 130]


def test_no_secret_is_in_an_argument_or_in_the_environment(azurite: Azurite, store: BlobStore, tmp_path: Path) -> None:
    write_tree(tmp_path, {f"f{number}": content(400_000, seed=number) for number in range(8)})
    seen: list[bytes] = []

    class Looking(RecordingListener):
        def emit(self, event: Event) -> None:
            for pid in _children() if isinstance(event, BytesMoved) else ():
                seen.extend(Path("/proc", str(pid), name).read_bytes() for name in ("cmdline", "environ"))

    os.environ["BLOBSYNC_TEST_KEY"] = azurite.keys["one"]
    try:
        engine = ProcessEngine(DirectEngine(), lambda files, size: 2, _credentials(azurite))
        report = moved_by(engine, capped(upload(tmp_path, store, "p"), 50), Looking())
    finally:
        del os.environ["BLOBSYNC_TEST_KEY"]
    assert len(report.moved) == 8
    assert any(_MODULE.encode() in text for text in seen)
    assert any(b"PATH=" in text for text in seen)
    assert not any(azurite.keys["one"].encode() in text for text in seen)
