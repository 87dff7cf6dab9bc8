"""What every backend promises, held against the real ones and the fake."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.config.model import Cluster, Docker
from blobsync.jobs.backends import create_backend
from blobsync.jobs.backends.aml import AmlBackend
from blobsync.jobs.backends.base import CAPABILITIES, Backend, Surroundings
from blobsync.jobs.spec import JobRef, JobSpec, LogFile, RunInfo, Secrets, State
from blobsync.process import SubprocessRunner
from tests.fakes.backend import FakeBackend
from tests.fakes.blob_service import SAS, BlobService, serve
from tests.fakes.jobs import Node, make_spec
from tests.servers.aml_stub import AmlStub, Login
from tests.servers.aml_stub import serve as serve_aml
from tests.servers.slurm_fixture import slurm_cluster

__all__ = ["slurm_cluster"]

PATIENCE = 60.0


@dataclass
class Place:
    """A backend with what its jobs need."""

    backend: Backend
    spec: Callable[..., JobSpec]
    secrets: Secrets
    folder: Path

    def submit(self, *argv: str, **changes: Any) -> JobRef:
        return self.backend.submit(self.backend.plan(self.spec(*argv, **changes)), self.secrets)

    def until(self, ref: JobRef, *states: State) -> RunInfo:
        wanted = states or tuple(state for state in State if state.is_final)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            info = self.backend.get([ref])[0]
            if info.state in wanted:
                return info
            assert not info.state.is_final, f"it is {info}; logs: {self.texts(ref)}"
            time.sleep(0.1)
        raise AssertionError(f"still {info}")

    def texts(self, ref: JobRef) -> dict[str, str]:
        return {log.name: self.backend.read_log(log, 0, None).decode() for log in self.backend.logs(ref)}

    def log(self, ref: JobRef, name: str = "user_logs/std_log.txt") -> LogFile:
        return next(log for log in self.backend.logs(ref) if log.name == name)


@pytest.fixture
def service() -> Iterator[BlobService]:
    with serve() as service:
        yield service


@pytest.fixture(params=["fake", "local", "aml", pytest.param("slurm", marks=pytest.mark.slurm)])
def place(request: pytest.FixtureRequest, tmp_path: Path, service: BlobService) -> Place:
    node = Node(tmp_path / "node", service)
    code = node.code({"a.txt": "from the archive\n"})
    number = iter(range(1, 1000))

    def spec(*argv: str, **changes: Any) -> JobSpec:
        made = make_spec(*argv, code=code, platform=request.param)
        return replace(made, run_id=f"me_{next(number)}_{abs(hash(tmp_path)) % 2**32:08x}", **changes)

    secrets = Secrets({service.url: SAS}, {"MY_TOKEN": "hush"})
    if request.param == "fake":
        return Place(FakeBackend(), spec, secrets, tmp_path)
    if request.param == "aml":
        return Place(aml_backend(tmp_path, request.getfixturevalue("aml_stub")), spec, secrets, tmp_path)
    settings: dict[str, object] = {"local": {"slots": 8, "gpus": 0}}
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    if request.param == "slurm":
        settings = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
        environ.update(request.getfixturevalue("slurm_cluster").environ)
    around = Surroundings(
        cluster="here",
        project=tmp_path,
        state_dir=tmp_path / "runs",
        settings=settings,
        environ=environ,
        process=SubprocessRunner(),
    )
    return Place(create_backend(request.param, around), spec, secrets, tmp_path)


@pytest.fixture
def aml_stub(tmp_path: Path) -> Iterator[AmlStub]:
    with serve_aml(tmp_path / "service") as stub:
        yield stub
        assert stub.violations == []


def aml_backend(folder: Path, stub: AmlStub) -> Backend:
    workspace = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
    values = {"aml_config": {**workspace, "management_endpoint": stub.url}}
    docker = Docker(environment="azureml:pt:1")
    stub.environments["pt/versions/1"] = {}
    cluster = Cluster(
        "here", "here.yaml", folder, platform="aml", compute_target="NC24RSV3", docker=docker, values=values
    )
    around = Surroundings("here", folder, folder / "runs", {}, os.environ, SubprocessRunner(), cluster)
    return AmlBackend(around, cluster, Login)


def test_a_plan_is_pure_and_shows_what_would_be_handed_over(place: Place) -> None:
    spec = place.spec("echo", "two words; $HOME")
    before = sorted(place.folder.rglob("*"))
    first, second = place.backend.plan(spec), place.backend.plan(spec)
    assert first == second
    assert "two words; $HOME" in first.text
    assert "hush" not in first.text and "SENTINEL" not in first.text
    assert sorted(place.folder.rglob("*")) == before


def test_a_job_runs_to_its_end(place: Place) -> None:
    ref = place.submit("echo", "hello there")
    info = place.until(ref, State.COMPLETED)
    assert info.exit_code == 0
    assert info.started and info.ended and info.started <= info.ended + 1
    log = place.log(ref)
    assert place.backend.read_log(log, 0, None) == b"hello there\n"
    assert place.backend.read_log(log, 6, 11) == b"there"
    assert place.backend.read_log(log, 12, None) == b""
    # Run history does not tell how long a log is.
    assert log.size == (None if place.backend.name == "aml" else 12)


def test_a_failing_job_keeps_its_exit_code(place: Place) -> None:
    ref = place.submit("exit", "7") if place.backend.name == "fake" else place.submit("sh", "-c", "exit 7")
    info = place.until(ref, State.FAILED)
    assert info.exit_code == 7


def test_a_setup_that_fails_is_told_from_the_programs_failure(place: Place) -> None:
    info = place.until(place.submit("echo", "never", setup=("false",)), State.FAILED)
    assert info.exit_code == 72


def test_cancelling_is_safe_to_repeat(place: Place) -> None:
    ref = place.submit("sleep", "300")
    place.until(ref, State.RUNNING)
    place.backend.cancel(ref)
    place.backend.cancel(ref)
    place.until(ref, State.CANCELED)
    place.backend.cancel(ref)
    assert place.backend.get([ref])[0].state is State.CANCELED


def test_cancelling_an_ended_job_changes_nothing(place: Place) -> None:
    ref = place.submit("echo", "done")
    place.until(ref, State.COMPLETED)
    place.backend.cancel(ref)
    assert place.backend.get([ref])[0].state is State.COMPLETED


def test_states_come_in_the_order_of_the_question_and_forgotten_jobs_are_unknown(place: Place) -> None:
    first, second = place.submit("echo", "1"), place.submit("echo", "2")
    lost = JobRef("me_0_00000000", "99999999", str(place.folder / "nowhere"))
    for ref in (first, second):
        place.until(ref)
    infos = place.backend.get([second, lost, first])
    assert [info.run_id for info in infos] == [second.run_id, lost.run_id, first.run_id]
    assert infos[1].state is State.UNKNOWN
    assert place.backend.get([]) == ()


def test_it_lists_what_it_runs(place: Place) -> None:
    ref = place.submit("echo", "1")
    place.until(ref)
    assert [info.run_id for info in place.backend.list()][:1] == [ref.run_id]
    assert ref.run_id not in [info.run_id for info in place.backend.list(states=(State.FAILED,))]
    assert list(place.backend.list(limit=0)) == []


def test_submitting_the_same_run_twice_makes_one_job(place: Place) -> None:
    plan = place.backend.plan(place.spec("echo", "once"))
    ref = place.backend.submit(plan, place.secrets)
    assert place.backend.submit(plan, place.secrets) == ref
    place.until(ref)
    assert place.texts(ref)["user_logs/std_log.txt"] == "once\n"


def test_it_says_what_it_can_and_what_is_free(place: Place) -> None:
    assert place.backend.capabilities <= CAPABILITIES
    summary = place.backend.summary()
    assert summary.nodes_total and summary.jobs_running >= 0
    if "blame" in place.backend.capabilities:
        assert all(holder.native_id for holder in place.backend.blame())
