"""Why a cluster file would have every job refused, as far as can be told without asking anybody. Pure.

``submit`` raises what the same functions raise; ``config check`` tells it beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import SasToken
from blobsync.base.process import SubprocessRunner
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.access import grant
from blobsync.jobs.backends import create_backend
from blobsync.jobs.backends.base import Surroundings
from blobsync.jobs.board import settings_of
from blobsync.jobs.code_choice import code_entry
from blobsync.jobs.describe import SubmitRequest, demand_platform, describe
from blobsync.jobs.spec import CodeRef
from blobsync.local.state_dir import NAME
from blobsync.store.connect import mint_sas

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
        entry = code_entry(cluster)
        code = CodeRef(str(entry.account.container), entry.path, "") if entry else None
    except BlobsyncError as error:
        found.append(error)
    try:
        spec = describe(cluster, request, _RUN_ID, code)
        create_backend(cluster.platform, _around(cluster, environ)).plan(spec)
        grant(spec, [cluster], _mint)
    except BlobsyncError as error:
        found.append(error)
    return tuple(found)


def _around(cluster: Cluster, environ: Mapping[str, str]) -> Surroundings:
    return Surroundings(
        cluster=cluster.name,
        project=cluster.root,
        state_dir=cluster.root / NAME,
        settings=settings_of(cluster),
        environ=environ,
        process=SubprocessRunner(),
        configured=cluster,
    )


def _mint(account: StorageAccount, rights: str, seconds: int) -> SasToken:
    return _UNASKED if account.credential == "identity" else mint_sas(account, rights, seconds)
