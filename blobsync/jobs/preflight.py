"""Checks a cluster file and the place where its jobs run, before anything is submitted.

What ``submit`` would refuse is found with the same functions and without a request; ``config check`` and ``doctor``
then ask the place itself. Starts no job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blobsync.backends import create_backend
from blobsync.backends.protocol import Backend, ClusterSummary, Plan, Surroundings
from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.errors import BackendDeniedError, BlobsyncError
from blobsync.base.formatting import count_text
from blobsync.base.process import ProcessRunner
from blobsync.base.redaction import SasToken
from blobsync.base.user_folders import environment
from blobsync.config.job_keys import refusal_of
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobspec.code_choice import code_entry
from blobsync.jobspec.make_spec import SubmitRequest, demand_platform, describe
from blobsync.jobspec.node_secrets import grant
from blobsync.jobspec.spec import CodeRef
from blobsync.local.state_dir import NAME
from blobsync.store.connect import demand_usable
from blobsync.store.sas import SasForAccount, mint_sas

# Any command and any id: what is wrong with a request is not the file's fault.
_ANY_REQUEST = SubmitRequest(("true",))
_RUN_ID = "user_0_00000000"
# What only a service can make, in place of it.
_UNASKED = SasToken.parse("sig=none")


def refusals(
    cluster: Cluster, environ: Mapping[str, str], request: SubmitRequest = _ANY_REQUEST
) -> tuple[BlobsyncError, ...]:
    """What ``submit`` would raise on ``cluster``; several where they do not hide each other."""
    found: list[BlobsyncError] = []
    code: CodeRef | None = None
    try:
        demand_platform(cluster)
    except BlobsyncError as error:
        return (error,)
    try:
        with cluster.naming_lines():
            entry = code_entry(cluster)
        if entry:
            code = CodeRef(str(entry.account.container), entry.path, "")
            demand_usable(entry.account, environ)
    except BlobsyncError as error:
        found.append(error)
    found += [refusal_of([one]) for one in cluster.job_refusals]
    try:
        with cluster.naming_lines():
            spec = describe(cluster._replace(job_refusals=()), request, _RUN_ID, code)
            if cluster.job_refusals:
                return tuple(found)
            create_backend(around(cluster, environ)).plan(spec)
        grant(spec, [cluster], _minter(environ))
    except BlobsyncError as error:
        if error.message not in [each.message for each in found]:
            found.append(error)
    return tuple(found)


def any_plan(cluster: Cluster, backend: Backend) -> Plan:
    """The plan of an example job, for a cluster file without refusals."""
    entry = code_entry(cluster)
    code = CodeRef(str(entry.account.container), entry.path, "") if entry else None
    return backend.plan(describe(cluster, _ANY_REQUEST, _RUN_ID, code))


def around(cluster: Cluster, environ: Mapping[str, str], process: ProcessRunner | None = None) -> Surroundings:
    """What a backend is made from without a project that is open."""
    return Surroundings(cluster, cluster.root / NAME, environ, process or ProcessRunner())


def _minter(environ: Mapping[str, str]) -> SasForAccount:
    def mint(account: StorageAccount, rights: str, seconds: int) -> SasToken:
        if account.granting_credential == "identity":
            demand_usable(account, environ)
            return _UNASKED
        return mint_sas(account, rights, seconds, environ=environ)

    return mint


def examine_jobs(
    cluster: Cluster, environ: Mapping[str, str] | None = None, process: ProcessRunner | None = None
) -> Iterator[CheckResult]:
    """What ``submit`` would be refused with, by the file or by the place that it names. Nothing for a cluster file
    without a platform, which is for transfers alone."""
    environ = environment(environ)
    if not cluster.platform_given:
        return
    refused = refusals(cluster, environ)
    for error in refused:
        detail = f"{error.message}: submit refuses it"
        yield CheckResult(cluster.file, "submit", CheckStatus.WARN, detail, error.hint)
    try:
        backend = create_backend(around(cluster, environ, process))
        found = [*backend.examine(None if refused else any_plan(cluster, backend))]
    except BlobsyncError as error:
        # The mistakes of the file have been reported above.
        if error.message not in [each.message for each in refused]:
            yield failed_check(cluster.file, "jobs", error)
        return
    yield from found
    if not any(each.status is CheckStatus.FAIL for each in found):
        yield _summary(cluster.file, backend)


def _summary(about: str, backend: Backend) -> CheckResult:
    """Whether the cluster answers: asks it what is free."""
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
