"""What Azure ML and its run history answer, as values. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from blobsync.jobs.backends.base import ClusterSummary, Holder
from blobsync.jobs.spec import JobSpec, RunInfo, State

# The values of JobStatus in the specification; a word of a newer service is UNKNOWN.
STATES: Mapping[str, State] = {
    "NotStarted": State.QUEUED,
    "Queued": State.QUEUED,
    "Paused": State.QUEUED,
    "Starting": State.PREPARING,
    "Provisioning": State.PREPARING,
    "Preparing": State.PREPARING,
    "Running": State.RUNNING,
    "Finalizing": State.RUNNING,
    "NotResponding": State.RUNNING,
    "CancelRequested": State.CANCELING,
    "Completed": State.COMPLETED,
    "Failed": State.FAILED,
    "Canceled": State.CANCELED,
    "Unknown": State.UNKNOWN,
}

SPEC_TAG = "blobsync.spec"
# A tag's value may be cut by the service; longer texts are spread over several tags.
TAG_CHARS = 250

# What the platform on ITP says in a tag beside the status; the spelling of the tag's name varies.
_ITP_TAG = re.compile(r"amlk8s[ _-]?status", re.IGNORECASE)
_EXIT_CODE = re.compile(r"(?:exit(?:ed)?|status)[ a-z]*code:? *(\d+)", re.IGNORECASE)
_USER_LOG = re.compile(r"(?:user_logs|system_logs|azureml-logs|logs)/[^\0]+")


def read_state(status: str, tags: Mapping[str, Any] | None) -> State:
    """A job's state, with ACT's two corrections for ITP.

    There a job is Queued for the service while the platform runs it already, and Canceled when the platform
    killed it or found it failed.
    """
    state = STATES.get(status, State.UNKNOWN)
    told = next((str(value).lower() for name, value in (tags or {}).items() if _ITP_TAG.search(name)), "")
    told = told.rpartition("=")[2].strip()
    if state is State.QUEUED and told == "running":
        return State.RUNNING
    if state is State.CANCELED and told in ("killing", "failed"):
        return State.FAILED
    return state


def read_job(body: Mapping[str, Any], details: Mapping[str, Any] | None = None) -> RunInfo:
    """A job resource, with what the run history adds: times, the error, its exit code."""
    properties = body.get("properties") or {}
    details = details or {}
    status = str(properties.get("status") or "Unknown")
    state = read_state(status, properties.get("tags"))
    reason = _reason(details.get("error"))
    if status == "NotResponding" and not reason:
        reason = "the node does not answer (NotResponding)"
    return RunInfo(
        str(body.get("name") or ""),
        state,
        exit_code=_exit_code(state, reason),
        reason=reason,
        started=read_time(details.get("startTimeUtc")),
        ended=read_time(details.get("endTimeUtc")) if state.is_final else None,
    )


def studio_url(body: Mapping[str, Any]) -> str:
    """The page of the job, as the service names it; empty where it does not."""
    services = (body.get("properties") or {}).get("services") or {}
    found = services.get("Studio") or {}
    return str(found.get("endpoint") or "")


def read_time(text: Any) -> float | None:
    """ISO 8601 as the run history writes it, with up to seven digits of a second."""
    if not text:
        return None
    plain = re.sub(r"\.\d+", "", str(text)).replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(plain if re.search(r"[+-]\d\d:\d\d$", plain) else f"{plain}+00:00")
    except ValueError:
        return None
    return moment.timestamp()


def spec_tags(spec: JobSpec) -> dict[str, str]:
    """The tags by which a job is known as ours and can be submitted again from anywhere."""
    tags = {"blobsync": "1", "blobsync.cluster": spec.cluster}
    if spec.code and spec.code.digest:
        tags["blobsync.code_sha"] = spec.code.digest
    text = spec.to_json()
    for number, start in enumerate(range(0, len(text), TAG_CHARS)):
        tags[f"{SPEC_TAG}.{number:02}"] = text[start : start + TAG_CHARS]
    return {**tags, **spec.tags}


def read_spec(body: Mapping[str, Any]) -> JobSpec | None:
    """The specification in a job's tags; None where it is not one of ours, or of another version."""
    tags = (body.get("properties") or {}).get("tags") or {}
    parts = [str(tags[name]) for name in sorted(tags) if name.startswith(SPEC_TAG)]
    try:
        return JobSpec.from_json("".join(parts)) if parts else None
    except (json.JSONDecodeError, ValueError, KeyError, TypeError):
        return None


def log_names(files: Mapping[str, str]) -> Iterator[str]:
    """The logs worth keeping: both families of names, none that would leave the folder they are kept in."""
    for name in sorted(files):
        if _USER_LOG.fullmatch(name) and ".." not in name.split("/") and "\\" not in name:
            yield name


def read_compute(body: Mapping[str, Any], gpus_per_node: int) -> ClusterSummary:
    """An AmlCompute cluster's nodes; a Kubernetes one does not tell."""
    outer = body.get("properties") or {}
    inner = outer.get("properties") or {}
    notes = [f"{outer.get('computeType') or 'compute'} {body.get('name') or ''}".strip()]
    if inner.get("vmSize"):
        notes.append(f"{inner['vmSize']}, {inner.get('vmPriority') or 'Dedicated'}")
    total = (inner.get("scaleSettings") or {}).get("maxNodeCount")
    counts = inner.get("nodeStateCounts") or {}
    if total is None:
        notes.append("the service does not tell how many nodes it has")
        return ClusterSummary(notes=tuple(notes))
    busy = sum(int(counts.get(f"{word}NodeCount") or 0) for word in ("running", "preparing", "leaving", "preempted"))
    unusable = int(counts.get("unusableNodeCount") or 0)
    if unusable:
        notes.append(f"{unusable} node{'' if unusable == 1 else 's'} cannot be used")
    free = max(0, int(total) - busy - unusable)
    return ClusterSummary(int(total), free, int(total) * gpus_per_node, free * gpus_per_node, notes=tuple(notes))


def read_quota(body: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each quota of a Singularity virtual cluster."""
    quotas = ((body.get("properties") or {}).get("managed") or {}).get("quotas") or {}
    return tuple(
        f"{series}: {limit.get('slaTier', '?')} {limit.get('used', '?')} of {limit.get('limit', '?')} used"
        for series, quota in sorted(quotas.items())
        for limit in quota.get("limits") or ()
    )


def read_holders(runs: Sequence[Mapping[str, Any]], gpus_per_node: int) -> tuple[Holder, ...]:
    """Who holds a compute: its runs that have not ended, of all users."""
    found = []
    for run in runs:
        state = read_state(str(run.get("status") or ""), run.get("tags"))
        if state.is_final:
            continue
        creator = run.get("createdBy") or {}
        compute = run.get("compute") or run.get("computeRequest") or {}
        nodes = int(compute.get("instanceCount") or compute.get("nodeCount") or 1)
        name = str(run.get("displayName") or (run.get("tags") or {}).get("mlflow.runName") or "")
        user = str(creator.get("userName") or creator.get("upn") or "?")
        found.append(Holder(user, str(run.get("runId") or ""), name, state, nodes * gpus_per_node, nodes))
    return tuple(found)


def _reason(error: Any) -> str:
    """The service's sentence; run history wraps errors in errors."""
    while isinstance(error, Mapping) and isinstance(error.get("error"), Mapping):
        error = error["error"]
    if not isinstance(error, Mapping):
        return ""
    message = str(error.get("message") or "").strip()
    first = message.splitlines()[0] if message else ""
    code = str(error.get("code") or "")
    return f"{first} ({code})" if first and code else first or code


def _exit_code(state: State, reason: str) -> int | None:
    if state is State.COMPLETED:
        return 0
    match = _EXIT_CODE.search(reason) if state is State.FAILED else None
    return int(match[1]) if match else None
