"""One namespace of one cluster: the paths of its objects, its level of Pod Security, and Kueue's queues in it.

https://kueue.sigs.k8s.io, https://kubernetes.io/docs/concepts/security/pod-security-admission/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

from blobsync.backends.kubernetes.kubectl import CLUSTER_WIDE, Kubectl, KubernetesRefusal
from blobsync.backends.kubernetes.object_names import MANAGED_BY, RUN_LABEL, US
from blobsync.base.errors import BackendDeniedError, BackendUnavailableError, JobNotFoundError, SubmissionError
from blobsync.jobspec.spec import JobRef

# Up to so many jobs are requested by their names; for more, all of ours.
_BY_NAME = 50
_AT_A_TIME = 4
_GROUPS = {
    "CSIDriver": "/apis/storage.k8s.io/v1",
    "Job": "/apis/batch/v1",
    "PriorityClass": "/apis/scheduling.k8s.io/v1",
}
NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
CONTEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,253}")


_One = TypeVar("_One")
_Made = TypeVar("_Made")


class Place:
    """A namespace with jobs; by default the context's own."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self._given = namespace

    @property
    def namespace(self) -> str:
        self._given = self._given or self.kubectl.current_namespace()
        return self._given

    @property
    def record(self) -> str:
        """The context and namespace in a job's record, for later commands."""
        return f"{self.kubectl.current_context()}/{self.namespace}"

    def everywhere(self, kind: str) -> str:
        """The path of all objects of a kind, in all namespaces."""
        return f"{_GROUPS.get(kind, '/api/v1')}/{_plural(kind)}"

    def path(self, kind: str, *names: str, **query: str) -> str:
        """The path of one object, or of all of a kind."""
        base = _GROUPS.get(kind, "/api/v1")
        inside = "" if _plural(kind) in CLUSTER_WIDE else f"/namespaces/{quote(self.namespace, safe='')}"
        parts = "/".join(quote(name, safe="") for name in (_plural(kind), *names))
        words = "&".join(f"{key}={quote(value, safe='/,:.()+=-')}" for key, value in query.items())
        return f"{base}{inside}/{parts}" + (f"?{words}" if words else "")

    def get(self, kind: str, *names: str, **query: str) -> dict[str, Any]:
        return self.kubectl.get(self.path(kind, *names, **query))

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.kubectl.create(self.path(str(body["kind"])), body)

    def replace(self, body: Mapping[str, Any]) -> None:
        self.kubectl.replace(self.path(str(body["kind"]), str(body["metadata"]["name"])), body)

    def delete(self, kind: str, name: str) -> None:
        self.kubectl.delete(self.path(kind, name))

    def patch_job(self, name: str, change: Mapping[str, Any]) -> None:
        self.kubectl.patch(self.namespace, name, change)

    def ours(self, kind: str, names: Sequence[str] = ()) -> dict[str, Any]:
        """The objects of a kind that belong to these jobs, or, for many, to all of ours."""
        if 0 < len(names) <= _BY_NAME:
            return self.get(kind, labelSelector=f"{RUN_LABEL} in ({','.join(names)})".replace(" ", "+"))
        return self.get(kind, labelSelector=f"{MANAGED_BY}={US}")


def at_a_time(call: Callable[[_One], _Made], each: Iterable[_One]) -> list[_Made]:
    """The results of requests, some at a time: each runs kubectl once."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return [*pool.map(call, each)]


def _plural(kind: str) -> str:
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def recorded_place(ref: JobRef) -> tuple[str, str] | None:
    """Context and namespace of a job's record; None if it has none."""
    context, _, namespace = ref.place.rpartition("/")
    fine = CONTEXT.fullmatch(context) and NAMESPACE.fullmatch(namespace)
    return (context, namespace) if fine else None


_ENFORCED = "pod-security.kubernetes.io/enforce"
_KUEUE = "/apis/kueue.x-k8s.io"
_VERSION = re.compile(r"kueue\.x-k8s\.io/v[0-9a-z]{1,20}")


def enforced_level(place: Place) -> str:
    """``restricted``, ``baseline`` or ``privileged``; empty if the namespace has no level, or may not be read."""
    try:
        answer = place.get("Namespace", place.namespace)
    except (BackendDeniedError, JobNotFoundError, KubernetesRefusal):
        return ""
    metadata = answer.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return str(labels.get(_ENFORCED) or "") if isinstance(labels, Mapping) else ""


def demand_queue(place: Place, queue: str) -> None:
    """Raises ``SubmissionError`` for a queue that would never start a job, and errors of the request.

    https://kubernetes.io/docs/reference/using-api/#api-groups: a group says which version it prefers.
    """
    try:
        preferred = place.kubectl.get(_KUEUE).get("preferredVersion")
    except JobNotFoundError:
        raise SubmissionError(
            f"the cluster has no Kueue, so a job in queue {queue} would wait forever",
            hint="omit kubernetes.queue, or install Kueue",
        ) from None
    version = str(preferred.get("groupVersion")) if isinstance(preferred, dict) else ""
    if not _VERSION.fullmatch(version):
        raise BackendUnavailableError("cannot find out which version of Kueue the cluster runs")
    namespace = place.namespace
    try:
        place.kubectl.get(f"/apis/{version}/namespaces/{namespace}/localqueues/{queue}")
    except JobNotFoundError:
        shown = place.kubectl.shown("get", "localqueues", "-n", namespace)
        raise SubmissionError(
            f"the namespace {namespace} has no queue {queue}, so the job would wait forever",
            hint=f"see what there is: {shown}",
        ) from None
