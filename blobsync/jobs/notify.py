"""The user's own command at the end of a job: run once, by whoever sees the end first."""

from __future__ import annotations

from blobsync.base.errors import BlobsyncError
from blobsync.config.user_config import load_user_config, user_config_file
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord

# Beside the history: what the command printed.
_LOG = "notify.txt"


def tell_of_end(context: JobContext, record: JobRecord) -> None:
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
            log = context.state.root / _LOG
            context.process.spawn_detached(words, log=log, env={**context.environ, **about}, cwd=home)
    except BlobsyncError as error:
        context.note(f"notify.command was not run for {record.run_id}: {error.message}")
