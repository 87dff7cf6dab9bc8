"""The additional fields of jobs on ITP and Singularity: ``resources.properties``. Pure.

The field names are those of Microsoft's azure-ai-ml (MIT), which serialises them without a published schema. Not
verified with the services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blobsync.base.plain_json import merged
from blobsync.config.model import Cluster, WorkspaceConfig
from blobsync.jobspec.spec import JobSpec

# As in ACT: eight hours between two checks whether a job could grow.
_SCALE_MINUTES = 480
_ITP_PRIORITY = 200
_SINGULARITY_SCALE_SECONDS = 60
_MANAGED_IMAGES = "amlt-sing/"
TIERS = ("Null", "Spot", "Basic", "Standard", "Premium")


def resource_properties(cluster: Cluster, spec: JobSpec, workspace: WorkspaceConfig) -> dict[str, Any]:
    """The free-form part of a job's resources; empty on plain Azure ML."""
    if cluster.platform == "itp":
        return _itp(cluster, spec)
    if cluster.platform == "singularity":
        return {"AISuperComputer": _singularity(cluster, spec, workspace)}
    return {}


def virtual_cluster_id(cluster: Cluster, workspace: WorkspaceConfig) -> str:
    """The ARM id of a Singularity virtual cluster; ``compute_target`` may be the whole id."""
    target = cluster.compute_target or ""
    if target.startswith("/"):
        return target
    if not target:
        raise cluster.error(("compute_target",), "does not name a virtual cluster")
    subscription = cluster.text("singularity.subscription_id") or workspace.subscription_id
    group = cluster.text("singularity.resource_group") or workspace.resource_group
    provider = "providers/Microsoft.MachineLearningServices"
    return f"/subscriptions/{subscription}/resourceGroups/{group}/{provider}/virtualclusters/{target}"


def extra_environment(cluster: Cluster, spec: JobSpec) -> dict[str, str]:
    """Environment variables that the platform itself reads."""
    if cluster.platform != "singularity":
        return {}
    env = {"WORLD_SIZE": str(spec.world_size)}
    if spec.image and _MANAGED_IMAGES not in spec.image:
        env["SINGULARITY_CUSTOM_IMAGE"] = "true"
    identity = cluster.text("identity")
    if identity and identity.startswith("/subscriptions/"):
        env["_AZUREML_SINGULARITY_JOB_UAI"] = identity
    return env


def queue_settings(cluster: Cluster, spec: JobSpec) -> dict[str, Any] | None:
    """The tier of a serverless job; elsewhere the compute's, unless the cluster file has one."""
    tier = cluster.text("queue_settings.job_tier")
    if tier is None and cluster.platform == "aml" and not cluster.compute_target:
        tier = "Spot" if spec.preemptible else cluster.text("sla_tier")
    if tier is None:
        return None
    if tier.capitalize() not in TIERS:
        raise cluster.error(("queue_settings", "job_tier"), f"{tier!r} is not one of {', '.join(TIERS)}")
    return {"jobTier": tier.capitalize()}


def _itp(cluster: Cluster, spec: JobSpec) -> dict[str, Any]:
    priority: dict[str, Any] = {
        "job_priority": _itp_priority(cluster),
        "is_preemptible": spec.preemptible,
    }
    counts = node_counts(cluster, spec)
    if counts:
        priority.update(node_count_set=counts, scale_interval=_SCALE_MINUTES)
    block: dict[str, Any] = {
        "priority_configuration": priority,
        "resource_configuration": {"gpu_count": spec.gpus_per_node},
    }
    key = cluster.text("ssh_public_key")
    if key:
        block["interactive_configuration"] = {"is_ssh_enabled": True, "ssh_public_key": key}
    properties: dict[str, Any] = {"itp": merged(block, cluster.mapping("itp"))}
    if cluster.flag("aks_compute_global_dispatch"):
        properties["target_selector"] = _selector(cluster)
    return properties


def _itp_priority(cluster: Cluster) -> int:
    given = cluster.text("priority")
    if given and not given.isdecimal():
        raise cluster.error(("priority",), f"{given!r} is not a number, which ITP requires", hint="priority: 200")
    return int(given) if given else _ITP_PRIORITY


def _selector(cluster: Cluster) -> dict[str, Any]:
    at = "aks_compute_global_dispatch_arg"
    selector: dict[str, Any] = {"compute_type": "AmlK8s"}
    for ours, theirs in (("vm_size", "instance_types"), ("region", "regions")):
        found = cluster.texts(f"{at}.{ours}")
        if found:
            selector[theirs] = list(found)
    for ours, theirs in (("my_resource_only", "my_resource_only"), ("low_priority_vm_tolerant", "allow_spot_vm")):
        if cluster.value(f"{at}.{ours}") is not None:
            selector[theirs] = cluster.flag(f"{at}.{ours}")
    return selector


def node_counts(cluster: Cluster, spec: JobSpec) -> list[int]:
    """The allowed numbers of nodes of an elastic job, from ACT's ``elastic_num_gpu`` or from our bounds."""
    given = cluster.value("elastic_num_gpu")
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        each = max(1, spec.gpus_per_node)
        uneven = [number for number in given if number > each and number % each]
        if uneven:
            raise cluster.error(("elastic_num_gpu",), f"{uneven[0]:,} GPUs do not fill whole nodes of {each}")
        return sorted({max(1, number // each) for number in given})
    if spec.min_nodes and spec.max_nodes:
        return list(range(spec.min_nodes, spec.max_nodes + 1))
    return []


def _singularity(cluster: Cluster, spec: JobSpec, workspace: WorkspaceConfig) -> dict[str, Any]:
    instance = cluster.text("singularity_instance_type") or cluster.text("instance_type")
    if not instance:
        raise cluster.error(
            ("singularity_instance_type",),
            "does not name a machine type",
            hint="singularity_instance_type: Singularity.ND40_v2",
        )
    block: dict[str, Any] = {
        "instanceTypes": [word.strip() for word in instance.split(",")],
        "instanceCount": spec.nodes,
        "slaTier": cluster.text("singularity_sla_tier") or cluster.text("sla_tier") or "Premium",
        "virtualClusterArmId": virtual_cluster_id(cluster, workspace),
        "interactive": bool(cluster.text("ssh_public_key")),
        "imageVersion": (spec.image or "").partition(_MANAGED_IMAGES)[2],
        "enableAzmlInt": False,
    }
    if cluster.text("priority"):
        block["priority"] = cluster.text("priority")
    if cluster.text("ssh_public_key"):
        block["sshPublicKeys"] = [cluster.text("ssh_public_key")]
    counts = node_counts(cluster, spec)
    if counts:
        block["scalePolicy"] = {
            "autoScaleIntervalInSec": _SINGULARITY_SCALE_SECONDS,
            "minInstanceTypeCount": counts[0],
            "maxInstanceTypeCount": counts[-1],
        }
    own = {
        key: value
        for key, value in cluster.mapping("singularity").items()
        if key not in ("subscription_id", "resource_group")
    }
    return merged(block, own)
