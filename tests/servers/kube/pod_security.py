"""Pod Security admission: labels of a namespace restrict its pods.

``pod-security.kubernetes.io/enforce`` refuses pods; ``.../warn`` (else what is enforced) warns of pods that a Job would
make. The checks and their words are those of ``k8s.io/pod-security-admission/policy``; of volumes and host ports, only
what a manifest of these tests could have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.servers.kube.errors import Refused
from tests.servers.kube.store import Object, Store

_LABEL = "pod-security.kubernetes.io/"
_VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
Container = dict[str, Any]


def admit_pod(store: Store, pod: Object) -> None:
    """Refuse a pod that its namespace does not admit."""
    meta = pod["metadata"]
    level, version = _level(store, meta["namespace"], "enforce")
    if found := ", ".join(violations(level, pod["spec"])):
        name = meta.get("name", "")
        text = f'pods "{name}" is forbidden: violates PodSecurity "{level}:{version}": {found}'
        raise Refused(403, text, details={"name": name, "kind": "pods"})


def warnings_of(store: Store, job: Object) -> tuple[str, ...]:
    """The server's warning about a Job whose pods its namespace would not admit."""
    namespace = job["metadata"]["namespace"]
    level, version = _level(store, namespace, "warn")
    if not level:
        level, version = _level(store, namespace, "enforce")
    found = ", ".join(violations(level, job["spec"]["template"]["spec"]))
    return (f'would violate PodSecurity "{level}:{version}": {found}',) if found else ()


def _level(store: Store, namespace: str, mode: str) -> tuple[str, str]:
    found = store.find("Namespace", "", namespace)
    labels = found["metadata"].get("labels", {}) if found else {}
    return str(labels.get(f"{_LABEL}{mode}", "")), str(labels.get(f"{_LABEL}{mode}-version", "latest"))


def violations(level: str, spec: dict[str, Any]) -> Iterator[str]:
    """The violations of a level by a pod's specification."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    if level in ("baseline", "restricted"):
        yield from _baseline(spec, containers)
    if level == "restricted":
        yield from _restricted(spec, containers)


def _baseline(spec: dict[str, Any], containers: list[Container]) -> Iterator[str]:
    shared = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if shared:
        yield f"host namespaces ({', '.join(shared)})"
    if paths := [each["name"] for each in spec.get("volumes") or [] if "hostPath" in each]:
        yield f"hostPath volumes ({_several('volume', paths)})"
    if named := _named(containers, lambda one: bool(_own(one).get("privileged"))):
        yield f"privileged ({named} must not set securityContext.privileged=true)"


def _restricted(spec: dict[str, Any], containers: list[Container]) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    if named := _named(containers, lambda one: _own(one).get("allowPrivilegeEscalation") is not False):
        yield f"allowPrivilegeEscalation != false ({named} must set securityContext.allowPrivilegeEscalation=false)"
    if named := _named(containers, lambda one: "ALL" not in ((_own(one).get("capabilities") or {}).get("drop") or [])):
        yield f'unrestricted capabilities ({named} must set securityContext.capabilities.drop=["ALL"])'
    others = [each["name"] for each in spec.get("volumes") or [] if not each.keys() & set(_VOLUMES)]
    if others:
        yield f"restricted volume types ({_several('volume', others)} uses restricted volume type)"
    if named := _named(containers, lambda one: (_own(one).get("runAsNonRoot", pod.get("runAsNonRoot"))) is not True):
        yield f"runAsNonRoot != true (pod or {named} must set securityContext.runAsNonRoot=true)"
    if pod.get("runAsUser") == 0:
        yield "runAsUser=0 (pod must not set runAsUser=0)"
    elif named := _named(containers, lambda one: _own(one).get("runAsUser") == 0):
        yield f"runAsUser=0 ({named} must not set runAsUser=0)"
    kinds = ("RuntimeDefault", "Localhost")
    if named := _named(containers, lambda one: _seccomp(one, pod) not in kinds):
        yield (
            f'seccompProfile (pod or {named} must set securityContext.seccompProfile.type to "RuntimeDefault" or '
            '"Localhost")'
        )


def _own(container: Container) -> dict[str, Any]:
    return container.get("securityContext") or {}


def _seccomp(container: Container, pod: dict[str, Any]) -> str:
    return str((_own(container).get("seccompProfile") or pod.get("seccompProfile") or {}).get("type", ""))


def _named(containers: list[Container], is_wrong: Callable[[Container], bool]) -> str:
    return _several("container", [each["name"] for each in containers if is_wrong(each)])


def _several(what: str, names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names)
    return f"{what}{'s' if len(names) > 1 else ''} {shown}" if names else ""
