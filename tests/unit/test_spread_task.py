"""A task of a spread transfer: run once, run again, stopped, and with several processes."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, FailureCode, StorageError
from blobsync.base.events import Listener, Note
from blobsync.base.file_states import RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.direct.engine import DirectEngine
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, ShardDone, read_body
from blobsync.spread.shared_store import FolderStore, SealedStore
from blobsync.spread.task import task_name
from blobsync.transfer.engines import MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import copy, download, upload
from tests.fakes.tasks_of_a_job import KEY, put_shard, store_of, task_of
from tests.waiting import wait_until

_FILES = 10


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(_FILES):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, MemoryStore("box"), "sets")


@pytest.fixture
def place(tmp_path: Path) -> SealedStore:
    return SealedStore(FolderStore(tmp_path / "place"), KEY, "run", lambda text: None)


def _recorded(place: SealedStore, task: MoveTask) -> list[Answer]:
    return read_body(place.read(f"records/{task_name(0)}") or b"", task.part.route)


def _files(answers: list[Answer]) -> dict[str, FileRecord]:
    return {each.path: each for each in answers if isinstance(each, FileRecord)}


class Fails:
    """Moves the first files, then is stopped or breaks."""

    name = "direct"

    def __init__(self, count: int, error: BaseException | None, told: list[MoveTask] | None = None) -> None:
        self._count, self._error, self.told = count, error, told if told is not None else []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.told.append(task)
        DirectEngine().move(task._replace(actions=task.actions[: self._count]), report, listener)
        if self._error is not None:
            raise self._error


def test_a_task_moves_its_shard_and_writes_one_record(task: MoveTask, place: SealedStore) -> None:
    put_shard(place, task)
    log: list[str] = []
    made = task_of(place, 0, [task.part])
    made.log = log.append
    assert made.run()
    answers = _recorded(place, task)
    assert isinstance(answers[-1], ShardDone) and place.names("records") == [task_name(0)]
    found = _files(answers)
    for action in task.actions:
        record = found[action.path]
        assert isinstance(record.destination, RemoteState) and record.source is not None
        assert record.destination.etag == store_of(task).blobs[f"sets/{action.path}"].info.etag
        assert record.source.md5 == record.destination.md5
    assert log == ["task 0 of data/x: 10 files, 45 B, 0 failed"]


def test_a_task_that_is_done_does_nothing_when_it_is_run_again(task: MoveTask, place: SealedStore) -> None:
    put_shard(place, task)
    assert task_of(place, 0, [task.part]).run()
    before, asked = place.read(f"records/{task_name(0)}"), len(store_of(task).requests)
    again = Fails(0, None)
    assert task_of(place, 0, [task.part], again).run()
    assert not again.told and place.read(f"records/{task_name(0)}") == before
    assert len(store_of(task).requests) == asked


def test_a_task_that_was_killed_without_a_word_replaces_nothing_when_it_is_run_again(
    task: MoveTask, place: SealedStore
) -> None:
    put_shard(place, task)
    for action in task.actions[:5]:
        assert isinstance(task.part.source, LocalLocation)
        store_of(task).add(f"sets/{action.path}", task.part.source.at(action.path).read_bytes())
    # One file is somebody else's.
    store_of(task).add("sets/f7", b"strange")
    etags = {name: blob.info.etag for name, blob in store_of(task).blobs.items()}
    assert task_of(place, 0, [task.part]).run()
    found = _files(_recorded(place, task))
    assert {name for name, each in found.items() if each.failure} == {"f7"}
    assert found["f7"].failure is not None and found["f7"].failure.code is FailureCode.CHANGED_MEANWHILE
    for name, etag in etags.items():
        assert store_of(task).blobs[name].info.etag == etag
        there = found[name.removeprefix("sets/")].destination
        assert there is None or (isinstance(there, RemoteState) and there.etag == etag)


@pytest.mark.parametrize("route", ["download", "copy"])
def test_what_a_killed_task_fetched_or_copied_is_found_by_its_content(
    route: str, place: SealedStore, tmp_path: Path
) -> None:
    here, root = MemoryStore("here"), tmp_path / "down"
    there = MemoryStore("there", {"here": here})
    root.mkdir()
    for name in ("a", "b", "strange"):
        here.add(f"p/{name}", name.encode())
    names = ["a", "b", "strange"]
    task = download(here, "p", root, names) if route == "download" else copy(here, "p", there, "q", names)
    put_shard(place, task)
    for name, body in (("a", b"a"), ("strange", b"another")):
        if route == "download":
            (root / name).write_bytes(body)
        else:
            there.add(f"q/{name}", body)
    assert task_of(place, 0, [task.part]).run()
    found = _files(_recorded(place, task))
    assert {name for name, each in found.items() if each.failure} == {"strange"}
    assert found["a"].destination is not None and found["b"].destination is not None
    assert ((root / "strange").read_bytes() if route == "download" else there.body("q/strange")) == b"another"


def test_ctrl_c_leaves_a_record_of_what_has_moved_and_the_next_run_goes_on_from_there(
    task: MoveTask, place: SealedStore
) -> None:
    put_shard(place, task)
    with pytest.raises(KeyboardInterrupt):
        task_of(place, 0, [task.part], Fails(4, KeyboardInterrupt())).run()
    answers = _recorded(place, task)
    assert len(_files(answers)) == 4 and not any(isinstance(each, ShardDone) for each in answers)
    later = Fails(_FILES, None)
    assert task_of(place, 0, [task.part], later).run()
    assert [len(each.actions) for each in later.told] == [_FILES - 4]
    assert len(_files(_recorded(place, task))) == _FILES


def test_a_file_that_failed_before_is_tried_again(task: MoveTask, place: SealedStore) -> None:
    put_shard(place, task)
    store_of(task).add("sets/f7", b"strange")
    engine = Fails(_FILES - 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        task_of(place, 0, [task.part], engine).run()
    store_of(task).delete("sets/f7")
    assert task_of(place, 0, [task.part]).run()
    assert not [each for each in _files(_recorded(place, task)).values() if each.failure]


def test_what_the_engine_does_not_report_is_tried_once_more_and_then_left_open(
    task: MoveTask, place: SealedStore
) -> None:
    put_shard(place, task)
    engine = Fails(3, None)
    assert not task_of(place, 0, [task.part], engine).run()
    assert [len(each.actions) for each in engine.told] == [10, 7]
    assert len(_files(_recorded(place, task))) == 6


@pytest.mark.parametrize("left", [None, b"no seal", "another task's"])
def test_without_its_own_sealed_shard_a_task_does_nothing(
    left: bytes | str | None, task: MoveTask, place: SealedStore, tmp_path: Path
) -> None:
    put_shard(place, task)
    file = tmp_path / "place" / "shards" / task_name(0)
    if isinstance(left, str):
        place.write(f"shards/{task_name(1)}", place.read(f"shards/{task_name(0)}") or b"")
        file.write_bytes((tmp_path / "place" / "shards" / task_name(1)).read_bytes())
    else:
        file.write_bytes(left or b"")
    if left is None:
        file.unlink()
    with pytest.raises(BlobsyncError, match="is not there as it was left"):
        task_of(place, 0, [task.part]).run()
    assert not place.names("records") and not store_of(task).blobs


def test_a_shard_between_other_ends_is_refused(task: MoveTask, place: SealedStore) -> None:
    put_shard(place, task)
    other = replace(task.part, source=LocalLocation(Path("/elsewhere")))
    with pytest.raises(FormatError, match="other ends than the orders"):
        task_of(place, 0, [other]).run()
    assert not store_of(task).blobs


def test_a_store_that_is_down_is_the_tasks_error(task: MoveTask, place: SealedStore) -> None:
    put_shard(place, task)
    with pytest.raises(StorageError, match="down"):
        task_of(place, 0, [task.part], Fails(2, StorageError("down"))).run()


def test_notes_of_the_engine_are_in_the_record(task: MoveTask, place: SealedStore) -> None:
    class Tells(DirectEngine):
        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            listener.emit(Note("a sentence"))
            super().move(task, report, listener)

    put_shard(place, task)
    assert task_of(place, 0, [task.part], Tells()).run()
    assert Note("a sentence") in _recorded(place, task)


def test_what_a_task_has_downloaded_is_on_the_disk_before_its_record(place: SealedStore, tmp_path: Path) -> None:
    store, said, waited = MemoryStore("box"), list[str](), list[str]()
    for name in "ab":
        store.add(f"sets/{name}", name.encode())
    task = download(store, "sets", tmp_path / "data", ["a", "b"])
    put_shard(place, task)

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        assert not place.names("records")
        waited.extend(files)
        return {file: OSError(errno.EIO, "Input/output error") for file in files if file.endswith("/b")}

    made = task_of(place, 0, [task.part], wait=wait)
    made.log = said.append
    assert made.run()
    assert sorted(waited) == [str(tmp_path / "data" / name) for name in "ab"]
    assert said[0] == f"{tmp_path}/data/b: Input/output error: a power failure may take it"


# -- several processes ---------------------------------------------------------------------------------------------

# Another program for each test: this one has threads, and must not be forked.
_PROGRAM = """\
import os, signal, sys
from pathlib import Path
from blobsync.direct.engine import DirectEngine
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import download
from tests.fakes.tasks_of_a_job import KEY, put_shard, task_of
from tests.unit.test_spread_task import _files, _recorded
from blobsync.spread.record import ShardDone
from blobsync.spread.shared_store import FolderStore, SealedStore

folder = Path(sys.argv[1])
store = MemoryStore("box")
names = [f"f{number}" for number in range(40)]
for name in names:
    store.add(f"sets/{name}", name.encode())
(folder / "down").mkdir()
task = download(store, "sets", folder / "down", names)
place = SealedStore(FolderStore(folder / "place"), KEY, "run", print)
put_shard(place, task)
signal.signal(signal.SIGTERM, signal.default_int_handler)


class Engine(DirectEngine):
    def move(self, task, report, listener):
        os.write(1, f"caps {os.getpid()} {task.cap_mbps} {len(task.actions)}\\n".encode())
        HOW
        super().move(task, report, listener)


made = task_of(place, 0, [task.part], Engine(), workers=4, cap_mbps=40.0)
try:
    print("whole", made.run(), flush=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
answers = _recorded(place, task)
print("recorded", len(_files(answers)), any(isinstance(each, ShardDone) for each in answers))
"""


def _start(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    program = _PROGRAM.replace("HOW", how)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def _lines(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate(timeout=120)
    return said.splitlines()


def test_the_processes_of_a_task_share_its_files_and_its_bandwidth(tmp_path: Path) -> None:
    *caps, whole, recorded = _lines(_start(tmp_path, "pass"))
    assert (whole, recorded) == ("whole True", "recorded 40 True")
    shares = [line.split() for line in caps]
    assert len({pid for _, pid, _, _ in shares}) == 4 and {cap for _, _, cap, _ in shares} == {"10.0"}
    assert sum(int(count) for *_, count in shares) == 40
    assert len(list((tmp_path / "down").iterdir())) == 40


def test_what_a_killed_process_had_is_done_by_those_that_come_after_it(tmp_path: Path) -> None:
    how = "if task.actions[0].path == 'f0' and not (folder / 'once').exists():"
    how += " (folder / 'once').touch(), super().move(task, report, listener), os.kill(os.getpid(), signal.SIGKILL)"
    *_, whole, recorded = _lines(_start(tmp_path, how))
    assert (whole, recorded) == ("whole True", "recorded 40 True")


def test_a_signal_to_the_task_stops_its_processes_and_what_they_had_done_is_recorded(tmp_path: Path) -> None:
    how = "super().move(task._replace(actions=task.actions[:3]), report, listener); (folder / str(os.getpid())).touch()"
    how += "; signal.pause()"
    process = _start(tmp_path, how)
    assert wait_until(lambda: len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 4)
    process.send_signal(signal.SIGTERM)
    *_, stopped, recorded = _lines(process)
    assert (stopped, recorded) == ("stopped", "recorded 12 False")
    assert not _alive(tmp_path)


def test_processes_end_with_the_task_that_was_killed(tmp_path: Path) -> None:
    process = _start(tmp_path, "(folder / str(os.getpid())).touch(); signal.pause()")
    assert wait_until(lambda: len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 4)
    assert len(_alive(tmp_path)) == 4
    process.kill()
    process.wait()
    assert wait_until(lambda: not _alive(tmp_path))
    assert process.stdout is not None
    process.stdout.close()


def _alive(folder: Path) -> list[int]:
    """The forked processes that have not ended."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [int(path.name) for path in folder.iterdir() if path.name.isdigit() and runs(int(path.name))]
