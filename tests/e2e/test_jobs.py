"""Jobs from the command line to outputs in the container, on this machine and on a real Slurm cluster."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blobsync.jobs.array_job import ArrayJob
from blobsync.jobs.states import refresh
from tests.e2e.terminal import see
from tests.e2e.world import (
    Container,
    JobLab,
    Project,
    blobsync_command,
    hashes,
    on_flat_accounts,
    read_tree,
    write_tree,
)
from tests.fakes.bootstrap import python_of
from tests.servers.slurm_cluster import SlurmCluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.e2e

ON_SLURM = pytest.param("uni", marks=pytest.mark.slurm)

# Writes its environment to the output folder.
SHOW = """\
import json, os, sys
rank = os.environ["RANK"]
facts = {"argv": sys.argv[1:], "env": dict(os.environ), "data": open("data/voc/a.txt").read()}
os.makedirs("output/facts", exist_ok=True)
json.dump(facts, open("output/facts/%s.json" % rank, "w"))
print("rank", rank, "is done")
"""

# Trains four steps, each saved in a file; a first run is interrupted after two.
TRAIN = """\
import os, time
path = "output/steps.txt"
kept = open(path).read().split() if os.path.exists(path) else []
print("begins after", len(kept), "steps", flush=True)
for step in range(len(kept), 4):
    with open(path, "a") as file:
        file.write(f"{step} ")
    print("step", step, flush=True)
    if not kept and step == 1:
        time.sleep(600)
"""

# Open MPI refuses to run as root otherwise.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass
class Lab(JobLab):
    """A project with two clusters: ``here`` is this machine, ``uni`` is Slurm with two nodes."""

    pause = 0.4
    container: Container

    def configure(self, name: str, platform: str, **more: Any) -> None:
        self.write("aux_data/configs/box.yaml", self.container.account_file)
        here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
        cluster = {
            "platform": platform,
            "config_param": {
                "code_path": {**here, "path": "mine/code.zip"},
                "data_folder": {**here, "path": "mine/data"},
                "output_folder": {**here, "path": "mine/output", "mode": "upload"},
            },
            "env": {"LIST": "a,b; c", "MY_TOKEN": "hush-hush"},
            "runtime": self.runtime,
            **more,
        }
        self.write(f"aux_data/aml/{name}.yaml", cluster)

    @property
    def runtime(self) -> dict[str, Any]:
        return {"python": sys.executable, "scratch": str(self.project.root.parent / "scratch")}

    def submit(self, cluster: str, *words: str, gpus: int | None = None) -> str:
        count = () if gpus is None else ("-n", str(gpus))
        job_id: str = self.ask("-c", cluster, *count, "submit", *words)["job_id"]
        return job_id

    @property
    def scratch_is_empty(self) -> bool:
        """Whether the nodes have no files of jobs."""
        return not list((self.project.root.parent / "scratch").glob("*"))

    def until_gone(self, job_id: str) -> None:
        """Wait for the end of its processes: the supervisor has things to put away after it has told the job's end."""
        name = job_id.encode()
        assert wait_until(
            lambda: not [pid for pid in os.listdir("/proc") if pid.isdigit() and name in command_line(pid)]
        )

    def until_up(self, job_id: str) -> None:
        """Wait for a program that prints ``up``: Slurm calls a job running before it starts the script."""
        logs = self.project.state / "jobs" / job_id / "user_logs"
        assert wait_until(lambda: any("up" in log.read_text() for log in logs.glob("*")))


def command_line(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def lab(project: Project, container: Container, request: pytest.FixtureRequest) -> Lab:
    lab = Lab(project, container)
    write_tree(project.root, {"show.py": SHOW.encode(), "data/voc/a.txt": b"a picture"})
    lab.configure("here", "local", local={"slots": 4, "gpus": 0})
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=2)
    if request.node.get_closest_marker("slurm"):
        request.getfixturevalue("with_node_archive")
        project.environ.update(request.getfixturevalue("slurm_cluster").environ)
    lab.run("-c", "here", "init")
    return lab


def test_a_list_of_jobs_fits_a_narrow_terminal(lab: Lab) -> None:
    command = ("python3", "-c", f"print({'1 + ' * 30}1)")
    *_, job_id, following = see(lab.project, "-c", "here", "submit", "--name", "a-name-that-is-long", *command).answer()
    assert following == f"blobsync: next: blobsync logs {job_id.rpartition('_')[2]} -F"
    lab.until(job_id)
    heading, line, *_ = see(lab.project, "q", columns=80).answer()
    assert heading.split()[:3] == ["ID", "STATUS", "AGE"] and {"NAME", "COMMAND"} <= set(heading.split()), heading
    shown = line.split()
    assert job_id.endswith(shown[0]) and len(shown[0]) < len(job_id) and shown[1] == "Completed", line
    assert "a-name" in line and "python3" in line and len(line) <= 80, line
    watched = see(lab.project, "q", "--watch", columns=80)
    assert watched.code == 0 and watched.answer()[0] == heading and "all of them have ended" in watched.answer()[-1]
    logs = see(lab.project, "logs", columns=80).answer()
    assert f"blobsync: the newest job: {job_id}" in logs and "31" in logs, logs


def test_a_name_means_its_newest_job_and_logs_without_one_the_newest_of_all(lab: Lab) -> None:
    first, second = (
        lab.run("-c", "here", "submit", "--name", "train", f"echo {number} | tee output/n.txt; sleep {number * 600}")
        for number in range(2)
    )
    ids = [done.out.splitlines()[0] for done in (first, second)]
    assert f"next: blobsync logs {ids[0].rpartition('_')[2]} -F" in first.err
    lab.until(ids[0])
    lab.until(ids[1], "Running")
    logless = [lab.run("logs", id, "--rank", "3").err.splitlines()[-1] for id in ids]
    assert logless == [f"blobsync: {ids[0]} has no such log", f"blobsync: {ids[1]} has no such log yet"]
    assert wait_until(lambda: lab.run("logs").out == "1\n", pause=0.2)
    assert f"the newest job: {ids[1]}" in lab.run("logs").err
    for words in (("logs",), ("q",), ("outputs",), ("abort",)):
        assert f"the newest job with the name train: {ids[1]}" in lab.run(*words, "train").err, words
    assert [job["job_id"] for job in lab.ask("q")["jobs"]] == [ids[1], ids[0]]
    assert [line.split()[0] for line in lab.run("q", "--max", "1").out.splitlines()] == ["ID", ids[1], "..."]
    assert "missing argument 'ID" in lab.run("ssh", code=2).err
    assert lab.until(ids[1])["status"] == "Canceled" and lab.job(ids[0])["status"] == "Completed"
    for part in (ids[0][-6:], ids[0][:-3]):
        assert lab.run("logs", part).out == "0\n"
        assert [job["job_id"] for job in lab.ask("q", part)["jobs"]] == [ids[0]]


@pytest.mark.parametrize("cluster", [ON_SLURM, pytest.param("here", marks=pytest.mark.soak)])
def test_a_job_of_four_processes(lab: Lab, cluster: str) -> None:
    awkward = ["two words", "$HOME", ";", "*", "--wait", "-n"]
    job_id = lab.submit(cluster, "python3", "show.py", *awkward, gpus=4)
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)

    facts = {rank: json.loads(lab.container.get(f"mine/output/facts/{rank}.json")) for rank in range(4)}
    per_node = 2 if cluster == "uni" else 4
    for rank, fact in facts.items():
        env = fact["env"]
        assert fact["argv"] == awkward
        assert fact["data"] == "a picture"
        assert (env["LIST"], env["MY_TOKEN"]) == ("a,b; c", "hush-hush")
        assert env["WORLD_SIZE"] == env["OMPI_COMM_WORLD_SIZE"] == "4"
        assert env["LOCAL_RANK"] == env["OMPI_COMM_WORLD_LOCAL_RANK"] == str(rank % per_node)
        assert env["NODE_RANK"] == str(rank // per_node)
        assert env["MASTER_ADDR"] == facts[0]["env"]["MASTER_ADDR"] and env["MASTER_PORT"].isdigit()

    assert not list((lab.project.root / ".blobsync").rglob("secrets.json"))
    detail = lab.detail(job_id[-6:])
    assert (detail["status"], detail["exit_code"], detail["tail"]) == ("Completed", 0, ["rank 0 is done"])
    assert detail["code_digest"] and detail["folders"]["data"]["mode"] == "link"
    names = {Path(path).name for path in detail["logs"]}
    assert {f"std_log_process_{rank}.txt" for rank in range(4)} <= names
    assert lab.run("logs", job_id, "--rank", "3").out == "rank 3 is done\n"


@pytest.mark.soak
@pytest.mark.slurm
def test_a_node_whose_python_is_too_old_for_blobsync_finds_another_one(lab: Lab) -> None:
    python = python_of("3.8")
    if python is None:
        pytest.skip("this machine has no Python 3.8")
    scratch = str(lab.project.root.parent / "scratch")
    lab.configure("uni", "slurm", gpu_per_node=0, runtime={"python": python, "scratch": scratch})
    job_id = lab.submit("uni", "cat data/voc/a.txt; echo made > output/a.txt")
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    assert lab.container.get("mine/output/a.txt") == b"made\n"
    assert lab.run("logs", job_id).out == "a picture\n"
    assert len(lab.container.names("mine/code.zip.d/node")) == 1
    assert lab.scratch_is_empty


@pytest.mark.slurm
def test_waiting_shows_the_output_and_ends_with_the_code_of_the_one_node_that_failed(lab: Lab) -> None:
    done = lab.run("-c", "uni", "submit", "--wait", 'echo one; [ "$RANK" = 1 ] && exit 7; sleep 300', code=7)
    assert {"[0] one", "[1] one"} <= set(done.out.splitlines())
    newest = lab.ask("qf")["jobs"][0]
    assert (newest["status"], newest["exit_code"], newest["cluster"]) == ("Failed", 7, "uni")


@on_flat_accounts
def test_logs_that_somebody_else_put_into_the_container_stay_out_of_other_folders(lab: Lab) -> None:
    job_id = lab.submit("here", "echo mine")
    assert lab.until(job_id)["status"] == "Completed"
    lab.until_gone(job_id)
    shutil.rmtree(lab.project.state / "jobs")
    home = lab.project.root.parent / "victim"
    write_tree(home, {"bashrc": b"mine"})
    # Names with '..' cannot be in a URL: the unit tests have those.
    for way in (f"/{home}/bashrc", f"user_logs/{home}/bashrc", ".hidden.txt", "user_logs/.profile"):
        lab.container.put(f"mine/output.logs/{job_id}/{way}", b"theirs, and longer than what was there")
    before = set(lab.project.root.rglob("*"))
    for word in ("logs", "q"):
        assert "a log was left out: the name" in lab.run(word, job_id).err
    lab.run("parse", job_id)
    new = {path.relative_to(lab.project.root).as_posix() for path in set(lab.project.root.rglob("*")) - before}
    assert {name for name in new if not name.startswith(f"assets/{job_id}")} <= {"assets"}
    assert not list((lab.project.root / "assets").rglob(".*")) and read_tree(home) == hashes({"bashrc": b"mine"})
    assert lab.run("logs", job_id).out == "mine\n"
    own = lab.project.root / "assets" / job_id
    assert not [path for path in (own, *own.rglob("*")) if path.stat().st_mode & 0o077], "other users read no log"


@pytest.mark.parametrize("cluster", [pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak]), "here"])
def test_abort_stops_a_sleeping_job_and_can_be_repeated(lab: Lab, cluster: str) -> None:
    job_id = lab.submit(cluster, "--nodes", "1", "echo up; sleep 600")
    lab.until(job_id, "Running")
    assert [job["job_id"] for job in lab.ask("qr")["jobs"]] == [job_id]
    lab.until_up(job_id)
    waits = lab.submit(cluster, "--nodes", "1", "--after", job_id, "--env", "WORDS=a; 'b'", 'echo "$WORDS"')
    assert (lab.job(waits)["status"], lab.job(waits)["after"]) == ("Queued", job_id)
    lab.run("abort", job_id[-5:])
    assert lab.until(job_id)["status"] == "Canceled"
    # What was to come after it never comes.
    assert lab.until(waits)["status"] == "Canceled"
    lab.run("a", job_id)
    # After one that completes it does.
    first = lab.submit(cluster, "--nodes", "1", "sleep 1")
    second = lab.submit(cluster, "--nodes", "1", "--after", first, "--env", "WORDS=x y", 'echo "$WORDS"')
    assert lab.until(second)["status"] == lab.job(first)["status"] == "Completed"
    assert lab.detail(second)["tail"] == ["x y"]
    assert lab.job(job_id)["status"] == "Canceled"
    assert wait_until(lambda: lab.scratch_is_empty), lab.run("logs", job_id)


@pytest.mark.parametrize(
    "way", ["taken over", *(pytest.param(way, marks=pytest.mark.soak) for way in ("link", "variable", "-p"))]
)
def test_a_job_is_stopped_where_it_runs_whatever_its_cluster_file_is_called(lab: Lab, way: str) -> None:
    clusters, elsewhere = lab.project.root / "aux_data" / "aml", lab.project.root / "v100.yaml"
    words = ["submit", "echo up; sleep 600"]
    if way in ("variable", "link"):
        (clusters / "here.yaml").rename(elsewhere)
        if way == "link":
            (clusters / "here.yaml").symlink_to(elsewhere)
            words = ["-c", "here", *words]
        else:
            lab.project.environ["AML_CONFIG_PATH"] = str(elsewhere)
    elif way == "-p":
        words = ["-c", "uni", "-p", "{platform: local, nodes: 1}", *words]
    else:
        words = ["-c", "here", *words]
    job_id = lab.ask(*words)["job_id"]
    lab.project.environ.pop("AML_CONFIG_PATH", None)
    if way == "taken over":
        lab.configure("here", "slurm", ssh="nobody@nowhere.invalid")
    lab.until_up(job_id)
    assert (lab.job(job_id)["status"], lab.job(job_id)["status_confirmed"]) == ("Running", True)
    assert lab.run("logs", job_id).out == "up\n"
    said = lab.run("abort", job_id).out
    assert said in (f"{job_id}: Canceling\n", f"{job_id}: Canceled\n")
    assert lab.until(job_id)["status"] == "Canceled"
    lab.until_gone(job_id)


def test_a_cluster_that_cannot_be_asked_has_stopped_nothing(lab: Lab) -> None:
    job_id = lab.submit("here", "echo up; sleep 600")
    lab.until_up(job_id)
    assert "running for:" in lab.run("q", job_id).out and lab.job(job_id)["elapsed_seconds"] >= 0
    history = lab.project.state / "jobs.sqlite"
    with sqlite3.connect(history) as database:
        (home,) = database.execute("select home from jobs").fetchone()
        database.execute("update jobs set home=?", (home.replace('"platform": "local"', '"platform": "slurm"'),))
    database.close()
    done = lab.project.run("--json", "abort", job_id)
    assert done.code == 2 and done.data["jobs"][0]["status"] == "Running", str(done)
    assert done.data["jobs"][0]["status_confirmed"] is False and "which has changed" in done.errors[0]["message"]
    assert "not confirmed" in lab.run("q").out
    with sqlite3.connect(history) as database:
        database.execute("update jobs set home=?", (home,))
    database.close()
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled"


@pytest.mark.parametrize("cluster", ["here", pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak])])
def test_a_setup_that_fails(lab: Lab, cluster: str) -> None:
    lab.configure(cluster, "local" if cluster == "here" else "slurm", gpu_per_node=0, setup="echo preparing\nexit 5\n")
    job_id = lab.submit(cluster, "--nodes", "1", "python3", "show.py")
    job = lab.until(job_id)
    assert (job["status"], job["exit_code"]) == ("Failed", 72)
    told = lab.run("parse", job_id).out
    assert "Setup: code, folders or setup commands failed on a node" in told
    assert "preparing" in lab.run("q", job_id).out
    assert not lab.container.names("mine/output/facts")
    assert wait_until(lambda: lab.scratch_is_empty)


@pytest.mark.soak
@pytest.mark.slurm
@pytest.mark.parametrize(("first", "second"), [("here", "uni"), ("uni", "here")])
def test_resubmit_moves_a_running_job_to_the_other_backend(lab: Lab, first: str, second: str) -> None:
    stop = lab.project.root.parent / "stop"
    script = f"while [ ! -e {stop} ]; do sleep 0.1; done; echo came to an end"
    old = lab.submit(first, "--nodes", "1", script)
    lab.until(old, "Running")
    answer = lab.ask("resubmit", old[-6:], "-t", second)
    assert answer["cluster"] == second and answer["resubmission_of"] == old
    assert lab.until(old)["status"] == "Canceled"
    stop.touch()
    new = answer["job_id"]
    assert lab.until(new)["status"] == "Completed"
    assert lab.run("logs", new).out == "came to an end\n"
    assert lab.detail(new)["code_digest"] == lab.detail(old)["code_digest"]


@pytest.mark.soak
def test_resubmit_takes_the_number_of_gpus_and_the_cluster_from_the_options_of_all_commands(lab: Lab) -> None:
    lab.configure("other", "local", local={"slots": 4, "gpus": 0})
    old = lab.submit("here", TELL, gpus=1)
    for words, cluster, processes in (
        (["-n", "2", "resubmit", old], "here", 2),
        (["resubmit", old, "-n", "0"], "here", 1),
        (["-c", "other", "resubmit", old], "other", 1),
        (["resubmit", f"assets/{old}/", "-c", "other", "-n", "3"], "other", 3),
    ):
        again = lab.ask(*words)
        assert again["cluster"] == cluster
        job = lab.until(again["job_id"])
        assert (job["processes"], job["status"]) == (processes, "Completed")
        said = [lab.run("logs", job["job_id"], "--rank", str(rank)).out.strip() for rank in range(processes)]
        assert said == told(processes) or processes == 1
    refused = lab.run("-c", "here", "resubmit", old, "-t", "other", code=2)
    assert "-c here and -t other are two clusters" in refused.err
    assert "-n works with submit, resubmit and local only" in lab.run("-n", "2", "q", old, code=2).err


def test_a_job_that_has_ended_is_found_by_what_names_it_and_left_no_secret(lab: Lab, tmp_path: Path) -> None:
    job_id = lab.submit("here", "python3", "show.py")
    assert lab.until(job_id)["status"] == "Completed"
    lab.until_gone(job_id)
    assert lab.run("--json", "q", "nothing", code=4).codes == {"job_not_found"}
    assert [job["job_id"] for job in lab.ask("history")["jobs"]] == [job_id]
    lab.run("-vv", "q", job_id)
    assert (lab.project.root / "assets" / job_id).is_dir()
    for form in (f"{job_id}/", f"assets/{job_id}/"):
        assert lab.run("logs", form).out == "rank 0 is done\n"
        assert lab.ask("q", form)["jobs"][0]["job_id"] == job_id
    for path in lab.project.root.rglob("*"):
        if path.is_file() and "aux_data" not in path.parts:
            body = path.read_bytes()
            assert b"hush-hush" not in body and b"sig=" not in body, path
    (lab.project.root / "version.txt").write_text("later")
    dry = lab.run("-c", "here", "submit", "--dry-run", "true")
    assert "hush-hush" not in dry.out and "sig=" not in dry.out and "differs from the code here" in dry.err
    # From elsewhere, by the variable, and where there is no program to ask.
    file = lab.project.root / "aux_data/aml/here.yaml"
    nothing = {"AML_CONFIG_PATH": str(file), "PATH": str(tmp_path)}
    away = Project(tmp_path / "elsewhere", {**lab.project.environ, **nothing})
    away.root.mkdir()
    told = away.json("q")
    assert told.code == 0, str(told)
    assert [(job["job_id"], job["cluster"], job["status"]) for job in told.data["jobs"]] == [
        (job_id, "here", "Completed")
    ]
    away.environ["AML_CONFIG_PATH"] = str(file.parent)
    refused = away.json("q")
    assert refused.code == 2 and f"names the folder {file.parent}" in refused.errors[0]["message"], str(refused)
    assert not list(away.root.iterdir())


@pytest.mark.soak
@pytest.mark.slurm
def test_logs_outlive_the_cluster(lab: Lab, tmp_path: Path) -> None:
    with SlurmCluster(tmp_path / "own") as own:
        lab.project.environ.update(own.environ)
        job_id = lab.submit("uni", "--nodes", "1", "echo remembered")
        assert lab.until(job_id)["status"] == "Completed"
    shutil.rmtree(lab.project.state / "jobs")
    assert lab.run("logs", job_id).out == "remembered\n"
    detail = lab.detail(job_id)
    assert (detail["status"], detail["tail"]) == ("Completed", ["remembered"])
    assert (lab.project.root / "assets" / job_id / "user_logs" / "std_log.txt").read_text() == "remembered\n"


@pytest.mark.soak
@pytest.mark.slurm
def test_a_preempted_job_is_queued_again_and_goes_on_from_its_checkpoint(lab: Lab, slurm_cluster: SlurmCluster) -> None:
    (lab.project.root / "train.py").write_text(TRAIN)
    runtime = {"python": sys.executable, "scratch": str(lab.project.root.parent / "scratch"), "sync_seconds": 1}
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, runtime=runtime)
    low = lab.ask("-c", "uni", "submit", "--init", "--partition", "normal", "python3", "train.py")["job_id"]
    # Two steps are in the container when the node is lost.
    assert wait_until(lambda: "mine/output/steps.txt" in lab.container.names("mine/output"))
    assert lab.container.get("mine/output/steps.txt") == b"0 1 "
    high = lab.submit("uni", "--nodes", "2", "--partition", "urgent", "sleep", "600", gpus=8)
    lab.until(high, "Running")
    assert wait_until(lambda: lab.job(low)["restarts"] == 1, pause=0.2)
    job = lab.until(low, "Queued")
    assert (job["status"], job["restarts"], job["exit_code"]) == ("Queued", 1, None)
    assert [row["job_id"] for row in lab.ask("qq")["jobs"]] == [low]
    assert "DUE TO PREEMPTION" in "".join(
        path.read_text() for path in (lab.project.state / "jobs" / low).rglob("*.txt")
    )
    lab.run("abort", high)
    # Slurm lets a requeued job wait for two minutes.
    slurm_cluster.client("scontrol", "update", f"JobId={lab.detail(low)['native_id']}", "StartTime=now")
    job = lab.until(low)
    assert (job["status"], job["exit_code"], job["restarts"]) == ("Completed", 0, 1)
    assert lab.run("logs", low).out.splitlines()[-3:] == ["begins after 2 steps", "step 2", "step 3"]
    assert lab.container.get("mine/output/steps.txt") == b"0 1 2 3 "


@pytest.mark.slurm
@pytest.mark.soak  # Slurm's own clock takes half a minute; the next test sends the same signal by hand.
def test_the_program_is_warned_before_the_time_limit(lab: Lab) -> None:
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    print('saving'); time.sleep(1); sys.exit(9)\n"
        "signal.signal(signal.SIGUSR1, save); print('up')\nwhile True: time.sleep(0.1)"
    )
    # Slurm checks every 30 s and warns that much too early: the program has 15 s to start.
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, slurm={"args": ["--signal=B:USR1@15"]})
    job_id = lab.submit("uni", "--time", "1", "python3", "-c", script)
    job = lab.until(job_id)
    assert (job["status"], job["exit_code"]) == ("Failed", 9)
    # proctrack/linuxproc, which needs no root, signals every process of the job itself; cgroup only Slurm's task.
    assert set(lab.run("logs", job_id).out.split()) == {"up", "saving"}


@pytest.mark.slurm
def test_a_warning_while_the_node_is_made_ready_reaches_the_program_and_the_next_look_removes_what_a_kill_left(
    lab: Lab, slurm_cluster: SlurmCluster
) -> None:
    begun, ready = (lab.project.root.parent / name for name in ("begun", "ready"))
    setup = f"touch {begun}; until [ -e {ready} ]; do sleep 0.1; done"
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, setup=setup, runtime={**lab.runtime, "sync_seconds": 1})
    # Slurm may signal the sleep before the shell: its end must not be the shell's.
    job_id = lab.submit("uni", "sh", "-c", "trap 'echo up' USR1; for i in $(seq 6000); do sleep 0.1; done")
    assert wait_until(begun.exists)
    native_id = slurm_cluster.client("squeue", "-h", "-n", job_id, "-o", "%i").strip()
    slurm_cluster.client("scancel", "--batch", "--signal=USR1", native_id)
    assert lab.job(job_id)["status"] == "Preparing"
    assert wait_until(lambda: "preparing:     setup (node 0)" in lab.run("q", job_id).out)
    ready.touch()
    lab.until_up(job_id)
    (secrets,) = (lab.project.root / ".blobsync").rglob("secrets.json")
    slurm_cluster.client("scancel", "--full", "--signal=KILL", native_id)
    lab.until(job_id)
    lab.run("q")
    assert not secrets.exists()


# Words of a shell, which no shell may read as such.
NAMES = ["plain", "a b", '$(touch pwned) `touch pwned`; it\'s; touch pwned "{n}"']


@pytest.mark.parametrize("cluster", [pytest.param("here", marks=pytest.mark.soak), ON_SLURM])
def test_tasks_of_a_sweep_have_outputs_logs_and_ends_of_their_own(lab: Lab, cluster: str) -> None:
    platform = "local" if cluster == "here" else "slurm"
    lab.configure(cluster, platform, gpu_per_node=0, nodes=1, output="per_job", local={"slots": 4, "gpus": 0})
    again = lab.project.root.parent / "again"
    lab.project.root.joinpath("names.jsonl").write_text("".join(json.dumps({"name": name}) + "\n" for name in NAMES))
    sweep = ("--sweep", "n=0..2", "--sweep-file", "names.jsonl", "--zip", "--parallel", "2")
    line = (
        "printf '%s\\n' {name}; printf %s {name} > $BLOBSYNC_OUTPUT/name;"
        """ printf '{"loss": %s}' {n} > $BLOBSYNC_OUTPUT/result.json; """
        f"[ -e {again} ] || [ {{n}} != 2 ] || kill -9 $$"
    )
    job_id = lab.submit(cluster, *sweep, line)
    ended = lab.until(job_id)
    assert (ended["status"], ended["exit_code"], ended["task_counts"]) == ("Failed", 137, {"Completed": 2, "Failed": 1})
    (shown,) = lab.ask("q", job_id)["jobs"]
    assert [(task["index"], task["exit_code"], task["last_line"]) for task in shown["tasks"]] == [
        (number, 137 if number == 2 else 0, name) for number, name in enumerate(NAMES)
    ]
    assert shown["tasks"][1]["parameters"] == {"name": "a b", "n": "1"}
    (shown,) = lab.ask("q", job_id, "--metric", "result.json:loss:max", "--sort", "metric")["jobs"]
    assert [task["metric"] for task in shown["tasks"]] == [2.0, 1.0, 0.0]
    assert "2 of 3 done, 1 failed" in lab.run("q").out
    assert lab.run("logs", f"{job_id}/2").out == f"{NAMES[2]}\n"
    alone = lab.run("logs", job_id)
    assert alone.out == "plain\n"
    assert f"task 0 of 3; of task 2, which failed: blobsync logs {job_id[-8:]}/2" in alone.err
    listed = lab.ask("outputs", f"{job_id}/2")["files"]
    assert [one["path"] for one in listed] == [f"output/{job_id}/2/name", f"output/{job_id}/2/result.json"]
    own = f"mine/output/{job_id}"
    assert lab.container.names(f"{own}/") == sorted(
        f"{own}/{at}/{file}" for at in range(3) for file in ("name", "result.json")
    )
    assert [lab.container.get(f"{own}/{at}/name").decode() for at in range(3)] == NAMES
    board = lab.board
    handle = ArrayJob(board, board.history.find(job_id))
    assert handle.results() == {number: {"loss": number} for number in range(3)}
    assert [task.parameters["name"] for task in handle.tasks if task.exit_code] == NAMES[2:]
    again.touch()
    next_id = lab.ask("resubmit", job_id, "--failed")["job_id"]
    ended = lab.until(next_id)
    assert (ended["status"], ended["task_counts"]) == ("Completed", {"Completed": 1})
    assert [task["index"] for task in lab.ask("q", next_id)["jobs"][0]["tasks"]] == [2]
    assert lab.container.get(f"mine/output/{next_id}/2/name").decode() == NAMES[2]
    assert lab.ask("resubmit", job_id, "--failed") == {"jobs": []}
    assert not list(lab.project.root.rglob("pwned")) and lab.scratch_is_empty


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cluster", ["here", ON_SLURM])
def test_a_thousand_tasks_end_one_by_one(lab: Lab, cluster: str) -> None:
    platform = "local" if cluster == "here" else "slurm"
    lab.configure(cluster, platform, gpu_per_node=0, nodes=1, local={"slots": 4, "gpus": 0})
    job_id = lab.submit(cluster, "--sweep", "n=0..999", "true")
    board = lab.board

    def has_ended() -> bool:
        return refresh(board, [board.history.find(job_id)]).records[0].info.state.value in ("Completed", "Failed")

    assert wait_until(has_ended, seconds=3000, pause=10), lab.run("q", job_id)
    begun = time.monotonic()
    (shown,) = lab.ask("q", job_id)["jobs"]
    print(f"{cluster}: q ID of 1,000 tasks took {time.monotonic() - begun:.2f} s")
    assert [(task["index"], task["exit_code"]) for task in shown["tasks"]] == [(number, 0) for number in range(1000)]


@pytest.mark.slurm
def test_slurms_own_array_is_a_list_of_tasks(lab: Lab) -> None:
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, output="per_job")
    job_id = lab.submit("uni", "--array", "1-3:2%1", "echo $SLURM_ARRAY_TASK_ID > $BLOBSYNC_OUTPUT/number; sleep 60")
    assert wait_until(lambda: lab.ask("q", job_id)["jobs"][0]["tasks"][0]["status"] == "Running")
    lab.run("abort", f"{job_id}/1")

    def states() -> list[tuple[int, str]]:
        return [(each["index"], each["status"]) for each in lab.ask("q", job_id)["jobs"][0]["tasks"]]

    assert wait_until(lambda: states() == [(1, "Canceled"), (3, "Running")])
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled" and states() == [(1, "Canceled"), (3, "Canceled")]


@pytest.mark.slurm
@pytest.mark.mpi
def test_mpirun_can_be_the_launcher(lab: Lab) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed here (Debian: apt-get install openmpi-bin)")
    # mpirun reads its own variables in env:, too.
    env = {"LIST": "a,b; c", **AS_ROOT}
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, env=env, slurm={"launcher": "mpirun"})
    job_id = lab.submit("uni", "echo rank $RANK of $OMPI_COMM_WORLD_SIZE with $LIST", gpus=2)
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    assert lab.run("logs", job_id, "--rank", "1").out == "rank 1 of 2 with a,b; c\n"


@pytest.mark.soak
@pytest.mark.slurm
@pytest.mark.mpi
def test_what_mpirun_says_itself_is_shown(lab: Lab) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed here (Debian: apt-get install openmpi-bin)")
    env = {**AS_ROOT, "OMPI_MCA_rmaps_base_mapping_policy": "nowhere"}
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, env=env, slurm={"launcher": "mpirun"})
    job_id = lab.submit("uni", "echo never", gpus=2)
    following = lab.run("logs", job_id, "-F")
    assert lab.until(job_id)["status"] == "Failed", lab.run("q", job_id)
    for shown in (following.out, lab.run("q", job_id).out, lab.run("logs", job_id).out):
        assert "mapping policy is not recognized" in shown and "nowhere" in shown
    told = lab.run("parse", job_id).out
    assert "MpiOption: mpirun was given an option" in told and "mapping policy is not recognized" in told
    # A failed process has its own log; mpirun reports why the others ended.
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=1, env=AS_ROOT, slurm={"launcher": "mpirun"})
    job_id = lab.submit("uni", "echo here; [ $RANK = 0 ] || exit 3; sleep 60", gpus=2)
    assert lab.until(job_id)["exit_code"] == 3
    assert lab.run("logs", job_id).out == "here\n"
    assert "MpiAborted: mpirun ended all processes because one of them failed" in lab.run("parse", job_id).out


@pytest.mark.slurm
@pytest.mark.mpi
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("srun -n 2 sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS with $LIST'", marks=pytest.mark.soak),
        "mpirun -n 2 sh -c 'echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE with $LIST'",
    ],
)
def test_a_program_on_slurm_starts_processes_itself_by_srun_and_mpirun(lab: Lab, line: str) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed here (Debian: apt-get install openmpi-bin)")
    # On both nodes: mpirun's daemons are a step, too. Our own step has all CPUs already.
    env = {"LIST": "a,b; c", **AS_ROOT}
    lab.configure("uni", "slurm", gpu_per_node=0, env=env, slurm={"exclusive": True})
    job_id = lab.submit("uni", "--nodes", "2", f"[ $RANK = 1 ] || {line}")
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    assert sorted(lab.run("logs", job_id).out.splitlines()) == [f"rank {rank} of 2 with a,b; c" for rank in (0, 1)]


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_jobs_on_one_slot_wait_their_turn(lab: Lab, count: int) -> None:
    lab.configure("here", "local", local={"slots": 1, "gpus": 0})
    order = lab.project.root.parent / "order"
    gate = lab.project.root.parent / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.1; done"
    ids = [lab.submit("here", f"echo start {n} >> {order}; {wait}; echo end {n} >> {order}") for n in range(count)]
    # A job that is made ready counts as one that waits.
    lab.until(ids[0], "Running")
    waiting = lab.ask("qq")["jobs"]
    assert [job["job_id"] for job in waiting] == ids[:0:-1] and waiting[-1]["reason"] == "1 job before it"
    gate.touch()
    for job_id in ids:
        assert lab.until(job_id)["status"] == "Completed"
    assert order.read_text().splitlines() == [f"{word} {n}" for n in range(count) for word in ("start", "end")]


@pytest.mark.soak
def test_gpus_are_shared_out(lab: Lab) -> None:
    lab.configure("here", "local", local={"slots": 1, "gpus": 3})
    gate = lab.project.root.parent / "gate"
    show = f"echo $CUDA_VISIBLE_DEVICES; while [ ! -e {gate} ]; do sleep 0.1; done"
    ids = [lab.submit("here", "--single", show, gpus=count) for count in (2, 1, 1)]
    for job_id in ids[:2]:
        lab.until(job_id, "Running")
    assert lab.job(ids[2])["status"] == "Queued"
    assert lab.ask("-c", "here", "summary")["gpus_free"] == 0
    gate.touch()
    for job_id in ids:
        lab.until(job_id)
    seen = [lab.run("logs", job_id).out.strip() for job_id in ids]
    assert seen[:2] == ["0,1", "2"] and seen[2] in ("0", "1", "2")
    lab.run("-c", "here", "-n", "4", "submit", "true", code=1)


def test_a_killed_supervisor_frees_its_place_and_a_killed_node_has_the_exit_code_that_a_shell_says(lab: Lab) -> None:
    lab.configure("here", "local", local={"slots": 1, "gpus": 0})
    beats, others = (lab.project.root.parent / name for name in ("beats", "others"))
    lost = lab.submit("here", f"while :; do echo x >> {beats}; sleep 0.1; done")
    assert wait_until(beats.exists)
    # Its programs may be in sessions of their own.
    after = lab.submit("here", f"setsid sh -c 'echo up; while :; do echo x >> {others}; sleep 0.1; done' & wait")
    supervisor, *_ = processes_of(lab, lost, b"blobsync.backends.local.supervisor")
    os.kill(supervisor, signal.SIGKILL)
    job = lab.until(lost)
    assert (job["status"], job["reason"]) == ("Failed", "its supervisor died, or the machine went down")
    # Its processes, which have no supervisor any more, were ended.
    assert wait_until(lambda: time.time() - beats.stat().st_mtime > 2)
    lab.until_up(after)
    for pid in processes_of(lab, after, b"blobsync.node"):
        os.kill(pid, signal.SIGKILL)
    job = lab.until(after)
    assert (job["status"], job["exit_code"]) == ("Failed", 128 + signal.SIGKILL)
    assert wait_until(lambda: time.time() - others.stat().st_mtime > 2)


def test_a_job_whose_supervisor_is_killed_while_the_node_is_made_ready_never_runs(lab: Lab) -> None:
    begun, gate, ran = (lab.project.root.parent / name for name in ("begun", "gate", "ran"))
    setup = f"touch {begun}; while [ ! -e {gate} ]; do sleep 0.1; done"
    lab.configure("here", "local", local={"slots": 1, "gpus": 0}, setup=setup)
    job_id = lab.submit("here", f"touch {ran}; sleep 600")
    assert wait_until(begun.exists)
    (supervisor,) = processes_of(lab, job_id, b"blobsync.backends.local.supervisor")
    os.kill(supervisor, signal.SIGKILL)
    assert lab.until(job_id)["status"] == "Failed"
    gate.touch()
    lab.until_gone(job_id)
    assert not ran.exists()


def processes_of(lab: Lab, job_id: str, module: bytes = b"") -> list[int]:
    """The processes of a job that run this module of ours; without one all whose command line has its folder."""
    run = bytes(lab.project.state / "jobs" / job_id)
    lines = {int(pid): command_line(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    return [pid for pid, line in lines.items() if run in line and (not module or module in line.split(b"\0"))]


@pytest.mark.parametrize(
    "words",
    [("history",), *(pytest.param(words, marks=pytest.mark.soak) for words in (("ls",), ("plan", "u", "data")))],
    ids=" ".join,
)
def test_the_next_command_removes_the_secrets_of_a_run_that_was_killed_whole(lab: Lab, words: tuple[str, ...]) -> None:
    lab.configure("aml", "local")
    job_id = lab.submit("here", "echo up; sleep 600")
    lab.until_up(job_id)
    (secrets,) = (lab.project.root / ".blobsync").rglob("secrets.json")
    lab.run(*words)
    assert secrets.exists(), "the run still needs them"
    of_the_run = processes_of(lab, job_id)
    assert len(of_the_run) >= 2
    for pid in of_the_run:
        # One may end with another.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lab.until_gone(job_id)
    lab.run(*words)
    assert not list((lab.project.root / ".blobsync").rglob("secrets.json"))


def test_ctrl_c_ends_the_waiting_and_not_the_job_whose_lines_are_shown_as_they_come(lab: Lab) -> None:
    gate = lab.project.root.parent / "gate"
    script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.1; done; echo late"
    waiting = lab.project.start("-c", "here", "submit", "--wait", script)
    assert waiting.stdout and waiting.stdout.readline() == "begun\n"
    waiting.send_signal(signal.SIGINT)
    done = lab.project.finish(waiting)
    assert done.code == 130 and "keeps running" in done.err and "blobsync abort" in done.err
    job_id = lab.ask("qr")["jobs"][0]["job_id"]
    follower = lab.project.start("logs", job_id, "-F")
    assert follower.stdout and follower.stdout.readline() == "begun\n"
    gate.touch()
    done = lab.project.finish(follower)
    assert (done.code, done.out) == (0, "late\n")
    assert lab.until(job_id)["status"] == "Completed"


def test_jobs_survive_the_terminal_that_submitted_them(lab: Lab) -> None:
    gate = lab.project.root.parent / "gate"
    environ = {**os.environ, **lab.project.environ}
    script = f"while [ ! -e {gate} ]; do sleep 0.1; done; echo survived"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(lab.project.root)
        os.execve(blobsync_command(), ["blobsync", "-c", "here", "submit", "--wait", script], environ)
    assert wait_until(lambda: lab.ask("qr")["jobs"], pause=0.1)
    os.close(terminal)
    assert wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
    gate.touch()
    job_id = lab.ask("q")["jobs"][0]["job_id"]
    assert lab.until(job_id)["status"] == "Completed"
    assert lab.run("logs", job_id).out == "survived\n"


def test_watch_tries_again_for_reasons_that_pass(lab: Lab) -> None:
    counter = lab.project.root.parent / "tries"
    flaky = f'echo "$WORDS" >> {counter}; [ $(wc -l < {counter}) -ge 2 ] || (echo ECC error on GPU 0; exit 1)'
    job_id = lab.submit("here", "--env", "WORDS=x 'y", flaky)
    answer = lab.ask("watch", job_id, "--retry", "5")
    assert [attempt["status"] for attempt in answer["attempts"]] == ["Failed", "Completed"]
    assert counter.read_text() == "x 'y\n" * 2, "what was set for one job is set again"
    assert [cause["code"] for cause in answer["attempts"][0]["causes"]] == ["ECC"]
    broken = lab.submit("here", "echo ModuleNotFoundError: x; exit 3")
    answer = lab.ask("watch", broken, "--retry", "5", code=3)
    assert [attempt["status"] for attempt in answer["attempts"]] == ["Failed"]


def test_local_runs_in_the_foreground(lab: Lab) -> None:
    assert lab.run("-c", "here", "local", "exit 4", code=4).out == ""
    assert lab.run("-c", "here", "local", "echo", "$RANK", "a b").out == "$RANK a b\n"


TELL = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE"


def told(count: int) -> list[str]:
    """The output of so many processes on one node."""
    return [f"{rank} of {count}, {rank} of {count}" for rank in range(count)]


# ACT's file has four GPUs on a node of Azure ML; a new project's has one on this machine.
ACT: Mapping[str, Any] = {"platform": "aml", "compute_target": "V100", "gpu_per_node": 4, "docker": {"image": "img"}}
NEW: Mapping[str, Any] = {"platform": "local", "gpu_per_node": 1}


@pytest.mark.parametrize(
    ("cluster", "gpus", "processes"),
    [
        (ACT, 4, 4),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((NEW, 2, 2), (NEW, 0, 1), (ACT, 0, 1), (ACT, 8, 8))),
    ],
)
def test_local_starts_every_process_that_it_speaks_of(
    lab: Lab, cluster: Mapping[str, Any], gpus: int, processes: int
) -> None:
    lab.configure("chosen", **cluster)
    done = lab.run("-c", "chosen", "-n", str(gpus), "local", TELL)
    assert sorted(done.out.splitlines()) == told(processes)


# A fake docker: reports that it works, or runs the command after the image and writes its command line down.
DOCKER = """#!/bin/sh
[ "$1" = version ] && {{ echo 28.2; exit; }}
echo "$@" >> {calls}
while [ "$1" != img ]; do shift; done
shift
exec "$@"
"""


def with_docker(lab: Lab, folder: Path) -> Path:
    """Put a fake docker first on PATH; returns the file to which it writes its command lines."""
    folder.mkdir()
    calls, docker = folder / "calls", folder / "docker"
    docker.write_text(DOCKER.format(calls=calls))
    docker.chmod(0o755)
    lab.project.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    return calls


@pytest.mark.soak
@pytest.mark.parametrize(("gpus", "processes"), [(0, 1), (2, 2), (8, 8)])
def test_local_starts_every_process_in_the_image_too(lab: Lab, tmp_path: Path, gpus: int, processes: int) -> None:
    lab.configure("chosen", **ACT, use_custom_docker=True)
    with_docker(lab, tmp_path / "programs")
    done = lab.run("-c", "chosen", "-n", str(gpus), "local", TELL)
    assert "not in img" not in done.err
    lines = sorted(done.out.splitlines())
    assert lines == told(processes) if processes > 1 else len(lines) == 1


HOSTILE = ("--privileged", "-v", "/:/host")


def test_no_project_reaches_beyond_its_folders_through_docker_without_the_users_word(lab: Lab, tmp_path: Path) -> None:
    calls = with_docker(lab, tmp_path / "programs")
    write_tree(lab.project.root, {"compile.aml.sh": b"true\n"})
    image = {"image": "img", "args": list(HOSTILE)}
    lab.configure("aml", **{**ACT, "docker": image}, use_custom_docker=True)
    lab.configure("here", "local", gpu_per_node=1, docker={**image, "runtime": "docker"})
    lab.run("-c", "here", "init")
    for words in (("local", "true"), ("initc", "--dry-run"), ("-c", "here", "submit", "true")):
        done = lab.run(*words, code=2)
        assert "reaches beyond the project" in done.err and "--privileged" in done.err, done
        assert ("config trust-docker" in done.err and "blobsync -c here" in done.err) or "here" not in words, done
    assert not calls.exists()
    trusted = lab.ask("config", "trust-docker")
    assert trusted == {"trusted": [list(HOSTILE)]}
    lab.run("local", "true")
    assert f" {' '.join(HOSTILE)} img " in calls.read_text()
    # Another option needs another agreement; options without effect outside need none.
    calls.unlink()
    lab.configure("aml", **{**ACT, "docker": {**image, "args": [*HOSTILE, "--pid=host"]}}, use_custom_docker=True)
    assert "--pid=host" in lab.run("local", "true", code=2).err
    assert not calls.exists()
    lab.configure("aml", **{**ACT, "docker": {**image, "args": ["--gpus", "all", "-e", "A=1"]}}, use_custom_docker=True)
    lab.run("local", "true")
    assert " --gpus all -e A=1 img " in calls.read_text()
    assert lab.ask("config", "trust-docker", "--forget") == {"trusted": []}


def test_a_link_out_of_the_project_is_not_in_the_image_without_the_users_word(lab: Lab, tmp_path: Path) -> None:
    calls = with_docker(lab, tmp_path / "programs")
    lab.configure("aml", **ACT, use_custom_docker=True)
    victim = tmp_path / "victim"
    victim.mkdir()
    shutil.rmtree(lab.project.root / "data", ignore_errors=True)
    (lab.project.root / "data").symlink_to(victim)
    done = lab.run("local", "true", code=2)
    assert f"data points to {victim}" in done.err and "config trust-link data" in done.err, done
    assert not calls.exists()
    lab.run("config", "trust-link", "data")
    lab.run("local", "true")
    assert f"-v {victim}:{victim}" in calls.read_text()


def test_a_time_limit_ends_a_job_of_this_machine(lab: Lab) -> None:
    lab.configure("here", **NEW, local={"slots": 4, "gpus": 0}, timeout="3s")
    begun = lab.project.root.parent / "begun"
    job_id = lab.submit("here", f"echo begun; touch {begun}; sleep 300", gpus=0)
    ended = lab.until(job_id)
    assert (ended["status"], ended["reason"]) == ("Failed", "its time limit of 3s was over")
    # The limit begins with the job's turn: on a busy machine it may be over before the program has begun.
    assert lab.project.run("logs", job_id).out.startswith("begun") or not begun.exists()


@pytest.mark.parametrize("cluster", ["here", pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak])])
def test_no_gpu_is_one_process_that_sees_none(lab: Lab, cluster: str) -> None:
    lab.configure("here", "local", gpu_per_node=2, local={"slots": 4, "gpus": 2}, timeout="1h")
    job_id = lab.submit(cluster, f"{TELL}; echo sees $CUDA_VISIBLE_DEVICES.", gpus=0)
    job = lab.until(job_id)
    assert (job["nodes"], job["processes"], job["gpus"]) == (1, 1, 0)
    assert lab.run("logs", job_id).out.splitlines() == [*told(1), "sees ."]
