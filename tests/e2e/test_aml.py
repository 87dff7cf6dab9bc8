"""Jobs on Azure ML: ACT's unchanged example configuration, with a service that validates requests.

The service is ``tests/servers/aml_stub.py``; it runs the submitted commands on the blob server's data.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from blobsync.base.redaction import SasToken
from blobsync.tunnels.tunnel_keeper import is_answered
from tests.e2e.aml_lab import Lab, lab, stub
from tests.e2e.world import blobsync_command, every_text_below
from tests.servers.aml_stub import ARM_TOKEN, ML_TOKEN
from tests.unit.test_config_loader import ACT_EXAMPLE
from tests.waiting import PATIENCE, wait_until

__all__ = ["lab", "stub"]

pytestmark = pytest.mark.e2e

SECRET = "sentinel-of-a-secret-value"
# Waits for a file in the node's folder, so that each test can let its job continue.
WAIT = "echo begun; while [ ! -e {stop} ]; do sleep 0.1; done; echo ended"
# Replaces ssh: records its arguments, and opens the port.
SSH = """\
#!{python}
import shlex, socket, sys, time
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[1])
with open("{called}", "w") as target:
    target.write(shlex.join(sys.argv))
with socket.create_server(("127.0.0.1", port)):
    time.sleep(600)
"""
# Replaces az, before the one with tokens.
AZ = """\
#!/bin/sh
[ "$1" = --version ] || exec {signed_in} "$@"
echo "Python location '/az/python'"
echo "Extensions directory '{extensions}'"
"""


def test_acts_example_from_check_to_output(lab: Lab) -> None:
    lab.cluster(output="per_job")
    lab.run("config", "check")
    planned = lab.run("submit", "--dry-run", "python", "show.py", "two words").out
    assert f"{lab.stub.base}/jobs/" in planned and '"distributionType": "Mpi"' in planned
    assert lab.container.key not in planned and not lab.stub.jobs
    assert "characters: the bootstrap and the specification)" in planned and max(map(len, planned.splitlines())) < 500
    whole = lab.ask("submit", "--dry-run", "python", "show.py")["plan"]
    assert max(map(len, whole.splitlines())) > 10_000

    job_id = lab.submit("python", "show.py", "two words", "$HOME;", gpus=8)
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
        assert env["BLOBSYNC_OUTPUT"] == f"{env['BLOBSYNC_ROOT']}/output/{job_id}"
    assert [job["job_id"] for job in lab.ask("q")["jobs"]] == [job_id]
    lab.container.put(f"path/to/output/{job_id}/model.pt", b"a model")
    [model] = lab.ask("outputs", job_id, "--url")["files"]
    assert (model["name"], model["size"]) == ("model.pt", 7) and "sp=r&" in f"{model['url']}&"


@pytest.mark.soak
def test_compute_clusters_are_made_scaled_and_removed_from_the_command_line(lab: Lab) -> None:
    asked = ("compute", "create", "gpu", "--vm-size", "Standard_NC6s_v3", "--max", "4", "--idle", "10m")
    planned = lab.run(*asked, "--dry-run").out
    assert planned.startswith("# PUT ") and '"nodeIdleTimeBeforeScaleDown": "PT600S"' in planned and not lab.stub.made
    made = lab.ask(*asked)["compute"]
    assert (made["name"], made["state"], made["max_nodes"], made["idle_seconds"]) == ("gpu", "Succeeded", 4, 600)
    assert lab.run("compute", "scale", "gpu", "2").out == "gpu: Succeeded, Standard_NC6s_v3, 2 to 2 nodes\n"
    assert "not a terminal, cannot ask: delete the compute gpu" in lab.run("compute", "rm", "gpu", code=2).err
    assert [one["name"] for one in lab.ask("compute", "ls")["computes"]] == ["gpu", "itp-one"]
    assert lab.run("compute", "rm", "gpu", "-y", "--no-wait").out.startswith("gpu: Deleting")


@pytest.mark.soak
def test_logs_of_a_running_job_grow_and_abort_ends_it(lab: Lab, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job_id = lab.submit("--single", WAIT.format(stop=stop))
    lab.until(job_id, "Running")
    log = lab.project.root / "assets" / job_id / "user_logs" / "std_log.txt"
    assert wait_until(lambda: lab.detail(job_id)["tail"] == ["begun"])
    assert [job["job_id"] for job in lab.ask("qr")["jobs"]] == [job_id]
    assert lab.ask("qq")["jobs"] == []
    before = log.read_text()
    shell = lab.run("ssh", job_id, "--show").out
    assert shell.startswith(f"az ml job connect-ssh --name={job_id} --node-index=0 --resource-group=rg0")
    _open_a_tunnel(lab, job_id, tmp_path)
    lab.run("abort", job_id[-6:])
    assert lab.until(job_id)["status"] == "Canceled"
    assert log.read_text().startswith(before)
    lab.run("a", job_id)
    ended = lab.run("ssh", job_id, code=1).err
    assert f"{job_id} is Canceled: only a running job has nodes to connect to" in ended


def _open_a_tunnel(lab: Lab, job_id: str, tmp_path: Path) -> None:
    """With fakes of az and of ssh, which opens the port and records its arguments."""
    programs, extensions = tmp_path / "programs", tmp_path / "cliextensions"
    connector = extensions / "ml/azext_mlv2/manual/custom/_ssh_connector.py"
    for file, text in (
        (programs / "az", AZ.format(signed_in=tmp_path / "bin/az", extensions=extensions)),
        (programs / "ssh", SSH.format(python=sys.executable, called=tmp_path / "called")),
        (connector, ""),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    before = lab.project.environ["PATH"]
    lab.project.environ["PATH"] = f"{programs}:{before}"
    refused = lab.run("tunnel", job_id, "--port", "6006", code=1).err
    assert f"node 0 of {job_id} has no ssh service" in refused and "ssh_public_key" in refused
    service = {"type": "SSH", "status": "Running", "properties": {"ProxyEndpoint": "wss://ssh-1.nodes.azureml.ms"}}
    lab.stub.services[0] = {"my_ssh": service}
    started = lab.project.start("tunnel", job_id, "--port", "6006")
    try:
        assert started.stdout is not None
        url = started.stdout.readline().strip()
        called = shlex.split((tmp_path / "called").read_text())
        assert f"-L {urlsplit(url).netloc}:127.0.0.1:6006 -- azureuser@azureml-job" in " ".join(called)
        assert f"ProxyCommand=/az/python {connector} wss://ssh-1.nodes.azureml.ms" in called
    finally:
        started.send_signal(signal.SIGINT)
        # 130: it had printed the address, but did not wait for the job's end yet.
        assert lab.project.finish(started).code in (0, 130)
    (tmp_path / "called").unlink()
    _stop_while_nobody_reads_the_url(lab, job_id, tmp_path / "called")
    lab.project.environ["PATH"] = before


def _stop_while_nobody_reads_the_url(lab: Lab, job_id: str, called: Path) -> None:
    """The tunnel is open, but the command does not wait for the job's end yet: ssh must not outlive it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"x"):
            pass
    os.set_blocking(writing, True)
    started = subprocess.Popen(
        [blobsync_command(), "tunnel", job_id, "--port", "6006"],
        cwd=lab.project.root,
        stdout=writing,
        env={**os.environ, **lab.project.environ},
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: called.exists() and "-L" in called.read_text())
        words = shlex.split(called.read_text())
        port = int(words[words.index("-L") + 1].split(":")[1])
        assert wait_until(lambda: is_answered(port))
        # The child is checked twice before the URL is written.
        assert wait_until(lambda: "pipe_write" in Path(f"/proc/{started.pid}/wchan").read_text())
        started.send_signal(signal.SIGINT)
        os.close(reading)
        # Both at once; 0: only the closed pipe was noticed.
        assert started.wait(PATIENCE) in (0, 130)
        assert not is_answered(port)
    finally:
        started.kill()
        os.close(writing)


@pytest.mark.soak
def test_what_people_are_told_while_they_wait(lab: Lab) -> None:
    for word, kind in (("q", ""), ("qq", "queued or preparing "), ("qr", "running or canceling "), ("qf", "failed ")):
        empty = lab.run(word)
        assert (empty.out, empty.err) == ("", f"blobsync: there are no {kind}jobs\n")
    assert "no cluster 'typo'" in lab.run("-c", "typo", "q", code=2).err
    code = lab.container.names("path/to/code.zip.d")
    lab.write("new.py", "print('new')")
    assert "--gres is for Slurm" in lab.run("submit", "--init", "--gres", "gpu:1", "true", code=2).err
    assert lab.container.names("path/to/code.zip.d") == code
    nobody = lab.run("blame")
    assert (nobody.out, nobody.err) == ("", "blobsync: no jobs on cluster aml\n")
    lab.stub.held = True
    job_id = lab.submit("--single", "echo here; exit 4")
    assert lab.ask("summary")["jobs_queued"] == 1
    shown = lab.run("q", job_id).out
    assert "cluster:       aml (aml)\n" in shown and f"page:          https://ml.azure.com/runs/{job_id}" in shown
    asked = len(lab.stub.requests)

    def release_once_it_waits() -> None:
        # The job is known to be queued when it is queried again.
        wait_until(lambda: len([each for each in lab.stub.requests[asked:] if job_id in each]) > 2)
        lab.stub.release(lab.stub.jobs[job_id])

    threading.Thread(target=release_once_it_waits).start()
    followed = lab.run("logs", job_id, "-F")
    assert followed.out == "here\n"
    first, last = followed.err.splitlines()
    assert first == f"blobsync: {job_id} is Queued; its logs follow when it runs"
    assert last.startswith(f"blobsync: {job_id}: Failed (4): Execution failed.")
    lab.stub.held = False
    waited = lab.run("submit", "--wait", "--single", "echo shown; exit 3", code=3)
    assert waited.out == "shown\n" and "https://ml.azure.com/runs/" in waited.err.splitlines()[-2]


def test_a_sweep_is_one_job_of_the_service_whose_trials_are_its_tasks(lab: Lab, tmp_path: Path) -> None:
    lab.cluster(output="per_job", multi_process=False)
    go = tmp_path / "go"
    line = f"echo {{word}}; echo {{n}} > $BLOBSYNC_OUTPUT/n; [ -e {go} ] && exit"
    line += "; case {n} in 1) exit 9;; 2) sleep 600;; esac"
    words = ("--zip", "--sweep", "n=0..3", "--sweep", "word=a b,$(pwd),it's,d", "--parallel", "2", line)
    job_id = lab.submit(*words)

    def tasks() -> list[tuple[int, str, int | None]]:
        return [(each["index"], each["status"], each["exit_code"]) for each in lab.detail(job_id)["tasks"]]

    done = [(0, "Completed", 0), (1, "Failed", 9)]
    assert wait_until(lambda: tasks() == [*done, (2, "Running", None), (3, "Completed", 0)])
    assert lab.run("logs", f"{job_id}/1").out == "$(pwd)\n"
    lab.run("abort", f"{job_id}/2")
    ended = lab.until(job_id)
    assert (ended["status"], ended["exit_code"]) == ("Failed", 9)
    assert tasks() == [*done, (2, "Canceled", None), (3, "Completed", 0)]
    assert lab.stub.jobs[job_id].body["properties"]["limits"]["maxConcurrentTrials"] == 2
    go.touch()
    again = lab.ask("resubmit", job_id, "--failed")["job_id"]
    assert lab.until(again)["task_counts"] == {"Completed": 1}
    for each, number in ((job_id, 0), (job_id, 3), (again, 1)):
        assert lab.container.get(f"path/to/output/{each}/{number}/n") == f"{number}\n".encode()
    assert [job["job_id"] for job in lab.ask("q")["jobs"]] == [again, job_id]


@pytest.mark.soak
def test_a_failing_job_and_its_resubmission_elsewhere_and_back(lab: Lab) -> None:
    lab.elsewhere("here", "local", local={"slots": 2, "gpus": 0})
    job_id = lab.submit("--single", "echo trying; exit 7")
    failed = lab.until(job_id)
    assert (failed["status"], failed["exit_code"]) == ("Failed", 7), lab.run("q", job_id)
    assert "exited with status code 7" in failed["reason"] and failed["tail"] == ["trying"]
    assert [job["job_id"] for job in lab.ask("qf")["jobs"]] == [job_id]
    assert lab.run("logs", job_id, "-F").out == "trying\n"
    here = lab.ask("resubmit", job_id[-6:], "-t", "here")
    assert here["backend"] == "local"
    assert lab.until(here["job_id"])["exit_code"] == 7
    back = lab.ask("resubmit", here["job_id"], "-t", "aml")
    assert back["backend"] == "aml" and back["code_digest"] == failed["code_digest"]
    assert lab.until(back["job_id"])["exit_code"] == 7


@pytest.mark.soak
def test_a_job_of_another_machine_is_found_in_the_workspace(lab: Lab) -> None:
    job_id, _ = [lab.submit("--single", "true") for _ in range(2)]
    lab.until(job_id)
    (lab.project.state / "jobs.sqlite").unlink()
    assert lab.ask("history")["jobs"] == []
    found = lab.detail(job_id[-8:])
    assert (found["job_id"], found["status"], found["command"]) == (job_id, "Completed", ["true"])
    again = lab.ask("resubmit", job_id[-8:])
    assert lab.until(again["job_id"])["status"] == "Completed"
    nothing = lab.run("q", "ffff0000", code=4)
    assert "no job" in nothing.err


def put_foreign(lab: Lab, name: str, command: str | None, **more: object) -> None:
    """A job that another program submitted; it waits in the queue until it is released."""
    there = f"{lab.stub.base}/environments/theirs/versions/3"
    known = {"jobType": "Command", "experimentName": "experiment_name", "environmentId": there}
    lab.stub.held = True
    lab.stub.accept(name, {"properties": {**known, "command": command, "displayName": f"by {name}", **more}})
    lab.stub.held = False


def put_rate(lab: Lab) -> str:
    """A job with variables, code and a time limit."""
    variables = {"LR": "1e-5", "THEIR_TOKEN": SECRET, "AZUREML_X": "1"}
    more = {"environmentVariables": variables, "limits": {"jobLimitsType": "Command", "timeout": "PT1H30M"}}
    put_foreign(lab, "jolly_fig_abc123", "echo rate $LR", codeId="/theirs/codes/9/versions/1", **more)
    return "jolly_fig_abc123"


def put_acts(lab: Lab) -> str:
    """A job of ACT: its command is in the arguments of the run."""
    mpi = {"distributionType": "Mpi", "processCountPerInstance": 4}
    resources = {"instanceCount": 2}
    put_foreign(lab, "jianfw_1563257309_60ce2fc7", "python aml_server.py", resources=resources, distribution=mpi)
    lab.stub.jobs["jianfw_1563257309_60ce2fc7"].definition = {
        "arguments": ["--code_path", "x.zip", "--command", "python show.py 'two words'"]
    }
    return "jianfw_1563257309_60ce2fc7"


def put_with_input(lab: Lab) -> str:
    """A job with inputs of its own."""
    given = {"raw": {"jobInputType": "uri_folder", "mode": "Download", "uri": "azureml://datastores/d/paths/p"}}
    put_foreign(lab, "needs_its_own_input", "python a.py ${{inputs.raw}}", inputs=given)
    return "needs_its_own_input"


def test_jobs_that_blobsync_did_not_submit_are_listed_and_not_recorded(lab: Lab) -> None:
    assert lab.ask("q") == {"jobs": [], "more": 0, "experiment": "experiment_name"}
    names = {put_rate(lab), put_acts(lab), put_with_input(lab)}
    put_foreign(lab, "of_another_experiment", "true", experimentName="theirs")
    listed = lab.ask("q")["jobs"]
    assert {job["job_id"] for job in listed} == names == {*lab.stub.jobs} - {"of_another_experiment"}
    assert all(job["foreign"] and job["status"] == "Queued" for job in listed)
    assert lab.ask("history", "--jobs")["jobs"] == [] and lab.ask("qr")["jobs"] == []


@pytest.mark.soak
def test_a_job_of_others_is_shown_and_submitted_again_with_what_can_be_read(lab: Lab) -> None:
    name = put_rate(lab)
    lab.stub.release(lab.stub.jobs[name])
    lab.detail("abc123")
    theirs = lab.until(name)
    assert (theirs["status"], theirs["tail"], theirs["elapsedTime"]) == ("Completed", ["rate 1e-5"], 0.08)
    assert theirs["unread"] == ["the variable THEIR_TOKEN", "its code /theirs/codes/9/versions/1",
                                f"its environment {lab.stub.base}/environments/theirs/versions/3"]  # fmt: skip
    assert "not read:      the variable THEIR_TOKEN, its code" in lab.run("q", "abc123").out
    again = lab.run("resubmit", name)
    assert "all else is that of cluster aml; not read: the variable THEIR_TOKEN, its code" in again.err
    new = lab.stub.jobs[again.out.split()[0]].body["properties"]
    assert new["environmentVariables"] == {"NCCL_IB_DISABLE": "0", "LR": "1e-5"} and "codeId" not in new
    assert (new["displayName"], new["limits"]["timeout"]) == (f"by {name}", "PT5400S")
    assert lab.until(again.out.split()[0])["tail"] == ["rate 1e-5"]
    assert SECRET.encode() not in (lab.project.state / "jobs.sqlite").read_bytes()


@pytest.mark.soak
def test_a_job_of_act_is_submitted_again_with_its_own_command(lab: Lab) -> None:
    put_acts(lab)
    acts = lab.ask("resubmit", "60ce2fc7")
    old = lab.detail("60ce2fc7")
    assert (old["status"], old["command"], old["gpus"]) == ("Canceled", ["python show.py 'two words'"], 8)
    assert lab.until(acts["job_id"])["status"] == "Completed"
    assert json.loads(lab.container.get("path/to/output/facts/7.json"))["argv"] == ["two words"]


def test_a_job_of_others_that_reads_what_only_it_has_is_not_submitted_again(lab: Lab) -> None:
    name = put_with_input(lab)
    refused = lab.run("resubmit", name, code=1).err
    assert "names inputs.raw, which only that job has" in refused
    assert lab.stub.jobs[name].status == "Queued"


def test_jobs_of_others_are_entered_and_stopped_as_our_own(lab: Lab) -> None:
    waits = put_with_input(lab)
    put_foreign(lab, "runs_until_it_is_stopped", "sleep 600")
    lab.stub.release(lab.stub.jobs["runs_until_it_is_stopped"])
    assert wait_until(lambda: lab.stub.jobs["runs_until_it_is_stopped"].status == "Running")
    way_in = lab.run("ssh", "runs_until_it_is_stopped", "--show").out
    assert way_in.startswith("az ml job connect-ssh --name=runs_until_it_is_stopped --node-index=0")
    lab.run("abort", "runs_until_it_is_stopped", waits)
    assert lab.stub.jobs[waits].status == "Canceled"
    assert lab.until("runs_until_it_is_stopped")["status"] == "Canceled"


@pytest.mark.soak
def test_secrets_that_somebody_else_put_there_reach_no_program(lab: Lab, tmp_path: Path) -> None:
    """The blob of secrets is changed while the job waits by somebody who knows what is in it: bash would run a command
    in BASH_ENV."""
    lab.cluster(env={"MY_TOKEN": SECRET}, setup="true")
    lab.stub.held = True
    job_id = lab.submit("--single", "true")
    blob, taken = f"path/to/code.zip.d/secrets/{job_id}.json", tmp_path / "taken"
    closed = lab.container.get(blob)
    assert SECRET.encode() not in closed
    known = json.dumps({"env": {"MY_TOKEN": SECRET}, "sas": {}}).encode()
    theirs = json.dumps({"env": {"BASH_ENV": f"$(touch {taken})"}, "sas": {}}).encode().ljust(len(known))
    lab.container.put(blob, bytes(a ^ b ^ c for a, b, c in zip(closed, known, theirs[: len(known)], strict=True)))
    lab.stub.release(lab.stub.jobs[job_id])
    done = lab.until(job_id)
    assert (done["status"], done["exit_code"], taken.exists()) == ("Failed", 72, False), done
    assert "its secrets are not those that the job was submitted with" in lab.run("logs", job_id).out
    # Its own secrets still work.
    lab.stub.held = False
    again = lab.ask("resubmit", job_id)["job_id"]
    assert lab.until(again)["status"] == "Completed"


def test_no_secret_is_where_others_can_read_it(lab: Lab) -> None:
    lab.cluster(env={"MY_TOKEN": SECRET, "PLAIN": "1"})
    program = "import os,sys; sys.exit(os.environ['MY_TOKEN'] != sys.argv[1].replace('_', '-'))"
    lab.stub.held = True
    job_id = lab.submit("--single", "python", "-c", program, SECRET.replace("-", "_"))
    blob = f"path/to/code.zip.d/secrets/{job_id}.json"
    assert lab.container.names("path/to/code.zip.d/secrets") == [blob]
    # Who can read the container needs the job, too, and who can read jobs the container.
    assert SECRET.encode() not in lab.container.get(blob)
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
    # Nor in the node's folder for temporary files, once the node's last process has ended.
    assert wait_until(lambda: not list((lab.stub.folder / job_id / "tmp").iterdir()))
    # The bundle in the command is compressed.
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
    assert "outputs" not in lab.stub.jobs[done["job_id"]].body["properties"]
    kinds = {store["properties"]["credentials"]["credentialsType"] for store in lab.stub.datastores.values()}
    assert kinds == {"Sas"}


def test_a_key_makes_a_sas_for_each_job_and_goes_nowhere(lab: Lab) -> None:
    account = yaml.safe_load((lab.project.root / "aux_data/configs/acct.yaml").read_text())
    own = lab.container.sas("racwdl")
    lab.write("aux_data/configs/acct.yaml", {**account, "sas_token": own})
    entries = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    entries["data_folder"].update(mode="download", datastore_name=None)
    entries["output_folder"].update(datastore_name="mine")
    lab.cluster(config_param=entries, env={"MY_TOKEN": SECRET})
    renewed = []
    for _ in range(2):
        done = lab.until(lab.submit("--single", "cat data/voc/a.txt > output/copy.txt"))
        assert done["status"] == "Completed", done
        renewed.append(lab.stub.datastores["mine"]["properties"]["credentials"]["secrets"]["sasToken"])
        time.sleep(1.1)
    assert lab.container.get("path/to/output/copy.txt") == b"a picture"
    assert renewed[0] != renewed[1]
    # One for each job, and the one with a name from the configuration.
    assert len(lab.stub.datastores) == 3
    for store in lab.stub.datastores.values():
        token = SasToken.parse(store["properties"]["credentials"]["secrets"]["sasToken"])
        ends = token.expires_at
        assert token.field("sr") == "c" and token.permissions == "rcwdl" and ends
        assert ends - datetime.now(timezone.utc) < timedelta(days=7)
    told = json.dumps(lab.stub.datastores)
    assert lab.container.key not in told and own.partition("sig=")[2].partition("&")[0] not in told


@pytest.mark.soak
def test_a_folder_inside_one_that_is_only_read(lab: Lab) -> None:
    for name in ("deep/own.txt", "deep/coco/hidden.txt", "voc/more/b.txt"):
        lab.container.put(f"path/to/data/{name}", b"of data")
    lab.container.put("path/to/coco/c.txt", b"of coco")
    entries = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    entries["data_folder"]["mode"] = "ro_mount"
    coco = {**entries["data_folder"], "path": "path/to/coco", "mode": "mount"}
    lab.cluster(config_param={**entries, "data/deep/coco_folder": coco})
    program = "find -L data -type f | sort; echo new > data/deep/coco/new.txt"
    done = lab.until(lab.submit("--single", program))
    assert done["status"] == "Completed", done
    files = ["data/deep/coco/c.txt", "data/deep/own.txt", "data/voc/a.txt", "data/voc/more/b.txt"]
    assert done["tail"] == files
    assert lab.container.get("path/to/coco/new.txt") == b"new\n"
    assert not lab.container.names("path/to/data/deep/coco/new")


def test_what_jobs_cannot_use_is_told_by_config_check_and_submit(lab: Lab) -> None:
    entries = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    entries["code_path"]["submit_with_url"] = True
    lab.cluster(config_param=entries)
    checked, submitted = lab.run("config", "check"), lab.run("submit", "true")
    again = lab.run("resubmit", submitted.out.split()[0])
    for done in (checked, submitted, again, lab.run("submit", "--dry-run", "true")):
        assert (
            "config_param.code_path.submit_with_url: has no effect: everybody could read a URL in the job" in done.err
        )
    assert "has no effect" not in lab.run("ls", "data").err


def test_keys_that_jobs_do_not_have_are_refused_with_their_lines(lab: Lab) -> None:
    lab.cluster(priority=5, with_log=True)
    lines = (lab.project.root / "aux_data/aml/aml.yaml").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if text.startswith("priority:"))
    says = f"aux_data/aml/aml.yaml:{line}: priority: jobs on aml do not have it, only those on itp, singularity"
    told = lab.run("config", "check").err
    assert says in told and "submit refuses it, transfers do not" in told
    for words in (("submit", "true"), ("submit", "--dry-run", "true")):
        (error,) = lab.run("--json", *words, code=2).errors
        assert error["message"] == says and error["code"] == "config_invalid"
        assert error["hint"] == "remove it, or for one command: -p '{priority: null}'"
    lab.run("-p", "{priority: null}", "submit", "true")
    assert "do not have it" not in lab.run("ls", "data").err
    # ACT's own file, on another platform: one sentence for all labels and addresses, once a day.
    lab.cluster("uni", platform="slurm")
    told = lab.run("-c", "uni", "submit", "--dry-run", "true").err
    for key in ("aml_config", "compute_target", "experiment_name"):
        assert f"{key} (line " in told and told.count("no effect on jobs on slurm") == 1, told
    assert "no effect on jobs on slurm" not in lab.run("-c", "uni", "submit", "--dry-run", "true").err
    assert "no effect on jobs on slurm" in lab.run("-c", "uni", "config", "check").err
    lab.run("-c", "uni", "ls")


def test_folders_inside_a_folder_that_jobs_write_to_are_refused(lab: Lab) -> None:
    entries = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    lab.cluster(config_param={**entries, "data/voc_folder": entries["data_folder"]})
    warned = lab.run("config", "check").err
    assert "aux_data/aml/aml.yaml:" in warned and "config_param.data/voc_folder: is inside data_folder" in warned
    refused = lab.run("--json", "submit", "true", code=2)
    assert refused.errors[0]["message"].startswith("aux_data/aml/aml.yaml:")
    assert ": config_param.data/voc_folder: is inside" in refused.errors[0]["message"]
    lab.run("plan", "d", "data/voc")


def test_summary_and_blame(lab: Lab, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    job_id = lab.submit("--single", WAIT.format(stop=stop))
    assert wait_until(lambda: lab.stub.jobs[job_id].status == "Running")
    found = lab.ask("summary")
    assert (found["nodes_total"], found["nodes_free"], found["gpus_free"]) == (10, 6, 24)
    assert "STANDARD_NC6, Dedicated" in found["notes"] and "1 node cannot be used" in found["notes"]
    # Three nodes run jobs of all users; one job is blobsync's.
    assert found["jobs_running"] + found["jobs_queued"] == 1
    holders = lab.ask("blame")["holders"]
    assert [holder["user"] for holder in holders] == ["Somebody Else"]
    stop.touch()
    target = "-p", "{platform: singularity, singularity_instance_type: Singularity.ND40_v2, compute_target: vc1}"
    assert "ND40_v2: Premium 24 of 64 used" in lab.ask(*target, "summary")["notes"]


def test_a_job_that_only_the_workspace_knows_needs_the_login(lab: Lab, tmp_path: Path) -> None:
    put_foreign(lab, "jolly_fig_abc123", "true")
    (tmp_path / "bin" / "az").write_text("#!/bin/sh\necho 'ERROR: Please run az login' >&2; exit 1\n")
    for word in ("q", "abort", "resubmit"):
        done = lab.run("--json", word, "fig_abc123", code=2)
        assert done.codes == {"login_required"}, done
        [error] = done.errors
        assert error["hint"] == "az login" and "cluster aml could not be queried: no Azure identity" in error["message"]
    assert lab.stub.jobs["jolly_fig_abc123"].status == "Queued" and lab.ask("history")["jobs"] == []


def test_the_request_for_a_compute_is_shown_without_a_login(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "bin" / "az").write_text("#!/bin/sh\necho 'ERROR: Please run az login' >&2; exit 1\n")
    asked = ("compute", "create", "gpu", "--vm-size", "Standard_NC6s_v3", "--max", "4")
    planned = lab.run(*asked, "--dry-run")
    assert planned.out.startswith("# PUT ") and '"location": "<region of ws-one>"' in planned.out
    assert "not asked whether there is a compute gpu already: no Azure identity is signed in" in planned.err
    assert '"location": "eastus"' in lab.run(*asked, "--dry-run", "--location", "eastus").out
    assert lab.project.run("--json", *asked).codes == {"login_required"}
    assert not lab.stub.made and not lab.stub.requests


def test_all_that_is_wrong_with_acts_files_is_reported_at_once(lab: Lab) -> None:
    names = dict.fromkeys(("subscription_id", "resource_group", "workspace_name"), "<yours>")
    lab.write("aux_data/aml/config.json", json.dumps(names))
    lab.write("aux_data/configs/acct.yaml", {"account_name": "<account>", "container_name": "<container>"})
    lab.cluster(gpu_per_node="four", source_directory="src")
    done = lab.run("--json", "config", "check", code=2)
    told = [error["message"] for error in done.errors]
    for key in (*names, "account_name", "container_name", "gpu_per_node"):
        assert [text for text in told if f"{key}: " in text], (key, told)
    assert "source_directory: jobs do not have it" in done.err


@pytest.mark.soak
def test_acts_submit_ssh_says_which_key_to_give_and_how(lab: Lab, tmp_path: Path) -> None:
    home = tmp_path / "my-home"
    (home / ".ssh").mkdir(parents=True)
    lab.project.environ["HOME"] = str(home)
    none = lab.run("--json", "-n", "8", "submit", "ssh", code=2).errors[0]
    assert "ssh_public_key: is missing" in none["message"]
    assert none["hint"].startswith("write the line of a public key of yours there (ssh-keygen -t ed25519 makes one)")
    for name, line in (("id_rsa", "ssh-rsa AAAAB3Nza me@here"), ("id_ed25519", "ssh-ed25519 AAAAC3Nza+/= me@here")):
        (home / f".ssh/{name}.pub").write_text(f"{line}\n")
        hint = lab.run("--json", "-n", "8", "submit", "ssh", code=2).errors[0]["hint"]
        # The option, as a shell reads it from the hint.
        option = f"{shlex.quote(blobsync_command())} -n 8 {hint[hint.index('-p ') :]} submit --dry-run ssh"
        environ = {**os.environ, **lab.project.environ}
        shown = subprocess.run(option, shell=True, cwd=lab.project.root, env=environ, capture_output=True, text=True)
        assert shown.returncode == 0 and f'"sshPublicKeys": "{line}"' in shown.stdout, shown


@pytest.mark.soak
def test_known_jobs_are_shown_without_a_login(lab: Lab, tmp_path: Path) -> None:
    job_id = lab.submit("--single", "echo kept")
    assert lab.until(job_id)["tail"] == ["kept"]
    (tmp_path / "bin" / "az").write_text("#!/bin/sh\nexit 1\n")
    shown = lab.detail(job_id)
    assert (shown["status"], shown["tail"]) == ("Completed", ["kept"])
