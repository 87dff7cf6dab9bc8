"""The end of a detached transfer, whose job is Completed only when a task has looked at the destination and said so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from blobsync.base.errors import BlobsyncError, CredentialError
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobFilter, JobRecord
from blobsync.jobspec.node_secrets import known_accounts, run_key
from blobsync.jobspec.spec import RunInfo, State
from blobsync.spread.shared_store import ContainerStore, FolderStore, Result, SealedStore, SharedStore, earlier_result

NOT_VERIFIED = "moved, not verified: the same command again verifies it"
_MOST_JOBS = 1000


def end_told(context: JobContext, record: JobRecord, info: RunInfo) -> RunInfo:
    """What is known of a job, with how its transfer ended: ``info`` itself for any other job, and for one that runs.

    The transfer's result decides. Without one the job is not Completed, whatever its platform says.
    """
    orders = record.spec.spread or {}
    if not orders.get("detach") or not orders.get("count") or info.state not in (State.COMPLETED, State.FAILED):
        return info
    try:
        result = _result(context, record)
    except BlobsyncError as error:
        return replace(info, state=State.RUNNING, exit_code=None, ended=None, reason=f"not verified: {error.message}")
    if result is not None:
        code = result.exit_code
        return replace(info, state=State.FAILED if code else State.COMPLETED, exit_code=code)
    return replace(info, state=State.FAILED, reason=NOT_VERIFIED, exit_code=info.exit_code or None)


def closed(context: JobContext, run: str, *, all_verified: bool) -> None:
    """Record that a command has looked at what the job of a run moved, which nobody had closed."""
    for record in context.history.page(JobFilter(states=(State.FAILED,)), limit=_MOST_JOBS):
        if (record.spec.spread or {}).get("run") == run and record.info.reason == NOT_VERIFIED:
            state, reason = State.FAILED, "a later command verified it: not all of its files had arrived"
            if all_verified:
                state, reason = State.COMPLETED, "a later command verified it"
            info = replace(record.info, state=state, reason=reason, exit_code=0 if all_verified else 3)
            context.history.update(record, info)


def _result(context: JobContext, record: JobRecord) -> Result | None:
    orders = record.spec.spread or {}
    key = run_key(context.environ, str(orders["run"]))
    with _place(context, record) as place:
        sealed = SealedStore(place, key, str(orders["run"]), context.note)
        return earlier_result(record.run_id, sealed)


@contextmanager
def _place(context: JobContext, record: JobRecord) -> Iterator[SharedStore]:
    orders = record.spec.spread or {}
    container, place = str(orders["container"]), str(orders["place"])
    if not container:
        yield FolderStore(Path(place))
        return
    cluster = context.cluster_of(record)
    account = known_accounts([cluster]).get(container)
    if account is None:
        raise CredentialError(f"{cluster.file} does not contain {container} any more")
    with context.store(cluster, account, patient=False) as store:
        yield ContainerStore(store, place)
