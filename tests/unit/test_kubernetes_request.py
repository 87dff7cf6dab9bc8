"""The Kubernetes objects of a job, and configurations that are refused without a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.backends.kubernetes.object_names import object_name
from blobsync.backends.kubernetes.request import KubernetesRequest, pull_login
from blobsync.backends.protocol import Plan
from blobsync.base.errors import ConfigError, UnsafeNameError
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.spec import JobSpec, Secrets
from tests.fakes.aml_configs import CONTAINER, ENTRY, RUN_ID
from tests.fakes.kubernetes import demand_valid, plan
from tests.servers.kube.pod_security import violations
from tests.servers.kube.volumes import expanded

NAME = "me-1795248518-272a2739"
COPIED = {
    "code_path": {**ENTRY, "path": "me/code.zip"},
    "data_folder": {**ENTRY, "path": "me/data", "mode": "download"},
    "output_folder": {**ENTRY, "path": "me/output", "mode": "upload"},
}


def of_kind(made: Plan, kind: str) -> list[Mapping[str, Any]]:
    return [each for each in yaml.safe_load_all(made.text) if each and each["kind"] == kind]


def job_of(made: Plan) -> Mapping[str, Any]:
    (job,) = of_kind(made, "Job")
    return job


def pod_of(made: Plan) -> Mapping[str, Any]:
    pod: Mapping[str, Any] = job_of(made)["spec"]["template"]["spec"]
    return pod


def test_several_nodes_are_one_indexed_job_whose_first_failure_ends_all(tmp_path: Path) -> None:
    made = plan(tmp_path, SubmitRequest(("python", "train.py"), 8), config_param=COPIED)
    assert [each["kind"] for each in yaml.safe_load_all(made.text)] == ["Secret", "ConfigMap", "Service", "Job"]
    job = job_of(made)
    assert job["metadata"]["name"] == NAME and job["metadata"]["annotations"]["blobsync.dev/run-id"] == RUN_ID
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 0 and "backoffLimitPerIndex" not in spec and "successPolicy" not in spec
    assert spec["podReplacementPolicy"] == "Failed" and spec["ttlSecondsAfterFinished"] == 7 * 86_400
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "NotIn", "values": [0]}},
    ]
    pod = pod_of(made)
    assert pod["subdomain"] == NAME and pod["restartPolicy"] == "Never"
    (main,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert env["MASTER_ADDR"] == f"{NAME}-0.{NAME}"
    assert env["BLOBSYNC_HOSTS"] == f"{NAME}-0.{NAME},{NAME}-1.{NAME}"
    assert main["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    (service,) = of_kind(made, "Service")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"blobsync.dev/run": NAME}


def test_one_node_comes_back_after_an_eviction(tmp_path: Path) -> None:
    spec = job_of(plan(tmp_path, config_param=COPIED))["spec"]
    assert spec["completions"] == 1 and spec["backoffLimitPerIndex"] == 0 and "backoffLimit" not in spec
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob"]
    assert "subdomain" not in spec["template"]["spec"]


def test_an_elastic_job_ends_with_its_first_node(tmp_path: Path) -> None:
    made = plan(tmp_path, config_param=COPIED, min_nodes=1, max_nodes=4, kubernetes={"queue": "team"})
    spec = job_of(made)["spec"]
    assert (spec["completions"], spec["parallelism"]) == (1, 1)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "FailIndex"] and rules[1]["onExitCodes"]["values"] == [72]
    assert spec["backoffLimitPerIndex"] == 3
    assert pod_of(made)["subdomain"] == NAME and of_kind(made, "Service")
    metadata = job_of(made)["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert metadata["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"


def test_the_users_words_are_in_no_command_line_and_in_no_variable(tmp_path: Path) -> None:
    words = ("python", "train.py", "two words; $HOME", "$(rm)")
    made = plan(tmp_path, SubmitRequest(words), config_param=COPIED)
    (main,) = pod_of(made)["containers"]
    assert not any(word in json.dumps(main) for word in words[1:])
    (files,) = of_kind(made, "ConfigMap")
    assert JobSpec.from_json(files["data"]["job.json"]).argv == words


def test_what_is_printed_has_blank_secrets_and_what_is_made_has_theirs(tmp_path: Path) -> None:
    docker = {"image": "trainer:1", "address": "acr.example", "username": "me", "password": "SENTINEL-pw"}
    made = plan(tmp_path, config_param=COPIED, docker=docker, env={"MY_TOKEN": "SENTINEL-env", "PLAIN": "1"})
    assert "SENTINEL" not in made.text
    own, pull = of_kind(made, "Secret")
    assert json.loads(own["stringData"]["secrets.json"]) == {"sas": {CONTAINER: ""}, "env": {"MY_TOKEN": ""}}
    login = json.loads(pull["stringData"][".dockerconfigjson"])
    assert login == {"auths": {"acr.example": {"username": "me", "password": "", "auth": ""}}}
    assert pod_of(made)["imagePullSecrets"] == [{"name": f"{NAME}-pull"}]
    assert pod_of(made)["containers"][0]["image"] == "acr.example/trainer:1"
    request: KubernetesRequest = made.request
    secrets = Secrets({CONTAINER: "sig=1"}, {"MY_TOKEN": "t"})
    bodies = request.owned(["uid-1"], secrets, pull_login("acr.example", "me", "pw"))
    demand_valid("---\n".join(json.dumps(body) + "\n" for body in bodies))
    assert Secrets.from_json(bodies[0]["stringData"]["secrets.json"]) == secrets
    assert json.loads(bodies[1]["stringData"][".dockerconfigjson"])["auths"]["acr.example"]["auth"] == "bWU6cHc="
    for body in bodies:
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", NAME, "uid-1")


def test_the_job_is_made_suspended_and_out_of_its_queue_and_then_released(tmp_path: Path) -> None:
    request: KubernetesRequest = plan(tmp_path, config_param=COPIED).request
    (suspended,) = request.suspended_jobs()
    assert suspended["spec"]["suspend"] is True and "suspend" not in request.job["spec"]
    assert request.release(5) == {
        "metadata": {"annotations": {"blobsync.dev/released": "5"}},
        "spec": {"suspend": False},
    }
    queued: KubernetesRequest = plan(tmp_path, config_param=COPIED, kubernetes={"queue": "team"}).request
    assert "kueue.x-k8s.io/queue-name" not in queued.suspended_jobs()[0]["metadata"]["labels"]
    # Kueue starts it.
    assert queued.release(5)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert "spec" not in queued.release(5)


def test_folders_to_mount_are_volumes_of_the_csi_driver(tmp_path: Path) -> None:
    entries = {
        **COPIED,
        "data_folder": {**ENTRY, "path": "me/data", "mode": "ro_mount", "blob_cache_timeout": 90},
        "model_folder": {**ENTRY, "path": "me/models", "blob_fuse_options": ["-o", "attr_timeout=9"]},
        "parts_folder": {**ENTRY, "path": "me/parts", "include": ["a"], "mode": "ro_mount"},
    }
    made = plan(tmp_path, config_param=entries)
    (volume,), (claim,) = of_kind(made, "PersistentVolume"), of_kind(made, "PersistentVolumeClaim")
    spec = volume["spec"]
    assert spec["persistentVolumeReclaimPolicy"] == "Retain", "Delete removes the container with all its blobs"
    csi = spec["csi"]
    assert csi["driver"] == "blob.csi.azure.com" and csi["volumeAttributes"]["containerName"] == "cont"
    assert csi["nodeStageSecretRef"] == {"name": f"{NAME}-0", "namespace": "train"}
    # A second folder of the container is written to.
    assert csi["readOnly"] is False and spec["accessModes"] == ["ReadWriteMany"]
    assert "--file-cache-timeout-in-seconds=90" in spec["mountOptions"] and "-o ro" not in spec["mountOptions"]
    assert "-o attr_timeout=9" in spec["mountOptions"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    secret = of_kind(made, "Secret")[1]
    assert secret["stringData"] == {"azurestorageaccountname": "acct", "azurestorageaccountsastoken": ""}
    request: KubernetesRequest = made.request
    bodies = request.owned(["uid-1"], Secrets({CONTAINER: "?sig=1"}), "")
    assert bodies[1]["stringData"]["azurestorageaccountsastoken"] == "sig=1"
    assert "ownerReferences" not in next(each for each in bodies if each["kind"] == "PersistentVolume")["metadata"]
    (files,) = of_kind(made, "ConfigMap")
    folders = {folder.name: folder for folder in JobSpec.from_json(files["data"]["job.json"]).folders}
    data, model, parts = folders["data"], folders["model"], folders["parts"]
    assert (data.mode, data.source, data.read_only) == ("link", "/blobsync/mounts/0/me/data", True)
    assert (model.mode, model.source, model.read_only) == ("link", "/blobsync/mounts/0/me/models", False)
    assert (parts.mode, parts.container, parts.include) == ("download", "mounted:/blobsync/mounts/0/me/parts", ("a",))
    alone = plan(tmp_path, config_param={**COPIED, "data_folder": {**ENTRY, "path": "me/data", "mode": "ro_mount"}})
    (volume,) = of_kind(alone, "PersistentVolume")
    assert volume["spec"]["csi"]["readOnly"] is True and "-o ro" in volume["spec"]["mountOptions"]


def test_the_cluster_file_says_what_pods_ask_for(tmp_path: Path) -> None:
    given = {
        "node_selector": {"agentpool": "gpu", "spot": True},
        "tolerations": [{"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}],
        "priority_class": "high",
        "service_account": "trainer",
        "cpu": 6,
        "memory": "64Gi",
        "pull_secret": "registry",
        "gpu_resource": "amd.com/gpu",
        "ttl_days": 1,
    }
    made = plan(tmp_path, SubmitRequest(("true",), 2), config_param=COPIED, kubernetes=given, timeout="2h")
    pod = pod_of(made)
    assert pod["nodeSelector"] == {"agentpool": "gpu", "spot": "true"}
    assert pod["tolerations"] == given["tolerations"] and pod["priorityClassName"] == "high"
    assert pod["serviceAccountName"] == "trainer" and pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "6", "memory": "64Gi", "amd.com/gpu": "2"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in pod["volumes"]
    spec = job_of(made)["spec"]
    assert spec["activeDeadlineSeconds"] == 7200 and spec["ttlSecondsAfterFinished"] == 86_400


@pytest.mark.parametrize(
    "changes",
    [{}, {"nodes": 2}, {"min_nodes": 1, "max_nodes": 4}, {"kubernetes": {"service_account": "trainer"}}],
    ids=str,
)
def test_no_pod_gets_a_token_for_the_api(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert pod_of(plan(tmp_path, config_param=COPIED, **changes))["automountServiceAccountToken"] is False


def contexts(made: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """``securityContext`` of the pod and of its container."""
    pod = pod_of(made)
    return pod.get("securityContext", {}), pod["containers"][0].get("securityContext", {})


def test_the_security_context_of_the_cluster_file_is_that_of_pod_and_container(tmp_path: Path) -> None:
    assert contexts(plan(tmp_path, config_param=COPIED)) == ({}, {})
    given = {"runAsUser": 2000, "fsGroup": 3, "readOnlyRootFilesystem": True, "capabilities": {"add": ["IPC_LOCK"]}}
    made = plan(tmp_path, config_param=COPIED, kubernetes={"security_context": given})
    own = {"readOnlyRootFilesystem": True, "capabilities": {"add": ["IPC_LOCK"]}}
    assert contexts(made) == ({"runAsUser": 2000, "fsGroup": 3}, own)
    asked = plan(tmp_path, config_param=COPIED, kubernetes={"security_context": "restricted"})
    assert demand_admitted(asked) == 1000
    assert asked.request.restricted() == asked.request
    # If the namespace requires it, the same; the file's values are kept.
    assert demand_admitted(plan(tmp_path, config_param=COPIED), add=True) == 1000
    one = plan(tmp_path, config_param=COPIED, kubernetes={"security_context": {"runAsUser": 2000}})
    assert demand_admitted(one, add=True) == 2000


def demand_admitted(made: Plan, *, add: bool = False) -> int:
    """The user id of pods for a restricted namespace."""
    request = made.request.restricted() if add else made.request
    demand_valid(request.render("x"))
    pod = request.job["spec"]["template"]["spec"]
    assert list(violations("restricted", pod)) == []
    return int(pod["securityContext"]["runAsUser"])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"security_context": "loose"}, "'loose' is not restricted, or a mapping"),
        ({"security_context": {"runAsUsr": 1}}, "'runAsUsr' is not a field of a security context"),
        ({"namespace": "No_Good"}, "is not the name of a namespace"),
        ({"cpu": "many"}, "is not a number of CPUs"),
        ({"memory": "64 GB"}, "is not an amount of memory"),
        ({"gpu_resource": "a b"}, "is not the name of a resource"),
        ({"node_selector": {"a b": "c"}}, "is not a label of nodes"),
        ({"tolerations": [{"effect": "NoSchedule"}]}, "without a key, it needs operator: Exists"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "operator: Exists takes no value"),
        ({"ttl_days": 99_999}, "must be at most"),
        ({"image": "two words"}, "is not the name of an image"),
        ({"queue": "q" * 64}, "is not the name of one of Kueue's local queues"),
    ],
)
def test_what_the_server_would_refuse_is_refused_here(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        plan(tmp_path, config_param=COPIED, kubernetes=given)
    assert f"kubernetes.{next(iter(given))}" in str(refused.value) and "aml.yaml" in str(refused.value)


def test_the_kubelet_puts_nothing_into_the_words_of_the_cluster_file(tmp_path: Path) -> None:
    made = plan(tmp_path, config_param=COPIED, runtime={"scratch": "/tmp/$(MASTER_ADDR)/$$"})
    (main,) = pod_of(made)["containers"]
    env = {entry["name"]: entry.get("value", "") for entry in main["env"]}
    assert expanded(env["BLOBSYNC_SCRATCH"], {"MASTER_ADDR": "wrong"}) == "/tmp/$(MASTER_ADDR)/$$"
    # Our own script has only variables of the shell.
    assert [expanded(word, {"child": "wrong"}) for word in main["command"]] == main["command"]


def test_a_job_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kubernetes\.image: is missing"):
        plan(tmp_path, config_param=COPIED, docker=None)


def test_a_mount_without_a_namespace_or_outside_azure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kubernetes\.namespace: is missing"):
        plan(tmp_path, kubernetes={"namespace": ""})
    emulator = "account_name: dev\ncontainer_name: box\nsas_token: 'sig=1'\nblob_endpoint: http://127.0.0.1:1/dev\n"
    entry = {"azure_blob_config_file": "aux_data/configs/emulator.yaml", "path": "p"}
    (tmp_path / "aux_data/configs").mkdir(parents=True, exist_ok=True)
    (tmp_path / "aux_data/configs/emulator.yaml").write_text(emulator)
    with pytest.raises(ConfigError, match="takes accounts of Azure only"):
        plan(tmp_path, config_param={**COPIED, "data_folder": entry})


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("me_1_0badcafe", "me-1-0badcafe"),
        ("1_2", "job-1-2"),
        ("me_1-", "me-1"),
        ("Me_1", "me-1-4a6d548e"),
    ],
)
def test_the_name_of_a_job_is_one_that_a_server_takes(run_id: str, name: str) -> None:
    assert object_name(run_id) == name


def test_long_ids_keep_different_names_with_room_for_the_number_of_a_node() -> None:
    first, second = object_name("a" * 100 + "1"), object_name("a" * 100 + "2")
    assert first != second and len(f"{first}-9999") <= 63
    with pytest.raises(UnsafeNameError):
        object_name("../x")


def test_the_same_specification_gives_the_same_request(tmp_path: Path) -> None:
    assert plan(tmp_path) == plan(tmp_path)
