"""Completes a created object: defaults, labels of the controller, names."""

from __future__ import annotations

import base64
import secrets
import uuid
from typing import Any

# The characters of generated names: no vowels, and no similar ones.
TERMINATION_PATH = "/dev/termination-log"
_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
MAX_INT32 = 2147483647


def random_suffix() -> str:
    return "".join(secrets.choice(_NAME_CHARACTERS) for _ in range(5))


def prepare(obj: dict[str, Any]) -> None:
    """Complete an object of any kind in place, before it is validated."""
    meta = obj["metadata"]
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + random_suffix()
    for key in ("resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"):
        meta.pop(key, None)
    meta["uid"] = str(uuid.uuid4())
    {"Job": _job, "Pod": _pod, "Service": _service, "Secret": _secret, "Namespace": _namespace}.get(
        obj["kind"], lambda _: None
    )(obj)


def complete_secret(obj: dict[str, Any]) -> None:
    """Merge ``stringData`` into ``data``, in base64."""
    for key, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _secret(obj: dict[str, Any]) -> None:
    complete_secret(obj)
    obj.setdefault("type", "Opaque")


def _namespace(obj: dict[str, Any]) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")
    obj["spec"], obj["status"] = {"finalizers": ["kubernetes"]}, {"phase": "Active"}


def _service(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    spec.setdefault("clusterIP", f"10.96.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}")
    spec |= {"clusterIPs": [spec["clusterIP"]], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
    for key, value in (("type", "ClusterIP"), ("sessionAffinity", "None"), ("internalTrafficPolicy", "Cluster")):
        spec.setdefault(key, value)
    obj["status"] = {"loadBalancer": {}}


def _job(obj: dict[str, Any]) -> None:
    spec, meta = obj.setdefault("spec", {}), obj["metadata"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", MAX_INT32 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    template = spec.setdefault("template", {})
    uid, name = meta["uid"], meta.get("name", "")
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    for prefix in ("", "batch.kubernetes.io/"):
        labels |= {f"{prefix}controller-uid": uid, f"{prefix}job-name": name}
    complete_template(template.setdefault("spec", {}), restart="")
    obj["status"] = {}


def _pod(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    complete_template(spec, restart="Always")
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        resources = container["resources"]
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    spec.setdefault("serviceAccountName", "default")
    spec |= {"serviceAccount": spec["serviceAccountName"], "enableServiceLinks": True, "priority": 0}
    spec["preemptionPolicy"] = "PreemptLowerPriority"
    tolerations = spec.setdefault("tolerations", [])
    keys = {each.get("key") for each in tolerations}
    for key in _TOLERATED:
        if key not in keys:
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    obj["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def complete_template(spec: dict[str, Any], *, restart: str) -> None:
    """Defaults of a pod's specification. A Job's template has no default restart policy."""
    if restart:
        spec.setdefault("restartPolicy", restart)
    for key, value in (("dnsPolicy", "ClusterFirst"), ("schedulerName", "default-scheduler")):
        spec.setdefault(key, value)
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", TERMINATION_PATH)
        container.setdefault("terminationMessagePolicy", "File")
        tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
        container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
        for port in container.get("ports") or []:
            port.setdefault("protocol", "TCP")
        for each in container.get("env") or []:
            if "fieldRef" in (each.get("valueFrom") or {}):
                each["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    for volume in spec.get("volumes") or []:
        for kind in ("secret", "configMap", "projected", "downwardAPI"):
            if isinstance(volume.get(kind), dict):
                volume[kind].setdefault("defaultMode", 0o644)


def _quality(spec: dict[str, Any]) -> str:
    """The class of service: guaranteed, burstable or best effort, by the requests of CPU and memory."""
    wanted = [each["resources"] for each in spec.get("containers", [])]
    if not any(key in each.get("requests", {}) for each in wanted for key in ("cpu", "memory")):
        return "BestEffort"
    whole = all(
        each.get("requests", {}).get(key) == each.get("limits", {}).get(key, "")
        for each in wanted
        for key in ("cpu", "memory")
    )
    return "Guaranteed" if whole else "Burstable"
