"""Jobs on Azure ML: ACT's example configuration as it is, against a service that holds requests to the specification.

The service is ``tests/servers/aml_stub.py``; it runs the submitted commands for real, on the blob server's data.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.jobs.board import Board
from tests.e2e.world import Container, Done, Project, every_text_below, wait_until, write_tree
from tests.servers.aml_stub import ARM_TOKEN, ML_TOKEN, AmlStub, serve
from tests.servers.slurm_fixture import slurm_cluster
from tests.unit.test_config_loader import ACT_EXAMPLE

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
SECRET = "sentinel-of-a-secret-value"
SHOW = """\
import json, os, sys
facts = {"argv": sys.argv[1:], "env": dict(os.environ), "data": open("data/voc/a.txt").read()}
os.makedirs("output/facts", exist_ok=True)
json.dump(facts, open("output/facts/%s.json" % os.environ["RANK"], "w"))
print("rank", os.environ["RANK"], "is done", flush=True)
"""
# Waits in a node's own folder, so that each test can let its job go on.
WAIT = "echo begun; while [ ! -e {stop} ]; do sleep 0.1; done; echo ended"


@dataclass
class Lab:
    """ACT's example project; the cluster ``aml`` is its file, ``here`` is this machine."""

    project: Project
    container: Container
    stub: AmlStub

    def write(self, name: str, value: Any) -> None:
        file = self.project.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
        file.chmod(0o600)

    def workspace(self, **changes: str) -> None:
        known = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
        value = {**known, "management_endpoint": self.stub.url, **changes}
        self.write("aux_data/aml/config.json", json.dumps(value))

    def cluster(self, name: str = "aml", **changes: Any) -> None:
        self.write(f"aux_data/aml/{name}.yaml", {**yaml.safe_load(ACT_EXAMPLE), **changes})

    def run(self, *words: str, code: int = 0) -> Done:
        done = self.project.run(*words)
        assert done.code == code, str(done)
        return done

    def ask(self, *words: str, code: int = 0) -> dict[str, Any]:
        return self.run("--json", *words, code=code).data

    def submit(self, *words: str, cluster: str = "aml") -> str:
        job_id: str = self.ask("-c", cluster, "submit", *words)["job_id"]
        return job_id

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        board = Board(self.project.root, {**os.environ, **self.project.environ})
        wanted = states or ("Completed", "Failed", "Canceled")

        def there() -> bool:
            return board.refresh([board.history.find(job_id)]).records[0].info.state.value in wanted

        assert wait_until(there, seconds=PATIENCE, pause=0.1), self.run("q", job_id)
        return self.detail(job_id)

    def detail(self, job_id: str) -> dict[str, Any]:
        jobs: list[dict[str, Any]] = self.ask("q", job_id)["jobs"]
        return jobs[0]


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[AmlStub]:
    with serve(tmp_path / "service") as stub:
        yield stub
        assert stub.violations == []


@pytest.fixture
def lab(project: Project, container: Container, stub: AmlStub, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(project, container, stub)
    account = {
        "account_name": container.account,
        "container_name": container.name,
        "blob_endpoint": f"{container.service}/{container.account}",
        "account_key": container.key,
    }
    lab.write("aux_data/configs/acct.yaml", account)
    lab.write("aux_data/aml/aml.yaml", ACT_EXAMPLE)
    lab.workspace()
    sign_in(project, tmp_path)
    write_tree(project.root, {"show.py": SHOW.encode(), "src/CMC/big.py": b"left out"})
    container.put("path/to/data/voc/a.txt", b"a picture")
    lab.run("init")
    # Asking for states in this process has to find the same az.
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path}/bin:{before}"
    yield lab
    os.environ["PATH"] = before


def sign_in(project: Project, folder: Path) -> None:
    """An ``az`` that gives out another token for each service."""
    az = folder / "bin" / "az"
    az.parent.mkdir()
    answer = '{"accessToken": "%s", "expires_on": 4102444800, "tokenType": "Bearer", "tenant": "t"}'
    az.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f"*ml.azure.com*) echo '{answer % ML_TOKEN}';;\n*) echo '{answer % ARM_TOKEN}';;\nesac\n"
    )
    az.chmod(0o755)
    project.environ["PATH"] = f"{az.parent}:/usr/local/bin:/usr/bin:/bin"


def test_acts_example_from_check_to_output(lab: Lab) -> None:
    lab.run("config", "check")
    planned = lab.run("submit", "--dry-run", "python", "show.py", "two words").out
    assert f"{lab.stub.base}/jobs/" in planned and '"distributionType": "Mpi"' in planned
    assert lab.container.key not in planned and not lab.stub.jobs

    job_id = lab.submit("-n", "8", "python", "show.py", "two words", "$HOME;")
    body = lab.stub.jobs[job_id].body["properties"]
    assert body["computeId"].endswith("/computes/NC24RSV3") and body["experimentName"] == "experiment_name"
    assert body["distribution"] == {"distributionType": "Mpi", "processCountPerInstance": 4}
    assert body["resources"]["instanceCount"] == 2
    done = lab.until(job_id)
    assert (done["status"], done["exit_code"]) == ("Completed", 0), done
    assert done["url"].startswith("https://ml.azure.com/runs/") and job_id in done["url"]
    assert done["tail"] == ["rank 0 is done"]
    names = {Path(path).name for path in done["logs"]}
    assert {f"std_log_process_{rank}.txt" for rank in range(8)} <= names
    for rank in range(8):
        fact = json.loads(lab.container.get(f"path/to/output/facts/{rank}.json"))
        assert fact["argv"] == ["two words", "$HOME;"] and fact["data"] == "a picture"
        env = fact["env"]
        assert (env["NCCL_IB_DISABLE"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("0", "8", str(rank % 4))
        assert env["OMPI_COMM_WORLD_RANK"] == str(rank) and env["NODE_RANK"] == str(rank // 4)
        assert env["MASTER_ADDR"] == "127.0.0.1"
    assert [job["job_id"] for job in lab.ask("q")["jobs"]] == [job_id]


def test_logs_of_a_running_job_grow_and_abort_ends_it(lab: Lab, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job_id = lab.submit("--single", WAIT.format(stop=stop))
    lab.until(job_id, "Running")
    log = lab.project.root / "assets" / job_id / "user_logs" / "std_log.txt"
    assert wait_until(lambda: lab.detail(job_id)["tail"] == ["begun"], seconds=PATIENCE)
    assert [job["job_id"] for job in lab.ask("qr")["jobs"]] == [job_id]
    assert lab.ask("qq")["jobs"] == []
    before = log.read_text()
    lab.run("abort", job_id[-6:])
    assert lab.until(job_id)["status"] == "Canceled"
    assert log.read_text().startswith(before)
    lab.run("a", job_id)
    shell = lab.run("ssh", job_id, "--show").out
    assert shell.startswith(f"az ml job connect-ssh --name {job_id} --node-index 0 --resource-group rg0")


def test_a_failing_job_and_its_resubmission_elsewhere_and_back(lab: Lab) -> None:
    lab.cluster("here", platform="local", local={"slots": 2, "gpus": 0}, runtime={"python": sys.executable})
    job_id = lab.submit("--single", "echo trying; exit 7")
    failed = lab.until(job_id)
    assert (failed["status"], failed["exit_code"]) == ("Failed", 7)
    assert "exited with status code 7" in failed["reason"] and failed["tail"] == ["trying"]
    assert [job["job_id"] for job in lab.ask("qf")["jobs"]] == [job_id]
    assert lab.run("logs", job_id, "-F").out == "trying\n"
    here = lab.ask("resubmit", job_id[-6:], "-t", "here")
    assert here["backend"] == "local"
    assert lab.until(here["job_id"])["exit_code"] == 7
    back = lab.ask("resubmit", here["job_id"], "-t", "aml")
    assert back["backend"] == "aml" and back["code_digest"] == failed["code_digest"]
    assert lab.until(back["job_id"])["exit_code"] == 7


@pytest.mark.slurm
def test_resubmission_from_aml_to_slurm_and_back(lab: Lab, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = lab.project.environ["PATH"]
    lab.project.environ.update(request.getfixturevalue("slurm_cluster").environ)
    lab.project.environ["PATH"] = f"{path}:{lab.project.environ['PATH']}"
    runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
    lab.cluster("uni", platform="slurm", gpu_per_node=0, runtime=runtime)
    stop = tmp_path / "stop"
    first = lab.submit("--single", WAIT.format(stop=stop))
    lab.until(first, "Running")
    second = lab.ask("resubmit", first, "-t", "uni")
    assert second["backend"] == "slurm"
    assert lab.until(first)["status"] == "Canceled"
    lab.until(second["job_id"], "Running")
    third = lab.ask("resubmit", second["job_id"], "-t", "aml")
    stop.touch()
    assert lab.until(third["job_id"])["tail"][-1] == "ended"


def test_a_job_of_another_machine_is_found_in_the_workspace(lab: Lab) -> None:
    job_id, _ = [lab.submit("--single", "true") for _ in range(2)]
    lab.until(job_id)
    (lab.project.root / ".blobsync" / "jobs.sqlite").unlink()
    assert lab.ask("history")["jobs"] == []
    found = lab.detail(job_id[-8:])
    assert (found["job_id"], found["status"], found["command"]) == (job_id, "Completed", ["true"])
    again = lab.ask("resubmit", job_id[-8:])
    assert lab.until(again["job_id"])["status"] == "Completed"
    nothing = lab.run("q", "ffff0000", code=4)
    assert "no job" in nothing.err


def test_no_secret_is_where_others_can_read_it(lab: Lab) -> None:
    lab.cluster(env={"MY_TOKEN": SECRET, "PLAIN": "1"})
    program = "import os,sys; sys.exit(os.environ['MY_TOKEN'] != sys.argv[1].replace('_', '-'))"
    lab.stub.held = True
    job_id = lab.submit("--single", "python", "-c", program, SECRET.replace("-", "_"))
    blob = f"path/to/code.zip.d/secrets/{job_id}.json"
    assert lab.container.names("path/to/code.zip.d/secrets") == [blob]
    lab.stub.release(lab.stub.jobs[job_id])
    assert lab.until(job_id)["status"] == "Completed"
    assert lab.container.names("path/to/code.zip.d/secrets") == []
    said = [json.dumps(lab.stub.jobs[job_id].body), json.dumps(lab.stub.environments), *lab.stub.requests]
    said += list(lab.stub.datastores)
    kept = list(every_text_below(lab.project.root / ".blobsync", lab.project.root / "assets"))
    kept += list(every_text_below(lab.stub.folder / job_id / "logs", lab.stub.folder / job_id / "user_logs"))
    for secret in (SECRET, lab.container.key, ARM_TOKEN, ML_TOKEN):
        assert not [text[:80] for text in said if secret in text]
        assert not [file for file, data in kept if secret.encode() in data]
    # The bundle in the command is packed: look inside.
    assert SECRET not in unpacked(lab.stub.jobs[job_id].body["properties"]["command"])


def unpacked(command: str) -> str:
    import base64
    import zlib

    return zlib.decompress(base64.b64decode(command.partition('b64decode("')[2].partition('"')[0])).decode()


def test_parts_of_a_folder_and_uploads_with_a_sas(lab: Lab) -> None:
    lab.container.put("path/to/data/other/b.txt", b"not wanted")
    account = yaml.safe_load((lab.project.root / "aux_data/configs/acct.yaml").read_text())
    del account["account_key"]
    lab.write("aux_data/configs/acct.yaml", {**account, "sas_token": lab.container.sas("racwdl")})
    entries = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    entries["data_folder"].update(mode="download", include=["voc"])
    entries["output_folder"]["mode"] = "upload"
    lab.cluster(config_param=entries)
    done = lab.until(lab.submit("--single", "find data -name '*.txt'; cp data/voc/a.txt output/copy.txt"))
    assert (done["status"], done["tail"]) == ("Completed", ["data/voc/a.txt"]), done
    assert lab.container.get("path/to/output/copy.txt") == b"a picture"
    kinds = {store["properties"]["credentials"]["credentialsType"] for store in lab.stub.datastores.values()}
    assert kinds == {"Sas"}


def test_a_setup_that_fails(lab: Lab) -> None:
    lab.cluster(setup="echo preparing; exit 5")
    done = lab.until(lab.submit("--single", "true"))
    assert (done["status"], done["exit_code"]) == ("Failed", 72)
    assert "Setup" in {cause["code"] for cause in done["causes"]}


def test_summary_and_blame(lab: Lab, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    lab.submit("--single", WAIT.format(stop=stop))
    found = lab.ask("summary")
    assert (found["nodes_total"], found["nodes_free"], found["gpus_free"]) == (10, 6, 24)
    assert "STANDARD_NC6, Dedicated" in found["notes"]
    holders = lab.ask("blame")["holders"]
    assert [holder["user"] for holder in holders] == ["Somebody Else"]
    stop.touch()
    target = "-p", "{platform: singularity, singularity_instance_type: Singularity.ND40_v2, compute_target: vc1}"
    assert "ND40_v2: Premium 24 of 64 used" in lab.ask(*target, "summary")["notes"]


def test_a_login_that_is_missing_is_told(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "bin" / "az").write_text("#!/bin/sh\necho 'ERROR: Please run az login' >&2; exit 1\n")
    done = lab.project.run("--json", "submit", "true")
    assert done.code == 2 and done.codes == {"login_required"}, done
    assert done.errors[0]["hint"] == "az login"
    assert lab.ask("history")["jobs"] == []


def test_known_jobs_are_shown_without_a_login(lab: Lab, tmp_path: Path) -> None:
    job_id = lab.submit("--single", "echo kept")
    assert lab.until(job_id)["tail"] == ["kept"]
    (tmp_path / "bin" / "az").write_text("#!/bin/sh\nexit 1\n")
    shown = lab.detail(job_id)
    assert (shown["status"], shown["tail"]) == ("Completed", ["kept"])
