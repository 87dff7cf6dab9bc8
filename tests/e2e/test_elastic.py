"""Elastic jobs from the command line: a real torchrun on this machine that trains while nodes join and leave."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import Container, JobLab, Project
from tests.servers.slurm_cluster import SlurmCluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.e2e

TORCH_IS_MISSING = importlib.util.find_spec("torch") is None
with_torch = pytest.mark.skipif(
    TORCH_IS_MISSING, reason="torch is not installed, and pip offers no wheel of it for CPUs alone: see CONTRIBUTING.md"
)
PATIENCE = 120.0

# Sums ones over all workers, writes a checkpoint after each step, and ends on request.
TRAIN = """\
import json, os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
step = json.load(open("output/checkpoint.json"))["step"] if os.path.exists("output/checkpoint.json") else 0
with open("output/begun.txt", "a") as begun:
    begun.write(f"{step} {rank} {world}\\n")
while True:
    total = torch.ones(2)
    total[1] = os.path.exists("output/end")
    dist.all_reduce(total)
    assert int(total[0]) == world
    if total[1]:
        break
    step += 1
    if rank == 0:
        with open("output/steps.txt", "a") as steps:
            steps.write(f"{step} {world}\\n")
        with open("output/checkpoint.new", "w") as fresh:
            json.dump({"step": step}, fresh)
        os.replace("output/checkpoint.new", "output/checkpoint.json")
    dist.barrier()
    time.sleep(0.05)
dist.destroy_process_group()
print("trained", step)
"""

# A launcher: prints its arguments, and runs until a request to end.
LAUNCHER = """\
import os, sys, time

node = os.environ["NODE_RANK"]
os.makedirs("output/" + node, exist_ok=True)
with open("output/" + node + "/told.txt", "a") as told:
    print(os.environ["BLOBSYNC_MIN_NODES"], os.environ["BLOBSYNC_MAX_NODES"], os.environ["PET_NNODES"], *sys.argv[1:],
          sep="|", file=told)
print("up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
with open("output/" + node + "/result.bin", "wb") as result:
    result.write(os.urandom(1000))
"""


# Node 0 writes a set of files for each step; every node goes on from what was brought to it, until it is told to end.
SAVES = """\
import json, os, pathlib, sys, time

node, step, restored = os.environ["NODE_RANK"], 0, os.environ.get("BLOBSYNC_RESTORED")
if restored:
    step = int(os.environ["BLOBSYNC_RESTORED_STEP"])
    shard, end = (pathlib.Path(restored, name).read_text() for name in ("0.distcp", ".metadata"))
    assert shard == f"{step}" * 10_000 and end == f"{step}", restored
with open(sys.argv[1], "a") as begun:
    print(node, step, file=begun)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.3)
    step += 1
    if node == "0":
        folder = pathlib.Path("output", f"step-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0.distcp").write_text(f"{step}" * 10_000)
        (folder / ".metadata.tmp").write_text(f"{step}")
        (folder / ".metadata.tmp").rename(folder / ".metadata")
"""


@dataclass
class Jobs(JobLab):
    """A project whose jobs run on this machine; without a container they run in its own folder."""

    def configure(
        self, container: Container | None = None, *, output: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        cluster: dict[str, Any] = {"platform": "local", "local": {"slots": 4, "gpus": 0}, **more}
        if container:
            self.write("aux_data/configs/box.yaml", container.account_file)
            here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
            cluster["config_param"] = {
                "code_path": {**here, "path": "mine/code.zip"},
                "output_folder": {**here, "path": "mine/output", "mode": "upload", **(output or {})},
            }
        self.write("aux_data/aml/aml.yaml", cluster)

    def submit(self, *words: str) -> str:
        job_id: str = self.ask("submit", *words)["job_id"]
        return job_id

    def nodes(self, job_id: str) -> dict[int, int]:
        """blobsync's process of each node, by the node's number."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().decode().split("\0")
                if "blobsync.node" in words and any(job_id in word for word in words):
                    found[int(words[words.index("--node-rank") + 1])] = int(name)
        return found

    def programs(self, job_id: str, node: int) -> list[int]:
        """The processes of a node's command."""
        mark = f"BLOBSYNC_NODE_OF={job_id}/{node}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return sorted(found)

    def supervisor(self, job_id: str) -> int:
        """The process that starts and stops the nodes."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().decode().split("\0")
                if "blobsync.backends.local.supervisor" in words and any(job_id in word for word in words):
                    return int(name)
        raise AssertionError(self.explain())

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Each recorded step, with its number of workers."""
        with suppress(OSError):
            lines = (self.project.root / "output/steps.txt").read_text().splitlines()
            return [(int(step), int(world)) for step, world in (line.split() for line in lines)]
        return []

    def until_trained_by(self, workers: int, more: int = 5) -> None:
        """Wait for ``more`` further steps by so many workers."""
        before = len(self.steps)

        def there() -> bool:
            return [world for _, world in self.steps[before:]].count(workers) >= more

        assert wait_until(there, seconds=PATIENCE, pause=0.1), self.explain()

    def explain(self) -> str:
        logs = sorted((self.project.root / ".blobsync").glob("state-*/jobs/*/*_logs/*"))
        return f"{self.steps[-3:]}\n" + "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in logs)


@pytest.fixture
def jobs(project: Project) -> Iterator[Jobs]:
    jobs = Jobs(project)
    (project.root / "output").mkdir()
    (project.root / "train.py").write_text(TRAIN)
    (project.root / "launcher.py").write_text(LAUNCHER)
    # The commands of this virtual environment, torchrun among them.
    project.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    project.environ["OMP_NUM_THREADS"] = "1"
    jobs.configure()
    yield jobs
    (project.root / "output/end").touch()


@with_torch
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.soak  # The same in pods is in test_elastic_kubernetes.py.
def test_training_goes_on_from_its_last_step_while_nodes_come_and_go_and_node_0_is_killed(jobs: Jobs) -> None:
    # torchrun waits a shorter time for a lost node; the rendezvous' host is added.
    jobs.configure(env={"PET_RDZV_CONF": "last_call_timeout=1,join_timeout=300,keep_alive_interval=2"})
    job_id = jobs.submit("--elastic", "1:3", "--", "torchrun", "train.py")
    jobs.until_trained_by(1)
    assert jobs.ask("scale", job_id, "3")["jobs"][0]["elastic"]["wanted"] == 3
    jobs.until_trained_by(3)
    jobs.run("scale", job_id, "2")
    jobs.until_trained_by(2)

    # Node 0 is lost; its torchrun and workers outlive it until it is back.
    first, programs = jobs.nodes(job_id)[0], jobs.programs(job_id, 0)
    assert len(programs) == 2
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        now = jobs.programs(job_id, 0)
        return jobs.nodes(job_id).get(0, first) != first and bool(now) and not {*now} & {*programs}

    assert wait_until(is_back, seconds=PATIENCE, pause=0.2), jobs.explain()
    jobs.until_trained_by(2)
    # Only its torchrun is killed.
    os.kill(jobs.programs(job_id, 0)[0], signal.SIGKILL)
    jobs.until_trained_by(2)

    jobs.run("scale", job_id, "1")
    jobs.until_trained_by(1)
    (jobs.project.root / "output/end").touch()
    job = jobs.until(job_id, "Completed", "Failed")
    assert (job["status"], job["exit_code"]) == ("Completed", 0), jobs.explain()

    steps = [step for step, _ in jobs.steps]
    # A worker may end between a step and its checkpoint; that step is repeated, and none is missing.
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(steps)), jobs.steps
    begun = (jobs.project.root / "output/begun.txt").read_text().splitlines()
    assert {line.split()[2] for line in begun} == {"1", "2", "3"}
    elastic = job["elastic"]
    assert (elastic["min_nodes"], elastic["max_nodes"], elastic["nodes"]) == (1, 3, 0)
    changes = [(one["nodes"], one["wanted"]) for one in elastic["changes"]]
    wanted = [now for now, before in zip(changes, [(0, 0), *changes], strict=False) if now[1] != before[1]]
    assert [number for _, number in wanted] == [1, 3, 2, 1] and changes[-1] == (0, 1)
    assert not any(jobs.programs(job_id, node) for node in range(3)), "nothing is left behind"
    log = jobs.run("logs", job_id).out
    assert f"trained {steps[-1]}" in log


def outputs(container: Container) -> dict[str, int]:
    """The uploaded files with their sizes."""
    blobs = container.client.list_blobs(name_starts_with="mine/output/")
    return {blob.name.removeprefix("mine/output/"): blob.size for blob in blobs}


def test_any_launcher_is_told_the_bounds_and_every_node_brings_its_outputs(
    jobs: Jobs, container: Container, tmp_path: Path
) -> None:
    jobs.configure(container)
    jobs.run("init")
    go_on = tmp_path / "go on"
    words = ("--elastic", "2:3", "--", sys.executable, "launcher.py", str(go_on), "two words", "$HOME;")
    job_id = jobs.submit(*words)
    assert wait_until(lambda: len(jobs.programs(job_id, 0)) == len(jobs.programs(job_id, 1)) == 1, seconds=PATIENCE)
    # One request after the other, before the first is carried out.
    supervisor = jobs.supervisor(job_id)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        for nodes in ("3", "2", "3"):
            jobs.run("scale", job_id, nodes)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert "may have 2 to 3 nodes, not 1" in jobs.run("scale", job_id, "1", code=2).err
    assert wait_until(lambda: len(jobs.programs(job_id, 2)) == 1, seconds=PATIENCE), jobs.explain()
    go_on.touch()
    job = jobs.until(job_id, "Completed", "Failed")
    assert job["status"] == "Completed", jobs.explain()
    sizes = outputs(container)
    assert [sizes[f"{node}/result.bin"] for node in range(3)] == [1000] * 3
    told = container.client.download_blob("mine/output/0/told.txt").readall().decode()
    assert told == f"2|3|2:3|{go_on}|two words|$HOME;\n"
    shown = jobs.run("q", job_id).out
    assert "elastic, 2 to 3" in shown and len([line for line in shown.splitlines() if " wanted" in line]) >= 1
    assert "has ended: Completed" in jobs.run("scale", job_id, "2", code=2).err


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_node_that_joins_or_was_lost_goes_on_from_the_last_marked_checkpoint(
    jobs: Jobs, container: Container, tmp_path: Path
) -> None:
    runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch"), "sync_seconds": 1}
    jobs.configure(container, runtime=runtime, output={"checkpoints": "step-*", "settle_seconds": 0, "keep_last": 3})
    (jobs.project.root / "saves.py").write_text(SAVES)
    jobs.run("init")
    begun, end = tmp_path / "begun.txt", tmp_path / "end"
    job_id = jobs.submit("--elastic", "1:2", "--", sys.executable, "saves.py", str(begun), str(end))

    def marked() -> int:
        # What nodes say to each other, and claims, lie deeper.
        names = [name for name in container.names(".blobsync/checkpoints/") if name.count("/") == 4]
        return max((int(name.rpartition("step-")[2].removesuffix(".json")) for name in names), default=0)

    def until_marked(step: int) -> None:
        assert wait_until(lambda: marked() >= step, seconds=PATIENCE, pause=0.2), jobs.explain()

    def starts(node: int) -> list[int]:
        lines = begun.read_text().splitlines() if begun.exists() else []
        return [int(step) for number, step in map(str.split, lines) if int(number) == node]

    def goes_on(node: int, before: int, stood: int) -> None:
        assert wait_until(lambda: len(starts(node)) > before, seconds=PATIENCE, pause=0.1), jobs.explain()
        assert starts(node)[-1] >= stood, (starts(node), stood, jobs.explain())

    try:
        until_marked(3)
        stood = marked()
        jobs.run("scale", job_id, "2")
        goes_on(1, 0, stood)
        for lost in (1, 0, 0):
            until_marked(stood + 1)
            count, stood = len(starts(lost)), marked()
            for process in (jobs.nodes(job_id)[lost], *jobs.programs(job_id, lost)):
                os.kill(process, signal.SIGKILL)
            goes_on(lost, count, stood)
    finally:
        end.touch()
    job = jobs.until(job_id, "Completed", "Failed")
    assert job["status"] == "Completed", jobs.explain()
    assert starts(0)[0] == 0 and len(starts(0)) == 3 and len(starts(1)) == 2


@pytest.mark.slurm
@pytest.mark.timeout(600)
@pytest.mark.soak  # That Slurm takes a node away, and gives none, is in contract/test_backend.py as well.
@pytest.mark.parametrize("way", ["scaled", "down"])
def test_on_slurm_a_node_that_is_lost_leaves_the_rest_at_work(
    jobs: Jobs, container: Container, tmp_path: Path, slurm_cluster: SlurmCluster, way: str
) -> None:
    jobs.project.environ.update(slurm_cluster.environ)
    runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
    jobs.configure(container, platform="slurm", gpu_per_node=0, runtime=runtime)
    jobs.run("init")
    go_on = tmp_path / "go on"
    words = ("--elastic", "1:2", "--", sys.executable, "launcher.py", str(go_on))
    shown = jobs.run("submit", "--dry-run", *words).out
    assert "#SBATCH --nodes=1-2\n#SBATCH --no-kill\n" in shown and "--kill-on-bad-exit=0" in shown
    job_id = jobs.submit(*words)
    lost = ""
    try:
        assert wait_until(lambda: all(jobs.programs(job_id, node) for node in (0, 1)), seconds=PATIENCE), jobs.explain()
        job = jobs.job(job_id)
        assert (job["elastic"]["nodes"], job["elastic"]["wanted"]) == (2, 2)
        if way == "scaled":
            jobs.run("scale", job_id, "1")
        else:
            lost = job["hosts"][1]
            slurm_cluster.client("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        assert wait_until(lambda: not jobs.programs(job_id, 1), seconds=PATIENCE)
        assert jobs.job(job_id)["elastic"]["nodes"] == len(jobs.programs(job_id, 0)) == 1
        assert "Slurm gives no more nodes" in jobs.run("scale", job_id, "2", code=2).err
        go_on.touch()
        job = jobs.until(job_id, "Completed", "Failed")
        assert (job["status"], job["exit_code"]) == ("Completed", 0), jobs.explain()
        assert outputs(container)["0/result.bin"] == 1000
        assert (job["elastic"]["changes"][0]["nodes"], job["elastic"]["changes"][-1]["nodes"]) == (2, 1)
    finally:
        go_on.touch()
        jobs.run("abort", job_id)
        if lost:
            # It may have registered again by itself.
            with suppress(subprocess.CalledProcessError):
                slurm_cluster.client("scontrol", "update", f"NodeName={lost}", "State=RESUME")
            states = ("sinfo", "-h", "-N", "-p", "normal", "-o", "%T")
            assert wait_until(lambda: slurm_cluster.client(*states).split() == ["idle", "idle"], seconds=PATIENCE)
