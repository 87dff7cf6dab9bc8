"""Large files for a long time: random changes and kills, and gigabytes."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import container, new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.world import Container, Project, kill_tree
from tests.servers.fault_proxy import fault_proxy
from tests.soak.large_file_rounds import Rounds
from tests.waiting import wait_until

ROUNDS = int(os.environ.get("SOAK_ROUNDS") or 200)
SEED = int(os.environ.get("SOAK_SEED") or time.time())
_GIB = 1 << 30


@pytest.mark.soak
@pytest.mark.timeout(ROUNDS * 60 + 300)
def test_no_round_of_changes_and_kills_ends_wrong(
    project: Project,  # noqa: F811
    container: Container,  # noqa: F811
    service: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    other = Project(tmp_path / "other", {"HOME": str(tmp_path / "other-home")})
    for folder in (other.root, tmp_path / "other-home"):
        folder.mkdir()
    with fault_proxy(service) as line:
        for each in (project, other):
            each.configure(container, url=line.url)
        rounds = Rounds(SEED, (project, other), container, line)
        for _ in range(ROUNDS):
            rounds.go()
            print(f"seed {SEED}: {rounds.account}", *rounds.account.wrong, flush=True)
            assert len(rounds.account.wrong) < 5, rounds.account.wrong
    assert not rounds.account.wrong, (SEED, rounds.account.wrong)


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while data := stream.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_after_a_kill_at_half_of_two_gigabytes_the_rest_moves(
    project: Project,  # noqa: F811
    container: Container,  # noqa: F811
    service: str,  # noqa: F811
) -> None:
    project.data.mkdir()
    file = project.data / "a.bin"
    chance = random.Random(SEED)
    with file.open("wb") as out:
        for _ in range(64):
            out.write(chance.randbytes(2 * _GIB // 64))
    expected = _digest(file)
    with fault_proxy(service) as line:
        project.configure(container, url=line.url)
        for word, moved in (("u", "uploaded"), ("d", "downloaded")):
            if word == "d":
                file.unlink()
            line.reset()
            process = project.start(word, "data", "--engine", "direct")
            at_half = wait_until(lambda moved=moved: getattr(line.stats(), moved) >= _GIB, seconds=600, pause=0.05)  # type: ignore[misc]
            assert at_half and process.poll() is None
            kill_tree(process.pid)
            project.finish(process)
            line.reset()
            done = project.json(word, "data", "--engine", "direct", seconds=900)
            assert done.code == 0, str(done)
            again = getattr(line.stats(), moved)
            print(f"{word}: {again:,} bytes after a kill at half of {2 * _GIB:,}")
            assert again <= 0.6 * 2 * _GIB
            assert _digest(file) == expected
