from __future__ import annotations

from collections.abc import Mapping

import pytest

from blobsync.jobspec.spec import FolderLink
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.ranks import (
    NotReadyError,
    Ranks,
    master_address,
    node_rank_from_launcher,
    rank_variables,
    ranks_from_launcher,
    ranks_of_node,
)
from tests.fakes.jobs import make_spec

TWO_BY_TWO = make_spec("true", nodes=2, procs_per_node=2)


@pytest.mark.parametrize(
    ("environ", "rank", "local", "node"),
    [
        # srun; below mpirun Slurm's variables are those of its daemons.
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}, 3, 1, 1),
        ({"SLURM_PROCID": "1", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2, 0, 1),
        ({"PMI_RANK": "1", "MPI_LOCALRANKID": "1"}, 1, 1, 0),
        ({"RANK": "2", "LOCAL_RANK": "0", "NODE_RANK": "1"}, 2, 0, 1),
        # Only the rank: nodes are filled in order.
        ({"RANK": "3"}, 3, 1, 1),
    ],
)
def test_each_launcher_tells_a_process_who_it_is(environ: Mapping[str, str], rank: int, local: int, node: int) -> None:
    assert ranks_from_launcher(TWO_BY_TWO, environ) == Ranks(rank, local, 4, 2, node)


def test_one_process_needs_no_launcher_and_several_do() -> None:
    assert ranks_from_launcher(make_spec("true"), {}) == Ranks(0, 0, 1, 1, 0)
    assert node_rank_from_launcher(make_spec("true", procs_per_node=4), {}) == 0
    with pytest.raises(NotReadyError, match=r"4 processes, but the rank of this one is unknown"):
        ranks_from_launcher(TWO_BY_TWO, {})
    with pytest.raises(NotReadyError, match=r"2 nodes, but the rank of this one is unknown"):
        node_rank_from_launcher(TWO_BY_TWO, {})
    assert node_rank_from_launcher(TWO_BY_TWO, {"SLURM_NODEID": "", "NODE_RANK": "1"}) == 1


@pytest.mark.parametrize("value", ["", "-1", "1.0", "one", "\u0661"])
def test_a_rank_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(NotReadyError, match=r"RANK is .* which is not a number"):
        ranks_from_launcher(TWO_BY_TWO, {"RANK": value})


@pytest.mark.parametrize(
    ("environ", "master"),
    [
        ({"MASTER_ADDR": "a", "AZ_BATCH_MASTER_NODE": "b:1"}, "a"),
        ({"AZ_BATCHAI_JOB_MASTER_NODE_IP": "10.0.0.4"}, "10.0.0.4"),
        ({"AZ_BATCH_MASTER_NODE": "b:6105"}, "b"),
        ({"AZ_BATCH_MASTER_NODE": "b"}, "b"),
    ],
)
def test_where_the_master_is(environ: Mapping[str, str], master: str) -> None:
    assert master_address(TWO_BY_TWO, environ) == master == master_address(make_spec("true"), environ)


def test_a_node_alone_is_its_own_master_and_one_of_several_never_guesses() -> None:
    assert master_address(make_spec("true", procs_per_node=8), {}) == "127.0.0.1"
    with pytest.raises(NotReadyError, match="2 nodes, but the address of the master is unknown") as error:
        master_address(TWO_BY_TWO, {"MASTER_ADDR": ""})
    assert "MASTER_ADDR" in str(error.value.hint)


def test_all_processes_of_a_job_work_out_one_port_from_its_id() -> None:
    told = [
        rank_variables(TWO_BY_TWO, ranks, {"MASTER_ADDR": "m"})
        for node in (0, 1)
        for ranks in ranks_of_node(TWO_BY_TWO, node)
    ]
    assert [each["RANK"] for each in told] == ["0", "1", "2", "3"]
    assert [each["NODE_RANK"] for each in told] == ["0", "0", "1", "1"]
    assert len({each["MASTER_PORT"] for each in told}) == 1 and 20_000 <= int(told[0]["MASTER_PORT"]) < 40_000
    other = make_spec("true", nodes=2, procs_per_node=2, run_id="me_2_0badcafe")
    assert (
        rank_variables(other, ranks_of_node(other, 0)[0], {"MASTER_ADDR": "m"})["MASTER_PORT"] != told[0]["MASTER_PORT"]
    )
    given = rank_variables(TWO_BY_TWO, ranks_of_node(TWO_BY_TWO, 0)[0], {"MASTER_ADDR": "m", "MASTER_PORT": "1"})
    assert given["AZ_BATCH_MASTER_NODE"] == "m:1"


@pytest.mark.parametrize(
    ("platform", "folder", "given", "home"),
    [
        ("slurm", "output", {}, "/r/output/torch_home"),
        ("slurm", "output", {"TORCH_HOME": "/mine"}, "/mine"),
        ("slurm", "outputs", {}, None),
        ("local", "output", {}, None),
    ],
)
def test_weights_are_kept_in_the_output_folder_as_act_did(
    platform: str, folder: str, given: Mapping[str, str], home: str | None
) -> None:
    entry = FolderLink(folder, "https://a/b", "p", "link", source="/s")
    spec = make_spec(platform=platform, folders=(entry,), env=given)
    words = parse_arguments(["exec", "--job", "/j", "--run-dir", "/d", "--root", "/r"])
    assert NodeJob(spec, {}, words, {}, 0).user_environment(Ranks(0, 0, 1, 1, 0)).get("TORCH_HOME") == home


@pytest.mark.parametrize(("given", "told"), [({}, "-gl"), ({"HWLOC_COMPONENTS": "x86"}, "x86")])
def test_hwloc_does_not_ask_other_programs_whether_they_are_x_servers(given: Mapping[str, str], told: str) -> None:
    words = parse_arguments(["exec", "--job", "/j", "--run-dir", "/d", "--root", "/r"])
    environment = NodeJob(make_spec(env=given), {}, words, {}, 0).user_environment(Ranks(0, 0, 1, 1, 0))
    assert environment["HWLOC_COMPONENTS"] == told
