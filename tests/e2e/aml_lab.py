"""ACT's example project with a fake of Azure ML and a real blob server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import Container, JobLab, Project, write_tree
from tests.servers.aml_stub import ARM_TOKEN, ML_TOKEN, AmlStub, serve
from tests.unit.test_config_loader import ACT_EXAMPLE

SHOW = """\
import json, os, sys
facts = {"argv": sys.argv[1:], "env": dict(os.environ), "data": open("data/voc/a.txt").read()}
os.makedirs("output/facts", exist_ok=True)
json.dump(facts, open("output/facts/%s.json" % os.environ["RANK"], "w"))
print("rank", os.environ["RANK"], "is done", flush=True)
"""


@dataclass
class Lab(JobLab):
    """ACT's example project; the cluster ``aml`` is its file, ``here`` is this machine."""

    container: Container
    stub: AmlStub

    def workspace(self, **changes: str) -> None:
        known = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
        value = {**known, "management_endpoint": self.stub.url, **changes}
        self.write("aux_data/aml/config.json", json.dumps(value))

    def cluster(self, name: str = "aml", **changes: Any) -> None:
        self.write(f"aux_data/aml/{name}.yaml", {**yaml.safe_load(ACT_EXAMPLE), **changes})

    def elsewhere(self, name: str, platform: str, **changes: Any) -> None:
        """The example for another platform: without keys that it does not support, and without the image, for machines
        without a container runtime."""
        lacking = ("aml_config", "compute_target", "experiment_name")
        self.cluster(name, platform=platform, use_custom_docker=False, **dict.fromkeys(lacking), **changes)

    def submit(self, *words: str, cluster: str = "aml", gpus: int | None = None) -> str:
        count = () if gpus is None else ("-n", str(gpus))
        job_id: str = self.ask("-c", cluster, *count, "submit", *words)["job_id"]
        return job_id

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        super().until(job_id, *states)
        return self.detail(job_id)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[AmlStub]:
    with serve(tmp_path / "service") as stub:
        yield stub
        assert stub.violations == []


@pytest.fixture
def lab(with_node_archive: Project, container: Container, stub: AmlStub, tmp_path: Path) -> Iterator[Lab]:
    project = with_node_archive
    lab = Lab(project, container, stub)
    lab.write("aux_data/configs/acct.yaml", container.account_file)
    lab.write("aux_data/aml/aml.yaml", ACT_EXAMPLE)
    lab.workspace()
    sign_in(project, tmp_path)
    write_tree(project.root, {"show.py": SHOW.encode(), "src/CMC/big.py": b"left out"})
    container.put("path/to/data/voc/a.txt", b"a picture")
    lab.run("init")
    # Queries of states in this process must find the same az.
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}/bin:{before}"
    yield lab
    os.environ["PATH"] = before


def sign_in(project: Project, folder: Path) -> None:
    """An ``az`` with another token for each service."""
    az = folder / "bin" / "az"
    az.parent.mkdir()
    answer = '{"accessToken": "%s", "expires_on": 4102444800, "tokenType": "Bearer", "tenant": "t"}'
    az.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f"*ml.azure.com*) echo '{answer % ML_TOKEN}';;\n*) echo '{answer % ARM_TOKEN}';;\nesac\n"
    )
    az.chmod(0o755)
    project.environ["PATH"] = f"{az.parent}:/usr/local/bin:/usr/bin:/bin"
