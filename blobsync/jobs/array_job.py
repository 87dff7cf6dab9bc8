"""A job with tasks, of a sweep or of a spread transfer: submitted, watched and ended in one way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import BlobsyncError
from blobsync.base.formatting import count_text
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.states import StateNotes, cancel, refresh
from blobsync.jobs.submit import hand_over
from blobsync.jobspec.spec import SERVICES, JobSpec, State

if TYPE_CHECKING:
    from blobsync.jobs.record import JobTask

# Seconds: how long tasks that were stopped have to end, and the time between two questions about their job; services
# limit the rate of these.
_END_SECONDS, _LOOK_SECONDS, _SERVICE_SECONDS = 60.0, 0.5, 5.0
# A task's result, in its own output.
RESULT_FILE = "result.json"


class ArrayJob:
    """A submitted job with tasks: submit, watch, end."""

    def __init__(self, context: JobContext, record: JobRecord) -> None:
        self._context = context
        self._notes = StateNotes(context.note)
        self.record = record

    def __repr__(self) -> str:
        return f"<ArrayJob {self.record.run_id}: {count_text(len(self.record.tasks), 'task')}>"

    @classmethod
    def submit(cls, context: JobContext, clusters: tuple[Cluster, Cluster | None], spec: JobSpec) -> ArrayJob:
        """Hand the job over to the first of the clusters; the other has containers that it needs, too. Raises
        ``TooManyTasksError`` if it may be accepted with fewer tasks."""
        cluster, other = clusters
        submitted = hand_over(context, cluster, spec, origin=other)
        for warning in submitted.warnings:
            context.note(warning)
        size = f"{count_text(spec.tasks.count, 'task')}, {spec.tasks.parallel:,} at a time" if spec.tasks else ""
        context.note(f"job {spec.run_id} on {cluster.name}: {size or count_text(spec.nodes, 'node')}")
        return cls(context, submitted.record)

    @property
    def tasks(self) -> tuple[JobTask, ...]:
        """The tasks with their parameters, and their states as the platform says now."""
        self.ended()
        return self.record.tasks

    def wait(self) -> JobRecord:
        """Wait until all tasks have ended, or the platform has forgotten them; notes why they do not run."""
        while not is_over(self.record):
            self._context.sleep(_SERVICE_SECONDS if self.record.spec.platform in SERVICES else _LOOK_SECONDS)
            self.ended()
        return self.record

    def results(self) -> Mapping[int, Any]:
        """What each task wrote to ``result.json`` in its output (``$BLOBSYNC_OUTPUT``), by its number, of those that
        did. Raises ``UsageError`` if tasks have no outputs of their own, ``JobError`` for a file that is not JSON."""
        from blobsync.jobs.task_table import read_json_files

        return read_json_files(self._context, self.record, RESULT_FILE)

    def ended(self) -> str | None:
        """How the job ended, None if it has not, or if its platform cannot be asked; notes why it does not run."""
        found = refresh(self._context, [self.record])
        self.record = found[0]
        self._notes.update(self.record, found.problems)
        info = self.record.info
        if is_over(self.record):
            return f"{info.sentence}; see blobsync logs {self.record.run_id}"
        return None

    def stop(self, seconds: float = _END_SECONDS) -> bool:
        """Cancel the job and wait until its platform says that all of its tasks have ended; False if it does not, or
        cannot be asked. Notes why it cannot be cancelled."""
        until = time.monotonic() + seconds
        try:
            if self.ended() is None:
                cancel(self._context, self.record)
            return self._wait(until)
        except BlobsyncError as error:
            job = self.record.run_id
            self._context.note(f"the job {job} was not stopped: {error.message}; stop it with blobsync abort {job}")
            return False

    def finish(self) -> None:
        """Wait until the tasks, whose work is done, have ended by themselves; after a minute cancel the job."""
        if not self._wait(time.monotonic() + _END_SECONDS):
            self.stop()

    def _wait(self, until: float) -> bool:
        while self.ended() is None:
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def is_over(record: JobRecord) -> bool:
    """Whether the platform says that none of the job's tasks runs, or ever will: one that it has forgotten is over,
    if it had accepted it."""
    gone = record.current and record.info.state is State.UNKNOWN and bool(record.ref.native_id)
    return record.info.state.is_final or gone
