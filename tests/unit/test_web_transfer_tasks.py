"""A transfer started on the page: the output of its process, and its state without output."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.base.errors import NothingMatchedError
from blobsync.base.file_states import LocalState
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.process import RunningProcess
from blobsync.local.sorted_runs import IN_MEMORY, Spill
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import (
    Action,
    Actions,
    Direction,
    EngineChoice,
    FileAction,
    IndexKey,
    Part,
    PlanPart,
    Route,
    TransferPlan,
)
from blobsync.web.open_project import Source
from blobsync.web.transfer_process import plan_lines, read_plan
from blobsync.web.transfer_tasks import TransferRequest, TransferTask, TransferTasks
from tests.fakes.runner import ScriptedRunner

_ENDED = {
    "ended": {"transferred": 2, "verified": 2, "deleted": 0, "bytes": 10, "reused": 0, "seconds": 1.0, "failed": 0,
              "conflicts": 0, "failures": [], "exit_code": 0}
}  # fmt: skip
_PROGRESS = {"progress": {"phase": "moving", "seconds": 1.0, "files": 1, "files_expected": 2, "bytes": 5,
                          "bytes_expected": 10, "rate": 5.0}}  # fmt: skip


@dataclass
class ScriptedProcess(RunningProcess):
    """A process that prints fixed lines and records its input."""

    said: Sequence[str]
    code: int = 0
    wait_for_stop: bool = False
    told: list[str] = field(default_factory=list)
    pid: int = 4711
    stopped: threading.Event = field(default_factory=threading.Event)

    def lines(self) -> Iterator[str]:
        yield from self.said
        if self.wait_for_stop:
            assert self.stopped.wait(60)
            yield json.dumps({"failed": {"message": "interrupted", "hint": "", "path": None}, "stopped": True})

    def send_line(self, text: str) -> None:
        self.told.append(text)
        if text == "stop":
            self.stopped.set()

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def stop(self) -> int:
        return self.code

    def stderr_tail(self) -> str:
        return "the last words"


class OneProcess(ScriptedRunner):
    """A process runner that starts the given process."""

    def __init__(self, process: ScriptedProcess) -> None:
        super().__init__()
        self._process = process

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Any:
        assert not [word for word in argv if "key" in word]
        return self._process


def _source(root: Path) -> Source:
    for name, value in (
        ("configs/acct.yaml", {"account_name": "a", "container_name": "c", "account_key": "U0VOVElORUw="}),
        (
            "aml/aml.yaml",
            {"config_param": {"data_folder": {"azure_blob_config_file": "aux_data/configs/acct.yaml", "path": "d"}}},
        ),
    ):
        file = root / "aux_data" / name
        file.parent.mkdir(parents=True)
        file.write_text(yaml.safe_dump(value))
        file.chmod(0o600)
    return Source(root, root, None, "aml", {}, {"HOME": str(root)})


_NOWHERE = TransferRequest(Direction.UP, ("nowhere",))


def _moved(
    root: Path, process: ScriptedProcess, ends: list[str], request: TransferRequest = _NOWHERE
) -> tuple[TransferTasks, TransferTask]:
    tasks = TransferTasks(_source(root), OneProcess(process), lambda: ends.append("end"))
    task = tasks.begin(request)
    _until(lambda: task.state == "refused")
    engine = EngineChoice("direct", "it is small")
    task.plan = TransferPlan(Route.UPLOAD, "aml", None, ("data",), TransferOptions(), (), engine)
    task.problem, task.state = "", "planned"
    tasks.carry_out(task)
    return tasks, task


def _until(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("said", "code", "state", "problem"),
    [
        ([json.dumps(_PROGRESS), "a library's own words", "[1]", json.dumps(_ENDED)], 0, "done", ""),
        ([json.dumps({"ended": {**_ENDED["ended"], "exit_code": 3}})], 0, "partial", ""),
        ([json.dumps({"failed": {"message": "no", "hint": "do", "path": None}, "stopped": False})], 0, "failed", "no"),
        # The process was killed: only its reported files count.
        ([json.dumps(_PROGRESS)], -9, "failed", "the process that moved the files ended with -9: the last words"),
        ([], 0, "failed", "the process that moved the files ended with 0: the last words"),
    ],
)
def test_the_output_of_the_process_becomes_the_state_of_the_transfer(
    tmp_path: Path, said: list[str], code: int, state: str, problem: str
) -> None:
    ends: list[str] = []
    process = ScriptedProcess(said, code)
    _, task = _moved(tmp_path, process, ends)
    _until(lambda: ends)
    assert (task.state, task.problem, task.pid) == (state, problem, 4711)
    order = json.loads(process.told[0])
    lines = iter(f"{line}\n" for line in process.told[1:])
    assert read_plan(lambda: next(lines, ""), IN_MEMORY) == task.plan, "the plan that the page showed"
    assert order.keys() == {"folder", "cluster", "from_cluster", "overrides"}
    assert "SENTINEL" not in str([order, *map(b64decode, process.told[1:])])
    if _PROGRESS["progress"] and json.dumps(_PROGRESS) in said:
        assert task.moving is not None and task.moving.bytes == 5
        assert len(task.points) == 1


def test_a_transfer_is_stopped_once_and_carried_out_once(tmp_path: Path) -> None:
    ends: list[str] = []
    process = ScriptedProcess([], wait_for_stop=True)
    tasks, task = _moved(tmp_path, process, ends)
    tasks.carry_out(task)
    tasks.cancel(task)
    tasks.cancel(task)
    _until(lambda: ends)
    assert task.state == "cancelled"
    assert process.told.count("stop") in (1, 2)
    assert sum(line.startswith("{") for line in process.told) == 1, "a single order"
    tasks.carry_out(task)
    assert task.state == "cancelled"


def test_an_expired_plan_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NothingMatchedError, match="no longer has this plan"):
        TransferTasks(_source(tmp_path)).find("0")


def test_the_order_contains_both_clusters_and_workers_keep_their_names(
    tmp_path: Path,
) -> None:
    workers = [{"name": "process 17", "files": 1, "bytes": 5, "rate": 2.5}]
    said = {"progress": {**_PROGRESS["progress"], "workers": workers}}
    ends: list[str] = []
    process = ScriptedProcess([json.dumps(said), json.dumps(_ENDED)])
    request = TransferRequest(Direction.UP, ("data",), cluster="eu", from_cluster="aml")
    _, task = _moved(tmp_path, process, ends, request)
    _until(lambda: ends)
    assert task.moving is not None and [each.name for each in task.moving.workers] == ["process 17"]
    order = json.loads(process.told[0])
    assert (order["cluster"], order["from_cluster"], task.cluster, request.verb) == ("eu", "aml", "eu", "copy")


def test_the_rate_curve_of_a_long_transfer_has_bounded_size(tmp_path: Path) -> None:
    from blobsync.plan.progress import Progress

    task = TransferTask(TransferRequest(Direction.UP, ("data",)), "aml", began=time.time())
    for number in range(2000):
        task.add_progress(Progress("moving", 1.0, bytes=number, bytes_expected=2000, rate=1.0))
    assert len(task.points) <= 240
    assert task.points[-1][1] == 1999
    assert task.points[0][1] == 0


def _plan_of(files: int, spill: Spill) -> TransferPlan:
    near, far = LocalLocation(Path("/project/data")), BlobContainer.parse("http://127.0.0.1:1/acct/box").child("data")
    actions = Actions(spill)
    for number in range(files):
        name, state = f"{number:06}", LocalState(3, number, number, number, b"5" * 16)
        actions.extend([FileAction(name, Action.TRANSFER, Reason.NEW, 3, state)])
    part: PlanPart = Part("data", Route.UPLOAD, near, far, IndexKey(near, far, ""), actions=actions)
    engine = EngineChoice("direct", "it is small")
    return TransferPlan(Route.UPLOAD, "aml", None, ("data",), TransferOptions(), (part,), engine, created_at=5.0)


def test_a_plan_on_disk_is_sent_whole_to_its_process_and_kept_on_disk_there(tmp_path: Path) -> None:
    spill = Spill(lambda: tmp_path, 1000)
    plan = _plan_of(12_000, spill)
    lines = (f"{line}\n" for line in plan_lines(plan))
    read = read_plan(lambda: next(lines, ""), spill)
    assert plan.is_large and read.is_large
    assert (read, read.created_at, read.files_to_transfer) == (plan, 5.0, 12_000)
    assert all(len(line) < 2_000_000 for line in plan_lines(plan)), "in batches"


@pytest.mark.parametrize("end", ["stop\n", "", "half a li"])
def test_an_incomplete_plan_is_not_carried_out(tmp_path: Path, end: str) -> None:
    *lines, last = plan_lines(_plan_of(3, IN_MEMORY))
    assert last == ""
    come = iter([*(f"{line}\n" for line in lines), end])
    with pytest.raises(KeyboardInterrupt):
        read_plan(lambda: next(come), IN_MEMORY)
