"""The Kubernetes cluster as a fixture: the stand-in, or the real one of ``BLOBSYNC_TEST_KUBECONFIG``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kube.cluster import KubeCluster, RealCluster, missing_for_kubernetes

# Speeds up time: ten seconds of back-off take one and a half.
SCALE = 0.15


@pytest.fixture(scope="session")
def kube_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    if given := os.environ.get("BLOBSYNC_TEST_KUBECONFIG"):
        real = RealCluster(Path(given))
        try:
            yield real
        finally:
            real.close()
        return
    if missing := missing_for_kubernetes():
        pytest.skip(missing)
    with KubeCluster(tmp_path_factory.mktemp("kube"), scale=SCALE) as cluster:
        yield cluster
