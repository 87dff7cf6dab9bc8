"""Every ancestor's file on every platform: each of its keys is honoured, or refused with its line.

The keys are taken from the files. A key is honoured where another value, or none, makes another request or another
specification. A few ask nothing of a job: ``NOT_OF_JOBS`` says whose they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.kubernetes.request import build_kubernetes
from blobsync.backends.kubernetes.settings import KubernetesSettings
from blobsync.base.errors import BlobsyncError
from blobsync.base.plain_json import merged
from blobsync.config.job_keys import IDLE, IDLE_HERE, LABELS
from blobsync.config.known_keys import CHECKPOINT_KEYS, CLUSTER, FOLDER
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.config.yaml_document import KeyPath
from blobsync.jobs.form.fields import BY_NAME, FOLDER_FIELDS
from blobsync.jobs.form.filled import AskedJob, JobForm, check_form
from blobsync.jobs.preflight import around
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef, JobSpec
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

PLATFORMS = ("local", "slurm", "kubernetes", "aml")
ACCT, OTHER = "aux_data/configs/acct.yaml", "aux_data/configs/other.yaml"
CODE = {"azure_blob_config_file": ACCT, "path": "me/code.zip"}
DATA = {"azure_blob_config_file": ACCT, "path": "me/data"}

# What ACT's client took, those of its example among it.
ACT_WHOLE: Mapping[str, Any] = {
    "aml_config": {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"},
    "compute_target": "V100",
    "experiment_name": "trials",
    "use_custom_docker": True,
    "docker": {"image": "team/image", "tag": "7", "address": "acr.io", "username": "u", "password": "p"},
    "use_cli_auth": True,
    "gpu_per_node": 4,
    "num_gpu": 8,
    "multi_process": True,
    "process_count_per_node": 2,
    "env": {"NCCL_IB_DISABLE": "0", "TRUE": True},
    "zip_options": ["-x", "*.ckpt"],
    "compile_args": "--fast",
    "source_directory": "src",
    "entry_script": "aml_server.py",
    "with_log": True,
    "with_details": True,
    "log_full": True,
    "sleep_if_fail": True,
    "sleep_if_succeed": True,
    "preemption_allowed": True,
    "elastic_num_gpu": [4, 8],
    "aks_compute": False,
    "aks_compute_global_dispatch": True,
    "aks_compute_global_dispatch_arg": {"vm_size": ["ND40"], "cluster_selection_policy": "any"},
    "unique_gjd_cluster": True,
    "singularity_sla_tier": "Premium",
    "singularity_instance_type": "ND40",
    "interpreter_path": "/opt/python",
    "command_prefix": "nice",
    "inject_collection": "runs",
    "is_ssh_scheduler": True,
    "config_param": {
        "code_path": {**CODE, "submit_with_url": True},
        "data_folder": {**DATA, "datastore_name": "store", "blob_cache_timeout": 60},
        "output_folder": {"azure_blob_config_file": OTHER, "path": "me/output"},
        "share_folder": {**DATA, "storage_type": "file", "file_share": "share"},
    },
}
# What Philly's client took; the example of its text, with all that stood in others.
PHILLY: Mapping[str, Any] = {
    "vc": "input",
    "vc_type": "azure",
    "cluster": "wu1",
    "user_name": "me",
    "password": "secret-word",
    "blob_mount_info": [
        {"blob_mount_point": "/blob", "azure_blob_config_file": ACCT, "blob_fuse_options": ["-o", "attr_timeout=240"]},
        {"blob_mount_point": "/data_blob", "azure_blob_config_file": OTHER, "blob_fuse_options": ["-o", "ro"]},
    ],
    "multi_process": True,
    "num_gpu": 4,
    "isDebug": True,
    "use_blob_as_input": True,
    "with_log": True,
    "docker_tag": "py37",
    "config_param": {
        "code_path": "/blob/me/code.zip",
        "data_folder": "/data_blob/me/data",
        "model_folder": "/blob/me/models",
        "output_folder": "/blob/me/output",
    },
    "docker": {"image": "philly/env", "tag": "py36"},
}
PHILLY_ONE: Mapping[str, Any] = {
    "vc": "input",
    "cluster": "wu1",
    "user_name": "me",
    "blob_mount_point": "/blob",
    "azure_blob_config_file": ACCT,
    "multi_process": False,
    "config_param": {"code_path": "/blob/me/code.zip", "data_folder": "/blob/me/data"},
    "docker": {"image": "philly/env", "tag": "py36"},
}
# The fields of the toolkit's form, as keys.
TOOLKIT: Mapping[str, Any] = {
    "aml_config": {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"},
    "compute_target": "itplabrr1cl1",
    "nodes": 2,
    "gpu_per_node": 1,
    "instance_type": "ND40_v2g1",
    "sla_tier": "Premium",
    "experiment_name": "trials",
    "docker": {"environment": "azureml:pytorch:1"},
    "setup": "pip install x",
    "work_dir": "src",
    "ignore": ["data", "logs"],
    "config_param": {
        "code_path": CODE,
        "data_folder": {**DATA, "mode": "download", "include": ["voc", "coco"], "datastore_name": "store"},
        "output_folder": {"azure_blob_config_file": ACCT, "path": "me/output"},
    },
}
# What petctl's options became.
PETCTL: Mapping[str, Any] = {
    "min_nodes": 1,
    "max_nodes": 4,
    "nodes": 2,
    "gpu_per_node": 1,
    "docker": {"image": "torchelastic/examples", "address": "reg.io", "username": "u", "password": "p"},
    "config_param": {"code_path": CODE, "data_folder": DATA},
}
FILES: Mapping[str, Mapping[str, Any]] = {
    "ACT, all keys": ACT_WHOLE,
    "Philly, several mounts": PHILLY,
    "Philly, one mount": PHILLY_ONE,
    "the toolkit": TOOLKIT,
    "petctl": PETCTL,
}

# Keys that ask nothing of a job: whose they are.
NOT_OF_JOBS: Mapping[str, str] = {
    "use_cli_auth": "who asks for the job's SAS",
    "zip_options": "what init packs",
    "ignore": "what init packs",
    "compile_args": "what initc compiles here, where nodes compile nothing",
    "platform": "chooses the others",
}
# Without these there is no job at all on the platform; they are no ancestor's.
ADDED: Mapping[str, Mapping[str, Any]] = {"kubernetes": {"kubernetes": {"namespace": "train"}}}


def leaves(values: Mapping[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key that holds a value, of mappings in lists too; null says nothing."""
    for name, value in values.items():
        path = (*above, str(name))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from leaves(item, (*path, str(number)))
        elif value is not None:
            yield path


def changed(values: Any, path: KeyPath, value: Any) -> Any:
    """The values with another one at a path; ``None`` takes the key out, which may have gone with one around it."""
    if not path or values is None:
        return value
    if isinstance(values, list):
        return [changed(item, path[1:], value) if str(n) == path[0] else item for n, item in enumerate(values)]
    return {
        name: changed(item, path[1:], value) if name == path[0] else item
        for name, item in values.items()
        if value is not None or (name,) != path
    }


def at(values: Any, path: KeyPath) -> Any:
    for part in path:
        values = values[int(part)] if isinstance(values, list) else values[part]
    return values


def another(value: Any) -> Any:
    """A value of the same type that means something else."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2
    return [*value, "more"] if isinstance(value, list) else OTHER if value == ACCT else f"{value}x"


def project(root: Path, values: Mapping[str, Any]) -> Cluster:
    files = ProjectFiles(root)
    files.account("other", "account_name: other\ncontainer_name: box\naccount_key: b3RoZXI=\n")
    files.write("aux_data/aml/config.json", '{"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}')
    # Which is YAML, too, with each key on its line, and made in no time.
    files.cluster(json.dumps(values, indent=1)).chmod(0o600)
    return load_cluster(root, environ=NO_ENVIRON)


def asked(root: Path, values: Mapping[str, Any]) -> Iterator[str]:
    """All that a job of this file asks for: its request and its specification; or why it is refused."""
    # With the file's own number of GPUs, with eight, and with those of a machine.
    for gpus, given in ((None, values), (8, values), (None, changed(values, ("num_gpu",), None))):
        try:
            cluster = project(root, given)
            kept = cluster.code
            code = CodeRef(str(kept.account.container), f"{kept.path}.d/1.zip", "1") if kept else None
            spec = describe(cluster, SubmitRequest(("true",), gpus), "me_1_0badcafe", code)
            yield planned(cluster, spec)
        except BlobsyncError as error:
            yield f"refused: {error.message}"


def planned(cluster: Cluster, spec: JobSpec) -> str:
    """The request; that of Kubernetes without its YAML, which takes four times as long as all else here."""
    place = around(cluster, NO_ENVIRON)
    if cluster.platform == "kubernetes":
        return repr(build_kubernetes(spec, KubernetesSettings(cluster)))
    return create_backend(place).plan(spec).text


def fates(root: Path, values: Mapping[str, Any]) -> tuple[set[KeyPath], set[KeyPath]]:
    """The keys that are refused, with their lines, and those that change nothing."""
    cluster = project(root, values)
    lines = (root / "aux_data/aml/aml.yaml").read_text().splitlines()
    for path, error in cluster.job_refusals:
        assert error.line and path[-1] in lines[error.line - 1], error
    if cluster.job_refusals:
        with pytest.raises(BlobsyncError) as caught:
            describe(cluster, SubmitRequest(("true",)), "me_1_0badcafe", None)
        assert all(f"{error.key}" in caught.value.message for _, error in cluster.job_refusals)
    refused = {path for path, _ in cluster.job_refusals}
    kept: Any = dict(values)
    for path in refused:
        kept = changed(kept, path, None)
    base = [*asked(root, kept)]
    assert not base[0].startswith("refused: "), base

    def says_the_same(path: KeyPath, value: Any) -> bool:
        return all(map(str.__eq__, asked(root, changed(kept, path, value)), base))

    every = [*leaves(kept)]
    return refused, {
        path for path in every if says_the_same(path, another(at(kept, path))) and says_the_same(path, None)
    }


def name_of(path: KeyPath) -> str:
    parts = [*path]
    if parts[0] in ("config_param", "blob_mount_info") and len(parts) > 1:
        parts[1] = "*"
    return ".".join(parts)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("file", FILES)
def test_every_key_is_honoured_or_refused_with_its_line(tmp_path: Path, file: str, platform: str) -> None:
    values = merged(FILES[file], {"platform": platform, **ADDED.get(platform, {})})
    if platform == "aml" and not {"aml_config", "compute_target"} & values.keys():
        values |= {"compute_target": "added"}
    if platform == "kubernetes" and not values.get("docker", {}).get("image"):
        values["kubernetes"] = {**values["kubernetes"], "image": "added"}
    if platform == "aml" and file == "petctl":
        values = {name: value for name, value in values.items() if name not in ("min_nodes", "max_nodes")}
    refused, idle = fates(tmp_path, values)
    told_of = {*IDLE, *(IDLE_HERE if platform == "local" else ())}
    labels = {name for name, platforms in LABELS.items() if platform not in platforms}
    idle = {path for path in idle if not any(name_of(path[:size]) in labels for size in range(1, len(path) + 1))}
    # The name of the instance type says the same number.
    same = {"gpu_per_node"} if platform == "aml" and str(values.get("instance_type")).endswith("v2g1") else set[str]()
    lost = sorted(name for path in idle if (name := name_of(path)) not in {*NOT_OF_JOBS, *told_of, *same})
    assert lost == [], "neither honoured nor refused"
    assert not {name_of(path) for path in refused} & labels
    told = project(tmp_path, values).job_notes
    for path in idle:
        if name_of(path) in told_of:
            assert any(f": {'.'.join(path)}: has no effect" in note for note in told), path
    known = {name_of((name,)) for name, value in values.items() if value} & labels
    assert not known or any(all(name in note for name in known) for note in told), told
    assert not {name_of(path) for path in refused} & {*NOT_OF_JOBS, *IDLE}


# Each field of the form, which are those of the toolkit and of the other platforms, with a value of its own.
TYPED: Mapping[str, str] = {
    "command": "python train.py",
    "name": "a name",
    "num_gpu": "2",
    "nodes": "2",
    "single": "yes",
    "elastic": "1:3",
    "compute_target": "other",
    "instance_type": "ND40",
    "sla_tier": "Basic",
    "priority": "150",
    "preemption_allowed": "yes",
    "partition": "gpu",
    "qos": "high",
    "gres": "gpu:{gpus}",
    "array": "0-3",
    "sweep": "lr=0.1,0.2\nseed=1,2",
    "zip": "yes",
    "parallel": "1",
    "queue": "team",
    "priority_class": "high",
    "cpu": "6",
    "memory": "64Gi",
    "mem": "64G",
    "cpus_per_task": "6",
    "after": "me_1_0badcafe",
    "time": "2:00:00",
    "timeout": "5h",
    "retries": "3",
    "image": "other:2",
    "launcher": "pytorch",
    "env": "A=1",
    "setup": "make",
    "work_dir": "src",
    "other": "command_prefix: nice",
    "ignore": "*.ckpt",
    "code": "ab" * 32,
    "init": "yes",
    "folder_mode:data": "download",
    "folder_parts:data": "voc; coco",
    "folder_checkpoints:data": "checkpoint-*",
    "folder_complete:data": "still",
    "folder_settle_seconds:data": "9",
    "folder_restore:data": "own",
    "folder_restore_from:data": "me_1_0badcafe",
    "folder_keep_last:data": "3",
    "folder_keep_every:data": "100",
    "folder_keep_best:data": "a.json:loss",
    "folder_upload_cores:data": "2",
    "folder_cap_mbps:data": "80",
}
# What a field counts with, where it does not by itself.
WITH_CHECKPOINTS = {"folder_mode:data": "upload", "folder_checkpoints:data": "*"}
BESIDE: Mapping[str, Mapping[str, str]] = {
    "folder_parts:data": {"folder_mode:data": "download"},
    "zip": {"sweep": "lr=0.1,0.2\nseed=1,2"},
    "parallel": {"sweep": "lr=0.1,0.2"},
    **{f"{field.name}:data": WITH_CHECKPOINTS for field in FOLDER_FIELDS[2:]},
}
BARE: Mapping[str, Mapping[str, Any]] = {
    "local": {"local": {"gpus": 8}},
    "slurm": {"slurm": {"shared_root": "/s"}},
    "kubernetes": {"kubernetes": {"namespace": "n"}, "docker": {"image": "i"}},
    "aml": {"aml_config": ACT_WHOLE["aml_config"], "instance_type": "NC6", "docker": {"image": "i"}},
    "itp": {"aml_config": ACT_WHOLE["aml_config"], "compute_target": "c", "docker": {"image": "i"}},
    "singularity": {
        "aml_config": ACT_WHOLE["aml_config"],
        "compute_target": "vc",
        "singularity_instance_type": "NC6",
        "singularity_sla_tier": "Premium",
        "docker": {"image": "i"},
    },
}
# What the form alone does: the code that the job gets.
OF_THE_CODE = {"code", "ignore", "init"}


@pytest.mark.parametrize("platform", BARE)
def test_every_field_of_the_form_is_honoured_or_refused(tmp_path: Path, platform: str) -> None:
    assert TYPED.keys() == {*BY_NAME, *(f"{field.name}:data" for field in FOLDER_FIELDS)}
    values = {"platform": platform, **BARE[platform], "gpu_per_node": 4}
    project(tmp_path, {**values, "config_param": {"code_path": CODE, "data_folder": {**DATA, "mode": "ro_mount"}}})

    @cache
    def of_its_place(name: str) -> str:
        """What is asked for without the field, and with those beside it."""
        form = {"command": "true", **BESIDE.get(name, {})}
        return of_form(tmp_path, check_form(tmp_path, JobForm("aml", form), NO_ENVIRON).asked)

    lost = []
    for name, text in TYPED.items():
        form = {"command": "true", **BESIDE.get(name, {})}
        found = check_form(tmp_path, JobForm("aml", {**form, name: text}), NO_ENVIRON)
        if found.asked is None:
            has_not = name in BY_NAME and platform not in BY_NAME[name].platforms
            assert found.mistakes and (not has_not or "do not have it" in found.mistakes[0].message), found.mistakes
        elif name not in OF_THE_CODE and of_form(tmp_path, found.asked) == of_its_place(name if name in BESIDE else ""):
            lost.append(name)
        elif name in OF_THE_CODE:
            assert found.changes or found.asked.keywords.get("init") or found.asked.keywords.get("code")
    assert lost == [], "neither honoured nor refused"


def of_form(root: Path, asked: AskedJob | None) -> str:
    assert asked is not None
    cluster = load_cluster(root, "aml", overrides=asked.overrides, environ=NO_ENVIRON)
    code = CodeRef("https://acct.blob.core.windows.net/cont", "me/code.zip.d/1.zip", "1")
    spec = describe(cluster, asked.request, "me_1_0badcafe", code)
    return planned(cluster, spec)


def test_the_files_hold_every_key_of_the_ancestors() -> None:
    """So that a key that is added to the table of ACT's, or of Philly's, is asked about here."""
    from blobsync.config import known_keys

    there = {name_of(path) for values in FILES.values() for path in leaves(values)}
    tops = {name.partition(".")[0] for name in there}
    missing = {*known_keys._ACT, *known_keys._PHILLY} - tops
    assert missing == {"azure_blob_config_file", "datastore_name", "platform", "aks_compute"} - tops
    ours = {"ignore", "include", "mode", "blob_fuse_options", "checkpoints", "modes", "times", *CHECKPOINT_KEYS}
    assert {name for name in FOLDER if f"config_param.*.{name}" not in there} <= ours
    assert tops <= CLUSTER.keys()
