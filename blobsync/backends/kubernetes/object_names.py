"""Names and labels of a job's objects. Pure."""

from __future__ import annotations

import hashlib
import re

from blobsync.base.records import NamedTuple
from blobsync.jobspec.spec import JobSpec, run_name

# A pod's host name is NAME-INDEX, or that of a task NAME-tTASK-INDEX, a DNS label of at most 63 characters; the numbers
# have at most four digits.
_LONGEST = 63 - len("-t9999-9999")
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
# The least nodes of an elastic job.
LEAST_NOTE = "blobsync.dev/least-nodes"
# How many tasks of an array.
TASKS_NOTE = "blobsync.dev/tasks"
# Of a sweep, also on its pods: the numbers of its tasks in the order of the indexes, as Slurm writes those of an array.
NUMBERS_NOTE = "blobsync.dev/task-numbers"
# Of a sweep whose tasks have several nodes, also on its pods: the task whose Job this is.
TASK_NOTE = "blobsync.dev/task"
# https://kueue.sigs.k8s.io/docs/tasks/run/jobs/; the annotation allows a plain Job to change its size (untested).
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC_NOTE = "kueue.x-k8s.io/elastic-job"

# The Job controller's labels, https://kubernetes.io/docs/reference/labels-annotations-taints/
JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
FAILURES_NOTE = "batch.kubernetes.io/job-index-failure-count"
IGNORED_NOTE = "batch.kubernetes.io/job-index-ignored-failure-count"


def object_name(run_id: str) -> str:
    """The name of a job's objects: lower case, no underscore, a letter first, short enough for a node's number.

    A name that was cut or had capitals gets a part of its SHA-256, so that it stays unique. Raises ``UnsafeNameError``
    for an invalid job id.
    """
    plain = re.sub(r"[^a-z0-9-]", "-", run_name(run_id).lower()).strip("-")
    name = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    if len(name) > _LONGEST or run_id != run_id.lower():
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:_HASH_CHARS]
        name = f"{name[: _LONGEST - _HASH_CHARS - 1].rstrip('-')}-{digest}"
    return name


class JobName(NamedTuple):
    """The names of one Job: of the job's other objects, and its own. ``task``: the one that it is, alone."""

    run: str
    own: str
    task: int | None = None


def job_names(spec: JobSpec) -> tuple[JobName, ...]:
    """The Jobs of a job: one, or where tasks have several nodes one for each, as a task begins and ends with all of
    its nodes. The first has the name of the other objects."""
    run = object_name(spec.run_id)
    if spec.tasks is None or spec.nodes == 1:
        return (JobName(run, run),)
    numbers = enumerate(spec.tasks.all_numbers)
    return tuple(JobName(run, f"{run}-t{place}" if place else run, number) for place, number in numbers)


def pull_name(name: str) -> str:
    """The name of the job's Secret with the registry's login."""
    return f"{name}-pull"
