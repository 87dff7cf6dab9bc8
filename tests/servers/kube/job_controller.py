"""The Job controller: creates and ends pods as ``job_state`` decides, and records their results."""

from __future__ import annotations

import copy
import time
from typing import Any

from tests.servers.kube import job_state, pod_security, rules
from tests.servers.kube.defaults import prepare
from tests.servers.kube.errors import Refused
from tests.servers.kube.events import tell
from tests.servers.kube.job_state import FAILURES, IGNORED, INDEX, TRACKED, Finish, Picture
from tests.servers.kube.quota import admit_pod
from tests.servers.kube.resources import of_kind
from tests.servers.kube.store import TERMINAL, Object, Store, age, stamp

_BY = "job-controller"


# Seconds for which changes of pods are collected before the Job is synced; a change of the Job is synced at once.
_GATHERED_FOR = 1.0
# Seconds before pods of a Job are created again after a refusal; a real controller waits longer each time.
_AFTER_A_REFUSAL = 0.5


class JobController:
    """``scale`` is that of time: 0.1 makes the ten seconds before a second attempt one."""

    def __init__(self, store: Store, scale: float) -> None:
        self._store, self._scale = store, scale
        self._seen: dict[str, tuple[int, frozenset[str]]] = {}
        self._changed: dict[str, float] = {}
        self._refused: dict[str, float] = {}

    def sync(self) -> None:
        with self._store.lock:
            for job in self._store.list("Job"):
                if "deletionTimestamp" not in job["metadata"] and self._is_due(job):
                    self._sync(job)
                    self._seen[job["metadata"]["uid"]] = self._versions(job)
                    self._changed.pop(job["metadata"]["uid"], None)
            self._release_orphans()

    def _is_due(self, job: Object) -> bool:
        uid = job["metadata"]["uid"]
        before, now = self._seen.get(uid), self._versions(job)
        if before is None or before[0] != now[0] or before == now:
            return True
        since = self._changed.setdefault(uid, time.monotonic())
        return time.monotonic() - since >= _GATHERED_FOR * self._scale

    def _versions(self, job: Object) -> tuple[int, frozenset[str]]:
        pods = frozenset(pod["metadata"]["resourceVersion"] for pod in self._pods(job))
        return job["metadata"]["generation"], pods

    def _sync(self, job: Object) -> None:
        if job_state.is_finished(job):
            self._expire(job)
            return
        picture = Picture(job, self._pods(job), self._scale)
        status = copy.deepcopy(job["status"])
        if finish := picture.finish():
            self._end_pods(picture.active, job, release=False)
            self._finish(picture, status, finish)
            return
        if surplus := picture.surplus():
            self._end_pods(surplus, job, release=True)
        else:
            self._start_pods(picture)
        self._suspension(job, status)
        self._record(job, status, Picture(job, self._pods(job), self._scale), None)

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        found = self._store.list("Pod", job["metadata"]["namespace"])
        return [pod for pod in found if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences", []))]

    def _suspension(self, job: Object, status: dict[str, Any]) -> None:
        suspended = job["spec"]["suspend"]
        if not suspended and "startTime" not in status:
            status["startTime"] = stamp()
        known = next((each for each in status.get("conditions", []) if each["type"] == "Suspended"), None)
        if suspended and (known is None or known["status"] != "True"):
            status.pop("startTime", None)
            _set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended")
            tell(self._store, job, "Suspended", "Job suspended", by=_BY)
        elif not suspended and known is not None and known["status"] == "True":
            _set_condition(status, "Suspended", "False", "JobResumed", "Job resumed")
            tell(self._store, job, "Resumed", "Job resumed", by=_BY)

    def _start_pods(self, picture: Picture) -> None:
        uid = picture.job["metadata"]["uid"]
        if time.monotonic() - self._refused.get(uid, -_AFTER_A_REFUSAL) < _AFTER_A_REFUSAL:
            return
        for index in picture.missing():
            pod = _new_pod(picture, index)
            try:
                prepare(pod)
                rules.check(pod, of_kind("Pod"))
                pod_security.admit_pod(self._store, pod)
                admit_pod(self._store, pod)
                made = self._store.create(pod)
            except Refused as refused:
                tell(self._store, picture.job, "FailedCreate", f"Error creating: {refused}", by=_BY, warning=True)
                self._refused[uid] = time.monotonic()
                return
            text = f"Created pod: {made['metadata']['name']}"
            tell(self._store, picture.job, "SuccessfulCreate", text, by=_BY)

    def _end_pods(self, pods: list[Object], job: Object, *, release: bool) -> None:
        """``release``: the pod is not counted, so that its finalizer is removed first."""
        for pod in pods:
            if release:
                self._store.modify(pod, _untracked)
            self._store.delete(pod)
            tell(self._store, job, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}", by=_BY)

    def _finish(self, before: Picture, status: dict[str, Any], finish: Finish) -> None:
        job = before.job
        if job_state.condition(job, finish.interim) is None:
            _set_condition(status, finish.interim, "True", finish.reason, finish.message)
        now = self._record(job, status, Picture(job, self._pods(job), self._scale), finish)
        pods = self._pods(now)
        if any(job_state.is_terminating(pod) or job_state.is_tracked(pod) for pod in pods):
            return
        status = now["status"]
        _set_condition(status, finish.final, "True", finish.reason, finish.message)
        if finish.final == "Complete":
            status["completionTime"] = stamp()
            tell(self._store, job, "Completed", "Job completed", by=_BY)
        else:
            tell(self._store, job, finish.reason, finish.message, by=_BY, warning=True)
        self._store.update(now)

    def _record(self, job: Object, status: dict[str, Any], picture: Picture, finish: Finish | None) -> Object:
        """Count ended pods: record their uids, remove their finalizers, then count. Returns the updated Job."""
        _numbers(status, picture)
        counted, released = self._counted(picture, finish)
        failed = [pod["metadata"]["uid"] for pod in counted if pod["status"].get("phase") != "Succeeded"]
        uncounted: dict[str, Any] = {"failed": failed} if failed else {}
        if not picture.indexed:
            good = [pod["metadata"]["uid"] for pod in counted if pod["status"].get("phase") == "Succeeded"]
            uncounted |= {"succeeded": good} if good else {}
        status["uncountedTerminatedPods"] = uncounted
        job = self._store.update({**job, "status": copy.deepcopy(status)})
        for pod in [*counted, *released]:
            self._store.modify(pod, _untracked)
        if uncounted:
            status = copy.deepcopy(job["status"])
            status["uncountedTerminatedPods"] = {}
            for kind, ids in uncounted.items():
                status[kind] = status.get(kind, 0) + len(ids)
            job = self._store.update({**job, "status": status})
        return job

    def _counted(self, picture: Picture, finish: Finish | None) -> tuple[list[Object], list[Object]]:
        """The pods to count, and those only to release."""
        counted, released = [], []
        for pod in (pod for pod in picture.pods if job_state.is_tracked(pod)):
            ended = pod["status"].get("phase") in TERMINAL
            waits = picture.per_index and pod in picture.delayed.values() and finish is None
            lost = finish is not None and not ended and "deletionTimestamp" in pod["metadata"]
            if waits or not (ended or lost):
                continue
            outside = picture.indexed and job_state.index_of(pod) >= picture.size
            failed = pod["status"].get("phase") == "Failed"
            ignored = failed and job_state.judged(picture.job, pod).action == "Ignore"
            if outside or ignored or (lost and finish is not None and finish.final == "Complete"):
                released.append(pod)
            else:
                counted.append(pod)
        return counted, released

    def _expire(self, job: Object) -> None:
        keep = job["spec"].get("ttlSecondsAfterFinished")
        ends = [
            each["lastTransitionTime"] for each in job["status"]["conditions"] if each["type"] in ("Complete", "Failed")
        ]
        if keep is not None and age(max(ends)) >= keep * self._scale:
            self._store.delete(job, policy="Foreground")

    def _release_orphans(self) -> None:
        """Remove the Job's finalizer from a pod whose Job is gone."""
        jobs = {job["metadata"]["uid"] for job in self._store.list("Job") if "deletionTimestamp" not in job["metadata"]}
        for pod in self._store.list("Pod"):
            owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", []) if each["kind"] == "Job"}
            if job_state.is_tracked(pod) and not owners & jobs:
                self._store.modify(pod, _untracked)


def _numbers(status: dict[str, Any], picture: Picture) -> None:
    status |= {"active": len(picture.active), "ready": sum(map(job_state.is_ready, picture.active))}
    status["terminating"] = len(picture.terminating)
    if not status["active"]:
        del status["active"]
    if picture.indexed:
        status["completedIndexes"] = job_state.gathered(picture.succeeded)
        status["succeeded"] = len(picture.succeeded)
        for name in [name for name in ("completedIndexes", "succeeded") if not status[name]]:
            del status[name]
    if picture.per_index and not picture.spec["suspend"]:
        status["failedIndexes"] = job_state.gathered(picture.failed)


def _set_condition(status: dict[str, Any], kind: str, value: str, reason: str, message: str) -> None:
    now = stamp()
    new = {"type": kind, "status": value, "lastProbeTime": now, "lastTransitionTime": now}
    new |= {"reason": reason, "message": message}
    others = [each for each in status.get("conditions", []) if each["type"] != kind]
    status["conditions"] = [*others, new]


def _untracked(pod: Object) -> None:
    kept = [each for each in pod["metadata"].get("finalizers", []) if each != TRACKED]
    if kept:
        pod["metadata"]["finalizers"] = kept
    else:
        pod["metadata"].pop("finalizers", None)


def _new_pod(picture: Picture, index: int) -> Object:
    job = picture.job
    name, template = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
    labels, annotations = template["metadata"]["labels"], template["metadata"].get("annotations", {})
    prefix, spec = f"{name}-", template["spec"]
    if picture.indexed:
        prefix = f"{name}-{index}-"
        labels[INDEX] = annotations[INDEX] = str(index)
        spec["hostname"] = f"{name}-{index}"
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            mine = container.get("env") or []
            container["env"] = [*mine, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]
    if picture.per_index:
        last = picture.delayed.get(index)
        ignored = last is not None and job_state.judged(job, last).action == "Ignore"
        count = (job_state.failures(last, FAILURES) + (not ignored)) if last else 0
        annotations[FAILURES] = str(count)
        if last and (skipped := job_state.failures(last, IGNORED) + ignored):
            annotations[IGNORED] = str(skipped)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    meta = {"generateName": prefix, "namespace": job["metadata"]["namespace"], "labels": labels}
    meta |= {"annotations": annotations, "finalizers": [TRACKED]}
    meta |= {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec}
