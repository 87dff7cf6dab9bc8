"""The job that carries a spread transfer: an elastic job whose command is blobsync's own worker.

Its nodes come and go as those of any elastic job; node 0 stays. On Azure ML their number is fixed. The specification
names ends and the place, no secret: SAS tokens travel as those of every job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, ConfigError, UsageError
from blobsync.base.formatting import count_text
from blobsync.base.locations import MountedLocation
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobFilter, JobRecord
from blobsync.jobs.state_notes import StateNotes, state_with_reason
from blobsync.jobs.states import cancel, refresh
from blobsync.jobs.submit import hand_over, new_run_id
from blobsync.jobspec.describe import SubmitRequest, describe, read_seconds
from blobsync.jobspec.node_archive import node_archive
from blobsync.jobspec.spec import SERVICES, CodeRef, JobSpec, NodeArchiveRef, State
from blobsync.jobspec.transfer_key import run_key
from blobsync.plan.transfer_plan import SpreadPlan
from blobsync.spread.sealed_store import orders_seal
from blobsync.spread.shared_store import SharedStore
from blobsync.store.sas import JOB_SECONDS

# Seconds: how long workers have to end, and the time between two queries of their job.
_END_SECONDS, _LOOK_SECONDS = 60.0, 0.5
# Its name at the place.
_ARCHIVE = "node/archive"
# How many jobs that have not ended are looked through.
_MOST_JOBS = 1000


@dataclass(frozen=True, slots=True)
class SpreadRequest:
    """What the job is for. ``words`` are the command as people see it. ``container`` is the URL of the container that
    has the place (empty: it is a folder), ``path`` the prefix there, or the folder; ``claims`` is where the parent has
    its claim. ``ends`` are those between which workers may move, ``rights`` the letters by container URL, ``owner`` the
    UUID of the parent's claim, ``planned`` in how many files the plan of a detached transfer is. ``run`` names the
    transfer, and with it the key that its workers get. ``compare_content``: they read what nothing else compares."""

    words: tuple[str, ...]
    plan: SpreadPlan
    container: str
    path: str
    ends: Sequence[Mapping[str, Any]]
    rights: Mapping[str, str]
    owner: str
    cap_mbps: float | None = None
    claims: str = ""
    run: str = ""
    planned: int = 0
    compare_content: bool = False


def spread_spec(context: JobContext, cluster: Cluster, request: SpreadRequest, place: SharedStore) -> JobSpec:
    """The specification. Raises ``ConfigError`` and ``UsageError`` for what the cluster cannot run."""
    plan = request.plan
    elastic = "" if cluster.platform in SERVICES else f"1:{plan.nodes}"
    asked = SubmitRequest(request.words, 0, nodes=plan.nodes, elastic=elastic)
    # Limits of the file for the jobs of users' programs do not apply to a transfer.
    spec = describe(replace(cluster, job_refusals=()), asked, new_run_id(context.environ), None)
    if plan.detach:
        _demand_limit(cluster, spec)
    each = request.cap_mbps / plan.workers if request.cap_mbps else None
    orders = {
        "container": request.container,
        "path": request.path,
        "workers": plan.workers_per_node,
        "nodes": plan.nodes,
        "cap_mbps": each,
        "compare_content": request.compare_content,
        "detach": plan.detach,
        "range_bytes": plan.range_bytes,
        "ends": list(request.ends),
        "rights": dict(request.rights),
        "owner": request.owner,
        "claims": request.claims,
        "run": request.run,
        "planned": request.planned,
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
    )


def _demand_limit(cluster: Cluster, spec: JobSpec) -> None:
    """Raise ``UsageError`` unless the job ends before its SAS expire: a detached transfer cannot renew them."""
    if cluster.platform == "local":
        return
    seconds, other = read_seconds(cluster, "timeout"), cluster.platform == "slurm" and cluster.text("slurm.time")
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
    if request.container:
        return NodeArchiveRef(request.container, f"{request.path}/{_ARCHIVE}", archive.digest, len(archive.body))
    place.write(_ARCHIVE, archive.body)
    return NodeArchiveRef(
        str(MountedLocation(Path(request.path, _ARCHIVE))), _ARCHIVE, archive.digest, len(archive.body)
    )


class JobWorkforce:
    """The workers of a transfer, as a job; see :class:`blobsync.spread.spread_engine.Workforce`."""

    def __init__(
        self, context: JobContext, clusters: tuple[Cluster, Cluster | None], request: SpreadRequest, place: SharedStore
    ) -> None:
        """``clusters``: the one whose nodes work, and the other one of a copy."""
        self._context = context
        self._cluster, self._other = clusters
        self._request = request
        self._place = place
        self.record: JobRecord | None = None
        self._notes = StateNotes(context.note)

    def start(self) -> None:
        """The job that works at the place already, or a new one."""
        if self._known() is None:
            self.submit()

    def submit(self) -> JobRecord:
        """Submit a new job."""
        spec = spread_spec(self._context, self._cluster, self._request, self._place)
        submitted = hand_over(self._context, self._cluster, spec, origin=self._other)
        self.record = submitted.record
        for warning in submitted.warnings:
            self._context.note(warning)
        self._context.note(
            f"job {self.record.run_id} on {self._cluster.name}: {count_text(self._request.plan.nodes, 'node')}"
        )
        return self.record

    def find(self) -> JobRecord | None:
        """The job of this project for this place that has not ended. Files at the place are not read: others may write
        there."""
        alive = JobFilter(states=tuple(state for state in State if not state.is_final))
        here = (self._request.path, self._request.claims)
        for known in self._context.history.page(alive, limit=_MOST_JOBS):
            orders = known.spec.spread or {}
            if orders.get("container") == self._request.container and orders.get("path") in here:
                fresh = refresh(self._context, [known])[0]
                if not fresh.info.state.is_final:
                    return fresh
        return None

    def _known(self) -> JobRecord | None:
        found = self.find()
        if found is not None and found.spec.options.get("spread", {}).get("detach"):
            return None
        self.record = found
        return found

    def ended(self) -> str | None:
        """How the job ended, None if it has not; notes why it does not run."""
        if self.record is None:
            return "it was never there"
        found = refresh(self._context, [self.record])
        self.record = found[0]
        self._notes.update(self.record, found.problems)
        info = self.record.info
        return f"{state_with_reason(info)}; see blobsync logs {self.record.run_id}" if info.state.is_final else None

    def wait(self) -> None:
        """Wait until the workers end by themselves, for a minute at most; then cancel the job. One that is still queued
        is cancelled at once."""
        until = time.monotonic() + _END_SECONDS
        while self.record is not None and self.ended() is None:
            if self.record.info.state is State.QUEUED or time.monotonic() > until:
                self.stop()
                return
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Cancel the job; notes why it cannot be cancelled."""
        if self.record is None:
            return
        try:
            cancel(self._context, self.record)
        except BlobsyncError as error:
            job = self.record.run_id
            self._context.note(f"the job {job} was not stopped: {error.message}; stop it with blobsync abort {job}")


def demand_shared(cluster: Cluster) -> None:
    """Raise ``ConfigError`` where nodes cannot see this machine's files."""
    if cluster.platform == "slurm" and cluster.text("ssh"):
        raise ConfigError(
            f"--nodes: {cluster.text('ssh')} does not see this machine's files",
            file=cluster.file,
            key="ssh",
            hint="run the command on the login node, in a project on the shared file system; -f copies work from here",
        )
