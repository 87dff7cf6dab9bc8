"""20,000 files and 8 GB over four tasks of this machine, two nodes of Slurm, and two pods: up, across and down, with a
process killed in each. Pods see no disk of ours, so there only the copy is spread."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import Azurite, azurite_at
from tests.e2e.conftest import new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.test_kubernetes import kube_cluster
from tests.e2e.test_spread import nothing_is_left, tasks_of
from tests.e2e.world import Container, Done, Project
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.kube.cluster import IMAGE, RealCluster, stand_in
from tests.servers.slurm_cluster import SlurmCluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["kube_cluster", "nothing_is_left", "slurm_cluster"]

FILES = int(os.environ.get("SOAK_SPREAD_FILES") or 20_000)
BYTES = int(os.environ.get("SOAK_SPREAD_BYTES") or 8 << 30)
_LARGE = 16
_PIECE = 8 << 20
_SECONDS = 3600.0


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): _sha256(file) for file in folder.rglob("*") if file.is_file()}


def _in_container(container: Container) -> dict[str, str]:
    def of_one(name: str) -> tuple[str, str]:
        digest = hashlib.sha256()
        for piece in container.blob(name).download_blob().chunks():
            digest.update(piece)
        return name.removeprefix("data/"), digest.hexdigest()

    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(of_one, container.names()))


def _write(folder: Path) -> None:
    """``FILES`` small ones in folders, and the rest of ``BYTES`` in a few large ones."""
    chance = random.Random(17)
    for number in range(FILES - _LARGE):
        file = folder / f"part{number // 500}" / f"f{number:05}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.choice((0, 700, 4096, 20_000))))
    for number in range(_LARGE):
        with (folder / f"large{number}.bin").open("wb") as target:
            for _ in range(max(1, BYTES // _LARGE // _PIECE)):
                target.write(chance.randbytes(_PIECE))


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """On the disk: in memory, Azurite takes no more than half of the machine's, and this is 16 GB."""
    with azurite_at(tmp_path_factory.mktemp("blobs")) as server:
        yield server


class _Place(NamedTuple):
    """A cluster: what its file says, how many nodes, and the processes of a project's job."""

    extra: Mapping[str, Any]
    nodes: int
    tasks: Callable[[Project], list[int]]
    shares_the_disk: bool = True


@pytest.fixture(
    params=[
        "local",
        pytest.param("slurm", marks=pytest.mark.slurm),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ]
)
def place(request: pytest.FixtureRequest, project: Project, tmp_path: Path) -> _Place:  # noqa: F811
    """Four nodes of this machine, two real ones of Slurm, or two pods."""
    if request.param == "local":
        return _Place({}, 4, lambda at: tasks_of(at.root))
    if request.param == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("slurm_cluster")
        project.environ.update(cluster.environ)
        runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
        extra = {"platform": "slurm", "gpu_per_node": 0, "runtime": runtime}
        return _Place(extra, 2, lambda at: tasks_of(at.root.parent))
    kube: RealCluster = request.getfixturevalue("kube_cluster")
    stand_in(kube)
    project.environ.update(kube.environ)
    pods = {"namespace": kube.new_namespace(), "image": IMAGE}
    extra = {"platform": "kubernetes", "kubernetes": pods, "gpu_per_node": 0}
    return _Place(extra, 2, _tasks_in_pods, shares_the_disk=False)


def _tasks_in_pods(at: Project) -> list[int]:
    """The archive that a pod's program is has the job's id in its path."""
    jobs = at.json("q").data["jobs"]
    return tasks_of(Path(jobs[0]["job_id"])) if jobs else []


def _with_a_task_killed(at: Project, place: _Place, *words: str) -> Done:
    process = at.start(*words, "--nodes", str(place.nodes), "--json")
    found: list[int] = []

    def there() -> bool:
        found[:] = place.tasks(at)
        return len(found) >= place.nodes or process.poll() is not None

    assert wait_until(there, seconds=600, pause=0.2)
    # The processes that tasks have forked are the last.
    os.kill(found[-1], signal.SIGKILL)
    return at.finish(process, seconds=_SECONDS)


def _moved(at: Project, place: _Place, *words: str) -> None:
    """Spread, with a process killed; where nodes see no disk of ours, by this machine alone."""
    if place.shares_the_disk or "-f" in words:
        done = _with_a_task_killed(at, place, *words)
    else:
        done = at.json(*words, seconds=_SECONDS)
    assert (done.code, done.data.get("verified")) == (0, FILES), str(done)


@pytest.mark.soak
@pytest.mark.timeout(4 * _SECONDS)
def test_many_files_and_gigabytes_up_across_and_down_lose_a_process_each_time(
    place: _Place,
    project: Project,  # noqa: F811
    new_container: Callable[[str], Container],  # noqa: F811
    service: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    source, destination = new_container("one"), new_container("two")
    _write(project.data)
    expected = _digests(project.data)
    with copy_source_proxy(service) as copying:
        project.configure(source, cluster="from", url=copying.url, extra=place.extra)
        project.configure(destination, url=copying.url, extra=place.extra)
        _moved(project, place, "-c", "from", "u", "data")
        assert _in_container(source) == expected
        _moved(project, place, "u", "data", "-f", "from")
        assert _in_container(destination) == expected
        other = Project(tmp_path / "other", project.environ)
        other.configure(destination, url=copying.url, extra=place.extra)
        _moved(other, place, "d", "data")
    assert _digests(other.data) == expected
