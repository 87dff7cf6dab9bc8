"""Job files of Batch AI: each key is used, reported or refused; each toolkit becomes its request."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.ancestors.batchai_job import read_job_file
from blobsync.ancestors.batchai_translate import Translation, translate_job
from blobsync.ancestors.convert import convert_batchai
from blobsync.base.errors import BlobsyncError, ConfigError
from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import JobSpec
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.ranks import ranks_of_node

ROOT = "$AZ_BATCHAI_JOB_MOUNT_ROOT"
BOX = StorageAccount("box.yaml", "acct", "box", "https://acct.blob", account_key=Secret("a2V5"))
PYTHON = {"pythonScriptFilePath": f"{ROOT}/logs/train.py"}


def cluster_of(platform: str, *folders: str, **values: Any) -> Cluster:
    entries = tuple(FolderEntry(name, BOX, f"mine/{name}") for name in folders)
    return Cluster("eu", "aux_data/aml/eu.yaml", Path("/p"), folders=entries, platform=platform, values=values)


def job_of(**properties: Any) -> dict[str, Any]:
    share = {"azureFileUrl": "https://acct.file.core.windows.net/logs", "relativeMountPath": "logs"}
    return {
        "nodeCount": 2,
        "stdOutErrPathPrefix": f"{ROOT}/logs",
        "mountVolumes": {"azureFileShares": [share]},
        **properties,
    }


def written(folder: Path, properties: Mapping[str, Any], name: str = "job.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"properties": properties}, indent=1))
    return path


def translated(folder: Path, properties: Mapping[str, Any], platform: str = "slurm", **values: Any) -> Translation:
    job = read_job_file(written(folder, properties), None, {})
    return translate_job(job, cluster_of(platform, "logs", **values), {("acct", "data"): "aux_data/configs/d.yaml"})


RUN = f"python {ROOT}/logs/train.py"
TF_LINE = f'case "$BLOBSYNC_TASK_TYPE" in master) exec {RUN} m ;; worker) exec {RUN} w ;; ps) exec {RUN} p ;; esac'
TF = {"masterCommandLineArgs": "m", "workerCommandLineArgs": "w", "parameterServerCommandLineArgs": "p"}

# Settings -> the command on two Slurm nodes, processes per node, and whether MPI starts them.
TOOLKITS: Mapping[str, tuple[dict[str, Any], str, int, bool]] = {
    "chainer": ({"chainerSettings": {**PYTHON, "commandLineArgs": "-g"}}, f"{RUN} -g", 1, True),
    "horovod": ({"horovodSettings": {**PYTHON, "processCount": 8}}, RUN, 4, True),
    "interpreter": (
        {"horovodSettings": {**PYTHON, "pythonInterpreterPath": "/opt/my python"}},
        f'"/opt/my python" {ROOT}/logs/train.py',
        1,
        True,
    ),
    "cntk": ({"cntkSettings": {**PYTHON, "languageType": "Python", "processCount": 4}}, RUN, 2, True),
    "brainscript": (
        {"cntkSettings": {"configFilePath": "$AZ_BATCHAI_INPUT_C/x.cntk", "languageType": "BrainScript"}},
        "cntk configFile=$AZ_BATCHAI_INPUT_C/x.cntk",
        1,
        True,
    ),
    "pytorch": ({"pyTorchSettings": {**PYTHON, "communicationBackend": "gloo", "processCount": 4}}, RUN, 2, False),
    "pytorch-mpi": ({"pyTorchSettings": {**PYTHON, "communicationBackend": "MPI"}}, RUN, 1, True),
    "mpi": ({"customMpiSettings": {"commandLine": "./a | tee b", "processCount": 6}}, "./a | tee b", 3, True),
    "caffe": ({"caffeSettings": {"configFilePath": "s.txt", "commandLineArgs": "-gpu all"}},
              "caffe train --solver=s.txt -gpu all", 1, True),
    "caffe2": ({"caffe2Settings": {**PYTHON, "commandLineArgs": "--shard_id $AZ_BATCHAI_TASK_INDEX"}},
               f"{RUN} --shard_id $AZ_BATCHAI_TASK_INDEX", 1, False),
    "custom": ({"customToolkitSettings": {"commandLine": "echo 'hi'"}},
               """[ "$RANK" != 0 ] || bash -c 'echo '"'"'hi'"'"''""", 1, False),
    "tensorflow": ({"tensorFlowSettings": {**PYTHON, **TF}}, TF_LINE, 2, False),
    "tensorflow-many": ({"tensorFlowSettings": {**PYTHON, **TF, "workerCount": 3, "parameterServerCount": 2}},
                        TF_LINE, 3, False),
}  # fmt: skip


@pytest.mark.parametrize("name", TOOLKITS)
def test_each_toolkit_is_the_request_that_it_stands_for(name: str, tmp_path: Path) -> None:
    settings, line, each, mpi = TOOLKITS[name]
    found = translated(tmp_path, job_of(**settings))
    assert (found.argv, found.nodes) == ((line,), 2)
    assert found.values["process_count_per_node"] == each and found.values["multi_process"] is True
    assert (found.values.get("slurm") == {"launcher": "mpirun"}) is mpi


def test_on_this_machine_all_processes_run_under_one_mpirun(tmp_path: Path) -> None:
    found = translated(tmp_path, job_of(chainerSettings=PYTHON), "local")
    assert found.argv == (RUN,) and found.nodes is None
    assert found.values["multi_process"] is False and found.values["batchai"]["mpi_processes"] == 2
    assert "job.json:3: properties.nodeCount: this machine is one node" in "\n".join(found.notes)


@pytest.mark.parametrize(
    ("change", "key", "line"),
    [
        ({"chainerSettings": PYTHON, "nodeCuont": 3}, "properties.nodeCuont: is not a key", 16),
        ({"secrets": [{"name": "A", "valueSecretReference": {}}]}, "secrets.0.valueSecretReference: names", 16),
        ({}, "properties: needs one of cntkSettings", 2),
        ({"chainerSettings": {}, "horovodSettings": {}}, "horovodSettings: conflicts with chainerSettings", 14),
        ({"chainerSettings": {**PYTHON, "processCount": 3}}, "properties.chainerSettings.processCount: is 3", 15),
        ({"chainerSettings": PYTHON, "nodeCount": "2"}, "properties.nodeCount: must be a whole number", 3),
        ({"chainerSettings": PYTHON, "nodeCount": -1}, "properties.nodeCount: is -1", 3),
        ({"chainerSettings": "x"}, "properties.chainerSettings: must be an object", 13),
        ({"chainerSettings": {"pythonScriptFilePath": "<fill in>"}}, "still has the example's placeholder", 14),
        ({"chainerSettings": PYTHON, "constraints": {"maxWallClockTime": "soon"}}, "is not a time", 17),
        ({"chainerSettings": PYTHON, "inputDirectories": [{"id": "a b", "path": "/x"}]}, "0.id: becomes part", 18),
        ({"chainerSettings": PYTHON, "stdOutErrPathPrefix": f"{ROOT}/lost"}, "lies in no volume of the job", 4),
        ({"chainerSettings": PYTHON, "environmentVariables": [{"name": "A=B", "value": "1"}]}, "0.name: cannot be", 18),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_named_with_its_line(change: Any, key: str, line: int, tmp_path: Path) -> None:
    properties = job_of(**change)
    if "secrets" in change:
        properties["chainerSettings"] = PYTHON
    with pytest.raises(ConfigError) as caught:
        translated(tmp_path, properties)
    assert key in str(caught.value) and f"job.json:{line}" in str(caught.value), caught.value
    assert caught.value.exit_code == 2 and "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"properties": {"a": 1, "a": 2}}', '{"properties": []}', "[" * 500, '{"a": 1}', "\0"],
)  # fmt: skip
def test_hostile_json_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(BlobsyncError) as caught:
        read_job_file(path, None, {})
    assert caught.value.exit_code == 2 and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("P7D", 604_800), ("PT1H30M", 5400), ("7.00:00:00", 604_800), ("00:10:00", 600)]
)
def test_time_limits_are_read_in_both_forms(text: str, seconds: int, tmp_path: Path) -> None:
    properties = job_of(chainerSettings=PYTHON, constraints={"maxWallClockTime": text})
    assert translated(tmp_path, properties).values["timeout"] == str(seconds)


def test_a_volume_without_a_folder_entry_is_refused_with_the_entry_to_write(tmp_path: Path) -> None:
    job = read_job_file(written(tmp_path, job_of(chainerSettings=PYTHON)), None, {})
    with pytest.raises(ConfigError, match=r"Azure file share logs.*eu.yaml needs logs_folder in its place"):
        translate_job(job, cluster_of("slurm"), {})
    # All missing keys at once; keys that are not about the job are ignored.
    properties = job_of(chainerSettings=PYTHON)
    properties["mountVolumes"]["unmanagedFileSystems"] = [{"mountCommand": "mount x", "relativeMountPath": "own"}]
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"$schema": "https://x/job.json", "properties": properties}))
    with pytest.raises(ConfigError) as caught:
        translate_job(read_job_file(path, None, {}), cluster_of("slurm"), {})
    assert str(caught.value.hint).count("{azure_blob_config_file: FILE, path: FOLDER}") == 2
    assert "own_folder: {" in str(caught.value.hint)
    assert not [note for note in read_job_file(path, None, {}).notes if "schema" in note]


def test_containers_become_folder_entries_of_the_accounts_that_are_there(tmp_path: Path) -> None:
    blobs = [{"accountName": "acct", "containerName": "data", "relativeMountPath": "data", "credentials": {}}]
    volumes = {**job_of()["mountVolumes"], "azureBlobFileSystems": blobs}
    properties = job_of(customToolkitSettings={"commandLine": "true"}, mountVolumes=volumes)
    entry = translated(tmp_path, properties).values["config_param"]["data_folder"]
    assert entry == {"azure_blob_config_file": "aux_data/configs/d.yaml", "path": "", "mode": "download"}
    properties["outputDirectories"] = [{"id": "MODEL", "pathPrefix": f"{ROOT}/data", "pathSuffix": "m"}]
    found = translated(tmp_path, properties)
    assert found.values["config_param"]["data_folder"]["mode"] == "upload"
    assert found.values["batchai"]["outputs"] == {"MODEL": f"{ROOT}/data/$BLOBSYNC_RUN_ID/m"}
    blobs[0]["containerName"] = "other"
    (folder := tmp_path / "two words").mkdir()
    with pytest.raises(ConfigError, match="no file in aux_data/configs/ opens it") as caught:
        translated(folder, properties)
    told = f"blobsync -c eu convert batchai '{folder}/job.json' writes aux_data/configs/acct-other.yaml"
    assert caught.value.hint == told


def test_secrets_are_submitted_and_never_written(tmp_path: Path) -> None:
    registry = {"image": "i", "serverUrl": "https://r.io/", "credentials": {"username": "u", "password": "hush-hush"}}
    properties = job_of(
        chainerSettings=PYTHON,
        secrets=[{"name": "PIN", "value": "very-hidden"}],
        environmentVariables=[{"name": "KEPT", "value": "${HOME}"}],
        containerSettings={"imageSourceRegistry": registry, "shmSize": "2g"},
    )
    found = translated(tmp_path, properties | {"nodeCount": 1}, "kubernetes")
    assert found.values["env"]["PIN"] == "very-hidden" and found.values["secret_env"] == ["PIN"]
    assert found.values["env"]["KEPT"] == "$${HOME}"
    docker = {"image": "i", "address": "r.io", "username": "u", "shm_size": "2g", "password": "hush-hush"}
    assert found.values["docker"] == docker
    with pytest.raises(
        ConfigError, match=r"job.json:.*containerSettings: has the login of a registry, which jobs on slurm"
    ):
        translated(tmp_path, properties)
    made = convert_batchai(cluster_of("slurm"), "new", tmp_path / "job.json", None, {})
    text = "".join(file.text for file in made.files)
    assert "containerSettings: left out: has the login" in "\n".join(made.notes)
    assert "very-hidden" not in text and "hush-hush" not in text and "${BLOBSYNC_PIN}" in text
    assert "BLOBSYNC_PIN=" in "\n".join(made.notes) and "very-hidden" not in repr(found) + repr(made)


def test_whole_requests_are_read_as_their_properties_and_what_is_not_taken_is_named(tmp_path: Path) -> None:
    properties = job_of(customToolkitSettings={"commandLine": "date"}, jobPreparation={"commandLine": "pip install y"})
    user = {"adminUserName": "joe", "adminUserPassword": "pw-of-joe"}
    share = {**properties["mountVolumes"]["azureFileShares"][0], "credentials": {"accountKey": "a2V5LW9mLWFjY3Q="}}
    setup = {"setupTask": {"commandLine": "apt-get install x"}, "mountVolumes": {"azureFileShares": [share]}}
    cluster = {"vmSize": "STANDARD_NC6", "userAccountSettings": user, "nodeSetup": setup}
    job_file, cluster_file = written(tmp_path, properties), written(tmp_path, cluster, "cluster.json")
    wanted = read_job_file(job_file, cluster_file, {})
    for path, name, values in ((job_file, "jobName", properties), (cluster_file, "clusterName", cluster)):
        request = {name: "one", "api-version": "2018-05-01", "parameters": {"properties": values}}
        path.write_text(json.dumps({**request, "responses": {"200": {"body": {"id": "/x"}}}}, indent=1))
    found = read_job_file(job_file, cluster_file, {})
    assert replace(found, notes=()) == replace(wanted, notes=())
    made = convert_batchai(cluster_of("slurm"), "new", job_file, cluster_file, {})
    notes, text = "\n".join(made.notes), "".join(file.text for file in made.files)
    for key in ("jobName", "clusterName", "api-version", "responses", "parameters.properties.userAccountSettings"):
        assert f": {key}: has no effect" in notes, key
    assert set(found.notes) <= set(made.notes) and "apt-get install x" in text and "pip install y" in text
    assert "pw-of-joe" not in text + notes and "a2V5LW9mLWFjY3Q=" not in text + notes
    assert made.command[:-1] == ("blobsync", "-c", "new", "submit", "--nodes", "2")


# -- on the node --------------------------------------------------------------------------------------------------


def _environments(spec: JobSpec, run_dir: Path, **environ: str) -> list[dict[str, str]]:
    """The environment of each process of the job, by the command that says it."""
    found = []
    for node in range(spec.nodes):
        words = parse_arguments(
            ["exec", "--job", "/j", "--run-dir", str(run_dir), "--root", str(run_dir / f"root{node}")]
        )
        job = NodeJob(spec, {}, words, {"MASTER_ADDR": "n1", "MASTER_PORT": "3000", **environ}, node)
        for ranks in ranks_of_node(spec, node):
            env = {"PATH": os.environ["PATH"], **job.user_environment(ranks)}
            done = subprocess.run(job.command(), env=env, capture_output=True, check=True)
            found.append(dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if "=" in line))
    return found


def _job_of(options: dict[str, Any], env: Mapping[str, str] | None = None, **size: int) -> JobSpec:
    cluster = cluster_of("slurm", batchai=options)
    spec = describe(cluster._replace(env=env or {}), SubmitRequest(("env", "-0")), "me_1_x", None)
    return replace(spec, **size)  # type: ignore[arg-type]


def test_a_process_finds_the_variables_of_batch_ai(tmp_path: Path) -> None:
    options = {
        "toolkit": "chainer",
        "std_out_err": f"{ROOT}/logs/$BLOBSYNC_RUN_ID",
        "inputs": {"DATA": "${AZ_BATCHAI_MOUNT_ROOT}/data", "OWN": "$HOME/x"},
        "outputs": {"MODEL": f"{ROOT}/logs/$BLOBSYNC_RUN_ID/m"},
    }
    env = {"MINE": "$AZ_BATCHAI_INPUT_DATA/a", "OTHER": "$PATH"}
    spec = _job_of(options, env, nodes=2, gpus_per_node=4)
    found = _environments(spec, tmp_path, AZ_BATCH_HOST_LIST="n1,n2")[1]
    root, temp = tmp_path / "root1", tmp_path / "node_1.temp"
    assert {name: found[name] for name in sorted(found) if name.startswith(("AZ_BATCHAI", "MINE", "OTHER"))} == {
        "AZ_BATCHAI_INPUT_DATA": f"{root}/data",
        "AZ_BATCHAI_INPUT_OWN": "$HOME/x",
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": "n1",
        "AZ_BATCHAI_JOB_MOUNT_ROOT": str(root),
        "AZ_BATCHAI_JOB_TEMP": str(temp),
        "AZ_BATCHAI_JOB_TEMP_DIR": f"{temp}/..",
        "AZ_BATCHAI_MOUNT_ROOT": str(root),
        "AZ_BATCHAI_MPI_HOST_FILE": f"{temp}/hostfile",
        "AZ_BATCHAI_MPI_MASTER_NODE": "n1",
        "AZ_BATCHAI_NUM_GPUS": "4",
        "AZ_BATCHAI_NUM_GPUS_PER_NODE": "4",
        "AZ_BATCHAI_OUTPUT_MODEL": f"{root}/logs/me_1_x/m",
        "AZ_BATCHAI_PREV_OUTPUT_MODEL": "",
        "AZ_BATCHAI_SHARED_JOB_TEMP": f"{tmp_path}/shared",
        "AZ_BATCHAI_STDOUTERR_DIR": f"{root}/logs/me_1_x",
        "AZ_BATCHAI_TASK_INDEX": "1",
        "MINE": f"{root}/data/a",
        "OTHER": "$PATH",
    }
    assert (temp / "hostfile").read_text() == "n1 slots=1\nn2 slots=1\n"
    # Of a machine that has none.
    without = replace(spec, options={**spec.options, "on_cpu": True})
    assert _environments(without, tmp_path / "cpu")[1]["AZ_BATCHAI_NUM_GPUS"] == "0"
    assert (root / "logs/me_1_x/stdout-1.txt").exists() and (root / "logs/me_1_x/m").is_dir()


def test_a_job_that_is_tried_again_finds_what_it_had_written(tmp_path: Path) -> None:
    spec = _job_of({"toolkit": "chainer", "outputs": {"MODEL": f"{ROOT}/logs/$BLOBSYNC_RUN_ID/m"}})
    (found,) = _environments(spec, tmp_path, SLURM_RESTART_COUNT="1")
    assert (
        found["AZ_BATCHAI_PREV_OUTPUT_MODEL"] == found["AZ_BATCHAI_OUTPUT_MODEL"] == f"{tmp_path}/root0/logs/me_1_x/m"
    )


def test_tasks_of_tensorflow_are_the_same_cluster_to_all_processes(tmp_path: Path) -> None:
    options = {"toolkit": "tensorflow", "workers": 3, "parameter_servers": 1}
    spec = _job_of(options, nodes=2, procs_per_node=3)
    # The workers have ended, so that the parameter server ends.
    ended = tmp_path / "shared/ended-0"
    ended.mkdir(parents=True)
    for number in range(3):
        (ended / str(number)).touch()
    found = _environments(spec, tmp_path, AZ_BATCH_HOST_LIST="n1,n2")
    tasks = [json.loads(each["TF_CONFIG"])["task"] for each in found]
    assert [(task["type"], task["index"]) for task in tasks] == [
        *[("master", 0), ("worker", 2), ("ps", 0)],
        *[("worker", 1), ("idle", 0), ("idle", 0)],
    ]
    (cluster,) = {json.dumps(json.loads(each["TF_CONFIG"])["cluster"]) for each in found}
    assert json.loads(cluster) == {"ps": ["n1:3001"], "worker": ["n1:3002", "n2:3004", "n1:3006"]}
    assert found[3]["AZ_BATCHAI_WORKER_HOSTS"] == "n1:3002,n2:3004,n1:3006"
    assert found[3]["AZ_BATCHAI_TASK_INDEX"] == "1" and found[2]["AZ_BATCHAI_PS_HOSTS"] == "n1:3001"
    # Hosts that nobody told of are the master.
    alone = json.loads(_environments(replace(spec, nodes=1), tmp_path)[0]["TF_CONFIG"])
    assert alone["cluster"]["worker"] == ["n1:3002", "n1:3004", "n1:3006"]
