"""Kueue's local queues, into which the cluster file may put jobs: https://kueue.sigs.k8s.io"""

from __future__ import annotations

import re

from blobsync.backends.kubernetes.place import Place
from blobsync.base.errors import BackendUnavailableError, JobNotFoundError, SubmissionError

_KUEUE = "/apis/kueue.x-k8s.io"
_VERSION = re.compile(r"kueue\.x-k8s\.io/v[0-9a-z]{1,20}")


def demand_queue(place: Place, queue: str) -> None:
    """Raises ``SubmissionError`` where nobody would ever start a job of this queue, and what asking raises.

    https://kubernetes.io/docs/reference/using-api/#api-groups: a group says which version it prefers.
    """
    try:
        preferred = place.kubectl.get(_KUEUE).get("preferredVersion")
    except JobNotFoundError:
        raise SubmissionError(
            f"the cluster has no Kueue, so that a job of the queue {queue} would wait for ever",
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
            f"the namespace {namespace} has no queue {queue}, so that the job would wait for ever",
            hint=f"see what there is: {shown}",
        ) from None
