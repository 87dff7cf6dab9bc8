"""Every property of Batch AI's job and cluster files is used, reported in a note, or refused: one row each.

The rows are the properties of ``JobCreateParameters`` and ``ClusterCreateParameters`` of API version 2018-05-01, down
to their last names: https://github.com/Azure/azure-rest-api-specs, specification/batchai, stable/2018-05-01.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.ancestors.batchai_job import read_job_file
from blobsync.ancestors.batchai_translate import translate_job
from blobsync.base.errors import ConfigError
from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount

BOX = StorageAccount("box.yaml", "acct", "box", "https://acct.blob", account_key=Secret("a2V5"))
ROOT = "$AZ_BATCHAI_JOB_MOUNT_ROOT"
VAULT = "valueSecretReference"

# The required context of a property, so that only it is tested.
SCRIPT = {"pythonScriptFilePath": "train.py"}
AROUND: Mapping[str, Any] = {
    "stdOutErrPathPrefix": f"{ROOT}/logs",
    "nodeCount": 2,
    "mountVolumes": {
        "azureFileShares": [{"azureFileUrl": "https://acct.file.core.windows.net/s", "relativeMountPath": "logs"}],
        "azureBlobFileSystems": [{"accountName": "acct", "containerName": "data", "relativeMountPath": "data"}],
        "fileServers": [{"fileServer": {"id": "/x/fs1"}, "relativeMountPath": "nfs"}],
        "unmanagedFileSystems": [{"mountCommand": "mount x", "relativeMountPath": "own"}],
    },
    "containerSettings": {
        "imageSourceRegistry": {"image": "i", "credentials": {"username": "u", "password": "hush-hush"}}
    },
    "inputDirectories": [{"id": "DATA", "path": f"{ROOT}/data"}],
    "outputDirectories": [{"id": "MODEL", "pathPrefix": f"{ROOT}/logs"}],
    "environmentVariables": [{"name": "A", "value": "b"}],
    "secrets": [{"name": "PIN", "value": "very-hidden"}],
    "pyTorchSettings": SCRIPT,
    "chainerSettings": SCRIPT,
    "horovodSettings": SCRIPT,
    "caffe2Settings": SCRIPT,
    "caffeSettings": SCRIPT,
    "cntkSettings": SCRIPT,
    "tensorFlowSettings": SCRIPT,
    "customMpiSettings": {"commandLine": "./a"},
    "customToolkitSettings": {"commandLine": "./a"},
}
TOOLKITS = tuple(name for name in AROUND if name.endswith("Settings") and name != "containerSettings")

# Read: understood, and the default is already the same.
USED, READ, TOLD, REFUSED = "used", "read", "told", "refused"
_EACH = "'process_count_per_node': 4"
# property, value, its treatment, and (if it is used) what of the job shows it, if not the value itself.
JOB: tuple[tuple[str, Any, str, str], ...] = (
    ("schedulingPriority", "low", USED, "--nice=1000"),
    ("schedulingPriority", "high", REFUSED, ""),
    ("cluster.id", "/subscriptions/0/clusters/c", TOLD, ""),
    ("nodeCount", 3, USED, "nodes=3"),
    ("stdOutErrPathPrefix", f"{ROOT}/data/x", USED, ""),
    ("jobPreparation.commandLine", "pip install y", USED, ""),
    ("constraints.maxWallClockTime", "PT2H", USED, "'timeout': '7200'"),
    ("environmentVariables.0.name", "LR", USED, "'LR': 'b'"),
    ("environmentVariables.0.value", "1e-3", USED, ""),
    ("secrets.0.name", "TOKEN", USED, "'secret_env': ['TOKEN']"),
    ("secrets.0.value", "hidden-too", USED, ""),
    (f"secrets.0.{VAULT}.sourceVault.id", "/vaults/v", REFUSED, f"secrets.0.{VAULT}"),
    (f"secrets.0.{VAULT}.secretUrl", "https://v.example/s", REFUSED, f"secrets.0.{VAULT}"),
    ("inputDirectories.0.id", "IMAGES", USED, "'IMAGES': "),
    ("inputDirectories.0.path", f"{ROOT}/data/voc", USED, ""),
    ("outputDirectories.0.id", "BEST", USED, "'BEST': "),
    ("outputDirectories.0.pathPrefix", f"{ROOT}/logs/deep", USED, ""),
    ("outputDirectories.0.pathSuffix", "models", USED, f"{ROOT}/logs/$BLOBSYNC_RUN_ID/models"),
    ("containerSettings.shmSize", "16GB", USED, "'shm_size': '16g'"),
    ("containerSettings.shmSize", "much", REFUSED, ""),
    ("containerSettings.imageSourceRegistry.image", "org/img:1", USED, ""),
    ("containerSettings.imageSourceRegistry.serverUrl", "https://reg.example", USED, "'address': 'reg.example'"),
    ("containerSettings.imageSourceRegistry.credentials", None, READ, "'image': 'i'"),
    ("containerSettings.imageSourceRegistry.credentials.username", "joe", USED, "'username': 'joe'"),
    ("containerSettings.imageSourceRegistry.credentials.password", "other-pw", USED, ""),
    ("containerSettings.imageSourceRegistry.credentials.password", None, REFUSED, "needs password"),
    *(
        (f"containerSettings.imageSourceRegistry.credentials.passwordSecretReference.{name}", "/v", REFUSED,
         "passwordSecretReference")
        for name in ("sourceVault.id", "secretUrl")
    ),
    ("mountVolumes.azureFileShares.0.azureFileUrl", "https://acct.file.core.windows.net/s/", READ, "nodes=2"),
    ("mountVolumes.azureFileShares.0.azureFileUrl", "http://elsewhere/s", REFUSED, ""),
    ("mountVolumes.azureFileShares.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
    *(
        (f"mountVolumes.azureFileShares.0.{name}", "x", TOLD,
         f"mountVolumes.azureFileShares.0.{name.partition('.')[0]}")
        for name in (
            "accountName", "fileMode", "directoryMode", "credentials.accountKey",
            "credentials.accountKeySecretReference.sourceVault.id", "credentials.accountKeySecretReference.secretUrl",
        )
    ),
    ("mountVolumes.azureBlobFileSystems.0.accountName", "other", REFUSED, "no file in aux_data/configs/ opens it"),
    ("mountVolumes.azureBlobFileSystems.0.containerName", "more", USED, "more.yaml"),
    ("mountVolumes.azureBlobFileSystems.0.relativeMountPath", "data/in", USED, "'data/in_folder': "),
    ("mountVolumes.azureBlobFileSystems.0.relativeMountPath", "/../up", REFUSED, ""),
    ("mountVolumes.azureBlobFileSystems.0.mountOptions", "-o attr_timeout=9", TOLD, ""),
    ("mountVolumes.azureBlobFileSystems.0.mountOptions", "-o ro", USED, "'mode': '"),
    ("mountVolumes.azureBlobFileSystems.0.credentials.accountKey", "a2V5", TOLD,
     "mountVolumes.azureBlobFileSystems.0.credentials"),
    *(
        (f"mountVolumes.azureBlobFileSystems.0.credentials.accountKeySecretReference.{name}", "/v", REFUSED,
         "accountKeySecretReference")
        for name in ("sourceVault.id", "secretUrl")
    ),
    ("mountVolumes.fileServers.0.fileServer.id", "/x/fs2", READ, "nodes=2"),
    ("mountVolumes.fileServers.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
    ("mountVolumes.fileServers.0.sourceDirectory", "/x", TOLD, ""),
    ("mountVolumes.fileServers.0.mountOptions", "rw", TOLD, ""),
    ("mountVolumes.unmanagedFileSystems.0.mountCommand", "mount y", TOLD, ""),
    ("mountVolumes.unmanagedFileSystems.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
    *(
        (f"{kit}.{name}", value, USED, shown)
        for kit in ("chainerSettings", "horovodSettings", "pyTorchSettings", "cntkSettings", "caffeSettings")
        for name, value, shown in (
            ("pythonScriptFilePath", "other.py", "python other.py"),
            ("pythonInterpreterPath", "/opt/py", "/opt/py train.py"),
            ("commandLineArgs", "--lr 1", "train.py --lr 1"),
            ("processCount", 8, _EACH),
        )
    ),
    ("caffe2Settings.pythonScriptFilePath", "other.py", USED, "python other.py"),
    ("caffe2Settings.pythonInterpreterPath", "/opt/py", USED, "/opt/py train.py"),
    ("caffe2Settings.commandLineArgs", "--lr 1", USED, "train.py --lr 1"),
    ("pyTorchSettings.communicationBackend", "gloo", USED, "'communication_backend': 'gloo'"),
    ("pyTorchSettings.communicationBackend", "pigeon", REFUSED, ""),
    ("cntkSettings.languageType", "Python", READ, "python train.py"),
    ("cntkSettings.languageType", "BrainScript", REFUSED, "pythonScriptFilePath"),
    ("cntkSettings.configFilePath", "a.cntk", REFUSED, "pythonScriptFilePath"),
    ("caffeSettings.configFilePath", "s.prototxt", REFUSED, "pythonScriptFilePath"),
    ("tensorFlowSettings.pythonScriptFilePath", "other.py", USED, "python other.py"),
    ("tensorFlowSettings.pythonInterpreterPath", "/opt/py", USED, "/opt/py train.py"),
    ("tensorFlowSettings.masterCommandLineArgs", "-m", USED, "master) exec python train.py -m ;;"),
    ("tensorFlowSettings.workerCommandLineArgs", "-w", USED, "worker) exec python train.py -w ;;"),
    ("tensorFlowSettings.parameterServerCommandLineArgs", "-p", USED, "ps) exec python train.py -p ;;"),
    ("tensorFlowSettings.workerCount", 4, USED, "'workers': 4"),
    ("tensorFlowSettings.parameterServerCount", 2, USED, "'parameter_servers': 2"),
    ("tensorFlowSettings.parameterServerCount", 3, REFUSED, ""),
    ("customMpiSettings.commandLine", "./b --fast", USED, ""),
    ("customMpiSettings.processCount", 8, USED, _EACH),
    ("customToolkitSettings.commandLine", "./b --fast", USED, ""),
)  # fmt: skip

_SETUP, _MOUNTS = "nodeSetup.setupTask", "nodeSetup.mountVolumes"
CLUSTER: tuple[tuple[str, Any, str, str], ...] = (
    *(
        (name, value, TOLD, name.partition(".")[0])
        for name, value in (
            ("vmSize", "STANDARD_NC6"),
            ("vmPriority", "lowpriority"),
            ("scaleSettings.manual.targetNodeCount", 2),
            ("scaleSettings.manual.nodeDeallocationOption", "requeue"),
            ("scaleSettings.autoScale.minimumNodeCount", 0),
            ("scaleSettings.autoScale.maximumNodeCount", 4),
            ("scaleSettings.autoScale.initialNodeCount", 1),
            *((f"virtualMachineConfiguration.imageReference.{name}", "x") for name in
              ("publisher", "offer", "sku", "version", "virtualMachineImageId")),
            ("userAccountSettings.adminUserName", "joe"),
            ("userAccountSettings.adminUserSshPublicKey", "ssh-rsa x"),
            ("userAccountSettings.adminUserPassword", "pw-of-joe"),
            ("subnet.id", "/subnets/s"),
        )
    ),
    *(
        (f"nodeSetup.performanceCountersSettings.appInsightsReference.{name}", "x", TOLD,
         "nodeSetup.performanceCountersSettings")
        for name in ("component.id", "instrumentationKey", "instrumentationKeySecretReference.sourceVault.id",
                     "instrumentationKeySecretReference.secretUrl")
    ),
    (f"{_SETUP}.commandLine", "apt-get install z", USED, ""),
    (f"{_SETUP}.commandLine", "apt-get install z", TOLD, ""),
    (f"{_SETUP}.environmentVariables.0.name", "MODE", USED, "export MODE=on;"),
    (f"{_SETUP}.environmentVariables.0.value", "off", USED, "export A=off;"),
    (f"{_SETUP}.stdOutErrPathPrefix", "/tmp", TOLD, ""),
    *((f"{_SETUP}.secrets.0.{name}", "x", REFUSED, f"{_SETUP}.secrets") for name in
      ("name", "value", f"{VAULT}.sourceVault.id", f"{VAULT}.secretUrl")),
    *((f"{_MOUNTS}.azureFileShares.0.{name}", "x", TOLD, f"{_MOUNTS}.azureFileShares.0.{name.partition('.')[0]}")
      for name in ("accountName", "fileMode", "directoryMode", "credentials.accountKey",
                   "credentials.accountKeySecretReference.secretUrl")),
    (f"{_MOUNTS}.azureFileShares.0.azureFileUrl", "http://elsewhere/s", REFUSED, ""),
    (f"{_MOUNTS}.azureFileShares.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
    (f"{_MOUNTS}.azureBlobFileSystems.0.accountName", "other", REFUSED, "no file in aux_data/configs/ opens it"),
    (f"{_MOUNTS}.azureBlobFileSystems.0.containerName", "more", USED, "more.yaml"),
    (f"{_MOUNTS}.azureBlobFileSystems.0.relativeMountPath", "deep", USED, "'deep_folder': "),
    (f"{_MOUNTS}.azureBlobFileSystems.0.mountOptions", "-o attr_timeout=9", TOLD, ""),
    (f"{_MOUNTS}.azureBlobFileSystems.0.credentials.accountKey", "a2V5", TOLD,
     f"{_MOUNTS}.azureBlobFileSystems.0.credentials"),
    (f"{_MOUNTS}.azureBlobFileSystems.0.credentials.accountKeySecretReference.secretUrl", "/v", REFUSED,
     "accountKeySecretReference"),
    (f"{_MOUNTS}.fileServers.0.fileServer.id", "/x/fs2", READ, "nodes=2"),
    (f"{_MOUNTS}.fileServers.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
    (f"{_MOUNTS}.fileServers.0.sourceDirectory", "/x", TOLD, ""),
    (f"{_MOUNTS}.fileServers.0.mountOptions", "rw", TOLD, ""),
    (f"{_MOUNTS}.unmanagedFileSystems.0.mountCommand", "mount y", TOLD, ""),
    (f"{_MOUNTS}.unmanagedFileSystems.0.relativeMountPath", "lost", REFUSED, "needs lost_folder in its place"),
)  # fmt: skip
AROUND_CLUSTER: Mapping[str, Any] = {
    "nodeSetup": {
        "setupTask": {"commandLine": "true", "environmentVariables": [{"name": "A", "value": "on"}]},
        "mountVolumes": {
            name: [{key: value if key != "relativeMountPath" else f"c_{value}" for key, value in one.items()}]
            for name, (one,) in AROUND["mountVolumes"].items()
        },
    }
}


def put(values: Any, path: str, value: Any) -> None:
    """Set the value at a path, whose numbers are indexes of lists; None removes it."""
    *above, last = path.split(".")
    for name in above:
        if isinstance(values, list):
            values += [{}] if int(name) == len(values) else []
            values = values[int(name)]
        else:
            values = values.setdefault(name, {} if name != "secrets" else [])
    if value is None:
        del values[last]
    else:
        values[last] = value


def job_around(path: str) -> dict[str, Any]:
    """A valid job without this property: its context, and what every job needs."""
    first = path.partition(".")[0]
    kit = first if first in TOOLKITS else "chainerSettings"
    wanted = {"stdOutErrPathPrefix", "nodeCount", "mountVolumes", kit, first}
    return {name: copy.deepcopy(value) for name, value in AROUND.items() if name in wanted}


def outcome(folder: Path, job: Mapping[str, Any], cluster: Mapping[str, Any] | None, platform: str) -> tuple[str, str]:
    """The converted job, and its notes."""
    files = []
    for name, values in (("job", job), ("cluster", cluster)):
        if values is not None:
            files.append(folder / f"{name}.json")
            files[-1].write_text(json.dumps({"properties": values}, indent=1))
    read = read_job_file(files[0], files[1] if cluster is not None else None, {})
    names = ("logs", "nfs", "own", "c_logs", "c_nfs", "c_own")
    entries = tuple(FolderEntry(name, BOX, f"mine/{name}") for name in names)
    target = Cluster("eu", "aux_data/aml/eu.yaml", Path("/p"), folders=entries, platform=platform, values={})
    known = {("acct", name): f"aux_data/configs/{name}.yaml" for name in ("data", "more")}
    made = translate_job(read, target, known)
    return f"{made.values!r} {' '.join(made.argv)} nodes={made.nodes}", "\n".join(made.notes)


ROWS = [*(("job", *row) for row in JOB), *(("cluster", *row) for row in CLUSTER)]


def test_each_property_is_used_named_or_refused(tmp_path: Path) -> None:
    for kind, path, value, fate, shown in ROWS:
        job = job_around(path if kind == "job" else "")
        cluster = copy.deepcopy(dict(AROUND_CLUSTER)) if kind == "cluster" else None
        # Only Kubernetes supports the login of a registry.
        platform = "kubernetes" if path.startswith("containerSettings") else "slurm"
        job["nodeCount"] = 1 if platform == "kubernetes" else 2
        before = outcome(tmp_path, job, cluster, platform)[0] if fate == USED else ""
        put(job if cluster is None else cluster, path, value)
        if fate == REFUSED:
            with pytest.raises(ConfigError) as caught:
                outcome(tmp_path, job, cluster, platform)
            assert (shown or f"properties.{path}: ") in str(caught.value) and f"{kind}.json:" in str(caught.value)
            assert "is not a key" not in str(caught.value) and caught.value.exit_code == 2
            continue
        text, notes = outcome(tmp_path, job, cluster, platform)
        if fate == TOLD:
            assert f"{kind}.json:" in notes and f"properties.{shown or path}: " in notes
        else:
            assert (shown or str(value)) in text and text != before, (kind, path, value)
        for secret in ("very-hidden", "hush-hush", "hidden-too", "pw-of-joe", "other-pw", "a2V5"):
            assert secret not in notes


@pytest.mark.parametrize("platform", ["local", "slurm", "kubernetes", "aml", "singularity"])
def test_each_property_counts_on_every_platform_or_is_refused_there(platform: str, tmp_path: Path) -> None:
    """Properties without effect on a job are only reported, in the same way on each platform."""
    for kind, path, value, fate, shown in ROWS:
        job = job_around(path if kind == "job" else "")
        cluster = copy.deepcopy(dict(AROUND_CLUSTER)) if kind == "cluster" else None
        job["nodeCount"] = 2 if path.startswith("tensorFlow") else 1
        if not path.startswith("containerSettings"):
            job.pop("containerSettings", None)
        elif platform != "kubernetes" and "credentials" not in path:
            del job["containerSettings"]["imageSourceRegistry"]["credentials"]
        around = fate_of(tmp_path, copy.deepcopy(job), copy.deepcopy(cluster), platform)
        put(job if cluster is None else cluster, path, value)
        text, notes = fate_of(tmp_path, job, cluster, platform)
        if text.startswith("refused: "):
            assert f"{kind}.json:" in text and "is not a key" not in text, (path, value)
        elif fate == TOLD:
            assert f"{kind}.json:" in notes and f"properties.{shown or path}: " in notes
        else:
            assert fate != REFUSED or platform == "singularity", "Singularity alone has priorities"
            assert fate == READ or text != around[0], (kind, path, value)


@pytest.mark.parametrize(
    ("platform", "plain", "read_only"), [("slurm", "mount", "download"), ("kubernetes", None, "ro_mount")]
)
def test_a_read_only_volume_has_a_read_only_mode(
    platform: str, plain: str | None, read_only: str, tmp_path: Path
) -> None:
    job = {**job_around("inputDirectories"), "nodeCount": 1}
    job["stdOutErrPathPrefix"] = f"{ROOT}/data/out"
    assert (f"'mode': '{plain}'" if plain else "'path': ''}") in outcome(tmp_path, job, None, platform)[0]
    put(job, "mountVolumes.azureBlobFileSystems.0.mountOptions", "-o ro")
    assert f"'mode': '{read_only}'" in outcome(tmp_path, job, None, platform)[0]


def fate_of(folder: Path, job: Mapping[str, Any], cluster: Mapping[str, Any] | None, platform: str) -> tuple[str, str]:
    try:
        return outcome(folder, job, cluster, platform)
    except ConfigError as error:
        return f"refused: {error}", ""


_AZ_GROUP = "/subscriptions/0/resourceGroups/g/providers/Microsoft.BatchAI/workspaces/w"


def _printed_job(properties: Mapping[str, Any]) -> dict[str, Any]:
    """A job as az printed it: flat, with null for what is not there, with its own form of times."""
    empty = dict.fromkeys((*TOOLKITS, "secrets", "jobPreparation", "containerSettings"))
    return {
        **empty,
        **{name: value for name, value in properties.items() if name != "secrets"},
        "cluster": {"id": f"{_AZ_GROUP}/clusters/c", "resourceGroup": "g"},
        "constraints": {"maxWallClockTime": "7 days, 0:00:00"},
        "creationTime": "2018-06-14T22:22:57+00:00",
        "executionInfo": {"endTime": None, "errors": None, "exitCode": 0, "startTime": "2018-06-14T22:22:59+00:00"},
        "executionState": "succeeded",
        "executionStateTransitionTime": "2018-06-14T22:25:57+00:00",
        "id": f"{_AZ_GROUP}/experiments/e/jobs/j",
        "jobOutputDirectoryPathSegment": "0/g/w/e/j/5e1f",
        "name": "j",
        "provisioningState": "succeeded",
        "provisioningStateTransitionTime": "2018-06-14T22:22:58+00:00",
        "resourceGroup": "g",
        "schedulingPriority": "normal",
        "toolType": "chainer",
        "type": "Microsoft.BatchAI/workspaces/experiments/jobs",
    }


def _printed_cluster() -> dict[str, Any]:
    return {
        **AROUND_CLUSTER,
        "allocationState": "steady",
        "allocationStateTransitionTime": "2018-06-12T21:25:07+00:00",
        "creationTime": "2018-06-12T21:25:07+00:00",
        "currentNodeCount": 1,
        "errors": None,
        "id": f"{_AZ_GROUP}/clusters/c",
        "name": "c",
        "nodeStateCounts": {"idleNodeCount": 1, "leavingNodeCount": 0},
        "provisioningState": "succeeded",
        "provisioningStateTransitionTime": "2018-06-12T21:25:23+00:00",
        "resourceGroup": "g",
        "scaleSettings": {"autoScale": None, "manual": {"nodeDeallocationOption": "requeue", "targetNodeCount": 1}},
        "subnet": None,
        "type": "Microsoft.BatchAI/workspaces/clusters",
        "userAccountSettings": {"adminUserName": "joe", "adminUserPassword": None},
        "virtualMachineConfiguration": None,
        "vmPriority": "dedicated",
        "vmSize": "STANDARD_NC6",
    }


def test_what_az_printed_is_read_as_it_is(tmp_path: Path) -> None:
    properties = job_around("")
    files = [tmp_path / "job.json", tmp_path / "cluster.json"]
    for file, answer in zip(files, (_printed_job(properties), _printed_cluster()), strict=True):
        file.write_text(json.dumps(answer, indent=2))
    flat = read_job_file(files[0], files[1], {})
    wanted = {name: value for name, value in properties.items() if name not in ("secrets", "containerSettings")}
    wanted |= {"constraints": {"maxWallClockTime": "P7D"}, "schedulingPriority": "normal"}
    written: tuple[Mapping[str, Any], ...] = (wanted, AROUND_CLUSTER)
    for file, values in zip(files, written, strict=True):
        file.write_text(json.dumps({"properties": values}, indent=2))
    whole = read_job_file(files[0], files[1], {})
    assert replace(flat, notes=(), file=whole.file) == replace(whole, notes=())
    assert flat.seconds == 604_800


@pytest.mark.parametrize("text", ['{"a": 1}', '{"vmSize": "x"}', '{"name": "j", "type": "t"}'])
def test_what_is_no_job_file_is_told_what_one_has(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(
        ConfigError, match="is no job file of Batch AI: it has neither properties nor nodeCount"
    ) as caught:
        read_job_file(tmp_path / "job.json", None, {})
    page = (Path(__file__).parents[2] / str(caught.value.hint).split()[0]).read_text()
    # The page that the hint names exists, and contains it.
    shown = page.partition("```json")[2].partition("```")[0]
    (tmp_path / "job.json").write_text(shown)
    assert read_job_file(tmp_path / "job.json", None, {}).nodes == 2


def test_an_account_and_its_key_come_from_the_variables_that_az_took(tmp_path: Path) -> None:
    job = job_around("")
    blob = job["mountVolumes"]["azureBlobFileSystems"][0]
    blob.update(
        accountName="<AZURE_BATCHAI_STORAGE_ACCOUNT>", credentials={"accountKey": "<AZURE_BATCHAI_STORAGE_KEY>"}
    )
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"properties": job}))
    environ = {"AZURE_BATCHAI_STORAGE_ACCOUNT": "acct", "AZURE_BATCHAI_STORAGE_KEY": "a2V5"}
    volume = next(one for one in read_job_file(file, None, environ).volumes if one.kind == "blob")
    assert volume.account == "acct" and volume.key and volume.key.reveal() == "a2V5"
    for name in environ:
        with pytest.raises(ConfigError, match=f"needs the environment variable {name}"):
            read_job_file(file, None, {**environ, name: ""})
