"""Kubernetes: a plain Indexed Job on any cluster that kubectl reaches.

A Job is created suspended, then the objects that it owns, and only then it is released: a refusal half way leaves
nothing behind, and deleting the Job removes all. Jobs are queried by their labels: three requests for any number.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from blobsync.backends.kubernetes import replies
from blobsync.backends.kubernetes.kubectl import Kubectl, at_a_time, recorded_place
from blobsync.backends.kubernetes.object_names import CANCELED_NOTE, RENEWED_NOTE, object_name
from blobsync.backends.kubernetes.pod_logs import KnownBytes, PodLog
from blobsync.backends.kubernetes.preflight import examine_cluster
from blobsync.backends.kubernetes.replies import KubernetesJob, Pod, holders_of, read_cluster, states_over_time
from blobsync.backends.kubernetes.request import (
    CONTAINER,
    END_ALONE,
    FILES,
    RUN_DIR,
    SECRETS_KEY,
    build_kubernetes,
    pull_login,
    with_own_keys,
)
from blobsync.backends.kubernetes.settings import KubernetesSettings
from blobsync.backends.kubernetes.submission import Submission
from blobsync.backends.port_forwarding import LOOPBACK
from blobsync.backends.protocol import (
    Backend,
    ClusterSummary,
    Holder,
    Outcome,
    Plan,
    PortForward,
    Surroundings,
)
from blobsync.base.check_results import CheckResult
from blobsync.base.errors import BackendDeniedError, JobError, JobNotFoundError
from blobsync.jobspec.interactive import HOLDER, entering
from blobsync.jobspec.spec import JobRef, JobSpec, LogFile, NodeChange, RunInfo, Secrets, State

# A job that has to stop keeps so many seconds of its time.
_AT_ONCE = 1
_SHELL = "command -v bash >/dev/null && exec bash; exec sh"


class KubernetesBackend(Backend):
    """One namespace of one cluster."""

    name = "kubernetes"

    def __init__(self, around: Surroundings) -> None:
        self._around, self._cluster = around, around.cluster
        self._places: dict[tuple[str, str], Kubectl] = {}
        self._pod_logs: dict[tuple[Kubectl, str], PodLog] = {}
        self._read: dict[str, KnownBytes] = {}

    # -- submitting ---------------------------------------------------------------------------------------------

    def plan(self, spec: JobSpec) -> Plan:
        request = build_kubernetes(spec, KubernetesSettings(self._cluster))
        return Plan(spec, request.render(self._own.shown("apply", "-f", "-")), request)

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        docker = self._cluster.docker
        password = docker.password.reveal() if docker.password else ""
        login = pull_login(docker.address or "", docker.username or "", password)
        return Submission(self._own, plan.spec).carry_out(plan.request, secrets, login)

    def locate(self, spec: JobSpec) -> JobRef | None:
        submission = Submission(self._own, spec)
        job = submission.find()
        # A submission that was interrupted before the release never runs.
        return submission.ref() if job and job.released else None

    def forget(self, spec: JobSpec) -> None:
        Submission(self._own, spec).remove_unreleased()

    def examine(self, plan: Plan | None) -> Iterator[CheckResult]:
        settings, around, notes = KubernetesSettings(self._cluster), self._around, list[str]()
        kubectl = Kubectl(around.process, around.environ, settings.context, notes.append, settings.namespace)
        return examine_cluster(kubectl, self._cluster.file, settings, plan.request if plan else None, notes)

    # -- looking ------------------------------------------------------------------------------------------------

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        found: dict[str, RunInfo] = {}
        by_place: dict[Kubectl, list[JobRef]] = {}
        for ref in refs:
            by_place.setdefault(self._place_of(ref), []).append(ref)
        for place, group in by_place.items():
            names = [object_name(ref.run_id) for ref in group]
            jobs = replies.read_jobs(place.ours("Job", names))
            found.update((info.run_id, info) for info in _infos(place, jobs, names))
        gone = "the cluster does not know it (any more)"
        return tuple(found.get(ref.run_id) or RunInfo(ref.run_id, State.UNKNOWN, reason=gone) for ref in refs)

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        place, name = self._place_of(ref), object_name(ref.run_id)
        pods = _pods(place, ref)
        found: dict[str, KnownBytes] = {}
        for pod in pods:
            # Each pod that is read is a request.
            is_wanted = tasks is None or pod.task in tasks
            if is_wanted and pod.has_log and (pod.job == name or pod.has_own_job):
                log = self._pod_logs.setdefault((place, pod.name), PodLog(partial(_read_pod, place)))
                found.update(log.update(pod))
        self._read.update((f"{name}/{file}", known) for file, known in found.items())
        return tuple(LogFile(file, each.end, f"{name}/{file}", each.begins) for file, each in sorted(found.items()))

    def last_lines(self, ref: JobRef) -> Mapping[int, str]:
        """Of the tasks that have ended: each line of another one would be a request."""
        return replies.last_lines(_pods(self._place_of(ref), ref))

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        if log.handle not in self._read:
            raise JobError(f"the log {log.name} was not found")
        return self._read[log.handle].read(start, end)

    # -- changing -----------------------------------------------------------------------------------------------

    def cancel(self, ref: JobRef) -> None:
        place = self._place_of(ref)
        jobs = self._jobs(place, ref)
        if not jobs:
            raise JobNotFoundError(f"the cluster does not know {ref.run_id}")
        at_a_time(partial(_cancel, place), jobs)

    def cancel_task(self, ref: JobRef, number: int) -> None:
        place = self._place_of(ref)
        pods = [pod for pod in _pods(place, ref) if pod.task == number]
        if pods and all(pod.is_over for pod in replies.latest_pods(pods)):
            return
        if pods and pods[-1].has_own_job:
            place.patch_job(pods[-1].job, _at_once())
            return
        if not (pods and pods[-1].running):
            said = f"task {number} of {ref.run_id} does not run, and Kubernetes takes no task out of its queue"
            raise JobError(said, hint=f"again when it runs; blobsync abort {ref.run_id} ends all tasks")
        place.execute(pods[-1].name, CONTAINER, "sh", "-c", END_ALONE)

    def scale(self, ref: JobRef, nodes: int) -> None:
        """Change the number of nodes, in one request: the server takes both numbers together, or neither.

        The highest indexes are removed first, and index 0 stays. Safe to repeat.
        """
        place, name = self._place_of(ref), object_name(ref.run_id)
        job = KubernetesJob(place.get("Job", name))
        if job.is_ending or job.run_id != ref.run_id:
            raise JobError(f"{ref.run_id} does not run (any more)")
        place.patch_job(name, {"spec": {"completions": nodes, "parallelism": nodes}})

    def renew(self, ref: JobRef, secrets: Secrets) -> None:
        """Nodes see the change within a minute or two: the kubelet updates mounted Secrets."""
        place, name = self._place_of(ref), object_name(ref.run_id)
        secret = place.get("Secret", name)
        place.replace({**secret, "stringData": {SECRETS_KEY: with_own_keys(secret, secrets).to_json()}})
        running = next((job.name for job in self._jobs(place, ref) if not job.is_over), name)
        place.patch_job(running, {"metadata": {"annotations": {RENEWED_NOTE: str(int(time.time()))}}})

    def remove_secrets(self, refs: Sequence[JobRef]) -> None:
        """The cluster itself removes them only with the Job, days later."""
        by_place: dict[Kubectl, list[str]] = {}
        for ref in refs:
            by_place.setdefault(self._place_of(ref), []).append(object_name(ref.run_id))
        for place, names in by_place.items():
            kept = replies.names_of(place.ours("Secret", names), names)
            at_a_time(partial(place.delete, "Secret"), kept)

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        python = KubernetesSettings(self._cluster).python
        shell = (python, "-I", f"{FILES}/{HOLDER}", *entering(RUN_DIR, node)) if holds else ("sh", "-c", _SHELL)
        return self._exec(ref, node, "-it", shell)

    def forward_argv(self, ref: JobRef, forward: PortForward) -> Sequence[str]:
        place, pod = self._place_of(ref), self._pod(ref, forward.node)
        words = ("port-forward", f"--namespace={place.namespace}", f"--address={LOOPBACK}", f"pod/{pod}")
        return place.argv(*words, f"{forward.local}:{forward.remote}")

    def python_beside(self, ref: JobRef, node: int, source: str) -> Sequence[str]:
        python = KubernetesSettings(self._cluster).python
        return self._exec(ref, node, "-i", (python, "-I", "-c", source))

    def _exec(self, ref: JobRef, node: int, streams: str, command: Sequence[str]) -> Sequence[str]:
        place, pod = self._place_of(ref), self._pod(ref, node)
        words = (f"--namespace={place.namespace}", "exec", streams, pod, f"--container={CONTAINER}", "--")
        return place.argv(*words, *command)

    def _pod(self, ref: JobRef, node: int) -> str:
        """The current pod of this node."""
        place = self._place_of(ref)
        pods = [pod for pod in _pods(place, ref) if pod.running and not pod.leaving]
        if pods and pods[0].has_own_job:
            look = place.shown("exec", "-it", pods[0].name, "-n", place.namespace, "--", "sh")
            raise JobError(f"the tasks of {ref.run_id} have several nodes each: a number names none", hint=look)
        pod = next((pod for pod in reversed(pods) if pod.index == node), None)
        if pod is None:
            there = ", ".join(sorted({str(pod.index) for pod in pods})) or "none"
            raise JobError(f"node {node} of {ref.run_id} does not run", hint=f"nodes that run: {there}")
        return pod.name

    def _jobs(self, place: Kubectl, ref: JobRef) -> Sequence[KubernetesJob]:
        """Its Job, or those of its tasks."""
        found = replies.read_jobs(place.ours("Job", [object_name(ref.run_id)]))
        return [job for job in found if job.run_id == ref.run_id]

    # -- the cluster --------------------------------------------------------------------------------------------

    def summary(self) -> ClusterSummary:
        resource = KubernetesSettings(self._cluster).gpu_resource
        nodes = self._own.get("Node").get("items") or []
        return read_cluster(nodes, self._all_pods(), replies.read_jobs(self._own.ours("Job")), resource)

    def blame(self) -> Sequence[Holder]:
        jobs = [job for job in replies.read_jobs(self._own.ours("Job")) if job.released]
        return holders_of(jobs, replies.read_pods(self._own.ours("Pod")))

    def _all_pods(self) -> tuple[Pod, ...]:
        """The pods of all namespaces, if the rights allow that: all of them use the nodes."""
        with suppress(BackendDeniedError):
            return replies.read_pods(self._own.at(self._own.everywhere("Pod")))
        return replies.read_pods(self._own.get("Pod"))

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _own(self) -> Kubectl:
        return self._place(
            self._cluster.text("kubernetes.context") or "", self._cluster.text("kubernetes.namespace") or ""
        )

    def _place_of(self, ref: JobRef) -> Kubectl:
        """The job's context and namespace, also after kubectl's current context has changed."""
        recorded = recorded_place(ref)
        return self._place(*recorded) if recorded else self._own

    def _place(self, context: str, namespace: str) -> Kubectl:
        key = (context, namespace)
        if key not in self._places:
            around = self._around
            self._places[key] = Kubectl(around.process, around.environ, context, around.note, namespace)
        return self._places[key]


def _pods(place: Kubectl, ref: JobRef) -> tuple[Pod, ...]:
    return replies.read_pods(place.ours("Pod", [object_name(ref.run_id)]))


def _infos(place: Kubectl, jobs: Sequence[KubernetesJob], names: Sequence[str]) -> tuple[RunInfo, ...]:
    """The state of jobs, from their pods and, where nodes are missing, events: one request for each kind."""
    if not jobs:
        return ()
    by_job: dict[str, list[Pod]] = {}
    for pod in replies.read_pods(place.ours("Pod", names)):
        by_job.setdefault(pod.job, []).append(pod)
    events: dict[str, str] = {}
    if any(replies.lacks_nodes(job, by_job.get(job.name, ())) for job in jobs):
        with suppress(BackendDeniedError):
            events = replies.read_warnings(place.get("Event", fieldSelector="type=Warning"))
    shown, found = place.shown, list[RunInfo]()
    sweeps: dict[str, list[tuple[KubernetesJob, Sequence[Pod]]]] = {}
    for job in jobs:
        if job.task is None:
            found.append(_info(job, by_job.get(job.name, ()), events, shown))
        else:
            sweeps.setdefault(job.run_id, []).append((job, by_job.get(job.name, ())))
    return (*found, *(replies.sweep_info(each, events, shown) for each in sweeps.values()))


def _cancel(place: Kubectl, job: KubernetesJob) -> None:
    """End a Job, unless it has ended."""
    if job.is_over or job.leaving:
        return
    if job.suspended and not job.active:
        # The time limit of a Job that waits in a queue does not count down.
        place.delete("Job", job.name)
    else:
        place.patch_job(job.name, _at_once())


def _at_once() -> Mapping[str, object]:
    """The change that ends a Job."""
    notes = {"annotations": {CANCELED_NOTE: str(int(time.time()))}}
    return {"metadata": notes, "spec": {"activeDeadlineSeconds": _AT_ONCE}}


def _info(job: KubernetesJob, pods: Sequence[Pod], events: Mapping[str, str], shown: replies.Shown) -> RunInfo:
    """A job's state with its current size: the server does not record when it changed."""
    now = NodeChange(time.time(), replies.running_nodes(pods), job.nodes, seen=True)
    return replace(replies.job_info(job, pods, events, shown), changes=(now,), states=states_over_time(job, pods))


def _read_pod(place: Kubectl, pod: str, since: str) -> str:
    query = {"container": CONTAINER, "timestamps": "true", **({"sinceTime": since} if since else {})}
    return place.read(place.path("Pod", pod, "log", **query))
