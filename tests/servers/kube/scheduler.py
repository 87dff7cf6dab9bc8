"""The scheduler, the garbage collector, and the handling of lost nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.servers.kube.events import tell
from tests.servers.kube.job_state import is_active
from tests.servers.kube.quantities import parse
from tests.servers.kube.quota import wanted
from tests.servers.kube.store import TERMINAL, Object, Store, age, stamp

# How long a pod outlives its node: pods are collected every 20 s, and a node may come back for 40 s.
_ORPHANED_AFTER = 40.0
_OWNED = ("Job", "Pod", "Secret", "Service", "ConfigMap", "PersistentVolumeClaim")
_HOSTNAME = "kubernetes.io/hostname"


class Scheduler:
    """``scale`` is that of time."""

    def __init__(self, store: Store, scale: float) -> None:
        self._store, self._scale = store, scale
        self._missing: dict[str, str] = {}

    def sync(self) -> None:
        with self._store.lock:
            nodes = self._store.list("Node")
            for pod in self._store.list("Pod"):
                if not pod["spec"].get("nodeName") and is_active(pod):
                    self._place(pod, nodes)
            self._lost(nodes)
            self._collect()

    def _place(self, pod: Object, nodes: list[Object]) -> None:
        for key in ("schedulingGates",):
            if pod["spec"].get(key):
                return
        faults = {node["metadata"]["name"]: self._unfit(pod, node) for node in nodes}
        fit = [name for name, fault in faults.items() if not fault]
        if fit:
            load = Counter(each["spec"].get("nodeName") for each in self._store.list("Pod") if is_active(each))
            self._bind(pod, min(fit, key=lambda name: load[name]))
            return
        message = _unfit_message(faults)
        known = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
        if known and known[0]["message"] == message:
            return
        new = {"type": "PodScheduled", "observedGeneration": 1, "status": "False", "lastProbeTime": None}
        new |= {"lastTransitionTime": stamp(), "reason": "Unschedulable", "message": message}
        tell(self._store, pod, "FailedScheduling", message, by="default-scheduler", warning=True)
        self._store.modify(pod, lambda each: each["status"].update(conditions=[new]))

    def _bind(self, pod: Object, node: str) -> None:
        def change(each: Object) -> None:
            each["spec"]["nodeName"] = node
            new = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp()}
            each["status"]["conditions"] = [new]

        self._store.modify(pod, change)
        meta = pod["metadata"]
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        tell(self._store, pod, "Scheduled", text, by="default-scheduler")

    def _unfit(self, pod: Object, node: Object) -> str:
        """The scheduler's reason why the node does not fit; empty if it does."""
        labels = {_HOSTNAME: node["metadata"]["name"], **node["metadata"].get("labels", {})}
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        for taint in node["spec"].get("taints", []):
            if taint["effect"] != "PreferNoSchedule" and not any(
                _tolerates(each, taint) for each in pod["spec"]["tolerations"]
            ):
                return f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
        there = [
            each
            for each in self._store.list("Pod")
            if each["spec"].get("nodeName") == node["metadata"]["name"] and each["status"].get("phase") not in TERMINAL
        ]
        whole = node["status"]["allocatable"]
        if len(there) >= parse(whole["pods"]):
            return "Too many pods"
        names = {name for each in pod["spec"]["containers"] for name in each["resources"].get("requests", {})}
        for name in sorted(names):
            if wanted(pod, name) + sum(wanted(each, name) for each in there) > parse(whole.get(name, "0")):
                return f"Insufficient {name}"
        return ""

    def _lost(self, nodes: list[Object]) -> None:
        """Mark the pods of a node that no longer exists as disrupted and failed, and remove them."""
        names = {node["metadata"]["name"] for node in nodes}
        for pod in self._store.list("Pod"):
            node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
            if not node or node in names:
                self._missing.pop(uid, None)
            elif age(self._missing.setdefault(uid, stamp())) >= _ORPHANED_AFTER * self._scale:
                self._store.modify(pod, _orphaned)
                self._store.delete(pod, 0)

    def _collect(self) -> None:
        """Delete objects whose owners are all gone, and owners in foreground deletion."""
        objects = [each for kind in _OWNED for each in self._store.list(kind)]
        known = {each["metadata"]["uid"]: each for each in objects}
        for each in objects:
            owners = [one["uid"] for one in each["metadata"].get("ownerReferences", [])]
            alive = [uid for uid in owners if uid in known and not _in_foreground(known[uid])]
            if owners and not alive and "deletionTimestamp" not in each["metadata"]:
                self._store.delete(each)
        owned = {one["uid"] for each in objects for one in each["metadata"].get("ownerReferences", [])}
        for each in objects:
            if _in_foreground(each) and each["metadata"]["uid"] not in owned:
                self._store.modify(each, _released)


def disrupt(store: Store, pod: Object, reason: str, message: str) -> None:
    """Add the condition that tells the Job that the pod was disrupted."""
    store.modify(pod, lambda each: _add_disruption(each, reason, message))


def _add_disruption(pod: Object, reason: str, message: str) -> None:
    others = [each for each in pod["status"].get("conditions", []) if each["type"] != "DisruptionTarget"]
    new = {"type": "DisruptionTarget", "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp()}
    pod["status"]["conditions"] = [*others, {**new, "reason": reason, "message": message}]


def _orphaned(pod: Object) -> None:
    if pod["status"].get("phase") not in TERMINAL:
        _add_disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists")
        pod["status"]["phase"] = "Failed"


def _in_foreground(obj: Object) -> bool:
    return "foregroundDeletion" in obj["metadata"].get("finalizers", [])


def _released(obj: Object) -> None:
    obj["metadata"]["finalizers"].remove("foregroundDeletion")


def _tolerates(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def _unfit_message(faults: dict[str, str]) -> str:
    count = len(faults)
    if not count:
        return "no nodes available to schedule pods"
    said = ", ".join(f"{many} {text}" for text, many in sorted(Counter(faults.values()).items()))
    helpless = f"preemption: 0/{count} nodes are available: {count} Preemption is not helpful for scheduling."
    return f"0/{count} nodes are available: {said}. no new claims to deallocate, {helpless}"
