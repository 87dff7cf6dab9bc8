"""``--nodes`` on Kubernetes: a copy between accounts by pods, without a shared disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_kubernetes import kube_cluster
from tests.e2e.test_spread import nothing_is_left, tasks_of
from tests.e2e.world import Container, Project, hashes, random_files
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.kube.cluster import IMAGE, RealCluster, stand_in
from tests.waiting import wait_until

__all__ = ["kube_cluster", "nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes, pytest.mark.timeout(600)]

_FILES = random_files(20261218, 120, [9 << 20] * 2)


@pytest.mark.soak
def test_pods_copy_from_server_to_server_and_lose_a_process(
    project: Project, new_container: Callable[[str], Container], service: str, kube_cluster: RealCluster
) -> None:
    stand_in(kube_cluster)
    source, destination = new_container("one"), new_container("two")
    for name, data in _FILES.items():
        source.put(f"data/{name}", data)
    project.environ.update(kube_cluster.environ)
    place = {"platform": "kubernetes", "kubernetes": {"namespace": kube_cluster.new_namespace(), "image": IMAGE}}
    with copy_source_proxy(service) as copying:
        project.configure(source, cluster="from", url=copying.url)
        project.configure(destination, url=copying.url, extra={**place, "gpu_per_node": 0})
        refused = project.json("u", "data", "--nodes", "2")
        assert refused.code == 2 and "do not see this disk" in refused.errors[0]["message"], str(refused)
        unlimited = project.json("u", "data", "-f", "from", "--nodes", "2", "--detach")
        assert unlimited.code == 2 and "no time limit" in unlimited.errors[0]["message"], str(unlimited)
        assert not project.json("q").data["jobs"]
        process = project.start("u", "data", "-f", "from", "--nodes", "2", "--json")
        assert wait_until(lambda: project.json("q").data["jobs"] or process.poll() is not None, seconds=60, pause=0.5)
        job = project.json("q").data["jobs"][0]["job_id"]
        # The path of a pod's program contains the job's id.
        assert wait_until(lambda: tasks_of(Path(job)) or process.poll() is not None, seconds=120)
        for pid in tasks_of(Path(job))[-1:]:
            os.kill(pid, signal.SIGKILL)
        done = project.finish(process, seconds=300)
        assert (done.code, done.data["transferred"]) == (0, len(_FILES)), str(done)
        # Only their program, shards and records went through pods; of the program each pod fetches a megabyte.
        assert copying.stats().downloaded < copying.stats().fetched // 2
    assert destination.contents() == {f"data/{name}": digest for name, digest in hashes(_FILES).items()}
