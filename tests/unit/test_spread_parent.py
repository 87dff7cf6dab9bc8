"""The parent of a detached transfer that is killed and restarted: a saved result is final."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError
from blobsync.direct.engine import DirectEngine
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.spread import run_parent
from blobsync.spread.probe import OwnProbe
from blobsync.spread.shard import cut, shard_lines
from blobsync.spread.shard_worker import Ends
from blobsync.spread.shared_store import FolderStore
from blobsync.transfer.engines import MoveTask
from tests.fakes.jobs import make_spec
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import upload
from tests.unit.test_spread_workers import Threads

_OWNER = "6f0c2f5e-6d3c-4a43-9d1c-1f6d1f1f1f1f"


class _Killed(BaseException):
    """An exception that no code catches."""


class _UntilTheResult(FolderStore):
    """The store for a parent that is killed right after it saved the result: no later write arrives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.dead = False

    def write(self, name: str, body: bytes) -> None:
        if self.dead:
            return
        super().write(name, body)
        if name == "result":
            self.dead = True
            raise _Killed

    def release(self, name: str, holder: str) -> None:
        if not self.dead:
            super().release(name, holder)


@pytest.fixture
def store() -> MemoryStore:
    """A store that always refuses one of the files."""

    def refuse(request: Request) -> None:
        if request.operation == "put" and request.name.endswith("f7"):
            raise AccessDeniedError("the service refuses f7")

    found = MemoryStore("box")
    found.before = refuse
    return found


@pytest.fixture
def task(tmp_path: Path, store: MemoryStore) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(20):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, store, "sets")


@pytest.fixture
def job(tmp_path: Path, task: MoveTask) -> NodeJob:
    probe = OwnProbe(tmp_path / "data", "0123456789abcdef").write()
    orders = {
        "owner": _OWNER,
        "workers": 1,
        "nodes": 2,
        "range_bytes": 0,
        "ends": [{"probe": probe}],
        "planned": len(cut(task.part, task.actions, 2)),
    }
    words = parse_arguments(["exec", "--job", "/j", "--run-dir", str(tmp_path / "run"), "--root", str(tmp_path / "r")])
    return NodeJob(make_spec(options={"spread": orders}), {}, words, {}, 0)


@pytest.fixture
def place(tmp_path: Path, task: MoveTask) -> Iterator[FolderStore]:
    """A transfer with its plan and workers."""
    place = FolderStore(tmp_path / "place")
    for shard in cut(task.part, task.actions, 2):
        place.write(f"plan/{shard.number:07}", ("\n".join(shard_lines(shard)) + "\n").encode())
    workers = Threads(place, task)
    workers.start()
    yield place
    workers.join()


def _ends(task: MoveTask) -> list[Ends]:
    return [Ends(task.part.source, task.part.destination)]


def test_a_parent_that_was_killed_after_it_left_the_result_ends_with_that_result(
    job: NodeJob, place: FolderStore, task: MoveTask, store: MemoryStore, tmp_path: Path
) -> None:
    with pytest.raises(_Killed):
        run_parent(job, _UntilTheResult(tmp_path / "place"), _ends(task), DirectEngine(), lambda text: None, poll=0.01)
    # Workers still wait for it, and may be restarted.
    assert place.read("alive") and (tmp_path / "data" / ".probe-of-blobsync-0123456789abcdef").exists()
    before, said = len(store.asked("put")), list[str]()
    assert run_parent(job, place, _ends(task), DirectEngine(), said.append, poll=0.01) == 3
    assert len(store.asked("put")) == before
    assert place.read("alive") == b""
    assert "the service refuses f7" in said[0] and said[-1] == "19 files verified, 1 failed"
    assert not (tmp_path / "data" / ".probe-of-blobsync-0123456789abcdef").exists()
    # Any number of times.
    assert run_parent(job, place, _ends(task), DirectEngine(), said.append, poll=0.01) == 3


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
def test_what_is_no_result_of_this_job_is_none(
    left: dict[str, object] | None, job: NodeJob, place: FolderStore, task: MoveTask
) -> None:
    result = {"job": job.spec.run_id, "exit_code": 0, "transferred": 20, "verified": 20, "failures": list[object]()}
    place.write("result", json.dumps(result | left).encode() if left is not None else b"\xff")
    assert run_parent(job, place, _ends(task), DirectEngine(), lambda text: None, poll=0.01) == 3
    told = json.loads(place.read("result") or b"")
    assert (told["job"], told["exit_code"], told["verified"]) == (job.spec.run_id, 3, 19)
    assert [each["path"] for each in told["failures"]] == ["data/x/f7"]
