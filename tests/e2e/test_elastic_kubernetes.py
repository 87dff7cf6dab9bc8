"""Elastic jobs on Kubernetes: a real torchrun in pods that join and leave, and the loss of node 0."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.test_elastic import PATIENCE, with_torch
from tests.e2e.test_kubernetes import KubeLab, kube_cluster, lab
from tests.servers.kube.cluster import RealCluster, stand_in
from tests.waiting import wait_until

__all__ = ["kube_cluster", "lab"]

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

# Sums ones over all workers, and stores each step where all nodes find it.
TRAIN = """\
import json, sys, time, urllib.request
import torch
import torch.distributed as dist

def kept(data=None):
    with urllib.request.urlopen(sys.argv[1], data) as answer:
        return json.load(answer)

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
step = kept()["step"]
while True:
    total = torch.tensor([1.0, kept()["end"]])
    dist.all_reduce(total)
    assert int(total[0]) == world
    if total[1]:
        break
    step += 1
    if rank == 0:
        kept(json.dumps([step, world]).encode())
    dist.barrier()
    time.sleep(0.1)
dist.destroy_process_group()
print("trained", step)
"""


class Checkpoints(ThreadingHTTPServer):
    """A shared store of the last step: ``steps`` are all stored ones, with their numbers of workers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.steps: list[tuple[int, int]] = []
        self.end = False

    def until_trained_by(self, workers: int) -> bool:
        before = len(self.steps)
        return wait_until(
            lambda: [world for _, world in self.steps[before:]].count(workers) >= 5, seconds=PATIENCE, pause=0.1
        )


class _Handler(BaseHTTPRequestHandler):
    server: Checkpoints

    def do_GET(self) -> None:
        steps = self.server.steps
        body = json.dumps({"step": steps[-1][0] if steps else 0, "end": self.server.end}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        step, world = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.steps.append((step, world))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def checkpoints() -> Iterator[Checkpoints]:
    with Checkpoints() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@with_torch
@pytest.mark.soak
@pytest.mark.parametrize("sizes", [(2,), (3, 2)], ids=str)
def test_training_in_pods_goes_on_while_they_come_and_go_and_node_0_is_lost(
    lab: KubeLab, kube_cluster: RealCluster, sizes: tuple[int, ...]
) -> None:
    # Its pods have this machine's Python with torch, and its loopback.
    stand_in(kube_cluster)
    rendezvous = "last_call_timeout=1,join_timeout=300,keep_alive_interval=2"
    lab.kubernetes(env={"PET_RDZV_CONF": rendezvous, "OMP_NUM_THREADS": "1"})
    (lab.project.root / "train.py").write_text(TRAIN)
    lab.run("-c", "k8s", "init")
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    with checkpoints() as kept:
        words = ("--elastic", "1:3", "--", torchrun, "train.py", f"http://127.0.0.1:{kept.server_port}/")
        job_id = str(lab.ask("-c", "k8s", "submit", *words)["job_id"])
        place = ("-n", lab.namespace)

        def pods() -> list[str]:
            items = kube_cluster.json("get", "pods", *place)["items"]
            running = [pod["metadata"] for pod in items if pod["status"].get("phase") == "Running"]
            return sorted(pod["name"] for pod in running if "deletionTimestamp" not in pod)

        def explain() -> str:
            return f"{kept.steps[-3:]} {pods()} {lab.run('q', job_id)}"

        try:
            assert kept.until_trained_by(1), explain()
            for size in sizes:
                lab.run("scale", job_id, str(size))
                assert kept.until_trained_by(size), explain()
            assert "may have 1 to 3 nodes, not 4" in lab.run("scale", job_id, "4", code=2).err
            first = pods()[0]
            assert first.startswith(f"{lab.name_of(job_id)}-0-"), pods()
            kube_cluster.kubectl("delete", "pod", first, *place, "--grace-period=0", "--force")
            assert wait_until(lambda: first not in pods() and len(pods()) == 2, seconds=PATIENCE), explain()
            assert kept.until_trained_by(2), explain()
            if len(sizes) > 1:
                lab.run("scale", job_id, "1")
                assert kept.until_trained_by(1), explain()
        finally:
            kept.end = True
        job = lab.until(job_id)
        assert (job["status"], job["exit_code"]) == ("Completed", 0), explain()
        # A worker may end between two steps; the step is repeated, and none is missing.
        assert all(later[0] - earlier[0] in (0, 1) for earlier, later in pairwise(kept.steps)), kept.steps
    changes = [one["wanted"] for one in job["elastic"]["changes"]]
    wanted = [now for now, before in zip(changes, [0, *changes], strict=False) if now != before]
    assert wanted == ([1, 2] if len(sizes) == 1 else [1, 3, 2, 1])
