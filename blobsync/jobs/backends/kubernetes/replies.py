"""What the server says about jobs, as values. Pure; whatever is missing or of another type counts as not said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from blobsync.jobs.backends.kubernetes.naming import (
    CANCELED_NOTE,
    FAILURES_NOTE,
    IGNORED_NOTE,
    INDEX_LABEL,
    JOB_LABEL,
    QUEUE_LABEL,
    RELEASED_NOTE,
    RENEWED_NOTE,
    RUN_ID_NOTE,
)
from blobsync.jobs.backends.kubernetes.pod import CONTAINER
from blobsync.jobs.spec import RUN_ID, SETUP_FAILED_EXIT, RunInfo, State

# https://kubernetes.io/docs/concepts/containers/images/: what the kubelet says of an image that does not come.
_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_EXIT_CODE = re.compile(r"pod \S*?/(\S+) failed with exit code (\d{1,3})\b")
_EVICTED = re.compile(r"[Pp]od \S*?/(\S+) has condition DisruptionTarget")
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Pod:
    """One try of one node. ``attempt`` counts from 0; ``waiting`` is why its container does not run yet.

    ``begun`` is when a node took it, ``ran`` and ``finished`` when its container began and ended (seconds since 1970).
    """

    name: str
    job: str
    index: int
    attempt: int
    phase: str
    node: str = ""
    created: float = 0.0
    running: bool = False
    exit_code: int | None = None
    ending: str = ""
    waiting: str = ""
    said: str = ""
    unschedulable: str = ""
    evicted: str = ""
    leaving: bool = False
    gpus: int = 0
    begun: float | None = None
    ran: float | None = None
    finished: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether its container has ended, or never will start."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def has_log(self) -> bool:
        """Whether its container has started."""
        return self.running or self.exit_code is not None or self.is_over


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """One Job. ``conditions`` are those that hold: type -> (reason, message, time)."""

    name: str
    uid: str
    run_id: str
    created: float
    nodes: int
    suspended: bool = False
    released: bool = False
    canceled: bool = False
    leaving: bool = False
    queue: str = ""
    started: float | None = None
    completed: float | None = None
    active: int = 0
    conditions: Mapping[str, tuple[str, str, float | None]] = field(default_factory=dict)
    # When its secrets were handed over, for the last time.
    granted: int = 0
    namespace: str = ""

    def look_at(self, pod: Pod) -> str:
        """The command that shows everything of one of its pods."""
        return f"see kubectl describe pod {pod.name} -n {self.namespace or 'default'}"

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return bool(self.conditions.keys() & {"Complete", "Failed"})

    @property
    def is_ending(self) -> bool:
        """Whether it has ended or what it ends with is decided, while its last pods are being ended."""
        decided = self.conditions.keys() & {"SuccessCriteriaMet", "FailureTarget"}
        return self.is_over or self.canceled or self.leaving or bool(decided)


def read_jobs(answer: Mapping[str, Any]) -> tuple[KubernetesJob, ...]:
    """The jobs of a list whose id is one, newest first."""
    jobs = [read_kubernetes_job(item) for item in _items(answer)]
    known = [job for job in jobs if RUN_ID.fullmatch(job.run_id)]
    return tuple(sorted(known, key=lambda job: (job.created, job.name), reverse=True))


def read_kubernetes_job(body: Mapping[str, Any]) -> KubernetesJob:
    """One Job as the server shows it."""
    notes, status = _map(body, "metadata", "annotations"), _map(body, "status")
    conditions = {
        _text(one, "type"): (_text(one, "reason"), _text(one, "message"), _when(one, "lastTransitionTime"))
        for one in _list(status, "conditions")
        if _text(one, "status") == "True"
    }
    return KubernetesJob(
        name=_text(body, "metadata", "name"),
        uid=_text(body, "metadata", "uid"),
        run_id=_text(notes, RUN_ID_NOTE),
        created=_when(body, "metadata", "creationTimestamp") or 0.0,
        nodes=_number(body, "spec", "completions") or 1,
        suspended=_map(body, "spec").get("suspend") is True,
        released=RELEASED_NOTE in notes,
        canceled=CANCELED_NOTE in notes,
        leaving=bool(_text(body, "metadata", "deletionTimestamp")),
        queue=_text(body, "metadata", "labels", QUEUE_LABEL),
        started=_when(status, "startTime"),
        completed=_when(status, "completionTime"),
        active=(_number(status, "active") or 0) + (_number(status, "terminating") or 0),
        conditions=conditions,
        namespace=_text(body, "metadata", "namespace"),
        granted=max(_digits(_text(notes, RELEASED_NOTE)), _digits(_text(notes, RENEWED_NOTE))),
    )


def read_pods(answer: Mapping[str, Any]) -> tuple[Pod, ...]:
    """The pods of a list, by index and then by age."""
    pods = [_read_pod(item) for item in _items(answer)]
    return tuple(sorted(pods, key=lambda pod: (pod.index, pod.attempt, pod.created, pod.name)))


def _read_pod(body: Mapping[str, Any]) -> Pod:
    notes, labels = _map(body, "metadata", "annotations"), _map(body, "metadata", "labels")
    conditions = {_text(one, "type"): one for one in _list(_map(body, "status"), "conditions")}
    containers = _list(_map(body, "status"), "containerStatuses")
    state = _map(next((one for one in containers if _text(one, "name") == CONTAINER), {}), "state")
    scheduled, target = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    index = _digits(_text(labels, INDEX_LABEL) or _text(notes, INDEX_LABEL))
    limits = [_map(one, "resources", "limits") for one in _list(_map(body, "spec"), "containers")]
    return Pod(
        name=_text(body, "metadata", "name"),
        job=_text(labels, JOB_LABEL),
        index=index,
        attempt=_digits(_text(notes, FAILURES_NOTE)) + _digits(_text(notes, IGNORED_NOTE)),
        phase=_text(body, "status", "phase"),
        node=_text(body, "spec", "nodeName"),
        created=_when(body, "metadata", "creationTimestamp") or 0.0,
        running="running" in state,
        exit_code=_number(state, "terminated", "exitCode"),
        ending=_text(state, "terminated", "reason"),
        waiting=_text(state, "waiting", "reason"),
        said=_text(state, "waiting", "message") or _text(body, "status", "message"),
        unschedulable=_text(scheduled, "message") if _text(scheduled, "status") == "False" else "",
        evicted=(_text(target, "message") or "evicted") if _text(target, "status") == "True" else "",
        leaving=bool(_text(body, "metadata", "deletionTimestamp")),
        gpus=sum(_digits(value) for one in limits for name, value in one.items() if name.endswith("/gpu")),
        begun=_when(body, "status", "startTime"),
        ran=_when(state, "running", "startedAt") or _when(state, "terminated", "startedAt"),
        finished=_when(state, "terminated", "finishedAt"),
    )


def job_info(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str]) -> RunInfo:
    """A job's state with one sentence why. ``events`` are the newest warnings by the name of their object."""
    state = _state(job, pods)
    latest = latest_pods(pods)
    info = RunInfo(
        job.run_id,
        state,
        exit_code=_exit_code(job, latest, state),
        restarts=max((pod.attempt for pod in pods), default=0),
        started=None if state is State.QUEUED else job.started,
        nodes=tuple(pod.node or "?" for pod in latest if pod.node or len(latest) > 1),
    )
    over = [job.conditions[one][2] for one in ("Failed", "Complete") if one in job.conditions]
    ended = job.completed or next(iter(over), None)
    reason = _reason(job, latest, events, state)[:_LONGEST]
    return replace(info, reason=reason, ended=ended if state.is_final else None)


def running_nodes(pods: Sequence[Pod]) -> int:
    """How many nodes run that were not asked to end."""
    return sum(pod.running and not pod.leaving for pod in latest_pods(pods))


def latest_pods(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The newest pod of each index."""
    return tuple({pod.index: pod for pod in pods}.values())


def _state(job: KubernetesJob, pods: Sequence[Pod]) -> State:
    if "Complete" in job.conditions:
        return State.COMPLETED
    if job.canceled:
        over = "Failed" in job.conditions or (job.suspended and not job.active and not pods)
        return State.CANCELED if over else State.CANCELING
    if "Failed" in job.conditions:
        return State.FAILED
    if job.leaving:
        return State.CANCELING
    if "SuccessCriteriaMet" in job.conditions or "FailureTarget" in job.conditions:
        # Its pods are being ended.
        return State.RUNNING
    alive = [pod for pod in latest_pods(pods) if not pod.is_over]
    if job.suspended or not pods or any(pod.unschedulable for pod in alive):
        return State.QUEUED
    if not alive and any(pod.evicted for pod in latest_pods(pods)):
        return State.QUEUED
    if any(pod.phase == "Pending" or not (pod.running or pod.exit_code is not None) for pod in alive):
        return State.PREPARING
    return State.RUNNING


def _exit_code(job: KubernetesJob, pods: Sequence[Pod], state: State) -> int | None:
    if state is State.COMPLETED:
        return 0
    if state is not State.FAILED:
        return None
    match = _EXIT_CODE.search(job.conditions["Failed"][1])
    if match:
        return int(match[2])
    codes = [pod.exit_code for pod in pods if pod.exit_code]
    # Of those that were ended with the others the code says nothing.
    return next((code for code in codes if code != 143), codes[0] if codes else None)


def _reason(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str], state: State) -> str:
    if state is State.FAILED:
        return _why_failed(job, pods)
    if state is State.QUEUED and job.suspended:
        waiting = f"it waits in Kueue's queue {job.queue}" if job.queue else "it is suspended"
        return f"{waiting}: {events[job.name]}" if job.name in events else waiting
    if state in (State.QUEUED, State.PREPARING):
        return _why_waiting(job, pods, events)
    return ""


def _why_failed(job: KubernetesJob, pods: Sequence[Pod]) -> str:
    reason, message, _ = job.conditions["Failed"]
    by_name = {pod.name: pod for pod in pods}
    others = ", and the job ended with it" if job.nodes > 1 else ""
    match = _EXIT_CODE.search(message)
    if match:
        pod = by_name.get(match[1])
        where = _where(match[1], pod)
        if pod and pod.ending == "OOMKilled":
            return f"{where} used more memory than it may (OOMKilled){others}"
        if int(match[2]) == SETUP_FAILED_EXIT:
            return f"{where} could not be made ready{others}"
        return f"{where} ended with exit code {match[2]}{others}"
    match = _EVICTED.search(message)
    if match:
        pod = by_name.get(match[1])
        why = f": {pod.evicted}" if pod and pod.evicted else ""
        return f"{_where(match[1], pod)} was evicted (DisruptionTarget){others}{why}"
    if reason == "DeadlineExceeded":
        return "TIMEOUT: the job ran longer than its timeout"
    return f"{reason}: {message}" if message else reason


def _where(pod_name: str, pod: Pod | None) -> str:
    parts = pod_name.rsplit("-", 2)
    index = str(pod.index) if pod else parts[1] if len(parts) == 3 else "?"
    return f"node {index}" + (f" ({pod.node})" if pod and pod.node else "")


def _why_waiting(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str]) -> str:
    """The first of its nodes that does not come says why."""
    if not pods:
        return f"no pod could be made: {events[job.name]}" if job.name in events else "its pods are being made"
    waiting = [pod for pod in pods if not pod.is_over and not pod.running]
    for pod in waiting:
        which = f"node {pod.index}: " if job.nodes > 1 else ""
        if pod.unschedulable:
            return f"{which}no node of the cluster fits: {pod.unschedulable}; {job.look_at(pod)}"
        if pod.waiting in _IMAGE_REASONS:
            # The back-off says less than the error before it.
            said = events.get(pod.name) or pod.said or pod.waiting
            return f"{which}its image cannot be pulled: {said}; {job.look_at(pod)}"
        if pod.waiting and pod.waiting not in ("ContainerCreating", "PodInitializing"):
            return f"{which}{pod.waiting}: {pod.said or events.get(pod.name, '')}".rstrip(": ")
        if pod.name in events:
            return f"{which}{events[pod.name]}"
    if job.nodes > 1 and waiting:
        return f"{sum(pod.running for pod in pods)} of {job.nodes} nodes run"
    return ""


def read_warnings(answer: Mapping[str, Any]) -> dict[str, str]:
    """The newest warning about each object, by the object's name; one that only says "again" gives way to others."""
    found: list[tuple[bool, float, str, str]] = []
    for event in _items(answer):
        name, message = _text(event, "involvedObject", "name"), " ".join(_text(event, "message").split())
        times = (
            _when(event, *path) for path in (("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp"))
        )
        if _text(event, "type") == "Warning" and name:
            telling = not message.startswith(("Back-off", "Error: "))
            found.append((telling, next((time for time in times if time), 0.0), name, message))
    return {name: message for _, _, name, message in sorted(found)}


# -- reading what may be anything ------------------------------------------------------------------------------------


def _items(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _list(answer, "items")


def _list(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = body.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _map(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    here: Any = body
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}


def _text(body: Mapping[str, Any], *path: str) -> str:
    value = _map(body, *path[:-1]).get(path[-1])
    return value if isinstance(value, str) else ""


def _number(body: Mapping[str, Any], *path: str) -> int | None:
    value = _map(body, *path[:-1]).get(path[-1])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _digits(value: object) -> int:
    text = str(value)
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else 0


def _when(body: Mapping[str, Any], *path: str) -> float | None:
    """RFC 3339 in UTC, to the second."""
    try:
        return datetime.fromisoformat(f"{_text(body, *path)[:19]}+00:00").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
