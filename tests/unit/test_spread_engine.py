"""The coordinator of a spread transfer, second by second: what it reads, believes, puts back, and gives up."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, FileFailure, StorageUnreachableError
from blobsync.base.events import Listener, Note, UnderWay
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.stopping import StopRequest
from blobsync.direct.engine import DirectEngine
from blobsync.spread.earlier_records import EarlierBlocks
from blobsync.spread.file_json import LONGEST_TEXT
from blobsync.spread.record import (
    Answer,
    FileRecord,
    KeptFile,
    MovedBytes,
    NamedBlock,
    Ready,
    ShardDone,
    answer_line,
)
from blobsync.spread.shard import Shard, cut_file
from blobsync.spread.shard_worker import read_shard
from blobsync.spread.shared_store import FolderStore
from blobsync.spread.spread_engine import SpreadClock, SpreadEngine, SpreadRefusedError
from blobsync.transfer.engines import CollectedReport, Engine, MoveReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, copy, download, upload

_MIB = 1 << 20
# By then every test should have ended.
_LONGEST = 1000.0


class Time:
    """A clock of its own: each pause takes its seconds at once, and then happens what was to happen ``at`` that
    second."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []
        self._due: list[tuple[float, Callable[[], object]]] = []

    def at(self, second: float, *what: Callable[[], object]) -> None:
        self._due += [(second, each) for each in what]

    def now(self) -> float:
        return 100.0 + self.seconds

    def sleep(self, pause: float) -> None:
        self.pauses.append(pause)
        self.seconds += pause
        assert self.seconds < _LONGEST, "nothing ends it"
        due = [what for second, what in self._due if second <= self.seconds]
        self._due = [(second, what) for second, what in self._due if second > self.seconds]
        for what in due:
            what()


class Place(FolderStore):
    """``listed`` are the seconds at which each folder was listed, ``before`` is called before it is. ``breaks``: it
    cannot be written."""

    def __init__(self, root: Path, time: Time) -> None:
        super().__init__(root)
        self._time = time
        self.listed: dict[str, list[float]] = {}
        self.before: Callable[[str], None] = lambda folder: None
        self.removed: list[str] = []
        self.hurried = 0
        self.breaks = False

    def names(self, folder: str) -> list[str]:
        self.listed.setdefault(folder, []).append(self._time.seconds)
        found = super().names(folder)
        self.before(folder)
        return found

    def write(self, name: str, body: bytes) -> None:
        if self.breaks:
            raise StorageUnreachableError("the service does not answer")
        super().write(name, body)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        super().remove(name)

    def hurry(self) -> None:
        self.hurried += 1


class Crew:
    """A job of workers that others play. ``ends`` is how it has ended, ``asked`` are the seconds of the questions."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.starts: list[float] = []
        self.asked: list[float] = []
        self.stops = 0
        self.ends: str | None = None
        self.before: Callable[[], None] = lambda: None

    def start(self) -> None:
        self.starts.append(self._time.seconds)

    def ended(self) -> str | None:
        self.asked.append(self._time.seconds)
        self.before()
        return self.ends

    def stop(self) -> None:
        self.stops += 1


class Nobody:
    """The engine of this process; nothing is left to it."""

    name = "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        raise AssertionError("moved by this process")


class Alone:
    """The engine of this process, which records what is left to it."""

    name = "direct"

    def __init__(self) -> None:
        self.tasks: list[MoveTask] = []

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(task)

    @property
    def paths(self) -> list[str]:
        return [action.path for task in self.tasks for action in task.actions]


class Scene:
    """A copy of files of these sizes, one shard for each; 0 is the heaviest."""

    def __init__(self, root: Path, sizes: Sequence[int] = (3, 2, 1)) -> None:
        here = MemoryStore("here")
        self.there = MemoryStore("there", {"here": here})
        names = [f"f{number}" for number in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            here.add(f"x/{name}", b"x" * size)
        self.task = copy(here, "x", self.there, "y", names)
        self.time = Time()
        self.place = Place(root / "place", self.time)
        self.crew = Crew(self.time)
        self.report, self.listener = CollectedReport(), RecordingListener()
        self._records = 0

    def run(
        self,
        *,
        keep_records: bool = False,
        range_bytes: int = 0,
        workers: int = 0,
        earlier: EarlierBlocks | None = None,
        alone: Engine | None = None,
    ) -> CollectedReport:
        clock = SpreadClock(self.time.now, self.time.sleep)
        # Whoever says nothing of them has none of them.
        options: dict[str, Any] = {"keep_records": True} if keep_records else {}
        options |= {"range_bytes": range_bytes} if range_bytes else {}
        options |= {"earlier": earlier} if earlier is not None else {}
        engine = SpreadEngine(
            alone or Nobody(), self.place, self.crew, workers or len(self.task.actions), watch=clock, **options
        )
        engine.move(self.task, self.report, self.listener)
        return self.report

    def shard(self, number: int) -> Shard:
        body = self.place.read(f"shards/{number:07}")
        assert body is not None
        return read_shard(body)

    def tell(self, number: int, *answers: Answer, worker: str = "node7.0", attempt: int = 1) -> None:
        """A record of a worker."""
        self._records += 1
        lines = "".join(f"{answer_line(each)}\n" for each in answers)
        name = f"records/{number:07}~{worker}-{attempt:08x}~{self._records:06}"
        FolderStore.write(self.place, name, lines.encode())

    def moved(self, number: int) -> list[FileRecord]:
        return [FileRecord(action.path, action.source) for action in self.shard(number).actions]

    def put(self, number: int) -> list[Answer]:
        """A worker puts the blocks of a range; what it says of it."""
        shard, named = self.shard(number), list[Answer]()
        assert shard.order is not None
        task, said = self.task._replace(actions=shard.actions), CollectedReport()
        blocks = lambda index, block: named.append(NamedBlock(index, block))  # noqa: E731
        DirectEngine().move_blocks(task, shard.order, blocks, said, RecordingListener())
        assert len(said.moved) == 1
        return [*named, *self.moved(number), ShardDone(number)]

    def numbers(self, path: str) -> list[int]:
        """Of the shards of a file."""
        found = [int(name) for name in FolderStore.names(self.place, "shards")]
        return [number for number in found if self.shard(number).actions[0].path == path]

    def finish(self, *numbers: int, worker: str = "node7.0", attempt: int = 1) -> None:
        """All files of these shards are moved."""
        for number in numbers:
            records = self.moved(number)
            self.tell(number, Ready(), *records, ShardDone(number), worker=worker, attempt=attempt)
            FolderStore.write(self.place, f"done/{number:07}", b"")

    @property
    def paths(self) -> list[str]:
        return sorted(each.action.path for each in self.report.moved)

    @property
    def failures(self) -> dict[str, FileFailure]:
        return {action.path: failure for action, failure in self.report.failed}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def _failed(path: str, code: FailureCode, message: str = "no") -> FileRecord:
    return FileRecord(path, failure=FileFailure(path, code, message, "ask"))


# -- what this process moves itself ----------------------------------------------------------------------------------


def test_files_that_no_shard_takes_are_moved_by_this_process_after_the_others(scene: Scene) -> None:
    first, second, third = scene.task.actions
    # A file of unknown state.
    unknown = replace(second, source=None)
    scene.task = scene.task._replace(actions=[first, unknown, third], whole_folder=True)
    alone = Alone()
    scene.time.at(1, lambda: scene.finish(0, 1))
    scene.run(alone=alone)
    assert scene.paths == ["f0", "f2"] and alone.paths == ["f1"]
    # An engine that was told of the whole folder would move what others have moved.
    assert [task.whole_folder for task in alone.tasks] == [False]


def test_without_a_file_for_a_shard_no_job_is_started(scene: Scene) -> None:
    scene.task = scene.task._replace(actions=[replace(each, source=None) for each in scene.task.actions])
    alone = Alone()
    scene.run(alone=alone)
    assert alone.tasks == [scene.task] and not scene.crew.starts


def test_the_second_attempt_is_this_processs_own(scene: Scene) -> None:
    scene.task = scene.task._replace(again=True)
    alone = Alone()
    scene.run(alone=alone)
    assert alone.tasks == [scene.task] and not scene.crew.starts


def test_this_process_has_nothing_to_move_where_shards_take_all(scene: Scene) -> None:
    alone = Alone()
    scene.time.at(1, lambda: scene.finish(0, 1, 2))
    scene.run(alone=alone)
    assert scene.paths == ["f0", "f1", "f2"] and not alone.tasks


# -- the workers' job ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("talk", [False, True])
def test_the_job_is_asked_after_every_five_seconds_however_much_workers_say(scene: Scene, talk: bool) -> None:
    if talk:
        for second in range(1, 21):
            scene.time.at(second, lambda: scene.tell(0, UnderWay(1, "data/x/f0")))
    scene.time.at(21, lambda: scene.finish(0, 1, 2))
    scene.run()
    assert scene.crew.asked == [5.0, 10.0, 15.0, 20.0]
    assert scene.crew.starts == [0.0] and scene.paths == ["f0", "f1", "f2"]
    # Each look is a request; in between nobody can have been refused who works.
    assert scene.place.listed["refused"] == ([0.0, 5.0, 10.0, 15.0, 20.0] if talk else [*map(float, range(21))])
    assert set(scene.time.pauses) == {1.0}


def test_a_job_that_ended_early_is_started_twice_more_and_then_its_files_are_named(scene: Scene) -> None:
    scene.crew.ends = "Failed with code 1"
    report = scene.run()
    assert scene.crew.starts == [0.0, 5.0, 10.0] and scene.crew.asked == [5.0, 10.0, 15.0]
    assert scene.listener.notes == ["the workers' job ended early, Failed with code 1; starting it again"] * 2
    assert not report.moved and set(scene.failures) == {"f0", "f1", "f2"}
    failure = scene.failures["f1"]
    said = "not moved: the workers' job ended early 3 times; the last: Failed with code 1"
    assert failure.code is FailureCode.NOT_REPORTED and failure.message == said
    assert failure.path == "data/x/f1" and failure.hint == "run the same command again: verified files are skipped"


def test_what_workers_wrote_right_before_their_job_ended_counts(scene: Scene) -> None:
    scene.crew.ends = "Completed"
    scene.crew.before = lambda: scene.finish(0, 1, 2)
    scene.run()
    assert scene.paths == ["f0", "f1", "f2"] and scene.crew.starts == [0.0] and not scene.listener.notes


def test_a_job_that_runs_is_not_started_again(scene: Scene) -> None:
    def end() -> None:
        scene.crew.ends = "Failed" if scene.time.seconds == 10 else None

    scene.crew.before = end
    scene.time.at(40, lambda: scene.finish(0, 1, 2))
    scene.run()
    assert scene.crew.starts == [0.0, 10.0]


# -- refusals ------------------------------------------------------------------------------------------------------


def test_a_node_that_refuses_ends_the_transfer_with_what_it_said(scene: Scene) -> None:
    said = b"no\0 such \xff\nfolder " + b"x" * LONGEST_TEXT
    scene.time.at(3, lambda: FolderStore.write(scene.place, "refused/node0.0", said))
    with pytest.raises(SpreadRefusedError) as error:
        scene.run()
    assert scene.time.seconds == 3 and error.value.code is FailureCode.SPREAD_REFUSED
    assert error.value.message.startswith("node0.0 cannot take part: no such ")
    assert error.value.message.isprintable() and error.value.hint == "without --nodes this machine does it"
    assert "x" * 1900 in error.value.message and len(error.value.message) < LONGEST_TEXT + 100
    assert scene.crew.stops == 1 and scene.place.hurried == 1 and scene.place.read("stop") == b""


def test_a_refusal_that_is_gone_again_is_none_and_the_next_one_counts(scene: Scene) -> None:
    FolderStore.write(scene.place, "refused/node0.0", b"never read")
    FolderStore.write(scene.place, "refused/node1.0", b"its clock is wrong")

    def vanish(folder: str) -> None:
        if folder == "refused":
            FolderStore.remove(scene.place, "refused/node0.0")

    scene.place.before = vanish
    with pytest.raises(SpreadRefusedError, match=r"^node1\.0 cannot take part: its clock is wrong$"):
        scene.run()
    assert scene.time.seconds == 0


def test_what_was_told_before_the_end_counts_and_a_place_that_is_down_hides_no_error(scene: Scene) -> None:
    def end() -> None:
        scene.finish(1)
        scene.place.breaks = True
        raise SpreadRefusedError("the cluster is gone")

    scene.crew.before = end
    with pytest.raises(SpreadRefusedError, match="the cluster is gone"):
        scene.run()
    assert scene.paths == ["f1"] and scene.crew.stops == 1 and scene.place.hurried == 1


# -- a minute without a word ---------------------------------------------------------------------------------------


def _lose(scene: Scene, name: str) -> Callable[[], None]:
    return lambda: FolderStore.remove(scene.place, name)


@pytest.mark.parametrize("word", [None, 30, 59])
def test_after_a_minute_without_a_word_a_shard_that_is_gone_is_put_back(scene: Scene, word: int | None) -> None:
    back: list[float] = []
    bodies: list[bytes | None] = []

    def look() -> None:
        if not back and (body := scene.place.read("shards/0000001")) is not None:
            back.append(scene.time.seconds)
            bodies.append(body)

    def note_and_lose() -> None:
        bodies.append(scene.place.read("shards/0000001"))
        _lose(scene, "shards/0000001")()

    scene.time.at(1, note_and_lose)
    for second in range(2, 130):
        scene.time.at(second, look)
    if word is not None:
        scene.time.at(word, lambda: scene.tell(0, UnderWay(1, "data/x/f0")))
    scene.time.at(130, lambda: scene.finish(0, 1, 2))
    scene.run()
    # It is put back in the second before the one in which this is seen.
    assert back == [(word or 0) + 61.0] and bodies[0] == bodies[1]
    name = f"{scene.place.shown}shards/0000001"
    assert scene.listener.notes == [f"somebody else has removed or replaced {name}: it is put back"]
    assert scene.paths == ["f0", "f1", "f2"]


def test_the_documents_are_looked_at_once_a_minute(scene: Scene) -> None:
    scene.time.at(200, lambda: scene.finish(0, 1, 2))
    scene.run()
    assert scene.place.listed["done"] == [60.0, 120.0, 180.0]


@pytest.mark.parametrize("name", ["0000009~node7.0-00000001", "nonsense~node7.0-00000001", "0000001~node7.0-00000009"])
def test_records_that_say_nothing_of_an_open_shard_are_no_word(scene: Scene, name: str) -> None:
    """Nor those of somebody who is not believed."""
    count = iter(range(1000))
    lie = FileRecord("../etc")
    scene.time.at(1, lambda: scene.tell(1, lie, attempt=9))

    def write() -> None:
        line = answer_line(UnderWay(1, "data/x/f1"))
        FolderStore.write(scene.place, f"records/{name}~{next(count) + 100:06}", line.encode())

    for second in range(2, 70):
        scene.time.at(second, write)
    scene.time.at(70, lambda: scene.finish(0, 2))
    scene.run()
    assert scene.place.listed["done"] == [61.0]
    assert scene.paths == ["f0", "f2"]
    assert scene.failures["f1"].message == "its worker said what cannot be, and is not believed"
    assert len(scene.listener.notes) == 1
    assert scene.listener.notes[0].startswith("what node7.0 says of a shard is not believed: ")


def test_a_word_counts_whatever_others_say_in_the_same_second(scene: Scene) -> None:
    lie = FileRecord("../etc")
    scene.time.at(30, lambda: scene.tell(0, UnderWay(1, "data/x/f0")))
    # Of two pieces of one who lies, the second is not read either.
    scene.time.at(30, lambda: scene.tell(1, lie, attempt=8))
    scene.time.at(30, lambda: scene.tell(1, lie, attempt=9), lambda: scene.tell(1, *scene.moved(1), attempt=9))
    gone: list[str] = []

    def vanish(folder: str) -> None:
        if folder == "records" and scene.time.seconds == 31 and not gone:
            gone.extend(name for name in FolderStore.names(scene.place, folder) if "node9.0" in name)
            for name in gone:
                FolderStore.remove(scene.place, f"records/{name}")

    scene.place.before = vanish
    scene.time.at(31, lambda: scene.tell(2, *scene.moved(2), worker="node9.0"))
    scene.time.at(95, lambda: scene.finish(0, 2))
    report = scene.run()
    # What cannot be read is no word.
    assert len(gone) == 1 and scene.place.listed["done"] == [90.0]
    assert scene.paths == ["f0", "f2"] and len(report.moved) == 2
    assert "is not believed" in scene.failures["f1"].message and len(report.failed) == 1


def test_a_shard_that_its_worker_finished_without_a_word_ends_and_the_others_go_on(scene: Scene) -> None:
    scene.time.at(1, lambda: FolderStore.write(scene.place, "done/0000001", b""))
    scene.time.at(70, lambda: scene.finish(0, 2))
    scene.run()
    assert scene.paths == ["f0", "f2"] and set(scene.failures) == {"f1"}
    assert scene.failures["f1"].message == "its worker has finished it, and what it said of it is not there"


def test_what_a_worker_said_between_two_looks_is_heard_before_its_shard_is_ended(scene: Scene) -> None:
    scene.time.at(1, lambda: scene.finish(0, 2))

    def finish(folder: str) -> None:
        if folder == "done":
            scene.tell(1, Ready(), *scene.moved(1), ShardDone(1))

    scene.place.before = finish
    scene.time.at(2, lambda: FolderStore.write(scene.place, "done/0000001", b""))
    report = scene.run()
    assert scene.paths == ["f0", "f1", "f2"] and not report.failed


# -- what is kept --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_finished_is_removed_half_a_minute_later_and_nothing_else(scene: Scene, keep: bool) -> None:
    left: dict[float, list[str]] = {}

    def look() -> None:
        names = [f"{folder}/{name}" for folder in ("shards", "records", "done") for name in scene.place.names(folder)]
        left[scene.time.seconds] = names

    scene.time.at(5, lambda: scene.finish(0))
    scene.time.at(6, lambda: scene.finish(1))
    scene.time.at(7, lambda: scene.tell(2, Ready()))
    for at in (35, 36, 40, 41, 60):
        scene.time.at(at, look)
    scene.time.at(61, lambda: scene.finish(2))
    scene.run(keep_records=keep)
    first = ["shards/0000000", "records/0000000~node7.0-00000001~000001", "done/0000000"]
    second = ["shards/0000001", "records/0000001~node7.0-00000001~000002", "done/0000001"]
    third = ["shards/0000002", "records/0000002~node7.0-00000001~000003"]
    # Each five seconds somebody looks, after what happens in that second.
    everything = sorted([*first, *second, *third])
    assert sorted(left[35.0]) == everything
    assert sorted(left[36.0]) == sorted(left[40.0]) == (everything if keep else sorted([*second, *third]))
    assert sorted(left[41.0]) == sorted(left[60.0]) == (everything if keep else sorted(third))
    # Each once, and the word that a shard is done last: whoever finds the shard without it would move it again.
    assert scene.place.removed == ([] if keep else [*first, *second])


# -- what workers say ----------------------------------------------------------------------------------------------


def test_what_a_worker_says_besides_is_passed_on(scene: Scene) -> None:
    scene.time.at(1, lambda: scene.tell(0, Ready(), Note("a sentence"), KeptFile("f0", 2), UnderWay(4, "data/x/f0")))
    scene.time.at(2, lambda: scene.tell(1, UnderWay(3, "data/x/f1"), worker="node8.0"))
    scene.time.at(3, lambda: scene.finish(0))
    scene.time.at(4, lambda: scene.tell(1, UnderWay(2, "data/x/f1"), worker="node8.0"))
    scene.time.at(5, lambda: scene.finish(1, 2))
    report = scene.run()
    assert scene.listener.notes == ["a sentence"]
    assert [(action.path, size) for action, size in report.kept] == [("f0", 2)]
    # What is finished is no longer under way.
    assert scene.listener.begun == [(4, "data/x/f0"), (7, "data/x/f1"), (2, "data/x/f1")]


def test_bytes_under_way_are_counted_once_whoever_takes_a_shard_over(scene: Scene) -> None:
    seen: list[tuple[int, int]] = []
    scene.time.at(1, lambda: scene.tell(0, MovedBytes(1)), lambda: scene.tell(0, MovedBytes(1, 1)))
    scene.time.at(2, lambda: seen.append((scene.listener.bytes, scene.listener.reused)))
    scene.time.at(2, lambda: scene.tell(0, MovedBytes(3), worker="node8.0", attempt=2))
    scene.time.at(3, lambda: seen.append((scene.listener.bytes, scene.listener.reused)))
    scene.time.at(3, lambda: scene.tell(0, *scene.moved(0), ShardDone(0), worker="node8.0", attempt=2))
    # Of these no worker has told bytes.
    scene.time.at(4, lambda: scene.finish(1, 2))
    scene.run()
    assert seen == [(2, 1), (3, 0)]
    assert (scene.listener.bytes, scene.listener.reused) == (6, 0)
    assert scene.listener.workers == {"node7.0": [2, 3 + 2 - 2], "node8.0": [1, 3]}


def test_what_one_attempt_could_not_move_and_the_next_one_did_is_moved(scene: Scene) -> None:
    denied = _failed("f0", FailureCode.ACCESS_DENIED, "not for you")
    scene.time.at(1, lambda: scene.tell(0, Ready(), denied))
    scene.time.at(2, lambda: scene.finish(0, worker="node8.0", attempt=2))
    scene.time.at(3, lambda: scene.tell(1, _failed("f1", FailureCode.ACCESS_DENIED, "not for you"), ShardDone(1)))
    scene.time.at(4, lambda: scene.tell(2, ShardDone(2)))
    report = scene.run()
    assert scene.paths == ["f0"]
    failure = FileFailure("data/x/f1", FailureCode.ACCESS_DENIED, "not for you", "ask")
    assert scene.failures["f1"] == failure and len(report.failed) == 2
    assert scene.failures["f2"].message == "not moved: 3 workers in a row were lost over its shard"


def test_a_file_that_two_attempts_report_is_counted_once_and_one_of_no_shard_is_a_lie(scene: Scene) -> None:
    scene.time.at(1, lambda: scene.tell(0, *scene.moved(0)))
    scene.time.at(2, lambda: scene.tell(0, *scene.moved(0), ShardDone(0), worker="node8.0", attempt=2))
    # Of another shard.
    scene.time.at(3, lambda: scene.tell(1, *scene.moved(2), *scene.moved(1)))
    scene.time.at(4, lambda: scene.finish(2))
    report = scene.run()
    assert scene.paths == ["f0", "f2"] and len(report.moved) == 2
    assert "is not believed" in scene.failures["f1"].message and len(scene.listener.notes) == 1


@pytest.mark.parametrize("there", ["the planned bytes", "others", "nothing"])
def test_a_file_that_is_there_since_a_lost_worker_could_not_say_so_is_moved(scene: Scene, there: str) -> None:
    if there != "nothing":
        scene.time.at(1, lambda: scene.there.add("y/f1", (b"x" if there == "the planned bytes" else b"y") * 2))
    refused = _failed("f1", FailureCode.CHANGED_MEANWHILE, "somebody has written it")
    scene.time.at(2, lambda: scene.tell(1, refused, ShardDone(1)))
    scene.time.at(3, lambda: scene.finish(0, 2))
    scene.run()
    if there == "the planned bytes":
        assert scene.paths == ["f0", "f1", "f2"] and not scene.failures and scene.listener.bytes == 6
    else:
        assert scene.paths == ["f0", "f2"]
        told = FileFailure("data/x/f1", FailureCode.CHANGED_MEANWHILE, "somebody has written it", "ask")
        assert scene.failures == {"f1": told}


def test_each_file_of_a_shard_fails_for_its_own_reason(scene: Scene) -> None:
    denied = _failed("f0", FailureCode.ACCESS_DENIED, "not for you")
    scene.time.at(1, lambda: scene.tell(0, denied, ShardDone(0)))
    scene.run(workers=1)
    lost = "not moved: 3 workers in a row were lost over its shard"
    assert {path: failure.message for path, failure in scene.failures.items()} == {
        "f0": "not for you",
        "f1": lost,
        "f2": lost,
    }


def test_only_where_it_changed_meanwhile_a_file_that_failed_is_looked_at(scene: Scene) -> None:
    scene.time.at(1, lambda: scene.there.add("y/f1", b"xx"))
    scene.time.at(2, lambda: scene.tell(1, _failed("f1", FailureCode.ACCESS_DENIED), ShardDone(1)))
    scene.time.at(3, lambda: scene.finish(0, 2))
    scene.run()
    assert scene.paths == ["f0", "f2"] and scene.failures["f1"].code is FailureCode.ACCESS_DENIED


# -- a full disk, and large files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_a_full_disk_ends_what_nobody_has_begun(scene: Scene, keep: bool) -> None:
    full = _failed("f0", FailureCode.DISK_FULL, "/p/f0: No space left on device")
    scene.time.at(1, lambda: scene.tell(1, Ready(), MovedBytes(1)))
    scene.time.at(2, lambda: scene.tell(0, full))
    scene.time.at(3, lambda: scene.tell(0, ShardDone(0)))
    names: list[str] = []
    bodies: dict[str, bytes | None] = {}

    def look() -> None:
        names.extend(name for name in scene.place.names("records") if "parent" in name)
        bodies.update({name: scene.place.read(f"records/{name}") for name in names})
        assert scene.place.read("done/0000002") == b""

    scene.time.at(4, look)
    left: list[list[str]] = []
    scene.time.at(40, lambda: left.append(scene.place.names("shards")), lambda: scene.finish(1))
    scene.run(keep_records=keep)
    # Whoever has begun may end.
    assert scene.paths == ["f1"]
    assert scene.failures["f0"] == FileFailure("data/x/f0", FailureCode.DISK_FULL, full.failure.message, "ask")  # type: ignore[union-attr]
    said = "not tried, since others failed: /p/f0: No space left on device"
    assert scene.failures["f2"] == FileFailure("data/x/f2", FailureCode.DISK_FULL, said, "ask")
    # A command that is started again reads the same.
    assert names == ["0000002~parent-00000000~000000"]
    lines = (bodies[names[0]] or b"").decode().splitlines()
    told = FileFailure("f2", FailureCode.DISK_FULL, said, "ask")
    assert lines == [answer_line(FileRecord("f2", failure=told)), answer_line(ShardDone(2))]
    assert len(scene.report.failed) == 2
    # As what is finished, what is given up is removed some time later.
    assert left == [["0000000", "0000001", "0000002"] if keep else ["0000001"]]


@pytest.fixture
def large(tmp_path: Path) -> Scene:
    """Two large files, f1 and f2, of three and of two ranges, and a small one."""
    return Scene(tmp_path, (1, 12 * _MIB, 8 * _MIB))


def test_the_ranges_of_files_are_begun_from_the_heaviest_and_each_file_is_committed_once(large: Scene) -> None:
    order: list[str] = []

    def work(*numbers: int) -> None:
        order.extend(large.shard(number).actions[0].path for number in numbers)
        for number in numbers:
            if large.shard(number).order is None:
                large.finish(number)
            else:
                large.tell(number, *large.put(number))

    large.time.at(1, lambda: work(0, 1, 2))
    large.time.at(2, lambda: work(3, 4, 5))
    report = large.run(range_bytes=4 * _MIB)
    assert order[-1] == "f0" and sorted(order) == ["f0", "f1", "f1", "f1", "f2", "f2"]
    assert large.paths == ["f0", "f1", "f2"] and not report.failed
    assert len(large.there.asked("put_block_list")) == 2 and large.there.body("y/f1") == b"x" * 12 * _MIB


def test_the_other_ranges_of_a_file_go_on_when_one_has_ended(large: Scene) -> None:
    def put(*numbers: int) -> None:
        for number in numbers:
            large.tell(number, *large.put(number))

    large.time.at(10, lambda: put(large.numbers("f1")[0], large.numbers("f2")[0]))
    large.time.at(30, lambda: put(*large.numbers("f1")[1:], *large.numbers("f2")[1:]))
    large.time.at(31, lambda: large.finish(*large.numbers("f0")))
    report = large.run(range_bytes=4 * _MIB, keep_records=True)
    assert large.paths == ["f0", "f1", "f2"] and not report.failed


def test_a_range_that_the_next_attempt_has_put_does_not_fail_the_file(large: Scene) -> None:
    denied = _failed("f1", FailureCode.ACCESS_DENIED)
    large.time.at(1, lambda: large.tell(large.numbers("f1")[0], Ready(), denied))

    def put() -> None:
        for number in [*large.numbers("f1"), *large.numbers("f2")]:
            large.tell(number, *large.put(number), worker="node8.0", attempt=2)

    large.time.at(2, put, lambda: large.finish(*large.numbers("f0")))
    report = large.run(range_bytes=4 * _MIB)
    assert large.paths == ["f0", "f1", "f2"] and not report.failed


@pytest.mark.parametrize("why", ["a reason", "nothing"])
def test_the_other_ranges_of_a_file_that_failed_are_taken_back_and_no_other_shard(large: Scene, why: str) -> None:
    numbers: dict[str, list[int]] = {}

    def fail() -> None:
        numbers.update({path: large.numbers(path) for path in ("f0", "f1", "f2")})
        denied = _failed("f1", FailureCode.ACCESS_DENIED, "not for you")
        first = numbers["f1"][0]
        large.tell(first, Ready(), *([denied] if why == "a reason" else []), ShardDone(first))
        large.tell(numbers["f1"][1], UnderWay(5, "data/x/f1"), MovedBytes(1000))

    def look() -> None:
        assert large.place.names("done") == [f"{number:07}" for number in numbers["f1"][1:]]
        assert large.listener.bytes == 0, "what was under way is taken back"
        large.tell(numbers["f0"][0], UnderWay(1, "data/x/f0"))

    def finish() -> None:
        for number in numbers["f2"]:
            large.tell(number, *large.put(number))
        large.finish(*numbers["f0"])

    large.time.at(1, fail)
    large.time.at(3, look)
    large.time.at(50, finish)
    large.run(range_bytes=4 * _MIB, keep_records=True)
    assert large.paths == ["f0", "f2"] and len(large.report.failed) == 1
    # It is under way no longer.
    assert large.listener.begun[-1] == (1, "data/x/f0")
    if why == "a reason":
        told = FileFailure("data/x/f1", FailureCode.ACCESS_DENIED, "not for you", "ask")
        assert large.failures["f1"] == told
    else:
        assert large.failures["f1"].message == "not moved: 3 workers in a row were lost over its shard"
    said = FileFailure("f1", FailureCode.NOT_REPORTED, "not moved: another range of the file has failed", None)
    for number in numbers["f1"][1:]:
        lines = (large.place.read(f"records/{number:07}~parent-00000000~000000") or b"").decode().splitlines()
        assert lines == [answer_line(FileRecord("f1", failure=said)), answer_line(ShardDone(number))]
    assert "f1" not in large.there.blobs


# -- this machine's own reading --------------------------------------------------------------------------------------


@cache
def _md5_of_zeros(size: int) -> bytes:
    return hashlib.md5(bytes(size)).digest()


class Sending(Scene):
    """An upload of these files, of zeros, to a container that workers reach."""

    def __init__(self, root: Path, sizes: Sequence[int]) -> None:
        super().__init__(root)
        (root / "data").mkdir()
        for number, size in enumerate(sizes):
            with (root / "data" / f"f{number}").open("wb") as file:
                file.truncate(size)
        self.task = upload(root / "data", self.there, "sets")

    def arrived(self, number: int) -> None:
        """A worker says that it has moved the file, or the range, of this shard."""
        shard = self.shard(number)
        (action,) = shard.actions
        source = action.source
        assert isinstance(source, LocalState)
        md5 = _md5_of_zeros(source.size)
        blocks = range(*shard.order.blocks) if shard.order is not None else ()
        named = [NamedBlock(index, "Y" * 48) for index in blocks]
        told = FileRecord(action.path, replace(source, md5=md5), RemoteState(source.size, "0x1", md5))
        self.tell(number, *named, told, ShardDone(number))

    def later(self, what: Callable[[], bool]) -> None:
        """Calls it each second until it is true. Threads of this process have time meanwhile."""

        def look() -> None:
            if not what():
                time.sleep(0.002)
                self.time.at(self.time.seconds + 1, look)

        self.time.at(1, look)


def _readers() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if "_work" in each.name}


def test_what_this_machine_has_read_is_reported_while_others_still_move(tmp_path: Path) -> None:
    """A command that is killed has what it has reported."""
    scene, earlier, readers = Sending(tmp_path, (1, 1)), _readers(), set[threading.Thread]()

    def look() -> bool:
        readers.update(_readers() - earlier)
        if scene.report.moved:
            scene.arrived(1)
        return bool(scene.report.moved)

    scene.time.at(1, lambda: scene.arrived(0))
    scene.later(look)
    scene.run()
    assert scene.paths == ["f0", "f1"]
    # The page of a project stays open for days, and moves often.
    for thread in readers:
        thread.join(60)
    assert readers and not [thread for thread in readers if thread.is_alive()]


def test_of_an_upload_no_worker_says_what_is_in_the_container(tmp_path: Path) -> None:
    scene = Sending(tmp_path, (3,))
    scene.time.at(1, lambda: scene.arrived(0))
    (moved,) = scene.run().moved
    assert moved.destination is None
    assert isinstance(moved.source, LocalState) and moved.source.md5 == _md5_of_zeros(3)


def test_of_a_download_this_machine_says_what_it_has_read_itself(tmp_path: Path) -> None:
    scene = Scene(tmp_path, (3,))
    here = MemoryStore("here")
    here.add("x/f0", b"abc")
    file = tmp_path / "down" / "f0"
    file.parent.mkdir()
    scene.task = download(here, "x", file.parent, ["f0"])

    def fetch() -> None:
        file.write_bytes(b"abc")
        (action,) = scene.shard(0).actions
        there = LocalState.of(file.stat(), b"a worker's word.")
        scene.tell(0, FileRecord("f0", action.source, there), ShardDone(0))

    scene.time.at(1, fetch)
    (moved,) = scene.run().moved
    assert moved.destination == LocalState.of(file.stat(), hashlib.md5(b"abc").digest())


def test_a_job_that_ends_while_only_this_machine_still_reads_is_not_started_again(tmp_path: Path) -> None:
    scene = Sending(tmp_path, (32 * _MIB,))
    scene.crew.ends = "Completed"
    scene.time.at(1, lambda: scene.arrived(0))
    scene.run()
    assert scene.paths == ["f0"] and scene.crew.starts == [0.0] and not scene.listener.notes


def test_what_this_machine_still_reads_counts_where_the_rest_is_given_up(tmp_path: Path) -> None:
    scene = Sending(tmp_path, (32 * _MIB, 1))
    scene.crew.ends = "Failed"
    scene.time.at(14, lambda: scene.arrived(0))
    scene.run()
    assert scene.paths == ["f0"] and set(scene.failures) == {"f1"}


@pytest.mark.parametrize("other", [False, True])
def test_blocks_that_are_not_there_are_put_once_more_at_once(tmp_path: Path, other: bool) -> None:
    """Whether another shard is still open or not. No worker has put any block here, whatever it says."""
    scene, told = Sending(tmp_path, (32 * _MIB, 1) if other else (32 * _MIB,)), set[int]()

    def work() -> bool:
        for number in set(scene.numbers("f0")) - told:
            told.add(number)
            scene.arrived(number)
        # The reader and two ranges, twice.
        if other and len(told) == 6:
            scene.arrived(*scene.numbers("f1"))
        return len(told) == 6

    scene.later(work)
    scene.run(range_bytes=16 * _MIB, keep_records=True)
    assert len(told) == 6 and set(scene.failures) == {"f0"} and len(scene.report.failed) == 1
    assert scene.paths == (["f1"] if other else [])
    assert len(scene.there.asked("put_block_list")) == 2
    (note,) = scene.listener.notes
    assert note.startswith("data/x/f0: another writer of the same blob has dropped blocks of it")


def test_a_request_to_stop_ends_it_within_a_second(scene: Scene) -> None:
    stop = StopRequest()
    scene.task = scene.task._replace(stop=stop)
    scene.time.at(3, stop.make)
    with pytest.raises(KeyboardInterrupt):
        scene.run()
    assert scene.time.seconds == 3 and scene.crew.stops == 1 and scene.place.read("stop") == b""


def test_a_part_that_is_one_large_file_is_for_workers(tmp_path: Path) -> None:
    """A part that is a small file is none of theirs."""
    scene = Sending(tmp_path, (32 * _MIB,))
    scene.task = upload(tmp_path / "data" / "f0", scene.there, "sets/f0", [""])

    def end() -> None:
        assert len(scene.numbers("")) == 3
        raise SpreadRefusedError("as expected")

    scene.time.at(1, end)
    with pytest.raises(SpreadRefusedError, match="as expected"):
        scene.run(range_bytes=16 * _MIB)


def test_workers_are_told_of_blocks_from_an_earlier_run_in_a_record_of_the_coordinator(large: Scene) -> None:
    (action,) = [each for each in large.task.actions if each.path == "f1"]
    earlier = EarlierBlocks()
    earlier.add(cut_file(large.task.part, action, 4 * _MIB)[0], {0: "Y" * 48})
    found: dict[str, bytes | None] = {}

    def end() -> None:
        found.update({name: large.place.read(f"records/{name}") for name in large.place.names("records")})
        raise SpreadRefusedError("as expected")

    large.time.at(1, end)
    with pytest.raises(SpreadRefusedError, match="as expected"):
        large.run(range_bytes=4 * _MIB, earlier=earlier)
    ((name, body),) = found.items()
    # The next command reads it under this name.
    assert name.partition("~")[2] == "parent-00000001~000000"
    assert body == answer_line(NamedBlock(0, "Y" * 48)).encode()
    assert large.shard(int(name[:7])).actions[0].path == "f1"
    # It is no word of a worker.
    assert large.place.listed["refused"] == [0.0]


def test_blocks_of_an_earlier_run_count_although_no_worker_names_them_again(large: Scene) -> None:
    (action,) = [each for each in large.task.actions if each.path == "f1"]
    first = cut_file(large.task.part, action, 4 * _MIB)[0]
    named: dict[int, str] = {}
    assert first.order is not None
    blocks = first.order.blocks
    task = large.task._replace(actions=[action])
    DirectEngine().move_blocks(task, first.order, named.__setitem__, CollectedReport(), RecordingListener())
    earlier = EarlierBlocks()
    earlier.add(first, named)

    def work() -> None:
        for number in [*large.numbers("f1"), *large.numbers("f2")]:
            order = large.shard(number).order
            is_there = order is not None and order.blocks == blocks and number in large.numbers("f1")
            large.tell(number, *([*large.moved(number), ShardDone(number)] if is_there else large.put(number)))
        large.finish(*large.numbers("f0"))

    large.time.at(1, work)
    report = large.run(range_bytes=4 * _MIB, earlier=earlier)
    assert large.paths == ["f0", "f1", "f2"] and not report.failed
    assert large.there.body("y/f1") == b"x" * 12 * _MIB
