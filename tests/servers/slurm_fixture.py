"""The Slurm cluster as a fixture; importing modules mark their tests ``slurm``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.slurm_cluster import SlurmCluster, missing_programs


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    missing = missing_programs()
    if missing:
        pytest.skip(f"Slurm is not installed here: there is no {missing[0]} (Debian: apt-get install slurm-wlm)")
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
