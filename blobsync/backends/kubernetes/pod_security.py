"""Pod Security Standards: the level that a namespace enforces, and the fields that a pod gets for ``restricted``.

https://kubernetes.io/docs/concepts/security/pod-security-standards/,
https://kubernetes.io/docs/concepts/security/pod-security-admission/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blobsync.backends.kubernetes.kubectl import KubernetesRefusal
from blobsync.backends.kubernetes.namespace import Place
from blobsync.base.errors import BackendDeniedError, JobNotFoundError
from blobsync.base.plain_json import plain

RESTRICTED = "restricted"
_ENFORCED = "pod-security.kubernetes.io/enforce"
# The first user id of most systems, and often that of an image's own user.
_USER = 1000

# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/: the fields of containers only. Of the
# others, some are of pods only, and some of both: our pods have one container.
_OF_CONTAINERS = frozenset(
    {"allowPrivilegeEscalation", "capabilities", "privileged", "procMount", "readOnlyRootFilesystem"}
)
_OF_PODS = frozenset(
    {
        *("appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser"),
        *("seLinuxChangePolicy", "seLinuxOptions", "seccompProfile", "supplementalGroups"),
        *("supplementalGroupsPolicy", "sysctls", "windowsOptions"),
    }
)
FIELDS = _OF_CONTAINERS | _OF_PODS


@dataclass(frozen=True, slots=True)
class SecurityContext:
    """``securityContext`` of a pod and of its container."""

    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SecurityContext:
        """Assign each field to the pod or the container; all are among ``FIELDS``."""
        return cls(
            {name: plain(value) for name, value in fields.items() if name in _OF_PODS},
            {name: plain(value) for name, value in fields.items() if name in _OF_CONTAINERS},
        )


RESTRICTED_CONTEXT = SecurityContext.of(
    {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
)


def restrict(pod: dict[str, Any]) -> None:
    """Add to the specification of a pod what level ``restricted`` requires, unless the cluster file sets it."""
    for part, wanted in ((pod, RESTRICTED_CONTEXT.pod), (pod["containers"][0], RESTRICTED_CONTEXT.container)):
        part["securityContext"] = {**copy.deepcopy(dict(wanted)), **part.get("securityContext", {})}


def enforced_level(place: Place) -> str:
    """``restricted``, ``baseline`` or ``privileged``; empty if the namespace has no level, or may not be read."""
    try:
        answer = place.get("Namespace", place.namespace)
    except (BackendDeniedError, JobNotFoundError, KubernetesRefusal):
        return ""
    metadata = answer.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return str(labels.get(_ENFORCED) or "") if isinstance(labels, Mapping) else ""
