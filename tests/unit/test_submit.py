"""Submitting and submitting again: in which order, with which rights, and what a job keeps when it moves."""

from __future__ import annotations

import getpass
import os
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError, CredentialError, SubmissionUnknownError, UsageError
from blobsync.base.locations import SasToken, Secret
from blobsync.config.model import Cluster, CodeEntry, StorageAccount
from blobsync.jobs.backends.base import Outcome, Refused
from blobsync.jobs.board import Board
from blobsync.jobs.code_choice import CodeChoice
from blobsync.jobs.describe import SubmitRequest
from blobsync.jobs.history import JobRecord
from blobsync.jobs.spec import CodeRef, JobRef
from blobsync.jobs.submit import new_run_id, plan_job, resubmit, submit
from tests.fakes.backend import FakeBackend

KEY = Secret("a2V5")


def account(name: str, *, key: Secret | None = KEY, sas: SasToken | None = None) -> StorageAccount:
    endpoint = f"https://{name}.blob.core.windows.net"
    return StorageAccount(f"{name}.yaml", name, "box", endpoint, account_key=key, sas_token=sas)


@pytest.fixture
def fake() -> FakeBackend:
    return FakeBackend()


def board_of(tmp_path: Path, fake: FakeBackend, *, current: Cluster | None = None, other: str = "") -> Board:
    """A board with cluster ``eu``, and one called ``us`` where ``other`` is its file."""
    if other:
        (tmp_path / "aux_data" / "aml").mkdir(parents=True)
        (tmp_path / "aux_data" / "aml" / "us.yaml").write_text(other)
    cluster = current or Cluster("eu", "eu.yaml", tmp_path)
    return Board(tmp_path, os.environ, cluster, backends={"eu": fake, "us": fake})


def no_code(cluster: Cluster) -> CodeChoice:
    return CodeChoice(None)


def send(board: Board, *argv: str) -> JobRecord:
    assert board.current
    return submit(board, board.current, SubmitRequest(argv), no_code).record


@pytest.mark.parametrize(
    ("user", "plain"),
    [
        ("ann", "ann"),
        ("Ann.Lee_X-", "ann-lee-x"),
        ("a" * 30, "a" * 24),
        ("***", "job"),
    ],
)
def test_a_run_id_is_the_user_the_time_and_eight_digits(user: str, plain: str) -> None:
    assert re.fullmatch(rf"{plain}_1700000000_[0-9a-f]{{8}}", new_run_id({"USER": user}, 1_700_000_000.9))


def test_a_run_id_without_a_user_or_a_time_has_those_of_this_moment() -> None:
    before = int(time.time())
    user, moment, _ = new_run_id({}).split("_")
    assert user == re.sub(r"[^a-z0-9-]+", "-", getpass.getuser().lower()).strip("-")[:24]
    assert before <= int(moment) <= time.time()


def test_a_wish_that_is_wrong_is_told_before_any_code_is_looked_at(tmp_path: Path, fake: FakeBackend) -> None:
    board = board_of(tmp_path, fake)
    asked: list[str] = []

    def choose(cluster: Cluster) -> CodeChoice:
        asked.append(cluster.name)
        return CodeChoice(None)

    assert board.current
    with pytest.raises(UsageError):
        plan_job(board, board.current, SubmitRequest(()), choose)
    nowhere = replace(board.current, platform_given=False)
    with pytest.raises(ConfigError, match="platform"):
        plan_job(board, nowhere, SubmitRequest(("true",)), choose)
    assert asked == []


def test_a_submission_whose_answer_got_lost_names_the_next_command(tmp_path: Path, fake: FakeBackend) -> None:
    board = board_of(tmp_path, fake)
    fake.lost = True
    with pytest.raises(SubmissionUnknownError) as unknown:
        send(board, "sleep", "9")
    (record,) = board.history.recent()
    assert (unknown.value.hint or "").startswith(f"blobsync q {record.run_id[-8:]} looks for it")


def test_a_job_moves_to_the_cluster_that_is_named(tmp_path: Path, fake: FakeBackend) -> None:
    board = board_of(tmp_path, fake, other="platform: local\nconfig_param: {}\n")
    old = send(board, "sleep", "9")
    # On the same platform, too, another cluster's nodes and folders count.
    spec = replace(old.spec, nodes=3, procs_per_node=2, gpus_per_node=2)
    new = resubmit(board, replace(old, spec=spec), to="us").record
    assert new.cluster == new.spec.cluster == "us"
    assert (new.spec.nodes, new.spec.procs_per_node, new.spec.gpus_per_node) == (1, 6, 6)


def test_a_job_does_not_move_to_where_nobody_says_where_jobs_run(tmp_path: Path, fake: FakeBackend) -> None:
    board = board_of(tmp_path, fake, other="config_param: {}\naml_config: x.json\n")
    old = send(board, "sleep", "9")
    with pytest.raises(ConfigError, match="platform"):
        resubmit(board, old, to="us")
    assert len(fake.jobs) == 1


@pytest.mark.parametrize(
    ("spec", "asked", "size"),
    [
        pytest.param({"gpus_per_node": 2}, None, (1, 1, 2), id="one process with two GPUs"),
        pytest.param({"gpus_per_node": 2, "rule": True}, None, (1, 1, 2), id="the same where one for each is the rule"),
        pytest.param({"nodes": 2, "gpus_per_node": 1}, None, (1, 2, 2), id="two processes"),
        pytest.param({"gpus_per_node": 4}, None, (1, 1, 4), id="one process with four"),
        pytest.param({"gpus_per_node": 1}, 4, (1, 1, 4), id="one of one, to four, where one process is the rule"),
        pytest.param({"nodes": 2, "gpus_per_node": 1}, 4, (1, 4, 4), id="two of two, to four"),
        pytest.param({"gpus_per_node": 0}, None, (1, 1, 0), id="no GPU"),
        pytest.param({"platform": "slurm", "gpus_per_node": 0}, None, (1, 1, 1), id="Slurm: a partition brings them"),
    ],
)
def test_a_job_that_moves_keeps_its_shape_as_far_as_it_tells(
    tmp_path: Path, fake: FakeBackend, spec: dict[str, object], asked: int | None, size: tuple[int, int, int]
) -> None:
    rule = spec.get("rule", False)
    spec = {name: value for name, value in spec.items() if name != "rule"}
    current = Cluster("eu", "eu.yaml", tmp_path, multi_process=bool(rule), gpu_per_node=8)
    board = board_of(tmp_path, fake, current=current)
    old = send(board, "sleep", "9")
    there: dict[str, object] = {"platform": "aml", "nodes": 1, "procs_per_node": 1, **spec}
    moved = resubmit(board, replace(old, spec=replace(old.spec, **there)), to="eu", num_gpu=asked).record.spec  # type: ignore[arg-type]
    assert (moved.nodes, moved.procs_per_node, moved.gpus_per_node) == size


class Unstoppable(FakeBackend):
    def cancel(self, ref: JobRef) -> Outcome:
        return Refused(CredentialError("the login has ended"))


def test_an_old_job_that_cannot_be_stopped_is_said(tmp_path: Path) -> None:
    board = board_of(tmp_path, Unstoppable())
    old = send(board, "sleep", "9")
    submitted = resubmit(board, old)
    (warning,) = submitted.warnings
    assert warning.startswith(f"the old job {old.run_id} could not be cancelled: ")
    assert "the login has ended" in warning


def with_code(record: JobRecord, where: StorageAccount) -> JobRecord:
    code = CodeRef(str(where.container), "code.zip.d/x.zip", "x")
    return replace(record, spec=replace(record.spec, code=code))


def test_code_of_the_cluster_that_a_job_comes_from_is_read_with_that_clusters_right(
    tmp_path: Path, fake: FakeBackend
) -> None:
    (tmp_path / "aux_data" / "configs").mkdir(parents=True)
    source = account("euaccount")
    current = Cluster("eu", "eu.yaml", tmp_path, code=CodeEntry(source, "code.zip"))
    board = board_of(tmp_path, fake, current=current, other="platform: local\nconfig_param: {}\n")
    old = with_code(send(board, "sleep", "9"), source)
    new = resubmit(board, old, to="us").record
    assert SasToken.parse(fake.secrets[new.run_id].sas[str(source.container)]).permissions == "rl"


def ends_in(hours: float) -> SasToken:
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    return SasToken.parse(f"sv=2022-11-02&sr=c&sp=racwdl&se={moment:%Y-%m-%dT%H:%M:%SZ}&sig=x")


@pytest.mark.parametrize("hours", [2, 24 * 30])
def test_how_long_a_sas_of_the_users_lasts_is_their_choice(tmp_path: Path, fake: FakeBackend, hours: float) -> None:
    own = account("euaccount", key=None, sas=ends_in(hours))
    current = Cluster("eu", "eu.yaml", tmp_path, code=CodeEntry(own, "code.zip"))
    board = board_of(tmp_path, fake, current=current)
    new = resubmit(board, with_code(send(board, "sleep", "9"), own)).record
    assert own.sas_token is not None
    assert fake.secrets[new.run_id].sas[str(own.container)] == own.sas_token.reveal()


def test_a_sas_of_the_users_that_has_ended_stops_the_submission(tmp_path: Path, fake: FakeBackend) -> None:
    own = account("euaccount", key=None, sas=ends_in(-1))
    current = Cluster("eu", "eu.yaml", tmp_path, code=CodeEntry(own, "code.zip"))
    board = board_of(tmp_path, fake, current=current)
    old = with_code(send(board, "sleep", "9"), own)
    with pytest.raises(CredentialError):
        resubmit(board, old)
    assert len(fake.jobs) == 1


def test_a_sas_that_is_made_for_a_job_lasts_as_long_as_jobs_may(tmp_path: Path, fake: FakeBackend) -> None:
    own = account("euaccount")
    current = Cluster("eu", "eu.yaml", tmp_path, code=CodeEntry(own, "code.zip"))
    board = board_of(tmp_path, fake, current=current)
    new = resubmit(board, with_code(send(board, "sleep", "9"), own)).record
    ends = SasToken.parse(fake.secrets[new.run_id].sas[str(own.container)]).expires_at
    assert ends is not None
    assert ends - datetime.now(timezone.utc) > timedelta(days=6)
