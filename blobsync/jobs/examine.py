"""Whether the place where a cluster's jobs run would take one, as far as asking tells. Starts no job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blobsync.backends import create_backend
from blobsync.backends.protocol import Backend, ClusterSummary, Examining
from blobsync.base.amounts import count_text
from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.environment import environment
from blobsync.base.errors import BackendDeniedError, BlobsyncError
from blobsync.base.process import ProcessRunner, SubprocessRunner
from blobsync.config.model import Cluster
from blobsync.jobs.preflight import any_plan, around, refusals


def examine_jobs(
    cluster: Cluster, environ: Mapping[str, str] | None = None, process: ProcessRunner | None = None
) -> Iterator[CheckResult]:
    """What ``submit`` would be refused with, by the file or by the place that it names. Nothing for a cluster file
    without a platform, which is for transfers alone."""
    environ = environment(environ)
    if not cluster.platform_given:
        return
    told = refusals(cluster, environ)
    for error in told:
        detail = f"{error.message}: submit refuses it"
        yield CheckResult(cluster.file, "submit", CheckStatus.WARN, detail, error.hint)
    try:
        backend = create_backend(cluster.platform, around(cluster, environ, process or SubprocessRunner()))
        found = (
            [*backend.examine(None if told else any_plan(cluster, backend))] if isinstance(backend, Examining) else []
        )
    except BlobsyncError as error:
        # The file's own mistakes are told by now.
        if error.message not in [each.message for each in told]:
            yield failed_check(cluster.file, "jobs", error)
        return
    yield from found
    if not any(each.status is CheckStatus.FAIL for each in found):
        yield _summary(cluster.file, backend)


def _summary(about: str, backend: Backend) -> CheckResult:
    """What is free is one question that every place answers, if it answers at all."""
    try:
        found = backend.summary()
    except BackendDeniedError as error:
        return failed_check(about, "cluster", error, CheckStatus.UNTRIED)
    except BlobsyncError as error:
        return failed_check(about, "cluster", error)
    return CheckResult(about, "cluster", CheckStatus.OK, f"{backend.name} answers: {_size(found)}")


def _size(found: ClusterSummary) -> str:
    totals = ((found.nodes_total, "node"), (found.gpus_total, "GPU"))
    parts = [count_text(total, what) for total, what in totals if total is not None]
    return ", ".join([*parts, f"{count_text(found.jobs_running, 'job')} running, {found.jobs_queued:,} waiting"])
