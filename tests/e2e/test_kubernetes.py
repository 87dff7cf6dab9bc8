"""Jobs on Kubernetes: the installed blobsync, the real kubectl, and pods that run as processes of this machine."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.jobs.queries import JobQueries
from blobsync.jobs.record import home_of
from blobsync.jobspec.spec import JobRef
from tests.e2e.test_jobs import SHOW, Lab
from tests.e2e.world import Container, Project, write_tree
from tests.fakes.kubernetes import demand_valid
from tests.servers.kube.cluster import IMAGE, RealCluster, stand_in
from tests.servers.kube_fixture import kube_cluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["kube_cluster", "slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes]

# Saves its progress in the uploaded folder, and resumes from there.
RESUMING = """\
import os, time
mark = "output/steps.txt"
os.makedirs("output", exist_ok=True)
done = open(mark).read().split() if os.path.exists(mark) else []
print("begins after", len(done), flush=True)
if not done:
    with open(mark, "w") as file:
        file.write("one ")
    time.sleep(300)
"""

# More than the kubelet keeps, and faster than it is read.
TALKING = """\
import os, sys, time
for number in range(12_000):
    print(f"line {number} of what nobody may lose")
    if number % 1_000 == 9:
        sys.stdout.flush()
        time.sleep(0.25)
    # Whoever follows has to have seen the beginning.
    while number == 9 and not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
"""


class KubeLab(Lab):
    """A project with the cluster ``k8s``, in its own namespace."""

    namespace = ""
    pause = 1.0

    def kubernetes(self, name: str = "k8s", **more: Any) -> None:
        given = {"namespace": self.namespace, "image": IMAGE, **more.pop("kubernetes", {})}
        here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
        entries = {
            "code_path": {**here, "path": "mine/code.zip"},
            "data_folder": {**here, "path": "mine/data", "mode": "download"},
            "output_folder": {**here, "path": "mine/output", "mode": "upload"},
        }
        settings = {"gpu_per_node": 0, "config_param": entries, "runtime": {"sync_seconds": 1}, **more}
        self.configure(name, "kubernetes", kubernetes=given, **settings)

    def name_of(self, job_id: str) -> str:
        return job_id.replace("_", "-")

    def until_reason(self, job_id: str, words: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def told() -> bool:
            found.update(self.job(job_id))
            return words in (found["reason"] or "")

        assert wait_until(told, pause=1.0), found
        return found


@pytest.fixture
def lab(with_node_archive: Project, container: Container, kube_cluster: RealCluster) -> KubeLab:
    project = with_node_archive
    lab = KubeLab(project, container)
    lab.namespace = kube_cluster.new_namespace()
    code = {"show.py": SHOW.encode(), "resuming.py": RESUMING.encode(), "talking.py": TALKING.encode()}
    write_tree(project.root, {**code, "data/voc/a.txt": b"a picture"})
    project.environ.update(kube_cluster.environ)
    lab.kubernetes()
    lab.run("-c", "k8s", "init")
    return lab


@contextmanager
def command_lines_seen() -> Iterator[set[bytes]]:
    """Records every command line of this machine, and the environment of each kubectl, during the block."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.03):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                    seen.add(line)
                    if b"kubectl" in line:
                        seen.add(path.with_name("environ").read_bytes())
                except OSError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_two_nodes_of_two_processes_each_get_their_words_and_their_folders(
    lab: KubeLab, kube_cluster: RealCluster
) -> None:
    before = (kube_cluster.kubeconfig.read_bytes(), kube_cluster.kubeconfig.stat().st_mtime_ns)
    lab.run("-c", "k8s", "u", "data")
    lab.kubernetes(nodes=2)
    awkward = ["two words", "$HOME", ";", "*", "$(id)", "--wait", "-n"]
    with command_lines_seen() as seen:
        job_id = lab.submit("k8s", "python3", "show.py", *awkward, gpus=4)
        (secret,) = kube_cluster.json("get", "secrets", "-n", lab.namespace)["items"]
        assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)

    facts = {rank: json.loads(lab.container.get(f"mine/output/facts/{rank}.json")) for rank in range(4)}
    name = lab.name_of(job_id)
    for rank, fact in facts.items():
        env = fact["env"]
        assert fact["argv"] == awkward and fact["data"] == "a picture"
        assert (env["LIST"], env["MY_TOKEN"]) == ("a,b; c", "hush-hush")
        assert (env["WORLD_SIZE"], env["LOCAL_RANK"], env["NODE_RANK"]) == ("4", str(rank % 2), str(rank // 2))
        assert env["MASTER_ADDR"] == f"{name}-0.{name}" and env["JOB_COMPLETION_INDEX"] == str(rank // 2)
    detail = lab.detail(job_id[-6:])
    assert (detail["status"], detail["exit_code"], detail["tail"]) == ("Completed", 0, ["rank 0 is done"])
    assert lab.run("logs", job_id, "--rank", "3").out == "rank 3 is done\n"
    names = {Path(path).name for path in detail["logs"]}
    assert {*(f"std_log_process_{rank}.txt" for rank in range(4)), "node_0.txt", "node_1.txt"} <= names

    # Secrets are only in the Secret, which is removed at the first query after the job's end.
    assert any(b"kubectl" in line for line in seen)
    assert not [line for line in seen if b"hush-hush" in line and b"kubectl" in line]
    assert not [line for line in seen if b"kubectl" in line and (b"sig=" in line or lab.container.key.encode() in line)]
    shown = lab.run("-c", "k8s", "submit", "--dry-run", "python3", "show.py").out
    assets = b"".join(path.read_bytes() for path in (lab.project.root / "assets").rglob("*.txt"))
    job = json.dumps(kube_cluster.json("get", "jobs,configmaps,pods", "-n", lab.namespace))
    for text in (shown, assets.decode(), job):
        assert "hush-hush" not in text and lab.container.key not in text
        assert not re.search(r"sig=[A-Za-z0-9%]{9}", text)
    assert secret["metadata"]["ownerReferences"][0]["name"] == name
    assert kube_cluster.json("get", "secrets", "-n", lab.namespace)["items"] == []
    assert (kube_cluster.kubeconfig.read_bytes(), kube_cluster.kubeconfig.stat().st_mtime_ns) == before


def states(lab: KubeLab, job_id: str) -> list[str]:
    return [each["status"] for each in lab.ask("q", job_id)["jobs"][0]["tasks"]]


def test_tasks_of_a_sweep_are_pods_with_logs_and_outputs_of_their_own(lab: KubeLab) -> None:
    lab.kubernetes(output="per_job")
    line = "printf '%s\\n' {word}; printf %s {word} > $BLOBSYNC_OUTPUT/word"
    line += "; case {n} in 1) exit 1;; 2) sleep 600;; esac"
    job_id = lab.submit("k8s", "--zip", "--sweep", "n=0..2", "--sweep", "word=a b,$(pwd),it's", "--parallel", "2", line)
    assert wait_until(lambda: states(lab, job_id)[1:] == ["Failed", "Running"], pause=1.0)
    # A pod runs before its program does.
    assert wait_until(lambda: "it's" in lab.project.run("logs", f"{job_id}/2").out, pause=1.0)
    lab.run("abort", f"{job_id}/2")
    ended = lab.until(job_id)
    assert (ended["status"], ended["task_counts"]) == ("Failed", {"Completed": 1, "Failed": 1, "Canceled": 1}), ended
    tasks = lab.ask("q", job_id)["jobs"][0]["tasks"]
    assert [(each["index"], each["exit_code"]) for each in tasks] == [(0, 0), (1, 1), (2, None)]
    assert [each["last_line"] for each in tasks] == ["a b", "$(pwd)", "it's"]
    assert lab.run("logs", f"{job_id}/2").out == "it's\n"
    own = f"mine/output/{job_id}"
    assert lab.container.names(f"{own}/") == [f"{own}/{number}/word" for number in range(3)]
    assert lab.container.get(f"{own}/1/word") == b"$(pwd)"
    next_id = lab.ask("resubmit", job_id, "--failed")["job_id"]
    lab.until(next_id)
    assert [each["index"] for each in lab.ask("q", next_id)["jobs"][0]["tasks"]] == [1]
    assert lab.container.names(f"mine/output/{next_id}/") == [f"mine/output/{next_id}/1/word"]


@pytest.mark.soak
def test_tasks_of_several_nodes_begin_and_end_as_a_whole(lab: KubeLab, kube_cluster: RealCluster) -> None:
    lab.kubernetes(nodes=2, output="per_job")
    line = "echo {word} $RANK of $WORLD_SIZE at $MASTER_ADDR; [ $RANK = 1 ] || touch $BLOBSYNC_OUTPUT/{word};"
    line += " case {word}$RANK in b1) exit 5;; b0|c?) sleep 600;; esac"
    job_id = lab.submit("k8s", "--sweep", "word=a,b,c", line, gpus=2)
    assert wait_until(lambda: states(lab, job_id) == ["Completed", "Failed", "Running"], pause=1.0)
    name = lab.name_of(job_id)
    assert lab.run("logs", f"{job_id}/0", "--rank", "1").out == f"a 1 of 2 at {name}-0.{name}\n"
    lab.run("abort", f"{job_id}/2")
    ended = lab.until(job_id)
    assert ended["task_counts"] == {"Completed": 1, "Failed": 1, "Canceled": 1}, ended
    assert ended["reason"].startswith("task 1: node 1 (") and "and the task ended with it" in ended["reason"]
    tasks = lab.ask("q", job_id)["jobs"][0]["tasks"]
    assert [each["exit_code"] for each in tasks] == [0, 5, None]
    assert tasks[0]["last_line"] == f"a 0 of 2 at {name}-0.{name}"
    assert f"of task 1, which failed: blobsync logs {job_id[-8:]}/1" in lab.run("logs", job_id).err
    own = f"mine/output/{job_id}"
    assert lab.container.names(f"{own}/") == [f"{own}/{number}/{word}" for number, word in enumerate("abc")]
    assert kube_cluster.json("get", "secrets", "-n", lab.namespace)["items"] == []
    next_id = lab.ask("resubmit", job_id, "--failed")["job_id"]
    lab.run("abort", next_id)
    assert lab.until(next_id)["task_counts"] == {"Canceled": 1}
    assert lab.ask("q", next_id)["jobs"][0]["tasks"][0]["index"] == 1
    jobs = [each["metadata"]["name"] for each in kube_cluster.json("get", "jobs", "-n", lab.namespace)["items"]]
    assert sorted(jobs) == sorted([name, f"{name}-t1", f"{name}-t2", lab.name_of(next_id)])


@pytest.mark.soak
def test_the_printed_request_runs_once_its_secret_is_filled(lab: KubeLab, kube_cluster: RealCluster) -> None:
    plan = lab.ask("-c", "k8s", "submit", "--dry-run", "echo", "by hand")
    objects = demand_valid(plan["plan"])
    url = f"{lab.container.service}/{lab.container.account}/{lab.container.name}"
    blank = json.loads(objects[0]["stringData"]["secrets.json"])
    assert blank == {"env": {"MY_TOKEN": ""}, "sas": {url: ""}}
    objects[0]["stringData"]["secrets.json"] = json.dumps({"env": {}, "sas": {url: lab.container.sas("racwl")}})
    # The first submitted job uploads the node archive.
    assert lab.until(lab.submit("k8s", "true"))["status"] == "Completed"
    kube_cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    name = lab.name_of(plan["job_id"])
    kube_cluster.kubectl("wait", "--for=condition=complete", f"job/{name}", "-n", lab.namespace, "--timeout=60s")
    log = kube_cluster.kubectl("logs", f"job/{name}", "-n", lab.namespace).stdout
    assert "[std_log 0] by hand" in log.splitlines()


@pytest.mark.soak
def test_an_evicted_node_comes_back_with_what_it_had_uploaded(lab: KubeLab, kube_cluster: RealCluster) -> None:
    job_id = lab.submit("k8s", "python3", "resuming.py")
    pod = kube_cluster.running(lab.name_of(job_id), 0, lab.namespace)
    assert wait_until(lambda: "mine/output/steps.txt" in lab.container.names("mine/output/"))
    kube_cluster.evict(pod, lab.namespace)
    job = lab.until(job_id)
    assert (job["status"], job["restarts"], job["exit_code"]) == ("Completed", 1, 0)
    # The log of rank 0 is that of its latest attempt; that of the first one exists, too.
    assert lab.run("logs", job_id).out == "begins after 1\n"
    folder = lab.project.root / "assets" / job_id
    assert (folder / "attempt_1/user_logs/std_log.txt").read_text() == "begins after 1\n"
    assert (folder / "user_logs/std_log.txt").read_text() == "begins after 0\n"


@pytest.mark.soak
def test_an_eviction_among_several_nodes_ends_the_job_and_watch_submits_it_again(
    lab: KubeLab, kube_cluster: RealCluster
) -> None:
    lab.kubernetes(nodes=2)
    job_id = lab.submit("k8s", "[ -e data/go ] || sleep 300", gpus=2)
    pod = kube_cluster.running(lab.name_of(job_id), 1, lab.namespace)
    kube_cluster.evict(pod, lab.namespace)
    job = lab.until(job_id)
    assert job["status"] == "Failed"
    assert job["reason"].startswith("node 1") and "was evicted (DisruptionTarget)" in job["reason"]
    lab.container.put("mine/data/go", b"")
    lab.run("watch", job_id, "--retry", "1")
    (again,) = [each for each in lab.ask("q", "--max", "9")["jobs"] if each["resubmission_of"] == job_id]
    assert again["status"] == "Completed"


def test_what_keeps_a_job_from_running_is_reported_with_the_next_command(
    lab: KubeLab, kube_cluster: RealCluster
) -> None:
    cluster = stand_in(kube_cluster)
    lab.kubernetes("big", gpu_per_node=64)
    lab.kubernetes("wrong", kubernetes={"image": "nowhere.invalid/x:1"})
    cluster.refuse_image("nowhere.invalid/x:1")
    never, wrong = lab.submit("big", "true", gpus=64), lab.submit("wrong", "true")
    job = lab.until_reason(never, "no node of the cluster fits: 0/3 nodes are available")
    assert job["status"] == "Queued"
    job = lab.until_reason(wrong, "its image cannot be pulled")
    assert job["status"] == "Preparing" and "nowhere.invalid/x:1" in job["reason"]
    assert f"kubectl --context=stand-in describe pod {lab.name_of(wrong)}-0-" in job["reason"]
    assert "cannot be pulled" in lab.run("q", wrong).out
    lab.run("a", never, wrong)
    assert {lab.until(each)["status"] for each in (never, wrong)} == {"Canceled"}
    lab.run("a", never)


def allow_pods(cluster: RealCluster, namespace: str, most: int) -> None:
    """Set a quota of the namespace."""
    spec = {"hard": {"pods": str(most)}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": namespace}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**quota, "spec": spec}))


@pytest.mark.soak
def test_nodes_that_a_quota_refuses_are_missed_until_they_come(lab: KubeLab, kube_cluster: RealCluster) -> None:
    allow_pods(kube_cluster, lab.namespace, 1)
    lab.kubernetes(nodes=2)
    job_id = lab.submit("k8s", "while [ ! -e /tmp/stop ]; do sleep 0.1; done", gpus=2)
    look = f"describe quota few -n {lab.namespace}"
    job = lab.until_reason(job_id, "no pod could be made: exceeded quota: few, requested: pods=1")
    kube_cluster.running(lab.name_of(job_id), 0, lab.namespace)
    job = lab.job(job_id)
    assert job["status"] == "Queued" and job["reason"].startswith("node 1: no pod") and look in job["reason"]
    allow_pods(kube_cluster, lab.namespace, 9)
    assert lab.until(job_id, "Running")["reason"] == ""
    lab.run("a", job_id)


@pytest.mark.soak
def test_an_elastic_job_runs_on_with_the_nodes_it_has_and_its_past_stays(
    lab: KubeLab, kube_cluster: RealCluster
) -> None:
    allow_pods(kube_cluster, lab.namespace, 2)
    job_id = lab.submit("k8s", "--elastic", "1:4", "while :; do sleep 0.1; done")
    lab.until(job_id, "Running")

    def states() -> list[tuple[str, str]]:
        return [(each["state"], each["time"]) for each in lab.job(job_id)["states"]]

    before = states()
    lab.run("scale", job_id, "3")
    job = lab.until_reason(job_id, "2 of 3 nodes run; node 2: no pod could be made: exceeded quota: few")
    assert job["status"] == "Running" and states() == before
    lab.run("scale", job_id, "2")
    assert wait_until(lambda: lab.job(job_id)["reason"] == "", pause=1.0), lab.job(job_id)
    assert states() == before
    lab.run("a", job_id)


def test_a_pod_that_somebody_deletes_is_reported_as_the_reason(lab: KubeLab, kube_cluster: RealCluster) -> None:
    job_id = lab.submit("k8s", "trap 'exit 143' TERM; echo up; while :; do sleep 0.1; done")
    pod = kube_cluster.running(lab.name_of(job_id), 0, lab.namespace)
    kube_cluster.until(lambda: "up" in kube_cluster.kubectl("logs", pod, "-n", lab.namespace).stdout, "it is up", 60)
    kube_cluster.kubectl("delete", "pod", pod, "-n", lab.namespace)
    job = lab.until(job_id)
    assert (job["status"], job["exit_code"]) == ("Failed", 143)
    assert "was stopped (exit code 143): its pod was deleted, with kubectl delete pod" in job["reason"]


def test_refusals_of_the_cluster_leave_nothing_behind(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    lab.kubernetes("elsewhere", kubernetes={"namespace": "not-there"})
    said = lab.run("-c", "elsewhere", "submit", "true", code=1)
    assert "there is no such namespace" in said.err and "create namespace not-there" in said.err
    may = f"auth can-i --list -n {lab.namespace}"
    for resource in ("jobs.batch", "secrets"):
        cluster.deny("create", resource)
        try:
            said = lab.run("-c", "k8s", "submit", "true", code=2)
        finally:
            cluster.allow_all()
        assert "does not allow it" in said.err and may in said.err
    cluster.deny("create", "configmaps")
    cluster.deny("*", "persistentvolumes")
    try:
        said = lab.run("-c", "k8s", "submit", "true", code=2)
    finally:
        cluster.allow_all()
    assert may in said.err and "remove what was made" not in said.err
    lab.kubernetes("gone", kubernetes={"context": "no-such-context"})
    said = lab.run("-c", "gone", "submit", "true", code=2)
    assert "remove what was made" not in said.err
    assert 'context "no-such-context" does not exist' in said.err and "kubectl config get-contexts" in said.err
    lab.kubernetes("queued", kubernetes={"queue": "team"})
    said = lab.run("-c", "queued", "submit", "true", code=1)
    assert "the cluster has no Kueue, so a job in queue team would wait forever" in said.err
    assert "omit kubernetes.queue, or install Kueue" in said.err
    # What belongs to a job that was removed is collected a moment later.
    kinds = ("get", "jobs,secrets,configmaps,services,pods", "-n", lab.namespace)
    cluster.until(lambda: cluster.json(*kinds)["items"] == [], "nothing is left")
    assert lab.ask("q")["jobs"] == []


@pytest.mark.soak
def test_a_job_runs_in_a_namespace_that_admits_restricted_pods_only(lab: KubeLab, kube_cluster: RealCluster) -> None:
    lab.namespace = kube_cluster.new_namespace(enforce="restricted")
    lab.kubernetes()
    script = "id -u; grep NoNewPrivs /proc/self/status; echo x > ~/mine && echo home; id -u > output/who"
    said = lab.run("-c", "k8s", "submit", script)
    where = f"the namespace {lab.namespace} admits restricted pods only"
    assert f"{where}: the job runs as user 1000" in said.err and "warns" not in said.err
    job_id = lab.ask("q")["jobs"][0]["job_id"]
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    assert lab.run("logs", job_id).out.splitlines()[::2] == ["1000", "home"]
    assert lab.container.get("mine/output/who") == b"1000\n"
    told = {each["check"]: each for each in lab.ask("-c", "k8s", "doctor")["findings"]}
    assert told["pod security"]["status"] == "ok"
    assert told["pod security"]["detail"] == "the namespace enforces restricted: jobs run as user 1000"

    # Another user, in any namespace.
    lab.kubernetes(kubernetes={"security_context": {"runAsUser": 1234, "runAsGroup": 1234}})
    job_id = lab.submit("k8s", "id -u")
    assert lab.until(job_id)["status"] == "Completed" and lab.run("logs", job_id).out == "1234\n"


def test_what_the_server_warns_of_is_shown_and_a_refused_pod_is_a_reason(
    lab: KubeLab, kube_cluster: RealCluster
) -> None:
    lab.namespace = kube_cluster.new_namespace(enforce="restricted")
    lab.kubernetes(kubernetes={"security_context": {"runAsUser": 0}})
    said = lab.run("-c", "k8s", "submit", "true")
    warning = 'the cluster warns: would violate PodSecurity "restricted:latest": runAsUser=0'
    assert said.err.count(warning) == 1 and "\x1b" not in said.err
    job_id = lab.ask("q")["jobs"][0]["job_id"]
    assert 'violates PodSecurity "restricted:latest"' in lab.until_reason(job_id, "no pod could be made")["reason"]
    told = {each["check"]: each for each in lab.ask("-c", "k8s", "doctor")["findings"]}
    assert told["pod security"]["status"] == "warn" and "runAsUser=0" in told["pod security"]["detail"]
    lab.run("a", job_id)
    # A role inside the namespace may not read the namespace itself: then the warning says what helps.
    cluster = stand_in(kube_cluster)
    lab.kubernetes()
    cluster.deny("get", "namespaces")
    try:
        said = lab.run("-c", "k8s", "submit", "true")
    finally:
        cluster.allow_all()
    assert "kubernetes: {security_context: restricted} makes such pods" in said.err
    lab.run("a", lab.ask("q")["jobs"][0]["job_id"])


@pytest.mark.soak
def test_the_doctor_asks_the_cluster_for_all_that_a_job_needs(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    lab.kubernetes("elsewhere", kubernetes={"namespace": "not-there", "service_account": "nobody"})

    def found(name: str, code: int) -> dict[str, str]:
        told = lab.ask("-c", name, "doctor", code=code)["findings"]
        return {
            each["check"]: f"{each['status']}: {each['detail']}"
            for each in told
            if each["about"].endswith(f"{name}.yaml")
        }

    good = found("k8s", 0)
    assert {name: said.partition(":")[0] for name, said in good.items()} == dict.fromkeys(
        ("kubectl", "server", "namespace", "rights", "cluster"), "ok"
    )
    cluster.deny("create", "secrets")
    try:
        assert found("k8s", 1)["rights"] == "fail: you may not create secrets"
    finally:
        cluster.allow_all()
    for resource in ("namespaces", "pods/log"):
        cluster.deny("get", resource)
        try:
            (hint,) = [
                each["hint"]
                for each in lab.ask("-c", "k8s", "doctor", code=0 if resource == "namespaces" else 1)["findings"]
                if "may not" in each["detail"] or "does not allow" in each["detail"]
            ]
        finally:
            cluster.allow_all()
        assert f"auth can-i --list -n {lab.namespace}" in hint
    assert found("elsewhere", 1)["namespace"] == "fail: not-there is not there"


@pytest.mark.soak
def test_following_continues_after_the_server_was_away(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    script = "n=0; while [ ! -e /tmp/stop ]; do n=$((n+1)); echo line $n; sleep 0.2; done; echo the end"
    job_id = lab.submit("k8s", script)
    pod = cluster.running(lab.name_of(job_id), 0, lab.namespace)
    following = lab.project.start("logs", job_id, "-F")
    time.sleep(4)
    cluster.restart(down=3.0)
    time.sleep(3)
    cluster.kubectl("exec", pod, "-n", lab.namespace, "--", "touch", "/tmp/stop")
    done = lab.project.finish(following)
    lines = done.out.splitlines()
    assert done.code == 0 and lines[-1] == "the end"
    assert lines[:-1] == [f"line {number}" for number in range(1, len(lines))] and len(lines) > 20


def test_no_line_of_a_log_that_rotates_is_lost(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    cluster.rotate_logs(20_000)
    try:
        seen = f"/tmp/seen-in-{lab.namespace}"
        job_id = lab.submit("k8s", "python3", "talking.py", seen)
        pod = cluster.running(lab.name_of(job_id), 0, lab.namespace)
        following = lab.project.start("logs", job_id, "-F")
        assert following.stdout
        followed = following.stdout.readline()
        cluster.kubectl("exec", pod, "-n", lab.namespace, "--", "touch", seen)
        followed += following.stdout.read()
        done = lab.project.finish(following)
    finally:
        cluster.rotate_logs()
    every = [f"line {number} of what nobody may lose" for number in range(12_000)]
    assert done.code == 0 and followed.splitlines() == every, done.err
    copy = lab.project.root / "assets" / job_id / "user_logs" / "std_log.txt"
    assert copy.read_text().splitlines() == every
    pod = cluster.pods(lab.name_of(job_id), lab.namespace)[0]["metadata"]["name"]
    served = cluster.kubectl("logs", "-n", lab.namespace, pod).stdout
    assert "line 12 of" not in served, "the kubelet has thrown nothing away"
    # A copy with a gap, as earlier versions made it, is replaced; so is a missing one.
    copy.write_text("\n".join([*every[:4_000], *every[6_000:11_000]]) + "\n")
    for _ in range(2):
        assert lab.run("logs", job_id).out.splitlines() == every
        assert copy.read_text().splitlines() == every
        copy.unlink()


@pytest.mark.soak
def test_what_a_killed_node_had_not_copied_is_kept_apart_and_told(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    lab.kubernetes(runtime={"sync_seconds": 3600})
    cluster.rotate_logs(40_000)
    try:
        job_id = lab.submit("k8s", "python3 talking.py .; echo the last words; sleep 300")
        pod = cluster.running(lab.name_of(job_id), 0, lab.namespace)
        read = ("logs", "-n", lab.namespace, pod)
        cluster.until(lambda: "the last words" in cluster.kubectl(*read).stdout, "it has said all", 60)
    finally:
        cluster.rotate_logs()
    cluster.kill(pod, lab.namespace)
    assert lab.until(job_id)["status"] == "Failed"
    shown = lab.run("logs", job_id)
    assert shown.out.splitlines()[-1] == "the last words"
    assert "lost: bytes 0 to" in shown.err and "std_log.from_byte_" in lab.run("--json", "q", job_id).out


def test_abort_stops_a_running_job_and_a_shell_can_be_had_before(lab: KubeLab, kube_cluster: RealCluster) -> None:
    job_id = lab.submit("k8s", "trap 'echo stopped > output/note; exit 3' TERM; echo up; while :; do sleep 0.1; done")
    lab.until(job_id, "Running")
    assert wait_until(lambda: lab.run("logs", job_id).out == "up\n", pause=0.5)
    board = lab.board
    record = JobQueries(board).find(job_id)
    command = board.backend_of(record).ssh_command(record.ref)
    inside = [word for word in command if word != "-it"][:-1]
    told = subprocess.run(
        [*inside, "cat /blobsync/files/job.json"],
        capture_output=True,
        text=True,
        env={**os.environ, **lab.project.environ},
    )
    assert json.loads(told.stdout)["run_id"] == job_id, told
    lab.run("a", job_id)
    assert lab.until(job_id)["status"] == "Canceled"
    assert lab.container.get("mine/output/note") == b"stopped\n"
    # Its pod is gone, but its log is not.
    assert lab.run("logs", job_id).out.startswith("up\n")
    summary = lab.ask("-c", "k8s", "summary")
    assert summary["nodes_total"] >= 1


@pytest.mark.soak
def test_a_job_that_waits_is_entered_with_exec_and_over_when_nobody_is_inside(lab: KubeLab) -> None:
    job_id = lab.submit("k8s", "--hold", "1h", "ssh")
    lab.until(job_id, "Running")
    assert wait_until(lambda: "waiting for you" in lab.run("logs", job_id).out, pause=0.5)
    command = json.loads(lab.run("--json", "ssh", job_id, "--show").out)["data"]["command"]
    assert "-it" in command
    told = subprocess.run(
        ["-i" if word == "-it" else word for word in command],
        input='echo 0 > "$BLOBSYNC_HOLD"; echo "$BLOBSYNC_RUN_ID $RANK"; head -c 6 show.py\n',
        capture_output=True,
        text=True,
        env={**os.environ, **lab.project.environ},
    )
    assert told.stdout == f"{job_id} 0\nimport", told
    assert lab.until(job_id)["status"] == "Completed"


@pytest.mark.soak
def test_a_job_that_outlives_its_sas_is_handed_a_new_one(lab: KubeLab, kube_cluster: RealCluster) -> None:
    job_id = lab.submit("k8s", "sleep 300")
    name, there = lab.name_of(job_id), ("-n", lab.namespace)
    pod = kube_cluster.running(name, 0, lab.namespace)

    def tokens() -> Any:
        held = kube_cluster.json("get", "secret", name, *there)["data"]["secrets.json"]
        return json.loads(base64.b64decode(held))["sas"]

    first = tokens()
    lab.run("q")
    assert tokens() == first
    kube_cluster.kubectl("annotate", "job", name, *there, "--overwrite", "blobsync.dev/released=1")
    lab.run("q")
    assert tokens() != first and tokens().keys() == first.keys()

    def seen() -> bool:
        inside = kube_cluster.kubectl("exec", pod, *there, "--", "cat", "/blobsync/secrets/secrets.json").stdout
        return bool(json.loads(inside)["sas"] == tokens())

    assert wait_until(seen, seconds=90, pause=0.5)
    kube_cluster.kubectl("delete", "job", name, *there)


@pytest.mark.soak
def test_whoever_looks_at_a_job_that_has_ended_removes_its_secrets(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    lab.kubernetes("pulling", docker={"address": "registry.invalid", "username": "me", "password": "hush"})

    def kept() -> set[str]:
        found = cluster.json("get", "secrets", "-n", lab.namespace)["items"]
        return {each["metadata"]["name"] for each in found}

    def ended(job_id: str, how: str = "complete") -> str:
        name = lab.name_of(job_id)
        cluster.kubectl("wait", f"--for=condition={how}", f"job/{name}", "-n", lab.namespace, "--timeout=60s")
        return name

    foreign = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "not-ours"}, "stringData": {"a": "b"}}
    cluster.create(foreign, lab.namespace)
    runs, pulls = lab.submit("k8s", "sleep 300"), lab.submit("pulling", "true")
    live, with_login = lab.name_of(runs), ended(pulls)
    assert kept() == {"not-ours", live, with_login, f"{with_login}-pull"}
    # Not allowed: reported, and retried at the next query.
    cluster.deny("delete", "secrets")
    try:
        said = lab.run("q").err
    finally:
        cluster.allow_all()
    assert f"still has the secrets of {pulls}" in said
    lab.run("q")
    assert kept() == {"not-ours", live}
    for look in (("logs",), ("q",), ("watch",)):
        job_id = lab.submit("k8s", "true")
        ended(job_id)
        lab.run(*look, job_id)
        assert kept() == {"not-ours", live}, look
    lab.run("a", runs)
    assert lab.until(runs)["status"] == "Canceled" and kept() == {"not-ours"}
    # The Jobs are kept as long as before.
    assert live in {job["metadata"]["name"] for job in cluster.json("get", "jobs", "-n", lab.namespace)["items"]}


@pytest.mark.soak
@pytest.mark.slurm
def test_a_job_moves_from_slurm_to_kubernetes_and_back(
    lab: KubeLab, request: pytest.FixtureRequest, kube_cluster: RealCluster
) -> None:
    lab.project.environ.update(request.getfixturevalue("slurm_cluster").environ)
    lab.project.environ["PATH"] = os.pathsep.join([lab.project.environ["PATH"], kube_cluster.environ["PATH"]])
    lab.configure("uni", "slurm", gpu_per_node=0, nodes=2)
    stop = lab.project.root.parent / "stop"
    first = lab.submit("uni", "--nodes", "1", f"while [ ! -e {stop} ]; do sleep 0.1; done; echo came to an end")
    lab.until(first, "Running")
    second = lab.ask("resubmit", first, "-t", "k8s")["job_id"]
    assert lab.until(first)["status"] == "Canceled"
    lab.until(second, "Running")
    third = lab.ask("resubmit", second, "-t", "uni")["job_id"]
    assert lab.until(second)["status"] == "Canceled"
    stop.touch()
    assert lab.until(third)["status"] == "Completed"
    assert lab.run("logs", third).out == "came to an end\n"


@pytest.mark.soak
def test_thirty_jobs_are_listed_with_three_requests(lab: KubeLab, kube_cluster: RealCluster) -> None:
    cluster = stand_in(kube_cluster)
    made = lab.submit("k8s", "true")
    lab.until(made)
    board = lab.board
    record = JobQueries(board).find(made)
    backend, home = board.backend_of(record), home_of(board.cluster("k8s"), board.environ)
    bodies = []
    for number in range(30):
        spec = replace(record.spec, run_id=f"me_{number + 1}_{number:08x}", gpus_per_node=64)
        job = dict(backend.plan(spec).request.job)
        job["metadata"]["annotations"]["blobsync.dev/released"] = str(int(time.time()))
        bodies.append(job)
        board.history.add(spec, JobRef(spec.run_id, job["metadata"]["name"], record.ref.place), "kubernetes", home=home)
    cluster.kubectl("create", "-f", "-", "--validate=false", stdin=yaml.safe_dump_all(bodies))
    cluster.requests(clear=True)
    jobs = lab.ask("q", "--max", "40")["jobs"]
    asked = cluster.requests()
    assert len(jobs) == 31 and len(asked) <= 3, asked
    waiting = [job for job in jobs if job["status"] == "Queued"]
    assert len(waiting) == 30
