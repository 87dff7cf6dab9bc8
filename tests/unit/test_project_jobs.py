"""``project.jobs``: arguments, results and notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import (
    BackendUnavailableError,
    ConfigError,
    JobNotFoundError,
    SubmissionError,
    UnknownClusterError,
    UsageError,
)
from blobsync.base.process import Completed
from blobsync.code.project_code import CodeProject
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import home_of
from blobsync.jobspec.spec import JobRef, RunInfo, State
from blobsync.jobspec.submit_options import SubmitKeywords
from blobsync.project.api import Project
from blobsync.project.jobs import Jobs
from blobsync.project.open_jobs import open_jobs
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec

FILES = {"aux_data/aml/eu.yaml": "platform: local\nenv: {NAME: value}\nretries: 1\n"}


class Connected(FakeBackend):
    """A backend with tunnels to its nodes."""

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> list[str]:
        return ["ssh", f"node{node}", ref.run_id]


class Terminal:
    """Runs nothing, and ends with 7."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, ...]] = []

    def attach(self, argv: tuple[str, ...], **settings: Any) -> int:
        self.attached.append(argv)
        return 7

    def run(self, argv: tuple[str, ...], **settings: Any) -> Completed:
        raise AssertionError("nothing is run")


class Desk:
    """The jobs of a project at ``root``, on a cluster in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.backend = Connected()
        self.terminal = Terminal()
        self.notes: list[str] = []
        self.environ = {**os.environ, "HOME": str(root / "home")}
        self.project = Project.open(root, cluster="eu", environ=self.environ)
        self.jobs = self.of(self.project.cluster)

    def of(self, cluster: Cluster | None) -> Jobs:
        process: Any = self.terminal
        self.backends = {"eu": self.backend}
        context = JobContext(
            self.root, self.environ, cluster, process=process, backends=self.backends, note=self.notes.append
        )
        return Jobs(context, self.through)

    def through(self, cluster: Cluster) -> CodeProject:
        return self.project.with_cluster(cluster)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "project")
    yield desk
    desk.project.close()


def test_a_job_is_submitted_looked_at_and_its_log_read(desk: Desk) -> None:
    submitted = desk.jobs.submit(["echo", Path("data/a b")], name="first")
    job = submitted.record
    assert job.spec.argv == ("echo", "data/a b") and job.spec.name == "first"
    for name in (job, job.run_id, job.run_id[-4:], job.ref.native_id):
        assert desk.jobs.get(name).state is State.COMPLETED
    assert desk.jobs.wait(job).exit_code == 0
    log = desk.jobs.read_log(job)
    assert (log.name, log.lines) == ("user_logs/std_log.txt", ("data/a b",))
    assert [(line.text, line.rank) for line in desk.jobs.follow(job)] == [("data/a b", 0)]
    assert list(desk.jobs.follow(job, rank=3)) == []
    assert desk.jobs.logs(job).path("user_logs/std_log.txt").read_text() == "data/a b\n"
    report = desk.jobs.report(job)
    assert (report.tail, report.causes) == (("data/a b",), ())
    assert desk.jobs.read_log(job, rank=3).name is None


def test_reading_the_log_of_a_job_whose_nodes_have_ended_finds_that_it_has(desk: Desk) -> None:
    job = desk.jobs.submit(["echo", "hi"]).record
    node = desk.root / "assets" / job.run_id / "system_logs" / "node_0.txt"
    node.parent.mkdir(parents=True)
    for said, state in (("ready: /root", State.QUEUED), ("left behind: 1 file", State.COMPLETED)):
        node.write_text(f"2026-11-20T10:00:00Z {said}\n")
        assert desk.jobs.read_log(job.run_id).record.state is state


def test_one_text_is_a_line_for_the_shell(desk: Desk) -> None:
    assert desk.jobs.plan("make && ./run.sh").run_id
    assert desk.jobs.submit("exit 3").record.spec.argv == ("exit 3",)


def test_a_plan_submits_and_records_nothing(desk: Desk) -> None:
    plan = desk.jobs.plan(["echo", "a"], nodes=1)
    assert '"argv": ["echo", "a"]' in plan.text == plan.shown
    assert desk.backend.jobs == {} and len(desk.jobs.history()) == 0


def test_what_is_asked_for_reaches_the_job(desk: Desk) -> None:
    spec = desk.jobs.submit(["echo"], num_gpu=4, multi_process=False).record.spec
    assert (spec.procs_per_node, spec.gpus_per_node) == (1, 4)
    with pytest.raises(UsageError, match="--partition is for Slurm"):
        desk.jobs.submit(["echo"], partition="gpu")
    for name in ("after", "sweep_file", "elastic", "trust_code"):
        empty: dict[str, Any] = {name: ""}
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is empty"):
            desk.jobs.submit(["echo"], **empty)


def test_variables_and_other_keys_are_those_of_one_job(desk: Desk) -> None:
    job = desk.jobs.submit(["echo"], env={"A": "x=1", "MY_TOKEN": "hush"}, param={"env": {"B": "2"}, "retries": 4})
    spec = job.record.spec
    assert spec.env == {"NAME": "value", "A": "x=1", "B": "2"} and spec.secret_env == ("MY_TOKEN",)
    assert spec.retries == 4 and "hush" not in spec.to_json()
    assert desk.jobs.submit(["echo"]).record.spec.env == {"NAME": "value"}
    assert spec.own_env == ("A", "B", "MY_TOKEN")
    # What has no secret name is recorded, for a resubmission, and not shown.
    again = desk.jobs.submit(["echo"], env={"A": "x=1"}).record
    assert desk.jobs.resubmit(again).record.spec.env["A"] == "x=1"
    shown = desk.jobs.plan(["echo"], env={"A": "x=1", "MY_TOKEN": "hush"})
    assert "x=1" not in shown.text + shown.shown and "hush" not in shown.text and '"A": "***"' in shown.text


def test_variables_of_one_job_go_with_it_to_another_cluster_and_other_changes_are_named(desk: Desk) -> None:
    (desk.root / "aux_data/aml/us.yaml").write_text("platform: local\nenv: {NAME: other, HIS: 1}\n")
    keywords: SubmitKeywords = {"env": {"A": "x=1"}, "param": {"env$B": "2", "retries": 4}}
    old = desk.jobs.submit(["echo"], **keywords).record
    desk.backends["us"] = desk.backend
    moved = desk.jobs.resubmit(old, cluster="us")
    assert moved.record.spec.env == {"NAME": "other", "HIS": "1", "A": "x=1", "B": "2"}
    assert f"set for {old.run_id} with -p or options, and not taken to us: retries" in moved.warnings
    assert desk.jobs.resubmit(moved.record, cluster="eu").record.spec.env == {"NAME": "value", "A": "x=1", "B": "2"}
    secret = desk.jobs.submit(["echo"], env={"MY_TOKEN": "hush"}).record
    with pytest.raises(ConfigError, match="the job needs the secret variable MY_TOKEN"):
        desk.jobs.resubmit(secret, cluster="us")


def test_what_one_job_changes_is_neither_the_next_ones_nor_lost_when_it_is_resubmitted(tmp_path: Path) -> None:
    file = tmp_path / "aux_data/aml/here.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("platform: local\n")
    with Project.open(tmp_path, cluster="here", environ={**os.environ, "HOME": str(tmp_path)}) as project:
        for kept in ("always", "never", None):
            param = {"runtime": {"keep_root": kept}} if kept else None
            assert f" --keep-root {kept or 'failed'} " in project.jobs.plan(["echo"], param=param).text
        context = JobContext(tmp_path, project.environ, project.cluster)
        overrides = {"runtime": {"keep_root": "always"}}
        home = home_of(load_cluster(tmp_path, "here", overrides=overrides, environ=project.environ), project.environ)
        record = context.history.add(make_spec(cluster="here"), JobRef("me_1_0badcafe", "7", ""), "local", home=home)
        assert context.origin_of(record).text("runtime.keep_root") == "always"
        assert context.cluster_of(record) is project.cluster


def test_a_job_waits_for_one_that_runs_on_the_same_cluster(desk: Desk) -> None:
    first = desk.jobs.submit(["sleep", "9"]).record
    second = desk.jobs.submit(["echo"], after=first.run_id[-6:]).record
    assert second.spec.after == first.run_id
    assert second.spec.options["after"] == {"run_id": first.run_id, "native_id": first.ref.native_id}
    assert desk.jobs.resubmit(second).record.spec.after == first.run_id
    # Nothing is left to wait for.
    desk.backend.jobs[first.run_id] = RunInfo(first.run_id, State.COMPLETED)
    assert desk.jobs.submit(["echo"], after=first.run_id).record.spec.after == ""
    assert desk.jobs.resubmit(second).record.spec.after == ""
    failed = desk.jobs.submit(["sleep", "9"]).record
    desk.backend.jobs[failed.run_id] = RunInfo(failed.run_id, State.FAILED, 1)
    with pytest.raises(UsageError, match=f"--after: {failed.run_id} is Failed, so the job would never start"):
        desk.jobs.submit(["echo"], after=failed.run_id)
    with pytest.raises(JobNotFoundError):
        desk.jobs.submit(["echo"], after="nobody")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"nodes": 0}, "nodes 0: at least 1"), ({"num_gpu": -1}, "num_gpu -1: at least 0")],
)
def test_a_number_that_makes_no_sense_is_a_usage_error(desk: Desk, keywords: SubmitKeywords, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        desk.jobs.submit(["echo"], **keywords)
    assert desk.backend.jobs == {}


def test_a_keyword_that_is_none_is_a_type_error(desk: Desk) -> None:
    with pytest.raises(TypeError, match="submit has no option 'gpus'"):
        desk.jobs.submit(["echo"], gpus=4)  # type: ignore[call-arg]


def test_a_refused_job_raises_and_is_not_in_the_history(desk: Desk) -> None:
    with pytest.raises(SubmissionError):
        desk.jobs.submit(["refuse"])
    assert desk.jobs.history() == ()


def test_lists_are_of_states_and_clusters(desk: Desk) -> None:
    done = desk.jobs.submit(["echo"]).record
    runs = desk.jobs.submit(["sleep"]).record
    assert [job.run_id for job in desk.jobs.list()] == [runs.run_id, done.run_id]
    assert [job.run_id for job in desk.jobs.list(["Completed"])] == [done.run_id]
    assert [job.run_id for job in desk.jobs.list([State.RUNNING, State.CANCELING])] == [runs.run_id]
    assert len(desk.jobs.list(limit=1)) == 1 and len(desk.jobs.list(cluster="eu")) == 2
    assert [desk.jobs.list(limit=limit).more for limit in (1, 2, None)] == [1, 0, 0]
    assert [desk.jobs.list([State.RUNNING, State.COMPLETED], limit=limit).more for limit in (1, 2)] == [1, 0]
    with pytest.raises(UsageError, match="'Asleep' is not a job state") as caught:
        desk.jobs.list(["Asleep"])
    assert "Running" in str(caught.value.hint)
    with pytest.raises(UnknownClusterError):
        desk.jobs.list(cluster="us")


def test_a_cluster_that_does_not_answer_is_reported_and_shown_as_known_last(desk: Desk) -> None:
    job = desk.jobs.submit(["sleep"]).record
    desk.notes.clear()
    desk.backend.gone = True
    found = desk.jobs.list()
    assert found.problems == tuple(desk.notes) and "the cluster does not answer" in desk.notes[0]
    assert desk.jobs.get(job).state is State.QUEUED and not desk.jobs.get(job).is_settled
    with pytest.raises(BackendUnavailableError):
        desk.jobs.read_log(job)


def test_several_are_stopped_whatever_is_in_the_way_of_one(desk: Desk) -> None:
    first, second = (desk.jobs.submit(["sleep"]).record for _ in range(2))
    assert desk.jobs.cancel(first.run_id).state is State.CANCELED
    del desk.backend.jobs[second.run_id]
    third = desk.jobs.submit(["sleep"]).record
    done = desk.jobs.cancel_all([second, third])
    assert [job.run_id for job in done.records] == [second.run_id, third.run_id]
    assert [type(error) for error in done.errors] == [JobNotFoundError]
    assert done.records[1].state is State.CANCELED
    assert repr(done) == "<Cancellation: 1 of 2 jobs>"


def test_a_job_is_resubmitted_and_its_predecessor_stopped(desk: Desk) -> None:
    old = desk.jobs.submit(["sleep"]).record
    new = desk.jobs.resubmit(old.run_id, num_gpu=2)
    assert new.record.successor_of == old.run_id and new.record.spec.gpus_per_node == 2
    assert desk.jobs.get(old).state is State.CANCELED
    assert desk.jobs.resubmit(old, latest_code=True).record.spec.code is None


def test_a_failure_is_diagnosed_and_watched(desk: Desk) -> None:
    job = desk.jobs.submit(["exit", "3"]).record
    info = desk.backend.jobs[job.run_id]
    reason = "NCCL error: unhandled system error"
    desk.backend.jobs[job.run_id] = RunInfo(job.run_id, State.FAILED, 3, 0, reason, info.started, info.ended)
    found = desk.jobs.diagnose(job)
    assert found.record.exit_code == 3 and found.record.reason == reason
    assert found.is_retriable == any(each.cause.retriable for each in found.causes)
    attempts = list(desk.jobs.watch(job, retries=0))
    assert [attempt.record.run_id for attempt in attempts] == [job.run_id]
    assert desk.jobs.report(job).record.run_id == job.run_id


def test_a_shell_is_opened_where_the_job_runs(desk: Desk) -> None:
    job = desk.jobs.submit(["sleep"]).record
    assert desk.jobs.ssh_command(job, node=1) == ("ssh", "node1", job.run_id)
    assert desk.jobs.ssh(job) == 7
    assert desk.terminal.attached == [("ssh", "node0", job.run_id)]


def test_a_command_runs_here_in_the_foreground(desk: Desk) -> None:
    assert desk.jobs.run_here(["echo", "hello"], num_gpu=0) == 7
    assert desk.terminal.attached and desk.backend.jobs == {}


def test_the_cluster_tells_what_is_free_and_who_has_the_rest(desk: Desk) -> None:
    job = desk.jobs.submit(["sleep"]).record
    assert desk.jobs.summary().gpus_free == 8
    assert [holder.native_id for holder in desk.jobs.holders()] == [job.run_id]


def test_jobs_without_a_cluster_can_be_looked_at_and_none_submitted(desk: Desk) -> None:
    job = desk.jobs.submit(["echo"]).record
    jobs = desk.of(None)
    assert jobs.get(job.run_id[-4:]).state is State.COMPLETED
    for ask in (lambda: jobs.submit(["echo"]), jobs.summary, jobs.holders):
        with pytest.raises(UsageError, match="no cluster selected"):
            ask()


def test_jobs_are_reached_whatever_the_cluster_files_say(desk: Desk) -> None:
    job = desk.jobs.submit(["echo"]).record
    (desk.root / "aux_data/aml/eu.yaml").write_text("platform: [")
    jobs = open_jobs(desk.root / "aux_data", environ=desk.environ)
    assert [each.run_id for each in jobs.history()] == [job.run_id]
    assert jobs.find(job.run_id[-6:]).run_id == job.run_id


def test_a_project_has_jobs_until_it_is_closed(desk: Desk) -> None:
    with desk.project as project:
        assert project.jobs is project.jobs
        assert project.jobs.history() == ()
        assert repr(project.jobs) == f"<Jobs of {str(desk.root)!r}>"
    with pytest.raises(UsageError, match="was closed"):
        _ = project.jobs


def test_values_of_jobs_show_themselves_in_a_few_words(desk: Desk) -> None:
    job = desk.jobs.submit(["echo", *map(str, range(1000))]).record
    values: list[object] = [job, job.spec, desk.jobs.list(), desk.jobs.report(job), desk.jobs.read_log(job)]
    values += [desk.jobs.logs(job), desk.jobs.diagnose(job), desk.jobs.plan(["echo", "a" * 1000])]
    for value in values:
        assert len(repr(value)) < 250, repr(value)
    assert repr(job) == f"<JobRecord {job.run_id}: Queued on eu>"
    assert repr(desk.jobs.list()) == "<JobList: 1 jobs>"
