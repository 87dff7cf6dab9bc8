"""The job that carries a spread transfer: an array of tasks whose command is blobsync's own program.

The specification names ends and the place of the documents, no secret: SAS tokens travel as those of every job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import ConfigError, SpreadBusyError, UsageError
from blobsync.base.locations import MountedLocation
from blobsync.base.records import dataclass
from blobsync.config.model import Cluster
from blobsync.jobs.array_job import ArrayJob, is_over
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobFilter, JobRecord
from blobsync.jobs.states import refresh
from blobsync.jobs.submit import new_run_id
from blobsync.jobspec.make_spec import SubmitRequest, describe, time_limit
from blobsync.jobspec.node_archive import node_archive
from blobsync.jobspec.node_secrets import run_key
from blobsync.jobspec.spec import SERVICES, CodeRef, JobSpec, NodeArchiveRef, State, TaskArray
from blobsync.plan.spreading import SpreadPlan
from blobsync.spread.shared_store import SharedStore, orders_seal
from blobsync.store.sas import JOB_SECONDS

# Its name at the place.
_ARCHIVE = "node/archive"
# How many jobs that have not ended are looked through.
_MOST_JOBS = 1000


@dataclass(frozen=True, slots=True)
class SpreadRequest:
    """What the job is for. ``words`` are the command as people see it. ``container`` is the URL of the container that
    has the documents (empty: they are in a folder), ``base`` the prefix or folder of all runs to this destination, and
    ``run`` this one's name, and with it the key that its tasks get. ``ends`` are those between which tasks may move,
    ``rights`` the letters by container URL, ``count`` the number of tasks. ``state`` is the project's state folder, if
    nodes see it, ``claim`` the folder of the claim. ``compare_content``: tasks read what nothing else compares."""

    words: tuple[str, ...]
    plan: SpreadPlan
    container: str
    base: str
    ends: Sequence[Mapping[str, Any]]
    rights: Mapping[str, str]
    run: str = ""
    count: int = 1
    cap_mbps: float | None = None
    state: str = ""
    claim: str = ""
    compare_content: bool = False


def spread_spec(context: JobContext, cluster: Cluster, request: SpreadRequest, place: SharedStore) -> JobSpec:
    """The specification. Raises ``ConfigError`` and ``UsageError`` for what the cluster cannot run."""
    plan, parallel = request.plan, min(request.plan.nodes, request.count)
    is_service = cluster.platform in SERVICES
    asked = SubmitRequest(request.words, 0, nodes=parallel if is_service else 1)
    # Limits and sizes of the file for the jobs of users' programs do not apply to a transfer.
    plain = cluster._replace(job_refusals=(), values={k: v for k, v in cluster.values.items() if k not in _SIZES})
    spec = describe(plain, asked, new_run_id(context.environ), None)
    if plan.detach:
        _demand_limit(cluster, spec)
    orders = {
        "container": request.container,
        "base": request.base,
        "place": f"{request.base}/runs/{request.run}",
        "claim": request.claim,
        "run": request.run,
        "count": request.count,
        "workers": plan.workers_per_node,
        "cap_mbps": request.cap_mbps / parallel if request.cap_mbps else None,
        "compare_content": request.compare_content,
        "detach": plan.detach,
        "ends": list(request.ends),
        "rights": dict(request.rights),
        "state": request.state,
    }
    orders["seal"] = orders_seal(run_key(context.environ, request.run), orders)
    return replace(
        spec,
        env={},
        secret_env=(),
        folders=(),
        logs=None,
        setup=(),
        options={"spread": orders},
        node_archive=_archive(context, cluster, request, place),
        tasks=None if is_service else TaskArray(request.count, parallel, plan.workers_per_node),
    )


# Keys of a cluster file for the size of programs' jobs.
_SIZES = ("nodes", "min_nodes", "max_nodes", "num_gpu", "elastic_num_gpu", "multi_process")


def _demand_limit(cluster: Cluster, spec: JobSpec) -> None:
    """Raise ``UsageError`` unless the job ends before its SAS expire: a detached transfer cannot renew them."""
    if cluster.platform == "local":
        return
    seconds, other = time_limit(cluster), cluster.platform == "slurm" and cluster.text("slurm.time")
    if seconds is None or other:
        instead = ", in place of slurm.time," if other else ""
        raise UsageError(
            f"--detach: {cluster.name} sets no time limit, so the job may run longer than its SAS last",
            hint=f"write timeout: 2d in the cluster file{instead} or pass -p '{{timeout: 2d}}'",
        )
    if seconds > JOB_SECONDS:
        raise UsageError(
            f"--detach: a SAS lives at most {JOB_SECONDS // 3600} hours, and the job may run for {seconds // 3600}",
            hint="-p '{timeout: 6d}'",
        )


def _archive(
    context: JobContext, cluster: Cluster, request: SpreadRequest, place: SharedStore
) -> NodeArchiveRef | None:
    """Where the job's nodes find blobsync; this machine's have it."""
    if cluster.platform == "local":
        return None
    archive = node_archive(context.environ)
    if cluster.platform in SERVICES:
        # The context brings it, as the code of other jobs. Without a code_path the request is refused, which says so.
        code = cluster.code
        return archive.beside(CodeRef(str(code.account.container), code.path, "")) if code else None
    path = f"{request.base}/runs/{request.run}/{_ARCHIVE}"
    if request.container:
        return NodeArchiveRef(request.container, path, archive.digest, len(archive.body))
    place.write(_ARCHIVE, archive.body)
    return NodeArchiveRef(str(MountedLocation(Path(path))), _ARCHIVE, archive.digest, len(archive.body))


def unended_jobs(context: JobContext, container: str, base: str) -> list[JobRecord]:
    """The jobs of this project that move files to this place and have not ended, or whose end is not known. Documents
    at the place are not read: others may write there."""
    alive = JobFilter(states=tuple(state for state in State if not state.is_final))
    found = []
    for known in context.history.page(alive, limit=_MOST_JOBS):
        orders = known.spec.spread or {}
        here = (orders.get("base"), orders.get("path"), orders.get("claims"))
        if orders.get("container") == container and base in here:
            found.append(known)
    return [record for record in refresh(context, found).records if not is_over(record)]


def demand_other_ended(context: JobContext, container: str, base: str) -> None:
    """Stop the jobs that earlier commands of this project left at the place. Raises ``SpreadBusyError`` for a detached
    one, one of an older blobsync, and one of which it is not known that all of its tasks have ended."""
    for record in unended_jobs(context, container, base):
        orders = record.spec.spread or {}
        if not orders.get("count") or orders.get("detach"):
            older = "" if orders.get("count") else "; an older blobsync submitted it"
            raise SpreadBusyError(
                f"the job {record.run_id} moves files to this folder{older}",
                hint=f"blobsync q {record.run_id} shows it, blobsync abort {record.run_id} stops it",
            )
        context.note(f"an earlier command left the job {record.run_id}: stopping it")
        if not ArrayJob(context, record).stop():
            raise SpreadBusyError(
                f"the job {record.run_id} of an earlier command moves files to this folder, and it is not known to "
                "have ended",
                hint=f"blobsync q {record.run_id} shows it; run the same command again when it has ended",
            )


def demand_shared(cluster: Cluster) -> None:
    """Raise ``ConfigError`` where nodes cannot see this machine's files."""
    if cluster.platform == "slurm" and cluster.text("ssh"):
        raise ConfigError(
            f"--nodes: {cluster.text('ssh')} does not see this machine's files",
            file=cluster.file,
            key="ssh",
            hint="run the command on the login node, in a project on the shared file system; -f copies work from here",
        )
