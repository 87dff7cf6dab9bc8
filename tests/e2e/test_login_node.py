"""Slurm behind a real ``ssh``: Debian's sshd, with its own keys and port, is the login node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_jobs import Lab, lab
from tests.servers.slurm_cluster import SlurmCluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.servers.sshd import SshServer, client_config, client_folder, missing_parts

__all__ = ["lab", "slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.sshd]

HOST = "login.example.org"


@pytest.fixture
def login(lab: Lab, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SshServer]:
    """The login node of ``uni``: only its sessions can reach the cluster, and they have their own home."""
    missing = missing_parts()
    if missing:
        pytest.skip(missing)
    home = tmp_path / "their-home"
    home.mkdir()
    with SshServer(tmp_path / "sshd", {**slurm_cluster.environ, "HOME": str(home)}) as server:
        config = client_config(tmp_path, {HOST: server})
        lab.project.environ["PATH"] = f"{client_folder(tmp_path, config)}:{os.environ['PATH']}"
        del lab.project.environ["SLURM_CONF"]
        shared = {"shared_root": str(lab.project.root)}
        lab.configure("uni", "slurm", gpu_per_node=0, ssh=HOST, slurm=shared)
        yield server


def test_a_cluster_is_driven_through_a_login_node(lab: Lab, login: SshServer, tmp_path: Path) -> None:
    job_id = lab.submit("uni", "python3", "show.py", "a b; $HOME", gpus=2)
    assert lab.run("logs", job_id, "-F", "--rank", "1").out == "[1] rank 1 is done\n"
    assert lab.job(job_id)["status"] == "Completed"
    assert json.loads(lab.container.get("mine/output/facts/1.json"))["argv"] == ["a b; $HOME"]
    assert (tmp_path / "their-home" / ".blobsync" / "jobs" / job_id / "job.sh").exists()
    assert login.log.count("Accepted publickey") > 3
    # sbatch ends with 255, as ssh does without a connection.
    rejected = lab.run("--json", "-c", "uni", "-p", "{slurm: {mem: 4x}}", "submit", "true", code=1).errors[0]
    assert rejected["message"] == "sbatch rejected the job: Invalid --mem specification"
    assert [job["job_id"] for job in lab.ask("q")["jobs"]] == [job_id]
    assert not list((tmp_path / "their-home" / ".blobsync" / "jobs").glob("*/secrets.json"))


@pytest.mark.soak
def test_a_lost_connection_is_told_from_the_jobs_end(lab: Lab, login: SshServer) -> None:
    job_id = lab.submit("uni", "echo up; sleep 600")
    lab.until(job_id, "Running")
    login.stop()
    stopped = lab.run("--json", "abort", job_id, code=1)
    assert "unknown whether" in stopped.errors[0]["message"] and HOST in stopped.errors[0]["message"]
    assert lab.job(job_id)["status"] == "Running"
    login.start()
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled"
    (login.base / "authorized_keys").write_text("")
    refused = lab.run("--json", "-c", "uni", "summary", code=2).errors[0]
    assert HOST in refused["message"] and "Permission denied (publickey)" in refused["message"]
    assert refused["hint"].endswith(f": ssh {HOST} true")
