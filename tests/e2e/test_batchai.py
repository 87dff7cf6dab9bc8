"""Job files of Batch AI from the command line: an MPI program instead of Chainer, on this machine and on two nodes."""

from __future__ import annotations

import ctypes.util
import json
import re
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import Container, JobLab, Project
from tests.servers.slurm_fixture import slurm_cluster

__all__ = ["slurm_cluster"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.mpi,
    pytest.mark.skipif(
        shutil.which("mpirun") is None, reason="Open MPI is not installed here (Debian: apt-get install openmpi-bin)"
    ),
]
ON_SLURM = pytest.param("uni", marks=pytest.mark.slurm)

# Sums the ranks of all processes with the MPI library, prints the result, and waits for a file to go.
TRAIN = """\
import ctypes, json, os, sys, time

mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
world = ctypes.byref(ctypes.c_byte.in_dll(mpi, "ompi_mpi_comm_world"))
mpi.MPI_Init(None, None)
rank, size, mine, total = (ctypes.c_int() for _ in range(4))
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
mine.value = rank.value + 1
integer, add = (ctypes.byref(ctypes.c_byte.in_dll(mpi, name)) for name in ("ompi_mpi_int", "ompi_mpi_op_sum"))
assert mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, integer, add, world) == 0
# Each line in one piece: two streams meet in one log.
sys.stdout.write(f"rank {rank.value} of {size.value} adds up to {total.value}\\n")
sys.stdout.flush()
sys.stderr.write(f"trained by {rank.value}\\n")
while os.path.exists(sys.argv[3]):
    time.sleep(0.1)
mine = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "AZ_BATCHAI_TASK_INDEX", "MY_LIST")}
with open(sys.argv[2] + f"/{rank.value}.json", "w") as told:
    json.dump(mine, told)
if rank.value == 0:
    names = [name for name in os.environ if name.startswith("AZ_BATCHAI_")]
    with open(sys.argv[2] + "/model.json", "w") as model:
        json.dump({"total": total.value, "env": {name: os.environ[name] for name in names}}, model)
mpi.MPI_Finalize()
"""


@dataclass
class Lab(JobLab):
    """A project with a cluster ``here`` (this machine) and ``uni`` (two nodes of Slurm), which share two folders."""

    container: Container

    @property
    def gate(self) -> Path:
        """The program does not end while this file exists."""
        return self.project.root.parent / "gate"

    def configure(self, name: str, platform: str, **more: Any) -> None:
        self.write("aux_data/configs/box.yaml", self.container.account_file)
        here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
        entries = {
            "code_path": {**here, "path": "mine/code.zip"},
            "logs_folder": {**here, "path": "mine/logs", "mode": "upload"},
        }
        runtime = {"python": sys.executable, "scratch": str(self.project.root.parent / "scratch")}
        cluster = {"platform": platform, "config_param": entries, "runtime": runtime, **more}
        self.write(f"aux_data/aml/{name}.yaml", cluster)

    def recipe(self, **changes: Any) -> dict[str, Any]:
        """The recipe for distributed Chainer: a share for logs, a container with the scripts, an output by its id."""
        library = ctypes.util.find_library("mpi")
        return {
            "nodeCount": 2,
            "chainerSettings": {
                "pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/data/chainer/train.py",
                "pythonInterpreterPath": sys.executable,
                "commandLineArgs": f"{library} $AZ_BATCHAI_OUTPUT_MODEL {self.gate}",
            },
            "stdOutErrPathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/logs",
            "mountVolumes": {
                "azureFileShares": [
                    {"azureFileUrl": "https://acct.file.core.windows.net/logs", "relativeMountPath": "logs"}
                ],
                "azureBlobFileSystems": [
                    {
                        "accountName": self.container.account,
                        "containerName": self.container.name,
                        "relativeMountPath": "data",
                    }
                ],
            },
            "outputDirectories": [{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/logs"}],
            "jobPreparation": {"commandLine": "test -s $AZ_BATCHAI_MPI_HOST_FILE && test -d $AZ_BATCHAI_OUTPUT_MODEL"},
            "environmentVariables": [{"name": "MY_LIST", "value": "a,b; $AZ_BATCHAI_JOB_TEMP ${HOME}"}],
            "containerSettings": {"imageSourceRegistry": {"image": "chainermn:openMPI"}},
            **changes,
        }

    def streamed(self, job_id: str) -> list[str]:
        """The output of ``logs -F`` until the job ends; the job may end when its first line has been read."""
        following = self.project.start("logs", job_id, "-F")
        assert following.stdout
        first = following.stdout.readline()
        assert following.poll() is None and self.job(job_id)["status"] == "Running"
        self.gate.unlink()
        rest = following.stdout.read()
        done = self.project.finish(following)
        assert done.code == 0 and first, str(done)
        return [first.rstrip("\n"), *rest.splitlines()]


@pytest.fixture
def lab(project: Project, container: Container, request: pytest.FixtureRequest) -> Lab:
    lab = Lab(project, container)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    outside = {"env": root, "use_custom_docker": False}
    lab.configure("here", "local", local={"slots": 4, "gpus": 0}, **outside)
    lab.configure("uni", "slurm", gpu_per_node=0, **outside)
    container.put("chainer/train.py", TRAIN.encode())
    project.environ.update(root)
    if request.node.get_closest_marker("slurm"):
        request.getfixturevalue("with_node_archive")
        project.environ.update(request.getfixturevalue("slurm_cluster").environ)
    lab.run("-c", "here", "init")
    return lab


@pytest.fixture
def silent_program() -> Iterator[None]:
    """Listens at a port of X servers, as TensorBoard at 6006, and never responds."""
    with ExitStack() as held:
        # Another test may have opened it, and is silent as well.
        with suppress(OSError):
            held.enter_context(socket.create_server(("127.0.0.1", 6009)))
        yield


@pytest.mark.usefixtures("silent_program")
@pytest.mark.parametrize("cluster", ["here", pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak])])
def test_the_recipe_for_chainer_runs_as_it_is(lab: Lab, cluster: str) -> None:
    lab.gate.touch()
    lab.write("job.json", {"properties": lab.recipe()})
    done = lab.run("--json", "-c", cluster, "submit", "--file", "job.json")
    assert "containerSettings: has no effect" in done.err
    job_id = done.data["job_id"]
    # Like `az batchai job file stream`: lines arrive while the program runs.
    streamed = lab.streamed(job_id)
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)

    model = json.loads(lab.container.get(f"mine/logs/{job_id}/outputs/model.json"))
    assert model["total"] == 1 + 2
    demand_ranks(lab, job_id, nodes=2 if cluster == "uni" else 1)
    env = model["env"]
    assert env["AZ_BATCHAI_OUTPUT_MODEL"] == f"{env['AZ_BATCHAI_JOB_MOUNT_ROOT']}/logs/{job_id}/outputs"
    assert env["AZ_BATCHAI_STDOUTERR_DIR"] == f"{env['AZ_BATCHAI_MOUNT_ROOT']}/logs/{job_id}/stdouterr"
    names = [name for name in lab.container.names(f"mine/logs/{job_id}/") if name.endswith(".txt")]
    kept = b"".join(lab.container.get(name) for name in names if "/stdouterr/stdout" in name)
    lines = {"rank 0 of 2 adds up to 3", "rank 1 of 2 adds up to 3"}
    assert lines == set(kept.decode().splitlines())
    errors = b"".join(lab.container.get(name) for name in names if "/stdouterr/stderr" in name)
    assert {"trained by 0", "trained by 1"} <= set(errors.decode().splitlines())
    # Like `az batchai job file list -d MODEL`: outputs by their ids, with links.
    shown = lab.run("--json", "outputs", job_id, "MODEL", "--url", "--expiry", "1h").data["files"]
    assert [(one["output"], one["name"]) for one in shown] == [("MODEL", f"{n}.json") for n in ("0", "1", "model")]
    shown = shown[2:]
    with urllib.request.urlopen(shown[0]["url"]) as answer:
        assert json.loads(answer.read()) == model
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(shown[0]["url"], method="DELETE"))
    every = lab.run("outputs", job_id).out
    assert "MODEL/model.json" in every and "stdouterr/stdout.txt" in every
    assert lines <= {re.sub(r"^\[\d\] ", "", line) for line in streamed}


def demand_ranks(lab: Lab, job_id: str, *, nodes: int) -> None:
    """Each process has its rank, and the settings of the job file."""
    for rank in (0, 1):
        found = json.loads(lab.container.get(f"mine/logs/{job_id}/outputs/{rank}.json"))
        told = {name: found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "AZ_BATCHAI_TASK_INDEX")}
        local = "0" if nodes == 2 else str(rank)
        assert told == {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": local, "AZ_BATCHAI_TASK_INDEX": str(rank)}
        assert re.fullmatch(r"a,b; /.+ \$\{HOME\}", found["MY_LIST"])


def test_a_secret_of_a_job_file_is_asked_for_where_the_job_moves_to(lab: Lab) -> None:
    secrets = [{"name": "PIN", "value": "sentinel-pin"}]
    env = [{"name": "MY_LIST", "value": "x"}, {"name": "HUB_TOKEN", "value": "sentinel-token"}]
    lab.write("job.json", {"properties": lab.recipe(secrets=secrets, environmentVariables=env)})
    old = lab.run("--json", "-c", "here", "submit", "--file", "job.json").data["job_id"]
    assert lab.until(old)["status"] == "Completed", lab.run("q", old)
    lab.configure("there", "local", local={"slots": 4, "gpus": 0}, use_custom_docker=False)
    refused = lab.run("resubmit", old, "-t", "there", code=2)
    assert "the job needs the secret variable HUB_TOKEN" in refused.err and "there.yaml" in refused.err
    kept = [path for path in lab.project.state.rglob("*") if path.is_file() and b"sentinel" in path.read_bytes()]
    assert kept == []


def test_what_cannot_be_honoured_stops_before_anything_runs(lab: Lab) -> None:
    vault = [{"name": "PIN", "valueSecretReference": {"secretUrl": "https://v.example/s"}}]
    lab.write("job.json", {"properties": lab.recipe(secrets=vault)})
    done = lab.run("-c", "here", "submit", "--file", "job.json", code=2)
    assert "valueSecretReference: names a secret of a Key Vault" in done.err and "job.json:" in done.err
    lab.write("job.json", {"properties": lab.recipe()})
    assert "two jobs" in lab.run("-c", "here", "submit", "--file", "job.json", "true", code=2).err
    assert "belongs to --file" in lab.run("-c", "here", "submit", "--cluster-file", "c.json", code=2).err
    assert lab.run("--json", "q").data["jobs"] == []


def test_parameter_servers_end_when_the_workers_have(lab: Lab) -> None:
    say = "-c 'import os, time; print(os.environ[\"TF_CONFIG\"], flush=True); {}'"
    settings = {
        "pythonInterpreterPath": sys.executable,
        "pythonScriptFilePath": "-u",
        # The workers end after the parameter server has printed its line.
        "masterCommandLineArgs": say.format(
            f'[time.sleep(0.1) for _ in iter(lambda: os.path.exists("{lab.gate}"), True)]'
        ),
        "workerCommandLineArgs": say.format("pass"),
        "parameterServerCommandLineArgs": say.format(f'open("{lab.gate}", "w").close(); time.sleep(600)'),
    }
    recipe = lab.recipe(tensorFlowSettings=settings)
    del recipe["chainerSettings"]
    lab.write("job.json", {"properties": recipe})
    job_id = lab.run("--json", "-c", "here", "submit", "--file", "job.json").data["job_id"]
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    tasks = {
        name: json.loads(lab.container.get(f"mine/logs/{job_id}/stdouterr/stdout-{name}.txt"))["task"]
        for name in ("wk-0", "wk-1", "ps-0")
    }
    assert tasks == {
        "wk-0": {"type": "master", "index": 0},
        "wk-1": {"type": "worker", "index": 1},
        "ps-0": {"type": "ps", "index": 0},
    }


def test_a_converted_file_is_the_same_job(lab: Lab) -> None:
    lab.write("job.json", {"properties": lab.recipe()})
    made = lab.run("--json", "-c", "here", "convert", "batchai", "job.json", "--name", "chain").data
    assert made["files"] == ["aux_data/aml/chain.yaml"]
    lab.run("config", "check", "-c", "chain")
    job_id = lab.run("--json", *made["command"][1:]).data["job_id"]
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    assert json.loads(lab.container.get(f"mine/logs/{job_id}/outputs/model.json"))["total"] == 3
    assert "exists already" in lab.run("-c", "here", "convert", "batchai", "job.json", "--name", "chain", code=2).err


def test_a_file_of_philly_becomes_one_of_this_platform(lab: Lab) -> None:
    philly = {
        "vc": "v",
        "blob_mount_point": "/blob",
        "azure_blob_config_file": "aux_data/configs/box.yaml",
        "config_param": {"code_path": "/blob/mine/code.zip", "output_folder": "/blob/mine/output"},
        "cluster": "wu1",
    }
    lab.write("aux_data/aml/philly.yaml", philly)
    refused = lab.run("-c", "philly", "submit", "true", code=2).err
    assert "Philly, which this file is for, is gone" in refused
    assert "blobsync convert philly aux_data/aml/philly.yaml --platform slurm" in refused
    made = lab.run("--json", "convert", "philly", "aux_data/aml/philly.yaml", "--name", "new", "--platform", "local")
    assert "aux_data/aml/philly.yaml:3: cluster: left out: only Philly had it" in made.err
    assert "output_folder: mode upload: empty when the command begins" in made.err
    written = yaml.safe_load((lab.project.root / "aux_data/aml/new.yaml").read_text())
    entry = written["config_param"]["output_folder"]
    assert entry == {"azure_blob_config_file": "aux_data/configs/box.yaml", "path": "mine/output", "mode": "upload"}
    assert written["gpu_per_node"] == 4 and "gpu_per_node: 4, as Philly's machines had" in made.err
    # The first of three clusters with free GPUs: one has no Slurm, and this machine has room.
    line = 'echo "$PHILLY_VC $PHILLY_CONTAINER_INDEX"; echo kept > output/kept.txt'
    lab.configure("gone", "slurm", ssh="nobody@127.0.0.1:1", gpu_per_node=0)
    done = lab.run("--json", "-c", "gone,new,here", "-n", "0", "submit", line)
    job_id, choice = done.data["job_id"], done.data["choice"]
    assert [(one["cluster"], one["chosen"]) for one in choice] == [("gone", False), ("new", True), ("here", False)]
    assert "cluster gone: did not answer: " in done.err and "cluster new: 1 node free, enough for 1" in done.err
    assert lab.until(job_id)["status"] == "Completed" and lab.run("logs", job_id).out == "v 0\n"
    # Its output is in the container.
    assert lab.container.get("mine/output/kept.txt") == b"kept\n"
