"""Each key of the configuration has an effect, or is in the table of keys without one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.aml.request import build_request
from blobsync.backends.protocol import Surroundings
from blobsync.base.errors import ConfigError
from blobsync.config.check import check_project
from blobsync.config.job_keys import (
    IDLE,
    LABELS,
    NESTED_HINT,
    NOWHERE,
    ONLY_ON,
    OUTRANKED,
    demand_keys,
    enclosing,
    read_only_words,
)
from blobsync.config.known_keys import (
    ACCOUNT,
    BATCHAI,
    CLUSTER,
    DOCKER,
    FOLDER,
    GLOBAL_DISPATCH,
    KUBERNETES,
    LOCAL,
    MOUNT,
    QUEUE,
    RUNTIME,
    SLURM,
    TRASH,
    WORKSPACE,
    Key,
)
from blobsync.config.loader import load_cluster, load_workspace
from blobsync.config.model import Cluster
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.node_secrets import rights_needed
from blobsync.jobspec.spec import SERVICES, CodeRef
from blobsync.store.sas import READ_FOLDER
from tests.fakes.aml_configs import CONTAINER, ENTRY, RUN_ID, load
from tests.fakes.runner import ScriptedRunner
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

PACKAGE = Path(__file__).parents[2] / "blobsync"

SING = {"compute_target": "vc", "singularity_instance_type": "ND40"}

# Key -> a platform, and a value with which other things are handed over there; * stands for data_folder.
HANDED_OVER: Mapping[str, tuple[str, Any]] = {
    "compute_target": ("aml", "other"),
    "instance_type": ("aml", "ND40"),
    "experiment_name": ("aml", "other"),
    "multi_process": ("aml", False),
    "gpu_per_node": ("aml", 2),
    "num_gpu": ("aml", 2),
    "nodes": ("aml", 2),
    "process_count_per_node": ("aml", 3),
    "launcher": ("aml", "pytorch"),
    "env": ("aml", {"A": "1"}),
    "timeout": ("aml", "5h"),
    "ssh_public_key": ("aml", "ssh-rsa AAAA"),
    "identity": ("aml", "managed"),
    "interpreter_path": ("slurm", "/opt/python"),
    "docker.image": ("aml", "other:2"),
    "docker.tag": ("aml", "9"),
    "docker.environment": ("aml", "azureml:pt:1"),
    "docker.address": ("aml", "acr.example"),
    "docker.shm_size": ("aml", "7g"),
    "docker.args": ("aml", ["--cap-add=X"]),
    "docker.runtime": ("local", "apptainer"),
    "queue_settings.job_tier": ("aml", "Basic"),
    "preemption_allowed": ("itp", True),
    "priority": ("itp", 150),
    "elastic_num_gpu": ("itp", [4, 8]),
    "itp": ("itp", {"a": 1}),
    "aks_compute_global_dispatch": ("itp", True),
    "aks_compute_global_dispatch_arg.vm_size": ("itp", ["ND40"]),
    "aks_compute_global_dispatch_arg.region": ("itp", ["eastus"]),
    "aks_compute_global_dispatch_arg.my_resource_only": ("itp", True),
    "aks_compute_global_dispatch_arg.low_priority_vm_tolerant": ("itp", True),
    "singularity": ("singularity", {"a": 1}),
    "singularity_instance_type": ("singularity", "NC6"),
    "singularity_sla_tier": ("singularity", "Basic"),
    "sla_tier": ("singularity", "Basic"),
    "ssh": ("slurm", "me@login"),
    "runtime.python": ("slurm", "/opt/python"),
    "runtime.scratch": ("slurm", "/fast"),
    "runtime.keep_root": ("slurm", "always"),
    "runtime.sync_seconds": ("slurm", 5),
    "slurm.launcher": ("slurm", "mpirun"),
    "slurm.cpus_per_task": ("slurm", 3),
    "slurm.exclusive": ("slurm", True),
    "slurm.export": ("slurm", ["MINE"]),
    "slurm.args": ("slurm", ["--x=1"]),
    "slurm.job_root": ("slurm", "/jobs"),
    **{
        f"slurm.{name}": ("slurm", "x")
        for name in ("partition", "qos", "account", "time", "gres", "constraint", "reservation", "mem")
    },
    "slurm.array": ("slurm", "0-3"),
    "kubernetes.context": ("kubernetes", "other"),
    "kubernetes.namespace": ("kubernetes", "other"),
    "kubernetes.image": ("kubernetes", "other:2"),
    "kubernetes.service_account": ("kubernetes", "trainer"),
    "kubernetes.node_selector": ("kubernetes", {"agentpool": "gpu"}),
    "kubernetes.tolerations": ("kubernetes", [{"key": "sku", "operator": "Exists"}]),
    "kubernetes.priority_class": ("kubernetes", "high"),
    "kubernetes.queue": ("kubernetes", "team"),
    "kubernetes.cpu": ("kubernetes", 6),
    "kubernetes.memory": ("kubernetes", "64Gi"),
    "kubernetes.shm_size": ("kubernetes", "16Gi"),
    "kubernetes.pull_secret": ("kubernetes", "registry"),
    "kubernetes.ttl_days": ("kubernetes", 1),
    "kubernetes.gpu_resource": ("kubernetes", "amd.com/gpu"),
    "kubernetes.security_context": ("kubernetes", {"runAsUser": 7}),
    "docker.username": ("kubernetes", "other"),
    "config_param.*.path": ("aml", "elsewhere"),
    "config_param.*.datastore_name": ("aml", "other"),
    "config_param.*.mode": ("aml", "upload"),
    "config_param.*.include": ("aml", ["voc"]),
}

# Beside what is switched by a key, what it needs to be seen.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "aks_compute_global_dispatch_arg": {"aks_compute_global_dispatch": True},
}

# Which module reads what is read while a cluster file becomes a value, by the nodes, or by other commands; of a key in
# two rows the last one counts.
READ_BY: Mapping[str, Iterable[str]] = {
    "config/loader.py": (
        *("azure_blob_config_file", "datastore_name", "config_param", "blob_mount_point", "blob_mount_info"),
        *("blob_mount_info.*.blob_mount_point", "blob_mount_info.*.azure_blob_config_file"),
        *("config_param.*.azure_blob_config_file", "blob_mount_info.*.blob_fuse_options"),
        *("config_param.*.blob_fuse_options", "config_param.*.checkpoints", "aml_config", "platform", "aks_compute"),
        *("docker",),
    ),
    "node/uploader.py": ("config_param.*.ignore",),
    "plan/path_mapping.py": ("config_param.*.modes", "config_param.*.times"),
    "backends/aml/datastores.py": ("config_param.*.storage_type", "config_param.*.file_share"),
    "jobspec/make_spec.py": (
        *("config_param.*.blob_cache_timeout", "output", "min_nodes", "max_nodes", "secret_env", "slurm"),
        *("slurm.shared_root", "batchai"),
    ),
    "keep/checkpoint_sets.py": (
        *("config_param.*.complete", "config_param.*.settle_seconds", "config_param.*.restore"),
        *("config_param.*.keep_last", "config_param.*.keep_every", "config_param.*.keep_best"),
    ),
    "keep/restore.py": ("config_param.*.restore_from",),
    "keep/set_uploads.py": ("config_param.*.upload_cores",),
    "node/job_checkpoints.py": ("config_param.*.cap_mbps",),
    "backends/aml/aml_backend.py": ("use_cli_auth",),
    "jobs/foreground.py": ("use_custom_docker",),
    "code/packed_files.py": ("zip_options", "ignore", "max_file_size"),
    "code/project_code.py": ("compile_args",),
    "project/engine_set.py": ("relay", "engine"),
    "project/trash.py": ("trash", "trash.days", "trash.size"),
    "project/api.py": ("undo",),
    "jobs/service.py": ("retries",),
    "node/setup.py": ("setup",),
    "ancestors/philly.py": ("vc", "user_name"),
    "node/job.py": ("work_dir", "command_prefix"),
    "node/processes.py": ("sleep_if_fail", "sleep_if_succeed"),
    "backends/kubernetes/settings.py": ("kubernetes",),
    "backends/kubernetes/kubernetes_backend.py": ("docker.password",),
    "backends/local/local_backend.py": ("local", "local.slots", "local.gpus"),
    "ancestors/batchai_runtime.py": [f"batchai.{key}" for key in BATCHAI],
    "ancestors/batchai_job.py": ("batchai.job_file",),
    "backends/protocol.py": ("runtime",),
    "backends/aml/itp_and_singularity.py": ("queue_settings", "aks_compute_global_dispatch_arg"),
    "config/accounts.py": ACCOUNT,
    "backends/aml/request.py": WORKSPACE,
    "backends/aml/client.py": ("management_endpoint", "api_version"),
}
READ_IN = {key: module for module, keys in READ_BY.items() for key in keys}


def every_key() -> set[str]:
    """All keys, those of mappings with a dot, those that stand below any name with a star."""
    inside: Mapping[str, Mapping[str, Key]] = {
        "docker": DOCKER,
        "aks_compute_global_dispatch_arg": GLOBAL_DISPATCH,
        "queue_settings": QUEUE,
        "trash": TRASH,
        "runtime": RUNTIME,
        "slurm": SLURM,
        "kubernetes": KUBERNETES,
        "local": LOCAL,
        "batchai": BATCHAI,
        "config_param.*": FOLDER,
        "blob_mount_info.*": MOUNT,
    }
    below = {f"{outer}.{key}" for outer, keys in inside.items() for key in keys}
    nested = {name for name, key in CLUSTER.items() if key.keys is not None}
    assert nested == {name.partition(".")[0] for name in inside} | {"aml_config"}, "a table is missing here"
    return {*ACCOUNT, *WORKSPACE, *CLUSTER, *below}


def test_each_key_is_in_one_table() -> None:
    tables = [set(HANDED_OVER), set(READ_IN), set(IDLE), set(NOWHERE)]
    assert set().union(*tables) == every_key()
    assert sum(map(len, tables)) == len(every_key())
    assert set(ONLY_ON) | set(OUTRANKED) <= every_key() - set(IDLE) - set(NOWHERE)
    assert set(LABELS) <= every_key() - set(IDLE)


@pytest.mark.parametrize("name", sorted(HANDED_OVER))
def test_a_key_changes_what_is_handed_over(tmp_path: Path, name: str) -> None:
    platform, value = HANDED_OVER[name]
    beside = dict(BESIDE.get(name.partition(".")[0], {}))
    without = handed_over(configured(tmp_path / "without", platform, beside))
    changes = put(beside, name, value)
    assert handed_over(configured(tmp_path / "with", platform, changes)) != without


@pytest.mark.parametrize("name", sorted(READ_IN))
def test_a_key_is_read_where_the_table_says(name: str) -> None:
    assert name.rpartition(".")[2] in words_of(READ_IN[name])


@pytest.mark.parametrize("name", sorted(name for name in ONLY_ON if not name.startswith("blob_mount_info")))
def test_a_key_of_certain_platforms_is_refused_on_others(tmp_path: Path, name: str) -> None:
    value = READ_VALUES.get(name) or HANDED_OVER.get(name, ("", {"x": 1}))[1]
    for platform in ("local", "slurm", "kubernetes", "aml", "itp", "singularity"):
        cluster = configured(tmp_path / platform, platform, put({}, name, value))
        shown = name.replace("*", "data_folder")
        expected = f"jobs on {platform} do not have it, only those on {', '.join(ONLY_ON[name])}"
        refused = [one.error for one in cluster.job_refusals]
        found = [error for error in refused if error.key == shown and expected in error.message]
        is_label = platform not in LABELS.get(name, (platform,))
        assert bool(found) == (platform not in ONLY_ON[name] and not is_label), cluster.job_refusals
        assert (
            any(f"no effect on jobs on {platform}" in note and shown in note for note in cluster.job_notes) == is_label
        )
        for error in found:
            assert error.line and error.message.startswith(f"aux_data/aml/aml.yaml:{error.line}: {shown}: ")
            with pytest.raises(ConfigError, match="do not have it"):
                describe(cluster, SubmitRequest(("true",)), RUN_ID, None)
            describe(cluster, SubmitRequest(("true",), here=True), RUN_ID, None)


READ_VALUES: Mapping[str, Any] = {
    "docker.password": "SENTINEL",
    "aml_config": "aux_data/aml/config.json",
    "datastore_name": "store",
    "queue_settings": {"job_tier": "Basic"},
    "aks_compute_global_dispatch_arg": {"my_resource_only": True},
    "config_param.*.blob_cache_timeout": 60,
    "config_param.*.blob_fuse_options": ["-o attr_timeout=240"],
    "config_param.*.checkpoints": "run-*/checkpoint-*",
}


def test_keys_that_do_nothing_are_reported_with_their_place_and_never_their_value(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    files.cluster(
        """\
        password: SENTINEL
        with_log: false
        unique_gjd_cluster: true
        docker: {password: SENTINEL}
        entry_script: aml_server.py
        blob_mount_info:
          - {blob_mount_point: /blob, azure_blob_config_file: aux_data/configs/acct.yaml, blob_fuse_options: [-o, x]}
        config_param:
          code_path: {path: /blob/c.zip, submit_with_url: true}
        """
    )
    (tmp_path / "aux_data/aml/aml.yaml").chmod(0o600)
    (found,) = [item for item in check_project(tmp_path, environ=NO_ENVIRON) if item.file.endswith("aml.yaml")]
    assert not found.problems
    at = "aux_data/aml/aml.yaml"
    assert found.warnings == (
        f"{at}: no effect on jobs on local, only on other platforms: unique_gjd_cluster (line 3)",
        f"{at}:1: password: has no effect: {IDLE['password']}",
        f"{at}:9: config_param.code_path.submit_with_url: has no effect: {IDLE['config_param.*.submit_with_url']}",
    )
    assert found.cluster is not None
    assert [one.error.message for one in found.cluster.job_refusals] == [
        f"{at}:4: docker.password: jobs on local do not have it, only those on kubernetes",
        f"{at}:5: entry_script: jobs do not have it: {NOWHERE['entry_script']}",
    ]
    with pytest.raises(ConfigError) as caught:
        demand_keys(found.cluster.job_refusals)
    assert caught.value.message.endswith("; refused as well: entry_script (line 5)")
    assert caught.value.hint == ("remove them, or for one command: -p '{docker: {password: null}, entry_script: null}'")


def test_a_folder_inside_another_one_is_reported_where_jobs_cannot_have_it(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    text = (
        "azure_blob_config_file: aux_data/configs/acct.yaml\n"
        "config_param: {data_folder: p,\n  data/coco_folder: q, database_folder: r}\n"
    )
    files.cluster(f"platform: local\n{text}")
    assert not load_cluster(tmp_path, environ=NO_ENVIRON).job_notes
    for platform in SERVICES:
        files.cluster(f"platform: {platform}\n{text}")
        assert load_cluster(tmp_path, environ=NO_ENVIRON).job_notes == (
            (
                "aux_data/aml/aml.yaml:4: config_param.data/coco_folder: is inside data_folder,"
                " and a folder that jobs write to cannot contain another one:"
                f" submit refuses it ({platform}), transfers do not; {NESTED_HINT}"
            ),
        )
        files.cluster(
            f"platform: {platform}\n{text}".replace("data_folder: p", "data_folder: {path: p, mode: ro_mount}")
        )
        assert not load_cluster(tmp_path, environ=NO_ENVIRON).job_notes
    assert enclosing({"a": "", "a/b": "mount", "a/b/c": "", "ab": ""}) == {"a/b": "a", "a/b/c": "a/b"}
    assert enclosing({"a": "mount", "a/b": "ro_mount", "a/b/c": ""}) == {"a/b": "a", "a/b/c": "a"}
    assert enclosing({"a": "download", "a/b": "ro_mount", "a/b/c": ""}) == {}


@pytest.mark.parametrize(
    ("text", "gpus", "told"),
    [
        ("platform: itp\ninstance_type: ND40_v2g1\ngpu_per_node: 4\n", 1, "ND40_v2g1 has 1 GPU"),
        ("platform: aml\ninstance_type: ND40_v2g1\n", 1, ""),
        ("platform: aml\ninstance_type: ND40_v2g8\ngpu_per_node: 8\n", 8, ""),
        ("platform: aml\ninstance_type: Standard_NC24rs_v3\ngpu_per_node: 4\n", 4, ""),
        (
            "platform: singularity\nsingularity_instance_type: 'Singularity.ND40_v2g2, ND40_v2g2'\ngpu_per_node: 4\n",
            2,
            "Singularity.ND40_v2g2, ND40_v2g2 has 2 GPUs",
        ),
        ("platform: singularity\nsingularity_instance_type: ND40_v2g1,ND40_v2g2\ngpu_per_node: 4\n", 4, ""),
        (
            (
                "platform: itp\naks_compute_global_dispatch: true\n"
                "aks_compute_global_dispatch_arg: {vm_size: [ND40_v2g4]}\ngpu_per_node: 8\n"
            ),
            4,
            "ND40_v2g4 has 4 GPUs",
        ),
        ("platform: slurm\ninstance_type: ND40_v2g1\ngpu_per_node: 4\n", 4, ""),
    ],
)
def test_the_gpus_of_an_instance_type_count_before_those_of_the_file(
    tmp_path: Path, text: str, gpus: int, told: str
) -> None:
    ProjectFiles(tmp_path).cluster(text)
    found = load_cluster(tmp_path, environ=NO_ENVIRON)
    assert found.gpu_per_node == gpus
    notes = [note for note in found.job_notes if "gpu_per_node" in note]
    place = "aux_data/aml/aml.yaml:" + str(text.partition("gpu_per_node")[0].count("\n") + 1)
    assert notes == ([f"{place}: gpu_per_node: has no effect: {told}"] if told else [])


def configured(root: Path, platform: str, changes: Mapping[str, Any]) -> Cluster:
    extra: Mapping[str, Any] = SING if platform == "singularity" else {}
    shared = {"slurm": {"shared_root": "/s"}, "kubernetes": {"namespace": "train"}}.get(platform)
    merged = dict(changes)
    if shared:
        merged[platform] = {**shared, **changes.get(platform, {})}
    return load(root, **{"platform": platform, **extra, **merged})[0]


def put(changes: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """``changes`` of a cluster file with one more; parts of mappings keep what is beside them."""
    if name.startswith("config_param.*."):
        entries = {
            "code_path": {**ENTRY, "path": "me/code.zip"},
            "data_folder": {**ENTRY, "path": "me/data", "mode": "download", name.rpartition(".")[2]: value},
            "output_folder": {**ENTRY, "path": "me/output"},
        }
        return {**changes, "config_param": entries}
    outer, _, inner = name.partition(".")
    known = {"image": "registry/image:1", "shm_size": "64g"} if outer == "docker" else {}
    if name == "docker.environment":
        known.pop("image")
    if name == "docker.username":
        known.update(address="acr.example", password="SENTINEL")
    return {**changes, outer: {**known, inner: value} if inner else value}


def handed_over(cluster: Cluster) -> str:
    """What a backend asks for, without the copy of the specification that travels with it."""
    code = CodeRef(CONTAINER, "me/code.zip.d/d1.zip", "d1")
    spec = describe(cluster, SubmitRequest(("true",)), RUN_ID, code)
    if cluster.platform in SERVICES:
        workspace = load_workspace(cluster, environ=NO_ENVIRON)
        request = build_request(cluster, workspace, spec)
        properties = {**request.job["properties"], "tags": {}}
        properties["command"] = properties["command"].partition(" -c ")[0]
        stores = [store.shown_body() for store in request.datastores]
        return json.dumps([properties, stores, request.environment], default=str, sort_keys=True)
    around = Surroundings(cluster, Path("/p/.blobsync"), NO_ENVIRON, ScriptedRunner())
    text: str = create_backend(around).plan(spec).text
    return text.replace(spec.to_json(), "")


@cache
def words_of(module: str) -> frozenset[str]:
    """Names of attributes and texts in the code of a module, dotted texts by their parts; docstrings do not count."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.update(node.value.strip(".").split("."))
    return frozenset(found)


def test_mount_options_of_philly_are_refused_where_the_service_mounts(tmp_path: Path) -> None:
    mount = {"blob_mount_point": "/blob", **ENTRY, "blob_fuse_options": ["-o", "attr_timeout=240"]}
    for platform in ("slurm", "kubernetes", "aml"):
        refusals = configured(tmp_path / platform, platform, {"blob_mount_info": [mount]}).job_refusals
        said = any(
            "blob_mount_info.0.blob_fuse_options: jobs on aml do not have it" in one.error.message for one in refusals
        )
        assert said == (platform == "aml")


@pytest.mark.parametrize(
    ("options", "is_read_only", "rest"),
    [
        (["-o", "ro"], True, ()),
        (["-o ro"], True, ()),
        (["-oro"], True, ()),
        (["--read-only"], True, ()),
        (["--read-only=true"], True, ()),
        (["--read-only=false"], False, ("--read-only=false",)),
        (["-o", "attr_timeout=240", "-o", "ro,allow_other"], True, ("-o attr_timeout=240", "-o allow_other")),
        (["-o", "rootmode=1", "--log-level=LOG_ro"], False, ("-o rootmode=1", "--log-level=LOG_ro")),
        (["-o"], False, ("-o ",)),
        ([], False, ()),
    ],
)
def test_read_only_is_found_among_the_words_for_blobfuse(
    options: list[str], is_read_only: bool, rest: tuple[str, ...]
) -> None:
    assert read_only_words(options) == (is_read_only, rest)


@pytest.mark.parametrize("platform", ["local", "slurm", "kubernetes", "aml", "itp", "singularity"])
def test_a_mount_that_philly_made_read_only_is_read_only_everywhere(tmp_path: Path, platform: str) -> None:
    entry = {**ENTRY, "path": "shared/data", "blob_fuse_options": ["-o", "ro"], "mode": "mount"}
    entries = {"code_path": {**ENTRY, "path": "me/code.zip"}, "data_folder": entry}
    cluster = configured(tmp_path, platform, {"config_param": entries})
    spec = describe(cluster, SubmitRequest(("true",)), RUN_ID, CodeRef(CONTAINER, "me/code.zip.d/d1.zip", "d1"))
    assert [(folder.mode, folder.fuse_options) for folder in spec.folders] == [("ro_mount", ())]
    assert rights_needed(spec)[CONTAINER] == READ_FOLDER
    if platform in SERVICES:
        inputs = build_request(cluster, load_workspace(cluster, environ=NO_ENVIRON), spec).job["properties"]["inputs"]
        assert inputs["data_folder"]["mode"] == "ReadOnlyMount"
    if platform == "kubernetes":
        assert "ReadOnlyMany" in handed_over(cluster) and "- -o ro" in handed_over(cluster)
