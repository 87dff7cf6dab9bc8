"""Handing over a job: its id, its rights, and what a job that moves to another cluster keeps."""

from __future__ import annotations

import base64
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from blobsync.base.errors import ConfigError, SubmissionUnknownError, UsageError
from blobsync.base.locations import SasToken, Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobs.backends.base import Outcome, Plan
from blobsync.jobs.board import Board
from blobsync.jobs.code_choice import CodeChoice
from blobsync.jobs.describe import SubmitRequest
from blobsync.jobs.spec import CodeRef, Secrets
from blobsync.jobs.submit import Submitted, new_run_id, plan_job, resubmit, submit
from tests.fakes.backend import FakeBackend

KEYED = StorageAccount(
    "eu.yaml", "acct", "box", "https://acct.blob.core.windows.net", Secret(base64.b64encode(b"k" * 64).decode())
)
CODE = CodeRef(str(KEYED.container), "code.zip.d/x.zip", "x")


class LeavesAfter(FakeBackend):
    """Does not answer any more once it has taken so many jobs."""

    left = 99

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        outcome = super().submit(plan, secrets)
        self.left -= 1
        self.gone = self.left <= 0
        return outcome


@pytest.fixture
def eu() -> LeavesAfter:
    return LeavesAfter()


@pytest.fixture
def us() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def board(tmp_path: Path, eu: FakeBackend, us: FakeBackend) -> Board:
    files = tmp_path / "aux_data" / "aml"
    files.mkdir(parents=True)
    (files / "us.yaml").write_text("platform: local\ngpu_per_node: 8\n")
    (files / "nowhere.yaml").write_text("gpu_per_node: 8\n")
    return Board(tmp_path, os.environ, Cluster("eu", "eu.yaml", tmp_path), backends={"eu": eu, "us": us})


def send(board: Board, *argv: str, code: CodeRef | None = None) -> Submitted:
    assert board.current
    return submit(board, board.current, SubmitRequest(argv), lambda _: CodeChoice(code))


def test_an_id_says_who_and_when_and_is_short_enough_for_every_service() -> None:
    assert re.fullmatch(r"a{24}_12_[0-9a-f]{8}", new_run_id({"USER": "A" * 30}, 12.9))
    assert new_run_id({"USER": "../"}, 1.0).startswith("job_1_")


def test_a_wrong_wish_is_told_before_any_code_is_looked_at(board: Board) -> None:
    assert board.current
    asked: list[Cluster] = []

    def choose(cluster: Cluster) -> CodeChoice:
        asked.append(cluster)
        return CodeChoice(None)

    with pytest.raises(UsageError, match="no command"):
        plan_job(board, board.current, SubmitRequest(()), choose)
    assert asked == []


def test_a_lost_answer_names_the_command_that_looks_for_the_job(board: Board) -> None:
    with pytest.raises(SubmissionUnknownError) as caught:
        send(board, "vanish")
    (record,) = board.history.recent()
    assert caught.value.hint and caught.value.hint.startswith(f"blobsync q {record.run_id.split('_')[-1]} looks")


def test_a_job_goes_to_the_cluster_that_was_named(board: Board, eu: FakeBackend, us: FakeBackend) -> None:
    old = send(board, "sleep", "9").record
    new = resubmit(board, old, to="us").record
    assert (new.cluster, list(us.jobs), list(eu.jobs)) == ("us", [new.run_id], [old.run_id])
    assert new.spec.options["in_place"] and new.successor_of == old.run_id


def test_a_job_does_not_move_to_where_no_platform_is_named(board: Board, eu: FakeBackend) -> None:
    old = send(board, "sleep", "9").record
    with pytest.raises(ConfigError, match="is missing"):
        resubmit(board, old, to="nowhere")
    assert list(eu.jobs) == [old.run_id] and not eu.jobs[old.run_id].state.is_final


def test_an_old_job_that_cannot_be_cancelled_is_told(board: Board, eu: LeavesAfter) -> None:
    old = send(board, "sleep", "9").record
    eu.left = 1
    submitted = resubmit(board, old)
    assert [
        text for text in submitted.warnings if text.startswith(f"the old job {old.run_id} could not be cancelled: ")
    ]
    assert submitted.record.run_id in eu.jobs


@pytest.mark.parametrize(
    ("old", "several", "asked", "size"),
    [
        ({"platform": "aml", "procs_per_node": 1, "gpus_per_node": 2}, True, None, (1, 1, 2)),
        ({"platform": "aml", "procs_per_node": 1, "gpus_per_node": 4}, True, None, (1, 1, 4)),
        ({"platform": "aml", "procs_per_node": 2, "gpus_per_node": 2}, False, None, (1, 2, 2)),
        # One process with one GPU does not tell; the cluster does.
        ({"platform": "aml", "procs_per_node": 1, "gpus_per_node": 1}, False, 4, (1, 1, 4)),
        # On Slurm a partition brings GPUs that nobody asked for by number.
        ({"platform": "slurm", "procs_per_node": 1, "gpus_per_node": 0}, True, None, (1, 1, 1)),
        ({"platform": "aml", "procs_per_node": 1, "gpus_per_node": 0}, True, None, (1, 1, 0)),
    ],
)
def test_a_job_that_moves_keeps_its_size(
    board: Board, old: dict[str, Any], asked: int | None, size: tuple[int, int, int], *, several: bool
) -> None:
    assert board.current
    there = send(board, "sleep", "9").record
    there = replace(there, spec=replace(there.spec, **old))
    board.current = replace(board.current, gpu_per_node=8, multi_process=several)
    new = resubmit(board, there, to="eu", num_gpu=asked).record.spec
    assert (new.nodes, new.procs_per_node, new.gpus_per_node) == size


def until(sas: str) -> float:
    """The hours that it is good for from now."""
    ends = time.strptime(parse_qs(sas)["se"][0], "%Y-%m-%dT%H:%M:%SZ")
    return (time.mktime(ends) - time.timezone - time.time()) / 3600


def test_a_job_that_moves_may_read_its_code_where_it_lies(board: Board, us: FakeBackend) -> None:
    assert board.current
    board.current = replace(board.current, folders=(FolderEntry("data", KEYED, "store"),))
    old = send(board, "sleep", "9", code=CODE).record
    old = replace(old, spec=replace(old.spec, folders=()))
    new = resubmit(board, old, to="us").record
    sas = us.secrets[new.run_id].sas
    assert list(sas) == [CODE.container] and parse_qs(sas[CODE.container])["sp"] == ["rl"]
    # As long as a job can last.
    assert until(sas[CODE.container]) > 24 * 6


def test_a_sas_of_the_users_own_need_not_last_as_long_as_a_job_can(board: Board, eu: FakeBackend) -> None:
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2 * 3600))
    own = f"sv=2022-11-02&sr=c&sp=racwdl&se={ends}&sig=abc"
    account = replace(KEYED, account_key=None, sas_token=SasToken(own))
    assert board.current
    board.current = replace(board.current, folders=(FolderEntry("data", account, "store"),))
    record = send(board, "sleep", "9", code=CODE).record
    assert eu.secrets[record.run_id].sas == {CODE.container: own}
    assert "sig=" not in record.spec.to_json()
