"""Elastic jobs: their bounds, their size, and the environment of their programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blobsync.base.errors import BlobsyncError, ConfigError, UsageError
from blobsync.jobspec.spec import JobSpec, State
from blobsync.jobspec.topology import Bounds, JobShape, Size, bounds_of, demand_scalable, find_bounds, find_shape
from blobsync.node.elastic import (
    REJOIN_SECONDS,
    FirstNodeState,
    Next,
    after_end,
    final_code,
    membership_port,
    was_killed,
)
from blobsync.node.job import elastic_variables
from blobsync.node.ranks import NotReadyError, Ranks, master_address, ranks_of_node
from tests.fakes.jobs import make_spec

FILE = "aux_data/aml/aml.yaml"
ELASTIC = make_spec("torchrun", "train.py", platform="slurm", min_nodes=1, max_nodes=4)


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (("local",), None),
        (("local", "1:4"), Bounds(1, 4)),
        (("kubernetes", "2:2"), Bounds(2, 2)),
        (("slurm", "", 1, 3, FILE), Bounds(1, 3)),
        (("itp", "", 2, 8, FILE), Bounds(2, 8)),
        # The option replaces all of the file's values.
        (("slurm", "1:4", 2, 3, FILE), Bounds(1, 4)),
        (("slurm", "1:4", 2, None, FILE), Bounds(1, 4)),
        (("slurm", "1:65536"), Bounds(1, 65_536)),
    ],
)
def test_the_pair_is_one_rule_on_every_platform(given: Any, bounds: Bounds | None) -> None:
    assert find_bounds(*given) == bounds


@pytest.mark.parametrize(
    ("given", "kind", "complaint"),
    [
        *(
            (("local", text), UsageError, "is not MIN:MAX")
            for text in ("4", "1-4", "1:", ":4", "a:b", "-1:4", "1:4:5", " 1:4", "1:4\n", "\u0661:4", "1:9999999999")
        ),
        (("local", "0:4"), UsageError, "--elastic 0:4: an elastic job has at least one node"),
        (("local", "4:1"), UsageError, "the smallest number of nodes, 4, is larger than the largest, 1"),
        (("slurm", "1:65537"), UsageError, "at most 65,536 nodes"),
        (("aml", "1:4"), UsageError, "--elastic 1:4: a job on aml has a fixed number of nodes"),
        (("aml", "", 1, 4, FILE), ConfigError, "a job on aml has a fixed number of nodes"),
        (("slurm", "", 1, None, FILE), ConfigError, "min_nodes: needs max_nodes beside it"),
        (("itp", "", None, 1, FILE), ConfigError, "max_nodes: needs min_nodes beside it"),
        (("local", "", 0, 4, FILE), ConfigError, "an elastic job has at least one node"),
        (("local", "", 5, 4, FILE), ConfigError, "5, is larger than the largest, 4"),
    ],
)
def test_what_is_no_pair_is_refused_in_one_sentence(given: Any, kind: type[BlobsyncError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        find_bounds(*given)
    assert complaint in caught.value.message and caught.value.exit_code == 2


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_job_may_be_asked_to_have_as_many_nodes_as_its_bounds_say(nodes: int) -> None:
    for state in (State.QUEUED, State.PREPARING, State.RUNNING):
        demand_scalable(ELASTIC, state, nodes)


NARROW = replace(ELASTIC, nodes=2, min_nodes=2, max_nodes=3)


@pytest.mark.parametrize(
    ("spec", "state", "nodes", "complaint", "hint"),
    [
        (ELASTIC, State.RUNNING, 0, "may have 1 to 4 nodes, not 0", "submit it with --elastic 1:4"),
        (ELASTIC, State.RUNNING, 5, "may have 1 to 4 nodes, not 5", "submit it with --elastic 1:5"),
        (NARROW, State.RUNNING, 1, "may have 2 to 3 nodes, not 1", "submit it with --elastic 1:3"),
        (ELASTIC, State.COMPLETED, 2, "has ended: Completed", f"blobsync resubmit {ELASTIC.run_id}"),
        (make_spec("x"), State.RUNNING, 2, "was not submitted with --elastic", "blobsync submit --elastic 1:4 --"),
        (replace(ELASTIC, platform="itp"), State.RUNNING, 2, "its platform chooses its size", ""),
    ],
)
def test_a_job_is_not_asked_for_what_it_cannot_have(
    spec: JobSpec, state: State, nodes: int, complaint: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        demand_scalable(spec, state, nodes)
    assert str(caught.value.hint).startswith(hint)


def test_a_service_keeps_the_bounds_for_itself() -> None:
    assert bounds_of(ELASTIC) == Bounds(1, 4) and ELASTIC.has_many_logs
    on_itp = replace(ELASTIC, platform="itp")
    assert bounds_of(on_itp) is None and not on_itp.is_elastic and not on_itp.has_many_logs


@pytest.mark.parametrize(
    ("size", "nodes", "gpus", "workers"),
    [
        (Size("local"), 1, 1, 1),
        (Size("local", 0), 1, 0, 1),
        (Size("local", 4, gpu_per_node=0), 1, 0, 4),
        (Size("local", 2, nodes=2), 2, 1, 1),
        (Size("slurm"), 1, 0, 1),
        (Size("slurm", gpu_per_node=8), 1, 8, 8),
        (Size("slurm", 16, gpu_per_node=8), 2, 8, 8),
        (Size("slurm", nodes=3, gpu_per_node=8), 3, 8, 8),
        (Size("slurm", gpu_per_node=8, multi_process=False), 1, 8, 1),
        (Size("slurm", gpu_per_node=8, processes_per_node=2), 1, 8, 2),
        # The file's number of nodes is limited to the bounds.
        (Size("slurm", gpu_per_node=1, file_nodes=9), 4, 1, 1),
        (Size("kubernetes", gpu_per_node=4), 1, 4, 4),
    ],
)
def test_an_elastic_job_begins_small_and_runs_its_command_once_on_each_node(
    size: Size, nodes: int, gpus: int, workers: int
) -> None:
    assert find_shape(size._replace(bounds=Bounds(1, 4))) == JobShape(nodes, 1, gpus, workers)


@pytest.mark.parametrize("size", [Size("local", nodes=5), Size("slurm", 40, gpu_per_node=8), Size("slurm", nodes=1)])
def test_it_does_not_begin_outside_its_bounds(size: Size) -> None:
    with pytest.raises(UsageError, match=r"may have 2 to 4 nodes, and cannot begin with \d"):
        find_shape(size._replace(bounds=Bounds(2, 4)))


def test_the_foreground_is_one_node_whatever_the_file_says() -> None:
    assert find_shape(Size("slurm", gpu_per_node=2, here=True, bounds=Bounds(1, 4))) == JobShape(1, 2, 2)


# -- variables of its programs ----------------------------------------------------------------------------------

AT = {"MASTER_ADDR": "job-0.job", "MASTER_PORT": "29400"}


def told(given: dict[str, str], node: int = 0, **changes: Any) -> dict[str, str]:
    spec = replace(ELASTIC, **changes)
    return elastic_variables(spec, ranks_of_node(spec, node)[0], {**AT, **given}, given)


def test_torchrun_gets_all_it_needs_without_a_word_on_its_command_line() -> None:
    assert told({}, workers_per_node=8) == {
        "BLOBSYNC_MIN_NODES": "1",
        "BLOBSYNC_MAX_NODES": "4",
        "PET_NNODES": "1:4",
        "PET_NPROC_PER_NODE": "8",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "job-0.job:29400",
        "PET_RDZV_ID": ELASTIC.run_id,
        "PET_RDZV_CONF": "is_host=1,last_call_timeout=3,join_timeout=300",
        "PET_MAX_RESTARTS": "100",
        "PET_MONITOR_INTERVAL": "0.5",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    assert told({}, node=3)["PET_RDZV_CONF"].startswith("is_host=0,")
    assert told({"MASTER_ADDR": "fd00::1"})["PET_RDZV_ENDPOINT"] == "[fd00::1]:29400"


def test_what_the_user_has_set_stays() -> None:
    given = {"PET_NNODES": "2", "PET_MAX_RESTARTS": "3", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}
    assert not given.keys() & told(given).keys()
    # is_host is set with it, unless the user sets it, or has another kind of rendezvous.
    assert told({"PET_RDZV_CONF": "join_timeout=9"})["PET_RDZV_CONF"] == "is_host=1,join_timeout=9"
    assert told({"PET_RDZV_CONF": "is_host=0"})["PET_RDZV_CONF"] == "is_host=0"
    assert told({"PET_RDZV_CONF": "a=1", "PET_RDZV_BACKEND": "etcd-v2"})["PET_RDZV_CONF"] == "a=1"
    # The bounds are the job's, not the shell's.
    assert told({"BLOBSYNC_MIN_NODES": "7"})["BLOBSYNC_MIN_NODES"] == "1"


def test_every_rank_is_below_the_size_of_the_world() -> None:
    assert ranks_of_node(ELASTIC, 3) == (Ranks(3, 0, 4, 1, 3),)
    with pytest.raises(NotReadyError, match="4 nodes, but the address of the master is unknown"):
        master_address(ELASTIC, {})


@pytest.mark.parametrize(("rendezvous", "meeting"), [(20_000, 15_000), (39_999, 34_999), (29_400, 24_400), (5, 5_005)])
def test_nodes_meet_beside_the_rendezvous(rendezvous: int, meeting: int) -> None:
    assert membership_port(rendezvous) == meeting


# -- when the command ends on a node other than 0 ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "news", "waited", "then"),
    [
        (0, FirstNodeState("a"), 0.0, Next.END),
        (1, FirstNodeState(over=0), 0.0, Next.END),
        (1, FirstNodeState(over=3), 0.0, Next.END),
        # Node 0 is lost: wait for it, and restart with it.
        (1, FirstNodeState(), 0.0, Next.WAIT),
        (1, FirstNodeState(), REJOIN_SECONDS - 1, Next.WAIT),
        (1, FirstNodeState(), REJOIN_SECONDS, Next.END),
        (1, FirstNodeState("b"), 0.0, Next.AGAIN),
        (1, FirstNodeState("b"), REJOIN_SECONDS, Next.AGAIN),
        # Node 0 seems to run: it is this command's own failure, once its loss would have been noticed.
        (1, FirstNodeState("a"), 0.0, Next.WAIT),
        (1, FirstNodeState("a"), 11.0, Next.WAIT),
        (1, FirstNodeState("a"), 12.0, Next.END),
    ],
)
def test_a_command_begins_again_when_node_0_was_lost_and_not_when_it_failed(
    code: int, news: FirstNodeState, waited: float, then: Next
) -> None:
    assert after_end(code, "a", news, waited) is then


@pytest.mark.parametrize(
    ("code", "news", "final"),
    [
        (1, FirstNodeState(over=0), 0),
        (1, FirstNodeState(over=3), 1),
        (1, FirstNodeState(), 1),
        (0, FirstNodeState("a"), 0),
        (None, FirstNodeState(over=0), 0),
        (None, FirstNodeState(over=3), 3),
        (None, FirstNodeState(), 143),
    ],
)
def test_a_node_that_ends_because_node_0_succeeded_has_not_failed(
    code: int | None, news: FirstNodeState, final: int
) -> None:
    assert final_code(code, news) == final


def test_only_a_signal_kills() -> None:
    assert was_killed(137) and was_killed(143)
    assert not was_killed(1) and not was_killed(0) and not was_killed(128)
