"""Cluster files for Azure ML, and the requests made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blobsync.backends.aml.request import AmlRequest, build_request
from blobsync.config.loader import load_cluster, load_workspace
from blobsync.config.model import Cluster, WorkspaceConfig
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef, JobSpec
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

RUN_ID = "me_1795248518_272a2739"
BASE = "/subscriptions/sub0/resourceGroups/rg0/providers/Microsoft.MachineLearningServices/workspaces/ws-one"
CONTAINER = "https://acct.blob.core.windows.net/cont"
ENTRY = {"azure_blob_config_file": "aux_data/configs/acct.yaml"}
PLAIN: Mapping[str, Any] = {
    "platform": "aml",
    "compute_target": "NC24RSV3",
    "gpu_per_node": 4,
    "experiment_name": "trials",
    "docker": {"image": "registry/image:1", "shm_size": "64g"},
    "config_param": {
        "code_path": {**ENTRY, "path": "me/code.zip"},
        "data_folder": {**ENTRY, "path": "me/data", "mode": "download"},
        "output_folder": {**ENTRY, "path": "me/output"},
    },
    "env": {"NCCL_DEBUG": "INFO"},
}


_OF_AML = ("compute_target", "experiment_name")
_OTHERS_LACK = dict.fromkeys(("local", "slurm", "kubernetes"), _OF_AML)


@dataclass(frozen=True)
class Asked:
    """A request, and the values of which it was made."""

    cluster: Cluster
    workspace: WorkspaceConfig
    spec: JobSpec
    request: AmlRequest

    @property
    def job(self) -> Mapping[str, Any]:
        properties: Mapping[str, Any] = self.request.job["properties"]
        return properties


def load(root: Path, **changes: Any) -> tuple[Cluster, WorkspaceConfig]:
    """A project whose only cluster is :data:`PLAIN` with ``changes``; None removes a key.

    Keys that its platform does not support are left out.
    """
    files = ProjectFiles(root)
    files.account("other", "account_name: other\ncontainer_name: box\nsas_token: 'sv=1&sp=rwdl&sig=SENTINEL'\n")
    files.account("identity", "account_name: entra\ncontainer_name: box\n")
    known = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
    files.write("aux_data/aml/config.json", yaml.safe_dump(known))
    lacking = _OTHERS_LACK.get(str(changes.get("platform")), ())
    plain = {key: value for key, value in PLAIN.items() if key not in lacking}
    own = changes.get("kubernetes", {})
    plain["docker"] = {key: value for key, value in PLAIN["docker"].items() if key not in own}
    values = {key: value for key, value in {**plain, **changes}.items() if value not in (None, {})}
    files.cluster(yaml.safe_dump(values))
    cluster = load_cluster(files.root, environ=NO_ENVIRON)
    return cluster, load_workspace(cluster, environ=NO_ENVIRON)


def ask(root: Path, request: SubmitRequest | None = None, code: CodeRef | None = None, **changes: Any) -> Asked:
    """The request of one submission."""
    cluster, workspace = load(root, **changes)
    code = code or CodeRef(
        str(cluster.code.account.container) if cluster.code else CONTAINER, "me/code.zip.d/d1.zip", "d1"
    )
    spec = describe(cluster, request or SubmitRequest(("python", "train.py")), RUN_ID, code)
    return Asked(cluster, workspace, spec, build_request(cluster, workspace, spec))


# Name -> changes of PLAIN, and the number of GPUs.
EIGHT: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "one GPU": ({}, 1),
    "nodes with MPI": ({}, 8),
    "single process": ({"multi_process": False, "timeout": "5h"}, 4),
    "ITP, preemptible": ({"platform": "itp", "compute_target": "itp-one", "preemption_allowed": True}, 8),
    "ITP, elastic": (
        {"aks_compute": True, "platform": None, "compute_target": "itp-one", "elastic_num_gpu": [4, 8, 16]},
        16,
    ),
    "Singularity": (
        {
            "platform": "singularity",
            "compute_target": "vc-one",
            "gpu_per_node": 8,
            "singularity_instance_type": "Singularity.ND40_v2",
            "singularity_sla_tier": "Premium",
        },
        16,
    ),
    "file share": (
        {
            "config_param": {
                "code_path": {**ENTRY, "path": "me/code.zip"},
                "data_folder": {**ENTRY, "path": "me/data", "storage_type": "file", "file_share": "files"},
            }
        },
        4,
    ),
    "identity only": (
        {
            "config_param": {
                "code_path": {"azure_blob_config_file": "aux_data/configs/identity.yaml", "path": "me/code.zip"},
                "data_folder": {"azure_blob_config_file": "aux_data/configs/identity.yaml", "path": "me/data"},
            }
        },
        4,
    ),
}
