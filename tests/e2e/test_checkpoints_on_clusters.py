"""Jobs that train are preempted on Slurm and evicted on Kubernetes, and go on from their last whole checkpoint."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from azure.core.exceptions import ResourceNotFoundError

from tests.e2e import aml_lab
from tests.e2e.aml_lab import lab, stub
from tests.e2e.kills import TRAINERS
from tests.e2e.test_jobs import Lab, slurm_cluster
from tests.e2e.test_kubernetes import KubeLab, kube_cluster
from tests.e2e.trainers.sharded import digest_of, digest_of_step
from tests.e2e.world import Container, Project, write_tree
from tests.fakes.lineages import content
from tests.servers.kube.cluster import RealCluster
from tests.servers.slurm_cluster import SlurmCluster
from tests.unit.test_config_loader import ACT_EXAMPLE
from tests.waiting import PATIENCE, wait_until

__all__ = ["kube_cluster", "lab", "slurm_cluster", "stub"]

pytestmark = pytest.mark.e2e

ENTRY = {
    "azure_blob_config_file": "aux_data/configs/box.yaml",
    "path": "mine/output",
    "mode": "upload",
    "checkpoints": "step-*",
    "settle_seconds": 0,
}
ROUNDS = 3


def entries(**keys: Any) -> dict[str, Any]:
    code = {"azure_blob_config_file": "aux_data/configs/box.yaml", "path": "mine/code.zip"}
    return {"code_path": code, "output_folder": {**ENTRY, **keys}}


def last_marked(container: Container, nodes: int = 1) -> int:
    """The last step whose mark stands, read past blobsync; what is marked is, whole, what the program writes."""
    steps = [0]
    for name in container.names(".blobsync/checkpoints/"):
        if name.count("/") != 4:
            # What nodes say to each other lies deeper.
            continue
        # Rotation may let one go at any moment, first its mark.
        with suppress(ResourceNotFoundError):
            mark = content(container.get(name))
            lead = f"{unquote(name.split('/')[2])}/{mark['stored']}"
            files = {each["path"]: container.get(f"{lead}/{each['path']}") for each in mark["files"]}
            assert digest_of(files) == digest_of_step(mark["step"], nodes), mark
            steps.append(mark["step"])
    return max(steps)


def steps_in(text: str, nodes: int = 1) -> list[int]:
    """The steps at which a program began, by its log; each time it had what is written at that step, whole."""
    found = re.findall(r"started at (\d+) from (\w+)", text)
    for step, digest in found:
        assert digest == ("nothing" if step == "0" else digest_of_step(int(step), nodes)), (step, text[-2000:])
    return [int(step) for step, _ in found]


def began(lab: Lab, job_id: str, nodes: int = 1) -> list[list[int]]:
    """The steps at which each of the job's programs began, one list for each log."""
    lab.run("logs", job_id)
    folder = lab.project.root / "assets" / job_id
    return [steps_in(path.read_text(), nodes) for path in sorted(folder.rglob("std_log*"))]


def wait_for(condition: Callable[[], Any], seconds: float, told: Callable[[], object]) -> None:
    assert wait_until(condition, seconds=seconds, pause=0.5), told()


@pytest.mark.slurm
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_nodes_that_are_preempted_go_on_from_one_checkpoint(
    project: Project, container: Container, slurm_cluster: SlurmCluster
) -> None:
    lab = Lab(project, container)
    project.environ.update(slurm_cluster.environ)
    write_tree(project.root, {"sharded.py": (TRAINERS / "sharded.py").read_bytes()})
    runtime = {"python": sys.executable, "scratch": str(project.root.parent / "scratch"), "sync_seconds": 1}
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=2, runtime=runtime, config_param=entries(keep_last=3))
    train = ("python3", "sharded.py", "9999", "127.0.0.1")
    low = lab.ask("-c", "uni", "submit", "--init", "--partition", "normal", "--nodes", "2", *train)["job_id"]
    rounds = []
    for number in range(1, ROUNDS + 1):
        rounds.append(preempt(lab, slurm_cluster, low, number))
    lab.run("abort", low)
    print(f"{ROUNDS} preemptions: (last mark, where both nodes began) {rounds}")
    assert all(len(set(steps)) == 1 and steps[0] >= stood > 0 for stood, steps in rounds), rounds


def preempt(lab: Lab, slurm: SlurmCluster, job_id: str, number: int) -> tuple[int, list[int]]:
    """Preempt the job on both nodes; returns the last step that was marked, and where each began afterwards."""
    before = last_marked(lab.container, 2)
    wait_for(lambda: last_marked(lab.container, 2) > before, PATIENCE, lambda: lab.run("logs", job_id))
    high = lab.submit("uni", "--nodes", "2", "--partition", "urgent", "sleep", "600", gpus=8)
    lab.until(high, "Running")
    wait_for(lambda: lab.job(job_id)["restarts"] == number, PATIENCE, lambda: lab.job(job_id))
    stood = last_marked(lab.container, 2)
    lab.run("abort", high)
    slurm.client("scontrol", "update", f"JobId={lab.detail(job_id)['native_id']}", "StartTime=now")

    def both() -> bool:
        starts = began(lab, job_id, 2)
        return len(starts) == 2 and all(each and each[-1] >= stood for each in starts)

    def told() -> object:
        logs = [path.read_text()[-3000:] for path in (lab.project.state / "jobs" / job_id).rglob("*.txt")]
        return stood, began(lab, job_id, 2), logs

    wait_for(both, 90, told)
    return stood, [each[-1] for each in began(lab, job_id, 2)]


@pytest.mark.kubernetes
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_evicted_pod_goes_on_from_its_last_whole_checkpoint(
    project: Project, container: Container, kube_cluster: RealCluster
) -> None:
    lab = KubeLab(project, container)
    lab.namespace = kube_cluster.new_namespace()
    project.environ.update(kube_cluster.environ)
    write_tree(project.root, {"sharded.py": (TRAINERS / "sharded.py").read_bytes()})
    lab.kubernetes(config_param=entries(keep_last=3))
    lab.run("-c", "k8s", "init")
    job_id = lab.submit("k8s", "python3", "sharded.py", "9999")
    rounds = []
    for number in range(1, ROUNDS + 1):
        rounds.append(evict(lab, kube_cluster, job_id, number))
    lab.run("abort", job_id)
    print(f"{ROUNDS} evictions: (last mark, where it began) {rounds}")
    assert all(step >= stood > 0 for stood, step in rounds), rounds


def evict(lab: KubeLab, cluster: RealCluster, job_id: str, number: int) -> tuple[int, int]:
    """Evict the job's pod; returns the last step that was marked, and where the next one began."""
    before = last_marked(lab.container)
    pod = cluster.running(lab.name_of(job_id), 0, lab.namespace)
    wait_for(lambda: last_marked(lab.container) > before, 60, lambda: lab.run("logs", job_id))
    cluster.evict(pod, lab.namespace)
    wait_for(lambda: lab.job(job_id)["restarts"] == number, 60, lambda: lab.job(job_id))
    stood = last_marked(lab.container)
    wait_for(lambda: len(began(lab, job_id)) > number, 60, lambda: began(lab, job_id))
    return stood, max(step for each in began(lab, job_id) for step in each)


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_job_of_azure_ml_whose_node_is_taken_away_goes_on_from_its_last_whole_checkpoint(lab: aml_lab.Lab) -> None:
    keys = {"mode": "upload", "checkpoints": "step-*", "settle_seconds": 0, "keep_last": 3}
    known = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    output = {**known["output_folder"], **keys}
    lab.cluster(config_param={**known, "output_folder": output}, runtime={"sync_seconds": 1})
    write_tree(lab.project.root, {"sharded.py": (TRAINERS / "sharded.py").read_bytes()})
    lab.run("init")
    job_id = lab.submit("--single", "python", "sharded.py", "9999")
    job = lab.stub.jobs[job_id]

    def began_at() -> list[int]:
        log = job.folder / "user_logs/std_log.txt"
        return steps_in(log.read_text() if log.exists() else "")

    def told() -> object:
        return [path.read_text()[-2000:] for path in job.folder.rglob("*.txt")]

    def marked_after(step: int) -> bool:
        return last_marked(lab.container) > step

    before, rounds = 0, []
    for _ in range(2):
        # Its sets are in the container while it runs.
        wait_for(partial(marked_after, before), PATIENCE, told)
        assert job.status == "Running"
        # The next start marks others soon.
        lab.stub.take_away(job)
        stood = before = last_marked(lab.container)
        lab.stub.release(job)
        wait_for(began_at, PATIENCE, told)
        rounds.append((stood, began_at()[-1]))
    assert all(step >= stood > 0 for stood, step in rounds), rounds
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled"
    # The abort may have come while one went up.
    listed = [each for each in lab.ask("checkpoints", "--job", job_id)["checkpoints"] if each["there"] == "complete"]
    assert 1 <= len(listed) <= 3 and listed[0]["step"] == last_marked(lab.container)
    # Neither the job nor the container has what opens the container.
    assert not [name for name in lab.container.names() if "/secrets/" in name]
    assert "sig=" not in json.dumps(job.body)
    again = lab.ask("resubmit", job_id)["job_id"]
    job = lab.stub.jobs[again]
    wait_for(began_at, PATIENCE, told)
    assert began_at() == [listed[0]["step"]]
    lab.run("abort", again)
