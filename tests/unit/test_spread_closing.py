"""The end of a detached transfer: one task closes it, once, and its job is Completed only then."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import AccessDeniedError
from blobsync.base.exit_codes import ExitCode
from blobsync.config.model import Cluster
from blobsync.direct.engine import DirectEngine
from blobsync.jobs.context import JobContext
from blobsync.jobs.detached import NOT_VERIFIED, closed, end_told
from blobsync.jobspec.node_secrets import run_key
from blobsync.jobspec.spec import JobRef, RunInfo, State
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.spread import close
from blobsync.spread.probe import own_probe, written_probe
from blobsync.spread.record import FileRecord, read_body, record_body
from blobsync.spread.shard import cut, shard_body
from blobsync.spread.shared_store import FolderStore, Result, SealedStore
from blobsync.spread.task import Ends, task_name
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import upload
from tests.fakes.tasks_of_a_job import KEY, task_of

_TASKS = 2


class _Killed(BaseException):
    """An exception that no code catches."""


@pytest.fixture
def store() -> MemoryStore:
    """A store that always refuses one of the files."""

    def refuse(request: Request) -> None:
        if request.operation == "put" and request.name.endswith("f7"):
            raise AccessDeniedError("the service refuses f7")

    found = MemoryStore("box")
    found.before = refuse
    return found


class Closing:
    """A detached transfer whose tasks have their records."""

    def __init__(self, tmp_path: Path, store: MemoryStore) -> None:
        root = tmp_path / "data"
        root.mkdir()
        for number in range(20):
            (root / f"f{number}").write_bytes(b"x" * number)
        self.task = upload(root, store, "sets")
        self.probe = root / ".probe-of-blobsync-0123456789abcdef"
        orders = {
            "count": _TASKS,
            "ends": [{"probe": written_probe(own_probe(root, "0123456789abcdef"))}],
            "detach": True,
        }
        words = parse_arguments(["spread", "--job", "/j", "--run-dir", str(tmp_path), "--root", str(tmp_path / "r")])
        self.job = NodeJob(make_spec(options={"spread": orders}), {}, words, {}, 0)
        self.place = SealedStore(FolderStore(tmp_path / "place"), KEY, "run", lambda text: None)
        for shard in cut(self.task.part, self.task.actions, _TASKS):
            self.place.write(f"shards/{task_name(shard.number)}", shard_body(shard))
        self.told: list[str] = []
        self.released = 0

    def carry(self, *numbers: int) -> None:
        for number in numbers:
            task_of(self.place, number, [self.task.part]).run()

    def close(self, number: int, place: SealedStore | None = None) -> int:
        ends = [Ends(self.task.part.source, self.task.part.destination)]
        return close(self.job, place or self.place, number, ends, DirectEngine(), self.told.append, self._release)

    def _release(self) -> None:
        self.released += 1

    def result(self) -> dict[str, Any] | None:
        body = self.place.read("result")
        return None if body is None else dict(json.loads(body))


@pytest.fixture
def closing(tmp_path: Path, store: MemoryStore) -> Closing:
    return Closing(tmp_path, store)


def test_the_task_that_finds_all_records_closes_the_transfer_and_no_other(closing: Closing) -> None:
    closing.carry(0)
    assert closing.close(0) == 0 and closing.result() is None
    closing.carry(1)
    assert closing.close(1) == 3
    result = closing.result()
    assert result is not None and (result["exit_code"], result["verified"]) == (3, 19)
    assert [each["path"] for each in result["failures"]] == ["data/x/f7"]
    assert "the service refuses f7" in closing.told[0] and closing.told[-1] == "19 files verified, 1 failed"
    assert not closing.probe.exists() and closing.released == 1 and closing.place.read("ended") == b""
    # The other task sees all records, too, and leaves it to the first.
    assert closing.close(0) == 0 and closing.released == 1


def test_a_task_that_was_killed_while_it_closed_goes_on_and_one_result_stays(
    closing: Closing, store: MemoryStore, tmp_path: Path
) -> None:
    class Dying(SealedStore):
        def write(self, name: str, body: bytes) -> None:
            super().write(name, body)
            if name == "result":
                raise _Killed

    closing.carry(0, 1)
    with pytest.raises(_Killed):
        closing.close(1, Dying(FolderStore(tmp_path / "place"), KEY, "run", lambda text: None))
    before = len(store.asked("put"))
    assert closing.close(0) == 0
    assert closing.close(1) == 3 and closing.told[-1] == "19 files verified, 1 failed"
    # Nothing is tried again: what it had found out is the job's result.
    assert len(store.asked("put")) == before and not closing.probe.exists()


@pytest.mark.parametrize(
    "left",
    [
        {"job": "me_1_0badcaff"},
        {"exit_code": 77},
        {"exit_code": None},
        {"verified": "all"},
        {"failures": [{"path": "f7"}]},
        {"failures": None},
        None,
    ],
)
def test_what_is_no_result_of_this_job_is_none(left: dict[str, object] | None, closing: Closing) -> None:
    closing.carry(0, 1)
    result = {"job": closing.job.spec.run_id, "exit_code": 0, "transferred": 20, "verified": 20, "failures": []}
    closing.place.write("result", json.dumps({**result, **left}).encode() if left is not None else b"\xff")
    assert closing.close(0) == 3
    told = closing.result()
    assert told is not None and (told["exit_code"], told["verified"]) == (3, 19)


def test_a_file_that_was_replaced_since_its_task_wrote_it_is_no_success(closing: Closing, store: MemoryStore) -> None:
    closing.carry(0, 1)
    store.add("sets/f3", b"zzz")
    assert closing.close(0) == 3
    result = closing.result()
    assert result is not None and result["verified"] == 18
    assert {each["path"] for each in result["failures"]} == {"data/x/f3", "data/x/f7"}


@pytest.mark.parametrize("how", ["half", "forged", "no shard", "a lie"])
def test_what_is_not_whole_is_left_to_the_next_command(how: str, closing: Closing, tmp_path: Path) -> None:
    closing.carry(0, 1)
    name = f"records/{task_name(1)}"
    said = read_body(closing.place.read(name) or b"", closing.task.part.route)
    if how == "half":
        closing.place.write(name, record_body(said[1:3]))
    elif how == "forged":
        (tmp_path / "place" / name).write_bytes(record_body(said[1:]))
    elif how == "a lie":
        lies = [replace(each, path="other") if isinstance(each, FileRecord) else each for each in said]
        closing.place.write(name, record_body(lies[1:]))
    else:
        (tmp_path / "place" / "shards" / task_name(1)).write_bytes(b"no shard of ours")
    code, result = closing.close(0), closing.result()
    if how == "a lie":
        # It is whole, and not believed: its files have no report.
        assert code == 3 and result is not None and result["verified"] < 15
    else:
        assert code == 1 and result is None


# -- as q says it --------------------------------------------------------------------------------------------------


class Asked:
    """A detached job that its platform calls Completed."""

    def __init__(self, tmp_path: Path) -> None:
        self.environ = {"HOME": str(tmp_path / "home"), "USER": "me"}
        cluster, self.fake = Cluster("eu", "eu.yaml", tmp_path), FakeBackend()
        self.context = JobContext(tmp_path, {**os.environ, **self.environ}, cluster, backends={"eu": self.fake})
        folder = tmp_path / "place"
        orders = {"run": "one", "count": 2, "detach": True, "container": "", "place": str(folder), "base": "b"}
        spec = make_spec(cluster="eu", platform="local", options={"spread": orders})
        self.record = self.context.history.add(spec, JobRef(spec.run_id, "1", ""), "fake")
        key = run_key(self.context.environ, "one")
        self.place = SealedStore(FolderStore(folder), key, "one", lambda text: None)

    def told(self, state: State, code: int | None = None) -> RunInfo:
        return end_told(self.context, self.record, RunInfo(self.record.run_id, state, code))

    def result(self, code: int) -> None:
        self.place.write("result", Result(self.record.run_id, ExitCode(code), 2, 2, ()).body())


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def test_a_detached_job_is_completed_when_a_task_has_looked_and_said_so(asked: Asked) -> None:
    left = asked.told(State.COMPLETED, 0)
    assert (left.state, left.exit_code, left.reason) == (State.FAILED, None, NOT_VERIFIED)
    asked.result(0)
    assert asked.told(State.COMPLETED, 0).state is State.COMPLETED
    # A task that was killed after the end of the transfer does not change it.
    assert asked.told(State.FAILED, 137) == replace(asked.told(State.COMPLETED, 0))
    asked.result(3)
    assert (asked.told(State.COMPLETED, 0).state, asked.told(State.COMPLETED, 0).exit_code) == (State.FAILED, 3)


@pytest.mark.parametrize("state", [State.RUNNING, State.QUEUED, State.CANCELED, State.UNKNOWN])
def test_what_has_not_ended_by_itself_is_as_the_platform_says(state: State, asked: Asked) -> None:
    asked.result(0)
    assert asked.told(state) == RunInfo(asked.record.run_id, state)


def test_a_forged_result_is_none(asked: Asked, tmp_path: Path) -> None:
    asked.result(3)
    (tmp_path / "place" / "result").write_bytes(Result(asked.record.run_id, ExitCode.DONE, 2, 2, ()).body())
    assert asked.told(State.COMPLETED, 0).reason == NOT_VERIFIED


def test_where_the_place_does_not_answer_the_end_is_not_known_yet(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "place").write_bytes(b"in the way")
    told = asked.told(State.COMPLETED, 0)
    assert told.state is State.RUNNING and told.reason.startswith("not verified: ") and told.exit_code is None


def test_other_jobs_are_not_looked_at(asked: Asked) -> None:
    orders = dict(asked.record.spec.options["spread"])
    for change in ({"detach": False}, {"count": 0}):
        spec = replace(asked.record.spec, options={"spread": {**orders, **change}})
        info = RunInfo(spec.run_id, State.COMPLETED, 0)
        assert end_told(asked.context, replace(asked.record, spec=spec), info) is info


@pytest.mark.parametrize("whole", [True, False])
def test_a_command_that_has_looked_at_it_later_says_so_in_the_history(whole: bool, asked: Asked) -> None:
    asked.context.history.update(asked.record, asked.told(State.COMPLETED, 0))
    closed(asked.context, "another", all_verified=True)
    assert asked.context.history.find(asked.record.run_id).info.reason == NOT_VERIFIED
    closed(asked.context, "one", all_verified=whole)
    info = asked.context.history.find(asked.record.run_id).info
    assert info.state is (State.COMPLETED if whole else State.FAILED) and "a later command verified it" in info.reason
