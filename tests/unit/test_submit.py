"""Submitting and resubmitting: the order of steps, rights, and what a moved job keeps."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from blobsync.ancestors.batchai_job import read_job_file, record_job
from blobsync.backends.protocol import Outcome, Plan
from blobsync.base.errors import (
    AccessDeniedError,
    ConfigError,
    CredentialError,
    JobError,
    UntrustedCodeError,
    UsageError,
)
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.config.model import Cluster, CodeEntry, FolderEntry, StorageAccount
from blobsync.config.trusted_code import trust_code
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.submit import hand_over, new_run_id, plan_job, resubmit, submit
from blobsync.jobspec.code_choice import CodeChoice
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.node_secrets import own_lineage_keys
from blobsync.jobspec.spec import LINEAGE_KEYS, CodeRef, JobRef, NodeArchiveRef, Secrets
from tests.fakes.backend import FakeBackend
from tests.fakes.store import MemoryStore, Request

ACCOUNT = StorageAccount("eu.yaml", "acct", "box", "https://acct.blob.core.windows.net", account_key=Secret("a2V5"))
CONTAINER = str(ACCOUNT.container)
CODE = CodeRef(CONTAINER, "code.zip.d/x.zip", "x")


class Moody(FakeBackend):
    """Refuses cancellations if ``unwilling``, and does not respond any more after ``leaves_after`` jobs."""

    unwilling = False
    leaves_after = 99

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        outcome = super().submit(plan, secrets)
        self.leaves_after -= 1
        self.gone = self.leaves_after <= 0
        return outcome

    def cancel(self, ref: JobRef) -> None:
        if self.unwilling:
            raise CredentialError("the login has ended")
        super().cancel(ref)


@pytest.fixture
def eu() -> Moody:
    return Moody()


@pytest.fixture
def us() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def context(tmp_path: Path, eu: Moody, us: FakeBackend) -> JobContext:
    """A project on cluster ``eu``, with the files ``us`` and ``nowhere``, which has no platform."""
    files = tmp_path / "aux_data" / "aml"
    files.mkdir(parents=True)
    (files / "us.yaml").write_text("platform: local\nconfig_param: {}\n")
    (files / "nowhere.yaml").write_text("config_param: {}\naml_config: x.json\n")
    return JobContext(tmp_path, os.environ, Cluster("eu", "eu.yaml", tmp_path), backends={"eu": eu, "us": us})


def set_current(context: JobContext, **changes: Any) -> None:
    assert context.current
    context.current = context.current._replace(**changes)


def send(context: JobContext, *argv: str, code: CodeRef | None = None) -> JobRecord:
    assert context.current
    return submit(context, context.current, SubmitRequest(argv), lambda _: CodeChoice(code)).record


# -- the run id ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "plain"),
    [("ann", "ann"), ("Ann.Lee_X-", "ann-lee-x"), ("a" * 30, "a" * 24), ("../", "job"), ("\N{SNOWMAN}", "job")],
)
def test_a_run_id_is_the_user_the_time_and_eight_digits(user: str, plain: str) -> None:
    assert re.fullmatch(rf"{plain}_1700000000_[0-9a-f]{{8}}", new_run_id({"USER": user}, 1_700_000_000.9))


def test_a_run_id_without_a_user_or_a_time_has_those_of_this_moment() -> None:
    before = int(time.time())
    user, moment, _ = new_run_id({}).split("_")
    assert user == re.sub(r"[^a-z0-9-]+", "-", getpass.getuser().lower()).strip("-")[:24]
    assert before <= int(moment) <= time.time()


# -- the order -----------------------------------------------------------------------------------------------------


def test_a_request_that_is_wrong_is_reported_before_any_code_is_looked_at(context: JobContext) -> None:
    asked: list[str] = []

    def choose(cluster: Cluster) -> CodeChoice:
        asked.append(cluster.name)
        return CodeChoice(None)

    assert context.current
    with pytest.raises(UsageError, match="no command"):
        plan_job(context, context.current, SubmitRequest(()), choose)
    nowhere = context.current._replace(platform_given=False)
    with pytest.raises(ConfigError, match="platform"):
        plan_job(context, nowhere, SubmitRequest(("true",)), choose)
    assert asked == []


@pytest.mark.parametrize(
    ("mood", "why"), [({"unwilling": True}, "the login has ended"), ({"leaves_after": 1}, "does not answer")]
)
def test_an_old_job_that_cannot_be_stopped_is_reported(
    context: JobContext, eu: FakeBackend, mood: dict[str, object], why: str
) -> None:
    old = send(context, "sleep", "9")
    for name, value in mood.items():
        setattr(eu, name, value)
    submitted = resubmit(context, old)
    (warning,) = submitted.warnings
    assert warning.startswith(f"the old job {old.run_id} could not be cancelled: ")
    assert why in warning
    assert submitted.record.run_id in eu.jobs


# -- what a job keeps when it moves ----------------------------------------------------------------------------------


def test_a_job_moves_to_the_cluster_that_is_named(context: JobContext, eu: FakeBackend, us: FakeBackend) -> None:
    old = send(context, "sleep", "9")
    # Also on the same platform, the other cluster's nodes and folders apply.
    spec = replace(old.spec, nodes=3, procs_per_node=2, gpus_per_node=2)
    new = resubmit(context, replace(old, spec=spec), to="us").record
    assert (new.cluster, new.spec.cluster, new.successor_of) == ("us", "us", old.run_id)
    assert (list(us.jobs), list(eu.jobs)) == ([new.run_id], [old.run_id])
    assert (new.spec.nodes, new.spec.procs_per_node, new.spec.gpus_per_node) == (1, 6, 6)
    assert new.spec.options["in_place"]


def test_a_job_does_not_move_to_where_nobody_says_where_jobs_run(context: JobContext, eu: FakeBackend) -> None:
    old = send(context, "sleep", "9")
    with pytest.raises(ConfigError, match="platform"):
        resubmit(context, old, to="nowhere")
    assert list(eu.jobs) == [old.run_id]
    assert not eu.jobs[old.run_id].state.is_final


@pytest.mark.parametrize(
    ("spec", "rule", "asked", "size"),
    [
        pytest.param({"gpus_per_node": 2}, False, None, (1, 1, 2), id="one process with two GPUs"),
        pytest.param({"gpus_per_node": 2}, True, None, (1, 1, 2), id="the same where one for each is the rule"),
        pytest.param({"gpus_per_node": 4}, True, None, (1, 1, 4), id="one process with four"),
        pytest.param({"nodes": 2, "gpus_per_node": 1}, False, None, (1, 2, 2), id="two processes on two nodes"),
        pytest.param({"procs_per_node": 2, "gpus_per_node": 2}, False, None, (1, 2, 2), id="two on one node"),
        pytest.param(
            {"gpus_per_node": 1}, False, 4, (1, 1, 4), id="one of one, to four, where one process is the rule"
        ),
        pytest.param({"nodes": 2, "gpus_per_node": 1}, False, 4, (1, 4, 4), id="two of two, to four"),
        pytest.param({"nodes": 2, "gpus_per_node": 4}, True, None, (1, 1, 8), id="one process on each of two nodes"),
        ({"nodes": 2, "procs_per_node": 4, "gpus_per_node": 4}, True, None, (1, 8, 8)),
        ({"nodes": 4, "procs_per_node": 1, "gpus_per_node": 1}, True, None, (1, 4, 4)),
        ({"nodes": 2, "procs_per_node": 2, "gpus_per_node": 0}, True, None, (1, 4, 4)),
        ({"nodes": 2, "procs_per_node": 4, "gpus_per_node": 4}, True, 3, (1, 3, 3)),
        ({"nodes": 2, "procs_per_node": 1, "gpus_per_node": 4}, True, 3, (1, 1, 3)),
        ({"nodes": 2, "procs_per_node": 4, "gpus_per_node": 4}, True, 0, (1, 1, 0)),
        pytest.param({"gpus_per_node": 0}, True, None, (1, 1, 0), id="no GPU"),
        pytest.param({"gpus_per_node": 1}, True, None, (1, 1, 1), id="one GPU"),
        pytest.param({"nodes": 2, "gpus_per_node": 0}, True, None, (1, 2, 2), id="no GPU on two nodes"),
        pytest.param({"procs_per_node": 2, "gpus_per_node": 0}, True, None, (1, 2, 2), id="two processes without one"),
        pytest.param(
            {"platform": "slurm", "gpus_per_node": 0}, True, None, (1, 1, 1), id="Slurm: a partition has them"
        ),
    ],
)
def test_a_job_that_moves_keeps_its_shape_as_far_as_it_tells(
    context: JobContext, spec: dict[str, Any], asked: int | None, size: tuple[int, int, int], *, rule: bool
) -> None:
    set_current(context, multi_process=rule, gpu_per_node=8)
    old = send(context, "sleep", "9")
    there: dict[str, Any] = {"platform": "aml", "nodes": 1, "procs_per_node": 1, **spec}
    moved = resubmit(context, replace(old, spec=replace(old.spec, **there)), to="eu", num_gpu=asked).record.spec
    assert (moved.nodes, moved.procs_per_node, moved.gpus_per_node) == size


# -- the files of nodes ----------------------------------------------------------------------------------------------


@pytest.fixture
def box() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def remote(tmp_path: Path, eu: Moody, us: FakeBackend, box: MemoryStore) -> JobContext:
    """A project on cluster ``eu``, whose nodes are elsewhere; ``us`` is this machine."""
    (tmp_path / "aux_data" / "aml").mkdir(parents=True)
    (tmp_path / "aux_data" / "aml" / "us.yaml").write_text("platform: local\nconfig_param: {}\n")
    cluster = Cluster("eu", "eu.yaml", tmp_path, platform="slurm", code=CodeEntry(ACCOUNT, "code.zip"))
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    return JobContext(tmp_path, environ, cluster, backends={"eu": eu, "us": us}, stores={CONTAINER: box})


def others(requests: Iterable[Request]) -> list[Request]:
    """Those that are not about a job's record."""
    return [request for request in requests if not request.name.startswith(".blobsync/jobs/")]


def test_nodes_elsewhere_get_the_archive_once_and_by_its_digest(
    remote: JobContext, eu: Moody, box: MemoryStore
) -> None:
    for record in (send(remote, "sleep", "9", code=CODE), send(remote, "sleep", "9", code=CODE)):
        archive = eu.specs[record.run_id].node_archive
        assert archive and (archive.container, archive.path) == (
            CONTAINER,
            f"code.zip.d/x.zip.d/node/{archive.digest}.zip",
        )
        assert hashlib.sha256(box.body(archive.path)).hexdigest() == archive.digest
        assert len(box.body(archive.path)) == archive.size
        assert remote.history.find(record.run_id).spec.node_archive == archive
    assert len(others(box.asked("put"))) == 1


def test_an_archive_in_a_folder_that_nodes_see_is_not_uploaded(remote: JobContext, eu: Moody, box: MemoryStore) -> None:
    assert remote.current
    plan, _ = plan_job(remote, remote.current, SubmitRequest(("true",)), lambda _: CodeChoice(None))
    archive = NodeArchiveRef("mounted:/shared/state", "node.zip", "x", 1)
    hand_over(remote, remote.current, replace(plan.spec, node_archive=archive))
    assert eu.specs[plan.spec.run_id].node_archive == archive
    assert others(box.requests) == []


def test_a_job_without_code_needs_no_archive(remote: JobContext, eu: Moody, box: MemoryStore) -> None:
    assert eu.specs[send(remote, "sleep", "9").run_id].node_archive is None
    assert others(box.requests) == []


def test_a_dry_run_names_the_archive_and_uploads_nothing(remote: JobContext, box: MemoryStore) -> None:
    assert remote.current
    plan, _ = plan_job(remote, remote.current, SubmitRequest(("true",)), lambda _: CodeChoice(CODE))
    assert plan.spec.node_archive and plan.spec.node_archive.digest in plan.text
    assert box.requests == []


def test_an_archive_that_cannot_be_put_there_stops_the_submission(
    remote: JobContext, eu: Moody, box: MemoryStore
) -> None:
    def before(request: Request) -> None:
        raise AccessDeniedError("no write access")

    box.before = before
    with pytest.raises(AccessDeniedError):
        send(remote, "sleep", "9", code=CODE)
    assert eu.jobs == {} and remote.history.page() == ()


def test_a_job_that_is_submitted_again_starts_from_todays_archive(
    remote: JobContext, eu: Moody, us: FakeBackend
) -> None:
    old = send(remote, "sleep", "9", code=CODE)
    past = NodeArchiveRef(CONTAINER, "old.zip", "0" * 64, 7)
    new = resubmit(remote, replace(old, spec=replace(old.spec, node_archive=past))).record
    assert new.spec.node_archive == old.spec.node_archive != past
    here = resubmit(remote, new, to="us").record
    assert here.spec.node_archive is None, "this machine has blobsync"
    assert remote.current
    remote.current = remote.current._replace(code=None)
    with pytest.raises(CredentialError, match="does not contain"):
        resubmit(remote, new)


# -- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mapped", [{"code": CodeEntry(ACCOUNT, "code.zip")}, {"folders": (FolderEntry("data", ACCOUNT, "store"),)}]
)
def test_a_job_that_moves_may_read_its_code_where_it_lies_as_long_as_jobs_may_last(
    context: JobContext, us: FakeBackend, mapped: dict[str, Any]
) -> None:
    set_current(context, **mapped)
    old = send(context, "sleep", "9", code=CODE)
    old = replace(old, spec=replace(old.spec, folders=()))
    new = resubmit(context, old, to="us").record
    ((container, given),) = us.secrets[new.run_id].sas.items()
    sas = SasToken.parse(given)
    assert (container, sas.permissions) == (CONTAINER, "rl")
    assert sas.expires_at is not None
    assert sas.expires_at - datetime.now(timezone.utc) > timedelta(days=6)


def own_sas(hours: float) -> StorageAccount:
    """The account, with this SAS and without a key."""
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    text = f"sv=2022-11-02&sr=c&sp=racwdl&se={moment:%Y-%m-%dT%H:%M:%SZ}&sig=abc"
    return ACCOUNT._replace(account_key=None, sas_token=SasToken.parse(text))


@pytest.mark.parametrize("hours", [2, 24 * 30])
def test_how_long_a_sas_of_the_users_lasts_is_their_choice(context: JobContext, eu: FakeBackend, hours: float) -> None:
    own = own_sas(hours)
    assert own.sas_token is not None
    set_current(context, code=CodeEntry(own, "code.zip"))
    old = send(context, "sleep", "9", code=CODE)
    for record in (old, resubmit(context, old).record):
        assert eu.secrets[record.run_id].sas == {CONTAINER: own.sas_token.reveal()}
        assert "sig=" not in record.spec.to_json()


def test_a_sas_of_the_users_that_has_ended_stops_the_submission(context: JobContext, eu: FakeBackend) -> None:
    old = send(context, "sleep", "9")
    set_current(context, code=CodeEntry(own_sas(-1), "code.zip"))
    with pytest.raises(CredentialError):
        resubmit(context, replace(old, spec=replace(old.spec, code=CODE)))
    assert list(eu.jobs) == [old.run_id]


# -- trusted code --------------------------------------------------------------------------------------------------


def test_a_job_that_a_service_told_of_brings_no_code_that_is_not_trusted(context: JobContext, tmp_path: Path) -> None:
    context.environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    digest = "ab" * 32
    set_current(context, code=CodeEntry(ACCOUNT, "code.zip"))
    told = send(context, "true", code=CodeRef(CONTAINER, f"code.zip.d/{digest}.zip", digest))
    told = replace(told, spec=replace(told.spec, options={**told.spec.options, "recalled": True}))
    with pytest.raises(UntrustedCodeError, match=f"not submitted from here.*{digest}") as refused:
        resubmit(context, told)
    assert refused.value.digest == digest and f"config trust-code {digest}" in str(refused.value.hint)
    trust_code(context.root, [digest], context.environ)
    again = resubmit(context, told).record
    assert again.spec.code and again.spec.code.digest == digest and "recalled" not in again.spec.options


def test_a_job_without_a_digest_of_its_code_is_not_submitted_again_as_it_is(context: JobContext) -> None:
    set_current(context, code=CodeEntry(ACCOUNT, "code.zip"))
    old = send(context, "true", code=CodeRef(CONTAINER, "code.zip", ""))
    with pytest.raises(UntrustedCodeError, match=r"no digest of its code.*code\.zip"):
        resubmit(context, old)
    assert resubmit(context, old, choose_code=lambda _: CodeChoice(CODE)).record.spec.code == CODE


# -- checkpoints ---------------------------------------------------------------------------------------------------


def with_checkpoints(context: JobContext, **keys: Any) -> None:
    rule = CheckpointRule("checkpoint-*", **keys)
    set_current(context, folders=(FolderEntry("output", ACCOUNT, "out", "upload", checkpoints=rule),))


def without_seals(record: JobRecord) -> JobRecord:
    """As an earlier version recorded it."""
    options = record.spec.options.copy()
    del options["sealed_marks"]
    return replace(record, spec=replace(record.spec, options=options))


def recalled(record: JobRecord) -> JobRecord:
    """As a cluster tells of a job that was submitted elsewhere."""
    return replace(record, spec=replace(record.spec, options={**record.spec.options, "recalled": True}))


def marks_of(record: JobRecord) -> dict[str, Any]:
    """What a job's specification says of its lineage's marks."""
    return {name: value for name, value in record.spec.options.items() if name not in ("in_place", "variables")}


def test_a_resubmitted_job_gets_the_key_of_its_lineage(context: JobContext, eu: Moody, tmp_path: Path) -> None:
    context.environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with_checkpoints(context)
    first = send(context, "true")
    sent = [eu.secrets[first.run_id]]
    again = resubmit(context, first).record
    sent.append(eu.secrets[again.run_id])
    key = {first.run_id: own_lineage_keys(context.environ)(first.run_id).secret.hex()}
    assert [json.loads(secrets.env[LINEAGE_KEYS]) for secrets in sent] == [key, key]
    assert marks_of(again) == {"lineage": first.run_id, "sealed_marks": True}
    # What it may start from is found by the lineage of the job that is named.
    with_checkpoints(context, restore_from=again.run_id)
    other = send(context, "true")
    assert json.loads(eu.secrets[other.run_id].env[LINEAGE_KEYS]).keys() == {other.run_id, first.run_id}


def test_a_job_of_a_version_without_seals_goes_on_and_one_from_elsewhere_does_not(
    context: JobContext, tmp_path: Path
) -> None:
    context.environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with_checkpoints(context)
    first = send(context, "true")
    old = without_seals(first)
    again = resubmit(context, old)
    options = {"lineage": first.run_id, "earlier_marks": True, "sealed_marks": True}
    assert marks_of(again.record) == options == marks_of(resubmit(context, again.record).record)
    told = resubmit(context, recalled(again.record))
    assert marks_of(told.record) == {"sealed_marks": True} and told.record.spec.lineage == told.record.run_id
    (note,) = [each for each in told.warnings if "no seal of yours" in each]
    assert f"with restore_from: {first.run_id} and restore: STEP" in note
    assert not [each for each in again.warnings if "seal" in each]


# -- jobs of other programs ------------------------------------------------------------------------------------------


def foreign(record: JobRecord, **changes: Any) -> JobRecord:
    """The record as of a job that another program submitted."""
    options = {"foreign": True, **changes.pop("options", {})}
    return replace(record, spec=replace(record.spec, **{"platform": "aml", "options": options, **changes}))


def test_a_job_of_another_program_brings_its_command_its_size_and_its_variables(context: JobContext) -> None:
    set_current(context, values={"timeout": "1m"})
    old = foreign(send(context, "python", "main.py"), gpus_per_node=2, procs_per_node=2, env={"A": "1"}, timeout_s=90)
    done = resubmit(context, old)
    new = done.record.spec
    assert (new.argv, new.procs_per_node, new.env["A"], new.timeout_s) == (("python", "main.py"), 2, "1", 90)
    assert done.warnings[0] == (
        f"blobsync did not submit {old.run_id}: its command, its size and its variables are taken, all else is that of"
        " cluster eu"
    )
    assert resubmit(context, old, num_gpu=1).record.spec.procs_per_node == 1
    # Without a limit of its own, that of the cluster file.
    plain = foreign(old, timeout_s=None, options={"unread": ["its environment", "its outputs"]})
    again = resubmit(context, plain)
    assert again.record.spec.timeout_s == 60
    assert again.warnings[0].endswith("cluster eu; not read: its environment, its outputs")


def test_a_job_of_another_program_that_names_its_own_inputs_is_not_submitted_again(context: JobContext) -> None:
    old = send(context, "python", "main.py", "${{inputs.data}}")
    with pytest.raises(JobError, match=rf"the command of {old.run_id} names inputs\.data, which only that job has"):
        resubmit(context, foreign(old))


def test_a_job_of_ours_has_no_note_of_another_program(context: JobContext) -> None:
    assert not any("did not submit" in each for each in resubmit(context, send(context, "true")).warnings)


# -- what else moves -------------------------------------------------------------------------------------------------


def test_an_elastic_job_that_moves_keeps_its_nodes_and_its_bounds(context: JobContext) -> None:
    old = send(context, "true")
    elastic = replace(old.spec, platform="slurm", nodes=2, min_nodes=1, max_nodes=3, gpus_per_node=1)
    new = resubmit(context, replace(old, spec=elastic), to="us").record.spec
    assert (new.nodes, new.min_nodes, new.max_nodes) == (2, 1, 3)
    without = replace(elastic, platform="kubernetes", gpus_per_node=0)
    assert resubmit(context, replace(old, spec=without), to="us").record.spec.gpus_per_node == 0


def test_a_job_file_of_batch_ai_is_translated_for_where_its_job_moves(context: JobContext, tmp_path: Path) -> None:
    mpi = {"commandLine": "./a", "processCount": 4}
    given = {"nodeCount": 2, "stdOutErrPathPrefix": "/logs", "customMpiSettings": mpi}
    written = tmp_path / "job.json"
    written.write_text(json.dumps({"properties": {**given, "secrets": [{"name": "PIN", "value": "sentinel"}]}}))
    recorded = record_job(read_job_file(written, None, {}))
    (tmp_path / "aux_data/aml/us.yaml").write_text("platform: local\nconfig_param: {}\nenv: {PIN: x, A_TOKEN: x}\n")
    old = send(context, "true")
    done = resubmit(context, replace(old, spec=replace(old.spec, options={"job_file": recorded})), to="us")
    new = done.record.spec
    assert (new.argv, new.nodes, new.secret_env) == (("bash", "-c", "./a"), 1, ("A_TOKEN", "PIN"))
    assert tuple(new.options["wrapper"])[:3] == ("mpirun", "-n", "4") and new.options["job_file"] == recorded
    assert any("nodeCount: this machine is one node" in each for each in done.warnings)


def test_a_job_that_waits_for_its_user_does_so_where_it_moves(context: JobContext) -> None:
    old = send(context, "true")
    held = replace(old.spec, options={**old.spec.options, "hold": 3600}, argv=("ssh",))
    done = resubmit(context, replace(old, spec=held), to="us")
    assert done.record.spec.hold == 3600
    assert any(each.startswith("it waits 1h for you once it runs: ") for each in done.warnings)


@pytest.mark.parametrize(
    ("platform", "image", "hold", "is_said"),
    [
        ("local", "img", 3600, True),
        ("slurm", "img", 3600, True),
        ("local", None, 3600, False),
        ("local", "img", 0, False),
        ("kubernetes", "img", 3600, False),
    ],
)
def test_shells_beside_an_image_are_reported(
    context: JobContext, platform: str, image: str | None, hold: int, *, is_said: bool
) -> None:
    set_current(context, platform=platform)
    old = send(context, "true")
    spec = replace(old.spec, platform=platform, image=image, options={**old.spec.options, "hold": hold})
    warnings = resubmit(context, replace(old, spec=spec)).warnings
    assert any("its shells are on the node itself" in each for each in warnings) is is_said
    assert any(each.startswith("it waits 1h for you") for each in warnings) is bool(hold)


def test_the_size_is_noted_before_a_job_is_submitted_again(context: JobContext) -> None:
    old, notes = send(context, "true"), list[str]()
    context.note = notes.append
    resubmit(context, old)
    assert notes and notes[0].startswith("eu (local): 1 node")
