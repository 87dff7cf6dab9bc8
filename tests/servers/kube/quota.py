"""Resource quotas: how many pods, and how much of each resource, a namespace may hold."""

from __future__ import annotations

from tests.servers.kube.errors import Refused
from tests.servers.kube.quantities import parse
from tests.servers.kube.store import TERMINAL, Object, Store


def wanted(pod: Object, name: str) -> float:
    """How much of a resource its containers ask for together."""
    amounts = [each["resources"].get("requests", {}).get(name, "0") for each in pod["spec"]["containers"]]
    return float(sum(parse(each) for each in amounts))


def admit_pod(store: Store, pod: Object) -> None:
    """Refuse a pod that goes beyond a quota of its namespace."""
    meta = pod["metadata"]
    there = [each for each in store.list("Pod", meta["namespace"]) if each["status"].get("phase") not in TERMINAL]
    for quota in store.list("ResourceQuota", meta["namespace"]):
        for name, most in quota["spec"].get("hard", {}).items():
            key = name.removeprefix("requests.")
            asked = 1.0 if name == "pods" else wanted(pod, key)
            used = float(len(there)) if name == "pods" else sum(wanted(each, key) for each in there)
            if asked and used + asked > parse(most):
                text = f"requested: {name}={asked:g}, used: {name}={used:g}, limited: {name}={most}"
                raise Refused(
                    403, f'pods "{meta["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {text}'
                )
