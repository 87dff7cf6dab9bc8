from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import (
    BackendUnavailableError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    LoginRequiredError,
    StoppedError,
    SubmissionUnknownError,
    UsageError,
)
from blobsync.cli.jobs import state_text
from blobsync.code.project_code import CodeProject
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.queries import JobQueries, job_log_folder
from blobsync.jobs.record import JobRecord
from blobsync.jobs.service import JobService
from blobsync.jobs.states import SETTLE_SECONDS, StateNotes, cancel, recent, refresh
from blobsync.jobs.submit import resubmit, submit
from blobsync.jobspec.code_choice import CodeChoice
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.spec import CodeRef, JobRef, JobSpec, RunInfo, State
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec

CODE = CodeRef("https://acct.blob/box", "code.zip.d/x.zip", "x")


class Ordered(FakeBackend):
    """Records the order in which jobs were submitted and cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.killed = self.stopped = False

    def submit(self, plan, secrets):  # type: ignore[no-untyped-def]
        if self.killed:
            raise KeyboardInterrupt
        ref = super().submit(plan, secrets)
        self.order.append("submit")
        return ref

    def cancel(self, ref: JobRef) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.order.append("cancel")
        super().cancel(ref)


@pytest.fixture
def fake() -> Ordered:
    return Ordered()


@pytest.fixture
def context(tmp_path: Path, fake: Ordered) -> JobContext:
    cluster = Cluster("eu", "eu.yaml", tmp_path)
    return JobContext(tmp_path, os.environ, cluster, backends={"eu": fake})


def acting(context: JobContext) -> JobService:
    def open_project(cluster: Cluster) -> CodeProject:
        raise AssertionError("the code of a job that is known is not looked for")

    return JobService(context, open_project)


def no_code(cluster: Cluster) -> CodeChoice:
    return CodeChoice(None)


def send(context: JobContext, *argv: str) -> JobRecord:
    assert context.current
    return submit(context, context.current, SubmitRequest(argv), no_code).record


def test_a_submission_that_is_killed_leaves_a_trace(context: JobContext, fake: Ordered) -> None:
    fake.killed = True
    with pytest.raises(StoppedError, match="interrupted while eu was asked; unknown whether it") as caught:
        send(context, "echo")
    (record,) = recent(context).records
    assert caught.value.hint and f"blobsync q {record.run_id.rpartition('_')[2]} looks for it" in caught.value.hint
    assert record.info.state is State.UNKNOWN and "interrupted" in record.info.reason
    with pytest.raises(JobError, match="cannot be stopped yet"):
        cancel(context, record)
    fake.killed = False
    assert resubmit(context, record).record.spec.argv == ("echo",)


def test_ctrl_c_between_the_two_halves_of_resubmit_names_both_jobs(context: JobContext, fake: Ordered) -> None:
    old = send(context, "sleep", "9")
    fake.stopped = True
    with pytest.raises(StoppedError, match=f"was submitted, and {old.run_id} may still run") as caught:
        resubmit(context, old)
    assert caught.value.hint == f"blobsync abort {old.run_id}" and caught.value.exit_code == 130


def test_a_submission_whose_answer_got_lost_stays_and_is_found_at_the_next_look(
    context: JobContext, fake: Ordered
) -> None:
    fake.lost = True
    with pytest.raises(SubmissionUnknownError, match="unknown whether it accepted") as lost:
        send(context, "sleep", "9")
    (record,) = context.history.page()
    assert str(lost.value.hint).startswith(f"blobsync q {record.run_id[-8:]} looks for it")
    assert record.ref.native_id == "" and fake.secrets
    fake.gone = True
    (unknown,) = recent(context).records
    assert unknown.info.state is State.UNKNOWN
    fake.gone = fake.lost = False
    (found,) = recent(context).records
    assert found.info.state is State.RUNNING and found.ref.native_id == f"n-{record.run_id}"
    assert cancel(context, found).info.state is State.CANCELED


def test_a_submission_that_never_arrived_is_told_so_after_a_while_and_leaves_no_secret(
    context: JobContext, fake: Ordered
) -> None:
    with pytest.raises(SubmissionUnknownError):
        send(context, "vanish")
    (record,) = context.history.page()
    assert refresh(context, [record]).records[0].info.state is State.UNKNOWN and fake.secrets
    (failed,) = refresh(context, [replace(record, submitted=record.submitted - SETTLE_SECONDS - 1)]).records
    assert failed.info.state is State.FAILED and "never received it" in failed.info.reason
    assert not fake.secrets


def test_a_job_is_not_called_stopped_before_its_backend_says_so(context: JobContext, fake: Ordered) -> None:
    record = refresh(context, [send(context, "sleep", "9")]).records[0]
    fake.gone = True
    with pytest.raises(BackendUnavailableError):
        cancel(context, record)
    fake.gone, fake.lost = False, True
    with pytest.raises(JobError, match=r"unknown whether .* is being stopped"):
        cancel(context, record)
    assert not context.history.find(record.run_id).cancel_asked
    fake.jobs.clear()
    fake.lost = False
    with pytest.raises(JobNotFoundError):
        cancel(context, record)
    assert refresh(context, [record]).records[0].info.state is State.UNKNOWN


def test_a_state_that_nobody_confirmed_is_known_as_such(context: JobContext, fake: Ordered) -> None:
    record = refresh(context, [send(context, "sleep", "9")]).records[0]
    assert record.is_settled and state_text(record) == "Running"
    fake.gone = True
    (old,) = recent(context).records
    assert not old.is_settled and old.confirmed == pytest.approx(record.confirmed)
    assert re.fullmatch(r"Running as of \d+[smhd] ago, not confirmed", state_text(old))


def test_a_cluster_is_asked_once_for_all_its_jobs_and_never_about_ended_ones(
    context: JobContext, fake: Ordered
) -> None:
    for _ in range(3):
        send(context, "sleep", "9")
    send(context, "echo")
    refreshed = recent(context)
    assert fake.asked == 1 and len(refreshed.records) == 4
    recent(context)
    assert fake.asked == 2
    for record in refreshed.records:
        cancel(context, record)
    asked = fake.asked
    recent(context)
    assert fake.asked == asked


def test_resubmitting_takes_the_recorded_command_and_cancels_afterwards(context: JobContext, fake: Ordered) -> None:
    old = send(context, "sleep", "a b")
    submitted = resubmit(context, old)
    new = submitted.record
    assert submitted.warnings == (f"the old job {old.run_id} was stopped: Canceled",)
    assert fake.order == ["submit", "submit", "cancel"]
    assert new.spec.argv == ("sleep", "a b") and new.run_id != old.run_id and new.successor_of == old.run_id
    assert context.history.find(old.run_id).info.state is State.CANCELED
    assert context.history.find(new.run_id).info.state is State.QUEUED


def test_a_resubmission_that_fails_leaves_the_old_job_alone(context: JobContext, fake: Ordered) -> None:
    old = send(context, "sleep", "9")
    fake.gone = True
    with pytest.raises(BackendUnavailableError):
        resubmit(context, old)
    fake.gone = False
    assert refresh(context, [old]).records[0].info.state is State.RUNNING


def test_jobs_that_failed_and_were_not_submitted_again_are_the_failed_ones(context: JobContext, fake: Ordered) -> None:
    first, second, third = (send(context, "sleep", name) for name in ("a", "b", "c"))
    for record in (first, second):
        context.history.update(record, RunInfo(record.run_id, State.FAILED, exit_code=1))
    service = acting(context)
    assert [record.run_id for record in service.failed()] == [first.run_id, second.run_id]
    done = service.resubmit_all([first])
    assert [one.record.successor_of for one in done.submitted] == [first.run_id] and not done.errors
    assert [record.run_id for record in service.failed()] == [second.run_id]
    fake.gone = True
    assert [record.run_id for record in service.unfinished()] == [done.submitted[0].record.run_id, third.run_id]
    assert service.unfinished(cluster="us").records == ()


def test_an_error_with_one_job_does_not_keep_the_others_from_being_submitted_again(context: JobContext) -> None:
    old = [send(context, name) for name in ("a", "b", "c")]
    for record in old:
        context.history.update(record, RunInfo(record.run_id, State.FAILED, exit_code=1))
    refused = replace(old[1], spec=replace(old[1].spec, secret_env=("HUB_TOKEN",)))
    done = acting(context).resubmit_all([old[0], refused, old[2]])
    assert [one.record.spec.argv for one in done.submitted] == [("a",), ("c",)]
    assert ["HUB_TOKEN" in error.message for error in done.errors] == [True]


@pytest.mark.parametrize(("platform", "pause"), [("local", 0.2), ("slurm", 1.0)])
def test_jobs_are_looked_at_until_all_have_ended(tmp_path: Path, platform: str, pause: float) -> None:
    fake = Changing(found=[(State.QUEUED, ""), (State.RUNNING, ""), (State.COMPLETED, ""), (State.COMPLETED, "")])
    slept: list[float] = []
    cluster = Cluster("eu", "eu.yaml", tmp_path, platform=platform)
    context = JobContext(tmp_path, os.environ, cluster, backends={"eu": fake}, sleep=slept.append)
    send(context, "train")
    seen = [found[0].state for found in acting(context).looks()]
    assert seen == [State.QUEUED, State.RUNNING, State.COMPLETED] and slept == [pause, pause]


def test_resubmitting_an_ended_job_cancels_nothing(context: JobContext, fake: Ordered) -> None:
    old = send(context, "echo")
    assert resubmit(context, old).warnings == ()
    assert "cancel" not in fake.order


def test_a_job_keeps_its_code_unless_the_latest_is_asked_for(context: JobContext, fake: Ordered) -> None:
    old = send(context, "echo")
    old = replace(old, spec=replace(old.spec, code=None))
    newer = resubmit(context, old, choose_code=lambda _: CodeChoice(None, ("a warning",)))
    assert newer.warnings == ("a warning",)


@pytest.mark.parametrize(
    ("gpus", "single", "again", "size"),
    [
        (1, None, None, (1, 1, 1)),
        (1, None, 4, (1, 4, 4)),
        (4, None, 2, (1, 2, 2)),
        (4, False, 8, (1, 1, 8)),
        (4, None, 0, (1, 1, 0)),
        (0, None, None, (1, 1, 0)),
    ],
)
def test_resubmitting_can_change_the_number_of_gpus(
    context: JobContext, fake: Ordered, gpus: int, single: bool | None, again: int | None, size: tuple[int, int, int]
) -> None:
    assert context.current
    old = submit(context, context.current, SubmitRequest(("sleep", "9"), gpus, multi_process=single), no_code).record
    new = resubmit(context, old, num_gpu=again).record.spec
    assert (new.nodes, new.procs_per_node, new.gpus_per_node) == size
    assert new.argv == old.spec.argv


@pytest.mark.parametrize(
    ("old", "asked", "size"),
    [
        # One process on each of two nodes with four GPUs: elsewhere it is one process again, with as many GPUs.
        ({"nodes": 2, "procs_per_node": 1, "gpus_per_node": 4}, None, (1, 1, 8)),
        ({"nodes": 2, "procs_per_node": 4, "gpus_per_node": 4}, None, (1, 8, 8)),
        ({"nodes": 4, "procs_per_node": 1, "gpus_per_node": 1}, None, (1, 4, 4)),
        ({"nodes": 2, "procs_per_node": 2, "gpus_per_node": 0}, None, (1, 4, 4)),
        ({"nodes": 1, "procs_per_node": 1, "gpus_per_node": 0}, None, (1, 1, 0)),
        ({"nodes": 2, "procs_per_node": 4, "gpus_per_node": 4}, 3, (1, 3, 3)),
    ],
)
def test_a_job_that_moves_keeps_its_gpus_and_whether_each_has_a_process(
    context: JobContext, fake: Ordered, old: dict[str, Any], asked: int | None, size: tuple[int, int, int]
) -> None:
    there = send(context, "sleep", "9")
    there = replace(there, spec=replace(there.spec, platform="aml", **old))
    assert context.current
    context.current = context.current._replace(gpu_per_node=8)
    new = resubmit(context, there, to="eu", num_gpu=asked).record.spec
    assert (new.nodes, new.procs_per_node, new.gpus_per_node) == size


@pytest.mark.parametrize("form", ["{}", "{}/", "assets/{}", "assets/{}/", "./assets/{}/", "/somewhere/assets/{}"])
def test_an_id_may_be_the_folder_of_its_logs(context: JobContext, fake: Ordered, form: str) -> None:
    record = send(context, "echo")
    assert JobQueries(context).find(form.format(record.run_id)).run_id == record.run_id
    assert JobQueries(context).find(form.format(record.run_id[-6:])).run_id == record.run_id


@pytest.mark.parametrize(("given", "place"), [(None, "assets"), ("", "assets"), ("logs/all", "logs/all"), ("/x", "/x")])
def test_logs_are_kept_where_acts_variable_says(tmp_path: Path, fake: Ordered, given: str | None, place: str) -> None:
    environ = {**os.environ, **({} if given is None else {"AML_LOG_FOLDER": given})}
    context = JobContext(tmp_path, environ, Cluster("eu", "eu.yaml", tmp_path), backends={"eu": fake})
    record = send(context, "echo")
    folder, boundary = job_log_folder(context, record)
    assert folder == tmp_path / place / record.run_id
    assert boundary == (Path("/x") if place == "/x" else tmp_path)
    assert JobQueries(context).find(f"{place}/{record.run_id}/").run_id == record.run_id


@pytest.mark.parametrize("form", ["/", "", "assets/", "other/{}", "assets/{}/user_logs"])
def test_other_paths_are_no_ids(context: JobContext, fake: Ordered, form: str) -> None:
    record = send(context, "echo")
    with pytest.raises(JobNotFoundError):
        JobQueries(context).find(form.format(record.run_id))


class Remembering(Ordered):
    """A context that knows a job of somebody else's."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self.spec = spec

    def recall(self, suffix: str) -> Iterator[tuple[JobSpec, JobRef]]:
        if self.spec.run_id.endswith(suffix):
            yield self.spec, JobRef(self.spec.run_id, "n1", "")


@pytest.mark.parametrize(
    ("run_id", "submitted"),
    [("ann_1795245865_892aa25a", 1795245865.0), ("ann_99999999999_892aa25a", None), ("x", None)],
)
def test_a_recalled_job_has_the_time_of_its_submission(tmp_path: Path, run_id: str, submitted: float | None) -> None:
    (tmp_path / "aux_data" / "aml").mkdir(parents=True)
    (tmp_path / "aux_data" / "aml" / "eu.yaml").write_text("platform: local\n")
    spec = make_spec("true", run_id=run_id.rjust(4, "0"), cluster="eu")
    now = time.time()
    context = JobContext(tmp_path, os.environ, Cluster("eu", "eu.yaml", tmp_path), backends={"eu": Remembering(spec)})
    found = JobQueries(context).find(spec.run_id)
    assert context.history.find(spec.run_id).submitted == found.submitted
    assert found.submitted == min(submitted, now) if submitted else now <= found.submitted <= time.time()


class Away(Ordered):
    """A context that may know the job, and does not tell."""

    def __init__(self, error: BlobsyncError) -> None:
        super().__init__()
        self.error = error

    def recall(self, suffix: str) -> Iterator[tuple[JobSpec, JobRef]]:
        raise self.error


def test_a_job_that_only_a_service_may_know_needs_what_lets_it_be_asked(tmp_path: Path) -> None:
    (tmp_path / "aux_data" / "aml").mkdir(parents=True)
    names = ("busy", "eu", "us")
    for name in names:
        (tmp_path / f"aux_data/aml/{name}.yaml").write_text("platform: local\n")

    def said(*errors: BlobsyncError) -> BlobsyncError:
        backends = {name: Away(error) for name, error in zip(names, errors, strict=False)}
        context = JobContext(tmp_path, os.environ, Cluster("eu", "eu.yaml", tmp_path), backends=backends)
        with pytest.raises(BlobsyncError) as caught:
            JobQueries(context).find("0badcafe")
        return caught.value

    busy, login = BackendUnavailableError("it is busy", hint="wait"), LoginRequiredError("nobody", hint="az login")
    found = said(busy, login)
    assert (type(found), found.hint, found.exit_code) == (LoginRequiredError, "az login", 2)
    assert "with '0badcafe', or that name; cluster busy could not be queried: it is busy; cluster eu" in found.message
    found = said(busy)
    assert (type(found), found.hint) == (JobNotFoundError, "wait")
    assert said().hint == "blobsync history lists them"


def test_watching_tries_again_only_for_reasons_that_pass(tmp_path: Path, fake: Ordered) -> None:
    def ends(*infos: RunInfo, listed: tuple[int, ...] = ()) -> Sequence[str | None]:
        queue = iter(infos)

        def end(seconds: float) -> None:
            last = list(fake.jobs)[-1]
            fake.jobs[last] = replace(next(queue), run_id=last)

        cluster = Cluster("eu", "eu.yaml", tmp_path)
        context = JobContext(tmp_path, os.environ, cluster, backends={"eu": fake}, sleep=end)
        record = send(context, "exit", "1")
        record = replace(record, spec=replace(record.spec, retry_exit_codes=listed))
        attempts = acting(context).watch(record, retries=2)
        return [attempt.next_id and "again" for attempt in attempts]

    preempted = RunInfo("", State.FAILED, 1, reason="PREEMPTED")
    broken = RunInfo("", State.FAILED, 1, reason="NonZeroExitCode")
    fine = RunInfo("", State.COMPLETED, 0)
    assert ends(fine) == [None]
    assert ends(broken) == [None]
    assert ends(preempted, fine) == ["again", None]
    assert ends(preempted, preempted, preempted) == ["again", "again", None]
    # Exit codes in the configuration count as success, too.
    assert ends(broken, fine, listed=(1,)) == ["again", None]
    assert ends(broken, listed=(2,)) == [None]


def test_a_job_that_stays_on_its_cluster_is_submitted_as_it_was(context: JobContext, fake: Ordered) -> None:
    old = send(context, "sleep", "9")
    # Values that differ from today's configuration.
    spec = replace(old.spec, nodes=3, procs_per_node=2, gpus_per_node=2, setup=("make",), retry_exit_codes=(9,))
    new = resubmit(context, replace(old, spec=spec)).record.spec
    assert new == replace(spec, run_id=new.run_id)
    assert new.run_id != spec.run_id


def test_a_job_that_waits_is_submitted_again_as_one_with_any_number_of_gpus(context: JobContext, fake: Ordered) -> None:
    old = send(context, "ssh")
    for gpus in (None, 8):
        new = resubmit(context, old, num_gpu=gpus).record.spec
        assert (new.argv, new.hold, new.procs_per_node) == (("ssh",), old.spec.hold, 1)
        assert new.gpus_per_node == (gpus or old.spec.gpus_per_node)


def elastic(context: JobContext, *argv: str) -> JobRecord:
    request = SubmitRequest(argv or ("sleep", "60"), elastic="1:4")
    assert context.current
    cluster = context.current._replace(values={"platform": "slurm"}, platform="slurm", platform_given=True)
    return submit(context, cluster, request, lambda cluster: CodeChoice(None)).record


def test_an_elastic_job_is_scaled_within_its_bounds(context: JobContext, fake: Ordered) -> None:
    record = elastic(context)
    assert (record.spec.min_nodes, record.spec.max_nodes, record.spec.nodes) == (1, 4, 1)
    grown = acting(context).scale(record, 3)
    assert [(one.running, one.wanted) for one in grown.info.changes] == [(1, 1), (1, 3), (3, 3)]
    with pytest.raises(UsageError, match="may have 1 to 4 nodes, not 5"):
        acting(context).scale(grown, 5)
    assert fake.jobs[record.run_id].changes[-1].wanted == 3, "nothing was asked"


def test_a_scale_whose_answer_got_lost_is_unknown_and_one_that_was_refused_is_not_recorded(
    context: JobContext, fake: Ordered
) -> None:
    record = elastic(context)
    fake.lost = True
    with pytest.raises(JobError, match=r"unknown whether .* is being scaled"):
        acting(context).scale(record, 3)
    fake.lost, fake.gone = False, True
    with pytest.raises(BackendUnavailableError, match="does not answer"):
        acting(context).scale(record, 2)
    assert [one.wanted for one in context.history.find(record.run_id).info.changes] == [1]


@dataclass
class Changing(FakeBackend):
    """Each query finds the job in the next of these states; None: the cluster does not respond."""

    found: list[tuple[State, str] | None] = field(default_factory=list)
    restarts: int = 0

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        if len(self.found) == 1:
            return super().get(refs)
        now = self.found.pop(0)
        if now is None:
            raise BackendUnavailableError("the cluster does not answer")
        state, reason = now
        return tuple(RunInfo(ref.run_id, state, reason=reason, restarts=self.restarts) for ref in refs)


_FULL = "no node of the cluster fits"
_SEEN: list[tuple[State, str] | None] = [
    (State.QUEUED, ""),
    (State.QUEUED, _FULL),
    (State.QUEUED, _FULL),
    None,
    None,
    (State.RUNNING, ""),
    (State.QUEUED, _FULL),
    (State.RUNNING, ""),
]
_TOLD = ["Queued: " + _FULL, "cluster eu: the cluster does not answer; showing the last known state", "Running"]


@pytest.mark.parametrize("how", ["wait", "follow", "watch"])
def test_whoever_waits_for_a_job_is_told_the_reason_when_it_appears_and_once(tmp_path: Path, how: str) -> None:
    fake, told = Changing(found=[*_SEEN, None]), list[str]()
    cluster = Cluster("eu", "eu.yaml", tmp_path)
    context = JobContext(
        tmp_path, os.environ, cluster, backends={"eu": fake}, note=told.append, sleep=lambda seconds: None
    )
    record = send(context, "exit", "7")
    assert told.pop() == "eu (local): 1 node, 1 process, 1 GPU"
    if how == "wait":
        assert JobQueries(context).wait(record).state is State.FAILED
    elif how == "follow":
        assert list(JobQueries(context).follow(record)) == []
    else:
        (attempt,) = acting(context).watch(record, retries=0)
        assert attempt.record.info.sentence == "Failed (7)"
    assert [line.removeprefix(f"{record.run_id}: ") for line in told] == _TOLD


def test_a_job_that_is_put_back_into_the_queue_is_reported_again(tmp_path: Path) -> None:
    told = list[str]()
    news, record = (
        StateNotes(told.append),
        JobRecord(make_spec("x", run_id="me_1_a"), JobRef("me_1_a", "1"), "b", _QUEUED, 0.0),
    )
    for restarts in (0, 0, 1):
        news.update(replace(record, info=replace(_QUEUED, restarts=restarts)))
    assert told == ["me_1_a: Queued: full"] * 2


_QUEUED = RunInfo("me_1_a", State.QUEUED, reason="full")


def test_the_users_own_command_is_run_once_at_the_end_of_a_job(tmp_path: Path, fake: Ordered) -> None:
    own = tmp_path / "config" / "blobsync" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("notify: {command: [sh, -c, 'echo $BLOBSYNC_JOB $BLOBSYNC_JOB_STATE; pwd']}\n")
    own.chmod(0o600)
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    noted: list[str] = []
    cluster = Cluster("eu", "eu.yaml", tmp_path, values={"notify": {"command": ["touch", "pwned"]}})
    context = JobContext(tmp_path, environ, cluster, note=noted.append, backends={"eu": fake})
    jobs = JobQueries(context)
    record = context.history.add(make_spec("exit", "3", cluster="eu"), JobRef("me_1_0badcafe", "n", "memory"), "fake")
    fake.jobs[record.run_id] = RunInfo(record.run_id, State.FAILED, 3)
    other = context.history.find(record.run_id)
    for each in (record, other):
        assert jobs.get(each).state is State.FAILED
    told, said = context.state.root / "notify.txt", f"{record.run_id} Failed\n{own.parent}\n"
    until = time.monotonic() + 30
    while not (told.exists() and told.read_text() == said) and time.monotonic() < until:
        time.sleep(0.05)
    assert told.read_text() == said and not noted
    own.write_text("notify: {command: [/no/such/program]}\n")
    record = context.history.add(
        make_spec("x", cluster="eu", run_id="me_2_0badcafe"), JobRef("me_2_0badcafe", "m"), "f"
    )
    fake.jobs[record.run_id] = RunInfo(record.run_id, State.COMPLETED, 0)
    assert jobs.get(record).state is State.COMPLETED
    assert "notify.command was not run for me_2_0badcafe" in noted[0]
