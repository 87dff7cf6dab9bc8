"""Parses the server's objects: jobs, pods, nodes, events. Pure; values of another type count as missing.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus: times are to the second.
Deleted pods have no times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from blobsync.backends.kubernetes.object_names import (
    CANCELED_NOTE,
    FAILURES_NOTE,
    IGNORED_NOTE,
    INDEX_LABEL,
    JOB_LABEL,
    LEAST_NOTE,
    NUMBERS_NOTE,
    QUEUE_LABEL,
    RELEASED_NOTE,
    RENEWED_NOTE,
    RUN_ID_NOTE,
    RUN_LABEL,
    TASK_NOTE,
    TASKS_NOTE,
)
from blobsync.backends.kubernetes.request import CONTAINER
from blobsync.backends.protocol import ClusterSummary, Holder
from blobsync.base.errors import UsageError
from blobsync.base.exit_codes import ENDED_ALONE_EXIT, SETUP_FAILED_EXIT
from blobsync.base.formatting import count_text, quoted, utc_seconds
from blobsync.base.records import dataclass
from blobsync.config.model import value_at
from blobsync.jobspec.log_frames import unframed
from blobsync.jobspec.spec import RUN_ID, RunInfo, State, StateChange, TaskInfo
from blobsync.jobspec.sweep import MOST_TASKS, read_array
from blobsync.jobspec.task_states import together

# https://kubernetes.io/docs/concepts/containers/images/: the kubelet's reasons for an image that cannot be pulled.
_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_EXIT_CODE = re.compile(r"pod \S*?/(\S+) failed with exit code (\d{1,3})\b")
_EVICTED = re.compile(r"[Pp]od \S*?/(\S+) has condition DisruptionTarget")
# A pod's name differs with each try to make it, and so would the sentence: client-go's record/events_cache.go, and
# pkg/controller/controller_utils.go.
_NOT_MADE = re.compile(
    r"(?:\(combined from similar events\): )?(?:Error creating: )?(?:pods \"[^\"]*\" is forbidden: )?(.*)", re.DOTALL
)
_QUOTA = re.compile(r"(?:exceeded|failed) quota: ([a-z0-9.-]+)")
# More nodes than any cluster has.
_INDEXES = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
# The exit codes of a deleted pod: SIGTERM, and SIGKILL after its grace period.
_STOPPED = (143, 137)
# Makes a command line of kubectl's arguments.
Shown = Callable[..., str]


class Pod:
    """One attempt of one node, as the server has it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        notes, labels = _map(body, "metadata", "annotations"), _map(body, "metadata", "labels")
        status = _map(body, "status")
        conditions = {_text(one, "type"): one for one in _list(status, "conditions")}
        scheduled, target = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
        containers = _list(status, "containerStatuses")
        state = _map(next((one for one in containers if _text(one, "name") == CONTAINER), {}), "state")
        limits = [_map(one, "resources", "limits") for one in _list(_map(body, "spec"), "containers")]
        self.name = _text(body, "metadata", "name")
        self.job = _text(labels, JOB_LABEL)
        self.index = _digits(_text(labels, INDEX_LABEL) or _text(notes, INDEX_LABEL))
        # Counts from 0.
        self.attempt = _digits(_text(notes, FAILURES_NOTE)) + _digits(_text(notes, IGNORED_NOTE))
        self.phase = _text(status, "phase")
        self.node = _text(body, "spec", "nodeName")
        self.created = _when(body, "metadata", "creationTimestamp") or 0.0
        self.running = "running" in state
        self.exit_code = _number(state, "terminated", "exitCode")
        self.ending = _text(state, "terminated", "reason")
        # Why its container does not run yet.
        self.waiting = _text(state, "waiting", "reason")
        self.message = _text(state, "waiting", "message") or _text(status, "message")
        self.unschedulable = _text(scheduled, "message") if _text(scheduled, "status") == "False" else ""
        self.evicted = (_text(target, "message") or "evicted") if _text(target, "status") == "True" else ""
        self.leaving = bool(_text(body, "metadata", "deletionTimestamp"))
        self.gpus = sum(_digits(value) for one in limits for name, value in one.items() if name.endswith("/gpu"))
        # When it was scheduled, and when its container began and ended (Unix time).
        self.begun = _when(status, "startTime")
        self.ran = _when(state, "running", "startedAt") or _when(state, "terminated", "startedAt")
        self.finished = _when(state, "terminated", "finishedAt")
        # Of a sweep: its number, whether that has a Job of its own, and at its end its last line, or its log's end.
        own_task = _own_task(notes)
        self.has_own_job = own_task is not None
        numbers = _task_numbers(notes)[self.index : self.index + 1]
        self.task = own_task if self.has_own_job else next(iter(numbers), None)
        self.said = _text(state, "terminated", "message")

    @property
    def is_over(self) -> bool:
        """Whether its container has ended, or will never start."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_up(self) -> bool:
        """Whether it runs, or has ended by itself."""
        if self.is_over:
            return self.phase == "Succeeded" or not self.evicted
        return self.phase != "Pending" and (self.running or self.exit_code is not None)

    @property
    def has_log(self) -> bool:
        """Whether its container has started."""
        return self.running or self.exit_code is not None or self.is_over


class KubernetesJob:
    """One Job, as the server has it. ``conditions`` are those that are true: type -> (reason, message, time).

    It requests ``nodes`` nodes and runs with ``least`` of them; those of an ``array`` are its tasks. It may also be one
    ``task`` of a sweep. Indexes in ``succeeded`` are complete; those in ``failed`` are not retried.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        notes, status = _map(body, "metadata", "annotations"), _map(body, "status")
        self.name = _text(body, "metadata", "name")
        self.namespace = _text(body, "metadata", "namespace")
        self.uid = _text(body, "metadata", "uid")
        self.run_id = _text(notes, RUN_ID_NOTE)
        self.created = _when(body, "metadata", "creationTimestamp") or 0.0
        self.nodes = _number(body, "spec", "completions") or 1
        # Only an elastic job succeeds with its first node.
        self.elastic = bool(_map(body, "spec", "successPolicy"))
        self.array = TASKS_NOTE in notes
        least = max(1, _digits(_text(notes, LEAST_NOTE))) if self.elastic else 1 if self.array else self.nodes
        self.least = min(least, self.nodes)
        self.task = _own_task(notes)
        # The numbers of a sweep's tasks, by index.
        self.numbers = _task_numbers(notes)
        self.succeeded = _indexes(_text(status, "completedIndexes"))
        self.failed = _indexes(_text(status, "failedIndexes"))
        self.suspended = _map(body, "spec").get("suspend") is True
        self.released = RELEASED_NOTE in notes
        self.canceled = CANCELED_NOTE in notes
        self.leaving = bool(_text(body, "metadata", "deletionTimestamp"))
        self.queue = _text(body, "metadata", "labels", QUEUE_LABEL)
        self.started = _when(status, "startTime")
        self.completed = _when(status, "completionTime")
        self.active = (_number(status, "active") or 0) + (_number(status, "terminating") or 0)
        self.conditions = {
            _text(one, "type"): (_text(one, "reason"), _text(one, "message"), _when(one, "lastTransitionTime"))
            for one in _list(status, "conditions")
            if _text(one, "status") == "True"
        }
        # When its secrets were last renewed.
        self.granted = max(_digits(_text(notes, RELEASED_NOTE)), _digits(_text(notes, RENEWED_NOTE)))

    @property
    def all_numbers(self) -> Sequence[int]:
        """The number of the task at each index of an array."""
        return self.numbers if len(self.numbers) == self.nodes else range(self.nodes)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return bool(self.conditions.keys() & {"Complete", "Failed"})

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or its result is decided while its last pods are terminated."""
        decided = self.conditions.keys() & {"SuccessCriteriaMet", "FailureTarget"}
        return self.is_over or self.canceled or self.leaving or bool(decided)


def read_jobs(answer: Mapping[str, Any]) -> tuple[KubernetesJob, ...]:
    """The jobs of a list that have a valid id, newest first."""
    jobs = map(KubernetesJob, _list(answer, "items"))
    known = [job for job in jobs if RUN_ID.fullmatch(job.run_id)]
    return tuple(sorted(known, key=lambda job: (job.created, job.name), reverse=True))


def read_pods(answer: Mapping[str, Any]) -> tuple[Pod, ...]:
    """The pods of a list, by index and then by age."""
    pods = map(Pod, _list(answer, "items"))
    return tuple(sorted(pods, key=lambda pod: (pod.index, pod.attempt, pod.created, pod.name)))


def job_info(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str], shown: Shown) -> RunInfo:
    """A job's state and the reason for it. ``events`` are the newest warnings by the name of their object.

    ``shown`` makes a command line of kubectl's words.
    """
    state = job_state(job, pods)
    latest = latest_pods(pods)
    info = RunInfo(
        job.run_id,
        state,
        exit_code=_exit_code(job, latest, state),
        restarts=max((pod.attempt for pod in pods), default=0),
        started=None if state is State.QUEUED else job.started,
        nodes=tuple(pod.node or "?" for pod in latest if pod.node or len(latest) > 1),
        granted=0 if job.is_over else job.granted,
    )
    over = [job.conditions[one][2] for one in ("Failed", "Complete") if one in job.conditions]
    ended = job.completed or next(iter(over), None)
    reason = _reason(job, pods, events, state, shown)
    tasks = tuple(_task_infos(job, latest)) if job.array and job.nodes <= MOST_TASKS else ()
    return replace(info, reason=reason, ended=ended if state.is_final else None, tasks=tasks)


def sweep_info(jobs: Sequence[tuple[KubernetesJob, Sequence[Pod]]], events: Mapping[str, str], shown: Shown) -> RunInfo:
    """The state of a sweep whose tasks have Jobs of their own, with the pods of each."""
    infos = {job.task or 0: job_info(job, pods, events, shown) for job, pods in jobs}
    tasks = [one.of_task(number) for number, one in infos.items()]
    if any(job.canceled for job, _ in jobs):
        # Those that waited were deleted.
        tasks += [TaskInfo(number, State.CANCELED) for number in jobs[0][0].numbers if number not in infos]
    info = together(RunInfo(jobs[0][0].run_id, State.QUEUED), tasks)
    told = [task for task in info.tasks if task.state is info.state and task.reason]
    speaks = told and info.state in (State.QUEUED, State.PREPARING, State.FAILED)
    nodes = dict.fromkeys(node for one in infos.values() for node in one.nodes)
    info = replace(info, nodes=tuple(nodes), granted=max(one.granted for one in infos.values()))
    return replace(info, reason=f"task {told[0].number}: {told[0].reason}" if speaks else "")


def _own_task(notes: Mapping[str, Any]) -> int | None:
    text = _text(notes, TASK_NOTE)
    return _digits(text) if text.isdigit() else None


def _task_numbers(notes: Mapping[str, Any]) -> Sequence[int]:
    with suppress(UsageError):
        return read_array(_text(notes, NUMBERS_NOTE)).all_numbers
    return ()


def _task_infos(job: KubernetesJob, pods: Sequence[Pod]) -> Iterator[TaskInfo]:
    """The state of each task, by what the Job says of its index, else by its latest pod."""
    latest = {pod.index: pod for pod in pods}
    for index, number in enumerate(job.all_numbers):
        pod = latest.get(index)
        state = _task_state(job, index, pod)
        times = (pod.ran, pod.finished if state.is_final else None) if pod else (None, None)
        code = 0 if state is State.COMPLETED else pod.exit_code if pod and state is State.FAILED else None
        yield TaskInfo(number, state, code, pod.attempt if pod else 0, *times)


def _task_state(job: KubernetesJob, index: int, pod: Pod | None) -> State:
    if index in job.succeeded:
        return State.COMPLETED
    if index in job.failed:
        return State.CANCELED if pod and pod.exit_code == ENDED_ALONE_EXIT else State.FAILED
    if job.is_over or (job.canceled and not job.active):
        return State.CANCELED if job.canceled else State.UNKNOWN
    if pod is None or pod.is_over or not pod.node:
        return State.QUEUED
    return State.RUNNING if pod.running else State.PREPARING


def last_lines(pods: Sequence[Pod]) -> dict[int, str]:
    """The last line that each task that has ended has written, by its number: of several nodes that of the first."""
    found = {}
    for pod in sorted(pods, key=lambda pod: (-pod.index, pod.attempt)):
        lines = [line for line in map(unframed, pod.said.split("\n")) if line and line[0].startswith("std_log")]
        if pod.task is not None and lines:
            found[pod.task] = lines[-1][2].decode("utf-8", "replace").rstrip().rpartition("\r")[2]
    return found


def running_nodes(pods: Sequence[Pod]) -> int:
    """The number of nodes that run and are not being removed."""
    return sum(pod.running and not pod.leaving for pod in latest_pods(pods))


def latest_pods(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The newest pod of each index."""
    return tuple({pod.index: pod for pod in pods}.values())


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The requested nodes: how many are up, the pods of the others, and how many have no pod."""

    up: int
    others: tuple[Pod, ...]
    missing: int
    first_missing: int


def _nodes(job: KubernetesJob, pods: Sequence[Pod]) -> _Nodes:
    latest = {pod.index: pod for pod in latest_pods(pods) if pod.index < job.nodes}
    # A failed node ends a job of a fixed size; in an elastic job it is retried.
    others = tuple(pod for pod in latest.values() if not pod.is_up or (job.elastic and pod.phase == "Failed"))
    # Pods that are gone.
    succeeded = sum(index < job.nodes and index not in latest for index in job.succeeded)
    known = {index for index in (*latest, *job.succeeded, *job.failed) if index < job.nodes}
    first_missing = next((index for index in range(job.nodes) if index not in known), 0)
    return _Nodes(len(latest) - len(others) + succeeded, others, job.nodes - len(known), first_missing)


def lacks_nodes(job: KubernetesJob, pods: Sequence[Pod]) -> bool:
    """Whether some of its nodes are not up although they should be; events may have the reason."""
    nodes = _nodes(job, pods)
    return not job.is_ending and bool(nodes.others or nodes.missing)


def job_state(job: KubernetesJob, pods: Sequence[Pod]) -> State:
    """RUNNING when the needed number of nodes runs, PREPARING when that many are scheduled."""
    if job.is_ending:
        return _ending_state(job, pods)
    if job.suspended or not pods:
        return State.QUEUED
    nodes = _nodes(job, pods)
    if nodes.up >= job.least:
        return State.RUNNING
    placed = sum(bool(pod.node) and not pod.is_over for pod in nodes.others)
    return State.PREPARING if nodes.up + placed >= job.least else State.QUEUED


def _ending_state(job: KubernetesJob, pods: Sequence[Pod]) -> State:
    if "Complete" in job.conditions:
        return State.COMPLETED
    if job.canceled:
        over = "Failed" in job.conditions or (job.suspended and not job.active and not pods)
        return State.CANCELED if over else State.CANCELING
    if "Failed" in job.conditions:
        return State.FAILED
    # Otherwise its result is decided, and its pods are being terminated.
    return State.CANCELING if job.leaving else State.RUNNING


def _exit_code(job: KubernetesJob, pods: Sequence[Pod], state: State) -> int | None:
    if state is State.COMPLETED:
        return 0
    if state is not State.FAILED:
        return None
    match = _EXIT_CODE.search(job.conditions["Failed"][1])
    if match:
        return int(match[2])
    codes = [pod.exit_code for pod in pods if pod.exit_code and pod.exit_code != ENDED_ALONE_EXIT]
    # The exit codes of terminated pods do not matter.
    return next((code for code in codes if code != 143), codes[0] if codes else None)


def _reason(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str], state: State, shown: Shown) -> str:
    if state is State.FAILED:
        return _why_failed(job, pods)
    if state is State.QUEUED and job.suspended:
        waiting = f"it waits in Kueue's queue {job.queue}" if job.queue else "it is suspended"
        return f"{waiting}: {quoted(events[job.name])}" if job.name in events else waiting
    if job.is_ending:
        return ""
    return _why_waiting(job, pods, events, shown)


def _why_failed(job: KubernetesJob, pods: Sequence[Pod]) -> str:
    reason, message, _ = job.conditions["Failed"]
    by_name = {pod.name: pod for pod in pods}
    whole = "job" if job.task is None else "task"
    others = f", and the {whole} ended with it" if job.nodes > 1 and not job.array else ""
    match = _EXIT_CODE.search(message)
    if match:
        pod = by_name.get(match[1])
        where = _where(job, match[1], pod)
        if pod and pod.ending == "OOMKilled":
            return f"{where} used more memory than it may (OOMKilled){others}"
        if int(match[2]) == SETUP_FAILED_EXIT:
            return f"{where} could not be made ready{others}"
        if int(match[2]) in _STOPPED and (pod is None or pod.leaving):
            # A pod that ended by itself is kept.
            why = "its pod was deleted, with kubectl delete pod or by a program of the cluster"
            return f"{where} was stopped (exit code {match[2]}){others}: {why}"
        return f"{where} ended with exit code {match[2]}{others}"
    match = _EVICTED.search(message)
    if match:
        pod = by_name.get(match[1])
        why = f": {quoted(pod.evicted)}" if pod and pod.evicted else ""
        return f"{_where(job, match[1], pod)} was evicted (DisruptionTarget){others}{why}"
    if reason == "DeadlineExceeded":
        return "TIMEOUT: the job ran longer than its timeout"
    return f"{reason}: {quoted(message)}" if message else reason


def _where(job: KubernetesJob, pod_name: str, pod: Pod | None) -> str:
    parts = pod_name.rsplit("-", 2)
    index = str(pod.index) if pod else parts[1] if len(parts) == 3 else "?"
    return f"node {index}" + (f" ({pod.node})" if pod and pod.node else "")


def _why_waiting(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str], shown: Shown) -> str:
    """The reason of the first node that does not start, or is being removed."""
    if not pods and job.name not in events:
        return "its pods are being made"
    nodes = _nodes(job, pods)
    why = next(_reasons(job, pods, nodes, events, shown), "")
    if job.array:
        running, done = running_nodes(pods), len(job.succeeded)
        # Tasks wait for others to end: only where none runs is there a reason.
        return why if not running else f"{done:,} of {job.nodes:,} tasks done, {running:,} run"
    if job.nodes == 1 or not (nodes.others or nodes.missing) or (why and nodes.up < job.least):
        return why
    running = sum(pod.running for pod in latest_pods(pods) if pod.index < job.nodes)
    return f"{running:,} of {job.nodes:,} nodes run" + (f"; {why}" if why else "")


def _reasons(
    job: KubernetesJob, pods: Sequence[Pod], nodes: _Nodes, events: Mapping[str, str], shown: Shown
) -> Iterator[str]:
    for pod in nodes.others:
        if why := _why_pod_waits(job, pod, events, shown):
            yield f"{_of_index(job, pod.index)}{why}"
    if nodes.missing and job.name in events:
        several = f"{count_text(nodes.missing, 'task' if job.array else 'node')}: "
        which = _of_index(job, nodes.first_missing) if nodes.missing == 1 else several
        yield f"{which if pods else ''}no pod could be made: {_why_not_made(job, events[job.name], shown)}"
    for pod in latest_pods(pods):
        if pod.index < job.nodes and pod.leaving and not pod.is_over:
            how = f"evicted: {quoted(pod.evicted)}" if pod.evicted else "deleted"
            yield f"{_of_index(job, pod.index)}its pod is being {how}"


def _of_index(job: KubernetesJob, index: int) -> str:
    """Begins a sentence about one node of several, or about one task, by its number."""
    if job.array:
        return f"task {job.all_numbers[index]}: "
    return f"node {index}: " if job.nodes > 1 else ""


def _why_pod_waits(job: KubernetesJob, pod: Pod, events: Mapping[str, str], shown: Shown) -> str:
    look = f"see {shown('describe', 'pod', pod.name, '-n', job.namespace or 'default')}"
    message = pod.message or events.get(pod.name, "")
    if pod.is_over:
        again = "and is not tried again" if pod.index in job.failed else "and another one takes its place"
        ended = f"was evicted ({quoted(pod.evicted)})" if pod.evicted else f"ended with exit code {pod.exit_code}"
        return f"its pod {ended}, {again}"
    if pod.unschedulable:
        return f"no node of the cluster fits: {quoted(pod.unschedulable)}; {look}"
    if pod.waiting in _IMAGE_REASONS:
        # The error before a back-off says more.
        return f"its image cannot be pulled: {quoted(events.get(pod.name) or message or pod.waiting)}; {look}"
    if pod.waiting and pod.waiting not in ("ContainerCreating", "PodInitializing"):
        return f"{pod.waiting}: {quoted(message)}".rstrip(": ")
    return quoted(events.get(pod.name, ""))


def _why_not_made(job: KubernetesJob, event: str, shown: Shown) -> str:
    match = _NOT_MADE.fullmatch(event)
    message = match[1] if match else event
    quota = _QUOTA.search(message)
    look = f"; see {shown('describe', 'quota', quota[1], '-n', job.namespace or 'default')}" if quota else ""
    look += "; kubernetes: {cpu: N, memory: N} in the cluster file says how much" if "must specify" in message else ""
    return f"{quoted(message)}{look}"


def read_warnings(answer: Mapping[str, Any]) -> dict[str, str]:
    """The newest warning about each object, by the object's name; one that only repeats only if there is no other."""
    found: list[tuple[bool, float, str, str]] = []
    for event in _list(answer, "items"):
        name, message = _text(event, "involvedObject", "name"), " ".join(_text(event, "message").split())
        times = (
            _when(event, *path) for path in (("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp"))
        )
        if _text(event, "type") == "Warning" and name:
            telling = not message.startswith(("Back-off", "Error: "))
            found.append((telling, next((time for time in times if time), 0.0), name, message))
    return {name: message for _, _, name, message in sorted(found)}


def names_of(answer: Mapping[str, Any], jobs: Collection[str]) -> tuple[str, ...]:
    """The names of objects that belong to these jobs, by their labels."""
    found = (item for item in _list(answer, "items") if _text(item, "metadata", "labels", RUN_LABEL) in jobs)
    return tuple(name for item in found if (name := _text(item, "metadata", "name")))


# -- reading values of any type --------------------------------------------------------------------------------------


def _list(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = body.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _map(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    found = value_at(body, path)
    return found if isinstance(found, Mapping) else {}


def _text(body: Mapping[str, Any], *path: str) -> str:
    value = _map(body, *path[:-1]).get(path[-1])
    return value if isinstance(value, str) else ""


def _number(body: Mapping[str, Any], *path: str) -> int | None:
    value = _map(body, *path[:-1]).get(path[-1])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _indexes(text: str) -> frozenset[int]:
    """Parse ``0,2-4``, the status's form of indexes, which are in order."""
    found: list[int] = []
    for match in filter(None, map(_INDEXES.fullmatch, text.split(","))):
        if not found or int(match[1]) > found[-1]:
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return frozenset(found)


def _digits(value: object) -> int:
    text = str(value)
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else 0


def _when(body: Mapping[str, Any], *path: str) -> float | None:
    return utc_seconds(_text(body, *path))


def states_over_time(job: KubernetesJob, pods: Sequence[Pod]) -> tuple[StateChange, ...]:
    """The job's past states: when the needed nodes were prepared and ran, and when they were lost and waited again.

    They are as ``job_state`` defines them, but independent of the nodes requested now.
    """
    of_index: dict[int, list[Pod]] = {}
    for pod in pods:
        of_index.setdefault(pod.index, []).append(pod)
    # One node at a time: a sweep has thousands of pods.
    moments = {
        (time, pod.index)
        for each in of_index.values()
        for pod in each
        for time in (pod.begun, pod.ran, _lost_at(pod, each))
        if time is not None
    }
    up: dict[int, bool] = {}
    found: list[StateChange] = []
    running = 0
    for time, same in groupby(sorted(moments), key=lambda moment: moment[0]):
        for _, index in same:
            running -= up.pop(index, False)
            for pod in of_index[index]:
                lost = _lost_at(pod, of_index[index])
                if pod.begun is not None and pod.begun <= time and (lost is None or lost > time):
                    up[index] = pod.ran is not None and pod.ran <= time
            running += up.get(index, False)
        state = State.PREPARING if len(up) >= job.least else State.QUEUED
        state = State.RUNNING if running >= job.least else state
        if state is not (found[-1].state if found else State.QUEUED):
            tries = [pod.attempt for pod in pods if pod.begun is not None and pod.begun <= time]
            found.append(StateChange(time, state, max(tries, default=0)))
    return tuple(found)


def _lost_at(pod: Pod, of_index: Sequence[Pod]) -> float | None:
    """When an evicted or replaced pod ended; None for others. ``of_index`` are all of its index, by attempt."""
    again = of_index[-1].attempt > pod.attempt
    return pod.finished if again or pod.evicted else None


def read_cluster(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Pod], jobs: Sequence[KubernetesJob], gpu_resource: str
) -> ClusterSummary:
    """Summarise the cluster; ``pods`` are all that are visible, ``jobs`` are ours."""
    usable = [node for node in nodes if _is_ready(node)]
    names = {_text(node, "metadata", "name") for node in usable}
    here = [pod for pod in pods if pod.node in names and not pod.is_over]
    total = sum(_digits(_map(node, "status", "allocatable").get(gpu_resource)) for node in usable)
    states = [job_state(job, [pod for pod in pods if pod.job == job.name]) for job in jobs]
    unusable = len(nodes) - len(usable)
    return ClusterSummary(
        nodes_total=len(nodes),
        nodes_free=len(names - {pod.node for pod in here if pod.job}),
        gpus_total=total,
        gpus_free=max(0, total - sum(pod.gpus for pod in here)),
        jobs_running=sum(state in (State.RUNNING, State.PREPARING) for state in states),
        jobs_queued=sum(state is State.QUEUED for state in states),
        notes=(f"not ready, or without room for pods: {count_text(unusable, 'node')}",) if unusable else (),
    )


def holders_of(jobs: Sequence[KubernetesJob], pods: Sequence[Pod]) -> tuple[Holder, ...]:
    """Jobs of blobsync that have, or wait for, nodes; the user is that of the job's id."""
    found = []
    for job in jobs:
        own = [pod for pod in pods if pod.job == job.name and not pod.is_over]
        state = job_state(job, [pod for pod in pods if pod.job == job.name])
        if not state.is_final:
            user = job.run_id.partition("_")[0]
            found.append(Holder(user, job.name, job.run_id, state, sum(pod.gpus for pod in own), job.nodes))
    return tuple(found)


def _is_ready(node: Mapping[str, Any]) -> bool:
    ready = [one for one in _list(_map(node, "status"), "conditions") if _text(one, "type") == "Ready"]
    return not _map(node, "spec").get("unschedulable") and all(one.get("status") == "True" for one in ready)
