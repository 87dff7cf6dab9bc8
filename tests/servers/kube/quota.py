"""Resource quotas: limit the pods and resources of a namespace."""

from __future__ import annotations

from tests.servers.kube.errors import Refused
from tests.servers.kube.quantities import parse
from tests.servers.kube.store import TERMINAL, Object, Store


def wanted(pod: Object, name: str) -> float:
    """The sum of its containers' requests for a resource."""
    amounts = [each["resources"].get("requests", {}).get(name, "0") for each in pod["spec"]["containers"]]
    return float(sum(parse(each) for each in amounts))


def admit_pod(store: Store, pod: Object) -> None:
    """Refuse a pod that exceeds a quota of its namespace, or does not set a counted resource.

    With the messages of k8s.io/apiserver's plugin resourcequota: all exceeded resources, by name.
    """
    meta = pod["metadata"]
    there = [each for each in store.list("Pod", meta["namespace"]) if each["status"].get("phase") not in TERMINAL]
    for quota in store.list("ResourceQuota", meta["namespace"]):
        called = quota["metadata"]["name"]
        if silent := _unsaid(pod, quota):
            raise Refused(403, f'pods "{meta["name"]}" is forbidden: failed quota: {called}: must specify {silent}')
        exceeded = []
        for name, most in sorted(quota["spec"].get("hard", {}).items()):
            key = name.removeprefix("requests.")
            asked = 1.0 if name == "pods" else wanted(pod, key)
            used = float(len(there)) if name == "pods" else sum(wanted(each, key) for each in there)
            if asked and used + asked > parse(most):
                exceeded.append((name, f"{asked:g}", f"{used:g}", most))
        if exceeded:
            columns = zip(*([f"{name}={one}" for one in values] for name, *values in exceeded), strict=True)
            said = zip(("requested", "used", "limited"), map(",".join, columns), strict=True)
            text = ", ".join(f"{word}: {amounts}" for word, amounts in said)
            raise Refused(403, f'pods "{meta["name"]}" is forbidden: exceeded quota: {called}, {text}')


def _unsaid(pod: Object, quota: Object) -> str:
    """The counted CPU and memory that containers do not set: ``cpu for: main``."""
    found = []
    for name in sorted(quota["spec"].get("hard", {})):
        part, _, key = name.rpartition(".")
        if key in ("cpu", "memory") and part in ("", "requests", "limits"):
            where = part or "requests"
            names = [each["name"] for each in pod["spec"]["containers"] if key not in each["resources"].get(where, {})]
            found += [f"{name} for: {','.join(names)}"] if names else []
    return "; ".join(found)
