"""A docker daemon as a fixture; importing modules mark their tests ``docker``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.docker_daemon import DockerDaemon, missing_docker


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerDaemon]:
    missing = missing_docker()
    if missing:
        pytest.skip(missing)
    with (
        tempfile.TemporaryDirectory(prefix="bs-docker-") as short,
        DockerDaemon(tmp_path_factory.mktemp("docker"), Path(short)) as daemon,
    ):
        yield daemon
