"""What a cluster has, and who uses it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blobsync.backends.kubernetes.replies import KubernetesJob, Pod, job_state
from blobsync.backends.protocol import ClusterSummary, Holder
from blobsync.jobspec.spec import State


def read_cluster(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Pod], jobs: Sequence[KubernetesJob], gpu_resource: str
) -> ClusterSummary:
    """``pods`` are all that may be seen; ``jobs`` are ours."""
    usable = [node for node in nodes if _is_ready(node)]
    names = {str(_at(node, "metadata", "name")) for node in usable}
    here = [pod for pod in pods if pod.node in names and not pod.is_over]
    total = sum(_whole(_at(node, "status", "allocatable", gpu_resource)) for node in usable)
    states = [job_state(job, [pod for pod in pods if pod.job == job.name]) for job in jobs]
    unusable = len(nodes) - len(usable)
    return ClusterSummary(
        nodes_total=len(nodes),
        nodes_free=len(names - {pod.node for pod in here if pod.job}),
        gpus_total=total,
        gpus_free=max(0, total - sum(pod.gpus for pod in here)),
        jobs_running=sum(state in (State.RUNNING, State.PREPARING) for state in states),
        jobs_queued=sum(state is State.QUEUED for state in states),
        notes=(f"{unusable} nodes are not ready, or take no pods",) if unusable else (),
    )


def holders_of(jobs: Sequence[KubernetesJob], pods: Sequence[Pod]) -> tuple[Holder, ...]:
    """Jobs of blobsync that have, or wait for, nodes; the user is the one in a job's id."""
    found = []
    for job in jobs:
        own = [pod for pod in pods if pod.job == job.name and not pod.is_over]
        state = job_state(job, [pod for pod in pods if pod.job == job.name])
        if not state.is_final:
            user = job.run_id.partition("_")[0]
            found.append(Holder(user, job.name, job.run_id, state, sum(pod.gpus for pod in own), job.nodes))
    return tuple(found)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = _at(node, "status", "conditions")
    ready = [one for one in conditions if isinstance(one, Mapping) and one.get("type") == "Ready"] if conditions else []
    return not _at(node, "spec", "unschedulable") and all(one.get("status") == "True" for one in ready)


def _at(body: Mapping[str, Any], *path: str) -> Any:
    here: Any = body
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0
