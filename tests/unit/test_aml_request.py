"""Each key of a cluster file for Azure ML in the request; requests are validated by the specification."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.aml.datastores import for_code, make
from blobsync.backends.aml.job_secrets import close_secrets, node_secrets, with_seal_keys
from blobsync.backends.aml.node_start import open_secrets, placed
from blobsync.backends.aml.replies import AmlReply, read_spec, spec_tags
from blobsync.backends.aml.request import build_request
from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.redaction import SasToken
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.node_secrets import grant, service_rights
from blobsync.jobspec.spec import LINEAGE_KEYS, CodeRef, NodeArchiveRef, Secrets
from blobsync.jobspec.sweep import sweep
from blobsync.store.sas import mint_sas
from tests.fakes.aml_configs import BASE, CONTAINER, EIGHT, ENTRY, RUN_ID, Asked, ask, load
from tests.servers.openapi import azure_ml

# Too long, and too random to compress.
LONG = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(3500))
QUERY = {"api-version": "2024-04-01"}
NOW = datetime(2026, 5, 1, tzinfo=timezone.utc)
MINTED = {CONTAINER: "sig=MINTED"}


def checked(asked: Asked, sas: dict[str, str] | None = None) -> Asked:
    """Validate each request against the specification."""
    specification, request = azure_ml(), asked.request
    found = specification.problems("PUT", f"{BASE}/jobs/{asked.spec.run_id}", QUERY, request.job)
    for store in request.datastores:
        query = {**QUERY, "skipValidation": "true"}
        found += specification.problems("PUT", f"{BASE}/datastores/{store.name}", query, store.body(sas or MINTED, NOW))
    if request.environment:
        path, body = request.environment
        found += specification.problems("PUT", f"{BASE}/{path}", QUERY, body)
    assert found == []
    return asked


def job(tmp_path: Path, gpus: int | None = None, **changes: Any) -> Any:
    return checked(ask(tmp_path, SubmitRequest(("python", "train.py"), gpus), **changes)).job


@pytest.mark.parametrize("name", EIGHT)
def test_the_eight_configurations_are_allowed(name: str, tmp_path: Path) -> None:
    changes, gpus = EIGHT[name]
    asked = checked(ask(tmp_path, SubmitRequest(("python", "train.py"), gpus), **changes))
    again = ask(tmp_path, SubmitRequest(("python", "train.py"), gpus), **changes)
    assert replace(asked.request, datastores=()) == replace(again.request, datastores=())
    assert asked.request.render("job", "ws") == again.request.render("job", "ws"), "the same for the same submission"
    shown = asked.request.render("jobs/x", BASE)
    assert json.loads(shown.split("# PUT jobs/x\n")[1]) == asked.request.job


def test_a_sweep_has_a_trial_for_each_task(tmp_path: Path) -> None:
    asked = SubmitRequest(("python", "train.py", "{lr}"), 8, tasks=sweep(["lr=0.1,0.01", "seed=1..3"]), parallel=4)
    found = checked(ask(tmp_path, asked, timeout="5h", ssh_public_key="ssh-ed25519 AAAA"))
    swept = found.job
    assert swept["searchSpace"] == {"task": ["choice", [[0, 1, 2, 3, 4, 5]]]}
    assert swept["limits"] == {
        "jobLimitsType": "Sweep",
        "maxTotalTrials": 6,
        "maxConcurrentTrials": 4,
        "trialTimeout": "PT18000S",
    }
    trial = swept["trial"]
    assert trial["resources"]["instanceCount"] == 2 and trial["distribution"]["processCountPerInstance"] == 4
    assert trial["command"].endswith(' "task=${{search_space.task}}"') and "${{inputs.data_folder}}" in trial["command"]
    assert swept["inputs"].keys() == {"code", "data_folder"} and swept["tags"]["sweep.lr"] == "0.1,0.01"
    with_keys = with_seal_keys(found.request.job, Secrets({}, {LINEAGE_KEYS: "{}"}))
    assert with_keys["properties"]["trial"]["environmentVariables"] == {
        **trial["environmentVariables"],
        LINEAGE_KEYS: "{}",
    }
    again = found.spec.tasks.only([1, 4]) if found.spec.tasks else None
    twice = build_request(found.cluster, found.workspace, replace(found.spec, tasks=again))
    assert twice.job["properties"]["searchSpace"] == {"task": ["choice", [[1, 4]]]}


def test_a_sweep_with_more_trials_than_the_service_allows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1,001 tasks: a sweep on Azure ML has at most 1,000"):
        ask(tmp_path, SubmitRequest(("true",), tasks=sweep(["n=0..1000"])))


def test_a_long_specification_is_read_back_from_its_tags(tmp_path: Path) -> None:
    spec = ask(tmp_path, SubmitRequest(("true",), tasks=sweep(["n=0..999", "m=a" + "b" * 30]))).spec
    tags = dict(sorted(spec_tags(spec).items()))
    assert len(tags) > 110 and read_spec(AmlReply({"properties": {"tags": tags}})) == spec


def test_folders_are_inputs_and_outputs(tmp_path: Path) -> None:
    found = job(tmp_path)
    code, data, output = found["inputs"]["code"], found["inputs"]["data_folder"], found["outputs"]["output_folder"]
    store = data["uri"].split("/")[3]
    assert store.startswith("acct_cont_") and len(store) == len("acct_cont_") + 8
    path = f"azureml://datastores/{store}/paths"
    assert code == {"jobInputType": "uri_file", "mode": "Download", "uri": f"{path}/me/code.zip.d/d1.zip"}
    assert data == {"jobInputType": "uri_folder", "mode": "Download", "uri": f"{path}/me/data"}
    assert output == {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": f"{path}/me/output"}
    for name in ("inputs.code", "inputs.data_folder", "outputs.output_folder"):
        assert f"${{{{{name}}}}}" in found["command"]


def test_the_other_modes_and_code_that_is_a_folder(tmp_path: Path) -> None:
    entries = {
        "code_path": {**ENTRY, "path": "me/src"},
        "data_folder": {**ENTRY, "path": "me/data", "mode": "download", "include": ["a"]},
        "model_folder": {**ENTRY, "path": "me/model", "mode": "ro_mount"},
        "output_folder": {**ENTRY, "path": "me/output", "datastore_name": "mine"},
    }
    code = CodeRef("https://acct.blob.core.windows.net/cont", "me/src", "")
    asked = checked(ask(tmp_path, code=code, config_param=entries))
    assert asked.job["inputs"]["code"]["jobInputType"] == "uri_folder"
    assert asked.job["inputs"]["data_folder"]["mode"] == "ReadOnlyMount"
    assert asked.job["inputs"]["model_folder"]["mode"] == "ReadOnlyMount"
    assert asked.job["outputs"]["output_folder"]["uri"] == "azureml://datastores/mine/paths/me/output"


@pytest.mark.parametrize(
    ("wanted", "gpus", "changes", "nodes", "distribution"),
    [
        (None, 1, {}, 1, None),
        (None, 4, {}, 1, ("Mpi", 4)),
        (None, 8, {}, 2, ("Mpi", 4)),
        (None, 8, {"multi_process": False}, 2, ("Mpi", 1)),
        (None, 8, {"launcher": "pytorch"}, 2, ("PyTorch", 4)),
        (None, 8, {"gpu_per_node": None}, 2, ("Mpi", 4)),
        (None, None, {"gpu_per_node": 2, "process_count_per_node": 3}, 1, ("Mpi", 3)),
    ],
)
def test_gpus_become_nodes_and_processes(
    tmp_path: Path, wanted: None, gpus: int | None, changes: Any, nodes: int, distribution: tuple[str, int] | None
) -> None:
    found = job(tmp_path, gpus, **changes)
    assert found["resources"]["instanceCount"] == nodes
    given = found.get("distribution")
    assert (given and (given["distributionType"], given["processCountPerInstance"])) == distribution


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({}, "computeId", f"{BASE}/computes/NC24RSV3"),
        ({}, "experimentName", "trials"),
        ({"experiment_name": None}, "experimentName", "me"),
        ({}, "displayName", "python train.py"),
        ({}, "environmentVariables.NCCL_DEBUG", "INFO"),
        ({}, "resources.shmSize", "64g"),
        ({"docker": {"image": "i:1"}}, "resources.shmSize", "1024g"),
        ({"docker": {"image": "i:1", "args": ["--ipc=host", "-e A=b"]}}, "resources.dockerArgs", "--ipc=host '-e A=b'"),
        ({"docker": {"environment": "azureml:pt:3"}}, "environmentId", f"{BASE}/environments/pt/versions/3"),
        ({"docker": {"environment": "pt@latest"}}, "environmentId", f"{BASE}/environments/pt/labels/latest"),
        (
            {"docker": {"environment": "pt@latest", "image": "i:1"}, "use_custom_docker": False},
            *("environmentId", f"{BASE}/environments/pt/labels/latest"),
        ),
        ({"timeout": "5h"}, "limits", {"jobLimitsType": "Command", "timeout": "PT18000S"}),
        ({"identity": "user"}, "identity", {"identityType": "UserIdentity"}),
        ({"identity": "aml_token"}, "identity", {"identityType": "AMLToken"}),
        (
            {"identity": {"type": "managed", "client_id": "00000000-1111-2222-3333-444444444444"}},
            "identity",
            {"identityType": "Managed", "clientId": "00000000-1111-2222-3333-444444444444"},
        ),
        ({"ssh_public_key": "ssh-rsa AAA"}, "services.ssh.properties.sshPublicKeys", "ssh-rsa AAA"),
        ({"compute_target": None, "instance_type": "Standard_NC24"}, "resources.instanceType", "Standard_NC24"),
        (
            {"compute_target": None, "instance_type": "S", "preemption_allowed": True},
            "queueSettings",
            {"jobTier": "Spot"},
        ),
        ({"queue_settings": {"job_tier": "basic"}}, "queueSettings", {"jobTier": "Basic"}),
        ({"instance_type": "gpu-large"}, "resources.instanceType", "gpu-large"),
    ],
)
def test_a_key_finds_its_field(tmp_path: Path, changes: Any, path: str, value: Any) -> None:
    found = job(tmp_path, **changes)
    for part in path.split("."):
        found = found[part]
    assert found == value


def test_an_image_is_registered_once_under_its_digest(tmp_path: Path) -> None:
    docker = {"image": "team/image", "tag": "7", "address": "acr.azurecr.io"}
    asked = checked(ask(tmp_path, docker=docker))
    assert asked.request.environment
    path, body = asked.request.environment
    assert body == {"properties": {"image": "acr.azurecr.io/team/image:7", "isAnonymous": True}}
    assert asked.job["environmentId"] == f"{BASE}/{path}"


def test_a_registry_login_is_refused_with_the_ways_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"aml.yaml:[0-9]+: docker\.password: jobs on aml do not have it") as caught:
        ask(tmp_path, docker={"image": "i", "address": "acr.azurecr.io", "username": "u", "password": "SENTINEL"})
    assert "AcrPull" in caught.value.message and "SENTINEL" not in f"{caught.value} {caught.value.hint}"
    assert "docker.username (line " in caught.value.message


@pytest.mark.parametrize("changes", [{"preemption_allowed": True}, {"sla_tier": "Basic"}])
def test_what_a_compute_cluster_decides_is_refused_of_a_job(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))}: .*compute cluster"):
        ask(tmp_path / "compute", **changes)
    ask(tmp_path / "serverless", compute_target=None, instance_type="S", **changes)


def test_itp_and_global_dispatch(tmp_path: Path) -> None:
    dispatch = {"vm_size": ["ND40"], "region": ["eastus"], "my_resource_only": False, "low_priority_vm_tolerant": True}
    found = job(
        tmp_path,
        8,
        platform=None,
        aks_compute=True,
        aks_compute_global_dispatch=True,
        aks_compute_global_dispatch_arg=dispatch,
        preemption_allowed=True,
        elastic_num_gpu=[4, 8],
        itp={"retry": {"max_retry_count": 3}},
    )
    assert found["resources"]["properties"] == {
        "itp": {
            "resource_configuration": {"gpu_count": 4},
            "priority_configuration": {
                "job_priority": 200,
                "is_preemptible": True,
                "node_count_set": [1, 2],
                "scale_interval": 480,
            },
            "retry": {"max_retry_count": 3},
        },
        "target_selector": {
            "compute_type": "AmlK8s",
            "instance_types": ["ND40"],
            "regions": ["eastus"],
            "my_resource_only": False,
            "allow_spot_vm": True,
        },
    }


def test_singularity(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        16,
        platform="singularity",
        compute_target="vc-one",
        gpu_per_node=8,
        docker={"image": "amlt-sing/acpt-2.2"},
        singularity_instance_type="Singularity.ND40_v2",
        singularity_sla_tier="Basic",
        singularity={"resource_group": "other", "groupPolicyName": "policy"},
        identity="/subscriptions/s/id",
    )
    cluster = (
        "/subscriptions/sub0/resourceGroups/other/providers/Microsoft.MachineLearningServices/virtualclusters/vc-one"
    )
    assert found["computeId"] == cluster and "identity" not in found
    block = found["resources"]["properties"]["AISuperComputer"]
    assert (block["instanceTypes"], block["instanceCount"], block["slaTier"]) == (["Singularity.ND40_v2"], 2, "Basic")
    assert (block["imageVersion"], block["virtualClusterArmId"]) == ("acpt-2.2", cluster)
    assert block["groupPolicyName"] == "policy" and "resource_group" not in block
    env = found["environmentVariables"]
    assert env["WORLD_SIZE"] == "16" and env["_AZUREML_SINGULARITY_JOB_UAI"] == "/subscriptions/s/id"
    assert "SINGULARITY_CUSTOM_IMAGE" not in env


def test_credentials_are_in_datastores_and_nowhere_else(tmp_path: Path) -> None:
    entries = {
        "code_path": {**ENTRY, "path": "me/code.zip"},
        "data_folder": {"azure_blob_config_file": "aux_data/configs/other.yaml", "path": "me/data"},
        "model_folder": {"azure_blob_config_file": "aux_data/configs/identity.yaml", "path": "m"},
    }
    env = {"MY_TOKEN": "sentinel-value", "A": "b"}
    asked = checked(ask(tmp_path, config_param=entries, env=env))
    bodies = [store.body(MINTED, NOW)["properties"] for store in asked.request.datastores]
    given = {body["accountName"]: body["credentials"].get("secrets", {}).get("sasToken", "") for body in bodies}
    assert given["acct"] == "sig=MINTED" and "sig=SENTINEL" in given["other"]
    assert [body["credentials"] for body in bodies if body["accountName"] == "entra"] == [{"credentialsType": "None"}]
    assert asked.job["identity"] == {"identityType": "UserIdentity"}
    assert asked.job["inputs"]["secrets"]["uri"].endswith(f"/paths/me/code.zip.d/secrets/{RUN_ID}.json")
    packed = asked.job["command"].partition('b64decode("')[2].partition('"')[0]
    bundle = zlib.decompress(base64.b64decode(packed)).decode()
    told = [json.dumps(asked.request.job), bundle, asked.request.render("x", BASE), repr(asked.request)]
    for secret in ("a2V5", "SENTINEL", "sentinel-value"):
        assert not [text for text in told if secret in text], secret


def test_no_datastore_gets_an_account_key_or_the_files_own_sas_where_a_key_makes_one(tmp_path: Path) -> None:
    (tmp_path / "aux_data/configs").mkdir(parents=True)
    (tmp_path / "aux_data/configs/both.yaml").write_text(
        "account_name: both\ncontainer_name: box\naccount_key: a2V5\n"
        "sas_token: 'sv=1&ss=b&srt=sco&sp=rwdl&se=2099-01-01&sig=SENTINEL'\n"
    )
    both = {"azure_blob_config_file": "aux_data/configs/both.yaml"}
    entries = {
        "code_path": {**ENTRY, "path": "me/code.zip"},
        "data_folder": {**both, "path": "me/data", "mode": "download"},
        "output_folder": {**ENTRY, "path": "me/out", "datastore_name": "mine"},
        "model_folder": {**both, "path": "m", "mode": "ro_mount", "storage_type": "file", "file_share": "files"},
    }
    asked = ask(tmp_path, config_param=entries)
    _, secrets, _ = grant(asked.spec, [asked.cluster], lambda *wanted: mint_sas(*wanted, environ={}))
    checked(asked, dict(secrets.sas))
    bodies = [store.body(secrets.sas, NOW)["properties"] for store in asked.request.datastores]
    assert {body["credentials"]["credentialsType"] for body in bodies} == {"Sas"}
    place = {
        (body["accountName"], body.get("fileShareName", "")): SasToken.parse(body["credentials"]["secrets"]["sasToken"])
        for body in bodies
    }
    rights = {name: (token.field("sr"), token.permissions) for name, token in place.items()}
    assert rights == {("acct", ""): ("c", "rcwdl"), ("both", ""): ("c", "rl"), ("both", "files"): ("s", "rl")}
    assert place["both", "files"].field("se") == "2026-05-07T23:45:00Z"
    assert not [text for text in ("a2V5", "SENTINEL") if text in json.dumps(bodies)]


def test_the_nodes_of_a_transfer_get_a_sas_of_each_end_through_the_blob_beside_the_code(tmp_path: Path) -> None:
    cluster, workspace = load(tmp_path)
    plain = describe(cluster, SubmitRequest(("blobsync", "u"), 0, nodes=2), RUN_ID, None)
    archive = NodeArchiveRef(CONTAINER, "me/code.zip.d/node/d1.zip", "d1", 5)
    other = "https://other.blob.core.windows.net/box"
    orders = {"rights": {CONTAINER: "rwl", other: "rl"}}
    spec = replace(plain, folders=(), node_archive=archive, options={"spread": orders})
    rights = service_rights(spec, cluster)
    assert rights == {CONTAINER: "rwl", other: "rl"}
    request = build_request(cluster, workspace, spec)
    checked(Asked(cluster, workspace, spec, request), {CONTAINER: "sig=MINTED"})
    assert set(request.job["properties"]["inputs"]) == {"node", "secrets"}
    assert request.job["properties"]["resources"]["instanceCount"] == 2
    assert request.secrets_blob == f"me/code.zip.d/secrets/{RUN_ID}.json"
    sas = {CONTAINER: "sig=one", other: "sig=two", "of a folder": "sig=three"}
    assert node_secrets(spec, Secrets(sas, {})).sas == {CONTAINER: "sig=one", other: "sig=two"}
    assert node_secrets(plain, Secrets(sas, {"A": "b"})) == Secrets({}, {"A": "b"})
    with pytest.raises(ConfigError, match="the SAS of nodes that transfer and upload need a code_path"):
        build_request(cluster._replace(code=None), workspace, spec)


def test_a_folder_that_nodes_upload_is_no_output_of_the_service_and_its_sas_is_with_the_secrets(tmp_path: Path) -> None:
    far = {"azure_blob_config_file": "aux_data/configs/other.yaml"}
    entries = {
        "code_path": {**ENTRY, "path": "me/code.zip"},
        "data_folder": {**ENTRY, "path": "me/data", "mode": "ro_mount"},
        "output_folder": {**far, "path": "me/out", "mode": "upload", "checkpoints": "c-*", "keep_last": 2},
    }
    asked = checked(ask(tmp_path, config_param=entries))
    assert set(asked.job["inputs"]) == {"code", "data_folder", "secrets"} and "outputs" not in asked.job
    assert {store.container for store in asked.request.datastores} == {CONTAINER}
    container = asked.spec.folders[1].container
    assert service_rights(asked.spec, asked.cluster) == {CONTAINER: "rl", container: "rcwdl"}
    sas = {CONTAINER: "sig=one", container: "sig=two"}
    assert node_secrets(asked.spec, Secrets(sas)).sas == {container: "sig=two"}
    spec = json.loads(asked.spec.to_json())
    found = placed(spec, {"folder.0": "/in/data"})["folders"]
    assert (found[0]["mode"], found[0]["source"]) == ("link", "/in/data")
    assert (found[1]["mode"], found[1]["container"], found[1]["path"]) == ("upload", container, "me/out")


def test_a_name_for_a_datastore_that_is_not_made_gives_no_right_to_delete(tmp_path: Path) -> None:
    entries = {
        "code_path": {**ENTRY, "path": "me/code.zip"},
        "output_folder": {**ENTRY, "path": "me/out", "mode": "upload", "datastore_name": "mine"},
    }
    asked = checked(ask(tmp_path, config_param=entries))
    assert service_rights(asked.spec, asked.cluster) == {CONTAINER: "rcwl"}
    assert ["has no effect: nodes upload" in note for note in asked.cluster.job_notes] == [True]


def test_checkpoints_on_several_nodes_are_refused(tmp_path: Path) -> None:
    output = {**ENTRY, "path": "me/out", "mode": "upload", "checkpoints": "c-*"}
    entries = {"code_path": {**ENTRY, "path": "me/code.zip"}, "output_folder": output}
    request = SubmitRequest(("python", "train.py"), 8)
    with pytest.raises(ConfigError, match=r"output_folder.checkpoints: does not work on the 2 nodes of a job"):
        ask(tmp_path, request, config_param=entries)
    checked(ask(tmp_path / "one", SubmitRequest(("python", "train.py"), 4), config_param=entries))


def test_a_blob_of_secrets_says_nothing_without_the_job_nor_the_job_without_it(tmp_path: Path) -> None:
    secrets = Secrets({CONTAINER: "sig=one"}, {"MY_TOKEN": "sentinel"})
    file = tmp_path / "secrets"
    blobs = set[bytes]()
    for _ in range(2):
        blob, opening = close_secrets(secrets)
        blobs.add(blob)
        file.write_bytes(blob)
        assert Secrets.from_json(open_secrets(str(file), opening.digest, opening.pad).decode()) == secrets
        assert b"sentinel" not in blob and b"sentinel" not in base64.b64decode(opening.pad)
        assert opening.pad not in repr(opening)
    assert len(blobs) == 2


def test_each_job_has_datastores_of_its_own_where_a_key_makes_its_sas(tmp_path: Path) -> None:
    cluster, _ = load(tmp_path)
    first, again, second = (for_code(cluster, CONTAINER, run).name for run in ("me_1_a", "me_1_a", "me_2_b"))
    assert first == again != second and first[:10] == second[:10] == "acct_cont_"


def test_a_new_sas_of_a_file_without_a_key_makes_a_new_datastore(tmp_path: Path) -> None:
    names = set()
    for number, token in enumerate(("sig=one", "sig=two", "sig=two")):
        cluster, _ = load(tmp_path / str(number))
        account = cluster.folders[0].account._replace(account_key=None, sas_token=SasToken.parse(token))
        names.add(make(account, f"run{number}").name)
    assert len(names) == 2


def test_only_a_datastore_of_ours_for_the_same_place_is_renewed(tmp_path: Path) -> None:
    cluster, _ = load(tmp_path)
    store = make(cluster.folders[0].account, RUN_ID, given="mine")
    known = store.body(MINTED, NOW)["properties"]
    assert store.is_ours(known)
    for name, value in (("description", "ACT's"), ("accountName", "else"), ("containerName", "else")):
        assert not store.is_ours({**known, name: value}), name
    assert not store.is_ours({}) and not store.is_ours({**known, "fileShareName": "files"})


def test_code_of_another_clusters_account_is_reached_with_a_sas_of_the_job(tmp_path: Path) -> None:
    container = "https://far.blob.core.windows.net/box"
    asked = checked(
        ask(tmp_path, code=CodeRef(container, "c.zip.d/x.zip", "x")), {container: "sig=abc", CONTAINER: "sig=own"}
    )
    store = asked.request.datastores[0]
    assert store.name.startswith("far_box_") and store.account is None
    properties = store.body({container: "sig=abc"}, NOW)["properties"]
    assert (properties["accountName"], properties["endpoint"]) == ("far", "core.windows.net")
    assert properties["credentials"]["secrets"]["sasToken"] == "sig=abc"


def test_the_tags_hold_the_specification(tmp_path: Path) -> None:
    asked = checked(ask(tmp_path, SubmitRequest(("sh", "-c", "x" * 3000))))
    tags = asked.job["tags"]
    assert tags["blobsync"] == "1" and tags["blobsync.code_sha"] == "d1"
    assert max(len(value) for value in tags.values()) <= 250
    assert read_spec(AmlReply({"properties": {"tags": tags}})) == asked.spec
    assert read_spec(AmlReply({"properties": {"tags": {"blobsync.spec.00": "{"}}})) is None
    assert read_spec(AmlReply({"properties": {}})) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"docker": None}, "does not name an image"),
        ({"docker": {"image": "i:1"}, "use_custom_docker": False}, "ACT's PyTorch estimator"),
        ({"compute_target": None}, "does not name a compute"),
        ({"platform": "singularity"}, "does not name a machine type"),
        ({"launcher": "none"}, "need launcher mpi or pytorch"),
        ({"identity": "root"}, "'root' is not one of"),
        ({"queue_settings": {"job_tier": "gold"}}, "'gold' is not one of"),
        ({"docker": {"environment": "a b"}}, "is not an environment"),
        ({"platform": "itp", "elastic_num_gpu": [4, 6]}, "do not fill whole nodes"),
        ({"platform": "itp", "min_nodes": 2}, "min_nodes: needs max_nodes beside it"),
        ({"platform": "itp", "priority": "High"}, "priority: 'High' is not a number"),
        ({"env": {"LONG": LONG}}, "more than a node can start"),
        ({"config_param": {"data_folder": {**ENTRY, "path": "d", "mode": "link"}}}, "the nodes of aml share"),
        (
            {"config_param": {"data_folder": {**ENTRY, "path": "d"}, "data/x_folder": {**ENTRY, "path": "x"}}},
            "is inside data_folder",
        ),
    ],
)
def test_what_azure_ml_cannot_do_is_reported_before_anything_is_sent(tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ask(tmp_path, SubmitRequest(("true",), 4), **changes)


def test_a_job_that_waits_is_entered_with_the_users_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssh_public_key: is missing"):
        ask(tmp_path, SubmitRequest(("ssh",), 8))
    asked = checked(ask(tmp_path, SubmitRequest(("ssh",), 8, hold="2h"), ssh_public_key="ssh-rsa AAA", timeout="8h"))
    properties = asked.request.job["properties"]
    assert properties["services"]["ssh"]["properties"]["sshPublicKeys"] == "ssh-rsa AAA"
    assert properties["distribution"]["processCountPerInstance"] == 1 and properties["displayName"] == "ssh"
    assert asked.spec.hold == 7200 and properties["limits"]["timeout"] == "PT28800S"


def test_a_node_puts_its_own_paths_in() -> None:
    job = {
        "code": {"container": "https://x", "blob": "c.zip"},
        "folders": [
            {"name": "data", "mode": "mount", "include": [], "container": "https://x", "path": "d"},
            {"name": "more", "mode": "download", "include": ["a"], "container": "https://x", "path": "m"},
        ],
    }
    found = placed(job, {"code": "/in/c.zip", "folder.0": "/mnt/0", "folder.1": "/mnt/1"})
    assert found["code"]["container"] == "mounted:/in/c.zip"
    assert (found["folders"][0]["mode"], found["folders"][0]["source"]) == ("link", "/mnt/0")
    assert (found["folders"][1]["mode"], found["folders"][1]["container"]) == ("download", "mounted:/mnt/1")
