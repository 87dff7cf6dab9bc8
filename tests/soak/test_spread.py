"""20,000 files and 8 GB over four nodes of this machine: up, down and across, with a worker killed in each."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.test_spread import nothing_is_left, workers_of
from tests.e2e.world import Container, Done, Project, wait_until
from tests.servers.copy_source_proxy import copy_source_proxy

__all__ = ["nothing_is_left"]

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
    found = {}
    for name in container.names():
        digest = hashlib.sha256()
        for piece in container.blob(name).download_blob().chunks():
            digest.update(piece)
        found[name.removeprefix("data/")] = digest.hexdigest()
    return found


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


def _with_a_worker_killed(at: Project, *words: str) -> Done:
    process = at.start(*words, "--nodes", "4", "--json")
    assert wait_until(lambda: len(workers_of(at.root)) == 4 or process.poll() is not None, seconds=600, pause=0.2)
    (victim, *_) = workers_of(at.root)
    os.kill(victim, signal.SIGKILL)
    return at.finish(process, seconds=_SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(4 * _SECONDS)
def test_many_files_and_gigabytes_up_across_and_down_lose_a_worker_each_time(
    project: Project,  # noqa: F811
    new_container: Callable[[str], Container],  # noqa: F811
    service: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    source, destination = new_container("one"), new_container("two")
    _write(project.data)
    expected = _digests(project.data)
    with copy_source_proxy(service) as copying:
        project.configure(source, cluster="from", url=copying.url)
        project.configure(destination, url=copying.url)
        done = _with_a_worker_killed(project, "-c", "from", "u", "data")
        assert (done.code, done.data["verified"]) == (0, FILES), str(done)
        assert _in_container(source) == expected
        done = _with_a_worker_killed(project, "u", "data", "-f", "from")
        assert (done.code, done.data["verified"]) == (0, FILES), str(done)
        assert _in_container(destination) == expected
        other = Project(tmp_path / "other", project.environ)
        other.configure(destination, url=copying.url)
        done = _with_a_worker_killed(other, "d", "data")
        assert (done.code, done.data["verified"]) == (0, FILES), str(done)
    assert _digests(other.data) == expected
