"""What goes wrong on a cluster, as the stand-in for Kubernetes shows it through the real kubectl."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_kube_cluster import conditions, ended, job
from tests.servers.kube.cluster import NODES, KubeCluster, missing_for_kubernetes
from tests.waiting import wait_until

# Of the stand-in alone, which the transcripts of a real server hold to account each time.
pytestmark = [pytest.mark.kubernetes, pytest.mark.soak]
SCALE = 0.1
ELASTIC: dict[str, Any] = {
    "backoffLimit": None,
    "backoffLimitPerIndex": 2,
    "podFailurePolicy": {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailIndex", "onExitCodes": {"containerName": "main", "operator": "In", "values": [72]}},
        ]
    },
    "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    if missing := missing_for_kubernetes():
        pytest.skip(missing)
    with KubeCluster(tmp_path_factory.mktemp("kube"), scale=SCALE) as started:
        yield started


@pytest.fixture(scope="module")
def space(cluster: KubeCluster) -> str:
    return cluster.new_namespace()


def waiting(cluster: KubeCluster, name: str, space: str) -> str:
    """Why the first container of the Job's newest pod waits."""
    pods = cluster.pods(name, space)
    states = pods[-1]["status"].get("containerStatuses", []) if pods else []
    return str(states[0]["state"].get("waiting", {}).get("reason", "")) if states else ""


def events(cluster: KubeCluster, space: str, reason: str) -> list[str]:
    found = cluster.json("get", "events", "-n", space, "--field-selector", f"reason={reason}")["items"]
    return [str(each["message"]) for each in found]


def elastic(name: str, script: str, size: int, **more: Any) -> dict[str, Any]:
    whole = job(name, script, size=size, **{**ELASTIC, **more})
    del whole["spec"]["backoffLimit"]
    return whole


def scale_to(cluster: KubeCluster, name: str, size: int, space: str) -> None:
    patch = json.dumps({"spec": {"completions": size, "parallelism": size}})
    cluster.kubectl("patch", "job", name, "-n", space, "--type=merge", "-p", patch)


def test_an_image_that_is_not_there_backs_off_until_it_is(cluster: KubeCluster, space: str) -> None:
    cluster.refuse_image("stand-in/missing:1")
    cluster.create(job("image", "echo pulled", pod={"main": {"image": "stand-in/missing:1"}}), space)
    cluster.until(lambda: waiting(cluster, "image", space) == "ImagePullBackOff", "the pull backs off")
    assert any("stand-in/missing:1: not found" in each for each in events(cluster, space, "Failed"))
    refused = cluster.kubectl("logs", "-n", space, "job/image", check=False).stderr
    assert "is waiting to start" in refused
    cluster.accept_image("stand-in/missing:1")
    assert conditions(ended(cluster, "image", space))[-1] == "Complete"


def test_a_pod_that_fits_nowhere_says_why_and_starts_when_a_node_comes(cluster: KubeCluster, space: str) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "16"}}}
    cluster.create(job("big", "echo fits", pod={"main": limits}), space)
    said = cluster.until(lambda: events(cluster, space, "FailedScheduling"), "the scheduler says something")
    assert said[0].startswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    cluster.add_node("n16", gpus=16)
    assert conditions(ended(cluster, "big", space))[-1] == "Complete"
    cluster.remove_node("n16")


def test_an_evicted_index_comes_back_and_is_not_counted(cluster: KubeCluster, space: str) -> None:
    script = "trap 'exit 143' TERM; while [ ! -e /done ]; do sleep 0.1; done"
    cluster.create(elastic("evicted", script, 2), space)
    first = cluster.running("evicted", 1, space)
    cluster.evict(first, space)
    cluster.until(lambda: cluster.running("evicted", 1, space) != first, "another pod runs")
    found = cluster.json("get", "job", "evicted", "-n", space)["status"]
    assert found.get("failed", 0) == 0 and found["failedIndexes"] == ""
    second = cluster.pod("evicted", 1, space)
    assert second and second["metadata"]["annotations"]["batch.kubernetes.io/job-index-ignored-failure-count"] == "1"
    cluster.kubectl("exec", "-n", space, cluster.running("evicted", 0, space), "--", "touch", "/done")
    found = ended(cluster, "evicted", space)
    assert conditions(found) == ["SuccessCriteriaMet", "Complete"] and found["status"]["completedIndexes"] == "0"
    assert found["status"]["conditions"][-1]["reason"] == "SuccessPolicy"
    cluster.until(lambda: not [each for each in cluster.pods("evicted", space) if _runs(each)], "the others have ended")


def _runs(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def test_scaling_down_ends_the_highest_index_and_up_starts_it_again(cluster: KubeCluster, space: str) -> None:
    cluster.create(elastic("scaled", "trap 'exit 143' TERM; while :; do sleep 0.1; done", 1), space)
    kept = cluster.running("scaled", 0, space)
    for size in (3, 2, 3):
        scale_to(cluster, "scaled", size, space)
        cluster.until(lambda size=size: _indexes(cluster, "scaled", space) == list(range(size)), f"{size} run")  # type: ignore[misc]
    assert cluster.running("scaled", 0, space) == kept
    assert cluster.json("get", "job", "scaled", "-n", space)["status"].get("failed", 0) == 0
    cluster.kubectl("delete", "job", "scaled", "-n", space, "--wait=false")


def _indexes(cluster: KubeCluster, name: str, space: str) -> list[int]:
    found = [each for each in cluster.pods(name, space) if _runs(each) and "deletionTimestamp" not in each["metadata"]]
    return sorted(int(each["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]) for each in found)


def test_an_index_that_keeps_failing_is_tried_as_often_as_its_limit_says(cluster: KubeCluster, space: str) -> None:
    script = "[ $JOB_COMPLETION_INDEX = 0 ] && sleep 3; echo try; exit $((JOB_COMPLETION_INDEX * 9))"
    cluster.create(elastic("tries", script, 2, backoffLimitPerIndex=1, successPolicy=None), space)
    found = ended(cluster, "tries", space)
    assert conditions(found) == ["FailureTarget", "Failed"]
    assert found["status"]["conditions"][-1]["reason"] == "FailedIndexes"
    assert (found["status"]["failedIndexes"], found["status"]["completedIndexes"], found["status"]["failed"]) == (
        *("1", "0"),
        2,
    )


def test_memory_that_ran_out_is_reported(cluster: KubeCluster, space: str) -> None:
    cluster.create(job("oom", "sleep 60"), space)
    cluster.kill(cluster.running("oom", 0, space), space, reason="OOMKilled")
    assert conditions(ended(cluster, "oom", space)) == ["FailureTarget", "Failed"]
    pod = cluster.pod("oom", 0, space)
    assert pod
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)


def test_the_pods_of_a_lost_node_are_disrupted_and_come_back_elsewhere(cluster: KubeCluster, space: str) -> None:
    cluster.add_node("spot", labels={"pool": "spot"})
    whole = elastic("lost", "trap 'exit 143' TERM; while :; do sleep 0.1; done", 1, successPolicy=None)
    whole["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "spot"}
    cluster.create(whole, space)
    before = cluster.running("lost", 0, space)
    cluster.add_node("spot2", labels={"pool": "spot"})
    cluster.remove_node("spot")
    cluster.until(lambda: cluster.running("lost", 0, space) != before, "it runs on the other")
    status = cluster.json("get", "job", "lost", "-n", space)["status"]
    assert status.get("failed", 0) == 0
    cluster.kubectl("delete", "job", "lost", "-n", space, "--wait=false")
    cluster.remove_node("spot2")


def test_a_program_that_does_not_hear_sigterm_is_killed_after_its_grace_period(
    cluster: KubeCluster, space: str
) -> None:
    cluster.create(job("deaf", "while :; do sleep 0.1; done"), space)
    pod = cluster.running("deaf", 0, space)
    asked = time.monotonic()
    cluster.kubectl("patch", "job", "deaf", "-n", space, "-p", '{"spec":{"suspend":true}}')
    cluster.until(lambda: not cluster.pods("deaf", space), "it is gone")
    assert time.monotonic() - asked >= 2.0, "it stays until it has ended"
    found = cluster.json("get", "job", "deaf", "-n", space)["status"]
    assert [each["reason"] for each in found["conditions"]] == ["JobSuspended"] and "startTime" not in found
    cluster.kubectl("patch", "job", "deaf", "-n", space, "-p", '{"spec":{"suspend":false}}')
    assert cluster.running("deaf", 0, space) != pod
    cluster.kubectl("delete", "job", "deaf", "-n", space, "--wait=false")


def test_a_deadline_and_the_time_after_the_end_are_kept(cluster: KubeCluster, space: str) -> None:
    whole = job("late", "trap 'exit 1' TERM; while :; do sleep 0.1; done", activeDeadlineSeconds=10)
    cluster.create(whole, space)
    found = ended(cluster, "late", space)
    assert found["status"]["conditions"][-1]["reason"] == "DeadlineExceeded"
    # Only now: on a busy machine it would be gone before anybody has looked.
    cluster.kubectl("patch", "job", "late", "-n", space, "-p", '{"spec":{"ttlSecondsAfterFinished":30}}')
    cluster.until(
        lambda: not cluster.json("get", "jobs", "-n", space, "--field-selector=metadata.name=late")["items"], "gone"
    )


def test_a_container_that_restarts_has_the_log_of_its_last_attempt(cluster: KubeCluster, space: str) -> None:
    script = "echo attempt $$$$; sleep 0.2; exit 1"
    whole = job("again", script, backoffLimit=3, pod={"restartPolicy": "OnFailure"})
    cluster.create(whole, space)
    pod = cluster.until(lambda: cluster.pods("again", space), "there is a pod")[0]["metadata"]["name"]

    def restarts() -> int:
        found = cluster.json("get", "pod", pod, "-n", space)["status"].get("containerStatuses", [{}])
        return int(found[0].get("restartCount", 0))

    cluster.until(restarts, "it has been started again")
    assert cluster.kubectl("logs", "-n", space, "--previous", pod).stdout.startswith("attempt ")
    cluster.kubectl("delete", "job", "again", "-n", space, "--wait=false")


def test_a_quota_is_reported_in_an_event_of_the_job(cluster: KubeCluster) -> None:
    space = cluster.new_namespace()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    cluster.create(quota, space)
    cluster.create(job("quota", "sleep 0.5", size=2), space)
    said = cluster.until(lambda: events(cluster, space, "FailedCreate"), "the second pod is refused")
    assert "is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1" in said[0]
    assert conditions(ended(cluster, "quota", space))[-1] == "Complete"


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (
            {"requests.nvidia.com/gpu": "1", "pods": "0"},
            (
                "exceeded quota: few, requested: pods=1,requests.nvidia.com/gpu=2, "
                "used: pods=0,requests.nvidia.com/gpu=0, limited: pods=0,requests.nvidia.com/gpu=1"
            ),
        ),
        (
            {"memory": "9Gi", "limits.cpu": "9"},
            "failed quota: few: must specify limits.cpu for: main; memory for: main",
        ),
    ],
)
def test_a_quota_names_all_that_it_refuses(cluster: KubeCluster, hard: dict[str, str], said: str) -> None:
    space = cluster.new_namespace()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    cluster.create(quota, space)
    cluster.create(job("quota", "true", pod={"main": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}), space)
    told = cluster.until(lambda: events(cluster, space, "FailedCreate"), "the pod is refused")
    assert told[0].endswith(f"is forbidden: {said}")


def test_what_is_forbidden_is_refused_and_can_be_asked(cluster: KubeCluster, space: str) -> None:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}

    def is_allowed(**asked: str) -> bool:
        body = json.dumps({**review, "spec": {"resourceAttributes": {"namespace": space, **asked}}})
        words = ("create", "--raw", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "-f", "-")
        return json.loads(cluster.kubectl(*words, stdin=body).stdout)["status"]["allowed"] is True

    cluster.deny("create", "jobs.batch")
    cluster.deny("get", "pods/log")
    try:
        assert not is_allowed(verb="create", resource="jobs", group="batch")
        assert not is_allowed(verb="get", resource="pods", subresource="log")
        done = cluster.kubectl("create", "-n", space, "-f", "-", stdin=json.dumps(job("no", "true")), check=False)
        assert "jobs.batch is forbidden: User" in done.stderr and 'cannot create resource "jobs"' in done.stderr
    finally:
        cluster.allow_all()
    assert is_allowed(verb="create", resource="jobs", group="batch")


def test_a_watch_from_a_forgotten_version_is_told_so(cluster: KubeCluster, space: str) -> None:
    cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "old"}, "data": {}}, space)
    old = cluster.json("get", "configmap", "old", "-n", space)["metadata"]["resourceVersion"]
    cluster.forget_history()
    path = f"/api/v1/namespaces/{space}/configmaps?watch=true&resourceVersion={int(old) - 1}"
    event = json.loads(cluster.kubectl("get", "--raw", path).stdout)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_two_writers_of_one_version_do_not_both_win(cluster: KubeCluster, space: str) -> None:
    made = cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}, space)
    assert len(made["metadata"]["name"]) == len("c-") + 5
    words = ("replace", "-n", space, "-f", "-")
    cluster.kubectl(*words, stdin=json.dumps({**made, "data": {"a": "1"}}))
    second = cluster.kubectl(*words, stdin=json.dumps({**made, "data": {"a": "2"}}), check=False)
    assert "the object has been modified; please apply your changes to the latest version" in second.stderr


def test_apply_changes_what_it_made_and_an_immutable_secret_stays(cluster: KubeCluster, space: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fixed"}, "immutable": True}
    for form in ((), ("--server-side",)):
        name = f"fixed{len(form)}"
        one = {**secret, "metadata": {"name": name}, "stringData": {"a": "1"}}
        words = ("apply", *form, "-n", space, "-f", "-")
        cluster.kubectl(*words, stdin=json.dumps(one))
        cluster.kubectl(*words, stdin=json.dumps({**one, "metadata": {"name": name, "labels": {"l": "1"}}}))
        assert cluster.json("get", "secret", name, "-n", space)["metadata"]["labels"] == {"l": "1"}
        refused = cluster.kubectl(*words, stdin=json.dumps({**one, "stringData": {"a": "2"}}), check=False)
        assert "field is immutable when `immutable` is set" in refused.stderr


def test_a_pod_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    if missing := missing_for_kubernetes():
        pytest.skip(missing)
    with KubeCluster(tmp_path / "kube", nodes=NODES[:1]) as own:
        marker = f"{time.time_ns() % 10**9}.5"
        own.create(job("left", f"exec sleep {marker}"))
        own.running("left", 0)
        assert _sleepers(marker)
        os.kill(own.pid, signal.SIGKILL)
        assert wait_until(lambda: not _sleepers(marker))


def _sleepers(marker: str) -> list[str]:
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if line.endswith(f"sleep {marker}")]
