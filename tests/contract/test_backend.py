"""One suite for every backend, the real ones and the fake."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.aml.aml_backend import AmlBackend
from blobsync.backends.protocol import DOUBTFUL, Backend, Refused, Surroundings, Unknown
from blobsync.base.errors import JobError, JobNotFoundError, ProcessTimeoutError, UsageError
from blobsync.base.process import Completed, ProcessRunner
from blobsync.config.model import Cluster, Docker
from blobsync.jobspec.node_archive import node_archive
from blobsync.jobspec.spec import JobRef, JobSpec, LogFile, RunInfo, Secrets, State
from tests.fakes.backend import FakeBackend
from tests.fakes.blob_service import SAS, BlobService, serve
from tests.fakes.jobs import Node, make_spec
from tests.servers.aml_stub import SOON, AmlStub, Fault, Login, refusal
from tests.servers.aml_stub import serve as serve_aml
from tests.servers.kube.cluster import RealCluster
from tests.servers.kube_fixture import kube_cluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["kube_cluster", "slurm_cluster"]


@dataclass
class Place:
    """A backend with what its jobs need."""

    backend: Backend
    spec: Callable[..., JobSpec]
    secrets: Secrets
    folder: Path
    refuse: Callable[[], object]
    lose_answers: Callable[[bool], None] | None = None

    def submit(self, *argv: str, **changes: Any) -> JobRef:
        return self.hand_over(self.spec(*argv, **changes))

    def hand_over(self, spec: JobSpec) -> JobRef:
        outcome = self.backend.submit(self.backend.plan(spec), self.secrets)
        assert isinstance(outcome, JobRef), outcome
        return outcome

    def until(self, ref: JobRef, *states: State) -> RunInfo:
        wanted = states or tuple(state for state in State if state.is_final)
        seen: list[RunInfo] = []

        def is_there() -> bool:
            seen[:] = self.backend.get([ref])
            state = seen[0].state
            assert state in wanted or not state.is_final, f"it is {seen}; logs: {self.texts(ref)}"
            return state in wanted

        assert wait_until(is_there, pause=0.2), f"still {seen}"
        return seen[0]

    def texts(self, ref: JobRef) -> dict[str, str]:
        return {log.name: self.backend.read_log(log, 0, None).decode() for log in self.backend.logs(ref)}

    def log(self, ref: JobRef, name: str = "user_logs/std_log.txt") -> LogFile:
        return next(log for log in self.backend.logs(ref) if log.name == name)


@pytest.fixture
def service() -> Iterator[BlobService]:
    with serve() as service:
        yield service


_REAL = (pytest.param("slurm", marks=pytest.mark.slurm), pytest.param("kubernetes", marks=pytest.mark.kubernetes))


@pytest.fixture(params=["fake", "local", "aml", *_REAL])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, service: BlobService
) -> Place:
    node = Node(tmp_path / "node", service)
    code = node.code({"a.txt": "from the archive\n"})
    made = node_archive({"HOME": str(tmp_path_factory.getbasetemp())})
    archive = made.beside(code)
    service.put(archive.path, made.body)
    number = iter(range(1, 1000))

    def spec(*argv: str, **changes: Any) -> JobSpec:
        made = make_spec(*argv, code=code, node_archive=archive, platform=request.param)
        return replace(made, run_id=f"me_{next(number)}_{abs(hash(tmp_path)) % 2**32:08x}", **changes)

    secrets = Secrets({service.url: SAS}, {"MY_TOKEN": "hush"})
    if request.param == "fake":
        fake = FakeBackend()
        return Place(fake, spec, secrets, tmp_path, lambda: setattr(fake, "gone", True), fake_loss(fake))
    if request.param == "aml":
        stub = request.getfixturevalue("aml_stub")
        return Place(aml_backend(tmp_path, stub), spec, secrets, tmp_path, lambda: aml_refuses(stub), aml_loss(stub))
    process = Troubled()
    if request.param == "kubernetes":
        cluster: RealCluster = request.getfixturevalue("kube_cluster")
        backend = kubernetes_backend(tmp_path, cluster, process)
        return Place(backend, spec, secrets, tmp_path, process.refuse, process.lose)
    values: dict[str, object] = {"local": {"slots": 8, "gpus": 0}}
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    if request.param == "slurm":
        values = {"runtime": {"python": sys.executable, "scratch": str(tmp_path / "scratch")}}
        environ.update(request.getfixturevalue("slurm_cluster").environ)
    configured = Cluster("here", "here.yaml", tmp_path, platform=request.param, values=values)
    backend = create_backend(Surroundings(configured, tmp_path / "runs", environ, process))
    if request.param == "slurm":
        return Place(backend, spec, secrets, tmp_path, process.refuse, process.lose)
    return Place(backend, spec, secrets, tmp_path, lambda: (tmp_path / "runs").write_text("a file"))


class Troubled(ProcessRunner):
    """Runs programs; sbatch and kubectl can be refused, and responses can be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing = self.losing = self.lost = False

    def refuse(self) -> None:
        self.refusing = True

    def lose(self, losing: bool) -> None:
        self.losing, self.lost = losing, False

    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        if self.refusing and argv[0] == "sbatch":
            argv = [*argv[:1], "--partition=nope", *argv[1:]]
        if self.refusing and any("/secrets" in word for word in argv):
            # Half way: the Job exists.
            argv = [word.replace("/secrets", "/secretz") for word in argv]
        if self.lost and (argv[0] == "squeue" or "--raw" in argv):
            raise ProcessTimeoutError(f"{argv[0]} did not finish within 120 seconds")
        done = super().run(argv, **how)
        if self.losing and (argv[0] in ("sbatch", "scancel") or "patch" in argv):
            self.lost = True
            raise ProcessTimeoutError(f"{argv[0]} did not finish within 120 seconds")
        return done


def fake_loss(fake: FakeBackend) -> Callable[[bool], None]:
    return lambda losing: setattr(fake, "lost", losing)


def aml_refuses(stub: AmlStub) -> None:
    stub.faults = [Fault("PUT .*/jobs/", 400, refusal("UserError", "no"), times=99)]


def aml_loss(stub: AmlStub) -> Callable[[bool], None]:
    gone = refusal("GatewayTimeout", "The gateway did not get an answer in time.")

    def lose(losing: bool) -> None:
        put = Fault("PUT .*/jobs/", 504, gone, SOON, times=99, after=True)
        cancel = Fault("POST .*/cancel", 504, gone, SOON, times=99)
        stub.faults = [put, cancel, Fault("GET .*/jobs/", 504, gone, SOON, times=99)] if losing else []

    return lose


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
    return AmlBackend(Surroundings(cluster, folder / "runs", os.environ, ProcessRunner()), Login)


def kubernetes_backend(folder: Path, kube: RealCluster, process: ProcessRunner) -> Backend:
    place = {"namespace": kube.new_namespace(), "image": "stand-in:1"}
    values = {"kubernetes": place, "runtime": {"sync_seconds": 1}}
    configured = Cluster("here", "here.yaml", folder, platform="kubernetes", values=values)
    environ = {**os.environ, **kube.environ}
    return create_backend(Surroundings(configured, folder / "runs", environ, process))


def test_a_plan_is_pure_and_shows_what_would_be_handed_over(place: Place) -> None:
    spec = place.spec("echo", "two words; $HOME")
    before = sorted(place.folder.rglob("*"))
    first, second = place.backend.plan(spec), place.backend.plan(spec)
    assert first == second
    assert "two words; $HOME" in first.text
    assert "hush" not in first.text and "SENTINEL" not in first.text
    assert sorted(place.folder.rglob("*")) == before


def test_jobs_run_to_their_ends_once_each(place: Place) -> None:
    spec, unknown = place.spec("echo", "hello there"), place.spec("echo")
    assert place.backend.locate(unknown) is None
    place.backend.forget(unknown)
    place.backend.forget(unknown)
    unprepared = place.submit("echo", "never", setup=("false",))
    if place.lose_answers is not None:
        place.lose_answers(True)
        assert isinstance(place.backend.submit(place.backend.plan(spec), place.secrets), Unknown)
        place.lose_answers(False)
        found = place.backend.locate(spec)
        assert found is not None and found.run_id == spec.run_id, "its acceptance got lost, the job did not"
    first = place.hand_over(spec)
    assert place.hand_over(spec) == first, "one job, however often it is handed over"
    failing = ("exit", "7") if place.backend.name == "fake" else ("sh", "-c", "exit 7")
    second = place.submit(*failing)
    lost = JobRef("me_0_00000000", "99999999", str(place.folder / "me_0_00000000"))
    with pytest.raises(JobNotFoundError):
        place.backend.cancel(lost)

    info = place.until(first, State.COMPLETED)
    assert info.exit_code == 0
    assert info.started and info.ended and info.started <= info.ended + 1
    log = place.log(first)
    assert place.backend.read_log(log, 0, None) == b"hello there\n"
    assert place.backend.read_log(log, 6, 11) == b"there"
    assert place.backend.read_log(log, 12, None) == b""
    # Run history does not report the size of a log.
    assert log.size == (None if place.backend.name == "aml" else 12)
    assert place.until(second, State.FAILED).exit_code == 7
    assert place.until(unprepared, State.FAILED).exit_code == 72, "a setup that fails is told from the program"

    infos = place.backend.get([second, lost, first])
    assert [info.run_id for info in infos] == [second.run_id, lost.run_id, first.run_id]
    assert infos[1].state is State.UNKNOWN
    assert place.backend.get([]) == ()
    assert place.backend.locate(unknown) is None
    place.backend.cancel(first)
    assert place.backend.get([first])[0].state is State.COMPLETED, "stopping what has ended changes nothing"


def test_a_refused_submission_says_why_and_leaves_no_secret(place: Place) -> None:
    place.refuse()
    spec = place.spec("echo", secret_env=())
    outcome = place.backend.submit(place.backend.plan(spec), place.secrets)
    assert isinstance(outcome, Refused) and outcome.error.message
    assert not list(place.folder.rglob("secrets.json"))
    if isinstance(place.backend, FakeBackend):
        assert not place.backend.secrets


def test_a_job_has_as_many_nodes_as_it_is_asked_to_have_and_cancelling_it_is_safe_to_repeat(place: Place) -> None:
    scales, only_shrinks = place.backend.name != "aml", place.backend.name == "slurm"
    elastic = {"min_nodes": 1, "max_nodes": 2 if only_shrinks else 3} if scales else {}
    ref = place.submit("sleep", "300", **elastic)
    place.until(ref, State.RUNNING)
    if scales:
        scale_up_and_down(place, ref, only_shrinks)
    assert all(holder.user and holder.native_id for holder in place.backend.blame())
    summary = place.backend.summary()
    assert summary.nodes_total and summary.jobs_running >= 0
    if place.lose_answers is not None:
        place.lose_answers(True)
        with pytest.raises(DOUBTFUL):
            place.backend.cancel(ref)
        place.lose_answers(False)
    place.backend.cancel(ref)
    place.backend.cancel(ref)
    place.until(ref, State.CANCELED)
    place.backend.cancel(ref)
    assert place.backend.get([ref])[0].state is State.CANCELED
    for gone in (ref, JobRef("me_1_0badf00d", "me_1_0badf00d", "")):
        with pytest.raises(JobError if scales else UsageError):
            place.backend.scale(gone, 1)


def scale_up_and_down(place: Place, ref: JobRef, only_shrinks: bool) -> None:
    # Slurm allocates all free nodes at the beginning, and none later.
    until_size(place, ref, 2 if only_shrinks else 1)
    if only_shrinks:
        with pytest.raises(UsageError, match="Slurm gives no more nodes"):
            place.backend.scale(ref, 3)
    for nodes in (2, 1, 1) if only_shrinks else (3, 2):
        place.backend.scale(ref, nodes)
        until_size(place, ref, nodes)
    times = [change.at for change in place.backend.get([ref])[0].changes]
    assert times == sorted(times)


def sizes(place: Place, ref: JobRef) -> list[tuple[int, int]]:
    return [(change.running, change.wanted) for change in place.backend.get([ref])[0].changes]


def until_size(place: Place, ref: JobRef, nodes: int) -> None:
    there = wait_until(lambda: sizes(place, ref)[-1] == (nodes, nodes), pause=0.2)
    assert there, (sizes(place, ref), place.texts(ref))
