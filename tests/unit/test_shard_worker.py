"""A worker of a spread transfer, round by round: which shards it claims and gives up."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.errors import StorageUnreachableError
from blobsync.base.events import Listener
from blobsync.base.failure_codes import FailureCode, FileFailure
from blobsync.direct.engine import DirectEngine
from blobsync.spread.shard import Shard, cut, shard_lines
from blobsync.spread.shard_worker import PARENT_SECONDS, Ends, ShardWorker, ShardWorkerSettings
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore
from blobsync.store.rest.http import Pace
from blobsync.transfer.engines import MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import upload

_ME, _STRANGER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
_PATIENCE = 10.0


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
        self.breaks = False
        self.beat = b"1"
        self.slow_was_read = threading.Semaphore(0)

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
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
    engine: DirectEngine | None = None,
    said: list[str] | None = None,
    *,
    number: int = 0,
    poll: float = 0.01,
    parent: float = PARENT_SECONDS,
    claim: float = CLAIM_SECONDS,
    pace: Pace | None = None,
) -> ShardWorker:
    ends = Ends(task.part.source, task.part.destination)
    key = str(ends.source), str(ends.destination)
    settings = ShardWorkerSettings("node0.0", number, _ME, poll=poll, flush=0.01, parent=parent, claim=claim)
    told = (lambda text: None) if said is None else said.append
    return ShardWorker(place, {key: ends}, engine or Moving(), settings, nothing, told, pace=pace)


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
    worker(place, task, said=said, poll=0.03, parent=0.1).work()
    assert not place.rounds and not said


def test_a_coordinator_that_is_silent_for_too_long_is_gone(task: MoveTask, tmp_path: Path) -> None:
    place, said = Place(tmp_path / "place", *[nothing] * 1000), list[str]()
    began = time.monotonic()
    worker(place, task, said=said, poll=0.01, parent=0.2).work()
    assert time.monotonic() - began >= 0.2 and place.rounds
    assert said == ["the command that started this transfer does not answer any more; ending"]


def test_who_finds_nothing_to_do_waits_and_looks_again(task: MoveTask, tmp_path: Path) -> None:
    place, engine = Place(tmp_path / "place"), Moving()
    place.rounds = [nothing, nothing, lambda: put_shards(place, task), nothing]
    began = time.monotonic()
    worker(place, task, engine, poll=0.05).work()
    assert time.monotonic() - began >= 0.15
    assert engine.moves == [["a", "b", "c"]]
    assert place.calls == [("claim", "claims/0000000"), ("release", "claims/0000000")]


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
    worker(place, task, engine, poll=0.05, claim=0.4).work()
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

    def end() -> None:
        took.append(time.monotonic() - began)
        place.rounds.clear()

    put_shards(place, task)
    place.held("claims/0000000")
    began, engine = time.monotonic(), Moving(end)
    worker(place, task, engine, said, poll=0.005, claim=0.4).work()
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
