"""Settings of Kubernetes in a cluster file, validated as the server would. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from blobsync.backends.kubernetes.kubectl import CONTEXT, NAMESPACE
from blobsync.backends.protocol import settings_of
from blobsync.base.errors import ConfigError
from blobsync.base.plain_json import plain
from blobsync.base.records import dataclass
from blobsync.config.known_keys import nearest
from blobsync.config.model import Cluster

# How long a Job and its logs are kept after its end.
_TTL_DAYS = 7
_GPU_RESOURCE = "nvidia.com/gpu"
_PYTHON = "python3"
_MOST_DAYS = 3650

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
# The value of a label.
_QUEUE = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_QUALIFIED = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[mkMGTPE]|[KMGTPE]i|e[0-9]{1,2})?")
# docker's units are powers of two: https://docs.docker.com/reference/cli/docker/container/run/
_DOCKER_SIZE = re.compile(r"([0-9]+)([bkmg]?)")
_BINARY = {"b": "", "k": "Ki", "m": "Mi", "g": "Gi", "": ""}
_IMAGE = re.compile(r"[A-Za-z0-9][\x21-\x7e]{0,511}")

RESTRICTED = "restricted"
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
_FIELDS = _OF_CONTAINERS | _OF_PODS


@dataclass(frozen=True, slots=True)
class SecurityContext:
    """``securityContext`` of a pod and of its container.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """

    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SecurityContext:
        """Assign each field to the pod or the container; all are among ``_FIELDS``."""
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


class KubernetesSettings:
    """``kubernetes:`` of a cluster file, with ``docker:`` and ``runtime:``. Empty texts: not set.

    An empty ``context`` or ``namespace`` is kubectl's current one. ``registry`` are the address and the user of the
    image's registry; None: no login. The password is read from the cluster file when it is needed.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Raises ``ConfigError`` for what a server would refuse."""
        settings = settings_of(cluster)
        tolerations: Any = cluster.value("kubernetes.tolerations") or ()
        days = cluster.number("kubernetes.ttl_days", _TTL_DAYS)
        if days is None or days > _MOST_DAYS:
            raise _error(cluster, "ttl_days", f"must be at most {_MOST_DAYS}")
        self.image = _image(cluster)
        self.context = _text(cluster, "context", CONTEXT, "the name of a context: kubectl config get-contexts")
        self.namespace = _text(cluster, "namespace", NAMESPACE, "the name of a namespace")
        self.service_account = _text(cluster, "service_account", _SUBDOMAIN, "the name of a service account")
        self.node_selector = _node_selector(cluster)
        self.tolerations = tuple(_toleration(cluster, value) for value in tolerations)
        self.priority_class = _text(cluster, "priority_class", _SUBDOMAIN, "the name of a priority class")
        self.queue = _text(cluster, "queue", _QUEUE, "the name of one of Kueue's local queues")
        self.cpu = _text(cluster, "cpu", _QUANTITY, "a number of CPUs: 4, 500m")
        self.memory = _text(cluster, "memory", _QUANTITY, "an amount of memory: 64Gi")
        self.shm_size = _text(cluster, "shm_size", _QUANTITY, "an amount of memory: 16Gi") or _docker_shm(cluster)
        self.pull_secret = _text(cluster, "pull_secret", _SUBDOMAIN, "the name of a secret")
        self.ttl_days = days
        self.gpu_resource = _text(cluster, "gpu_resource", _QUALIFIED, "the name of a resource") or _GPU_RESOURCE
        self.security = _security(cluster)
        self.registry = _registry(cluster)
        self.python = str(settings.get("python") or _PYTHON)
        self.scratch = str(settings.get("scratch") or "")
        self.keep_root = str(settings.get("keep_root") or "never")
        self.sync_seconds = int(settings.get("sync_seconds") or 60)


def _text(cluster: Cluster, key: str, form: re.Pattern[str], what: str) -> str:
    value = cluster.text(f"kubernetes.{key}") or ""
    if value and not form.fullmatch(value):
        raise _error(cluster, key, f"{value[:80]!a} is not {what}")
    return value


def _error(cluster: Cluster, key: str, message: str, hint: str | None = None) -> ConfigError:
    return cluster.error(("kubernetes", key), message, hint=hint)


def _image(cluster: Cluster) -> str:
    image = cluster.text("kubernetes.image") or cluster.docker.reference or ""
    if not image:
        raise _error(cluster, "image", "is missing: a pod needs an image", "kubernetes: {image: registry/name:tag}")
    if not _IMAGE.fullmatch(image):
        raise _error(cluster, "image", f"{image[:80]!a} is not the name of an image")
    return cluster.docker.at_registry(image)


def _security(cluster: Cluster) -> SecurityContext:
    value = cluster.value("kubernetes.security_context")
    if value == RESTRICTED:
        return RESTRICTED_CONTEXT
    if value is not None and not isinstance(value, Mapping):
        known = f"{RESTRICTED}, or a mapping of fields of Kubernetes: {{runAsUser: 1000}}"
        raise _error(cluster, "security_context", f"{str(value)[:80]!a} is not {known}")
    fields: Mapping[str, Any] = value or {}
    if unknown := sorted(fields.keys() - _FIELDS):
        guess = nearest(unknown[0], _FIELDS)
        hint = f"did you mean {guess}?" if guess else "kubectl explain pod.spec.containers.securityContext"
        raise _error(cluster, "security_context", f"{unknown[0][:80]!a} is not a field of a security context", hint)
    return SecurityContext.of(fields)


def _registry(cluster: Cluster) -> tuple[str, str] | None:
    docker = cluster.docker
    if not docker.password:
        return None
    if not docker.username or not docker.address:
        missing = "username" if not docker.username else "address"
        raise cluster.error(("docker", missing), "needs a password, a username and an address")
    return docker.address, docker.username


def _docker_shm(cluster: Cluster) -> str:
    size = cluster.docker.shm_size or ""
    match = _DOCKER_SIZE.fullmatch(size.lower())
    if size and not match:
        raise cluster.error(("docker", "shm_size"), f"{size!a} is not a size: 64g")
    return f"{match[1]}{_BINARY[match[2]]}" if match else ""


def _node_selector(cluster: Cluster) -> Mapping[str, str]:
    found = {}
    for name, value in cluster.mapping("kubernetes.node_selector").items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not _QUALIFIED.fullmatch(name) or not _LABEL_VALUE.fullmatch(text):
            raise _error(cluster, "node_selector", f"{name[:80]!a}: {text[:80]!a} is not a label of nodes")
        found[name] = text
    return found


# The server requires this of a toleration, no schema does.
_RULES: tuple[tuple[Callable[[Mapping[str, str]], bool], str], ...] = (
    (lambda one: one.get("operator") == "Exists" and bool(one.get("value")), "operator: Exists takes no value"),
    (lambda one: not one.get("key") and one.get("operator") != "Exists", "without a key, it needs operator: Exists"),
)


def _toleration(cluster: Cluster, value: Mapping[str, Any]) -> Mapping[str, str]:
    one = {name: str(text) for name, text in value.items()}
    for is_wrong, sentence in _RULES:
        if is_wrong(one):
            raise _error(cluster, "tolerations", sentence)
    if one.get("key") and not _QUALIFIED.fullmatch(one["key"]):
        raise _error(cluster, "tolerations", f"{one['key'][:80]!a} is not the key of a taint")
    return one
