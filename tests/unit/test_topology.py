"""Numbers of nodes, processes and GPUs: a table of cases, checked for every backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.protocol import Surroundings
from blobsync.backends.slurm.script import build_script
from blobsync.base.errors import UsageError
from blobsync.config.model import Cluster
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import SERVICES
from blobsync.jobspec.topology import JobShape, Size, find_shape
from tests.fakes.aml_configs import PLAIN, ask
from tests.source import ROOT
from tests.unit.test_slurm import ScriptedProcess

# Request -> nodes, processes per node, GPUs per node.
TABLE: list[tuple[Size, tuple[int, int, int]]] = [
    # Azure ML and similar services: four GPUs per node by default, as in ACT.
    (Size("aml"), (1, 4, 4)),
    (Size("aml", 8), (2, 4, 4)),
    (Size("aml", gpu_per_node=4), (1, 4, 4)),
    (Size("aml", 2, gpu_per_node=4), (1, 2, 2)),
    (Size("aml", 8, gpu_per_node=4), (2, 4, 4)),
    (Size("aml", 16, gpu_per_node=4), (4, 4, 4)),
    (Size("aml", 8, gpu_per_node=4, multi_process=False), (2, 1, 4)),
    (Size("aml", 4, nodes=2, gpu_per_node=4), (2, 2, 2)),
    (Size("aml", nodes=3, gpu_per_node=4), (3, 4, 4)),
    (Size("aml", gpu_per_node=4, processes_per_node=2), (1, 2, 4)),
    (Size("aml", gpu_per_node=4, processes_per_node=2, multi_process=False), (1, 1, 4)),
    (Size("itp", 8, gpu_per_node=8), (1, 8, 8)),
    (Size("singularity", 16, gpu_per_node=8), (2, 8, 8)),
    # Slurm: no GPUs by default; without GPUs -n counts processes.
    (Size("slurm"), (1, 1, 0)),
    (Size("slurm", 2), (1, 2, 2)),
    (Size("slurm", 4, gpu_per_node=0, file_nodes=2), (2, 2, 0)),
    (Size("slurm", gpu_per_node=0, file_nodes=2), (2, 1, 0)),
    (Size("slurm", 1, gpu_per_node=0, file_nodes=2), (1, 1, 0)),
    (Size("slurm", 16, gpu_per_node=4, file_nodes=2), (4, 4, 4)),
    # This machine is one node.
    (Size("local"), (1, 1, 1)),
    (Size("local", 2), (1, 2, 2)),
    (Size("local", 2, gpu_per_node=1), (1, 2, 2)),
    (Size("local", 8, gpu_per_node=4), (1, 8, 8)),
    (Size("local", 4, gpu_per_node=0), (1, 4, 0)),
    (Size("local", 2, multi_process=False), (1, 1, 2)),
    (Size("aml", here=True), (1, 4, 4)),
    (Size("aml", 8, gpu_per_node=4, here=True), (1, 8, 8)),
    (Size("aml", 16, gpu_per_node=4, multi_process=False, here=True), (1, 1, 16)),
    (Size("slurm", gpu_per_node=2, file_nodes=2, here=True), (1, 4, 4)),
    (Size("slurm", gpu_per_node=0, file_nodes=2, here=True), (1, 2, 0)),
    # -n 0: no GPU, one process, wherever it is.
    *((Size(platform, 0), (1, 1, 0)) for platform in ("local", "slurm", "aml", "itp", "singularity")),
    *((Size(platform, 0, gpu_per_node=4), (1, 1, 0)) for platform in ("local", "slurm", "aml", "itp")),
    (Size("aml", 0, gpu_per_node=4, here=True), (1, 1, 0)),
    (Size("local", 0, gpu_per_node=0), (1, 1, 0)),
    (Size("slurm", 0, gpu_per_node=4, file_nodes=2, processes_per_node=4), (1, 1, 0)),
    (Size("slurm", 0, nodes=3, gpu_per_node=4), (3, 1, 0)),
]


@pytest.mark.parametrize(("size", "shape"), TABLE)
def test_how_a_job_spreads(size: Size, shape: tuple[int, int, int]) -> None:
    found = find_shape(size)
    assert found == JobShape(*shape)
    assert found.world_size == shape[0] * shape[1]


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        (Size("aml", 6, gpu_per_node=4), "6 GPUs do not fill whole nodes of 4"),
        (Size("aml", 3, nodes=2, gpu_per_node=4), "3 GPUs cannot be divided evenly among 2 nodes"),
        (Size("slurm", 3, nodes=2, gpu_per_node=0), "3 processes cannot be divided evenly among 2 nodes"),
        (Size("aml", 8, nodes=1, gpu_per_node=4), "8 GPUs per node requested, but the nodes .* have 4"),
        (Size("local", nodes=2), "this machine is one node, but the job requests 2"),
        (Size("local", 0, nodes=2), "this machine is one node, but the job requests 2"),
        (Size("local", 4, file_nodes=2), "this machine is one node, but the job requests 2"),
    ],
)
def test_what_cannot_start_every_process_is_refused(size: Size, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        find_shape(size)
    assert caught.value.hint


def cluster_of(root: Path, platform: str, **values: Any) -> Cluster:
    return Cluster(
        "eu",
        "eu.yaml",
        root,
        platform=platform,
        gpu_per_node=values.get("gpu_per_node"),
        values=values,
    )


def around(cluster: Cluster) -> Surroundings:
    return Surroundings(cluster, cluster.root / ".blobsync", {"HOME": str(cluster.root)}, ScriptedProcess())


# -n, gpu_per_node, multi_process
ASKED = [(gpus, each, several) for gpus in (None, 0, 1, 2, 4, 8) for each in (1, 4) for several in (True, False)]


@pytest.mark.parametrize(("gpus", "each", "several"), ASKED)
def test_every_backend_starts_as_many_processes_as_the_job_was_told_of(
    tmp_path: Path, gpus: int | None, each: int, several: bool
) -> None:
    request = SubmitRequest(("true",), gpus, multi_process=several)

    on_aml = ask(tmp_path, request, **{**PLAIN, "gpu_per_node": each})
    distribution = on_aml.job.get("distribution", {"processCountPerInstance": 1})
    started = {"aml": on_aml.job["resources"]["instanceCount"] * distribution["processCountPerInstance"]}
    specs = {"aml": on_aml.spec}

    specs["slurm"] = spec = describe(cluster_of(tmp_path, "slurm", gpu_per_node=each), request, "me_1_x", None)
    script = build_script(spec, {})
    nodes, tasks = (re.search(rf"--{word}=(\d+)", script) for word in ("nodes", "ntasks-per-node"))
    assert nodes and tasks
    started["slurm"] = int(nodes[1]) * int(tasks[1])

    local = cluster_of(tmp_path, "local", gpu_per_node=each)
    specs["local"] = spec = describe(local, request, "me_1_x", None)
    assert spec.nodes == 1
    started["local"] = spec.procs_per_node
    create_backend(around(local)).plan(spec)

    expected = 1 if gpus == 0 else gpus or each
    assert started == {name: spec.world_size for name, spec in specs.items()}
    assert started["aml"] == started["slurm"]
    if several:
        assert set(started.values()) == {expected}


@pytest.mark.parametrize(("gpus", "line"), [(0, None), (1, "gpus-per-node=1"), (8, "gpus-per-node=4")])
def test_slurm_is_asked_for_the_gpus_of_a_node_or_for_none(tmp_path: Path, gpus: int, line: str | None) -> None:
    spec = describe(cluster_of(tmp_path, "slurm", gpu_per_node=4), SubmitRequest(("true",), gpus), "me_1_x", None)
    found = re.findall(r"#SBATCH --(g\S+)", build_script(spec, {}))
    assert found == ([line] if line else [])
    wanted = [f"gres=gpu:a100:{spec.gpus_per_node}"] if gpus else []
    assert re.findall(r"#SBATCH --(g\S+)", build_script(spec, {"gres": "gpu:a100:{gpus}"})) == wanted


def documented(page: str, row: str) -> str:
    """A row of a table of the documentation, without the cell that names it."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \| (.+) \|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return str(found)


def test_the_pages_say_how_many_gpus_a_job_gets_that_asks_for_none(tmp_path: Path) -> None:
    def sizes(*platforms: str) -> set[tuple[int, int]]:
        request = SubmitRequest(("true",))
        specs = [describe(cluster_of(tmp_path, each), request, "me_1_x", None) for each in platforms]
        return {(spec.gpus_per_node, spec.world_size) for spec in specs}

    ((aml, on_aml),), ((local, here),) = sizes(*SERVICES), sizes("local")
    assert sizes("slurm", "kubernetes") == {(0, 1)} and (aml, local) == (on_aml, here)
    default = f"{aml} on Azure ML, {local} on local, none on Slurm and Kubernetes"
    meaning = "an instance type whose name says them (`ND40_v2g1`: one) comes first"
    assert documented("configuration.md", "`gpu_per_node`") == f"GPUs of a node: {default}; {meaning}"
    words = {1: "one", 4: "four"}
    assert documented("jobs.md", "neither `-n` nor `gpu_per_node`") == (
        f"{words[aml]} GPUs on Azure ML, {words[local]} on this machine, one process without a GPU on Slurm"
        " (but those of its `gres`) and Kubernetes"
    )


def test_no_gpu_and_a_gres_that_has_some_contradict_each_other(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, "slurm", slurm={"gres": "gpu:4"})
    describe(cluster, SubmitRequest(("true",)), "me_1_x", None)
    with pytest.raises(UsageError, match="-n 0 requests no GPU, but gres gpu:4 does"):
        describe(cluster, SubmitRequest(("true",), 0), "me_1_x", None)
    with pytest.raises(UsageError, match="gres gpu:1"):
        describe(cluster_of(tmp_path, "slurm"), SubmitRequest(("true",), 0, options={"gres": "gpu:1"}), "me_1_x", None)


@pytest.mark.parametrize("gpus", [0, 2])
def test_itp_is_told_how_many_gpus_also_when_there_are_none(tmp_path: Path, gpus: int) -> None:
    job = ask(tmp_path, SubmitRequest(("true",), gpus), **{**PLAIN, "platform": "itp"}).job
    assert job["resources"]["properties"]["itp"]["resource_configuration"] == {"gpu_count": gpus}
