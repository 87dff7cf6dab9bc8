"""A job's states over time, from what the kubelets tell of its pods. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus: times are to the second. Pods
that are gone tell nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from blobsync.backends.kubernetes.replies import KubernetesJob, Pod
from blobsync.jobspec.spec import State, StateChange


def states_over_time(job: KubernetesJob, pods: Sequence[Pod]) -> tuple[StateChange, ...]:
    """When as many nodes as it needs were made ready and ran, and when they were lost and waited again."""
    times = {time for pod in pods for time in (pod.begun, pod.ran, _lost_at(pod, pods)) if time is not None}
    found: list[StateChange] = []
    for time in sorted(times):
        before = found[-1].state if found else State.QUEUED
        state = _state_at(time, job, pods)
        if state is not before:
            tries = [pod.attempt for pod in pods if pod.begun is not None and pod.begun <= time]
            found.append(StateChange(time, state, max(tries, default=0)))
    return tuple(found)


def _lost_at(pod: Pod, pods: Sequence[Pod]) -> float | None:
    """When another try had to take its place; one that ended otherwise ends the job, or has done its part."""
    again = any(other.index == pod.index and other.attempt > pod.attempt for other in pods)
    return pod.finished if again or pod.evicted else None


def _state_at(time: float, job: KubernetesJob, pods: Sequence[Pod]) -> State:
    """As ``replies.job_state`` has it; how many nodes are wanted now says nothing about that time."""
    there: dict[int, bool] = {}
    for pod in pods:
        lost = _lost_at(pod, pods)
        if pod.begun is not None and pod.begun <= time and (lost is None or lost > time):
            there[pod.index] = pod.ran is not None and pod.ran <= time
    if sum(there.values()) >= job.least:
        return State.RUNNING
    return State.PREPARING if len(there) >= job.least else State.QUEUED
