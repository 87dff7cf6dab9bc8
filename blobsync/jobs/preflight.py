"""Why a cluster file would have every job refused, as far as can be told without asking anybody. Pure.

``submit`` raises what the same functions raise; ``config check`` tells it beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blobsync.backends import create_backend
from blobsync.backends.protocol import Backend, Plan, Surroundings
from blobsync.base.azure_urls import SasToken
from blobsync.base.errors import BlobsyncError
from blobsync.base.process import ProcessRunner, SubprocessRunner
from blobsync.config.job_keys import refusal_of
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.service import settings_of
from blobsync.jobspec.code_choice import code_entry
from blobsync.jobspec.describe import SubmitRequest, demand_platform, describe
from blobsync.jobspec.node_sas import SasForAccount, grant
from blobsync.jobspec.spec import CodeRef
from blobsync.local.state_dir import NAME
from blobsync.store.connect import demand_usable, mint_sas

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
            spec = describe(replace(cluster, job_refusals=()), request, _RUN_ID, code)
            if cluster.job_refusals:
                return tuple(found)
            create_backend(cluster.platform, around(cluster, environ)).plan(spec)
        grant(spec, [cluster], _minter(environ))
    except BlobsyncError as error:
        if error.message not in [each.message for each in found]:
            found.append(error)
    return tuple(found)


def any_plan(cluster: Cluster, backend: Backend) -> Plan:
    """What some job would ask of ``backend``, for a cluster of which nothing is refused."""
    entry = code_entry(cluster)
    code = CodeRef(str(entry.account.container), entry.path, "") if entry else None
    return backend.plan(describe(cluster, _ANY_REQUEST, _RUN_ID, code))


def around(cluster: Cluster, environ: Mapping[str, str], process: ProcessRunner | None = None) -> Surroundings:
    """What a backend is made from without a project that is open."""
    return Surroundings(
        cluster=cluster.name,
        project=cluster.root,
        state_dir=cluster.root / NAME,
        settings=settings_of(cluster),
        environ=environ,
        process=process or SubprocessRunner(),
        configured=cluster,
    )


def _minter(environ: Mapping[str, str]) -> SasForAccount:
    def mint(account: StorageAccount, rights: str, seconds: int) -> SasToken:
        if account.granting_credential == "identity":
            demand_usable(account, environ)
            return _UNASKED
        return mint_sas(account, rights, seconds, environ=environ)

    return mint
