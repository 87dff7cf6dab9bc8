"""``project.jobs``: the service for jobs, with tunnels to their nodes.

Errors raise ``BlobsyncError``; warnings come with the result (``warnings``, ``problems``), and go to the listener's
notes if a cluster could not be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from blobsync.config.project_root import current_folder, find_project
from blobsync.jobs.context import JobContext
from blobsync.jobs.service import JobService

if TYPE_CHECKING:
    from blobsync.jobs.first_free import Candidate
    from blobsync.jobs.queries import JobName
    from blobsync.jobspec.make_spec import SubmitRequest
    from blobsync.tunnels.job_tunnel import JobTunnel, TunnelRequest


class Jobs(JobService):
    """The jobs of one project, on whatever clusters they are. Made by ``project.jobs`` and ``open_jobs``.

    A job is named by its id, any unique end of it, the id that its cluster gave it, or a record.
    """

    def __repr__(self) -> str:
        return f"<Jobs of {str(self._context.root)!r}>"

    def tunnel(self, job: JobName, request: TunnelRequest) -> JobTunnel:
        """Open a port of a running job's node at 127.0.0.1; ``with`` closes it. Raises ``JobError`` unless it runs."""
        from blobsync.tunnels.job_tunnel import open_tunnel

        return open_tunnel(self._context, self.find(job), request)


def first_free(
    names: Sequence[str], request: SubmitRequest, *, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> tuple[Candidate, ...]:
    """Which of these clusters of the project around the current folder the job goes to; ``overrides`` are ``-p``'s.

    Raises ``ConfigError``, and ``BackendUnavailableError`` where none has enough.
    """
    from blobsync.config.loader import load_cluster
    from blobsync.jobs.first_free import choose_cluster

    root = find_project(current_folder(environ), environ)
    clusters = [load_cluster(root, name, overrides=overrides, environ=environ) for name in names]
    return choose_cluster(JobContext(root, environ), clusters, request)
