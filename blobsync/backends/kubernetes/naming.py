"""What the objects of a job are called, and how they are found again. Pure."""

from __future__ import annotations

import hashlib
import re

from blobsync.jobspec.spec import run_name

# A pod's host name is NAME-INDEX, and a label of DNS has 63 characters at most; there are not 10,000 nodes.
_LONGEST = 63 - len("-9999")
_HASH_CHARS = 8

MANAGED_BY = "app.kubernetes.io/managed-by"
US = "blobsync"
# Our own labels and annotations.
RUN_LABEL = "blobsync.dev/run"
RUN_ID_NOTE = "blobsync.dev/run-id"
RELEASED_NOTE = "blobsync.dev/released"
RENEWED_NOTE = "blobsync.dev/renewed"
CANCELED_NOTE = "blobsync.dev/canceled"
CONTAINER_NOTE = "blobsync.dev/container"
# How many nodes an elastic job needs to run.
LEAST_NOTE = "blobsync.dev/least-nodes"
# https://kueue.sigs.k8s.io/docs/tasks/run/jobs/; the note lets a plain Job change its size (no run has shown it).
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC_NOTE = "kueue.x-k8s.io/elastic-job"

# The Job controller's own, https://kubernetes.io/docs/reference/labels-annotations-taints/
JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
FAILURES_NOTE = "batch.kubernetes.io/job-index-failure-count"
IGNORED_NOTE = "batch.kubernetes.io/job-index-ignored-failure-count"


def object_name(run_id: str) -> str:
    """The name of a job's objects: lower case, no underscore, a letter first, room for a node's number.

    What is cut, or had capitals, gets a part of its SHA-256, so that such jobs do not share a name.
    Raises ``UnsafeNameError`` for what is no id of a job.
    """
    plain = re.sub(r"[^a-z0-9-]", "-", run_name(run_id).lower()).strip("-")
    name = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    if len(name) > _LONGEST or run_id != run_id.lower():
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:_HASH_CHARS]
        name = f"{name[: _LONGEST - _HASH_CHARS - 1].rstrip('-')}-{digest}"
    return name


def pull_name(name: str) -> str:
    """The Secret with the registry's login, of the job whose objects have this name."""
    return f"{name}-pull"
