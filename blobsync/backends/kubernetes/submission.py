"""Creates the objects of one job: first the suspended Job, then the objects that it owns; then releases it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from blobsync.backends.kubernetes.kubectl import (
    Kubectl,
    KubernetesRefusal,
    at_a_time,
    demand_queue,
    enforced_level,
)
from blobsync.backends.kubernetes.object_names import QUEUE_LABEL, job_names, object_name, pull_name
from blobsync.backends.kubernetes.replies import KubernetesJob
from blobsync.backends.kubernetes.request import KubernetesRequest, mount_names
from blobsync.backends.kubernetes.settings import RESTRICTED
from blobsync.backends.protocol import DOUBTFUL, Outcome, Refused, Unknown
from blobsync.base.errors import (
    BackendDeniedError,
    BackendUnavailableError,
    BlobsyncError,
    JobNotFoundError,
    SubmissionError,
)
from blobsync.jobspec.spec import JobRef, JobSpec, Secrets


class Submission:
    """The submission of one job. Each step may be repeated."""

    def __init__(self, place: Kubectl, spec: JobSpec) -> None:
        self._place = place
        self._spec = spec
        self._name = object_name(spec.run_id)
        # As kubectl names it: ``Secret/NAME``.
        self._made: list[str] = []

    def carry_out(self, request: KubernetesRequest, secrets: Secrets, login: str) -> Outcome:
        """``login`` is the content of the pull secret."""
        try:
            ref = self.ref()
            self._place.check_versions()
            self._demand_queue(request)
            request = self._admitted(request)
            first, *others = request.suspended_jobs()
            jobs = [self._make_job(first), *at_a_time(self._make_job, others)]
        except DOUBTFUL as error:
            return self._find_lost(error)
        except BlobsyncError as error:
            return self._refused(error) if self._made else Refused(_submission_error(error))
        if jobs[0].released:
            return ref
        try:
            for body in request.owned([job.uid for job in jobs], secrets, login):
                self._make(body)
            release = request.release(int(time.time()))
            at_a_time(lambda job: self._place.patch_job(job.name, release), jobs[1:])
            # Last: what is said of a submission is said of this one.
            self._place.patch_job(self._name, release)
        except DOUBTFUL as error:
            return self._find_lost(error)
        except BlobsyncError as error:
            return self._refused(error)
        return ref

    def ref(self) -> JobRef:
        return JobRef(self._spec.run_id, self._name, self._place.record)

    def find(self) -> KubernetesJob | None:
        """The Job of this submission, released or not."""
        with suppress(JobNotFoundError):
            job = KubernetesJob(self._place.get("Job", self._name))
            return job if job.run_id == self._spec.run_id else None
        return None

    def remove_unreleased(self) -> list[str]:
        """Remove the objects of a job that never ran; returns those that remain: ``Job/NAME``. Safe to repeat."""
        job = self.find()
        return self._remove() if job and not job.released else []

    def _demand_queue(self, request: KubernetesRequest) -> None:
        queue = request.job["metadata"]["labels"].get(QUEUE_LABEL)
        # A user may use queues without the right to read them.
        with suppress(BackendDeniedError, BackendUnavailableError):
            if queue:
                demand_queue(self._place, queue)

    def _admitted(self, request: KubernetesRequest) -> KubernetesRequest:
        """The request, adapted to the namespace's Pod Security level."""
        if enforced_level(self._place) != RESTRICTED or (fitting := request.restricted()) == request:
            return request
        where, who = f"the namespace {self._place.namespace} admits restricted pods only", fitting.user
        self._place.note(f"{where}: the job runs as user {who}; kubernetes.security_context chooses another")
        return fitting

    def _make_job(self, body: Mapping[str, Any]) -> KubernetesJob:
        name = str(body["metadata"]["name"])
        try:
            made = self._place.create(body)
        except KubernetesRefusal as refusal:
            # An earlier attempt has created it.
            if refusal.reason != "AlreadyExists":
                raise
            made = self._place.get("Job", name)
        job = KubernetesJob(made)
        if job.run_id != self._spec.run_id:
            raise SubmissionError(
                f"the namespace {self._place.namespace} has a Job {name} of {job.run_id or 'somebody else'}",
                hint="submit it again: the new job gets another id",
            )
        self._made.append(f"Job/{name}")
        return job

    def _make(self, body: Mapping[str, Any]) -> None:
        try:
            self._place.create(body)
        except KubernetesRefusal as refusal:
            if refusal.reason != "AlreadyExists":
                raise
            # It is an earlier attempt's, with an older SAS.
            if body["kind"] == "Secret":
                self._place.replace(body)
        self._made.append(f"{body['kind']}/{body['metadata']['name']}")

    def _find_lost(self, error: BlobsyncError) -> Outcome:
        """The outcome after a lost response: accepted if the Job was released, else removed."""
        with suppress(BlobsyncError):
            job = self.find()
            if job and job.released:
                return self.ref()
            if job and not self._remove():
                return Refused(_submission_error(error))
        return Unknown(error)

    def _refused(self, error: BlobsyncError) -> Outcome:
        refusal = _submission_error(error)
        try:
            left = self.remove_unreleased()
        except BlobsyncError:
            left = self._to_delete(self._made)
        if left:
            words = ("delete", *left, f"--namespace={self._place.namespace}", "--ignore-not-found")
            command = self._place.shown(*words)
            refusal.hint = f"{refusal.hint or 'correct that'}; then remove what was made: {command}"
        return Refused(refusal)

    def _objects(self) -> Iterator[tuple[str, str]]:
        """The objects that are not deleted with the Job, or not at once (Secrets, volumes), and the Job last."""
        for name in (self._name, pull_name(self._name), *mount_names(self._spec, self._name)):
            yield "Secret", name
        for name in mount_names(self._spec, self._name):
            yield "PersistentVolume", name
        # The first one is what the others are found by.
        for each in reversed(job_names(self._spec)):
            yield "Job", each.own

    def _remove(self) -> list[str]:
        """Remove all objects by name, since a role inside a namespace cannot list cluster-wide ones.

        Returns those of this submission that could not be removed.
        """
        left: list[str] = []
        silent = False
        for kind, name in self._objects():
            try:
                if not silent:
                    self._place.delete(kind, name)
                    continue
            except DOUBTFUL:
                # Each request to an unreachable server takes a minute.
                silent = True
            except BlobsyncError:
                pass
            left.append(f"{kind}/{name}")
        return self._to_delete(left)

    def _to_delete(self, there: Sequence[str]) -> list[str]:
        """The objects for a ``kubectl delete``: the rest is deleted with the Job."""
        return [each for each in there if each in self._made and each.startswith(("Job/", "PersistentVolume/"))]


def _submission_error(error: BlobsyncError) -> BlobsyncError:
    if isinstance(error, KubernetesRefusal):
        return SubmissionError(error.message, hint=error.hint)
    return error
