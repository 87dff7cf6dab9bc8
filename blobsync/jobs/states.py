"""The states of jobs: asked for at their clusters, recorded, and in sentences; and the request to cancel a job.

Asking also renews SAS that expire soon, removes the secrets of jobs that have ended, and starts the user's own command
for a job whose end is seen for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from blobsync.backends.protocol import DOUBTFUL, KEEP_SECRETS, Backend
from blobsync.base.errors import BlobsyncError, JobError, JobNotFoundError, UsageError
from blobsync.config.user_config import load_user_config, user_config_file
from blobsync.jobs.context import JobContext, demand_own
from blobsync.jobs.record import JobFilter, JobList, JobRecord
from blobsync.jobspec.spec import RunInfo, State

# A job whose submission was interrupted, and which its cluster does not know.
INTERRUPTED = "its submission was interrupted, and the cluster does not show it"
# A cluster where the removal of secrets failed is asked again after this time, or with the next request about its jobs.
AGAIN_SECONDS = 3600.0
# After this long, a request whose response was lost has arrived or never will.
SETTLE_SECONDS = 600.0


def refresh(context: JobContext, records: Sequence[JobRecord]) -> JobList:
    """Ask each cluster once for all its jobs that have not ended; errors become ``problems`` of the list."""
    # An earlier answer is not the current state.
    records = [replace(record, current=False) for record in records]
    fresh = {record.run_id: record for record in records}
    problems: list[str] = []
    asked: dict[int, tuple[Backend, list[JobRecord]]] = {}
    for record in records:
        if record.info.state.is_final or record.by:
            continue
        try:
            backend = context.backend_of(record)
            if not record.ref.native_id:
                record = fresh[record.run_id] = _look_up(context, record, backend)
            if record.ref.native_id:
                asked.setdefault(id(backend), (backend, []))[1].append(record)
        except BlobsyncError as error:
            problems.append(_not_confirmed(record, error))
    answered: set[str] = set()
    for backend, group in asked.values():
        try:
            infos = backend.get([record.ref for record in group])
        except BlobsyncError as error:
            problems.append(_not_confirmed(group[0], error))
            continue
        for record, info in zip(group, infos, strict=True):
            fresh[record.run_id] = _recorded(context, record, info)
        problems += [
            problem
            for record, info in zip(group, infos, strict=True)
            if (problem := _renewed(context, record, backend, info.granted))
        ]
        answered |= {_place_of(record) for record in group}
    problems += _remove_secrets(context, answered)
    if fresh:
        from blobsync.jobs.shared_records import share  # late: most projects have no jobs

        share(context, list(fresh.values()))
    return JobList(tuple(_as_known(fresh[record.run_id]) for record in records), tuple(dict.fromkeys(problems)))


def _recorded(context: JobContext, record: JobRecord, info: RunInfo) -> JobRecord:
    if record.spec.spread is not None:
        from blobsync.jobs.detached import end_told  # late: few jobs are transfers

        info = end_told(context, record, info)
    now = context.history.update(record, info)
    if now.has_just_ended:
        _tell_of_end(context, now)
    return now


def _tell_of_end(context: JobContext, record: JobRecord) -> None:
    """Start ``notify.command`` of the user's own configuration; notes why it cannot be started."""
    if record.spec.spread is not None and not record.spec.spread.get("detach"):
        return
    try:
        words = load_user_config(context.environ).notify
        if words:
            about = {
                "BLOBSYNC_JOB": record.run_id,
                "BLOBSYNC_JOB_STATE": str(record.state),
                "BLOBSYNC_JOB_CLUSTER": record.cluster,
                "BLOBSYNC_JOB_NAME": record.spec.name,
                "BLOBSYNC_JOB_REASON": record.reason,
            }
            # Not in the project, whose files could come before those of the user's own program.
            home = user_config_file(context.environ).parent
            log = context.state.root / "notify.txt"
            context.process.spawn_detached(words, log=log, env={**context.environ, **about}, cwd=home)
    except BlobsyncError as error:
        context.note(f"notify.command was not run for {record.run_id}: {error.message}")


def _renewed(context: JobContext, record: JobRecord, backend: Backend, granted: float) -> str:
    """Give new SAS to a job whose SAS expire soon; returns why that failed, or an empty text."""
    if not granted:
        return ""
    from blobsync.jobspec.node_secrets import grant, is_lapsing  # late: only Kubernetes needs it
    from blobsync.store.sas import sas_minter

    if not is_lapsing(granted, time.time()):
        return ""
    try:
        cluster = context.cluster_of(record)
        _, secrets, _ = grant(record.spec, [cluster], sas_minter(cluster, context.environ))
        backend.renew(record.ref, secrets)
    except BlobsyncError as error:
        return f"the SAS of {record.run_id} expires before long, and could not be renewed: {error.message}"
    return ""


def _remove_secrets(context: JobContext, answered: Collection[str]) -> list[str]:
    """Remove the secrets of all ended jobs from the clusters that keep them; returns why that failed.

    A cluster that has just ``answered`` is asked each time, others once in ``AGAIN_SECONDS``: they may not respond.
    """
    places: dict[int, tuple[Backend, list[JobRecord]]] = {}
    kept = context.history.with_secrets(KEEP_SECRETS, time.time())
    due = context.history.with_secrets(KEEP_SECRETS, time.time() - AGAIN_SECONDS) if kept else ()
    for record in kept:
        with suppress(BlobsyncError):
            backend = context.backend_of(record)
            if _place_of(record) in answered or record in due:
                places.setdefault(id(backend), (backend, []))[1].append(record)
    problems = []
    for keeping, group in places.values():
        try:
            keeping.remove_secrets([record.ref for record in group])
            context.history.note_secrets(group, gone=True)
        except BlobsyncError as error:
            context.history.note_secrets(group, gone=False)
            what = group[0].run_id if len(group) == 1 else f"{len(group):,} jobs that have ended"
            problems.append(f"cluster {group[0].cluster} still has the secrets of {what}: {error.message}")
    return problems


def _look_up(context: JobContext, record: JobRecord, backend: Backend) -> JobRecord:
    """Resolve a submission whose response was lost. Raises what the backend raises."""
    ref = backend.locate(record.spec)
    if ref:
        return context.history.accept(record, ref)
    if time.time() - record.submitted < SETTLE_SECONDS:
        return record
    backend.forget(record.spec)
    info = RunInfo(record.run_id, State.FAILED, reason=f"{backend.name} never received it: {INTERRUPTED}")
    return context.history.update(record, info)


def recent(
    context: JobContext, states: Collection[State] = (), limit: int | None = None, cluster: str | None = None
) -> JobList:
    """The newest jobs in these states, as they are now."""
    refreshed = refresh(context, context.history.page(JobFilter(cluster=cluster), limit=None if states else limit))
    chosen = [record for record in refreshed.records if not states or record.info.state in states]
    shown = tuple(chosen[:limit])
    total = len(chosen) if states else sum(context.history.count_states(JobFilter(cluster=cluster)).values())
    return replace(refreshed, records=shown, more=max(total - len(shown), 0))


def cancel(context: JobContext, record: JobRecord) -> JobRecord:
    """Stop a job; one that has ended stays as it is. Safe to repeat.

    Raises ``JobError`` and its like unless the job's own backend has taken the request.
    """
    demand_own(record)
    if record.info.state.is_final:
        return record
    if not record.ref.native_id:
        raise JobError(
            f"{record.run_id} cannot be stopped yet: {record.info.reason or INTERRUPTED}",
            hint="try again later: blobsync looks for it each time",
        )
    with doubts_said(f"{record.run_id} is being stopped"):
        context.backend_of(record).cancel(record.ref)
    known = refresh(context, [context.history.ask_cancel(record)]).records[0]
    if known.info.state.is_final:
        return known
    return replace(known, info=replace(known.info, state=State.CANCELING), current=True)


def demand_task(record: JobRecord, number: int) -> None:
    """Raise ``UsageError`` for a job without tasks of a user, ``JobNotFoundError`` if it has none of this number."""
    if record.spec.spread is not None:
        raise UsageError(
            f"{record.run_id} is a transfer, which commands take as a whole, not by its tasks",
            hint=f"blobsync logs {record.run_id} -F shows the lines of all of them",
        )
    array = record.spec.tasks
    if array is None:
        raise UsageError(f"{record.run_id} has no tasks", hint=f"blobsync q {record.run_id}")
    if number not in array.all_numbers:
        last = array.all_numbers[-1]
        raise JobNotFoundError(f"{record.run_id} has no task {number}; its last one is {last}")


def cancel_task(context: JobContext, record: JobRecord, number: int) -> None:
    """Stop one task of a job; one that has ended stays as it is. Raises as :func:`cancel`, and ``UsageError`` where the
    platform ends all tasks or none."""
    demand_own(record)
    if record.info.state.is_final or any(task.number == number and task.state.is_final for task in record.info.tasks):
        return
    if not record.ref.native_id:
        raise JobError(
            f"{record.run_id} cannot be stopped yet: {record.info.reason or INTERRUPTED}", hint="try again later"
        )
    with doubts_said(f"task {number} of {record.run_id} is being stopped"):
        context.backend_of(record).cancel_task(record.ref, number)


@contextmanager
def doubts_said(doing: str) -> Iterator[None]:
    """Raise ``JobError`` if the response of a backend was lost; what it refuses is raised as it is.

    ``doing``: ``job_1 is being stopped``.
    """
    try:
        yield
    except DOUBTFUL as error:
        hint = "run the same command again: that is safe"
        raise JobError(f"unknown whether {doing}: {error.message}", hint=hint) from error


def _not_confirmed(record: JobRecord, error: BlobsyncError) -> str:
    return f"cluster {record.cluster}: {error.message}; showing the last known state"


def _place_of(record: JobRecord) -> str:
    return record.home.key if record.home else record.cluster


def _as_known(record: JobRecord) -> JobRecord:
    """A job that no backend has confirmed has no state."""
    if record.ref.native_id or record.info.state.is_final or record.by:
        return record
    return replace(record, info=RunInfo(record.run_id, State.UNKNOWN, reason=INTERRUPTED))


class StateNotes:
    """Notes why a job does not run, and why its cluster cannot be asked.

    Each sentence is noted once, and again only after the job was put back into the queue.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[tuple[int, str]] = set()
        self._reason = ""

    def update(self, record: JobRecord, problems: Iterable[str] = ()) -> None:
        """Note what changed since the last call; not how the job ended, which the caller reports."""
        for problem in problems:
            self._say(record, problem)
        if record.info.state.is_final:
            return
        # A reason that has gone is a change, too.
        if record.info.reason or self._reason:
            self._say(record, f"{record.run_id}: {record.info.sentence}")
        self._reason = record.info.reason

    def _say(self, record: JobRecord, sentence: str) -> None:
        key = (record.info.restarts, sentence)
        if key not in self._noted:
            self._noted.add(key)
            self._note(sentence)
