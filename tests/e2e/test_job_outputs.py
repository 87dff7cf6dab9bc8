"""``outputs`` and ``output: per_job`` from the command line, while a job runs and after its end."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import Container, Project, wait_until

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
# Writes into its own folder and into the shared one, and waits to be let go.
WRITE = """\
import os, sys, time
own = os.environ["BLOBSYNC_OUTPUT"]
os.makedirs(own + "/deep")
open(own + "/deep/model.bin", "w").write("a model")
open("output/shared.txt", "w").write("for all")
# Uploads wait until a file has been left alone for a while.
for path in (own + "/deep/model.bin", "output/shared.txt"):
    os.utime(path, (1000, 1000))
while len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def configure(project: Project, container: Container, **more: Any) -> None:
    account = {
        "account_name": container.account,
        "container_name": container.name,
        "blob_endpoint": f"{container.service}/{container.account}",
        "account_key": container.key,
    }
    here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
    entries = {
        "code_path": {**here, "path": "mine/code.zip"},
        "output_folder": {**here, "path": "mine/output", "mode": "upload"},
    }
    runtime = {"python": sys.executable, "scratch": f"{project.root.parent}/scratch", "sync_seconds": 1}
    cluster = {"platform": "local", "local": {"gpus": 0}, "config_param": entries, "runtime": runtime, **more}
    for name, value in (("aux_data/configs/box.yaml", account), ("aux_data/aml/aml.yaml", cluster)):
        path = project.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(value))
        path.chmod(0o600)
    (project.root / "write.py").write_text(WRITE)


def test_a_job_has_outputs_of_its_own_while_it_runs(project: Project, container: Container, tmp_path: Path) -> None:
    configure(project, container, output="per_job")
    assert project.run("init").code == 0
    (tmp_path / "busy").touch()
    job_id = project.run("--json", "submit", "python3", "write.py", str(tmp_path / "busy")).data["job_id"]

    def listed() -> list[dict[str, Any]]:
        files: list[dict[str, Any]] = project.run("--json", "outputs", job_id).data["files"]
        return files

    assert wait_until(lambda: bool(listed()), seconds=PATIENCE, pause=1.0)
    running = project.run("--json", "outputs", job_id, "deep", "--url", "--expiry", "1h")
    [file] = running.data["files"]
    known = {"output": "output", "name": "deep/model.bin", "path": f"output/{job_id}/deep/model.bin", "size": 7}
    assert running.data["status"] == "Running" and file.items() >= known.items()
    with urllib.request.urlopen(file["url"]) as answer:
        assert answer.read() == b"a model"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(file["url"].replace("model.bin", "other.bin"))
    assert "sig=" not in project.run("outputs", job_id).out
    (tmp_path / "busy").unlink()
    assert project.run("logs", job_id, "-F").code == 0
    assert container.get("mine/output/shared.txt") == b"for all"

    done = project.run("--json", "outputs", job_id, "--download")
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)
    here = project.root / "output" / job_id
    assert [path.read_text() for path in here.rglob("*") if path.is_file()] == ["a model"]
    none = project.run("outputs", job_id, "nothing")
    assert none.code == 4 and "has written no nothing" in none.err
