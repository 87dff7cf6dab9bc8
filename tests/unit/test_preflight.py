"""What submit refuses because of a cluster file, config check tells beforehand."""

from __future__ import annotations

import ast
import random
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.base.errors import BlobsyncError
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.board import Board
from blobsync.jobs.code_choice import CodeChoice, code_entry
from blobsync.jobs.describe import SubmitRequest
from blobsync.jobs.preflight import refusals
from blobsync.jobs.spec import CodeRef
from blobsync.jobs.submit import submit
from tests.fakes.aml_configs import ENTRY, PLAIN
from tests.source import ROOT
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

CODE = {"code_path": {**ENTRY, "path": "me/code.zip"}}
SLURM: Mapping[str, Any] = {"platform": "slurm", "config_param": {**CODE, "data_folder": {**ENTRY, "path": "d"}}}
LOCAL: Mapping[str, Any] = {"platform": "local", "config_param": {"data_folder": {**ENTRY, "path": "d"}}}
ITP = {**PLAIN, "platform": "itp"}
SING = {**PLAIN, "platform": "singularity", "singularity_instance_type": "Singularity.ND40_v2"}
KUBE = {**SLURM, "platform": "kubernetes", "kubernetes": {"image": "i", "namespace": "train"}}
NO_DELETE = {"azure_blob_config_file": "aux_data/configs/noright.yaml", "path": "d"}
DISPATCH = {"data_folder": {**ENTRY, "path": "d"}, "data/coco_folder": {**ENTRY, "path": "c"}}

# Text that packing does not make small.
HUGE = random.Random(1).randbytes(100_000).hex()

# Every way in which a cluster file alone makes submit refuse: its values, and words of the sentence.
REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no platform": ({"config_param": LOCAL["config_param"]}, "platform: is missing"),
    "ACT without compute_target": (
        {"aml_config": "aux_data/aml/config.json", "config_param": LOCAL["config_param"]},
        "platform: is missing",
    ),
    "a Philly file": (
        {"vc": "input", "blob_mount_point": "/blob", **ENTRY, "config_param": {"data_folder": "/blob/d"}},
        "platform: is missing",
    ),
    "Kubernetes without an image": ({**KUBE, "kubernetes": {"namespace": "train"}}, "a pod needs an image"),
    "Kubernetes with mounts in no namespace": ({**KUBE, "kubernetes": {"image": "i"}}, "finds the secret of a mount"),
    "Kubernetes with a wrong amount": ({**KUBE, "kubernetes": {"image": "i", "memory": "64 GB"}}, "is not an amount"),
    "outputs of jobs without a folder": ({**SLURM, "output": "per_job"}, "there is no output folder"),
    "no code": ({**SLURM, "config_param": {}}, "does not say where the code is"),
    "Slurm without shared_root": ({**SLURM, "ssh": "me@login"}, "mode link needs slurm.shared_root"),
    "a misspelt section": ({**SLURM, "ssh": "me@login", "slrum": {"shared_root": "/x"}}, "needs slurm.shared_root"),
    "a share on Slurm": (
        {
            **SLURM,
            "config_param": {
                **CODE,
                "a_folder": {**ENTRY, "path": "d", "storage_type": "file", "file_share": "s", "mode": "mount"},
            },
        },
        "cannot use an Azure file share",
    ),
    "a time that is none": ({**LOCAL, "timeout": "soon"}, "'soon' is not a duration"),
    "GPUs that do not fill nodes": ({**SLURM, "num_gpu": 6, "gpu_per_node": 4}, "do not fill whole nodes"),
    "no GPUs, and a gres of some": ({**SLURM, "num_gpu": 0, "slurm": {"gres": "gpu:4"}}, "-n 0 requests no GPU"),
    "several nodes here": ({**LOCAL, "nodes": 2}, "this machine is one node"),
    "an elastic job by mpirun": (
        {**SLURM, "min_nodes": 1, "max_nodes": 2, "slurm": {"launcher": "mpirun"}},
        "mpirun ends when a node is lost",
    ),
    "an array that is elastic": (
        {**SLURM, "min_nodes": 1, "max_nodes": 2, "slurm": {"array": "0-3"}},
        "an elastic job cannot be an array",
    ),
    "Azure ML with bounds": ({**PLAIN, "min_nodes": 1, "max_nodes": 2}, "a job on aml has a fixed number of nodes"),
    "bounds without a node": ({**LOCAL, "min_nodes": 0, "max_nodes": 2}, "an elastic job has at least one node"),
    "a directive with a line break": ({**SLURM, "slurm": {"qos": "a\nb"}}, "contains a line break"),
    "a variable with a blank": ({**SLURM, "slurm": {"export": ["A B"]}}, "is not a variable name"),
    "a mount that the SAS does not allow": (
        {**SLURM, "config_param": {**CODE, "a_folder": {**NO_DELETE, "mode": "mount"}}},
        "delete",
    ),
    "a workspace file that is not there": ({**PLAIN, "aml_config": "aux_data/aml/no.json"}, "does not exist"),
    "Azure ML with mode link": (
        {**PLAIN, "config_param": {**CODE, "d_folder": {**ENTRY, "path": "d", "mode": "link"}}},
        "Azure ML does not have",
    ),
    "Azure ML with a folder in another": ({**PLAIN, "config_param": {**CODE, **DISPATCH}}, "lies inside data_folder"),
    "Azure ML without an image": ({**PLAIN, "docker": {}}, "does not name an image"),
    "Azure ML with an environment that is none": ({**PLAIN, "docker": {"environment": "a b"}}, "is not an environment"),
    "Azure ML without compute": ({**PLAIN, "compute_target": None}, "does not name a compute"),
    "Azure ML with an identity that is none": ({**PLAIN, "identity": "me"}, "is not one of user, managed"),
    "Azure ML without a launcher": ({**PLAIN, "launcher": "none"}, "need launcher mpi or pytorch"),
    "Azure ML with too large an environment": ({**PLAIN, "env": {"A": HUGE}}, "more than a node can start"),
    "a tier that is none": ({**PLAIN, "queue_settings": {"job_tier": "Gold"}}, "'Gold' is not one of"),
    "ITP with a priority that is no number": ({**ITP, "priority": "High"}, "is not a number, which ITP requires"),
    "ITP with half a pair": ({**ITP, "min_nodes": 2}, "needs max_nodes beside it"),
    "ITP with uneven steps": ({**ITP, "elastic_num_gpu": [6]}, "do not fill whole nodes"),
    "Singularity without a machine": ({**SING, "singularity_instance_type": None}, "does not name a machine type"),
    "Singularity without a cluster": ({**SING, "compute_target": None}, "does not name a virtual cluster"),
}

# The functions that decide whether a job is taken, without asking anybody.
DECIDING = (
    *("jobs/describe.py", "jobs/code_choice.py", "jobs/access.py", "jobs/backends/slurm/script.py"),
    *("jobs/backends/__init__.py", "jobs/backends/aml/request.py", "jobs/backends/aml/platforms.py"),
    "jobs/backends/aml/storage.py",
)
NOT_THE_FILES_FAULT: Mapping[str, str] = {
    "demand_command": "the command is wrong",
    "_waiting": "only a job that waits for its user, which is asked for on the command line",
    "describe": "the command and its options are wrong",
    "create_backend": "the platform is checked when the file is read",
    "_published": "the container is asked",
    "_mint": "a job that moves from another cluster",
    "_secret_env": "a job that moves from another cluster",
    "for_folder": "a job that moves from another cluster",
    "_secret": "the file says so itself: an account file with auth and without what it names is a mistake",
    "secrets_path": "without code_path the job is refused for that",
    "_whole": "the type of the key is checked when the file is read",
}


def project(root: Path, values: Mapping[str, Any]) -> Cluster:
    files = ProjectFiles(root)
    files.account(
        "noright", "account_name: reader\ncontainer_name: cont\nsas_token: 'sv=1&sr=c&sp=rl&se=2099-01-01&sig=x'\n"
    )
    known = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
    files.write("aux_data/aml/config.json", yaml.safe_dump(known))
    files.cluster(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return load_cluster(root, environ=NO_ENVIRON)


def code_there(cluster: Cluster) -> CodeChoice:
    """As if the container held the code of the last init."""
    entry = code_entry(cluster)
    return CodeChoice(CodeRef(str(entry.account.container), f"{entry.path}.d/1.zip", "1") if entry else None)


def refused_by_submit(root: Path, cluster: Cluster) -> BlobsyncError:
    board = Board(root, {"USER": "me", "HOME": str(root)}, cluster)
    with pytest.raises(BlobsyncError) as caught:
        submit(board, cluster, SubmitRequest(("true",)), code_there)
    assert not board.history.recent()
    return caught.value


@pytest.mark.parametrize(("values", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_submit_refuses_is_told_beforehand(tmp_path: Path, values: Mapping[str, Any], says: str) -> None:
    cluster = project(tmp_path, values)
    error = refused_by_submit(tmp_path, cluster)
    assert says in error.message
    told = refusals(cluster, NO_ENVIRON)
    # Two runs differ in their ids, and so in a length.
    assert re.sub(r"\d+", "N", error.message) in [re.sub(r"\d+", "N", each.message) for each in told]
    assert error.hint in [each.hint for each in told]


@pytest.mark.parametrize(
    "values",
    [LOCAL, SLURM, KUBE, PLAIN, ITP, SING],
    ids=["local", "slurm", "kubernetes", "aml", "itp", "singularity"],
)
def test_a_sound_file_is_not_refused(tmp_path: Path, values: Mapping[str, Any]) -> None:
    assert refusals(project(tmp_path, values), NO_ENVIRON) == ()


def test_nothing_is_written_for_it(tmp_path: Path) -> None:
    cluster = project(tmp_path, PLAIN)
    before = sorted(tmp_path.rglob("*"))
    refusals(cluster, NO_ENVIRON)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_refusal_is_missing_above(tmp_path: Path) -> None:
    """Every function that can refuse has refused one of the files above, or says why none can make it."""
    refusing = set()
    for name in DECIDING:
        tree = ast.parse((ROOT / "blobsync" / name).read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(function)):
                refusing.add(function.name)
    seen = set()
    for number, (values, _) in enumerate(REFUSED.values()):
        cluster = project(tmp_path / str(number), values)
        for error in refusals(cluster, NO_ENVIRON):
            raised = traceback.extract_tb(error.__traceback__)[-1]
            seen |= {raised.name} if raised.filename.endswith(DECIDING) else set()
    assert refusing - seen - {"choose_code"} == set(NOT_THE_FILES_FAULT)
