"""A worker of a spread transfer, round by round: which shards it claims and gives up."""

from __future__ import annotations

import errno
import json
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, FileFailure, StorageUnreachableError
from blobsync.base.events import Listener
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import UrlList
from blobsync.base.reasons import Reason
from blobsync.config.model import ListedFile
from blobsync.direct.engine import DirectEngine
from blobsync.direct.file_blocks import BlockOrder, Named
from blobsync.local.files import WaitForDisk, wait_for_disk
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, NamedBlock, Ready, answer_line
from blobsync.spread.shard import Shard, cut, cut_file, shard_lines
from blobsync.spread.shard_worker import (
    PARENT_SECONDS,
    BlockEngine,
    Ends,
    ShardWorker,
    ShardWorkerSettings,
    SharedPace,
)
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore
from blobsync.spread.worker_process import Outgoing
from blobsync.store.open_locations import OpenBlob
from blobsync.store.rest.http import Pace
from blobsync.store.url_list import UrlListStore
from blobsync.transfer.engines import Moved, MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import download, live_part, upload

_ME, _STRANGER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
_PATIENCE = 60.0


def nothing() -> None: ...


class Place(FolderStore):
    """Calls the next of ``rounds`` at each check of the heartbeat; after the last, the coordinator is
    gone. ``calls`` are the claims taken and released, ``unsealed`` the documents that count as missing."""

    def __init__(self, root: Path, *rounds: Callable[[], None]) -> None:
        super().__init__(root)
        self.rounds = list(rounds)
        self.calls: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.unsealed: set[str] = set()
        self.on_claim: Callable[[str], None] = lambda name: None
        self.breaks = self.cannot_write = False
        self.downs = 0
        self.beat = b"1"
        self.slow_was_read = threading.Semaphore(0)

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
        if self.downs:
            self.downs -= 1
            raise StorageUnreachableError("the service does not answer")
        if name == "alive":
            if not self.rounds:
                return b""
            self.rounds.pop(0)()
            return self.beat
        body = None if name in self.unsealed else super().read(name)
        if name == "slow":
            self.slow_was_read.release()
        return body

    def claim(self, name: str, holder: str) -> bool:
        if holder == _ME:
            self.calls.append(("claim", name))
            self.on_claim(name)
        return super().claim(name, holder)

    def release(self, name: str, holder: str) -> None:
        self.calls.append(("release", name))
        if self.breaks:
            raise StorageUnreachableError("the service does not answer")
        super().release(name, holder)

    def write(self, name: str, body: bytes) -> None:
        if self.cannot_write:
            raise StorageUnreachableError("the service does not answer")
        super().write(name, body)

    def held(self, name: str) -> None:
        """Give the claim to another holder."""
        assert super().claim(name, _STRANGER)

    def times(self, call: str, name: str) -> int:
        return self.calls.count((call, name))


class Moving(DirectEngine):
    """Calls ``before`` at each move; the service does not respond the first ``unreachable`` times."""

    def __init__(self, before: Callable[[], None] = nothing) -> None:
        super().__init__()
        self._before = before
        self.moves: list[list[str]] = []
        self.unreachable = 0

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.moves.append([action.path for action in task.actions])
        self._before()
        if self.unreachable:
            self.unreachable -= 1
            for action in task.actions:
                failure = FileFailure(action.path, FailureCode.STORAGE_UNREACHABLE, "no answer")
                report.file_failed(action, failure)
            return
        super().move(task, report, listener)


class Seconds:
    """A clock of its own: each pause takes its seconds at once."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> float:
        return 100.0 + self.passed

    def sleep(self, pause: float) -> None:
        self.passed += pause


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for name in "abc":
        (root / name).write_bytes(name.encode())
    return upload(root, MemoryStore("box"), "sets")


def put_shards(place: FolderStore, task: MoveTask, count: int = 1) -> None:
    """So many shards of one file each; a single one has all files."""
    shards: list[Shard] = [
        cut(task.part, task.actions if count == 1 else [action], 1)[0] for action in task.actions[:count]
    ]
    for number, shard in enumerate(shards):
        place.write(f"shards/{number:07}", ("\n".join(shard_lines(shard)) + "\n").encode())


def worker(
    place: FolderStore,
    task: MoveTask,
    engine: BlockEngine | None = None,
    said: list[str] | None = None,
    *,
    number: int = 0,
    poll: float = 0.01,
    parent: float = PARENT_SECONDS,
    claim: float = CLAIM_SECONDS,
    pace: Pace | None = None,
    flush: float = 0.01,
    seconds: Seconds | None = None,
    interrupt: Callable[[], None] = nothing,
    wait: WaitForDisk = wait_for_disk,
) -> ShardWorker:
    ends = Ends(task.part.source, task.part.destination)
    key = str(ends.source), str(ends.destination)
    settings = ShardWorkerSettings("node0.0", number, _ME, poll=poll, flush=flush, parent=parent, claim=claim)
    told = (lambda text: None) if said is None else said.append
    clock: dict[str, Any] = {"clock": seconds.now, "sleep": seconds.sleep} if seconds is not None else {}
    return ShardWorker(place, {key: ends}, engine or Moving(), settings, interrupt, told, pace=pace, wait=wait, **clock)


# -- the coordinator -----------------------------------------------------------------------------------------------


def test_who_is_told_to_stop_takes_nothing_more(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", nothing, nothing), Moving()
    put_shards(place, task)
    place.write("stop", b"")
    worker(place, task, engine).work()
    assert not engine.moves and not place.calls and len(place.rounds) == 1


def test_without_a_coordinator_nothing_is_taken(task: MoveTask, tmp_path: Path) -> None:
    place, engine, said = FolderStore(tmp_path / "place"), Moving(), list[str]()
    put_shards(place, task)
    for beat in (None, b""):
        if beat is not None:
            place.write("alive", beat)
        worker(place, task, engine, said).work()
    assert not engine.moves and not said


def test_a_coordinator_whose_heart_beats_is_there_for_any_time(task: MoveTask, tmp_path: Path) -> None:
    place, said = Place(tmp_path / "place"), list[str]()

    def beat() -> None:
        place.beat += b"1"

    place.rounds = [beat] * 10
    worker(place, task, said=said, poll=0.03, parent=0.1, seconds=Seconds()).work()
    assert not place.rounds and not said


def test_a_coordinator_that_is_silent_for_too_long_is_gone(task: MoveTask, tmp_path: Path) -> None:
    place, said, seconds = Place(tmp_path / "place", *[nothing] * 1000), list[str](), Seconds()
    worker(place, task, said=said, poll=0.01, parent=0.2, seconds=seconds).work()
    assert 0.2 <= seconds.passed < 0.22 and place.rounds
    assert said == ["the command that started this transfer does not answer any more; ending"]


def test_who_finds_nothing_to_do_waits_and_looks_again(task: MoveTask, tmp_path: Path) -> None:
    place, engine, seconds = Place(tmp_path / "place"), Moving(), Seconds()
    place.rounds = [nothing, nothing, lambda: put_shards(place, task), nothing]
    worker(place, task, engine, poll=0.05, seconds=seconds).work()
    assert seconds.passed == pytest.approx(3 * 0.05, abs=0.001)
    assert engine.moves == [["a", "b", "c"]]
    assert place.calls == [("claim", "claims/0000000"), ("release", "claims/0000000")]


def test_what_a_worker_has_downloaded_is_on_the_disk_before_its_record(tmp_path: Path) -> None:
    store, place, said = MemoryStore("box"), Place(tmp_path / "place", nothing), list[str]()
    for name in "ab":
        store.add(f"sets/{name}", name.encode())
    task = download(store, "sets", tmp_path / "data", ["a", "b"])
    put_shards(place, task)
    waited: list[str] = []

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        told = b"".join(place.read(f"records/{name}") or b"" for name in place.names("records"))
        assert not any(f'"{Path(file).name}"'.encode() in told for file in files)
        waited.extend(files)
        return {file: OSError(errno.EIO, "Input/output error") for file in files if file.endswith("/b")}

    worker(place, task, said=said, wait=wait).work()
    assert sorted(waited) == [str(tmp_path / "data" / name) for name in "ab"]
    assert f"{tmp_path}/data/b: Input/output error: a power failure may take it" in said


def test_a_worker_waits_for_no_disk_where_it_writes_to_none(task: MoveTask, tmp_path: Path) -> None:
    place, waited = Place(tmp_path / "place", nothing), list[str]()
    put_shards(place, task)

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        waited.extend(files)
        return {}

    worker(place, task, wait=wait).work()
    assert not waited and place.names("done")


def test_a_worker_that_cannot_work_says_why(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    worker(place, task).refuse("the folder is not mounted here")
    assert place.read("refused/node0.0") == b"the folder is not mounted here"


# -- claims --------------------------------------------------------------------------------------------------------


def test_after_a_restart_a_worker_gives_back_what_it_had_and_nothing_else(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    for name in ("0000003~node0.0-0001~000000", "0000003~node0.0-0002~000000", "0000004~node1.0-0001~000000"):
        place.write(f"records/{name}", b"")
    worker(place, task).work()
    assert place.calls == [("release", "claims/0000003")]


def test_what_is_moved_is_given_up_and_the_next_one_taken(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", *[nothing] * 4), Moving()
    put_shards(place, task, 3)
    # Each worker begins at a different one.
    worker(place, task, engine, number=4).work()
    assert engine.moves == [["b"], ["a"], ["c"]]
    assert place.calls == [(call, f"claims/000000{number}") for number in (1, 0, 2) for call in ("claim", "release")]
    assert place.names("done") == place.names("shards")


def test_a_claim_that_cannot_be_given_up_expires_by_itself(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", *[nothing] * 4), Moving()
    put_shards(place, task, 3)
    place.breaks = True
    worker(place, task, engine).work()
    assert len(engine.moves) == 3 and place.names("done") == place.names("shards")


def test_one_that_another_has_is_left_for_a_while_and_the_next_ones_are_taken(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", *[nothing] * 5), Moving()
    put_shards(place, task, 3)
    place.held("claims/0000000")
    worker(place, task, engine).work()
    assert engine.moves == [["b"], ["c"]]
    assert place.times("claim", "claims/0000000") == 1
    assert place.times("release", "claims/0000000") == 0


def test_one_that_another_gives_up_is_asked_for_again(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place"), Moving()
    put_shards(place, task)
    place.held("claims/0000000")
    place.rounds = [nothing, lambda: FolderStore(tmp_path / "place").release("claims/0000000", _STRANGER)]
    place.rounds += [nothing] * 5
    worker(place, task, engine, poll=0.05, claim=0.4, seconds=Seconds()).work()
    assert engine.moves == [["a", "b", "c"]]


def test_what_another_has_finished_meanwhile_is_not_moved_again(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", nothing), Moving()
    put_shards(place, task, 2)

    def finish(name: str) -> None:
        if name == "claims/0000000":
            place.write("done/0000000", b"")

    place.on_claim = finish
    worker(place, task, engine).work()
    assert engine.moves == [["b"]]
    assert place.calls[:2] == [("claim", "claims/0000000"), ("release", "claims/0000000")]


def test_whoever_holds_a_shard_in_silence_is_passed_over_and_keeps_its_claim(task: MoveTask, tmp_path: Path) -> None:
    place, said, took = Place(tmp_path / "place", *[nothing] * 2000), list[str](), list[float]()
    seconds = Seconds()

    def end() -> None:
        took.append(seconds.passed)
        place.rounds.clear()

    put_shards(place, task)
    place.held("claims/0000000")
    worker(place, task, Moving(end), said, poll=0.005, claim=0.4, seconds=seconds).work()
    assert took and took[0] > 0.8, "twice as long as a claim lasts"
    # It renews four times while a claim lasts.
    assert place.times("claim", "claims/0000000") <= 11
    assert place.times("release", "claims/0000000") == 0
    assert "is claimed, and nobody moves it" in said[0] and place.names("done") == ["0000000"]


def test_who_moved_one_without_a_claim_gives_up_the_claim_that_it_gets_later(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    engine = Moving(lambda: FolderStore(tmp_path / "place").release("claims/0000000", _STRANGER))
    engine.unreachable = 1
    put_shards(place, task)
    place.held("claims/0000000")
    place.rounds = [lambda: place.rounds.clear() if place.names("done") else None] * 400
    worker(place, task, engine, poll=0.005, claim=0.1).work()
    assert engine.moves == [["a", "b", "c"]] * 2
    assert place.calls[-1] == ("release", "claims/0000000") and place.times("release", "claims/0000000") == 1


def test_who_holds_a_shard_and_writes_records_keeps_it(task: MoveTask, tmp_path: Path) -> None:
    place, engine, written = Place(tmp_path / "place"), Moving(), list[str]()

    def write() -> None:
        written.append(f"records/0000000~node5.0-{len(written):08x}~000000")
        place.write(written[-1], b"{}")

    put_shards(place, task)
    place.held("claims/0000000")
    place.rounds = [write] * 20
    worker(place, task, engine, poll=0.02, claim=0.08).work()
    assert not engine.moves and len(written) == 20


@pytest.mark.parametrize("number", ["0000000", "0000001"])
def test_records_without_a_seal_or_of_another_shard_keep_nothing(task: MoveTask, tmp_path: Path, number: str) -> None:
    place, written = Place(tmp_path / "place"), list[str]()

    def write() -> None:
        written.append(f"records/{number}~node5.0-{len(written):08x}~000000")
        if number == "0000000":
            place.unsealed.add(written[-1])
        place.write(written[-1], b"{}")

    engine = Moving(lambda: place.rounds.clear())
    put_shards(place, task)
    place.held("claims/0000000")
    place.rounds = [write] * 200
    worker(place, task, engine, poll=0.01, claim=0.04).work()
    assert len(engine.moves) == 1


def test_of_the_new_records_of_a_shard_the_last_three_are_read(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", nothing)
    put_shards(place, task)
    place.held("claims/0000000")
    names = [f"records/0000000~node5.0-00000000~{number:06}" for number in range(5)]
    for name in names:
        place.write(name, b"{}")
        place.unsealed.add(name)
    worker(place, task).work()
    assert [name for name in place.asked if name in names] == names[-3:]


# -- shards and pauses ---------------------------------------------------------------------------------------------


def test_a_shard_that_cannot_be_read_is_asked_for_once_more_soon_and_then_seldom(
    task: MoveTask, tmp_path: Path
) -> None:
    place, engine = Place(tmp_path / "place", *[nothing] * 10), Moving()
    put_shards(place, task)
    place.unsealed.add("shards/0000000")
    worker(place, task, engine, poll=0.02).work()
    assert not engine.moves
    assert place.times("claim", "claims/0000000") == place.times("release", "claims/0000000") == 2


def test_what_the_storage_did_not_answer_is_left_open_for_others(task: MoveTask, tmp_path: Path) -> None:
    place, engine, said = Place(tmp_path / "place", *[nothing] * 5), Moving(), list[str]()
    engine.unreachable = 1
    put_shards(place, task)
    worker(place, task, engine, said).work()
    assert place.names("done") == [] and len(engine.moves) == 1
    assert said == ["shard 0000000 of data/x: the storage did not answer; another try follows"]
    assert place.calls == [("claim", "claims/0000000"), ("release", "claims/0000000")]
    records = b"".join(place.read(f"records/{name}") or b"" for name in place.names("records"))
    assert b'"done"' not in records and b"no answer" not in records


def test_a_worker_says_that_it_has_begun_before_it_moves_and_what_it_has_moved(task: MoveTask, tmp_path: Path) -> None:
    place, said = Place(tmp_path / "place", nothing), list[str]()
    begun: list[bytes | None] = []

    def look() -> None:
        begun.extend(place.read(f"records/{name}") for name in place.names("records"))

    put_shards(place, task)
    worker(place, task, Moving(look), said).work()
    assert begun == [b'{"blobsync_records":1}\n']
    assert all(re.fullmatch(r"0000000~node0\.0-[0-9a-f]{8}~[0-9]{6}", name) for name in place.names("records"))
    assert said == ["shard 0000000 of data/x: 3 files, 3 bytes"]
    assert place.names("done") == ["0000000"]


def test_a_pause_from_before_is_over_and_a_new_one_counts(task: MoveTask, tmp_path: Path) -> None:
    place, pace, said = Place(tmp_path / "place", nothing), Pace(), list[str]()
    before: list[float] = []
    heard = threading.Event()

    def wait() -> None:
        # One at the beginning, and two while the shard moves: the first of these has been handled by then.
        for _ in range(3):
            assert place.slow_was_read.acquire(timeout=_PATIENCE)
        before.append(pace.left)
        place.write("slow", b'{"seconds": 7, "by": "node7.0"}')
        for _ in range(3):
            assert place.slow_was_read.acquire(timeout=_PATIENCE)
        heard.set()

    place.write("slow", b'{"seconds": 80, "by": "node7.0"}')
    put_shards(place, task)
    worker(place, task, Moving(wait), said, pace=pace).work()
    assert heard.is_set() and before == [0.0] and 0 < pace.left <= 7
    assert said[0] == "node7.0 was asked by the storage account for fewer requests: waiting 7 s"


# -- the seconds ---------------------------------------------------------------------------------------------------


def test_a_coordinator_counts_as_gone_after_three_minutes(task: MoveTask, tmp_path: Path) -> None:
    place, said, seconds = Place(tmp_path / "place", *[nothing] * 1000), list[str](), Seconds()
    end = Ends(task.part.source, task.part.destination)
    settings = ShardWorkerSettings("node0.0", 0, _ME)
    ShardWorker(
        place, {("", ""): end}, Moving(), settings, nothing, said.append, clock=seconds.now, sleep=seconds.sleep
    ).work()
    # It looks each second.
    assert seconds.passed == 180.0 and len(place.rounds) == 1000 - 181 and len(said) == 1


def test_a_claim_of_another_is_asked_for_four_times_while_it_lasts_and_passed_over_after_twice_its_time(
    task: MoveTask, tmp_path: Path
) -> None:
    place, seconds, asked = Place(tmp_path / "place", *[nothing] * 1000), Seconds(), list[float]()
    place.on_claim = lambda name: asked.append(seconds.passed)
    put_shards(place, task)
    place.held("claims/0000000")
    engine = Moving(lambda: place.rounds.clear())
    worker(place, task, engine, poll=1.0, claim=40, parent=1e6, seconds=seconds).work()
    assert len(engine.moves) == 1
    # In second 80 it is not yet longer than twice as long.
    assert asked == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


def test_a_shard_without_a_seal_is_asked_for_again_soon_the_first_time(task: MoveTask, tmp_path: Path) -> None:
    place, seconds, asked = Place(tmp_path / "place", *[nothing] * 100), Seconds(), list[float]()
    engine = Moving(lambda: place.unsealed.add("shards/0000000"))
    engine.unreachable = 1
    place.on_claim = lambda name: asked.append(seconds.passed)
    place.unsealed.add("shards/0000000")
    place.rounds[30] = lambda: place.unsealed.clear()
    put_shards(place, task)
    worker(place, task, engine, poll=1.0, claim=40, parent=1e6, seconds=seconds).work()
    # It is read in second 31, cannot be moved, and has no seal again: as if for the first time.
    assert asked[:9] == [0.0, 1.0, 11.0, 21.0, 31.0, 41.0, 42.0, 52.0, 62.0]
    assert len(engine.moves) == 1


@pytest.mark.parametrize(("took", "lost"), [(20.0, False), (20.5, True)])
def test_who_took_long_looks_whether_the_shard_is_still_its_own(
    task: MoveTask, tmp_path: Path, took: float, lost: bool
) -> None:
    place, seconds, said = Place(tmp_path / "place", nothing), Seconds(), list[str]()

    def lose() -> None:
        seconds.passed += took
        other = FolderStore(tmp_path / "place")
        other.release("claims/0000000", _ME)
        assert other.claim("claims/0000000", _STRANGER)

    put_shards(place, task)
    worker(place, task, Moving(lose), said, claim=40, flush=60.0, seconds=seconds).work()
    records = b"".join(place.read(f"records/{name}") or b"" for name in place.names("records"))
    assert (b'"done"' in records, place.names("done")) == ((False, []) if lost else (True, ["0000000"]))
    if lost:
        why = "another worker has taken it over, because nothing was heard of this one"
        assert said == [f"shard 0000000 of data/x: {why}"]


# -- earlier attempts ----------------------------------------------------------------------------------------------


_BLOB = RemoteState(1, "0x1", bytes(16))


def _told(place: FolderStore, attempt: str, *answers: Answer, number: int = 0) -> None:
    lines = "".join(f"{answer_line(each)}\n" for each in (Ready(), *answers))
    for piece in range(2):
        place.write(f"records/{number:07}~{attempt}~{piece:06}", lines.encode())


def _here(task: MoveTask, index: int) -> FileRecord:
    action = task.actions[index]
    assert isinstance(action.source, LocalState)
    return FileRecord(action.path, replace(action.source, md5=bytes(16)), _BLOB)


@pytest.mark.parametrize("before", range(4))
def test_only_the_last_of_three_attempts_says_that_the_storage_did_not_answer(
    task: MoveTask, tmp_path: Path, before: int
) -> None:
    place, engine = Place(tmp_path / "place", nothing), Moving()
    engine.unreachable = 1
    put_shards(place, task)
    for number in range(before):
        _told(place, f"node7.0-{number:08x}")
    # The coordinator's own, of another shard, and without a seal.
    _told(place, "parent-00000001")
    _told(place, "node8.0-00000001", number=1)
    place.unsealed.add("records/0000000~node9.0-00000001~000000")
    place.write("records/0000000~node9.0-00000001~000000", b"nonsense")
    worker(place, task, engine).work()
    mine = [name for name in place.names("records") if "~node0.0-" in name]
    records = b"".join(place.read(f"records/{name}") or b"" for name in mine)
    assert len(engine.moves) == (before < 3)
    assert (b'"done"' in records) is bool(place.names("done")) is (before >= 2)
    assert (b"no answer" in records) is (before == 2)


def test_what_an_earlier_attempt_has_reported_is_not_moved_again(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place", nothing), Moving()
    put_shards(place, task)
    failure = FileFailure("b", FailureCode.ACCESS_DENIED, "no")
    _told(place, "node7.0-00000001", _here(task, 0), FileRecord("b", failure=failure))
    worker(place, task, engine).work()
    assert engine.moves == [["c"]] and place.names("done") == ["0000000"]


class Blocks(Moving):
    """Remembers which blocks it is to move, and moves none."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[BlockOrder] = []

    def move_blocks(
        self, task: MoveTask, order: BlockOrder, named: Named, report: MoveReport, listener: Listener
    ) -> None:
        self.orders.append(order)


@pytest.mark.parametrize("reader", [True, False])
def test_blocks_that_an_earlier_attempt_has_put_are_there_and_whoever_reads_the_file_reads_all(
    task: MoveTask, tmp_path: Path, reader: bool
) -> None:
    place, engine = Place(tmp_path / "place", nothing), Blocks()
    action = task.actions[0]
    assert isinstance(action.source, LocalState)
    source = replace(action.source, size=40 << 20)
    shards = cut_file(task.part, replace(action, size=source.size, source=source), 16 << 20)
    shard = shards[0] if reader else shards[1]
    assert shard.order is not None
    place.write("shards/0000000", ("\n".join(shard_lines(shard)) + "\n").encode())
    _told(place, "node7.0-00000001", NamedBlock(1, "Y" * 48), NamedBlock(3, "Z" * 48))
    worker(place, task, engine).work()
    assert [order.there for order in engine.orders] == [frozenset() if reader else {1, 3}]
    assert not engine.moves
    # The file of a range that is on record is not moved at all.
    place.remove("done/0000000")
    place.rounds = [nothing]
    _told(place, "node7.0-00000001", FileRecord("a", replace(source, md5=bytes(16)), _BLOB))
    worker(place, task, engine).work()
    assert len(engine.orders) == 1 and place.names("done") == ["0000000"]


# -- records -------------------------------------------------------------------------------------------------------


class Telling(Moving):
    """Reports files as moved, and writes after each what it has said."""

    def __init__(self, place: Place, *broken: int) -> None:
        super().__init__()
        self._place, self._broken = place, broken

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        assert isinstance(report, Outgoing)
        for number, action in enumerate(task.actions):
            self._place.cannot_write = number in self._broken
            source = action.source
            assert isinstance(source, LocalState)
            report.file_moved(Moved(action, replace(source, md5=bytes(16)), _BLOB))
            report.flush()


def _records(place: FolderStore) -> list[list[str]]:
    bodies = [place.read(f"records/{name}") or b"" for name in place.names("records")]
    return [[next(iter(json.loads(line).values())) for line in body.decode().splitlines()] for body in bodies]


def test_records_that_cannot_be_written_go_out_with_the_next_and_none_twice(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", nothing)
    put_shards(place, task)
    worker(place, task, Telling(place, 1), flush=60.0).work()
    assert [name.rpartition("~")[2] for name in place.names("records")] == [f"{piece:06}" for piece in range(4)]
    assert _records(place) == [[1], ["a"], ["b", "c"], [0]]


def test_a_shard_whose_records_cannot_be_written_is_not_done(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", nothing)
    put_shards(place, task)
    with pytest.raises(StorageUnreachableError):
        worker(place, task, Telling(place, 2), flush=60.0).work()
    assert not place.names("done") and _records(place) == [[1], ["a"], ["b"]]


def test_what_is_no_whole_shard_or_between_other_ends_is_refused(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", nothing)
    (shard,) = cut(task.part, task.actions, 1)
    *lines, _ = shard_lines(shard)
    place.write("shards/0000000", "\n".join(lines).encode())
    with pytest.raises(FormatError, match="lines of the shard are missing"):
        worker(place, task).work()
    place.rounds = [nothing]
    place.write("shards/0000000", "\n".join(shard_lines(replace(shard, source="/etc"))).encode())
    with pytest.raises(FormatError, match="the shard names other ends than the orders of this worker"):
        worker(place, task).work()
    assert not place.names("done")


# -- while a shard moves -------------------------------------------------------------------------------------------


class Interrupted(Moving):
    """Works until it is interrupted; ``begun`` is called first."""

    def __init__(self, begun: Callable[[], None] = nothing) -> None:
        super().__init__(begun)
        self.event = threading.Event()
        self.threads: list[threading.Thread] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.threads = [each for each in threading.enumerate() if "_keep" in each.name]
        self._before()
        assert self.event.wait(_PATIENCE)
        raise KeyboardInterrupt


@pytest.mark.parametrize("down", [False, True])
def test_a_shard_that_is_taken_back_is_left(task: MoveTask, tmp_path: Path, down: bool) -> None:
    """Though the store could not be reached for a moment."""
    place, said = Place(tmp_path / "place", nothing, nothing), list[str]()

    def take_back() -> None:
        place.downs = 3 if down else 0
        place.write("done/0000000", b"")

    engine = Interrupted(take_back)
    put_shards(place, task)
    worker(place, task, engine, said, interrupt=engine.event.set).work()
    assert said == ["shard 0000000 of data/x: it was taken back"] and not place.rounds and place.downs == 0
    # It does not keep a worker that ends.
    assert engine.threads and all(thread.daemon for thread in engine.threads)


@pytest.mark.parametrize("passed", [9.0, 10.0])
def test_a_worker_that_is_told_to_stop_does_so_when_it_next_renews_its_claim(
    task: MoveTask, tmp_path: Path, passed: float
) -> None:
    place, seconds = Place(tmp_path / "place", nothing), Seconds()

    def stop() -> None:
        place.write("stop", b"")
        seconds.passed += passed
        if passed < 10.0:
            # Some looks later it is not stopped yet.
            looks, end = place.asked.count("done/0000000"), time.monotonic() + _PATIENCE
            while place.asked.count("done/0000000") < looks + 3 and time.monotonic() < end:
                time.sleep(0.005)
            assert not engine.event.is_set() and place.times("claim", "claims/0000000") == 1
            seconds.passed = 10.0

    engine = Interrupted(stop)
    put_shards(place, task)
    with pytest.raises(KeyboardInterrupt):
        worker(place, task, engine, claim=40, seconds=seconds, interrupt=engine.event.set).work()
    assert place.times("claim", "claims/0000000") == 2 and not place.names("done")
    assert place.calls[-1] == ("release", "claims/0000000")


def test_a_claim_that_another_has_taken_ends_the_work_at_once(task: MoveTask, tmp_path: Path) -> None:
    place, seconds, said = Place(tmp_path / "place", nothing), Seconds(), list[str]()

    def lose() -> None:
        other = FolderStore(tmp_path / "place")
        other.release("claims/0000000", _ME)
        assert other.claim("claims/0000000", _STRANGER)
        seconds.passed += 10.0

    engine = Interrupted(lose)
    put_shards(place, task)
    worker(place, task, engine, said, claim=40, seconds=seconds, interrupt=engine.event.set).work()
    why = "another worker has taken it over, because nothing was heard of this one"
    assert said == [f"shard 0000000 of data/x: {why}"] and not place.names("done")


class Kept(Place):
    """Lets a test hold up the thread that keeps a shard, and notes when the store is to hurry.

    ``hold`` is called once, in that thread, where it looks for a pause. ``hurried`` says of each call whether that
    thread was still alive.
    """

    def __init__(self, root: Path, *rounds: Callable[[], None]) -> None:
        super().__init__(root, *rounds)
        self.hold: Callable[[], object] = nothing
        self.hurried: list[bool] = []
        self.keeper: threading.Thread | None = None
        self.held_up = threading.Event()
        self.on_write: Callable[[str], None] = lambda name: None

    def read(self, name: str) -> bytes | None:
        thread = threading.current_thread()
        if name == "slow" and self.keeper is None and thread is not threading.main_thread():
            self.keeper = thread
            self.held_up.set()
            self.hold()
        return super().read(name)

    def write(self, name: str, body: bytes) -> None:
        self.on_write(name)
        super().write(name, body)

    def hurry(self) -> None:
        self.calls.append(("hurry", ""))
        self.hurried.append(self.keeper is not None and self.keeper.is_alive())


def test_who_is_stopped_asks_the_store_to_hurry_before_it_waits_for_anything(task: MoveTask, tmp_path: Path) -> None:
    hurried = threading.Event()

    def stop() -> None:
        assert place.held_up.wait(_PATIENCE)
        raise KeyboardInterrupt

    class Hurrying(Kept):
        def hurry(self) -> None:
            super().hurry()
            hurried.set()

    place = Hurrying(tmp_path / "place", nothing)
    place.hold = lambda: hurried.wait(_PATIENCE)
    put_shards(place, task)
    with pytest.raises(KeyboardInterrupt):
        worker(place, task, Moving(stop)).work()
    assert place.hurried == [True, False], "its own look at the store ends, and then its claim is given up"
    assert place.calls[-2:] == [("hurry", ""), ("release", "claims/0000000")]


def test_who_is_stopped_does_not_wait_for_a_look_at_a_store_that_hangs(task: MoveTask, tmp_path: Path) -> None:
    place, over, waited = Kept(tmp_path / "place", nothing), threading.Event(), list[bool]()

    def stop() -> None:
        assert place.held_up.wait(_PATIENCE)
        raise KeyboardInterrupt

    place.hold = lambda: waited.append(over.wait(_PATIENCE))
    put_shards(place, task)
    with pytest.raises(KeyboardInterrupt):
        worker(place, task, Moving(stop)).work()
    over.set()
    assert place.keeper is not None
    place.keeper.join(_PATIENCE)
    assert waited == [True]


def test_who_is_stopped_between_two_steps_asks_the_store_to_hurry(task: MoveTask, tmp_path: Path) -> None:
    place = Kept(tmp_path / "place", nothing)

    def stop(name: str) -> None:
        if name == "done/0000000":
            raise KeyboardInterrupt

    put_shards(place, task)
    place.on_write = stop
    with pytest.raises(KeyboardInterrupt):
        worker(place, task).work()
    assert place.calls == [
        (each, "claims/0000000" if each != "hurry" else "") for each in ("claim", "hurry", "release")
    ]


def test_a_shard_is_done_when_nobody_looks_after_it_any_more(task: MoveTask, tmp_path: Path) -> None:
    """However long a look takes: two threads would write its records. And nothing is in a hurry."""
    place, looked = Kept(tmp_path / "place", nothing), threading.Event()
    done: list[bool] = []

    def begin() -> None:
        assert place.held_up.wait(_PATIENCE)

    def look() -> None:
        # Longer than a worker that is stopped would wait.
        threading.Event().wait(2.4)
        looked.set()

    def write(name: str) -> None:
        if name == "done/0000000":
            done.append(looked.is_set())

    put_shards(place, task)
    place.hold, place.on_write = look, write
    worker(place, task, Moving(begin)).work()
    assert done == [True] and not place.hurried


def test_who_has_lost_a_shard_asks_for_it_no_more_and_is_in_no_hurry(task: MoveTask, tmp_path: Path) -> None:
    place, seconds, said = Kept(tmp_path / "place", nothing), Seconds(), list[str]()
    interrupts: list[float] = []

    class Leaving(Interrupted):
        """Cleans up until the thread that interrupted it has ended."""

        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            try:
                super().move(task, report, listener)
            finally:
                for thread in self.threads:
                    thread.join(_PATIENCE)
                    assert not thread.is_alive()

    def take_back() -> None:
        # By now the claim has to be renewed, and may even have expired.
        seconds.passed += 30.0
        place.write("done/0000000", b"")

    def interrupt() -> None:
        interrupts.append(seconds.passed)
        engine.event.set()

    engine = Leaving(take_back)
    put_shards(place, task)
    worker(place, task, engine, said, claim=40, seconds=seconds, interrupt=interrupt).work()
    assert said == ["shard 0000000 of data/x: it was taken back"] and len(interrupts) == 1
    assert place.times("claim", "claims/0000000") == 1 and not place.hurried


def _after_looks(place: Place, count: int) -> None:
    """Wait until the thread that keeps a shard has looked so many times more."""
    for _ in range(count):
        assert place.slow_was_read.acquire(timeout=_PATIENCE)


@pytest.mark.parametrize("has_claim", [True, False])
def test_a_shard_that_takes_long_is_renewed_and_goes_on(task: MoveTask, tmp_path: Path, has_claim: bool) -> None:
    """Also one that is moved although a stranger holds its claim."""
    place, seconds, interrupts = Place(tmp_path / "place", *[nothing] * 200), Seconds(), list[int]()
    claims: list[int] = []

    def move() -> None:
        place.rounds.clear()
        claims.append(place.times("claim", "claims/0000000"))
        while place.slow_was_read.acquire(blocking=False):
            pass
        seconds.passed += 25.0
        _after_looks(place, 3)

    put_shards(place, task)
    if not has_claim:
        place.held("claims/0000000")
    engine = Moving(move)
    worker(
        *(place, task, engine), poll=1.0, claim=40, parent=1e6, seconds=seconds, interrupt=lambda: interrupts.append(1)
    ).work()
    assert place.names("done") == ["0000000"] and not interrupts
    assert place.times("claim", "claims/0000000") - claims[0] == has_claim, "once: at the end it was its own"


def test_records_are_written_while_a_shard_moves(task: MoveTask, tmp_path: Path) -> None:
    place, seen = Place(tmp_path / "place", nothing), list[list[list[str]]]()

    class Slow(Moving):
        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            source = task.actions[0].source
            assert isinstance(source, LocalState)
            report.file_moved(Moved(task.actions[0], replace(source, md5=bytes(16)), _BLOB))
            _after_looks(place, 3)
            seen.append(_records(place))

    put_shards(place, task)
    worker(place, task, Slow()).work()
    assert seen == [[[1], ["a"]]]


def test_the_last_records_of_a_shard_are_written_before_it_is_done(task: MoveTask, tmp_path: Path) -> None:
    place = Kept(tmp_path / "place", nothing)

    def write(name: str) -> None:
        if name.startswith("records/") and place.rounds == []:
            raise StorageUnreachableError("the service does not answer")

    put_shards(place, task)
    place.on_write = write
    with pytest.raises(StorageUnreachableError):
        worker(place, task, flush=60.0).work()
    assert not place.names("done")


def test_what_fails_a_file_itself_is_told_by_the_first_attempt(task: MoveTask, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", nothing)

    class Denied(Moving):
        def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
            for action in task.actions:
                report.file_failed(action, FileFailure(action.path, FailureCode.ACCESS_DENIED, "not allowed"))

    put_shards(place, task)
    worker(place, task, Denied()).work()
    assert place.names("done") == ["0000000"]
    assert b"".join(place.read(f"records/{name}") or b"" for name in place.names("records")).count(b"not allowed") == 3


# -- pauses that the service asks for ------------------------------------------------------------------------------


class Pausing:
    """One worker's share in pauses."""

    def __init__(self, root: Path) -> None:
        self.place, self.pace, self.told = FolderStore(root), Pace(), list[str]()
        self.shared = SharedPace(self.place, "node1.2", self.pace, self.told.append)

    def note(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.place.read("slow") or b"{}")
        return found


@pytest.mark.parametrize(("asked", "told"), [(4.2, 5), (90.0, 90), (3600.0, 90)])
def test_a_pause_that_one_worker_is_asked_for_is_told_to_all(asked: float, told: int, tmp_path: Path) -> None:
    one, other = Pausing(tmp_path), Pausing(tmp_path)
    one.shared.begin()
    other.shared.begin()
    one.pace.asked(asked)
    for each in (one, other, one, other):
        each.shared.look()
    assert (one.note()["seconds"], one.note()["by"]) == (told, "node1.2")
    assert one.told == [f"the storage account asks for fewer requests: all workers wait {told} s"]
    # The same note is heeded once.
    assert other.told == [f"node1.2 was asked by the storage account for fewer requests: waiting {told} s"]
    assert told - 2 < other.pace.left <= told


@pytest.mark.parametrize(
    "note",
    [
        '{"seconds": 91, "by": "node1.0"}',
        '{"seconds": 5, "by": "node1.0\\u001b[2J"}',
        '{"seconds": 5}',
        "nonsense",
    ],
)
def test_a_note_that_no_worker_writes_makes_nobody_wait(note: str, tmp_path: Path) -> None:
    one = Pausing(tmp_path)
    one.shared.begin()
    one.place.write("slow", note.encode())
    one.shared.look()
    assert one.pace.left == 0 and not one.told


def test_a_note_that_is_gone_is_none(tmp_path: Path) -> None:
    (tmp_path / "then").mkdir()
    one = Pausing(tmp_path / "then")
    one.place.write("slow", b'{"seconds": 5, "by": "node1.0"}')
    one.shared.begin()
    shutil.rmtree(tmp_path / "then")
    one.shared.look()
    assert one.pace.left == 0 and not one.told


# -- a list of URLs ------------------------------------------------------------------------------------------------


class Asking(Moving):
    """Remembers what the list says of each file at the time it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[ListedFile | None] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        source = task.part.source
        assert isinstance(source, OpenBlob) and isinstance(source.store, UrlListStore)
        self.found += [source.store.listed(source.at(action.path)) for action in task.actions]


def test_a_worker_knows_of_a_list_what_its_shard_says(tmp_path: Path) -> None:
    files = {f"sets/data/{name}": ListedFile(f"https://host.example/{name}", 5) for name in "ab"}
    whole = OpenBlob(UrlListStore(UrlList("", "list.tsv", ""), files, {}), "sets/data")
    box = MemoryStore("box")
    part = live_part(Route.CROSS_ACCOUNT, whole, OpenBlob(box, "data"))
    actions = [FileAction(name, Action.TRANSFER, Reason.NEW, 5, RemoteState(5, "0x1"), None) for name in "ab"]
    place, engine = Place(tmp_path / "place", *[nothing] * 3), Asking()
    put_shards(place, MoveTask(part, tuple(actions)))
    bare = OpenBlob(UrlListStore(UrlList("", "list.tsv", ""), {}, {}), "sets/data")
    here = live_part(Route.CROSS_ACCOUNT, bare, OpenBlob(box, "data"))
    worker(place, MoveTask(here, ()), engine).work()
    assert engine.found == list(files.values())
